/* From records to the report: positions, sums, JSON, table, gates. */
#include "kld/base/philox.h"
#include "kld/compare/compare.h"
#include "kld/compare/report.h"
#include "tests/unit/t.h"

#include <math.h>
#include <omp.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { V = 96, MAX_ROWS = 256, MAX_K = V, MAX_M = 16 };

/* ---- records without files ------------------------------------------------------------ */

struct rec {
    kld_records r;
    uint32_t count[MAX_ROWS], ids[MAX_ROWS * MAX_K], label[MAX_ROWS], tail_ids[MAX_ROWS * MAX_M];
    double lp[MAX_ROWS * MAX_K], tail_lp[MAX_ROWS * MAX_M];
    double ref_lp[MAX_ROWS * MAX_K], ref_tail_lp[MAX_ROWS * MAX_M];
    float label_lp[MAX_ROWS], lse[MAX_ROWS], entropy[MAX_ROWS], tail_mass[MAX_ROWS];
    double full[MAX_ROWS][V]; /* the whole distribution, log */
};

static double uniform(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 11);
    return kld_philox_unit(b.v[0], b.v[1]);
}

static double normal(uint64_t key, uint64_t i) {
    return sqrt(-2 * log(uniform(key, 2 * i))) * cos(6.283185307179586 * uniform(key, 2 * i + 1));
}

static void normalize(double *l) {
    double z = 0;
    for (size_t v = 0; v < V; v++) z += exp(l[v]);
    for (size_t v = 0; v < V; v++) l[v] -= log(z);
}

/* The k most probable ids, ties by lower id, and m draws from the rest. */
static void keep(struct rec *x, size_t i, size_t k, size_t m, uint64_t seed) {
    uint32_t *ids = x->ids + i * MAX_K;
    double mass = 0;
    bool taken[V] = {false};
    for (size_t j = 0; j < k; j++) {
        uint32_t best = V;
        for (uint32_t v = 0; v < V; v++)
            if (!taken[v] && (best == V || x->full[i][v] > x->full[i][best])) best = v;
        taken[best] = true;
        ids[j] = best;
        x->lp[i * MAX_K + j] = x->full[i][best];
    }
    for (uint32_t v = 0; v < V; v++)
        if (!taken[v]) mass += exp(x->full[i][v]);
    x->count[i] = (uint32_t)k;
    x->tail_mass[i] = (float)mass;
    for (size_t j = 0; j < m; j++) {
        double u = uniform(seed, i * 64 + j) * mass, c = 0;
        uint32_t pick = UINT32_MAX;
        for (uint32_t v = 0; v < V; v++) {
            if (taken[v]) continue;
            if (pick == UINT32_MAX || c < u) pick = v;
            c += exp(x->full[i][v]);
        }
        x->tail_ids[i * MAX_M + j] = pick;
        x->tail_lp[i * MAX_M + j] = pick == UINT32_MAX ? NAN : x->full[i][pick];
    }
}

static struct rec *make(size_t n, size_t k, size_t m, uint64_t seed, double noise,
                        uint64_t noise_seed, const struct rec *ref) {
    struct rec *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->r = (kld_records){.n = n, .first = 1, .k_ld = MAX_K, .m = m ? MAX_M : 0};
    x->r.count = x->count;
    x->r.ids = x->ids;
    x->r.lp = x->lp;
    x->r.label = x->label;
    x->r.label_lp = x->label_lp;
    x->r.lse = x->lse;
    x->r.entropy = x->entropy;
    x->r.tail_mass = x->tail_mass;
    x->r.tail_ids = x->tail_ids;
    x->r.tail_lp = x->tail_lp;
    for (size_t i = 0; i < n; i++) {
        for (size_t v = 0; v < V; v++)
            x->full[i][v] = 2.2 * normal(seed, i * V + v) + noise * normal(noise_seed, i * V + v);
        normalize(x->full[i]);
        keep(x, i, k, m ? MAX_M : 0, seed + 999);
        x->label[i] = (uint32_t)(uniform(seed + 5, i) * V);
        x->label_lp[i] = (float)x->full[i][x->label[i]];
    }
    if (!ref) return x;
    x->r.ref_ld = MAX_K;
    x->r.ref_m = ref->r.m;
    x->r.ref_lp = x->ref_lp;
    x->r.ref_tail_lp = x->ref_tail_lp;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < ref->count[i]; j++)
            x->ref_lp[i * MAX_K + j] = x->full[i][ref->ids[i * MAX_K + j]];
        for (size_t j = 0; j < ref->r.m; j++) {
            uint32_t id = ref->tail_ids[i * MAX_M + j];
            x->ref_tail_lp[i * MAX_M + j] = id == UINT32_MAX ? NAN : x->full[i][id];
        }
    }
    return x;
}

