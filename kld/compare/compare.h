/* kld/compare/compare.h - captures -> statistics.  Floor 3.
 * Every number is defined in docs/metrics.md. */
#ifndef KLD_COMPARE_COMPARE_H
#define KLD_COMPARE_COMPARE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/compare/gates.h"
#include "kld/compare/options.h"
#include "kld/compare/table.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Compare candidates with one reference; the result is the JSON object of docs/metrics.md
 * (every table is rendered from it).  *out is owned (json_decref).  The object depends on the
 * files and options alone, not on threads.
 * KLD_E_INPUT  the captures do not belong together (tokenizer, suite, partition, vocabulary,
 *              positions, windows, reference, arithmetic), or the reference was itself captured
 * against a reference: one line naming the field and both values; or a damaged frame. All of it but
 * the frames is checked before anything is computed. KLD_E_USAGE  an option is out of range, or no
 * window is in the partition. Errors of kld_exact_run, when captures keep hidden states.
 * KLD_E_INTERRUPTED, KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_compare_run(const char *ref_path, const char *const *cand_paths,
                                         size_t n_cands, const kld_compare_options *opt,
                                         json_t **out, kld_err *err);

/* KLD_E_NUMERIC when a candidate of the result has no finite position ("valid" is false):
 * there is nothing to report about it, and a run must not end as if there were. */
KLD_NODISCARD kld_status kld_compare_valid(const json_t *result, kld_err *err);

KLD_EXTERN_C_END
#endif
