/* Quantization of activations: the CPU's operation against the libraries whose formats these are,
 * and the arithmetic at its edges. */
#include "loaders/actnum.h"
#include "tests/unit/enginekit.h"
#include "tests/unit/loadkit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const kld_backend *be;

static kld_device *open_dev(kld_precision p) {
    kld_device_spec spec = {
        .precision = p, .max_rows = 64, .max_keys = 64, .vocab = 64, .top_k = 8, .head_dim = 16};
    kld_device *dev;
    kld_err err = {0};
    need(be->open(&dev, &spec, 0, &err), &err, "open");
    return dev;
}

/* Rows of cols values, ld apart, quantized into the same layout. */
static void quantize_ld(kld_precision p, const kld_act_quant *a, const float *x, size_t rows,
                        size_t cols, size_t ld, float *y) {
    kld_device *dev = open_dev(p);
    kld_err err = {0};
    kld_view in = {(void *)(uintptr_t)x, rows, cols, ld, KLD_ELEM_ACT};
    kld_view out = {y, rows, cols, ld, KLD_ELEM_ACT};
    need(be->quantize(dev, in, a, out, &err), &err, "quantize");
    be->close(dev);
}

static void quantize(const kld_act_quant *a, const float *x, size_t cols, float *y) {
    quantize_ld(KLD_PRECISION_FP32, a, x, 1, cols, cols, y);
}

static bool same(float a, float b) {
    return kld_f32_bits(a) == kld_f32_bits(b) || (isnan(a) && isnan(b));
}

static kld_aq_scale scale_of(const kld_act_quant *a, const float *x, size_t n) {
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = kld_aq_magnitude(x[i]);
        if (v > m) m = v;
    }
    return kld_aq_scale_of(a, m);
}

/* ---- against the libraries ------------------------------------------------------------------- */

enum { ROWS = 7, COLS = 384, PART = 300 };
static const char *const data_names[] = {"f32", "bf16", "wide"};

static void read_values(const loaded *f, const char *name, float *x) {
    const kld_tensor *t = tensor(f, name);
    const unsigned char *p = part(f, name);
    size_t n = (size_t)t->bytes / (t->dtype == KLD_BF16 ? 2 : 4);
    assert_true(n <= ROWS * COLS);
    for (size_t i = 0; i < n; i++) {
        if (t->dtype == KLD_BF16) x[i] = kld_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
        else memcpy(&x[i], p + 4 * i, 4);
    }
}

typedef struct golden {
    const char *file;
    kld_act_quant a;
    size_t cols;
    size_t n; /* of data_names */
} golden;

/* One format: quantize `cols` columns of every input and compare, alpha applied, with the library's
 * FP32 result; bits, but for the sign of a zero, which compared libraries drop or keep. */
static void golden_case(const golden *g) {
    static float x[ROWS * COLS], want[ROWS * COLS], y[ROWS * COLS], z[ROWS * COLS];
    loaded in, f;
    char path[128];
    snprintf(path, sizeof path, "tests/golden/acts/%s.safetensors", g->file);
    load(&in, "tests/golden/acts/inputs.safetensors");
    load(&f, path);
    kld_act_quant a = g->a;
    if (a.format == KLD_AQ_FP8_TENSOR) memcpy(&a.scale, part(&f, "scale"), 4);
    float alpha = kld_act_alpha(&a);
    for (size_t d = 0; d < g->n; d++) {
        read_values(&in, data_names[d], x);
        read_values(&f, data_names[d], want);
        memset(y, 0xff, sizeof y);
        quantize_ld(KLD_PRECISION_FP32, &a, x, ROWS, g->cols, COLS, y);
        for (size_t i = 0; i < ROWS * g->cols; i++) {
            size_t at = i / g->cols * COLS + i % g->cols;
            float v = y[at] * alpha;
            if (!same(v, want[i]) && !(v == 0 && want[i] == 0))
                fail_msg("%s, %s: [%zu,%zu] of %.9g is %.9g, not %.9g", g->file, data_names[d],
                         i / g->cols, i % g->cols, (double)x[at], (double)v, (double)want[i]);
        }
        if (d != 1) continue;
        /* BF16 in, BF16 run: the same values, rounded. */
        quantize_ld(KLD_PRECISION_BF16, &a, x, ROWS, g->cols, COLS, z);
        bool exact = true;
        for (size_t i = 0; i < ROWS * g->cols; i++) {
            size_t at = i / g->cols * COLS + i % g->cols;
            assert_true(same(z[at], kld_bf16_to_f32(kld_f32_to_bf16(y[at]))));
            exact = exact && z[at] == y[at];
        }
        assert_true(exact == !(a.format == KLD_AQ_FP8_TOKEN ||
                               (a.format == KLD_AQ_FP8_BLOCK && !a.power_of_two)));
    }
    unload(&f);
    unload(&in);
}

