/* kld/base/place.h - where and when a run happens, and which files are one.  Floor 0.  Strings are
 * owned (kld_free). */
#ifndef KLD_BASE_PLACE_H
#define KLD_BASE_PLACE_H
#include "kld/base/status.h"
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* "2026-01-31T12:00:00Z"; $SOURCE_DATE_EPOCH (seconds) takes the place of the clock when it
 * is set, as reproducible builds do.  KLD_E_USAGE if that is not a number. */
KLD_NODISCARD kld_status kld_utc_now(char **out, kld_err *err);
/* The same in seconds since 1970. */
KLD_NODISCARD kld_status kld_utc_seconds(int64_t *out, kld_err *err);
KLD_NODISCARD kld_status kld_host_name(char **out, kld_err *err);

/* Absolute path without links, "." or "..".  KLD_E_INPUT when it does not exist. */
KLD_NODISCARD kld_status kld_path_real(char **out, const char *path, kld_err *err);

/* KLD_E_INPUT when both names are one existing file (by link or not): writing the output would
 * destroy the input.  Fine when input is NULL. */
KLD_NODISCARD kld_status kld_output_not_input(const char *output, const char *input, kld_err *err);

KLD_EXTERN_C_END
#endif
