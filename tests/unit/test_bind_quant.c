/* Quantized modules: recognised, refused by name, compared with the config. */
#include "tests/unit/tinymodel.h"

#include "kld/base/mem.h"

static const float one = 0.001f, larger = 0.0012547f, divisor = 2048.0f;

/* ---- quantized modules */

#define UP L "mlp.up_proj."
static const spec nvfp4[] = {{UP "weight", "U8", "[64,16]", 1024, 0x21, NULL},
                             {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0x38, NULL},
                             {UP "weight_scale_2", "F32", "[]", 4, 0, &one},
                             {UP "input_scale", "F32", "[]", 4, 0, &one}};
static const spec nvfp4_ct[] = {{UP "weight", NULL, NULL, 0, 0, NULL},
                                {UP "weight_packed", "U8", "[64,16]", 1024, 0x21, NULL},
                                {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0x38, NULL},
                                {UP "weight_global_scale", "F32", "[1]", 4, 0, &divisor}};

/* T24: a scale that the index forgot is missing, whatever the file holds. */
static void forgotten_scale(void **state) {
    (void)state;
    built b;
    tiny_make(&b, "{" CONFIG "}", NULL, nvfp4, 4);
    kld_buf index = {0};
    assert_int_equal(kld_buf_adds(&index, "{\"weight_map\":{", NULL), KLD_OK);
    for (size_t i = 0; i < N_PLAIN; i++)
        assert_int_equal(kld_buf_addf(&index, NULL, "%s\"%s\":\"model.safetensors\"", i ? "," : "",
                                      tiny_plain[i].name),
                         KLD_OK);
    assert_int_equal(
        kld_buf_addf(&index, NULL, ",\"%s\":\"model.safetensors\"}}", UP "weight_scale"), KLD_OK);
    build_text(&b, "model.safetensors.index.json", (char *)index.data);
    kld_model *m;
    kld_err err = {0};
    assert_int_equal(kld_model_open(&m, b.dir, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "mlp.up_proj: 'weight_scale_2' is missing beside"));
    kld_buf_free(&index);
    build_end(&b);
}

#define Q(method, rest) ",\"quantization_config\":{\"quant_method\":\"" method "\"" rest "}"

static void config_conflicts(void **state) {
    (void)state;
    /* The file is right where it agrees. */
    static const char *const none[] = {NULL};
    static const char agree[] = "{" CONFIG Q(
        "modelopt", ",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\",\"*self_attn*\","
                    "\"*gate_proj\",\"*down_proj\"]") "}";
    tiny_warns(agree, NULL, nvfp4, 4, "NVFP4", none);
    static const char ct[] =
        "{" CONFIG Q("compressed-tensors",
                     ",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{\"group_0\":"
                     "{\"targets\":[\"Linear\"]}},\"ignore\":[\"re:.*self_attn\",\"lm_head\","
                     "\"re:.*mlp.(gate|down)_proj\"]") "}";
    tiny_warns(ct, NULL, nvfp4_ct, 4, "NVFP4", none);
    /* Groups: an exact name, then a regex, then a class, whatever their order. */
    static const char groups[] =
        "{" CONFIG Q("compressed-tensors",
                     ",\"format\":\"mixed-precision\",\"config_groups\":{\"a\":{\"targets\":"
                     "[\"Linear\"],\"format\":\"dense\"},\"b\":{\"targets\":[\"re:.*mlp.up\"],"
                     "\"format\":\"float-quantized\"},\"c\":{\"targets\":"
                     "[\"model.layers.0.mlp.up_proj\"],\"format\":\"nvfp4-pack-quantized\"}}") "}";
    tiny_warns(groups, NULL, nvfp4_ct, 4, "NVFP4", none);
    /* Listed as dense, stored as NVFP4 (defect 7), and the reverse (8), once a class. */
    static const char listed[] = "{" CONFIG Q(
        "modelopt", ",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\",\"*self_attn*\","
                    "\"*mlp.*\",\"nothing_like_it\"]") "}";
    static const char *const w1[] = {
        "says not quantized for 'model.layers.0.mlp.up_proj', but the file has NVFP4 (1 of 1",
        "1 entry of the quantization config matches no module of the file: 'nothing_like_it'",
        NULL};
    tiny_warns(listed, NULL, nvfp4, 4, "NVFP4", w1);
    static const char fp8[] =
        "{" CONFIG Q("fp8", ",\"ignored_layers\":[\"lm_head\",\"model.layers.0.self_attn\"]") "}";
    static const char *const w2[] = {
        "says FP8 for 'model.layers.0.mlp.gate_proj', but the file has BF16",
        "says FP8 for 'model.layers.0.mlp.up_proj', but the file has NVFP4",
        "says FP8 for 'model.layers.0.mlp.down_proj', but", NULL};
    tiny_warns(fp8, NULL, nvfp4, 4, "NVFP4", w2);
    static const char *const w3[] = {"the weights are quantized, but no config says so", NULL};
    tiny_warns("{" CONFIG "}", NULL, nvfp4, 4, "NVFP4", w3);
    static const char *const w4[] = {"no weight is quantized", NULL};
    tiny_warns(agree, NULL, NULL, 0, "BF16", w4);
    /* Mixed precision: what the map does not list is dense. */
    static const char mixed[] =
        "{" CONFIG Q("modelopt", ",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":"
                                 "{\"model.layers.0.mlp.up_proj\":{\"quant_algo\":\"NVFP4\"}}") "}";
    tiny_warns(mixed, NULL, nvfp4, 4, "NVFP4", none);
    tiny_fails("{" CONFIG Q("modelopt", ",\"ignore\":[1]") "}", NULL, nvfp4, 4, KLD_E_INPUT,
               "quantization config: 'ignore[0]': expected a string");
}

