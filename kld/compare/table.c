#include "kld/compare/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 100, NAME = 14, STRATUM = 28, STRATUM_CANDS = 5, CELL = 48 };

/* The first failure stays; later writes do nothing. */
struct out {
    kld_buf *b;
    kld_err *err;
    kld_status st;
    bool color;
};

static void puts_(struct out *o, const char *s) {
    if (o->st == KLD_OK) o->st = kld_buf_adds(o->b, s, o->err);
}

KLD_PRINTF(2, 3) static void put(struct out *o, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    puts_(o, line);
}

static void style(struct out *o, const char *code) {
    if (o->color) put(o, "\x1b[%sm", code);
}

static void title(struct out *o, const char *text) {
    puts_(o, "\n");
    style(o, "1");
    puts_(o, text);
    style(o, "0");
    puts_(o, "\n");
}

/* ---- cells ------------------------------------------------------------------------------ */

static const json_t *at(const json_t *o, const char *a, const char *b) {
    o = json_object_get(o, a);
    return b ? json_object_get(o, b) : o;
}

static const char *text_of(const json_t *o, const char *a) {
    const char *s = json_string_value(json_object_get(o, a));
    return s ? s : "";
}

/* As many of four significant digits as fit into width; "-" for null; exactly "0" for zero. */
static const char *number(char cell[CELL], const json_t *v, size_t width) {
    if (!json_is_number(v)) return "-";
    double x = json_number_value(v);
    if (x == 0) return "0";
    for (int digits = 4; digits > 0; digits--) {
        size_t n = (size_t)snprintf(cell, CELL, digits > 1 ? "%#.*g" : "%.*g", digits, x);
        if (n && cell[n - 1] == '.') cell[--n] = 0;
        if (n <= width) break;
    }
    return cell;
}

static const char *fixed(char cell[CELL], const json_t *v, int decimals) {
    if (!json_is_number(v)) return "-";
    (void)snprintf(cell, CELL, "%.*f", decimals, json_number_value(v));
    return cell;
}

static const char *percent(char cell[CELL], const json_t *v) {
    if (!json_is_number(v)) return "-";
    double x = 100 * json_number_value(v);
    /* 99.96 must not read as 100. */
    if (x == 100) return "100%";
    (void)snprintf(cell, CELL, "%.1f%%", fmin(x, 99.9));
    return cell;
}

static const char *range(char cell[CELL], const json_t *v) {
    char a[CELL], b[CELL];
    if (!json_is_array(v)) return "-";
    const char *lo = number(a, json_array_get(v, 0), 7), *hi = number(b, json_array_get(v, 1), 7);
    (void)snprintf(cell, CELL, "%.20s..%.20s", lo, hi);
    return cell;
}

/* At most n characters of UTF-8, padded with spaces to n when pad. */
static void name(struct out *o, const char *s, size_t n, bool pad) {
    size_t chars = 0, i = 0, cut = 0;
    while (s[i]) {
        size_t next = i + 1;
        while (((unsigned char)s[next] & 0xC0) == 0x80) next++;
        if (chars + 1 == n) cut = i;
        i = next;
        chars++;
    }
    if (chars > n) {
        put(o, "%.*s~", (int)cut, s);
        return;
    }
    puts_(o, s);
    for (; pad && chars < n; chars++) puts_(o, " ");
}

/* ---- blocks ------------------------------------------------------------------------------ */

static void head(struct out *o, const json_t *r) {
    const json_t *ref = json_object_get(r, "reference");
    style(o, "1");
    puts_(o, "Reference  ");
    style(o, "0");
    name(o, text_of(ref, "name"), 60, false);
    if (*text_of(ref, "label")) {
        puts_(o, " - ");
        name(o, text_of(ref, "label"), 24, false);
    }
    put(o, "; activations %s", text_of(ref, "activations"));
    put(o, "\n%lld positions, %lld windows, %lld source clusters; suite %.12s, vocabulary %lld\n",
        (long long)json_integer_value(at(r, "positions", NULL)),
        (long long)json_integer_value(at(r, "windows", NULL)),
        (long long)json_integer_value(at(r, "clusters", NULL)), text_of(ref, "suite_digest"),
        (long long)json_integer_value(at(ref, "vocab", NULL)));
    const json_t *cands = json_object_get(r, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        put(o, "%s[%zu] ", k + 1 < 10 ? " " : "", k + 1);
        name(o, text_of(c, "name"), 48, false);
        if (*text_of(c, "label")) {
            puts_(o, " - ");
            name(o, text_of(c, "label"), 30, false);
        }
        put(o, "; activations %s", text_of(c, "activations"));
        puts_(o, "\n");
    }
}

