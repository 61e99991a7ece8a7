/* From records to numbers: positions and sums. */
#include "kld/compare/compare.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"

#include <math.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

static double true_kl(const struct rec *p, const struct rec *q, size_t i) {
    double s = 0;
    for (size_t v = 0; v < V; v++) s += exp(p->full[i][v]) * (p->full[i][v] - q->full[i][v]);
    return s;
}

/* T1: the reference against itself is exactly 0 and exactly 1. */
static void self(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 1);
    g.info[0] = g.ref_info;
    g.side[0].self = true;
    for (uint64_t w = 0; w < 3; w++) {
        struct rec *ref = t_records(40, 12, 16, w, 0, 0, NULL);
        cmp_add(&g, w ? "x" : "y", "", ref, (struct rec *[]){ref});
        free(ref);
    }
    json_t *o = cmp_finish(&g);
    static const char *const ZERO[] = {"kl", "reverse_kl", "js", "tv"};
    for (int k = 0; k < 4; k++) {
        static const char *const F[] = {"mean", "lower_bound", "stderr_sampling", "median", "p999",
                                        "max",  "min",         "cluster_mean"};
        for (size_t f = 0; f < sizeof F / sizeof *F; f++) {
            char path[64];
            snprintf(path, sizeof path, "candidates.0.%s.%s", ZERO[k], F[f]);
            assert_true(cmp_real(o, path) == 0);
        }
    }
    assert_true(cmp_real(o, "candidates.0.kl.ci95.0") == 0 &&
                cmp_real(o, "candidates.0.kl.ci95.1") == 0);
    assert_true(cmp_real(o, "candidates.0.top1_agreement") == 1);
    assert_true(cmp_real(o, "candidates.0.topk_overlap.10") == 1);
    assert_true(cmp_real(o, "candidates.0.acceptance.sampling") == 1);
    assert_true(cmp_real(o, "candidates.0.acceptance.nucleus") == 1);
    assert_true(cmp_real(o, "candidates.0.acceptance.expected_tokens.7") == 8);
    assert_true(cmp_real(o, "candidates.0.perplexity.ratio") == 1);
    assert_true(cmp_real(o, "floor.kl_mean") == 0);
    assert_string_equal(json_string_value(cmp_get(o, "floor.kind")), "same capture");
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "        0 "));
    assert_null(strstr(t, "e-"));
    free(t);
    json_decref(o);
}

/* The mean over positions is the whole-vocabulary truth within its sampling error, the bound is
 * below it, and what is exact is exact. */
static void against_truth(void **state) {
    (void)state;
    double truth = 0, nll[2] = {0}, top1 = 0;
    for (uint64_t w = 0; w < 12; w++) {
        struct rec *p = t_records(70, 8, 16, 100 + w, 0, 0, NULL);
        struct rec *q = t_records(70, 8, 16, 100 + w, 0.5, 4000 + w, p);
        for (size_t i = 0; i < 70; i++) {
            truth += true_kl(p, q, i) / 840;
            nll[0] -= p->label_lp[i] / 840.0;
            nll[1] -= q->label_lp[i] / 840.0;
            top1 += p->ids[i * MAX_K] == q->ids[i * MAX_K];
        }
        free(p);
        free(q);
    }
    json_t *o = cmp_compared(1, 8, 16, (double[]){0.5}, true);
    double mean = cmp_real(o, "candidates.0.kl.mean"),
           se = cmp_real(o, "candidates.0.kl.stderr_sampling");
    double bound = cmp_real(o, "candidates.0.kl.lower_bound");
    assert_true(se > 0);
    NEAR(mean, truth, 4 * se);
    assert_true(bound < truth && bound <= mean && bound > 0.3 * truth);
    assert_true(json_is_false(cmp_get(o, "candidates.0.kl.exact")));
    NEAR(cmp_real(o, "candidates.0.top1_agreement"), top1 / 840, 1e-12);
    NEAR(cmp_real(o, "candidates.0.perplexity.reference"), exp(nll[0]), 1e-9 * exp(nll[0]));
    NEAR(cmp_real(o, "candidates.0.perplexity.ratio"), exp(nll[1] - nll[0]), 1e-9);
    assert_true(cmp_real(o, "candidates.0.kl.ci95.0") < mean &&
                mean < cmp_real(o, "candidates.0.kl.ci95.1"));
    assert_true(cmp_count(o, "candidates.0.topk_undecided") == 840); /* lists of 8 */
    assert_true(json_is_null(cmp_get(o, "candidates.0.topk_overlap.10")));
    json_decref(o);
    o = cmp_compared(1, V, 0, (double[]){0.5}, true);
    NEAR(cmp_real(o, "candidates.0.kl.mean"), truth, 1e-12);
    assert_true(json_is_true(cmp_get(o, "candidates.0.kl.exact")));
    assert_true(cmp_real(o, "candidates.0.kl.stderr_sampling") == 0);
    NEAR(cmp_real(o, "candidates.0.kl.lower_bound"), truth, 1e-12);
    json_decref(o);
    /* No draws were kept: nothing but the bound. */
    o = cmp_compared(1, 8, 0, (double[]){0.5}, true);
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.mean")));
    assert_true(cmp_count(o, "candidates.0.kl.unestimated") == 840);
    assert_true(cmp_warned(o, "bound_only"));
    json_decref(o);
}

