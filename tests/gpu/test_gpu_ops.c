/* Row-wise operations, matrix products and decoding: CUDA against the CPU's. */
#include "tests/gpu/gpukit.h"

#include "loaders/numfmt.h"

#include <math.h>
#include <stdlib.h>

static kld_device_spec spec_for(kld_precision p) {
    return (kld_device_spec){.precision = p,
                             .max_rows = 4096,
                             .max_keys = 1024,
                             .kv_cols = 1024,
                             .bias_cols = 1024,
                             .act_cols = 1024,
                             .head_rows = 256,
                             .vocab = 64,
                             .top_k = 8,
                             .head_dim = 64};
}

static double tolerance(const twin *t, kld_elem e) {
    return t->bf16 && e == KLD_ELEM_ACT ? 0.02 : 4e-6; /* a BF16 value may round the other way */
}

static void norms(void **state) {
    (void)state;
    static const size_t cols[] = {1, 3, 17, 64, 576, 4096, 8193};
    uint64_t seed = 1;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (size_t k = 0; k < 7; k++) {
            for (size_t pad = 0; pad < 9; pad += 4) {
                size_t n = cols[k], rows = 37;
                weight w;
                weight_random(&t, &w, KLD_FMT_F32, n, 1, false, KLD_USE_VECTOR, &seed);
                both x = both_random(&t, rows, n, n + pad, KLD_ELEM_F32, 3, &seed);
                both y = both_random(&t, rows, n, n + 2 * pad, KLD_ELEM_ACT, 1, &seed);
                both z = both_random(&t, rows, n, n + pad, KLD_ELEM_F32, 5, &seed);
                assert_int_equal(t.cpu->norm(t.c, x.c, &w.c, 1e-5, y.c, false, NULL), KLD_OK);
                assert_int_equal(t.gpu->norm(t.g, x.g, &w.g, 1e-5, y.g, false, NULL), KLD_OK);
                both_same(&t, &y, tolerance(&t, KLD_ELEM_ACT), "norm");
                assert_int_equal(t.gpu->norm(t.g, x.g, &w.g, 1e-5, z.g, true, NULL), KLD_OK);
                assert_int_equal(t.cpu->norm(t.c, x.c, &w.c, 1e-5, z.c, true, NULL), KLD_OK);
                both_same(&t, &z, 4e-6, "added norm");
                assert_int_equal(t.gpu->norm(t.g, x.g, &w.g, 1e-5, x.g, false, NULL), KLD_OK);
                assert_int_equal(t.cpu->norm(t.c, x.c, &w.c, 1e-5, x.c, false, NULL), KLD_OK);
                both_same(&t, &x, 4e-6, "norm in place");
                both_free(&t, &z);
                both_free(&t, &x);
                both_free(&t, &y);
                weight_free(&t, &w);
            }
        }
        twin_close(&t);
    }
}

enum { NO_NORM, HEAD_NORM, ROW_NORM };
typedef struct turn {
    size_t heads, dim, half, first;
    bool interleaved, factor;
} turn;

enum { POSITIONS = 512 };
/* cos, sin and a factor by position. */
static float *tables(size_t half) {
    size_t n = POSITIONS * half;
    float *tab = malloc((2 * n + POSITIONS) * sizeof *tab);
    assert_non_null(tab);
    for (size_t i = 0; i < n; i++) {
        tab[i] = (float)cos(0.001 * (double)i);
        tab[n + i] = (float)sin(0.001 * (double)i);
    }
    for (size_t i = 0; i < POSITIONS; i++) tab[2 * n + i] = 1 + 0.01f * (float)(i % 50);
    return tab;
}

