/* kld/nightly/verdict.h - what a candidate's numbers mean: limits, and the last good run.  Floor 4;
 * private to kld/nightly. */
#ifndef KLD_NIGHTLY_VERDICT_H
#define KLD_NIGHTLY_VERDICT_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/nightly/config.h"
#include "kld/nightly/history.h"

/* What is known of a candidate when it is judged. */
typedef struct nightly_evidence {
    const kld_nightly_item *item;
    const json_t *measured;  /* its object in the result of kld_compare_run, or NULL */
    const char *why_not;     /* one line, when it is NULL */
    const json_t *last_good; /* of kld_history_last_good, or NULL */
    kld_history_place now;
} nightly_evidence;

/* Add to the object `entry`:
 *  "outcome"  "passed", "failed" (a gate did), or "error": not measured, or no finite position
 *  "reason"   of the latter two: the first failure's line; null
 *  "kl_mean", "kl_lo", "kl_hi", "metrics" (every metric of gates that is finite)
 *  "last_good" without its metrics, "not_comparable": null, or why with it nothing can be compared
 *  "gates"    [{"metric", "kind": "absolute" or "regression", "limit", "allowed": what the
 *             value may be at most, or null, "value", "outcome": "passed", "failed" or "skipped",
 *             "text"}]
 * A regression gate fails when the value is above (1 + limit) times that of the last good run; it
 * is skipped without a comparable one.  Any gate fails when the metric has no finite value, or when
 * positions that are not finite were left out. */
KLD_NODISCARD kld_status nightly_judge(const nightly_evidence *v, json_t *entry, kld_err *err);

#endif
