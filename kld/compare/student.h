/* kld/compare/student.h - Student's t distribution.  Floor 3; pure functions. */
#ifndef KLD_COMPARE_STUDENT_H
#define KLD_COMPARE_STUDENT_H
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

/* P(T <= t) for df > 0 degrees of freedom; df INFINITY is the normal distribution.  Relative
 * error below 1e-12 in the smaller tail.  NaN when t is NaN. */
double kld_student_cdf(double t, double df);

/* The t with kld_student_cdf(t, df) = p, 0 < p < 1; -inf for p <= 0, +inf for p >= 1. */
double kld_student_quantile(double p, double df);

KLD_EXTERN_C_END
#endif
