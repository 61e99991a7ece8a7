/* Decoders against goldens of the libraries that define the formats. */
#include "loaders/match.h"
#include "loaders/numfmt.h"
#include "loaders/quant.h"
#include "tests/unit/loadkit.h"

#include <math.h>

/* ---- number codes: all 256 bytes, bit for bit */

static void same_bits(float got, const unsigned char *want) {
    uint32_t w = (uint32_t)want[0] | (uint32_t)want[1] << 8 | (uint32_t)want[2] << 16 |
                 (uint32_t)want[3] << 24;
    uint32_t g = kld_f32_bits(got);
    if (isnan(got) && isnan(kld_f32_from_bits(w))) return;
    assert_int_equal(g, w);
}

static void codes(void **state) {
    (void)state;
    loaded f;
    load(&f, "tests/golden/quant/codes.safetensors");
    const unsigned char *e2m1 = part(&f, "e2m1"), *e4m3 = part(&f, "e4m3"),
                        *e8m0 = part(&f, "e8m0");
    for (unsigned b = 0; b < 256; b++) {
        same_bits(kld_e2m1_to_f32((uint8_t)(b & 15)), e2m1 + 8 * b);
        same_bits(kld_e2m1_to_f32((uint8_t)(b >> 4)), e2m1 + 8 * b + 4);
        same_bits(kld_e4m3_to_f32((uint8_t)b), e4m3 + 4 * b);
        same_bits(kld_e8m0_to_f32((uint8_t)b), e8m0 + 4 * b);
    }
    unload(&f);
}

