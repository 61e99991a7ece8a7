/* Every operation of the CPU back end against a naive FP64 reference: odd sizes, leading
 * dimensions larger than the columns, and NaN wherever nothing may be read. */
#include "kld/base/system.h"
#include "tests/unit/opkit.h"

static void norms(void **state) {
    (void)state;
    uint64_t seed = 1;
    static const size_t cols[] = {1, 15, 16, 54, 576, 1000};
    for (size_t k = 0; k < 6; k++) {
        for (int p = 0; p < 2; p++) {
            kld_device *dev = open_dev((kld_precision)p, 64);
            size_t n = cols[k];
            kld_view x = random_view(5, n, n + 3, &seed), g = random_view(1, n, n, &seed);
            kld_view y = random_view(5, n, n + 1, &seed);
            y.elem = KLD_ELEM_ACT;
            stored w;
            store(&w, dev, g.p, NULL, n, 1, KLD_USE_VECTOR);
            assert_int_equal(be->norm(dev, x, &w.dev, 1e-5, y, false, NULL), KLD_OK);
            for (size_t r = 0; r < 5; r++) {
                double ss = 0;
                for (size_t c = 0; c < n; c++) ss += pow((double)*at(x, r, c), 2);
                for (size_t c = 0; c < n; c++) {
                    double want =
                        (double)*at(g, 0, c) * (double)*at(x, r, c) / sqrt(ss / (double)n + 1e-5);
                    double tol = p == KLD_PRECISION_BF16 ? fabs(want) / 200 : 3e-7 * fabs(want);
                    close_to((double)*at(y, r, c), want, tol, "norm", r, c);
                    if (p == KLD_PRECISION_BF16)
                        assert_true((double)*at(y, r, c) == bf16((double)*at(y, r, c)));
                }
            }
            check_padding(y);
            be->free(dev, w.mem);
            be->close(dev);
            free(x.p);
            free(y.p);
            free(g.p);
        }
    }
}

static void head_norm_and_rope(void **state) {
    (void)state;
    uint64_t seed = 2;
    size_t rows = 300, heads = 3, dim = 20, half = 8, n = heads * dim, pos = 512;
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    kld_view x = random_view(rows, n, n + 5, &seed), x0 = random_view(rows, n, n, &seed);
    kld_view y = random_view(rows, n, n + 2, &seed), g = random_view(1, dim, dim, &seed);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < n; c++) *at(x0, r, c) = *at(x, r, c);
    stored w;
    store(&w, dev, g.p, NULL, dim, 1, KLD_USE_VECTOR);
    kld_rope_args norm = {.dim = dim, .w = &w.dev, .eps = 1e-6}; /* nothing is rotated */
    kld_span span[2] = {{0, 256, pos, 0}, {256, rows - 256, 7, 256}};
    kld_batch b = {span, 2, rows};
    assert_int_equal(be->rope(dev, &b, x, &norm, x, NULL), KLD_OK);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < n; c++) {
            double ss = 0;
            for (size_t i = 0; i < dim; i++) ss += pow((double)*at(x0, r, c / dim * dim + i), 2);
            double want =
                (double)*at(g, 0, c % dim) * (double)*at(x0, r, c) / sqrt(ss / (double)dim + 1e-6);
            close_to((double)*at(x, r, c), want, 3e-7 * fabs(want), "head norm", r, c);
        }
    }
    check_padding(x);
    size_t table = (pos + rows) * half;
    float *tab = malloc(2 * table * sizeof *tab);
    assert_non_null(tab);
    for (size_t i = 0; i < table; i++) {
        tab[i] = (float)cos(0.01 * (double)i);
        tab[table + i] = (float)sin(0.01 * (double)i);
    }
    kld_rope_table t = {tab, tab + table, half};
    kld_rope_args turn = {.dim = dim, .table = &t};
    assert_int_equal(be->rope(dev, &b, x, &turn, y, NULL), KLD_OK);
    for (size_t r = 0; r < rows; r++) {
        size_t p = r < 256 ? pos + r : 7 + r - 256;
        for (size_t c = 0; c < n; c++) {
            size_t i = c % dim, base = c - i, j = i % half;
            double co = (double)tab[p * half + j], si = (double)tab[table + p * half + j];
            double a = (double)*at(x, r, base + j), z = (double)*at(x, r, base + half + j);
            double want = i < half       ? a * co - z * si
                          : i < 2 * half ? z * co + a * si
                                         : (double)*at(x, r, c);
            close_to((double)*at(y, r, c), want, 1e-6, "rope", r, c);
        }
    }
    check_padding(y);
    be->free(dev, w.mem);
    be->close(dev);
    free(tab);
    free(x.p);
    free(x0.p);
    free(y.p);
    free(g.p);
}

