/* Decoders against goldens of the libraries that define the formats. */
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
    assert_int_equal(kld_weight_check(&w, v, &nonfinite, &err), KLD_OK);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes), cmocka_unit_test(anchors),
                                       cmocka_unit_test(decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
