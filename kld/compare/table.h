/* kld/compare/table.h - a result as text.  Floor 3. */
#ifndef KLD_COMPARE_TABLE_H
#define KLD_COMPARE_TABLE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stdbool.h>

KLD_EXTERN_C_BEGIN

/* Append a table for people, made from the object of kld_compare_run; lines are at most 100
 * columns wide.  Escape sequences only when color.  Names are cut to fit, whole characters
 * only.  KLD_E_NOMEM; KLD_E_INTERNAL if the object lacks a field. */
KLD_NODISCARD kld_status kld_compare_table(const json_t *result, bool color, kld_buf *out,
                                           kld_err *err);

KLD_EXTERN_C_END
#endif
