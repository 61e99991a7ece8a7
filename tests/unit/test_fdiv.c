/* Divergences against closed forms and against sums over whole distributions. */
#include "kld/base/philox.h"
#include "kld/compare/fdiv.h"
#include "tests/unit/t.h"

#include <math.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { MOST = 4096 };

static double truth(int kind, const double *p, const double *q, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) {
        double m = 0.5 * (p[i] + q[i]);
        if (kind == KLD_DIV_KL && p[i] > 0) s += p[i] * log(p[i] / q[i]);
        if (kind == KLD_DIV_REVERSE && q[i] > 0) s += q[i] * log(q[i] / p[i]);
        if (kind == KLD_DIV_TV) s += 0.5 * fabs(p[i] - q[i]);
        if (kind != KLD_DIV_JS) continue;
        if (p[i] > 0) s += 0.5 * p[i] * log(p[i] / m);
        if (q[i] > 0) s += 0.5 * q[i] * log(q[i] / m);
    }
    return s;
}

static void logs(const double *p, double *lp, size_t n) {
    for (size_t i = 0; i < n; i++) lp[i] = log(p[i]);
}

static void exps(const double *lp, double *p, size_t n) {
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) p[i] = exp(lp[i]);
}

static double rest_mass(size_t n, const double *lp, const double *lq, double rest_p) {
    double p[MOST], q[MOST];
    exps(lp, p, n);
    exps(lq, q, n);
    return kld_rest_mass(n, p, q, rest_p);
}

/* With what is remembered and without, from scratch and from what was met: the same bits. */
static void divergences(const kld_cells *c, kld_divergence d[KLD_DIV_KINDS]) {
    static kld_ratio ratios[KLD_RATIOS];
    double p[MOST], q[MOST];
    kld_cells x = *c;
    kld_divergence again[KLD_DIV_KINDS];
    exps(c->lp, p, c->n);
    exps(c->lq, q, c->n);
    x.p = p;
    x.q = q;
    kld_divergences(&x, d);
    x.ratios = ratios;
    for (int turn = 0; turn < 2; turn++) {
        kld_divergences(&x, again);
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            assert_memory_equal(&again[k].bound, &d[k].bound, sizeof d[k].bound);
            assert_memory_equal(&again[k].estimate, &d[k].estimate, sizeof d[k].estimate);
        }
    }
}

/* Differences of the grid, which are remembered, between some that are not. */
static void remembered(void **state) {
    (void)state;
    double lp[] = {-1, -1.5, -2.25, -3, -9, -40}, lq[6];
    static const double d[] = {0x1p-13, -0x1p-13, 1.9998779296875, 2, 0.1, 35};
    kld_divergence out[KLD_DIV_KINDS];
    for (size_t i = 0; i < 6; i++) lq[i] = lp[i] + d[i];
    divergences(&(kld_cells){.n = 6, .lp = lp, .lq = lq}, out);
    for (size_t i = 0; i < 6; i++) lq[i] = lp[i] - d[i];
    divergences(&(kld_cells){.n = 6, .lp = lp, .lq = lq}, out);
    assert_true(out[KLD_DIV_KL].bound > 0);
}

/* T2, and the 4-token pair of T3 with the whole vocabulary listed. */
static void closed_forms(void **state) {
    (void)state;
    double p[] = {0.9, 0.1}, q[] = {0.8, 0.2}, lp[4], lq[4];
    logs(p, lp, 2);
    logs(q, lq, 2);
    kld_divergence d[KLD_DIV_KINDS];
    divergences(&(kld_cells){.n = 2, .lp = lp, .lq = lq}, d);
    NEAR(d[KLD_DIV_KL].estimate, 0.0366900140, 1e-10);
    NEAR(d[KLD_DIV_REVERSE].estimate, 0.0444030076, 1e-10);
    NEAR(d[KLD_DIV_JS].estimate, 0.0099663893, 1e-10);
    NEAR(d[KLD_DIV_TV].estimate, 0.1, 1e-15);
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        assert_true(d[k].exact);
        assert_true(d[k].bound == d[k].estimate);
        assert_true(d[k].variance == 0);
    }
    double p4[] = {.5, .3, .15, .05}, q4[] = {.4, .35, .05, .2};
    logs(p4, lp, 4);
    logs(q4, lq, 4);
    divergences(&(kld_cells){.n = 4, .lp = lp, .lq = lq}, d);
    NEAR(d[KLD_DIV_KL].estimate, 0.1608037, 5e-8);
    NEAR(d[KLD_DIV_REVERSE].estimate, 0.1870236, 5e-8);
    NEAR(d[KLD_DIV_JS].estimate, 0.0409203, 5e-8);
    NEAR(d[KLD_DIV_TV].estimate, 0.2, 1e-15);
}

