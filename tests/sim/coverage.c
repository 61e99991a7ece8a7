/* How often intervals hold what they are said to hold: `make coverage`.
 * Prints the tables of docs/statistics.md. */
#include "tests/unit/simkit.h"
#include "tests/unit/t.h"

#include "kld/base/num.h"
#include "kld/base/philox.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { IID, PERCENTILE, STUDENT, BOOTSTRAP, PUBLISHED, METHODS };
enum {
    RATIO_90 = SIM_COLUMNS,
    COLUMNS
}; /* the ratio again, at the level that decides equivalence */
static const char *const METHOD[METHODS] = {"iid", "percentile", "student-t", "bootstrap-t", "kld"};

struct count {
    size_t runs, inside, below, above; /* truth below or above the interval */
};

/* Plain percentile bootstrap of the same clusters, for comparison. */
static kld_interval percentile(const sim *s, size_t col, size_t resamples, uint64_t seed) {
    double *m = calloc(2 * resamples, sizeof *m);
    const kld_cluster_sums *x = &s->sums;
    for (size_t b = 0; b < resamples; b++) {
        double num = 0, den = 0;
        for (size_t g = 0; g < x->groups; g++) {
            size_t from = x->start[g], n = x->start[g + 1] - from;
            for (size_t j = 0; j < n; j++) {
                kld_philox_block bits = kld_philox(seed, b, from + j);
                size_t row = from + (size_t)((uint64_t)bits.v[0] * n >> 32);
                num += x->num[row * x->cols + col];
                den += x->den[row * x->cols + col];
            }
        }
        m[b] = num / den;
    }
    kld_sort(m, m + resamples, resamples);
    kld_interval ci = {.lo = kld_quantile(m, resamples, 0.025),
                       .hi = kld_quantile(m, resamples, 0.975)};
    free(m);
    return ci;
}

static void note(struct count *c, kld_interval ci, double truth) {
    size_t *side = truth < ci.lo ? &c->below : truth > ci.hi ? &c->above : &c->inside;
    if (isnan(ci.lo)) return;
#pragma omp atomic
    c->runs++;
#pragma omp atomic
    ++*side;
}

static void one_run(const sim_design *d, uint64_t seed, size_t resamples,
                    const double truth[SIM_COLUMNS], struct count out[METHODS][COLUMNS]) {
    sim s;
    kld_replicates r;
    sim_draw(&s, d, seed);
    if (kld_bootstrap(&r, &s.sums, resamples, 1, NULL) != KLD_OK) abort();
    for (size_t k = 0; k < SIM_COLUMNS; k++) {
        if (k >= SIM_ABOVE && (1 - SIM_QUANTILE[k - SIM_ABOVE]) * (double)s.n_values < 100)
            continue;
        kld_estimate e = kld_estimate_ratio(&s.sums, k, &r), t = e, b = e;
        t.t = NULL;
        b.t = r.t + k * resamples;
        b.n_t = r.n[k];
        note(&out[PUBLISHED][k], sim_interval(&s, &e, k), truth[k]);
        if (k == SIM_RATIO)
            note(&out[PUBLISHED][RATIO_90], kld_estimate_interval(&e, 0.90), truth[k]);
        note(&out[STUDENT][k], sim_interval(&s, &t, k), truth[k]);
        note(&out[BOOTSTRAP][k], sim_interval(&s, &b, k), truth[k]);
        if (k < SIM_ABOVE)
            note(&out[PERCENTILE][k], percentile(&s, k, num_min(resamples, 1000), seed), truth[k]);
    }
    double mean = kld_ratio_mean(&s.sums, SIM_KL), half = 1.96 * s.iid_se;
    kld_interval iid = {.lo = mean - half, .hi = mean + half};
    note(&out[IID][SIM_KL], iid, truth[SIM_KL]);
    kld_replicates_free(&r);
    sim_free(&s);
}

static void scenario(const char *name, sim_design d, size_t clusters, size_t runs,
                     size_t resamples) {
    static struct count out[METHODS][COLUMNS];
    double truth[SIM_COLUMNS];
    memset(out, 0, sizeof out);
    d.clusters = clusters;
    sim_truth(&d, truth);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < runs; i++) one_run(&d, i + 1, resamples, truth, out);
    for (int m = 0; m < METHODS; m++) {
        printf("%-10s %4zu %-11s", name, clusters, METHOD[m]);
        for (int k = 0; k < COLUMNS; k++) {
            const struct count *c = &out[m][k];
            if (c->runs < runs / 2) printf("     -");
            else printf(" %5.1f", 100 * (double)c->inside / (double)c->runs);
        }
        const struct count *c = &out[m][SIM_KL];
        printf("   %4.1f %4.1f\n", 100 * (double)c->below / (double)c->runs,
               100 * (double)c->above / (double)c->runs);
    }
    fflush(stdout);
}

static size_t number(const char *s) {
    char *end;
    errno = 0;
    unsigned long n = strtoul(s, &end, 10);
    if (errno || *end || n == 0) {
        fprintf(stderr, "coverage: '%s' is not a number\n", s);
        exit(2);
    }
    return n;
}

/* coverage RUNS RESAMPLES SCENARIO CLUSTERS...; seeds are 1 .. RUNS. */
int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "coverage RUNS RESAMPLES documents|strata|overlap|heavy CLUSTERS...\n");
        return 2;
    }
    sim_design d = sim_defaults();
    if (!strcmp(argv[3], "strata")) d.strata = 8, d.stratum_sd = 0.5;
    else if (!strcmp(argv[3], "overlap")) d.copies = 4, d.tokens = 500;
    else if (!strcmp(argv[3], "heavy")) d.document_sd = 1;
    printf("%-10s %4s %-11s", "scenario", "C", "method");
    for (int k = 0; k < SIM_COLUMNS; k++) printf(" %5.5s", SIM_NAME[k]);
    printf(" ratio at 90   KL: below, above\n");
    for (int i = 4; i < argc; i++)
        scenario(argv[3], d, number(argv[i]), number(argv[1]), number(argv[2]));
    return 0;
}
