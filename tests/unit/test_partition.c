/* Partitions: choosing one, dividing clusters among them, and what a capture's header says. */
#include "datasets/partition.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <math.h>

enum { MOST = 400 };

typedef struct made {
    kld_suite s;
    kld_window w[MOST];
    char name[MOST][24];
} made;

static uint32_t IDS[64];

/* n windows of `tokens` ids without a partition: window i of cluster i / per, in stratum
 * (i / per) % strata. */
static void make(made *m, size_t n, size_t per, size_t strata, size_t tokens) {
    static const char *const stratum[] = {"code", "prose", "talk"};
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < n; i++) {
        snprintf(m->name[i], sizeof m->name[i], "c%zu", i / per);
        m->w[i] = (kld_window){.ids = IDS, .n = tokens, .source = "", .cluster = m->name[i]};
        m->w[i].stratum = stratum[i / per % strata];
        m->w[i].partition = "";
    }
    m->s.windows = m->w;
    m->s.n_windows = n;
    m->s.bos = "";
}

static kld_split split_of(const char *text) {
    kld_split s;
    kld_err e = {0};
    if (kld_split_parse(&s, text, &e) != KLD_OK) fail_msg("%s", e.text);
    return s;
}

static void splits(made *m, const char *text, uint64_t seed, const kld_suite *keep) {
    kld_split s = split_of(text);
    kld_err e = {0};
    if (kld_suite_split(&m->s, &s, seed, keep, &e) != KLD_OK) fail_msg("%s", e.text);
    if (kld_suite_check_partitions(&m->s, &e) != KLD_OK) fail_msg("%s", e.text);
}

static size_t in(const made *m, const char *partition, const char *stratum) {
    size_t n = 0;
    for (size_t i = 0; i < m->s.n_windows; i++)
        n += !strcmp(m->w[i].partition, partition) &&
             (!stratum || !strcmp(m->w[i].stratum, stratum));
    return n;
}

/* ---- choosing ---- */

