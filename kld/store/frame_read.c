/* The columns of a window -> records.  The inverse of frame.c, which owns the layout. */
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"
#include "kld/store/hidden.h"

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
    bool has = row_has_draws(out, i);
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
    bool finite = out->count[i] > 0, draws = finite && row_has_draws(ref, i);
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
        scratch[n++] = (entry){out->ref_lp[i * out->ref_ld + j], ref->ids[i * ref->k_ld + j]};
    }
    for (size_t j = 0; j < extra; j++) {
        TRY(take_id(c, COL_IDS, info, &scratch[n].id, err));
        TRY(lp_take(c, COL_LP, pred, lp_fine(j), &scratch[n].lp, err));
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

/* Sum of n probabilities; above 2 when one of them is impossible. */
static double mass_of(const double *lp, size_t n) {
    static const double ROUNDING = 1e-3;
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        if (!(lp[j] <= ROUNDING)) return INFINITY;
        sum += exp(lp[j]);
    }
    return sum;
}

const char *frame_row_fault(const kld_records *r, size_t i, const kld_records *ref) {
    static const double ONE = 1.01; /* 4,096 entries of the coarse grid are off by 6e-5 at most */
    if (r->count[i] == 0) return NULL;
    double tail = (double)r->tail_mass[i], label = (double)r->label_lp[i];
    if (!(tail >= 0 && tail + mass_of(r->lp + i * r->k_ld, r->count[i]) <= ONE))
        return "its probabilities and tail mass are more than 1 or no numbers";
    if (!(label <= 1e-3)) return "the probability of the next token is above 1 or no number";
    if (row_has_draws(r, i) && mass_of(r->tail_lp + i * r->m, r->m) > (double)r->m * ONE)
        return "a draw has a probability above 1";
    if (!ref) return NULL;
    if (mass_of(r->ref_lp + i * r->ref_ld, ref->count[i]) > ONE)
        return "its probabilities at the reference's ids are more than 1";
    if (row_has_draws(ref, i) &&
        mass_of(r->ref_tail_lp + i * r->ref_m, ref->m) > (double)ref->m * ONE)
        return "its probability at a draw of the reference is above 1";
    return NULL;
}

static kld_status check_row(const kld_records *r, size_t i, const kld_records *ref, kld_err *err) {
    const char *fault = frame_row_fault(r, i, ref);
    return fault ? kld_fail(err, KLD_E_INPUT, "row %zu: %s", i, fault) : KLD_OK;
}

static kld_status take_row(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                           const kld_records *ref, entry *scratch, kld_err *err) {
    TRY(take_scalars(c, info, out, i, err));
    if (!ref) TRY(take_list(c, info, out, i, err));
    TRY(take_draws(c, info, out, i, err));
    if (ref) {
        TRY(take_at_reference(c, out, i, ref, err));
        TRY(rebuild_list(c, info, out, i, ref, scratch, err));
    }
    return check_row(out, i, ref, err);
}

/* No token has an expert twice: the sum over its slots would count it twice. */
static kld_status take_route(columns *c, uint64_t experts, kld_records *out, size_t row,
                             kld_err *err) {
    for (size_t j = 0; j < out->route_k; j++) {
        uint32_t *id = &out->route_id[row * out->route_k + j];
        TRY(column_take(c, COL_ROUTE_ID, id, err));
        TRY(column_take_f32(c, COL_ROUTE_WEIGHT, &out->route_weight[row * out->route_k + j], err));
        bool twice = false;
        for (size_t k = 1; k <= j; k++) twice = twice || *(id - k) == *id;
        if (*id >= experts || twice)
            return kld_fail(err, KLD_E_INPUT, "token %zu, layer %zu with experts: expert %u %s",
                            row / out->route_layers, row % out->route_layers, (unsigned)*id,
                            twice ? "is there twice" : "does not exist");
    }
    return column_take_f32(c, COL_ROUTE_MARGIN, &out->route_margin[row], err);
}

