#include "tests/unit/simkit.h"

#include "tests/unit/t.h"

#include <math.h>

const double SIM_QUANTILE[SIM_QUANTILES] = {0.5, 0.9, 0.95, 0.99, 0.999};
const char *const SIM_NAME[SIM_COLUMNS] = {"KL",     "JS",  "TV",  "top-1", "difference", "ratio",
                                           "median", "p90", "p95", "p99",   "p99.9"};

enum { MIN_TOKENS = 16, MAX_TIMES = 8 };
static const double MEDIAN_KL = 0.007, LENGTH_EFFECT = -0.2, AUTO = 0.5, SAME_DOCUMENT = 0.9,
                    SAME_TOKEN = 0.8, COPY_SD = 0.3, TOP1_MISS = 0.5;

/* With these the 95 % interval of 39 documents is about 60 % of the mean wide, that of 842 about
 * 15 %, and the mean is about seven times the median. */
sim_design sim_defaults(void) {
    return (sim_design){.clusters = 50,
                        .strata = 1,
                        .tokens = 1000,
                        .tokens_sd = 0.8,
                        .document_sd = 0.7,
                        .token_sd = 1.9,
                        .ratio = 1.1,
                        .copies = 1};
}

/* SplitMix64, and pairs of normals from it. */
struct source {
    uint64_t state;
    double spare;
    int has;
};

static double uniform(struct source *r) {
    uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return ((double)((z ^ (z >> 31)) >> 12) + 0.5) * 0x1p-52;
}

static double normal(struct source *r) {
    if (r->has) {
        r->has = 0;
        return r->spare;
    }
    double a = sqrt(-2 * log(uniform(r))), b = 6.283185307179586 * uniform(r);
    r->spare = a * sin(b);
    r->has = 1;
    return a * cos(b);
}

static double like(struct source *r, double x, double rho) {
    return rho * x + sqrt(1 - rho * rho) * normal(r);
}

/* Divergences that a KL could go with. */
static double js_of(double kl) { return -log(2) * expm1(-kl / (4 * log(2))); }
static double tv_of(double kl) { return 0.9 * sqrt(-expm1(-2 * kl) / 2); }

static double length(const sim_design *d, double z) {
    double n = floor(d->tokens * exp(d->tokens_sd * z));
    return fmax(MIN_TOKENS, fmin(n, MAX_TIMES * d->tokens));
}

static double level(const sim_design *d, size_t stratum, double n) {
    double at = d->strata > 1 ? 2 * (double)stratum / (double)(d->strata - 1) - 1 : 0;
    return log(MEDIAN_KL) + 1.5 * d->stratum_sd * at + LENGTH_EFFECT * log(n / d->tokens);
}

static double token_sd(const sim_design *d) {
    return d->copies > 1 ? hypot(d->token_sd, COPY_SD) : d->token_sd;
}

/* Share of tokens above a limit, and means. */
static void integrate(const sim_design *d, double limit, double truth[SIM_COLUMNS]) {
    enum { GRID = 41 };
    double sum[SIM_COLUMNS] = {0}, weight[GRID], all = 0, total = 0, sd = token_sd(d);
    for (int i = 0; i < GRID; i++) all += weight[i] = exp(-0.03125 * (i - 20) * (i - 20));
    for (size_t h = 0; h < d->strata; h++) {
        double members = (double)((d->clusters - h + d->strata - 1) / d->strata);
        for (int j = -100; j <= 100; j++) {
            double n = length(d, 0.05 * j), base = level(d, h, n);
            for (int z = -50; z <= 50; z++) {
                double w = members * n * exp(-0.00125 * j * j - 0.005 * z * z);
                double mean = base + d->document_sd * 0.1 * z, js = 0, tv = 0;
                total += w;
                sum[SIM_ABOVE] += w * 0.5 * erfc((log(limit) - mean) / (sd * sqrt(2)));
                if (limit < INFINITY) continue;
                for (int i = 0; i < GRID; i++) {
                    double kl = exp(mean + sd * 0.25 * (i - 20));
                    js += weight[i] / all * js_of(kl);
                    tv += weight[i] / all * tv_of(kl);
                }
                sum[SIM_KL] += w * exp(mean + 0.5 * sd * sd);
                sum[SIM_JS] += w * js;
                sum[SIM_TV] += w * tv;
            }
        }
    }
    for (int k = 0; k < SIM_COLUMNS; k++) truth[k] = sum[k] / total;
}

void sim_truth(const sim_design *d, double truth[SIM_COLUMNS]) {
    integrate(d, INFINITY, truth);
    truth[SIM_TOP1] = 1 - TOP1_MISS * truth[SIM_TV];
    truth[SIM_DIFFERENCE] = (d->ratio - 1) * truth[SIM_KL];
    truth[SIM_RATIO] = d->ratio;
    for (int q = 0; q < SIM_QUANTILES; q++) {
        double lo = -20, hi = 10, at[SIM_COLUMNS];
        while (hi - lo > 1e-7) {
            double mid = 0.5 * (lo + hi);
            integrate(d, exp(mid), at);
            if (at[SIM_ABOVE] > 1 - SIM_QUANTILE[q]) lo = mid;
            else hi = mid;
        }
        truth[SIM_ABOVE + q] = exp(lo);
    }
}