/* T6: captured apart, the candidate's probability of an unlisted id is unknown: a bound, no
 * mean, no infinity. */
static void independent(void **state) {
    (void)state;
    double noise[] = {0.5};
    json_t *apart = cmp_compared(1, 6, 16, noise, false),
           *whole = cmp_compared(1, V, 0, noise, true);
    assert_true(json_is_null(cmp_get(apart, "candidates.0.kl.mean")));
    assert_true(json_is_null(cmp_get(apart, "candidates.0.kl.ci95")));
    assert_true(json_is_null(cmp_get(apart, "candidates.0.kl.p99")));
    assert_true(json_is_null(cmp_get(apart, "candidates.0.acceptance.sampling")));
    assert_int_equal(cmp_count(apart, "candidates.0.kl.infinite"), 0);
    double bound = cmp_real(apart, "candidates.0.kl.lower_bound");
    double truth = cmp_real(whole, "candidates.0.kl.mean");
    assert_true(bound > 0 && bound < truth);
    assert_true(cmp_real(apart, "candidates.0.kl.lower_bounds.p99") <=
                cmp_real(whole, "candidates.0.kl.p99"));
    assert_true(cmp_real(apart, "candidates.0.acceptance.sampling_upper") >=
                cmp_real(whole, "candidates.0.acceptance.sampling"));
    NEAR(cmp_real(apart, "candidates.0.top1_agreement"),
         cmp_real(whole, "candidates.0.top1_agreement"), 0);
    assert_string_equal(json_string_value(cmp_get(apart, "candidates.0.capture")), "independent");
    json_decref(apart);
    /* Whole lists on both sides leave nothing to lump: exact. */
    apart = cmp_compared(1, V, 0, noise, false);
    assert_true(json_is_true(cmp_get(apart, "candidates.0.kl.exact")));
    NEAR(cmp_real(apart, "candidates.0.kl.mean"), truth, 1e-13);
    json_decref(apart);
    json_decref(whole);
}

static void mark_nan(struct rec *x, size_t i) {
    x->count[i] = 0;
    x->label_lp[i] = NAN;
    for (size_t j = 0; j < MAX_K; j++) x->ref_lp[i * MAX_K + j] = NAN;
}

