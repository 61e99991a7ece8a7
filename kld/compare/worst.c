#include "kld/compare/worst.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

/* ---- reading ------------------------------------------------------------------------------ */

static uint32_t top_of(const kld_records *r, size_t row, uint32_t *id, double *lp) {
    uint32_t n = r->count[row] < KLD_WORST_TOP ? r->count[row] : KLD_WORST_TOP;
    memcpy(id, r->ids + row * r->k_ld, n * sizeof *id);
    memcpy(lp, r->lp + row * r->k_ld, n * sizeof *lp);
    return n;
}

static void fill(const kld_records *ref, const kld_records *cand, const kld_place *at,
                 kld_worst *w) {
    size_t row = (size_t)at->position - ref->first;
    /* The label of a row is the id after its position, so those before a row's are what it saw. */
    w->n_context = (uint32_t)num_min(row, KLD_WORST_CONTEXT);
    memcpy(w->context, ref->label + row - w->n_context, w->n_context * sizeof *w->context);
    w->n_ref = top_of(ref, row, w->ref_id, w->ref_lp);
    w->n_cand = top_of(cand, row, w->cand_id, w->cand_lp);
}

static bool holds(const kld_candidate_tally *c, size_t window) {
    for (size_t i = 0; i < c->n_worst; i++)
        if (c->worst[i].window == window) return true;
    return false;
}

static kld_status fill_window(kld_capture *capture, const kld_records *ref,
                              const kld_candidate_tally *c, size_t window, kld_worst *out,
                              kld_err *err) {
    kld_records own = {0};
    if (capture) {
        bool relative = kld_capture_header(capture)->has_reference;
        TRY(kld_where(err,
                      kld_capture_read(capture, window, relative ? ref : NULL, &own, NULL, err),
                      "%s", kld_capture_path(capture)));
    }
    for (size_t i = 0; i < c->n_worst; i++)
        if (c->worst[i].window == window) fill(ref, capture ? &own : ref, &c->worst[i], &out[i]);
    kld_records_free(&own);
    return KLD_OK;
}

static kld_status read_window(kld_capture *ref, kld_capture *const *cand, const kld_tally *t,
                              size_t window, kld_worst *out, kld_err *err) {
    kld_records r = {0};
    TRY(kld_stop_check(err));
    kld_status st = kld_where(err, kld_capture_read(ref, window, NULL, &r, NULL, err), "%s",
                              kld_capture_path(ref));
    for (size_t k = 0; k < t->n_cands && st == KLD_OK; k++)
        if (holds(&t->cand[k], window))
            st = fill_window(cand[k], &r, &t->cand[k], window, out + k * KLD_WORST, err);
    kld_records_free(&r);
    return st;
}

kld_status kld_worst_read(kld_capture *ref, kld_capture *const *cand, const kld_tally *t,
                          kld_worst *out, kld_err *err) {
    size_t *window, n = 0;
    TRY(NEW_ARRAY(&window, t->n_cands * KLD_WORST, err));
    for (size_t k = 0; k < t->n_cands; k++)
        for (size_t i = 0; i < t->cand[k].n_worst; i++) {
            size_t seen = 0;
            while (seen < n && window[seen] != t->cand[k].worst[i].window) seen++;
            if (seen == n) window[n++] = t->cand[k].worst[i].window;
        }
    kld_status st = KLD_OK;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n; i++) {
        kld_err e = {0};
        kld_status one = read_window(ref, cand, t, window[i], out, &e);
        if (one == KLD_OK) continue;
#pragma omp critical
        if (st == KLD_OK) {
            st = one;
            if (err) *err = e;
        }
    }
    kld_free(window);
    return st;
}

/* ---- text --------------------------------------------------------------------------------- */

static kld_status open_tokenizer(const char *path, const kld_capture_info *ref, kld_tokenizer **out,
                                 kld_err *err) {
    kld_buf none = {0};
    TRY(kld_tokenizer_open(out, path, err));
    kld_digest own = kld_tokenizer_digest(*out);
    char a[KLD_SHA256_HEX], b[KLD_SHA256_HEX];
    kld_status st =
        kld_where(err, kld_tokenizer_decode(*out, NULL, 0, false, &none, err), "%s", path);
    if (st == KLD_OK && !kld_same_digest(&own, &ref->tokenizer))
        st = kld_fail(
            err, KLD_E_INPUT,
            "%s: tokenizer %.12s, but the captures were made with %.12s; give the directory "
            "of the reference",
            path, kld_digest_hex(&own, a), kld_digest_hex(&ref->tokenizer, b));
    if (st == KLD_OK) return KLD_OK;
    kld_tokenizer_free(*out);
    *out = NULL;
    return st;
}

