/* kld/compare/fdiv.h - f-divergences of two distributions known on some cells and sampled
 * on the rest.  Floor 3; may include kld/base only.  Pure: no I/O, no state, no allocation.
 *
 * p is the reference, q the candidate, r = q/p.  Every divergence here is
 *     D_f(p, q) = sum p f(q/p),  f convex, f(1) = 0,
 * and is computed from g(r) = f(r) - f'(1) (r - 1), which changes no sum over whole
 * distributions (sum of p (r - 1) is 0) but makes every single term >= 0: rounding of stored
 * log-probabilities then enters squared, and no value is ever negative. */
#ifndef KLD_COMPARE_FDIV_H
#define KLD_COMPARE_FDIV_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_div_kind {
    KLD_DIV_KL,      /* KL(p||q): f = -ln r.  +inf where q = 0 < p */
    KLD_DIV_REVERSE, /* KL(q||p): f = r ln r.  +inf where p = 0 < q */
    KLD_DIV_JS,      /* Jensen-Shannon, at most ln 2: f = (ln(2/(1+r)) + r ln(2r/(1+r))) / 2 */
    KLD_DIV_TV,      /* total variation, at most 1: f = |r - 1| / 2 */
    KLD_DIV_KINDS
} kld_div_kind;

/* A candidate's tail mass is a difference of rounded sums: below this it cannot be told from
 * rounding of the stored log-probabilities. */
#define KLD_MASS_EPS 1e-6
/* A reference tail this light cannot change a result that anyone prints. */
#define KLD_MASS_NONE 1e-12

/* What is known about one position.  Arrays are borrowed; natural logs; -inf is probability 0,
 * NaN is not allowed except in draws. */
typedef struct kld_cells {
    size_t n; /* tokens whose probability is known on both sides */
    const double *lp, *lq;
    double rest_p, rest_q; /* mass of everything else; both 0 when the n tokens are the whole
                              vocabulary.  rest_q may be below 0 by rounding */
    size_t m;              /* tokens drawn independently from p restricted to the rest; a draw
                              whose draw_lp is NaN is missing */
    const double *draw_lp, *draw_lq;
} kld_cells;

typedef struct kld_divergence {
    double bound;    /* nats (TV: none); the rest lumped into one token: <= the truth */
    double estimate; /* unbiased for the truth, >= bound; NaN when the rest matters and
                        there are no draws; +inf when q = 0 at a token with p > 0 (KL) */
    double variance; /* of estimate over the draws; 0 when exact; NaN with fewer than 2 draws */
    bool exact;      /* estimate is the truth up to rounding */
} kld_divergence;

/* rest_q of a candidate that was asked for its log-probabilities at the reference's n tokens:
 * rest_p + sum(p - q).  It equals 1 - sum q, but is exactly rest_p when the two agree. */
double kld_rest_mass(size_t n, const double *lp, const double *lq, double rest_p);

/* All four divergences at one position.
 *  bound     sum over the cells of p g(q/p), then the rest as one more cell.  A rest_q below
 *            KLD_MASS_EPS counts as min(KLD_MASS_EPS, rest_p): a mass that rounding can
 *            explain must not produce an infinite value.
 *  estimate  bound + rest_p * mean over draws of the Bregman remainder
 *            f(r_j) - f(r_0) - f'(r_0)(r_j - r_0), r_0 = rest_q/rest_p.  Because E[r_j] = r_0
 *            the linear part has mean 0 (a control variate), and convexity makes each
 *            remainder >= 0.
 *  exact     rest_p < KLD_MASS_NONE; for reverse KL also rest_q < KLD_MASS_EPS, as mass that
 *            q puts where p has none is only bounded.
 * Limits: p = 0 < q adds q (KL, the part of g that is linear), +inf (reverse), q ln2/2 (JS),
 * q/2 (TV). */
void kld_divergences(const kld_cells *c, kld_divergence out[KLD_DIV_KINDS]);

KLD_EXTERN_C_END
#endif
