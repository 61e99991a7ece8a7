/* Exact comparisons against sums over every logit taken here; one head for both sides. */
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "tests/unit/exactkit.h"

#include <math.h>
#include <stdlib.h>

/* ---- the truth ----------------------------------------------------------------------------- */

typedef struct truth {
    double kl, reverse_kl, js, tv, jaccard, nucleus_tv, on_ref, on_cand, top1, overlap, nll;
    size_t n;
} truth;

/* Log-probabilities in order of id. */
static void normalise(double *l, size_t n) {
    double max = -INFINITY, z = 0;
    for (size_t j = 0; j < n; j++) max = fmax(max, l[j]);
    for (size_t j = 0; j < n; j++) z += exp(l[j] - max);
    for (size_t j = 0; j < n; j++) l[j] -= max + log(z);
}

static const double *sorted_by;
static int by_rank(const void *a, const void *b) {
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    if (sorted_by[i] != sorted_by[j]) return sorted_by[i] > sorted_by[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

enum { MAX_VOCAB = 300 };

typedef struct ranked {
    size_t order[MAX_VOCAB], size;
    bool in[MAX_VOCAB], top[MAX_VOCAB];
    double mass;
} ranked;

static void rank(ranked *r, const double *l, size_t n, double top_p) {
    memset(r, 0, sizeof *r);
    for (size_t j = 0; j < n; j++) r->order[j] = j;
    sorted_by = l;
    qsort(r->order, n, sizeof *r->order, by_rank);
    for (size_t j = 0; j < 10; j++) r->top[r->order[j]] = true;
    while (r->mass < top_p) {
        r->in[r->order[r->size]] = true;
        r->mass += exp(l[r->order[r->size++]]);
    }
}

/* One position, from log-probabilities. */
static void add_position(truth *t, const double *a, const double *b, size_t n, uint32_t label) {
    ranked p, q;
    double ntv = 0, on_ref = 0, on_cand = 0;
    size_t both = 0, shared = 0;
    rank(&p, a, n, 0.95);
    rank(&q, b, n, 0.95);
    for (size_t j = 0; j < n; j++) {
        double x = exp(a[j]), y = exp(b[j]), m = log((x + y) / 2);
        t->kl += x * (a[j] - b[j]);
        t->reverse_kl += y * (b[j] - a[j]);
        t->js += (x * (a[j] - m) + y * (b[j] - m)) / 2;
        t->tv += fabs(x - y) / 2;
        both += p.in[j] && q.in[j];
        shared += p.top[j] && q.top[j];
        if (p.in[j]) on_ref += y;
        if (q.in[j]) on_cand += x;
        ntv += fabs((p.in[j] ? x / p.mass : 0) - (q.in[j] ? y / q.mass : 0)) / 2;
    }
    t->jaccard += (double)both / (double)(p.size + q.size - both);
    t->nucleus_tv += ntv;
    t->on_ref += on_ref;
    t->on_cand += on_cand;
    t->top1 += p.order[0] == q.order[0];
    t->overlap += (double)shared / 10;
    t->nll += a[label] - b[label];
    t->n++;
}

static void by_id(const kld_records *r, size_t i, size_t n, double *out) {
    for (size_t j = 0; j < n; j++) out[r->ids[i * r->k_ld + j]] = r->lp[i * r->k_ld + j];
    normalise(out, n);
}

/* What a head makes of a row, in FP64. */
static void through(const float *head, const kld_records *h, size_t i, size_t n, double *out) {
    size_t cols = h->hidden_cols;
    const float *x = (const float *)h->hidden + i * cols;
    for (size_t j = 0; j < n; j++) {
        out[j] = 0;
        for (size_t c = 0; c < cols; c++) out[j] += (double)head[j * cols + c] * (double)x[c];
    }
    normalise(out, n);
}

/* head: NULL, or the FP32 matrix that the candidate's hidden states go through instead. */
static truth truth_of(const scene *s, const kld_model *ref, const kld_model *cand, kld_precision p,
                      kld_precision q, const float *head, size_t skipped) {
    truth t = {0};
    exact_side a, b;
    size_t n = s->t.vocab;
    kld_engine_options o = exact_options(s, p, n);
    exact_run(&a, s, ref, &o);
    o.precision = q;
    exact_run(&b, s, cand, &o);
    for (size_t w = 0; w < EXACT_KEPT; w++) {
        const kld_records *x = &a.all[EXACT_SCORED[w]], *y = &b.all[EXACT_SCORED[w]];
        for (size_t i = 0; i < x->n; i++) {
            double l[MAX_VOCAB], m[MAX_VOCAB];
            if (skipped && EXACT_SCORED[w] == 4 && i == skipped) continue;
            by_id(x, i, n, l);
            if (head) through(head, y, i, n, m);
            else by_id(y, i, n, m);
            add_position(&t, l, m, n, x->label[i]);
        }
    }
    exact_drop(&a);
    exact_drop(&b);
    return t;
}

static void near_truth(const json_t *r, const truth *t, double tol, bool shared) {
    double n = (double)t->n;
    assert_int_equal(cmp_count(r, "candidates.0.positions"), t->n);
    static const char *const kinds[] = {"kl", "reverse_kl", "js", "tv"};
    const double want[] = {t->kl, t->reverse_kl, t->js, t->tv};
    for (size_t k = 0; k < 4; k++) {
        char path[64];
        snprintf(path, sizeof path, "candidates.0.%s.mean", kinds[k]);
        exact_near(r, path, want[k] / n, tol);
        snprintf(path, sizeof path, "candidates.0.%s.lower_bound", kinds[k]);
        exact_near(r, path, want[k] / n, tol);
        snprintf(path, sizeof path, "candidates.0.%s.stderr_sampling", kinds[k]);
        assert_true(cmp_real(r, path) == 0);
        snprintf(path, sizeof path, "candidates.0.%s.exact", kinds[k]);
        assert_true(json_is_true(cmp_get(r, path)));
    }
    exact_near(r, "candidates.0.top_p.jaccard", t->jaccard / n, tol);
    exact_near(r, "candidates.0.top_p.tv", t->nucleus_tv / n, tol);
    exact_near(r, "candidates.0.top_p.mass_on_reference", t->on_ref / n, tol);
    exact_near(r, "candidates.0.top_p.mass_on_candidate", t->on_cand / n, tol);
    assert_int_equal(cmp_count(r, "candidates.0.top_p.undecided"), 0);
    exact_near(r, "candidates.0.top1_agreement", t->top1 / n, 1e-12);
    exact_near(r, "candidates.0.perplexity.ratio", exp(t->nll / n), 1e-6);
    if (shared) exact_near(r, "candidates.0.topk_overlap.10", t->overlap / n, 1e-9);
    assert_true(cmp_real(r, "candidates.0.tail_mass") == 0);
}

/* ---- comparing ----------------------------------------------------------------------------- */

static void own_heads(void **state) {
    (void)state;
    const tiny *const t[] = {&tiny_qwen, &tiny_llama}; /* tied and not */
    for (int k = 0; k < 4; k++) {
        exact_rig g;
        exact_open(&g, *t[k / 2], 7);
        exact_form f = {.precision = (kld_precision)(k % 2), .nan_row = 5};
        exact_capture(g.ref_path, &g.s, g.s.m, &f);
        f.nan_row = 0;
        exact_capture(g.cand_path, &g.s, g.cand, &f);
        json_t *r = exact_compare(&g);
        truth want = truth_of(&g.s, g.s.m, g.cand, f.precision, f.precision, NULL, 5);
        near_truth(r, &want, 1e-9, false);
        assert_int_equal(cmp_count(r, "candidates.0.nonfinite.excluded"), 1);
        assert_true(cmp_real(r, "candidates.0.exact.check_max") == 0);
        assert_string_equal(json_string_value(cmp_get(r, "candidates.0.exact.head")), "own");
        assert_true(json_is_false(cmp_get(r, "candidates.0.exact.bodies_equal")));
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact.head_only_kl")));
        assert_int_equal(
            strncmp(json_string_value(cmp_get(r, "candidates.0.exact.replayed_on")), "cpu: ", 5),
            0);
        char *table = cmp_table(r, false);
        assert_non_null(strstr(table, "; exact\n"));
        assert_non_null(strstr(table, " ="));
        free(table);
        json_decref(r);
        /* The lists alone give bounds. */
        g.opt.exact_never = true;
        r = exact_compare(&g);
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact")));
        assert_true(json_is_null(cmp_get(r, "candidates.0.kl.mean")));
        assert_true(cmp_real(r, "candidates.0.kl.lower_bound") < want.kl / (double)want.n);
        json_decref(r);
        exact_close(&g);
    }
}

/* A floor capture has another precision, and a candidate may have another hidden size. */
static void unlike_sides(void **state) {
    (void)state;
    exact_rig g;
    tiny t = tiny_qwen;
    t.vocab = tiny_llama.vocab;
    exact_open(&g, t, 7);
    tiny small = tiny_llama;
    kld_model *m;
    kld_err err = {0};
    tiny_write(&small, 3);
    need(kld_model_open(&m, small.dir, &err), &err, "");
    exact_form f = {.precision = KLD_PRECISION_BF16}, q = {.precision = KLD_PRECISION_FP32};
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    exact_capture(g.cand_path, &g.s, m, &q);
    exact_fails(&g, KLD_E_INPUT, "engine arithmetic differs");
    g.opt.allow_arithmetic_mismatch = true;
    json_t *r = exact_compare(&g);
    truth want = truth_of(&g.s, g.s.m, m, KLD_PRECISION_BF16, KLD_PRECISION_FP32, NULL, 0);
    near_truth(r, &want, 1e-9, false);
    json_decref(r);
    g.opt.head_shared = true;
    exact_fails(&g, KLD_E_INPUT,
                "hidden states of 24 values; the reference's head, which is to be shared");
    kld_model_free(m);
    tiny_remove(&small);
    exact_close(&g);
}

static void shared_head(void **state) {
    (void)state;
    exact_rig g;
    exact_open(&g, tiny_qwen, 7);
    exact_form f = {.precision = KLD_PRECISION_FP32};
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    f.checkpoint = "/nowhere"; /* its own head is not needed */
    exact_capture(g.cand_path, &g.s, g.cand, &f);
    g.opt.head_shared = true;
    json_t *r = exact_compare(&g);
    float *head = recast_values(g.s.m, &g.s.m->global[KLD_SLOT_HEAD]);
    truth want = truth_of(&g.s, g.s.m, g.cand, f.precision, f.precision, head, 0);
    near_truth(r, &want, 1e-5, true);
    assert_string_equal(json_string_value(cmp_get(r, "settings.head")), "shared");
    assert_string_equal(json_string_value(cmp_get(r, "candidates.0.exact.head")), "shared");
    char *table = cmp_table(r, false);
    assert_non_null(strstr(table, "One head for both sides"));
    free(table);
    free(head);
    json_decref(r);
    exact_close(&g);
}

/* A copy whose head alone is another. */
static bool other_head(built *b, const kld_weight_at *at, void *ctx) {
    const kld_model *m = ctx;
    if (at->layer || at->slot != KLD_SLOT_HEAD) return false;
    float *v = recast_values(m, at->w);
    for (size_t i = 0; i < at->w->rows * at->w->cols; i++) v[i] *= 1 + 0.1f * (float)(i % 3);
    recast_tensor(b, at->w, "weight", "F32", at->w->rows, at->w->cols, v,
                  at->w->rows * at->w->cols * sizeof *v);
    free(v);
    return true;
}

static void equal_bodies(void **state) {
    (void)state;
    exact_rig g;
    built b;
    exact_open(&g, tiny_qwen, 7);
    kld_model *m = recast(&b, g.s.m, other_head, g.s.m);
    exact_form f = {.precision = KLD_PRECISION_BF16};
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    exact_capture(g.cand_path, &g.s, m, &f);
    json_t *r = exact_compare(&g);
    assert_true(json_is_true(cmp_get(r, "candidates.0.exact.bodies_equal")));
    assert_true(cmp_real(r, "candidates.0.kl.mean") > 1e-3);
    assert_true(cmp_real(r, "candidates.0.exact.head_only_kl") ==
                cmp_real(r, "candidates.0.kl.mean"));
    json_decref(r);
    g.opt.head_shared = true;
    r = exact_compare(&g);
    assert_true(json_is_true(cmp_get(r, "candidates.0.exact.bodies_equal")));
    assert_true(json_is_null(cmp_get(r, "candidates.0.exact.head_only_kl")));
    assert_true(cmp_real(r, "candidates.0.kl.mean") == 0);
    assert_true(cmp_real(r, "candidates.0.top1_agreement") == 1);
    json_decref(r);
    kld_model_free(m);
    build_end(&b);
    exact_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_heads),
        cmocka_unit_test(unlike_sides),
        cmocka_unit_test(shared_head),
        cmocka_unit_test(equal_bodies),
    };
    kld_log_set_level(KLD_LOG_QUIET);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
