#include "kld/compare/resample.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/philox.h"
#include "kld/compare/stats.h"

#include <math.h>

/* Sums run over clusters, never across the columns of a vector, so its width changes no bit. */
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

enum { STRIP = 8, LANES = 8 }; /* columns and resamples in hand at once */

/* The values of a strip of columns.  A type, so that sums stay in registers. */
typedef double strip __attribute__((vector_size(STRIP * sizeof(double))));

double kld_scale_to(kld_scale scale, double m) {
    if (scale == KLD_SCALE_PLAIN) return m;
    return scale == KLD_SCALE_LOG ? log(m) : log(m) - log1p(-m);
}

double kld_scale_slope(kld_scale scale, double m) {
    if (scale == KLD_SCALE_PLAIN) return 1;
    return scale == KLD_SCALE_LOG ? 1 / m : 1 / (m * (1 - m));
}

double kld_scale_from(kld_scale scale, double at) {
    if (scale == KLD_SCALE_PLAIN) return at;
    return scale == KLD_SCALE_LOG ? exp(at) : 1 / (1 + exp(-at));
}

/* ---- strata --------------------------------------------------------------------------- */

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

kld_status kld_strata_order(kld_strata *s, const uint32_t *stratum, size_t strata, const bool *kept,
                            size_t clusters, kld_err *err) {
    size_t *count = NULL, *into = NULL, *next = NULL;
    *s = (kld_strata){0};
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&count, strata, err));
    TRY_TO(done, NEW_ARRAY(&into, strata, err));
    TRY_TO(done, NEW_ARRAY(&next, strata, err));
    TRY_TO(done, NEW_ARRAY(&s->order, clusters, err));
    TRY_TO(done, NEW_ARRAY(&s->start, strata + 1, err));
    for (size_t c = 0; c < clusters; c++) count[stratum[c]] += kept[c];
    pool_small(count, strata, into);
    for (size_t h = 0; h < strata; h++)
        if (into[h] != h) count[into[h]] += count[h];
    for (size_t h = 0; h < strata; h++) {
        if (into[h] != h || count[h] == 0) continue;
        next[h] = s->start[s->groups];
        s->start[++s->groups] = next[h] + count[h];
    }
    for (size_t c = 0; c < clusters; c++)
        if (kept[c]) s->order[next[into[stratum[c]]]++] = c;
    s->clusters = s->start[s->groups];
done:
    kld_free(count);
    kld_free(into);
    kld_free(next);
    if (st != KLD_OK) kld_strata_free(s);
    return st;
}

void kld_strata_free(kld_strata *s) {
    kld_free(s->order);
    kld_free(s->start);
    *s = (kld_strata){0};
}

/* ---- ratios --------------------------------------------------------------------------- */

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

kld_error kld_ratio_error(const kld_cluster_sums *s, size_t col) {
    double m = kld_ratio_mean(s, col), var = 0, squares = 0, fourths = 0;
    bool spread = false;
    for (size_t g = 0; g < s->groups; g++) {
        size_t from = s->start[g], to = s->start[g + 1];
        double n = (double)(to - from), mean = 0, ss = 0;
        if (to - from < 2) continue;
        spread = true;
        for (size_t c = from; c < to; c++)
            mean += (s->num[c * s->cols + col] - m * s->den[c * s->cols + col]) / n;
        for (size_t c = from; c < to; c++) {
            double u = s->num[c * s->cols + col] - m * s->den[c * s->cols + col] - mean;
            ss += u * u;
            fourths += u * u * u * u;
        }
        var += n / (n - 1) * ss;
        squares += ss;
    }
    kld_error e = {.se = spread ? sqrt(var) / total(s->den, s, col) : NAN};
    double peak = squares > 0 ? (double)s->clusters * (fourths / squares / squares) - 3 : 0;
    e.excess = isfinite(peak) ? fmax(0, peak) : 0;
    return e;
}

kld_scale kld_scale_used(const kld_cluster_sums *s, size_t col) {
    return isfinite(kld_scale_to(s->scale[col], kld_ratio_mean(s, col))) ? s->scale[col]
                                                                         : KLD_SCALE_PLAIN;
}