static double true_kl(const struct rec *p, const struct rec *q, size_t i) {
    double s = 0;
    for (size_t v = 0; v < V; v++) s += exp(p->full[i][v]) * (p->full[i][v] - q->full[i][v]);
    return s;
}

/* ---- a comparison in memory ------------------------------------------------------------- */

enum { MAX_C = 3 };

struct rig {
    kld_compare_options opt;
    kld_tally tally;
    kld_capture_info ref_info, info[MAX_C];
    kld_report_side side[MAX_C];
    size_t n_cands, windows;
};

static void begin(struct rig *g, size_t n_cands) {
    *g = (struct rig){.opt = kld_compare_defaults(), .n_cands = n_cands};
    g->opt.resamples = 500;
    g->ref_info = (kld_capture_info){
        .name = (char *)"ref", .label = (char *)"BF16", .family = (char *)"f", .vocab = V};
    g->ref_info.model.b[0] = 1;
    for (size_t k = 0; k < n_cands; k++) {
        static char *const NAME[MAX_C] = {(char *)"a", (char *)"b", (char *)"c"};
        g->info[k] = g->ref_info;
        g->info[k].name = NAME[k];
        g->info[k].label = (char *)"NVFP4 (QAD)";
        g->info[k].model.b[0] = (unsigned char)(2 + k);
        g->info[k].has_reference = true;
        g->side[k] = (kld_report_side){.info = &g->info[k], .path = NAME[k]};
    }
    assert_int_equal(kld_tally_begin(&g->tally, n_cands, NULL), KLD_OK);
}

static void add(struct rig *g, const char *cluster, const char *stratum, const struct rec *ref,
                struct rec *const *cand) {
    kld_position *pos[MAX_C];
    kld_position_options opt = {.vocab = V, .top_p = g->opt.top_p, .overlap_k = g->opt.overlap_k};
    for (size_t k = 0; k < g->n_cands; k++) {
        pos[k] = calloc(ref->r.n + 1, sizeof **pos);
        kld_err err = {0};
        if (kld_positions_compare(&ref->r, &cand[k]->r, &opt, pos[k], &err) != KLD_OK)
            fail_msg("%s", err.text);
    }
    kld_window_meta meta = {.cluster = cluster, .stratum = stratum, .source = "s"};
    assert_int_equal(kld_tally_window(&g->tally, g->windows++, &meta, ref->r.first, ref->r.n,
                                      (const kld_position *const *)pos, NULL),
                     KLD_OK);
    for (size_t k = 0; k < g->n_cands; k++) free(pos[k]);
}

static json_t *finish(struct rig *g) {
    kld_report r = {.opt = &g->opt, .tally = &g->tally, .cand = g->side};
    r.ref = (kld_report_side){.info = &g->ref_info, .path = "ref.zst"};
    json_t *out = NULL;
    kld_tally_end(&g->tally);
    assert_int_equal(kld_report_build(&r, &out, NULL), KLD_OK);
    kld_tally_free(&g->tally);
    return out;
}

/* "candidates.0.kl.mean" */
static const json_t *get(const json_t *o, const char *path) {
    char part[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof part);
        memcpy(part, path, n);
        part[n] = 0;
        o = json_is_array(o) ? json_array_get(o, (size_t)(part[0] - '0'))
                             : json_object_get(o, part);
        if (!o) fail_msg("no field '%s'", path);
        path += n + (path[n] == '.');
    }
    return o;
}
static double real(const json_t *o, const char *path) {
    const json_t *v = get(o, path);
    if (!json_is_number(v)) fail_msg("'%s' is %s", path, kld_json_kind(v));
    return json_number_value(v);
}
static long long count(const json_t *o, const char *path) {
    assert_true(json_is_integer(get(o, path)));
    return (long long)json_integer_value(get(o, path));
}
static bool warned(const json_t *o, const char *code) {
    const json_t *w = get(o, "warnings");
    for (size_t i = 0; i < json_array_size(w); i++)
        if (strcmp(json_string_value(get(json_array_get(w, i), "code")), code) == 0) return true;
    return false;
}

