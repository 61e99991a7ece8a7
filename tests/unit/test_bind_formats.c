/* Formats of modules: told by their tensors, refused by name or with what was found. */
#include "tests/unit/tinymodel.h"

#define UP L "mlp.up_proj."

static void formats(void **state) {
    (void)state;
    static const spec all[][4] = {
        {{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
         {UP "weight_scale", "U8", "[64,1]", 64, 127, NULL}},
        {{UP "weight", NULL, NULL, 0, 0, NULL},
         {UP "weight_packed", "U8", "[64,16]", 1024, 0, NULL},
         {UP "weight_scale", "U8", "[64,1]", 64, 127, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale", "BF16", "[1]", 2, 1, NULL},
         {UP "input_scale", "BF16", "[1]", 2, 1, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale", "F32", "[64]", 256, 1, NULL}},
        {{UP "weight", "F16", "[64,32]", 4096, 0, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale_inv", "BF16", "[1,1]", 2, 1, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "scale", "F8_E8M0", "[1,1]", 1, 1, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale", "F32", "[1,1,1,1]", 4, 1, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale_inv", "U8", "[64,1]", 64, 1, NULL}},
        {{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale_inv", "BF16", "[]", 2, 1, NULL},
         {UP "activation_scale", "BF16", "[]", 2, 1, NULL}},
        {{UP "weight", "I8", "[64,16]", 1024, 0, NULL},
         {UP "scale", "F8_E8M0", "[64,1]", 64, 127, NULL}},
        {{UP "weight", "I8", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale", "F32", "[64]", 256, 1, NULL}},
        {{UP "weight", "U8", "[32,32]", 1024, 0, NULL},
         {UP "weight_scale", "F32", "[64,2]", 512, 1, NULL}},
        {{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
         {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 1, NULL},
         {UP "weight_scale_2", "F32", "[]", 4, 1, NULL},
         {UP "pre_quant_scale", "BF16", "[32]", 64, 1, NULL}},
        {{UP "weight", "I8", "[64,32]", 2048, 0, NULL},
         {UP "weight_scale", "F32", "[64]", 256, 1, NULL},
         {UP "pre_quant_scale", "F32", "[32]", 128, 1, NULL}},
        {{UP "weight", "U8", "[32,32]", 1024, 0, NULL},
         {UP "weight_scale", "F32", "[64,2]", 512, 1, NULL},
         {UP "pre_quant_scale", "F16", "[32]", 64, 1, NULL}},
    };
    static const size_t n[] = {2, 3, 3, 2, 1, 2, 2, 2, 2, 3, 2, 2, 2, 4, 3, 3};
    static const kld_format want[] = {
        KLD_FMT_MXFP4,      KLD_FMT_MXFP4,      KLD_FMT_FP8_TENSOR, KLD_FMT_FP8_CHANNEL,
        KLD_FMT_F16,        KLD_FMT_FP8_BLOCK,  KLD_FMT_FP8_BLOCK,  KLD_FMT_FP8_BLOCK,
        KLD_FMT_MXFP8,      KLD_FMT_FP8_TENSOR, KLD_FMT_MXFP4,      KLD_FMT_INT8,
        KLD_FMT_INT4_PAIRS, KLD_FMT_NVFP4,      KLD_FMT_INT8,       KLD_FMT_INT4_PAIRS};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        built b;
        tiny_make(&b, "{" CONFIG "}", NULL, all[i], n[i]);
        kld_model *m = tiny_open(b.dir);
        const kld_weight *w = &m->layer[0].slot[KLD_SLOT_UP];
        assert_int_equal(w->format, want[i]);
        assert_int_equal(w->pre != NULL, strstr(all[i][n[i] - 1].name, "pre_quant") != NULL);
        kld_model_free(m);
        build_end(&b);
    }
}

/* A named refusal for what is known, a full listing for what is not, and never a default
 * for a scale that is gone (T24, defect 22). */
static const struct {
    spec s[4];
    kld_status st;
    const char *text;
} refusals[] = {
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL}},
     KLD_E_INPUT,
     "mlp.up_proj: 'weight_scale' is missing beside weight U8 [64, 16]"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, NULL}},
     KLD_E_INPUT,
     "'weight_scale_2' is missing beside"},
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL}},
     KLD_E_INPUT,
     "'weight_scale' is missing beside weight F8_E4M3 [64, 32]"},
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
      {UP "input_scale", "F32", "[]", 4, 0, NULL}},
     KLD_E_INPUT,
     "'weight_scale' is missing beside"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,1]", 64, 0, NULL},
      {UP "weight_scale_2", "F32", "[]", 4, 0, NULL}},
     KLD_E_INPUT,
     "weight_scale: expected shape [64, 2], found F8_E4M3 [64, 1]"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, NULL},
      {UP "weight_scale_2", "F32", "[64]", 256, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "vector of global scales"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, NULL},
      {UP "weight_scale_2", "F32", "[]", 4, 0, NULL},
      {UP "pre_quant_scale", "BF16", "[64]", 128, 0, NULL}},
     KLD_E_INPUT,
     "mlp.up_proj.pre_quant_scale: expected shape [32], found BF16 [64]"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, NULL},
      {UP "weight_scale_2", "F32", "[]", 4, 0, NULL},
      {UP "pre_quant_scale", "F8_E4M3", "[32]", 32, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "mlp.up_proj: a pre_quant_scale of this type or in this format is not implemented"},
    {{{UP "weight", "BF16", "[64,32]", 4096, 0, NULL},
      {UP "pre_quant_scale", "BF16", "[32]", 64, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "mlp.up_proj: a pre_quant_scale of this type or in this format is not implemented"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, NULL},
      {UP "pre_quant_scale", "BF16", "[32]", 64, 0, NULL},
      {UP "svdquant_lora_a", "BF16", "[4,32]", 256, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "NVFP4_SVD (low-rank branch)"},
    /* Defect 19: blocks are never derived from the shape. */
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale_inv", "F32", "[2,1]", 8, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [1, 1] for [64, 32] in blocks of 128 x 128, found F32 [2, 1]"},
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "F32", "[1,1,2,1]", 8, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [1, 1] for [64, 32] in blocks of 128 x 128, found F32 [1, 1, 2, 1]"},
    /* Defect 12: swizzled for a kernel. */
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "U8", "[512]", 512, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [64, 1], found U8 [512]: block scales in one dimension are swizzled"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "U8", "[512]", 512, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [64, 1], found U8 [512]: block scales in one dimension are swizzled"},
    {{{UP "weight", "F8_E4M3", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "F32", "[63]", 252, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [], [1], [64] or [64, 1], found F32 [63]"},
    {{{UP "weight", "F8_E5M2", "[64,32]", 2048, 0, NULL}}, KLD_E_UNSUPPORTED, "FP8 E5M2"},
    {{{UP "weight", "F8_E4M3FNUZ", "[64,32]", 2048, 0, NULL}}, KLD_E_UNSUPPORTED, "FP8 FNUZ"},
    {{{UP "weight", "I8", "[64,32]", 2048, 0, NULL}},
     KLD_E_INPUT,
     "'weight_scale' is missing beside weight I8 [64, 32]"},
    {{{UP "weight", "I8", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "F32", "[63,1]", 252, 0, NULL}},
     KLD_E_INPUT,
     "expected shape [64] or [64, groups], found F32 [63, 1]"},
    {{{UP "weight", "I8", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "F32", "[64,5]", 1280, 0, NULL}},
     KLD_E_INPUT,
     "5 groups do not divide the 32 columns"},
    {{{UP "weight", "I8", "[64,32]", 2048, 0, NULL},
      {UP "weight_scale", "F32", "[64]", 256, 0, NULL},
      {UP "weight_zero_point", "I8", "[64,1]", 64, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "zero points in this format"},
    {{{UP "weight", "I8", "[64,16]", 1024, 0, NULL},
      {UP "scale", "F8_E8M0", "[64,2]", 128, 0, NULL}},
     KLD_E_INPUT,
     "scale: expected shape [64, 1], found F8_E8M0 [64, 2]"},
    {{{UP "weight", "U8", "[64,16]", 1024, 0, NULL},
      {UP "weight_scale", "F32", "[64,1]", 256, 0, NULL}},
     KLD_E_INPUT,
     "weight: expected shape [32, 32] (two rows a byte), found U8 [64, 16]"},
    {{{UP "weight", "U8", "[32,32]", 1024, 0, NULL},
      {UP "weight_scale", "F32", "[64,1]", 256, 0, NULL},
      {UP "weight_scale_2", "F32", "[]", 4, 0, NULL},
      {UP "pre_quant_scale", "BF16", "[32]", 64, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "second scale (W4A8_AWQ)"},
    {{{UP "weight", NULL, NULL, 0, 0, NULL},
      {UP "trellis", "I16", "[2,4,64]", 1024, 0, NULL},
      {UP "suh", "F16", "[32]", 64, 0, NULL},
      {UP "svh", "F16", "[64]", 128, 0, NULL}},
     KLD_E_UNSUPPORTED,
     "EXL3"},
    {{{UP "weight_scale", "F32", "[64,1]", 256, 0, NULL}},
     KLD_E_INPUT,
     "form no known weight format: weight BF16 [64, 32], weight_scale F32 [64, 1]"},
    {{{UP "weight_double_scale", "F32", "[1]", 4, 0, NULL}},
     KLD_E_INPUT,
     "form no known weight format"},
};

#define NO_WEIGHT                                                                                  \
    { UP "weight", NULL, NULL, 0, 0, NULL }
#define PACKED(shape, bytes)                                                                       \
    { UP "weight_packed", "I32", shape, bytes, 0, NULL }
#define QWEIGHT(shape, bytes)                                                                      \
    { UP "qweight", "I32", shape, bytes, 0, NULL }
#define QZEROS(shape, bytes)                                                                       \
    { UP "qzeros", "I32", shape, bytes, 0, NULL }
#define SCALES(shape, bytes)                                                                       \
    { UP "scales", "F16", shape, bytes, 0, NULL }
#define QUANT(text) ",\"quantization_config\":{" text "}"
#define GPTQ QUANT("\"quant_method\":\"gptq\",\"bits\":4")

static const int64_t extent[2] = {64, 32}, other_extent[2] = {64, 31};

/* Packed integers: tensors that must fit one another, and what only the config says. */
static const struct {
    spec s[6];
    const char *quant;
    kld_status st;
    const char *text; /* NULL: it opens, with this label and without warnings */
    const char *label;
} packed[] = {
    {{NO_WEIGHT,
      PACKED("[64,4]", 1024),
      {UP "weight_scale", "BF16", "[64,1]", 128, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, extent}},
     QUANT("\"quant_method\":\"other\""),
     KLD_OK,
     NULL,
     "INT4 (packed)"},
    {{NO_WEIGHT,
      PACKED("[64,8]", 2048),
      {UP "weight_scale", "BF16", "[64,1]", 128, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, extent}},
     QUANT("\"quant_method\":\"other\""),
     KLD_OK,
     NULL,
     "INT8 (packed)"},
    {{NO_WEIGHT, PACKED("[64,4]", 1024), {UP "weight_shape", "I64", "[2]", 16, 0, extent}},
     "",
     KLD_E_INPUT,
     "'weight_scale' is missing beside",
     NULL},
    {{NO_WEIGHT,
      PACKED("[64,3]", 768),
      {UP "weight_scale", "BF16", "[64,1]", 128, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, extent}},
     "",
     KLD_E_INPUT,
     "weight_packed: expected shape [64, 4] (4 bits) or [64, 8] (8 bits), found I32 [64, 3]",
     NULL},
    {{NO_WEIGHT,
      PACKED("[64,4]", 1024),
      {UP "weight_scale", "BF16", "[64,1]", 128, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, other_extent}},
     "",
     KLD_E_INPUT,
     "says [64, 31], but config.json makes the weight [64, 32]",
     NULL},
    {{NO_WEIGHT,
      PACKED("[64,4]", 1024),
      {UP "weight_scale", "BF16", "[64,1]", 128, 0, NULL},
      {UP "weight_shape", "I64", "[3]", 24, 0, NULL}},
     "",
     KLD_E_INPUT,
     "weight_shape: expected shape [2], found I64 [3]",
     NULL},
    {{NO_WEIGHT,
      PACKED("[64,4]", 1024),
      {UP "weight_scale", "BF16", "[64,2]", 256, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, extent},
      {UP "weight_zero_point", "I32", "[64,2]", 512, 0, NULL}},
     "",
     KLD_E_INPUT,
     "weight_zero_point: expected shape [8, 2], found I32 [64, 2]",
     NULL},
    {{NO_WEIGHT,
      PACKED("[64,4]", 1024),
      {UP "weight_scale", "BF16", "[64,2]", 256, 0, NULL},
      {UP "weight_shape", "I64", "[2]", 16, 0, extent},
      {UP "weight_g_idx", "I32", "[64]", 256, 0, NULL}},
     "",
     KLD_E_INPUT,
     "weight_g_idx: expected shape [32], found I32 [64]",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[32,8]", 1024), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     QUANT("\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"self_attn\",\"gate_proj\","
           "\"down_proj\",\"lm_head\"]"),
     KLD_OK,
     NULL,
     "INT4 (AWQ)"},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{\"-:.*self_attn\":{},"
           "\"-:.*mlp.(gate|down)\":{}}"),
     KLD_OK,
     NULL,
     "INT4 (GPTQ)"},
    {{NO_WEIGHT,
      QWEIGHT("[8,64]", 2048),
      QZEROS("[2,16]", 128),
      SCALES("[2,64]", 256),
      {UP "g_idx", "I32", "[32]", 128, 0, NULL}},
     QUANT("\"quant_method\":\"gptq\",\"bits\":8,\"checkpoint_format\":\"gptq_v2\",\"dynamic\":"
           "{\"-:.*self_attn\":{},\"-:.*mlp.(gate|down)\":{}}"),
     KLD_OK,
     NULL,
     "INT8 (GPTQ)"},
    /* 32 columns in groups of 20: the last is short. */
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[2,8]", 64), SCALES("[2,64]", 256)},
     QUANT("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":20,\"dynamic\":"
           "{\"-:.*self_attn\":{},\"-:.*mlp.(gate|down)\":{}}"),
     KLD_OK,
     NULL,
     "INT4 (GPTQ)"},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[3,8]", 96), SCALES("[3,64]", 384)},
     GPTQ,
     KLD_E_INPUT,
     "scales: 3 groups do not divide the 32 columns",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), SCALES("[1,64]", 128)},
     GPTQ,
     KLD_E_INPUT,
     "'qzeros' is missing beside",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     "",
     KLD_E_INPUT,
     "no quantization config says whether zero points are stored less 1",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[5,64]", 1280), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     GPTQ,
     KLD_E_INPUT,
     "qweight: expected shape [32, 8] (AWQ GEMM), [4, 64] (GPTQ, 4 bits) or [8, 64] (8 bits)",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,64]", 256), SCALES("[1,64]", 128)},
     GPTQ,
     KLD_E_INPUT,
     "qzeros: expected shape [1, 8], found I32 [1, 64]",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,8]", 32), SCALES("[1,32]", 64)},
     GPTQ,
     KLD_E_INPUT,
     "scales: expected shape [groups, 64], found F16 [1, 32]",
     NULL},
    {{NO_WEIGHT,
      QWEIGHT("[4,64]", 1024),
      QZEROS("[1,8]", 32),
      SCALES("[1,64]", 128),
      {UP "g_idx", "I32", "[64]", 256, 0, NULL}},
     GPTQ,
     KLD_E_INPUT,
     "g_idx: expected shape [32], found I32 [64]",
     NULL},
    {{NO_WEIGHT,
      QWEIGHT("[32,8]", 1024),
      QZEROS("[1,8]", 32),
      SCALES("[1,64]", 128),
      {UP "g_idx", "I32", "[32]", 128, 0, NULL}},
     QUANT("\"quant_method\":\"awq\""),
     KLD_E_INPUT,
     "g_idx: AWQ has no such tensor",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[64,4]", 1024), QZEROS("[64,1]", 256), SCALES("[64,8]", 1024)},
     QUANT("\"quant_method\":\"awq\",\"version\":\"gemv\""),
     KLD_E_UNSUPPORTED,
     "AWQ with version gemv is not implemented",
     NULL},
    {{NO_WEIGHT,
      {UP "qweight", "I16", "[16,32]", 1024, 0, NULL},
      QZEROS("[1,8]", 32),
      SCALES("[1,64]", 128)},
     "",
     KLD_E_UNSUPPORTED,
     "AWQ gemv_fast is not implemented",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     QUANT("\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\""),
     KLD_E_UNSUPPORTED,
     "GPTQ with checkpoint_format marlin is not implemented",
     NULL},
    {{NO_WEIGHT, QWEIGHT("[4,64]", 1024), QZEROS("[1,8]", 32), SCALES("[1,64]", 128)},
     QUANT("\"quant_method\":\"gptq\",\"is_marlin_format\":true"),
     KLD_E_UNSUPPORTED,
     "Marlin's packing is not implemented",
     NULL},
    {{NO_WEIGHT,
      {UP "B", "I32", "[2,128]", 1024, 0, NULL},
      {UP "s", "F16", "[1,64]", 128, 0, NULL}},
     GPTQ,
     KLD_E_UNSUPPORTED,
     "Marlin's packing is not implemented",
     NULL},
};

static void packed_integers(void **state) {
    (void)state;
    static const char *const none[] = {NULL};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
        char config[1024];
        size_t n = 0;
        while (n < 6 && packed[i].s[n].name) n++;
        snprintf(config, sizeof config, "{" CONFIG "%s}", packed[i].quant);
        if (packed[i].text) tiny_fails(config, NULL, packed[i].s, n, packed[i].st, packed[i].text);
        else tiny_warns(config, NULL, packed[i].s, n, packed[i].label, none);
    }
}

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        spec s[5];
        size_t n = 0;
        /* The dense tensor stays unless the case replaces it or takes it away. */
        for (; n < 4 && refusals[i].s[n].name; n++) s[n] = refusals[i].s[n];
        const char *drop = n && !s[0].dtype ? UP "weight" : NULL;
        tiny_fails("{" CONFIG "}", drop, s, n, refusals[i].st, refusals[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats),
        cmocka_unit_test(packed_integers),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("bind formats", tests, NULL, NULL);
}
