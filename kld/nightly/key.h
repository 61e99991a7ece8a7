/* kld/nightly/key.h - what a capture is made of, so that an unchanged one is used again.  Floor 4;
 * private to kld/nightly. */
#ifndef KLD_NIGHTLY_KEY_H
#define KLD_NIGHTLY_KEY_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/nightly/config.h"
#include "logits/select.h"

/* What the file says of a checkpoint without reading its weights. */
typedef struct nightly_stamp {
    kld_digest model; /* kld_checkpoint digest */
    kld_digest times; /* of when its shards were last modified, and of its other files */
} nightly_stamp;
/* Errors of kld_hub_resolve and kld_checkpoint_open. */
KLD_NODISCARD kld_status nightly_stamp_of(const char *model, nightly_stamp *out, kld_err *err);

/* Everything that decides the bytes of the item's capture, as an owned object: "checkpoint",
 * "weights" (every byte with hash full, else times of modification), "suite", "reference",
 * "routes", "engine" (version and commit included), "settings", "names"; and its digest.  reference
 * and routes are content digests of captures, or NULL. With hash full every byte of the checkpoint
 * is read. */
KLD_NODISCARD kld_status nightly_key(const kld_nightly_item *item, const kld_choice *where,
                                     const nightly_stamp *stamp, const kld_digest *suite,
                                     const kld_digest *reference, const kld_digest *routes,
                                     json_t **out, kld_digest *digest, kld_err *err);

/* Why a capture with the key `now` is not the one with the key `before`: "the checkpoint changed",
 * ...; "there is none yet" without one before. */
const char *nightly_key_change(const json_t *before, const json_t *now);

#endif
