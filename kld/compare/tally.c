#include "kld/compare/tally.h"

#include "kld/base/num.h"
#include "kld/compare/stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const uint64_t KLD_DEPTH_FROM[KLD_DEPTHS + 1] = {0, 64, 256, 1024, UINT64_MAX};
const double KLD_CONFIDENCE_FROM[KLD_CONFIDENCES + 1] = {0, 0.25, 0.5, 0.75, 0.95, 1};
const double KLD_TAIL[KLD_TAILS] = {0.5, 0.9, 0.95, 0.99, 0.999};

enum { ALL_PAIRS_UP_TO = 16 };

double kld_group_mean(const kld_group *g, int column) {
    if (g->inf[column] || g->n[column] == 0) return NAN;
    return g->sum[column] / (double)g->n[column];
}

double kld_group_estimate(const kld_group *g, kld_div_kind kind) {
    int c = KLD_COL_ESTIMATE + (int)kind;
    return g->n[c] + g->inf[c] == g->positions ? kld_group_mean(g, c) : NAN;
}

static void group_add(kld_group *g, const kld_position *p) {
    g->positions++;
    for (int c = 0; c < KLD_COLUMNS; c++) {
        double v = p->v[c];
        if (isfinite(v)) {
            g->sum[c] += v;
            g->n[c]++;
        } else if (isinf(v)) {
            g->inf[c]++;
        }
    }
}

static kld_status make_pairs(kld_tally *t, kld_err *err) {
    size_t n = t->n_cands;
    bool all = n <= ALL_PAIRS_UP_TO;
    t->n_pairs = n < 2 ? 0 : all ? n * (n - 1) / 2 : n - 1;
    TRY(NEW_ARRAY(&t->pair, t->n_pairs, err));
    size_t k = 0;
    for (size_t a = 0; a + 1 < n; a++)
        for (size_t b = a + 1; b < (all ? n : a + 2); b++)
            t->pair[k++] = (kld_pair_tally){.a = a, .b = b};
    return KLD_OK;
}

kld_status kld_tally_begin(kld_tally *t, size_t n_cands, kld_err *err) {
    *t = (kld_tally){.n_cands = n_cands};
    kld_status st = NEW_ARRAY(&t->cand, n_cands, err);
    if (st == KLD_OK) st = make_pairs(t, err);
    if (st == KLD_OK) st = NEW_ARRAY(&t->contrast, n_cands, err);
    if (st == KLD_OK && !(t->index = json_object()))
        st = kld_fail(err, KLD_E_NOMEM, "out of memory");
    if (st != KLD_OK) kld_tally_free(t);
    return st;
}

void kld_tally_contrast(kld_tally *t, const long k[KLD_CELLS]) {
    memcpy(t->contrast[t->n_contrasts++].k, k, sizeof t->contrast->k);
}

void kld_tally_free(kld_tally *t) {
    for (size_t k = 0; t->cand && k < t->n_cands; k++) {
        kld_free(t->cand[k].by_cluster);
        kld_free(t->cand[k].by_stratum);
        kld_free(t->cand[k].bins);
        kld_free(t->cand[k].value_cluster);
        kld_free(t->cand[k].above);
        for (int d = 0; d < KLD_DIV_KINDS; d++) kld_free(t->cand[k].values[d]);
    }
    for (size_t k = 0; t->pair && k < t->n_pairs; k++) {
        kld_free(t->pair[k].sum_a);
        kld_free(t->pair[k].sum_b);
        kld_free(t->pair[k].n);
    }
    for (size_t k = 0; k < t->n_contrasts; k++) {
        kld_free(t->contrast[k].sum);
        kld_free(t->contrast[k].n);
    }
    kld_free(t->contrast);
    kld_free(t->cand);
    kld_free(t->pair);
    kld_free(t->cluster_name);
    kld_free(t->stratum_name);
    kld_free(t->stratum_of);
    json_decref(t->index);
    kld_arena_free(&t->strings);
    *t = (kld_tally){0};
}

/* ---- clusters and strata ----------------------------------------------------------- */

/* Zeroed growth: kld_realloc leaves the new part as it was. */
static kld_status grow(void **ptr, size_t old, size_t cap, size_t size, kld_err *err) {
    TRY(kld_realloc(ptr, cap, size, err));
    for (size_t i = old * size; i < cap * size; i++) ((unsigned char *)*ptr)[i] = 0;
    return KLD_OK;
}
#define GROW(pp, old, cap, err) grow((void **)(pp), (old), (cap), sizeof **(pp), (err))

