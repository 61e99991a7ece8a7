/* loaders/quant.h - the table of weight formats: how a logical W[rows][cols] lies on disk
 * and what it decodes to.  Floor 1. */
#ifndef KLD_LOADERS_QUANT_H
#define KLD_LOADERS_QUANT_H
#include "loaders/safetensors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* One row of the table each; a format is decided by the set of tensors under a prefix,
 * never by the config alone. */
typedef enum kld_format {
    KLD_FMT_BF16,
    KLD_FMT_F16,
    KLD_FMT_F32,
    KLD_FMT_NVFP4,       /* E2M1 codes, E4M3 scale a 16 block, FP32 global: multiply or divide */
    KLD_FMT_MXFP4,       /* E2M1 codes, E8M0 scale a 32 block */
    KLD_FMT_FP8_TENSOR,  /* E4M3, one scale */
    KLD_FMT_FP8_CHANNEL, /* E4M3, one scale a row */
    KLD_FMT_COUNT
} kld_format;

const char *kld_format_name(kld_format f); /* "NVFP4", "FP8 (per channel)" */

/* A logical matrix or vector; vectors have rows == n, cols == 1.  All pointers are
 * borrowed from the checkpoint. */
typedef struct kld_weight {
    kld_format format;
    size_t rows, cols;             /* logical, out x in */
    const kld_tensor *data;        /* dense values or codes */
    const kld_tensor *scale;       /* block, channel or tensor scales; NULL when dense */
    const kld_tensor *global;      /* NVFP4 FP32 global, else NULL */
    bool global_divides;           /* compressed-tensors: W = code * (scale / global) */
    const kld_tensor *bias;        /* [rows] dense, or NULL */
    const kld_tensor *input_scale; /* activation scale, recognised and kept, or NULL */
    /* Experts in one tensor: data, scale and bias are part `part` of `parts` equal ones; 0 = all. */
    size_t part, parts;
    bool in_major; /* dense values are stored as [cols][rows] */
    /* Stored rows are cut into `shards` equal shards of shard_rows[0] + [1] + [2] rows; decoded rows
     * are the first parts of all shards, then the second, then the third.  0 = as stored. */
    size_t shards, shard_rows[3];
} kld_weight;

/* The stored row that decoded row r comes from (data, scale and bias alike). */
static inline size_t kld_weight_stored_row(size_t shards, const size_t rows[3], size_t r) {
    size_t before = 0, all = rows[0] + rows[1] + rows[2];
    if (!shards) return r;
    for (int p = 0; p < 2 && r >= shards * rows[p]; p++) {
        r -= shards * rows[p];
        before += rows[p];
    }
    size_t width = before < rows[0] ? rows[0] : before < rows[0] + rows[1] ? rows[1] : rows[2];
    return r / width * all + before + r % width;
}

/* Rows as they are stored: what kld_weight_rows and kld_weight_check count. */
static inline size_t kld_weight_stored_rows(const kld_weight *w) {
    return w->in_major ? w->cols : w->rows;
}

/* Bytes of data + scale + global + bias as stored. */
uint64_t kld_weight_bytes(const kld_weight *w);

/* The stored parts of one weight in memory, as read from disk. */
typedef struct kld_weight_view {
    const unsigned char *data, *scale, *global;
} kld_weight_view;

/* Decode rows [row0, row0+n) into out[n][cols].
 *   dense     exact FP32 value
 *   NVFP4     fl32(fl(code*scale) * global), or / global when it divides; code*scale is
 *             exact, so there is one rounding; `unscaled` true leaves the
 *             global out (exact in BF16) and the caller multiplies its GEMM by
 *             kld_weight_alpha: this is how the engine represents the weight exactly
 *   MXFP4     exact;  FP8  fl32(code * scale), or the bare code when unscaled and the
 *             scale is per tensor
 * Pure, thread-safe.  Never fails: kld_weight_check has run. */
void kld_weight_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out);

/* The factor that `unscaled` left out: 1 for formats without one.  Needs the scalars of v. */
float kld_weight_alpha(const kld_weight *w, kld_weight_view v);

/* Where stored rows [row0, row0+n) lie in the data and scale tensors, in bytes.  A scale that is
 * one number for all rows (and the global scale) is given whole. */
typedef struct kld_weight_slice {
    uint64_t data_at, data_bytes, scale_at, scale_bytes;
} kld_weight_slice;
kld_weight_slice kld_weight_rows(const kld_weight *w, size_t row0, size_t n);

/* Where the bias lies in its tensor, in bytes; *bytes is 0 without one. */
uint64_t kld_weight_bias(const kld_weight *w, uint64_t *bytes);

/* Element i of a BF16, F16 or F32 tensor whose bytes are p, as FP32. */
float kld_scale_value(const kld_tensor *t, const unsigned char *p, size_t i);

/* Scan scales and dense values of stored rows [row0, row0+n); data and scale of v begin at row0 (see
 * kld_weight_rows).  KLD_E_INPUT for NaN or negative block scales, NaN or Inf
 * or non-positive global/tensor scale, E8M0 255; the message has tensor, count, first [r,c].
 * Non-finite dense values are counted into *nonfinite and are not an error here. */
KLD_NODISCARD kld_status kld_weight_check(const kld_weight *w, kld_weight_view v, size_t row0,
                                          size_t n, uint64_t *nonfinite, kld_err *err);

/* Of n rows at v, blocks whose scale is 0 although a code is not: what the writer lost to
 * underflow.  They decode to zeros, which is legal; 0 for formats without block scales or whose
 * scales have no zero. */
uint64_t kld_weight_zero_blocks(const kld_weight *w, kld_weight_view v, size_t n);

KLD_EXTERN_C_END
#endif
