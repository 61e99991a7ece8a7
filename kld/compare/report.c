#include "kld/compare/report.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/version.h"
#include "kld/compare/belong.h"
#include "kld/compare/warnings.h"

#include <math.h>
#include <string.h>

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

/* Largest value that a mean of an estimate or bound can have. */
static double column_limit(int column) {
    int kind = column >= KLD_COL_BOUND ? column - KLD_COL_BOUND : column - KLD_COL_ESTIMATE;
    return kld_divergence_limit((kld_div_kind)kind);
}

kld_interval kld_report_interval(const kld_report *r, size_t k, int column) {
    int m = kld_report_metric(column);
    if (m < 0 || r->tally->cand[k].all.inf[column])
        return (kld_interval){.lo = NAN, .hi = NAN, .method = "none", .reason = "infinite values"};
    size_t col = k * KLD_METRICS + (size_t)m, n = r->opt->resamples;
    kld_interval ci =
        kld_mean_interval(&r->sums, col, KLD_METRIC[m].scale,
                          r->replicates ? r->replicates + col * n : NULL, n, r->scratch);
    /* Student-t on a logarithm knows no upper end, JS and TV have one. */
    if (KLD_METRIC[m].scale == KLD_SCALE_LOG && ci.hi > column_limit(column)) {
        ci.hi = column_limit(column);
        ci.lo = fmin(ci.lo, ci.hi);
    }
    return ci;
}

/* ---- cluster sums and their resamples ----------------------------------------------- */

static size_t pair_column(const kld_report *r, size_t pair) {
    return r->tally->n_cands * KLD_METRICS + 2 * pair;
}

size_t kld_report_contrast(const kld_report *r, size_t contrast) {
    return pair_column(r, r->tally->n_pairs) + contrast;
}

static kld_status fill_sums(kld_report *r, double **num, double **den, kld_err *err) {
    const kld_tally *t = r->tally;
    size_t cols = kld_report_contrast(r, t->n_contrasts), all;
    if (!num_mul_size(t->clusters, cols, &all))
        return kld_fail(err, KLD_E_NOMEM, "%zu clusters are too many", t->clusters);
    TRY(NEW_ARRAY(num, all, err));
    TRY(NEW_ARRAY(den, all, err));
    for (size_t c = 0; c < t->clusters; c++) {
        double *x = *num + c * cols, *y = *den + c * cols;
        for (size_t k = 0; k < t->n_cands; k++) {
            const kld_group *g = &t->cand[k].by_cluster[c];
            for (size_t m = 0; m < KLD_METRICS; m++) {
                x[k * KLD_METRICS + m] = g->sum[KLD_METRIC[m].column];
                y[k * KLD_METRICS + m] = (double)g->n[KLD_METRIC[m].column];
            }
        }
        for (size_t p = 0; p < t->n_pairs; p++) {
            size_t at = pair_column(r, p);
            x[at] = t->pair[p].sum_a[c];
            x[at + 1] = t->pair[p].sum_b[c];
            y[at] = y[at + 1] = t->pair[p].n[c];
        }
        for (size_t k = 0; k < t->n_contrasts; k++) {
            x[kld_report_contrast(r, k)] = t->contrast[k].sum[c];
            y[kld_report_contrast(r, k)] = t->contrast[k].n[c];
        }
    }
    r->sums = (kld_cluster_sums){.clusters = t->clusters,
                                 .cols = cols,
                                 .stratum = t->stratum_of,
                                 .strata = t->strata,
                                 .num = *num,
                                 .den = *den};
    return KLD_OK;
}

/* ---- pairs ---------------------------------------------------------------------------- */

static void cluster_signs(kld_report *r, json_t *o, const kld_pair_tally *p) {
    uint64_t lower = 0, equal = 0, higher = 0;
    for (size_t c = 0; c < r->tally->clusters; c++) {
        if (p->n[c] == 0) continue;
        lower += p->sum_b[c] < p->sum_a[c];
        equal += p->sum_b[c] == p->sum_a[c];
        higher += p->sum_b[c] > p->sum_a[c];
    }
    json_t *s = kld_emit_object(&r->emit, o, "clusters");
    kld_emit_count(&r->emit, s, "lower", lower);
    kld_emit_count(&r->emit, s, "equal", equal);
    kld_emit_count(&r->emit, s, "higher", higher);
    s = kld_emit_object(&r->emit, o, "by_position");
    kld_emit_count(&r->emit, s, "lower", p->lower);
    kld_emit_count(&r->emit, s, "equal", p->equal);
    kld_emit_count(&r->emit, s, "higher", p->higher);
}

