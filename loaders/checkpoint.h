/* loaders/checkpoint.h - a checkpoint directory: config, shards, tensors by name.
 * Floor 1. */
#ifndef KLD_LOADERS_CHECKPOINT_H
#define KLD_LOADERS_CHECKPOINT_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "loaders/safetensors.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Turn what the user typed into a directory: a path that exists is taken as it is;
 * otherwise `org/name` is looked up in the Hugging Face cache ($HF_HUB_CACHE, else
 * $HF_HOME/hub, else ~/.cache/huggingface/hub): models--org--name/refs/main -> snapshots/REV.
 *  *dir owned (kld_free).
 * KLD_E_INPUT  neither exists; the message says what was looked for and the command that
 *              downloads it (hf download org/name). */
KLD_NODISCARD kld_status kld_hub_resolve(const char *model, char **dir, kld_err *err);

typedef struct kld_checkpoint {
    char *dir;          /* owned */
    json_t *config;     /* owned; config.json */
    json_t *generation; /* owned; generation_config.json or NULL */
    json_t *hf_quant;   /* owned; hf_quant_config.json or NULL */
    kld_file *shards;   /* [n_shards] open */
    size_t n_shards;
    kld_tensor *tensors; /* [n_tensors] sorted by name; only those the index maps */
    size_t n_tensors;
    uint64_t total_bytes; /* of those tensors */
    size_t n_superseded;  /* copies of a tensor in a shard the index does not map it to */
    size_t n_unmapped;    /* tensors of those shards that the index does not name at all */
    kld_digest digest;    /* identity: config.json bytes, index bytes, and of every shard its
                             name, size and header bytes, in index order */
    kld_arena arena;
} kld_checkpoint;

/* Reads config.json and every shard header; no tensor data.  Which files: the index
 * model.safetensors.index.json if present (an allow-list; its files must be plain names of
 * existing files and must hold the tensors mapped to them), else model.safetensors, else
 * the only *.safetensors file.
 * KLD_E_INPUT  any defect, in one line with file and tensor. */
KLD_NODISCARD kld_status kld_checkpoint_open(kld_checkpoint *c, const char *dir, kld_err *err);
void kld_checkpoint_close(kld_checkpoint *c);

/* NULL when absent. */
const kld_tensor *kld_checkpoint_find(const kld_checkpoint *c, const char *name);

/* `bytes` bytes at `offset` within the tensor, into dst.  Thread-safe. */
KLD_NODISCARD kld_status kld_checkpoint_read(const kld_checkpoint *c, const kld_tensor *t,
                                             uint64_t offset, void *dst, size_t bytes,
                                             kld_err *err);
/* All of it will be read soon. */
void kld_checkpoint_hint(const kld_checkpoint *c, const kld_tensor *t);

/* SHA-256 over every byte of every shard, index order ("--hash full"). */
KLD_NODISCARD kld_status kld_checkpoint_hash_full(const kld_checkpoint *c, kld_digest *out,
                                                  kld_err *err);

/* kld_output_not_input for every shard. */
KLD_NODISCARD kld_status kld_checkpoint_not_output(const kld_checkpoint *c, const char *output,
                                                   kld_err *err);

KLD_EXTERN_C_END
#endif
