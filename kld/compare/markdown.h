/* kld/compare/markdown.h - a result for model cards and CI summaries.  Floor 3. */
#ifndef KLD_COMPARE_MARKDOWN_H
#define KLD_COMPARE_MARKDOWN_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

/* Append GitHub-flavoured Markdown made from the object of kld_compare_run alone; fields that it
 * lacks are left out.  docs/report.md says what is shown.
 * A candidate whose routes were replayed and that is the BxQ of another is not a row: its numbers
 * stand beside that candidate's.  Names are text whatever they hold: no markup, link, mention or
 * line break of theirs survives.
 * KLD_E_NOMEM; KLD_E_INTERNAL if it is not the result of a comparison. */
KLD_NODISCARD kld_status kld_compare_markdown(const json_t *result, kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
