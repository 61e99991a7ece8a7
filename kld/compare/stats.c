#include "kld/compare/stats.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/philox.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void kld_sort(double *v, size_t n) {
    if (n) qsort(v, n, sizeof *v, ascending);
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

/* Clusters of each stratum, consecutive: members[start[h] .. start[h+1]). */
struct strata {
    size_t n;
    size_t *start, *members;
};

static bool has_data(const kld_cluster_sums *s, size_t c) {
    for (size_t k = 0; k < s->cols; k++)
        if (s->den[c * s->cols + k] > 0) return true;
    return false;
}

/* into[h]: the stratum that h is drawn with.  A single cluster drawn from a stratum of one is
 * always itself, and few clusters spread too little (by (n-1)/n in the variance): without
 * pooling, a suite with a stratum a document would have intervals of no width at all. */
static void pool_small(const size_t *count, size_t n, size_t *into) {
    size_t pool = SIZE_MAX, pooled = 0;
    for (size_t h = 0; h < n; h++) {
        into[h] = h;
        if (count[h] >= KLD_STRATUM_CLUSTERS || count[h] == 0) continue;
        if (pool == SIZE_MAX) pool = h;
        into[h] = pool;
        pooled += count[h];
    }
    while (pooled > 0 && pooled < KLD_STRATUM_CLUSTERS) {
        size_t least = SIZE_MAX;
        for (size_t h = 0; h < n; h++)
            if (count[h] >= KLD_STRATUM_CLUSTERS && into[h] == h &&
                (least == SIZE_MAX || count[h] < count[least]))
                least = h;
        if (least == SIZE_MAX) return;
        into[least] = pool;
        pooled += count[least];
    }
}

static kld_status group(const kld_cluster_sums *s, struct strata *g, kld_err *err) {
    size_t *count = NULL, *into = NULL;
    *g = (struct strata){.n = s->strata};
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&count, s->strata, err));
    TRY_TO(done, NEW_ARRAY(&into, s->strata, err));
    TRY_TO(done, NEW_ARRAY(&g->start, s->strata + 2, err));
    TRY_TO(done, NEW_ARRAY(&g->members, s->clusters, err));
    for (size_t c = 0; c < s->clusters; c++) count[s->stratum[c]] += has_data(s, c);
    pool_small(count, s->strata, into);
    for (size_t c = 0; c < s->clusters; c++) g->start[into[s->stratum[c]] + 2]++;
    for (size_t h = 2; h < s->strata + 2; h++) g->start[h] += g->start[h - 1];
    for (size_t c = 0; c < s->clusters; c++) g->members[g->start[into[s->stratum[c]] + 1]++] = c;
done:
    kld_free(into);
    kld_free(count);
    return st;
}

/* One resample into sums[2*cols]: numerators, then denominators, added in order of draws. */
static void resample(const kld_cluster_sums *s, const struct strata *g, uint64_t seed, size_t b,
                     double *sums) {
    double *restrict num = sums, *restrict den = sums + s->cols;
    for (size_t k = 0; k < 2 * s->cols; k++) sums[k] = 0;
    kld_philox_block bits = {{0}};
    size_t draw = 0;
    for (size_t h = 0; h < g->n; h++) {
        size_t n = g->start[h + 1] - g->start[h];
        for (size_t j = 0; j < n; j++, draw++) {
            if (draw % 4 == 0) bits = kld_philox(seed, b, draw / 4);
            size_t pick = (size_t)((uint64_t)bits.v[draw % 4] * n >> 32);
            size_t c = g->members[g->start[h] + pick];
            const double *x = s->num + c * s->cols, *y = s->den + c * s->cols;
            for (size_t k = 0; k < s->cols; k++) {
                num[k] += x[k];
                den[k] += y[k];
            }
        }
    }
}