/* T3: two tokens listed.  Draws in the exact proportions of the tail (3 to 1) make the
 * estimate the truth. */
static void truncated(void **state) {
    (void)state;
    double p[] = {.5, .3, .15, .05}, q[] = {.4, .35, .05, .2}, lp[4], lq[4];
    logs(p, lp, 4);
    logs(q, lq, 4);
    double dp[] = {lp[2], lp[2], lp[2], lp[3]}, dq[] = {lq[2], lq[2], lq[2], lq[3]};
    kld_cells c = {.n = 2, .lp = lp, .lq = lq, .rest_p = 0.2};
    c.rest_q = rest_mass(2, lp, lq, 0.2);
    NEAR(c.rest_q, 0.25, 1e-15);
    kld_divergence d[KLD_DIV_KINDS];
    divergences(&c, d);
    NEAR(d[KLD_DIV_KL].bound, 0.0206979, 5e-8);
    assert_true(isnan(d[KLD_DIV_KL].estimate));
    assert_false(d[KLD_DIV_KL].exact);
    c.m = 4;
    c.draw_lp = dp;
    c.draw_lq = dq;
    divergences(&c, d);
    NEAR(d[KLD_DIV_KL].bound, 0.0206979, 5e-8);
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        NEAR(d[k].estimate, truth(k, p, q, 4), 1e-14);
        assert_false(d[k].exact);
        assert_true(d[k].variance > 0);
    }
}

/* T1: equal values give exact zeros, whatever the rounding of the sums. */
static void identity(void **state) {
    (void)state;
    double lp[] = {-0.7, -1.3, -3.1}, draws[] = {-9.25, -11.5, -8.125};
    double rest = 0.1855;
    kld_cells c = {.n = 3, .lp = lp, .lq = lp, .rest_p = rest, .m = 3};
    c.rest_q = rest_mass(3, lp, lp, rest);
    c.draw_lp = c.draw_lq = draws;
    assert_true(c.rest_q == rest);
    kld_divergence d[KLD_DIV_KINDS];
    divergences(&c, d);
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        assert_true(d[k].bound == 0);
        assert_true(d[k].estimate == 0);
        assert_true(d[k].variance == 0);
    }
}

/* T6 and its mirror: zero probability on one side. */
static void zeros(void **state) {
    (void)state;
    double lp[] = {log(0.5), log(0.5), -INFINITY}, lq[] = {log(0.5), -INFINITY, log(0.5)};
    kld_divergence d[KLD_DIV_KINDS];
    divergences(&(kld_cells){.n = 3, .lp = lp, .lq = lq}, d);
    assert_true(isinf(d[KLD_DIV_KL].estimate) && d[KLD_DIV_KL].estimate > 0);
    assert_true(isinf(d[KLD_DIV_REVERSE].estimate));
    NEAR(d[KLD_DIV_JS].estimate, 0.5 * log(2), 1e-15);
    NEAR(d[KLD_DIV_TV].estimate, 0.5, 1e-15);
    /* A drawn token that the candidate excludes: infinite KL, the rest finite. */
    double l0[] = {log(0.9)}, m0[] = {log(0.9)}, dp[] = {log(0.05), log(0.05)};
    double dq[] = {log(0.1), -INFINITY};
    kld_cells c = {.n = 1, .lp = l0, .lq = m0, .rest_p = 0.1, .rest_q = 0.1, .m = 2};
    c.draw_lp = dp;
    c.draw_lq = dq;
    divergences(&c, d);
    assert_true(d[KLD_DIV_KL].bound == 0 && isinf(d[KLD_DIV_KL].estimate));
    assert_true(isnan(d[KLD_DIV_KL].variance));
    NEAR(d[KLD_DIV_REVERSE].estimate, 0.1 * log(2), 1e-15);
    NEAR(d[KLD_DIV_TV].estimate, 0.05, 1e-15);
    /* Mass within rounding of zero must not become infinite. */
    c = (kld_cells){.n = 1, .lp = l0, .lq = m0, .rest_p = 1e-7, .rest_q = -2e-7};
    divergences(&c, d);
    assert_true(d[KLD_DIV_KL].bound == 0);
    c.rest_p = 0;
    c.rest_q = 3e-7;
    divergences(&c, d);
    assert_true(d[KLD_DIV_REVERSE].bound == 0 && d[KLD_DIV_REVERSE].exact);
    /* More than rounding, where p has nothing: bounded by the limits of f. */
    c.rest_q = 0.25;
    divergences(&c, d);
    assert_true(isinf(d[KLD_DIV_REVERSE].bound) && !d[KLD_DIV_REVERSE].exact);
    NEAR(d[KLD_DIV_TV].bound, 0.125, 1e-15);
    NEAR(d[KLD_DIV_JS].bound, 0.125 * log(2), 1e-15);
}