static void rope_case(twin *t, const turn *k, int norm, uint64_t *seed) {
    kld_span span[3] = {{0, 256, 256, 0}, {256, 44, 0, 256}, {300, 1, 511, 300}};
    kld_batch b = {span, 3, 301};
    size_t n = k->heads * k->dim, table = POSITIONS * k->half;
    float *tab = tables(k->half), *dev = gpu_copy(t, tab, (2 * table + POSITIONS) * sizeof *tab);
    kld_rope_table tc = {tab, tab + table, k->half}, tg = {dev, dev + table, k->half};
    weight w;
    weight_random(t, &w, KLD_FMT_F32, norm == ROW_NORM ? n : k->dim, 1, false, KLD_USE_VECTOR,
                  seed);
    both x = both_random(t, 301, n, n + 4, KLD_ELEM_F32, 2, seed);
    both y = both_random(t, 301, n, n + 4 - k->heads % 2, KLD_ELEM_ACT, 1, seed);
    kld_rope_args c = {k->dim, k->first, k->interleaved, NULL, NULL, 1e-6, NULL};
    if (k->half) c.table = &tc;
    if (norm) c.w = &w.c;
    if (k->factor) c.factor = tab + 2 * table;
    kld_rope_args g = c;
    if (k->half) g.table = &tg;
    if (norm) g.w = &w.g;
    if (k->factor) g.factor = dev + 2 * table;
    assert_int_equal(t->cpu->rope(t->c, &b, x.c, &c, y.c, NULL), KLD_OK);
    assert_int_equal(t->gpu->rope(t->g, &b, x.g, &g, y.g, NULL), KLD_OK);
    both_same(t, &y, tolerance(t, KLD_ELEM_ACT), "rope");
    both_push(t, &x);
    assert_int_equal(t->cpu->rope(t->c, &b, x.c, &c, x.c, NULL), KLD_OK);
    assert_int_equal(t->gpu->rope(t->g, &b, x.g, &g, x.g, NULL), KLD_OK);
    both_same(t, &x, 4e-6, "rope in place");
    both_free(t, &x);
    both_free(t, &y);
    weight_free(t, &w);
    t->gpu->free(t->g, dev);
    free(tab);
}

static void rope(void **state) {
    (void)state;
    static const turn turns[] = {
        {32, 128, 64, 0, false, false}, {3, 20, 8, 0, false, false},
        {1, 7, 0, 0, false, false},     {5, 256, 32, 0, false, false},
        {3, 64, 32, 0, false, false},   {2, 256, 128, 0, false, true},
        {4, 128, 64, 0, true, false},   {4, 192, 32, 128, true, true},
        {4, 192, 32, 128, false, true}, {3, 21, 5, 7, true, false},
        {3, 21, 5, 11, false, true},    {1, 64, 32, 0, true, false},
        {1, 1000, 0, 0, false, true},   {2, 80, 40, 0, false, true},
        {5, 24, 0, 0, false, false},
    };
    uint64_t seed = 2;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
            for (int norm = NO_NORM; norm <= ROW_NORM; norm++)
                rope_case(&t, &turns[i], norm, &seed);
        twin_close(&t);
    }
}

static void spread(void **state) {
    (void)state;
    static const size_t shapes[][5] = {/* heads, nope, rope, value, columns of padding */
                                       {4, 128, 64, 128, 0}, {3, 24, 8, 16, 8}, {5, 7, 3, 9, 1},
                                       {2, 16, 0, 16, 0},    {1, 8, 8, 4, 4},   {3, 5, 0, 2, 3}};
    uint64_t seed = 12;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            size_t heads = shapes[i][0], nope = shapes[i][1], rot = shapes[i][2];
            size_t value = shapes[i][3], pad = shapes[i][4], rows = 131;
            size_t c[4] = {heads * (nope + value), rot, heads * (nope + rot), heads * value};
            both b[4];
            for (size_t j = 0; j < 4; j++)
                b[j] = both_random(&t, rows, c[j], c[j] + pad, KLD_ELEM_ACT, 1, &seed);
            assert_int_equal(t.cpu->spread(t.c, b[0].c, b[1].c, heads, b[2].c, b[3].c, NULL),
                             KLD_OK);
            assert_int_equal(t.gpu->spread(t.g, b[0].g, b[1].g, heads, b[2].g, b[3].g, NULL),
                             KLD_OK);
            both_same(&t, &b[2], 0, "keys");
            both_same(&t, &b[3], 0, "values");
            for (size_t j = 0; j < 4; j++) both_free(&t, &b[j]);
        }
        twin_close(&t);
    }
}

