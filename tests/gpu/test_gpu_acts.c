/* Quantization of activations: CUDA against the CPU, bit for bit. */
#include "tests/gpu/gpukit.h"

#include <math.h>
#include <stdlib.h>

static const kld_act_quant every[] = {
    {.format = KLD_AQ_NONE},
    {.format = KLD_AQ_NVFP4, .scale = 137.3f},
    {.format = KLD_AQ_NVFP4, .scale = 0.021f}, /* most block scales underflow */
    {.format = KLD_AQ_NVFP4, .scale = 9e6f},   /* and these saturate */
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_FLOOR},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_EVEN},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_FLOOR},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_EVEN},
    {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL},
    {.format = KLD_AQ_FP8_TENSOR, .scale = 0.0123f},
    {.format = KLD_AQ_FP8_TOKEN},
    {.format = KLD_AQ_FP8_TOKEN, .eps = 0.01f},
    {.format = KLD_AQ_FP8_BLOCK},
    {.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f},
    {.format = KLD_AQ_FP8_BLOCK, .power_of_two = true, .eps = 1e-4f},
};
enum { EVERY = sizeof every / sizeof *every };

/* Bits alike, NaN for NaN; what lies past the columns still NaN. */
static void same_bits(twin *t, const both *b, const char *what, int format) {
    float *got = both_pull(t, b);
    const float *want = b->c.p;
    for (size_t i = 0; i < b->c.rows * b->c.ld; i++) {
        size_t r = i / b->c.ld, c = i % b->c.ld;
        bool ok = c < b->c.cols ? memcmp(&got[i], &want[i], sizeof *got) == 0 ||
                                      (isnan(got[i]) && isnan(want[i]))
                                : isnan(got[i]);
        if (!ok)
            fail_msg("%s, case %d: [%zu,%zu] of %zu x %zu is %.9g on the GPU, %.9g on the CPU",
                     what, format, r, c, b->c.rows, b->c.cols, (double)got[i], (double)want[i]);
    }
    free(got);
}

/* Sizes of a value from 2^-60 to 2^60 within one row, zeros, minus zeros, what is not finite. */
static void roughen(twin *t, both *b, bool not_finite, uint64_t *seed) {
    static const float odd[] = {0, -0.0f, 0x1p-149f, -0x1.fffffep+127f, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < b->c.rows * b->c.ld; i++) {
        if (i % b->c.ld >= b->c.cols) continue;
        size_t r = i / b->c.ld, c = i % b->c.ld;
        if (r % 4 == 1) b->host[i] = ldexpf(b->host[i], (int)(rnd(seed) * 120) - 60);
        if (r % 4 == 2 && c / 16 % 3 == 0) b->host[i] = odd[c % 2];
        if (r % 4 == 3 && rnd(seed) < 0.01)
            b->host[i] = odd[(int)(rnd(seed) * (not_finite ? 7 : 4))];
    }
    both_push(t, b);
}

static void run_case(twin *t, const kld_act_quant *a, int index, size_t rows, size_t cols,
                     size_t pad, uint64_t *seed) {
    kld_err err = {0};
    both x = both_random(t, rows, cols, cols + pad, KLD_ELEM_ACT, 2, seed);
    both y = both_random(t, rows, cols, cols + 2 * pad, KLD_ELEM_ACT, 1, seed);
    roughen(t, &x, pad != 4, seed);
    need(t->cpu->quantize(t->c, x.c, a, y.c, &err), &err, "cpu");
    need(t->gpu->quantize(t->g, x.g, a, y.g, &err), &err, "cuda");
    same_bits(t, &y, "quantize", index);
    need(t->cpu->quantize(t->c, x.c, a, x.c, &err), &err, "cpu");
    need(t->gpu->quantize(t->g, x.g, a, x.g, &err), &err, "cuda");
    same_bits(t, &x, "quantize in place", index);
    both_free(t, &x);
    both_free(t, &y);
}

static void formats(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 3, 31, 64, 127, 128, 130, 300, 576, 1024, 1030, 4096, 11008};
    uint64_t seed = 21;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = {.precision = (kld_precision)p,
                                .max_rows = 1024,
                                .max_keys = 64,
                                .kv_cols = 64,
                                .head_rows = 16,
                                .vocab = 64,
                                .top_k = 8,
                                .head_dim = 64};
        twin_open(&t, &spec);
        for (int k = 0; k < EVERY; k++) {
            size_t block = kld_act_block(every[k].format);
            bool whole = block == 16 || block == 32;
            for (size_t i = 0; i < gpu_size(13, 9); i++) {
                size_t cols = whole ? (sizes[i] + block - 1) / block * block : sizes[i];
                for (size_t pad = 0; pad < 9; pad += i % 2 ? 4 : 3)
                    run_case(&t, &every[k], k, 37, cols, pad, &seed);
            }
            run_case(&t, &every[k], k, 1, 4096, 0, &seed);
            run_case(&t, &every[k], k, gpu_size(70000, 700), 32, 0, &seed); /* rows past a grid */
        }
        kld_act_quant a = {.format = KLD_AQ_NVFP4, .scale = 1};
        both x = both_random(&t, 2, 24, 24, KLD_ELEM_ACT, 1, &seed);
        kld_err err = {0};
        assert_int_equal(t.gpu->quantize(t.g, x.g, &a, x.g, &err), KLD_E_INPUT);
        assert_non_null(strstr(err.text, "blocks of 16, and 24"));
        x.g.rows = 0;
        x.g.cols = 16;
        need(t.gpu->quantize(t.g, x.g, &a, x.g, &err), &err, "no rows");
        both_free(&t, &x);
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(formats)};
    return cmocka_run_group_tests_name("gpu activation quantization", tests, NULL, NULL);
}