static void row_name(struct out *o, const json_t *c, size_t k) {
    put(o, "%s[%zu] ", k + 1 < 10 ? " " : "", k + 1);
    const char *label = text_of(c, "label");
    name(o, *label ? label : text_of(c, "name"), NAME, true);
}

static bool invalid_row(struct out *o, const json_t *c) {
    if (!json_is_false(json_object_get(c, "valid"))) return false;
    style(o, "31");
    puts_(o, " INVALID: no finite position");
    style(o, "0");
    puts_(o, "\n");
    return true;
}

static void main_row(struct out *o, const json_t *c, size_t k) {
    char s[10][CELL];
    const json_t *kl = json_object_get(c, "kl"), *low = json_object_get(kl, "lower_bounds");
    row_name(o, c, k);
    if (invalid_row(o, c)) return;
    /* Without an estimate the quantiles shown are those of the lower bounds. */
    const json_t *q = low ? low : kl;
    put(o, " %8s %16s %7s %s%6s %6s %5s %5s %5s %5s %6s\n", number(s[0], at(kl, "mean", NULL), 8),
        range(s[1], at(kl, "ci95", NULL)), number(s[2], at(kl, "lower_bound", NULL), 7),
        low ? ">" : " ", number(s[3], at(q, "median", NULL), 6),
        number(s[4], at(q, "p99", NULL), 6), number(s[5], at(q, "max", NULL), 5),
        percent(s[6], at(c, "top1_agreement", NULL)), fixed(s[7], at(c, "top_p", "jaccard"), 3),
        fixed(s[8], low ? at(c, "acceptance", "sampling_upper") : at(c, "acceptance", "sampling"),
              3),
        number(s[9], at(c, "perplexity", "ratio"), 6));
}

static void more_row(struct out *o, const json_t *c, size_t k, const char *overlap_k) {
    char s[12][CELL];
    const json_t *tokens = at(c, "acceptance", "expected_tokens");
    row_name(o, c, k);
    if (invalid_row(o, c)) return;
    put(o, " %8s %8s %7s %7s %7s %6s %6s %6s %5s %5s %5s\n",
        number(s[0], at(c, "reverse_kl", "mean"), 8), number(s[1], at(c, "js", "mean"), 8),
        number(s[2], at(c, "tv", "mean"), 7), number(s[3], at(c, "kl", "p90"), 7),
        number(s[4], at(c, "kl", "p999"), 7), percent(s[5], at(c, "topk_overlap", overlap_k)),
        fixed(s[6], at(c, "top_p", "mass_on_reference"), 3),
        fixed(s[7], at(c, "top_p", "mass_on_candidate"), 3), fixed(s[8], at(tokens, "1", NULL), 3),
        fixed(s[9], at(tokens, "3", NULL), 3), fixed(s[10], at(tokens, "7", NULL), 3));
}

static void candidates(struct out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    size_t n = json_array_size(cands);
    char k_text[24];
    (void)snprintf(k_text, sizeof k_text, "%lld",
                   (long long)json_integer_value(at(r, "settings", "overlap_k")));
    title(o, "KL(reference || candidate), nats; nucleus at top-p; accept = 1 - TV");
    put(o, "     %-*s %8s %16s %7s %7s %6s %5s %5s %5s %5s %6s\n", NAME, "candidate", "mean KL",
        "95% interval", "bound", "median", "p99", "max", "top-1", "nucl.", "acc.", "ppl x");
    for (size_t k = 0; k < n; k++) main_row(o, json_array_get(cands, k), k);
    title(o, "Other divergences; mass of each on the other's nucleus; tokens a step for K drafts");
    put(o, "     %-*s %8s %8s %7s %7s %7s %6s %6s %6s %5s %5s %5s\n", NAME, "candidate", "reverse",
        "JS", "TV", "KL p90", "p99.9", "top-k", "q(Np)", "p(Nq)", "K=1", "K=3", "K=7");
    for (size_t k = 0; k < n; k++) more_row(o, json_array_get(cands, k), k, k_text);
    const json_t *fl = json_object_get(r, "floor");
    if (json_is_object(fl)) {
        char s[CELL];
        put(o, "\nNoise floor: mean KL %s, from [%lld] (%s of the reference)\n",
            number(s, at(fl, "kl_mean", NULL), 8),
            (long long)json_integer_value(at(fl, "candidate", NULL)) + 1, text_of(fl, "kind"));
    }
}

/* A pair with the reference itself says nothing that the candidate's own row does not. */
static bool with_reference(const json_t *r, const json_t *pair) {
    const json_t *cands = json_object_get(r, "candidates");
    const char *side[] = {"baseline", "candidate"};
    for (size_t i = 0; i < 2; i++) {
        size_t k = (size_t)json_integer_value(at(pair, side[i], NULL));
        if (strcmp(text_of(json_array_get(cands, k), "capture"), "the reference itself") == 0)
            return true;
    }
    return false;
}

