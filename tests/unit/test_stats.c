/* Quantiles, cluster bootstrap, Student-t, verdicts. */
#include "kld/base/mem.h"
#include "kld/base/philox.h"
#include "kld/compare/stats.h"
#include "tests/unit/t.h"

#include <math.h>
#include <omp.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

static void quantiles(void **state) {
    (void)state;
    double v[] = {3, 1, 2, 4, INFINITY};
    kld_sort(v, 5);
    NEAR(kld_quantile(v, 4, 0.5), 2.5, 0);
    NEAR(kld_quantile(v, 4, 0), 1, 0);
    NEAR(kld_quantile(v, 4, 1), 4, 0);
    NEAR(kld_quantile(v, 4, 0.9), 3.7, 1e-15);
    NEAR(kld_quantile(v, 5, 0.5), 3, 0);
    NEAR(kld_quantile(v, 5, 0.75), 4, 0); /* exactly at a value: the infinite one is not used */
    assert_true(isinf(kld_quantile(v, 5, 0.99)));
    assert_true(isnan(kld_quantile(v, 0, 0.5)));
    NEAR(kld_quantile(v, 1, 0.99), 1, 0);
    double same[] = {INFINITY, INFINITY};
    assert_true(isinf(kld_quantile(same, 2, 0.5)));
}

static double normal(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 3);
    return sqrt(-2 * log(kld_philox_unit(b.v[0], b.v[1]))) *
           cos(6.283185307179586 * kld_philox_unit(b.v[2], b.v[3]));
}

enum { C = 60, B = 4000 };

struct data {
    uint32_t stratum[C];
    double num[2 * C], den[2 * C];
    kld_cluster_sums s;
};

/* Two ratios over clusters of equal size; the second is the first plus 0.5 everywhere. */
static void make(struct data *d, size_t clusters, size_t strata) {
    for (size_t c = 0; c < clusters; c++) {
        d->stratum[c] = (uint32_t)(c % strata);
        double n = 10, mean = 3 + normal(5, c) + 4 * (double)(c % strata);
        d->num[2 * c] = n * mean;
        d->num[2 * c + 1] = n * (mean + 0.5);
        d->den[2 * c] = d->den[2 * c + 1] = n;
    }
    d->s = (kld_cluster_sums){.clusters = clusters, .cols = 2, .stratum = d->stratum};
    d->s.strata = strata;
    d->s.num = d->num;
    d->s.den = d->den;
}

static double variance(const double *v, size_t n) {
    double m = 0, s = 0;
    for (size_t i = 0; i < n; i++) m += v[i] / (double)n;
    for (size_t i = 0; i < n; i++) s += (v[i] - m) * (v[i] - m);
    return s / (double)(n - 1);
}

/* Strata too small to show their own spread are drawn together. */
static void small_strata(void **state) {
    (void)state;
    static struct data d;
    static double rep[2 * B], same[2 * B];
    make(&d, C, 1);
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    for (size_t c = 0; c < C; c++) d.stratum[c] = (uint32_t)c;
    d.s.strata = C;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, same, NULL), KLD_OK);
    assert_memory_equal(rep, same, sizeof rep);
    /* One cluster of its own goes with the smallest of the others: here the second of them. */
    for (size_t c = 0; c < C; c++) d.stratum[c] = c == 0 ? 0 : c < 40 ? 1 : 2;
    d.s.strata = 3;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    for (size_t c = 0; c < C; c++) d.stratum[c] = c == 0 || c >= 40 ? 0 : 1;
    d.s.strata = 2;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, same, NULL), KLD_OK);
    assert_memory_equal(rep, same, sizeof rep);
    /* Clusters without data do not make a stratum large: three with data are pooled. */
    for (size_t c = 0; c < C; c++) {
        d.stratum[c] = c < 6;
        if (c < 3) d.den[2 * c] = d.den[2 * c + 1] = d.num[2 * c] = d.num[2 * c + 1] = 0;
    }
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    for (size_t c = 0; c < C; c++) d.stratum[c] = 0;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, same, NULL), KLD_OK);
    assert_memory_equal(rep, same, sizeof rep);
}

