/* The content of one window: its head, then the columns.  docs/format.md, "Window frames". */
#include "kld/store/frame.h"

#include "kld/base/num.h"
#include "kld/store/columns.h"
#include "kld/store/hidden.h"

#include <math.h>
#include <string.h>
#include <zstd.h>

enum { LEVEL = 9 };

/* A hostile file of a few bytes could otherwise unfold to what its header allows. */
static const uint64_t MAX_CONTENT = UINT64_C(2) << 30;

/* ---- container ------------------------------------------------------------------------ */

size_t frame_content_max(const kld_capture_info *info, uint64_t rows) {
    /* A value takes 4 bytes for its code, 4 for its id and 4 more when it is wide; a candidate
     * has its own list, draws and the reference's. */
    uint64_t a_row =
        12 * (info->top_k + info->tail_samples + info->ref_top_k + info->ref_tail_samples) + 64 +
        4 * hidden_words(&info->hidden);
    uint64_t all;
    if (!num_mul_u64(a_row, rows, &all) || all > MAX_CONTENT) all = MAX_CONTENT;
    /* Routes are of every token, of which only the scored ones are rows. */
    if (info->routes.kept) all = MAX_CONTENT;
    return (size_t)all + HEAD_MAX + 5 * COL_END;
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

/* ---- columns of a row ----------------------------------------------------------------- */

static bool holds(const uint32_t *ids, size_t n, uint32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The own list, without the ids that ref holds.  The reader does not know the ranks of these
 * extras, but the j-th extra cannot stand before rank j: counting them finds every one of the
 * eight most probable ids a place on the fine grid. */
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
        TRY(lp_add(c, COL_LP, lp[j], pred, lp_fine(extra), &pred, err));
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

static kld_status add_draws(columns *c, const kld_records *r, size_t i, kld_err *err) {
    if (!row_has_draws(r, i)) return KLD_OK;
    double rounded;
    for (size_t j = 0; j < r->m; j++) {
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
    if (!row_has_draws(ref, i)) return KLD_OK;
    for (size_t j = 0; j < ref->m; j++)
        TRY(lp_add(c, COL_REF_TAIL_LP, r->ref_tail_lp[i * r->ref_m + j],
                   ref->tail_lp[i * ref->m + j], 0, &rounded, err));
    return KLD_OK;
}

/* An expert that does not exist, or that a token has twice: a reader refuses both. */
static bool routes_sound(const kld_route_info *t, const kld_records *r) {
    size_t k = r->route_k;
    for (size_t i = 0; i < r->route_tokens * r->route_layers * k; i++) {
        const uint32_t *id = &r->route_id[i];
        if (*id >= t->experts) return false;
        for (size_t j = 1; j <= i % k; j++)
            if (*(id - j) == *id) return false;
    }
    return true;
}

static kld_status check_shapes(const kld_capture_info *info, uint64_t tokens, const kld_records *r,
                               const kld_records *ref, kld_err *err) {
    bool ok =
        r->n <= UINT32_MAX && r->m == info->tail_samples && (ref != NULL) == info->has_reference;
    if (ok && ref)
        ok = ref->n == r->n && r->ref_ld >= ref->k_ld && r->ref_m == ref->m &&
             ref->m == info->ref_tail_samples;
    for (size_t i = 0; ok && i < r->n; i++) {
        ok = r->count[i] <= r->k_ld && r->count[i] <= info->top_k;
        if (ok && ref) ok = ref->count[i] <= ref->k_ld && ref->count[i] <= info->ref_top_k;
    }
    const kld_route_info *t = &info->routes;
    if (ok && t->kept)
        ok = r->route_layers == t->layers && r->route_k == t->top_k && r->route_tokens == tokens &&
             routes_sound(t, r);
    if (ok) return KLD_OK;
    return kld_fail(err, KLD_E_INTERNAL, "records do not have the shape that the header promises");
}

/* What a reader would refuse must not be written. */
static kld_status check_row(const kld_capture_info *info, const kld_records *r, size_t i,
                            const kld_records *ref, kld_err *err) {
    const uint32_t *ids = r->ids + i * r->k_ld, *draw = r->tail_ids + i * r->m;
    const double *lp = r->lp + i * r->k_ld;
    bool ok = r->label[i] < info->vocab && (!ref || ref->label[i] == r->label[i]);
    for (size_t j = 0; ok && j < r->count[i]; j++)
        ok = ids[j] < info->vocab && (j == 0 || lp[j] <= lp[j - 1]);
    for (size_t j = 0; ok && row_has_draws(r, i) && j < r->m; j++) ok = draw[j] < info->vocab;
    const char *fault = ok ? frame_row_fault(r, i, ref) : NULL;
    if (fault) return kld_fail(err, KLD_E_NUMERIC, "row %zu: %s", i, fault);
    if (ok) return KLD_OK;
    return kld_fail(err, KLD_E_INTERNAL,
                    "row %zu: an id is outside the vocabulary, the list is not sorted, a draw is "
                    "missing, or the label is not the reference's",
                    i);
}

static kld_status add_row(columns *c, const kld_capture_info *info, const kld_records *r, size_t i,
                          const kld_records *ref, kld_err *err) {
    TRY(check_row(info, r, i, ref, err));
    TRY(add_scalars(c, r, i, err));
    /* The order in which a reader takes the values, which share COL_WIDE. */
    if (!ref) TRY(add_list(c, r, i, NULL, err));
    TRY(add_draws(c, r, i, err));
    if (!ref) return KLD_OK;
    TRY(add_at_reference(c, r, i, ref, err));
    return add_list(c, r, i, ref, err);
}

static kld_status add_routes(columns *c, const kld_records *r, kld_err *err) {
    size_t rows = r->route_tokens * r->route_layers;
    for (size_t i = 0; i < rows * r->route_k; i++) {
        TRY(column_add(&c->col[COL_ROUTE_ID], r->route_id[i], err));
        TRY(column_add_f32(&c->col[COL_ROUTE_WEIGHT], r->route_weight[i], err));
    }
    for (size_t i = 0; i < rows; i++)
        TRY(column_add_f32(&c->col[COL_ROUTE_MARGIN], r->route_margin[i], err));
    return KLD_OK;
}

kld_status frame_encode(const kld_capture_info *info, const kld_window_meta *meta,
                        const kld_records *r, const kld_records *ref, kld_buf *out, kld_buf *head,
                        kld_err *err) {
    TRY(check_shapes(info, meta->tokens, r, ref, err));
    columns c = {0};
    kld_buf text = {.max = frame_content_max(info, r->n)}, planes = {.max = text.max};
    window_head h = {.meta = *meta, .rows = (uint32_t)r->n};
    kld_status st;
    kld_buf_clear(head);
    if (ref) TRY_TO(done, records_digest(ref, &h.ref, err));
    TRY_TO(done, head_write(&h, head, err));
    TRY_TO(done, kld_buf_add(&text, head->data, head->len, err));
    for (size_t i = 0; i < r->n; i++) TRY_TO(done, add_row(&c, info, r, i, ref, err));
    TRY_TO(done, hidden_planes(&info->hidden, r, &planes, &c, err));
    if (info->routes.kept) TRY_TO(done, add_routes(&c, r, err));
    TRY_TO(done, columns_write(&c, &text, err));
    TRY_TO(done, deflate(&text, out, err));
done:
    columns_free(&c);
    kld_buf_free(&planes);
    kld_buf_free(&text);
    return st;
}
