#include "kld/compare/table.h"

#include "kld/compare/table_routes.h"
#include "kld/compare/text.h"
#include "kld/compare/warnings.h"

#include <stdio.h>
#include <string.h>

enum { STRATUM = 28, STRATUM_CANDS = 5, WORST = 3 };

/* ---- blocks ------------------------------------------------------------------------------ */

static void head(text_out *o, const json_t *r) {
    const json_t *ref = json_object_get(r, "reference");
    text_style(o, "1");
    text_puts(o, "Reference  ");
    text_style(o, "0");
    text_name(o, text_of(ref, "name"), 60, false);
    if (*text_of(ref, "label")) {
        text_puts(o, " - ");
        text_name(o, text_of(ref, "label"), 24, false);
    }
    text_put(o, "; activations %s", text_of(ref, "activations"));
    text_put(
        o, "\n%lld positions, %lld windows, %lld source clusters; suite %.12s, vocabulary %lld\n",
        (long long)json_integer_value(text_at(r, "positions", NULL)),
        (long long)json_integer_value(text_at(r, "windows", NULL)),
        (long long)json_integer_value(text_at(r, "clusters", NULL)), text_of(ref, "suite_digest"),
        (long long)json_integer_value(text_at(ref, "vocab", NULL)));
    const json_t *cands = json_object_get(r, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        text_put(o, "%s[%zu] ", k + 1 < 10 ? " " : "", k + 1);
        bool routed = table_replayed(c);
        text_name(o, text_of(c, "name"), routed ? 30 : 48, false);
        if (*text_of(c, "label")) {
            text_puts(o, " - ");
            text_name(o, text_of(c, "label"), routed ? 24 : 30, false);
        }
        text_put(o, "; activations %s", text_of(c, "activations"));
        if (json_is_object(json_object_get(c, "exact"))) text_puts(o, "; exact");
        if (routed) table_replay_label(o, c);
        text_puts(o, "\n");
    }
    if (strcmp(text_of(json_object_get(r, "settings"), "head"), "shared") == 0)
        text_puts(o,
                  "One head for both sides, the reference's: what bodies differ by, not heads\n");
}

static bool invalid_row(text_out *o, const json_t *c) {
    if (!json_is_false(json_object_get(c, "valid"))) return false;
    bool none = json_integer_value(text_at(c, "nonfinite", "excluded")) == 0;
    text_style(o, "31");
    text_puts(o, none ? " 0 scored positions" : " INVALID: no finite position");
    text_style(o, "0");
    text_puts(o, "\n");
    return true;
}

static void main_row(text_out *o, const json_t *c, size_t k) {
    char s[10][TEXT_CELL];
    const json_t *kl = json_object_get(c, "kl"), *low = json_object_get(kl, "lower_bounds");
    text_row_name(o, c, k);
    if (invalid_row(o, c)) return;
    /* Without an estimate the quantiles shown are those of the lower bounds. */
    const json_t *q = low ? low : kl;
    const char *mark = low ? ">" : json_is_object(json_object_get(c, "exact")) ? "=" : " ";
    text_put(o, " %8s %16s %7s %s%6s %6s %5s %5s %5s %5s %6s\n",
             text_number(s[0], text_at(kl, "mean", NULL), 8),
             text_range(s[1], text_at(kl, "ci95", NULL)),
             text_number(s[2], text_at(kl, "lower_bound", NULL), 7), mark,
             text_number(s[3], text_at(q, "median", NULL), 6),
             text_number(s[4], text_at(q, "p99", NULL), 6),
             text_number(s[5], text_at(q, "max", NULL), 5),
             text_percent(s[6], text_at(c, "top1_agreement", NULL)),
             text_fixed(s[7], text_at(c, "top_p", "jaccard"), 3),
             text_fixed(s[8],
                        low ? text_at(c, "acceptance", "sampling_upper")
                            : text_at(c, "acceptance", "sampling"),
                        3),
             text_number(s[9], text_at(c, "perplexity", "ratio"), 6));
}

