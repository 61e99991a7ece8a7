#include "kld/compare/report.h"

#include "kld/base/mem.h"

#include <math.h>

static const char *const COLUMN_NAME[KLD_ROUTE_COLUMNS] = {
    "top1_agreement", "slot_agreement", "overlap", "exact_agreement", "weight_tv"};

static const char *const SOURCE_NAME[] = {NULL, "reference", "candidate", "elsewhere"};
static const char *const LEFT_OUT_NAME[] = {NULL, "source", "checkpoint", "arithmetic", "repeated"};

static void index_or_null(kld_emit *e, json_t *o, const char *key, long k) {
    if (k < 0) kld_emit_value(e, o, key, json_null());
    else kld_emit_count(e, o, key, (uint64_t)k);
}

void kld_report_routing(kld_report *r, const kld_capture_info *info, const kld_role *role,
                        json_t *into) {
    const kld_route_info *i = &info->routes;
    kld_emit *e = &r->emit;
    if (!i->kept && i->mode == KLD_ROUTES_NATURAL) {
        kld_emit_value(e, into, "routing", json_null());
        return;
    }
    json_t *o = kld_emit_object(e, into, "routing");
    kld_emit_text(e, o, "mode", kld_route_mode_name(i->mode));
    kld_emit_bool(e, o, "kept", i->kept);
    kld_emit_count(e, o, "layers", i->layers);
    kld_emit_count(e, o, "top_k", i->top_k);
    kld_emit_count(e, o, "experts", i->experts);
    if (i->mode == KLD_ROUTES_NATURAL || !role) return;
    bool placed = role->cell < KLD_CELLS, pinned = i->mode == KLD_ROUTES_ID_PINNED;
    kld_emit_text(e, o, "source", SOURCE_NAME[role->source]);
    index_or_null(e, o, "source_candidate", role->source_candidate);
    kld_emit_digest(e, o, "source_digest", &i->source);
    kld_emit_text(e, o, "cell", placed && !pinned ? KLD_CELL_NAME[role->cell] : NULL);
    if (pinned) kld_emit_text(e, o, "beside", placed ? KLD_CELL_NAME[role->cell] : NULL);
    index_or_null(e, o, "cell_of", role->of);
    kld_emit_text(e, o, "left_out", LEFT_OUT_NAME[role->left_out]);
}

/* ---- agreement -------------------------------------------------------------------------- */

static void columns(kld_report *r, json_t *o, const kld_route_sums *s, const kld_interval *ci) {
    static const char *const RANGE[KLD_ROUTE_COLUMNS] = {"top1_agreement_ci95",
                                                         "slot_agreement_ci95", "overlap_ci95",
                                                         "exact_agreement_ci95", "weight_tv_ci95"};
    kld_emit *e = &r->emit;
    for (int c = 0; c < KLD_ROUTE_COLUMNS; c++) {
        kld_emit_real(e, o, COLUMN_NAME[c], kld_route_mean(s, (kld_route_column)c));
        if (ci) kld_emit_range(e, o, RANGE[c], ci[c].lo, ci[c].hi);
    }
    kld_emit_count(e, o, "weight_tv_undecided", s->n[KLD_ROUTE_TOP1] - s->n[KLD_ROUTE_TV]);
    json_t *m = kld_emit_object(e, o, "margin");
    kld_emit_real(e, m, "mean", kld_route_margin(s, 2));
    kld_emit_real(e, m, "equal", kld_route_margin(s, 0));
    kld_emit_real(e, m, "differ", kld_route_margin(s, 1));
    kld_emit_count(e, m, "finite", s->margin_n[0] + s->margin_n[1]);
}

/* Clusters have tokens where they have no scored position, so these sums are drawn by themselves:
 * what is said of KL must not depend on whether routes were kept. */
static kld_status intervals(kld_report *r, const kld_route_tally *t,
                            kld_interval ci[KLD_ROUTE_COLUMNS]) {
    enum { COLS = KLD_ROUTE_COLUMNS };
    static const kld_scale SCALE[COLS] = {KLD_SCALE_SHARE, KLD_SCALE_SHARE, KLD_SCALE_SHARE,
                                          KLD_SCALE_SHARE, KLD_SCALE_SHARE};
    size_t clusters = r->tally->clusters;
    double *num = NULL, *den = NULL;
    bool *kept = NULL;
    kld_strata strata = {0};
    kld_replicates replicates = {0};
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&kept, clusters, NULL));
    for (size_t c = 0; c < clusters && c < t->cap_clusters; c++)
        kept[c] = t->by_cluster[c].n[KLD_ROUTE_TOP1] > 0;
    TRY_TO(done,
           kld_strata_order(&strata, r->tally->stratum_of, r->tally->strata, kept, clusters, NULL));
    TRY_TO(done, kld_calloc((void **)&num, strata.clusters, COLS * sizeof *num, NULL));
    TRY_TO(done, kld_calloc((void **)&den, strata.clusters, COLS * sizeof *den, NULL));
    for (size_t row = 0; row < strata.clusters; row++)
        for (size_t k = 0; k < COLS; k++) {
            num[row * COLS + k] = t->by_cluster[strata.order[row]].sum[k];
            den[row * COLS + k] = (double)t->by_cluster[strata.order[row]].n[k];
        }
    const kld_cluster_sums s = {.clusters = strata.clusters,
                                .cols = COLS,
                                .groups = strata.groups,
                                .start = strata.start,
                                .scale = SCALE,
                                .num = num,
                                .den = den};
    if (s.clusters >= KLD_FEW_CLUSTERS)
        TRY_TO(done, kld_bootstrap(&replicates, &s, r->opt->resamples, r->opt->seed, NULL));
    for (size_t k = 0; k < COLS; k++) {
        kld_estimate e = kld_estimate_ratio(&s, k, replicates.t ? &replicates : NULL);
        ci[k] = kld_estimate_interval(&e, 0.95);
    }
