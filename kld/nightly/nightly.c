#include "kld/nightly/nightly.h"

#include "kld/base/file.h"
#include "kld/base/lock.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/base/version.h"
#include "kld/compare/emit.h"
#include "kld/nightly/captures.h"
#include "kld/nightly/keys.h"
#include "kld/nightly/measure.h"
#include "kld/nightly/publish.h"
#include "kld/nightly/verdict.h"

#include <string.h>

enum { TREND = 200 }; /* runs in the chart */

typedef struct job {
    const kld_nightly_config *config;
    const char *label;
    double start;
    int64_t timestamp;
    char *time, *host, *folder; /* owned */
    kld_lock lock;
    kld_key *key; /* owned; NULL = receipts are not signed */
    kld_history *history;
    nightly_captures captures;
    nightly_measured measured;
    char suite[KLD_SHA256_HEX], reference[KLD_SHA256_HEX]; /* reference "" without its capture */
    json_t *summary, *trend;                               /* owned */
    kld_err worst;                                         /* what the run ends with */
    size_t failed; /* candidates that did not pass, captures that failed */
} job;

static void job_free(job *j) {
    nightly_measured_free(&j->measured);
    if (j->captures.config) nightly_captures_free(&j->captures);
    kld_history_close(j->history);
    kld_key_free(j->key);
    kld_lock_drop(&j->lock);
    kld_free(j->time);
    kld_free(j->host);
    kld_free(j->folder);
    json_decref(j->summary);
    json_decref(j->trend);
}

/* The failure with the highest exit code decides; the first of equal ones is told. */
static void note_failure(job *j, kld_status st, const char *text) {
    if (kld_exit_code(st) <= kld_exit_code(j->worst.status)) return;
    (void)kld_fail(&j->worst, st, "%s", text);
}

/* ---- the summary ---------------------------------------------------------------------------- */

static void add_capture(const job *j, size_t i, kld_emit *e, json_t *list) {
    const nightly_capture *x = &j->captures.item[i];
    json_t *o = kld_emit_object(e, list, NULL);
    kld_emit_text(e, o, "name", j->config->item[i].name);
    kld_emit_text(e, o, "action", nightly_action_name(x->action));
    kld_emit_text(e, o, "why", x->why);
    kld_emit_text(e, o, "model", j->config->item[i].model);
    kld_emit_text(e, o, "file", x->file);
    if (x->known) kld_emit_digest(e, o, "model_digest", &x->model);
    if (x->done) kld_emit_digest(e, o, "digest", &x->digest);
    kld_emit_value(e, o, "key", x->key ? json_incref(x->key) : json_null());
    kld_emit_text(e, o, "error", x->err.status != KLD_OK ? x->err.text : NULL);
    kld_emit_real(e, o, "seconds", x->seconds);
}

static kld_status begin_summary(job *j, kld_err *err) {
    kld_emit e = {0};
    if (!(j->summary = json_object())) e.failed = true;
    kld_emit_count(&e, j->summary, "schema", 1);
    kld_emit_text(&e, j->summary, "time", j->time);
    kld_emit_count(&e, j->summary, "timestamp", (uint64_t)j->timestamp);
    kld_emit_text(&e, j->summary, "label", j->label);
    kld_emit_text(&e, j->summary, "version", kld_version());
    kld_emit_text(&e, j->summary, "commit", kld_commit());
    kld_emit_text(&e, j->summary, "host", j->host);
    kld_emit_text(&e, j->summary, "config", j->config->path);
    kld_emit_text(&e, j->summary, "suite", j->suite);
    kld_emit_text(&e, j->summary, "reference", j->reference[0] ? j->reference : NULL);
    json_t *list = kld_emit_array(&e, j->summary, "captures");
    for (size_t i = 0; i < j->config->n_items; i++) add_capture(j, i, &e, list);
    return kld_emit_check(&e, err);
}

