#include "kld/compare/fdiv.h"

#include <math.h>

/* One cell, with what more than one divergence needs computed once. */
struct cell {
    double p, q;
    double d;  /* ln(q/p) */
    double e;  /* q/p - 1; valid when wide is false */
    double l;  /* ln((1 + q/p)/2); valid when wide is false */
    bool wide; /* q/p is so large that e would lose p: formulas in p and q instead */
};

/* One draw against the lump: x = r_j/r_0. */
struct draw {
    double rj, r0;
    double t; /* ln x; -inf when the candidate gives the token no probability */
    double e; /* x - 1 */
};

struct fdiv {
    double (*term)(const struct cell *);      /* p g(q/p), p > 0 */
    double (*remainder)(const struct draw *); /* Bregman remainder of f at r_0 */
    double at_infinity;                       /* lim g(r)/r: the weight of q where p = 0 */
};

static const double LN2 = 0.69314718055994530942;
static const double WIDE = 30; /* exp(-30) is below the rounding of 1 */

static double kl_term(const struct cell *c) {
    if (c->q == 0) return INFINITY;
    return c->wide ? c->q - c->p - c->p * c->d : c->p * (c->e - c->d);
}
static double kl_remainder(const struct draw *s) { return s->rj == 0 ? INFINITY : s->e - s->t; }

static double reverse_term(const struct cell *c) {
    if (c->q == 0) return c->p;
    return c->wide ? c->q * c->d - c->q + c->p : c->p * ((1 + c->e) * c->d - c->e);
}
static double reverse_remainder(const struct draw *s) {
    return s->rj == 0 ? s->r0 : s->r0 * ((1 + s->e) * s->t - s->e);
}

static double js_term(const struct cell *c) {
    if (c->q == 0) return 0.5 * LN2 * c->p;
    if (c->wide) return 0.5 * (c->q * LN2 - c->p * (c->d - LN2) - c->p);
    return 0.5 * c->p * ((1 + c->e) * (c->d - c->l) - c->l);
}
static double js_remainder(const struct draw *s) {
    double slide = log1p(s->rj) - log1p(s->r0);
    return 0.5 * ((s->rj == 0 ? 0 : s->rj * s->t) - (1 + s->rj) * slide);
}

static double tv_term(const struct cell *c) { return 0.5 * fabs(c->q - c->p); }
static double tv_remainder(const struct draw *s) {
    if (s->r0 > 1) return fmax(0, 1 - s->rj);
    if (s->r0 < 1) return fmax(0, s->rj - 1);
    return 0.5 * fabs(s->rj - 1);
}

static const struct fdiv FDIV[KLD_DIV_KINDS] = {
    [KLD_DIV_KL] = {kl_term, kl_remainder, 1},
    [KLD_DIV_REVERSE] = {reverse_term, reverse_remainder, INFINITY},
    [KLD_DIV_JS] = {js_term, js_remainder, 0.5 * 0.69314718055994530942},
    [KLD_DIV_TV] = {tv_term, tv_remainder, 0.5},
};

static void add_cell(double p, double q, double d, kld_divergence out[KLD_DIV_KINDS]) {
    if (p == 0) {
        if (q > 0)
            for (int k = 0; k < KLD_DIV_KINDS; k++) out[k].bound += q * FDIV[k].at_infinity;
        return;
    }
    if (d == 0) return;
    struct cell c = {.p = p, .q = q, .d = d, .wide = d > WIDE};
    if (!c.wide) {
        c.e = expm1(d);
        c.l = log1p(0.5 * c.e);
    }
    /* Each term is >= 0 by convexity; rounding may leave it a hair below. */
    for (int k = 0; k < KLD_DIV_KINDS; k++) out[k].bound += fmax(0, FDIV[k].term(&c));
}

/* Mean and variance of the mean of the remainders; false without usable draws. */
static bool sample(const kld_cells *c, const struct fdiv *f, double r0, double *mean,
                   double *variance) {
    double sum = 0, ss = 0;
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (size_t j = 0; j < c->m; j++) {
            double t = c->draw_lq[j] - c->draw_lp[j];
            if (isnan(t)) continue;
            struct draw s = {.rj = exp(t), .r0 = r0, .t = t - log(r0)};
            s.e = expm1(s.t);
            double v = fmax(0, f->remainder(&s));
            n++;
            if (pass == 0) sum += v;
            else ss += (v - *mean) * (v - *mean);
        }
        if (n == 0) return false;
        *mean = sum / (double)n;
    }
    *variance = n < 2 || isinf(*mean) ? NAN : ss / (double)(n - 1) / (double)n;
    return true;
}

double kld_rest_mass(size_t n, const double *lp, const double *lq, double rest_p) {
    double sum = 0, lost = 0; /* Neumaier: the differences cancel */
    for (size_t i = 0; i < n; i++) {
        if (lp[i] == lq[i]) continue;
        double x = exp(lp[i]) - exp(lq[i]), s = sum + x;
        lost += fabs(sum) >= fabs(x) ? (sum - s) + x : (x - s) + sum;
        sum = s;
    }
    return rest_p + (sum + lost);
}

void kld_divergences(const kld_cells *c, kld_divergence out[KLD_DIV_KINDS]) {
    for (int k = 0; k < KLD_DIV_KINDS; k++) out[k] = (kld_divergence){0};
    for (size_t i = 0; i < c->n; i++) {
        double d = c->lp[i] == c->lq[i] ? 0 : c->lq[i] - c->lp[i];
        add_cell(exp(c->lp[i]), exp(c->lq[i]), d, out);
    }
    double rp = c->rest_p, rq = c->rest_q;
    if (rp > 0) {
        rq = fmax(rq, fmin(KLD_MASS_EPS, rp));
        add_cell(rp, rq, rp == rq ? 0 : log(rq / rp), out);
    } else if (rq > KLD_MASS_EPS) {
        add_cell(0, rq, INFINITY, out);
    }
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        kld_divergence *o = &out[k];
        o->estimate = o->bound;
        if (rp < KLD_MASS_NONE) {
            o->exact = k != KLD_DIV_REVERSE || rq < KLD_MASS_EPS;
            continue;
        }
        double mean = 0;
        if (!sample(c, &FDIV[k], rq / rp, &mean, &o->variance)) {
            o->estimate = o->variance = NAN;
            continue;
        }
        o->estimate += rp * mean;
        o->variance *= rp * rp;
    }
}