kld_status kld_worst_tokenizer(const char *path, bool find, const kld_capture_info *ref,
                               kld_tokenizer **out, kld_err *err) {
    *out = NULL;
    if (path) return open_tokenizer(path, ref, out, err);
    if (!find || !ref->checkpoint || !*ref->checkpoint) return KLD_OK;
    char *there;
    TRY(kld_path_join(&there, ref->checkpoint, "tokenizer.json", err));
    kld_err why = {0};
    kld_status st = kld_path_exists(there) ? open_tokenizer(there, ref, out, &why) : KLD_OK;
    kld_free(there);
    /* Nobody asked for this file: another one in its place only means that there is no text. */
    if (st == KLD_E_NOMEM && err) *err = why;
    else if (st != KLD_OK) kld_debug("no text of the worst positions: %s", why.text);
    return st == KLD_E_NOMEM ? st : KLD_OK;
}

/* Length of the UTF-8 character at s, of which n bytes are there.  0 when it is none, and then
 * *bad is the length of what one U+FFFD stands for: the longest beginning of a character. */
static size_t character(const unsigned char *s, size_t n, uint32_t *cp, size_t *bad) {
    unsigned char c = s[0], lo = 0x80, hi = 0xbf;
    size_t len = c < 0x80                ? 1
                 : c >= 0xc2 && c < 0xe0 ? 2
                 : (c & 0xf0) == 0xe0    ? 3
                 : c >= 0xf0 && c < 0xf5 ? 4
                                         : 0;
    *bad = 1;
    if (len == 0) return 0;
    if (c == 0xe0) lo = 0xa0;
    if (c == 0xed) hi = 0x9f; /* surrogates */
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    *cp = len == 1 ? c : c & (0x7fu >> len);
    for (size_t i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        *bad = i;
        if (i == n || s[i] < lo || s[i] > hi) return 0;
        *cp = *cp << 6 | (s[i] & 0x3f);
    }
    return len;
}

/* Invisible, and more than a space: what ends a line, turns a text around, or is a control. */
static bool unseen(uint32_t cp) {
    return (cp >= 0x80 && cp < 0xa0) || cp == 0x61c || cp == 0x200e || cp == 0x200f ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

kld_status kld_visible_text(const unsigned char *s, size_t n, kld_buf *out, kld_err *err) {
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t bad, len = character(s + i, n - i, &cp, &bad);
        /* U+2400 + cp, and U+2421 for DEL, in UTF-8. */
        unsigned picture = cp == 0x7f ? 0x21 : cp;
        const unsigned char control[] = {0xe2, 0x90, (unsigned char)(0x80 + picture)};
        if (len == 0) TRY(kld_buf_adds(out, "\xef\xbf\xbd", err));
        else if (cp < 0x20 || cp == 0x7f) TRY(kld_buf_add(out, control, sizeof control, err));
        else if (unseen(cp)) TRY(kld_buf_addf(out, err, "[U+%04X]", cp));
        else TRY(kld_buf_add(out, s + i, len, err));
        i += len ? len : bad;
    }
    return KLD_OK;
}

void kld_worst_text(kld_emit *e, json_t *into, const char *key, const kld_tokenizer *tok,
                    const uint32_t *id, size_t n) {
    kld_buf bytes = {0}, text = {0};
    kld_err err = {0};
    kld_status st = KLD_E_INPUT;
    if (tok) st = kld_tokenizer_decode(tok, id, n, false, &bytes, &err);
    if (st == KLD_OK) st = kld_visible_text(bytes.data, bytes.len, &text, &err);
    if (st == KLD_E_NOMEM) e->failed = true;
    else
        kld_emit_text(e, into, key, st != KLD_OK ? NULL : text.data ? (const char *)text.data : "");
    kld_buf_free(&text);
    kld_buf_free(&bytes);
}