/* Ratios far from 1 take other formulas; both must agree with the definition. */
static void extreme_ratios(void **state) {
    (void)state;
    for (double x = 1e-1; x > 1e-300; x *= 1e-7) {
        double p[] = {1 - x, x}, q[] = {0.5, 0.5}, lp[2], lq[2];
        logs(p, lp, 2);
        logs(q, lq, 2);
        kld_divergence d[KLD_DIV_KINDS], r[KLD_DIV_KINDS];
        divergences(&(kld_cells){.n = 2, .lp = lp, .lq = lq}, d);
        divergences(&(kld_cells){.n = 2, .lp = lq, .lq = lp}, r);
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            NEAR(d[k].estimate, truth(k, p, q, 2), 1e-13 * (1 + truth(k, p, q, 2)));
            NEAR(r[k].estimate, truth(k, q, p, 2), 1e-13 * (1 + truth(k, q, p, 2)));
        }
    }
}

/* ---- random distributions ------------------------------------------------------------ */

enum { V = 400, K = 12, M = 16 };

struct pair {
    double p[V], q[V], lp[V], lq[V];
    double rest;
};

static double uniform(uint64_t seed, uint64_t i) {
    kld_philox_block b = kld_philox(seed, i, 77);
    return kld_philox_unit(b.v[0], b.v[1]);
}

/* Softmax of Gaussian logits, p sorted descending, q a noisy copy. */
static void make_pair(struct pair *x, uint64_t seed, double noise) {
    double zp = 0, zq = 0;
    for (size_t i = 0; i < V; i++) {
        double g =
            sqrt(-2 * log(uniform(seed, 3 * i))) * cos(6.283185307 * uniform(seed, 3 * i + 1));
        double l = -2.5 * log(1 + (double)i);
        x->lp[i] = l;
        x->lq[i] = l + noise * g;
        zp += exp(x->lp[i]);
        zq += exp(x->lq[i]);
    }
    x->rest = 0;
    for (size_t i = 0; i < V; i++) {
        x->lp[i] -= log(zp);
        x->lq[i] -= log(zq);
        x->p[i] = exp(x->lp[i]);
        x->q[i] = exp(x->lq[i]);
        if (i >= K) x->rest += x->p[i];
    }
}

static void draw(const struct pair *x, uint64_t seed, double *dp, double *dq) {
    for (size_t j = 0; j < M; j++) {
        double u = uniform(seed, 1000000 + j) * x->rest, c = 0;
        size_t i = K;
        for (; i + 1 < V && c + x->p[i] < u; i++) c += x->p[i];
        dp[j] = x->lp[i];
        dq[j] = x->lq[i];
    }
}

static void estimates(const struct pair *x, uint64_t seed, kld_divergence *d) {
    double dp[M], dq[M];
    draw(x, seed, dp, dq);
    kld_cells c = {.n = K, .lp = x->lp, .lq = x->lq, .rest_p = x->rest, .m = M};
    c.rest_q = rest_mass(K, x->lp, x->lq, x->rest);
    c.draw_lp = dp;
    c.draw_lq = dq;
    divergences(&c, d);
}

/* The bound holds at each position; the estimate is never below it; its mean over many draws
 * is the truth within 4 standard errors; the stated variance is the observed one. */
static void unbiased(void **state) {
    (void)state;
    enum { DRAWS = 4000 };
    static struct pair x;
    for (uint64_t s = 1; s <= 6; s++) {
        make_pair(&x, s, 0.15 * (double)s);
        double sum[KLD_DIV_KINDS] = {0}, ss[KLD_DIV_KINDS] = {0}, var[KLD_DIV_KINDS] = {0};
        for (uint64_t b = 0; b < DRAWS; b++) {
            kld_divergence d[KLD_DIV_KINDS];
            estimates(&x, 1000 * s + b + 17, d);
            for (int k = 0; k < KLD_DIV_KINDS; k++) {
                assert_true(d[k].bound <= truth(k, x.p, x.q, V) + 1e-14);
                assert_true(d[k].estimate >= d[k].bound);
                sum[k] += d[k].estimate;
                ss[k] += d[k].estimate * d[k].estimate;
                var[k] += d[k].variance;
            }
        }
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            double mean = sum[k] / DRAWS, v = ss[k] / DRAWS - mean * mean;
            NEAR(mean, truth(k, x.p, x.q, V), 4 * sqrt(v / DRAWS) + 1e-15);
            NEAR(var[k] / DRAWS / v, 1, 0.25);
        }
    }
}

