#include "kld/nightly/history.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/compare/emit.h"

#include <math.h>
#include <sqlite3.h>
#include <string.h>

enum { APPLICATION = 0x6b6c646e /* "kldn" */, BUSY_MS = 10000 };

struct kld_history {
    sqlite3 *db;
    char *path; /* owned */
};

static const char SCHEMA[] =
    "CREATE TABLE run ("
    " id INTEGER PRIMARY KEY, time TEXT NOT NULL, directory TEXT NOT NULL, label TEXT,"
    " version TEXT NOT NULL, \"commit\" TEXT NOT NULL, host TEXT NOT NULL, suite TEXT NOT NULL,"
    " reference TEXT, exit_code INTEGER NOT NULL, seconds REAL NOT NULL) STRICT;"
    "CREATE TABLE capture ("
    " run INTEGER NOT NULL REFERENCES run(id), name TEXT NOT NULL, action TEXT NOT NULL, file TEXT,"
    " model_digest TEXT, digest TEXT, \"key\" TEXT, error TEXT, seconds REAL,"
    " PRIMARY KEY (run, name)) STRICT;"
    "CREATE TABLE candidate ("
    " run INTEGER NOT NULL REFERENCES run(id), name TEXT NOT NULL, label TEXT,"
    " outcome TEXT NOT NULL CHECK (outcome IN ('passed', 'failed', 'error')), reason TEXT,"
    " settings TEXT NOT NULL, model_digest TEXT, digest TEXT, file TEXT, kl_mean REAL, kl_lo REAL,"
    " kl_hi REAL, metrics TEXT NOT NULL, PRIMARY KEY (run, name)) STRICT;"
    "CREATE INDEX candidate_name ON candidate (name, run);"
    "CREATE INDEX capture_name ON capture (name, run);"
    "PRAGMA application_id = 1802265710;"
    "PRAGMA user_version = 1;";
_Static_assert(APPLICATION == 1802265710 && KLD_HISTORY_VERSION == 1, "as written in SCHEMA");

/* ---- SQLite's errors and values -------------------------------------------------------- */

static kld_status damaged(const kld_history *h, const char *why, kld_err *err) {
    return kld_fail(
        err, KLD_E_INPUT,
        "%s: the history is damaged (%.200s); it was left as it is: put a backup in its "
        "place, or move it away to begin a new one",
        h->path, why);
}

static kld_status sql_fail(const kld_history *h, int rc, kld_err *err) {
    const char *why = h->db ? sqlite3_errmsg(h->db) : sqlite3_errstr(rc);
    switch (rc & 0xff) {
    case SQLITE_NOMEM: return kld_fail(err, KLD_E_NOMEM, "%s: out of memory", h->path);
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return damaged(h, why, err);
    default: return kld_fail(err, KLD_E_IO, "%s: %s", h->path, why);
    }
}

static kld_status exec(kld_history *h, const char *sql, kld_err *err) {
    int rc = sqlite3_exec(h->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? KLD_OK : sql_fail(h, rc, err);
}

static kld_status prepare(kld_history *h, const char *sql, sqlite3_stmt **out, kld_err *err) {
    int rc = sqlite3_prepare_v2(h->db, sql, -1, out, NULL);
    return rc == SQLITE_OK ? KLD_OK : sql_fail(h, rc, err);
}

/* *row is false after the last. */
static kld_status step(kld_history *h, sqlite3_stmt *s, bool *row, kld_err *err) {
    int rc = sqlite3_step(s);
    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? KLD_OK : sql_fail(h, rc, err);
}

static kld_status bind_text(kld_history *h, sqlite3_stmt *s, int at, const char *text,
                            kld_err *err) {
    int rc = text ? sqlite3_bind_text(s, at, text, -1, SQLITE_TRANSIENT) : sqlite3_bind_null(s, at);
    return rc == SQLITE_OK ? KLD_OK : sql_fail(h, rc, err);
}

/* One number of the first row. */
static kld_status ask(kld_history *h, const char *sql, int64_t *out, kld_err *err) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    kld_status st = prepare(h, sql, &s, err);
    if (st == KLD_OK) st = step(h, s, &row, err);
    *out = row ? sqlite3_column_int64(s, 0) : 0;
    (void)sqlite3_finalize(s);
    return st;
}

