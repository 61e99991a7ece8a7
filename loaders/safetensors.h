/* loaders/safetensors.h - the header of one safetensors file, checked.
 * Floor 1; may include kld/base only.  Source of the rules: huggingface/safetensors
 * README and tensor.rs; docs/checkpoints.md lists them. */
#ifndef KLD_LOADERS_SAFETENSORS_H
#define KLD_LOADERS_SAFETENSORS_H
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_dtype {
    KLD_BOOL,
    KLD_U8,
    KLD_I8,
    KLD_F8_E4M3,
    KLD_F8_E5M2,
    KLD_F8_E8M0,
    KLD_F8_E4M3FNUZ,
    KLD_F8_E5M2FNUZ,
    KLD_I16,
    KLD_U16,
    KLD_F16,
    KLD_BF16,
    KLD_I32,
    KLD_U32,
    KLD_F32,
    KLD_I64,
    KLD_U64,
    KLD_F64,
    KLD_C64,
    KLD_F4,
    KLD_F6_E2M3,
    KLD_F6_E3M2,
    KLD_DTYPE_COUNT
} kld_dtype;

const char *kld_dtype_name(kld_dtype t); /* as written in headers: "BF16" */
unsigned kld_dtype_bits(kld_dtype t);    /* bits an element */

enum { KLD_MAX_RANK = 8 };

typedef struct kld_tensor {
    const char *name; /* borrowed from the owner's arena */
    kld_dtype dtype;
    unsigned rank;                /* 0 is a scalar */
    uint64_t shape[KLD_MAX_RANK]; /* outermost first */
    uint64_t offset;              /* absolute byte offset in the file */
    uint64_t bytes;
    uint32_t shard; /* index into the checkpoint's shard list; 0 in a single file */
} kld_tensor;

/* Parse and check the header of an open file; every rule that fails is one
 * KLD_E_INPUT line naming the file, the tensor and the numbers.
 *  tensors  [*n] in order of offset, allocated in `arena`, shard = `shard`
 *  header_sha256 of the 8-byte length and the header text, when not NULL */
struct kld_digest;
KLD_NODISCARD kld_status kld_safetensors_header(const kld_file *f, uint32_t shard, kld_arena *arena,
                                                kld_tensor **tensors, size_t *n,
                                                struct kld_digest *header_sha256, kld_err *err);

/* The same from memory: `head` holds the first head_len bytes of a file of file_size
 * bytes (head_len >= 8 + header length, or the header is reported as truncated). */
KLD_NODISCARD kld_status kld_safetensors_parse(const char *path, const unsigned char *head,
                                               size_t head_len, uint64_t file_size, uint32_t shard,
                                               kld_arena *arena, kld_tensor **tensors, size_t *n,
                                               kld_err *err);

KLD_EXTERN_C_END
#endif