static void caps(void **state) {
    (void)state;
    uint64_t seed = 13;
    twin t;
    kld_device_spec spec = spec_for(KLD_PRECISION_BF16);
    twin_open(&t, &spec);
    for (size_t n = 1; n < 3000; n = 3 * n + 1) {
        both x = both_random(&t, 33, n, n + n % 5, KLD_ELEM_F32, 40, &seed);
        assert_int_equal(t.cpu->cap(t.c, x.c, 30, NULL), KLD_OK);
        assert_int_equal(t.gpu->cap(t.g, x.g, 30, NULL), KLD_OK);
        both_same(&t, &x, 2e-6, "cap");
        both_free(&t, &x);
    }
    twin_close(&t);
}

static void gated(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (size_t n = 1; n < 3000; n = 3 * n + 1) {
            for (size_t pad = 0; pad < 9; pad += 4) {
                both g = both_random(&t, 33, n, n + pad, KLD_ELEM_ACT, 20, &seed);
                both u = both_random(&t, 33, n, n + pad, KLD_ELEM_ACT, 1, &seed);
                both y = both_random(&t, 33, n, n + pad, KLD_ELEM_ACT, 1, &seed);
                for (int act = 0; act <= KLD_ACT_CLAMPED_GLU; act++) {
                    kld_gate a = {(kld_activation)act, 0.75f};
                    assert_int_equal(t.cpu->gated(t.c, &a, g.c, u.c, y.c, NULL), KLD_OK);
                    assert_int_equal(t.gpu->gated(t.g, &a, g.g, u.g, y.g, NULL), KLD_OK);
                    both_same(&t, &y, tolerance(&t, KLD_ELEM_ACT), "gated");
                }
                both_free(&t, &g);
                both_free(&t, &u);
                both_free(&t, &y);
            }
        }
        twin_close(&t);
    }
}

/* Gate and up as halves of one buffer, the product in place of the gate; NaN passes. */
static void gated_halves(void **state) {
    (void)state;
    uint64_t seed = 14;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (size_t n = 1; n < 3000; n = 3 * n + 1) {
            for (int act = 0; act <= KLD_ACT_CLAMPED_GLU; act++) {
                kld_gate a = {(kld_activation)act, 2};
                both b = both_random(&t, 33, 2 * n, 2 * n, KLD_ELEM_ACT, 3, &seed);
                b.host[n / 2] = b.host[2 * n + n] = NAN;
                both_push(&t, &b);
                kld_view c[2] = {b.c, b.c}, g[2] = {b.g, b.g};
                for (int i = 0; i < 2; i++) c[i].cols = g[i].cols = n;
                c[1].p = (float *)c[1].p + n;
                g[1].p = (unsigned char *)g[1].p + n * (t.bf16 ? 2 : 4);
                assert_int_equal(t.cpu->gated(t.c, &a, c[0], c[1], c[0], NULL), KLD_OK);
                assert_int_equal(t.gpu->gated(t.g, &a, g[0], g[1], g[0], NULL), KLD_OK);
                both_same(&t, &b, tolerance(&t, KLD_ELEM_ACT), "gated halves");
                both_free(&t, &b);
            }
        }
        twin_close(&t);
    }
}

static void spans_of(kld_batch *b, kld_span *span, size_t rows) {
    *b = (kld_batch){span, 0, rows};
    for (size_t r = 0; r < rows; r += KLD_CHUNK)
        span[b->n++] = (kld_span){r, rows - r < KLD_CHUNK ? rows - r : KLD_CHUNK, r, 0};
}

