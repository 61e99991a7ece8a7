/* loaders/encode.h - round-to-nearest encoders of FP4 weights, as the public exporters
 * write them.  Floor 1; pure, thread-safe, no allocation.
 *
 * Notation: fl is rounding to FP32, e4m3 to the nearest E4M3 (ties to even), e2m1 to the
 * nearest E2M1 (ties to the even code), saturating at 6.  Every operation is FP32.  A
 * code has its sign bit set exactly when the scaled value is below 0, so small negatives
 * give code 8 (-0) and an input of -0 gives code 0 (the roundings are in numfmt.h).
 *
 * Inputs must be finite: a caller that has not checked gets defined, but meaningless,
 * codes. */
#ifndef KLD_LOADERS_ENCODE_H
#define KLD_LOADERS_ENCODE_H
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Which exporter's NVFP4 arithmetic.
 *
 * MODELOPT  (nvidia-modelopt 0.47, NVFP4QTensor.quantize; weight_scale_2 multiplies)
 *   global = amax / 2688                              2688 = 6 * 448
 *   scale  = e4m3(clamp(amax_block / fl(6 * global), 2^-9, 448)), where a quotient of 0
 *            becomes 1 before the clamp: a block of zeros is stored with scale 1
 *   code   = e2m1(x / fl(scale * global))
 *
 * CT        (compressed-tensors 0.20, generate_gparam and calculate_qparams on an FP32
 *            weight; weight_global_scale divides)
 *   global = fl(2688 * fl(1 / amax)); not finite becomes 1
 *   scale  = e4m3(clamp(global * fl(amax_block / 6), 0, 448)); 0 becomes 0.125
 *   code   = e2m1(x / fl(scale / global))
 *
 * CT_BF16   the same for a BF16 weight, in whose dtype that library computes:
 *   1 / amax, the global and amax_block / 6 are each rounded to BF16 */
typedef enum kld_nvfp4_rule { KLD_NVFP4_MODELOPT, KLD_NVFP4_CT, KLD_NVFP4_CT_BF16 } kld_nvfp4_rule;

/* Largest magnitude of n values; 0 when n is 0.  NaN is passed over. */
float kld_amax(const float *x, size_t n);

/* The global scale for the largest magnitude of every weight that shares it (q/k/v; gate
 * and up).  An amax of 0 gives 1 for MODELOPT, because a file with a global of 0 is
 * refused by kld_weight_check. */
float kld_nvfp4_global(kld_nvfp4_rule rule, float amax);

/* n values, a multiple of 16, in row order.
 *  codes   [n/2]   low nibble first
 *  scales  [n/16]  E4M3 bytes, positive */
void kld_encode_nvfp4(kld_nvfp4_rule rule, const float *x, size_t n, float global,
                      unsigned char *codes, unsigned char *scales);

/* n values, a multiple of 32, in row order (compressed-tensors 0.20, mxfp4-pack-quantized):
 *   exponent = floor(log2(amax_block)) - 2, plus 1 when the mantissa of amax_block is 1.75
 *              or more, at least -127; a block of zeros has byte 0
 *   code     = e2m1(x / 2^exponent); values above 6 saturate
 *  codes   [n/2]   low nibble first
 *  scales  [n/32]  E8M0 bytes, exponent + 127 */
void kld_encode_mxfp4(const float *x, size_t n, unsigned char *codes, unsigned char *scales);

KLD_EXTERN_C_END
#endif
