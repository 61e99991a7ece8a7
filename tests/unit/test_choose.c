/* Which windows are taken: limits, quotas, seeds, and that nothing but seed and content counts. */
#include "kld/base/mem.h"
#include "kld/capture/choose.h"

#include "tests/unit/t.h"

enum { MOST = 600 };

static kld_choice_window W[MOST];
static char NAME[MOST][24];

/* `docs` documents of `per` windows; cluster = document / `share`; stratum by cluster. */
static size_t make(size_t docs, size_t per, size_t share) {
    size_t n = 0;
    for (size_t d = 0; d < docs; d++)
        for (size_t k = 0; k < per; k++, n++) {
            snprintf(NAME[n], sizeof NAME[n], "c%zu", d / share);
            W[n] = (kld_choice_window){.document = d,
                                       .tokens = 10 + k,
                                       .cluster = NAME[n],
                                       .stratum = d / share % 2 ? "prose" : "code",
                                       .offset = 10 * k};
            W[n].content.b[0] = (unsigned char)d;
            W[n].content.b[1] = 7;
        }
    return n;
}

static void chooses(size_t n, const kld_choice_rules *r, size_t unnamed) {
    kld_err e = {0};
    size_t left = 99;
    if (kld_choose_windows(W, n, r, &left, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(left, unnamed);
}

static size_t taken(size_t n, const char *cluster, size_t document) {
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += W[i].taken && (!cluster || !strcmp(W[i].cluster, cluster)) &&
               (document == SIZE_MAX || W[i].document == document);
    return sum;
}

static void limits(void **state) {
    (void)state;
    size_t n = make(20, 6, 4);
    chooses(n, &(kld_choice_rules){.seed = 1}, 0);
    assert_int_equal(taken(n, NULL, SIZE_MAX), 120);
    chooses(n, &(kld_choice_rules){.seed = 1, .per_document = 2}, 0);
    for (size_t d = 0; d < 20; d++) assert_int_equal(taken(n, NULL, d), 2);
    chooses(n, &(kld_choice_rules){.seed = 1, .per_cluster = 5}, 0);
    assert_int_equal(taken(n, "c3", SIZE_MAX), 5);
    assert_int_equal(taken(n, NULL, SIZE_MAX), 25);
    for (size_t d = 0; d < 20; d++) assert_true(taken(n, NULL, d) <= 2 && taken(n, NULL, d) >= 1);
    chooses(n, &(kld_choice_rules){.seed = 1, .per_document = 1, .per_cluster = 9}, 0);
    assert_int_equal(taken(n, "c0", SIZE_MAX), 4); /* of four documents */
    chooses(n, &(kld_choice_rules){.seed = 1, .per_document = 3, .per_cluster = 2}, 0);
    assert_int_equal(taken(n, "c0", SIZE_MAX), 2);
    chooses(0, &(kld_choice_rules){.seed = 1, .per_document = 3}, 0);
}

/* Documents, not tokens: with as many windows as clusters, each gives one. */
static void spread(void **state) {
    (void)state;
    static const char *const source[] = {"set"};
    for (uint64_t seed = 0; seed < 30; seed++) {
        size_t n = make(60, 8, 2);
        kld_quota q = {.asked = 30};
        chooses(n, &(kld_choice_rules){.seed = seed, .quota = &q, .n_quotas = 1, .source = source},
                0);
        assert_int_equal(q.windows, 30);
        for (size_t c = 0; c < 30; c++) {
            char name[16];
            snprintf(name, sizeof name, "c%zu", c);
            assert_int_equal(taken(n, name, SIZE_MAX), 1);
        }
    }
}

/* The same windows whatever the order of documents; others with another seed; and what was taken
 * stays when more is asked for. */
static void by_content(void **state) {
    (void)state;
    static const char *const source[] = {"set"};
    static bool first[MOST];
    size_t n = make(40, 5, 1), same = 0;
    kld_quota q = {.asked = 20};
    const kld_choice_rules r = {.seed = 9, .quota = &q, .n_quotas = 1, .source = source};
    chooses(n, &r, 0);
    for (size_t i = 0; i < n; i++) first[i] = W[i].taken;
    for (size_t i = 0; i < n / 2; i++) { /* turned round, and numbered anew */
        kld_choice_window t = W[i];
        W[i] = W[n - 1 - i];
        W[n - 1 - i] = t;
    }
    for (size_t i = 0; i < n; i++) W[i].document = 39 - W[i].document;
    chooses(n, &r, 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(first[n - 1 - i], W[i].taken);
    make(40, 5, 1);
    q.asked = 33;
    chooses(n, &r, 0);
    for (size_t i = 0; i < n; i++) assert_true(W[i].taken || !first[i]);
    q.asked = 20;
    chooses(n, &(kld_choice_rules){.seed = 10, .quota = &q, .n_quotas = 1, .source = source}, 0);
    for (size_t i = 0; i < n; i++) same += W[i].taken && first[i];
    assert_true(same < 15);
}

static void quotas(void **state) {
    (void)state;
    static const char *const source[] = {"wiki", "books", "whole"};
    size_t n = make(30, 4, 1);
    for (size_t i = 0; i < n; i++) W[i].origin = W[i].document / 10;
    for (size_t i = 0; i < 4; i++) W[i].stratum = "rare";
    kld_quota q[] = {{.origin = 0, .stratum = "code", .asked = 3},
                     {.origin = 0, .stratum = "prose", .in_tokens = true, .asked = 95},
                     {.origin = 1, .in_tokens = true, .asked = 40}};
    kld_choice_rules r = {.seed = 1, .quota = q, .n_quotas = 3, .source = source};
    chooses(n, &r, 4); /* the four windows of "rare" */
    assert_int_equal(q[0].windows, 3);
    assert_true(q[1].tokens >= 95 && q[1].tokens < 95 + 13);
    assert_true(q[2].tokens >= 40 && q[2].tokens < 40 + 13);
    size_t whole = 0, windows = 0;
    for (size_t i = 0; i < n; i++) {
        whole += W[i].taken && W[i].origin == 2;
        windows += W[i].taken && W[i].origin != 2;
        assert_false(W[i].taken && !strcmp(W[i].stratum, "rare"));
    }
    assert_int_equal(whole, 40); /* a source without a quota is taken whole */
    assert_int_equal(windows, q[0].windows + q[1].windows + q[2].windows);
    static const struct {
        kld_quota q;
        size_t per_document;
        const char *text;
    } bad[] = {
        {{.origin = 1, .asked = 41},
         0,
         "source 'books': 41 windows are asked for, and there are 40"},
        {{.origin = 1, .asked = 11}, 1, "and there are 10 with at most so many windows a document"},
        {{.origin = 0, .stratum = "code", .asked = 17},
         0,
         "source 'wiki', stratum 'code': 17 windows are asked for, and there are 16"},
        {{.origin = 0, .stratum = "none", .asked = 1}, 0, "stratum 'none': 1 windows are asked"},
        {{.origin = 2, .in_tokens = true, .asked = 461},
         0,
         "461 tokens are asked for, and there are 460"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kld_quota one = bad[i].q;
        kld_err e = {0};
        size_t unnamed;
        r = (kld_choice_rules){.quota = &one, .n_quotas = 1, .source = source};
        r.per_document = bad[i].per_document;
        assert_int_equal(kld_choose_windows(W, n, &r, &unnamed, &e), KLD_E_INPUT);
        if (!strstr(e.text, bad[i].text)) fail_msg("'%s' lacks '%s'", e.text, bad[i].text);
    }
}

static void no_memory(void **state) {
    (void)state;
    size_t n = 1, unnamed;
    kld_err e = {0};
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        make(5, 2, 1);
        kld_mem_fail_after(n);
        st = kld_choose_windows(W, 10, &(kld_choice_rules){.per_document = 1}, &unnamed, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%s", e.text);
    }
    assert_true(n > 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits), cmocka_unit_test(spread),    cmocka_unit_test(by_content),
        cmocka_unit_test(quotas), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