kld_status kld_bootstrap(const kld_cluster_sums *s, size_t resamples, uint64_t seed, double *out,
                         kld_err *err) {
    struct strata g = {0};
    kld_status st = group(s, &g, err);
    bool failed = false;
    if (st == KLD_OK) {
#pragma omp parallel
        {
            double *sums = NULL;
            bool ok = NEW_ARRAY(&sums, 2 * s->cols, NULL) == KLD_OK;
            if (!ok) {
#pragma omp atomic write
                failed = true;
            }
#pragma omp for schedule(static)
            for (size_t b = 0; b < resamples; b++) {
                if (!ok) continue;
                resample(s, &g, seed, b, sums);
                for (size_t k = 0; k < s->cols; k++) {
                    double den = sums[s->cols + k];
                    out[k * resamples + b] = den > 0 ? sums[k] / den : NAN;
                }
            }
            kld_free(sums);
        }
        if (failed) st = kld_fail(err, KLD_E_NOMEM, "out of memory in the bootstrap");
    }
    kld_free(g.members);
    kld_free(g.start);
    return st;
}

static double total(const double *v, const kld_cluster_sums *s, size_t col) {
    double sum = 0;
    for (size_t c = 0; c < s->clusters; c++) sum += v[c * s->cols + col];
    return sum;
}

double kld_ratio_mean(const kld_cluster_sums *s, size_t col) {
    double den = total(s->den, s, col);
    return den > 0 ? total(s->num, s, col) / den : NAN;
}

size_t kld_cluster_count(const kld_cluster_sums *s, size_t col) {
    size_t n = 0;
    for (size_t c = 0; c < s->clusters; c++) n += s->den[c * s->cols + col] > 0;
    return n;
}

double kld_cluster_mean(const kld_cluster_sums *s, size_t col) {
    double sum = 0;
    size_t n = kld_cluster_count(s, col);
    for (size_t c = 0; c < s->clusters; c++) {
        double den = s->den[c * s->cols + col];
        if (den > 0) sum += s->num[c * s->cols + col] / den;
    }
    return n ? sum / (double)n : NAN;
}

/* Standard error of wa * mean a + wb * mean b by linearization; b may equal a with wb = 0. */
static double linear_stderr(const kld_cluster_sums *s, size_t a, double wa, size_t b, double wb) {
    double ma = kld_ratio_mean(s, a), mb = kld_ratio_mean(s, b);
    double na = total(s->den, s, a), nb = total(s->den, s, b), ss = 0;
    size_t n = kld_cluster_count(s, a);
    if (n < 2) return NAN;
    for (size_t c = 0; c < s->clusters; c++) {
        const double *x = s->num + c * s->cols, *y = s->den + c * s->cols;
        double u = wa * (x[a] - ma * y[a]) / na;
        if (wb != 0) u += wb * (x[b] - mb * y[b]) / nb;
        ss += u * u;
    }
    return sqrt(ss * (double)n / (double)(n - 1));
}

double kld_ratio_stderr(const kld_cluster_sums *s, size_t col) {
    return linear_stderr(s, col, 1, col, 0);
}

/* 97.5 % quantile of Student's t for 1 .. KLD_FEW_CLUSTERS-2 degrees of freedom. */
static double student_t(size_t df) {
    static const double T[KLD_FEW_CLUSTERS - 1] = {NAN,        12.70620474, 4.30265273, 3.18244631,
                                                   2.77644511, 2.57058184,  2.44691185};
    return df < sizeof T / sizeof *T ? T[df] : NAN;
}

static kld_interval none(const char *reason) {
    return (kld_interval){.lo = NAN, .hi = NAN, .method = "none", .reason = reason};
}

/* Quantiles of the finite values, which are sorted in place. */
static kld_interval percentile(double *v, size_t n) {
    size_t kept = 0;
    for (size_t b = 0; b < n; b++)
        if (isfinite(v[b])) v[kept++] = v[b];
    if (kept == 0) return none("no finite resample");
    kld_sort(v, kept);
    return (kld_interval){.lo = kld_quantile(v, kept, 0.025),
                          .hi = kld_quantile(v, kept, 0.975),
                          .method = "bootstrap"};
}