static void pair(kld_report *r, size_t i, json_t *pairs) {
    const kld_tally *t = r->tally;
    const kld_pair_tally *p = &t->pair[i];
    kld_emit *e = &r->emit;
    size_t a = pair_column(r, i), n = r->opt->resamples;
    const double *rep = r->replicates ? r->replicates + a * n : NULL;
    kld_paired x =
        kld_paired_interval(&r->sums, a, a + 1, rep, rep ? rep + n : NULL, n, r->scratch);
    bool same = p->lower + p->higher == 0 && p->equal > 0;
    /* Infinite values were left out of both means, which says nothing about the rest. */
    bool supported = t->cand[p->a].all.inf[KLD_COL_ESTIMATE] == 0 &&
                     t->cand[p->b].all.inf[KLD_COL_ESTIMATE] == 0;
    const char *verdict = !supported ? "unsupported"
                          : same     ? "practically equivalent"
                                     : kld_paired_verdict(&x, r->opt->margin);
    json_t *o = kld_emit_object(e, pairs, NULL);
    kld_emit_count(e, o, "baseline", p->a);
    kld_emit_count(e, o, "candidate", p->b);
    kld_emit_text(e, o, "metric", "mean_kl");
    kld_emit_count(e, o, "positions", p->lower + p->equal + p->higher);
    kld_emit_real(e, o, "difference", x.difference);
    kld_emit_range(e, o, "difference_ci95", x.difference_ci.lo, x.difference_ci.hi);
    kld_emit_real(e, o, "ratio", exp(x.ln_ratio));
    kld_emit_range(e, o, "ratio_ci95", exp(x.ln_ratio_ci.lo), exp(x.ln_ratio_ci.hi));
    kld_emit_text(e, o, "ci_method", x.difference_ci.method);
    if (x.ln_ratio_ci.reason) kld_emit_text(e, o, "ci_reason", x.ln_ratio_ci.reason);
    kld_emit_text(e, o, "verdict", verdict);
    cluster_signs(r, o, p);
}

/* ---- the whole object ----------------------------------------------------------------- */

/* The candidate that is the reference measured again: a repeat capture rather than the file
 * itself, if there is one.  -1 without.  With routes from a capture it is no measurement of noise:
 * it takes over what a router would have decided anew. */
static long floor_candidate(const kld_report *r) {
    long found = -1;
    const kld_capture_info *ref = r->ref.info;
    for (size_t k = 0; k < r->tally->n_cands; k++) {
        const kld_report_side *c = &r->cand[k];
        bool same = memcmp(&c->info->model, &ref->model, sizeof ref->model) == 0;
        if (!kld_zero_digest(&ref->model_full) && !kld_zero_digest(&c->info->model_full))
            same = same && memcmp(&c->info->model_full, &ref->model_full, sizeof(kld_digest)) == 0;
        same = same && c->info->routes.mode == KLD_ROUTES_NATURAL &&
               !strcmp(kld_belong_activations(ref), kld_belong_activations(c->info));
        if (!(c->self || (same && !c->arithmetic_mismatch))) continue;
        if (found < 0 || (r->cand[found].self && !c->self)) found = (long)k;
    }
    return found;
}

static void noise_floor(kld_report *r, json_t *top) {
    long k = floor_candidate(r);
    kld_emit *e = &r->emit;
    if (k < 0) {
        kld_emit_value(e, top, "floor", json_null());
        return;
    }
    double kl = kld_group_estimate(&r->tally->cand[k].all, KLD_DIV_KL);
    json_t *o = kld_emit_object(e, top, "floor");
    kld_emit_real(e, o, "kl_mean", kl);
    kld_emit_count(e, o, "candidate", (uint64_t)k);
    kld_emit_text(e, o, "kind", r->cand[k].self ? "same capture" : "repeat capture");
    /* Without --hash full a model digest covers headers and sizes, not the weights. */
    kld_emit_bool(e, o, "verified",
                  r->cand[k].self || (!kld_zero_digest(&r->ref.info->model_full) &&
                                      !kld_zero_digest(&r->cand[k].info->model_full)));
    if (!r->cand[k].self) r->floor = kl;
}

