/* kld/compare/stats.h - quantiles, and intervals that resample whole clusters.
 * Floor 3; may include kld/base only.  Results depend on the arguments alone, never on
 * threads. */
#ifndef KLD_COMPARE_STATS_H
#define KLD_COMPARE_STATS_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum {
    KLD_FEW_CLUSTERS = 8,     /* fewer: Student-t instead of the bootstrap */
    KLD_WARN_CLUSTERS = 30,   /* fewer: an interval is reported with a warning */
    KLD_STRATUM_CLUSTERS = 4, /* fewer in a stratum: drawn together with other such strata */
};

/* Ascending; +inf sorts last; NaN is not allowed. */
void kld_sort(double *v, size_t n);

/* Quantile at fraction f of sorted values, linear between order statistics at f (n-1).
 * NaN for n = 0; +inf when an infinite value is reached. */
double kld_quantile(const double *sorted, size_t n, double f);

/* Cluster sums: num[c*cols + k] and den[c*cols + k] for cluster c and ratio k; the mean of
 * ratio k is sum num / sum den.  Borrowed. */
typedef struct kld_cluster_sums {
    size_t clusters, cols;
    const uint32_t *stratum; /* [clusters] < strata */
    size_t strata;
    const double *num, *den;
} kld_cluster_sums;

/* Replicates out[k*resamples + b]: the mean of ratio k when the clusters of each stratum are
 * drawn anew with replacement, as many as it has.  Strata of fewer than KLD_STRATUM_CLUSTERS
 * clusters with data are drawn as one, with the smallest others when together they are still
 * too few.  All ratios share the draws of a resample,
 * so they are paired.  Draw j of resample b is a function of seed, b and j (Philox).  NaN
 * where the drawn denominators sum to 0.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_bootstrap(const kld_cluster_sums *s, size_t resamples, uint64_t seed,
                                       double *out, kld_err *err);

double kld_ratio_mean(const kld_cluster_sums *s, size_t col); /* NaN when den sums to 0 */
/* Mean over clusters of the clusters' own means; each counts once. */
double kld_cluster_mean(const kld_cluster_sums *s, size_t col);
/* Clusters with den > 0. */
size_t kld_cluster_count(const kld_cluster_sums *s, size_t col);
/* Standard error of the mean: sqrt(C/(C-1) sum (num_c - mean den_c)^2) / sum den over
 * clusters; NaN for fewer than 2 clusters. */
double kld_ratio_stderr(const kld_cluster_sums *s, size_t col);

typedef struct kld_interval {
    double lo, hi;      /* 95 %; NaN when there is none */
    const char *method; /* "bootstrap", "student-t", "none"; static */
    const char *reason; /* why there is none, or NULL; static */
} kld_interval;

typedef enum kld_scale {
    KLD_SCALE_PLAIN, /* any sign */
    KLD_SCALE_LOG,   /* positive: Student-t works on the logarithm, so lo > 0 */
    KLD_SCALE_SHARE  /* clamped to [0, 1] */
} kld_scale;

/* 95 % interval of a ratio mean.  With at least KLD_FEW_CLUSTERS clusters: 2.5 and 97.5 %
 * quantiles of the finite replicates[resamples].  With fewer: Student-t with C-1 degrees of
 * freedom on the clustered standard error (delta method on a log scale).  scratch
 * [resamples] is overwritten. */
kld_interval kld_mean_interval(const kld_cluster_sums *s, size_t col, kld_scale scale,
                               const double *replicates, size_t resamples, double *scratch);

/* The same for ln(mean of ratio b / mean of ratio a), and for mean b - mean a. */
typedef struct kld_paired {
    double ln_ratio, difference;
    kld_interval ln_ratio_ci, difference_ci;
} kld_paired;
kld_paired kld_paired_interval(const kld_cluster_sums *s, size_t a, size_t b, const double *rep_a,
                               const double *rep_b, size_t resamples, double *scratch);

/* What an interval [lo, hi] of ln(b/a) says about b, given margin m = ln(1 + margin):
 *   "practically equivalent"  inside (-m, m)
 *   "worse" / "better"        wholly above / below 0
 *   "not worse"               hi < m
 *   "inconclusive"            otherwise
 *   "unsupported"             there is no interval */
const char *kld_verdict(double lo, double hi, double margin);
/* The verdict on a pair; when a mean is 0 there is no ratio, and the interval of the
 * difference decides between worse, better and inconclusive. */
const char *kld_paired_verdict(const kld_paired *p, double margin);

KLD_EXTERN_C_END
#endif