static const char *const ONE_CLUSTER = "one cluster: its spread cannot be known";
static const char *const NO_DATA = "no positions";

kld_interval kld_mean_interval(const kld_cluster_sums *s, size_t col, kld_scale scale,
                               const double *replicates, size_t resamples, double *scratch) {
    size_t n = kld_cluster_count(s, col);
    double mean = kld_ratio_mean(s, col);
    if (n == 0) return none(NO_DATA);
    if (n == 1) return none(ONE_CLUSTER);
    if (n >= KLD_FEW_CLUSTERS) {
        for (size_t b = 0; b < resamples; b++) scratch[b] = replicates[b];
        return percentile(scratch, resamples);
    }
    double half = student_t(n - 1) * kld_ratio_stderr(s, col);
    kld_interval r = {.lo = mean - half, .hi = mean + half, .method = "student-t"};
    if (scale == KLD_SCALE_LOG && mean > 0) {
        r.lo = mean * exp(-half / mean);
        r.hi = mean * exp(half / mean);
    } else if (scale == KLD_SCALE_SHARE) {
        r.lo = fmax(0, r.lo);
        r.hi = fmin(1, r.hi);
    }
    return r;
}

kld_paired kld_paired_interval(const kld_cluster_sums *s, size_t a, size_t b, const double *rep_a,
                               const double *rep_b, size_t resamples, double *scratch) {
    double ma = kld_ratio_mean(s, a), mb = kld_ratio_mean(s, b);
    size_t n = kld_cluster_count(s, a);
    kld_paired r = {.difference = mb - ma, .ln_ratio = ma > 0 && mb > 0 ? log(mb / ma) : NAN};
    const char *reason = n == 0 ? NO_DATA : n == 1 ? ONE_CLUSTER : NULL;
    r.ln_ratio_ci = none(reason ? reason : "a mean is 0");
    if (reason) {
        r.difference_ci = none(reason);
        return r;
    }
    bool has_ratio = isfinite(r.ln_ratio);
    if (n >= KLD_FEW_CLUSTERS) {
        for (size_t k = 0; k < resamples; k++) scratch[k] = rep_b[k] - rep_a[k];
        r.difference_ci = percentile(scratch, resamples);
        if (!has_ratio) return r;
        for (size_t k = 0; k < resamples; k++) scratch[k] = log(rep_b[k] / rep_a[k]);
        r.ln_ratio_ci = percentile(scratch, resamples);
        return r;
    }
    double t = student_t(n - 1), half = t * linear_stderr(s, b, 1, a, -1);
    r.difference_ci =
        (kld_interval){.lo = r.difference - half, .hi = r.difference + half, .method = "student-t"};
    if (!has_ratio) return r;
    half = t * linear_stderr(s, b, 1 / mb, a, -1 / ma);
    r.ln_ratio_ci =
        (kld_interval){.lo = r.ln_ratio - half, .hi = r.ln_ratio + half, .method = "student-t"};
    return r;
}

const char *kld_verdict(double lo, double hi, double margin) {
    double m = log1p(margin);
    if (isnan(lo) || isnan(hi)) return "unsupported";
    if (lo > -m && hi < m) return "practically equivalent";
    if (lo > 0) return "worse";
    if (hi < 0) return "better";
    return hi < m ? "not worse" : "inconclusive";
}

const char *kld_paired_verdict(const kld_paired *p, double margin) {
    if (isfinite(p->ln_ratio)) return kld_verdict(p->ln_ratio_ci.lo, p->ln_ratio_ci.hi, margin);
    if (isnan(p->difference_ci.lo)) return "unsupported";
    if (p->difference_ci.lo > 0) return "worse";
    return p->difference_ci.hi < 0 ? "better" : "inconclusive";
}
