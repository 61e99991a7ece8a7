/* The block of one window: its meta, then the columns.  docs/format.md, "Window frames". */
#include "kld/store/frame.h"

#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/columns.h"

#include <math.h>
#include <string.h>
#include <zstd.h>

enum { LEVEL = 9, MAX_STRING = 4096, META_MAX = 64 + 4 * (MAX_STRING + 4) };

/* ---- container ------------------------------------------------------------------------ */

size_t frame_content_max(const kld_capture_info *info, uint64_t rows) {
    /* Each value is 4 bytes, or 12 when it is wide (code, value) with its id. */
    uint64_t a_row = 16 * (info->top_k + info->tail_samples + info->ref_top_k +
                           info->ref_tail_samples + info->top_k) +
                     64;
    uint64_t all;
    if (!num_mul_u64(a_row, rows, &all) || all > (uint64_t)1 << 40) return (size_t)1 << 40;
    return (size_t)all + META_MAX + 5 * COL_END;
}

uint64_t frame_claim(const void *p, size_t n) {
    unsigned long long size = ZSTD_getFrameContentSize(p, n);
    return size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN ? 0 : size;
}

size_t frame_size(const void *p, size_t n) {
    size_t size = ZSTD_findFrameCompressedSize(p, n);
    return ZSTD_isError(size) ? 0 : size;
}

kld_status frame_inflate(const void *frame, size_t n, size_t max, kld_buf *text, kld_err *err) {
    uint64_t claim = frame_claim(frame, n);
    if (claim == 0 || claim > max)
        return kld_fail(err, KLD_E_INPUT,
                        "its content is said to be %llu bytes; 1 to %zu are legal here",
                        (unsigned long long)claim, max);
    if (frame_size(frame, n) != n)
        return kld_fail(err, KLD_E_INPUT, "it is not one whole zstd frame of %zu bytes", n);
    kld_buf_clear(text);
    text->max = max;
    TRY(kld_buf_reserve(text, (size_t)claim, err));
    size_t got = ZSTD_decompress(text->data, (size_t)claim, frame, n);
    if (ZSTD_isError(got) || got != claim)
        return kld_fail(err, KLD_E_INPUT, "it does not decompress: %s",
                        ZSTD_isError(got) ? ZSTD_getErrorName(got) : "wrong size");
    text->len = got;
    return KLD_OK;
}

static kld_status deflate(const kld_buf *text, kld_buf *out, kld_err *err) {
    kld_buf_clear(out);
    TRY(kld_buf_reserve(out, ZSTD_compressBound(text->len), err));
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    if (!ctx) return kld_fail(err, KLD_E_NOMEM, "out of memory for zstd");
    /* The checksum lets a resumed run tell a whole frame from a torn one. */
    size_t got = ZSTD_CCtx_setParameter(ctx, ZSTD_c_compressionLevel, LEVEL);
    if (!ZSTD_isError(got)) got = ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, 1);
    if (!ZSTD_isError(got)) got = ZSTD_compress2(ctx, out->data, out->cap, text->data, text->len);
    ZSTD_freeCCtx(ctx);
    if (ZSTD_isError(got)) return kld_fail(err, KLD_E_NOMEM, "zstd: %s", ZSTD_getErrorName(got));
    out->len = got;
    return KLD_OK;
}

/* ---- meta ----------------------------------------------------------------------------- */