static const char *column(sqlite3_stmt *s, int i) {
    return (const char *)sqlite3_column_text(s, i);
}
static double column_real(sqlite3_stmt *s, int i) {
    return sqlite3_column_type(s, i) == SQLITE_NULL ? NAN : sqlite3_column_double(s, i);
}

/* ---- opening ------------------------------------------------------------------------------ */

static kld_status check_pages(kld_history *h, kld_err *err) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    kld_status st = prepare(h, "PRAGMA quick_check(1)", &s, err);
    if (st == KLD_OK) st = step(h, s, &row, err);
    const char *text = row ? column(s, 0) : NULL;
    if (st == KLD_OK && (!text || strcmp(text, "ok") != 0))
        st = damaged(h, text ? text : "no answer", err);
    (void)sqlite3_finalize(s);
    return st;
}

static kld_status check_version(kld_history *h, bool create, kld_err *err) {
    int64_t version, application, tables;
    TRY(ask(h, "PRAGMA user_version", &version, err));
    TRY(ask(h, "PRAGMA application_id", &application, err));
    TRY(ask(h, "SELECT count(*) FROM sqlite_schema", &tables, err));
    bool empty = version == 0 && application == 0 && tables == 0;
    if (!empty && application != APPLICATION)
        return kld_fail(err, KLD_E_INPUT,
                        "%s: is a database of another program; give the output another folder",
                        h->path);
    if (version > KLD_HISTORY_VERSION)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%s: version %lld of the history was written by a later kld, this one "
                        "knows %d; use that kld, or another output folder",
                        h->path, (long long)version, KLD_HISTORY_VERSION);
    if (!empty || !create) return KLD_OK;
    TRY(exec(h, "BEGIN IMMEDIATE", err));
    TRY(exec(h, SCHEMA, err));
    return exec(h, "COMMIT", err);
}

