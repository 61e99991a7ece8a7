#include "loaders/tok_added.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/tok_unicode.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b) {
    const kld_tok_added *x = *(const kld_tok_added *const *)a,
                        *y = *(const kld_tok_added *const *)b;
    int d = memcmp(x->text, y->text, num_min(x->n, y->n));
    return d ? d : (x->n > y->n) - (x->n < y->n);
}

kld_status kld_tok_added_build(kld_tok_added_set *set, const kld_tok_added *all, size_t n,
                               bool normalized, kld_err *err) {
    bool words = false;
    TRY(NEW_ARRAY(&set->v, n, err));
    for (size_t i = 0; i < n; i++) {
        if (all[i].normalized != normalized) continue;
        words |= all[i].single_word;
        set->v[set->n++] = &all[i];
    }
    if (set->n) qsort(set->v, set->n, sizeof *set->v, by_text);
    for (size_t i = 1; i < set->n; i++) {
        if (by_text(&set->v[i - 1], &set->v[i]) == 0)
            return kld_fail(err, KLD_E_INPUT,
                            "added tokens %u and %u look for the same text '%.100s'",
                            set->v[i - 1]->id, set->v[i]->id, set->v[i]->text);
    }
    size_t at = 0;
    for (unsigned b = 0; b < 257; b++) {
        while (at < set->n && (unsigned char)set->v[at]->text[0] < b) at++;
        set->first[b] = (uint32_t)at;
    }
    return words ? kld_tok_regex_word(&set->word, err) : KLD_OK;
}

void kld_tok_added_free(kld_tok_added_set *set) {
    kld_free(set->v);
    kld_tok_regex_free(set->word);
    *set = (kld_tok_added_set){0};
}

/* The longest token at s, or NULL.  lo..hi are the tokens that share what was read so far; a
 * shorter text sorts before those that continue it. */
static const kld_tok_added *longest(const kld_tok_added_set *set, const char *s, size_t n) {
    size_t lo = set->first[(unsigned char)*s], hi = set->first[(unsigned char)*s + 1];
    const kld_tok_added *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        if (set->v[lo]->n == depth) best = set->v[lo++];
        if (depth == n) break;
        unsigned char c = (unsigned char)s[depth];
        size_t end = hi;
        for (size_t top = hi; lo < top;) { /* first with byte >= c */
            size_t mid = lo + (top - lo) / 2;
            if ((unsigned char)set->v[mid]->text[depth] < c) lo = mid + 1;
            else top = mid;
        }
        for (size_t from = lo; from < end;) { /* first with byte > c */
            size_t mid = from + (end - from) / 2;
            if ((unsigned char)set->v[mid]->text[depth] > c) end = mid;
            else from = mid + 1;
        }
        hi = end;
    }
    return best;
}

/* Whether the code point that begins at `at`, or ends there if `before`, is a word character. */
static kld_status touches_word(const kld_tok_added_set *set, kld_tok_matcher *m, const char *text,
                               size_t n, size_t at, bool before, bool *yes, kld_err *err) {
    uint32_t cp;
    *yes = false;
    if (before ? at == 0 : at == n) return KLD_OK;
    size_t start = before ? kld_utf8_back(text, at) : at;
    kld_tok_walk w = {0};
    return kld_tok_regex_next(set->word, m, text + start, kld_utf8_get(text + start, &cp), &w, yes,
                              err);
}

static size_t skip_spaces(const char *text, size_t n, size_t at) {
    while (at < n) {
        uint32_t cp;
        size_t len = kld_utf8_get(text + at, &cp);
        if (!kld_uni_is_space(cp)) break;
        at += len;
    }
    return at;
}

static size_t skip_spaces_back(const char *text, size_t at, size_t stop) {
    while (at > stop) {
        uint32_t cp;
        size_t start = kld_utf8_back(text, at);
        kld_utf8_get(text + start, &cp);
        if (!kld_uni_is_space(cp)) break;
        at = start;
    }
    return at;
}

kld_status kld_tok_added_find(const kld_tok_added_set *set, kld_tok_matcher *m, const char *text,
                              size_t n, kld_tok_stretch_fn fn, void *arg, kld_err *err) {
    size_t done = 0; /* end of what was handed out */
    for (size_t i = 0; set->n && i < n;) {
        const kld_tok_added *t = longest(set, text + i, n - i);
        if (!t) {
            i++;
            continue;
        }
        size_t start = i, end = i + t->n;
        i = end; /* the search goes on here, whatever rstrip swallows */
        if (t->single_word) {
            bool left, right;
            TRY(touches_word(set, m, text, n, start, true, &left, err));
            TRY(touches_word(set, m, text, n, end, false, &right, err));
            if (left || right) continue;
        }
        if (t->lstrip) start = num_max(skip_spaces_back(text, start, num_min(done, start)), done);
        if (t->rstrip) end = skip_spaces(text, n, end);
        if (done < start) TRY(fn(arg, NULL, text + done, start - done, err));
        if (end < start)
            return kld_fail(err, KLD_E_INPUT,
                            "added token '%.100s' at byte %zu lies in white space that the one "
                            "before it takes; tokenizers fails on this too",
                            t->text, i - t->n);
        if (start < end) TRY(fn(arg, t, text + start, end - start, err));
        done = end;
    }
    return done < n ? fn(arg, NULL, text + done, n - done, err) : KLD_OK;
}
