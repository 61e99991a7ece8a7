/* The history of nightly runs: what is kept, what is found again, what is refused untouched. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/nightly/history.h"

#include "tests/unit/t.h"

#include <sqlite3.h>

static const kld_history_place HERE = {"suite1", "ref1", "set1"};

/* One run of candidates "a" (with this outcome and KL) and "b" (without a value). */
static json_t *summary(const char *time, const char *suite, const char *ref, const char *settings,
                       const char *outcome, double kl) {
    json_t *s = json_pack(
        "{s:s, s:s, s:s?, s:s, s:s, s:s, s:s, s:s?, s:i, s:f,"
        " s:[{s:s, s:s, s:s, s:s, s:s, s:{s:s}, s:n, s:f}, {s:s, s:s, s:s, s:n, s:f}],"
        " s:[{s:s, s:s, s:s, s:n, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:{s:f}},"
        "    {s:s, s:s, s:s, s:s, s:n, s:{}}]}",
        "time", time, "directory", "runs/x", "label", NULL, "version", "0", "commit", "c", "host",
        "h", "suite", suite, "reference", ref, "exit_code", 0, "seconds", 1.5, "captures", "name",
        "a", "action", "captured", "file", "a-1.zst", "model_digest", "m", "digest", "d", "key",
        "checkpoint", time, "error", "seconds", 1.0, "name", "b", "action", "failed", "error",
        "it's broken'); DROP TABLE run; --", "key", "seconds", 0.5, "candidates", "name", "a",
        "label", "A", "outcome", outcome, "reason", "settings", settings, "model_digest", "m",
        "digest", "d", "file", kl < 0.5 ? "a-low.zst" : "a-high.zst", "kl_mean", kl, "kl_lo",
        kl - 0.1, "kl_hi", kl + 0.1, "metrics", "mean_kl", kl, "name", "b", "outcome", "error",
        "reason", "b: broken", "settings", settings, "kl_mean", "metrics");
    assert_non_null(s);
    return s;
}

static void record(kld_history *h, json_t *s) {
    kld_err e = {0};
    if (kld_history_record(h, s, &e) != KLD_OK) fail_msg("%s", e.text);
    json_decref(s);
}

static kld_history *opened(const char *path) {
    kld_history *h;
    kld_err e = {0};
    if (kld_history_open(&h, path, true, &e) != KLD_OK) fail_msg("%s", e.text);
    return h;
}

static const char *text(const json_t *o, const char *member) {
    const char *s = json_string_value(json_object_get(o, member));
    assert_non_null(s);
    return s;
}

