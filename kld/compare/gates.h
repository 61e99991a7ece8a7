/* kld/compare/gates.h - limits that a result must not pass.  Floor 3. */
#ifndef KLD_COMPARE_GATES_H
#define KLD_COMPARE_GATES_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Check "metric=limit" gates ("mean_kl=0.05", "p99_kl=1", "top1_disagreement=0.1", ...) against
 * every candidate; failures are appended to `report`, one line each.  A gate fails when the
 * metric is above the limit or is null, and when rows that are not finite were left out.  With a
 * NULL result the gates are only parsed.
 * KLD_E_USAGE  unknown metric or malformed limit (message lists the metrics); nothing is
 *              appended then.
 * KLD_E_GATE   a gate failed. */
KLD_NODISCARD kld_status kld_compare_gates(const json_t *result, const char *const *gates, size_t n,
                                           kld_buf *report, kld_err *err);

/* The same as a member "gates" of the result, for its readers: an array of {"metric", "limit",
 * "candidate": index, "value": number or null, "passed"}, empty without gates.
 * KLD_E_USAGE as above; KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_compare_gates_record(json_t *result, const char *const *gates,
                                                  size_t n, kld_err *err);

/* The parts of one gate; *metric is the name in the table of metrics, static.  KLD_E_USAGE as
 * above. */
KLD_NODISCARD kld_status kld_gate_parse(const char *gate, const char **metric, double *limit,
                                        kld_err *err);
/* Name of metric i, NULL past the last. */
const char *kld_gate_metric(size_t i);
/* Value of a metric of one candidate of a result; NaN when it is null, absent or unknown. */
double kld_gate_value(const json_t *candidate, const char *metric);

KLD_EXTERN_C_END
#endif