static kld_status write_meta(const kld_window_meta *m, const kld_records *r, kld_buf *out,
                             kld_err *err) {
    TRY(kld_buf_u32(out, (uint32_t)r->n, err));
    TRY(kld_buf_u32(out, 0, err)); /* flags, reserved */
    TRY(kld_buf_u64(out, m->tokens, err));
    TRY(kld_buf_u64(out, m->score_from, err));
    TRY(kld_buf_u64(out, m->offset, err));
    TRY(kld_buf_add(out, m->ids.b, sizeof m->ids.b, err));
    const char *strings[] = {m->source, m->cluster, m->stratum, m->partition};
    for (size_t i = 0; i < 4; i++) {
        size_t n = strings[i] ? strlen(strings[i]) : 0;
        if (n > MAX_STRING)
            return kld_fail(err, KLD_E_INPUT, "'%.40s...' is longer than %d bytes", strings[i],
                            MAX_STRING);
        TRY(kld_buf_u16(out, (uint16_t)n, err));
        TRY(kld_buf_add(out, strings[i], n, err));
    }
    return KLD_OK;
}

kld_status frame_head(kld_cursor *c, kld_arena *arena, kld_window_meta *meta, uint64_t *rows,
                      kld_err *err) {
    *rows = kld_cursor_u32(c);
    uint32_t flags = kld_cursor_u32(c);
    kld_window_meta m = {.tokens = kld_cursor_u64(c)};
    m.score_from = kld_cursor_u64(c);
    m.offset = kld_cursor_u64(c);
    const unsigned char *digest = kld_cursor_take(c, sizeof m.ids.b);
    if (digest) memcpy(m.ids.b, digest, sizeof m.ids.b);
    const char **strings[] = {&m.source, &m.cluster, &m.stratum, &m.partition};
    for (size_t i = 0; i < 4; i++) {
        size_t n = kld_cursor_u16(c);
        const unsigned char *p = kld_cursor_take(c, n);
        if (!p || n > MAX_STRING) break;
        if (!arena) continue;
        char *copy;
        TRY(kld_arena_strndup(arena, &copy, (const char *)p, n, err));
        *strings[i] = copy;
    }
    if (c->bad) return kld_fail(err, KLD_E_INPUT, "the head of its content is cut short");
    if (flags) return kld_fail(err, KLD_E_INPUT, "reserved flags 0x%x are set", (unsigned)flags);
    if (m.tokens > UINT32_MAX || m.score_from > m.tokens ||
        *rows != (m.tokens > m.score_from + 1 ? m.tokens - 1 - m.score_from : 0))
        return kld_fail(err, KLD_E_INPUT, "%llu rows do not fit %llu tokens scored from %llu",
                        (unsigned long long)*rows, (unsigned long long)m.tokens,
                        (unsigned long long)m.score_from);
    if (meta) *meta = m;
    return KLD_OK;
}

kld_status frame_meta(const kld_buf *text, kld_arena *arena, kld_window_meta *meta, uint64_t *rows,
                      kld_err *err) {
    kld_cursor c = kld_cursor_of(text->data, text->len);
    return frame_head(&c, arena, meta, rows, err);
}

/* ---- columns of a row ----------------------------------------------------------------- */

