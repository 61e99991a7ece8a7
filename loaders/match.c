#include "loaders/match.h"

#include "kld/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { STEP_LIMIT = 200000 };

static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                       "language_model.", "model."};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes };

/* PCRE2 allocates through kld/base too, so that its failures can be tested. */
static void *re_alloc(size_t n, void *unused) {
    (void)unused;
    return kld_mem_raw(n);
}

static void re_free(void *p, void *unused) {
    (void)unused;
    kld_free(p);
}

static kld_status no_memory(kld_err *err) {
    return kld_fail(err, KLD_E_NOMEM, "out of memory in a regular expression");
}

/* N of the first "layers.N." of a text, -1 without; `dot` is how the text writes the last dot. */
static long layer_in(const char *text, const char *dot) {
    static const char part[] = "layers";
    const char *at = strstr(text, part);
    if (!at) return -1;
    at += sizeof part - 1;
    if (strncmp(at, dot, strlen(dot)) != 0 && *at != '.') return -1;
    at += strncmp(at, dot, strlen(dot)) == 0 ? strlen(dot) : 1;
    long n = 0;
    const char *digits = at;
    for (; *at >= '0' && *at <= '9' && at - digits < 9; at++) n = n * 10 + (*at - '0');
    if (at == digits || strncmp(at, dot, strlen(dot)) != 0) return -1;
    /* In a regex the dot may be optional: layers\.1\.* is about layer 10, too. */
    const char *next = at + strlen(dot);
    return *dot == '\\' && *next && strchr("*?{", *next) ? -1 : n;
}

static kld_status compile(kld_pattern *p, const char *text, kld_err *err) {
    enum { OUT_OF_HEAP = 121 }; /* PCRE2's ERR21: no public name in older headers */
    pcre2_general_context *g = pcre2_general_context_create(re_alloc, re_free, NULL);
    pcre2_compile_context *c = g ? pcre2_compile_context_create(g) : NULL;
    int code = OUT_OF_HEAP;
    PCRE2_SIZE at;
    if (c)
        p->regex = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                 PCRE2_ANCHORED | PCRE2_UTF, &code, &at, c);
    if (p->regex) {
        code = OUT_OF_HEAP;
        p->found = pcre2_match_data_create(1, g);
        p->limits = pcre2_match_context_create(g);
        if (p->limits) pcre2_set_match_limit(p->limits, STEP_LIMIT); /* it comes from the file */
        /* In an alternative, a set or a group it need not be in what matches. */
        if (!strpbrk(text, "|([")) p->layer = layer_in(text, "\\.");
    }
    pcre2_compile_context_free(c);
    pcre2_general_context_free(g);
    if ((p->found && p->limits) || code != OUT_OF_HEAP) return KLD_OK;
    kld_pattern_free(p);
    return no_memory(err);
}

kld_status kld_pattern_init(kld_pattern *p, kld_match_rule rule, const char *text, kld_err *err) {
    *p = (kld_pattern){.text = text, .rule = rule, .layer = -1};
    bool tagged = !strncmp(text, "re:", 3);
    if (rule == KLD_MATCH_REGEX) return compile(p, text, err);
    if (tagged && (rule == KLD_MATCH_CT || rule == KLD_MATCH_QUARK))
        return compile(p, text + 3, err);
    if (!strchr(text, '[')) p->layer = layer_in(text, ".");
    return KLD_OK;
}

void kld_pattern_free(kld_pattern *p) {
    pcre2_match_context_free(p->limits);
    pcre2_match_data_free(p->found);
    pcre2_code_free(p->regex);
    p->regex = p->found = p->limits = NULL;
}

static kld_status match_regex(const kld_pattern *p, const char *s, bool *hit, kld_err *err) {
    int rc = pcre2_match(p->regex, (PCRE2_SPTR)s, PCRE2_ZERO_TERMINATED, 0, 0, p->found, p->limits);
    *hit = rc >= 0;
    return rc == PCRE2_ERROR_NOMEMORY ? no_memory(err) : KLD_OK;
}

