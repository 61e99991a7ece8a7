/* Clusters of known sums, for the tests of statistics. */
#ifndef KLD_TESTS_STATSKIT_H
#define KLD_TESTS_STATSKIT_H
#include "kld/compare/resample.h"

enum { C = 60, B = 4000 }; /* clusters at most, resamples */

struct data {
    size_t start[C + 1];
    double num[2 * C], den[2 * C];
    kld_scale scale[2];
    kld_cluster_sums s;
};

/* Two ratios over clusters of equal size in groups of equal size; the second is the first plus 0.5
 * everywhere. */
void make(struct data *d, size_t clusters, size_t groups);

#endif