static void libraries(void **state) {
    (void)state;
    static const golden cases[] = {
        {"fp8-tensor", {.format = KLD_AQ_FP8_TENSOR}, COLS, 3},
        {"fp8-token", {.format = KLD_AQ_FP8_TOKEN}, COLS, 3},
        {"fp8-group", {.format = KLD_AQ_FP8_BLOCK}, COLS, 3},
        {"fp8-block-eps", {.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f}, PART, 3},
        {"fp8-block-ue8m0", {.format = KLD_AQ_FP8_BLOCK, .power_of_two = true}, PART, 3},
        {"mxfp4-even", {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN}, COLS, 3},
        {"mxfp8-even", {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_EVEN}, COLS, 3},
        {"mxfp4-floor", {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_FLOOR}, COLS, 3},
        {"mxfp8-floor", {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_FLOOR}, COLS, 3},
        {"mxfp4-ceil", {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL}, COLS, 1},
        {"mxfp8-ceil", {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}, COLS, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) golden_case(&cases[i]);
}

/* NVFP4: codes and scales bit for bit those of the reciprocal form; the division form of
 * compressed-tensors, alpha in its block scale, but for as many values as the oracle counted. */
static void nvfp4_libraries(void **state) {
    (void)state;
    static float x[ROWS * COLS], fake[ROWS * COLS], y[ROWS * COLS];
    loaded in, f;
    load(&in, "tests/golden/acts/inputs.safetensors");
    load(&f, "tests/golden/acts/nvfp4.safetensors");
    kld_act_quant a = {.format = KLD_AQ_NVFP4};
    memcpy(&a.scale, part(&f, "scale"), 4);
    for (size_t d = 0; d < 3; d++) {
        char name[3][32];
        static const char *const parts[] = {"codes", "scales", "differ"};
        for (int i = 0; i < 3; i++)
            snprintf(name[i], sizeof name[i], "%s.%s", data_names[d], parts[i]);
        const unsigned char *codes = part(&f, name[0]), *scales = part(&f, name[1]);
        float differ, counted = 0;
        memcpy(&differ, part(&f, name[2]), 4);
        read_values(&in, data_names[d], x);
        read_values(&f, data_names[d], fake);
        quantize_ld(d == 1 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32, &a, x, ROWS, COLS, COLS, y);
        for (size_t i = 0; i < ROWS * COLS; i++) {
            uint8_t want = codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
            kld_aq_scale s = scale_of(&a, x + i / 16 * 16, 16);
            assert_int_equal(s.byte, scales[i / 16]);
            assert_int_equal(kld_aq_code(a.format, s, x[i]), want);
            float sf = kld_e4m3_to_f32(scales[i / 16]);
            assert_true(same(y[i], kld_e2m1_to_f32(want) * sf));
            if (kld_e2m1_to_f32(want) * (sf / a.scale) != fake[i]) counted++;
        }
        assert_true(counted == differ);
    }
    unload(&f);
    unload(&in);
}

/* ---- edges ----------------------------------------------------------------------------------- */

static void worked_example(void **state) {
    (void)state;
    static const float x[16] = {.10009765625f,
                                -.25f,
                                .5f,
                                -1,
                                1.5f,
                                2,
                                -3,
                                0,
                                .010009765625f,
                                -.02001953125f,
                                .69921875f,
                                -.6015625f,
                                .30078125f,
                                .349609375f,
                                -.8984375f,
                                2.40625f};
    static const uint8_t bytes[8] = {0x90, 0xc2, 0x65, 0x0f, 0x80, 0xa3, 0x11, 0x6c};
    static const float seen[16] = {0, -.25f, .5f,  -1,   1.5f, 2,    -3, 0,
                                   0, -.0f,  .75f, -.5f, .25f, .25f, -1, 2};
    kld_act_quant a = {.format = KLD_AQ_NVFP4, .scale = 224};
    kld_aq_scale s = scale_of(&a, x, 16);
    assert_int_equal(s.byte, 0x6e);
    assert_true(s.in == 2 && s.out == 112);
    float y[16];
    quantize(&a, x, 16, y);
    for (size_t i = 0; i < 16; i++) {
        uint8_t c = kld_aq_code(a.format, s, x[i]);
        assert_int_equal(c, bytes[i / 2] >> (i % 2 ? 4 : 0) & 15);
        assert_true(same(y[i], seen[i] * 224));
    }
    assert_true(kld_act_alpha(&a) == 1.0f / 224);
}

static const kld_act_quant every[] = {
    {.format = KLD_AQ_NVFP4, .scale = 3.7f},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_FLOOR},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_FLOOR},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_EVEN},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL},
    {.format = KLD_AQ_FP8_TENSOR, .scale = 0.0123f},
    {.format = KLD_AQ_FP8_TOKEN},
    {.format = KLD_AQ_FP8_TOKEN, .eps = 1e-4f},
    {.format = KLD_AQ_FP8_BLOCK},
    {.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f},
    {.format = KLD_AQ_FP8_BLOCK, .power_of_two = true},
    {.format = KLD_AQ_FP8_BLOCK, .power_of_two = true, .eps = 1e-4f},
};
enum { EVERY = sizeof every / sizeof *every };

