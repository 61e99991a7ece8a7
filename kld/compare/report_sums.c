#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/compare/report.h"

#include <math.h>

const kld_metric KLD_METRIC[KLD_METRICS] = {
    {KLD_COL_ESTIMATE + KLD_DIV_KL, KLD_SCALE_LOG},
    {KLD_COL_ESTIMATE + KLD_DIV_REVERSE, KLD_SCALE_LOG},
    {KLD_COL_ESTIMATE + KLD_DIV_JS, KLD_SCALE_LOG},
    {KLD_COL_ESTIMATE + KLD_DIV_TV, KLD_SCALE_LOG},
    {KLD_COL_BOUND + KLD_DIV_KL, KLD_SCALE_LOG},
    {KLD_COL_BOUND + KLD_DIV_REVERSE, KLD_SCALE_LOG},
    {KLD_COL_BOUND + KLD_DIV_JS, KLD_SCALE_LOG},
    {KLD_COL_BOUND + KLD_DIV_TV, KLD_SCALE_LOG},
    {KLD_COL_TOP1, KLD_SCALE_SHARE},
    {KLD_COL_TOPK, KLD_SCALE_SHARE},
    {KLD_COL_JACCARD, KLD_SCALE_SHARE},
    {KLD_COL_NUCLEUS_TV, KLD_SCALE_SHARE},
    {KLD_COL_NLL_DIFF, KLD_SCALE_PLAIN},
};

int kld_report_metric(int column) {
    for (int m = 0; m < KLD_METRICS; m++)
        if (KLD_METRIC[m].column == column) return m;
    return -1;
}

/* Columns: of each candidate the metrics, the tails and the bins; of each pair the difference and
 * the ratio; the contrasts. */
enum { TAILS = KLD_METRICS, BINS = TAILS + KLD_TAILS, OF_CANDIDATE = BINS + KLD_BINS };

/* One set of ratios and the resamples of its clusters. */
struct set {
    kld_cluster_sums sums;
    kld_strata strata;
    kld_scale *scale; /* these and what follows: owned */
    double *num, *den;
    kld_replicates replicates;
    bool resampled;
};

struct kld_report_sums {
    struct set all, *stratum; /* stratum: owned [strata], one column a candidate */
};

static size_t pair_column(const kld_report *r, size_t pair) {
    return r->tally->n_cands * OF_CANDIDATE + 2 * pair;
}

static size_t contrast_column(const kld_report *r, size_t contrast) {
    return pair_column(r, r->tally->n_pairs) + contrast;
}

/* ---- making --------------------------------------------------------------------------- */

static void set_free(struct set *x) {
    kld_strata_free(&x->strata);
    kld_free(x->scale);
    kld_free(x->num);
    kld_free(x->den);
    kld_replicates_free(&x->replicates);
}

/* Room for the clusters of one stratum (or of all: -1) in which a candidate has positions. */
static kld_status set_begin(struct set *x, const kld_tally *t, long stratum, size_t cols,
                            kld_err *err) {
    size_t all;
    bool *kept = NULL;
    kld_status st = NEW_ARRAY(&kept, t->clusters, err);
    for (size_t c = 0; st == KLD_OK && c < t->clusters; c++)
        for (size_t k = 0; k < t->n_cands && !kept[c]; k++)
            kept[c] = (stratum < 0 || t->stratum_of[c] == (uint32_t)stratum) &&
                      t->cand[k].by_cluster[c].positions > 0;
    if (st == KLD_OK)
        st = kld_strata_order(&x->strata, t->stratum_of, t->strata, kept, t->clusters, err);
    kld_free(kept);
    TRY(st);
    if (!num_mul_size(x->strata.clusters, cols, &all))
        return kld_fail(err, KLD_E_NOMEM, "%zu clusters are too many", t->clusters);
    TRY(NEW_ARRAY(&x->num, all, err));
    TRY(NEW_ARRAY(&x->den, all, err));
    TRY(NEW_ARRAY(&x->scale, cols, err));
    x->sums = (kld_cluster_sums){.clusters = x->strata.clusters,
                                 .cols = cols,
                                 .groups = x->strata.groups,
                                 .start = x->strata.start,
                                 .scale = x->scale,
                                 .num = x->num,
                                 .den = x->den};
    return KLD_OK;
}

