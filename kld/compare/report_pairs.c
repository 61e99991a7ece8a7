#include "kld/base/mem.h"
#include "kld/compare/belong.h"
#include "kld/compare/report.h"
#include "kld/compare/verdict.h"

#include <math.h>

/* What is tested of a pair, on the scale of the margin. */
struct tested {
    kld_estimate difference, ratio;
    const kld_estimate *change; /* one of the two */
    const char *scale;          /* "ratio", "difference" */
    double margin;              /* NaN: no margin on this scale */
    kld_tests tests, adjusted;
    bool in_family; /* adjusted together with others */
};

/* Captures with routes of different origin are different estimands, the reference itself is known
 * to be 0, and a floor is no checkpoint to choose: such pairs are told, but are no comparisons that
 * a reader chooses among. */
static bool in_family(const kld_report *r, size_t a, size_t b) {
    const kld_role *x = &r->role[a], *y = &r->role[b];
    bool check = x->cell == KLD_BXB || y->cell == KLD_BXB;
    if (kld_is_floor(r->cand[a].info) || kld_is_floor(r->cand[b].info)) return false;
    return !r->cand[a].self && !r->cand[b].self && !check &&
           r->cand[a].info->routes.mode == r->cand[b].info->routes.mode && x->source == y->source;
}

static void test(const kld_report *r, size_t i, struct tested *x) {
    const kld_pair_tally *p = &r->tally->pair[i];
    double absolute = r->opt->margin_abs, factor = 1 + r->opt->margin;
    *x =
        (struct tested){.difference = kld_report_difference(r, i), .ratio = kld_report_ratio(r, i)};
    /* No ratio when a mean is 0. */
    bool ratio = absolute == 0 && x->ratio.scale == KLD_SCALE_LOG && x->ratio.mean > 0;
    x->change = ratio ? &x->ratio : &x->difference;
    x->scale = ratio ? "ratio" : "difference";
    x->margin = ratio ? r->opt->margin : absolute > 0 ? absolute : NAN;
    x->tests = ratio ? kld_tests_make(x->change, 1, 1 / factor, factor)
                     : kld_tests_make(x->change, 0, -x->margin, x->margin);
    /* Infinite values were left out of both means, which says nothing about the rest. */
    if (r->tally->cand[p->a].all.inf[KLD_COL_ESTIMATE] ||
        r->tally->cand[p->b].all.inf[KLD_COL_ESTIMATE])
        x->tests = (kld_tests){.difference = NAN, .equivalent = NAN, .not_worse = NAN};
    x->adjusted = x->tests;
    x->in_family = in_family(r, p->a, p->b);
}

static double *test_of(kld_tests *t, int kind) {
    return kind == 0 ? &t->difference : kind == 1 ? &t->equivalent : &t->not_worse;
}

/* Each kind of test by itself. */
static void adjust(struct tested *x, size_t n, double *p, double *adjusted) {
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < n; i++) p[i] = x[i].in_family ? *test_of(&x[i].tests, kind) : NAN;
        kld_holm(p, n, adjusted);
        for (size_t i = 0; i < n; i++)
            if (x[i].in_family) *test_of(&x[i].adjusted, kind) = adjusted[i];
    }
}

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

static void equivalence(kld_report *r, json_t *pair, const struct tested *x) {
    kld_emit *e = &r->emit;
    kld_interval ci = kld_estimate_interval(x->change, 0.90);
    json_t *o = kld_emit_object(e, pair, "equivalence");
    kld_emit_text(e, o, "scale", x->scale);
    kld_emit_real(e, o, "margin", x->margin);
    kld_emit_range(e, o, "ci90", ci.lo, ci.hi);
    kld_emit_real(e, o, "p_value", x->tests.equivalent);
    kld_emit_real(e, o, "p_holm", x->in_family ? x->adjusted.equivalent : NAN);
    kld_emit_real(e, o, "not_worse_p_value", x->tests.not_worse);
    kld_emit_real(e, o, "not_worse_p_holm", x->in_family ? x->adjusted.not_worse : NAN);
}

static void pair(kld_report *r, size_t i, const struct tested *x, json_t *pairs) {
    const kld_pair_tally *p = &r->tally->pair[i];
    kld_emit *e = &r->emit;
    kld_interval d = kld_estimate_interval(&x->difference, 0.95), q = {.lo = NAN, .hi = NAN};
    bool has_ratio = x->ratio.scale == KLD_SCALE_LOG && x->ratio.mean > 0;
    if (has_ratio) q = kld_estimate_interval(&x->ratio, 0.95);
    const char *reason = d.reason ? d.reason : has_ratio ? q.reason : "a mean is 0";
    bool same = p->lower + p->higher == 0 && p->equal > 0;
    bool infinite = r->tally->cand[p->a].all.inf[KLD_COL_ESTIMATE] ||
                    r->tally->cand[p->b].all.inf[KLD_COL_ESTIMATE];
    const char *verdict = same && !infinite ? "practically equivalent"
                                            : kld_verdict(&x->adjusted, x->difference.mean > 0);
    json_t *o = kld_emit_object(e, pairs, NULL);
    kld_emit_count(e, o, "baseline", p->a);
    kld_emit_count(e, o, "candidate", p->b);
    kld_emit_text(e, o, "metric", "mean_kl");
    kld_emit_count(e, o, "positions", p->lower + p->equal + p->higher);
    kld_emit_real(e, o, "difference", x->difference.mean);
    kld_emit_range(e, o, "difference_ci95", d.lo, d.hi);
    kld_emit_real(e, o, "ratio", has_ratio ? x->ratio.mean : NAN);
    kld_emit_range(e, o, "ratio_ci95", q.lo, q.hi);
    kld_emit_text(e, o, "ci_method", d.method);
    if (reason) kld_emit_text(e, o, "ci_reason", reason);
    kld_emit_real(e, o, "p_value", x->tests.difference);
    kld_emit_real(e, o, "p_holm", x->in_family ? x->adjusted.difference : NAN);
    equivalence(r, o, x);
    kld_emit_text(e, o, "verdict", verdict);
    /* Below twice what the reference scores against itself, a difference means nothing. */
    if (isfinite(r->floor) && r->floor > 0 && isfinite(x->difference.mean))
        kld_emit_bool(e, o, "resolved", fabs(x->difference.mean) >= 2 * r->floor);
    else kld_emit_value(e, o, "resolved", json_null());
    cluster_signs(r, o, p);
}

kld_status kld_report_pairs(kld_report *r, json_t *top, kld_err *err) {
    size_t n = r->tally->n_pairs, family = 0;
    struct tested *x = NULL;
    double *p = NULL;
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&x, n, err));
    TRY_TO(done, NEW_ARRAY(&p, 2 * n, err));
    for (size_t i = 0; i < n; i++) {
        test(r, i, &x[i]);
        family += x[i].in_family;
    }
    adjust(x, n, p, p + n);
    kld_emit_count(&r->emit, json_object_get(top, "settings"), "tested_pairs", family);
    json_t *a = kld_emit_array(&r->emit, top, "pairs");
    for (size_t i = 0; i < n; i++) pair(r, i, &x[i], a);
done:
    kld_free(x);
    kld_free(p);
    return st;
}
