/* Top-k overlap and nuclei against hand-worked lists and a brute-force search. */
#include "kld/base/philox.h"
#include "kld/compare/nucleus.h"
#include "tests/unit/t.h"

#include <math.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { MAX = 64 };

struct listed {
    uint32_t ids[MAX];
    double lp[MAX];
    double p[MAX];
    kld_list l;
};

static void set(struct listed *x, size_t n, const uint32_t *ids, const double *p, double tail) {
    for (size_t i = 0; i < n; i++) {
        x->ids[i] = ids[i];
        x->lp[i] = log(p[i]);
        x->p[i] = p[i];
    }
    x->l = (kld_list){.n = n, .ids = x->ids, .lp = x->lp, .p = x->p, .tail = tail};
}

static void sizes(void **state) {
    (void)state;
    struct listed x;
    set(&x, 3, (uint32_t[]){5, 1, 2}, (double[]){0.5, 0.3, 0.15}, 0.05);
    assert_int_equal(kld_nucleus_size(&x.l, 0.4), 1);
    assert_int_equal(kld_nucleus_size(&x.l, 0.5), 1); /* reached, not passed */
    assert_int_equal(kld_nucleus_size(&x.l, 0.51), 2);
    assert_int_equal(kld_nucleus_size(&x.l, 0.8), 2);
    assert_int_equal(kld_nucleus_size(&x.l, 0.95), 3);
    assert_int_equal(kld_nucleus_size(&x.l, 0.96), 0); /* wider than the list */
    x.l.complete = true;
    assert_int_equal(kld_nucleus_size(&x.l, 1), 3);
}

static void worked_example(void **state) {
    (void)state;
    struct listed p, q;
    /* Nuclei at 0.8: {5, 1} and {1, 7, 5}. */
    set(&p, 4, (uint32_t[]){5, 1, 2, 9}, (double[]){0.5, 0.3, 0.1, 0.04}, 0.06);
    set(&q, 4, (uint32_t[]){1, 7, 5, 2}, (double[]){0.4, 0.3, 0.2, 0.05}, 0.05);
    kld_match m;
    assert_int_equal(kld_match_alloc(&m, 4, NULL), KLD_OK);
    kld_match_lists(&m, &p.l, &q.l);
    assert_int_equal(m.to_ref[0], 1);
    assert_int_equal(m.to_ref[1], KLD_NO_MATCH);
    assert_int_equal(m.to_cand[0], 2);
    assert_int_equal(m.to_cand[3], KLD_NO_MATCH);
    NEAR(kld_topk_overlap(&m, &p.l, &q.l, 1), 0, 0);
    NEAR(kld_topk_overlap(&m, &p.l, &q.l, 2), 0.5, 0);
    NEAR(kld_topk_overlap(&m, &p.l, &q.l, 4), 0.75, 0);
    assert_true(isnan(kld_topk_overlap(&m, &p.l, &q.l, 5)));
    double at[] = {0.2, 0.4, 0.05, 0.01};
    kld_nucleus r = kld_nucleus_compare(&m, &p.l, &q.l, at, 0.8);
    assert_true(r.decided);
    NEAR(r.jaccard, 2.0 / 3, 1e-15);
    /* |5: .5/.8 - .2/.9| + |1: .3/.8 - .4/.9| + 7: .3/.9, halved. */
    NEAR(r.tv, 0.5 * ((0.625 - 0.2 / 0.9) + (0.4 / 0.9 - 0.375) + 0.3 / 0.9), 1e-15);
    NEAR(r.on_reference[0], 0.6, 1e-15);
    NEAR(r.on_reference[1], 0.6, 1e-15);
    /* Token 7 is not listed by p: at most its last probability, 0.04. */
    NEAR(r.on_candidate[0], 0.8, 1e-15);
    NEAR(r.on_candidate[1], 0.84, 1e-15);
    /* Without the candidate's values at p's list, they are found in its own. */
    r = kld_nucleus_compare(&m, &p.l, &q.l, NULL, 0.8);
    NEAR(r.on_reference[0], 0.6, 1e-15);
    r = kld_nucleus_compare(&m, &p.l, &q.l, NULL, 0.97);
    assert_false(r.decided);
    assert_true(isnan(r.jaccard) && isnan(r.tv) && isnan(r.on_candidate[1]));
    kld_match_free(&m);
}

static void identical(void **state) {
    (void)state;
    struct listed p;
    set(&p, 4, (uint32_t[]){8, 3, 2, 1}, (double[]){0.41, 0.33, 0.17, 0.05}, 0.04);
    kld_match m;
    assert_int_equal(kld_match_alloc(&m, 4, NULL), KLD_OK);
    kld_match_lists(&m, &p.l, &p.l);
    kld_nucleus r = kld_nucleus_compare(&m, &p.l, &p.l, p.p, 0.9);
    assert_true(r.jaccard == 1 && r.tv == 0);
    assert_true(r.on_reference[0] == r.on_candidate[0]);
    assert_true(kld_topk_overlap(&m, &p.l, &p.l, 4) == 1);
    /* A vocabulary of 4 has 4 most probable tokens, also when 10 are asked for. */
    p.l.complete = true;
    assert_true(kld_topk_overlap(&m, &p.l, &p.l, 10) == 1);
    kld_match_free(&m);
}

/* Many positions through one scratch, ids chosen to collide: matches equal a linear search. */
static void matches_search(void **state) {
    (void)state;
    kld_match m;
    assert_int_equal(kld_match_alloc(&m, MAX, NULL), KLD_OK);
    for (uint64_t s = 0; s < 3000; s++) {
        struct listed x[2];
        for (int side = 0; side < 2; side++) {
            size_t n = 1 + kld_philox(9, s, (uint64_t)side).v[0] % MAX;
            uint32_t step = side ? 2 : 3, base = kld_philox(9, s, 7).v[1] % 50;
            double p[MAX];
            uint32_t ids[MAX];
            for (size_t i = 0; i < n; i++) {
                ids[i] = (base + step * (uint32_t)i) << (s % 20);
                p[i] = 1.0 / MAX;
            }
            set(&x[side], n, ids, p, 0.1);
        }
        kld_match_lists(&m, &x[0].l, &x[1].l);
        for (size_t j = 0; j < x[1].l.n; j++) {
            uint32_t want = KLD_NO_MATCH;
            for (uint32_t i = 0; i < x[0].l.n; i++)
                if (x[0].ids[i] == x[1].ids[j]) want = i;
            assert_int_equal(m.to_ref[j], want);
            if (want != KLD_NO_MATCH) assert_int_equal(m.to_cand[want], j);
        }
    }
    kld_match_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(worked_example),
        cmocka_unit_test(identical),
        cmocka_unit_test(matches_search),
    };
    return cmocka_run_group_tests_name("nucleus", tests, NULL, NULL);
}