/* ---- resamples ------------------------------------------------------------------------ */

/* A cluster in a strip of columns: residuals u = num - m den instead of num, so that sums of
 * squares do not cancel. */
struct cell {
    strip u, y;
};

/* A cluster of a resample, and how often it was drawn. */
struct pick {
    size_t row;
    double times;
};

/* Sums over clusters of a group, or of all. */
struct moments {
    strip u, y, uu, uy, yy;
};

/* What is fixed while resampling. */
struct source {
    const kld_cluster_sums *s;
    size_t strips, resamples;
    struct cell *cell; /* owned [strips][clusters] */
    double *mean;      /* owned [cols] */
    kld_scale *scale;  /* owned [cols] */
    double *t;         /* [cols][resamples] */
};

/* One thread's draws: pick[lane][clusters], of which end[lane][g-1] .. end[lane][g] - 1 are of
 * group g-1. */
struct hand {
    struct pick *pick;
    size_t *end;
    double *times; /* [clusters] */
};

CLONES static void add_group(struct moments *restrict out, const struct cell *restrict cell,
                             const struct pick *restrict pick, size_t n) {
    strip u = {0}, y = {0}, uu = {0}, uy = {0}, yy = {0};
    for (size_t i = 0; i < n; i++) {
        const struct cell *x = &cell[pick[i].row];
        strip a = x->u * pick[i].times, b = x->y * pick[i].times;
        u += a;
        y += b;
        uu += a * x->u;
        uy += a * x->y;
        yy += b * x->y;
    }
    *out = (struct moments){u, y, uu, uy, yy};
}

/* Sums of a group into those of all: squares and products as deviations from its means. */
static void fold(struct moments *all, const struct moments *m, double n) {
    double f = n > 1 ? n / (n - 1) : 0;
    all->u += m->u;
    all->y += m->y;
    all->uu += f * (m->uu - m->u * m->u / n);
    all->uy += f * (m->uy - m->u * m->y / n);
    all->yy += f * (m->yy - m->y * m->y / n);
}

static double studentized(const struct moments *m, size_t k, double mean, kld_scale scale) {
    if (!(m->y[k] > 0)) return NAN;
    double d = m->u[k] / m->y[k], now = mean + d, moved = d;
    double var = m->uu[k] - 2 * d * m->uy[k] + d * d * m->yy[k];
    if (!(var > 0) || (scale != KLD_SCALE_PLAIN && now <= 0) ||
        (scale == KLD_SCALE_SHARE && now >= 1))
        return NAN;
    if (scale != KLD_SCALE_PLAIN) moved = kld_scale_to(scale, now) - kld_scale_to(scale, mean);
    return moved / (kld_scale_slope(scale, now) * sqrt(var) / m->y[k]);
}

/* Resample b into a lane. */
static void draw(const kld_cluster_sums *s, uint64_t seed, size_t b, const struct hand *h,
                 size_t lane) {
    struct pick *pick = h->pick + lane * s->clusters;
    kld_philox_block bits = {{0}};
    size_t at = 0, used = 0;
    for (size_t g = 0; g < s->groups; g++) {
        size_t from = s->start[g], n = s->start[g + 1] - from;
        for (size_t j = 0; j < n; j++) h->times[j] = 0;
        for (size_t j = 0; j < n; j++, at++) {
            if (at % 4 == 0) bits = kld_philox(seed, b, at / 4);
            h->times[(uint64_t)bits.v[at % 4] * n >> 32] += 1;
        }
        for (size_t j = 0; j < n; j++) { /* used is at most from + j */
            pick[used] = (struct pick){.row = from + j, .times = h->times[j]};
            used += h->times[j] > 0;
        }
        h->end[lane * s->groups + g] = used;
    }
}

static void resample_strip(const struct source *x, size_t at, size_t b, const struct hand *h,
                           size_t lane) {
    const kld_cluster_sums *s = x->s;
    struct moments all = {.u = {0}}, m;
    size_t from = 0, col = at * STRIP;
    for (size_t g = 0; g < s->groups; g++) {
        size_t to = h->end[lane * s->groups + g];
        add_group(&m, x->cell + at * s->clusters, h->pick + lane * s->clusters + from, to - from);
        fold(&all, &m, (double)(s->start[g + 1] - s->start[g]));
        from = to;
    }
    for (size_t k = 0; k < STRIP && col + k < s->cols; k++)
        x->t[(col + k) * x->resamples + b] =
            studentized(&all, k, x->mean[col + k], x->scale[col + k]);
}

