#include "kld/compare/gates.h"

#include "kld/compare/emit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A metric is one number of a candidate object: path a, b, and index in an array. */
static const struct metric {
    const char *name, *a, *b;
    int index;       /* -1: not an array */
    bool complement; /* 1 - value */
} METRICS[] = {
    {"mean_kl", "kl", "mean", -1, false},
    {"upper_kl", "kl", "ci95", 1, false},
    {"lower_bound_kl", "kl", "lower_bound", -1, false},
    {"median_kl", "kl", "median", -1, false},
    {"p90_kl", "kl", "p90", -1, false},
    {"p95_kl", "kl", "p95", -1, false},
    {"p99_kl", "kl", "p99", -1, false},
    {"p999_kl", "kl", "p999", -1, false},
    {"max_kl", "kl", "max", -1, false},
    {"mean_reverse_kl", "reverse_kl", "mean", -1, false},
    {"upper_reverse_kl", "reverse_kl", "ci95", 1, false},
    {"mean_js", "js", "mean", -1, false},
    {"upper_js", "js", "ci95", 1, false},
    {"p99_js", "js", "p99", -1, false},
    {"mean_tv", "tv", "mean", -1, false},
    {"upper_tv", "tv", "ci95", 1, false},
    {"p99_tv", "tv", "p99", -1, false},
    {"ppl_ratio", "perplexity", "ratio", -1, false},
    {"upper_ppl_ratio", "perplexity", "ratio_ci95", 1, false},
    {"top1_disagreement", "top1_agreement", NULL, -1, true},
    {"upper_top1_disagreement", "top1_ci95", NULL, 0, true},
    {"topp_disagreement", "top_p", "jaccard", -1, true},
    {"topp_tv", "top_p", "tv", -1, false},
};
enum { N_METRICS = sizeof METRICS / sizeof *METRICS };

static kld_status parse(const char *gate, const struct metric **metric, double *limit,
                        kld_err *err) {
    const char *eq = strchr(gate, '=');
    size_t n = eq ? (size_t)(eq - gate) : strlen(gate);
    *metric = NULL;
    for (size_t m = 0; m < N_METRICS; m++)
        if (strlen(METRICS[m].name) == n && memcmp(METRICS[m].name, gate, n) == 0)
            *metric = &METRICS[m];
    if (!*metric) {
        kld_buf list = {0};
        kld_status st = KLD_OK;
        for (size_t m = 0; st == KLD_OK && m < N_METRICS; m++)
            st = kld_buf_addf(&list, err, "%s%s", m ? ", " : "", METRICS[m].name);
        if (st == KLD_OK)
            st = kld_fail(err, KLD_E_USAGE, "gate '%.64s': unknown metric; known are %s", gate,
                          (const char *)list.data);
        kld_buf_free(&list);
        return st;
    }
    char *end = NULL;
    *limit = eq ? strtod(eq + 1, &end) : NAN;
    if (!eq || end == eq + 1 || *end || !isfinite(*limit))
        return kld_fail(err, KLD_E_USAGE,
                        "gate '%.64s': expected METRIC=LIMIT with a finite number", gate);
    return KLD_OK;
}

/* NaN when null or absent. */
static double value_of(const json_t *candidate, const struct metric *m) {
    const json_t *v = json_object_get(candidate, m->a);
    if (m->b) v = json_object_get(v, m->b);
    if (m->index >= 0) v = json_array_get(v, (size_t)m->index);
    if (!json_is_number(v)) return NAN;
    double x = json_number_value(v);
    return m->complement ? 1 - x : x;
}

static bool whole(const json_t *c) {
    const char *status = json_string_value(json_object_get(c, "status"));
    return status && strcmp(status, "ok") == 0;
}

/* One line for a failed gate; *failed counts them. */
static kld_status check(const json_t *c, const struct metric *m, double limit, size_t *failed,
                        kld_buf *report, kld_err *err) {
    const char *name = json_string_value(json_object_get(c, "name"));
    const char *path = json_string_value(json_object_get(c, "path"));
    double v = value_of(c, m);
    if (whole(c) && v <= limit) return KLD_OK;
    ++*failed;
    TRY(kld_buf_addf(report, err, "gate failed: %s (%s): %s ", name ? name : "", path ? path : "",
                     m->name));
    if (!isfinite(v)) TRY(kld_buf_adds(report, "has no finite value", err));
    else if (v > limit) TRY(kld_buf_addf(report, err, "is %.6g, above %.6g", v, limit));
    else TRY(kld_buf_addf(report, err, "is %.6g, but", v));
    if (!whole(c)) {
        long long out = (long long)json_integer_value(
            json_object_get(json_object_get(c, "nonfinite"), "excluded"));
        TRY(kld_buf_addf(report, err, "%s %lld positions are not finite",
                         isfinite(v) && v <= limit ? "" : ";", out));
    }
    return kld_buf_adds(report, "\n", err);
}

kld_status kld_compare_gates(const json_t *result, const char *const *gates, size_t n,
                             kld_buf *report, kld_err *err) {
    const struct metric *m;
    double limit;
    size_t failed = 0, total = 0;
    for (size_t g = 0; g < n; g++) TRY(parse(gates[g], &m, &limit, err));
    const json_t *cands = json_object_get(result, "candidates");
    for (size_t g = 0; g < n; g++) {
        TRY(parse(gates[g], &m, &limit, err));
        for (size_t k = 0; k < json_array_size(cands); k++, total++)
            TRY(check(json_array_get(cands, k), m, limit, &failed, report, err));
    }
    if (failed == 0) return KLD_OK;
    return kld_fail(err, KLD_E_GATE, "%zu of %zu gates failed", failed, total);
}

kld_status kld_compare_gates_record(json_t *result, const char *const *gates, size_t n,
                                    kld_err *err) {
    const struct metric *m;
    double limit;
    kld_emit e = {0};
    json_t *list = kld_emit_array(&e, result, "gates");
    const json_t *cands = json_object_get(result, "candidates");
    for (size_t g = 0; g < n; g++) {
        TRY(parse(gates[g], &m, &limit, err));
        for (size_t k = 0; k < json_array_size(cands); k++) {
            const json_t *c = json_array_get(cands, k);
            double v = value_of(c, m);
            json_t *o = kld_emit_object(&e, list, NULL);
            kld_emit_text(&e, o, "metric", m->name);
            kld_emit_real(&e, o, "limit", limit);
            kld_emit_count(&e, o, "candidate", k);
            kld_emit_real(&e, o, "value", v);
            kld_emit_bool(&e, o, "passed", whole(c) && v <= limit);
        }
    }
    return kld_emit_check(&e, err);
}

kld_status kld_gate_parse(const char *gate, const char **metric, double *limit, kld_err *err) {
    const struct metric *m;
    TRY(parse(gate, &m, limit, err));
    *metric = m->name;
    return KLD_OK;
}

const char *kld_gate_metric(size_t i) { return i < N_METRICS ? METRICS[i].name : NULL; }

double kld_gate_value(const json_t *candidate, const char *metric) {
    for (size_t m = 0; m < N_METRICS; m++)
        if (strcmp(METRICS[m].name, metric) == 0) return value_of(candidate, &METRICS[m]);
    return NAN;
}