static void anchors(void **state) {
    (void)state;
    assert_true(kld_e4m3_to_f32(0x01) == 0x1p-9f);
    assert_true(kld_e4m3_to_f32(0x08) == 0x1p-6f);
    assert_true(kld_e4m3_to_f32(0x4b) == 5.5f);
    assert_true(kld_e4m3_to_f32(0x7e) == 448.0f);
    assert_true(kld_e4m3_to_f32(0xb4) == -0.75f);
    assert_true(isnan(kld_e4m3_to_f32(0xff)));
    assert_int_equal(kld_f32_bits(kld_e2m1_to_f32(8)), 0x80000000u);
    assert_int_equal(kld_f32_bits(kld_e8m0_to_f32(0)), 0x00400000u);
    assert_true(isnan(kld_e8m0_to_f32(255)));
    assert_int_equal(kld_f32_to_bf16(0.015f), 0x3c76);
    for (uint32_t h = 0; h < 65536; h++) {
        float f = kld_bf16_to_f32((uint16_t)h);
        if (!isnan(f)) assert_int_equal(kld_f32_to_bf16(f), h);
    }
    assert_true(kld_f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(kld_f16_to_f32(0x7bff) == 65504.0f);
    assert_true(isinf(kld_f16_to_f32(0xfc00)));
}

/* ---- whole tensors */

static double f64_at(const unsigned char *p, size_t i) {
    double d;
    memcpy(&d, p + 8 * i, sizeof d);
    return d;
}

typedef struct golden {
    const char *file, *data, *scale, *global;
    kld_format format;
    bool divides;
} golden;

static void decode_golden(const golden *g) {
    char path[128];
    snprintf(path, sizeof path, "tests/golden/quant/decode-%s.safetensors", g->file);
    loaded f;
    load(&f, path);
    enum { ROWS = 48, COLS = 96 };
    kld_weight w = {.format = g->format,
                    .rows = ROWS,
                    .cols = COLS,
                    .data = tensor(&f, g->data),
                    .scale = tensor(&f, g->scale),
                    .global = g->global ? tensor(&f, g->global) : NULL,
                    .global_divides = g->divides};
    kld_weight_view v = {.data = part(&f, g->data),
                         .scale = part(&f, g->scale),
                         .global = g->global ? part(&f, g->global) : NULL};
    static float all[ROWS * COLS], some[ROWS * COLS], bare[ROWS * COLS];
    uint64_t nonfinite = 0;
    kld_err err = {0};
    assert_int_equal(kld_weight_check(&w, v, 0, w.rows, &nonfinite, &err), KLD_OK);
    kld_weight_decode(&w, v, 0, ROWS, false, all);
    kld_weight_decode(&w, v, 5, 7, false, some);
    kld_weight_decode(&w, v, 0, ROWS, true, bare);
    float alpha = kld_weight_alpha(&w, v);
    const unsigned char *exact = part(&f, "exact");
    for (size_t i = 0; i < ROWS * COLS; i++) {
        float want = (float)f64_at(exact, i);
        if (kld_f32_bits(all[i]) != kld_f32_bits(want))
            fail_msg("%s: element %zu is %a, not %a", g->file, i, (double)all[i], (double)want);
        double rel = fabs((double)bare[i] * (double)alpha - f64_at(exact, i));
        assert_true(rel <= 1.2e-7 * fabs(f64_at(exact, i)));
        if (w.format != KLD_FMT_FP8_CHANNEL) /* the operand of the GEMM is exact in BF16 */
            assert_true(kld_bf16_to_f32(kld_f32_to_bf16(bare[i])) == bare[i]);
    }
    assert_memory_equal(some, all + 5 * COLS, 7 * COLS * sizeof(float));
    unload(&f);
}

static void decode(void **state) {
    (void)state;
    static const golden all[] = {
        {"nvfp4-modelopt", "weight", "weight_scale", "weight_scale_2", KLD_FMT_NVFP4, false},
        {"nvfp4-ct", "weight_packed", "weight_scale", "weight_global_scale", KLD_FMT_NVFP4, true},
        {"mxfp4-ct", "weight_packed", "weight_scale", NULL, KLD_FMT_MXFP4, false},
        {"fp8-tensor", "weight", "weight_scale", NULL, KLD_FMT_FP8_TENSOR, false},
        {"fp8-ct-channel", "weight", "weight_scale", NULL, KLD_FMT_FP8_CHANNEL, false},
        {"fp8-modelopt-channel", "weight", "weight_scale", NULL, KLD_FMT_FP8_CHANNEL, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) decode_golden(&all[i]);
}

/* ---- worked examples */

static void decode_bytes(kld_format f, bool divides, size_t cols, const void *codes,
                         const void *scale, kld_dtype scale_type, const void *global, float *out) {
    kld_tensor data = {.dtype = f >= KLD_FMT_FP8_TENSOR ? KLD_F8_E4M3 : KLD_U8};
    kld_tensor sc = {.name = "s", .dtype = scale_type}, g = {.name = "g", .dtype = KLD_F32};
    kld_weight w = {.format = f,
                    .rows = 1,
                    .cols = cols,
                    .data = &data,
                    .scale = &sc,
                    .global = &g,
                    .global_divides = divides};
    kld_weight_view v = {.data = codes, .scale = scale, .global = global};
    kld_weight_decode(&w, v, 0, 1, false, out);
}

static const unsigned char row16[8] = {0x21, 0xf7, 0x0a, 0x98, 0x00, 0x6e, 0x35, 0xc4};

static void nvfp4_examples(void **state) {
    (void)state;
    static const float want[16] = {.25f, .5f, 3,  -3, -.5f, 0,    -0.0f, -.25f,
                                   0,    0,   -2, 2,  1.5f, .75f, 1,     -1};
    float out[16];
    float half = 0.5f, two = 2.0f, small = 0x1p-10f;
    decode_bytes(KLD_FMT_NVFP4, false, 16, row16, "\x38", KLD_F8_E4M3, &half, out);
    for (size_t i = 0; i < 16; i++) assert_int_equal(kld_f32_bits(out[i]), kld_f32_bits(want[i]));
    decode_bytes(KLD_FMT_NVFP4, true, 16, row16, "\x38", KLD_F8_E4M3, &two, out);
    for (size_t i = 0; i < 16; i++) assert_int_equal(kld_f32_bits(out[i]), kld_f32_bits(want[i]));
    decode_bytes(KLD_FMT_NVFP4, false, 16, row16, "\x4b", KLD_F8_E4M3, &small, out);
    assert_true(out[0] == 0.002685546875f && out[1] == 0.00537109375f);
    assert_true(out[2] == 0.0322265625f && out[3] == -0.0322265625f);
}

static void mxfp4_example(void **state) {
    (void)state;
    unsigned char codes[16] = {0x21, 0xf7, 0x0a};
    float out[32];
    decode_bytes(KLD_FMT_MXFP4, false, 32, codes, "\x7c", KLD_U8, NULL, out);
    static const float want[6] = {.0625f, .125f, .75f, -.75f, -.125f, 0};
    for (size_t i = 0; i < 6; i++) assert_true(out[i] == want[i]);
    decode_bytes(KLD_FMT_MXFP4, false, 32, codes, "\x7a", KLD_U8, NULL, out);
    assert_true(out[0] == .015625f); /* a file with bias 125 reads four times too small */
}

static void fp8_example(void **state) {
    (void)state;
    float out, s = 0.01f;
    decode_bytes(KLD_FMT_FP8_TENSOR, false, 1, "\x3c", &s, KLD_F32, NULL, &out);
    assert_true(out == 0.014999999664723873f);
    assert_int_equal(kld_f32_to_bf16(out), 0x3c76);
    decode_bytes(KLD_FMT_FP8_CHANNEL, false, 1, "\x3c", "\x00\x3c", KLD_BF16, NULL, &out);
    assert_true(out == 0.01171875f);
}

/* ---- defects of values */

static void check(const kld_weight *w, kld_weight_view v, const char *text) {
    kld_err err = {0};
    uint64_t nonfinite = 0;
    kld_status st = kld_weight_check(w, v, 0, w->rows, &nonfinite, &err);
    if (!text) {
        if (st != KLD_OK) fail_msg("%s", err.text);
        return;
    }
    assert_int_equal(st, KLD_E_INPUT);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

static void bad_scales(void **state) {
    (void)state;
    unsigned char codes[64] = {0}, scales[4] = {0x38, 0, 0x80, 0x7e};
    kld_tensor data = {.dtype = KLD_U8}, sc = {.name = "q.weight_scale", .dtype = KLD_F8_E4M3};
    kld_tensor gt = {.name = "q.weight_scale_2", .dtype = KLD_F32};
    kld_weight w = {
        .format = KLD_FMT_NVFP4, .rows = 2, .cols = 32, .data = &data, .scale = &sc, .global = &gt};
    float g = 0.5f;
    kld_weight_view v = {.data = codes, .scale = scales, .global = (unsigned char *)&g};
    check(&w, v, NULL); /* zero scales, of either sign, are legal */
    codes[3] = 0x80;    /* only a minus zero: nothing was lost in the first block */
    codes[8] = 0x10;
    codes[16] = 0x07;
    assert_int_equal(kld_weight_zero_blocks(&w, v, w.rows), 2);
    scales[3] = 0x7f;
    scales[2] = 0xff;
    check(&w, v, "tensor 'q.weight_scale': 2 NaN block scales, first at [1,0]");
    scales[2] = scales[3] = 0xb8;
    check(&w, v, "2 negative block scales, first at [1,0]");
    scales[2] = scales[3] = 0;
    static const float bad[] = {NAN, INFINITY, 0, -1};
    for (size_t i = 0; i < 4; i++) {
        g = bad[i];
        check(&w, v, "tensor 'q.weight_scale_2': the scale is");
    }
    sc.dtype = KLD_U8;
    w.format = KLD_FMT_MXFP4;
    scales[1] = 255;
    check(&w, v, "1 NaN (255) E8M0 block scales, first at [1,0]");
    float channel[2] = {1, NAN};
    w.format = KLD_FMT_FP8_CHANNEL;
    sc.dtype = KLD_F32;
    v.scale = (unsigned char *)channel;
    check(&w, v, "1 scales that are not finite or are negative, first at [1,0]");
}

static void nonfinite_values(void **state) {
    (void)state;
    static const unsigned char bf16[8] = {0x80, 0x7f, 0xc0, 0xff, 0x7f, 0x7f, 0, 0};
    static const unsigned char f16[8] = {0x00, 0x7c, 0x01, 0xfc, 0xff, 0x7b, 0, 0};
    static const unsigned char f32[16] = {0, 0, 0x80, 0x7f, 0, 0, 0x7f, 0x7f, 1, 0, 0x80, 0xff};
    static const struct {
        kld_dtype dtype;
        kld_format format;
        const unsigned char *p;
    } all[] = {
        {KLD_BF16, KLD_FMT_BF16, bf16}, {KLD_F16, KLD_FMT_F16, f16}, {KLD_F32, KLD_FMT_F32, f32}};
    for (size_t i = 0; i < 3; i++) {
        kld_tensor t = {.name = "w", .dtype = all[i].dtype};
        kld_weight w = {.format = all[i].format, .rows = 4, .cols = 1, .data = &t};
        kld_weight_view v = {.data = all[i].p};
        uint64_t n = 10;
        assert_int_equal(kld_weight_check(&w, v, 0, w.rows, &n, NULL), KLD_OK);
        assert_int_equal(n, 12);
        float out[4];
        kld_weight_decode(&w, v, 0, 4, false, out);
        assert_true(!isfinite(out[0]) && isfinite(out[3]));
    }
}

/* ---- ignore lists */

static bool matches(kld_match_rule rule, const char *entry, const char *module) {
    kld_pattern p;
    bool hit = false;
    assert_int_equal(kld_pattern_init(&p, rule, entry, NULL), KLD_OK);
    kld_module_names names;
    kld_module_names_init(&names, module);
    assert_int_equal(kld_pattern_match_any(&p, &names, "Linear", &hit, NULL), KLD_OK);
    kld_pattern_free(&p);
    return hit;
}

static void ignore_lists(void **state) {
    (void)state;
    static const char q[] = "model.layers.0.self_attn.q_proj";
    assert_true(matches(KLD_MATCH_CT, "re:.*lm_head", "lm_head"));
    assert_true(matches(KLD_MATCH_CT, "re:.*lm_head", "language_model.lm_head"));
    assert_true(matches(KLD_MATCH_CT, "re:.*self_attn", q)); /* not anchored at the end */
    assert_false(matches(KLD_MATCH_CT, "re:self_attn", q));  /* but at the start */
    assert_false(matches(KLD_MATCH_CT, "re:(", q));
    assert_true(matches(KLD_MATCH_CT, "lm_head", "lm_head"));
    assert_false(matches(KLD_MATCH_CT, "head", "lm_head"));
    assert_true(matches(KLD_MATCH_CT, "Linear", q));
    assert_true(matches(KLD_MATCH_CT, q, "model.language_model.layers.0.self_attn.q_proj"));
    assert_true(matches(KLD_MATCH_CT, "model.language_model.layers.0.self_attn.q_proj", q));
    assert_true(matches(KLD_MATCH_GLOB, "model.layers.0.self_attn*", q));
    assert_true(matches(KLD_MATCH_GLOB, "*layers.?.self_attn.[kq]_proj", q));
    assert_false(matches(KLD_MATCH_GLOB, "*layers.?.self_attn.[!kq]_proj", q));
    assert_true(matches(KLD_MATCH_GLOB, "self_attn", q)); /* consumers accept a substring */
    assert_false(matches(KLD_MATCH_GLOB, "model.layers.1.*", q));
    assert_false(matches(KLD_MATCH_GLOB, "layers.1", "model.layers.10.mlp.up_proj"));
    assert_true(matches(KLD_MATCH_GLOB, "layers.1", "model.layers.1.mlp.up_proj"));
    assert_false(matches(KLD_MATCH_GLOB, "", q));
    assert_false(matches(KLD_MATCH_PREFIX, "", q));
    assert_true(matches(KLD_MATCH_PREFIX, "model.layers.0.self_attn", q));
    assert_false(matches(KLD_MATCH_PREFIX, "model.layers.0.self", q));
    assert_true(matches(KLD_MATCH_REGEX, "model.layers.*.self_attn", q));
    assert_true(matches(KLD_MATCH_QUARK, "re:.*q_proj", q));
    assert_true(matches(KLD_MATCH_QUARK, "*q_proj", q));
    assert_false(matches(KLD_MATCH_QUARK, "q_proj", q));
    assert_true(matches(KLD_MATCH_SUBSTRING, "attn", q));
    assert_true(matches(KLD_MATCH_PREFIX, "self_attn.q_proj", q)); /* last components */
    assert_false(matches(KLD_MATCH_PREFIX, "attn.q_proj", q));
}

/* A layer's number in an entry rules out other layers, but only where it must be in what matches.
 */
static void layer_numbers(void **state) {
    (void)state;
    static const char three[] = "model.layers.3.mlp.gate", thirty[] = "model.layers.30.mlp.gate";
    static const struct {
        kld_match_rule rule;
        const char *entry;
        bool three, thirty;
    } all[] = {
        {KLD_MATCH_CT, "re:.*layers\\.3\\.mlp", true, false},
        {KLD_MATCH_CT, "re:.*layers.3.*mlp", true, true},
        {KLD_MATCH_CT, "re:.*layers\\.3\\.*", true, true}, /* dots, or none */
        {KLD_MATCH_CT, "re:.*layers\\.3\\.{0,1}", true, true},
        {KLD_MATCH_CT, "re:.*layers\\.3\\.+", true, false},
        {KLD_MATCH_CT, "re:.*layers\\.3\\.attn|.*layers\\.30\\.mlp", false, true},
        {KLD_MATCH_CT, "re:(?!.*layers\\.3\\.).*mlp", false, true},
        {KLD_MATCH_CT, "re:.*layers\\.3[0-9]?\\.", true, true},
        {KLD_MATCH_CT, "re:.*(layers\\.3\\.)?.*gate", true, true},
        {KLD_MATCH_CT, "language_model.layers.30.mlp.gate", false, true},
        {KLD_MATCH_GLOB, "*layers.3*", true, true},
        {KLD_MATCH_GLOB, "*layers.3.*", true, false},
        {KLD_MATCH_GLOB, "*layers.[!3].*", false, false},
        {KLD_MATCH_GLOB, "layers.3", true, false},
        {KLD_MATCH_PREFIX, "model.layers.3", true, false},
        {KLD_MATCH_SUBSTRING, "layers.30.", false, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (matches(all[i].rule, all[i].entry, three) != all[i].three ||
            matches(all[i].rule, all[i].entry, thirty) != all[i].thirty)
            fail_msg("%s", all[i].entry);
    }
}

/* Of a list in the index, exactly those entries match that match when each is asked. */
static void many_entries(void **state) {
    (void)state;
    enum { NAMED = 2000 };
    static const struct {
        kld_match_rule rule;
        const char *entry;
    } some[] = {{KLD_MATCH_CT, "Linear"},
                {KLD_MATCH_CT, "model.layers.7.mlp.up_proj"},
                {KLD_MATCH_CT, "model.layers.7.mlp"},
                {KLD_MATCH_CT, "re:.*layers\\.7\\."},
                {KLD_MATCH_CT, "re:("},
                {KLD_MATCH_PREFIX, "language_model.layers.7"},
                {KLD_MATCH_PREFIX, "layers.7.mlp.up_proj"},
                {KLD_MATCH_PREFIX, "mlp.up_proj"},
                {KLD_MATCH_PREFIX, "up_proj"},
                {KLD_MATCH_PREFIX, "p_proj"},
                {KLD_MATCH_PREFIX, "mlp"},
                {KLD_MATCH_PREFIX, ""},
                {KLD_MATCH_PREFIX, "model.layers.7.mlp.up_proj"},
                {KLD_MATCH_PREFIX, "model.layers.7.mlp.up_proj"},
                {KLD_MATCH_GLOB, "*layers.7.*"},
                {KLD_MATCH_GLOB, "mlp"},
                {KLD_MATCH_QUARK, "*up_proj"},
                {KLD_MATCH_QUARK, "layers.7.mlp.up_proj"},
                {KLD_MATCH_QUARK, "layers.[67].mlp.up_proj"},
                {KLD_MATCH_REGEX, "model.layers.*.mlp"},
                {KLD_MATCH_SUBSTRING, "up"}};
    enum { SOME = sizeof some / sizeof *some, ALL = SOME + NAMED };
    static kld_pattern p[ALL];
    static char text[NAMED][64];
    static bool seen[ALL];
    for (size_t i = 0; i < ALL; i++) {
        if (i >= SOME)
            snprintf(text[i - SOME], sizeof text[0], "model.layers.7.mlp.experts.%zu.up_proj", i);
        assert_int_equal(kld_pattern_init(&p[i], i < SOME ? some[i].rule : KLD_MATCH_PREFIX,
                                          i < SOME ? some[i].entry : text[i - SOME], NULL),
                         KLD_OK);
    }
    kld_pattern_index x;
    kld_module_names names;
    assert_int_equal(kld_pattern_index_init(&x, p, ALL, sizeof *p, NULL), KLD_OK);
    kld_module_names_init(&names, "model.language_model.layers.7.mlp.up_proj");
    assert_int_equal(kld_pattern_index_find(&x, &names, "Linear", NULL), KLD_OK);
    assert_true(x.n_found < 100); /* not each of the named ones */
    for (size_t k = 0; k < x.n_found; k++) seen[x.found[k]] = true;
    for (size_t i = 0; i < ALL; i++) {
        bool hit;
        assert_int_equal(kld_pattern_match_any(&p[i], &names, "Linear", &hit, NULL), KLD_OK);
        if (hit && !seen[i]) fail_msg("%s", p[i].text);
        kld_pattern_free(&p[i]);
    }
    kld_pattern_index_free(&x);
    assert_int_equal(kld_pattern_index_init(&x, NULL, 0, sizeof *p, NULL), KLD_OK);
    assert_int_equal(kld_pattern_index_find(&x, &names, "Linear", NULL), KLD_OK);
    assert_int_equal(x.n_found, 0);
}

static void globs(void **state) {
    (void)state;
    assert_true(kld_glob("", ""));
    assert_true(kld_glob("*", ""));
    assert_true(kld_glob("a*b*c", "axxbxxbxc"));
    assert_false(kld_glob("a*b*c", "axxbxxbx"));
    assert_true(kld_glob("[a-c]x", "bx"));
    assert_true(kld_glob("[]x", "[]x")); /* an unclosed set is literal text */
    assert_true(kld_glob("[]]", "]"));
    assert_false(kld_glob("?", ""));
    assert_true(kld_glob("**a", "bbba"));
    /* Time stays within the product of the lengths. */
    assert_false(kld_glob("*a*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes),         cmocka_unit_test(anchors),
        cmocka_unit_test(decode),        cmocka_unit_test(nvfp4_examples),
        cmocka_unit_test(mxfp4_example), cmocka_unit_test(fp8_example),
        cmocka_unit_test(bad_scales),    cmocka_unit_test(nonfinite_values),
        cmocka_unit_test(ignore_lists),  cmocka_unit_test(layer_numbers),
        cmocka_unit_test(many_entries),  cmocka_unit_test(globs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
