/* What configs and tensors declare of the inputs of products, and what is refused. */
#include "tests/unit/tinymodel.h"

#include "loaders/act_declared.h"

#include <math.h>
#include <stdlib.h>

/* ---- q_proj in every format ---------------------------------------------------------------- */

typedef enum kind { MO4, CT4, FP8T, FP8C, FP8B, MX4, MX8, KINDS } kind;

#define Q L "self_attn.q_proj."
static const float one = 1,
                   half[32] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f,
                               0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f,
                               0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
static const char *const input_name[KINDS] = {
    Q "input_scale", Q "input_global_scale", Q "input_scale", Q "input_scale",
    Q "input_scale", Q "input_scale",        Q "input_scale"};

/* Parts of q_proj; its dense weight is left out by an entry of its name. */
static size_t q_parts(kind k, spec *out) {
    static const spec all[KINDS][3] = {
        {{Q "weight", "U8", "[32,16]", 512, 0x22, NULL},
         {Q "weight_scale", "F8_E4M3", "[32,2]", 64, 0x38, NULL},
         {Q "weight_scale_2", "F32", "[]", 4, 0, &one}},
        {{Q "weight_packed", "U8", "[32,16]", 512, 0x22, NULL},
         {Q "weight_scale", "F8_E4M3", "[32,2]", 64, 0x38, NULL},
         {Q "weight_global_scale", "F32", "[1]", 4, 0, &one}},
        {{Q "weight", "F8_E4M3", "[32,32]", 1024, 0x38, NULL},
         {Q "weight_scale", "F32", "[]", 4, 0, half}},
        {{Q "weight", "F8_E4M3", "[32,32]", 1024, 0x38, NULL},
         {Q "weight_scale", "F32", "[32,1]", 128, 0, half}},
        {{Q "weight", "F8_E4M3", "[32,32]", 1024, 0x38, NULL},
         {Q "weight_scale_inv", "F32", "[1,1]", 4, 0, half}},
        {{Q "weight", "U8", "[32,16]", 512, 0x22, NULL},
         {Q "weight_scale", "U8", "[32,1]", 32, 127, NULL}},
        {{Q "weight", "F8_E4M3", "[32,32]", 1024, 0x38, NULL},
         {Q "weight_scale", "U8", "[32,1]", 32, 127, NULL}},
    };
    size_t n = k == MO4 || k == CT4 ? 3 : 2;
    memcpy(out, all[k], n * sizeof *out);
    if (k == CT4) out[n++] = (spec){Q "weight", NULL, NULL, 0, 0, NULL};
    return n;
}

/* A model whose q_proj is of kind k with this input scale (NULL: without), under this
 * quantization_config. */
static kld_model *model_of(built *b, kind k, const float *input, const char *quant) {
    spec parts[8];
    char config[2048];
    size_t n = q_parts(k, parts);
    if (input) parts[n++] = (spec){input_name[k], "F32", "[]", 4, 0, input};
    snprintf(config, sizeof config, "{" CONFIG ",\"quantization_config\":%s}", quant);
    tiny_make(b, config, k == CT4 ? Q "weight" : NULL, parts, n);
    return tiny_open(b->dir);
}

#define CT(args)                                                                                   \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"config_"       \
    "groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{},\"input_activations\":" args "}}}"
#define MO(algo) "{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algo "\"}"
#define FP8(rest) "{\"quant_method\":\"fp8\"" rest "}"
#define QUARK(input)                                                                               \
    "{\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":\"fp4\"},\"input_" \
    "tensors\":" input "}}"
#define NV                                                                                         \
    "{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,"          \
    "\"dynamic\":"
#define C8 "{\"num_bits\":8,\"type\":\"float\",\"strategy\":"
#define MIXED(name, algo)                                                                          \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{"     \
    "\"" name "\":{\"quant_algo\":\"" algo "\"}}}"

static const float quarter = 0.25f;

