/* Head statistics of the CPU back end: closed forms, ties, infinities, draws. */
#include "tests/unit/enginekit.h"

#include "kld/base/mem.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

static const kld_backend *be;

typedef struct rig {
    kld_device *dev;
    kld_view l;
    kld_head_args a;
    kld_records rec;
    uint32_t *labels;
    size_t bad, first_bad;
} rig;

/* rows x vocab logits inside rows x ld of NaN; records with k ids and m draws. */
static void rig_open(rig *g, size_t rows, size_t vocab, size_t ld, size_t k, size_t m,
                     size_t ref_ld, size_t ref_m) {
    kld_device_spec spec = {.precision = KLD_PRECISION_FP32,
                            .max_rows = 256,
                            .max_keys = 64,
                            .vocab = vocab,
                            .top_k = k};
    kld_err err = {0};
    memset(g, 0, sizeof *g);
    need(be->open(&g->dev, &spec, 0, &err), &err, "open");
    need(kld_records_alloc(&g->rec, rows, k, m, ref_ld, ref_m, &err), &err, "records");
    float *p = malloc(rows * ld * sizeof *p);
    g->labels = calloc(rows, sizeof *g->labels);
    assert_non_null(p);
    assert_non_null(g->labels);
    for (size_t i = 0; i < rows * ld; i++) p[i] = NAN;
    g->l = (kld_view){p, rows, vocab, ld, KLD_ELEM_F32};
    g->a = (kld_head_args){.top_k = k, .min_k = 1, .tail_mass = 0, .seed = 11, .labels = g->labels};
}

static float *row(rig *g, size_t r) { return (float *)g->l.p + r * g->l.ld; }

static void rig_run(rig *g) {
    kld_err err = {0};
    g->first_bad = SIZE_MAX;
    need(be->head_begin(g->dev, g->l, &g->a, &err), &err, "head_begin");
    need(be->head_end(g->dev, &g->rec, 0, &g->bad, &g->first_bad, &err), &err, "head_end");
}

static void rig_close(rig *g) {
    be->close(g->dev);
    kld_records_free(&g->rec);
    free(g->l.p);
    free(g->labels);
}

static void two_tokens(void **state) {
    (void)state;
    rig g;
    rig_open(&g, 1, 2, 3, 2, 0, 0, 0);
    row(&g, 0)[0] = 0;
    row(&g, 0)[1] = -22;
    g.labels[0] = 1;
    rig_run(&g);
    assert_true(fabs(-(double)g.rec.label_lp[0] - 22.0000000) < 5e-7);
    assert_int_equal(g.rec.count[0], 2);
    assert_true(fabs(g.rec.lp[1] + 22 + log1p(exp(-22))) < 1e-12);
    assert_true(fabs(g.rec.lp[0] + log1p(exp(-22))) < 1e-12);
    assert_true(g.rec.tail_mass[0] == 0);
    double p = exp(-22) / (1 + exp(-22)), h = -(p * log(p) + (1 - p) * log1p(-p));
    assert_true(fabs((double)g.rec.entropy[0] - h) < 1e-6 * h + 1e-12);
    rig_close(&g);
}

static void ties_go_to_lower_ids(void **state) {
    (void)state;
    rig g;
    rig_open(&g, 2, 1000, 1000, 5, 3, 0, 0);
    for (size_t i = 0; i < 1000; i++) {
        row(&g, 0)[i] = 1.5f;
        row(&g, 1)[i] = i % 2 ? 0.0f : -0.0f;
    }
    row(&g, 1)[700] = row(&g, 1)[300] = 2;
    rig_run(&g);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(g.rec.ids[i], i);
    static const uint32_t want[] = {300, 700, 0, 1, 2};
    assert_memory_equal(g.rec.ids + 5, want, sizeof want);
    assert_true(fabs((double)g.rec.lse[0] - (1.5 + log(1000))) < 1e-6);
    assert_true(fabs((double)g.rec.entropy[0] - log(1000)) < 1e-6);
    assert_true(fabs((double)g.rec.tail_mass[0] - 0.995) < 1e-7);
    rig_close(&g);
}

