/* Decoding of weights with scales in grids and groups: CUDA against the CPU's, bit for bit. */
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "tests/gpu/gpukit.h"

#include <stdlib.h>

/* Random bytes for every part of a weight. */
typedef struct stored {
    kld_weight w;
    kld_tensor t[KLD_PART_COUNT];
    unsigned char *host[KLD_PART_COUNT];
    void *dev[KLD_PART_COUNT];
} stored;

static void put(twin *t, stored *s, kld_part p, kld_dtype dtype, size_t n, unsigned top,
                uint64_t *seed) {
    size_t bytes = n * kld_dtype_bits(dtype) / 8;
    s->t[p] = (kld_tensor){.name = "part", .dtype = dtype, .bytes = bytes};
    s->host[p] = malloc(bytes);
    assert_non_null(s->host[p]);
    for (size_t i = 0; i < bytes; i++) s->host[p][i] = (unsigned char)(rnd(seed) * top);
    if (p == KLD_PART_INDEX)
        for (size_t i = 0; i < n; i++)
            ((int32_t *)(void *)s->host[p])[i] = (int32_t)(rnd(seed) * (double)s->w.groups);
    if (p == KLD_PART_SCALE && dtype == KLD_F32)
        for (size_t i = 0; i < n; i++) ((float *)(void *)s->host[p])[i] = (float)(rnd(seed) + 0.1);
    s->dev[p] = gpu_copy(t, s->host[p], bytes);
}

static size_t words(size_t n, unsigned bits) { return num_cdiv(n * bits, 32); }

static void make(twin *t, stored *s, kld_format f, size_t rows, size_t cols, kld_dtype scale,
                 bool extras, uint64_t *seed) {
    unsigned bits = kld_format_bits(f), top = scale == KLD_F8_E8M0 ? 254 : 120;
    bool fp8 = f == KLD_FMT_FP8_BLOCK, mx = f == KLD_FMT_MXFP8;
    size_t group = fp8 ? 48 : 32;
    memset(s, 0, sizeof *s);
    s->w = (kld_weight){.format = f, .rows = rows, .cols = cols, .block_cols = group};
    s->w.block_rows = fp8 ? 16 : 0;
    s->w.groups = fp8 || mx ? 0 : num_cdiv(cols, group);
    s->w.zero_add = extras;
    size_t n = f == KLD_FMT_AWQ            ? cols * (rows / 8) * 4
               : f >= KLD_FMT_GPTQ4        ? words(cols, bits) * rows * 4
               : f == KLD_FMT_INT4_PAIRS   ? rows / 2 * cols
               : bits && f != KLD_FMT_INT8 ? rows * words(cols, bits) * 4
                                           : rows * cols;
    put(t, s, KLD_PART_DATA, KLD_U8, n, 127, seed); /* 127: no NaN among FP8 codes */
    s->w.data = &s->t[KLD_PART_DATA];
    size_t scales = fp8 ? num_cdiv(rows, 16) * num_cdiv(cols, group) : rows * num_cdiv(cols, group);
    put(t, s, KLD_PART_SCALE, scale, scales, top, seed);
    s->w.scale = &s->t[KLD_PART_SCALE];
    bool streams = f == KLD_FMT_INT4_PACKED || f == KLD_FMT_INT8_PACKED;
    if (f >= KLD_FMT_AWQ || (streams && extras)) {
        put(t, s, KLD_PART_ZEROS, KLD_I32, words(rows, bits) * s->w.groups, 256, seed);
        s->w.zeros = &s->t[KLD_PART_ZEROS];
    }
    if ((streams || f > KLD_FMT_AWQ) && extras) {
        put(t, s, KLD_PART_INDEX, KLD_I32, cols, 1, seed);
        s->w.index = &s->t[KLD_PART_INDEX];
    }
}

static kld_weight_view view(void *const *p) {
    return (kld_weight_view){.data = p[KLD_PART_DATA],
                             .scale = p[KLD_PART_SCALE],
                             .zeros = p[KLD_PART_ZEROS],
                             .index = p[KLD_PART_INDEX]};
}

static void compare(twin *t, stored *s, uint64_t *seed) {
    size_t rows = s->w.rows, cols = s->w.cols, es = t->bf16 ? 2 : 4;
    kld_precision p = t->bf16 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    kld_weight_view v = view((void *const *)s->host);
    kld_raw_weight raw = {.w = &s->w, .v = view(s->dev), .alpha = 1, .global = 1};
    kld_err err = {0};
    kld_dev_weight out;
    void *mem;
    need(t->gpu->alloc(t->g, &mem, t->gpu->weight_bytes(p, &s->w, KLD_USE_MATRIX), &err), &err,
         "alloc");
    need(t->gpu->prepare(t->g, &raw, KLD_USE_MATRIX, mem, &out, &err), &err, "prepare");
    float *want = malloc(rows * cols * sizeof *want);
    unsigned char *got = malloc(rows * cols * es);
    assert_true(want && got);
    kld_weight_decode(&s->w, v, 0, rows, true, want);
    need(t->gpu->download(t->g, got, out.data, rows * cols * es, &err), &err, "download");
    for (size_t i = 0; i < rows * cols; i++) {
        uint16_t h = kld_f32_to_bf16(want[i]);
        if (memcmp(got + es * i, es == 4 ? (void *)&want[i] : (void *)&h, es) != 0)
            fail_msg("%s, element %zu, not %g", kld_format_name(s->w.format), i, (double)want[i]);
    }
    both y = both_random(t, 2, cols, cols + 1, KLD_ELEM_F32, 1, seed);
    uint32_t ids[2] = {(uint32_t)rows - 1, 0};
    need(t->gpu->prepare(t->g, &raw, KLD_USE_EMBEDDING, mem, &out, &err), &err, "prepare");
    need(t->gpu->embed(t->g, &out, ids, y.g, &err), &err, "embed");
    for (size_t r = 0; r < 2; r++)
        kld_weight_decode(&s->w, v, ids[r], 1, false, (float *)y.c.p + r * y.c.ld);
    both_same(t, &y, 0, "embed");
    both_free(t, &y);
    t->gpu->free(t->g, mem);
    free(want);
    free(got);
}

static void decoding(void **state) {
    (void)state;
    static const kld_dtype scales[] = {KLD_F32, KLD_BF16, KLD_F16, KLD_F8_E8M0};
    uint64_t seed = 12;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = {.precision = (kld_precision)p,
                                .max_rows = 64,
                                .max_keys = 64,
                                .kv_cols = 64,
                                .head_rows = 16,
                                .vocab = 64,
                                .top_k = 8,
                                .head_dim = 64};
        twin_open(&t, &spec);
        for (int f = KLD_FMT_FP8_BLOCK; f < KLD_FMT_COUNT; f++) {
            for (size_t k = 0; k < 8; k++) {
                kld_dtype scale = f == KLD_FMT_MXFP8 ? KLD_F8_E8M0 : scales[k / 2];
                bool ragged = k % 2 && (f == KLD_FMT_FP8_BLOCK || f == KLD_FMT_INT8 ||
                                        f == KLD_FMT_INT4_PACKED || f == KLD_FMT_INT8_PACKED);
                stored s;
                make(&t, &s, (kld_format)f, ragged ? 45 : 48, ragged ? 93 : 96, scale, k % 2,
                     &seed);
                compare(&t, &s, &seed);
                for (size_t i = 0; i < KLD_PART_COUNT; i++) {
                    t.gpu->free(t.g, s.dev[i]);
                    free(s.host[i]);
                }
            }
        }
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding)};
    return cmocka_run_group_tests_name("gpu formats", tests, NULL, NULL);
}
