#include "loaders/match.h"

#include "kld/base/mem.h"

#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { STEP_LIMIT = 200000, MAX_NAME = 1024 };

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

static kld_status compile(kld_pattern *p, const char *text, kld_err *err) {
    enum { OUT_OF_HEAP = 121 }; /* PCRE2's ERR21: no public name in older headers */
    pcre2_general_context *g = pcre2_general_context_create(re_alloc, re_free, NULL);
    pcre2_compile_context *c = g ? pcre2_compile_context_create(g) : NULL;
    int code = OUT_OF_HEAP;
    PCRE2_SIZE at;
    if (c)
        p->regex = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                 PCRE2_ANCHORED | PCRE2_UTF, &code, &at, c);
    pcre2_compile_context_free(c);
    pcre2_general_context_free(g);
    return !p->regex && code == OUT_OF_HEAP ? no_memory(err) : KLD_OK;
}

kld_status kld_pattern_init(kld_pattern *p, kld_match_rule rule, const char *text, kld_err *err) {
    *p = (kld_pattern){.text = text, .rule = rule};
    bool tagged = !strncmp(text, "re:", 3);
    if (rule == KLD_MATCH_REGEX) return compile(p, text, err);
    if (tagged && (rule == KLD_MATCH_CT || rule == KLD_MATCH_QUARK))
        return compile(p, text + 3, err);
    return KLD_OK;
}

void kld_pattern_free(kld_pattern *p) {
    pcre2_code_free(p->regex);
    p->regex = NULL;
}

static kld_status match_regex(const pcre2_code *re, const char *s, bool *hit, kld_err *err) {
    pcre2_general_context *g = pcre2_general_context_create(re_alloc, re_free, NULL);
    pcre2_match_context *c = g ? pcre2_match_context_create(g) : NULL;
    pcre2_match_data *d = g ? pcre2_match_data_create(1, g) : NULL;
    int rc = PCRE2_ERROR_NOMEMORY;
    if (c && d) {
        pcre2_set_match_limit(c, STEP_LIMIT); /* patterns come from the file */
        rc = pcre2_match(re, (PCRE2_SPTR)s, PCRE2_ZERO_TERMINATED, 0, 0, d, c);
    }
    pcre2_match_data_free(d);
    pcre2_match_context_free(c);
    pcre2_general_context_free(g);
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

kld_status kld_pattern_match(const kld_pattern *p, const char *module, const char *class_name,
                             bool *hit, kld_err *err) {
    if (p->regex) return match_regex(p->regex, module, hit, err);
    switch (p->rule) {
    case KLD_MATCH_CT:
        *hit = !strcmp(p->text, module) || (class_name && !strcmp(p->text, class_name));
        break;
    case KLD_MATCH_GLOB: *hit = kld_glob(p->text, module) || contains(module, p->text); break;
    case KLD_MATCH_QUARK: *hit = kld_glob(p->text, module); break;
    case KLD_MATCH_PREFIX: *hit = is_parent(p->text, module); break;
    case KLD_MATCH_SUBSTRING: *hit = contains(module, p->text); break;
    case KLD_MATCH_REGEX: *hit = false; break; /* it did not compile */
    }
    return KLD_OK;
}

kld_status kld_pattern_match_any(const kld_pattern *p, const char *module, const char *class_name,
                                 bool *hit, kld_err *err) {
    TRY(kld_pattern_match(p, module, class_name, hit, err));
    const char *base = module;
    for (size_t i = 0; base == module && i < N_PREFIXES; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(module, prefixes[i], n)) base = module + n;
    }
    if (!*hit && base != module) TRY(kld_pattern_match(p, base, class_name, hit, err));
    for (size_t i = 0; !*hit && i < N_PREFIXES; i++) {
        char name[MAX_NAME];
        snprintf(name, sizeof name, "%s%s", prefixes[i], base);
        TRY(kld_pattern_match(p, name, class_name, hit, err));
    }
    return KLD_OK;
}
