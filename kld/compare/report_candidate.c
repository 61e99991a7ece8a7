#include "kld/compare/report.h"

#include "kld/compare/belong.h"

#include <math.h>
#include <stdio.h>

static const char *const DIV_NAME[KLD_DIV_KINDS] = {"kl", "reverse_kl", "js", "tv"};

static void place(kld_report *r, json_t *into, const kld_place *at) {
    kld_emit *e = &r->emit;
    kld_emit_count(e, into, "window", at->window);
    kld_emit_count(e, into, "position", at->position);
    kld_emit_text(e, into, "cluster", r->tally->cluster_name[at->cluster]);
    kld_emit_text(e, into, "stratum", r->tally->stratum_name[r->tally->stratum_of[at->cluster]]);
}

static void interval(kld_report *r, json_t *into, const char *key, kld_interval ci) {
    kld_emit_range(&r->emit, into, key, ci.lo, ci.hi);
}

static void quantiles(kld_report *r, json_t *into, const double *v, size_t n) {
    static const struct {
        const char *name;
        double at;
    } Q[] = {{"median", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99},
             {"p999", 0.999}, {"max", 1},   {"min", 0}};
    for (size_t i = 0; i < sizeof Q / sizeof *Q; i++)
        kld_emit_real(&r->emit, into, Q[i].name, v ? kld_quantile(v, n, Q[i].at) : NAN);
}

static void histogram(kld_report *r, json_t *into, const kld_candidate_tally *c) {
    kld_emit *e = &r->emit;
    json_t *h = kld_emit_object(e, into, "histogram");
    kld_emit_count(e, h, "bins_per_decade", KLD_HIST_PER_DECADE);
    kld_emit_real(e, h, "from", pow(10, KLD_HIST_FIRST));
    kld_emit_count(e, h, "below", c->hist_below);
    kld_emit_count(e, h, "above", c->hist_above);
    json_t *a = kld_emit_array(e, h, "counts");
    for (int b = 0; b < KLD_HIST_BINS; b++) kld_emit_count(e, a, NULL, c->hist[b]);
}

static void top_five(kld_report *r, json_t *into, const char *key, const uint32_t *id,
                     const double *lp, size_t n) {
    kld_emit *e = &r->emit;
    json_t *a = kld_emit_array(e, into, key);
    for (size_t i = 0; i < n; i++) {
        json_t *o = kld_emit_object(e, a, NULL);
        kld_emit_count(e, o, "id", id[i]);
        kld_worst_text(e, o, "text", r->tokenizer, &id[i], 1);
        kld_emit_real(e, o, "lp", lp[i]);
    }
}

static void around(kld_report *r, json_t *into, const kld_worst *w) {
    kld_emit *e = &r->emit;
    top_five(r, into, "reference_top5", w->ref_id, w->ref_lp, w->n_ref);
    top_five(r, into, "candidate_top5", w->cand_id, w->cand_lp, w->n_cand);
    json_t *o = kld_emit_object(e, into, "context");
    json_t *ids = kld_emit_array(e, o, "ids");
    for (size_t i = 0; i < w->n_context; i++) kld_emit_count(e, ids, NULL, w->context[i]);
    kld_worst_text(e, o, "text", r->tokenizer, w->context, w->n_context);
}

static void worst(kld_report *r, size_t k, json_t *into) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    kld_emit *e = &r->emit;
    json_t *a = kld_emit_array(e, into, "worst");
    for (size_t i = 0; i < c->n_worst; i++) {
        json_t *o = kld_emit_object(e, a, NULL);
        kld_emit_real(e, o, "kl", c->worst[i].value);
        place(r, o, &c->worst[i]);
        kld_emit_count(e, o, "next_id", c->worst[i].label);
        kld_worst_text(e, o, "next_text", r->tokenizer, &c->worst[i].label, 1);
        kld_emit_count(e, o, "top1_reference", c->worst[i].top_ref);
        kld_emit_count(e, o, "top1_candidate", c->worst[i].top_cand);
        if (r->worst) around(r, o, &r->worst[k * KLD_WORST + i]);
    }
}