static kld_status set_resample(struct set *x, const kld_compare_options *opt, kld_err *err) {
    if (x->sums.clusters < KLD_FEW_CLUSTERS) return KLD_OK;
    TRY(kld_bootstrap(&x->replicates, &x->sums, opt->resamples, opt->seed, err));
    x->resampled = true;
    return KLD_OK;
}

static void fill_candidate(const kld_candidate_tally *c, size_t cluster, double *x, double *y) {
    const kld_group *g = &c->by_cluster[cluster];
    for (size_t m = 0; m < KLD_METRICS; m++) {
        x[m] = g->sum[KLD_METRIC[m].column];
        y[m] = (double)g->n[KLD_METRIC[m].column];
    }
    for (size_t q = 0; q < KLD_TAILS; q++) {
        x[TAILS + q] = c->above[cluster * KLD_TAILS + q];
        y[TAILS + q] = (double)g->positions;
    }
    for (size_t b = 0; b < KLD_BINS; b++) {
        x[BINS + b] = c->bins[cluster].sum[b];
        y[BINS + b] = c->bins[cluster].n[b];
    }
}

static void fill_scales(const kld_report *r, kld_scale *scale) {
    const kld_tally *t = r->tally;
    for (size_t k = 0; k < t->n_cands; k++)
        for (size_t i = 0; i < OF_CANDIDATE; i++)
            scale[k * OF_CANDIDATE + i] = i < TAILS  ? KLD_METRIC[i].scale
                                          : i < BINS ? KLD_SCALE_SHARE
                                                     : KLD_SCALE_LOG;
    for (size_t p = 0; p < t->n_pairs; p++) {
        scale[pair_column(r, p)] = KLD_SCALE_PLAIN;
        scale[pair_column(r, p) + 1] = KLD_SCALE_LOG;
    }
    for (size_t k = 0; k < t->n_contrasts; k++) scale[contrast_column(r, k)] = KLD_SCALE_PLAIN;
}

static kld_status make_all(kld_report *r, struct set *s, kld_err *err) {
    const kld_tally *t = r->tally;
    size_t cols = contrast_column(r, t->n_contrasts);
    TRY(set_begin(s, t, -1, cols, err));
    fill_scales(r, s->scale);
    for (size_t row = 0; row < s->sums.clusters; row++) {
        size_t c = s->strata.order[row];
        double *x = s->num + row * cols, *y = s->den + row * cols;
        for (size_t k = 0; k < t->n_cands; k++)
            fill_candidate(&t->cand[k], c, x + k * OF_CANDIDATE, y + k * OF_CANDIDATE);
        for (size_t p = 0; p < t->n_pairs; p++) {
            size_t at = pair_column(r, p);
            x[at] = t->pair[p].sum_b[c] - t->pair[p].sum_a[c];
            y[at] = t->pair[p].n[c];
            /* A ratio of means over the same positions is itself a ratio of sums. */
            x[at + 1] = t->pair[p].sum_b[c];
            y[at + 1] = t->pair[p].sum_a[c];
        }
        for (size_t k = 0; k < t->n_contrasts; k++) {
            x[contrast_column(r, k)] = t->contrast[k].sum[c];
            y[contrast_column(r, k)] = t->contrast[k].n[c];
        }
    }
    return set_resample(s, r->opt, err);
}

static kld_status make_stratum(const kld_report *r, struct set *s, size_t h, kld_err *err) {
    const kld_tally *t = r->tally;
    TRY(set_begin(s, t, (long)h, t->n_cands, err));
    for (size_t row = 0; row < s->sums.clusters; row++)
        for (size_t k = 0; k < t->n_cands; k++) {
            const kld_group *g = &t->cand[k].by_cluster[s->strata.order[row]];
            s->scale[k] = KLD_SCALE_LOG;
            s->num[row * t->n_cands + k] = g->sum[KLD_COL_ESTIMATE];
            s->den[row * t->n_cands + k] = (double)g->n[KLD_COL_ESTIMATE];
        }
    return set_resample(s, r->opt, err);
}

