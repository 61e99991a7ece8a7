#include "kld/compare/fdiv.h"

#include "kld/base/num.h"

#include <math.h>

/* One cell, with what more than one divergence needs computed once. */
struct cell {
    double p, q;
    double d;  /* ln(q/p) */
    double e;  /* q/p - 1; valid when wide is false */
    double l;  /* ln((1 + q/p)/2); valid when wide is false */
    bool wide; /* q/p is so large that e would lose p: formulas in p and q instead */
};

/* One draw and the point where the tangent touches: x = r_j/r_0. */
struct draw {
    double rj, r0;
    double slide0; /* ln(1 + r_0) */
    double t;      /* ln x; -inf when the candidate gives the token no probability */
    double e;      /* x - 1 */
};

struct fdiv {
    double (*remainder)(const struct draw *); /* Bregman remainder of g at r_0 */
    double (*slope)(double r);                /* g'(r) */
    double (*intercept)(double r);            /* g(r) - r g'(r) */
    double at_infinity;                       /* lim g(r)/r: the weight of q where p = 0 */
};

static const double LN2 = 0.69314718055994530942;
static const double WIDE = 30; /* exp(-30) is below the rounding of 1 */

/* p g(q/p) where q is not 0 and the cell not wide. */
static inline double kl_near(double p, double d, double e) { return p * (e - d); }
static inline double reverse_near(double p, double d, double e) { return p * ((1 + e) * d - e); }
static inline double js_near(double p, double d, double e, double l) {
    return 0.5 * p * ((1 + e) * (d - l) - l);
}
static inline double tv_of(double p, double q) { return 0.5 * fabs(q - p); }

static double kl_term(const struct cell *c) {
    if (c->q == 0) return INFINITY;
    return c->wide ? c->q - c->p - c->p * c->d : kl_near(c->p, c->d, c->e);
}
static double kl_remainder(const struct draw *s) { return s->rj == 0 ? INFINITY : s->e - s->t; }
static double kl_slope(double r) { return 1 - 1 / r; }
static double kl_intercept(double r) { return -log(r); }

static double reverse_term(const struct cell *c) {
    if (c->q == 0) return c->p;
    return c->wide ? c->q * c->d - c->q + c->p : reverse_near(c->p, c->d, c->e);
}
static double reverse_remainder(const struct draw *s) {
    return s->rj == 0 ? s->r0 : s->r0 * ((1 + s->e) * s->t - s->e);
}
static double reverse_slope(double r) { return log(r); }
static double reverse_intercept(double r) { return 1 - r; }

static double js_term(const struct cell *c) {
    if (c->q == 0) return 0.5 * LN2 * c->p;
    if (c->wide) return 0.5 * (c->q * LN2 - c->p * (c->d - LN2) - c->p);
    return js_near(c->p, c->d, c->e, c->l);
}
static double js_remainder(const struct draw *s) {
    double slide = log1p(s->rj) - s->slide0;
    return 0.5 * ((s->rj == 0 ? 0 : s->rj * s->t) - (1 + s->rj) * slide);
}
static double js_slope(double r) { return 0.5 * (LN2 - log1p(1 / r)); }
static double js_intercept(double r) { return 0.5 * (LN2 - log1p(r)); }

static double tv_remainder(const struct draw *s) {
    if (s->r0 > 1) return fmax(0, 1 - s->rj);
    if (s->r0 < 1) return fmax(0, s->rj - 1);
    return 0.5 * fabs(s->rj - 1);
}

static double tv_slope(double r) { return r > 1 ? 0.5 : r < 1 ? -0.5 : 0; }
static double tv_intercept(double r) { return -tv_slope(r); }

static const struct fdiv FDIV[KLD_DIV_KINDS] = {
    [KLD_DIV_KL] = {kl_remainder, kl_slope, kl_intercept, 1},
    [KLD_DIV_REVERSE] = {reverse_remainder, reverse_slope, reverse_intercept, INFINITY},
    [KLD_DIV_JS] = {js_remainder, js_slope, js_intercept, 0.5 * 0.69314718055994530942},
    [KLD_DIV_TV] = {tv_remainder, tv_slope, tv_intercept, 0.5},
};

static double at_least_0(double v) { return v > 0 ? v : 0; }

