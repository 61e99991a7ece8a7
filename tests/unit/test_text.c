/* Documents from plain text and JSON Lines. */
#include "datasets/text.h"
#include "kld/base/file.h"

#include "tests/unit/t.h"

#include <unistd.h>

static char *put(const char *dir, const char *name, const void *text, size_t n) {
    kld_err e = {0};
    char *path = t_path(dir, name);
    if (kld_file_write(path, text, n, &e) != KLD_OK) fail_msg("%s", e.text);
    return path;
}

static void plain(void **state) {
    kld_documents d = {0};
    kld_err e = {0};
    static const char text[] = "one\r\ntwo\0three\xff\n";
    char *a = put(*state, "a.txt", text, sizeof text - 1), *b = put(*state, "b.txt", "", 0);
    assert_int_equal(kld_text_read(&d, a, &e), KLD_OK);
    assert_int_equal(kld_text_read(&d, b, &e), KLD_OK);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.doc[0].bytes, sizeof text - 1); /* bytes as they are, NUL included */
    assert_memory_equal(d.doc[0].text, text, sizeof text);
    assert_null(d.doc[0].ids);
    assert_string_equal(d.doc[0].source, a);
    assert_string_equal(d.doc[0].cluster, "a.txt");
    assert_string_equal(d.doc[0].stratum, "");
    assert_string_equal(d.doc[0].partition, "");
    assert_int_equal(d.doc[1].bytes, 0); /* an empty file is an empty document */
    assert_string_equal(d.doc[1].text, "");
    assert_int_equal(kld_text_read(&d, "/nonexistent/c.txt", &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "/nonexistent/c.txt"));
    assert_int_equal(kld_text_read(&d, *state, &e), KLD_E_INPUT);
    assert_int_equal(d.n, 2);
    kld_documents_free(&d);
    assert_null(d.doc);
    free(a);
    free(b);
}