static void zeros_and_underflow(void **state) {
    (void)state;
    float x[128] = {0}, y[128];
    for (size_t k = 0; k < EVERY; k++) {
        kld_aq_scale s = scale_of(&every[k], x, 128);
        assert_int_equal(s.byte, 0);
        quantize(&every[k], x, 128, y);
        for (size_t i = 0; i < 128; i++) {
            assert_int_equal(kld_aq_code(every[k].format, s, x[i]), 0);
            assert_int_equal(kld_f32_bits(y[i]), 0);
        }
    }
    /* The smallest values there are: never NaN or Inf, and zero where the scale is. */
    for (size_t i = 0; i < 128; i++) x[i] = i % 2 ? -0x1p-149f : 0x1p-149f;
    for (size_t k = 0; k < EVERY; k++) {
        quantize(&every[k], x, 128, y);
        for (size_t i = 0; i < 128; i++) assert_true(fabsf(y[i]) <= 0x1p-148f);
    }
    /* SF * amax / 6 is half the smallest E4M3: a tie that goes to 0, although x * SF has a code. */
    kld_act_quant a = {.format = KLD_AQ_NVFP4, .scale = 1024};
    for (size_t i = 0; i < 16; i++) x[i] = i % 2 ? -0x1.8p-18f : 0x1.7p-18f;
    assert_int_equal(scale_of(&a, x, 16).byte, 0);
    quantize(&a, x, 16, y);
    for (size_t i = 0; i < 16; i++) assert_true(y[i] == 0);
    x[3] = 0x1.9p-18f; /* above the tie: the smallest scale, and codes again */
    assert_int_equal(scale_of(&a, x, 16).byte, 1);
    quantize(&a, x, 16, y);
    assert_true(y[3] == 3 * 0x1p-9f && y[1] == -3 * 0x1p-9f);
}

static void saturation(void **state) {
    (void)state;
    float x[128], y[128];
    for (size_t i = 0; i < 128; i++) x[i] = 7.9f * (i % 2 ? -1.0f : 1.0f);
    quantize(&(kld_act_quant){.format = KLD_AQ_NVFP4, .scale = 1e4f}, x, 128, y);
    assert_true(y[0] == 6 * 448 && y[127] == -6 * 448); /* both the scale and the code */
    quantize(&(kld_act_quant){.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_FLOOR}, x, 128, y);
    assert_true(y[0] == 6 && y[127] == -6);
    quantize(&(kld_act_quant){.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN}, x, 128, y);
    assert_true(y[0] == 8 && y[127] == -8);
    quantize(&(kld_act_quant){.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_FLOOR}, x, 128, y);
    assert_true(y[0] == 7 && y[127] == -7);
    quantize(&(kld_act_quant){.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}, x, 128, y);
    assert_true(y[0] == 8 && y[127] == -8);
    quantize(&(kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = 1e-3f}, x, 128, y);
    assert_true(y[0] == 448 && y[127] == -448);
    /* Finite values that overflow on the way to their code are no infinities. */
    x[0] = FLT_MAX;
    quantize(&(kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = 1e-3f}, x, 128, y);
    assert_true(y[0] == 448 && y[1] == -448);
    quantize(&(kld_act_quant){.format = KLD_AQ_NVFP4, .scale = 1e6f}, x, 128, y);
    assert_true(y[0] == 6 * 448 && y[1] == -6 * 448);
}