static char *table(const json_t *o, bool color) {
    kld_buf b = {0};
    assert_int_equal(kld_compare_table(o, color, &b, NULL), KLD_OK);
    char *s = strdup((const char *)b.data);
    kld_buf_free(&b);
    return s;
}

/* Twelve windows in twelve clusters and two strata. */
static json_t *compared(size_t n_cands, size_t k, size_t m, const double *noise, bool with_ref) {
    static const char *const CLUSTER[] = {"a", "b", "c", "d", "e", "f",
                                          "g", "h", "i", "j", "k", "l"};
    struct rig g;
    begin(&g, n_cands);
    for (uint64_t w = 0; w < 12; w++) {
        struct rec *ref = make(70, k, m, 100 + w, 0, 0, NULL), *cand[MAX_C];
        for (size_t c = 0; c < n_cands; c++) {
            cand[c] = make(70, k, m, 100 + w, noise[c], 4000 + w + 100 * c, with_ref ? ref : NULL);
            g.info[c].has_reference = with_ref;
        }
        add(&g, CLUSTER[w], w % 2 ? "code" : "prose", ref, cand);
        free(ref);
        for (size_t c = 0; c < n_cands; c++) free(cand[c]);
    }
    return finish(&g);
}

/* ---- tests ------------------------------------------------------------------------------- */

/* T1: the reference against itself is exactly 0 and exactly 1. */
static void self(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 1);
    g.info[0] = g.ref_info;
    g.side[0].self = true;
    for (uint64_t w = 0; w < 3; w++) {
        struct rec *ref = make(40, 12, 16, w, 0, 0, NULL);
        add(&g, w ? "x" : "y", "", ref, (struct rec *[]){ref});
        free(ref);
    }
    json_t *o = finish(&g);
    static const char *const ZERO[] = {"kl", "reverse_kl", "js", "tv"};
    for (int k = 0; k < 4; k++) {
        static const char *const F[] = {"mean", "lower_bound", "stderr_sampling", "median", "p999",
                                        "max",  "min",         "cluster_mean"};
        for (size_t f = 0; f < sizeof F / sizeof *F; f++) {
            char path[64];
            snprintf(path, sizeof path, "candidates.0.%s.%s", ZERO[k], F[f]);
            assert_true(real(o, path) == 0);
        }
    }
    assert_true(real(o, "candidates.0.kl.ci95.0") == 0 && real(o, "candidates.0.kl.ci95.1") == 0);
    assert_true(real(o, "candidates.0.top1_agreement") == 1);
    assert_true(real(o, "candidates.0.topk_overlap.10") == 1);
    assert_true(real(o, "candidates.0.acceptance.sampling") == 1);
    assert_true(real(o, "candidates.0.acceptance.nucleus") == 1);
    assert_true(real(o, "candidates.0.acceptance.expected_tokens.7") == 8);
    assert_true(real(o, "candidates.0.perplexity.ratio") == 1);
    assert_true(real(o, "floor.kl_mean") == 0);
    assert_string_equal(json_string_value(get(o, "floor.kind")), "same capture");
    char *t = table(o, false);
    assert_non_null(strstr(t, "        0 "));
    assert_null(strstr(t, "e-"));
    free(t);
    json_decref(o);
}

/* The mean over positions is the whole-vocabulary truth within its sampling error, the bound is
 * below it, and what is exact is exact. */
