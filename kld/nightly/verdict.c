#include "kld/nightly/verdict.h"

#include "kld/base/buf.h"
#include "kld/compare/emit.h"
#include "kld/compare/gates.h"
#include "kld/nightly/keys.h"

#include <math.h>
#include <string.h>

/* NULL when the last good run can be compared with, or there is none. */
static const char *difference(const nightly_evidence *v) {
    const json_t *g = v->last_good;
    if (!g) return NULL;
    if (strcmp(nightly_text(g, "suite"), v->now.suite) != 0) return "the suite changed";
    if (!v->now.reference || strcmp(nightly_text(g, "reference"), v->now.reference) != 0)
        return "the reference's capture changed";
    return strcmp(nightly_text(g, "settings"), v->now.settings) != 0 ? "the settings changed"
                                                                     : NULL;
}

/* Of the last good run that is comparable; NaN without. */
static double earlier(const nightly_evidence *v, const char *metric) {
    if (!v->last_good || difference(v)) return NAN;
    return nightly_real(json_object_get(v->last_good, "metrics"), metric);
}

static long long excluded(const json_t *measured) {
    return (long long)json_integer_value(
        json_object_get(json_object_get(measured, "nonfinite"), "excluded"));
}

static bool whole(const nightly_evidence *v) { return nightly_is(v->measured, "status", "ok"); }

static kld_status left_out(const nightly_evidence *v, kld_buf *b, kld_err *err) {
    if (whole(v)) return KLD_OK;
    return kld_buf_addf(b, err, ", and %lld positions are not finite", excluded(v->measured));
}

static kld_status absolute(const nightly_evidence *v, const kld_nightly_gate *g, double x,
                           const char **outcome, kld_buf *b, kld_err *err) {
    double before = earlier(v, g->metric);
    *outcome = whole(v) && x <= g->limit ? "passed" : "failed";
    if (!isfinite(x))
        return kld_buf_addf(b, err, " has no finite value; the limit is %.4g", g->limit);
    TRY(kld_buf_addf(b, err, " %.4g is %s %.4g", x, x <= g->limit ? "within" : "above", g->limit));
    if (isfinite(before)) {
        const char *time = nightly_text(v->last_good, "time");
        TRY(kld_buf_addf(b, err, " (%.4g in the last good run of %.*s)", before, nightly_day(time),
                         time));
    }
    return left_out(v, b, err);
}

/* What a value may be at most; NaN when there is nothing to compare with. */
static double allowed(const nightly_evidence *v, const kld_nightly_gate *g) {
    double before = g->relative ? earlier(v, g->metric) : 0;
    return g->relative ? before + g->limit * fabs(before) : g->limit;
}

static kld_status regression(const nightly_evidence *v, const kld_nightly_gate *g, double x,
                             const char **outcome, kld_buf *b, kld_err *err) {
    const char *time = nightly_text(v->last_good, "time"), *why = difference(v);
    double before = earlier(v, g->metric);
    *outcome = "skipped";
    if (!v->last_good) return kld_buf_adds(b, ": no good run yet to compare with", err);
    if (why)
        return kld_buf_addf(b, err, ": not comparable with the last good run of %.*s: %s",
                            nightly_day(time), time, why);
    if (!isfinite(before))
        return kld_buf_addf(b, err, ": the last good run of %.*s has no value", nightly_day(time),
                            time);
    bool within = x <= allowed(v, g);
    *outcome = whole(v) && within ? "passed" : "failed";
    if (!isfinite(x))
        return kld_buf_addf(b, err, " has no finite value; the last good run of %.*s has %.4g",
                            nightly_day(time), time, before);
    TRY(kld_buf_addf(b, err, " %.4g is %s %.4g %% above %.4g of the last good run of %.*s", x,
                     within ? "at most" : "more than", 100 * g->limit, before, nightly_day(time),
                     time));
    if (before > 0) TRY(kld_buf_addf(b, err, " (%+.3g %%)", 100 * (x / before - 1)));
    return left_out(v, b, err);
}