static void more_row(text_out *o, const json_t *c, size_t k, const char *overlap_k) {
    char s[12][TEXT_CELL];
    const json_t *tokens = text_at(c, "acceptance", "expected_tokens");
    text_row_name(o, c, k);
    if (invalid_row(o, c)) return;
    text_put(o, " %8s %8s %7s %7s %7s %6s %6s %6s %5s %5s %5s\n",
             text_number(s[0], text_at(c, "reverse_kl", "mean"), 8),
             text_number(s[1], text_at(c, "js", "mean"), 8),
             text_number(s[2], text_at(c, "tv", "mean"), 7),
             text_number(s[3], text_at(c, "kl", "p90"), 7),
             text_number(s[4], text_at(c, "kl", "p999"), 7),
             text_percent(s[5], text_at(c, "topk_overlap", overlap_k)),
             text_fixed(s[6], text_at(c, "top_p", "mass_on_reference"), 3),
             text_fixed(s[7], text_at(c, "top_p", "mass_on_candidate"), 3),
             text_fixed(s[8], text_at(tokens, "1", NULL), 3),
             text_fixed(s[9], text_at(tokens, "3", NULL), 3),
             text_fixed(s[10], text_at(tokens, "7", NULL), 3));
}

/* Words of `text` in lines of TEXT_WIDTH columns, later lines indented. */
static void wrap(text_out *o, const char *first, const char *text) {
    size_t col = strlen(first);
    text_puts(o, first);
    while (*text) {
        size_t n = strcspn(text, " ");
        if (col + 1 + n > TEXT_WIDTH) {
            text_puts(o, "\n   ");
            col = 3;
        }
        text_put(o, " %.*s", (int)n, text);
        col += 1 + n;
        text += n;
        text += strspn(text, " ");
    }
    text_puts(o, "\n");
}

/* The other mean: what documents of very different lengths would hide. */
static void document_means(text_out *o, const json_t *cands) {
    char text[1024] = "", s[TEXT_CELL];
    size_t used = 0;
    for (size_t k = 0; k < json_array_size(cands) && used + 64 < sizeof text; k++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "%s[%zu] %s", k ? "  " : "", k + 1,
            text_number(s, text_at(json_array_get(cands, k), "kl", "cluster_mean"), 8));
    text_puts(o, "\n");
    wrap(o, "Mean KL when each source cluster counts once:", text);
}

static void noise_floor(text_out *o, const json_t *r) {
    const json_t *fl = json_object_get(r, "floor");
    char s[TEXT_CELL];
    if (json_is_object(fl))
        text_put(o, "Noise floor: mean KL %s, from [%lld] (%s of the reference)\n",
                 text_number(s, text_at(fl, "kl_mean", NULL), 8),
                 (long long)json_integer_value(text_at(fl, "candidate", NULL)) + 1,
                 text_of(fl, "kind"));
    else wrap(o, "Noise floor: none:", KLD_ADD_FLOOR);
}

static void candidates(text_out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    size_t n = json_array_size(cands);
    char k_text[24];
    (void)snprintf(k_text, sizeof k_text, "%lld",
                   (long long)json_integer_value(text_at(r, "settings", "overlap_k")));
    text_title(
        o,
        "KL(reference || candidate), nats, mean over positions; nucleus at top-p; acc. = 1 - TV");
    text_put(o, "     %-*s %8s %16s %7s %7s %6s %5s %5s %5s %5s %6s\n", TEXT_NAME, "candidate",
             "mean KL", "95% interval", "bound", "median", "p99", "max", "top-1", "nucl.", "acc.",
             "ppl x");
    for (size_t k = 0; k < n; k++) main_row(o, json_array_get(cands, k), k);
    text_title(
        o, "Other divergences; mass of each on the other's nucleus; tokens a step for K drafts");
    text_put(o, "     %-*s %8s %8s %7s %7s %7s %6s %6s %6s %5s %5s %5s\n", TEXT_NAME, "candidate",
             "reverse", "JS", "TV", "KL p90", "p99.9", "top-k", "q(Np)", "p(Nq)", "K=1", "K=3",
             "K=7");
    for (size_t k = 0; k < n; k++) more_row(o, json_array_get(cands, k), k, k_text);
    document_means(o, cands);
    noise_floor(o, r);
}