#define QUANT(text) ",\"quantization_config\":{" text "}"

/* What each producer's config says of up_proj, against FP8 blocks or MXFP4 in the file. */
static void expectations(void **state) {
    (void)state;
    static const spec block[] = {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
                                 {UP "weight_scale_inv", "F32", "[4,1]", 16, 0, NULL}};
    static const spec mxfp4[] = {{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
                                 {UP "weight_scale", "U8", "[64,1]", 64, 127, NULL}};
#define REST "[\"lm_head\",\"*self_attn*\",\"*gate_proj\",\"*down_proj\"]"
#define BLOCK16 ",\"weight_block_size\":[16,32]"
    static const struct {
        const char *quant;
        bool mx;
        const char *said; /* NULL: no warning */
    } all[] = {
        {"\"quant_method\":\"fp8\",\"modules_to_not_convert\":[\"model.layers.0.self_attn\","
         "\"model.layers.0.mlp.gate_proj\",\"model.layers.0.mlp.down_proj\"]" BLOCK16,
         false, NULL},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"fp8_pb_wo\",\"ignore\":" REST BLOCK16,
         false, NULL},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":" REST BLOCK16, false,
         "says FP8 for 'model.layers.0.mlp.up_proj', but the file has FP8 (blocks)"},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"MXFP8\",\"ignore\":" REST BLOCK16, false,
         "says MXFP8 for"},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":"
         "{\"model.layers.0.mlp.up_proj\":{\"quant_algo\":\"FP8_PB_WO\"}}" BLOCK16,
         false, NULL},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":"
         "{\"model.layers.0.mlp.up_proj\":{\"quant_algo\":\"W4A16_NVFP4\"}}" BLOCK16,
         false, "says NVFP4 for"},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A16_AWQ\",\"ignore\":" REST BLOCK16,
         false, "says INT4 for"},
        {"\"quant_method\":\"modelopt\",\"quant_algo\":\"mxfp4\",\"ignore\":" REST, true, NULL},
        {"\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":"
         "{\"g\":{\"targets\":[\"re:.*up_proj\"],\"weights\":{\"strategy\":\"block\","
         "\"block_structure\":[16,32]}}}",
         false, NULL},
        {"\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":"
         "{\"g\":{\"targets\":[\"re:.*up_proj\"],\"weights\":{\"strategy\":\"tensor\"}}}" BLOCK16,
         false, "says FP8 for"},
        {"\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":"
         "{\"g\":{\"targets\":[\"re:.*up_proj\"],\"weights\":{\"num_bits\":8}}}" BLOCK16,
         false, "says INT8 for"},
        {"\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":\"fp4\"}},"
         "\"exclude\":" REST,
         true, NULL},
        {"\"quant_method\":\"quark\",\"global_quant_config\":{\"weight\":{\"dtype\":\"fp4\"}},"
         "\"export\":{\"weight_format\":\"fake_quantized\"},\"exclude\":" REST,
         true, "says not quantized for"},
        {"\"quant_method\":\"fp8\",\"expert_dtype\":\"fp4\",\"weight_block_size\":[128,128],"
         "\"ignored_layers\":[\"model.layers.0.self_attn\",\"model.layers.0.mlp.gate_proj\","
         "\"model.layers.0.mlp.down_proj\"]",
         true, NULL},
        {"\"quant_method\":\"mxfp8\",\"modules_to_not_convert\":[\".*self_attn\",\".*gate_proj\","
         "\".*down_proj\"]",
         true, "says MXFP8 for"},
        {"\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"self_attn\",\"gate_proj\","
         "\"down_proj\"]",
         true, "says AWQ for"},
        {"\"quant_method\":\"gptq\",\"bits\":3,\"dynamic\":{\"-:.*self_attn\":{},"
         "\"-:.*(gate|down)_proj\":{},\"+:.*up_proj\":{\"bits\":8}}",
         true, "says GPTQ for"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char config[1024];
        const char *const text[] = {all[i].said, NULL};
        snprintf(config, sizeof config, "{" CONFIG QUANT("%s") "}", all[i].quant);
        tiny_warns(config, NULL, all[i].mx ? mxfp4 : block, 2, all[i].mx ? "MXFP4" : "FP8 (blocks)",
                   text);
    }
}

