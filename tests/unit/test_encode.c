/* Encoders against the libraries whose rules they follow. */
#include "loaders/encode.h"
#include "loaders/numfmt.h"
#include "tests/unit/loadkit.h"

#include <math.h>

enum { ROWS = 48, COLS = 96, N = ROWS * COLS };

static void read_input(const loaded *f, float x[N]) {
    const unsigned char *p = part(f, "input");
    for (size_t i = 0; i < N; i++) x[i] = kld_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
}

static void same_bytes(const char *what, const unsigned char *got, const unsigned char *want,
                       size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i])
            fail_msg("%s: byte %zu is 0x%02x, not 0x%02x", what, i, got[i], want[i]);
    }
}

static void nvfp4(kld_nvfp4_rule rule, const char *path, const char *data, const char *global) {
    static float x[N];
    static unsigned char codes[N / 2], scales[N / 16];
    loaded f;
    load(&f, path);
    read_input(&f, x);
    float want, g = kld_nvfp4_global(rule, kld_amax(x, N));
    memcpy(&want, part(&f, global), sizeof want);
    assert_int_equal(kld_f32_bits(g), kld_f32_bits(want));
    kld_encode_nvfp4(rule, x, N, g, codes, scales);
    same_bytes(path, scales, part(&f, "weight_scale"), sizeof scales);
    same_bytes(path, codes, part(&f, data), sizeof codes);
    unload(&f);
}

static void test_nvfp4(void **state) {
    (void)state;
    nvfp4(KLD_NVFP4_MODELOPT, "tests/golden/quant/encode-nvfp4-modelopt.safetensors", "weight",
          "weight_scale_2");
    nvfp4(KLD_NVFP4_CT, "tests/golden/quant/encode-nvfp4-ct-f32.safetensors", "weight_packed",
          "weight_global_scale");
    nvfp4(KLD_NVFP4_CT_BF16, "tests/golden/quant/encode-nvfp4-ct.safetensors", "weight_packed",
          "weight_global_scale");
}

static void test_mxfp4(void **state) {
    (void)state;
    static float x[N];
    static unsigned char codes[N / 2], scales[N / 32];
    loaded f;
    load(&f, "tests/golden/quant/encode-mxfp4-ct.safetensors");
    read_input(&f, x);
    kld_encode_mxfp4(x, N, codes, scales);
    same_bytes("scales", scales, part(&f, "weight_scale"), sizeof scales);
    same_bytes("codes", codes, part(&f, "weight_packed"), sizeof codes);
    unload(&f);
}

/* Every finite code is its own nearest; halfway between neighbours goes to the even one. */
static void test_e4m3(void **state) {
    (void)state;
    for (unsigned b = 0; b < 127; b++) {
        float v = kld_e4m3_to_f32((uint8_t)b);
        assert_int_equal(kld_f32_to_e4m3(v), b);
        assert_int_equal(kld_f32_to_e4m3(-v), b | 0x80);
        if (b == 126) continue;
        float next = kld_e4m3_to_f32((uint8_t)(b + 1)), mid = (v + next) / 2;
        assert_int_equal(kld_f32_to_e4m3(mid), b % 2 ? b + 1 : b);
        assert_int_equal(kld_f32_to_e4m3(nextafterf(mid, 0)), b);
        assert_int_equal(kld_f32_to_e4m3(nextafterf(mid, 500)), b + 1);
    }
    assert_int_equal(kld_f32_to_e4m3(1e9f), 0x7e);
    assert_int_equal(kld_f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(kld_f32_to_e4m3(NAN) & 0x7f, 0x7f);
}

static void test_e2m1(void **state) {
    (void)state;
    for (unsigned c = 0; c < 8; c++) {
        float v = kld_e2m1_to_f32((uint8_t)c);
        assert_int_equal(kld_f32_to_e2m1(v), c);
        assert_int_equal(kld_f32_to_e2m1(-v), c ? c | 8 : 0);
        if (c == 7) continue;
        float next = kld_e2m1_to_f32((uint8_t)(c + 1)), mid = (v + next) / 2;
        assert_int_equal(kld_f32_to_e2m1(mid), c % 2 ? c + 1 : c);
        assert_int_equal(kld_f32_to_e2m1(nextafterf(mid, 0)), c);
        assert_int_equal(kld_f32_to_e2m1(nextafterf(mid, 7)), c + 1);
    }
    assert_int_equal(kld_f32_to_e2m1(100), 7);
    assert_int_equal(kld_f32_to_e2m1(-0.1f), 8);
    assert_int_equal(kld_f32_to_e2m1(-0.0f), 0);
}

static void test_zeros(void **state) {
    (void)state;
    float zero[32] = {0};
    unsigned char codes[16], scales[2];
    float g = kld_nvfp4_global(KLD_NVFP4_MODELOPT, 0);
    assert_true(g == 1.0f);
    kld_encode_nvfp4(KLD_NVFP4_MODELOPT, zero, 32, g, codes, scales);
    assert_int_equal(scales[0], 0x38);
    assert_int_equal(codes[0] | codes[15], 0);
    g = kld_nvfp4_global(KLD_NVFP4_CT, 0);
    assert_true(isfinite(g) && g > 0);
    kld_encode_nvfp4(KLD_NVFP4_CT, zero, 32, g, codes, scales);
    assert_int_equal(scales[1], 0x20);
    kld_encode_mxfp4(zero, 32, codes, scales);
    assert_int_equal(scales[0], 0);
    assert_true(kld_amax(zero, 0) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nvfp4), cmocka_unit_test(test_mxfp4),
                                       cmocka_unit_test(test_e4m3), cmocka_unit_test(test_e2m1),
                                       cmocka_unit_test(test_zeros)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