static void linear_case(twin *t, size_t rows, size_t k, size_t n, size_t pad, bool bias, bool add,
                        kld_elem out, uint64_t *seed) {
    kld_span span[16];
    kld_batch b;
    weight w;
    spans_of(&b, span, rows);
    weight_random(t, &w, KLD_FMT_F32, n + 5, k, bias, KLD_USE_MATRIX,
                  seed); /* the first n rows are used */
    w.c.alpha = w.g.alpha = 0.37f;
    both x = both_random(t, rows, k, k + pad, KLD_ELEM_ACT, 1, seed);
    both y = both_random(t, rows, n, n + pad, out, 1, seed);
    kld_err err = {0};
    need(t->cpu->linear(t->c, &b, x.c, &w.c, y.c, add, &err), &err, "cpu");
    need(t->gpu->linear(t->g, &b, x.g, &w.g, y.g, add, &err), &err, "cuda");
    both_same(t, &y, t->bf16 && out == KLD_ELEM_ACT ? 0.02 : 1e-5, "linear");
    both_free(t, &x);
    both_free(t, &y);
    weight_free(t, &w);
}

static void linear(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (int bias = 0; bias < 2; bias++) {
            linear_case(&t, 300, 64, 96, 0, bias, false, KLD_ELEM_F32, &seed);
            linear_case(&t, 300, 64, 96, 8, bias, true, KLD_ELEM_F32, &seed);
            linear_case(&t, 257, 128, 64, 0, bias, false, KLD_ELEM_ACT, &seed);
            linear_case(&t, 1, 576, 1000, 0, bias, false, KLD_ELEM_F32, &seed);
            linear_case(&t, 17, 33, 7, 3, bias, false, KLD_ELEM_ACT, &seed); /* nothing aligned */
            linear_case(&t, 5, 1, 1, 0, bias, true, KLD_ELEM_F32, &seed);
        }
        twin_close(&t);
    }
}

/* Factors of the input, and then its quantization: both to the bit, so that only the sums of the
 * product are another's.  x stays as it is. */
static void linear_factors(void **state) {
    (void)state;
    static const size_t shapes[][4] = {/* rows, columns of x and y, padding of x */
                                       {300, 64, 96, 0}, {257, 96, 64, 5}, {17, 32, 7, 3},
                                       {5, 1, 1, 2},     {1, 1024, 40, 8}, {33, 33, 9, 4}};
    static const kld_act_quant inputs[] = {{.format = KLD_AQ_NONE},
                                           {.format = KLD_AQ_FP8_TOKEN},
                                           {.format = KLD_AQ_NVFP4, .scale = 3},
                                           {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}};
    uint64_t seed = 7;
    for (size_t i = 0; i < 2 * 6 * 4; i++) {
        const size_t *s = shapes[i / 2 % 6];
        const kld_act_quant *in = &inputs[i / 12];
        if (i / 12 > 1 && s[1] % 32) continue; /* whole blocks only */
        twin t;
        kld_device_spec spec = spec_for((kld_precision)(i % 2));
        twin_open(&t, &spec);
        kld_span span[16];
        kld_batch b;
        weight w;
        kld_err err = {0};
        spans_of(&b, span, s[0]);
        weight_random(&t, &w, KLD_FMT_BF16, s[2], s[1], i % 3 == 0, KLD_USE_MATRIX, &seed);
        weight_factors(&t, &w, i % 4 < 2 ? KLD_BF16 : KLD_F16, &seed);
        w.c.input = w.g.input = *in;
        w.c.alpha = w.g.alpha = kld_act_alpha(in);
        both x = both_random(&t, s[0], s[1], s[1] + s[3], KLD_ELEM_ACT, 1, &seed);
        both y = both_random(&t, s[0], s[2], s[2], KLD_ELEM_F32, 1, &seed);
        need(t.cpu->linear(t.c, &b, x.c, &w.c, y.c, false, &err), &err, "cpu");
        need(t.gpu->linear(t.g, &b, x.g, &w.g, y.g, false, &err), &err, "cuda");
        both_same(&t, &y, 1e-5, "linear with factors");
        both_same(&t, &x, 0, "its input");
        both_free(&t, &x);
        both_free(&t, &y);
        weight_free(&t, &w);
        twin_close(&t);
    }
}