static void select_ok(made *m, const char *ask, const char *held, size_t windows, size_t left) {
    kld_err e = {0};
    size_t left_out = 99;
    kld_digest before = m->s.digest;
    if (kld_suite_select(&m->s, ask, &left_out, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_string_equal(m->s.partition, held);
    assert_int_equal(m->s.n_windows, windows);
    assert_int_equal(left_out, left);
    assert_memory_equal(&before, &m->s.digest, sizeof before);
}

static void refuses(made *m, const char *ask, kld_status want, const char *text) {
    kld_err e = {0};
    kld_status st = kld_suite_select(&m->s, ask, NULL, &e);
    if (st != want || !strstr(e.text, text)) fail_msg("%d: '%s' lacks '%s'", st, e.text, text);
}

static void parts(made *m, const char *a, const char *b, const char *c) {
    const char *name[] = {a, b, c};
    make(m, 6, 1, 1, 5);
    for (size_t i = 0; i < 6; i++) m->w[i].partition = name[i % 3];
    m->w[2].n = 3;
    kld_err e = {0};
    assert_int_equal(kld_suite_seal(&m->s, &e), KLD_OK);
}

static void choosing(void **state) {
    (void)state;
    static made m;
    parts(&m, "", "", "");
    select_ok(&m, NULL, "", 6, 0); /* a suite without partitions */
    select_ok(&m, "all", "", 6, 0);
    refuses(&m, "qualification", KLD_E_USAGE, "'qualification'; the suite has none");
    refuses(&m, "", KLD_E_USAGE, "no name");
    parts(&m, "analysis", "analysis", "qualification");
    select_ok(&m, "all", "", 6, 0);
    assert_int_equal(m.s.tokens, 5 * 5 + 3);
    select_ok(&m, NULL, "analysis", 4, 2);
    assert_int_equal(m.s.tokens, 20);
    assert_int_equal(m.s.positions, 16);
    select_ok(&m, NULL, "", 4, 0); /* nothing is left to leave out */
    parts(&m, "analysis", "analysis", "qualification");
    select_ok(&m, "analysis", "analysis", 4, 2);
    parts(&m, "analysis", "analysis", "qualification");
    select_ok(&m, "qualification", "qualification", 2, 4);
    assert_int_equal(m.s.tokens, 8);
    assert_int_equal(m.s.windows[0].n, 3); /* in their order */
    assert_int_equal(m.s.windows[1].n, 5);
    parts(&m, "analysis", "more", "qualification");
    select_ok(&m, NULL, KLD_ALL_BUT_QUALIFICATION, 4, 2);
    parts(&m, "", "", "qualification");
    select_ok(&m, NULL, KLD_ALL_BUT_QUALIFICATION, 4, 2);
    parts(&m, "analysis", "more", "qualification");
    refuses(&m, "nil", KLD_E_USAGE, "'nil'; there are 'analysis', 'more', 'qualification'");
    parts(&m, "qualification", "qualification", "qualification");
    refuses(&m, NULL, KLD_E_INPUT, "read only when it is asked for: --partition qualification");
    select_ok(&m, "qualification", "", 6, 0); /* it is all there is */
    parts(&m, "a", "a", "b");
    m.w[2].n = m.w[5].n = 1;
    refuses(&m, "b", KLD_E_INPUT, "no scored position in the 2 windows of partition 'b'");
}

/* ---- dividing ---- */

static void parsing(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "a",
        "a=",
        "=1",
        "a=0.5",
        "a=0.5,b=0.6",
        "a=0,b=1",
        "a=2,b=-1",
        "a=0.5,a=0.5",
        "a=0.5;b=0.5",
        "a=0.5,b=0.5,",
        "a=nan",
        "all=0.5,b=0.5",
        "a=1 ",
        "all but qualification=1",
        "0123456789012345678901234567890123456789012345678901234567890123=1",
        "a=.1,b=.05,c=.05,d=.05,e=.05,f=.05,g=.05,h=.05,i=.05,j=.05,k=.05,l=.05,m=.05,n=.05,o=.05,"
        "p=.05,q=.15"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kld_split s;
        kld_err e = {0};
        if (kld_split_parse(&s, bad[i], &e) != KLD_E_USAGE) fail_msg("'%s' is accepted", bad[i]);
        assert_true(strlen(e.text) > 10);
    }
    kld_split s = split_of("analysis=0.75,qualification=0.25");
    assert_int_equal(s.n, 2);
    assert_string_equal(s.part[1].name, "qualification");
    assert_true(s.part[0].share == 0.75);
    assert_int_equal(split_of("x=1").n, 1);
}

#define SHARES "analysis=0.75,qualification=0.25"

static void shares(void **state) {
    (void)state;
    static made m, again;
    for (uint64_t seed = 0; seed < 20; seed++) {
        make(&m, 240, 2, 3, 9); /* 40 clusters of two windows in each stratum */
        splits(&m, SHARES, seed, NULL);
        for (size_t k = 0; k < 3; k++) {
            const char *stratum[] = {"code", "prose", "talk"};
            assert_int_equal(in(&m, "analysis", stratum[k]), 60);
            assert_int_equal(in(&m, "qualification", stratum[k]), 20);
        }
        make(&again, 240, 2, 3, 9);
        for (size_t i = 0; i < 240; i++) again.w[239 - i] = m.w[i]; /* another order */
        for (size_t i = 0; i < 240; i++) again.w[i].partition = "";
        splits(&again, SHARES, seed, NULL);
        for (size_t i = 0; i < 240; i++)
            assert_string_equal(again.w[239 - i].partition, m.w[i].partition);
        kld_arena_free(&again.s.arena);
        kld_arena_free(&m.s.arena);
    }
    /* Unequal clusters: off by less than the largest of them. */
    make(&m, 100, 1, 1, 9);
    for (size_t i = 0; i < 100; i++) m.w[i].n = 2 + i % 40;
    uint64_t all = 0, qualification = 0;
    splits(&m, SHARES, 3, NULL);
    for (size_t i = 0; i < 100; i++) {
        all += m.w[i].n - 1;
        if (!strcmp(m.w[i].partition, "qualification")) qualification += m.w[i].n - 1;
    }
    assert_true(fabs((double)qualification - 0.25 * (double)all) <= 41);
    kld_arena_free(&m.s.arena);
    /* As far as clusters allow. */
    static const size_t want[][2] = {{1, 0}, {1, 1}, {2, 1}, {3, 1}, {4, 1}};
    for (size_t n = 1; n <= 5; n++) {
        make(&m, n, 1, 1, 9);
        splits(&m, SHARES, 5, NULL);
        assert_int_equal(in(&m, "analysis", NULL), want[n - 1][0]);
        assert_int_equal(in(&m, "qualification", NULL), want[n - 1][1]);
        kld_arena_free(&m.s.arena);
    }
    make(&m, 90, 1, 1, 9);
    splits(&m, "a=0.5,b=0.3,c=0.2", 7, NULL);
    assert_int_equal(in(&m, "a", NULL), 45);
    assert_int_equal(in(&m, "b", NULL), 27);
    assert_int_equal(in(&m, "c", NULL), 18);
    kld_arena_free(&m.s.arena);
}

/* New clusters move only those at a border, and none when what was is kept; a cluster that grows
 * stays a cluster. */
static void stability(void **state) {
    (void)state;
    static made old, more;
    size_t moved = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        size_t here = 0;
        make(&old, 100, 1, 1, 9);
        make(&more, 105, 1, 1, 9);
        splits(&old, SHARES, seed, NULL);
        splits(&more, SHARES, seed, NULL);
        for (size_t i = 0; i < 100; i++)
            here += strcmp(old.w[i].partition, more.w[i].partition) != 0;
        assert_true(here <= 5); /* at most one for each new one */
        moved += here;
        kld_arena_free(&more.s.arena);
        make(&more, 140, 1, 1, 9);
        splits(&more, SHARES, seed, &old.s);
        for (size_t i = 0; i < 100; i++)
            assert_string_equal(old.w[i].partition, more.w[i].partition);
        assert_int_equal(in(&more, "qualification", NULL), 35); /* and shares are made up */
        kld_arena_free(&more.s.arena);
        kld_arena_free(&old.s.arena);
    }
    assert_true(moved > 0 && moved < 150);
    /* Another seed is another split. */
    make(&old, 100, 1, 1, 9);
    make(&more, 100, 1, 1, 9);
    splits(&old, SHARES, 1, NULL);
    splits(&more, SHARES, 2, NULL);
    size_t differ = 0;
    for (size_t i = 0; i < 100; i++) differ += strcmp(old.w[i].partition, more.w[i].partition) != 0;
    assert_true(differ > 10);
    kld_arena_free(&more.s.arena);
    kld_arena_free(&old.s.arena);
}