static void ties(void **state) {
    (void)state;
    /* amax 6 and SF 1: the scale is 1, and so is r. */
    static const float half[] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    static const float even[] = {0, 1, 1, 2, 2, 4, 4};
    float x[32] = {6}, y[32];
    for (size_t i = 0; i < 7; i++) {
        x[1 + i] = half[i];
        x[16 + i] = -half[i];
        x[8 + i] = nextafterf(half[i], 0);
        x[23 + i] = -nextafterf(half[i], 7);
    }
    x[31] = -6;
    for (int f = KLD_AQ_NVFP4; f <= KLD_AQ_MXFP4; f++) {
        quantize(&(kld_act_quant){.format = (kld_act_format)f, .scale = 1}, x, 32, y);
        for (size_t i = 0; i < 7; i++) {
            assert_true(same(y[1 + i], even[i]) && same(y[16 + i], -even[i]));
            uint8_t down = (uint8_t)i, up = (uint8_t)(i + 1);
            assert_true(y[8 + i] == kld_e2m1_to_f32(down) && y[23 + i] == -kld_e2m1_to_f32(up));
        }
    }
    static const float fp8[][2] = {
        {17, 16},   {19, 20},       {464, 448},           {0x1p-10f, 0}, {3 * 0x1p-10f, 0x1p-8f},
        {-17, -16}, {17.0001f, 18}, {0x1.1p-6f, 0x1p-6f}, {-0.0f, -0.0f}};
    for (size_t i = 0; i < 9; i++) {
        quantize(&(kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = 1}, fp8[i], 1, y);
        assert_true(same(y[0], fp8[i][1]));
    }
}

/* The exponent rules against their definitions, in FP64, at the edges and everywhere. */
static void exponents(void **state) {
    (void)state;
    uint64_t seed = 11;
    static const float at[] = {1,           6,         7,         448,    0x1.8p+100f,
                               0x1.cp-100f, 0x1p-126f, 0x1p-149f, FLT_MAX};
    for (size_t i = 0; i < 100000; i++) {
        float v = at[i % 9];
        if (i >= 27) v = kld_f32_from_bits((uint32_t)(rnd(&seed) * 0x7f7fffff) + 1);
        else if (i >= 9) v = nextafterf(v, i < 18 ? 0 : FLT_MAX);
        if (v == 0) continue;
        for (int e4m3 = 0; e4m3 < 2; e4m3++) {
            for (int rule = 0; rule < 3; rule++) {
                int e, emax = e4m3 ? 8 : 2;
                double m = 2 * frexp((double)v, &e), top = e4m3 ? 1.75 : 1.5;
                e += -1 - emax;
                if (rule == KLD_AQ_EVEN && m >= 1.75) e++;
                if (rule == KLD_AQ_CEIL && m > top) e++;
                kld_act_quant a = {.format = e4m3 ? KLD_AQ_MXFP8 : KLD_AQ_MXFP4,
                                   .exponent = (kld_aq_exponent)rule};
                kld_aq_scale s = kld_aq_scale_of(&a, kld_f32_bits(v));
                assert_int_equal(s.byte, e < -127 ? 0 : e + 127);
                assert_true((double)s.out == ldexp(1, s.byte - 127));
                if (rule == KLD_AQ_CEIL) assert_true((double)v <= (e4m3 ? 448 : 6) * (double)s.out);
            }
        }
    }
}

/* A value that is not finite spoils its block, and only that. */
static void not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { N = 384 };
    static float x[3 * N], y[3 * N], clean[3 * N];
    uint64_t seed = 12;
    for (size_t i = 0; i < 3 * N; i++) x[i] = (float)rnd_normal(&seed);
    for (int p = 0; p < 2; p++) {
        for (size_t k = 0; k < EVERY; k++) {
            size_t block = kld_act_block(every[k].format), at = N + 37;
            if (every[k].format == KLD_AQ_FP8_TENSOR) block = 1;
            if (!block) block = N;
            quantize_ld((kld_precision)p, &every[k], x, 3, N, N, clean);
            for (size_t b = 0; b < 3; b++) {
                float was = x[at];
                x[at] = bad[b];
                quantize_ld((kld_precision)p, &every[k], x, 3, N, N, y);
                x[at] = was;
                for (size_t i = 0; i < 3 * N; i++) {
                    if (i / block == at / block) assert_true(isnan(y[i]));
                    else assert_true(same(y[i], clean[i]));
                }
            }
        }
    }
}