/* A row's product does not depend on how many rows ride along, nor on where it lies. */
static void linear_rows_alone(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{4096, 4096}, {1024, 12288}, {152, 1024}, {4096, 512}};
    static const size_t some[] = {1, 2, 17, 255, 256, 257, 1000, 3000};
    uint64_t seed = 5;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        size_t es = t.bf16 ? 2 : 4;
        for (size_t s = 0; s < 4; s++) {
            size_t n = shapes[s][0], k = shapes[s][1], rows = 3000;
            kld_batch b = {NULL, 0, 0};
            weight w;
            kld_err err = {0};
            weight_random(&t, &w, KLD_FMT_F32, n, k, false, KLD_USE_MATRIX, &seed);
            both x = both_random(&t, rows, k, k, KLD_ELEM_ACT, 1, &seed);
            both y = both_random(&t, rows, n, n, KLD_ELEM_F32, 1, &seed);
            need(t.gpu->linear(t.g, &b, x.g, &w.g, y.g, false, &err), &err, "all");
            float *all = both_pull(&t, &y);
            for (size_t m = 0; m < 8; m++) {
                size_t from = (rows - some[m]) / 3;
                kld_view xs = x.g, ys = y.g;
                xs.p = (unsigned char *)xs.p + from * k * es;
                ys.p = (float *)ys.p + from * n;
                xs.rows = ys.rows = some[m];
                both_push(&t, &y);
                need(t.gpu->linear(t.g, &b, xs, &w.g, ys, false, &err), &err, "some");
                float *few = both_pull(&t, &y);
                if (memcmp(few + from * n, all + from * n, some[m] * n * sizeof *all) != 0)
                    fail_msg("%zu x %zu: %zu rows differ from the same rows of %zu", n, k, some[m],
                             rows);
                free(few);
            }
            free(all);
            both_free(&t, &x);
            both_free(&t, &y);
            weight_free(&t, &w);
        }
        twin_close(&t);
    }
}

/* Random codes and scales of a format, through the back end's weight and its embedding, against
 * kld_weight_decode bit for bit. */
