/* kld/compare/warnings.h - what a reader of a result must know, and what to do about it.
 * Floor 3. */
#ifndef KLD_COMPARE_WARNINGS_H
#define KLD_COMPARE_WARNINGS_H
#include "kld/base/json.h"
#include "kld/compare/emit.h"

KLD_EXTERN_C_BEGIN

/* Add the member "warnings" to a result: [{"code", "candidate": index or null, "text"}], most
 * serious first.  Codes are stable and listed in docs/metrics.md. */
void kld_compare_warnings(kld_emit *e, json_t *result);

/* What to do when there is no noise floor. */
extern const char KLD_ADD_FLOOR[];

KLD_EXTERN_C_END
#endif