static void *owned(size_t n, size_t size) {
    void *p = calloc(n + 1, size);
    assert_non_null(p);
    return p;
}

struct moments {
    double sum, squares;
};

static size_t document(const sim_design *d, struct source *r, size_t stratum, size_t times,
                       double *x, double *values, struct moments *m) {
    double z = normal(r), base = level(d, stratum, (double)times), q = sqrt(1 - AUTO * AUTO);
    double a = base + d->document_sd * z,
           b = base + log(d->ratio) + d->document_sd * like(r, z, SAME_DOCUMENT);
    double e = normal(r), f = like(r, e, SAME_TOKEN);
    size_t n = 0;
    for (size_t t = 0; t < times; t++) {
        if (t) {
            double step = normal(r);
            e = AUTO * e + q * step;
            f = AUTO * f + q * like(r, step, SAME_TOKEN);
        }
        for (int c = 0; c < d->copies; c++) {
            double again = d->copies > 1 ? COPY_SD * normal(r) : 0;
            double kl = exp(a + d->token_sd * e + again), other = exp(b + d->token_sd * f + again);
            x[SIM_KL] += kl;
            x[SIM_JS] += js_of(kl);
            x[SIM_TV] += tv_of(kl);
            x[SIM_TOP1] += uniform(r) > TOP1_MISS * tv_of(kl);
            x[SIM_DIFFERENCE] += other - kl;
            x[SIM_RATIO] += other;
            m->sum += kl;
            m->squares += kl * kl;
            values[n++] = kl;
        }
    }
    return n;
}

static void count_above(sim *s, const double *values, const size_t *first) {
    for (int q = 0; q < SIM_QUANTILES; q++) {
        double limit = kld_quantile(s->values, s->n_values, SIM_QUANTILE[q]);
        for (size_t row = 0; row < s->sums.clusters; row++) {
            size_t c = s->strata.order[row];
            for (size_t i = first[c]; i < first[c + 1]; i++)
                s->num[row * SIM_COLUMNS + SIM_ABOVE + (size_t)q] += values[i] > limit;
        }
    }
}

void sim_draw(sim *s, const sim_design *d, uint64_t seed) {
    static const kld_scale SCALE[SIM_COLUMNS] = {KLD_SCALE_LOG,   KLD_SCALE_LOG,   KLD_SCALE_LOG,
                                                 KLD_SCALE_SHARE, KLD_SCALE_PLAIN, KLD_SCALE_LOG,
                                                 KLD_SCALE_SHARE, KLD_SCALE_SHARE, KLD_SCALE_SHARE,
                                                 KLD_SCALE_SHARE, KLD_SCALE_SHARE};
    size_t n = d->clusters, *times = owned(n, sizeof *times), *first = owned(n + 1, sizeof *first);
    struct source *r = owned(n, sizeof *r);
    uint32_t *stratum = owned(n, sizeof *stratum);
    bool *kept = owned(n, sizeof *kept);
    for (size_t c = 0; c < n; c++) {
        r[c].state = seed * 1000003 + c * 7919;
        times[c] = (size_t)length(d, normal(&r[c]));
        first[c + 1] = first[c] + times[c] * (size_t)d->copies;
        stratum[c] = (uint32_t)(c % d->strata);
        kept[c] = true;
    }
    *s = (sim){.n_values = first[n]};
    assert_int_equal(kld_strata_order(&s->strata, stratum, d->strata, kept, n, NULL), KLD_OK);
    s->num = owned(n * SIM_COLUMNS, sizeof(double));
    s->den = owned(n * SIM_COLUMNS, sizeof(double));
    s->values = owned(first[n], sizeof(double));
    double *values = owned(first[n], sizeof(double));
    struct moments m = {0};
    for (size_t row = 0; row < n; row++) {
        size_t c = s->strata.order[row];
        double *x = s->num + row * SIM_COLUMNS, *y = s->den + row * SIM_COLUMNS;
        double scored = (double)document(d, &r[c], stratum[c], times[c], x, values + first[c], &m);
        for (size_t k = 0; k < SIM_COLUMNS; k++) y[k] = scored;
        y[SIM_RATIO] = x[SIM_KL];
    }
    double all = (double)s->n_values;
    s->iid_se = sqrt((m.squares / all - m.sum / all * m.sum / all) / (all - 1));
    memcpy(s->values, values, s->n_values * sizeof *values);
    double *room = owned(s->n_values, sizeof *room);
    kld_sort(s->values, room, s->n_values);
    free(room);
    s->sums = (kld_cluster_sums){.clusters = n,
                                 .cols = SIM_COLUMNS,
                                 .groups = s->strata.groups,
                                 .start = s->strata.start,
                                 .scale = SCALE,
                                 .num = s->num,
                                 .den = s->den};
    count_above(s, values, first);
    free(values);
    free(times);
    free(first);
    free(r);
    free(stratum);
    free(kept);
}

void sim_free(sim *s) {
    kld_strata_free(&s->strata);
    free(s->num);
    free(s->den);
    free(s->values);
}

kld_interval sim_interval(const sim *s, const kld_estimate *e, size_t col) {
    if (col < SIM_ABOVE) return kld_estimate_interval(e, 0.95);
    return kld_quantile_interval(s->values, s->n_values, SIM_QUANTILE[col - SIM_ABOVE], e, 0.95);
}
