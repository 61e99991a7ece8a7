/* loaders/head.h - a checkpoint's output head by itself: what it takes, beside hidden states, to
 * have the logits again.  Floor 1.
 *
 * A head has a digest: SHA-256 over its format, shape and every stored part (dtype, shape, bytes)
 * and over what the file's layout says beyond them, so that one head has one digest whatever its
 * tensors are called, in which shards they lie and whether it is tied.  The logit cap is not in it:
 * a capture names that itself. */
#ifndef KLD_LOADERS_HEAD_H
#define KLD_LOADERS_HEAD_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* Reads the head once, in pieces of 4 MiB.  KLD_E_INPUT a file that shrank; KLD_E_IO,
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_head_digest(const kld_model *m, kld_digest *out, kld_err *err);

/* dir/head-<first 12 hex digits>.safetensors, whether or not it exists; *out owned (kld_free). */
KLD_NODISCARD kld_status kld_head_path(char **out, const char *dir, const kld_digest *digest,
                                       kld_err *err);

/* KLD_E_UNSUPPORTED unless the head can be kept as a file of its own: one that is quantized cannot,
 * because how its input is quantized and what its codes mean is the checkpoint's to say, which must
 * be kept; nor can one whose rows are not those of the vocabulary. */
KLD_NODISCARD kld_status kld_head_keepable(const kld_model *m, kld_err *err);

/* Keep the head, whose digest this is, as a file of that path: lm_head.weight (and lm_head.bias)
 * as stored, with digest, logit cap and the checkpoint's name as metadata.  Atomic.  When the file
 * is there already, it is checked and left as it is.  *path owned (kld_free), NULL on failure.
 * KLD_E_UNSUPPORTED  see kld_head_keepable.
 * KLD_E_INPUT        a file of that name holds something else; a path that cannot be written.
 * KLD_E_IO, KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_head_save(const kld_model *m, const kld_digest *digest,
                                       const char *dir, char **path, kld_err *err);

/* A model whose head can be run: of a directory the whole checkpoint, of a file that kld_head_save
 * wrote one with nothing but config.hidden, vocab and logit_cap and the slot KLD_SLOT_HEAD.  *out
 * is owned: kld_model_free.  The digest is that of the bytes found, whatever the metadata say.
 * KLD_E_INPUT  not such a file, or the head has another digest: the message names both.
 * Of a directory also what kld_model_open says; KLD_E_IO, KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_head_open(kld_model **out, const char *path, const kld_digest *digest,
                                       kld_err *err);

KLD_EXTERN_C_END
#endif
