#include "kld/compare/markdown.h"

#include "kld/compare/table_routes.h"
#include "kld/compare/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- cells ------------------------------------------------------------------------------ */

static bool starts_www(const char *s, size_t i) {
    return i >= 3 && memcmp(s + i - 3, "www", 3) == 0;
}

/* Text of others.  Any ASCII punctuation may be escaped; these begin markup, a link, a mention or
 * another column. */
static void name(text_out *o, const char *s) {
    for (size_t i = 0; s[i]; i++) {
        char c = s[i], two[3] = {'\\', c, 0};
        bool special = strchr("\\`*_[]<>#|~&$@", c) || (c == ':' && s[i + 1] == '/') ||
                       (c == '.' && starts_www(s, i));
        if ((unsigned char)c < 0x20 || c == 0x7f) text_puts(o, " ");
        else text_puts(o, special ? two : two + 1);
    }
}

static const json_t *candidate(const json_t *r, const json_t *index) {
    return json_is_integer(index)
               ? json_array_get(json_object_get(r, "candidates"), (size_t)json_integer_value(index))
               : NULL;
}

static void title_of(text_out *o, const json_t *c) {
    const char *label = text_of(c, "label");
    name(o, text_of(c, "name"));
    if (*label) {
        text_puts(o, " (");
        name(o, label);
        text_puts(o, ")");
    }
}

/* Six decimals, as such tables are published; of less than 1e-4 four significant digits. */
static const char *mean(char cell[TEXT_CELL], const json_t *v) {
    double x = json_number_value(v);
    if (!json_is_number(v)) return "-";
    if (x != 0 && fabs(x) < 1e-4) return text_number(cell, v, 12);
    (void)snprintf(cell, TEXT_CELL, "%.6f", x);
    return cell;
}

static void range(text_out *o, const json_t *v) {
    char s[2][TEXT_CELL];
    if (!json_is_array(v)) text_puts(o, "-");
    else
        text_put(o, "%s to %s", mean(s[0], json_array_get(v, 0)), mean(s[1], json_array_get(v, 1)));
}

static const char *percent(char cell[TEXT_CELL], const json_t *v) {
    if (!json_is_number(v)) return "-";
    double x = 100 * json_number_value(v);
    /* 99.996 must not read as 100. */
    (void)snprintf(cell, TEXT_CELL, "%.2f", x == 100 ? x : fmin(x, 99.99));
    return cell;
}

static const char *number(char cell[TEXT_CELL], const json_t *v) { return text_number(cell, v, 8); }

/* A cell: "natural" or, with a fixed-route capture, "natural / fixed"; then the unit. */
static void both(text_out *o, const json_t *natural, const json_t *fixed, const json_t *f,
                 const char *(*show)(char *, const json_t *), const char *unit) {
    char s[2][TEXT_CELL];
    text_put(o, " | %s", show(s[0], natural));
    if (f) text_put(o, " / %s", show(s[1], fixed));
    text_puts(o, unit);
}

/* ---- candidates --------------------------------------------------------------------------- */

static const json_t *fixed_of(const json_t *r, const json_t *c) {
    return candidate(r, text_at(json_object_get(c, "cells"), "candidates", "BxQ"));
}

/* Shown beside the candidate whose cell it is. */
static bool is_fixed(const json_t *c) {
    return strcmp(text_of(json_object_get(c, "routing"), "cell"), "BxQ") == 0;
}

static bool any_fixed(const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++)
        if (fixed_of(r, json_array_get(cands, k))) return true;
    return false;
}

static void row_title(text_out *o, const json_t *c, size_t k) {
    text_put(o, "| %zu. ", k + 1);
    title_of(o, c);
    if (table_replayed(c)) table_replay_label(o, c);
    if (json_is_false(json_object_get(c, "valid")))
        text_puts(o, " **INVALID: no finite position**");
}

/* Quantiles are those of the bounds when there is no estimate. */
static const json_t *quantile(const json_t *c, const char *which) {
    const json_t *kl = json_object_get(c, "kl"), *low = json_object_get(kl, "lower_bounds");
    return json_object_get(low ? low : kl, which);
}

static void main_row(text_out *o, const json_t *r, size_t k, bool fixed) {
    const json_t *c = json_array_get(json_object_get(r, "candidates"), k), *f = fixed_of(r, c);
    char s[TEXT_CELL];
    row_title(o, c, k);
    text_put(o, " | %s", mean(s, text_at(c, "kl", "mean")));
    if (fixed) text_put(o, " | %s", mean(s, text_at(f, "kl", "mean")));
    both(o, text_at(c, "js", "mean"), text_at(f, "js", "mean"), f, number, "");
    both(o, text_at(c, "top1_agreement", NULL), text_at(f, "top1_agreement", NULL), f, percent,
         " %");
    both(o, quantile(c, "p99"), quantile(f, "p99"), f, number, "");
    both(o, quantile(c, "p999"), quantile(f, "p999"), f, number, "");
    both(o, quantile(c, "max"), quantile(f, "max"), f, number, "");
    text_puts(o, " |\n");
}