static kld_status add_stratum(kld_tally *t, const char *name, uint32_t *out, kld_err *err) {
    if (t->strata == t->cap_strata) {
        size_t old = t->cap_strata, cap = num_max(16, 2 * old);
        TRY(GROW(&t->stratum_name, old, cap, err));
        for (size_t k = 0; k < t->n_cands; k++) TRY(GROW(&t->cand[k].by_stratum, old, cap, err));
        t->cap_strata = cap;
    }
    char *copy;
    TRY(kld_arena_strndup(&t->strings, &copy, name, strlen(name), err));
    t->stratum_name[t->strata] = copy;
    *out = (uint32_t)t->strata++;
    return KLD_OK;
}

static kld_status add_cluster(kld_tally *t, const char *name, uint32_t stratum, uint32_t *out,
                              kld_err *err) {
    if (t->clusters == t->cap_clusters) {
        size_t old = t->cap_clusters, cap = num_max(64, 2 * old);
        TRY(GROW(&t->cluster_name, old, cap, err));
        TRY(GROW(&t->stratum_of, old, cap, err));
        for (size_t k = 0; k < t->n_cands; k++) {
            TRY(GROW(&t->cand[k].by_cluster, old, cap, err));
            TRY(GROW(&t->cand[k].bins, old, cap, err));
        }
        for (size_t k = 0; k < t->n_pairs; k++) {
            TRY(GROW(&t->pair[k].sum_a, old, cap, err));
            TRY(GROW(&t->pair[k].sum_b, old, cap, err));
            TRY(GROW(&t->pair[k].n, old, cap, err));
        }
        for (size_t k = 0; k < t->n_contrasts; k++) {
            TRY(GROW(&t->contrast[k].sum, old, cap, err));
            TRY(GROW(&t->contrast[k].n, old, cap, err));
        }
        t->cap_clusters = cap;
    }
    char *copy;
    TRY(kld_arena_strndup(&t->strings, &copy, name, strlen(name), err));
    t->cluster_name[t->clusters] = copy;
    t->stratum_of[t->clusters] = stratum;
    *out = (uint32_t)t->clusters++;
    return KLD_OK;
}

static bool known(const kld_tally *t, const char *key, uint32_t *out) {
    const json_t *v = json_object_get(t->index, key);
    if (v) *out = (uint32_t)json_integer_value(v);
    return v != NULL;
}

static kld_status remember(kld_tally *t, const char *key, uint32_t number, kld_err *err) {
    /* Names come from a suite: not necessarily what jansson would call a valid string. */
    if (json_object_set_new_nocheck(t->index, key, json_integer(number)) != 0)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    return KLD_OK;
}

static kld_status cluster_of(kld_tally *t, size_t window, const kld_window_meta *meta,
                             uint32_t *out, kld_err *err) {
    char by_window[32];
    (void)snprintf(by_window, sizeof by_window, "window %zu", window);
    const char *stratum = meta->stratum ? meta->stratum : "", *name = meta->cluster;
    if (!name || !*name) name = meta->source;
    if (!name || !*name) name = by_window;
    kld_buf key = {0};
    uint32_t h = 0;
    kld_status st = kld_buf_addf(&key, err, "s%s", stratum);
    if (st == KLD_OK && !known(t, (char *)key.data, &h)) {
        st = add_stratum(t, stratum, &h, err);
        if (st == KLD_OK) st = remember(t, (char *)key.data, h, err);
    }
    kld_buf_clear(&key);
    if (st == KLD_OK) st = kld_buf_addf(&key, err, "c%u %s", h, name);
    if (st == KLD_OK && !known(t, (char *)key.data, out)) {
        st = add_cluster(t, name, h, out, err);
        if (st == KLD_OK) st = remember(t, (char *)key.data, *out, err);
    }
    kld_buf_free(&key);
    return st;
}

/* ---- one candidate's positions ----------------------------------------------------- */

static size_t depth_bin(uint64_t position) {
    size_t b = 0;
    while (b + 1 < KLD_DEPTHS && position >= KLD_DEPTH_FROM[b + 1]) b++;
    return b;
}

static size_t confidence_bin(double p) {
    size_t b = 0;
    while (b + 1 < KLD_CONFIDENCES && p >= KLD_CONFIDENCE_FROM[b + 1]) b++;
    return b;
}

static kld_position_bin both(kld_position_bin a, kld_position_bin b) {
    return (kld_position_bin){a.estimate + b.estimate, a.bound + b.bound,
                              a.positions + b.positions};
}