static void verdicts(struct out *o, const json_t *r) {
    const json_t *pairs = json_object_get(r, "pairs");
    char heading[96];
    (void)snprintf(heading, sizeof heading, "Paired mean KL, 95%% intervals, margin %g%%",
                   100 * json_number_value(at(r, "settings", "margin")));
    bool first = true;
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *p = json_array_get(pairs, i);
        if (with_reference(r, p)) continue;
        if (first) title(o, heading);
        first = false;
        char s[4][CELL];
        const char *verdict = text_of(p, "verdict");
        put(o, " [%lld] - [%lld] %9s %18s  ratio %7s %16s  ",
            (long long)json_integer_value(at(p, "candidate", NULL)) + 1,
            (long long)json_integer_value(at(p, "baseline", NULL)) + 1,
            number(s[0], at(p, "difference", NULL), 9), range(s[1], at(p, "difference_ci95", NULL)),
            number(s[2], at(p, "ratio", NULL), 7), range(s[3], at(p, "ratio_ci95", NULL)));
        style(o, strcmp(verdict, "worse") == 0    ? "31"
                 : strcmp(verdict, "better") == 0 ? "32"
                                                  : "0");
        puts_(o, verdict);
        style(o, "0");
        puts_(o, "\n");
    }
}

static void strata(struct out *o, const json_t *r) {
    const json_t *cands = json_object_get(r, "candidates");
    const json_t *first = json_object_get(json_array_get(cands, 0), "by_stratum");
    size_t all = json_array_size(cands), n = all, rows = json_array_size(first);
    if (rows < 2) return;
    if (n > STRATUM_CANDS) n = STRATUM_CANDS;
    title(o, "Mean KL by stratum");
    put(o, "     %-*s %10s", STRATUM, "stratum", "positions");
    for (size_t k = 0; k < n; k++) put(o, "      [%zu] ", k + 1);
    puts_(o, "\n");
    for (size_t h = 0; h < rows; h++) {
        const json_t *row = json_array_get(first, h);
        puts_(o, "     ");
        name(o, *text_of(row, "stratum") ? text_of(row, "stratum") : "(none)", STRATUM, true);
        put(o, " %10lld", (long long)json_integer_value(at(row, "positions", NULL)));
        for (size_t k = 0; k < n; k++) {
            const json_t *by = json_object_get(json_array_get(cands, k), "by_stratum");
            char s[CELL];
            put(o, " %9s", number(s, at(json_array_get(by, h), "kl_mean", NULL), 9));
        }
        puts_(o, "\n");
    }
    if (all > n) put(o, "     [%zu] to [%zu] are in --json\n", n + 1, all);
}

/* Words of `text` in lines of WIDTH columns, later lines indented. */
static void wrap(struct out *o, const char *first, const char *text) {
    size_t col = strlen(first);
    puts_(o, first);
    while (*text) {
        size_t n = strcspn(text, " ");
        if (col + 1 + n > WIDTH) {
            puts_(o, "\n   ");
            col = 3;
        }
        put(o, " %.*s", (int)n, text);
        col += 1 + n;
        text += n;
        text += strspn(text, " ");
    }
    puts_(o, "\n");
}

static bool loud(const char *code) {
    static const char *const codes[] = {"invalid", "excluded", "arithmetic_mismatch", "infinite"};
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

static void warnings(struct out *o, const json_t *r) {
    const json_t *list = json_object_get(r, "warnings");
    if (json_array_size(list) == 0) return;
    title(o, "Warnings");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *c = json_object_get(w, "candidate");
        char lead[32] = "  -", text[1024], others[256];
        if (fold(list, i, others, sizeof others)) continue;
        if (json_is_integer(c))
            (void)snprintf(lead, sizeof lead, "  [%lld]", (long long)json_integer_value(c) + 1);
        bool red = loud(text_of(w, "code"));
        if (red) {
            style(o, "31");
            size_t n = strlen(lead);
            (void)snprintf(lead + n, sizeof lead - n, " %s", "WARNING:");
        }
        (void)snprintf(text, sizeof text, "%s%s", text_of(w, "text"), others);
        wrap(o, lead, text);
        if (red) style(o, "0");
    }
}

kld_status kld_compare_table(const json_t *result, bool color, kld_buf *out, kld_err *err) {
    if (!json_is_object(json_object_get(result, "reference")) ||
        !json_is_array(json_object_get(result, "candidates")))
        return kld_fail(err, KLD_E_INTERNAL, "not the result of a comparison");
    struct out o = {.b = out, .err = err, .st = KLD_OK, .color = color};
    head(&o, result);
    candidates(&o, result);
    verdicts(&o, result);
    strata(&o, result);
    warnings(&o, result);
    return o.st;
}