static const char *kind(const json_t *kl) {
    if (json_is_true(json_object_get(kl, "exact"))) return "exact";
    return json_is_number(json_object_get(kl, "mean")) ? "estimate" : "bound only";
}

static void more_row(text_out *o, const json_t *c, size_t k) {
    const json_t *kl = json_object_get(c, "kl"), *a = json_object_get(c, "acceptance");
    char s[8][TEXT_CELL];
    row_title(o, c, k);
    text_puts(o, " | ");
    range(o, json_object_get(kl, "ci95"));
    text_put(o, " | %s | %s | ", mean(s[0], json_object_get(kl, "lower_bound")), kind(kl));
    text_put(o, "%s | %s | %s | %s / %s / %s | %s |\n",
             number(s[1], text_at(c, "top_p", "jaccard")), number(s[2], text_at(c, "top_p", "tv")),
             number(s[3], json_is_number(json_object_get(a, "sampling"))
                              ? json_object_get(a, "sampling")
                              : json_object_get(a, "sampling_upper")),
             number(s[4], text_at(a, "expected_tokens", "1")),
             number(s[5], text_at(a, "expected_tokens", "3")),
             number(s[6], text_at(a, "expected_tokens", "7")),
             number(s[7], text_at(c, "perplexity", "ratio")));
}

static void candidates(text_out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    bool fixed = any_fixed(r);
    const char *sides = fixed ? " (natural / fixed)" : "";
    text_put(o, "\n| candidate | %s | %sJS%s | top-1%s | p99%s | p99.9%s | max%s |\n",
             fixed ? "natural KLD" : "KLD", fixed ? "fixed-route KLD | " : "", sides, sides, sides,
             sides, sides);
    text_put(o, "| --- | ---: | %s---: | ---: | ---: | ---: | ---: |\n", fixed ? "---: | " : "");
    for (size_t k = 0; k < json_array_size(cands); k++)
        if (!is_fixed(json_array_get(cands, k))) main_row(o, r, k, fixed);
    text_put(o,
             "\n| candidate | KLD, 95 %% interval | guaranteed bound | KLD is | nucleus Jaccard, "
             "top-p %g | nucleus TV | acceptance | tokens a step, K = 1 / 3 / 7 | perplexity x |\n"
             "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n",
             json_number_value(text_at(r, "settings", "top_p")));
    for (size_t k = 0; k < json_array_size(cands); k++) more_row(o, json_array_get(cands, k), k);
}

/* ---- below the tables --------------------------------------------------------------------- */

static void pairs(text_out *o, const json_t *r) {
    const json_t *list = json_object_get(r, "pairs");
    char margin[TABLE_MARGIN];
    bool first = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        if (table_pair_told_elsewhere(r, p)) continue;
        if (first)
            text_put(o,
                     "\n| paired change of mean KLD, margin %s | difference | 95 %% interval | "
                     "ratio | 95 %% interval | verdict |\n"
                     "| --- | ---: | ---: | ---: | ---: | --- |\n",
                     table_margin(margin, r));
        first = false;
        char s[TEXT_CELL];
        text_puts(o, "| ");
        title_of(o, candidate(r, json_object_get(p, "candidate")));
        text_puts(o, " minus ");
        title_of(o, candidate(r, json_object_get(p, "baseline")));
        text_put(o, " | %s | ", mean(s, json_object_get(p, "difference")));
        range(o, json_object_get(p, "difference_ci95"));
        text_put(o, " | %s | ", number(s, json_object_get(p, "ratio")));
        range(o, json_object_get(p, "ratio_ci95"));
        text_puts(o, " | ");
        name(o, table_pair_verdict(p));
        if (json_is_number(json_object_get(p, "p_holm")))
            text_put(o, ", Holm p %.2g", json_number_value(json_object_get(p, "p_holm")));
        text_puts(o, " |\n");
    }
}

static void cells(text_out *o, const json_t *r) {
    static const char *const CELL[] = {"BxB", "BxQ", "QxB", "QxQ", "interaction"};
    const json_t *cands = json_object_get(r, "candidates");
    bool first = true;
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k), *x = json_object_get(c, "cells");
        char s[TEXT_CELL];
        if (!json_is_object(x)) continue;
        if (first)
            text_puts(o, "\n| mean KLD, routes x weights (B reference, Q candidate) | BxB | BxQ | "
                         "QxB | QxQ | interaction |\n| --- | ---: | ---: | ---: | ---: | ---: |\n");
        first = false;
        row_title(o, c, k);
        for (size_t i = 0; i < sizeof CELL / sizeof *CELL; i++)
            text_put(o, " | %s", mean(s, json_object_get(x, CELL[i])));
        text_puts(o, " |\n");
    }
}

