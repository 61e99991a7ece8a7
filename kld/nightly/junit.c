#include "kld/nightly/junit.h"

#include "kld/nightly/keys.h"

#include <string.h>

static double seconds_of(const json_t *o) {
    return json_number_value(json_object_get(o, "seconds"));
}

/* Of an attribute's value.  XML 1.0 has no control characters and no U+FFFE and U+FFFF. */
static kld_status escaped(kld_buf *b, const char *s, kld_err *err) {
    for (; *s; s++) {
        switch (*s) {
        case '&': TRY(kld_buf_adds(b, "&amp;", err)); break;
        case '<': TRY(kld_buf_adds(b, "&lt;", err)); break;
        case '>': TRY(kld_buf_adds(b, "&gt;", err)); break;
        case '"': TRY(kld_buf_adds(b, "&quot;", err)); break;
        case '\'': TRY(kld_buf_adds(b, "&#39;", err)); break;
        default:
            if (!strncmp(s, "\xEF\xBF\xBE", 3) || !strncmp(s, "\xEF\xBF\xBF", 3)) {
                TRY(kld_buf_adds(b, "?", err));
                s += 2;
            } else {
                bool control = (unsigned char)*s < 0x20 || *s == 0x7f;
                TRY(kld_buf_add(b, control ? "?" : s, 1, err));
            }
        }
    }
    return KLD_OK;
}

static kld_status attribute(kld_buf *b, const char *name, const char *value, kld_err *err) {
    TRY(kld_buf_addf(b, err, " %s=\"", name));
    TRY(escaped(b, value, err));
    return kld_buf_adds(b, "\"", err);
}

/* A case; verdict NULL, or "error", "failure" or "skipped" with its message. */
static kld_status testcase(kld_buf *b, const char *class, const char *name, double seconds,
                           const char *verdict, const char *message, kld_err *err) {
    TRY(kld_buf_adds(b, "    <testcase", err));
    TRY(attribute(b, "classname", class, err));
    TRY(attribute(b, "name", name, err));
    TRY(kld_buf_addf(b, err, " time=\"%.3f\"", seconds));
    if (!verdict) return kld_buf_adds(b, "/>\n", err);
    TRY(kld_buf_addf(b, err, "><%s", verdict));
    TRY(attribute(b, "message", message, err));
    return kld_buf_adds(b, "/></testcase>\n", err);
}

static kld_status suite_begin(kld_buf *b, const char *name, size_t tests, size_t failures,
                              size_t errors, size_t skipped, double seconds, const char *time,
                              kld_err *err) {
    size_t n = strlen(time);
    TRY(kld_buf_adds(b, "  <testsuite", err));
    TRY(attribute(b, "name", name, err));
    TRY(kld_buf_addf(b, err,
                     " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" time=\"%.3f\" "
                     "timestamp=\"%.*s\">\n",
                     tests, failures, errors, skipped, seconds, (int)(n ? n - 1 : 0), time));
    return KLD_OK;
}

static kld_status captures(kld_buf *b, const json_t *list, const char *time, kld_err *err) {
    size_t errors = 0, skipped = 0, n = json_array_size(list);
    double seconds = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(list, i);
        errors += nightly_is(c, "action", "failed");
        skipped += nightly_is(c, "action", "skipped");
        seconds += seconds_of(c);
    }
    TRY(suite_begin(b, "captures", n, 0, errors, skipped, seconds, time, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(list, i);
        const char *verdict = nightly_is(c, "action", "failed")    ? "error"
                              : nightly_is(c, "action", "skipped") ? "skipped"
                                                                   : NULL;
        TRY(testcase(b, "kld.captures", nightly_text(c, "name"), seconds_of(c), verdict,
                     nightly_text(c, "error"), err));
    }
    return kld_buf_adds(b, "  </testsuite>\n", err);
}

static kld_status gate(kld_buf *b, const char *class, const json_t *g, kld_err *err) {
    kld_buf name = {0};
    double limit = json_number_value(json_object_get(g, "limit"));
    bool growth = nightly_is(g, "kind", "regression");
    kld_status st = kld_buf_addf(&name, err, growth ? "%s growth <= %g %%" : "%s <= %g",
                                 nightly_text(g, "metric"), growth ? 100 * limit : limit);
    const char *verdict = nightly_is(g, "outcome", "failed")    ? "failure"
                          : nightly_is(g, "outcome", "skipped") ? "skipped"
                                                                : NULL;
    if (st == KLD_OK)
        st = testcase(b, class, (const char *)name.data, 0, verdict, nightly_text(g, "text"), err);
    kld_buf_free(&name);
    return st;
}

static kld_status candidate(kld_buf *b, const json_t *c, const char *time, kld_err *err) {
    const json_t *gates = json_object_get(c, "gates");
    bool error = nightly_is(c, "outcome", "error");
    /* What was not captured is an error of its capture, and counts once. */
    bool captured = json_is_true(json_object_get(c, "captured"));
    size_t n = json_array_size(gates), failures = 0, skipped = error && !captured;
    for (size_t i = 0; i < n; i++) {
        failures += nightly_is(json_array_get(gates, i), "outcome", "failed");
        skipped += nightly_is(json_array_get(gates, i), "outcome", "skipped");
    }
    kld_buf class = {0};
    kld_status st = kld_buf_addf(&class, err, "kld.%s", nightly_text(c, "name"));
    if (st == KLD_OK)
        st = suite_begin(b, nightly_text(c, "name"), n + 1, failures, error && captured, skipped, 0,
                         time, err);
    if (st == KLD_OK)
        st = testcase(b, (const char *)class.data, "measured", 0,
                      !error     ? NULL
                      : captured ? "error"
                                 : "skipped",
                      nightly_text(c, "reason"), err);
    for (size_t i = 0; i < n && st == KLD_OK; i++)
        st = gate(b, (const char *)class.data, json_array_get(gates, i), err);
    kld_buf_free(&class);
    return st == KLD_OK ? kld_buf_adds(b, "  </testsuite>\n", err) : st;
}

kld_status nightly_junit(const json_t *summary, kld_buf *out, kld_err *err) {
    const json_t *list = json_object_get(summary, "candidates");
    const char *time = nightly_text(summary, "time");
    TRY(kld_buf_adds(out,
                     "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                     "<testsuites name=\"kld nightly\">\n",
                     err));
    TRY(captures(out, json_object_get(summary, "captures"), time, err));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(candidate(out, json_array_get(list, i), time, err));
    return kld_buf_adds(out, "</testsuites>\n", err);
}
