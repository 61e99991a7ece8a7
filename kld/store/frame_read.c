/* The columns of a window -> records.  The inverse of frame.c, which owns the layout. */
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A small hostile file must not make the reader allocate without bound. */
static const size_t MAX_WINDOW_BYTES = (size_t)8 << 30;

typedef struct entry {
    double lp;
    uint32_t id;
} entry;

/* Log-probability descending, then id ascending: the order of an own list. */
static int by_probability(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static kld_status take_scalars(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                               kld_err *err) {
    TRY(column_take(c, COL_COUNT, &out->count[i], err));
    TRY(column_take(c, COL_LABEL, &out->label[i], err));
    TRY(column_take_f32(c, COL_LABEL_LP, &out->label_lp[i], err));
    TRY(column_take_f32(c, COL_LSE, &out->lse[i], err));
    TRY(column_take_f32(c, COL_ENTROPY, &out->entropy[i], err));
    TRY(column_take_f32(c, COL_TAIL_MASS, &out->tail_mass[i], err));
    if (out->count[i] > out->k_ld || out->label[i] >= info->vocab)
        return kld_fail(err, KLD_E_INPUT, "row %zu: a list of %u ids or label %u is out of range",
                        i, (unsigned)out->count[i], (unsigned)out->label[i]);
    return KLD_OK;
}

static kld_status take_id(columns *c, column_id col, const kld_capture_info *info, uint32_t *id,
                          kld_err *err) {
    TRY(column_take(c, col, id, err));
    if (*id >= info->vocab)
        return kld_fail(err, KLD_E_INPUT, "id %u is outside the vocabulary of %llu", (unsigned)*id,
                        (unsigned long long)info->vocab);
    return KLD_OK;
}

static kld_status take_list(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                            kld_err *err) {
    double pred = 0;
    for (size_t j = 0; j < out->count[i]; j++) {
        size_t at = i * out->k_ld + j;
        TRY(take_id(c, COL_IDS, info, &out->ids[at], err));
        TRY(lp_take(c, COL_LP, pred, lp_fine(j), &out->lp[at], err));
        pred = out->lp[at];
    }
    return KLD_OK;
}

static kld_status take_draws(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                             kld_err *err) {
    bool has = out->count[i] > 0 && out->tail_mass[i] > 0;
    for (size_t j = 0; j < out->m; j++) {
        size_t at = i * out->m + j;
        out->tail_ids[at] = UINT32_MAX;
        out->tail_lp[at] = NAN;
        if (!has) continue;
        TRY(take_id(c, COL_TAIL_IDS, info, &out->tail_ids[at], err));
        TRY(lp_take(c, COL_TAIL_LP, 0, 0, &out->tail_lp[at], err));
    }
    return KLD_OK;
}

static kld_status take_at_reference(columns *c, kld_records *out, size_t i, const kld_records *ref,
                                    kld_err *err) {
    bool finite = out->count[i] > 0, draws = finite && ref->count[i] > 0 && ref->tail_mass[i] > 0;
    for (size_t j = 0; j < out->ref_ld; j++) {
        double *lp = &out->ref_lp[i * out->ref_ld + j];
        *lp = NAN;
        if (finite && j < ref->count[i])
            TRY(lp_take(c, COL_REF_LP, ref->lp[i * ref->k_ld + j], lp_fine(j), lp, err));
    }
    for (size_t j = 0; j < out->ref_m; j++) {
        double *lp = &out->ref_tail_lp[i * out->ref_m + j];
        *lp = NAN;
        if (draws && j < ref->m)
            TRY(lp_take(c, COL_REF_TAIL_LP, ref->tail_lp[i * ref->m + j], 0, lp, err));
    }
    return KLD_OK;
}

/* Own list = the reference's ids with own log-probabilities, and the extras. */
static kld_status rebuild_list(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                               const kld_records *ref, entry *scratch, kld_err *err) {
    uint32_t extra, top1;
    TRY(column_take(c, COL_EXTRA, &extra, err));
    TRY(column_take(c, COL_TOP1, &top1, err));
    if (extra > out->count[i])
        return kld_fail(err, KLD_E_INPUT, "row %zu: %u extra ids in a list of %u", i,
                        (unsigned)extra, (unsigned)out->count[i]);
    size_t n = 0;
    double pred = 0;
    for (size_t j = 0; out->count[i] > 0 && j < ref->count[i]; j++) {
        double lp = out->ref_lp[i * out->ref_ld + j];
        if (lp > -INFINITY) scratch[n++] = (entry){lp, ref->ids[i * ref->k_ld + j]};
    }
    for (size_t j = 0; j < extra; j++) {
        TRY(take_id(c, COL_IDS, info, &scratch[n].id, err));
        TRY(lp_take(c, COL_LP, pred, 1, &scratch[n].lp, err));
        pred = scratch[n++].lp;
    }
    if (n < out->count[i])
        return kld_fail(err, KLD_E_INPUT, "row %zu: a list of %u ids, only %zu are known", i,
                        (unsigned)out->count[i], n);
    if (n > 1) qsort(scratch, n, sizeof *scratch, by_probability);
    /* Rounding can swap near-ties; the most probable id is stored outright. */
    for (size_t j = 1; j < n; j++)
        if (scratch[j].id == top1) {
            entry first = scratch[j];
            memmove(scratch + 1, scratch, j * sizeof *scratch);
            scratch[0] = first;
            break;
        }
    if (out->count[i] > 0 && scratch[0].id != top1)
        return kld_fail(err, KLD_E_INPUT, "row %zu: its most probable id %u is not in its list", i,
                        (unsigned)top1);
    for (size_t j = 0; j < out->count[i]; j++) {
        out->ids[i * out->k_ld + j] = scratch[j].id;
        out->lp[i * out->k_ld + j] = scratch[j].lp;
    }
    return KLD_OK;
}

static kld_status take_row(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                           const kld_records *ref, entry *scratch, kld_err *err) {
    TRY(take_scalars(c, info, out, i, err));
    if (!ref) TRY(take_list(c, info, out, i, err));
    TRY(take_draws(c, info, out, i, err));
    if (!ref) return KLD_OK;
    TRY(take_at_reference(c, out, i, ref, err));
    return rebuild_list(c, info, out, i, ref, scratch, err);
}

kld_status frame_records(const kld_capture_info *info, const kld_buf *text, const kld_records *ref,
                         kld_records *out, kld_err *err) {
    uint64_t rows = 0;
    columns c = {0};
    entry *scratch = NULL;
    memset(out, 0, sizeof *out);
    kld_window_meta meta;
    kld_cursor in = kld_cursor_of(text->data, text->len);
    kld_status st;
    TRY_TO(done, frame_head(&in, NULL, &meta, &rows, err));
    TRY_TO(done, columns_read(&c, &in, err));
    /* Every row has a label, so memory is bounded by what the file really holds. */
    if (c.col[COL_LABEL].n != rows) {
        st = kld_fail(err, KLD_E_INPUT, "%zu labels for %llu rows", c.col[COL_LABEL].n,
                      (unsigned long long)rows);
        goto done;
    }
    if (ref && ref->n != rows) {
        st = kld_fail(err, KLD_E_INPUT, "%llu rows, but the reference's window has %zu",
                      (unsigned long long)rows, ref->n);
        goto done;
    }
    size_t k_ld = 0;
    for (size_t i = 0; i < c.col[COL_COUNT].n; i++) k_ld = num_max(k_ld, c.col[COL_COUNT].v[i]);
    if (k_ld > info->top_k || (k_ld + info->tail_samples + (ref ? ref->k_ld + ref->m : 0)) * 12 >
                                  MAX_WINDOW_BYTES / (rows + 1)) {
        st = kld_fail(err, KLD_E_INPUT,
                      "%llu rows with lists of %zu ids: more than a window may hold",
                      (unsigned long long)rows, k_ld);
        goto done;
    }
    TRY_TO(done, kld_records_alloc(out, (size_t)rows, k_ld, info->tail_samples, ref ? ref->k_ld : 0,
                                   ref ? ref->m : 0, err));
    out->first = meta.score_from;
    if (ref) TRY_TO(done, NEW_ARRAY(&scratch, ref->k_ld + info->top_k, err));
    for (size_t i = 0; i < out->n; i++) TRY_TO(done, take_row(&c, info, out, i, ref, scratch, err));
    TRY_TO(done, columns_finish(&c, err));
done:
    columns_free(&c);
    kld_free(scratch);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}
