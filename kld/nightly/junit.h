/* kld/nightly/junit.h - a run for CI servers.  Floor 4; private to kld/nightly. */
#ifndef KLD_NIGHTLY_JUNIT_H
#define KLD_NIGHTLY_JUNIT_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"

/* Append JUnit XML of the summary of kld_nightly_run: a suite "captures" with a case for each, and
 * a suite a candidate with the case "measured" and one for each gate.  What could not be captured
 * or measured is an error, a gate above its limit a failure, one that had nothing to compare with
 * is skipped.  Text is escaped; what XML cannot hold becomes '?'.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status nightly_junit(const json_t *summary, kld_buf *out, kld_err *err);

#endif