/* What a declaration comes to; scale after kld_act_resolve. */
static const struct {
    kind k;
    bool input; /* with an input scale of 0.25 */
    const char *quant;
    kld_act_quant want;
} declared[] = {
    {MO4, true, MO("NVFP4"), {.format = KLD_AQ_NVFP4, .scale = 4}},
    {MO4, true, MO("nvfp4_awq"), {.format = KLD_AQ_NVFP4, .scale = 4}},
    {MO4, true, MO("W4A8_NVFP4_FP8"), {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {MO4, true, MO("W4A16_NVFP4"), {0}},
    {MO4, false, MO("W4A16_NVFP4"), {0}},
    {MO4, false, MO("NVFP4"), {0}}, /* neither a scale nor input_activations anywhere */
    {MO4,
     true,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":null}",
     {.format = KLD_AQ_NVFP4, .scale = 4}},
    {MO4,
     true,
     MIXED("model.layers.0.self_attn.q_proj", "NVFP4"),
     {.format = KLD_AQ_NVFP4, .scale = 4}},
    {MO4, true, MIXED("model.layers.0.self_attn", "W4A16_NVFP4"), {0}},
    {MO4, false, MIXED("model.layers.0.mlp", "NVFP4"), {0}}, /* not listed, nothing beside it */
    {FP8T, true, MO("NVFP4"), {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}}, /* by its tensors */
    {FP8T, true, MO("FP8"), {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {FP8C, false, MO("FP8_PER_CHANNEL_PER_TOKEN"), {.format = KLD_AQ_FP8_TOKEN}},
    {FP8B, false, MO("FP8_PB_WO"), {0}},
    {MX8, false, MO("MXFP8"), {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}},
    {MX4, false, MO("MXFP4"), {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL}},
    {MX4, true, MO("W4A8_MXFP4_FP8"), {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {CT4, true, CT(NV "\"local\"}"), {.format = KLD_AQ_NVFP4, .scale = 0.25f}},
    {CT4, false, CT(NV "true}"), {.format = KLD_AQ_NVFP4, .scale = 1}},
    {CT4, true, CT("null"), {0}},
    {CT4,
     true,
     "{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:.*gate_proj\"],\"config_groups\":{"
     "\"a\":{\"targets\":[\"Linear\"],\"input_activations\":" C8 "\"token\",\"dynamic\":true}},"
     "\"b\":{\"targets\":[\"re:.*q_proj$\"],\"input_activations\":" NV "\"local\"}}}}",
     {.format = KLD_AQ_NVFP4, .scale = 0.25f}},
    {CT4, false, CT(C8 "\"token\",\"dynamic\":true}"), {.format = KLD_AQ_FP8_TOKEN}}, /* W4A8 */
    {FP8C, false, CT(C8 "\"token\",\"dynamic\":true}"), {.format = KLD_AQ_FP8_TOKEN}},
    {FP8T,
     true,
     CT(C8 "\"tensor\",\"dynamic\":false}"),
     {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {FP8B,
     false,
     CT(C8 "\"group\",\"group_size\":128,\"dynamic\":true}"),
     {.format = KLD_AQ_FP8_BLOCK}},
    {MX4,
     false,
     CT("{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,\"dynamic\":"
        "true,"
        "\"scale_dtype\":\"torch.uint8\"}"),
     {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN}},
    {MX8,
     false,
     CT(C8 "\"group\",\"group_size\":32,\"dynamic\":true,\"scale_dtype\":\"torch.uint8\"}"),
     {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_EVEN}},
    {FP8T,
     true,
     FP8(",\"activation_scheme\":\"static\""),
     {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {FP8T, false, FP8(",\"activation_scheme\":\"dynamic\""), {.format = KLD_AQ_FP8_TOKEN}},
    {FP8B,
     false,
     FP8(",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]"),
     {.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f}},
    {FP8B,
     false,
     FP8(",\"weight_block_size\":[128,128],\"scale_fmt\":\"ue8m0\""),
     {.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f, .power_of_two = true}},
    {FP8B,
     false,
     FP8(",\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"model.layers.0.self_"
         "attn\"]"),
     {0}},
    {MX8, false, "{\"quant_method\":\"mxfp8\"}", {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}},
    {MX4, false, "{\"quant_method\":\"mxfp4\"}", {0}}, /* gpt-oss */
    {MX4,
     false,
     QUARK("{\"dtype\":\"fp4\",\"qscheme\":\"per_group\",\"group_size\":32,\"is_dynamic\":true,"
           "\"scale_format\":\"e8m0\",\"scale_calculation_mode\":\"even\"}"),
     {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN}},
    {MX4, false, QUARK("null"), {0}},
    {FP8T,
     true,
     QUARK("{\"dtype\":\"fp8_e4m3\",\"qscheme\":\"per_tensor\",\"is_dynamic\":false}"),
     {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}},
    {FP8T, true, "{}", {.format = KLD_AQ_FP8_TENSOR, .scale = 0.25f}}, /* no config: the tensors */
    {FP8T, false, "{}", {0}},
};

static void declarations(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof declared / sizeof *declared; i++) {
        built b;
        kld_err err = {0};
        kld_model *m =
            model_of(&b, declared[i].k, declared[i].input ? &quarter : NULL, declared[i].quant);
        const kld_weight *q = &m->layer[0].slot[KLD_SLOT_Q];
        assert_int_equal(q->act.format, KLD_AQ_NONE); /* nothing before it is asked for */
        if (kld_act_resolve(m, KLD_FUSED_OWN, &err) != KLD_OK)
            fail_msg("%zu %s: %s", i, declared[i].quant, err.text);
        if (!kld_act_same(&q->act, &declared[i].want))
            fail_msg("%zu %s: format %d scale %g exponent %d", i, declared[i].quant,
                     (int)q->act.format, (double)q->act.scale, (int)q->act.exponent);
        /* Weights that are not quantized keep their inputs. */
        for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
            if (at.w != q) assert_int_equal(at.w->act.format, KLD_AQ_NONE);
        kld_model_free(m);
        build_end(&b);
    }
}

/* ---- refusals ------------------------------------------------------------------------------ */

static const float zero = 0, nan_ = NAN, negative = -1, inf = INFINITY;
static const struct {
    kind k;
    const float *input;
    const char *quant;
    kld_status want;
    const char *text;
} refused[] = {
    {CT4, NULL, CT(NV "\"local\"}"), KLD_E_INPUT,
     "weight '" Q "weight_packed': expected a positive finite input scale for NVFP4 inputs, found "
     "none (1 such weight)"},
    {CT4, &zero, CT(NV "\"local\"}"), KLD_E_INPUT,
     "'" Q "input_global_scale': expected a positive finite input scale for NVFP4 inputs, found 0"},
    {MO4, &nan_, MO("NVFP4"), KLD_E_INPUT,
     "found nan (1 such weight); use --fused-input-scale max"},
    {MO4, &inf, MO("NVFP4"), KLD_E_INPUT, "found inf"},
    {FP8T, &negative, MO("FP8"), KLD_E_INPUT, "found -1"},
    {FP8T, NULL, FP8(",\"activation_scheme\":\"static\""), KLD_E_INPUT, "found none"},
    {CT4, NULL, CT("{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}"),
     KLD_E_UNSUPPORTED, "not emulated: int of 8 bits, strategy token"},
    {FP8T, NULL, CT(C8 "\"tensor\",\"dynamic\":true}"), KLD_E_UNSUPPORTED,
     "strategy tensor, group_size 0, dynamic true"},
    {FP8T, NULL, CT(C8 "\"token\",\"dynamic\":true,\"symmetric\":false}"), KLD_E_UNSUPPORTED,
     "asymmetric"},
    {FP8B, NULL, FP8(",\"weight_block_size\":[128,64]"), KLD_E_UNSUPPORTED, "FP8 in blocks of 64"},
    {MX4, NULL, FP8(",\"weight_block_size\":[128,128]"), KLD_E_UNSUPPORTED,
     "weights in another format"},
    {FP8T, NULL, "{\"quant_method\":\"fbgemm_fp8\"}", KLD_E_UNSUPPORTED, "quant_method fbgemm_fp8"},
    {MO4, NULL, MO("NVFP4_NEW"), KLD_E_UNSUPPORTED, "quant_algo NVFP4_NEW"},
    {MX4, NULL, QUARK("{\"dtype\":\"int8\",\"qscheme\":\"per_tensor\",\"is_dynamic\":false}"),
     KLD_E_UNSUPPORTED, "int8, per_tensor"},
};

static void refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        built b;
        kld_err err = {0};
        /* It opens all the same: a run of weights alone does not care. */
        kld_model *m = model_of(&b, refused[i].k, refused[i].input, refused[i].quant);
        kld_status st = kld_act_resolve(m, KLD_FUSED_OWN, &err);
        if (st != refused[i].want || !strstr(err.text, refused[i].text))
            fail_msg("%zu: %d '%s' does not say '%s'", i, (int)st, err.text, refused[i].text);
        assert_non_null(strstr(err.text, "--activations weights-only"));
        kld_model_free(m);
        build_end(&b);
    }
}

/* ---- fused scales --------------------------------------------------------------------------- */

static void part_of_proj(built *b, const char *proj, const char *part, const char *dtype,
                         const char *shape, const void *data, size_t bytes) {
    char name[160];
    snprintf(name, sizeof name, L "%s.%s", proj, part);
    build_tensor(b, name, dtype, shape, data, bytes, 0x38);
}

/* A mixture with three experts, all linear layers FP8 with an input scale each; NAN: without. */
enum { MOE_SCALES = 4 + 9 };
static kld_model *mixture(built *b, const float scale[MOE_SCALES]) {
    static const char *const dense[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                        "self_attn.o_proj"};
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    build_begin(b);
    build_text(b, "config.json",
               "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_"
               "size\":32,"
               "\"intermediate_size\":64,\"moe_intermediate_size\":32,\"num_experts\":3,\"num_"
               "experts_per_tok\":2,"
               "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_"
               "dim\":8,"
               "\"vocab_size\":8,\"rms_norm_eps\":1e-5,\"quantization_config\":" MO("FP8") "}");
    build_tensor(b, "model.embed_tokens.weight", "BF16", "[8,32]", NULL, 512, 1);
    build_tensor(b, "model.norm.weight", "BF16", "[32]", NULL, 64, 1);
    build_tensor(b, "lm_head.weight", "BF16", "[8,32]", NULL, 512, 1);
    build_tensor(b, L "input_layernorm.weight", "BF16", "[32]", NULL, 64, 1);
    build_tensor(b, L "post_attention_layernorm.weight", "BF16", "[32]", NULL, 64, 1);
    build_tensor(b, L "self_attn.q_norm.weight", "BF16", "[8]", NULL, 16, 1);
    build_tensor(b, L "self_attn.k_norm.weight", "BF16", "[8]", NULL, 16, 1);
    build_tensor(b, L "mlp.gate.weight", "BF16", "[3,32]", NULL, 192, 1);
    for (size_t i = 0; i < MOE_SCALES; i++) {
        char proj[64];
        if (i < 4) snprintf(proj, sizeof proj, "%s", dense[i]);
        else snprintf(proj, sizeof proj, "mlp.experts.%zu.%s", (i - 4) / 3, part[(i - 4) % 3]);
        part_of_proj(b, proj, "weight", "F8_E4M3", "[32,32]", NULL, 1024);
        part_of_proj(b, proj, "weight_scale", "F32", "[]", &one, 4);
        if (!isnan(scale[i])) part_of_proj(b, proj, "input_scale", "F32", "[]", &scale[i], 4);
    }
    build_write(b, "model.safetensors");
    return tiny_open(b->dir);
}

static float scale_of(const kld_model *m, size_t i) {
    static const kld_slot slot[] = {KLD_SLOT_Q, KLD_SLOT_K, KLD_SLOT_V, KLD_SLOT_O};
    const kld_layer *l = &m->layer[0];
    if (i < 4) return l->slot[slot[i]].act.scale;
    const kld_expert *e = &l->expert[(i - 4) / 3];
    return ((i - 4) % 3 == 0 ? &e->gate : (i - 4) % 3 == 1 ? &e->up : &e->down)->act.scale;
}

static void fused(void **state) {
    (void)state;
    const float stored[MOE_SCALES] = {1, 3, 2, 0.5f, 4, 5, 6, 1, 9, 2, 8, 7, 3};
    const float most[MOE_SCALES] = {3, 3, 3, 0.5f, 9, 9, 6, 9, 9, 6, 9, 9, 6};
    built b;
    kld_err err = {0};
    kld_model *m = mixture(&b, stored);
    for (int f = 1; f >= 0; f--) { /* the second overwrites the first */
        assert_int_equal(kld_act_resolve(m, (kld_fused_scale)f, &err), KLD_OK);
        for (size_t i = 0; i < MOE_SCALES; i++)
            assert_true(scale_of(m, i) == (f ? most : stored)[i]);
    }
    kld_model_free(m);
    build_end(&b);
}

/* An expert that calibration never reached. */
static void missing(void **state) {
    (void)state;
    const float stored[MOE_SCALES] = {1, 3, 2, 0.5f, 4, 5, 6, NAN, 0, 2, 8, 7, 3};
    built b;
    kld_err err = {0};
    kld_model *m = mixture(&b, stored);
    size_t warnings = m->n_warnings;
    assert_int_equal(kld_act_resolve(m, KLD_FUSED_OWN, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "weight '" L "mlp.experts.1.gate_proj.weight'"));
    assert_non_null(strstr(err.text, "found none (2 such weights); use --fused-input-scale max"));
    assert_int_equal(kld_act_resolve(m, KLD_FUSED_MAX, &err), KLD_OK);
    assert_true(scale_of(m, 7) == 8 && scale_of(m, 8) == 8);
    assert_int_equal(m->n_warnings, warnings + 1);
    assert_non_null(strstr(m->warnings[warnings], "2 input scales are missing or not positive"));
    kld_model_free(m);
    build_end(&b);
    /* With no neighbour there is nothing to take. */
    float alone[MOE_SCALES];
    memcpy(alone, stored, sizeof alone);
    alone[3] = 0;
    m = mixture(&b, alone);
    assert_int_equal(kld_act_resolve(m, KLD_FUSED_MAX, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "self_attn.o_proj.input_scale': expected"));
    assert_null(strstr(err.text, "--fused-input-scale"));
    kld_model_free(m);
    build_end(&b);
}

static void uncalibrated(void **state) {
    (void)state;
    float ones[MOE_SCALES];
    for (size_t i = 0; i < MOE_SCALES; i++) ones[i] = 1;
    built b;
    kld_err err = {0};
    kld_model *m = mixture(&b, ones);
    size_t warnings = m->n_warnings;
    assert_int_equal(kld_act_resolve(m, KLD_FUSED_OWN, &err), KLD_OK);
    assert_int_equal(m->n_warnings, warnings + 1);
    assert_non_null(strstr(m->warnings[warnings], "all 13 input scales are 1"));
    kld_model_free(m);
    build_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(declarations), cmocka_unit_test(refusals),     cmocka_unit_test(fused),
        cmocka_unit_test(missing),      cmocka_unit_test(uncalibrated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