/* T7 and T8: rows that are not finite are counted, located and excluded; nothing else is. */
static void nonfinite(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 2);
    struct rec *ref = t_records(100, 12, 16, 1, 0, 0, NULL);
    struct rec *some = t_records(100, 12, 16, 1, 0.3, 2, ref),
               *all = t_records(100, 12, 16, 1, 0.3, 3, ref);
    for (size_t i = 0; i < 8; i++) mark_nan(some, 10 + i);
    some->ref_lp[50 * MAX_K + 3] = NAN; /* a finite row with one bad value */
    for (size_t i = 0; i < 100; i++) mark_nan(all, i);
    ref->count[90] = 0;
    cmp_add(&g, "c", "", ref, (struct rec *[]){some, all});
    json_t *o = cmp_finish(&g);
    assert_int_equal(cmp_count(o, "positions"), 100);
    assert_int_equal(cmp_count(o, "candidates.0.positions"), 90);
    assert_int_equal(cmp_count(o, "candidates.0.nonfinite.candidate"), 9);
    assert_int_equal(cmp_count(o, "candidates.0.nonfinite.reference"), 1);
    assert_int_equal(cmp_count(o, "candidates.0.nonfinite.excluded"), 10);
    assert_int_equal(cmp_count(o, "candidates.0.nonfinite.first.0.position"), 11);
    assert_string_equal(json_string_value(cmp_get(o, "candidates.0.status")), "partial");
    assert_true(cmp_real(o, "candidates.0.kl.mean") > 0 && cmp_real(o, "candidates.0.kl.p99") > 0);
    assert_true(json_is_true(cmp_get(o, "candidates.0.valid")));
    assert_true(json_is_false(cmp_get(o, "candidates.1.valid")) &&
                json_is_false(cmp_get(o, "valid")));
    assert_true(json_is_null(cmp_get(o, "candidates.1.kl.mean")));
    assert_true(json_is_null(cmp_get(o, "candidates.1.kl.max")));
    assert_true(json_is_null(cmp_get(o, "candidates.1.perplexity.candidate")));
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.verdict")), "unsupported");
    assert_true(cmp_warned(o, "invalid") && cmp_warned(o, "excluded") &&
                cmp_warned(o, "one_cluster"));
    kld_buf report = {0};
    kld_err err = {0};
    assert_int_equal(kld_compare_gates(o, (const char *[]){"mean_kl=1000"}, 1, &report, &err),
                     KLD_E_GATE);
    assert_non_null(strstr((char *)report.data, "10 positions are not finite"));
    assert_non_null(strstr((char *)report.data, "has no finite value"));
    kld_buf_free(&report);
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "INVALID"));
    free(t);
    json_decref(o);
    free(ref);
    free(some);
    free(all);
}

static void infinite(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 2);
    struct rec *ref = t_records(50, 12, 16, 1, 0, 0, NULL);
    struct rec *q = t_records(50, 12, 16, 1, 0.3, 2, ref),
               *ok = t_records(50, 12, 16, 1, 0.3, 2, ref);
    q->ref_lp[7 * MAX_K + 2] = -INFINITY;
    q->label_lp[9] = -INFINITY;
    cmp_add(&g, "c", "", ref, (struct rec *[]){q, ok});
    json_t *o = cmp_finish(&g);
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.mean")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.max")));
    assert_int_equal(cmp_count(o, "candidates.0.kl.infinite"), 1);
    assert_true(cmp_real(o, "candidates.0.kl.mean_finite") > 0);
    assert_true(cmp_real(o, "candidates.0.kl.median") > 0);
    assert_true(cmp_real(o, "candidates.0.tv.mean") > 0);
    assert_int_equal(cmp_count(o, "candidates.0.kl.max_at.position"), 8);
    assert_true(json_is_null(cmp_get(o, "candidates.0.perplexity.candidate")));
    assert_int_equal(cmp_count(o, "candidates.0.perplexity.infinite_candidate"), 1);
    assert_true(cmp_real(o, "candidates.1.kl.mean") > 0);
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.verdict")), "unsupported");
    assert_true(cmp_warned(o, "infinite"));
    json_decref(o);
    free(ref);
    free(q);
    free(ok);
}

