/* loaders/quant.h - the table of weight formats: how a logical W[rows][cols] lies on disk
 * and what it decodes to.  Floor 1. */
#ifndef KLD_LOADERS_QUANT_H
#define KLD_LOADERS_QUANT_H
#include "loaders/actquant.h"
#include "loaders/numfmt.h"
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
    KLD_FMT_FP8_BLOCK,   /* E4M3, one scale a block_rows x block_cols block; edge blocks partial */
    KLD_FMT_MXFP8,       /* E4M3 codes, E8M0 scale a 32 block */
    /* Integers, to the end.  W = (q - z) * s; scales (and zeros) are one a row and group of
       columns. */
    KLD_FMT_INT8,        /* I8 [rows][cols], two's complement, z = 0 */
    KLD_FMT_INT4_PACKED, /* bit stream along cols in 32-bit words, each row padded to whole words;
                            q + 8 is stored.  Zeros as q, a stream along rows, [words][groups] */
    KLD_FMT_INT8_PACKED, /* the same with 8 bits, q + 128 */
    KLD_FMT_INT4_PAIRS,  /* U8 [rows/2][cols]: row 2r in the low nibble, two's complement, z = 0 */
    KLD_FMT_AWQ,         /* I32 [cols][rows/8], unsigned 4 bits in AWQ's order of rows; zeros
                            [groups][rows/8] alike, scales [groups][rows] */
    KLD_FMT_GPTQ4,       /* I32 [cols*4/32][rows], unsigned, low bits first; zeros
                            [groups][rows*4/32] as stream along rows, scales [groups][rows] */
    KLD_FMT_GPTQ8,       /* the same with 8 bits */
    KLD_FMT_COUNT
} kld_format;

const char *kld_format_name(kld_format f); /* "NVFP4", "FP8 (per channel)" */

/* A logical matrix or vector; vectors have rows == n, cols == 1.  All pointers are
 * borrowed from the checkpoint. */
typedef struct kld_weight {
    kld_format format;
    size_t rows, cols;        /* logical, out x in */
    const kld_tensor *data;   /* dense values or codes */
    const kld_tensor *scale;  /* block, channel or tensor scales; NULL when dense */
    const kld_tensor *global; /* NVFP4 FP32 global, else NULL */
    bool global_divides;      /* compressed-tensors: W = code * (scale / global) */
    /* Columns that share a scale: 16, 32, an FP8 block's width, an integer group's; 0 when the
     * format has none.  Rows that do: an FP8 block's height. */
    size_t block_cols, block_rows;
    size_t groups;            /* integers: scales a row */
    const kld_tensor *zeros;  /* integers: stored zero points, NULL: z is the middle of the codes */
    const kld_tensor *index;  /* I32 [cols]: group of each column; NULL: column / block_cols */
    const kld_tensor *extent; /* I64 or I32 [2] of compressed-tensors: rows, cols; or NULL */
    unsigned zero_add;        /* added to a stored zero point modulo 2^bits: 1 for GPTQ v1 */
    bool symmetric;           /* the config says that every zero point is the middle */
    const kld_tensor *bias;   /* [rows] dense, or NULL */
    const kld_tensor *pre;    /* [cols] dense: multiplies the input of its products, or NULL */
    const kld_tensor *input_scale; /* activation scale, recognised and kept, or NULL */
    /* How the checkpoint says that the input of its products is quantized: none until loaders/
     * act_declared.h fills it in.  act_refused: what is declared and not emulated, or NULL. */
    kld_act_quant act;
    const char *act_refused;
    bool in_major; /* dense values are stored as [cols][rows] */
    /* Stored rows are cut into `shards` equal shards of shard_rows[0] + [1] + [2] rows; decoded
     * rows are the first parts of all shards, then the second, then the third.  FP8 blocks begin
     * anew in every shard.  0 = as stored. */
    size_t shards, shard_rows[3];
} kld_weight;

/* The stored row that decoded row r comes from (data and bias alike). */
KLD_NUM size_t kld_shard_row(size_t shards, const size_t *rows, size_t r) {
    size_t before = 0, all = rows[0] + rows[1] + rows[2];
    int p = 0;
    if (!shards) return r;
    for (; p < 2 && r >= shards * rows[p]; p++) {
        r -= shards * rows[p];
        before += rows[p];
    }
    return r / rows[p] * all + before + r % rows[p];
}

/* The row of scales of an FP8 block that stored row r is in. */
KLD_NUM size_t kld_block_row(size_t shards, const size_t *rows, size_t height, size_t r) {
    size_t all = rows[0] + rows[1] + rows[2];
    if (!shards) return r / height;
    return r / all * ((all + height - 1) / height) + r % all / height;
}

