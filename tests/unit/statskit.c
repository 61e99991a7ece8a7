#include "tests/unit/statskit.h"

#include "kld/base/philox.h"

#include <math.h>

static double normal(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 3);
    return sqrt(-2 * log(kld_philox_unit(b.v[0], b.v[1]))) *
           cos(6.283185307179586 * kld_philox_unit(b.v[2], b.v[3]));
}

void make(struct data *d, size_t clusters, size_t groups) {
    size_t each = clusters / groups;
    for (size_t c = 0; c < clusters; c++) {
        double n = 10, mean = 3 + normal(5, c) + 4 * (double)(c / each);
        d->num[2 * c] = n * mean;
        d->num[2 * c + 1] = n * (mean + 0.5);
        d->den[2 * c] = d->den[2 * c + 1] = n;
    }
    for (size_t g = 0; g <= groups; g++) d->start[g] = g * each;
    d->scale[0] = d->scale[1] = KLD_SCALE_LOG;
    d->s = (kld_cluster_sums){.clusters = clusters, .cols = 2, .groups = groups};
    d->s.start = d->start;
    d->s.scale = d->scale;
    d->s.num = d->num;
    d->s.den = d->den;
}