static kld_status judge_gate(const nightly_evidence *v, const kld_nightly_gate *g, kld_emit *e,
                             json_t *list, const char **reason, kld_err *err) {
    kld_buf b = {0};
    const char *outcome = "skipped";
    double x = v->measured ? kld_gate_value(v->measured, g->metric) : NAN;
    kld_status st = kld_buf_addf(&b, err, "%s: %s", v->item->name, g->metric);
    if (st == KLD_OK && !v->measured) st = kld_buf_adds(&b, " was not measured", err);
    else if (st == KLD_OK && g->relative) st = regression(v, g, x, &outcome, &b, err);
    else if (st == KLD_OK) st = absolute(v, g, x, &outcome, &b, err);
    if (st == KLD_OK) {
        json_t *o = kld_emit_object(e, list, NULL);
        kld_emit_text(e, o, "metric", g->metric);
        kld_emit_text(e, o, "kind", g->relative ? "regression" : "absolute");
        kld_emit_real(e, o, "limit", g->limit);
        kld_emit_real(e, o, "allowed", allowed(v, g));
        kld_emit_real(e, o, "value", x);
        kld_emit_text(e, o, "outcome", outcome);
        kld_emit_text(e, o, "text", (const char *)b.data);
        if (!*reason && strcmp(outcome, "failed") == 0) *reason = nightly_text(o, "text");
    }
    kld_buf_free(&b);
    return st;
}

static void numbers(const nightly_evidence *v, kld_emit *e, json_t *entry) {
    const json_t *kl = json_object_get(v->measured, "kl"), *ci = json_object_get(kl, "ci95");
    kld_emit_real(e, entry, "kl_mean", nightly_real(kl, "mean"));
    kld_emit_real(e, entry, "kl_lo",
                  json_is_array(ci) ? json_number_value(json_array_get(ci, 0)) : NAN);
    kld_emit_real(e, entry, "kl_hi",
                  json_is_array(ci) ? json_number_value(json_array_get(ci, 1)) : NAN);
    json_t *metrics = kld_emit_object(e, entry, "metrics");
    const char *name;
    for (size_t i = 0; (name = kld_gate_metric(i)); i++) {
        double x = v->measured ? kld_gate_value(v->measured, name) : NAN;
        if (isfinite(x)) kld_emit_real(e, metrics, name, x);
    }
}

static void last_good(const nightly_evidence *v, kld_emit *e, json_t *entry) {
    json_t *g = v->last_good ? json_copy((json_t *)(uintptr_t)v->last_good) : json_null();
    if (json_is_object(g)) (void)json_object_del(g, "metrics");
    kld_emit_value(e, entry, "last_good", g);
    kld_emit_text(e, entry, "not_comparable", difference(v));
}

kld_status nightly_judge(const nightly_evidence *v, json_t *entry, kld_err *err) {
    kld_emit e = {0};
    const char *gate = NULL, *why = v->why_not;
    numbers(v, &e, entry);
    last_good(v, &e, entry);
    json_t *gates = kld_emit_array(&e, entry, "gates");
    for (size_t i = 0; i < v->item->n_gates; i++)
        TRY(judge_gate(v, &v->item->gates[i], &e, gates, &gate, err));
    if (v->measured)
        why = json_is_false(json_object_get(v->measured, "valid"))
                  ? "none of its positions is finite, so nothing was measured"
                  : NULL;
    kld_emit_text(&e, entry, "outcome", why ? "error" : gate ? "failed" : "passed");
    if (why) {
        kld_buf b = {0};
        TRY(kld_buf_addf(&b, err, "%s: %s", v->item->name, why));
        kld_emit_text(&e, entry, "reason", (const char *)b.data);
        kld_buf_free(&b);
    } else {
        kld_emit_text(&e, entry, "reason", gate);
    }
    return kld_emit_check(&e, err);
}
