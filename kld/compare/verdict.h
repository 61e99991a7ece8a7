/* kld/compare/verdict.h - tests of one candidate's mean against another's, and what they say.
 * Floor 3; may include kld/base only.  docs/statistics.md, "Verdicts". */
#ifndef KLD_COMPARE_VERDICT_H
#define KLD_COMPARE_VERDICT_H
#include "kld/compare/stats.h"

KLD_EXTERN_C_BEGIN

/* p-values; NaN where a test is not made. */
typedef struct kld_tests {
    double difference; /* two-sided: the means are equal */
    double equivalent; /* the larger of two one-sided: the change is outside the margin (TOST) */
    double not_worse;  /* one-sided: the change is at or above the margin */
} kld_tests;

/* Tests of a change, which is `none` where there is none, and within (low, high) where it is
 * practically none; without a margin low is NaN. */
kld_tests kld_tests_make(const kld_estimate *change, double none, double low, double high);

/* Holm's step-down adjustment: adjusted[i] = max over p[j] <= p[i] of (m - rank j) p[j], at most 1,
 * ranks from 0 in ascending order.  NaN stays NaN and does not count in m. */
void kld_holm(const double *p, size_t n, double *adjusted);

/* What tests (adjusted where several were made) say of a change above (`up`) or below none:
 *   "practically equivalent"  equivalent <= 0.05
 *   "worse" / "better"        difference <= 0.05, up or not
 *   "not worse"               not_worse <= 0.025
 *   "inconclusive"            otherwise
 *   "unsupported"             no test could be made
 * The first that holds. */
const char *kld_verdict(const kld_tests *t, bool up);

KLD_EXTERN_C_END
#endif
