#include "kld/compare/position.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/compare/nucleus.h"

#include <math.h>

/* Room for a list in canonical order. */
struct ordered {
    uint32_t *ids;   /* owned [k_ld] */
    double *lp, *lq; /* owned [k_ld] */
};

struct work {
    const kld_records *ref, *cand;
    const kld_position_options *opt;
    kld_match match;
    struct ordered ref_list, cand_list;
    double *lp, *lq; /* owned [min of the list lengths]: tokens known on both sides */
    double *p, *q;   /* owned, alike: their probabilities */
    double *ref_p, *ref_q,
        *cand_p;          /* owned: of the lists, and the candidate's at the reference's */
    kld_ratio *ratios;    /* owned [KLD_RATIOS] */
    double *extra_lq;     /* owned [cand->k_ld]: tokens that only the candidate lists */
    uint32_t *extra_ids;  /* owned [cand->k_ld] */
    uint32_t *draw_extra; /* owned [ref->m] */
};

static kld_status ordered_alloc(struct ordered *o, size_t n, kld_err *err) {
    kld_status st = NEW_ARRAY(&o->ids, num_max(n, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&o->lp, num_max(n, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&o->lq, num_max(n, 1), err);
    return st;
}

static void ordered_free(struct ordered *o) {
    kld_free(o->ids);
    kld_free(o->lp);
    kld_free(o->lq);
}

/* Stored log-probabilities are rounded, which makes ties of near-ties; which of them comes
 * first must then not depend on how a file keeps its list.  The most probable token stays
 * first, the others are put in order of stored log-probability, ties by lower id.  *lq (may be
 * NULL) is permuted alongside. */
static void put_in_order(struct ordered *o, kld_list *l, const double **lq) {
    size_t sorted = 2;
    while (sorted < l->n &&
           (l->lp[sorted - 1] > l->lp[sorted] ||
            (l->lp[sorted - 1] == l->lp[sorted] && l->ids[sorted - 1] < l->ids[sorted])))
        sorted++;
    if (sorted >= l->n) return; /* a candidate's is by construction */
    for (size_t i = 0; i < l->n; i++) {
        uint32_t id = l->ids[i];
        double lp = l->lp[i], q = *lq ? (*lq)[i] : 0;
        size_t j = i; /* lists are nearly in order: insertion is linear */
        for (; j > 1 && (o->lp[j - 1] < lp || (o->lp[j - 1] == lp && o->ids[j - 1] > id)); j--) {
            o->ids[j] = o->ids[j - 1];
            o->lp[j] = o->lp[j - 1];
            o->lq[j] = o->lq[j - 1];
        }
        o->ids[j] = id;
        o->lp[j] = lp;
        o->lq[j] = q;
    }
    l->ids = o->ids;
    l->lp = o->lp;
    if (*lq) *lq = o->lq;
}

static kld_list list_of(const kld_records *r, size_t i, uint64_t vocab) {
    return (kld_list){.n = r->count[i],
                      .ids = r->ids + i * r->k_ld,
                      .lp = r->lp + i * r->k_ld,
                      .tail = r->tail_mass[i],
                      .complete = r->count[i] >= vocab};
}

static bool any_nan(const double *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (isnan(v[i])) return true;
    return false;
}

/* The candidate's log-probabilities at the reference's list; NULL when it was not asked. */
static const double *at_reference(const struct work *w, size_t i) {
    if (w->cand == w->ref) return w->ref->lp + i * w->ref->k_ld;
    return w->cand->ref_ld ? w->cand->ref_lp + i * w->cand->ref_ld : NULL;
}

static const double *at_draws(const struct work *w, size_t i) {
    if (w->cand == w->ref) return w->ref->tail_lp + i * w->ref->m;
    return w->cand->ref_m ? w->cand->ref_tail_lp + i * w->cand->ref_m : NULL;
}

/* Log-probabilities are stored to half a step of 2^-13 (docs/format.md): no token outside a list
 * is more probable than its last one plus that. */
#define HALF_STEP 0x1p-14

/* Tokens that only the candidate lists: part of the rest, with known q. */
static void add_extras(struct work *w, size_t i, const kld_list *ref, const kld_list *cand,
                       kld_cells *c) {
    c->extra_lq = w->extra_lq;
    /* Some token has at least the mean; a list that says less is damaged. */
    c->cap = fmax(exp(ref->lp[ref->n - 1] + HALF_STEP), c->rest_p / (double)w->opt->vocab);
    for (size_t j = 0; j < cand->n; j++)
        if (w->match.to_ref[j] == KLD_NO_MATCH) {
            w->extra_ids[c->n_extra] = cand->ids[j];
            w->extra_lq[c->n_extra++] = cand->lp[j];
        }
    for (size_t d = 0; d < c->m; d++) {
        uint32_t id = w->ref->tail_ids[i * w->ref->m + d], at = KLD_NOT_EXTRA;
        for (uint32_t j = 0; j < c->n_extra; j++)
            if (w->extra_ids[j] == id) at = j;
        w->draw_extra[d] = at;
    }
    c->draw_extra = w->draw_extra;
}

/* Probabilities of both lists and, with lq, at the reference's.  The candidate's own are mostly
 * those at the reference's in another order. */
static void find_probabilities(struct work *w, kld_list *ref, kld_list *cand, const double *lq) {
    for (size_t j = 0; j < ref->n; j++) w->ref_p[j] = exp(ref->lp[j]);
    for (size_t j = 0; lq && j < ref->n; j++) w->ref_q[j] = exp(lq[j]);
    for (size_t j = 0; j < cand->n; j++) {
        uint32_t at = w->match.to_ref[j];
        bool same = lq && at != KLD_NO_MATCH && lq[at] == cand->lp[j];
        w->cand_p[j] = same ? w->ref_q[at] : exp(cand->lp[j]);
    }
    ref->p = w->ref_p;
    cand->p = w->cand_p;
}

/* The candidate answered at every id of the reference's list and at its draws. */
static void cells_at_reference(const struct work *w, size_t i, const kld_list *ref,
                               const double *lq, kld_cells *c) {
    *c = (kld_cells){.n = ref->n, .lp = ref->lp, .lq = lq, .p = ref->p, .q = w->ref_q};
    if (ref->complete) return;
    c->rest_p = ref->tail;
    c->rest_q = kld_rest_mass(ref->n, ref->p, w->ref_q, ref->tail);
    c->draw_lq = at_draws(w, i);
    if (!c->draw_lq) return;
    c->draw_lp = w->ref->tail_lp + i * w->ref->m;
    c->m = w->ref->m;
}

/* Two lists captured apart: what is in both, and one lump. */
static void cells_in_both(struct work *w, const kld_list *ref, const kld_list *cand, kld_cells *c) {
    *c = (kld_cells){.lp = w->lp, .lq = w->lq, .p = w->p, .q = w->q};
    c->rest_p = ref->complete ? 0 : ref->tail;
    c->rest_q = cand->complete ? 0 : cand->tail;
    for (size_t j = 0; j < ref->n; j++) {
        uint32_t at = w->match.to_cand[j];
        if (at == KLD_NO_MATCH) {
            c->rest_p += ref->p[j];
            continue;
        }
        w->lp[c->n] = ref->lp[j];
        w->lq[c->n] = cand->lp[at];
        w->p[c->n] = ref->p[j];
        w->q[c->n++] = cand->p[at];
    }
    for (size_t j = 0; j < cand->n; j++)
        if (w->match.to_ref[j] == KLD_NO_MATCH) c->rest_q += cand->p[j];
}

static void fill_agreement(const struct work *w, const kld_list *ref, const kld_list *cand,
                           const double *lq, kld_position *o) {
    o->v[KLD_COL_TOP1] = ref->ids[0] == cand->ids[0];
    o->v[KLD_COL_TOPK] = kld_topk_overlap(&w->match, ref, cand, w->opt->overlap_k);
    kld_nucleus nu = kld_nucleus_compare(&w->match, ref, cand, lq ? w->ref_q : NULL, w->opt->top_p);
    o->v[KLD_COL_JACCARD] = nu.jaccard;
    o->v[KLD_COL_NUCLEUS_TV] = nu.tv;
    o->v[KLD_COL_ON_REF_LO] = nu.on_reference[0];
    o->v[KLD_COL_ON_REF_HI] = nu.on_reference[1];
    o->v[KLD_COL_ON_CAND_LO] = nu.on_candidate[0];
    o->v[KLD_COL_ON_CAND_HI] = nu.on_candidate[1];
}

static void fill_likelihood(const struct work *w, size_t i, kld_position *o) {
    double p = -(double)w->ref->label_lp[i], q = -(double)w->cand->label_lp[i];
    o->v[KLD_COL_NLL_REF] = p;
    o->v[KLD_COL_NLL_CAND] = q;
    o->v[KLD_COL_NLL_DIFF] = p == q ? 0 : q - p;
}

static unsigned nonfinite(const struct work *w, size_t i) {
    unsigned flags = 0;
    if (w->ref->count[i] == 0) flags |= KLD_ROW_REF_NONFINITE;
    if (w->cand->count[i] == 0 || isnan(w->cand->label_lp[i])) flags |= KLD_ROW_CAND_NONFINITE;
    if (flags || w->cand == w->ref) return flags;
    if (w->cand->ref_ld && any_nan(at_reference(w, i), w->ref->count[i]))
        flags |= KLD_ROW_CAND_NONFINITE;
    return flags;
}

static void compare_row(struct work *w, size_t i, kld_position *o) {
    *o = (kld_position){.nonfinite = nonfinite(w, i), .label = w->ref->label[i]};
    o->top_ref = o->top_cand = UINT32_MAX;
    if (o->nonfinite) {
        for (int k = 0; k < KLD_COLUMNS; k++) o->v[k] = NAN;
        for (int k = 0; k < KLD_DIV_KINDS; k++) o->variance[k] = NAN;
        o->confidence = NAN;
        return;
    }
    kld_list ref = list_of(w->ref, i, w->opt->vocab), cand = list_of(w->cand, i, w->opt->vocab);
    const double *lq = at_reference(w, i), *no_lq = NULL;
    put_in_order(&w->ref_list, &ref, &lq);
    put_in_order(&w->cand_list, &cand, &no_lq);
    kld_match_lists(&w->match, &ref, &cand);
    find_probabilities(w, &ref, &cand, lq);
    kld_cells cells;
    if (lq) cells_at_reference(w, i, &ref, lq, &cells);
    else cells_in_both(w, &ref, &cand, &cells);
    cells.ratios = w->ratios;
    if (cells.rest_p > 0) add_extras(w, i, &ref, &cand, &cells);
    kld_divergence d[KLD_DIV_KINDS];
    kld_divergences(&cells, d);
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        o->v[KLD_COL_ESTIMATE + k] = d[k].estimate;
        o->v[KLD_COL_BOUND + k] = d[k].bound;
        o->variance[k] = d[k].variance;
        o->exact |= (unsigned)d[k].exact << k;
    }
    o->v[KLD_COL_TAIL] = cells.rest_p;
    o->confidence = ref.p[0];
    o->top_ref = ref.ids[0];
    o->top_cand = cand.ids[0];
    fill_agreement(w, &ref, &cand, lq, o);
    fill_likelihood(w, i, o);
}

static kld_status check_shapes(const kld_records *ref, const kld_records *cand, kld_err *err) {
    if (ref->n != cand->n || ref->first != cand->first)
        return kld_fail(err, KLD_E_INPUT,
                        "the reference scores %zu positions from %zu, the candidate %zu from %zu",
                        ref->n, ref->first, cand->n, cand->first);
    if (cand->ref_m && cand->ref_m != ref->m)
        return kld_fail(err, KLD_E_INPUT,
                        "the candidate answers %zu tail draws, the reference has %zu", cand->ref_m,
                        ref->m);
    for (size_t i = 0; i < ref->n; i++) {
        if (ref->count[i] > ref->k_ld || cand->count[i] > cand->k_ld ||
            (cand->ref_ld && ref->count[i] > cand->ref_ld))
            return kld_fail(err, KLD_E_INPUT,
                            "row %zu: a count is larger than its list (%u of %zu, %u of %zu)", i,
                            ref->count[i], ref->k_ld, cand->count[i], cand->k_ld);
        if (ref->label[i] != cand->label[i])
            return kld_fail(err, KLD_E_INPUT, "row %zu: the token that follows is %u and %u", i,
                            ref->label[i], cand->label[i]);
    }
    return KLD_OK;
}

kld_status kld_positions_compare(const kld_records *ref, const kld_records *cand,
                                 const kld_position_options *opt, kld_position *out, kld_err *err) {
    TRY(check_shapes(ref, cand, err));
    struct work w = {.ref = ref, .cand = cand, .opt = opt};
    size_t both = num_max(num_min(ref->k_ld, cand->k_ld), 1);
    kld_status st = kld_match_alloc(&w.match, num_max(ref->k_ld, cand->k_ld), err);
    if (st == KLD_OK) st = ordered_alloc(&w.ref_list, ref->k_ld, err);
    if (st == KLD_OK) st = ordered_alloc(&w.cand_list, cand->k_ld, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.lp, both, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.lq, both, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.p, both, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.q, both, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.ref_p, num_max(ref->k_ld, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.ref_q, num_max(ref->k_ld, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.cand_p, num_max(cand->k_ld, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.ratios, KLD_RATIOS, err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.extra_lq, num_max(cand->k_ld, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.extra_ids, num_max(cand->k_ld, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&w.draw_extra, num_max(ref->m, 1), err);
    if (st == KLD_OK)
        for (size_t i = 0; i < ref->n; i++) compare_row(&w, i, &out[i]);
    kld_free(w.draw_extra);
    kld_free(w.extra_ids);
    kld_free(w.extra_lq);
    kld_free(w.ratios);
    kld_free(w.cand_p);
    kld_free(w.ref_q);
    kld_free(w.ref_p);
    kld_free(w.q);
    kld_free(w.p);
    kld_free(w.lq);
    kld_free(w.lp);
    ordered_free(&w.cand_list);
    ordered_free(&w.ref_list);
    kld_match_free(&w.match);
    return st;
}