static void verdicts_title(text_out *o, const json_t *r) {
    long long family = (long long)json_integer_value(text_at(r, "settings", "tested_pairs"));
    char heading[160], holm[64] = "", margin[TABLE_MARGIN];
    if (family > 1)
        (void)snprintf(holm, sizeof holm, "; p and verdicts by Holm for %lld pairs", family);
    (void)snprintf(heading, sizeof heading, "Paired mean KL, 95 %% intervals, margin %s%s",
                   table_margin(margin, r), holm);
    text_title(o, heading);
    text_put(o, " %-9s %9s %18s %7s %16s %7s  %s\n", "pair", "change", "95% interval", "ratio",
             "95% interval", "p", "verdict");
}

static const char *p_value(char cell[TEXT_CELL], const json_t *p) {
    return json_is_number(p) && json_number_value(p) < 0.001 ? "<0.001" : text_fixed(cell, p, 3);
}

static void verdicts(text_out *o, const json_t *r) {
    const json_t *pairs = json_object_get(r, "pairs");
    bool first = true;
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *p = json_array_get(pairs, i), *holm = json_object_get(p, "p_holm");
        if (table_pair_told_elsewhere(r, p)) continue;
        if (first) verdicts_title(o, r);
        first = false;
        char s[4][TEXT_CELL], p_text[TEXT_CELL];
        const char *verdict = table_pair_verdict(p);
        text_put(o, " [%lld] - [%lld] %9s %18s %7s %16s %7s  ",
                 (long long)json_integer_value(text_at(p, "candidate", NULL)) + 1,
                 (long long)json_integer_value(text_at(p, "baseline", NULL)) + 1,
                 text_number(s[0], text_at(p, "difference", NULL), 9),
                 text_range(s[1], text_at(p, "difference_ci95", NULL)),
                 text_number(s[2], text_at(p, "ratio", NULL), 7),
                 text_range(s[3], text_at(p, "ratio_ci95", NULL)),
                 p_value(p_text, json_is_number(holm) ? holm : text_at(p, "p_value", NULL)));
        text_style(o, strcmp(verdict, "worse") == 0    ? "31"
                      : strcmp(verdict, "better") == 0 ? "32"
                                                       : "0");
        text_puts(o, verdict);
        text_style(o, "0");
        text_puts(o, "\n");
    }
}

static void strata(text_out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    const json_t *first = json_object_get(json_array_get(cands, 0), "by_stratum");
    size_t all = json_array_size(cands), n = all, rows = json_array_size(first);
    if (rows < 2) return;
    if (n > STRATUM_CANDS) n = STRATUM_CANDS;
    text_title(o, "Mean KL by stratum");
    text_put(o, "     %-*s %10s", STRATUM, "stratum", "positions");
    for (size_t k = 0; k < n; k++) text_put(o, "      [%zu] ", k + 1);
    text_puts(o, "\n");
    for (size_t h = 0; h < rows; h++) {
        const json_t *row = json_array_get(first, h);
        text_puts(o, "     ");
        text_name(o, *text_of(row, "stratum") ? text_of(row, "stratum") : "(none)", STRATUM, true);
        text_put(o, " %10lld", (long long)json_integer_value(text_at(row, "positions", NULL)));
        for (size_t k = 0; k < n; k++) {
            const json_t *by = json_object_get(json_array_get(cands, k), "by_stratum");
            char s[TEXT_CELL];
            text_put(o, " %9s", text_number(s, text_at(json_array_get(by, h), "kl_mean", NULL), 9));
        }
        text_puts(o, "\n");
    }
    if (all > n) text_put(o, "     [%zu] to [%zu] are in --json\n", n + 1, all);
}

/* The last n characters of s. */
static void tail(text_out *o, const char *s, size_t n) {
    size_t i = strlen(s);
    while (i > 0 && n > 0) {
        do i--;
        while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80);
        n--;
    }
    text_puts(o, s + i);
}

