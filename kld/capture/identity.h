/* kld/capture/identity.h - what goes into a capture's header about a run.  Floor 3. */
#ifndef KLD_CAPTURE_IDENTITY_H
#define KLD_CAPTURE_IDENTITY_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* "org/name" as typed, or the last component of a path (of its real name when the path ends
 * in "." or ".."); owned. */
KLD_NODISCARD kld_status kld_identity_name(char **out, const char *model, kld_err *err);

/* {"attention": {"NVFP4": n, ...}, "mlp": ..., "embedding": ..., "head": ..., "norm": ...}:
 * number of weights by module kind and format; owned. */
KLD_NODISCARD kld_status kld_identity_quant(const kld_model *m, json_t **out, kld_err *err);

/* Digest of all of info that decides the result; ties residual checkpoints to their run. */
KLD_NODISCARD kld_status kld_identity_run(const kld_capture_info *info, kld_digest *out,
                                          kld_err *err);

/* Time of day in ISO 8601 UTC ($SOURCE_DATE_EPOCH when set, for reproducible files) and
 * host name; owned. */
KLD_NODISCARD kld_status kld_identity_place(char **time, char **host, kld_err *err);

KLD_EXTERN_C_END
#endif
