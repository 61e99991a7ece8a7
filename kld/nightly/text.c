/* A summary for people: verdicts, then captures. */
#include "kld/base/file.h"
#include "kld/nightly/keys.h"
#include "kld/nightly/nightly.h"

#include <math.h>
#include <string.h>

typedef struct out {
    kld_buf *b;
    bool markdown;
} out;

/* Text of files and errors: a code span in Markdown, where nothing in it has a meaning. */
static kld_status foreign(const out *o, const char *s, kld_err *err) {
    if (!o->markdown) return kld_buf_adds(o->b, s, err);
    TRY(kld_buf_adds(o->b, "`", err));
    for (; *s; s++) TRY(kld_buf_add(o->b, *s == '`' ? "'" : s, 1, err));
    return kld_buf_adds(o->b, "`", err);
}

static kld_status change(const out *o, const json_t *c, kld_err *err) {
    const json_t *good = json_object_get(c, "last_good"), *x = json_object_get(c, "change");
    const json_t *ci = json_object_get(x, "difference_ci95");
    const char *time = nightly_text(good, "time"), *why = nightly_text(c, "not_comparable");
    if (!json_is_object(good)) return kld_buf_adds(o->b, "; no good run before", err);
    TRY(kld_buf_addf(o->b, err, "; last good run %.*s: ", nightly_day(time), time));
    if (*why) return kld_buf_addf(o->b, err, "not comparable, %s", why);
    TRY(kld_buf_addf(o->b, err, "%.4g", nightly_real(good, "kl_mean")));
    if (json_is_true(json_object_get(x, "same_capture")))
        return kld_buf_adds(o->b, ", the same capture", err);
    if (!json_is_object(x)) return KLD_OK;
    TRY(kld_buf_addf(o->b, err, ", %+.4g", nightly_real(x, "difference")));
    if (json_is_array(ci))
        TRY(kld_buf_addf(o->b, err, " [%+.4g, %+.4g]", json_number_value(json_array_get(ci, 0)),
                         json_number_value(json_array_get(ci, 1))));
    return kld_buf_addf(o->b, err, ", %s", nightly_text(x, "verdict"));
}

static kld_status candidate(const out *o, const json_t *c, kld_err *err) {
    const char *outcome = nightly_text(c, "outcome");
    const json_t *gates = json_object_get(c, "gates");
    double kl = nightly_real(c, "kl_mean"), lo = nightly_real(c, "kl_lo"),
           hi = nightly_real(c, "kl_hi");
    TRY(kld_buf_addf(o->b, err, o->markdown ? "- **%s** " : "  %-7s ", outcome));
    if (strcmp(outcome, "error") == 0) {
        TRY(foreign(o, nightly_text(c, "reason"), err));
        return kld_buf_adds(o->b, "\n", err);
    }
    TRY(kld_buf_adds(o->b, nightly_text(c, "name"), err));
    if (isfinite(kl)) TRY(kld_buf_addf(o->b, err, ": mean KL %.4g", kl));
    else TRY(kld_buf_adds(o->b, ": no finite mean KL", err));
    if (isfinite(lo) && isfinite(hi)) TRY(kld_buf_addf(o->b, err, " [%.4g, %.4g]", lo, hi));
    TRY(change(o, c, err));
    TRY(kld_buf_adds(o->b, "\n", err));
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *g = json_array_get(gates, i);
        if (nightly_is(g, "outcome", "passed")) continue;
        TRY(kld_buf_addf(o->b, err, o->markdown ? "  - %s: %s\n" : "          %s: %s\n",
                         nightly_text(g, "outcome"), nightly_text(g, "text")));
    }
    return KLD_OK;
}

static kld_status capture(const out *o, const json_t *c, kld_err *err) {
    bool bad = nightly_is(c, "action", "failed") || nightly_is(c, "action", "skipped");
    const char *why = nightly_text(c, bad ? "error" : "why");
    TRY(kld_buf_addf(o->b, err, o->markdown ? "- %s %s" : "  %-8s %s", nightly_text(c, "action"),
                     nightly_text(c, "name")));
    if (*why) TRY(kld_buf_adds(o->b, ": ", err));
    if (*why) TRY(bad ? foreign(o, why, err) : kld_buf_adds(o->b, why, err));
    return kld_buf_adds(o->b, "\n", err);
}

kld_status kld_nightly_text(const json_t *summary, bool markdown, kld_buf *b, kld_err *err) {
    const out o = {.b = b, .markdown = markdown};
    const json_t *list = json_object_get(summary, "candidates");
    const char *title = markdown ? "### " : "", *gap = markdown ? "\n" : "";
    if (json_is_array(list)) {
        TRY(kld_buf_addf(b, err, "%s%s%s, %s, kld %s (%s)\n%s", markdown ? "## " : "",
                         markdown ? "Nightly: " : "", nightly_text(summary, "outcome"),
                         nightly_text(summary, "time"), nightly_text(summary, "version"),
                         nightly_text(summary, "commit"), gap));
        if (markdown && *nightly_text(summary, "label")) {
            TRY(foreign(&o, nightly_text(summary, "label"), err));
            TRY(kld_buf_adds(b, "\n\n", err));
        }
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(candidate(&o, json_array_get(list, i), err));
        TRY(kld_buf_adds(b, gap, err));
    }
    TRY(kld_buf_addf(b, err, "%s%s\n%s", title, list ? "Captures" : "Would be", gap));
    list = json_object_get(summary, "captures");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(capture(&o, json_array_get(list, i), err));
    return kld_buf_adds(b, gap, err);
}
