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
#include <stdint.h>

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

/* e^d - 1 and ln((1 + e^d)/2), remembered for differences d that are multiples of 2^-13 and below 2
 * in size: those of stored log-probabilities, of which most are equal to one met before. */
typedef struct kld_ratio {
    double e, l; /* e = 0: not yet known */
} kld_ratio;
enum { KLD_RATIOS = 1 << 15 };

/* What is known about one position.  Arrays are borrowed; natural logs; -inf is probability 0,
 * NaN is not allowed except in draws. */
typedef struct kld_cells {
    size_t n; /* tokens whose probability is known on both sides */
    const double *lp, *lq;
    const double *p, *q; /* [n] exp of lp and lq */
    kld_ratio *ratios;   /* [KLD_RATIOS] zeroed at first, kept from one position to the next by one
                            thread; NULL = none.  The values are the same with and without */
    double rest_p, rest_q; /* mass of everything else; both 0 when the n tokens are the whole
                              vocabulary.  rest_q may be below 0 by rounding */
    /* Tokens of the rest that only the candidate lists. */
    size_t n_extra;
    const double *extra_lq; /* [n_extra] descending */
    double cap;             /* no extra has a larger p; > 0 when n_extra > 0 */

    size_t m; /* tokens drawn independently from p restricted to the rest; a draw whose
                 draw_lp is NaN or -inf (nothing draws a token of probability 0) is missing */
    const double *draw_lp, *draw_lq;
    const uint32_t *draw_extra; /* [m] which extra a draw is, or KLD_NOT_EXTRA; NULL = none is */
} kld_cells;

#define KLD_NOT_EXTRA UINT32_MAX

typedef struct kld_divergence {
    double bound;    /* nats (TV: none); at most the truth */
    double estimate; /* unbiased for the truth; NaN when the rest matters and there are no
                        draws; +inf when q = 0 at a token with p > 0 (KL) */
    double variance; /* of estimate over the draws; 0 when exact; NaN with fewer than 2 draws */
    bool exact;      /* estimate is the truth up to rounding */
} kld_divergence;

/* rest_q of a candidate that was asked for its probabilities at the reference's n tokens:
 * rest_p + sum(p - q).  It equals 1 - sum q, but is exactly rest_p when the two agree. */
double kld_rest_mass(size_t n, const double *p, const double *q, double rest_p);

/* All four divergences at one position.
 *  bound     the smallest sum of p g(q/p) over all p that fit: the cells, then the rest.  For
 *            any convex f the rest is smallest when its p is spread in proportion to q, but no
 *            extra may get more than cap: one whose share would be larger gets cap and a
 *            cell of its own, and what is left is one cell with ratio r_0.  A mass rest_q below
 *            KLD_MASS_EPS counts as min(KLD_MASS_EPS, rest_p): what rounding can explain
 *            must not produce an infinite value.
 *  estimate  for any slopes a_v,  sum_rest p g(r) = sum_rest a_v q_v + sum_rest p (g(r) - a_v r),
 *            where the first sum is known and the second is rest_p times a mean over draws.
 *            Slope g'(r_0) leaves the Bregman remainder of g at r_0, which is >= 0 and small
 *            where r is near r_0.  Capped extras have r far above: they take the slope at a
 *            guess, q_v / (cap/2), which costs variance when it is off but no bias.  Without
 *            capped extras the estimate is never below the bound.
 *  exact     rest_p < KLD_MASS_NONE; for reverse KL also rest_q < KLD_MASS_EPS, as mass that
 *            q puts where p has none is only bounded.
 * Limits: p = 0 < q adds q (KL, the part of g that is linear), +inf (reverse), q ln2/2 (JS),
 * q/2 (TV). */
void kld_divergences(const kld_cells *c, kld_divergence out[KLD_DIV_KINDS]);

/* Largest value a divergence can take: ln 2 (JS), 1 (TV), else INFINITY. */
double kld_divergence_limit(kld_div_kind kind);

KLD_EXTERN_C_END
#endif
