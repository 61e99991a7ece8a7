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
                             .global = p[KLD_PART_GLOBAL],
                             .zeros = p[KLD_PART_ZEROS],
                             .index = p[KLD_PART_INDEX]};
}

static void compare_bias(twin *t, const stored *s, const kld_dev_weight *w) {
    kld_err err = {0};
    float *got = malloc(s->w.rows * sizeof *got);
    assert_non_null(got);
    assert_true(!w->bias == !s->w.bias);
    if (w->bias)
        need(t->gpu->download(t->g, got, w->bias, s->w.rows * sizeof *got, &err), &err, "download");
    for (size_t r = 0; w->bias && r < s->w.rows; r++) {
        size_t from = kld_shard_row(s->w.shards, s->w.shard_rows, r);
        float want = kld_scale_value(s->w.bias, s->host[KLD_PART_BIAS], from);
        if (got[r] != want) fail_msg("bias %zu is %g, not %g", r, (double)got[r], (double)want);
    }
    free(got);
}

static void compare(twin *t, stored *s, uint64_t *seed) {
    size_t rows = s->w.rows, cols = s->w.cols, es = t->bf16 ? 2 : 4;
    kld_precision p = t->bf16 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    kld_weight_view v = view((void *const *)s->host);
    kld_raw_weight raw = {.w = &s->w, .v = view(s->dev), .alpha = 1, .global = 1};
    raw.bias = s->dev[KLD_PART_BIAS];
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
    compare_bias(t, s, &out);
    both y = both_random(t, 2, cols, cols + 1, KLD_ELEM_F32, 1, seed);
    uint32_t ids[2] = {(uint32_t)rows - 1, 0};
    need(t->gpu->prepare(t->g, &raw, KLD_USE_EMBEDDING, mem, &out, &err), &err, "prepare");
    need(t->gpu->embed(t->g, &out, ids, 1, y.g, &err), &err, "embed");
    for (size_t r = 0; r < 2; r++)
        kld_weight_decode(&s->w, v, ids[r], 1, false, (float *)y.c.p + r * y.c.ld);
    both_same(t, &y, 0, "embed");
    both_free(t, &y);
    t->gpu->free(t->g, mem);
    free(want);
    free(got);
}

static void drop(twin *t, stored *s) {
    for (size_t i = 0; i < KLD_PART_COUNT; i++) {
        t->gpu->free(t->g, s->dev[i]);
        free(s->host[i]);
    }
}

/* Rows in shards, and dense values stored the other way round: gpt-oss' gate and up, MiMo's q, k
 * and v.  A bias goes with the rows. */
static void make_sharded(twin *t, stored *s, kld_format f, size_t shards, const size_t rows[3],
                         size_t cols, bool in_major, uint64_t *seed) {
    bool dense = f <= KLD_FMT_F32, fp4 = f == KLD_FMT_NVFP4 || f == KLD_FMT_MXFP4;
    size_t shard = rows[0] + rows[1] + rows[2], n = shards * shard, height = 16, width = 48;
    memset(s, 0, sizeof *s);
    s->w = (kld_weight){.format = f, .rows = n, .cols = cols, .in_major = in_major};
    s->w.shards = shards;
    if (!shards) s->w.rows = n = shard;
    memcpy(s->w.shard_rows, rows, sizeof s->w.shard_rows);
    kld_dtype type = f == KLD_FMT_BF16 ? KLD_BF16 : f == KLD_FMT_F16 ? KLD_F16 : KLD_F32;
    put(t, s, KLD_PART_DATA, dense ? type : KLD_U8, fp4 ? n * cols / 2 : n * cols, 120, seed);
    s->w.data = &s->t[KLD_PART_DATA];
    if (!dense) {
        kld_dtype scale = fp4 ? KLD_U8 : KLD_F32;
        s->w.block_cols = f == KLD_FMT_NVFP4 ? 16 : f == KLD_FMT_MXFP4 ? 32 : width;
        s->w.block_rows = f == KLD_FMT_FP8_BLOCK ? height : 0;
        size_t m = n * (cols / s->w.block_cols);
        if (f == KLD_FMT_FP8_CHANNEL) m = n;
        if (f == KLD_FMT_FP8_BLOCK)
            m = (shards ? shards : 1) * num_cdiv(shard, height) * num_cdiv(cols, width);
        put(t, s, KLD_PART_SCALE, scale, m, 120, seed);
        s->w.scale = &s->t[KLD_PART_SCALE];
    }
    if (f == KLD_FMT_NVFP4) {
        put(t, s, KLD_PART_GLOBAL, KLD_F32, 1, 1, seed);
        *(float *)(void *)s->host[KLD_PART_GLOBAL] = 1;
        s->w.global = &s->t[KLD_PART_GLOBAL];
    }
    put(t, s, KLD_PART_BIAS, KLD_BF16, n, 120, seed);
    s->w.bias = &s->t[KLD_PART_BIAS];
}

