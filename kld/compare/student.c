#include "kld/compare/student.h"

#include <math.h>

/* Regularized incomplete beta I_x(a, b) for x < (a+1)/(a+b+2): the continued fraction of NIST DLMF
 * 8.17.22, from the front with Lentz's recurrences. */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double f = d;
    for (int m = 1; m < 1000; m++) {
        double step = 1;
        for (int odd = 0; odd < 2; odd++) {
            double k = m, up = a + 2 * k;
            double t = odd ? -(a + k) * (a + b + k) * x / (up * (up + 1))
                           : k * (b - k) * x / ((up - 1) * up);
            d = 1 + t * d;
            c = 1 + t / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = fabs(c) < tiny ? tiny : c;
            step = c * d;
            f *= step;
        }
        if (fabs(step - 1) < 1e-15) break;
    }
    double front = lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x);
    return exp(front) * f / a;
}

static double beta(double a, double b, double x) {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    return x < (a + 1) / (a + b + 2) ? beta_fraction(a, b, x) : 1 - beta_fraction(b, a, 1 - x);
}

double kld_student_cdf(double t, double df) {
    if (isinf(df)) return 0.5 * erfc(-t / sqrt(2));
    if (isnan(t)) return NAN;
    double x = df / (df + t * t), tail = 0.5 * beta(df / 2, 0.5, x);
    return t < 0 ? tail : 1 - tail;
}

double kld_student_quantile(double p, double df) {
    if (p <= 0) return -INFINITY;
    if (p >= 1) return INFINITY;
    if (p > 0.5) return -kld_student_quantile(1 - p, df);
    double lo = -1, hi = 0;
    while (kld_student_cdf(lo, df) > p && lo > -1e300) lo *= 2;
    for (int i = 0; i < 100; i++) {
        double mid = 0.5 * (lo + hi);
        if (mid <= lo || mid >= hi) break;
        if (kld_student_cdf(mid, df) < p) lo = mid;
        else hi = mid;
    }
    return hi;
}
