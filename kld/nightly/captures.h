/* kld/nightly/captures.h - the captures of a run: used again, continued, or made.  Floor 4; private
 * to kld/nightly.
 * A capture lies at FOLDER/NAME-KEY.zst, KEY being the first 16 digits of the digest of what it is
 * made of.  So nothing finished is ever replaced by another checkpoint's capture, one that was
 * interrupted is continued by the run that wants the same, and a checkpoint that comes back finds
 * its capture. */
#ifndef KLD_NIGHTLY_CAPTURES_H
#define KLD_NIGHTLY_CAPTURES_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/nightly/config.h"
#include "kld/nightly/history.h"
#include "logits/select.h"
#include <stdbool.h>

typedef enum nightly_action {
    NIGHTLY_REUSED,
    NIGHTLY_CAPTURED,
    NIGHTLY_RESUMED,
    NIGHTLY_FAILED,
    NIGHTLY_SKIPPED /* needs a capture that failed */
} nightly_action;
const char *nightly_action_name(nightly_action a); /* "reused", ... */

typedef struct nightly_capture {
    nightly_action action;
    char *file, *path;        /* owned; NULL before they are known */
    json_t *key;              /* owned or NULL */
    const char *why;          /* static; why it is not the one that was there */
    kld_digest model, digest; /* of the checkpoint, of the content; zero when unknown */
    bool known, done;         /* model is known; the capture is there, and digest its content's */
    kld_err err;              /* of one that failed or was skipped */
    double seconds;
} nightly_capture;

typedef struct nightly_captures {
    const kld_nightly_config *config;
    kld_choice where;
    kld_digest suite;
    kld_history *history;  /* may be NULL */
    char *folder;          /* owned */
    nightly_capture *item; /* owned [config->n_items] */
} nightly_captures;

/* Reads the suite and chooses the device: without them no capture can be made, and their errors
 * are the run's. */
KLD_NODISCARD kld_status nightly_captures_open(nightly_captures *c,
                                               const kld_nightly_config *config,
                                               kld_history *history, kld_err *err);
void nightly_captures_free(nightly_captures *c);

/* All of them in order, or with dry only what would be done.  A capture that fails is noted in its
 * place and the others go on.
 * KLD_E_INTERRUPTED; KLD_E_NOMEM and KLD_E_IO of the bookkeeping alone. */
KLD_NODISCARD kld_status nightly_captures_run(nightly_captures *c, bool dry, kld_err *err);

/* Remove captures and partials of the folder that are no item's and not in keep (texts). */
KLD_NODISCARD kld_status nightly_captures_prune(const nightly_captures *c, const json_t *keep,
                                                kld_err *err);

#endif