/* A position beyond the last span makes all of them twice as wide. */
static void note_position(kld_candidate_tally *c, const kld_position *p, uint64_t position) {
    if (c->span == 0) c->span = 1;
    for (; position / c->span >= KLD_SPANS; c->span *= 2)
        for (size_t b = 0; b < KLD_SPANS; b++)
            c->by_position[b] = b < KLD_SPANS / 2
                                    ? both(c->by_position[2 * b], c->by_position[2 * b + 1])
                                    : (kld_position_bin){0};
    kld_position_bin *s = &c->by_position[position / c->span];
    *s = both(*s, (kld_position_bin){p->v[KLD_COL_ESTIMATE + KLD_DIV_KL],
                                     p->v[KLD_COL_BOUND + KLD_DIV_KL], 1});
}

static void note_worst(kld_candidate_tally *c, const kld_place *at) {
    size_t i = c->n_worst;
    while (i > 0 && at->value > c->worst[i - 1].value) i--;
    if (i == KLD_WORST) return;
    if (c->n_worst < KLD_WORST) c->n_worst++;
    for (size_t j = c->n_worst - 1; j > i; j--) c->worst[j] = c->worst[j - 1];
    c->worst[i] = *at;
}

static void note_histogram(kld_candidate_tally *c, double kl) {
    double bin = floor((log10(kl) - KLD_HIST_FIRST) * KLD_HIST_PER_DECADE);
    if (!(kl > 0) || bin < 0) c->hist_below++;
    else if (bin >= KLD_HIST_BINS) c->hist_above++;
    else c->hist[(size_t)bin]++;
}

/* A position's value for quantiles and lists.  Means take the estimate as it is, which keeps them
 * unbiased; a single one may lie where no divergence can. */
static double possible(const kld_position *p, int kind) {
    double v = p->v[KLD_COL_ESTIMATE + kind], bound = p->v[KLD_COL_BOUND + kind];
    if (isnan(v)) return bound;
    return fmax(bound, fmin(v, kld_divergence_limit((kld_div_kind)kind)));
}

static void bin_add(kld_bins *b, size_t bin, double kl) {
    if (!isfinite(kl)) return;
    b->sum[bin] += kl;
    b->n[bin] += 1;
}

static void add_position(kld_candidate_tally *c, const kld_position *p, const kld_place *where,
                         uint32_t stratum) {
    if (p->nonfinite) {
        c->ref_nonfinite += (p->nonfinite & KLD_ROW_REF_NONFINITE) != 0;
        c->cand_nonfinite += (p->nonfinite & KLD_ROW_CAND_NONFINITE) != 0;
        if (c->n_located < KLD_LOCATED) {
            c->located[c->n_located] = *where;
            c->located[c->n_located++].side = p->nonfinite;
        }
        return;
    }
    group_add(&c->all, p);
    group_add(&c->by_cluster[where->cluster], p);
    group_add(&c->by_stratum[stratum], p);
    size_t depth = depth_bin(where->position), confidence = confidence_bin(p->confidence);
    group_add(&c->by_depth[depth], p);
    group_add(&c->by_confidence[confidence], p);
    bin_add(&c->bins[where->cluster], depth, p->v[KLD_COL_ESTIMATE]);
    bin_add(&c->bins[where->cluster], KLD_DEPTHS + confidence, p->v[KLD_COL_ESTIMATE]);
    note_position(c, p, where->position);
    kld_place at = *where;
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        double v = possible(p, k);
        c->values[k][c->n_values] = at.value = v;
        if (c->n_values == 0 || v > c->max_at[k].value) c->max_at[k] = at;
        c->inexact[k] += !(p->exact >> k & 1);
        c->variance[k] += p->variance[k];
        if (k == KLD_DIV_KL) {
            note_worst(c, &at);
            note_histogram(c, v);
        }
    }
    if (isnan(p->v[KLD_COL_ESTIMATE])) c->unestimated++;
    c->value_cluster[c->n_values++] = where->cluster;
}

/* Runs of consecutive positions; one that is not finite or not estimated ends a run. */
static void add_expected(kld_candidate_tally *c, const kld_position *p, size_t n) {
    for (size_t t = 0; t < n; t++) {
        double run = 1, sum = 1;
        for (size_t j = 0; j < KLD_DRAFTS && t + j < n; j++) {
            double tv = p[t + j].v[KLD_COL_ESTIMATE + KLD_DIV_TV];
            if (!isfinite(tv)) break;
            run *= 1 - tv;
            sum += run;
            c->expected[j] += sum;
            c->expected_n[j]++;
        }
    }
}