static void against_truth(void **state) {
    (void)state;
    double truth = 0, nll[2] = {0}, top1 = 0;
    for (uint64_t w = 0; w < 12; w++) {
        struct rec *p = make(70, 8, 16, 100 + w, 0, 0, NULL);
        struct rec *q = make(70, 8, 16, 100 + w, 0.5, 4000 + w, p);
        for (size_t i = 0; i < 70; i++) {
            truth += true_kl(p, q, i) / 840;
            nll[0] -= p->label_lp[i] / 840.0;
            nll[1] -= q->label_lp[i] / 840.0;
            top1 += p->ids[i * MAX_K] == q->ids[i * MAX_K];
        }
        free(p);
        free(q);
    }
    json_t *o = compared(1, 8, 16, (double[]){0.5}, true);
    double mean = real(o, "candidates.0.kl.mean"), se = real(o, "candidates.0.kl.stderr_sampling");
    double bound = real(o, "candidates.0.kl.lower_bound");
    assert_true(se > 0);
    NEAR(mean, truth, 4 * se);
    assert_true(bound < truth && bound <= mean && bound > 0.3 * truth);
    assert_true(json_is_false(get(o, "candidates.0.kl.exact")));
    NEAR(real(o, "candidates.0.top1_agreement"), top1 / 840, 1e-12);
    NEAR(real(o, "candidates.0.perplexity.reference"), exp(nll[0]), 1e-9 * exp(nll[0]));
    NEAR(real(o, "candidates.0.perplexity.ratio"), exp(nll[1] - nll[0]), 1e-9);
    assert_true(real(o, "candidates.0.kl.ci95.0") < mean &&
                mean < real(o, "candidates.0.kl.ci95.1"));
    assert_true(count(o, "candidates.0.topk_undecided") == 840); /* lists of 8 */
    assert_true(json_is_null(get(o, "candidates.0.topk_overlap.10")));
    json_decref(o);
    o = compared(1, V, 0, (double[]){0.5}, true);
    NEAR(real(o, "candidates.0.kl.mean"), truth, 1e-12);
    assert_true(json_is_true(get(o, "candidates.0.kl.exact")));
    assert_true(real(o, "candidates.0.kl.stderr_sampling") == 0);
    NEAR(real(o, "candidates.0.kl.lower_bound"), truth, 1e-12);
    json_decref(o);
    /* No draws were kept: nothing but the bound. */
    o = compared(1, 8, 0, (double[]){0.5}, true);
    assert_true(json_is_null(get(o, "candidates.0.kl.mean")));
    assert_true(count(o, "candidates.0.kl.unestimated") == 840);
    assert_true(warned(o, "bound_only"));
    json_decref(o);
}

/* T6: captured apart, the candidate's probability of an unlisted id is unknown: a bound, no
 * mean, no infinity. */
static void independent(void **state) {
    (void)state;
    double noise[] = {0.5};
    json_t *apart = compared(1, 6, 16, noise, false), *whole = compared(1, V, 0, noise, true);
    assert_true(json_is_null(get(apart, "candidates.0.kl.mean")));
    assert_true(json_is_null(get(apart, "candidates.0.kl.ci95")));
    assert_true(json_is_null(get(apart, "candidates.0.kl.p99")));
    assert_true(json_is_null(get(apart, "candidates.0.acceptance.sampling")));
    assert_int_equal(count(apart, "candidates.0.kl.infinite"), 0);
    double bound = real(apart, "candidates.0.kl.lower_bound");
    double truth = real(whole, "candidates.0.kl.mean");
    assert_true(bound > 0 && bound < truth);
    assert_true(real(apart, "candidates.0.kl.lower_bounds.p99") <=
                real(whole, "candidates.0.kl.p99"));
    assert_true(real(apart, "candidates.0.acceptance.sampling_upper") >=
                real(whole, "candidates.0.acceptance.sampling"));
    NEAR(real(apart, "candidates.0.top1_agreement"), real(whole, "candidates.0.top1_agreement"), 0);
    assert_string_equal(json_string_value(get(apart, "candidates.0.capture")), "independent");
    json_decref(apart);
    /* Whole lists on both sides leave nothing to lump: exact. */
    apart = compared(1, V, 0, noise, false);
    assert_true(json_is_true(get(apart, "candidates.0.kl.exact")));
    NEAR(real(apart, "candidates.0.kl.mean"), truth, 1e-13);
    json_decref(apart);
    json_decref(whole);
}

static void mark_nan(struct rec *x, size_t i) {
    x->count[i] = 0;
    x->label_lp[i] = NAN;
    for (size_t j = 0; j < MAX_K; j++) x->ref_lp[i * MAX_K + j] = NAN;
}