/* Share of sorted values above a limit. */
static double share_above(const double *v, size_t n, double limit) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (v[mid] > limit) hi = mid;
        else lo = mid + 1;
    }
    return n ? (double)(n - lo) / (double)n : NAN;
}

/* Members of kl; others have none. */
static void tail_intervals(kld_report *r, size_t k, json_t *into) {
    static const char *const NAME[KLD_TAILS] = {"median", "p90", "p95", "p99", "p999"};
    json_t *o = kld_emit_object(&r->emit, into, "quantiles_ci95");
    for (size_t q = 0; q < KLD_TAILS; q++) interval(r, o, NAME[q], kld_report_tail(r, k, q));
}

static void divergence(kld_report *r, size_t k, json_t *cand, int kind) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    const kld_group *g = &c->all;
    kld_emit *e = &r->emit;
    int est = KLD_COL_ESTIMATE + kind, bound = KLD_COL_BOUND + kind;
    double mean = kld_group_estimate(g, (kld_div_kind)kind), n = (double)g->positions;
    bool partial = g->n[est] + g->inf[est] < g->positions, has_mean = isfinite(mean);
    kld_interval ci = kld_report_interval(r, k, est);
    if (!has_mean)
        ci = (kld_interval){.lo = NAN, .hi = NAN, .method = "none", .reason = "the mean is null"};
    json_t *o = kld_emit_object(e, cand, DIV_NAME[kind]);
    kld_emit_real(e, o, "mean", mean);
    interval(r, o, "ci95", ci);
    kld_emit_text(e, o, "ci_method", ci.method);
    if (ci.reason) kld_emit_text(e, o, "ci_reason", ci.reason);
    kld_emit_bool(e, o, "exact", g->positions > 0 && c->inexact[kind] == 0 && !partial);
    kld_emit_real(e, o, "lower_bound", kld_group_mean(g, bound));
    interval(r, o, "lower_bound_ci95", kld_report_interval(r, k, bound));
    kld_emit_real(e, o, "stderr_sampling", has_mean ? sqrt(c->variance[kind]) / n : NAN);
    quantiles(r, o, partial ? NULL : c->values[kind], c->n_values);
    kld_emit_real(e, o, "cluster_mean", has_mean ? kld_report_cluster_mean(r, k, est) : NAN);
    kld_emit_count(e, o, "infinite", partial ? g->inf[bound] : g->inf[est]);
    kld_emit_real(e, o, "mean_finite",
                  g->n[est] && !partial ? g->sum[est] / (double)g->n[est] : NAN);
    kld_emit_count(e, o, "unestimated", g->positions - g->n[est] - g->inf[est]);
    if (partial) quantiles(r, kld_emit_object(e, o, "lower_bounds"), c->values[kind], c->n_values);
    if (c->n_values) place(r, kld_emit_object(e, o, "max_at"), &c->max_at[kind]);
    else kld_emit_value(e, o, "max_at", json_null());
    if (kind != KLD_DIV_KL) return;
    tail_intervals(r, k, o);
    json_t *above = kld_emit_object(e, o, "share_above");
    kld_emit_real(e, above, "0.1", share_above(c->values[kind], c->n_values, 0.1));
    kld_emit_real(e, above, "1", share_above(c->values[kind], c->n_values, 1));
    histogram(r, o, c);
    worst(r, k, o);
}

