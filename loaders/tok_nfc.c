#include "loaders/tok_nfc.h"

#include "kld/base/mem.h"
#include "loaders/tok_unicode.h"

#include <string.h>
#include <utf8proc.h>

/* Every code point below this one is a starter that does not decompose into, or compose
 * with, what stands before it; text made of these alone is NFC already. */
enum { FIRST_MARK = 0x300 };

typedef struct points {
    utf8proc_int32_t *v, *tmp; /* owned, cap each */
    size_t n, cap;
} points;

static kld_status grow(points *p, size_t need, kld_err *err) {
    if (need <= p->cap) return KLD_OK;
    size_t cap = p->cap ? p->cap : 64;
    while (cap < need) cap *= 2;
    TRY(kld_realloc((void **)&p->v, cap, sizeof *p->v, err));
    TRY(kld_realloc((void **)&p->tmp, cap, sizeof *p->tmp, err));
    p->cap = cap;
    return KLD_OK;
}

static unsigned combining_class(utf8proc_int32_t cp) {
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of one run of marks by class; counting, because a hostile run may be long. */
static void sort_marks(utf8proc_int32_t *v, utf8proc_int32_t *tmp, size_t n) {
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[(combining_class(v[i]) & 255) + 1]++;
    for (size_t i = 1; i < 257; i++) start[i] += start[i - 1];
    for (size_t i = 0; i < n; i++) tmp[start[combining_class(v[i]) & 255]++] = v[i];
    memcpy(v, tmp, n * sizeof *v);
}

static void order(points *p) {
    for (size_t i = 0; i < p->n;) {
        if (combining_class(p->v[i]) == 0) {
            i++;
            continue;
        }
        size_t j = i;
        bool sorted = true;
        for (; j < p->n && combining_class(p->v[j]) != 0; j++) {
            if (j > i && combining_class(p->v[j]) < combining_class(p->v[j - 1])) sorted = false;
        }
        if (!sorted) sort_marks(p->v + i, p->tmp, j - i);
        i = j;
    }
}

static kld_status put(kld_buf *out, utf8proc_int32_t cp, kld_err *err) {
    char utf8[4];
    return kld_buf_add(out, utf8, kld_utf8_put(utf8, (uint32_t)cp), err);
}

/* Order, compose and write what was decomposed so far. */
static kld_status flush(points *p, kld_buf *out, kld_err *err) {
    if (!p->n) return KLD_OK;
    order(p);
    utf8proc_ssize_t n =
        utf8proc_normalize_utf32(p->v, (utf8proc_ssize_t)p->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n < 0) return kld_fail(err, KLD_E_INTERNAL, "NFC: %s", utf8proc_errmsg(n));
    for (utf8proc_ssize_t i = 0; i < n; i++) TRY(put(out, p->v[i], err));
    p->n = 0;
    return KLD_OK;
}

/* U+11A7 lies just before the first trailing consonant; utf8proc takes it for one that adds
 * nothing and drops it after a syllable. */
static bool stands_alone(uint32_t cp) { return cp == 0x11a7 || kld_uni_nfc_inert(cp); }

static kld_status normalize(points *p, const char *s, size_t n, kld_buf *out, kld_err *err) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += kld_utf8_get(s + i, &cp);
        if (stands_alone(cp)) {
            TRY(flush(p, out, err));
            TRY(put(out, (utf8proc_int32_t)cp, err));
            continue;
        }
        TRY(grow(p, p->n + 8, err)); /* the longest canonical decomposition has 4 */
        int boundary = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char(
            (utf8proc_int32_t)cp, p->v + p->n, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (k < 0 || k > 8) return kld_fail(err, KLD_E_INTERNAL, "NFC: U+%04X", (unsigned)cp);
        p->n += (size_t)k;
    }
    return flush(p, out, err);
}

/* Text is cut before each code point below FIRST_MARK; only pieces with a higher one in them
 * need work, the rest is copied in long stretches. */
kld_status kld_tok_nfc(const char *text, size_t n, kld_buf *out, kld_err *err) {
    points p = {0};
    size_t copied = 0, base = 0; /* base: start of the newest piece */
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = kld_utf8_get(text + i, &cp);
        if (cp < FIRST_MARK) {
            base = i;
            i += len;
            continue;
        }
        size_t end = i + len;
        while (end < n) {
            len = kld_utf8_get(text + end, &cp);
            if (cp < FIRST_MARK) break;
            end += len;
        }
        TRY_TO(out, kld_buf_add(out, text + copied, base - copied, err));
        TRY_TO(out, normalize(&p, text + base, end - base, out, err));
        copied = base = i = end;
    }
    TRY_TO(out, kld_buf_add(out, text + copied, n - copied, err));
out:
    kld_free(p.v);
    kld_free(p.tmp);
    return st;
}