static void infinities(void **state) {
    (void)state;
    rig g;
    rig_open(&g, 5, 40, 41, 6, 2, 2, 2);
    uint32_t count[5] = {2, 2, 2, 2, 2}, ids[10], tails[10];
    for (size_t i = 0; i < 10; i++) {
        ids[i] = (uint32_t)(i % 2 ? 100 : 3); /* 100 is past the vocabulary */
        tails[i] = i % 2 ? UINT32_MAX : 4;
    }
    g.a.ref_count = count;
    g.a.ref_ids = ids;
    g.a.ref_ids_ld = 2;
    g.a.ref_tail_ids = tails;
    for (size_t r = 0; r < 5; r++)
        for (size_t i = 0; i < 40; i++) row(&g, r)[i] = (float)i * 0.1f;
    for (size_t i = 0; i < 40; i++) row(&g, 0)[i] = i == 3 ? 2.0f : -INFINITY;
    row(&g, 1)[17] = NAN;
    row(&g, 2)[39] = INFINITY;
    for (size_t i = 0; i < 40; i++) row(&g, 3)[i] = -INFINITY;
    row(&g, 4)[3] = -INFINITY;
    g.labels[0] = 5;
    g.labels[4] = 39;
    rig_run(&g);
    assert_int_equal(g.bad, 3);
    assert_int_equal(g.first_bad, 1);
    assert_int_equal(g.rec.count[0], 1);
    assert_true(g.rec.label_lp[0] == -INFINITY && g.rec.entropy[0] == 0 && g.rec.lse[0] == 2);
    assert_true(g.rec.lp[0] == 0 && g.rec.ref_lp[0] == 0 && g.rec.ref_lp[1] == -INFINITY);
    assert_true(g.rec.tail_ids[0] == UINT32_MAX && isnan(g.rec.tail_lp[0]));
    assert_true(g.rec.ref_tail_lp[0] == -INFINITY && isnan(g.rec.ref_tail_lp[1]));
    for (size_t r = 1; r < 4; r++) {
        assert_int_equal(g.rec.count[r], 0);
        assert_true(isnan(g.rec.lse[r]) && isnan(g.rec.label_lp[r]) && isnan(g.rec.entropy[r]));
        assert_true(isnan(g.rec.tail_mass[r]) && isnan(g.rec.tail_lp[2 * r]));
        assert_true(g.rec.tail_ids[2 * r] == UINT32_MAX && isnan(g.rec.ref_lp[2 * r]));
    }
    assert_true(isfinite(g.rec.label_lp[4]) && g.rec.ref_lp[8] == -INFINITY);
    assert_true(isfinite(g.rec.entropy[4]));
    rig_close(&g);
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    if (x[0] != y[0]) return x[0] < y[0] ? 1 : -1;
    return x[1] < y[1] ? -1 : x[1] > y[1];
}

/* Everything of random rows against FP64, for a vocabulary with padding columns. */
static void random_case(size_t vocab, size_t k, size_t min_k, double tail_mass, double spread) {
    rig g;
    size_t rows = 6;
    uint64_t seed = vocab * 31 + k;
    rig_open(&g, rows, vocab, vocab + 9, k, 4, 0, 0);
    g.a.min_k = min_k;
    g.a.tail_mass = tail_mass;
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < vocab; i++)
            row(&g, r)[i] = (float)(rint(spread * rnd_normal(&seed) * 64) / 64);
        g.labels[r] = (uint32_t)(rnd(&seed) * (double)vocab);
    }
    rig_run(&g);
    double(*s)[2] = malloc(vocab * sizeof *s);
    assert_non_null(s);
    for (size_t r = 0; r < rows; r++) {
        double top = -INFINITY, z = 0, h = 0;
        for (size_t i = 0; i < vocab; i++) top = fmax(top, (double)row(&g, r)[i]);
        for (size_t i = 0; i < vocab; i++) z += exp((double)row(&g, r)[i] - top);
        double lse = top + log(z);
        for (size_t i = 0; i < vocab; i++) {
            double lp = (double)row(&g, r)[i] - lse;
            h -= exp(lp) * lp;
            s[i][0] = (double)row(&g, r)[i];
            s[i][1] = (double)i;
        }
        qsort(s, vocab, sizeof *s, by_value);
        double rest = 1, tail = 0;
        size_t c = 0, most = k < vocab ? k : vocab;
        while (c < most && (c < min_k || rest > tail_mass)) rest -= exp(s[c++][0] - lse);
        for (size_t i = c; i < vocab; i++) tail += exp(s[i][0] - lse);
        assert_int_equal(g.rec.count[r], c);
        for (size_t i = 0; i < c; i++) {
            assert_int_equal(g.rec.ids[r * k + i], (uint32_t)s[i][1]);
            assert_true(fabs(g.rec.lp[r * k + i] - (s[i][0] - lse)) < 2e-7);
        }
        assert_true(fabs((double)g.rec.lse[r] - lse) < 1e-6);
        assert_true(fabs((double)g.rec.entropy[r] - h) < 1e-5);
        assert_true(fabs((double)g.rec.tail_mass[r] - tail) < 1e-6 * tail + 1e-12);
        double label = (double)row(&g, r)[g.labels[r]] - lse;
        assert_true(fabs((double)g.rec.label_lp[r] - label) < 1e-6 * (1 + fabs(label)));
        for (size_t d = 0; d < 4 && c < vocab; d++) {
            uint32_t id = g.rec.tail_ids[r * 4 + d];
            assert_true(id < vocab);
            for (size_t i = 0; i < c; i++) assert_true(id != g.rec.ids[r * k + i]);
            assert_true(fabs(g.rec.tail_lp[r * 4 + d] - ((double)row(&g, r)[id] - lse)) < 2e-7);
        }
    }
    free(s);
    rig_close(&g);
}