static void agreement(kld_report *r, size_t k, json_t *o) {
    const kld_group *g = &r->tally->cand[k].all;
    kld_emit *e = &r->emit;
    char key[24];
    (void)snprintf(key, sizeof key, "%zu", r->opt->overlap_k);
    kld_emit_real(e, o, "top1_agreement", kld_group_mean(g, KLD_COL_TOP1));
    interval(r, o, "top1_ci95", kld_report_interval(r, k, KLD_COL_TOP1));
    kld_emit_real(e, kld_emit_object(e, o, "topk_overlap"), key, kld_group_mean(g, KLD_COL_TOPK));
    interval(r, o, "topk_ci95", kld_report_interval(r, k, KLD_COL_TOPK));
    kld_emit_count(e, o, "topk_undecided", g->positions - g->n[KLD_COL_TOPK]);

    json_t *p = kld_emit_object(e, o, "top_p");
    double ref[2] = {kld_group_mean(g, KLD_COL_ON_REF_LO), kld_group_mean(g, KLD_COL_ON_REF_HI)};
    double cand[2] = {kld_group_mean(g, KLD_COL_ON_CAND_LO), kld_group_mean(g, KLD_COL_ON_CAND_HI)};
    kld_emit_real(e, p, "temperature", 1);
    kld_emit_real(e, p, "p", r->opt->top_p);
    kld_emit_real(e, p, "jaccard", kld_group_mean(g, KLD_COL_JACCARD));
    interval(r, p, "jaccard_ci95", kld_report_interval(r, k, KLD_COL_JACCARD));
    kld_emit_real(e, p, "mass_on_reference", 0.5 * (ref[0] + ref[1]));
    kld_emit_range(e, p, "mass_on_reference_bounds", ref[0], ref[1]);
    kld_emit_real(e, p, "mass_on_candidate", 0.5 * (cand[0] + cand[1]));
    kld_emit_range(e, p, "mass_on_candidate_bounds", cand[0], cand[1]);
    kld_emit_real(e, p, "tv", kld_group_mean(g, KLD_COL_NUCLEUS_TV));
    interval(r, p, "tv_ci95", kld_report_interval(r, k, KLD_COL_NUCLEUS_TV));
    kld_emit_count(e, p, "undecided", g->positions - g->n[KLD_COL_JACCARD]);
    kld_emit_count(e, p, "decided", g->n[KLD_COL_JACCARD]);
}

static void acceptance(kld_report *r, size_t k, json_t *cand) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, cand, "acceptance");
    kld_interval tv = kld_report_interval(r, k, KLD_COL_ESTIMATE + KLD_DIV_TV);
    double mean = kld_group_estimate(&c->all, KLD_DIV_TV);
    kld_emit_real(e, o, "sampling", 1 - mean);
    kld_emit_range(e, o, "sampling_ci95", 1 - tv.hi, isfinite(mean) ? 1 - tv.lo : NAN);
    kld_emit_real(e, o, "sampling_upper", 1 - kld_group_mean(&c->all, KLD_COL_BOUND + KLD_DIV_TV));
    kld_emit_real(e, o, "greedy", kld_group_mean(&c->all, KLD_COL_TOP1));
    kld_emit_real(e, o, "nucleus", 1 - kld_group_mean(&c->all, KLD_COL_NUCLEUS_TV));
    json_t *x = kld_emit_object(e, o, "expected_tokens");
    json_t *n = kld_emit_object(e, o, "expected_starts");
    for (int d = 0; d < KLD_DRAFTS; d++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", d + 1);
        double sum = c->expected_n[d] ? c->expected[d] / (double)c->expected_n[d] : NAN;
        kld_emit_real(e, x, key, sum);
        kld_emit_count(e, n, key, c->expected_n[d]);
    }
}

static void perplexity(kld_report *r, size_t k, json_t *cand) {
    const kld_group *g = &r->tally->cand[k].all;
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, cand, "perplexity");
    kld_interval ln = kld_report_interval(r, k, KLD_COL_NLL_DIFF);
    kld_emit_real(e, o, "reference", exp(kld_group_mean(g, KLD_COL_NLL_REF)));
    kld_emit_real(e, o, "candidate", exp(kld_group_mean(g, KLD_COL_NLL_CAND)));
    kld_emit_real(e, o, "ratio", exp(kld_group_mean(g, KLD_COL_NLL_DIFF)));
    kld_emit_range(e, o, "ratio_ci95", exp(ln.lo), exp(ln.hi));
    kld_emit_count(e, o, "infinite_reference", g->inf[KLD_COL_NLL_REF]);
    kld_emit_count(e, o, "infinite_candidate", g->inf[KLD_COL_NLL_CAND]);
}

