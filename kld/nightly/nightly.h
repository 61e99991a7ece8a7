/* kld/nightly/nightly.h - one run of the nightly job: captures, comparison, verdicts, reports,
 * history.  Floor 4.  docs/nightly.md says what is where and what the summary holds. */
#ifndef KLD_NIGHTLY_NIGHTLY_H
#define KLD_NIGHTLY_NIGHTLY_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/nightly/config.h"
#include <stdbool.h>

KLD_EXTERN_C_BEGIN

/* Run.  *summary is owned, and there (not NULL) whenever reports were written: also after
 * KLD_E_GATE and after a capture that failed.
 *  label  what is tested, e.g. a commit, for the history; may be NULL
 * Capture files are used again when nothing that decides them changed.  A capture that fails costs
 * the others nothing: they are compared, reported and recorded, and its status is returned at the
 * end; of several the one with the highest exit code.  It goes before KLD_E_GATE.
 * KLD_E_INPUT, KLD_E_UNSUPPORTED also of the suite, the history (kld_history_open), and when
 * another run has the output; KLD_E_USAGE, _UNSUPPORTED, _DEVICE of kld_choose; KLD_E_USAGE of
 * kld_compare_run.  After these nothing was recorded.
 * KLD_E_INTERRUPTED  finished captures stay, the one at work is continued by the next run. */
KLD_NODISCARD kld_status kld_nightly_run(const kld_nightly_config *c, const char *label,
                                         json_t **summary, kld_err *err);

/* What kld_nightly_run would capture and what it would use again: a summary of captures alone.
 * Nothing is written.  A checkpoint that cannot be opened is an error, and in the summary. */
KLD_NODISCARD kld_status kld_nightly_plan(const kld_nightly_config *c, json_t **summary,
                                          kld_err *err);

/* Open everything that the run will: suite, device, every model (whether it can be run), history,
 * the capture of the floor.  What is wrong is said of every model; the first error is returned. */
KLD_NODISCARD kld_status kld_nightly_check(const kld_nightly_config *c, kld_err *err);

/* Append a summary as lines for a terminal or as Markdown. */
KLD_NODISCARD kld_status kld_nightly_text(const json_t *summary, bool markdown, kld_buf *out,
                                          kld_err *err);

KLD_EXTERN_C_END
#endif