/* Digest of what makes a candidate's values other ones with the same captures' sources. */
static kld_status settings_of(const job *j, size_t i, char hex[KLD_SHA256_HEX], kld_err *err) {
    const kld_compare_options *c = &j->config->compare;
    const kld_nightly_item *item = &j->config->item[i];
    kld_emit e = {0};
    kld_buf b = {0};
    kld_digest d;
    json_t *o = json_object();
    kld_emit_real(&e, o, "top_p", c->top_p);
    kld_emit_count(&e, o, "overlap_k", c->overlap_k);
    kld_emit_count(&e, o, "resamples", c->resamples);
    kld_emit_count(&e, o, "seed", c->seed);
    kld_emit_text(&e, o, "partition", c->partition);
    kld_emit_bool(&e, o, "exact_never", c->exact_never);
    kld_emit_bool(&e, o, "head_shared", c->head_shared);
    kld_emit_count(&e, o, "activations", (uint64_t)item->opt.activations);
    kld_emit_count(&e, o, "fused", (uint64_t)item->opt.fused);
    kld_emit_text(&e, o, "routes", item->opt.keep_routes ? NULL : item->routes);
    kld_status st = kld_emit_check(&e, err);
    if (st == KLD_OK) st = kld_json_dump(o, false, &b, err);
    if (st == KLD_OK) st = kld_sha256_of(b.data, b.len, &d, err);
    if (st == KLD_OK) (void)kld_digest_hex(&d, hex);
    kld_buf_free(&b);
    json_decref(o);
    return st;
}

/* ---- candidates ----------------------------------------------------------------------------- */

/* Against the capture of the last good run, when it is still there. */
static kld_status add_change(const job *j, size_t i, const json_t *good, kld_emit *e, json_t *entry,
                             kld_err *err) {
    const nightly_capture *x = &j->captures.item[i];
    const char *file = nightly_text(good, "file");
    json_t *change = json_null();
    char *path;
    if (j->measured.at[i] < 0 || !good || *nightly_text(entry, "not_comparable") || !*file ||
        strchr(file, '/')) {
        kld_emit_value(e, entry, "change", change);
        return KLD_OK;
    }
    if (strcmp(file, x->file) == 0) {
        change = kld_emit_object(e, entry, "change");
        kld_emit_bool(e, change, "same_capture", true);
        return KLD_OK;
    }
    TRY(kld_path_join(&path, j->captures.folder, file, err));
    kld_status st = KLD_OK;
    if (kld_path_exists(path)) {
        kld_err e2;
        st = nightly_paired(&j->captures, i, path, &change, &e2);
        if (st != KLD_OK && st != KLD_E_INTERRUPTED && st != KLD_E_NOMEM) {
            kld_warn("%s; no paired difference from the last good run", e2.text);
            change = json_null();
            st = KLD_OK;
        } else if (st != KLD_OK && err) {
            *err = e2;
        }
    }
    kld_free(path);
    if (st == KLD_OK) kld_emit_value(e, entry, "change", change);
    return st;
}

/* The course of the candidate with this run at its end. */
static kld_status add_trend(job *j, size_t i, const kld_history_place *now, const json_t *entry,
                            kld_emit *e, kld_err *err) {
    json_t *runs;
    const char *name = j->config->item[i].name;
    TRY(kld_history_trend(j->history, name, now, TREND, &runs, err));
    if (json_is_number(json_object_get(entry, "kl_mean"))) {
        json_t *o = kld_emit_object(e, runs, NULL);
        const json_t *lo = json_object_get(entry, "kl_lo"), *hi = json_object_get(entry, "kl_hi");
        kld_emit_text(e, o, "time", j->time);
        kld_emit_text(e, o, "label", j->label ? j->label : nightly_text(entry, "label"));
        kld_emit_value(e, o, "kl_mean", json_incref(json_object_get(entry, "kl_mean")));
        kld_emit_value(e, o, "kl_ci95",
                       json_is_number(lo) && json_is_number(hi) ? json_pack("[O, O]", lo, hi)
                                                                : json_null());
        kld_emit_text(e, o, "gate", nightly_text(entry, "outcome"));
    }
    json_t *course = kld_emit_object(e, j->trend, NULL);
    kld_emit_text(e, course, "candidate", name);
    kld_emit_value(e, course, "runs", runs);
    return KLD_OK;
}