/* Variance of a bootstrap mean of equal clusters is exactly sum (x - mean)^2 / C^2. */
static void bootstrap_variance(void **state) {
    (void)state;
    static struct data d;
    static double rep[2 * B], scratch[B];
    make(&d, C, 1);
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    double mean = kld_ratio_mean(&d.s, 0), ss = 0;
    for (size_t c = 0; c < C; c++) ss += pow(d.num[2 * c] / 10 - mean, 2);
    double want = ss / C / C;
    NEAR(variance(rep, B) / want, 1, 0.08);
    NEAR(kld_ratio_stderr(&d.s, 0), sqrt(want * C / (C - 1)), 1e-12);
    kld_interval ci = kld_mean_interval(&d.s, 0, KLD_SCALE_LOG, rep, B, scratch);
    assert_string_equal(ci.method, "bootstrap");
    NEAR(ci.lo, mean - 1.96 * sqrt(want), 0.3 * sqrt(want));
    NEAR(ci.hi, mean + 1.96 * sqrt(want), 0.3 * sqrt(want));
    /* Same draws for both ratios: their difference has no spread at all. */
    for (size_t b = 0; b < B; b++) NEAR(rep[B + b] - rep[b], 0.5, 1e-12);
    kld_paired p = kld_paired_interval(&d.s, 0, 1, rep, rep + B, B, scratch);
    NEAR(p.difference, 0.5, 1e-12);
    NEAR(p.difference_ci.lo, 0.5, 1e-12);
    NEAR(p.difference_ci.hi, 0.5, 1e-12);
    assert_true(p.ln_ratio_ci.lo < p.ln_ratio && p.ln_ratio < p.ln_ratio_ci.hi);
    NEAR(p.ln_ratio, log((mean + 0.5) / mean), 1e-12);
}

/* Strata that differ do not add to the spread when clusters are drawn within them. */
static void strata(void **state) {
    (void)state;
    static struct data d;
    static double rep[2 * B];
    make(&d, C, 2);
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    double within = variance(rep, B);
    d.s.strata = 1;
    for (size_t c = 0; c < C; c++) d.stratum[c] = 0;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    assert_true(variance(rep, B) > 3 * within);
}

/* T27: values that repeat within a cluster.  Resampling the repeats as if they were independent
 * gives half the error of resampling the clusters (4 copies each). */
static void clustered_is_wider(void **state) {
    (void)state;
    enum { COPIES = 4 };
    static struct data d;
    static double naive_num[C * COPIES], naive_den[C * COPIES], rep[2 * B], naive[B];
    static uint32_t one[C * COPIES];
    make(&d, C, 1);
    for (size_t i = 0; i < C * COPIES; i++) {
        naive_num[i] = d.num[2 * (i / COPIES)] / 10;
        naive_den[i] = 1;
    }
    kld_cluster_sums n = {.clusters = C * COPIES, .cols = 1, .stratum = one, .strata = 1};
    n.num = naive_num;
    n.den = naive_den;
    assert_int_equal(kld_bootstrap(&d.s, B, 1, rep, NULL), KLD_OK);
    assert_int_equal(kld_bootstrap(&n, B, 1, naive, NULL), KLD_OK);
    NEAR(sqrt(variance(rep, B) / variance(naive, B)), 2, 0.15);
}

static void threads_do_not_matter(void **state) {
    (void)state;
    static struct data d;
    static double a[2 * B], b[2 * B];
    make(&d, C, 3);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    assert_int_equal(kld_bootstrap(&d.s, B, 42, a, NULL), KLD_OK);
    omp_set_num_threads(5);
    assert_int_equal(kld_bootstrap(&d.s, B, 42, b, NULL), KLD_OK);
    omp_set_num_threads(before);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kld_bootstrap(&d.s, B, 43, b, NULL), KLD_OK);
    assert_true(memcmp(a, b, sizeof a) != 0);
}

static void few_clusters(void **state) {
    (void)state;
    static struct data d;
    double scratch[1];
    make(&d, 5, 1);
    double mean = kld_ratio_mean(&d.s, 0), se = kld_ratio_stderr(&d.s, 0);
    kld_interval ci = kld_mean_interval(&d.s, 0, KLD_SCALE_LOG, NULL, 1, scratch);
    assert_string_equal(ci.method, "student-t");
    NEAR(ci.lo, mean * exp(-2.77644511 * se / mean), 1e-12);
    NEAR(ci.hi, mean * exp(2.77644511 * se / mean), 1e-12);
    assert_true(ci.lo > 0);
    ci = kld_mean_interval(&d.s, 0, KLD_SCALE_PLAIN, NULL, 1, scratch);
    NEAR(ci.lo, mean - 2.77644511 * se, 1e-12);
    ci = kld_mean_interval(&d.s, 0, KLD_SCALE_SHARE, NULL, 1, scratch);
    assert_true(ci.hi <= 1 && ci.lo >= 0);
    kld_paired p = kld_paired_interval(&d.s, 0, 1, NULL, NULL, 1, scratch);
    assert_string_equal(p.difference_ci.method, "student-t");
    NEAR(p.difference_ci.lo, 0.5, 1e-9);
    /* One cluster, and a cluster without positions. */
    d.s.clusters = 1;
    ci = kld_mean_interval(&d.s, 0, KLD_SCALE_LOG, NULL, 1, scratch);
    assert_true(isnan(ci.lo) && isnan(ci.hi));
    assert_string_equal(ci.method, "none");
    assert_non_null(ci.reason);
    d.den[0] = d.num[0] = 0;
    ci = kld_mean_interval(&d.s, 0, KLD_SCALE_LOG, NULL, 1, scratch);
    assert_string_equal(ci.reason, "no positions");
    assert_true(isnan(kld_ratio_mean(&d.s, 0)));
}