static bool resample_all(const struct source *x, uint64_t seed) {
    const kld_cluster_sums *s = x->s;
    bool failed = false;
#pragma omp parallel
    {
        struct hand h = {0};
        bool ok = NEW_ARRAY(&h.pick, LANES * s->clusters, NULL) == KLD_OK &&
                  NEW_ARRAY(&h.end, LANES * s->groups, NULL) == KLD_OK &&
                  NEW_ARRAY(&h.times, s->clusters, NULL) == KLD_OK;
        if (!ok) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(static)
        for (size_t b = 0; b < x->resamples; b += LANES) {
            if (!ok) continue;
            size_t lanes = num_min(LANES, x->resamples - b);
            for (size_t i = 0; i < lanes; i++) draw(s, seed, b + i, &h, i);
            for (size_t at = 0; at < x->strips; at++)
                for (size_t i = 0; i < lanes; i++) resample_strip(x, at, b + i, &h, i);
        }
        kld_free(h.pick);
        kld_free(h.end);
        kld_free(h.times);
    }
    return !failed;
}

static bool sort_all(const kld_cluster_sums *s, kld_replicates *r) {
    bool failed = false;
#pragma omp parallel
    {
        double *room = NULL;
        bool ok = NEW_ARRAY(&room, r->resamples, NULL) == KLD_OK;
        if (!ok) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(dynamic, 1)
        for (size_t k = 0; k < s->cols; k++) {
            double *t = r->t + k * r->resamples;
            if (!ok) continue;
            for (size_t b = 0; b < r->resamples; b++)
                if (isfinite(t[b])) t[r->n[k]++] = t[b];
            kld_sort(t, room, r->n[k]);
        }
        kld_free(room);
    }
    return !failed;
}

static void fill(struct source *x) {
    const kld_cluster_sums *s = x->s;
    for (size_t k = 0; k < s->cols; k++) {
        x->mean[k] = kld_ratio_mean(s, k);
        x->scale[k] = kld_scale_used(s, k);
        struct cell *cell = x->cell + k / STRIP * s->clusters;
        for (size_t c = 0; c < s->clusters; c++) {
            double y = s->den[c * s->cols + k];
            cell[c].u[k % STRIP] = s->num[c * s->cols + k] - x->mean[k] * y;
            cell[c].y[k % STRIP] = y;
        }
    }
}

kld_status kld_bootstrap(kld_replicates *r, const kld_cluster_sums *s, size_t resamples,
                         uint64_t seed, kld_err *err) {
    struct source x = {.s = s, .resamples = resamples, .strips = num_cdiv(s->cols, STRIP)};
    size_t values, cells;
    *r = (kld_replicates){.resamples = resamples};
    if (!num_mul_size(s->cols, resamples, &values) || !num_mul_size(x.strips, s->clusters, &cells))
        return kld_fail(err, KLD_E_NOMEM, "%zu resamples of %zu numbers are too many", resamples,
                        s->cols);
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&r->t, values, err));
    TRY_TO(done, NEW_ARRAY(&r->n, s->cols, err));
    TRY_TO(done, NEW_ARRAY(&x.cell, cells, err));
    TRY_TO(done, NEW_ARRAY(&x.mean, s->cols, err));
    TRY_TO(done, NEW_ARRAY(&x.scale, s->cols, err));
    x.t = r->t;
    fill(&x);
    if (!resample_all(&x, seed) || !sort_all(s, r))
        st = kld_fail(err, KLD_E_NOMEM, "out of memory in the bootstrap");
done:
    kld_free(x.cell);
    kld_free(x.mean);
    kld_free(x.scale);
    if (st != KLD_OK) kld_replicates_free(r);
    return st;
}

void kld_replicates_free(kld_replicates *r) {
    kld_free(r->t);
    kld_free(r->n);
    *r = (kld_replicates){0};
}