/* T2 by way of records: a constant TV of 0.1 gives the closed forms of the acceptance proxies. */
static void acceptance(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 1);
    struct rec *ref = t_records(30, 2, 0, 1, 0, 0, NULL), *q = t_records(30, 2, 0, 1, 0, 0, ref);
    for (size_t i = 0; i < 30; i++) {
        static const double P[] = {0.9, 0.1}, Q[] = {0.8, 0.2};
        ref->tail_mass[i] = q->tail_mass[i] = 0;
        for (size_t j = 0; j < 2; j++) {
            ref->lp[i * MAX_K + j] = log(P[j]);
            q->lp[i * MAX_K + j] = q->ref_lp[i * MAX_K + j] = log(Q[j]);
        }
    }
    cmp_add(&g, "c", "", ref, (struct rec *[]){q});
    json_t *o = cmp_finish(&g);
    NEAR(cmp_real(o, "candidates.0.kl.mean"), 0.0366900140, 1e-10);
    NEAR(cmp_real(o, "candidates.0.reverse_kl.mean"), 0.0444030076, 1e-10);
    NEAR(cmp_real(o, "candidates.0.js.mean"), 0.0099663893, 1e-10);
    NEAR(cmp_real(o, "candidates.0.tv.mean"), 0.1, 1e-12);
    NEAR(cmp_real(o, "candidates.0.acceptance.sampling"), 0.9, 1e-12);
    NEAR(cmp_real(o, "candidates.0.acceptance.expected_tokens.1"), 1.9, 1e-12);
    NEAR(cmp_real(o, "candidates.0.acceptance.expected_tokens.3"), 3.439, 1e-12);
    NEAR(cmp_real(o, "candidates.0.acceptance.expected_tokens.5"), 4.68559, 1e-12);
    assert_int_equal(cmp_count(o, "candidates.0.acceptance.expected_starts.1"), 30);
    assert_int_equal(cmp_count(o, "candidates.0.acceptance.expected_starts.7"), 24);
    assert_true(json_is_true(cmp_get(o, "candidates.0.kl.exact")));
    json_decref(o);
    free(ref);
    free(q);
}

/* T3: four tokens, whole and cut to two.  Cut, there is a bound, no mean, and a tail of 0.2. */
static void truncated(void **state) {
    (void)state;
    static const double P[] = {0.5, 0.3, 0.15, 0.05}, Q[] = {0.4, 0.35, 0.05, 0.2};
    for (size_t k = 4; k >= 2; k -= 2) {
        struct cmp_rig g;
        cmp_begin(&g, 1);
        struct rec *ref = t_records(20, k, 0, 1, 0, 0, NULL),
                   *q = t_records(20, k, 0, 1, 0, 0, ref);
        for (size_t i = 0; i < 20; i++) {
            ref->tail_mass[i] = k == 2 ? 0.2F : 0;
            q->tail_mass[i] = k == 2 ? 0.25F : 0;
            for (size_t j = 0; j < k; j++) {
                ref->lp[i * MAX_K + j] = log(P[j]);
                q->lp[i * MAX_K + j] = q->ref_lp[i * MAX_K + j] = log(Q[j]);
            }
        }
        cmp_add(&g, "c", "", ref, (struct rec *[]){q});
        json_t *o = cmp_finish(&g);
        const json_t *kl = cmp_get(o, "candidates.0.kl");
        char *t = cmp_table(o, false);
        if (k == 4) {
            NEAR(cmp_real(kl, "mean"), 0.1608037, 5e-8);
            NEAR(cmp_real(o, "candidates.0.reverse_kl.mean"), 0.1870236, 5e-8);
            NEAR(cmp_real(o, "candidates.0.js.mean"), 0.0409203, 5e-8);
            NEAR(cmp_real(o, "candidates.0.tv.mean"), 0.2, 1e-12);
            assert_non_null(strstr(t, "0.1608"));
        } else {
            assert_true(json_is_null(cmp_get(kl, "mean")) && json_is_null(cmp_get(kl, "p99")));
            NEAR(cmp_real(kl, "lower_bound"), 0.0206979, 5e-8);
            NEAR(cmp_real(o, "candidates.0.tail_mass"), 0.2, 1e-7);
            assert_true(cmp_warned(o, "bound_only"));
            assert_non_null(strstr(t, "0.02070 >0.0207"));
        }
        free(t);
        json_decref(o);
        free(ref);
        free(q);
    }
}

