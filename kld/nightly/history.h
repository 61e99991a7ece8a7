/* kld/nightly/history.h - what earlier runs measured, in an SQLite database.  Floor 4.
 * Tables: docs/nightly.md.  One writer at a time; a plain rollback journal, so that a history is
 * one file between runs and works on network file systems. */
#ifndef KLD_NIGHTLY_HISTORY_H
#define KLD_NIGHTLY_HISTORY_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

enum { KLD_HISTORY_VERSION = 1 };

typedef struct kld_history kld_history;

/* Open, and check every page.  When the file is absent: created with `create`, else *out is NULL,
 * which the functions that read take for an empty history.  A file that is refused is not changed.
 * KLD_E_INPUT        damaged, or a database of another program
 * KLD_E_UNSUPPORTED  written by a later version of kld
 * KLD_E_IO           cannot be opened, created or locked within ten seconds
 * Errors of the functions below: KLD_E_INPUT damaged, KLD_E_IO, KLD_E_NOMEM; messages begin with
 * the path. */
KLD_NODISCARD kld_status kld_history_open(kld_history **out, const char *path, bool create,
                                          kld_err *err);
void kld_history_close(kld_history *h);

/* What makes values of two runs comparable: hex digests. */
typedef struct kld_history_place {
    const char *suite, *reference, *settings;
} kld_history_place;

/* One run, its captures and its candidates, from the summary that kld_nightly_run gives; all of it
 * or nothing. */
KLD_NODISCARD kld_status kld_history_record(kld_history *h, const json_t *summary, kld_err *err);

/* The newest run in which the candidate passed; one that is comparable goes before newer ones that
 * are not.  *out is owned, NULL without any:
 * {"time", "directory", "suite", "reference", "settings", "digest", "file", "kl_mean",
 *  "metrics": {...}}. */
KLD_NODISCARD kld_status kld_history_last_good(kld_history *h, const char *candidate,
                                               const kld_history_place *now, json_t **out,
                                               kld_err *err);

/* The last `limit` comparable runs of a candidate, oldest first: *out is an owned array of
 * {"time", "label", "kl_mean", "kl_ci95": [lo, hi] or null, "gate": outcome}. */
KLD_NODISCARD kld_status kld_history_trend(kld_history *h, const char *candidate,
                                           const kld_history_place *now, size_t limit, json_t **out,
                                           kld_err *err);

/* What the last finished capture of that name was made of (its "key"); owned, NULL without any. */
KLD_NODISCARD kld_status kld_history_key(kld_history *h, const char *capture, json_t **out,
                                         kld_err *err);

/* Names of the capture files of each candidate's last good run: an owned array of texts. */
KLD_NODISCARD kld_status kld_history_good_files(kld_history *h, json_t **out, kld_err *err);

KLD_EXTERN_C_END
#endif