static void no_memory(void **state) {
    (void)state;
    built b;
    tiny_make(
        &b,
        "{" CONFIG Q("compressed-tensors",
                     ",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{\"g\":{"
                     "\"targets\":[\"Linear\"]}},\"ignore\":[\"re:.*self_attn\",\"re:(\"]") "}",
        NULL, nvfp4_ct, 4);
    kld_status st = KLD_E_NOMEM;
    for (size_t k = 1; st != KLD_OK; k++) {
        kld_model *m;
        kld_err err = {0};
        kld_mem_fail_after(k);
        st = kld_model_open(&m, b.dir, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) kld_model_free(m);
        else if (st != KLD_E_NOMEM) fail_msg("allocation %zu: %s", k, err.text);
        assert_true(k < 20000);
    }
    build_end(&b);
}

#define GATE L "mlp.gate_proj."

static void global_scales(void **state) {
    (void)state;
    /* Defect 1: gate and up with scales of their own. */
    spec pair[8];
    memcpy(pair, nvfp4, sizeof nvfp4);
    static const spec gate[] = {{GATE "weight", "U8", "[64,16]", 1024, 0x21, NULL},
                                {GATE "weight_scale", "F8_E4M3", "[64,2]", 128, 0x38, NULL},
                                {GATE "weight_scale_2", "F32", "[1]", 4, 0, &larger},
                                {GATE "input_scale", "F32", "[]", 4, 0, &one}};
    memcpy(pair + 4, gate, sizeof gate);
    static const char config[] = "{" CONFIG Q("modelopt", "") "}";
    static const char *const w1[] = {
        "1 of 1 fused groups (q/k/v, gate/up) have unequal global scales, largest ratio 1.2547",
        NULL};
    tiny_warns(config, NULL, pair, 8, "NVFP4", w1);
    /* Defect 5: a compressed-tensors divisor under ModelOpt's name, and the reverse. */
    spec swapped[4];
    memcpy(swapped, nvfp4, sizeof swapped);
    swapped[2].data = &divisor;
    static const char *const w2[] = {"mlp.up_proj.weight_scale_2' is 2048, but a multiplier", NULL};
    tiny_warns(config, NULL, swapped, 4, "NVFP4", w2);
    memcpy(swapped, nvfp4_ct, sizeof swapped);
    swapped[3].data = &one;
    static const char *const w3[] = {"weight_global_scale' is 0.001, but a divisor", NULL};
    tiny_warns(config, NULL, swapped, 4, "NVFP4", w3);
}

static void labels(void **state) {
    (void)state;
    static const char *const none[] = {NULL};
    static const char qad[] = "{" CONFIG ",\"_name_or_path\":\"/x/y\"" Q(
        "modelopt", ",\"producer\":{\"name\":\"modelopt\",\"note\":\"QAD step 1750\"}") "}";
    tiny_warns(qad, NULL, nvfp4, 4, "NVFP4 (QAD)", none);
    static const char not_qad[] = "{" CONFIG Q("modelopt", ",\"producer\":\"squad\"") "}";
    tiny_warns(not_qad, NULL, nvfp4, 4, "NVFP4", none);
    /* Two formats: the one with more elements first. */
    spec mixed[8];
    memcpy(mixed, nvfp4, sizeof nvfp4);
    static const spec fp8[] = {{L "self_attn.q_proj.weight", "F8_E4M3", "[32,32]", 1024, 0, NULL},
                               {L "self_attn.q_proj.weight_scale", "F32", "[32]", 128, 1, NULL}};
    memcpy(mixed + 4, fp8, sizeof fp8);
    tiny_warns(not_qad, NULL, mixed, 6, "NVFP4 + FP8 (per channel)", none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forgotten_scale), cmocka_unit_test(config_conflicts),
        cmocka_unit_test(expectations),    cmocka_unit_test(no_memory),
        cmocka_unit_test(global_scales),   cmocka_unit_test(labels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
