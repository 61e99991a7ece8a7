#include "kld/compare/stats.h"

#include "kld/base/num.h"
#include "kld/compare/student.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Bits of a double in an order that unsigned integers have, and back. */
static uint64_t key_of(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

/* By one byte of the key after another, least significant first. */
void kld_sort(double *v, double *room, size_t n) {
    enum { BYTES = 8, DIGITS = 256 };
    size_t count[BYTES][DIGITS] = {{0}};
    double *from = v, *to = room;
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < BYTES; b++) count[b][key_of(v[i]) >> 8 * b & 255]++;
    for (int b = 0; b < BYTES && n; b++) {
        if (count[b][key_of(v[0]) >> 8 * b & 255] == n) continue; /* all alike */
        for (size_t d = 0, at = 0; d < DIGITS; d++) {
            size_t here = count[b][d];
            count[b][d] = at;
            at += here;
        }
        for (size_t i = 0; i < n; i++) to[count[b][key_of(from[i]) >> 8 * b & 255]++] = from[i];
        double *other = from;
        from = to;
        to = other;
    }
    if (from != v) memcpy(v, from, n * sizeof *v);
}

double kld_quantile(const double *sorted, size_t n, double f) {
    if (n == 0) return NAN;
    double at = f * (double)(n - 1);
    size_t i = num_min((size_t)at, n - 1);
    double part = at - (double)i;
    if (part <= 0 || i + 1 == n) return sorted[i];
    /* Not the weighted sum: inf * 0 is NaN, and equal neighbours must give themselves. */
    return sorted[i] == sorted[i + 1] ? sorted[i] : sorted[i] + part * (sorted[i + 1] - sorted[i]);
}

static double degrees(const kld_cluster_sums *s, size_t col, size_t clusters) {
    size_t groups = 0;
    for (size_t g = 0; g < s->groups; g++) {
        bool any = false;
        for (size_t c = s->start[g]; c < s->start[g + 1] && !any; c++)
            any = s->den[c * s->cols + col] > 0;
        groups += any;
    }
    return clusters > groups + 1 ? (double)(clusters - groups) : 1;
}

kld_estimate kld_estimate_ratio(const kld_cluster_sums *s, size_t col, const kld_replicates *r) {
    kld_estimate e = {.mean = kld_ratio_mean(s, col),
                      .clusters = kld_cluster_count(s, col),
                      .bounds = s->scale[col],
                      .scale = kld_scale_used(s, col),
                      .se = NAN,
                      .method = "none"};
    e.at = kld_scale_to(e.scale, e.mean);
    if (e.clusters == 0) e.reason = "no positions";
    else if (e.clusters == 1) e.reason = "one cluster: its spread cannot be known";
    if (e.reason) return e;
    e.method = "student-t";
    kld_error error = kld_ratio_error(s, col);
    e.df = degrees(s, col, e.clusters);
    e.df_t = e.df;
    /* Long tails to both sides make t too wide rather than too narrow. */
    if (s->scale[col] != KLD_SCALE_PLAIN)
        e.df_t = 2 / (2 / e.df + error.excess / (double)e.clusters);
    e.se = error.se * kld_scale_slope(e.scale, e.mean);
    if (r && e.clusters >= KLD_FEW_CLUSTERS && r->n[col] >= r->resamples - r->resamples / 1000) {
        e.method = "bootstrap-t";
        e.t = r->t + col * r->resamples;
        e.n_t = r->n[col];
    }
    return e;
}

/* Resamples of n clusters spread too little, by (n-1)/n in the variance: the tail of the replicates
 * that corresponds to a tail of Student's t. */
static double widened(const kld_estimate *e) { return sqrt((e->df + 1) / e->df); }

/* Farther out than this there are too few replicates to ask. */
static const double OUTER = 0.01;

/* Distance in standard errors from the estimate to the end above or below that leaves `tail` out:
 * the farther of Student's t and the replicates. */
static double reach(const kld_estimate *e, double tail, bool above) {
    double q = -kld_student_quantile(tail, e->df_t), within = fmax(tail, OUTER);
    if (!e->t) return q;
    double at = within > tail ? -kld_student_quantile(within, e->df_t) : q;
    double a = kld_student_cdf(kld_student_quantile(within, e->df) * widened(e), INFINITY);
    double t = above ? -kld_quantile(e->t, e->n_t, a) : kld_quantile(e->t, e->n_t, 1 - a);
    return q * fmax(1, t / at);
}

static kld_interval around(const kld_estimate *e, double mean, double level) {
    kld_interval r = {.lo = NAN, .hi = NAN, .method = e->method, .reason = e->reason};
    if (isnan(e->se)) return r;
    r.lo = r.hi = mean;
    if (e->se == 0) return r;
    double at = kld_scale_to(e->scale, mean), tail = (1 - level) / 2;
    double up = reach(e, tail, true), down = reach(e, tail, false);
    r.lo = kld_scale_from(e->scale, at - e->se * down);
    r.hi = kld_scale_from(e->scale, at + e->se * up);
    if (e->bounds != KLD_SCALE_PLAIN) r.lo = fmax(0, r.lo);
    if (e->bounds == KLD_SCALE_SHARE) r.hi = fmin(1, r.hi);
    return r;
}

kld_interval kld_estimate_interval(const kld_estimate *e, double level) {
    return around(e, e->mean, level);
}

kld_interval kld_quantile_interval(const double *sorted, size_t n, double f,
                                   const kld_estimate *above, double level) {
    kld_interval share = around(above, 1 - f, level), r = share;
    if (isnan(share.lo)) return r;
    r.lo = kld_quantile(sorted, n, 1 - share.hi);
    r.hi = kld_quantile(sorted, n, 1 - share.lo);
    return r;
}

/* Share of replicates at or above t (or at or below), never 0: there is one more resample, the
 * data. */
static double beyond(const kld_estimate *e, double t, bool above) {
    size_t lo = 0, hi = e->n_t;
    while (lo < hi) { /* the first that is >= t, or > t */
        size_t mid = lo + (hi - lo) / 2;
        if (above ? e->t[mid] >= t : e->t[mid] > t) hi = mid;
        else lo = mid + 1;
    }
    size_t n = above ? e->n_t - lo : lo;
    return (double)(n + 1) / (double)(e->n_t + 1);
}

static double p_beyond(const kld_estimate *e, double value, bool above) {
    if (isnan(e->se)) return NAN;
    double at = kld_scale_to(e->scale, value);
    if (isnan(at)) at = value > 0 ? INFINITY : -INFINITY; /* outside the scale */
    if (e->se == 0) return (above ? e->at > at : e->at < at) ? 0 : 1;
    double t = (e->at - at) / e->se;
    double student = kld_student_cdf(above ? -t : t, e->df_t);
    if (!e->t || isinf(t)) return student;
    double outer = -kld_student_quantile(OUTER, e->df_t), end = reach(e, OUTER, !above);
    if (above ? t >= end : -t >= end)
        return kld_student_cdf((above ? -t : t) * outer / end, e->df_t);
    double normal = kld_student_quantile(beyond(e, t, above), INFINITY);
    return fmax(student, kld_student_cdf(normal / widened(e), e->df));
}

double kld_p_above(const kld_estimate *e, double value) { return p_beyond(e, value, true); }
double kld_p_below(const kld_estimate *e, double value) { return p_beyond(e, value, false); }