/* e and l of d, from or into what is remembered. */
static void find_ratio(double d, kld_ratio *ratios, struct cell *c) {
    double place = d * 0x1p13;
    kld_ratio *r = NULL;
    if (ratios && fabs(place) < (double)KLD_RATIOS / 2 && (double)(int32_t)place == place)
        r = &ratios[(int32_t)place + KLD_RATIOS / 2];
    if (r && r->e != 0) {
        c->e = r->e;
        c->l = r->l;
        return;
    }
    c->e = expm1(d);
    c->l = log1p(0.5 * c->e);
    if (r) *r = (kld_ratio){c->e, c->l};
}

/* What one cell adds to each divergence.  Terms are >= 0 by convexity; rounding may leave one a
 * hair below. */
static void cell_terms(double p, double q, double d, double term[KLD_DIV_KINDS]) {
    struct cell c = {.p = p, .q = q, .d = d, .wide = d > WIDE};
    for (int k = 0; k < KLD_DIV_KINDS; k++) term[k] = p == 0 && q > 0 ? q * FDIV[k].at_infinity : 0;
    if (p == 0 || d == 0) return;
    if (!c.wide) find_ratio(d, NULL, &c);
    term[KLD_DIV_KL] = at_least_0(kl_term(&c));
    term[KLD_DIV_REVERSE] = at_least_0(reverse_term(&c));
    term[KLD_DIV_JS] = at_least_0(js_term(&c));
    term[KLD_DIV_TV] = tv_of(p, q);
}

static void add_cell(double p, double q, double d, kld_divergence out[KLD_DIV_KINDS]) {
    double term[KLD_DIV_KINDS];
    cell_terms(p, q, d, term);
    for (int k = 0; k < KLD_DIV_KINDS; k++) out[k].bound += term[k];
}

enum { MANY = 64 };

/* The same for up to MANY cells, most of which are neither wide nor without a probability: loops
 * over arrays, which compilers make vectors of, then sums in the order of cells. */
static void add_cells(const kld_cells *c, size_t from, size_t n,
                      kld_divergence out[KLD_DIV_KINDS]) {
    const double *p = c->p + from, *q = c->q + from;
    double d[MANY], e[MANY], l[MANY], t[KLD_DIV_KINDS][MANY];
    size_t odd[MANY], odds = 0;
    for (size_t i = 0; i < n; i++) {
        struct cell x = {0};
        d[i] = c->lp[from + i] == c->lq[from + i] ? 0 : c->lq[from + i] - c->lp[from + i];
        if (p[i] == 0 || q[i] == 0 || d[i] > WIDE) odd[odds++] = i;
        else if (d[i] != 0) find_ratio(d[i], c->ratios, &x);
        e[i] = x.e;
        l[i] = x.l;
    }
    for (size_t i = 0; i < n; i++) {
        t[KLD_DIV_KL][i] = at_least_0(kl_near(p[i], d[i], e[i]));
        t[KLD_DIV_REVERSE][i] = at_least_0(reverse_near(p[i], d[i], e[i]));
        t[KLD_DIV_JS][i] = at_least_0(js_near(p[i], d[i], e[i], l[i]));
        t[KLD_DIV_TV][i] = tv_of(p[i], q[i]);
    }
    for (size_t k = 0; k < odds; k++) {
        double term[KLD_DIV_KINDS];
        cell_terms(p[odd[k]], q[odd[k]], d[odd[k]], term);
        for (int v = 0; v < KLD_DIV_KINDS; v++) t[v][odd[k]] = term[v];
    }
    for (int v = 0; v < KLD_DIV_KINDS; v++) {
        double sum = out[v].bound;
        for (size_t i = 0; i < n; i++) sum += t[v][i];
        out[v].bound = sum;
    }
}

/* The rest of a position: extras that would take more than cap, and what is left. */
struct rest {
    size_t capped;
    double p, q, r0;
    double ln_r0, slide0;        /* ln r_0, ln(1 + r_0) */
    double ln_guess;             /* ln of a guess at the p of capped extras */
    double known[KLD_DIV_KINDS]; /* what the slopes add to the estimate beyond the bound */
};