static void linear_case(size_t rows, size_t k, size_t n, bool bias, bool add, kld_precision p,
                        uint64_t *seed) {
    kld_device *dev = open_dev(p, 64);
    kld_view x = random_view(rows, k, k + 1, seed), w = random_view(n, k, k, seed);
    kld_view b = random_view(1, n, n, seed), y = random_view(rows, n, n + 4, seed);
    kld_view y0 = random_view(rows, n, n, seed);
    bool act = !add && p == KLD_PRECISION_BF16;
    if (act) y.elem = KLD_ELEM_ACT;
    if (p == KLD_PRECISION_BF16)
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < k; c++) *at(x, i, c) = (float)bf16((double)*at(x, i, c));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < n; c++) *at(y0, r, c) = *at(y, r, c);
    stored s;
    store(&s, dev, w.p, bias ? b.p : NULL, n, k, KLD_USE_MATRIX);
    s.dev.alpha = 0.37f;
    kld_span span[8];
    kld_batch batch = {span, 0, rows};
    for (size_t r = 0; r < rows; r += span[batch.n - 1].n)
        span[batch.n++] = (kld_span){r, rows - r < 200 ? rows - r : 200, r, 0};
    x.elem = KLD_ELEM_ACT;
    assert_int_equal(be->linear(dev, &batch, x, &s.dev, y, add, NULL), KLD_OK);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < n; c++) {
            double want = 0, size = 0;
            for (size_t i = 0; i < k; i++) {
                double wv = (double)*at(w, c, i);
                if (p == KLD_PRECISION_BF16) wv = bf16(wv);
                want += (double)*at(x, r, i) * wv;
                size += fabs((double)*at(x, r, i) * wv);
            }
            want = (double)0.37f * want + (bias ? (double)*at(b, 0, c) : 0) +
                   (add ? (double)*at(y0, r, c) : 0);
            double tol = 1e-6 * size + 1e-6 + (act ? fabs(want) / 200 : 0);
            close_to((double)*at(y, r, c), want, tol, "linear", r, c);
        }
    }
    check_padding(y);
    be->free(dev, s.mem);
    be->close(dev);
    free(x.p);
    free(w.p);
    free(b.p);
    free(y.p);
    free(y0.p);
}

static void linear(void **state) {
    (void)state;
    uint64_t seed = 5;
    linear_case(1, 1, 1, false, false, KLD_PRECISION_FP32, &seed);
    linear_case(3, 54, 37, true, false, KLD_PRECISION_FP32, &seed);
    linear_case(257, 33, 529, false, true, KLD_PRECISION_FP32, &seed);
    linear_case(257, 33, 1027, true, true, KLD_PRECISION_FP32, &seed);
    linear_case(300, 70, 513, true, false, KLD_PRECISION_BF16, &seed);
    linear_case(9, 1000, 16, false, true, KLD_PRECISION_BF16, &seed);
}

/* Only the first y.cols rows of the weight are computed. */
static void linear_prefix(void **state) {
    (void)state;
    uint64_t seed = 6;
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    kld_view x = random_view(4, 8, 8, &seed), w = random_view(10, 8, 8, &seed);
    kld_view y = random_view(4, 7, 9, &seed);
    for (size_t c = 0; c < 8; c++) *at(w, 9, c) = NAN;
    stored s;
    store(&s, dev, w.p, NULL, 10, 8, KLD_USE_MATRIX);
    kld_span span = {0, 4, 0, 0};
    kld_batch b = {&span, 1, 4};
    x.elem = KLD_ELEM_ACT;
    assert_int_equal(be->linear(dev, &b, x, &s.dev, y, false, NULL), KLD_OK);
    for (size_t r = 0; r < 4; r++)
        for (size_t c = 0; c < 7; c++) assert_true(isfinite(*at(y, r, c)));
    check_padding(y);
    be->free(dev, s.mem);
    be->close(dev);
    free(x.p);
    free(w.p);
    free(y.p);
}