/* T7 and T8: rows that are not finite are counted, located and excluded; nothing else is. */
static void nonfinite(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 2);
    struct rec *ref = make(100, 12, 16, 1, 0, 0, NULL);
    struct rec *some = make(100, 12, 16, 1, 0.3, 2, ref), *all = make(100, 12, 16, 1, 0.3, 3, ref);
    for (size_t i = 0; i < 8; i++) mark_nan(some, 10 + i);
    some->ref_lp[50 * MAX_K + 3] = NAN; /* a finite row with one bad value */
    for (size_t i = 0; i < 100; i++) mark_nan(all, i);
    ref->count[90] = 0;
    add(&g, "c", "", ref, (struct rec *[]){some, all});
    json_t *o = finish(&g);
    assert_int_equal(count(o, "positions"), 100);
    assert_int_equal(count(o, "candidates.0.positions"), 90);
    assert_int_equal(count(o, "candidates.0.nonfinite.candidate"), 9);
    assert_int_equal(count(o, "candidates.0.nonfinite.reference"), 1);
    assert_int_equal(count(o, "candidates.0.nonfinite.excluded"), 10);
    assert_int_equal(count(o, "candidates.0.nonfinite.first.0.position"), 11);
    assert_string_equal(json_string_value(get(o, "candidates.0.status")), "partial");
    assert_true(real(o, "candidates.0.kl.mean") > 0 && real(o, "candidates.0.kl.p99") > 0);
    assert_true(json_is_true(get(o, "candidates.0.valid")));
    assert_true(json_is_false(get(o, "candidates.1.valid")) && json_is_false(get(o, "valid")));
    assert_true(json_is_null(get(o, "candidates.1.kl.mean")));
    assert_true(json_is_null(get(o, "candidates.1.kl.max")));
    assert_true(json_is_null(get(o, "candidates.1.perplexity.candidate")));
    assert_string_equal(json_string_value(get(o, "pairs.0.verdict")), "unsupported");
    assert_true(warned(o, "invalid") && warned(o, "excluded") && warned(o, "one_cluster"));
    kld_buf report = {0};
    kld_err err = {0};
    assert_int_equal(kld_compare_gates(o, (const char *[]){"mean_kl=1000"}, 1, &report, &err),
                     KLD_E_GATE);
    assert_non_null(strstr((char *)report.data, "10 positions are not finite"));
    assert_non_null(strstr((char *)report.data, "has no finite value"));
    kld_buf_free(&report);
    char *t = table(o, false);
    assert_non_null(strstr(t, "INVALID"));
    free(t);
    json_decref(o);
    free(ref);
    free(some);
    free(all);
}

static void infinite(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 2);
    struct rec *ref = make(50, 12, 16, 1, 0, 0, NULL);
    struct rec *q = make(50, 12, 16, 1, 0.3, 2, ref), *ok = make(50, 12, 16, 1, 0.3, 2, ref);
    q->ref_lp[7 * MAX_K + 2] = -INFINITY;
    q->label_lp[9] = -INFINITY;
    add(&g, "c", "", ref, (struct rec *[]){q, ok});
    json_t *o = finish(&g);
    assert_true(json_is_null(get(o, "candidates.0.kl.mean")));
    assert_true(json_is_null(get(o, "candidates.0.kl.max")));
    assert_int_equal(count(o, "candidates.0.kl.infinite"), 1);
    assert_true(real(o, "candidates.0.kl.mean_finite") > 0);
    assert_true(real(o, "candidates.0.kl.median") > 0);
    assert_true(real(o, "candidates.0.tv.mean") > 0);
    assert_int_equal(count(o, "candidates.0.kl.max_at.position"), 8);
    assert_true(json_is_null(get(o, "candidates.0.perplexity.candidate")));
    assert_int_equal(count(o, "candidates.0.perplexity.infinite_candidate"), 1);
    assert_true(real(o, "candidates.1.kl.mean") > 0);
    assert_string_equal(json_string_value(get(o, "pairs.0.verdict")), "unsupported");
    assert_true(warned(o, "infinite"));
    json_decref(o);
    free(ref);
    free(q);
    free(ok);
}