static void worst_row(text_out *o, const json_t *w) {
    const json_t *ref = json_array_get(json_object_get(w, "reference_top5"), 0);
    const json_t *cand = json_array_get(json_object_get(w, "candidate_top5"), 0);
    char s[TEXT_CELL];
    text_put(o, " %6s  ", text_number(s, json_object_get(w, "kl"), 6));
    tail(o, text_of(json_object_get(w, "context"), "text"), 36);
    text_puts(o, "|");
    text_name(o, text_of(w, "next_text"), 12, false);
    text_puts(o, "|  reference ");
    text_name(o, text_of(ref, "text"), 10, false);
    text_puts(o, ", candidate ");
    text_name(o, text_of(cand, "text"), 10, false);
    text_puts(o, "\n");
}

/* Only where there is a text: numbers of tokens tell nobody anything. */
static void worst(text_out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    bool first = true;
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *list = text_at(json_array_get(cands, k), "kl", "worst");
        if (json_is_string(text_at(json_array_get(cands, k), "floor", NULL))) continue;
        for (size_t i = 0; i < json_array_size(list) && i < WORST; i++) {
            const json_t *w = json_array_get(list, i);
            if (!json_is_string(json_object_get(w, "next_text")) ||
                json_number_value(json_object_get(w, "kl")) == 0)
                break;
            if (first)
                text_title(o, "Largest KL: text before |the token that follows|, most probable of "
                              "each side");
            first = false;
            text_put(o, "%s[%zu]", k + 1 < 10 ? " " : "", k + 1);
            worst_row(o, w);
        }
    }
}

static bool loud(const char *code) {
    static const char *const codes[] = {"invalid", "excluded", "arithmetic_mismatch", "infinite",
                                        "replay_broken"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(code, codes[i]) == 0) return true;
    return false;
}

/* Of a code that several candidates share the first is told and the others are named, unless it
 * is a loud one.  Returns whether warning i was told with an earlier one. */
static bool fold(const json_t *list, size_t i, char *others, size_t room) {
    const json_t *w = json_array_get(list, i);
    const char *code = text_of(w, "code");
    size_t used = 0;
    others[0] = '\0';
    if (!json_is_integer(json_object_get(w, "candidate")) || loud(code)) return false;
    for (size_t j = 0; j < json_array_size(list); j++) {
        const json_t *x = json_array_get(list, j);
        if (j == i || strcmp(text_of(x, "code"), code) != 0) continue;
        if (j < i) return true;
        long long k = (long long)json_integer_value(json_object_get(x, "candidate")) + 1;
        if (used + 32 < room)
            used += (size_t)snprintf(others + used, room - used, "%s[%lld]",
                                     used ? " " : ". Likewise ", k);
    }
    return false;
}

static void warnings(text_out *o, const json_t *r) {
    const json_t *list = json_object_get(r, "warnings");
    if (json_array_size(list) == 0) return;
    text_title(o, "Warnings");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *c = json_object_get(w, "candidate");
        char lead[32] = "  -", text[1024], others[256];
        if (strcmp(text_of(w, "code"), "no_floor") == 0) continue; /* has a line of its own */
        if (fold(list, i, others, sizeof others)) continue;
        if (json_is_integer(c))
            (void)snprintf(lead, sizeof lead, "  [%lld]", (long long)json_integer_value(c) + 1);
        bool red = loud(text_of(w, "code"));
        if (red) {
            text_style(o, "31");
            size_t n = strlen(lead);
            (void)snprintf(lead + n, sizeof lead - n, " %s", "WARNING:");
        }
        (void)snprintf(text, sizeof text, "%s%s", text_of(w, "text"), others);
        wrap(o, lead, text);
        if (red) text_style(o, "0");
    }
}

kld_status kld_compare_table(const json_t *result, bool color, kld_buf *out, kld_err *err) {
    if (!json_is_object(json_object_get(result, "reference")) ||
        !json_is_array(json_object_get(result, "candidates")))
        return kld_fail(err, KLD_E_INTERNAL, "not the result of a comparison");
    text_out o = {.b = out, .err = err, .st = KLD_OK, .color = color};
    head(&o, result);
    candidates(&o, result);
    verdicts(&o, result);
    strata(&o, result);
    table_routes(&o, result);
    table_cells(&o, result);
    worst(&o, result);
    warnings(&o, result);
    return o.st;
}
