/* kld/nightly/publish.h - the files of a run.  Floor 4; private to kld/nightly. */
#ifndef KLD_NIGHTLY_PUBLISH_H
#define KLD_NIGHTLY_PUBLISH_H
#include "kld/base/ed25519.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/nightly/config.h"

/* Make OUTPUT/runs/20261203T020000Z for a time in ISO 8601 (with -02, ... when the name is taken);
 * *name is "runs/...", owned. */
KLD_NODISCARD kld_status nightly_folder(const char *output, const char *time, char **name,
                                        kld_err *err);

/* Write every file that is asked for, each whole or not at all, into OUTPUT/FOLDER and to its
 * second place.  Without a result (nothing could be compared) there are only the summary as JSON
 * and Markdown, JUnit and Prometheus.
 *  history  of kld_compare_html
 *  sign     signs the receipt; NULL = unsigned */
KLD_NODISCARD kld_status nightly_publish(const kld_nightly_config *c, const char *folder,
                                         const json_t *summary, const json_t *result,
                                         const json_t *history, const kld_key *sign, kld_err *err);

/* Let OUTPUT/latest point to the folder, and remove the oldest folders of runs but `keep`.  What
 * goes wrong is said on the log: the reports are written by now. */
void nightly_publish_latest(const kld_nightly_config *c, const char *folder);

#endif