/* T2 by way of records: a constant TV of 0.1 gives the closed forms of the acceptance proxies. */
static void acceptance(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 1);
    struct rec *ref = make(30, 2, 0, 1, 0, 0, NULL), *q = make(30, 2, 0, 1, 0, 0, ref);
    for (size_t i = 0; i < 30; i++) {
        static const double P[] = {0.9, 0.1}, Q[] = {0.8, 0.2};
        ref->tail_mass[i] = q->tail_mass[i] = 0;
        for (size_t j = 0; j < 2; j++) {
            ref->lp[i * MAX_K + j] = log(P[j]);
            q->lp[i * MAX_K + j] = q->ref_lp[i * MAX_K + j] = log(Q[j]);
        }
    }
    add(&g, "c", "", ref, (struct rec *[]){q});
    json_t *o = finish(&g);
    NEAR(real(o, "candidates.0.kl.mean"), 0.0366900140, 1e-10);
    NEAR(real(o, "candidates.0.js.mean"), 0.0099663893, 1e-10);
    NEAR(real(o, "candidates.0.acceptance.sampling"), 0.9, 1e-12);
    NEAR(real(o, "candidates.0.acceptance.expected_tokens.1"), 1.9, 1e-12);
    NEAR(real(o, "candidates.0.acceptance.expected_tokens.3"), 3.439, 1e-12);
    NEAR(real(o, "candidates.0.acceptance.expected_tokens.5"), 4.68559, 1e-12);
    assert_int_equal(count(o, "candidates.0.acceptance.expected_starts.1"), 30);
    assert_int_equal(count(o, "candidates.0.acceptance.expected_starts.7"), 24);
    assert_true(json_is_true(get(o, "candidates.0.kl.exact")));
    json_decref(o);
    free(ref);
    free(q);
}

/* T28: token mean 0.01, document mean 0.5. */
static void unequal_documents(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 1);
    static kld_position pos[250];
    for (size_t w = 0; w < 5; w++) {
        for (size_t i = 0; i < 250; i++) {
            pos[i] = (kld_position){.exact = 15, .confidence = 0.5};
            pos[i].v[KLD_COL_ESTIMATE] = w == 0 ? 1 : 0;
        }
        kld_window_meta meta = {.cluster = w ? "B" : "A"};
        size_t n = w == 0 ? 10 : w == 4 ? 240 : 250;
        const kld_position *p = pos;
        assert_int_equal(kld_tally_window(&g.tally, w, &meta, 0, n, &p, NULL), KLD_OK);
    }
    json_t *o = finish(&g);
    assert_int_equal(count(o, "positions"), 1000);
    assert_int_equal(count(o, "clusters"), 2);
    NEAR(real(o, "candidates.0.kl.mean"), 0.01, 1e-15);
    NEAR(real(o, "candidates.0.kl.cluster_mean"), 0.5, 1e-15);
    assert_string_equal(json_string_value(get(o, "candidates.0.kl.ci_method")), "student-t");
    json_decref(o);
}

