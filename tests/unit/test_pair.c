/* Two distributions against each other: closed forms, and sums taken another way. */
#include "tests/unit/enginekit.h"

#include <math.h>
#include <stdlib.h>

static const kld_backend *be;
static kld_device *dev;

static int setup(void **state) {
    (void)state;
    const kld_device_spec spec = {.max_rows = 256, .max_keys = 1, .vocab = 8, .top_k = 1};
    be = kld_backend_cpu();
    return be->open(&dev, &spec, 0, NULL) == KLD_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    be->close(dev);
    return 0;
}

static kld_pair_row one(const float *p, const float *q, size_t n, double top_p) {
    kld_pair_row r;
    kld_view a = {(void *)(uintptr_t)p, 1, n, n, KLD_ELEM_F32};
    kld_view b = {(void *)(uintptr_t)q, 1, n, n, KLD_ELEM_F32};
    assert_int_equal(be->pair(dev, a, b, top_p, &r, NULL), KLD_OK);
    return r;
}

static void near(double got, double want, double tol) {
    if (!(fabs(got - want) <= tol)) fail_msg("%.15g instead of %.15g", got, want);
}

static void two_tokens(void **state) {
    (void)state;
    const float p[] = {0, logf(3)}, q[] = {logf(4), 0}; /* 1/4 3/4 and 4/5 1/5 */
    kld_pair_row r = one(p, q, 2, 0.95);
    near(r.kl, 0.25 * log(0.25 / 0.8) + 0.75 * log(0.75 / 0.2), 1e-7);
    near(r.reverse_kl, 0.8 * log(0.8 / 0.25) + 0.2 * log(0.2 / 0.75), 1e-7);
    near(r.tv, 0.55, 1e-7);
    double m0 = 0.525, m1 = 0.475;
    near(r.js,
         0.5 * (0.25 * log(0.25 / m0) + 0.75 * log(0.75 / m1) + 0.8 * log(0.8 / m0) +
                0.2 * log(0.2 / m1)),
         1e-7);
    assert_true(r.top1_p == 1 && r.top1_q == 0 && r.nucleus_p == 2 && r.nucleus_q == 2);
    r = one(p, q, 2, 0.7);
    assert_true(r.nucleus_p == 1 && r.nucleus_q == 1 && r.nucleus_both == 0);
    near(r.p_on_q, 0.25, 1e-7);
    near(r.q_on_p, 0.2, 1e-7);
    near(r.nucleus_tv, 1, 1e-12);
}

static void same_and_disjoint(void **state) {
    (void)state;
    enum { N = 1000 };
    float p[N], a[4] = {0, 1, -INFINITY, -INFINITY}, b[4] = {-INFINITY, -INFINITY, 2, 0};
    uint64_t seed = 4;
    for (int i = 0; i < N; i++) p[i] = (float)(3 * rnd_normal(&seed));
    kld_pair_row r = one(p, p, N, 0.95);
    assert_true(r.kl == 0 && r.reverse_kl == 0 && r.js == 0 && r.tv == 0 && r.nucleus_tv == 0);
    assert_true(r.nucleus_p == r.nucleus_both && r.p_on_q >= 0.95 && r.p_on_q == r.q_on_p);
    r = one(a, b, 4, 1);
    assert_true(isinf(r.kl) && isinf(r.reverse_kl));
    near(r.tv, 1, 1e-12);
    near(r.js, log(2), 1e-12);
    assert_true(r.nucleus_p == 2 && r.nucleus_q == 2 && r.nucleus_both == 0 && r.top1_q == 2);
}

static void ties(void **state) {
    (void)state;
    float p[10], q[10];
    for (int i = 0; i < 10; i++) p[i] = 1, q[i] = i < 5 ? 0.0f : -0.0f;
    kld_pair_row r = one(p, q, 10, 0.55); /* six of ten, the lowest ids */
    assert_true(r.nucleus_p == 6 && r.nucleus_q == 6 && r.nucleus_both == 6);
    assert_true(r.top1_p == 0 && r.top1_q == 0);
    near(r.p_on_q, 0.6, 1e-12);
}

static void not_finite(void **state) {
    (void)state;
    const float good[3] = {0, 1, 2},
                bad[3][3] = {{0, NAN, 1}, {INFINITY, 0, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    for (int i = 0; i < 3; i++) {
        kld_pair_row r = one(good, bad[i], 3, 0.95), s = one(bad[i], good, 3, 0.95);
        assert_true(isnan(r.kl) && isnan(r.js) && isnan(s.tv) && isnan(s.nucleus_tv));
        assert_true(r.nucleus_p == 0 && s.nucleus_both == 0);
    }
}

/* Many rows, padding of NaN, long-double sums over sorted probabilities. */
static void random_rows(void **state) {
    (void)state;
    enum { ROWS = 9, N = 700, LD = 703 };
    static float p[ROWS * LD], q[ROWS * LD];
    static const double noise[] = {1e-4, 0.15, 3};
    kld_pair_row out[ROWS];
    uint64_t seed = 9;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < LD; i++) {
            double x = 2 * rnd_normal(&seed), y = noise[r % 3] * rnd_normal(&seed);
            p[r * LD + i] = i < N ? (float)x : NAN;
            q[r * LD + i] = i < N ? (float)(x + y) : NAN;
        }
    kld_view a = {p, ROWS, N, LD, KLD_ELEM_F32}, b = {q, ROWS, N, LD, KLD_ELEM_F32};
    assert_int_equal(be->pair(dev, a, b, 0.9, out, NULL), KLD_OK);
    for (int r = 0; r < ROWS; r++) {
        long double za = 0, zb = 0, kl = 0, js = 0, tv = 0;
        for (int i = 0; i < N; i++) {
            za += expl((long double)p[r * LD + i]);
            zb += expl((long double)q[r * LD + i]);
        }
        for (int i = 0; i < N; i++) {
            long double x = expl((long double)p[r * LD + i]) / za;
            long double y = expl((long double)q[r * LD + i]) / zb, m = (x + y) / 2;
            kl += x * logl(x / y);
            js += (x * logl(x / m) + y * logl(y / m)) / 2;
            tv += fabsl(x - y) / 2;
        }
        near(out[r].kl, (double)kl, 1e-12);
        near(out[r].js, (double)js, 1e-12);
        near(out[r].tv, (double)tv, 1e-12);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tokens), cmocka_unit_test(same_and_disjoint), cmocka_unit_test(ties),
        cmocka_unit_test(not_finite), cmocka_unit_test(random_rows),
    };
    return cmocka_run_group_tests_name("pair", tests, setup, teardown);
}
