#include "kld/compare/verdict.h"

#include <math.h>

kld_tests kld_tests_make(const kld_estimate *change, double none, double low, double high) {
    kld_tests t = {.difference = NAN, .equivalent = NAN, .not_worse = NAN};
    t.difference = fmin(1, 2 * fmin(kld_p_above(change, none), kld_p_below(change, none)));
    if (isnan(change->se)) t.difference = NAN; /* fmin leaves NaN out */
    if (isnan(low) || isnan(change->se)) return t;
    t.not_worse = kld_p_below(change, high);
    t.equivalent = fmax(kld_p_above(change, low), t.not_worse);
    return t;
}

void kld_holm(const double *p, size_t n, double *adjusted) {
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        adjusted[i] = NAN;
        left += isnan(p[i]) ? 0 : 1;
    }
    for (double reached = 0; left > 0; left--) {
        size_t least = n;
        for (size_t i = 0; i < n; i++)
            if (isnan(adjusted[i]) && !isnan(p[i]) && (least == n || p[i] < p[least])) least = i;
        reached = fmax(reached, fmin(1, (double)left * p[least]));
        adjusted[least] = reached;
    }
}

const char *kld_verdict(const kld_tests *t, bool up) {
    if (isnan(t->difference)) return "unsupported";
    if (t->equivalent <= 0.05) return "practically equivalent";
    if (t->difference <= 0.05) return up ? "worse" : "better";
    return t->not_worse <= 0.025 ? "not worse" : "inconclusive";
}
