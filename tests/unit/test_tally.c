/* Sums over positions: what goes into means, quantiles and lists. */
#include "kld/compare/tally.h"
#include "tests/unit/t.h"

#include <math.h>

enum { N = 4 };

/* Position i with every estimate at est[i] and every bound at 0.25. */
static void fill(kld_position p[N], const double est[N]) {
    for (size_t i = 0; i < N; i++) {
        p[i] = (kld_position){.confidence = 0.5, .label = (uint32_t)i};
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            p[i].v[KLD_COL_ESTIMATE + k] = est[i];
            p[i].v[KLD_COL_BOUND + k] = 0.25;
        }
    }
}

static void tally(kld_tally *t, const kld_position *p) {
    kld_err e;
    const kld_window_meta meta = {.cluster = "c", .stratum = "s"};
    assert_int_equal(kld_tally_begin(t, 1, &e), KLD_OK);
    assert_int_equal(kld_tally_window(t, 3, &meta, 60, N, &p, &e), KLD_OK);
    assert_int_equal(kld_tally_end(t, &e), KLD_OK);
}

/* Quantiles and lists see values that can be; means see the estimates. */
static void impossible_values(void **state) {
    (void)state;
    kld_position p[N];
    fill(p, (double[N]){0.5, 40, 0.1, NAN});
    kld_tally t;
    tally(&t, p);
    const kld_candidate_tally *c = &t.cand[0];
    const double most[KLD_DIV_KINDS] = {40, 40, log(2), 1};
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        assert_int_equal(c->n_values, N);
        assert_true(c->values[k][0] == 0.25); /* below its bound; and the one without estimate */
        assert_true(c->values[k][1] == 0.25);
        assert_true(c->values[k][2] == 0.5);
        assert_true(fabs(c->values[k][3] - most[k]) < 1e-15);
        assert_true(c->max_at[k].value == c->values[k][3] && c->max_at[k].position == 61);
        assert_true(c->all.sum[KLD_COL_ESTIMATE + k] == 0.5 + 40 + 0.1);
        assert_int_equal(c->all.n[KLD_COL_ESTIMATE + k], 3);
        assert_true(isnan(kld_group_estimate(&c->all, (kld_div_kind)k)));
    }
    assert_int_equal(c->unestimated, 1);
    assert_int_equal(c->n_worst, N);
    assert_true(c->worst[0].value == 40 && c->worst[1].value == 0.5);
    assert_int_equal(c->worst[0].label, 1);
    kld_tally_free(&t);
}

/* Spans are as wide as 64 of them need to be for the longest window, whatever the order. */
static void spans(void **state) {
    (void)state;
    enum { LONG = 300 };
    static kld_position p[LONG];
    const kld_position *pos = p;
    const kld_window_meta meta = {.cluster = "c"};
    kld_tally t;
    for (size_t i = 0; i < LONG; i++)
        for (int c = 0; c < KLD_COLUMNS; c++) p[i].v[c] = (double)i;
    assert_int_equal(kld_tally_begin(&t, 1, NULL), KLD_OK);
    const kld_candidate_tally *c = &t.cand[0];
    assert_int_equal(kld_tally_window(&t, 0, &meta, 0, 64, &pos, NULL), KLD_OK);
    assert_int_equal(c->span, 1);
    assert_true(c->by_position[63].estimate == 63);
    assert_int_equal(kld_tally_window(&t, 1, &meta, 0, LONG, &pos, NULL), KLD_OK);
    assert_int_equal(c->span, 8);
    p[17].v[KLD_COL_ESTIMATE] = NAN; /* a bound alone */
    assert_int_equal(kld_tally_window(&t, 2, &meta, 0, 64, &pos, NULL), KLD_OK);
    for (size_t b = 0; b < KLD_SPANS; b++) {
        double sum = 0;
        uint64_t n = 0;
        for (size_t i = 8 * b; i < 8 * b + 8 && i < LONG; i++) {
            sum += (i < 64 ? 3 : 1) * (double)i;
            n += i < 64 ? 3 : 1;
        }
        assert_int_equal(c->by_position[b].positions, n);
        assert_true(c->by_position[b].bound == sum);
        assert_true(b == 2 ? isnan(c->by_position[b].estimate) : c->by_position[b].estimate == sum);
    }
    kld_tally_free(&t);
}

