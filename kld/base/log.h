/* kld/base/log.h - messages for the person at the terminal, on stderr, and a progress
 * line.  Floor 0.  Results never go through here. */
#ifndef KLD_BASE_LOG_H
#define KLD_BASE_LOG_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_log_level { KLD_LOG_QUIET, KLD_LOG_NORMAL, KLD_LOG_VERBOSE } kld_log_level;

/* Process-wide level, set once by the program before any thread starts. */
void kld_log_set_level(kld_log_level level);

/* "kld: text", "kld: warning: text"; verbose text only at KLD_LOG_VERBOSE.  A progress
 * line on the terminal is cleared first. */
KLD_PRINTF(1, 2) void kld_note(const char *fmt, ...);
KLD_PRINTF(1, 2) void kld_warn(const char *fmt, ...);
KLD_PRINTF(1, 2) void kld_debug(const char *fmt, ...);
void kld_print_error(const kld_err *err); /* "kld: error: text", also when quiet */

/* One progress line at a time, from 0 to total steps; the rate shown is in units of `per` steps.
 * On a terminal it is redrawn at most ten times a second; elsewhere one plain line is written
 * per 10 %.  Nothing when quiet.  label and unit are borrowed until the end. */
void kld_progress_begin(const char *label, uint64_t total, uint64_t per, const char *unit);
void kld_progress_set(uint64_t done);
void kld_progress_end(void); /* clears the line */

/* Seconds on the monotonic clock. */
double kld_seconds(void);

/* SIGINT and SIGTERM set a flag that long loops poll; a second signal ends the program.
 * kld_stop_check returns KLD_E_INTERRUPTED once it is set. */
void kld_stop_install(void);
bool kld_stop_requested(void);
KLD_NODISCARD kld_status kld_stop_check(kld_err *err);

/* True when stdout/stderr may be coloured: a terminal, and NO_COLOR is not set. */
bool kld_color(bool for_stdout);

KLD_EXTERN_C_END
#endif