static void add_pair(kld_pair_tally *pair, const kld_position *const *pos, size_t n,
                     uint32_t cluster) {
    for (size_t i = 0; i < n; i++) {
        double a = pos[pair->a][i].v[KLD_COL_ESTIMATE + KLD_DIV_KL];
        double b = pos[pair->b][i].v[KLD_COL_ESTIMATE + KLD_DIV_KL];
        if (!isfinite(a) || !isfinite(b)) continue;
        pair->sum_a[cluster] += a;
        pair->sum_b[cluster] += b;
        pair->n[cluster] += 1;
        pair->lower += b < a;
        pair->equal += b == a;
        pair->higher += b > a;
    }
}

static void add_contrast(kld_contrast_tally *x, const kld_position *const *pos, size_t n,
                         uint32_t cluster) {
    static const double SIGN[KLD_CELLS] = {1, -1, -1, 1};
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int c = 0; c < KLD_CELLS; c++)
            if (x->k[c] >= 0) sum += SIGN[c] * pos[x->k[c]][i].v[KLD_COL_ESTIMATE + KLD_DIV_KL];
        if (!isfinite(sum)) continue;
        x->sum[cluster] += sum;
        x->n[cluster] += 1;
    }
}

static kld_status room_for(kld_candidate_tally *c, size_t n, kld_err *err) {
    if (c->n_values + n <= c->cap_values) return KLD_OK;
    size_t cap = num_max(c->n_values + n, 2 * c->cap_values);
    for (int k = 0; k < KLD_DIV_KINDS; k++)
        TRY(kld_realloc((void **)&c->values[k], cap, sizeof *c->values[k], err));
    TRY(kld_realloc((void **)&c->value_cluster, cap, sizeof *c->value_cluster, err));
    c->cap_values = cap;
    return KLD_OK;
}

kld_status kld_tally_window(kld_tally *t, size_t window, const kld_window_meta *meta, size_t first,
                            size_t n, const kld_position *const *pos, kld_err *err) {
    uint32_t cluster = 0;
    TRY(cluster_of(t, window, meta, &cluster, err));
    for (size_t k = 0; k < t->n_cands; k++) {
        kld_candidate_tally *c = &t->cand[k];
        TRY(room_for(c, n, err));
        for (size_t i = 0; i < n; i++) {
            const kld_position *p = &pos[k][i];
            kld_place where = {.window = window,
                               .position = first + i,
                               .cluster = cluster,
                               .label = p->label,
                               .top_ref = p->top_ref,
                               .top_cand = p->top_cand};
            add_position(c, p, &where, t->stratum_of[cluster]);
        }
        add_expected(c, pos[k], n);
    }
    for (size_t k = 0; k < t->n_pairs; k++) add_pair(&t->pair[k], pos, n, cluster);
    for (size_t k = 0; k < t->n_contrasts; k++) add_contrast(&t->contrast[k], pos, n, cluster);
    t->last_cluster = cluster;
    t->scored += n;
    t->windows++;
    return KLD_OK;
}

/* Room for the KL of each position in order of adding, and for sorting. */
static kld_status make_room(kld_tally *t, double **room, kld_err *err) {
    for (size_t k = 0; k < t->n_cands; k++) {
        size_t n;
        if (!num_mul_size(t->cand[k].n_values, 2, &n)) n = SIZE_MAX;
        TRY(NEW_ARRAY(&t->cand[k].above, t->clusters * KLD_TAILS, err));
        TRY(NEW_ARRAY(&room[k], n, err));
    }
    return KLD_OK;
}

static void end_candidate(kld_candidate_tally *c, double *room) {
    double limit[KLD_TAILS], *kl = room + c->n_values;
    if (c->n_values) memcpy(kl, c->values[KLD_DIV_KL], c->n_values * sizeof *kl);
    for (int d = 0; d < KLD_DIV_KINDS; d++) kld_sort(c->values[d], room, c->n_values);
    for (int q = 0; q < KLD_TAILS; q++)
        limit[q] = kld_quantile(c->values[KLD_DIV_KL], c->n_values, KLD_TAIL[q]);
    for (size_t i = 0; i < c->n_values; i++)
        for (size_t q = 0; q < KLD_TAILS && kl[i] > limit[q]; q++)
            c->above[c->value_cluster[i] * KLD_TAILS + q] += 1;
}

kld_status kld_tally_end(kld_tally *t, kld_err *err) {
    double **room = NULL;
    kld_status st = kld_calloc((void **)&room, t->n_cands, sizeof *room, err);
    if (st == KLD_OK) st = make_room(t, room, err);
    if (st == KLD_OK) {
#pragma omp parallel for schedule(dynamic, 1)
        for (size_t k = 0; k < t->n_cands; k++) end_candidate(&t->cand[k], room[k]);
    }
    for (size_t k = 0; room && k < t->n_cands; k++) kld_free(room[k]);
    kld_free(room);
    return st;
}