/* Take extras out while their share of p, in proportion to q, is above cap; add all to out. */
static struct rest add_rest(const kld_cells *c, kld_divergence out[KLD_DIV_KINDS]) {
    struct rest r = {.p = c->rest_p, .q = fmax(c->rest_q, fmin(KLD_MASS_EPS, c->rest_p))};
    for (; r.capped < c->n_extra; r.capped++) {
        double q = exp(c->extra_lq[r.capped]);
        if (r.p <= c->cap || q * r.p <= c->cap * r.q) break;
        r.p -= c->cap;
        r.q -= q;
    }
    r.q = fmax(r.q, fmin(KLD_MASS_EPS, r.p));
    r.r0 = r.q / r.p;
    r.ln_r0 = log(r.r0);
    r.slide0 = log1p(r.r0);
    add_cell(r.p, r.q, r.p == r.q ? 0 : log(r.q / r.p), out);
    if (r.capped == 0) return r;
    double ln_cap = log(c->cap);
    r.ln_guess = ln_cap - LN2;
    for (size_t i = 0; i < r.capped; i++) {
        double q = exp(c->extra_lq[i]);
        double t = exp(c->extra_lq[i] - r.ln_guess);
        double lump[KLD_DIV_KINDS];
        cell_terms(c->cap, q, c->extra_lq[i] - ln_cap, lump);
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            out[k].bound += lump[k];
            r.known[k] += q * FDIV[k].slope(t) - lump[k] + c->cap * FDIV[k].intercept(r.r0);
        }
    }
    return r;
}

/* Value of one draw for each divergence; false when the draw is missing. */
static bool draw_values(const kld_cells *c, const struct rest *r, size_t j,
                        double v[KLD_DIV_KINDS]) {
    double t = c->draw_lq[j] - c->draw_lp[j];
    if (isnan(t) || c->draw_lp[j] == -INFINITY) return false;
    uint32_t extra = c->draw_extra ? c->draw_extra[j] : KLD_NOT_EXTRA;
    bool capped = extra < r->capped;
    double at = capped ? c->extra_lq[extra] - r->ln_guess : r->ln_r0;
    struct draw s = {.rj = exp(t), .t = t - at, .e = expm1(t - at)};
    s.r0 = capped ? exp(at) : r->r0;
    s.slide0 = capped ? log1p(s.r0) : r->slide0;
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        v[k] = fmax(0, FDIV[k].remainder(&s)); /* rounding may leave it a hair below */
        if (capped) v[k] += FDIV[k].intercept(s.r0) - FDIV[k].intercept(r->r0);
    }
    return true;
}

/* Means of the draws' values and the variances of these means (Welford). */
static void sample(const kld_cells *c, const struct rest *r, kld_divergence out[KLD_DIV_KINDS]) {
    double mean[KLD_DIV_KINDS] = {0}, ss[KLD_DIV_KINDS] = {0};
    double n = 0;
    for (size_t j = 0; j < c->m; j++) {
        double v[KLD_DIV_KINDS];
        if (!draw_values(c, r, j, v)) continue;
        n++;
        for (int k = 0; k < KLD_DIV_KINDS; k++) {
            double step = v[k] - mean[k];
            mean[k] += step / n;
            ss[k] += step * (v[k] - mean[k]);
        }
    }
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        kld_divergence *o = &out[k];
        bool finite = isfinite(mean[k]);
        o->estimate = n == 0   ? NAN
                      : finite ? o->bound + r->known[k] + c->rest_p * mean[k]
                               : INFINITY;
        o->variance = n < 2 || !finite ? NAN : c->rest_p * c->rest_p * ss[k] / (n - 1) / n;
    }
}

double kld_rest_mass(size_t n, const double *p, const double *q, double rest_p) {
    double sum = 0, lost = 0; /* Neumaier: the differences cancel */
    for (size_t i = 0; i < n; i++) {
        double x = p[i] - q[i], s = sum + x;
        lost += fabs(sum) >= fabs(x) ? (sum - s) + x : (x - s) + sum;
        sum = s;
    }
    return rest_p + (sum + lost);
}

void kld_divergences(const kld_cells *c, kld_divergence out[KLD_DIV_KINDS]) {
    for (int k = 0; k < KLD_DIV_KINDS; k++) out[k] = (kld_divergence){0};
    for (size_t i = 0; i < c->n; i += MANY) add_cells(c, i, num_min(MANY, c->n - i), out);
    double rp = c->rest_p, rq = c->rest_q;
    struct rest rest = {0};
    if (rp > 0) rest = add_rest(c, out);
    else if (rq > KLD_MASS_EPS) add_cell(0, rq, INFINITY, out);
    if (rp >= KLD_MASS_NONE) {
        sample(c, &rest, out);
        return;
    }
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        out[k].estimate = out[k].bound;
        out[k].exact = k != KLD_DIV_REVERSE || fmax(rq, fmin(KLD_MASS_EPS, rp)) < KLD_MASS_EPS;
    }
}

double kld_divergence_limit(kld_div_kind kind) {
    return kind == KLD_DIV_JS ? LN2 : kind == KLD_DIV_TV ? 1 : INFINITY;
}
