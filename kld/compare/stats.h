/* kld/compare/stats.h - quantiles, and what clusters say about a ratio: interval and p-values.
 * Floor 3; may include kld/base only.  Methods and their measured coverage: docs/statistics.md. */
#ifndef KLD_COMPARE_STATS_H
#define KLD_COMPARE_STATS_H
#include "kld/base/status.h"
#include "kld/compare/resample.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

enum {
    KLD_FEW_CLUSTERS = 12,  /* fewer: Student-t instead of the bootstrap */
    KLD_WARN_CLUSTERS = 30, /* fewer: an interval is reported with a warning */
};

/* v[n] ascending; -inf first, +inf last; NaN is not allowed.  room[n] is overwritten. */
void kld_sort(double *v, double *room, size_t n);

/* Quantile at fraction f of sorted values, linear between order statistics at f (n-1).
 * NaN for n = 0; +inf when an infinite value is reached. */
double kld_quantile(const double *sorted, size_t n, double f);

/* A ratio and its error on a scale where errors are symmetric enough. */
typedef struct kld_estimate {
    double mean;   /* NaN without data */
    double at, se; /* on the scale; se is NaN when method is "none" */
    double df;     /* clusters with data less groups with data, at least 1 */
    /* Of Student's t: df for PLAIN columns, else 2/(2/df + excess/clusters), for the variance of
     * values with so long a tail is known as badly as that of so few normal ones. */
    double df_t;
    kld_scale scale;  /* that was used: PLAIN where the mean has no value on its own */
    kld_scale bounds; /* the column's own: LOG is at least 0, SHARE in [0, 1] */
    size_t clusters;  /* with data */
    const double *t;  /* sorted replicates, borrowed; NULL for Student-t */
    size_t n_t;
    const char *method; /* "bootstrap-t", "student-t", "none"; static */
    const char *reason; /* why there is none, or NULL; static */
} kld_estimate;

/* Column col of s.  "bootstrap-t" with at least KLD_FEW_CLUSTERS clusters that have data and at
 * most one resample in 1000 without a finite t; r may be NULL, then never. */
kld_estimate kld_estimate_ratio(const kld_cluster_sums *s, size_t col, const kld_replicates *r);

typedef struct kld_interval {
    double lo, hi; /* NaN when there is none */
    const char *method, *reason;
} kld_interval;

/* Interval at a level, such as 0.95, by the estimate's method, and back from the scale:
 *   student-t    at -+ q se, q = the quantile of Student's t at (1+level)/2 with df_t
 *   bootstrap-t  [at - se max(q, T(1-a)), at + se max(q, -T(a))], T quantiles of the replicates,
 *                a = P(normal < t sqrt(n/(n-1))), n = df + 1, t = the quantile of Student's t at
 *                (1-level)/2 with df
 *
 * Beyond level 0.98, where few replicates are left, q grows in the proportion that T has to it at
 * 0.98. */
kld_interval kld_estimate_interval(const kld_estimate *e, double level);

/* Interval of the quantile at f of sorted values, after Woodruff (1952): `above` is the estimate of
 * the share of values above the quantile; its interval, moved so that it is around 1 - f, is read
 * off the sorted values.  The largest value bounds it: hi is +inf when that is reached. */
kld_interval kld_quantile_interval(const double *sorted, size_t n, double f,
                                   const kld_estimate *above, double level);

/* One-sided p-values of what contradicts "at most value" (small when the ratio is clearly above)
 * and "at least value"; each is below (1-level)/2 exactly when the interval at that level lies
 * above, or below, the value (up to interpolation between replicates).  NaN without an interval.
 * value is on the ratio's natural scale; -inf, +inf and a value outside the scale are allowed. */
double kld_p_above(const kld_estimate *e, double value);
double kld_p_below(const kld_estimate *e, double value);

KLD_EXTERN_C_END
#endif
