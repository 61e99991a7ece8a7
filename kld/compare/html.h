/* kld/compare/html.h - a result as one page that needs nothing else.  Floor 3. */
#ifndef KLD_COMPARE_HTML_H
#define KLD_COMPARE_HTML_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

/* Append an HTML page made from the object of kld_compare_run.  docs/report.md says what it shows.
 *  history  NULL, or earlier runs of the same comparison for a chart of their course: an array of
 *           {"candidate": name, "runs": [{"time", "label", "kl_mean", "kl_ci95": [lo, hi],
 *           "gate": "passed" or "failed"}, ...]}, oldest first; members may be missing or null
 * Style, scripts and data are in the page, and its policy forbids every request and every script
 * or style but these (by digest).  Nothing in the data can end the element that holds it: < > & and
 * the line separators U+2028 and U+2029 are written as escapes.
 * Numbers are in it to nine digits; of more than 16 candidates, the
 * three worst positions of each.
 * KLD_E_NOMEM; KLD_E_INTERNAL if result is not that of a comparison. */
KLD_NODISCARD kld_status kld_compare_html(const json_t *result, const json_t *history, kld_buf *out,
                                          kld_err *err);

KLD_EXTERN_C_END
#endif
