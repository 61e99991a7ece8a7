/* kld/nightly/measure.h - the comparison of a run's captures.  Floor 4; private to kld/nightly. */
#ifndef KLD_NIGHTLY_MEASURE_H
#define KLD_NIGHTLY_MEASURE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/nightly/captures.h"

/* By item of the configuration; one slot more is the floor's capture that it names. */
typedef struct nightly_measured {
    json_t *result; /* owned; of kld_compare_run, NULL when nothing could be compared */
    long *at;       /* owned [n_items + 1]: index among the result's candidates, or -1 */
    kld_err *err;   /* owned [n_items + 1]: of a capture that was there and not comparable */
} nightly_measured;

/* Compare what was captured with the reference.  A capture that cannot be compared is found out and
 * left out, its error noted.
 * KLD_E_USAGE  no window is in the partition.  KLD_E_INTERRUPTED, KLD_E_NOMEM. */
KLD_NODISCARD kld_status nightly_measure(const nightly_captures *c, nightly_measured *out,
                                         kld_err *err);
void nightly_measured_free(nightly_measured *m);

/* The candidate against its capture `before` of an earlier run, paired: the object of "pairs" of
 * kld_compare_run, owned. */
KLD_NODISCARD kld_status nightly_paired(const nightly_captures *c, size_t item, const char *before,
                                        json_t **out, kld_err *err);

#endif
