/* Suite files: round trip, every defect named with its line, digests, partitions. */
#include "datasets/suite.h"
#include "kld/base/file.h"

#include "tests/unit/t.h"

#include <signal.h>
#include <sys/resource.h>

static kld_status load_text(const char *dir, const char *text, kld_suite *s, kld_err *e) {
    char *path = t_path(dir, "s.jsonl");
    memset(e, 0, sizeof *e);
    assert_int_equal(kld_file_write(path, text, strlen(text), e), KLD_OK);
    kld_status st = kld_suite_load(s, path, e);
    free(path);
    return st;
}

static void accepts(const char *dir, const char *text, kld_suite *s) {
    kld_err e;
    if (load_text(dir, text, s, &e) != KLD_OK) fail_msg("%s\n%s", e.text, text);
}

/* Refused with all of the words, which are separated by '|'; nothing stays allocated. */
static void refuses_as(const char *dir, kld_status want, const char *text, const char *words) {
    kld_suite s;
    kld_err e;
    kld_status st = load_text(dir, text, &s, &e);
    if (st == KLD_OK) fail_msg("accepted: %s", text);
    if (st != want) fail_msg("status %d: %s", (int)st, e.text);
    char copy[512], *save = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (!strstr(e.text, w)) fail_msg("'%s' does not say '%s'", e.text, w);
    if (!strstr(e.text, "s.jsonl")) fail_msg("'%s' does not name the file", e.text);
    assert_null(s.windows);
    assert_null(s.arena.head);
    assert_int_equal(s.n_windows, 0);
}

static void refuses(const char *dir, const char *text, const char *words) {
    refuses_as(dir, KLD_E_INPUT, text, words);
}

/* Three windows, two clusters, strings that need escaping. */
static void make(kld_suite *s) {
    static uint32_t a[] = {1, 2, 3, 4, 5}, b[] = {6, 7}, c[] = {99};
    static kld_window w[3];
    w[0] = (kld_window){.ids = a, .n = 5, .score_from = 2, .offset = 40};
    w[0].source = "set \"x\"\\\n\xc5\xbc", w[0].cluster = "doc\t1", w[0].stratum = "prose";
    w[0].partition = "analysis";
    w[1] = (kld_window){.ids = b, .n = 2, .source = "", .cluster = "doc 2"};
    w[1].stratum = "", w[1].partition = "qualification", w[1].offset = UINT64_C(1) << 40;
    w[2] = (kld_window){.ids = c, .n = 1, .source = "x", .cluster = "doc\t1"};
    w[2].stratum = "", w[2].partition = "analysis";
    memset(s, 0, sizeof *s);
    s->windows = w;
    s->n_windows = 3;
    s->vocab = 100;
    s->window = 5;
    s->stride = 3;
    s->bos = "first";
    memset(s->tokenizer.b, 0xab, sizeof s->tokenizer.b);
}