static void kept_and_found(void **state) {
    char *path = t_path(*state, "history.db");
    kld_history *h = opened(path);
    kld_err e = {0};
    json_t *v;
    assert_int_equal(kld_history_last_good(h, "a", &HERE, &v, &e), KLD_OK);
    assert_null(v);
    assert_int_equal(kld_history_key(h, "a", &v, &e), KLD_OK);
    assert_null(v);
    record(h, summary("2026-11-28T02:00:00Z", "suite1", "ref1", "set1", "passed", 0.4));
    record(h, summary("2026-11-29T02:00:00Z", "suite1", "ref1", "set1", "failed", 0.6));
    kld_history_close(h);
    h = opened(path); /* and it lasts */
    record(h, summary("2026-11-30T02:00:00Z", "suite1", "ref2", "set1", "passed", 0.3));

    /* The failed one is no good run, and the comparable one goes before the newer one. */
    assert_int_equal(kld_history_last_good(h, "a", &HERE, &v, &e), KLD_OK);
    assert_string_equal(text(v, "time"), "2026-11-28T02:00:00Z");
    assert_string_equal(text(v, "file"), "a-low.zst");
    assert_true(json_real_value(json_object_get(v, "kl_mean")) == 0.4);
    assert_true(json_real_value(json_object_get(json_object_get(v, "metrics"), "mean_kl")) == 0.4);
    json_decref(v);
    /* Without a comparable one the newest is told. */
    kld_history_place other = {"suite1", "ref3", "set1"};
    assert_int_equal(kld_history_last_good(h, "a", &other, &v, &e), KLD_OK);
    assert_string_equal(text(v, "reference"), "ref2");
    json_decref(v);
    other.reference = NULL;
    assert_int_equal(kld_history_last_good(h, "b", &other, &v, &e), KLD_OK);
    assert_null(v);

    /* The course: comparable runs with a value, oldest first, failed ones too. */
    assert_int_equal(kld_history_trend(h, "a", &HERE, 10, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(v), 2);
    assert_string_equal(text(json_array_get(v, 0), "gate"), "passed");
    assert_string_equal(text(json_array_get(v, 0), "label"), "A");
    assert_string_equal(text(json_array_get(v, 1), "gate"), "failed");
    const json_t *ci = json_object_get(json_array_get(v, 1), "kl_ci95");
    assert_true(json_real_value(json_array_get(ci, 0)) == 0.6 - 0.1);
    json_decref(v);
    assert_int_equal(kld_history_trend(h, "a", &HERE, 1, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(v), 1);
    assert_string_equal(text(json_array_get(v, 0), "time"), "2026-11-29T02:00:00Z");
    json_decref(v);
    assert_int_equal(kld_history_trend(h, "b", &HERE, 10, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(v), 0);
    json_decref(v);

    assert_int_equal(kld_history_key(h, "a", &v, &e), KLD_OK);
    assert_string_equal(text(v, "checkpoint"), "2026-11-30T02:00:00Z");
    json_decref(v);
    assert_int_equal(kld_history_key(h, "b", &v, &e), KLD_OK);
    assert_null(v); /* it never finished */
    assert_int_equal(kld_history_good_files(h, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(v), 1);
    assert_string_equal(json_string_value(json_array_get(v, 0)), "a-low.zst");
    json_decref(v);
    kld_history_close(h);
    free(path);
}

/* A run is there with all its rows or not at all. */
static void all_or_nothing(void **state) {
    char *path = t_path(*state, "atomic.db");
    kld_history *h = opened(path);
    kld_err e = {0};
    json_t *s = summary("2026-11-28T02:00:00Z", "suite1", "ref1", "set1", "perfect", 0.4), *v;
    assert_int_equal(kld_history_record(h, s, &e), KLD_E_IO); /* no such outcome */
    assert_non_null(strstr(e.text, "atomic.db: CHECK constraint failed"));
    json_decref(s);
    assert_int_equal(kld_history_key(h, "a", &v, &e), KLD_OK);
    assert_null(v); /* its capture's row went with it */
    record(h, summary("2026-11-28T02:00:00Z", "suite1", "ref1", "set1", "passed", 0.4));
    kld_history_close(h);
    free(path);
}

static void nothing_yet(void **state) {
    char *path = t_path(*state, "none.db");
    kld_history *h;
    json_t *v;
    kld_err e = {0};
    assert_int_equal(kld_history_open(&h, path, false, &e), KLD_OK);
    assert_null(h);
    assert_false(kld_path_exists(path));
    assert_int_equal(kld_history_last_good(h, "a", &HERE, &v, &e), KLD_OK);
    assert_null(v);
    assert_int_equal(kld_history_key(h, "a", &v, &e), KLD_OK);
    assert_null(v);
    assert_int_equal(kld_history_trend(h, "a", &HERE, 5, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(v), 0);
    json_decref(v);
    kld_history_close(h);
    free(path);
}

static void sql(const char *path, const char *text_of_sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text_of_sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* Refused with this status and words, and the file is what it was. */
static void refused(const char *path, kld_status want, const char *said) {
    kld_buf before = {0}, after = {0};
    kld_history *h;
    kld_err e = {0};
    assert_int_equal(kld_file_slurp(path, 1 << 24, &before, &e), KLD_OK);
    for (int create = 0; create < 2; create++) {
        assert_int_equal(kld_history_open(&h, path, create, &e), want);
        assert_null(h);
        if (!strstr(e.text, said) || !strstr(e.text, path)) fail_msg("%s", e.text);
    }
    assert_int_equal(kld_file_slurp(path, 1 << 24, &after, &e), KLD_OK);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, before.len);
    kld_buf_free(&before);
    kld_buf_free(&after);
}

static void later_versions(void **state) {
    char *path = t_path(*state, "later.db");
    kld_history_close(opened(path));
    sql(path, "PRAGMA user_version = 2");
    refused(path, KLD_E_UNSUPPORTED, "version 2 of the history was written by a later kld");
    free(path);
}

static void others_databases(void **state) {
    char *path = t_path(*state, "other.db");
    sql(path, "CREATE TABLE run (id)");
    refused(path, KLD_E_INPUT, "is a database of another program");
    sql(path, "PRAGMA application_id = 7; PRAGMA user_version = 1");
    refused(path, KLD_E_INPUT, "is a database of another program");
    free(path);
}

static void damaged(void **state) {
    char *path = t_path(*state, "damaged.db");
    kld_history *h = opened(path);
    kld_err e = {0};
    for (int i = 0; i < 100; i++)
        record(h, summary("2026-11-28T02:00:00Z", "suite1", "ref1", "set1", "passed", 0.4));
    kld_history_close(h);
    kld_buf whole = {0};
    assert_int_equal(kld_file_slurp(path, 1 << 24, &whole, &e), KLD_OK);
    assert_true(whole.len > 5 * 4096);
    /* Cut; a page of the middle zeroed; no database at all. */
    assert_int_equal(kld_file_write(path, whole.data, whole.len - 4096, &e), KLD_OK);
    refused(path, KLD_E_INPUT, "the history is damaged");
    memset(whole.data + 4096 * 2, 0xa5, 4096);
    assert_int_equal(kld_file_write(path, whole.data, whole.len, &e), KLD_OK);
    refused(path, KLD_E_INPUT, "put a backup in its place, or move it away");
    memset(whole.data, 'x', 100);
    assert_int_equal(kld_file_write(path, whole.data, whole.len, &e), KLD_OK);
    refused(path, KLD_E_INPUT, "the history is damaged (file is not a database)");
    kld_buf_free(&whole);
    assert_int_equal(kld_history_open(&h, *state, true, &e), KLD_E_IO); /* a folder */
    assert_null(h);
    free(path);
}

/* 0.25: jansson aborts when there is no memory for a number of more than 16 characters. */
static void out_of_memory(void **state) {
    char *path = t_path(*state, "memory.db");
    kld_history *h = opened(path);
    record(h, summary("2026-11-28T02:00:00Z", "suite1", "ref1", "set1", "passed", 0.25));
    kld_history_close(h);
    kld_status st = KLD_E_NOMEM;
    for (size_t n = 1; st != KLD_OK; n++) {
        json_t *good = NULL, *trend = NULL, *files = NULL, *key = NULL;
        kld_err e = {0};
        kld_mem_fail_after(n);
        st = kld_history_open(&h, path, true, &e);
        if (st == KLD_OK) st = kld_history_last_good(h, "a", &HERE, &good, &e);
        if (st == KLD_OK) st = kld_history_trend(h, "a", &HERE, 5, &trend, &e);
        if (st == KLD_OK) st = kld_history_good_files(h, &files, &e);
        if (st == KLD_OK) st = kld_history_key(h, "a", &key, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        if (st == KLD_OK) assert_true(n > 10);
        json_decref(good);
        json_decref(trend);
        json_decref(files);
        json_decref(key);
        kld_history_close(h);
    }
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_found),   cmocka_unit_test(all_or_nothing),
        cmocka_unit_test(nothing_yet),      cmocka_unit_test(later_versions),
        cmocka_unit_test(others_databases), cmocka_unit_test(damaged),
        cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
