/* Values taken many at once are those taken one by one. */
#include "kld/base/philox.h"
#include "kld/store/columns.h"
#include "tests/unit/t.h"

#include <math.h>

enum { N = 40 };

static uint32_t bits(uint64_t key, uint64_t i) { return kld_philox(key, i, 0).v[0]; }

static int same(const double *a, const double *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* kind 0: steps alone; 1: -inf and wide values, too; 2: predictions that no grid holds, too. */
static void fill(columns *c, uint64_t key, int kind, double *pred) {
    kld_err e;
    double rounded;
    for (size_t i = 0; i < N; i++) {
        double lp = -30 * (bits(key, 2 * i) / 0x1p32);
        pred[i] = -30 * (bits(key, 2 * i + 1) / 0x1p32);
        if (kind >= 1 && i % 7 == 3) lp = i % 2 ? -INFINITY : -0x1p40;
        if (kind >= 2 && i % 5 == 1) pred[i] = i % 2 ? -INFINITY : -0x1p100;
        assert_int_equal(lp_add(c, COL_REF_LP, lp, pred[i], i % 3 == 0, &rounded, &e), KLD_OK);
    }
}

static void runs(void **state) {
    (void)state;
    kld_err e;
    for (uint64_t key = 0; key < 300; key++) {
        columns c = {0};
        double pred[N], one[N], many[N];
        int fine = key % 2 == 0;
        fill(&c, key, (int)(key % 3), pred);
        const double *p = key % 5 ? pred : NULL;
        for (size_t i = 0; i < N; i++)
            assert_int_equal(lp_take(&c, COL_REF_LP, p ? p[i] : 0, fine, &one[i], &e), KLD_OK);
        c.col[COL_REF_LP].at = c.col[COL_WIDE].at = 0;
        assert_int_equal(lp_take_run(&c, COL_REF_LP, N, p, fine, many, &e), KLD_OK);
        assert_true(same(one, many, N));
        assert_int_equal(columns_finish(&c, &e), KLD_OK);
        c.col[COL_REF_LP].at = c.col[COL_WIDE].at = 0;
        for (size_t i = 0; i < N; i++)
            assert_int_equal(lp_take(&c, COL_REF_LP, i ? one[i - 1] : pred[0], fine, &one[i], &e),
                             KLD_OK);
        c.col[COL_REF_LP].at = c.col[COL_WIDE].at = 0;
        assert_int_equal(lp_take_chain(&c, COL_REF_LP, N, pred[0], fine, many, &e), KLD_OK);
        assert_true(same(one, many, N));
        assert_int_equal(columns_finish(&c, &e), KLD_OK);
        columns_free(&c);
    }
}

static void ends(void **state) {
    (void)state;
    kld_err e;
    columns c = {0};
    double pred[N], lp[N + 1];
    const uint32_t *v;
    fill(&c, 1, 0, pred);
    assert_int_equal(column_run(&c, COL_REF_LP, N + 1, &v, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "ends after 40 values"));
    assert_int_equal(column_run(&c, COL_REF_LP, 2, &v, &e), KLD_OK);
    assert_true(v == c.col[COL_REF_LP].v);
    assert_int_equal(column_run(&c, COL_IDS, 0, &v, &e), KLD_OK);
    assert_null(v);
    assert_int_equal(lp_take_run(&c, COL_REF_LP, N, NULL, 0, lp, &e), KLD_E_INPUT);
    c.col[COL_REF_LP].at = 0;
    assert_int_equal(lp_take_chain(&c, COL_REF_LP, N + 1, 0, 0, lp, &e), KLD_E_INPUT);
    columns_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs), cmocka_unit_test(ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