/* ---- tokens that only the candidate lists ------------------------------------------------ */

enum { EXTRAS = 30 };

struct extras {
    double lq[EXTRAS], dp[M], dq[M];
    uint32_t token[EXTRAS], draw[M];
};

/* The candidate's largest tokens outside the first K, as a capture holds them. */
static void find_extras(const struct pair *x, struct extras *e) {
    bool used[V] = {false};
    for (size_t n = 0; n < EXTRAS; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = K; i < V; i++)
            if (!used[i] && (best == UINT32_MAX || x->lq[i] > x->lq[best])) best = i;
        used[best] = true;
        e->token[n] = best;
        e->lq[n] = x->lq[best];
    }
}

static uint32_t extra_of(const struct extras *e, uint32_t token) {
    for (uint32_t n = 0; n < EXTRAS; n++)
        if (e->token[n] == token) return n;
    return KLD_NOT_EXTRA;
}

/* Over all possible first draws, in their probabilities, the estimate averages to the truth; the
 * bound holds and is never below that of one lump. */
static void extras_unbiased(void **state) {
    (void)state;
    static struct pair x;
    size_t tighter = 0;
    for (uint64_t s = 0; s < 60; s++) {
        make_pair(&x, 300 + s, 0.05 * (double)(s + 1));
        struct extras e;
        find_extras(&x, &e);
        kld_cells c = {.n = K, .lp = x.lp, .lq = x.lq, .rest_p = x.rest};
        c.rest_q = rest_mass(K, x.lp, x.lq, x.rest);
        kld_divergence lump[KLD_DIV_KINDS], d[KLD_DIV_KINDS];
        divergences(&c, lump);
        c.n_extra = EXTRAS;
        c.extra_lq = e.lq;
        c.cap = x.p[K - 1];
        c.m = 1;
        c.draw_lp = e.dp;
        c.draw_lq = e.dq;
        c.draw_extra = e.draw;
        double mean[KLD_DIV_KINDS] = {0};
        for (uint32_t v = K; v < V; v++) {
            e.dp[0] = x.lp[v];
            e.dq[0] = x.lq[v];
            e.draw[0] = extra_of(&e, v);
            divergences(&c, d);
            for (int k = 0; k < KLD_DIV_KINDS; k++) mean[k] += x.p[v] / x.rest * d[k].estimate;
        }
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            double want = truth(k, x.p, x.q, V);
            NEAR(mean[k], want, 1e-12 * (1 + want));
            assert_true(d[k].bound <= want + 1e-13);
            assert_true(d[k].bound >= lump[k].bound - 1e-14);
            tighter += d[k].bound > lump[k].bound + 1e-6;
        }
    }
    assert_in_range(tighter, 60, 4 * 60);
}

/* A token the candidate overrates 10,000 times is worth little where p has little. */
static void extra_is_tame(void **state) {
    (void)state;
    enum { N = 1000 };
    static double p[N], q[N], lp[N], lq[N];
    for (size_t i = 1; i < N; i++) p[i] = q[i] = 0.2 / (N - 1);
    p[0] = q[0] = 0.8;
    p[N - 1] = 1e-5;
    q[N - 1] = 0.1;
    p[0] += 0.2 / (N - 1) - p[N - 1];
    q[0] += 0.2 / (N - 1) - q[N - 1];
    logs(p, lp, N);
    logs(q, lq, N);
    double dp[] = {lp[1], lp[N - 1]}, dq[] = {lq[1], lq[N - 1]};
    const uint32_t which[] = {KLD_NOT_EXTRA, 0};
    kld_cells c = {.n = 1, .lp = lp, .lq = lq, .rest_p = 1 - p[0], .rest_q = 1 - q[0], .m = 2};
    c.draw_lp = dp;
    c.draw_lq = dq;
    kld_divergence plain[KLD_DIV_KINDS], d[KLD_DIV_KINDS];
    divergences(&c, plain);
    c.n_extra = 1;
    c.extra_lq = &lq[N - 1];
    c.cap = p[1];
    c.draw_extra = which;
    divergences(&c, d);
    assert_true(plain[KLD_DIV_JS].estimate > 100 * kld_divergence_limit(KLD_DIV_JS));
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        double want = truth(k, p, q, N);
        assert_true(d[k].bound <= want + 1e-14 && d[k].bound >= plain[k].bound);
        if (k == KLD_DIV_REVERSE) continue; /* it alone grows without limit as p goes to 0 */
        assert_true(d[k].bound > 0.98 * want);
        assert_true(fabs(d[k].estimate - want) < want);
    }
    assert_true(d[KLD_DIV_REVERSE].bound > 10 * plain[KLD_DIV_REVERSE].bound);
}