static char *saved(const char *dir, kld_suite *s) {
    kld_err e = {0};
    char *path = t_path(dir, "out.jsonl");
    if (kld_suite_save(s, path, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_buf b = {0};
    assert_int_equal(kld_file_slurp(path, 1 << 20, &b, &e), KLD_OK);
    char *text = strdup((char *)b.data);
    kld_buf_free(&b);
    free(path);
    return text;
}

static void round_trip(void **state) {
    kld_suite s, r;
    make(&s);
    char *text = saved(*state, &s);
    accepts(*state, text, &r);
    assert_int_equal(s.tokens, 8);
    assert_int_equal(s.positions, 3); /* 5-1-2, 2-1, none */
    assert_int_equal(r.n_windows, 3);
    assert_int_equal(r.tokens, 8);
    assert_int_equal(r.positions, 3);
    assert_int_equal(r.vocab, 100);
    assert_int_equal(r.window, 5);
    assert_int_equal(r.stride, 3);
    assert_string_equal(r.bos, "first");
    assert_memory_equal(&r.digest, &s.digest, sizeof s.digest);
    assert_memory_equal(&r.tokenizer, &s.tokenizer, sizeof s.digest);
    for (size_t i = 0; i < 3; i++) {
        const kld_window *x = &s.windows[i], *y = &r.windows[i];
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->ids, y->ids, x->n * sizeof *x->ids);
        assert_int_equal(x->score_from, y->score_from);
        assert_true(x->offset == y->offset);
        assert_string_equal(x->source, y->source);
        assert_string_equal(x->cluster, y->cluster);
        assert_string_equal(x->stratum, y->stratum);
        assert_string_equal(x->partition, y->partition);
        assert_memory_equal(&x->tokens, &y->tokens, sizeof x->tokens);
    }
    char *again = saved(*state, &r); /* and the bytes are the same the second time */
    assert_string_equal(text, again);
    free(again);
    free(text);
    kld_suite_free(&r);
    assert_null(r.windows);
}

/* The digest is SHA-256 of ids as little-endian u32, and covers what the header says. */
static void digests(void **state) {
    (void)state;
    kld_err e = {0};
    kld_suite s;
    kld_digest d, first;
    static const unsigned char bytes[] = {6, 0, 0, 0, 7, 0, 0, 0};
    make(&s);
    assert_int_equal(kld_suite_seal(&s, &e), KLD_OK);
    assert_int_equal(kld_sha256_of(bytes, sizeof bytes, &d, &e), KLD_OK);
    assert_memory_equal(&d, &s.windows[1].tokens, sizeof d);
    first = s.digest;
    enum { CHANGES = 9 };
    kld_digest seen[CHANGES];
    for (int i = 0; i < CHANGES; i++) {
        make(&s);
        uint32_t ids[] = {6, 8};
        if (i == 0) s.tokenizer.b[31] ^= 1;
        if (i == 1) s.vocab++;
        if (i == 2) s.bos = "none";
        if (i == 3) s.windows[1].ids = ids;
        if (i == 4) s.windows[0].score_from = 1;
        if (i == 5) s.windows[1].cluster = "doc 3";
        if (i == 6) s.windows[1].stratum = "code";
        if (i == 7) s.windows[1].partition = "";
        if (i == 8) s.n_windows = 2;
        assert_int_equal(kld_suite_seal(&s, &e), KLD_OK);
        assert_memory_not_equal(&first, &s.digest, sizeof first);
        seen[i] = s.digest;
        for (int k = 0; k < i; k++) assert_memory_not_equal(&seen[k], &seen[i], sizeof first);
    }
    make(&s); /* where the text came from is no part of it */
    s.windows[0].source = "elsewhere";
    s.windows[0].offset = 7;
    assert_int_equal(kld_suite_seal(&s, &e), KLD_OK);
    assert_memory_equal(&first, &s.digest, sizeof first);
}

#define OK_LINE "{\"ids\":[1,2,3]}\n"

static void bad_lines(void **state) {
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"{", "line 3|JSON"},
        {"[1,2]", "line 3|an object|an array"},
        {"{\"text\":\"a\"}", "line 3|'ids'"},
        {"{\"ids\":{}}", "line 3|'ids'|an array|an object"},
        {"{\"ids\":[]}", "line 3|'ids'|no token"},
        {"{\"ids\":[1,-1]}", "line 3|element 1|out of range"},
        {"{\"ids\":[1,4294967295]}", "line 3|element 1|out of range"},
        {"{\"ids\":[1,99999999999999999999]}", "line 3|JSON"},
        {"{\"ids\":[1,2.0]}", "line 3|element 1|a real number"},
        {"{\"ids\":[null]}", "line 3|element 0|null"},
        {"{\"ids\":[1,2],\"ids\":[3]}", "line 3|duplicate"},
        {"{\"ids\":[1,2],\"score_from\":3}", "line 3|'score_from' is 3|2 tokens"},
        {"{\"ids\":[1,2],\"score_from\":-1}", "line 3|'score_from'"},
        {"{\"ids\":[1,2],\"score_from\":\"1\"}", "line 3|'score_from'|a string"},
        {"{\"ids\":[1,2],\"offset\":1.5}", "line 3|'offset'|a real number"},
        {"{\"ids\":[1,2],\"source\":7}", "line 3|'source'|an integer"},
        {"{\"ids\":[1,2],\"cluster\":null}", "line 3|'cluster'|null"},
        {"{\"ids\":[1,2],\"stratum\":[]}", "line 3|'stratum'|an array"},
        {"{\"ids\":[1,2],\"partition\":true}", "line 3|'partition'|a boolean"},
        {"{\"ids\":[1,2],\"tokens_sha256\":\"00\"}", "line 3|'tokens_sha256'"},
        {"{\"ids\":[1,2],\"tokens_sha256\":5}", "line 3|'tokens_sha256'|an integer"},
        {"{\"ids\":[1,2],\"source\":\"\xff\"}", "line 3|JSON"},
        {"{\"ids\":[1,2],\"source\":\"a\\u0000b\"}", "line 3|JSON"},
        {"{\"ids\":[1,2]} x", "line 3|JSON"},
        {"{\"ids\":[1,2],\"x\":[[[[]]]]}", "line 3|nested 5 deep"},
        {"{\"kld_suite\":1,\"windows\":0}", "line 3|header"}, /* only the first line is one */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text, OK_LINE "\n%s\n" OK_LINE, bad[i].line);
        refuses(*state, text, bad[i].words);
    }
}