/* What attend_case varies beside the shape. */
typedef struct extra {
    size_t window;
    float softcap;
    bool sinks;
} extra;

/* Weights of query i of a head over keys lo..i, in FP64; returns the denominator. */
static double naive_weights(const kld_attend_args *a, kld_view q, kld_view k, size_t kv_row,
                            size_t i, size_t h, size_t lo, double *s) {
    size_t g = h / (a->heads / a->kv_heads), dim = a->head_dim;
    double top = a->sinks ? (double)a->sinks[h] : -INFINITY, sum = 0;
    for (size_t j = lo; j <= i; j++) {
        s[j] = 0;
        for (size_t c = 0; c < dim; c++)
            s[j] += (double)*at(q, i, h * dim + c) * (double)*at(k, kv_row + j, g * dim + c);
        s[j] *= (double)a->scale;
        if (a->softcap > 0) s[j] = (double)a->softcap * tanh(s[j] / (double)a->softcap);
        top = fmax(top, s[j]);
    }
    for (size_t j = lo; j <= i; j++) sum += s[j] = exp(s[j] - top);
    return a->sinks ? sum + exp((double)a->sinks[h] - top) : sum;
}

static void attend_case(size_t heads, size_t kv_heads, size_t dim, size_t vdim, size_t len, extra e,
                        kld_precision p, uint64_t *seed) {
    size_t kv_row = 5, keys = kv_row + len + 3;
    kld_device *dev = open_dev(p, keys);
    kld_view q = random_view(len, heads * dim, heads * dim + 3, seed);
    kld_view k = random_view(keys, kv_heads * dim, kv_heads * dim + 1, seed);
    kld_view v = random_view(keys, kv_heads * vdim, kv_heads * vdim, seed);
    kld_view y = random_view(len, heads * vdim, heads * vdim + 2, seed);
    kld_view sinks = random_view(1, heads, heads, seed);
    /* Keys of other windows must not matter. */
    for (size_t r = 0; r < keys; r++) {
        if (r >= kv_row && r < kv_row + len) continue;
        for (size_t c = 0; c < kv_heads * dim; c++) *at(k, r, c) = NAN;
        for (size_t c = 0; c < kv_heads * vdim; c++) *at(v, r, c) = NAN;
    }
    kld_span span[8];
    kld_batch b = {span, 0, len};
    for (size_t r = 0; r < len; r += KLD_CHUNK)
        span[b.n++] = (kld_span){r, len - r < KLD_CHUNK ? len - r : KLD_CHUNK, r, kv_row};
    kld_attend_args a = {heads, kv_heads, dim, vdim, 0.3f, e.window, e.softcap, NULL};
    if (e.sinks) a.sinks = sinks.p;
    q.elem = k.elem = v.elem = y.elem = KLD_ELEM_ACT;
    assert_int_equal(be->attend(dev, &b, q, k, v, &a, y, NULL), KLD_OK);
    double *s = malloc(len * sizeof *s), tol = p == KLD_PRECISION_BF16 ? 3e-2 : 5e-6;
    assert_non_null(s);
    for (size_t i = 0; i<len; i += len> 100 ? 7 : 1) {
        for (size_t h = 0; h < heads; h++) {
            size_t g = h / (heads / kv_heads), w = e.window, lo = w && i + 1 > w ? i + 1 - w : 0;
            double sum = naive_weights(&a, q, k, kv_row, i, h, lo, s);
            for (size_t c = 0; c < vdim; c++) {
                double want = 0;
                for (size_t j = lo; j <= i; j++)
                    want += s[j] / sum * (double)*at(v, kv_row + j, g * vdim + c);
                close_to((double)*at(y, i, h * vdim + c), want, tol, "attend", i, h * vdim + c);
            }
        }
    }
    check_padding(y);
    free(s);
    be->close(dev);
    free(q.p);
    free(k.p);
    free(v.p);
    free(y.p);
    free(sinks.p);
}