static bool holds(const uint32_t *ids, size_t n, uint32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The own list, without the ids that ref holds.  Those extras are few and their ranks are
 * not known to the reader, so they are all on the fine grid. */
static kld_status add_list(columns *c, const kld_records *r, size_t i, const kld_records *ref,
                           kld_err *err) {
    const uint32_t *ids = r->ids + i * r->k_ld;
    const double *lp = r->lp + i * r->k_ld;
    const uint32_t *known = ref ? ref->ids + i * ref->k_ld : NULL;
    size_t n_known = ref ? ref->count[i] : 0;
    uint32_t extra = 0;
    double pred = 0;
    for (size_t j = 0; j < r->count[i]; j++) {
        if (ref && holds(known, n_known, ids[j])) continue;
        TRY(column_add(&c->col[COL_IDS], ids[j], err));
        TRY(lp_add(c, COL_LP, lp[j], pred, ref != NULL || lp_fine(j), &pred, err));
        extra++;
    }
    if (!ref) return KLD_OK;
    TRY(column_add(&c->col[COL_EXTRA], extra, err));
    return column_add(&c->col[COL_TOP1], r->count[i] ? ids[0] : UINT32_MAX, err);
}

static kld_status add_scalars(columns *c, const kld_records *r, size_t i, kld_err *err) {
    TRY(column_add(&c->col[COL_COUNT], r->count[i], err));
    TRY(column_add(&c->col[COL_LABEL], r->label[i], err));
    TRY(column_add_f32(&c->col[COL_LABEL_LP], r->label_lp[i], err));
    TRY(column_add_f32(&c->col[COL_LSE], r->lse[i], err));
    TRY(column_add_f32(&c->col[COL_ENTROPY], r->entropy[i], err));
    return column_add_f32(&c->col[COL_TAIL_MASS], r->tail_mass[i], err);
}

static bool has_draws(const kld_records *r, size_t i) {
    return r->m > 0 && r->count[i] > 0 && r->tail_mass[i] > 0;
}

static kld_status add_draws(columns *c, const kld_records *r, size_t i, kld_err *err) {
    if (!has_draws(r, i)) return KLD_OK;
    double rounded;
    for (size_t j = 0; j < r->m; j++) {
        if (r->tail_ids[i * r->m + j] == UINT32_MAX)
            return kld_fail(err, KLD_E_INTERNAL, "row %zu has a tail but no draws", i);
        TRY(column_add(&c->col[COL_TAIL_IDS], r->tail_ids[i * r->m + j], err));
        TRY(lp_add(c, COL_TAIL_LP, r->tail_lp[i * r->m + j], 0, 0, &rounded, err));
    }
    return KLD_OK;
}

static kld_status add_at_reference(columns *c, const kld_records *r, size_t i,
                                   const kld_records *ref, kld_err *err) {
    double rounded;
    if (r->count[i] == 0) return KLD_OK;
    for (size_t j = 0; j < ref->count[i]; j++)
        TRY(lp_add(c, COL_REF_LP, r->ref_lp[i * r->ref_ld + j], ref->lp[i * ref->k_ld + j],
                   lp_fine(j), &rounded, err));
    if (!has_draws(ref, i)) return KLD_OK;
    for (size_t j = 0; j < ref->m; j++)
        TRY(lp_add(c, COL_REF_TAIL_LP, r->ref_tail_lp[i * r->ref_m + j],
                   ref->tail_lp[i * ref->m + j], 0, &rounded, err));
    return KLD_OK;
}

static kld_status check_shapes(const kld_capture_info *info, const kld_records *r,
                               const kld_records *ref, kld_err *err) {
    bool ok =
        r->n <= UINT32_MAX && r->m <= info->tail_samples && (ref != NULL) == info->has_reference;
    if (ok && ref) ok = ref->n == r->n && r->ref_ld >= ref->k_ld && r->ref_m >= ref->m;
    for (size_t i = 0; ok && i < r->n; i++)
        ok = r->count[i] <= r->k_ld && r->count[i] <= info->top_k;
    if (ok) return KLD_OK;
    return kld_fail(err, KLD_E_INTERNAL, "records do not have the shape that the header promises");
}

kld_status frame_encode(const kld_capture_info *info, const kld_window_meta *meta,
                        const kld_records *r, const kld_records *ref, kld_buf *out, kld_err *err) {
    TRY(check_shapes(info, r, ref, err));
    columns c = {0};
    kld_buf text = {.max = frame_content_max(info, r->n)};
    kld_status st;
    TRY_TO(done, write_meta(meta, r, &text, err));
    for (size_t i = 0; i < r->n; i++) {
        TRY_TO(done, add_scalars(&c, r, i, err));
        TRY_TO(done, add_list(&c, r, i, ref, err));
        TRY_TO(done, add_draws(&c, r, i, err));
        if (ref) TRY_TO(done, add_at_reference(&c, r, i, ref, err));
    }
    TRY_TO(done, columns_write(&c, &text, err));
    TRY_TO(done, deflate(&text, out, err));
done:
    columns_free(&c);
    kld_buf_free(&text);
    return st;
}
