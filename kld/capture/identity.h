/* kld/capture/identity.h - what goes into a capture's header about a run.  Floor 3. */
#ifndef KLD_CAPTURE_IDENTITY_H
#define KLD_CAPTURE_IDENTITY_H
#include "datasets/partition.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* "org/name" as typed, or the last component of a path (of its real name when the path ends
 * in "." or ".."); owned. */
KLD_NODISCARD kld_status kld_identity_name(char **out, const char *model, kld_err *err);

/* "attention", "latent" (the projections to and from its latent vectors), "mlp", "experts",
 * "shared_expert", "router", "embedding", "head" or "norm". */
const char *kld_identity_module(kld_slot s);

/* {"attention": {"NVFP4": n, ...}, "experts": ..., "embedding": ..., "norm": ...}: number of
 * weights by module kind and format; kinds that the model lacks are absent; owned. */
KLD_NODISCARD kld_status kld_identity_quant(const kld_model *m, json_t **out, kld_err *err);

/* Digest of all of info that decides the result and of when the shards were last modified; ties
 * residual checkpoints to their run.  info knows the weights by headers and sizes only: other
 * weights of the same shape must not go on with the states of the first ones. */
KLD_NODISCARD kld_status kld_identity_run(const kld_capture_info *info, const kld_file *shards,
                                          size_t n_shards, kld_digest *out, kld_err *err);

/* Time of day in ISO 8601 UTC ($SOURCE_DATE_EPOCH when set, for reproducible files) and
 * host name; owned. */
KLD_NODISCARD kld_status kld_identity_place(char **time, char **host, kld_err *err);

/* Another capture of a suite and this run must hold the same windows of it.  KLD_E_INPUT: the
 * message says which each holds, and how to capture alike. */
KLD_NODISCARD kld_status kld_identity_partition(const kld_capture_info *other,
                                                const kld_suite *suite, kld_err *err);

KLD_EXTERN_C_END
#endif