/* Matches one character against [set]; *next is after it.  False when there is no ']'. */
static bool in_set(const char *set, char c, bool *hit, const char **next) {
    bool negate = *set == '!';
    const char *p = set + negate;
    *hit = false;
    for (const char *start = p; *p && (*p != ']' || p == start); p++) {
        if (p[1] == '-' && p[2] && p[2] != ']') {
            if (c >= p[0] && c <= p[2]) *hit = true;
            p += 2;
        } else if (*p == c) {
            *hit = true;
        }
    }
    if (*p != ']') return false;
    *hit = *hit != negate;
    *next = p + 1;
    return true;
}

bool kld_glob(const char *pattern, const char *text) {
    /* Only the last * can need another try, so the time is at most the product of the
     * two lengths. */
    const char *star = NULL, *retry = NULL;
    for (;;) {
        const char *next = pattern + 1;
        bool hit = false;
        if (*pattern == '*') {
            star = pattern + 1;
            retry = text;
            pattern++;
            continue;
        }
        if (!*text && !*pattern) return true;
        if (*text && *pattern) {
            if (*pattern == '?') hit = true;
            else if (*pattern != '[' || !in_set(pattern + 1, *text, &hit, &next))
                hit = *pattern == *text;
        }
        if (hit) {
            pattern = next;
            text++;
        } else if (star && *retry) {
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
}

/* "layers.1" is in "layers.1.mlp", but not in "layers.10". */
static bool contains(const char *module, const char *entry) {
    size_t n = strlen(entry);
    if (!n) return false;
    bool digit = entry[n - 1] >= '0' && entry[n - 1] <= '9';
    for (const char *at = strstr(module, entry); at; at = strstr(at + 1, entry)) {
        if (!digit || at[n] < '0' || at[n] > '9') return true;
    }
    return false;
}

static bool is_parent(const char *entry, const char *module) {
    size_t n = strlen(entry);
    return n && !strncmp(entry, module, n) && (module[n] == '.' || !module[n]);
}

static bool is_tail(const char *entry, const char *module) {
    size_t n = strlen(entry), m = strlen(module);
    return n && n < m && module[m - n - 1] == '.' && !strcmp(module + m - n, entry);
}

kld_status kld_pattern_match(const kld_pattern *p, const char *module, const char *class_name,
                             bool *hit, kld_err *err) {
    if (p->regex) return match_regex(p, module, hit, err);
    switch (p->rule) {
    case KLD_MATCH_CT:
        *hit = !strcmp(p->text, module) || (class_name && !strcmp(p->text, class_name));
        break;
    case KLD_MATCH_GLOB: *hit = kld_glob(p->text, module) || contains(module, p->text); break;
    case KLD_MATCH_QUARK: *hit = kld_glob(p->text, module); break;
    case KLD_MATCH_PREFIX: *hit = is_parent(p->text, module) || is_tail(p->text, module); break;
    case KLD_MATCH_SUBSTRING: *hit = contains(module, p->text); break;
    case KLD_MATCH_REGEX: *hit = false; break; /* it did not compile */
    }
    return KLD_OK;
}

void kld_module_names_init(kld_module_names *m, const char *module) {
    enum { ROOM = KLD_NAME_MAX - 32 }; /* beside the longest prefix */
    char *to = m->text;
    snprintf(to, ROOM, "%s", module);
    const char *base = to;
    for (size_t i = 0; base == to && i < N_PREFIXES; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(to, prefixes[i], n)) base = to + n;
    }
    m->layer = layer_in(to, ".");
    m->n = 0;
    m->form[m->n++] = to;
    if (base != to) m->form[m->n++] = base;
    to += strlen(to) + 1;
    /* The rest of each of these is a form too: model.X after language_model.model.X and so on. */
    for (size_t i = 0; i < 2; i++) {
        size_t room = (size_t)(m->text + sizeof m->text - to);
        int n = snprintf(to, room, "%s%s", prefixes[i], base);
        m->form[m->n++] = to;
        m->form[m->n++] = strchr(to, '.') + 1;
        to += n + 1;
    }
}

kld_status kld_pattern_match_any(const kld_pattern *p, const kld_module_names *m,
                                 const char *class_name, bool *hit, kld_err *err) {
    *hit = false;
    if (p->layer >= 0 && m->layer >= 0 && p->layer != m->layer) return KLD_OK;
    for (size_t i = 0; !*hit && i < m->n; i++)
        TRY(kld_pattern_match(p, m->form[i], class_name, hit, err));
    return KLD_OK;
}

/* ---- many entries ------------------------------------------------------------------------ */

/* It matches a class, a whole name, or a part of one that begins or ends at a dot. */
static bool is_name(const kld_pattern *p) {
    if (p->regex) return false;
    return p->rule == KLD_MATCH_CT || p->rule == KLD_MATCH_PREFIX ||
           (p->rule == KLD_MATCH_QUARK && !strpbrk(p->text, "*?["));
}

static int by_text(const void *a, const void *b) {
    const kld_pattern_name *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

kld_status kld_pattern_index_init(kld_pattern_index *x, const kld_pattern *p, size_t n,
                                  size_t stride, kld_err *err) {
    *x = (kld_pattern_index){0};
    if (!n) return KLD_OK;
    kld_status st = NEW_ARRAY(&x->name, n, err);
    if (st == KLD_OK) st = NEW_ARRAY(&x->rest, n, err);
    for (size_t i = 0; st == KLD_OK && i < n; i++) {
        const kld_pattern *at = (const kld_pattern *)((const char *)p + i * stride);
        if (is_name(at)) x->name[x->n_names++] = (kld_pattern_name){at->text, i};
        else x->rest[x->n_rest++] = i;
    }
    if (st != KLD_OK) kld_pattern_index_free(x);
    else if (x->n_names) qsort(x->name, x->n_names, sizeof *x->name, by_text);
    return st;
}

void kld_pattern_index_free(kld_pattern_index *x) {
    kld_free(x->name);
    kld_free(x->rest);
    kld_free(x->found);
    *x = (kld_pattern_index){0};
}

static kld_status add_found(kld_pattern_index *x, size_t at, kld_err *err) {
    if (x->n_found == x->cap_found) {
        size_t cap = x->cap_found ? 2 * x->cap_found : x->n_rest + 16;
        TRY(kld_realloc((void **)&x->found, cap, sizeof *x->found, err));
        x->cap_found = cap;
    }
    x->found[x->n_found++] = at;
    return KLD_OK;
}

/* The entry's text against the first n characters of s. */
static int compare(const char *text, const char *s, size_t n) {
    int order = strncmp(text, s, n);
    return order ? order : text[n] != '\0';
}

static kld_status find_text(kld_pattern_index *x, const char *s, size_t n, kld_err *err) {
    size_t lo = 0, hi = x->n_names;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(x->name[mid].text, s, n) < 0) lo = mid + 1;
        else hi = mid;
    }
    for (; lo < x->n_names && !compare(x->name[lo].text, s, n); lo++)
        TRY(add_found(x, x->name[lo].at, err));
    return KLD_OK;
}

kld_status kld_pattern_index_find(kld_pattern_index *x, const kld_module_names *m,
                                  const char *class_name, kld_err *err) {
    x->n_found = 0;
    for (size_t i = 0; i < x->n_rest; i++) TRY(add_found(x, x->rest[i], err));
    if (class_name) TRY(find_text(x, class_name, strlen(class_name), err));
    for (size_t i = 0; x->n_names && i < m->n; i++) {
        const char *s = m->form[i];
        size_t n = strlen(s);
        TRY(find_text(x, s, n, err));
        for (const char *dot = strchr(s, '.'); dot; dot = strchr(dot + 1, '.')) {
            TRY(find_text(x, s, (size_t)(dot - s), err));
            TRY(find_text(x, dot + 1, n - (size_t)(dot + 1 - s), err));
        }
    }
    return KLD_OK;
}
