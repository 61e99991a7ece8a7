/* A comparison in memory: records -> sums -> the report's JSON object. */
#ifndef TESTS_UNIT_COMPAREKIT_H
#define TESTS_UNIT_COMPAREKIT_H
#include "kld/compare/options.h"
#include "kld/compare/report.h"
#include "tests/unit/t_records.h"

enum { CMP_MAX = 6 }; /* candidates */

struct cmp_rig {
    kld_compare_options opt;
    kld_tally tally;
    kld_capture_info ref_info, info[CMP_MAX];
    kld_report_side ref, side[CMP_MAX];
    kld_role role[CMP_MAX]; /* found with the first window, from the headers as they are then */
    kld_quad quad[CMP_MAX];
    kld_route_tally routes[CMP_MAX];
    size_t n_cands, windows;
    bool started;
};

void cmp_begin(struct cmp_rig *g, size_t n_cands);
/* One window of one cluster. */
void cmp_add(struct cmp_rig *g, const char *cluster, const char *stratum, const struct rec *ref,
             struct rec *const *cand);
/* The report; json_decref it. */
json_t *cmp_finish(struct cmp_rig *g);

/* Twelve windows in twelve clusters and two strata, candidate c with noise[c]. */
json_t *cmp_compared(size_t n_cands, size_t k, size_t m, const double *noise, bool with_ref);

/* A field by path, "candidates.0.kl.mean"; it must be there, and a number for the others. */
const json_t *cmp_get(const json_t *o, const char *path);
double cmp_real(const json_t *o, const char *path);
long long cmp_count(const json_t *o, const char *path);
bool cmp_warned(const json_t *o, const char *code);

/* The table; free() it. */
char *cmp_table(const json_t *o, bool color);

#endif