kld_status kld_history_open(kld_history **out, const char *path, bool create, kld_err *err) {
    kld_history *h = NULL;
    *out = NULL;
    if (!create && !kld_path_exists(path)) return KLD_OK;
    TRY(NEW_ARRAY(&h, 1, err));
    kld_status st = kld_strdup(&h->path, path, err);
    if (st == KLD_OK) {
        int rc = sqlite3_open_v2(path, &h->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
        if (rc != SQLITE_OK) st = sql_fail(h, rc, err);
    }
    if (st == KLD_OK) (void)sqlite3_busy_timeout(h->db, BUSY_MS);
    if (st == KLD_OK) st = exec(h, "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;", err);
    if (st == KLD_OK) st = check_pages(h, err);
    if (st == KLD_OK) st = check_version(h, create, err);
    if (st == KLD_OK) *out = h;
    else kld_history_close(h);
    return st;
}

void kld_history_close(kld_history *h) {
    if (!h) return;
    (void)sqlite3_close(h->db);
    kld_free(h->path);
    kld_free(h);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* A member as a value: text, number, nothing; objects as JSON text. */
static kld_status bind_json(kld_history *h, sqlite3_stmt *s, int at, const json_t *v,
                            kld_err *err) {
    int rc;
    if (json_is_string(v)) return bind_text(h, s, at, json_string_value(v), err);
    if (json_is_object(v)) {
        kld_buf b = {0};
        kld_status st = kld_json_dump(v, false, &b, err);
        if (st == KLD_OK) st = bind_text(h, s, at, (const char *)b.data, err);
        kld_buf_free(&b);
        return st;
    }
    if (json_is_integer(v)) rc = sqlite3_bind_int64(s, at, json_integer_value(v));
    else if (json_is_real(v)) rc = sqlite3_bind_double(s, at, json_real_value(v));
    else rc = sqlite3_bind_null(s, at);
    return rc == SQLITE_OK ? KLD_OK : sql_fail(h, rc, err);
}

/* Insert members of o behind the run's number; the statement has one ? for each. */
static kld_status insert(kld_history *h, const char *sql, int64_t run, const json_t *o,
                         const char *const *members, size_t n, kld_err *err) {
    sqlite3_stmt *s = NULL;
    bool row;
    kld_status st = prepare(h, sql, &s, err);
    if (st == KLD_OK && run > 0 && sqlite3_bind_int64(s, 1, run) != SQLITE_OK)
        st = sql_fail(h, sqlite3_errcode(h->db), err);
    for (size_t i = 0; i < n && st == KLD_OK; i++)
        st = bind_json(h, s, (int)i + (run > 0 ? 2 : 1), json_object_get(o, members[i]), err);
    if (st == KLD_OK) st = step(h, s, &row, err);
    (void)sqlite3_finalize(s);
    return st;
}
#define MEMBERS(a) (a), sizeof(a) / sizeof *(a)

static kld_status write_all(kld_history *h, const json_t *sum, kld_err *err) {
    static const char *const run[] = {"time", "directory", "label",     "version",   "commit",
                                      "host", "suite",     "reference", "exit_code", "seconds"};
    static const char *const capture[] = {"name",   "action", "file",  "model_digest",
                                          "digest", "key",    "error", "seconds"};
    static const char *const candidate[] = {"name",     "label",        "outcome", "reason",
                                            "settings", "model_digest", "digest",  "file",
                                            "kl_mean",  "kl_lo",        "kl_hi",   "metrics"};
    const json_t *captures = json_object_get(sum, "captures");
    const json_t *candidates = json_object_get(sum, "candidates");
    TRY(insert(h,
               "INSERT INTO run (time, directory, label, version, \"commit\", host, suite, "
               "reference, exit_code, seconds) VALUES (?,?,?,?,?,?,?,?,?,?)",
               0, sum, MEMBERS(run), err));
    int64_t id = sqlite3_last_insert_rowid(h->db);
    for (size_t i = 0; i < json_array_size(captures); i++)
        TRY(insert(h, "INSERT INTO capture VALUES (?,?,?,?,?,?,?,?,?)", id,
                   json_array_get(captures, i), MEMBERS(capture), err));
    for (size_t i = 0; i < json_array_size(candidates); i++)
        TRY(insert(h, "INSERT INTO candidate VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", id,
                   json_array_get(candidates, i), MEMBERS(candidate), err));
    return KLD_OK;
}

kld_status kld_history_record(kld_history *h, const json_t *summary, kld_err *err) {
    kld_err ignored;
    TRY(exec(h, "BEGIN IMMEDIATE", err));
    kld_status st = write_all(h, summary, err);
    if (st == KLD_OK) st = exec(h, "COMMIT", err);
    if (st != KLD_OK) (void)!exec(h, "ROLLBACK", &ignored);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------ */

static kld_status bind_place(kld_history *h, sqlite3_stmt *s, const char *name,
                             const kld_history_place *now, kld_err *err) {
    TRY(bind_text(h, s, 1, name, err));
    TRY(bind_text(h, s, 2, now->suite, err));
    TRY(bind_text(h, s, 3, now->reference, err));
    return bind_text(h, s, 4, now->settings, err);
}

/* JSON that was stored; a row that does not hold it was changed by hand. */
static kld_status stored_json(kld_history *h, const char *text, json_t **out, kld_err *err) {
    return kld_where(err, kld_json_parse(out, text ? text : "", text ? strlen(text) : 0, 16, err),
                     "%s: a stored row", h->path);
}

kld_status kld_history_last_good(kld_history *h, const char *candidate,
                                 const kld_history_place *now, json_t **out, kld_err *err) {
    static const char sql[] =
        "SELECT r.time, r.directory, r.suite, r.reference, c.settings, c.digest, c.file, "
        "c.kl_mean, c.metrics FROM candidate c JOIN run r ON r.id = c.run "
        "WHERE c.name = ?1 AND c.outcome = 'passed' "
        "ORDER BY (r.suite IS ?2 AND r.reference IS ?3 AND c.settings IS ?4) DESC, r.id DESC "
        "LIMIT 1";
    static const char *const name[] = {"time",     "directory", "suite", "reference",
                                       "settings", "digest",    "file"};
    *out = NULL;
    if (!h) return KLD_OK;
    sqlite3_stmt *s = NULL;
    bool row = false;
    json_t *metrics = NULL, *o = NULL;
    kld_emit e = {0};
    kld_status st;
    TRY_TO(done, prepare(h, sql, &s, err));
    TRY_TO(done, bind_place(h, s, candidate, now, err));
    TRY_TO(done, step(h, s, &row, err));
    if (!row) goto done;
    TRY_TO(done, stored_json(h, column(s, 8), &metrics, err));
    o = json_object();
    for (int i = 0; i < 7; i++) kld_emit_text(&e, o, name[i], column(s, i));
    kld_emit_real(&e, o, "kl_mean", column_real(s, 7));
    kld_emit_value(&e, o, "metrics", metrics);
    metrics = NULL;
    st = kld_emit_check(&e, err);
    if (st == KLD_OK) *out = json_incref(o);
done:
    (void)sqlite3_finalize(s);
    json_decref(metrics);
    json_decref(o);
    return st;
}

kld_status kld_history_trend(kld_history *h, const char *candidate, const kld_history_place *now,
                             size_t limit, json_t **out, kld_err *err) {
    static const char sql[] =
        "SELECT time, label, kl_mean, kl_lo, kl_hi, outcome FROM (SELECT r.id, r.time, "
        "coalesce(r.label, c.label) AS label, c.kl_mean, c.kl_lo, c.kl_hi, c.outcome "
        "FROM candidate c JOIN run r ON r.id = c.run WHERE c.name = ?1 AND r.suite IS ?2 AND "
        "r.reference IS ?3 AND c.settings IS ?4 AND c.kl_mean IS NOT NULL ORDER BY r.id DESC "
        "LIMIT ?5) ORDER BY id";
    kld_emit e = {0};
    sqlite3_stmt *s = NULL;
    bool row = h != NULL;
    json_t *list = json_array();
    kld_status st = KLD_OK;
    *out = NULL;
    if (h) TRY_TO(done, prepare(h, sql, &s, err));
    if (h) TRY_TO(done, bind_place(h, s, candidate, now, err));
    if (h && sqlite3_bind_int64(s, 5, (sqlite3_int64)limit) != SQLITE_OK)
        TRY_TO(done, sql_fail(h, sqlite3_errcode(h->db), err));
    while (row) {
        TRY_TO(done, step(h, s, &row, err));
        if (!row) break;
        json_t *o = kld_emit_object(&e, list, NULL);
        kld_emit_text(&e, o, "time", column(s, 0));
        kld_emit_text(&e, o, "label", column(s, 1));
        kld_emit_real(&e, o, "kl_mean", column_real(s, 2));
        kld_emit_range(&e, o, "kl_ci95", column_real(s, 3), column_real(s, 4));
        kld_emit_text(&e, o, "gate", column(s, 5));
    }
    if (!list) e.failed = true;
    st = kld_emit_check(&e, err);
    if (st == KLD_OK) *out = json_incref(list);
done:
    (void)sqlite3_finalize(s);
    json_decref(list);
    return st;
}

kld_status kld_history_key(kld_history *h, const char *capture, json_t **out, kld_err *err) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    *out = NULL;
    if (!h) return KLD_OK;
    kld_status st =
        prepare(h,
                "SELECT \"key\" FROM capture WHERE name = ?1 AND digest IS NOT NULL AND "
                "\"key\" IS NOT NULL ORDER BY run DESC LIMIT 1",
                &s, err);
    if (st == KLD_OK) st = bind_text(h, s, 1, capture, err);
    if (st == KLD_OK) st = step(h, s, &row, err);
    if (st == KLD_OK && row) st = stored_json(h, column(s, 0), out, err);
    (void)sqlite3_finalize(s);
    return st;
}

kld_status kld_history_good_files(kld_history *h, json_t **out, kld_err *err) {
    kld_emit e = {0};
    sqlite3_stmt *s = NULL;
    bool row = h != NULL;
    *out = NULL;
    json_t *list = json_array();
    kld_status st = KLD_OK;
    if (h)
        st = prepare(h,
                     "SELECT file FROM candidate c WHERE file IS NOT NULL AND run = (SELECT "
                     "max(run) FROM candidate d WHERE d.name = c.name AND d.outcome = "
                     "'passed')",
                     &s, err);
    while (st == KLD_OK && row) {
        st = step(h, s, &row, err);
        if (st == KLD_OK && row) kld_emit_text(&e, list, NULL, column(s, 0));
    }
    if (!list) e.failed = true;
    if (st == KLD_OK) st = kld_emit_check(&e, err);
    if (st == KLD_OK) *out = json_incref(list);
    (void)sqlite3_finalize(s);
    json_decref(list);
    return st;
}