static void random_rows(void **state) {
    (void)state;
    random_case(1, 1, 1, 0.0, 1);
    random_case(7, 3, 2, 1e-3, 1);
    random_case(128, 200, 1, 1e-3, 2); /* top_k past the vocabulary */
    random_case(128, 128, 128, 0.5, 2);
    random_case(257, 32, 1, 0.1, 2);
    random_case(5003, 256, 4, 1e-3, 4);
    random_case(5003, 17, 17, 1e-9, 3);
    random_case(49152, 256, 1, 1e-3, 3);
    random_case(49152, 64, 8, 1e-3, 6);
}

/* Draws follow the tail's probabilities: chi-square over many draws of one row, binned by
 * id, and each run of draws is the same in any order and for any thread count. */
static void draws(void **state) {
    (void)state;
    enum { V = 600, K = 10, M = 64, ROWS = 400, BINS = 40 };
    rig g;
    uint64_t seed = 77;
    rig_open(&g, ROWS, V, V, K, M, 0, 0);
    g.a.tail_mass = 0;
    for (size_t i = 0; i < V; i++) row(&g, 0)[i] = (float)(1.5 * rnd_normal(&seed));
    for (size_t r = 1; r < ROWS; r++) memcpy(row(&g, r), row(&g, 0), V * sizeof(float));
    g.a.window = 3;
    g.a.pos = 1000;
    rig_run(&g);
    double p[V], total = 0, want[BINS] = {0}, got[BINS] = {0}, chi = 0;
    for (size_t i = 0; i < V; i++) {
        p[i] = exp((double)row(&g, 0)[i]);
        for (size_t j = 0; j < K; j++)
            if (g.rec.ids[j] == i) p[i] = 0;
        total += p[i];
    }
    for (size_t i = 0; i < V; i++) want[i % BINS] += p[i] / total * ROWS * M;
    for (size_t i = 0; i < ROWS * M; i++) {
        assert_true(g.rec.tail_ids[i] < V && p[g.rec.tail_ids[i]] > 0);
        got[g.rec.tail_ids[i] % BINS]++;
    }
    for (size_t i = 0; i < BINS; i++) chi += (got[i] - want[i]) * (got[i] - want[i]) / want[i];
    print_message("chi-square %.1f over %d bins\n", chi, BINS);
    assert_true(chi < 80 && chi > 14); /* 39 degrees of freedom: 1e-4 each side */
    /* Row 5 alone, by its position. */
    kld_records one;
    assert_int_equal(kld_records_alloc(&one, 1, K, M, 0, 0, NULL), KLD_OK);
    kld_view l = g.l;
    l.rows = 1;
    g.a.pos = 1005;
    assert_int_equal(be->head_begin(g.dev, l, &g.a, NULL), KLD_OK);
    assert_int_equal(be->head_end(g.dev, &one, 0, &g.bad, &g.first_bad, NULL), KLD_OK);
    assert_memory_equal(one.tail_ids, g.rec.tail_ids + 5 * M, M * sizeof(uint32_t));
    kld_records_free(&one);
    rig_close(&g);
}

static void records_memory(void **state) {
    (void)state;
    kld_err err = {0};
    size_t n = 0;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_records r;
        kld_mem_fail_after(n + 1);
        st = kld_records_alloc(&r, 3, 4, 2, 4, 2, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) assert_true(r.n == 3 && r.k_ld == 4 && r.m == 2 && r.ref_ld == 4);
        else assert_true(st == KLD_E_NOMEM && r.n == 0 && r.count == NULL && r.lp == NULL);
        kld_records_free(&r);
    }
    assert_int_equal(n, 13);
    kld_records r;
    assert_int_equal(kld_records_alloc(&r, 0, 4, 2, 0, 0, &err), KLD_OK);
    kld_records_free(&r);
    assert_int_equal(kld_records_alloc(&r, SIZE_MAX / 2, 4, 2, 0, 0, &err), KLD_E_NOMEM);
}

int main(void) {
    be = kld_backend_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tokens), cmocka_unit_test(ties_go_to_lower_ids),
        cmocka_unit_test(infinities), cmocka_unit_test(random_rows),
        cmocka_unit_test(draws),      cmocka_unit_test(records_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