/* The stored tensors a weight is decoded from. */
typedef enum kld_part {
    KLD_PART_DATA,
    KLD_PART_SCALE,
    KLD_PART_GLOBAL,
    KLD_PART_ZEROS,
    KLD_PART_INDEX,
    KLD_PART_BIAS,
    KLD_PART_PRE,
    KLD_PART_COUNT
} kld_part;
const kld_tensor *kld_weight_part(const kld_weight *w, kld_part part); /* NULL: has none */

/* Bytes of all parts as stored. */
uint64_t kld_weight_bytes(const kld_weight *w);
/* Bits of an integer code: 4 or 8; 0 for other formats. */
static inline unsigned kld_format_bits(kld_format f) {
    bool eight = f == KLD_FMT_INT8 || f == KLD_FMT_INT8_PACKED || f == KLD_FMT_GPTQ8;
    return eight ? 8 : f >= KLD_FMT_INT8 && f < KLD_FMT_COUNT ? 4 : 0;
}

/* Whether a row is decoded from bytes of its own (and scales): what an embedding needs. */
static inline bool kld_format_by_row(kld_format f) { return f < KLD_FMT_INT4_PAIRS; }

/* The stored parts of one weight in memory, as read from disk. */
typedef struct kld_weight_view {
    const unsigned char *data, *scale, *global, *zeros, *index;
} kld_weight_view;

/* Decode rows [row0, row0+n) into out[n][cols].
 *   dense     exact FP32 value
 *   NVFP4     fl32(fl(code*scale) * global), or / global when it divides; code*scale is
 *             exact, so there is one rounding; `unscaled` true leaves the
 *             global out (exact in BF16) and the caller multiplies its GEMM by
 *             kld_weight_alpha: this is how the engine represents the weight exactly
 *   MXFP4, MXFP8  exact
 *   FP8       fl32(code * scale), or the bare code when unscaled and the scale is per tensor
 *   integers  fl32((q - z) * s): exact with an F16 or BF16 scale, else one rounding
 * Every part is there whole.  Pure, thread-safe.  Never fails: the checks below have run. */
void kld_weight_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out);

/* The factor that `unscaled` left out: 1 for formats without one.  Needs the scalars of v. */
float kld_weight_alpha(const kld_weight *w, kld_weight_view v);

/* How to read a weight in pieces.  `data` is cut into lines: rows, or what its first stored
 * dimension counts when rows are not contiguous (cols of AWQ and of in_major, words of GPTQ, pairs
 * of rows).
 * Scales that belong to rows are cut with them; scalars are given whole with every cut.  Other
 * parts are read by themselves, by elements (see kld_weight_aside). */
size_t kld_weight_lines(const kld_weight *w);
/* Where lines [line0, line0+n) lie in the stored data and scale tensors, in bytes. */
typedef struct kld_weight_slice {
    uint64_t data_at, data_bytes, scale_at, scale_bytes;
} kld_weight_slice;
kld_weight_slice kld_weight_cut(const kld_weight *w, size_t line0, size_t n);
/* The part is there and is not read with the lines of data. */
bool kld_weight_aside(const kld_weight *w, kld_part part);

/* Element i of a tensor of scales whose bytes are p, as FP32: BF16, F16, F32, or E8M0 stored as
 * F8_E8M0 or U8. */
float kld_scale_value(const kld_tensor *t, const unsigned char *p, size_t i);

/* Scan what was cut for lines [line0, line0+n); data and scale of v begin at line0.
 * KLD_E_INPUT for NaN or negative block scales, NaN or Inf or non-positive global/tensor scale,
 * E8M0 255, scales that are not finite or are negative; the message has tensor, count, first
 * [r,c].  Non-finite dense and FP8 values are counted into *nonfinite and are no error here. */
KLD_NODISCARD kld_status kld_weight_check(const kld_weight *w, kld_weight_view v, size_t line0,
                                          size_t n, uint64_t *nonfinite, kld_err *err);

/* Scan elements [first, first+n) of a part that is read aside; p begins at first.
 * KLD_E_INPUT for scales as above, for factors of the input that are not finite, for a group index
 * outside [0, groups), and for GPTQ zero points that are all one off the middle although the config
 * says symmetric: then checkpoint_format is wrong.  An index of compressed-tensors that is -1
 * throughout is unset and legal. */
KLD_NODISCARD kld_status kld_weight_check_aside(const kld_weight *w, kld_part part,
                                                const unsigned char *p, uint64_t first, uint64_t n,
                                                kld_err *err);

/* Of n rows at v, blocks whose scale is 0 although a code is not: what the writer lost to
 * underflow.  They decode to zeros, which is legal; 0 for formats without block scales or whose
 * scales have no zero. */
uint64_t kld_weight_zero_blocks(const kld_weight *w, kld_weight_view v, size_t n);

KLD_EXTERN_C_END
#endif
