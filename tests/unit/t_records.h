/* tests/unit/t_records.h - records of known distributions, without an engine or files. */
#ifndef KLD_TESTS_T_RECORDS_H
#define KLD_TESTS_T_RECORDS_H
#include "kld/store/records.h"

enum { V = 96, MAX_ROWS = 256, MAX_K = V, MAX_M = 16, MAX_ROUTES = 4096 };

/* kld_records over arrays of its own; free() releases all of it. */

struct rec {
    kld_records r;
    uint32_t count[MAX_ROWS], ids[MAX_ROWS * MAX_K], label[MAX_ROWS], tail_ids[MAX_ROWS * MAX_M];
    double lp[MAX_ROWS * MAX_K], tail_lp[MAX_ROWS * MAX_M];
    double ref_lp[MAX_ROWS * MAX_K], ref_tail_lp[MAX_ROWS * MAX_M];
    float label_lp[MAX_ROWS], lse[MAX_ROWS], entropy[MAX_ROWS], tail_mass[MAX_ROWS];
    double full[MAX_ROWS][V]; /* the whole distribution, log */
    uint32_t route_id[MAX_ROUTES];
    float route_weight[MAX_ROUTES], route_margin[MAX_ROUTES];
};

/* n rows of random distributions over V ids: logits are 2.2 times the Gaussians of `seed` plus
 * `noise` times those of `noise_seed`, so that equal seeds give a reference and its candidate.
 * Lists of k; 16 draws when m > 0; answers at ref's ids when ref is not NULL. */
struct rec *t_records(size_t n, size_t k, size_t m, uint64_t seed, double noise,
                      uint64_t noise_seed, const struct rec *ref);

/* n routes to k of `experts` experts, a function of the seed: distinct ids, weights that do not sum
 * to 1, margins of which one in 16 is +inf. */
void t_routes(uint32_t *id, float *weight, float *margin, size_t n, size_t k, uint32_t experts,
              uint64_t seed);
/* Give records routes of that kind. */
void t_routed(struct rec *x, size_t tokens, size_t layers, size_t k, uint32_t experts,
              uint64_t seed);

#endif
