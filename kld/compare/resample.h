/* kld/compare/resample.h - cluster sums, and resamples of whole clusters within strata.
 * Floor 3; may include kld/base only.  Results depend on the arguments alone, never on threads
 * or on the width of the machine's vectors. */
#ifndef KLD_COMPARE_RESAMPLE_H
#define KLD_COMPARE_RESAMPLE_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum {
    KLD_STRATUM_CLUSTERS = 4, /* fewer in a stratum: drawn together with other such strata */
};

/* Where a ratio's errors are treated as those of a mean: m itself, ln m, or ln(m/(1-m)). */
typedef enum kld_scale {
    KLD_SCALE_PLAIN, /* any sign */
    KLD_SCALE_LOG,   /* at least 0 */
    KLD_SCALE_SHARE  /* in [0, 1] */
} kld_scale;

/* m on its scale, and the derivative there; not finite at 0 (LOG, SHARE) and at 1 (SHARE). */
double kld_scale_to(kld_scale scale, double m);
double kld_scale_slope(kld_scale scale, double m);
double kld_scale_from(kld_scale scale, double at);

/* The clusters that are drawn, strata one after another: row r is cluster order[r], and rows
 * start[g] .. start[g+1]-1 are drawn among themselves. */
typedef struct kld_strata {
    size_t clusters, groups;
    size_t *order, *start; /* owned [clusters], [groups + 1] */
} kld_strata;

/* Order the clusters c with kept[c].  Strata of fewer than KLD_STRATUM_CLUSTERS of them are drawn
 * as one group, with the smallest others when together they are still too few.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_strata_order(kld_strata *s, const uint32_t *stratum, size_t strata,
                                          const bool *kept, size_t clusters, kld_err *err);
void kld_strata_free(kld_strata *s);

/* Sums of each cluster, rows in the order above: ratio k is sum num[r*cols + k] / sum
 * den[r*cols + k].  Borrowed. */
typedef struct kld_cluster_sums {
    size_t clusters, cols, groups;
    const size_t *start;    /* [groups + 1] */
    const kld_scale *scale; /* [cols] */
    const double *num, *den;
} kld_cluster_sums;

double kld_ratio_mean(const kld_cluster_sums *s, size_t col); /* NaN unless den sums above 0 */
/* Mean over clusters of the clusters' own ratios; each counts once. */
double kld_cluster_mean(const kld_cluster_sums *s, size_t col);
/* Clusters with den > 0. */
size_t kld_cluster_count(const kld_cluster_sums *s, size_t col);
/* Of the ratio m by linearization, with u = num - m den less its mean in the group:
 *   se      sqrt(sum over groups of n/(n-1) sum u^2) / sum den, n clusters in the group; NaN when
 *           every group has one
 *   excess  kurtosis of u above that of a normal distribution, C sum u^4 / (sum u^2)^2 - 3, at
 *           least 0 */
typedef struct kld_error {
    double se, excess;
} kld_error;
kld_error kld_ratio_error(const kld_cluster_sums *s, size_t col);
/* PLAIN for a ratio that has no value on its own scale, else that. */
kld_scale kld_scale_used(const kld_cluster_sums *s, size_t col);

/* Studentized replicates: t[k*resamples ..] has n[k] finite ones of column k, ascending. */
typedef struct kld_replicates {
    size_t resamples;
    double *t; /* owned, [cols][resamples] */
    size_t *n; /* owned, [cols] */
} kld_replicates;

/* In each resample the clusters of every group are drawn anew with replacement, as many as it has;
 * t = (ratio of the resample - ratio) / standard error of the resample, both on the scale of the
 * column (kld_scale_used).  All columns share the draws.  Draw j of resample b is a function of
 * seed, b and j (Philox).  A resample without a finite t, such as one in which no cluster differs
 * from another, is left out.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_bootstrap(kld_replicates *r, const kld_cluster_sums *s,
                                       size_t resamples, uint64_t seed, kld_err *err);
void kld_replicates_free(kld_replicates *r);

KLD_EXTERN_C_END
#endif