static void noise_floor(text_out *o, const json_t *r) {
    const json_t *f = json_object_get(r, "floor");
    char s[TEXT_CELL];
    if (!json_is_object(f)) {
        text_puts(o, "\nNoise floor: not measured (no repeat capture of the reference).\n");
        return;
    }
    text_put(o, "\nNoise floor: mean KLD %s, ", mean(s, json_object_get(f, "kl_mean")));
    title_of(o, candidate(r, json_object_get(f, "candidate")));
    text_put(o, ", %s of the reference%s.\n", text_of(f, "kind"),
             json_is_false(json_object_get(f, "verified")) ? ", not verified byte for byte" : "");
}

static void gates(text_out *o, const json_t *r) {
    const json_t *list = json_object_get(r, "gates");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *g = json_array_get(list, i);
        char s[TEXT_CELL];
        text_put(o, "%s- gate **%s**: ", i ? "" : "\n",
                 json_is_true(json_object_get(g, "passed")) ? "passed" : "FAILED");
        title_of(o, candidate(r, json_object_get(g, "candidate")));
        text_puts(o, ", ");
        name(o, text_of(g, "metric"));
        text_put(o, " %s", number(s, json_object_get(g, "value")));
        text_put(o, ", limit %s\n", number(s, json_object_get(g, "limit")));
    }
}

static void digest(text_out *o, const char *what, const json_t *side, const char *key) {
    if (!*text_of(side, key)) return;
    text_put(o, ", %s ", what);
    name(o, text_of(side, key));
}

static void identities(text_out *o, const json_t *r) {
    const json_t *ref = json_object_get(r, "reference"), *cands = json_object_get(r, "candidates");
    text_puts(o, "\n<details><summary>Identities and settings</summary>\n\n- reference: ");
    title_of(o, ref);
    digest(o, "activations", ref, "activations");
    digest(o, "capture", ref, "content_digest");
    digest(o, "model", ref, "model_digest");
    digest(o, "suite", ref, "suite_digest");
    digest(o, "tokenizer", ref, "tokenizer_digest");
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        text_put(o, "\n- %zu. ", k + 1);
        title_of(o, c);
        digest(o, "activations", c, "activations");
        digest(o, "compared", c, "capture");
        digest(o, "capture", c, "content_digest");
        digest(o, "model", c, "model_digest");
    }
    json_t *set = json_object_get(r, "settings"), *v;
    const char *key;
    text_puts(o, "\n- settings: ");
    bool first = true;
    json_object_foreach(set, key, v) {
        text_puts(o, first ? "" : ", ");
        first = false;
        name(o, key);
        text_puts(o, " ");
        if (json_is_integer(v)) text_put(o, "%lld", (long long)json_integer_value(v));
        else if (json_is_number(v)) text_put(o, "%g", json_number_value(v));
        else if (json_is_boolean(v)) text_puts(o, json_is_true(v) ? "yes" : "no");
        else name(o, json_is_string(v) ? json_string_value(v) : "none");
    }
    text_puts(o, "\n- kld ");
    name(o, text_of(json_object_get(r, "tool"), "version"));
    digest(o, "commit", json_object_get(r, "tool"), "commit");
    text_puts(o, "\n\n</details>\n");
}

static void warnings(text_out *o, const json_t *r) {
    const json_t *list = json_object_get(r, "warnings");
    if (json_array_size(list)) text_puts(o, "\n**Warnings**\n\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *c = json_object_get(w, "candidate");
        text_puts(o, "- ");
        if (json_is_integer(c)) text_put(o, "%lld. ", (long long)json_integer_value(c) + 1);
        name(o, text_of(w, "text"));
        text_puts(o, "\n");
    }
}

kld_status kld_compare_markdown(const json_t *result, kld_buf *out, kld_err *err) {
    const json_t *ref = json_object_get(result, "reference");
    if (!json_is_object(ref) || !json_is_array(json_object_get(result, "candidates")))
        return kld_fail(err, KLD_E_INTERNAL, "not the result of a comparison");
    text_out o = {.b = out, .err = err, .st = KLD_OK};
    text_puts(&o, "KLD is KL(reference ‖ candidate) in nats against ");
    title_of(&o, ref);
    text_put(&o, ": %lld positions, %lld windows, %lld source clusters.\n",
             (long long)json_integer_value(json_object_get(result, "positions")),
             (long long)json_integer_value(json_object_get(result, "windows")),
             (long long)json_integer_value(json_object_get(result, "clusters")));
    if (strcmp(text_of(json_object_get(result, "settings"), "head"), "shared") == 0)
        text_puts(&o,
                  "One head for both sides, the reference's: what bodies differ by, not heads.\n");
    candidates(&o, result);
    pairs(&o, result);
    cells(&o, result);
    noise_floor(&o, result);
    gates(&o, result);
    warnings(&o, result);
    identities(&o, result);
    return o.st;
}