done:
    kld_replicates_free(&replicates);
    kld_strata_free(&strata);
    kld_free(kept);
    kld_free(den);
    kld_free(num);
    return st;
}

void kld_report_routes(kld_report *r, size_t k, json_t *into) {
    const kld_route_tally *t = &r->routes[k];
    kld_emit *e = &r->emit;
    kld_interval ci[KLD_ROUTE_COLUMNS];
    if (t->layers == 0) {
        kld_emit_value(e, into, "routes", json_null());
        return;
    }
    if (intervals(r, t, ci) != KLD_OK) {
        e->failed = true;
        return;
    }
    json_t *o = kld_emit_object(e, into, "routes");
    kld_emit_count(e, o, "tokens", t->tokens);
    kld_emit_count(e, o, "layers", t->layers);
    kld_emit_text(e, o, "ci_method", ci[0].method);
    kld_route_sums all = {0};
    for (size_t i = 0; i < t->layers; i++) kld_route_sums_add(&all, &t->layer[i]);
    columns(r, kld_emit_object(e, o, "overall"), &all, ci);
    json_t *a = kld_emit_array(e, o, "by_layer");
    for (size_t i = 0; i < t->layers; i++) {
        json_t *row = kld_emit_object(e, a, NULL);
        kld_emit_count(e, row, "layer", i);
        columns(r, row, &t->layer[i], NULL);
    }
}

/* ---- cells ------------------------------------------------------------------------------ */

static double mean_kl(const kld_report *r, long k) {
    return k < 0 ? NAN : kld_group_estimate(&r->tally->cand[k].all, KLD_DIV_KL);
}

static void pinned(kld_report *r, size_t k, json_t *o) {
    kld_emit *e = &r->emit;
    json_t *a = kld_emit_array(e, o, "id_pinned");
    for (size_t j = 0; j < r->tally->n_cands; j++) {
        const kld_role *role = &r->role[j];
        if (r->cand[j].info->routes.mode != KLD_ROUTES_ID_PINNED || role->of != (long)k) continue;
        json_t *x = kld_emit_object(e, a, NULL);
        kld_emit_text(e, x, "beside", KLD_CELL_NAME[role->cell]);
        kld_emit_count(e, x, "candidate", j);
        kld_emit_real(e, x, "kl_mean", mean_kl(r, (long)j));
    }
}

void kld_report_cells(kld_report *r, size_t k, json_t *into) {
    const kld_quad *q = &r->quad[k];
    const kld_tally *t = r->tally;
    kld_emit *e = &r->emit;
    if (!q->shown) {
        kld_emit_value(e, into, "cells", json_null());
        return;
    }
    json_t *o = kld_emit_object(e, into, "cells");
    bool whole = true;
    for (int c = 0; c < KLD_CELLS; c++) {
        /* What the reference scores against itself, unless its replay was measured. */
        double kl = c == KLD_BXB && q->k[c] < 0 ? 0 : mean_kl(r, q->k[c]);
        kld_emit_real(e, o, KLD_CELL_NAME[c], kl);
        whole = whole && isfinite(kl);
    }
    kld_interval ci = {.lo = NAN, .hi = NAN};
    double interaction = NAN, positions = 0;
    for (size_t x = 0; whole && x < t->n_contrasts; x++) {
        if (t->contrast[x].k[KLD_QXQ] != (long)k) continue;
        kld_estimate difference = kld_report_contrast(r, x);
        interaction = difference.mean;
        for (size_t c = 0; c < t->clusters; c++) positions += t->contrast[x].n[c];
        ci = kld_estimate_interval(&difference, 0.95);
    }
    kld_emit_real(e, o, "interaction", interaction);
    kld_emit_range(e, o, "interaction_ci95", ci.lo, ci.hi);
    kld_emit_count(e, o, "interaction_positions", (uint64_t)positions);
    json_t *from = kld_emit_object(e, o, "candidates");
    for (int c = 0; c < KLD_CELLS; c++) index_or_null(e, from, KLD_CELL_NAME[c], q->k[c]);
    pinned(r, k, o);
}