static char *replace(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) fail_msg("no '%s' in %s", from, text);
    size_t n = strlen(text) + strlen(to) + 1;
    char *out = malloc(n);
    assert_non_null(out);
    snprintf(out, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void headers(void **state) {
    static const struct {
        const char *from, *to, *words;
    } bad[] = {
        {"\"windows\":3", "\"windows\":4", "promises 4 windows, 3 are there"},
        {"\"windows\":3", "\"windows\":\"3\"", "line 1|'windows'|a string"},
        {"\"windows\":3,", "", "line 1|'windows'"},
        {"\"vocab\":100", "\"vocab\":99", "line 4|99 at 0|99 ids"}, /* c[0] is 99 */
        {"\"vocab\":100", "\"vocab\":101", "digest in the header"},
        {"\"vocab\":100", "\"vocab\":-1", "line 1|'vocab'"},
        {"\"window\":5", "\"window\":null", "line 1|'window'"},
        {"\"stride\":3", "\"stride\":[3]", "line 1|'stride'"},
        {"\"bos\":\"first\"", "\"bos\":\"every\"", "digest in the header"},
        {"\"bos\":\"first\"", "\"bos\":\"sometimes\"", "line 1|'bos'|sometimes"},
        {"\"bos\":\"first\"", "\"bos\":1", "line 1|'bos'|an integer"},
        {"abab", "abac", "digest in the header"},
        {"abab", "abax", "line 1|'tokenizer'"},
        {"\"digest\":\"", "\"digest\":\"0", "line 1|'digest'"},
        {"\"digest\":", "\"other\":", "line 1|'digest'"},
        {"[1,2,3,4,5]", "[1,2,3,4,6]", "line 2|'tokens_sha256' does not match"},
        {"\"score_from\":2", "\"score_from\":1", "digest in the header"},
        {"\"stratum\":\"prose\"", "\"stratum\":\"code\"", "digest in the header"},
        {"\"doc 2\"", "\"doc 4\"", "digest in the header"},
        {"\"qualification\"", "\"analysis\"", "digest in the header"},
    };
    kld_suite s;
    make(&s);
    char *good = saved(*state, &s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = replace(good, bad[i].from, bad[i].to);
        refuses(*state, text, bad[i].words);
        free(text);
    }
    char *text = replace(good, "\"kld_suite\":1", "\"kld_suite\":2");
    refuses_as(*state, KLD_E_UNSUPPORTED, text, "line 1|suite version 2");
    free(text);
    /* A header may say more, and begin after blank lines; a suite cut short is noticed. */
    text = replace(good, "{\"kld_suite\":1", "\n \t\r\n{\"kld_suite\":1,\"more\":{\"a\":[1]}");
    accepts(*state, text, &s);
    kld_suite_free(&s);
    free(text);
    *strrchr(good, '{') = '\0';
    refuses(*state, good, "promises 3 windows, 2 are there");
    free(good);
}

static void empty_suites(void **state) {
    refuses(*state, "", "no scored position");
    refuses(*state, "\n\n", "no scored position");
    refuses(*state, "{\"ids\":[1]}\n", "no scored position|1 windows with 1 tokens");
    refuses(*state, "{\"ids\":[1,2],\"score_from\":1}\n", "no scored position");
    refuses(*state, "{\"ids\":[1,2],\"score_from\":2}\n", "no scored position");
    kld_suite s;
    kld_err e = {0};
    assert_int_equal(kld_suite_load(&s, "/nonexistent/s.jsonl", &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "/nonexistent/s.jsonl"));
    make(&s); /* nor is one written that no reader would take */
    s.n_windows = 0;
    char *path = t_path(*state, "none.jsonl");
    assert_int_equal(kld_suite_save(&s, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "no scored position"));
    assert_false(kld_path_exists(path));
    free(path);
}

/* Refused here, or a capture would find it when every layer is computed. */
static void long_texts(void **state) {
    static const char *const key[] = {"source", "cluster", "stratum", "partition"};
    static char text[KLD_SUITE_MAX_TEXT + 80], x[KLD_SUITE_MAX_TEXT + 2];
    for (size_t k = 0; k < 4; k++) {
        kld_suite s;
        memset(x, 'x', sizeof x);
        x[KLD_SUITE_MAX_TEXT + 1] = '\0';
        snprintf(text, sizeof text, "{\"ids\":[1,2],\"%s\":\"%s\"}\n", key[k], x);
        refuses(*state, text, "4097 bytes long, at most 4096");
        x[KLD_SUITE_MAX_TEXT] = '\0';
        snprintf(text, sizeof text, "{\"ids\":[1,2],\"%s\":\"%s\"}\n", key[k], x);
        accepts(*state, text, &s);
        kld_suite_free(&s);
    }
}

static void foreign(void **state) {
    kld_suite s;
    static const kld_digest zero;
    accepts(*state,
            "\r\n"
            "{\"ids\":[5,6,7],\"prompt\":\"x\",\"meta\":{\"k\":[1,2]}}\r\n"
            "   \n"
            "{\"score_from\":1,\"ids\":[4294967294,0,1],\"cluster\":\"c\"}",
            &s);
    assert_int_equal(s.n_windows, 2);
    assert_int_equal(s.positions, 3);
    assert_int_equal(s.vocab, 0);
    assert_string_equal(s.bos, "");
    assert_memory_equal(&s.tokenizer, &zero, sizeof zero);
    /* Without a cluster each window is one of its own. */
    assert_string_equal(s.windows[0].cluster, "window 0");
    assert_string_equal(s.windows[1].cluster, "c");
    assert_string_equal(s.windows[0].source, "");
    assert_int_equal(s.windows[1].ids[0], 4294967294u);
    char *text = saved(*state, &s); /* and it can be saved with a header */
    kld_suite r;
    accepts(*state, text, &r);
    assert_memory_equal(&r.digest, &s.digest, sizeof r.digest);
    free(text);
    kld_suite_free(&r);
    kld_suite_free(&s);
}

static void partitions(void **state) {
    refuses(*state,
            "{\"ids\":[1,2],\"cluster\":\"a\",\"partition\":\"analysis\"}\n"
            "{\"ids\":[1,2],\"cluster\":\"b\",\"partition\":\"analysis\"}\n"
            "{\"ids\":[3,4],\"cluster\":\"a\",\"partition\":\"qualification\"}\n",
            "cluster 'a'|'analysis'|'qualification'");
    refuses(*state,
            "{\"ids\":[1,2],\"cluster\":\"a\",\"partition\":\"analysis\"}\n"
            "{\"ids\":[3,4],\"cluster\":\"a\"}\n",
            "cluster 'a'");
    kld_suite s;
    accepts(*state,
            "{\"ids\":[1,2],\"cluster\":\"a\",\"partition\":\"p\"}\n"
            "{\"ids\":[3,4],\"cluster\":\"b\",\"partition\":\"q\"}\n"
            "{\"ids\":[3,4],\"cluster\":\"a\",\"partition\":\"p\"}\n",
            &s);
    kld_suite_free(&s);
    kld_err e = {0};
    make(&s); /* writing refuses what reading refuses */
    s.windows[2].partition = "";
    char *path = t_path(*state, "two.jsonl");
    assert_int_equal(kld_suite_save(&s, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "cluster 'doc?1'"));
    assert_false(kld_path_exists(path));
    make(&s);
    s.windows[0].source = "\xff";
    assert_int_equal(kld_suite_save(&s, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'source'"));
    assert_false(kld_path_exists(path));
    free(path);
}

/* Every allocation of loading and saving fails once: an error, no leak, no file. */
static void no_memory(void **state) {
    kld_suite s, r;
    kld_err e = {0};
    make(&s);
    char *text = saved(*state, &s), *path = t_path(*state, "s.jsonl");
    char *out = t_path(*state, "m.jsonl");
    accepts(*state, text, &r);
    kld_suite_free(&r);
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_mem_fail_after(n);
        st = kld_suite_load(&r, path, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) kld_suite_free(&r);
        else if (st != KLD_E_NOMEM) fail_msg("load %zu: %s", n, e.text);
        else assert_null(r.arena.head);
    }
    assert_true(n > 10);
    n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_mem_fail_after(n);
        st = kld_suite_save(&s, out, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("save %zu: %s", n, e.text);
        assert_int_equal(kld_path_exists(out), st == KLD_OK);
    }
    assert_true(n > 5);
    free(text);
    free(path);
    free(out);
}

static void disk_full(void **state) {
    kld_suite s;
    kld_err e = {0};
    char *path = t_path(*state, "full.jsonl"), *part = t_path(*state, "full.jsonl.partial");
    struct rlimit old, cut = {256, 256};
    make(&s);
    getrlimit(RLIMIT_FSIZE, &old);
    cut.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &cut);
    kld_status st = kld_suite_save(&s, path, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, KLD_E_IO);
    assert_false(kld_path_exists(path));
    assert_false(kld_path_exists(part));
    free(path);
    free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(digests),      cmocka_unit_test(bad_lines),
        cmocka_unit_test(headers),    cmocka_unit_test(foreign),      cmocka_unit_test(partitions),
        cmocka_unit_test(long_texts), cmocka_unit_test(empty_suites), cmocka_unit_test(no_memory),
        cmocka_unit_test(disk_full),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
