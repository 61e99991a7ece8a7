/* loaders/actquant.h - how the inputs of a quantized product are quantized.  Floor 1.
 *
 * A checkpoint with quantized activations is served by kernels that round the input of a product
 * to small codes while it runs.  A kld_act_quant says with which arithmetic; the arithmetic itself
 * is in loaders/actnum.h, shared by every back end.  The file does not say which kernel will run:
 * a caller prints what it chose (kld_act_format_name). */
#ifndef KLD_LOADERS_ACTQUANT_H
#define KLD_LOADERS_ACTQUANT_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Formulas: actnum.h.  amax is the largest magnitude of the block. */
typedef enum kld_act_format {
    KLD_AQ_NONE,       /* values as they are */
    KLD_AQ_NVFP4,      /* E2M1 codes, E4M3 scale a 16 block, one global scale */
    KLD_AQ_MXFP4,      /* E2M1 codes, E8M0 scale a 32 block */
    KLD_AQ_MXFP8,      /* E4M3 codes, E8M0 scale a 32 block */
    KLD_AQ_FP8_TENSOR, /* E4M3 codes, one static scale */
    KLD_AQ_FP8_TOKEN,  /* E4M3 codes, amax/448 of the row */
    KLD_AQ_FP8_BLOCK,  /* E4M3 codes, amax/448 of 128 columns, or the power of two above it */
    KLD_AQ_COUNT
} kld_act_format;

/* Exponent of an MX scale, emax being 2 for E2M1 and 8 for E4M3.
 *   FLOOR  floor(log2 amax) - emax: OCP MX v1.0; saturates what lies above the largest code
 *   EVEN   FLOOR, plus 1 when the significand of amax is 1.75 or more: compressed-tensors
 *          (quantization/utils/mxfp_utils.py), Quark
 *   CEIL   ceil(log2(amax / 6)) or ceil(log2(amax / 448)), exactly: ModelOpt (qtensor/
 *          mxfp8_tensor.py), NVIDIA's kernels; never saturates */
typedef enum kld_aq_exponent { KLD_AQ_FLOOR, KLD_AQ_EVEN, KLD_AQ_CEIL } kld_aq_exponent;

typedef struct kld_act_quant {
    kld_act_format format;
    /* NVFP4: SF, that is 1 / input_scale (ModelOpt) or input_global_scale (compressed-tensors).
     * FP8_TENSOR: s, the input_scale.  Not read otherwise. */
    float scale;
    kld_aq_exponent exponent; /* MXFP4, MXFP8 */
    bool power_of_two;        /* FP8_BLOCK: scale_fmt ue8m0 */
    /* FP8_TOKEN, FP8_BLOCK: an amax other than 0 counts as this at least.  DeepSeek-V3's
     * inference/kernel.py has 1e-4; 0 for none. */
    float eps;
} kld_act_quant;

const char *kld_act_format_name(kld_act_format f); /* "NVFP4", "FP8 (per token)" */

/* Columns that share a scale: 16, 32 or 128; 0 for the formats without blocks in a row. */
size_t kld_act_block(kld_act_format f);

/* Whether rows of `cols` values can be quantized so.  KLD_E_INPUT when cols is not a multiple of
 * the block of NVFP4, MXFP4 or MXFP8 (the last block of FP8_BLOCK may be partial), when a scale
 * that is used is not within [2^-100, 2^100] (zero, infinite and NaN ones of layers without
 * calibration among them), or when eps is negative or not finite.  KLD_E_UNSUPPORTED for an unknown
 * format. */
KLD_NODISCARD kld_status kld_act_check(const kld_act_quant *a, size_t cols, kld_err *err);

/* Whether both make the same of any input. */
bool kld_act_same(const kld_act_quant *a, const kld_act_quant *b);

/* The factor that the quantized values leave out and that multiplies the product:
 *   NVFP4       fl(1 / SF); for an SF that is 1 / input_scale, within an ulp of input_scale
 *   FP8_TENSOR  s
 *   others      1 */
float kld_act_alpha(const kld_act_quant *a);

KLD_EXTERN_C_END
#endif