static kld_status judge(job *j, size_t i, kld_emit *e, json_t *list, kld_err *err) {
    const nightly_capture *x = &j->captures.item[i];
    const kld_nightly_item *item = &j->config->item[i];
    char settings[KLD_SHA256_HEX];
    TRY(settings_of(j, i, settings, err));
    nightly_evidence v = {.item = item,
                          .now = {j->suite, j->reference[0] ? j->reference : NULL, settings}};
    const json_t *all = json_object_get(j->measured.result, "candidates");
    const kld_err *why = x->done ? &j->measured.err[i] : &x->err;
    if (j->measured.at[i] >= 0) v.measured = json_array_get(all, (size_t)j->measured.at[i]);
    v.why_not = why->text[0] ? why->text : "it was not compared";
    json_t *good;
    TRY(kld_history_last_good(j->history, item->name, &v.now, &good, err));
    v.last_good = good;
    json_t *entry = kld_emit_object(e, list, NULL);
    const char *label = v.measured ? nightly_text(v.measured, "label") : item->opt.label;
    kld_emit_text(e, entry, "name", item->name);
    kld_emit_text(e, entry, "label", label);
    kld_emit_text(e, entry, "settings", settings);
    kld_emit_text(e, entry, "file", x->done ? x->file : NULL);
    kld_emit_bool(e, entry, "captured", x->done);
    if (x->known) kld_emit_digest(e, entry, "model_digest", &x->model);
    if (x->done) kld_emit_digest(e, entry, "digest", &x->digest);
    kld_status st = nightly_judge(&v, entry, err);
    if (st == KLD_OK) st = add_change(j, i, good, e, entry, err);
    if (st == KLD_OK) st = add_trend(j, i, &v.now, entry, e, err);
    json_decref(good);
    TRY(st);
    if (nightly_is(entry, "outcome", "passed")) return KLD_OK;
    j->failed++;
    if (nightly_is(entry, "outcome", "failed"))
        note_failure(j, KLD_E_GATE, nightly_text(entry, "reason"));
    else if (x->done)
        note_failure(j, v.measured ? KLD_E_NUMERIC : why->status, nightly_text(entry, "reason"));
    return KLD_OK;
}

/* The verdicts as kld_compare_gates_record gives them, for the reports of the result. */
static void record_gates(const job *j, size_t i, const json_t *gates, kld_emit *e, json_t *list) {
    for (size_t g = 0; g < json_array_size(gates); g++) {
        const json_t *gate = json_array_get(gates, g);
        if (nightly_is(gate, "outcome", "skipped")) continue;
        json_t *o = kld_emit_object(e, list, NULL);
        kld_emit_text(e, o, "metric", nightly_text(gate, "metric"));
        kld_emit_value(e, o, "limit", json_incref(json_object_get(gate, "allowed")));
        kld_emit_count(e, o, "candidate", (uint64_t)j->measured.at[i]);
        kld_emit_value(e, o, "value", json_incref(json_object_get(gate, "value")));
        kld_emit_bool(e, o, "passed", nightly_is(gate, "outcome", "passed"));
    }
}

/* A floor that cannot be compared, or is something else, is a failure as well. */
static void judge_floor(job *j) {
    size_t n = j->config->n_items;
    if (j->config->floor && j->measured.at[n] >= 0 &&
        !json_is_object(json_object_get(j->measured.result, "floor")))
        (void)kld_fail(&j->measured.err[n], KLD_E_INPUT,
                       "%s: is not the reference captured again, so it is no noise floor",
                       j->config->floor);
    for (size_t i = j->config->n_candidates + 1; i <= n; i++) {
        const kld_err *e = &j->measured.err[i];
        if (!e->text[0]) continue;
        note_failure(j, e->status, e->text);
        j->failed++;
    }
}

static kld_status judge_all(job *j, kld_err *err) {
    kld_emit e = {0};
    size_t n = j->config->n_items;
    j->trend = json_array();
    json_t *list = kld_emit_array(&e, j->summary, "candidates");
    for (size_t i = 0; i < n; i++) {
        const nightly_capture *x = &j->captures.item[i];
        char text[sizeof x->err.text];
        if (x->action != NIGHTLY_FAILED) continue;
        (void)snprintf(text, sizeof text, "%s: %.900s", j->config->item[i].name, x->err.text);
        note_failure(j, x->err.status, text);
        j->failed += i == 0 || i > j->config->n_candidates; /* a candidate counts itself */
    }
    for (size_t i = 1; i <= j->config->n_candidates; i++) TRY(judge(j, i, &e, list, err));
    json_t *gates = j->measured.result ? kld_emit_array(&e, j->measured.result, "gates") : NULL;
    for (size_t i = 1; gates && i <= j->config->n_candidates; i++)
        if (j->measured.at[i] >= 0)
            record_gates(j, i, json_object_get(json_array_get(list, i - 1), "gates"), &e, gates);
    judge_floor(j);
    kld_status worst = j->worst.status;
    kld_emit_text(&e, j->summary, "outcome",
                  worst == KLD_OK       ? "passed"
                  : worst == KLD_E_GATE ? "failed"
                                        : "error");
    kld_emit_count(&e, j->summary, "exit_code", (uint64_t)kld_exit_code(worst));
    kld_emit_text(&e, j->summary, "reason", worst == KLD_OK ? NULL : j->worst.text);
    kld_emit_text(&e, j->summary, "directory", j->folder);
    kld_emit_real(&e, j->summary, "seconds", kld_seconds() - j->start);
    return kld_emit_check(&e, err);
}