/* The mean over positions lies within two sampling errors of the truth about 95 % of times. */
static void coverage(void **state) {
    (void)state;
    enum { RUNS = 300, POSITIONS = 60 };
    static struct pair x[POSITIONS];
    double want = 0;
    for (size_t i = 0; i < POSITIONS; i++) {
        make_pair(&x[i], 500 + i, 0.4);
        want += truth(KLD_DIV_KL, x[i].p, x[i].q, V) / POSITIONS;
    }
    size_t inside = 0;
    for (uint64_t r = 0; r < RUNS; r++) {
        double sum = 0, var = 0;
        for (size_t i = 0; i < POSITIONS; i++) {
            kld_divergence d[KLD_DIV_KINDS];
            estimates(&x[i], 90000 + r * POSITIONS + i, d);
            sum += d[KLD_DIV_KL].estimate;
            var += d[KLD_DIV_KL].variance;
        }
        inside += fabs(sum / POSITIONS - want) <= 1.96 * sqrt(var) / POSITIONS;
    }
    assert_in_range(inside, RUNS * 88 / 100, RUNS);
}

/* TV <= sqrt(KL/2) (Pinsker), JS <= ln 2, JS <= TV ln 2, all non-negative. */
static void inequalities(void **state) {
    (void)state;
    static struct pair x;
    for (uint64_t s = 0; s < 400; s++) {
        make_pair(&x, 7000 + s, 3 * uniform(s, 5));
        kld_divergence d[KLD_DIV_KINDS];
        divergences(&(kld_cells){.n = V, .lp = x.lp, .lq = x.lq}, d);
        double tv = d[KLD_DIV_TV].bound, js = d[KLD_DIV_JS].bound;
        assert_true(tv <= sqrt(d[KLD_DIV_KL].bound / 2) + 1e-12);
        assert_true(tv <= sqrt(d[KLD_DIV_REVERSE].bound / 2) + 1e-12);
        assert_true(js <= tv * log(2) + 1e-12);
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            assert_true(d[k].bound >= 0);
            NEAR(d[k].bound, truth(k, x.p, x.q, V), 1e-12);
        }
    }
}

/* A draw that is not there, or of probability 0, which nothing draws, says nothing. */
static void missing_draws(void **state) {
    (void)state;
    const double lp[] = {log(0.7)}, lq[] = {log(0.6)};
    const double draw_lq[] = {log(0.01), log(0.02), log(0.01)};
    const double whole[] = {log(0.02), log(0.01)}, none[] = {NAN, -INFINITY, log(0.02)};
    kld_divergence want[KLD_DIV_KINDS], got[KLD_DIV_KINDS];
    kld_cells c = {.n = 1, .lp = lp, .lq = lq, .rest_p = 0.3, .rest_q = 0.4};
    c.m = 1;
    c.draw_lp = whole;
    c.draw_lq = draw_lq;
    divergences(&c, want);
    c.m = 3;
    c.draw_lp = none;
    divergences(&c, got);
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        assert_true(isfinite(want[k].estimate));
        assert_true(got[k].estimate == want[k].estimate);
        assert_true(isnan(got[k].variance));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_draws),   cmocka_unit_test(closed_forms),
        cmocka_unit_test(remembered),      cmocka_unit_test(truncated),
        cmocka_unit_test(identity),        cmocka_unit_test(zeros),
        cmocka_unit_test(extreme_ratios),  cmocka_unit_test(unbiased),
        cmocka_unit_test(coverage),        cmocka_unit_test(inequalities),
        cmocka_unit_test(extras_unbiased), cmocka_unit_test(extra_is_tame),
    };
    return cmocka_run_group_tests_name("fdiv", tests, NULL, NULL);
}