static void attend(void **state) {
    (void)state;
    uint64_t seed = 8;
    attend_case(1, 1, 4, 4, 1, (extra){.window = 0}, KLD_PRECISION_FP32, &seed);
    attend_case(6, 2, 12, 12, 45, (extra){.window = 0}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 4, 16, 16, 131, (extra){.window = 0}, KLD_PRECISION_FP32, &seed);
    attend_case(9, 3, 64, 64, 300, (extra){.window = 0}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 2, 24, 24, 70, (extra){.window = 8}, KLD_PRECISION_FP32, &seed);
    attend_case(2, 1, 16, 16, 600, (extra){.window = 65}, KLD_PRECISION_FP32, &seed);
    attend_case(2, 1, 16, 16, 90, (extra){.window = 1}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 2, 24, 24, 70, (extra){.window = 200}, KLD_PRECISION_BF16, &seed);
    attend_case(4, 2, 24, 16, 130, (extra){0}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 2, 12, 20, 90, (extra){.softcap = 1.5f}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 1, 12, 12, 90, (extra){.sinks = true, .window = 9}, KLD_PRECISION_FP32, &seed);
    attend_case(4, 4, 12, 8, 300, (extra){77, 5, true}, KLD_PRECISION_FP32, &seed);
}

/* A NaN shows in the query of its own position and in those after it, and in no other. */
static void attend_nan(void **state) {
    (void)state;
    enum { LEN = 300, DIM = 12 };
    uint64_t seed = 21;
    kld_device *dev = open_dev(KLD_PRECISION_FP32, LEN);
    kld_view q = random_view(LEN, 2 * DIM, 2 * DIM, &seed);
    kld_view k = random_view(LEN, 2 * DIM, 2 * DIM, &seed);
    kld_view v = random_view(LEN, 2 * DIM, 2 * DIM, &seed);
    kld_view y = random_view(LEN, 2 * DIM, 2 * DIM, &seed),
             z = random_view(LEN, 2 * DIM, 2 * DIM, &seed);
    kld_span span[] = {{0, KLD_CHUNK, 0, 0}, {KLD_CHUNK, LEN - KLD_CHUNK, KLD_CHUNK, 0}};
    kld_batch b = {span, 2, LEN};
    const kld_attend_args a = {2, 2, DIM, DIM, 0.3f, 0, 0, NULL};
    q.elem = k.elem = v.elem = y.elem = z.elem = KLD_ELEM_ACT;
    assert_int_equal(be->attend(dev, &b, q, k, v, &a, y, NULL), KLD_OK);
    static const size_t bad[] = {0, 1, 63, 64, 70, 299};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        float was = *at(v, bad[n], 3);
        *at(v, bad[n], 3) = n % 2 ? NAN : INFINITY; /* of head 0 */
        assert_int_equal(be->attend(dev, &b, q, k, v, &a, z, NULL), KLD_OK);
        for (size_t i = 0; i < LEN; i++)
            for (size_t c = 0; c < 2 * DIM; c++) {
                if (c == 3 && i >= bad[n]) assert_true(isnan(*at(z, i, c)) || isinf(*at(z, i, c)));
                else close_to((double)*at(z, i, c), (double)*at(y, i, c), 1e-6, "nan", i, c);
            }
        *at(v, bad[n], 3) = was;
    }
    be->close(dev);
    free(q.p);
    free(k.p);
    free(v.p);
    free(y.p);
    free(z.p);
}