/* A sparse file: no gigabyte is written or read. */
static void too_large(void **state) {
    kld_documents d = {0};
    kld_err e = {0};
    char *path = put(*state, "big", "x", 1);
    assert_int_equal(truncate(path, (1 << 30) + 1L), 0);
    assert_int_equal(kld_text_read(&d, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(kld_jsonl_read(&d, path, &e), KLD_E_INPUT);
    assert_int_equal(d.n, 0);
    kld_documents_free(&d);
    unlink(path);
    free(path);
}

static void lines(void **state) {
    kld_documents d = {0};
    kld_err e = {0};
    static const char text[] = "\n"
                               "{\"text\":\"caf\\u00e9\\n\",\"title\":[1,{\"a\":2}]}\r\n"
                               " \t\r\n"
                               "{\"ids\":[3,0,4294967294],\"source\":\"s\",\"cluster\":\"c\","
                               "\"stratum\":\"code\",\"partition\":\"analysis\"}\n"
                               "{\"text\":\"\"}\n"
                               "{\"ids\":[]}"; /* no newline at the end */
    char *path = put(*state, "d.jsonl", text, sizeof text - 1);
    if (kld_jsonl_read(&d, path, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(d.n, 4);
    assert_string_equal(d.doc[0].text, "caf\xc3\xa9\n");
    assert_int_equal(d.doc[0].bytes, 6);
    assert_int_equal(d.doc[0].n_ids, 0);
    assert_string_equal(d.doc[0].source, path);
    assert_string_equal(d.doc[0].cluster, "d.jsonl:2"); /* the number of the line, blanks counted */
    assert_string_equal(d.doc[0].partition, "");
    assert_null(d.doc[1].text);
    assert_int_equal(d.doc[1].n_ids, 3);
    assert_int_equal(d.doc[1].ids[2], 4294967294u);
    assert_string_equal(d.doc[1].source, "s");
    assert_string_equal(d.doc[1].cluster, "c");
    assert_string_equal(d.doc[1].stratum, "code");
    assert_string_equal(d.doc[1].partition, "analysis");
    assert_string_equal(d.doc[2].text, "");
    assert_null(d.doc[3].text);
    assert_int_equal(d.doc[3].n_ids, 0);
    assert_string_equal(d.doc[3].cluster, "d.jsonl:6");
    /* Appends: a second file goes behind the first. */
    assert_int_equal(kld_jsonl_read(&d, path, &e), KLD_OK);
    assert_int_equal(d.n, 8);
    kld_documents_free(&d);
    free(path);
    path = put(*state, "none.jsonl", "", 0);
    assert_int_equal(kld_jsonl_read(&d, path, &e), KLD_OK);
    assert_int_equal(d.n, 0);
    kld_documents_free(&d);
    free(path);
}

/* Two lines of a file are two clusters, however long its name is. */
static void long_name(void **state) {
    kld_documents d = {0};
    kld_err e = {0};
    char name[255];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    char *path = put(*state, "short", "{\"ids\":[1]}\n{\"ids\":[2]}\n", 24);
    char *longer = t_path(*state, name); /* too long for the writer's ".partial" */
    assert_int_equal(rename(path, longer), 0);
    if (kld_jsonl_read(&d, longer, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(d.n, 2);
    assert_string_not_equal(d.doc[0].cluster, d.doc[1].cluster);
    assert_string_equal(d.doc[1].cluster + strlen(d.doc[1].cluster) - 2, ":2");
    kld_documents_free(&d);
    free(longer);
    free(path);
}

static void bad_lines(void **state) {
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"{", "JSON"},
        {"7", "JSON"},
        {"[]", "an object|an array"},
        {"{}", "neither"},
        {"{\"tekst\":\"a\"}", "neither"},
        {"{\"text\":\"a\",\"ids\":[1]}", "both"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "duplicate"},
        {"{\"text\":5}", "'text'|a string|an integer"},
        {"{\"text\":null}", "'text'|null"},
        {"{\"ids\":\"1,2\"}", "'ids'|an array|a string"},
        {"{\"ids\":[1,\"2\"]}", "'ids'|element 1"},
        {"{\"ids\":[-1]}", "'ids'|element 0"},
        {"{\"ids\":[4294967295]}", "'ids'|element 0"},
        {"{\"ids\":[1.0]}", "'ids'|element 0"},
        {"{\"text\":\"a\",\"source\":1}", "'source'|an integer"},
        {"{\"text\":\"a\",\"cluster\":[]}", "'cluster'|an array"},
        {"{\"text\":\"a\",\"stratum\":null}", "'stratum'|null"},
        {"{\"text\":\"a\",\"partition\":{}}", "'partition'|an object"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
         "'messages'|chat template|apply_chat_template|'text'"},
        {"{\"text\":\"a\",\"prefix\":7}", "'prefix'|a string|an integer"},
        {"{\"ids\":[1],\"prefix\":\"a\"}", "'prefix' belongs to 'text'|'score_from'"},
        {"{\"text\":\"a\",\"score_from\":1}", "'score_from'|belongs to 'ids'|'prefix'"},
        {"{\"ids\":[1,2],\"score_from\":3}", "'score_from' is 3 in a document of 2 ids"},
        {"{\"ids\":[1,2],\"score_from\":-1}", "'score_from'|negative"},
        {"{\"ids\":[1,2],\"score_from\":\"1\"}", "'score_from'|a string"},
        {"{\"text\":\"\xc3\"}", "JSON"},
        {"{\"text\":\"\\ud800\"}", "JSON"},
        {"{\"text\":\"a\\u0000\"}", "JSON"},
        {"{\"text\":\"a\"}{\"text\":\"b\"}", "JSON"},
        {"\xef\xbb\xbf{\"text\":\"a\"}", "JSON"},
        {"{\"text\":\"a\",\"x\":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}", "nested 17 deep"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kld_documents d = {0};
        kld_err e = {0};
        char text[256];
        snprintf(text, sizeof text, "{\"text\":\"a\"}\n\n%s\n", bad[i].line);
        char *path = put(*state, "bad.jsonl", text, strlen(text));
        if (kld_jsonl_read(&d, path, &e) != KLD_E_INPUT) fail_msg("%s: %s", bad[i].line, e.text);
        char words[128], *save = NULL;
        snprintf(words, sizeof words, "%s|bad.jsonl: line 3:", bad[i].words);
        for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
            if (!strstr(e.text, w)) fail_msg("'%s' does not say '%s'", e.text, w);
        kld_documents_free(&d);
        free(path);
    }
}

/* What is not scored: text in front, or ids up to a position. */
static void contexts(void **state) {
    kld_documents d = {0};
    kld_err e = {0};
    static const char text[] = "{\"prefix\":\"<q>why?\",\"text\":\"so\",\"messages\":[1]}\n"
                               "{\"ids\":[1,2,3],\"score_from\":3}\n"
                               "{\"ids\":[1],\"score_from\":0}\n"
                               "{\"prefix\":\"\",\"text\":\"\"}\n";
    char *path = put(*state, "c.jsonl", text, strlen(text));
    if (kld_jsonl_read(&d, path, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_string_equal(d.doc[0].text, "<q>why?so"); /* "messages" beside text are another key */
    assert_int_equal(d.doc[0].bytes, 9);
    assert_int_equal(d.doc[0].prefix, 7);
    assert_int_equal(d.doc[1].score_from, 3);
    assert_int_equal(d.doc[2].score_from, 0);
    assert_int_equal(d.doc[3].prefix, 0);
    assert_string_equal(d.doc[3].text, "");
    kld_documents_free(&d);
    free(path);
}

/* What all documents of a source get, unless they say it themselves. */
static void defaults(void **state) {
    kld_documents d = {.source = "set@1", .cluster = "book", .stratum = "prose", .partition = "p"};
    kld_err e = {0};
    static const char text[] =
        "{\"text\":\"a\"}\n"
        "{\"text\":\"a\",\"source\":\"s\",\"cluster\":\"c\",\"stratum\":\"t\","
        "\"partition\":\"q\"}\n";
    char *path = put(*state, "d.jsonl", text, strlen(text));
    d.origin = 5;
    assert_int_equal(kld_jsonl_read(&d, path, &e), KLD_OK);
    assert_int_equal(kld_text_read(&d, path, &e), KLD_OK);
    static const char *const want[3][4] = {
        {"set@1", "book", "prose", "p"}, {"s", "c", "t", "q"}, {"set@1", "book", "prose", "p"}};
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(d.doc[i].source, want[i][0]);
        assert_string_equal(d.doc[i].cluster, want[i][1]);
        assert_string_equal(d.doc[i].stratum, want[i][2]);
        assert_string_equal(d.doc[i].partition, want[i][3]);
        assert_int_equal(d.doc[i].origin, 5);
    }
    kld_documents_free(&d);
    free(path);
}

/* In batches of any size the documents are those of the whole file, lines counted on. */
static void batches(void **state) {
    kld_err e = {0};
    kld_buf b = {0};
    enum { N = 200 };
    for (int i = 0; i < N; i++)
        assert_int_equal(
            kld_buf_addf(&b, &e, "%s{\"text\":\"%d%*s\"}\n", i % 7 ? "" : "\n", i, i % 11 * 30, ""),
            KLD_OK);
    b.len--; /* the last line has no end */
    char *path = put(*state, "b.jsonl", b.data, b.len);
    kld_documents whole = {0};
    assert_int_equal(kld_jsonl_read(&whole, path, &e), KLD_OK);
    assert_int_equal(whole.n, N);
    for (size_t bytes = 1; bytes < 20000; bytes = bytes * 3 + 1) {
        kld_jsonl r;
        size_t at = 0, calls = 0;
        assert_int_equal(kld_jsonl_open(&r, path, &e), KLD_OK);
        for (bool more = true; more; calls++) {
            kld_documents d = {0};
            if (kld_jsonl_next(&r, bytes, &d, &e) != KLD_OK) fail_msg("%s", e.text);
            for (size_t i = 0; i < d.n; i++, at++) {
                assert_string_equal(d.doc[i].text, whole.doc[at].text);
                assert_string_equal(d.doc[i].cluster, whole.doc[at].cluster);
            }
            more = d.n > 0;
            kld_documents_free(&d);
        }
        assert_int_equal(at, N);
        assert_true(r.at == b.len);
        assert_true(bytes > 400 || calls > 30);
        kld_jsonl_close(&r);
    }
    kld_documents_free(&whole);
    kld_buf_free(&b);
    free(path);
    kld_jsonl r;
    kld_documents d = {0};
    path = put(*state, "bad.jsonl", "\n\n{}\n", 5);
    assert_int_equal(kld_jsonl_open(&r, path, &e), KLD_OK);
    assert_int_equal(kld_jsonl_next(&r, 1, &d, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "bad.jsonl: line 3:"));
    kld_jsonl_close(&r);
    kld_documents_free(&d);
    assert_int_equal(kld_jsonl_open(&r, "/nonexistent/x", &e), KLD_E_INPUT);
    free(path);
}

static void no_memory(void **state) {
    kld_err e = {0};
    kld_buf b = {0};
    for (int i = 0; i < 20; i++) /* more than one growth of the array */
        assert_int_equal(kld_buf_adds(&b, "{\"text\":\"a\"}\n{\"ids\":[1,2,3]}\n", &e), KLD_OK);
    char *path = put(*state, "m.jsonl", b.data, b.len);
    kld_buf_free(&b);
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_documents d = {0};
        kld_mem_fail_after(n);
        st = kld_jsonl_read(&d, path, &e);
        if (st == KLD_OK) st = kld_text_read(&d, path, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        kld_documents_free(&d);
    }
    assert_true(n > 20);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),     cmocka_unit_test(too_large), cmocka_unit_test(lines),
        cmocka_unit_test(long_name), cmocka_unit_test(bad_lines), cmocka_unit_test(no_memory),
        cmocka_unit_test(contexts),  cmocka_unit_test(defaults),  cmocka_unit_test(batches),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
