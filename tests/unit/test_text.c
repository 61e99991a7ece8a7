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
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