/* `mean` is of the group's KL, too: by clusters. */
static void group_row(kld_report *r, json_t *o, const kld_group *g, kld_estimate mean) {
    kld_emit *e = &r->emit;
    double kl = kld_group_estimate(g, KLD_DIV_KL);
    kld_interval ci = kld_estimate_interval(&mean, 0.95);
    if (!isfinite(kl)) ci = (kld_interval){.lo = NAN, .hi = NAN, .method = "none"};
    kld_emit_count(e, o, "positions", g->positions);
    kld_emit_count(e, o, "clusters", mean.clusters);
    kld_emit_real(e, o, "kl_mean", kl);
    interval(r, o, "kl_ci95", ci);
    kld_emit_text(e, o, "ci_method", ci.method);
    kld_emit_real(e, o, "kl_lower_bound", kld_group_mean(g, KLD_COL_BOUND + KLD_DIV_KL));
    kld_emit_real(e, o, "tv_mean", kld_group_estimate(g, KLD_DIV_TV));
    kld_emit_real(e, o, "top1_agreement", kld_group_mean(g, KLD_COL_TOP1));
    kld_emit_real(e, o, "jaccard", kld_group_mean(g, KLD_COL_JACCARD));
}

static void span(kld_report *r, json_t *rows, const kld_candidate_tally *c, int bin) {
    const kld_position_bin *s = &c->by_position[bin];
    kld_emit *e = &r->emit;
    double n = (double)s->positions;
    json_t *o = kld_emit_object(e, rows, NULL);
    kld_emit_count(e, o, "from", (uint64_t)bin * c->span);
    kld_emit_count(e, o, "to", ((uint64_t)bin + 1) * c->span - 1);
    kld_emit_count(e, o, "positions", s->positions);
    kld_emit_real(e, o, "kl_mean", s->estimate / n);
    kld_emit_real(e, o, "kl_lower_bound", s->bound / n);
}

static void groups(kld_report *r, size_t k, json_t *cand) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    kld_emit *e = &r->emit;
    json_t *a = kld_emit_array(e, cand, "by_stratum");
    for (size_t h = 0; h < r->tally->strata; h++) {
        json_t *o = kld_emit_object(e, a, NULL);
        kld_emit_text(e, o, "stratum", r->tally->stratum_name[h]);
        group_row(r, o, &c->by_stratum[h], kld_report_stratum(r, k, h));
    }
    a = kld_emit_array(e, cand, "by_depth");
    for (int d = 0; d < KLD_DEPTHS; d++) {
        json_t *o = kld_emit_object(e, a, NULL);
        kld_emit_count(e, o, "from", KLD_DEPTH_FROM[d]);
        if (d + 1 < KLD_DEPTHS) kld_emit_count(e, o, "to", KLD_DEPTH_FROM[d + 1] - 1);
        else kld_emit_value(e, o, "to", json_null());
        group_row(r, o, &c->by_depth[d], kld_report_bin(r, k, (size_t)d));
    }
    a = kld_emit_array(e, cand, "by_position");
    for (int b = 0; b < KLD_SPANS && c->by_position[b].positions; b++) span(r, a, c, b);
    a = kld_emit_array(e, cand, "by_confidence");
    for (int d = 0; d < KLD_CONFIDENCES; d++) {
        json_t *o = kld_emit_object(e, a, NULL);
        kld_emit_real(e, o, "from", KLD_CONFIDENCE_FROM[d]);
        kld_emit_real(e, o, "to", KLD_CONFIDENCE_FROM[d + 1]);
        group_row(r, o, &c->by_confidence[d], kld_report_bin(r, k, (size_t)(KLD_DEPTHS + d)));
    }
}

static void rows_not_finite(kld_report *r, size_t k, json_t *cand) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, cand, "nonfinite");
    kld_emit_count(e, o, "reference", c->ref_nonfinite);
    kld_emit_count(e, o, "candidate", c->cand_nonfinite);
    kld_emit_count(e, o, "excluded", r->tally->scored - c->all.positions);
    json_t *a = kld_emit_array(e, o, "first");
    for (size_t i = 0; i < c->n_located; i++) {
        static const char *const SIDE[] = {"", "reference", "candidate", "both"};
        json_t *at = kld_emit_object(e, a, NULL);
        kld_emit_text(e, at, "side", SIDE[c->located[i].side & 3]);
        place(r, at, &c->located[i]);
    }
}

