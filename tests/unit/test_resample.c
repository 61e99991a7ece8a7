/* Clusters in order of strata, their ratios and standard errors, and resamples of them. */
#include "kld/base/mem.h"
#include "kld/base/philox.h"
#include "kld/compare/stats.h"
#include "kld/compare/student.h"
#include "tests/unit/statskit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <omp.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

static void expect_order(const uint32_t *stratum, size_t strata, const bool *kept, size_t n,
                         size_t groups, const size_t *start, const size_t *order) {
    kld_strata s;
    assert_int_equal(kld_strata_order(&s, stratum, strata, kept, n, NULL), KLD_OK);
    assert_int_equal(s.groups, groups);
    for (size_t g = 0; g <= groups; g++) assert_int_equal(s.start[g], start[g]);
    assert_int_equal(s.clusters, start[groups]);
    for (size_t i = 0; order && i < s.clusters; i++) assert_int_equal(s.order[i], order[i]);
    kld_strata_free(&s);
}

/* Strata too small to show their own spread are drawn together. */
static void small_strata(void **state) {
    (void)state;
    bool all[12], some[12];
    uint32_t own[12], by[12];
    for (uint32_t c = 0; c < 12; c++) {
        all[c] = true;
        some[c] = c != 2 && c != 5;
        own[c] = c;
        by[c] = c == 0 ? 0 : c < 6 ? 1 : 2;
    }
    /* A stratum a cluster: one group. */
    expect_order(own, 12, all, 12, 1, (size_t[]){0, 12}, NULL);
    /* One cluster of its own goes with the smaller of the others, 5 to 6. */
    expect_order(by, 3, all, 12, 2, (size_t[]){0, 6, 12},
                 (size_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    /* Clusters without data are not drawn, and do not make a stratum large: 1 and 3 are pooled. */
    expect_order(by, 3, some, 12, 2, (size_t[]){0, 4, 10},
                 (size_t[]){0, 1, 3, 4, 6, 7, 8, 9, 10, 11});
    for (uint32_t c = 0; c < 12; c++) by[c] = 1 - c / 8;
    /* Strata in order of their numbers; 4 clusters suffice. */
    expect_order(by, 2, all, 12, 2, (size_t[]){0, 4, 12},
                 (size_t[]){8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7});
    /* Three clusters in all, and none. */
    expect_order(by, 2, all, 3, 1, (size_t[]){0, 3}, NULL);
    expect_order(by, 2, all, 0, 0, (size_t[]){0}, NULL);
}

static void scales(void **state) {
    (void)state;
    const kld_scale SCALE[] = {KLD_SCALE_PLAIN, KLD_SCALE_LOG, KLD_SCALE_SHARE};
    for (int k = 0; k < 3; k++) {
        for (double m = 0.05; m < 1; m += 0.1) {
            double h = 1e-6,
                   slope = (kld_scale_to(SCALE[k], m + h) - kld_scale_to(SCALE[k], m - h));
            NEAR(kld_scale_from(SCALE[k], kld_scale_to(SCALE[k], m)), m, 1e-15);
            NEAR(kld_scale_slope(SCALE[k], m), slope / (2 * h), 1e-6 * slope / h);
        }
    }
    assert_true(isinf(kld_scale_to(KLD_SCALE_LOG, 0)));
    assert_true(isinf(kld_scale_to(KLD_SCALE_SHARE, 1)));
    assert_true(isnan(kld_scale_to(KLD_SCALE_SHARE, 1.5)));
}

/* sqrt(sum over groups of n/(n-1) sum of squares)/C, as two groups far apart show. */
static void standard_error(void **state) {
    (void)state;
    static struct data d;
    for (size_t groups = 1; groups <= 2; groups++) {
        make(&d, C, groups);
        size_t each = C / groups;
        double var = 0;
        for (size_t g = 0; g < groups; g++) {
            double mean = 0, ss = 0;
            for (size_t c = g * each; c < (g + 1) * each; c++)
                mean += d.num[2 * c] / 10 / (double)each;
            for (size_t c = g * each; c < (g + 1) * each; c++)
                ss += pow(d.num[2 * c] / 10 - mean, 2);
            var += ss * (double)each / (double)(each - 1);
        }
        NEAR(kld_ratio_error(&d.s, 0).se, sqrt(var) / C, 1e-12);
    }
    /* Residuals -2, -1, 0, 3: squares 14, fourth powers 98; and of less peaked ones none. */
    make(&d, 4, 1);
    for (size_t c = 0; c < 4; c++) {
        d.num[2 * c] = 10 * (double[]){5, 6, 7, 10}[c];
        d.num[2 * c + 1] = 10 * (double[]){5, 5, 9, 9}[c];
    }
    NEAR(kld_ratio_error(&d.s, 0).excess, 0, 0); /* 4 * 98 / 196 = 2 */
    make(&d, 10, 1);
    for (size_t c = 0; c < 10; c++) d.num[2 * c] = c == 4 ? 110 : 10;
    NEAR(kld_ratio_error(&d.s, 0).excess, 10 * (6561 + 9.) / (90 * 90) - 3, 1e-12);
    make(&d, C, 2);
    d.s.groups = 1;
    d.start[1] = C;
    assert_true(kld_ratio_error(&d.s, 0).se > 1.5 * 0.12); /* strata that differ, taken as one */
}

/* Replicates of normal values are about Student's t, and the interval is about that of t. */
static void bootstrap_t(void **state) {
    (void)state;
    static struct data d;
    kld_replicates r;
    make(&d, C, 2);
    assert_int_equal(kld_bootstrap(&r, &d.s, B, 1, NULL), KLD_OK);
    assert_int_equal(r.n[0], B);
    for (size_t b = 1; b < B; b++) assert_true(r.t[b - 1] <= r.t[b]);
    NEAR(kld_quantile(r.t, B, 0.5), 0, 0.15);
    NEAR(kld_quantile(r.t, B, 0.025), -2, 0.25);
    NEAR(kld_quantile(r.t, B, 0.975), 2, 0.25);
    kld_estimate e = kld_estimate_ratio(&d.s, 0, &r);
    double mean = kld_ratio_mean(&d.s, 0), se = kld_ratio_error(&d.s, 0).se;
    assert_string_equal(e.method, "bootstrap-t");
    assert_int_equal(e.clusters, C);
    NEAR(e.df, C - 2, 0);
    NEAR(e.mean, mean, 0);
    NEAR(e.at, log(mean), 1e-15);
    NEAR(e.se, se / mean, 1e-15);
    kld_interval ci = kld_estimate_interval(&e, 0.95);
    double q = kld_student_quantile(0.975, e.df_t);
    double t = kld_student_quantile(0.025, C - 2) * sqrt(59. / 58);
    t = kld_student_cdf(t, INFINITY);
    NEAR(log(ci.lo), log(mean) - e.se * fmax(q, kld_quantile(r.t, B, 1 - t)), 1e-12);
    NEAR(log(ci.hi), log(mean) + e.se * fmax(q, -kld_quantile(r.t, B, t)), 1e-12);
    /* One column: t is about the weighted sums of the same draws, whatever else is drawn. */
    double num[C], den[C];
    for (size_t c = 0; c < C; c++) {
        num[c] = d.num[2 * c];
        den[c] = d.den[2 * c];
    }
    kld_cluster_sums one = d.s;
    kld_replicates alone;
    one.cols = 1;
    one.num = num;
    one.den = den;
    assert_int_equal(kld_bootstrap(&alone, &one, B, 1, NULL), KLD_OK);
    assert_memory_equal(alone.t, r.t, B * sizeof *r.t);
    kld_replicates_free(&alone);
    kld_replicates_free(&r);
}

/* The definition, with the sums of one resample added up by hand. */
static void one_resample(void **state) {
    (void)state;
    enum { N = 12 };
    static struct data d;
    make(&d, N, 2);
    for (size_t c = 0; c < N; c++) d.den[2 * c] = d.den[2 * c + 1] = 8 + (double)(c % 3);
    kld_replicates r;
    assert_int_equal(kld_bootstrap(&r, &d.s, 100, 9, NULL), KLD_OK);
    double m = kld_ratio_mean(&d.s, 1), found = 0;
    for (size_t b = 0; b < 100; b += 33) {
        size_t pick[N];
        double x = 0, y = 0, var = 0;
        for (size_t j = 0; j < N; j++) {
            uint32_t bits = kld_philox(9, b, j / 4).v[j % 4];
            pick[j] = j / 6 * 6 + (size_t)((uint64_t)bits * 6 >> 32);
            x += d.num[2 * pick[j] + 1];
            y += d.den[2 * pick[j] + 1];
        }
        for (size_t g = 0; g < 2; g++) {
            double mean = 0, ss = 0;
            for (size_t j = 6 * g; j < 6 * g + 6; j++)
                mean += (d.num[2 * pick[j] + 1] - x / y * d.den[2 * pick[j] + 1]) / 6;
            for (size_t j = 6 * g; j < 6 * g + 6; j++)
                ss += pow(d.num[2 * pick[j] + 1] - x / y * d.den[2 * pick[j] + 1] - mean, 2);
            var += 6. / 5 * ss;
        }
        double t = log(x / y / m) / (sqrt(var) / y / (x / y));
        for (size_t i = 0; i < 100; i++) found += fabs(r.t[100 + i] - t) < 1e-9;
    }
    NEAR(found, 4, 0);
    kld_replicates_free(&r);
}

/* T27: values that repeat within a cluster.  Taking the repeats as independent gives half the
 * error of the clusters (4 copies each). */
static void clustered_is_wider(void **state) {
    (void)state;
    enum { COPIES = 4 };
    static struct data d;
    static double num[C * COPIES], den[C * COPIES];
    make(&d, C, 1);
    for (size_t i = 0; i < C * COPIES; i++) {
        num[i] = d.num[2 * (i / COPIES)] / 10;
        den[i] = 1;
    }
    size_t start[] = {0, C * COPIES};
    kld_cluster_sums n = {.clusters = C * COPIES, .cols = 1, .groups = 1, .start = start};
    n.scale = d.scale;
    n.num = num;
    n.den = den;
    NEAR(kld_ratio_error(&d.s, 0).se / kld_ratio_error(&n, 0).se, 2, 0.05);
}

static void threads_do_not_matter(void **state) {
    (void)state;
    static struct data d;
    kld_replicates a, b;
    make(&d, C, 3);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    assert_int_equal(kld_bootstrap(&a, &d.s, B, 42, NULL), KLD_OK);
    omp_set_num_threads(5);
    assert_int_equal(kld_bootstrap(&b, &d.s, B, 42, NULL), KLD_OK);
    assert_memory_equal(a.t, b.t, 2 * B * sizeof *a.t);
    kld_replicates_free(&b);
    omp_set_num_threads(before);
    assert_int_equal(kld_bootstrap(&b, &d.s, B, 43, NULL), KLD_OK);
    assert_true(memcmp(a.t, b.t, 2 * B * sizeof *a.t) != 0);
    kld_replicates_free(&a);
    kld_replicates_free(&b);
}

static void out_of_memory(void **state) {
    (void)state;
    static struct data d;
    kld_replicates r;
    kld_strata s;
    kld_err err;
    uint32_t stratum[C] = {0};
    bool kept[C] = {true};
    make(&d, C, 1);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    for (size_t n = 1; n <= 8; n++) {
        kld_mem_fail_after(n);
        kld_status st = kld_bootstrap(&r, &d.s, B, 1, &err);
        kld_mem_fail_after(0);
        assert_int_equal(st, KLD_E_NOMEM);
        assert_null(r.t);
        kld_mem_fail_after(n);
        st = kld_strata_order(&s, stratum, 1, kept, C, &err);
        kld_mem_fail_after(0);
        if (n <= 5) assert_int_equal(st, KLD_E_NOMEM);
        else kld_strata_free(&s);
    }
    omp_set_num_threads(before);
    d.s.cols = SIZE_MAX / 2;
    assert_int_equal(kld_bootstrap(&r, &d.s, B, 1, &err), KLD_E_NOMEM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_strata),          cmocka_unit_test(scales),
        cmocka_unit_test(standard_error),        cmocka_unit_test(bootstrap_t),
        cmocka_unit_test(one_resample),          cmocka_unit_test(clustered_is_wider),
        cmocka_unit_test(threads_do_not_matter), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("resample", tests, NULL, NULL);
}