/* Every field of the published schema, with two candidates. */
static void schema(void **state) {
    (void)state;
    static const char *const FIELDS[] = {"schema",
                                         "reference.name",
                                         "reference.model_digest",
                                         "reference.suite_digest",
                                         "positions",
                                         "unit",
                                         "floor",
                                         "settings.seed",
                                         "settings.top_p",
                                         "settings.resamples",
                                         "settings.ci_method",
                                         "warnings",
                                         "arithmetic_mismatch",
                                         "valid",
                                         "pairs.0.verdict",
                                         "pairs.0.difference_ci95.1",
                                         "pairs.0.ratio_ci95.0",
                                         "candidates.1.name",
                                         "candidates.1.model_digest",
                                         "candidates.1.positions",
                                         "candidates.1.nonfinite.reference",
                                         "candidates.1.nonfinite.candidate",
                                         "candidates.1.topk_overlap.10",
                                         "candidates.1.top1_agreement",
                                         "candidates.1.top_p.temperature",
                                         "candidates.1.top_p.p",
                                         "candidates.1.top_p.jaccard",
                                         "candidates.1.top_p.mass_on_reference",
                                         "candidates.1.top_p.mass_on_candidate",
                                         "candidates.1.top_p.tv",
                                         "candidates.1.top_p.undecided",
                                         "candidates.1.acceptance.sampling",
                                         "candidates.1.acceptance.greedy",
                                         "candidates.1.acceptance.nucleus",
                                         "candidates.1.acceptance.expected_tokens.1",
                                         "candidates.1.acceptance.expected_tokens.7",
                                         "candidates.1.perplexity.reference",
                                         "candidates.1.perplexity.candidate",
                                         "candidates.1.perplexity.ratio",
                                         "candidates.1.by_stratum.1.kl_mean",
                                         "candidates.1.by_depth.3.to",
                                         "candidates.1.by_confidence.4.top1_agreement"};
    json_t *o = compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) get(o, FIELDS[i]);
    for (int k = 0; k < 4; k++) {
        static const char *const D[] = {"kl", "reverse_kl", "js", "tv"};
        static const char *const F[] = {"mean",   "ci95", "exact", "lower_bound", "stderr_sampling",
                                        "median", "p90",  "p95",   "p99",         "p999",
                                        "max"};
        for (size_t f = 0; f < sizeof F / sizeof *F; f++) {
            char path[64];
            snprintf(path, sizeof path, "candidates.0.%s.%s", D[k], F[f]);
            get(o, path);
        }
    }
    long long by[3] = {0};
    static const char *const GROUP[] = {"by_stratum", "by_depth", "by_confidence"};
    for (int k = 0; k < 3; k++) {
        const json_t *a = get(get(o, "candidates.0"), GROUP[k]);
        for (size_t i = 0; i < json_array_size(a); i++)
            by[k] += count(json_array_get(a, i), "positions");
        assert_int_equal(by[k], 840);
    }
    assert_int_equal(count(o, "candidates.0.by_depth.0.positions"), 12 * 63);
    assert_string_equal(json_string_value(get(o, "pairs.0.verdict")), "worse");
    assert_true(real(o, "pairs.0.difference") > 0);
    NEAR(real(o, "pairs.0.ratio"),
         real(o, "candidates.1.kl.mean") / real(o, "candidates.0.kl.mean"), 1e-12);
    assert_true(warned(o, "few_clusters") && warned(o, "no_floor") && warned(o, "few_positions"));
    json_decref(o);
}

static void repeat_is_the_floor(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 3);
    g.info[1].model = g.ref_info.model; /* a second capture of the reference */
    struct rec *ref = make(60, 20, 16, 1, 0, 0, NULL);
    struct rec *q[] = {make(60, 20, 16, 1, 0.02, 2, ref), make(60, 20, 16, 1, 0.02, 3, ref),
                       make(60, 20, 16, 1, 0.4, 4, ref)};
    add(&g, "c", "", ref, q);
    json_t *o = finish(&g);
    assert_int_equal(count(o, "floor.candidate"), 1);
    assert_true(real(o, "floor.kl_mean") == real(o, "candidates.1.kl.mean"));
    assert_true(json_is_false(get(o, "candidates.0.resolved")));
    assert_true(json_is_true(get(o, "candidates.2.resolved")));
    assert_true(warned(o, "not_resolved") && !warned(o, "no_floor"));
    assert_int_equal(json_array_size(get(o, "pairs")), 3);
    json_decref(o);
    free(ref);
    for (int k = 0; k < 3; k++) free(q[k]);
}

static void gates(void **state) {
    (void)state;
    json_t *o = compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    kld_buf report = {0};
    kld_err err = {0};
    const char *fine[] = {"mean_kl=10",          "upper_kl=10",         "p999_kl=50",
                          "top1_disagreement=1", "topp_disagreement=1", "ppl_ratio=10",
                          "mean_js=1",           "lower_bound_kl=1e1"};
    assert_int_equal(kld_compare_gates(o, fine, 8, &report, &err), KLD_OK);
    assert_int_equal(report.len, 0);
    char between[64];
    snprintf(between, sizeof between, "mean_kl=%.17g",
             0.5 * (real(o, "candidates.0.kl.mean") + real(o, "candidates.1.kl.mean")));
    assert_int_equal(kld_compare_gates(o, (const char *[]){between}, 1, &report, &err), KLD_E_GATE);
    assert_non_null(strstr((char *)report.data, "b (b): mean_kl is"));
    assert_null(strstr((char *)report.data, "a (a)"));
    /* A metric equal to its limit passes. */
    snprintf(between, sizeof between, "mean_kl=%.17g", real(o, "candidates.1.kl.mean"));
    kld_buf_clear(&report);
    assert_int_equal(kld_compare_gates(o, (const char *[]){between}, 1, &report, &err), KLD_OK);
    static const char *const BAD[] = {"mean_klx=1",  "mean_kl", "mean_kl=", "mean_kl=1x",
                                      "mean_kl=nan", "=1",      ""};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(kld_compare_gates(o, &BAD[i], 1, &report, &err), KLD_E_USAGE);
        assert_int_equal(report.len, 0);
    }
    assert_non_null(strstr(err.text, "mean_kl"));
    kld_buf_free(&report);
    json_decref(o);
}