/* Odd sizes in rows that end in NaN; in place; every value again by itself. */
static void shapes(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 3, 16, 31, 127, 128, 129, 160, 300, 1000};
    uint64_t seed = 13;
    for (size_t k = 0; k < EVERY; k++) {
        size_t block = kld_act_block(every[k].format);
        bool whole = block == 16 || block == 32;
        for (size_t i = 0; i < 10; i++) {
            size_t cols = whole ? (sizes[i] + block - 1) / block * block : sizes[i], ld = cols + 5;
            size_t n = 5 * ld;
            float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
            assert_true(x && y);
            for (size_t j = 0; j < n; j++) {
                x[j] = j % ld < cols ? (float)rnd_normal(&seed) : NAN;
                y[j] = NAN;
            }
            quantize_ld(KLD_PRECISION_FP32, &every[k], x, 5, cols, ld, y);
            for (size_t j = 0; j < n; j++) {
                size_t c = j % ld, w = block ? block : cols, from = c / w * w;
                size_t len = cols - from < w ? cols - from : w;
                if (c >= cols) {
                    assert_true(isnan(y[j]));
                    continue;
                }
                kld_aq_scale s = scale_of(&every[k], x + j - c + from, len);
                assert_true(same(y[j], kld_aq_value(every[k].format, s, x[j])));
                assert_true(isfinite(y[j]));
            }
            quantize_ld(KLD_PRECISION_FP32, &every[k], x, 5, cols, ld, x);
            for (size_t j = 0; j < n; j++) assert_true(same(x[j], y[j]));
            free(x);
            free(y);
        }
    }
    float x[3] = {1.1f, NAN, -0.0f}, y[3];
    quantize(&(kld_act_quant){.format = KLD_AQ_NONE}, x, 3, y);
    for (int i = 0; i < 3; i++) assert_true(same(x[i], y[i]));
}

static void refuses(kld_act_quant a, size_t cols, kld_status want, const char *text) {
    float x[64] = {0};
    kld_device *dev = open_dev(KLD_PRECISION_FP32);
    kld_view v = {x, 1, cols, 64, KLD_ELEM_ACT};
    kld_err err = {0};
    assert_int_equal(be->quantize(dev, v, &a, v, &err), want);
    if (!strstr(err.text, text)) fail_msg("'%s' lacks '%s'", err.text, text);
    be->close(dev);
}

static void refusals(void **state) {
    (void)state;
    refuses((kld_act_quant){.format = KLD_AQ_NVFP4, .scale = 1}, 24, KLD_E_INPUT,
            "blocks of 16, and 24");
    refuses((kld_act_quant){.format = KLD_AQ_MXFP4}, 48, KLD_E_INPUT, "blocks of 32, and 48");
    refuses((kld_act_quant){.format = KLD_AQ_MXFP8}, 1, KLD_E_INPUT, "blocks of 32, and 1 ");
    static const float scales[] = {0, -1, INFINITY, NAN, 0x1p-101f, 0x1p101f};
    for (size_t i = 0; i < 6; i++) {
        refuses((kld_act_quant){.format = KLD_AQ_NVFP4, .scale = scales[i]}, 16, KLD_E_INPUT,
                "NVFP4");
        refuses((kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = scales[i]}, 16, KLD_E_INPUT,
                "FP8 (static)");
    }
    refuses((kld_act_quant){.format = KLD_AQ_FP8_TOKEN, .eps = -1}, 16, KLD_E_INPUT, "eps -1");
    refuses((kld_act_quant){.format = KLD_AQ_FP8_BLOCK, .eps = NAN}, 16, KLD_E_INPUT, "eps nan");
    refuses((kld_act_quant){.format = KLD_AQ_COUNT}, 16, KLD_E_UNSUPPORTED, "not known");
    assert_true(kld_act_alpha(&(kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = .3f}) == .3f);
    assert_true(kld_act_alpha(&(kld_act_quant){.format = KLD_AQ_MXFP4, .scale = .3f}) == 1);
    assert_string_equal(kld_act_format_name(KLD_AQ_FP8_TOKEN), "FP8 (per token)");
    assert_string_equal(kld_act_format_name(KLD_AQ_COUNT), "unknown");
}

int main(void) {
    be = kld_backend_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries),      cmocka_unit_test(nvfp4_libraries),
        cmocka_unit_test(worked_example), cmocka_unit_test(zeros_and_underflow),
        cmocka_unit_test(saturation),     cmocka_unit_test(ties),
        cmocka_unit_test(exponents),      cmocka_unit_test(not_finite),
        cmocka_unit_test(shapes),         cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("activation quantization", tests, NULL, NULL);
}