static void sharded(void **state) {
    (void)state;
    static const size_t kinds[][4] = {
        {24, 1, 1, 0}, {3, 32, 16, 8}, {1, 7, 5, 3}, {4, 20, 20, 0}, {0, 45, 0, 0}};
    static const kld_format formats[] = {KLD_FMT_BF16,     KLD_FMT_F16,   KLD_FMT_F32,
                                         KLD_FMT_NVFP4,    KLD_FMT_MXFP4, KLD_FMT_FP8_CHANNEL,
                                         KLD_FMT_FP8_BLOCK};
    uint64_t seed = 13;
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
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
            kld_format f = formats[i];
            bool dense = f <= KLD_FMT_F32, ragged = dense || f >= KLD_FMT_FP8_CHANNEL;
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                for (int in_major = 0; in_major <= dense; in_major++) {
                    stored s;
                    make_sharded(&t, &s, f, kinds[k][0], kinds[k] + 1, ragged && k % 2 ? 93 : 96,
                                 in_major, &seed);
                    compare(&t, &s, &seed);
                    drop(&t, &s);
                }
            }
        }
        twin_close(&t);
    }
}

/* Vectors and routers: what the CPU holds, in FP32 or as the BF16 that is exactly that. */
static void uses(void **state) {
    (void)state;
    static const kld_format formats[] = {KLD_FMT_BF16, KLD_FMT_F16, KLD_FMT_F32};
    static const kld_use of[] = {KLD_USE_VECTOR, KLD_USE_VECTOR_PLUS_ONE, KLD_USE_ROUTER};
    uint64_t seed = 14;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = {.precision = (kld_precision)p,
                                .max_rows = 64,
                                .max_keys = 64,
                                .head_rows = 16,
                                .vocab = 64,
                                .top_k = 8,
                                .head_dim = 64};
        twin_open(&t, &spec);
        for (size_t i = 0; i < 9; i++) {
            kld_use use = of[i / 3];
            kld_format f = formats[i % 3];
            bool router = use == KLD_USE_ROUTER, half = router && t.bf16 && f == KLD_FMT_BF16;
            size_t cols = router ? 45 : 1, n = 77 * cols;
            weight w;
            weight_random(&t, &w, f, 77, cols, router, use, &seed);
            assert_true(w.g.exact == (router && t.bf16 && f != KLD_FMT_BF16));
            assert_true(!w.g.bias == !router);
            unsigned char *got = malloc(n * sizeof(float));
            const float *want = w.c.data;
            kld_err err = {0};
            assert_non_null(got);
            need(t.gpu->download(t.g, got, w.g.data, n * (half ? 2 : 4), &err), &err, "download");
            for (size_t j = 0; j < n; j++) {
                uint16_t h;
                float v;
                memcpy(&h, got + 2 * j, 2);
                if (half) v = kld_bf16_to_f32(h);
                else memcpy(&v, got + 4 * j, 4);
                if (v != want[j])
                    fail_msg("use %d of %s, element %zu: %g, not %g", (int)use, kld_format_name(f),
                             j, (double)v, (double)want[j]);
            }
            free(got);
            weight_free(&t, &w);
        }
        twin_close(&t);
    }
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
                drop(&t, &s);
            }
        }
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding),
        cmocka_unit_test(sharded),
        cmocka_unit_test(uses),
    };
    return cmocka_run_group_tests_name("gpu formats", tests, NULL, NULL);
}
