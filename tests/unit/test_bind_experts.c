/* Quantized experts: what is said of a thousand modules at once, and what is refused of one. */
#include "tests/unit/tinymodel.h"

#include <stdlib.h>

/* A layer of two experts of 32 with hidden 32, one attention head. */
#define MOE                                                                                        \
    "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":32,"     \
    "\"moe_intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":1,"              \
    "\"num_key_value_heads\":1,\"head_dim\":32,\"vocab_size\":8,\"num_experts\":2,"                \
    "\"num_experts_per_tok\":1"
#define E L "mlp.experts."

static const spec dense[] = {
    {"model.embed_tokens.weight", "BF16", "[8,32]", 512, 1, NULL},
    {"lm_head.weight", "BF16", "[8,32]", 512, 2, NULL},
    {"model.norm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "input_layernorm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "post_attention_layernorm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "self_attn.q_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "self_attn.k_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "self_attn.v_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "self_attn.o_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "self_attn.q_norm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "self_attn.k_norm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "mlp.gate.weight", "BF16", "[2,32]", 128, 1, NULL},
};

static const char *const PROJECTIONS[] = {"gate_proj", "up_proj", "down_proj"};

typedef enum form { BF16, NVFP4, FP8, MXFP4 } form;

/* One projection of one expert; global 0: the default. */
static void add_module(built *b, size_t e, int k, form f, float global, bool input) {
    char name[128];
    float one = 0.001f;
    size_t n = (size_t)snprintf(name, sizeof name, E "%zu.%s.", e, PROJECTIONS[k]);
#define ADD(suffix, dtype, shape, bytes, fill, data)                                               \
    (snprintf(name + n, sizeof name - n, suffix),                                                  \
     build_tensor(b, name, dtype, shape, data, bytes, fill))
    switch (f) {
    case BF16: ADD("weight", "BF16", "[32,32]", 2048, 1, NULL); return;
    case FP8:
        ADD("weight", "F8_E4M3", "[32,32]", 1024, 0x38, NULL);
        ADD("weight_scale_inv", "F32", "[1,1]", 4, 0, &one);
        return;
    case MXFP4:
        ADD("weight", "U8", "[32,16]", 512, 0x21, NULL);
        ADD("weight_scale", "U8", "[32,1]", 32, 127, NULL);
        return;
    case NVFP4: break;
    }
    ADD("weight", "U8", "[32,16]", 512, 0x21, NULL);
    ADD("weight_scale", "F8_E4M3", "[32,2]", 64, 0x38, NULL);
    ADD("weight_scale_2", "F32", "[]", 4, 0, global > 0 ? &global : &one);
    if (input) ADD("input_scale", "F32", "[]", 4, 0, &one);
#undef ADD
}

typedef struct variant {
    const char *quant;  /* appended to the config */
    form form[2][3];    /* of expert and projection */
    float global[2][3]; /* NVFP4; 0: 0.001 */
    bool no_input;      /* expert 1 was never routed to while calibrating */
    const spec *extra;  /* NULL or one tensor more */
    kld_status st;
    const char *text; /* of the only warning, or of the error; NULL: none */
    const char *label;
} variant;

static const spec awq = {E "1.down_proj.pre_quant_scale", "BF16", "[32]", 64, 1, NULL};

static void check(const variant *v) {
    built b;
    char config[1024];
    kld_model *m;
    kld_err err = {0};
    build_begin(&b);
    snprintf(config, sizeof config, "{" MOE "%s}", v->quant);
    build_text(&b, "config.json", config);
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        build_tensor(&b, dense[i].name, dense[i].dtype, dense[i].shape, NULL, dense[i].bytes,
                     dense[i].fill);
    for (size_t e = 0; e < 2; e++)
        for (int k = 0; k < 3; k++)
            add_module(&b, e, k, v->form[e][k], v->global[e][k], e == 0 || !v->no_input);
    if (v->extra)
        build_tensor(&b, v->extra->name, v->extra->dtype, v->extra->shape, v->extra->data,
                     v->extra->bytes, v->extra->fill);
    build_write(&b, "model.safetensors");
    kld_status st = kld_model_open(&m, b.dir, &err);
    build_end(&b);
    if (st != v->st) fail_msg("status %d: %s", st, err.text);
    const char *said = st != KLD_OK ? err.text : m->n_warnings ? m->warnings[0] : "";
    if (v->text ? !strstr(said, v->text) : *said) fail_msg("'%s' instead of '%s'", said, v->text);
    if (st != KLD_OK) return;
    assert_true(m->n_warnings <= 1);
    assert_string_equal(m->label, v->label);
    assert_int_equal(m->layer[0].expert[1].down.input_scale != NULL,
                     v->form[1][2] == NVFP4 && !v->no_input);
    assert_int_equal(m->layer[0].expert[1].down.pre != NULL, v->extra == &awq);
    assert_null(m->layer[0].expert[0].down.pre);
    kld_model_free(m);
}

#define ALL(f)                                                                                     \
    {                                                                                              \
        {f, f, f}, { f, f, f }                                                                     \
    }
#define Q(text) ",\"quantization_config\":{" text "}"
#define MODELOPT(ignored)                                                                          \
    Q("\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\","            \
      "\"*self_attn*\"" ignored "]")
#define CT(ignored)                                                                                \
    Q("\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\","               \
      "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]}},\"ignore\":[\"lm_head\","              \
      "\"re:.*self_attn\"" ignored "]")

static const spec leaked = {E "1.up_proj.weight_double_scale", "F32", "[1]", 4, 1, NULL};

static const variant VARIANTS[] = {
    {MODELOPT(",\"*.mlp.gate\""), ALL(NVFP4), {{0}}, false, NULL, KLD_OK, NULL, "NVFP4"},
    /* Defect 8: a router that the list does not name is no linear layer in many models. */
    {MODELOPT(""), ALL(NVFP4), {{0}}, false, NULL, KLD_OK, NULL, "NVFP4"},
    {CT(""), ALL(NVFP4), {{0}}, false, NULL, KLD_OK, NULL, "NVFP4"},
    /* One that is named as quantized and is not. */
    {Q("\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{"
       "\"model.layers.0.mlp\":{\"quant_algo\":\"NVFP4\"}}"),
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     "says NVFP4 for 'model.layers.0.mlp.gate', but the file has BF16 (1 of 1",
     "NVFP4"},
    /* Defect 1: gate and up of an expert. */
    {MODELOPT(""),
     ALL(NVFP4),
     {{0.001f, 0.001f, 0.5f}, {0.001f, 0.0012547f, 0}},
     false,
     NULL,
     KLD_OK,
     "1 of 2 fused groups (gate/up of experts) have unequal global scales, largest ratio 1.2547 in "
     "layer 0, expert 1",
     "NVFP4"},
    /* Defect 5. */
    {MODELOPT(""),
     ALL(NVFP4),
     {{0}, {0, 0, 2688.0f}},
     false,
     NULL,
     KLD_OK,
     "experts.1.down_proj.weight_scale_2' is 2688, but a multiplier is usually below 0.02 (1 such",
     "NVFP4"},
    /* Defect 6: weights load without the input scale of an expert. */
    {MODELOPT(""), ALL(NVFP4), {{0}}, true, NULL, KLD_OK, NULL, "NVFP4"},
    /* Defects 7, 14, 18: one expert of another format than the config says, or than its siblings.
     */
    {MODELOPT(",\"*experts.1.gate_proj\""),
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     "says not quantized for 'model.layers.0.mlp.experts.1.gate_proj', but the file has NVFP4 (1 "
     "of "
     "2",
     "NVFP4"},
    {MODELOPT(""),
     {{NVFP4, NVFP4, NVFP4}, {NVFP4, NVFP4, BF16}},
     {{0}},
     false,
     NULL,
     KLD_OK,
     "says NVFP4 for 'model.layers.0.mlp.experts.1.down_proj', but the file has BF16 (1 of 2",
     "NVFP4"},
    {Q("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"modules_to_not_convert\":["
       "\"self_attn\",\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\"]"),
     {{FP8, FP8, FP8}, {FP8, FP8, MXFP4}},
     {{0}},
     false,
     NULL,
     KLD_OK,
     "says FP8 blocks for 'model.layers.0.mlp.experts.1.down_proj', but the file has MXFP4",
     "FP8 (blocks) + MXFP4"},
    /* Defect 9: names of another prefix; and what names nothing. */
    {MODELOPT(",\"backbone.layers.0.mlp.experts\""),
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     "1 entry of the quantization config matches no module of the file: "
     "'backbone.layers.0.mlp.experts'",
     "NVFP4"},
    /* A pattern that names a layer is not tried on another; and this is layer 0. */
    {CT(",\"re:model\\\\.layers\\\\.10\\\\..*\""),
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     "matches no module of the file: 're:model\\.layers\\.10\\..*'",
     "NVFP4"},
    {CT(",\"re:model\\\\.layers\\\\.0\\\\.mlp\\\\.gate\"") "",
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     NULL,
     "NVFP4"},
    /* Defect 26: no algorithm in the config: the tensors say it all. */
    {Q("\"quant_method\":\"modelopt\",\"quant_algo\":null"),
     ALL(NVFP4),
     {{0}},
     false,
     NULL,
     KLD_OK,
     NULL,
     "NVFP4"},
    /* Defects 12, 22, 25. */
    {MODELOPT(""), ALL(NVFP4), {{0}}, false, &awq, KLD_OK, NULL, "NVFP4"},
    {"",
     {{NVFP4, NVFP4, NVFP4}, {NVFP4, NVFP4, FP8}},
     {{0}},
     false,
     &awq,
     KLD_E_UNSUPPORTED,
     "experts.1.down_proj: a pre_quant_scale of this type or in this format is not implemented",
     NULL},
    {"",
     ALL(NVFP4),
     {{0}},
     false,
     &leaked,
     KLD_E_INPUT,
     "experts.1.up_proj: these tensors form no known weight format",
     NULL},
};

static void variants(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) check(&VARIANTS[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(variants)};
    return cmocka_run_group_tests_name("bind experts", tests, NULL, NULL);
}