static void decode_case(twin *t, kld_format f, size_t rows, size_t cols, bool divides,
                        uint64_t *seed) {
    static const size_t block[KLD_FMT_FP8_CHANNEL + 1] = {
        [KLD_FMT_NVFP4] = 16, [KLD_FMT_MXFP4] = 32};
    bool fp4 = block[f] != 0, fp8 = f == KLD_FMT_FP8_TENSOR || f == KLD_FMT_FP8_CHANNEL;
    size_t width = f == KLD_FMT_F32 ? 4 : 2;
    size_t bytes = fp4 ? rows * cols / 2 : fp8 ? rows * cols : rows * cols * width;
    size_t n_scale = fp4 ? rows * cols / block[f] : f == KLD_FMT_FP8_CHANNEL ? rows : 1;
    unsigned char *data = malloc(bytes), *scale = malloc(4 * n_scale + 4);
    assert_true(data && scale);
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(rnd(seed) * 256);
    if (f == KLD_FMT_F32)
        for (size_t i = 0; i < rows * cols; i++) ((float *)(void *)data)[i] = (float)rnd(seed);
    for (size_t i = 0; i < n_scale; i++) {
        scale[i] = (unsigned char)(rnd(seed) * (f == KLD_FMT_NVFP4 ? 126 : 254));
        if (fp8) ((float *)(void *)scale)[i] = (float)(rnd(seed) + 0.1);
    }
    float global = 0.0371f;
    kld_tensor td = {.name = "d", .bytes = bytes}, ts = {.name = "s"}, tg = {.name = "g"};
    td.dtype = f == KLD_FMT_F32 ? KLD_F32 : f == KLD_FMT_F16 ? KLD_F16 : KLD_BF16;
    ts.dtype = tg.dtype = KLD_F32;
    kld_weight w = {
        .format = f, .rows = rows, .cols = cols, .data = &td, .global_divides = divides};
    if (fp4 || fp8) w.scale = &ts;
    if (f == KLD_FMT_NVFP4) w.global = &tg;
    kld_weight_view v = {.data = data, .scale = scale, .global = (const unsigned char *)&global};
    kld_raw_weight raw = {.w = &w, .alpha = kld_weight_alpha(&w, v), .global = 1};
    if (f == KLD_FMT_NVFP4) raw.global = global;
    if (f == KLD_FMT_FP8_TENSOR) raw.global = *(float *)(void *)scale;
    void *dd = gpu_copy(t, data, bytes), *ds = gpu_copy(t, scale, 4 * n_scale + 4), *mem;
    raw.v = (kld_weight_view){.data = dd, .scale = ds};
    kld_err err = {0};
    kld_precision p = t->bf16 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    kld_dev_weight out;
    need(t->gpu->alloc(t->g, &mem, t->gpu->weight_bytes(p, &w, KLD_USE_MATRIX) + 256, &err), &err,
         "alloc");
    need(t->gpu->prepare(t->g, &raw, KLD_USE_MATRIX, mem, &out, &err), &err, "prepare");
    assert_true(out.alpha == raw.alpha);
    float *want = malloc(rows * cols * 4);
    unsigned char *got = malloc(rows * cols * 4);
    assert_true(want && got);
    kld_weight_decode(&w, v, 0, rows, true, want);
    size_t es = t->bf16 ? 2 : 4;
    need(t->gpu->download(t->g, got, out.data, rows * cols * es, &err), &err, "download");
    for (size_t i = 0; i < rows * cols; i++) {
        uint16_t h;
        float g;
        memcpy(&h, got + 2 * i, 2);
        if (es == 4) memcpy(&g, got + 4 * i, 4);
        else g = kld_bf16_to_f32(h);
        float e = es == 4 ? want[i] : kld_bf16_to_f32(kld_f32_to_bf16(want[i]));
        if (memcmp(&g, &e, 4) != 0 && !(isnan(g) && isnan(e)))
            fail_msg("%s, element %zu: %g instead of %g", kld_format_name(f), i, (double)g,
                     (double)e);
    }
    both y = both_random(t, 3, cols, cols + 1, KLD_ELEM_F32, 1, seed);
    uint32_t ids[3] = {(uint32_t)rows - 1, 0, (uint32_t)rows / 2};
    need(t->gpu->prepare(t->g, &raw, KLD_USE_EMBEDDING, mem, &out, &err), &err, "prepare");
    need(t->gpu->embed(t->g, &out, ids, 1.5f, y.g, &err), &err, "embed");
    for (size_t r = 0; r < 3; r++) {
        float *row = (float *)y.c.p + r * y.c.ld;
        kld_weight_decode(&w, v, ids[r], 1, false, row);
        for (size_t c = 0; c < cols; c++) row[c] *= 1.5f;
    }
    both_same(t, &y, 0, "embed");
    both_free(t, &y);
    t->gpu->free(t->g, mem);
    t->gpu->free(t->g, dd);
    t->gpu->free(t->g, ds);
    free(want);
    free(got);
    free(data);
    free(scale);
}

static void decoding(void **state) {
    (void)state;
    uint64_t seed = 6;
    for (int p = 0; p < 2; p++) {
        twin t;
        kld_device_spec spec = spec_for((kld_precision)p);
        twin_open(&t, &spec);
        for (int f = 0; f <= KLD_FMT_FP8_CHANNEL; f++) { /* the others: test_gpu_formats.c */
            bool fp4 = f == KLD_FMT_NVFP4 || f == KLD_FMT_MXFP4;
            decode_case(&t, (kld_format)f, 37, fp4 ? 96 : 61, false, &seed);
            decode_case(&t, (kld_format)f, 300, 1024, f == KLD_FMT_NVFP4, &seed);
        }
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),    cmocka_unit_test(rope),
        cmocka_unit_test(spread),   cmocka_unit_test(caps),
        cmocka_unit_test(gated),    cmocka_unit_test(gated_halves),
        cmocka_unit_test(linear),   cmocka_unit_test(linear_rows_alone),
        cmocka_unit_test(decoding), cmocka_unit_test(linear_factors),
    };
    if (getenv("KLD_TEST_NO_PRODUCTS")) cmocka_set_skip_filter("linear*");
    return cmocka_run_group_tests_name("gpu ops", tests, NULL, NULL);
}