/* Every position is in one bin of each breakdown; infinite values are counted, not summed. */
static void breakdowns(void **state) {
    (void)state;
    kld_position p[N];
    fill(p, (double[N]){1, 2, INFINITY, 4});
    p[0].confidence = 0.2;
    p[1].confidence = 0.25;
    p[2].confidence = 0.96;
    p[3].confidence = 1;
    kld_tally t;
    tally(&t, p);
    const kld_candidate_tally *c = &t.cand[0];
    assert_int_equal(c->by_depth[0].positions, 4); /* 60..63 */
    assert_int_equal(c->by_depth[1].positions, 0);
    const uint64_t want[KLD_CONFIDENCES] = {1, 1, 0, 0, 2};
    for (int b = 0; b < KLD_CONFIDENCES; b++)
        assert_int_equal(c->by_confidence[b].positions, want[b]);
    assert_int_equal(c->all.inf[KLD_COL_ESTIMATE], 1);
    assert_true(c->all.sum[KLD_COL_ESTIMATE] == 7);
    assert_true(isnan(kld_group_mean(&c->all, KLD_COL_ESTIMATE)));
    assert_true(isinf(c->worst[0].value) && isinf(c->values[KLD_DIV_KL][N - 1]));
    assert_int_equal(c->hist_above, 1);
    kld_tally_free(&t);
}

/* By cluster: sums of finite estimates in every bin, and values above each quantile of all. */
static void by_cluster(void **state) {
    (void)state;
    kld_position p[N], q[N];
    fill(p, (double[N]){1, 2, INFINITY, 4});
    fill(q, (double[N]){0.5, 8, 16, NAN});
    p[0].confidence = 0.2;
    kld_tally t;
    kld_err e;
    const kld_position *at[] = {p, q};
    const kld_window_meta meta[] = {{.cluster = "a"}, {.cluster = "b"}};
    for (size_t n = 1; n < 6; n++) { /* without memory at the end */
        assert_int_equal(kld_tally_begin(&t, 1, &e), KLD_OK);
        for (size_t w = 0; w < 2; w++)
            assert_int_equal(kld_tally_window(&t, w, &meta[w], 62, N, &at[w], &e), KLD_OK);
        kld_mem_fail_after(n < 5 ? n : 0);
        kld_status st = kld_tally_end(&t, &e);
        kld_mem_fail_after(0);
        if (n < 4) assert_int_equal(st, KLD_E_NOMEM);
        if (n < 5) kld_tally_free(&t);
    }
    const kld_candidate_tally *c = &t.cand[0];
    assert_int_equal(t.clusters, 2);
    /* Positions 62 and 63 are the first bin of depth, 64 and 65 the second. */
    assert_true(c->bins[0].sum[0] == 3 && c->bins[0].n[0] == 2);
    assert_true(c->bins[0].sum[1] == 4 && c->bins[0].n[1] == 1);
    assert_true(c->bins[1].sum[1] == 16 && c->bins[1].n[1] == 1);
    assert_true(c->bins[0].sum[KLD_DEPTHS] == 1 && c->bins[0].n[KLD_DEPTHS] == 1);
    assert_true(c->bins[1].sum[KLD_DEPTHS + 2] == 24.5 && c->bins[1].n[KLD_DEPTHS + 2] == 3);
    /* Sorted: 0.25 0.5 1 2 4 8 16 inf; the median is 3, and p90 and above interpolate to inf. */
    assert_true(c->above[0] == 2 && c->above[KLD_TAILS] == 2);
    assert_true(c->above[1] == 0 && c->above[KLD_TAILS + 1] == 0);
    kld_tally_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_values),
        cmocka_unit_test(spans),
        cmocka_unit_test(breakdowns),
        cmocka_unit_test(by_cluster),
    };
    return cmocka_run_group_tests_name("tally", tests, NULL, NULL);
}