/* T28: token mean 0.01, document mean 0.5. */
static void unequal_documents(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 1);
    static kld_position pos[250];
    for (size_t w = 0; w < 5; w++) {
        for (size_t i = 0; i < 250; i++) {
            pos[i] = (kld_position){.exact = 15, .confidence = 0.5};
            pos[i].v[KLD_COL_ESTIMATE] = w == 0 ? 1 : 0;
        }
        kld_window_meta meta = {.cluster = w ? "B" : "A"};
        size_t n = w == 0 ? 10 : w == 4 ? 240 : 250;
        const kld_position *p = pos;
        assert_int_equal(kld_tally_window(&g.tally, w, &meta, 0, n, &p, NULL), KLD_OK);
    }
    json_t *o = cmp_finish(&g);
    assert_int_equal(cmp_count(o, "positions"), 1000);
    assert_int_equal(cmp_count(o, "clusters"), 2);
    NEAR(cmp_real(o, "candidates.0.kl.mean"), 0.01, 1e-15);
    NEAR(cmp_real(o, "candidates.0.kl.cluster_mean"), 0.5, 1e-15);
    assert_string_equal(json_string_value(cmp_get(o, "candidates.0.kl.ci_method")), "student-t");
    json_decref(o);
}

/* Two documents that differ widely: Student-t is far above what JS and TV can be. */
static void intervals_have_limits(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 1);
    for (uint64_t w = 0; w < 2; w++) {
        struct rec *ref = t_records(40, V, 0, 60 + w, 0, 0, NULL);
        struct rec *cand = t_records(40, V, 0, 60 + w, w ? 6 : 0.1, 70, ref);
        cmp_add(&g, w ? "a" : "b", "", ref, &cand);
        free(ref);
        free(cand);
    }
    json_t *o = cmp_finish(&g);
    assert_true(cmp_real(o, "candidates.0.kl.ci95.1") > 10);
    assert_float_equal(cmp_real(o, "candidates.0.js.ci95.1"), log(2), 1e-15);
    assert_float_equal(cmp_real(o, "candidates.0.js.lower_bound_ci95.1"), log(2), 1e-15);
    assert_float_equal(cmp_real(o, "candidates.0.tv.ci95.1"), 1, 0);
    assert_float_equal(cmp_real(o, "candidates.0.acceptance.sampling_ci95.0"), 0, 0);
    json_decref(o);
}

static void mismatched_records(void **state) {
    (void)state;
    struct rec *a = t_records(10, 8, 16, 1, 0, 0, NULL), *b = t_records(10, 8, 16, 1, 0.1, 2, a);
    kld_position out[10];
    kld_position_options opt = {.vocab = V, .top_p = 0.95, .overlap_k = 10};
    kld_err err;
    b->r.n = 9;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    b->r.n = 10;
    b->label[4]++;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "row 4"));
    b->label[4]--;
    b->r.ref_m = 3;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    b->r.ref_m = a->r.m;
    b->count[2] = MAX_K + 1;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    free(a);
    free(b);
}

/* Ties of stored values: a list in another order is the same list. */
static void order_of_ties(void **state) {
    (void)state;
    struct rec *p = t_records(1, 14, 16, 1, 0, 0, NULL), *q = t_records(1, 14, 16, 1, 0, 0, p);
    for (size_t j = 9; j < 14; j++) p->lp[j] = q->lp[j] = p->ref_lp[j] = q->ref_lp[j] = p->lp[9];
    for (size_t j = 9; j < 14; j++) q->ids[j] = p->ids[22 - j];
    kld_position out;
    kld_position_options opt = {.vocab = V, .top_p = 0.8, .overlap_k = 10};
    assert_int_equal(kld_positions_compare(&p->r, &q->r, &opt, &out, NULL), KLD_OK);
    assert_true(out.v[KLD_COL_TOPK] == 1);
    assert_true(out.v[KLD_COL_TOP1] == 1);
    free(p);
    free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self),
        cmocka_unit_test(against_truth),
        cmocka_unit_test(independent),
        cmocka_unit_test(nonfinite),
        cmocka_unit_test(infinite),
        cmocka_unit_test(acceptance),
        cmocka_unit_test(truncated),
        cmocka_unit_test(unequal_documents),
        cmocka_unit_test(intervals_have_limits),
        cmocka_unit_test(mismatched_records),
        cmocka_unit_test(order_of_ties),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