static void reference(kld_report *r, json_t *top) {
    const kld_capture_info *i = r->ref.info;
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, top, "reference");
    kld_emit_text(e, o, "name", i->name);
    kld_emit_text(e, o, "label", i->label);
    kld_emit_text(e, o, "family", i->family);
    kld_emit_text(e, o, "activations", kld_belong_activations(i));
    kld_emit_text(e, o, "path", r->ref.path);
    kld_emit_digest(e, o, "model_digest", &i->model);
    kld_emit_digest(e, o, "model_full_digest",
                    kld_zero_digest(&i->model_full) ? NULL : &i->model_full);
    kld_emit_digest(e, o, "suite_digest", &i->suite);
    kld_emit_text(e, o, "partition", i->partition ? i->partition : "");
    kld_emit_digest(e, o, "tokenizer_digest", &i->tokenizer);
    kld_emit_digest(e, o, "content_digest", &r->ref.content);
    kld_emit_count(e, o, "vocab", i->vocab);
    kld_emit_count(e, o, "top_k", i->top_k);
    kld_emit_count(e, o, "tail_samples", i->tail_samples);
    kld_emit_real(e, o, "tail_mass", i->tail_mass);
    kld_emit_bool(e, o, "hidden", i->hidden.cols > 0);
    kld_report_routing(r, i, NULL, o);
    kld_emit_value(e, o, "engine", i->engine ? json_deep_copy(i->engine) : json_null());
    kld_emit_value(e, o, "quant", i->quant ? json_deep_copy(i->quant) : json_null());
}

static void settings(kld_report *r, json_t *top) {
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, top, "settings");
    kld_emit_real(e, o, "top_p", r->opt->top_p);
    kld_emit_real(e, o, "temperature", 1);
    kld_emit_count(e, o, "overlap_k", r->opt->overlap_k);
    kld_emit_count(e, o, "resamples", r->opt->resamples);
    kld_emit_count(e, o, "seed", r->opt->seed);
    kld_emit_real(e, o, "margin", r->opt->margin);
    kld_emit_text(e, o, "partition", r->opt->partition);
    kld_emit_count(e, o, "windows_left_out", r->left_out);
    kld_emit_bool(e, o, "allow_arithmetic_mismatch", r->opt->allow_arithmetic_mismatch);
    kld_emit_text(e, o, "head", r->opt->head_shared ? "shared" : "own");
    kld_emit_text(e, o, "exact", r->opt->exact_never ? "never" : "auto");
    kld_emit_text(e, o, "ci_method",
                  r->tally->clusters < 2                  ? "none"
                  : r->tally->clusters < KLD_FEW_CLUSTERS ? "student-t"
                                                          : "bootstrap");
    kld_emit_text(e, o, "ci_unit", "source clusters within strata");
}

static void fill(kld_report *r, json_t *top) {
    const kld_tally *t = r->tally;
    kld_emit *e = &r->emit;
    bool valid = true, mismatch = false;
    for (size_t k = 0; k < t->n_cands; k++) {
        valid = valid && t->cand[k].all.positions > 0;
        mismatch = mismatch || r->cand[k].arithmetic_mismatch;
    }
    kld_emit_count(e, top, "schema", 1);
    json_t *tool = kld_emit_object(e, top, "tool");
    kld_emit_text(e, tool, "version", kld_version());
    kld_emit_text(e, tool, "commit", kld_commit());
    reference(r, top);
    kld_emit_count(e, top, "positions", t->scored);
    kld_emit_count(e, top, "windows", t->windows);
    kld_emit_count(e, top, "clusters", t->clusters);
    kld_emit_count(e, top, "strata", t->strata);
    kld_emit_text(e, top, "unit", "nats");
    kld_emit_bool(e, top, "valid", valid);
    kld_emit_bool(e, top, "arithmetic_mismatch", mismatch);
    settings(r, top);
    noise_floor(r, top);
    json_t *a = kld_emit_array(e, top, "candidates");
    for (size_t k = 0; k < t->n_cands; k++) kld_report_candidate(r, k, a);
    a = kld_emit_array(e, top, "pairs");
    for (size_t p = 0; p < t->n_pairs; p++) pair(r, p, a);
    kld_compare_warnings(e, top);
}

kld_status kld_report_build(kld_report *r, json_t **out, kld_err *err) {
    double *num = NULL, *den = NULL;
    size_t n = r->opt->resamples;
    *out = NULL;
    r->emit.failed = false;
    r->floor = NAN;
    r->replicates = r->scratch = NULL;
    kld_status st;
    TRY_TO(done, fill_sums(r, &num, &den, err));
    TRY_TO(done, NEW_ARRAY(&r->scratch, n, err));
    if (r->tally->clusters >= KLD_FEW_CLUSTERS) {
        size_t cells;
        if (!num_mul_size(r->sums.cols, n, &cells)) cells = SIZE_MAX;
        TRY_TO(done, NEW_ARRAY(&r->replicates, cells, err));
        TRY_TO(done, kld_bootstrap(&r->sums, n, r->opt->seed, r->replicates, err));
    }
    json_t *top = json_object();
    if (top) fill(r, top);
    else r->emit.failed = true;
    st = kld_emit_check(&r->emit, err);
    if (st == KLD_OK) *out = top;
    else json_decref(top);
done:
    kld_free(r->replicates);
    kld_free(r->scratch);
    kld_free(num);
    kld_free(den);
    r->replicates = r->scratch = NULL;
    return st;
}