static void fixed(void **state) {
    (void)state;
    static made m;
    kld_err e = {0};
    kld_split s = split_of(SHARES);
    make(&m, 40, 2, 2, 9);
    m.w[0].partition = "qualification"; /* the other window of its cluster goes along */
    m.w[2].partition = "elsewhere";
    splits(&m, SHARES, 1, NULL);
    assert_string_equal(m.w[1].partition, "qualification");
    assert_string_equal(m.w[3].partition, "elsewhere");
    assert_int_equal(in(&m, "", NULL), 0);
    assert_int_equal(in(&m, "qualification", NULL), 10); /* 0 counts towards the share */
    kld_arena_free(&m.s.arena);
    /* A cluster in two strata is one; it belongs to the larger part. */
    make(&m, 40, 1, 1, 9);
    for (size_t i = 0; i < 20; i++) m.w[2 * i + 1].cluster = m.w[2 * i].cluster;
    for (size_t i = 0; i < 20; i++) m.w[2 * i + 1].stratum = "other";
    splits(&m, SHARES, 1, NULL);
    assert_int_equal(in(&m, "qualification", "code"), 5);
    assert_int_equal(in(&m, "qualification", "other"), 5);
    kld_arena_free(&m.s.arena);
    /* What was and what the documents say must not differ. */
    static made old;
    make(&old, 4, 1, 1, 9);
    make(&m, 4, 1, 1, 9);
    old.w[1].partition = "analysis";
    m.w[1].partition = "qualification";
    assert_int_equal(kld_suite_split(&m.s, &s, 1, &old.s, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'c1' is in partition 'qualification', and was in 'analysis'"));
    kld_arena_free(&m.s.arena);
    make(&m, 0, 1, 1, 9); /* nothing to divide */
    splits(&m, SHARES, 1, NULL);
    kld_arena_free(&m.s.arena);
    assert_int_equal(kld_partition_check_name("all", &e), KLD_E_INPUT);
    assert_int_equal(kld_partition_check_name("all of it", &e), KLD_OK);
}

static void no_memory(void **state) {
    (void)state;
    static made m;
    kld_split s = split_of(SHARES);
    kld_err e = {0};
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        make(&m, 12, 2, 2, 9);
        kld_mem_fail_after(n);
        st = kld_suite_split(&m.s, &s, 1, NULL, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        kld_arena_free(&m.s.arena);
    }
    assert_true(n > 4);
}

/* ---- the header of a capture ---- */

static kld_status write(const char *path, const char *partition, kld_err *e) {
    kld_capture_info info = make_info(1, 4, 40, 10, 0);
    kld_capture_writer *w;
    if (partition) assert_int_equal(kld_strdup(&info.partition, partition, e), KLD_OK);
    kld_status st = kld_capture_create(&w, path, &info, e);
    if (st == KLD_OK) {
        kld_records r;
        kld_window_meta meta = make_meta(0, 4);
        make_records(&r, 4, 40, 10, 0, 1, 1.2, 0, NULL);
        assert_int_equal(kld_capture_add(w, &meta, &r, NULL, e), KLD_OK);
        kld_records_free(&r);
        st = kld_capture_finish(w, e);
    }
    kld_capture_info_free(&info);
    return st;
}

static void header(void **state) {
    char *path[3] = {t_path(*state, "a"), t_path(*state, "b"), t_path(*state, "c")};
    static const char *const text[] = {"analysis", "", NULL};
    kld_digest digest[3];
    kld_err e = {0};
    for (size_t i = 0; i < 3; i++) {
        kld_capture *c;
        if (write(path[i], text[i], &e) != KLD_OK) fail_msg("%s", e.text);
        if (kld_capture_open(&c, path[i], &e) != KLD_OK) fail_msg("%s", e.text);
        assert_string_equal(kld_capture_header(c)->partition, i ? "" : "analysis");
        digest[i] = kld_capture_digest(c);
        kld_capture_close(c);
    }
    /* It is part of the content, and where there is none there is no key. */
    assert_memory_not_equal(&digest[0], &digest[1], sizeof digest[0]);
    assert_memory_equal(&digest[1], &digest[2], sizeof digest[0]);
    assert_int_equal(write(path[0], "a\033[2Jb", &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'partition' holds a control character"));
    assert_int_equal(write(path[0], "a\xff", &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'partition' is not valid UTF-8"));
    /* A resume is of the same partition. */
    kld_capture_info info = make_info(1, 4, 40, 10, 0);
    kld_capture_writer *w;
    size_t done;
    assert_int_equal(kld_strdup(&info.partition, "analysis", &e), KLD_OK);
    assert_int_equal(kld_capture_create(&w, path[0], &info, &e), KLD_OK);
    kld_capture_leave(w);
    kld_free(info.partition);
    assert_int_equal(kld_strdup(&info.partition, "qualification", &e), KLD_OK);
    assert_int_equal(kld_capture_resume(&w, path[0], &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'partition' is \"analysis\", this run's is \"qualification\""));
    kld_capture_info_free(&info);
    for (size_t i = 0; i < 3; i++) free(path[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choosing),
        cmocka_unit_test(parsing),
        cmocka_unit_test(shares),
        cmocka_unit_test(stability),
        cmocka_unit_test(fixed),
        cmocka_unit_test(no_memory),
        cmocka_unit_test_setup_teardown(header, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
