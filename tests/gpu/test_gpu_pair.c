/* Two chunks of logits against each other: CUDA against the CPU's. */
#include "tests/gpu/gpukit.h"

#include <math.h>
#include <stdlib.h>

static void near(double got, double want, double rel, double tol, const char *what, size_t r) {
    if (got == want || (isnan(got) && isnan(want))) return;
    if (!(fabs(got - want) <= tol + rel * fabs(want)))
        fail_msg("row %zu, %s: %.12g instead of %.12g", r, what, got, want);
}

static void compare(const kld_pair_row *g, const kld_pair_row *c, size_t r) {
    near(g->kl, c->kl, 2e-5, 3e-7, "kl", r);
    near(g->reverse_kl, c->reverse_kl, 2e-5, 3e-7, "reverse kl", r);
    near(g->js, c->js, 2e-5, 5e-7, "js", r);
    near(g->tv, c->tv, 2e-5, 5e-7, "tv", r);
    assert_int_equal(g->top1_p, c->top1_p);
    assert_int_equal(g->top1_q, c->top1_q);
    /* Where the running mass meets top_p to 1e-6, the last ids may differ. */
    double slack = 2 + 2e-5 * (double)c->nucleus_p;
    near(g->nucleus_p, c->nucleus_p, 0, slack, "nucleus of p", r);
    near(g->nucleus_q, c->nucleus_q, 0, slack, "nucleus of q", r);
    near(g->nucleus_both, c->nucleus_both, 0, 2 * slack, "both", r);
    near(g->p_on_q, c->p_on_q, 1e-5, 2e-6, "p on q", r);
    near(g->q_on_p, c->q_on_p, 1e-5, 2e-6, "q on p", r);
    near(g->nucleus_tv, c->nucleus_tv, 1e-5, 3e-6, "nucleus tv", r);
}

enum { KINDS = 7 };
/* kind 0 normal, 1 values of 1/4, 2 flat, 3 one token has nearly all, 4 holes of -inf, 5 a few far
 * above the others, 6 the other twice as wide */
static float logit(int kind, size_t r, size_t c, double x) {
    if (kind == 1) return (float)(floor(4 * x) / 4);
    if (kind == 2) return 1;
    if (kind == 3) return c == r ? 25 : (float)x;
    if (kind == 4 && c % 3 == r % 3) return -INFINITY;
    if (kind == 5) return (float)(c < 40 && x < 25 ? x + 45 : x);
    return (float)(kind == 6 ? 2 * x : x);
}

static void pair_case(size_t rows, size_t vocab, size_t pad, kld_elem elem, int kind, double noise,
                      double top_p, uint64_t *seed) {
    twin t;
    const kld_device_spec spec = {.precision = elem == KLD_ELEM_ACT ? KLD_PRECISION_BF16
                                                                    : KLD_PRECISION_FP32,
                                  .max_rows = 256,
                                  .max_keys = 1,
                                  .kv_cols = 1,
                                  .head_rows = 256,
                                  .vocab = vocab,
                                  .top_k = 1};
    twin_open(&t, &spec);
    both p = both_random(&t, rows, vocab, vocab + pad, elem, 2.5, seed);
    both q = both_random(&t, rows, vocab, vocab + pad, elem, 1, seed);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < vocab; c++) {
            float *a = &p.host[r * p.c.ld + c], *b = &q.host[r * q.c.ld + c];
            *a = logit(kind, r, c, (double)*a);
            *b = noise > 0
                     ? logit(kind, r + (kind == 4 && r % 2), c, (double)*a + noise * (double)*b)
                     : *a;
        }
    both_push(&t, &p);
    both_push(&t, &q);
    kld_pair_row *out = calloc(3 * rows, sizeof *out);
    kld_err err = {0};
    assert_non_null(out);
    need(t.cpu->pair(t.c, p.c, q.c, top_p, out, &err), &err, "cpu");
    need(t.gpu->pair(t.g, p.g, q.g, top_p, out + rows, &err), &err, "cuda");
    need(t.gpu->pair(t.g, p.g, q.g, top_p, out + 2 * rows, &err), &err, "cuda");
    assert_memory_equal(out + rows, out + 2 * rows, rows * sizeof *out);
    for (size_t r = 0; r < rows; r++) {
        compare(&out[rows + r], &out[r], r);
        if (noise == 0) assert_true(out[rows + r].kl == 0 && out[rows + r].js == 0);
    }
    free(out);
    both_free(&t, &p);
    both_free(&t, &q);
    twin_close(&t);
}

static void rows(void **state) {
    (void)state;
    static const double noise[] = {0, 1e-3, 0.15, 3};
    uint64_t seed = 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (int n = 0; n < 4; n++) {
            print_message("kind %d, noise %g\n", kind, noise[n]);
            kld_elem e = KLD_ELEM_F32;
            const size_t wide = gpu_size(151936, 10000);
            pair_case(6, wide, 0, e, kind, noise[n], 0.95, &seed);
            pair_case(3, 4097, 2, e, kind, noise[n], 0.95, &seed);
            /* Not where the masses of equal columns add up to exactly top_p: rounding decides. */
            pair_case(9, 1000, 0, e, kind, noise[n], kind == 2 ? 0.5004 : 0.5, &seed);
            pair_case(2, 2, 1, e, kind == 4 ? 0 : kind, noise[n], 0.9, &seed);
            pair_case(2, 1, 0, e, kind == 4 ? 0 : kind, noise[n], 0.9, &seed);
            e = KLD_ELEM_ACT;
            pair_case(3, wide, 0, e, kind, noise[n], 0.9, &seed);
            pair_case(3, 9001, 2, e, kind, noise[n], 0.95, &seed);
        }
}

static void not_finite(void **state) {
    (void)state;
    uint64_t seed = 2;
    twin t;
    const kld_device_spec spec = {
        .max_rows = 256, .max_keys = 1, .kv_cols = 1, .head_rows = 256, .vocab = 500, .top_k = 1};
    twin_open(&t, &spec);
    both p = both_random(&t, 4, 500, 500, KLD_ELEM_F32, 2, &seed);
    both q = both_random(&t, 4, 500, 500, KLD_ELEM_F32, 2, &seed);
    p.host[7] = NAN;
    q.host[500 + 499] = INFINITY;
    for (size_t i = 0; i < 500; i++) q.host[1000 + i] = -INFINITY;
    both_push(&t, &p);
    both_push(&t, &q);
    kld_pair_row c[4], g[4];
    kld_err err = {0};
    need(t.cpu->pair(t.c, p.c, q.c, 0.95, c, &err), &err, "cpu");
    need(t.gpu->pair(t.g, p.g, q.g, 0.95, g, &err), &err, "cuda");
    for (size_t r = 0; r < 4; r++) {
        assert_true(isnan(c[r].kl) == (r < 3));
        compare(&g[r], &c[r], r);
    }
    both_free(&t, &p);
    both_free(&t, &q);
    twin_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows), cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests_name("gpu pair", tests, NULL, NULL);
}