/* Lines of at most 100 characters, no escapes unless asked for, labels shown. */
static void text(void **state) {
    (void)state;
    json_t *o = compared(3, 24, 16, (double[]){0.3, 0.6, 0.0005}, true);
    json_object_set_new(
        json_array_get(json_object_get(o, "candidates"), 1), "label",
        json_string("a rather long label \xc3\xa9\xc3\xa9\xc3\xa9 that does not fit"));
    char *plain = table(o, false), *color = table(o, true);
    assert_null(strchr(plain, 27));
    assert_non_null(strchr(color, 27));
    assert_non_null(strstr(plain, "NVFP4 (QAD)"));
    assert_non_null(strstr(plain, "worse"));
    assert_non_null(strstr(plain, "Mean KL by stratum"));
    for (const char *s = plain; *s;) {
        size_t n = strcspn(s, "\n"), chars = 0;
        for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
        if (chars > 100) fail_msg("%zu columns: %.*s", chars, (int)n, s);
        s += n + (s[n] == '\n');
    }
    if (getenv("KLD_TEST_SHOW")) puts(plain);
    free(plain);
    free(color);
    json_decref(o);
}

static char *dump(const json_t *o) {
    kld_buf b = {0};
    assert_int_equal(kld_json_dump(o, true, &b, NULL), KLD_OK);
    char *s = strdup((const char *)b.data);
    kld_buf_free(&b);
    return s;
}

static void threads_do_not_matter(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    char *s[2];
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 4 : 1);
        json_t *o = compared(2, 24, 16, (double[]){0.3, 0.6}, true);
        s[k] = dump(o);
        json_decref(o);
    }
    omp_set_num_threads(before);
    assert_string_equal(s[0], s[1]);
    free(s[0]);
    free(s[1]);
}

static void mismatched_records(void **state) {
    (void)state;
    struct rec *a = make(10, 8, 16, 1, 0, 0, NULL), *b = make(10, 8, 16, 1, 0.1, 2, a);
    kld_position out[10];
    kld_position_options opt = {.vocab = V, .top_p = 0.95, .overlap_k = 10};
    kld_err err;
    b->r.n = 9;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    b->r.n = 10;
    b->label[4]++;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "row 4"));
    b->label[4]--;
    b->r.ref_m = 3;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    b->r.ref_m = a->r.m;
    b->count[2] = MAX_K + 1;
    assert_int_equal(kld_positions_compare(&a->r, &b->r, &opt, out, &err), KLD_E_INPUT);
    free(a);
    free(b);
}

static void nothing_scored(void **state) {
    (void)state;
    struct rig g;
    begin(&g, 2);
    json_t *o = finish(&g);
    assert_int_equal(count(o, "positions"), 0);
    assert_true(json_is_null(get(o, "candidates.0.kl.mean")));
    char *t = table(o, false);
    free(t);
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self),
        cmocka_unit_test(against_truth),
        cmocka_unit_test(independent),
        cmocka_unit_test(nonfinite),
        cmocka_unit_test(infinite),
        cmocka_unit_test(acceptance),
        cmocka_unit_test(unequal_documents),
        cmocka_unit_test(schema),
        cmocka_unit_test(repeat_is_the_floor),
        cmocka_unit_test(gates),
        cmocka_unit_test(text),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(mismatched_records),
        cmocka_unit_test(nothing_scored),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
