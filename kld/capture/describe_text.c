/* kld suite info for people.  Every line is made from the JSON object, so the two cannot
 * disagree. */
#include "kld/capture/describe.h"

#include "kld/capture/tell.h"

#include <string.h>

enum { WIDTH = 24 };

static kld_status source_lines(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *sources = json_object_get(v, "sources"), *s;
    size_t n = json_array_size(sources);
    if (n == 0) return KLD_OK;
    TRY(kld_buf_addf(out, err, "\n%-24s %-16s %6s %10s %9s %11s\n", "source", "revision", "files",
                     "documents", "windows", "positions"));
    for (size_t i = 0; i < n; i++) {
        s = json_array_get(sources, i);
        const json_t *files = json_object_get(s, "files");
        const char *first = json_string_value(json_array_get(files, 0));
        const char *slash = first ? strrchr(first, '/') : NULL;
        if (slash) first = slash + 1;
        TRY(tell_name(*tell_str(s, "dataset") ? tell_str(s, "dataset")
                      : first                 ? first
                                              : "",
                      WIDTH, out, err));
        TRY(kld_buf_adds(out, " ", err));
        TRY(tell_name(tell_str(s, "revision"), 16, out, err));
        TRY(kld_buf_addf(out, err, " %6zu %10.0f %9.0f %11.0f\n", json_array_size(files),
                         tell_num(s, "documents"), tell_num(s, "windows"),
                         tell_num(s, "positions")));
    }
    return KLD_OK;
}

static kld_status quota_lines(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *quotas = json_object_get(v, "allocation");
    for (size_t i = 0; i < json_array_size(quotas); i++) {
        const json_t *q = json_array_get(quotas, i);
        TRY(kld_buf_addf(out, err, "  of source %.0f", tell_num(q, "source")));
        if (json_is_string(json_object_get(q, "stratum"))) {
            TRY(kld_buf_adds(out, ", stratum ", err));
            TRY(tell_name(tell_str(q, "stratum"), 0, out, err));
        }
        TRY(kld_buf_addf(out, err, ": %.0f %s asked, %.0f windows with %.0f tokens taken\n",
                         tell_num(q, "asked"),
                         strcmp(tell_str(q, "unit"), "tokens") ? "windows" : "tokens",
                         tell_num(q, "windows"), tell_num(q, "tokens")));
    }
    return KLD_OK;
}

static kld_status row(const json_t *c, const char *stratum, kld_buf *out, kld_err *err) {
    const char *partition =
        json_object_get(c, "name") ? tell_str(c, "name") : tell_str(c, "partition");
    TRY(tell_name(*partition ? partition : "-", WIDTH, out, err));
    TRY(kld_buf_adds(out, " ", err));
    TRY(tell_name(*stratum ? stratum : "-", WIDTH, out, err));
    return kld_buf_addf(out, err, " %9.0f %9.0f %11.0f\n", tell_num(c, "clusters"),
                        tell_num(c, "windows"), tell_num(c, "positions"));
}

/* The strata of each partition, then all of it where there are several. */
static kld_status cell_lines(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *cells = json_object_get(v, "cells"), *parts = json_object_get(v, "partitions");
    size_t at = 0;
    TRY(kld_buf_addf(out, err, "\n%-24s %-24s %9s %9s %11s\n", "partition", "stratum", "clusters",
                     "windows", "positions"));
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *p = json_array_get(parts, i);
        size_t n = 0;
        for (; at < json_array_size(cells); at++, n++) {
            const json_t *c = json_array_get(cells, at);
            if (strcmp(tell_str(c, "partition"), tell_str(p, "name")) != 0) break;
            TRY(row(c, tell_str(c, "stratum"), out, err));
        }
        if (n > 1) TRY(row(p, "all strata", out, err));
    }
    return KLD_OK;
}

static kld_status choice_lines(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *c = json_object_get(v, "choice");
    if (!json_is_object(c)) return KLD_OK;
    TRY(kld_buf_addf(out, err, "  seed %.0f", tell_num(v, "seed")));
    if (tell_num(c, "per_document") > 0)
        TRY(kld_buf_addf(out, err, ", at most %.0f windows a document",
                         tell_num(c, "per_document")));
    if (tell_num(c, "per_cluster") > 0)
        TRY(kld_buf_addf(out, err, ", at most %.0f windows a cluster", tell_num(c, "per_cluster")));
    if (*tell_str(c, "split")) {
        TRY(kld_buf_adds(out, ", clusters split ", err));
        TRY(tell_name(tell_str(c, "split"), 0, out, err));
    }
    if (tell_num(c, "documents_excluded") > 0)
        TRY(kld_buf_addf(out, err, ", %.0f documents left out for overlap",
                         tell_num(c, "documents_excluded")));
    return kld_buf_adds(out, "\n", err);
}

kld_status kld_suite_describe_text(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *scored = json_object_get(v, "scored"), *same = json_object_get(v, "repeated");
    const char *bos = tell_str(v, "bos");
    TRY(tell_name(tell_str(v, "suite"), 0, out, err));
    TRY(kld_buf_addf(out, err,
                     ": %.0f windows, %.0f tokens, %.0f scored positions, digest %.12s\n"
                     "  windows of at most %.0f, %.0f apart; BOS: %s; tokenizer %.12s with %.0f "
                     "ids\n",
                     tell_num(v, "windows"), tell_num(v, "tokens"), tell_num(v, "positions"),
                     tell_str(v, "digest"), tell_num(v, "window"), tell_num(v, "stride"),
                     *bos ? bos : "not known", tell_str(v, "tokenizer"), tell_num(v, "vocab")));
    TRY(choice_lines(v, out, err));
    TRY(kld_buf_addf(out, err, "  %.0f ids are scored, at most %.0f times each (%.2f on average); ",
                     tell_num(scored, "ids"), tell_num(scored, "most"), tell_num(scored, "mean")));
    TRY(kld_buf_addf(out, err, "%.0f windows repeat another\n", tell_num(same, "windows")));
    TRY(source_lines(v, out, err));
    TRY(quota_lines(v, out, err));
    TRY(cell_lines(v, out, err));
    size_t i;
    json_t *w;
    json_array_foreach(json_object_get(v, "warnings"), i, w) {
        TRY(kld_buf_adds(out, i ? "" : "\n", err));
        TRY(kld_buf_adds(out, "warning: ", err));
        TRY(tell_name(tell_str(w, "text"), 0, out, err));
        TRY(kld_buf_adds(out, "\n", err));
    }
    return KLD_OK;
}