static void gated(void **state) {
    (void)state;
    uint64_t seed = 9;
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    for (size_t n = 1; n < 40; n += 6) {
        kld_view g = random_view(3, n, n + 1, &seed), u = random_view(3, n, n + 2, &seed);
        kld_view y = random_view(3, n, n + 3, &seed);
        for (size_t c = 0; c < n; c++) *at(g, 1, c) *= 40;
        for (int act = 0; act < 3; act++) {
            kld_gate how = {(kld_activation)act, 1.25f};
            assert_int_equal(be->gated(dev, &how, g, u, y, NULL), KLD_OK);
            for (size_t r = 0; r < 3; r++) {
                for (size_t c = 0; c < n; c++) {
                    double a = (double)*at(g, r, c), t = a + 0.044715 * a * a * a;
                    double f = act == KLD_ACT_SILU ? a / (1 + exp(-a))
                                                   : 0.5 * a * (1 + tanh(sqrt(2 / acos(-1)) * t));
                    double want = f * (double)*at(u, r, c);
                    if (act == KLD_ACT_CLAMPED_GLU) {
                        double m = fmin(a, 1.25), up = fmin((double)*at(u, r, c), 1.25);
                        want = m / (1 + exp(-1.702 * m)) * (fmax(up, -1.25) + 1);
                    }
                    double tol = 2e-6 * fabs(want) + 2e-6;
                    close_to((double)*at(y, r, c), want, tol, "gated", r, c);
                }
            }
            check_padding(y);
        }
        kld_gate silu = {KLD_ACT_SILU, 0}, gelu = {KLD_ACT_GELU_TANH, 0};
        assert_int_equal(be->gated(dev, &silu, g, u, g, NULL), KLD_OK); /* in place */
        assert_int_equal(be->gated(dev, &gelu, y, u, y, NULL), KLD_OK);
        check_padding(y);
        free(g.p);
        free(u.p);
        free(y.p);
    }
    be->close(dev);
}

static void embedding(void **state) {
    (void)state;
    uint64_t seed = 10;
    kld_device *dev = open_dev(KLD_PRECISION_BF16, 64);
    kld_view w = random_view(9, 5, 5, &seed), y = random_view(4, 5, 6, &seed);
    stored s;
    store(&s, dev, w.p, NULL, 9, 5, KLD_USE_EMBEDDING);
    uint32_t ids[] = {8, 0, 3, 8};
    assert_int_equal(be->embed(dev, &s.dev, ids, 1, y, NULL), KLD_OK);
    for (size_t r = 0; r < 4; r++) assert_memory_equal(at(y, r, 0), at(w, ids[r], 0), 20);
    assert_int_equal(be->embed(dev, &s.dev, ids, 3, y, NULL), KLD_OK);
    for (size_t r = 0; r < 4; r++)
        for (size_t c = 0; c < 5; c++) assert_true(*at(y, r, c) == 3 * *at(w, ids[r], c));
    check_padding(y);
    be->close(dev);
    free(w.p);
    free(y.p);
}

static void refusals(void **state) {
    (void)state;
    kld_err err = {0};
    kld_device_spec spec = {.formats = 1u << KLD_FMT_COUNT};
    assert_int_equal(be->supports(&spec, &err), KLD_E_UNSUPPORTED);
    spec = (kld_device_spec){.blocks = 1u << 20};
    assert_int_equal(be->supports(&spec, &err), KLD_E_UNSUPPORTED);
    spec = (kld_device_spec){.activations = 1u << 20};
    assert_int_equal(be->supports(&spec, &err), KLD_E_UNSUPPORTED);
    assert_true(be->batch_rows(100) % KLD_CHUNK == 0 && be->batch_rows(1 << 30) >= KLD_CHUNK);
}

static void spill_file(void **state) {
    (void)state;
    kld_spill s;
    kld_err err = {0};
    char back[6];
    need(kld_spill_open(&s, NULL, 1 << 16, &err), &err, "spill");
    need(kld_spill_write(&s, "hello", 5000, 6, &err), &err, "write");
    need(kld_spill_read(&s, back, 5000, 6, &err), &err, "read");
    assert_string_equal(back, "hello");
    assert_int_equal(kld_spill_read(&s, back, 1 << 16, 1, &err), KLD_E_IO);
    kld_spill_close(&s);
    kld_spill_close(&s);
    assert_int_equal(kld_spill_open(&s, "/nonexistent/dir", 10, &err), KLD_E_IO);
    assert_int_equal(kld_spill_open(&s, NULL, (uint64_t)1 << 60, &err), KLD_E_IO);
    assert_true(kld_free_memory() > 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),    cmocka_unit_test(head_norm_and_rope),
        cmocka_unit_test(linear),   cmocka_unit_test(linear_prefix),
        cmocka_unit_test(attend),   cmocka_unit_test(attend_nan),
        cmocka_unit_test(gated),    cmocka_unit_test(embedding),
        cmocka_unit_test(refusals), cmocka_unit_test(spill_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