static kld_status take_routes(columns *c, const kld_capture_info *info, uint64_t tokens,
                              kld_records *out, kld_err *err) {
    const kld_route_info *r = &info->routes;
    if (!r->kept) return KLD_OK;
    /* Memory is bounded by what the file really holds. */
    if (c->col[COL_ROUTE_MARGIN].n != tokens * r->layers ||
        c->col[COL_ROUTE_ID].n != tokens * r->layers * r->top_k)
        return kld_fail(err, KLD_E_INPUT,
                        "%zu routes with %zu experts, but %llu tokens in %llu layers with %llu "
                        "experts each",
                        c->col[COL_ROUTE_MARGIN].n, c->col[COL_ROUTE_ID].n,
                        (unsigned long long)tokens, (unsigned long long)r->layers,
                        (unsigned long long)r->top_k);
    TRY(kld_records_alloc_routes(out, tokens, r->layers, r->top_k, err));
    for (size_t i = 0; i < tokens * r->layers; i++) TRY(take_route(c, r->experts, out, i, err));
    return KLD_OK;
}

kld_status frame_records(const kld_capture_info *info, const kld_buf *text, const kld_records *ref,
                         kld_records *out, kld_err *err) {
    columns c = {0};
    entry *scratch = NULL;
    memset(out, 0, sizeof *out);
    window_head head;
    kld_digest bound;
    kld_cursor in = kld_cursor_of(text->data, text->len);
    kld_status st;
    TRY_TO(done, head_read(&in, NULL, &head, err));
    if (ref) {
        TRY_TO(done, records_digest(ref, &bound, err));
        if (ref->n != head.rows || memcmp(&bound, &head.ref, sizeof bound) != 0) {
            st = kld_fail(err, KLD_E_INPUT,
                          "the reference records given are not those it was captured against");
            goto done;
        }
    }
    TRY_TO(done, columns_read(&c, &in, err));
    /* Every row has a label, so memory is bounded by what the file really holds. */
    if (c.col[COL_LABEL].n != head.rows) {
        st = kld_fail(err, KLD_E_INPUT, "%zu labels for %u rows", c.col[COL_LABEL].n,
                      (unsigned)head.rows);
        goto done;
    }
    TRY_TO(done, hidden_check(&info->hidden, &c, head.rows, err));
    size_t k_ld = 0;
    for (size_t i = 0; i < c.col[COL_COUNT].n; i++) k_ld = num_max(k_ld, c.col[COL_COUNT].v[i]);
    if (k_ld > info->top_k || (k_ld + info->tail_samples + (ref ? ref->k_ld + ref->m : 0)) * 12 >
                                  MAX_WINDOW_BYTES / ((size_t)head.rows + 1)) {
        st =
            kld_fail(err, KLD_E_INPUT, "%u rows with lists of %zu ids: more than a window may hold",
                     (unsigned)head.rows, k_ld);
        goto done;
    }
    TRY_TO(done, kld_records_alloc(out, head.rows, k_ld, info->tail_samples, ref ? ref->k_ld : 0,
                                   ref ? ref->m : 0, err));
    out->first = head.meta.score_from;
    if (ref) TRY_TO(done, NEW_ARRAY(&scratch, ref->k_ld + info->top_k, err));
    for (size_t i = 0; i < out->n; i++) TRY_TO(done, take_row(&c, info, out, i, ref, scratch, err));
    TRY_TO(done, take_routes(&c, info, head.meta.tokens, out, err));
    TRY_TO(done, columns_finish(&c, err));
done:
    columns_free(&c);
    kld_free(scratch);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}

kld_status frame_routes(const kld_capture_info *info, const kld_buf *text, kld_records *out,
                        kld_err *err) {
    columns c = {0};
    window_head head;
    kld_cursor in = kld_cursor_of(text->data, text->len);
    memset(out, 0, sizeof *out);
    kld_status st = head_read(&in, NULL, &head, err);
    if (st == KLD_OK) st = columns_read(&c, &in, err);
    if (st == KLD_OK) st = take_routes(&c, info, head.meta.tokens, out, err);
    columns_free(&c);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}

kld_status frame_hidden(const kld_capture_info *info, const kld_buf *text, kld_records *out,
                        kld_err *err) {
    columns c = {0};
    window_head head;
    kld_cursor in = kld_cursor_of(text->data, text->len);
    memset(out, 0, sizeof *out);
    kld_status st = head_read(&in, NULL, &head, err);
    if (st == KLD_OK) st = columns_read(&c, &in, err);
    if (st == KLD_OK) {
        out->n = head.rows;
        out->first = (size_t)head.meta.score_from;
        st = hidden_take(&info->hidden, &c, out, err);
    }
    columns_free(&c);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}