/* What came of hidden states and heads; null for a candidate that is compared by lists. */
static void exact(kld_report *r, size_t k, json_t *cand) {
    const kld_exact *x = r->exact;
    kld_emit *e = &r->emit;
    kld_emit_bool(e, cand, "hidden", r->cand[k].info->hidden.cols > 0);
    if (!x || !x->cand || !x->cand[k].row) {
        kld_emit_value(e, cand, "exact", json_null());
        return;
    }
    const kld_exact_candidate *c = &x->cand[k];
    double kl = kld_group_estimate(&r->tally->cand[k].all, KLD_DIV_KL);
    json_t *o = kld_emit_object(e, cand, "exact");
    kld_emit_text(e, o, "head", x->shared ? "shared" : "own");
    kld_emit_text(e, o, "replayed_on", x->replayed_on);
    kld_emit_real(e, o, "check_max", c->check_max);
    kld_emit_bool(e, o, "bodies_equal", c->bodies_equal);
    kld_emit_real(e, o, "head_only_kl", c->bodies_equal && !x->shared ? kl : NAN);
}

void kld_report_candidate(kld_report *r, size_t k, json_t *candidates) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    const kld_report_side *side = &r->cand[k];
    kld_emit *e = &r->emit;
    bool valid = c->all.positions > 0, partial = c->all.positions < r->tally->scored;
    double kl = kld_group_estimate(&c->all, KLD_DIV_KL);
    json_t *o = kld_emit_object(e, candidates, NULL);
    kld_emit_text(e, o, "name", side->info->name);
    kld_emit_text(e, o, "label", side->info->label);
    kld_emit_text(e, o, "activations", kld_belong_activations(side->info));
    kld_emit_text(e, o, "path", side->path);
    kld_emit_text(e, o, "partition", side->info->partition ? side->info->partition : "");
    kld_emit_digest(e, o, "model_digest", &side->info->model);
    kld_emit_digest(e, o, "model_full_digest",
                    kld_zero_digest(&side->info->model_full) ? NULL : &side->info->model_full);
    kld_emit_digest(e, o, "content_digest", &side->content);
    kld_emit_text(e, o, "capture",
                  side->self                  ? "the reference itself"
                  : side->info->has_reference ? "at the reference's ids"
                                              : "independent");
    kld_emit_bool(e, o, "arithmetic_mismatch", side->arithmetic_mismatch);
    kld_emit_text(e, o, "floor", kld_is_floor(side->info) ? side->info->floor : NULL);
    kld_report_routing(r, side->info, &r->role[k], o);
    kld_emit_count(e, o, "positions", c->all.positions);
    kld_emit_text(e, o, "status", !valid ? "invalid" : partial ? "partial" : "ok");
    kld_emit_bool(e, o, "valid", valid);
    /* Below twice what the reference scores against itself, a difference means nothing. */
    if (isfinite(r->floor) && r->floor > 0 && isfinite(kl))
        kld_emit_bool(e, o, "resolved", kl >= 2 * r->floor);
    else kld_emit_value(e, o, "resolved", json_null());
    exact(r, k, o);
    rows_not_finite(r, k, o);
    for (int d = 0; d < KLD_DIV_KINDS; d++) divergence(r, k, o, d);
    agreement(r, k, o);
    acceptance(r, k, o);
    perplexity(r, k, o);
    kld_emit_real(e, o, "tail_mass", kld_group_mean(&c->all, KLD_COL_TAIL));
    groups(r, k, o);
    kld_report_routes(r, k, o);
    kld_report_cells(r, k, o);
    kld_emit_value(e, o, "engine",
                   side->info->engine ? json_deep_copy(side->info->engine) : json_null());
    kld_emit_value(e, o, "quant",
                   side->info->quant ? json_deep_copy(side->info->quant) : json_null());
}
