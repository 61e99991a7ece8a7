#include "kld/store/head.h"

#include "kld/base/mem.h"

#include <string.h>

/* Position t is scored when t >= score_from and a token follows it. */
static kld_status check_rows(const window_head *h, kld_err *err) {
    const kld_window_meta *m = &h->meta;
    uint64_t want = 0;
    if (m->tokens > 0 && m->tokens - 1 > m->score_from) want = m->tokens - 1 - m->score_from;
    if (m->tokens <= UINT32_MAX && m->score_from <= m->tokens && h->rows == want) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%u rows do not fit %llu tokens scored from %llu",
                    (unsigned)h->rows, (unsigned long long)m->tokens,
                    (unsigned long long)m->score_from);
}

kld_status head_write(const window_head *h, kld_buf *out, kld_err *err) {
    const kld_window_meta *m = &h->meta;
    TRY(check_rows(h, err));
    TRY(kld_buf_u32(out, h->rows, err));
    TRY(kld_buf_u32(out, 0, err)); /* flags, reserved */
    TRY(kld_buf_u64(out, m->tokens, err));
    TRY(kld_buf_u64(out, m->score_from, err));
    TRY(kld_buf_u64(out, m->offset, err));
    TRY(kld_buf_add(out, m->ids.b, sizeof m->ids.b, err));
    TRY(kld_buf_add(out, h->ref.b, sizeof h->ref.b, err));
    const char *strings[] = {m->source, m->cluster, m->stratum, m->partition};
    for (size_t i = 0; i < 4; i++) {
        size_t n = strings[i] ? strlen(strings[i]) : 0;
        if (n > HEAD_MAX_STRING)
            return kld_fail(err, KLD_E_INPUT, "'%.40s...' is longer than %d bytes", strings[i],
                            HEAD_MAX_STRING);
        TRY(kld_buf_u16(out, (uint16_t)n, err));
        TRY(kld_buf_add(out, strings[i], n, err));
    }
    return KLD_OK;
}

kld_status head_read(kld_cursor *c, kld_arena *arena, window_head *h, kld_err *err) {
    size_t start = c->pos;
    memset(h, 0, sizeof *h);
    h->rows = kld_cursor_u32(c);
    uint32_t flags = kld_cursor_u32(c);
    kld_window_meta *m = &h->meta;
    m->tokens = kld_cursor_u64(c);
    m->score_from = kld_cursor_u64(c);
    m->offset = kld_cursor_u64(c);
    const unsigned char *ids = kld_cursor_take(c, sizeof m->ids.b);
    const unsigned char *ref = kld_cursor_take(c, sizeof h->ref.b);
    if (!ids || !ref) return kld_fail(err, KLD_E_INPUT, "the head of a window is cut short");
    memcpy(m->ids.b, ids, sizeof m->ids.b);
    memcpy(h->ref.b, ref, sizeof h->ref.b);
    const char **strings[] = {&m->source, &m->cluster, &m->stratum, &m->partition};
    for (size_t i = 0; i < 4; i++) {
        size_t n = kld_cursor_u16(c);
        const unsigned char *p = kld_cursor_take(c, n);
        if (!p) return kld_fail(err, KLD_E_INPUT, "the head of a window is cut short");
        if (n > HEAD_MAX_STRING || memchr(p, 0, n))
            return kld_fail(err, KLD_E_INPUT,
                            "a string in the head of a window is too long or "
                            "holds a zero byte");
        if (!arena) continue;
        char *copy;
        TRY(kld_arena_strndup(arena, &copy, (const char *)p, n, err));
        *strings[i] = copy;
    }
    h->bytes = c->pos - start;
    if (flags)
        return kld_fail(err, KLD_E_INPUT, "reserved flags 0x%x of a window are set",
                        (unsigned)flags);
    return check_rows(h, err);
}

/* Little-endian, to p; the compiler makes one store of it. */
static unsigned char *put_u32(unsigned char *p, uint32_t v) {
    for (size_t b = 0; b < 4; b++) p[b] = (unsigned char)(v >> 8 * b);
    return p + 4;
}

static unsigned char *put_pairs(unsigned char *p, const uint32_t *ids, const double *lp, size_t n) {
    for (size_t j = 0; j < n; j++) {
        uint64_t bits;
        memcpy(&bits, &lp[j], sizeof bits);
        p = put_u32(p, ids[j]);
        p = put_u32(p, (uint32_t)bits);
        p = put_u32(p, (uint32_t)(bits >> 32));
    }
    return p;
}

kld_status records_digest(const kld_records *r, kld_digest *out, kld_err *err) {
    unsigned char *row = NULL;
    kld_sha256 s = {0};
    kld_status st;
    TRY_TO(done, kld_calloc((void **)&row, 12 * (r->k_ld + r->m + 1), 1, err));
    TRY_TO(done, kld_sha256_begin(&s, err));
    for (size_t i = 0; i < r->n; i++) {
        uint32_t draws = row_has_draws(r, i) ? (uint32_t)r->m : 0;
        unsigned char *p = put_u32(row, r->count[i]);
        p = put_u32(p, draws);
        p = put_u32(p, r->label[i]);
        p = put_pairs(p, r->ids + i * r->k_ld, r->lp + i * r->k_ld, r->count[i]);
        p = put_pairs(p, r->tail_ids + i * r->m, r->tail_lp + i * r->m, draws);
        TRY_TO(done, kld_sha256_add(&s, row, (size_t)(p - row), err));
    }
    TRY_TO(done, kld_sha256_end(&s, out, err));
done:
    kld_sha256_drop(&s);
    kld_free(row);
    return st;
}
