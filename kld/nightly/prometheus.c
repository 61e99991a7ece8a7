#include "kld/nightly/prometheus.h"

#include "kld/compare/gates.h"
#include "kld/nightly/keys.h"

#include <string.h>

static kld_status head(kld_buf *b, const char *name, const char *help, kld_err *err) {
    return kld_buf_addf(b, err, "# HELP kld_%s %s\n# TYPE kld_%s gauge\n", name, help, name);
}

static kld_status label(kld_buf *b, const char *name, const char *value, kld_err *err) {
    TRY(kld_buf_addf(b, err, "%s=\"", name));
    for (const char *s = value; *s; s++) {
        if (*s == '\\' || *s == '"') TRY(kld_buf_adds(b, "\\", err));
        TRY(kld_buf_add(b, *s == '\n' ? "\\n" : s, *s == '\n' ? 2 : 1, err));
    }
    return kld_buf_adds(b, "\"", err);
}

/* name{label="value"} number */
static kld_status line(kld_buf *b, const char *name, const char *key, const char *value, double x,
                       kld_err *err) {
    TRY(kld_buf_addf(b, err, "kld_%s{", name));
    TRY(label(b, key, value, err));
    return kld_buf_addf(b, err, "} %.17g\n", x);
}

static kld_status plain(kld_buf *b, const char *name, const char *help, const json_t *v,
                        kld_err *err) {
    if (!json_is_number(v)) return KLD_OK;
    TRY(head(b, name, help, err));
    return kld_buf_addf(b, err, "kld_%s %.17g\n", name, json_number_value(v));
}

static kld_status metric(kld_buf *b, const char *name, const json_t *candidates, kld_err *err) {
    bool any = false;
    for (size_t k = 0; k < json_array_size(candidates); k++) {
        const json_t *c = json_array_get(candidates, k);
        const json_t *v = json_object_get(json_object_get(c, "metrics"), name);
        if (!json_is_number(v)) continue;
        if (!any) TRY(head(b, name, "As `kld compare` gates on it (docs/metrics.md).", err));
        any = true;
        TRY(line(b, name, "candidate", nightly_text(c, "name"), json_number_value(v), err));
    }
    return KLD_OK;
}

static kld_status gates(kld_buf *b, const json_t *candidates, kld_err *err) {
    bool any = false;
    for (size_t k = 0; k < json_array_size(candidates); k++) {
        const json_t *c = json_array_get(candidates, k), *list = json_object_get(c, "gates");
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *g = json_array_get(list, i);
            if (!any) TRY(head(b, "gate_failed", "1 when the metric is above its limit.", err));
            any = true;
            TRY(kld_buf_adds(b, "kld_gate_failed{", err));
            TRY(label(b, "candidate", nightly_text(c, "name"), err));
            TRY(kld_buf_adds(b, ",", err));
            TRY(label(b, "metric", nightly_text(g, "metric"), err));
            TRY(kld_buf_adds(b, ",", err));
            TRY(label(b, "kind", nightly_text(g, "kind"), err));
            TRY(kld_buf_addf(b, err, "} %d\n", nightly_is(g, "outcome", "failed")));
        }
    }
    return KLD_OK;
}

/* One gauge of every object of a list: 1 where a member is `value`. */
static kld_status flags(kld_buf *b, const char *name, const char *help, const char *key,
                        const json_t *list, const char *member, const char *value, kld_err *err) {
    if (json_array_size(list)) TRY(head(b, name, help, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        TRY(line(b, name, key, nightly_text(o, "name"), nightly_is(o, member, value), err));
    }
    return KLD_OK;
}

kld_status nightly_prometheus(const json_t *summary, kld_buf *out, kld_err *err) {
    const json_t *candidates = json_object_get(summary, "candidates");
    const json_t *captures = json_object_get(summary, "captures");
    const char *name;
    for (size_t i = 0; (name = kld_gate_metric(i)); i++) TRY(metric(out, name, candidates, err));
    TRY(flags(out, "candidate_passed", "1 when it was measured and within every limit.",
              "candidate", candidates, "outcome", "passed", err));
    TRY(gates(out, candidates, err));
    TRY(flags(out, "capture_failed", "1 when the checkpoint could not be captured.", "capture",
              captures, "action", "failed", err));
    TRY(flags(out, "capture_reused", "1 when nothing had changed.", "capture", captures, "action",
              "reused", err));
    TRY(plain(out, "nightly_exit_code", "Exit code of the last run.",
              json_object_get(summary, "exit_code"), err));
    TRY(plain(out, "nightly_duration_seconds", "Length of the last run.",
              json_object_get(summary, "seconds"), err));
    return plain(out, "nightly_last_run_timestamp_seconds", "When the last run began.",
                 json_object_get(summary, "timestamp"), err);
}