kld_status kld_report_sums_make(kld_report *r, kld_err *err) {
    TRY(NEW_ARRAY(&r->sums, 1, err));
    TRY(NEW_ARRAY(&r->sums->stratum, r->tally->strata, err));
    TRY(make_all(r, &r->sums->all, err));
    for (size_t h = 0; h < r->tally->strata; h++)
        TRY(make_stratum(r, &r->sums->stratum[h], h, err));
    return KLD_OK;
}

void kld_report_sums_free(kld_report *r) {
    if (!r->sums) return;
    set_free(&r->sums->all);
    for (size_t h = 0; r->sums->stratum && h < r->tally->strata; h++)
        set_free(&r->sums->stratum[h]);
    kld_free(r->sums->stratum);
    kld_free(r->sums);
    r->sums = NULL;
}

/* ---- asking --------------------------------------------------------------------------- */

static kld_estimate estimate(const struct set *s, size_t col) {
    return kld_estimate_ratio(&s->sums, col, s->resampled ? &s->replicates : NULL);
}

/* Largest value that a mean of an estimate or bound can have. */
static double column_limit(int column) {
    int kind = column >= KLD_COL_BOUND ? column - KLD_COL_BOUND : column - KLD_COL_ESTIMATE;
    return kld_divergence_limit((kld_div_kind)kind);
}

static const kld_interval INFINITE = {
    .lo = NAN, .hi = NAN, .method = "none", .reason = "infinite values"};

kld_interval kld_report_interval(const kld_report *r, size_t k, int column) {
    int m = kld_report_metric(column);
    if (m < 0 || r->tally->cand[k].all.inf[column]) return INFINITE;
    kld_estimate e = estimate(&r->sums->all, k * OF_CANDIDATE + (size_t)m);
    kld_interval ci = kld_estimate_interval(&e, 0.95);
    /* An interval on a logarithm knows no upper end, JS and TV have one. */
    if (KLD_METRIC[m].scale == KLD_SCALE_LOG && ci.hi > column_limit(column)) {
        ci.hi = column_limit(column);
        ci.lo = fmin(ci.lo, ci.hi);
    }
    return ci;
}

double kld_report_cluster_mean(const kld_report *r, size_t k, int column) {
    return kld_cluster_mean(&r->sums->all.sums,
                            k * OF_CANDIDATE + (size_t)kld_report_metric(column));
}

kld_estimate kld_report_bin(const kld_report *r, size_t k, size_t bin) {
    return estimate(&r->sums->all, k * OF_CANDIDATE + BINS + bin);
}

kld_estimate kld_report_stratum(const kld_report *r, size_t k, size_t stratum) {
    return estimate(&r->sums->stratum[stratum], k);
}

kld_interval kld_report_tail(const kld_report *r, size_t k, size_t tail) {
    const kld_candidate_tally *c = &r->tally->cand[k];
    const kld_group *g = &c->all;
    int est = KLD_COL_ESTIMATE;
    double above = (1 - KLD_TAIL[tail]) * (double)c->n_values;
    if (g->n[est] + g->inf[est] < g->positions || above < KLD_TAIL_POSITIONS - 1e-6)
        return (kld_interval){.lo = NAN, .hi = NAN, .method = "none", .reason = "few positions"};
    kld_estimate e = estimate(&r->sums->all, k * OF_CANDIDATE + TAILS + tail);
    return kld_quantile_interval(c->values[KLD_DIV_KL], c->n_values, KLD_TAIL[tail], &e, 0.95);
}

kld_estimate kld_report_difference(const kld_report *r, size_t pair) {
    return estimate(&r->sums->all, pair_column(r, pair));
}

kld_estimate kld_report_ratio(const kld_report *r, size_t pair) {
    return estimate(&r->sums->all, pair_column(r, pair) + 1);
}

kld_estimate kld_report_contrast(const kld_report *r, size_t contrast) {
    return estimate(&r->sums->all, contrast_column(r, contrast));
}