/* T28: documents of 10 and 990 tokens. */
static void unequal_documents(void **state) {
    (void)state;
    double num[] = {10, 0}, den[] = {10, 990};
    uint32_t stratum[] = {0, 0};
    kld_cluster_sums s = {.clusters = 2, .cols = 1, .stratum = stratum, .strata = 1};
    s.num = num;
    s.den = den;
    NEAR(kld_ratio_mean(&s, 0), 0.01, 1e-15);
    NEAR(kld_cluster_mean(&s, 0), 0.5, 1e-15);
}

/* Coverage of the clustered interval with 5 and with 40 skewed clusters. */
static void interval_coverage(void **state) {
    (void)state;
    enum { RUNS = 300, R = 400 };
    for (size_t n = 5; n <= 40; n += 35) {
        size_t inside = 0;
        for (uint64_t r = 0; r < RUNS; r++) {
            double num[40], den[40], rep[R], scratch[R];
            uint32_t stratum[40] = {0};
            for (size_t c = 0; c < n; c++) {
                num[c] = exp(0.5 * normal(100 + r, c));
                den[c] = 1;
            }
            kld_cluster_sums s = {.clusters = n, .cols = 1, .stratum = stratum, .strata = 1};
            s.num = num;
            s.den = den;
            assert_int_equal(kld_bootstrap(&s, R, 1, rep, NULL), KLD_OK);
            kld_interval ci = kld_mean_interval(&s, 0, KLD_SCALE_LOG, rep, R, scratch);
            double truth = exp(0.125);
            inside += ci.lo <= truth && truth <= ci.hi;
        }
        assert_in_range(inside, RUNS * 87 / 100, RUNS);
    }
}

static void verdicts(void **state) {
    (void)state;
    assert_string_equal(kld_verdict(-0.02, 0.03, 0.1), "practically equivalent");
    assert_string_equal(kld_verdict(0.01, 0.02, 0.1), "practically equivalent");
    assert_string_equal(kld_verdict(0.05, 0.4, 0.1), "worse");
    assert_string_equal(kld_verdict(-0.4, -0.05, 0.1), "better");
    assert_string_equal(kld_verdict(-0.4, 0.05, 0.1), "not worse");
    assert_string_equal(kld_verdict(-0.05, 0.4, 0.1), "inconclusive");
    assert_string_equal(kld_verdict(NAN, NAN, 0.1), "unsupported");
    kld_paired p = {.ln_ratio = NAN, .difference = -1};
    p.difference_ci = (kld_interval){.lo = -1.2, .hi = -0.8};
    assert_string_equal(kld_paired_verdict(&p, 0.1), "better");
    p.difference_ci = (kld_interval){.lo = 0.8, .hi = 1.2};
    assert_string_equal(kld_paired_verdict(&p, 0.1), "worse");
    p.difference_ci = (kld_interval){.lo = NAN, .hi = NAN};
    assert_string_equal(kld_paired_verdict(&p, 0.1), "unsupported");
    p.ln_ratio = 0;
    p.ln_ratio_ci = (kld_interval){.lo = -0.01, .hi = 0.01};
    assert_string_equal(kld_paired_verdict(&p, 0.1), "practically equivalent");
}

static void out_of_memory(void **state) {
    (void)state;
    static struct data d;
    static double rep[2 * B];
    kld_err err;
    make(&d, C, 1);
    omp_set_num_threads(1);
    for (size_t n = 1; n <= 3; n++) {
        kld_mem_fail_after(n);
        kld_status st = kld_bootstrap(&d.s, B, 1, rep, &err);
        kld_mem_fail_after(0);
        assert_int_equal(st, KLD_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),
        cmocka_unit_test(bootstrap_variance),
        cmocka_unit_test(strata),
        cmocka_unit_test(small_strata),
        cmocka_unit_test(clustered_is_wider),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(few_clusters),
        cmocka_unit_test(unequal_documents),
        cmocka_unit_test(interval_coverage),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