/* ---- the run -------------------------------------------------------------------------------- */

static kld_status open_history(job *j, bool create, kld_err *err) {
    char *path;
    TRY(kld_path_join(&path, j->config->output, "history.db", err));
    kld_status st = kld_history_open(&j->history, path, create, err);
    kld_free(path);
    return st;
}

/* With `dry` nothing is created and nothing locked. */
static kld_status open_job(job *j, bool dry, kld_err *err) {
    char *path;
    if (!dry) {
        TRY(kld_mkdir(j->config->output, err));
        TRY(kld_path_join(&path, j->config->output, "lock", err));
        kld_status st = kld_lock_take(&j->lock, path, err);
        kld_free(path);
        TRY(st);
        if (j->config->sign_key) TRY(kld_key_load(&j->key, j->config->sign_key, err));
    }
    TRY(kld_utc_seconds(&j->timestamp, err));
    TRY(kld_utc_now(&j->time, err));
    TRY(kld_host_name(&j->host, err));
    TRY(open_history(j, !dry, err));
    TRY(nightly_captures_open(&j->captures, j->config, j->history, err));
    (void)kld_digest_hex(&j->captures.suite, j->suite);
    return KLD_OK;
}

static kld_status capture_all(job *j, bool dry, kld_err *err) {
    TRY(nightly_captures_run(&j->captures, dry, err));
    if (j->captures.item[0].done) (void)kld_digest_hex(&j->captures.item[0].digest, j->reference);
    return begin_summary(j, err);
}

static kld_status prune_captures(const job *j, kld_err *err) {
    json_t *keep;
    TRY(kld_history_good_files(j->history, &keep, err));
    kld_status st = nightly_captures_prune(&j->captures, keep, err);
    json_decref(keep);
    return st;
}

/* Reports that cannot be written do not cost the history its row, nor the other way round. */
static kld_status put_away(job *j, kld_err *err) {
    kld_err e = {0}, pruning;
    kld_status written =
        nightly_publish(j->config, j->folder, j->summary, j->measured.result, j->trend, j->key, &e);
    kld_status recorded = kld_history_record(j->history, j->summary, err);
    if (recorded != KLD_OK) return recorded;
    if (written != KLD_OK && err) *err = e;
    if (written != KLD_OK) return written;
    nightly_publish_latest(j->config, j->folder);
    if (prune_captures(j, &pruning) != KLD_OK) kld_warn("%s; old captures stay", pruning.text);
    return KLD_OK;
}

kld_status kld_nightly_run(const kld_nightly_config *c, const char *label, json_t **summary,
                           kld_err *err) {
    job j = {.config = c, .label = label, .start = kld_seconds(), .lock = {.fd = -1}};
    kld_status st;
    *summary = NULL;
    TRY_TO(done, open_job(&j, false, err));
    TRY_TO(done, capture_all(&j, false, err));
    TRY_TO(done, nightly_measure(&j.captures, &j.measured, err));
    TRY_TO(done, nightly_folder(c->output, j.time, &j.folder, err));
    TRY_TO(done, judge_all(&j, err));
    TRY_TO(done, put_away(&j, err));
    *summary = json_incref(j.summary);
    st = j.worst.status;
    if (st != KLD_OK && j.failed > 1)
        (void)kld_fail(err, st, "%s (and %zu more)", j.worst.text, j.failed - 1);
    else if (st != KLD_OK && err) *err = j.worst;
done:
    job_free(&j);
    return st;
}

kld_status kld_nightly_plan(const kld_nightly_config *c, json_t **summary, kld_err *err) {
    job j = {.config = c, .start = kld_seconds(), .lock = {.fd = -1}};
    kld_status st;
    *summary = NULL;
    TRY_TO(done, open_job(&j, true, err));
    TRY_TO(done, capture_all(&j, true, err));
    *summary = json_incref(j.summary);
    for (size_t i = 0; i < c->n_items; i++)
        if (j.captures.item[i].action == NIGHTLY_FAILED)
            note_failure(&j, j.captures.item[i].err.status, j.captures.item[i].err.text);
    st = j.worst.status;
    if (st != KLD_OK && err) *err = j.worst;
done:
    job_free(&j);
    return st;
}
