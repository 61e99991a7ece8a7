/* loaders/actnum.h - the arithmetic of activation quantization: magnitudes of a block -> scale ->
 * code -> value.  Floor 1; C and CUDA, the same bits in both.
 *
 * fl is rounding to FP32, e4m3 and e2m1 to the nearest code (numfmt.h: ties to even, saturating at
 * 448 and 6); all operations are FP32 and correctly rounded.  amax = max |x| over the block, exact.
 *
 *   NVFP4       sf    = e4m3(fl(SF * fl(amax * fl(1/6))))
 *               r     = fl(1 / fl(sf * fl(1/SF))), 0 when sf is 0
 *               value = e2m1(fl(x * r)) * sf, exact; 1/SF is left to kld_act_alpha
 *               vLLM (quantization/utils/nvfp4_emulation_utils.py), FlashInfer
 *               (tensorrt_llm/kernels/quantization_utils.cuh).  Kernels take the hardware's
 *               approximate reciprocal; here it is the correctly rounded one, so a code may differ
 *               where fl(x * r) is within an ulp or two of a tie.
 *   MXFP4       value = e2m1(x * 2^-e) * 2^e, exact; e from amax by kld_aq_exponent, at least -127
 *   MXFP8       value = e4m3(x * 2^-e) * 2^e, likewise
 *   FP8_TENSOR  value = e4m3(fl(x / s)), exact; s is left to kld_act_alpha
 *               vLLM and compressed-tensors, static scheme
 *   FP8_TOKEN   s = fl(max(amax, eps) / 448) of the row; value = fl(e4m3(fl(x / s)) * s)
 *               compressed-tensors, strategy token
 *   FP8_BLOCK   the same of 128 columns, or with power_of_two s = 2^ceil(log2(max(amax, eps)/448)),
 *               the exponent being exact and at least -127; then the value is exact as well
 *               DeepSeek-V3 (inference/kernel.py, act_quant)
 *
 * "Exact" holds in FP32, and in BF16 for NVFP4, FP8_TENSOR and blocks of the power-of-two formats
 * with amax in 2^-110 .. 2^126.  A kernel applies the s of FP8_TOKEN and FP8_BLOCK to its FP32
 * accumulator; here it is in the value, whose rounding to BF16 in a BF16 run is one more rounding
 * than the kernel's.
 *
 * A block of zeros: scale 0 (E8M0: byte 0), codes 0, no division.  A block whose NVFP4 scale rounds
 * to 0 has zeros for values, whatever its codes.  Zeros keep their sign, as in hardware.
 *
 * A block with a NaN or an infinity has a NaN scale (E4M3 0x7f, E8M0 255), so all its values are
 * NaN: hardware conversion would give finite codes and hide the fault.  FP8_TENSOR has no block:
 * the value itself becomes NaN.  Which NaN is not said. */
#ifndef KLD_LOADERS_ACTNUM_H
#define KLD_LOADERS_ACTNUM_H
#include "loaders/actquant.h"
#include "loaders/numfmt.h"

enum { KLD_AQ_NAN_E4M3 = 0x7f, KLD_AQ_NAN_E8M0 = 255 };

/* What the values of a block share. */
typedef struct kld_aq_scale {
    float in;     /* E2M1: multiplies x; E4M3: divides it */
    float out;    /* multiplies the decoded code */
    uint8_t byte; /* as stored by a kernel: E4M3 for NVFP4, E8M0 for powers of two, else unused */
} kld_aq_scale;

/* Bits of |x|.  Their order is that of the magnitudes, with NaN above infinity: the largest of a
 * block is its amax, or says that the block is not finite. */
KLD_NUM uint32_t kld_aq_magnitude(float x) { return kld_f32_bits(x) & 0x7fffffffu; }
KLD_NUM int kld_aq_finite(uint32_t magnitude) { return magnitude < 0x7f800000u; }

/* E8M0 byte for an amax (bits, finite).  `largest` is the mantissa field of the largest code, 6 =
 * 1.5 * 2^2 or 448 = 1.75 * 2^8.  Each rule adds what carries into the exponent field where it
 * goes up: EVEN at a mantissa of .75, CEIL above the largest code's. */
KLD_NUM uint8_t kld_aq_e8m0(uint32_t amax, kld_aq_exponent rule, uint32_t largest, uint32_t emax) {
    uint32_t up = rule == KLD_AQ_EVEN ? 0x200000u : rule == KLD_AQ_CEIL ? 0x7fffffu - largest : 0;
    uint32_t e = (amax + up) >> 23;
    return (uint8_t)(e > emax ? e - emax : 0);
}

KLD_NUM uint8_t kld_aq_e8m0_of_e2m1(uint32_t amax, kld_aq_exponent rule) {
    return kld_aq_finite(amax) ? kld_aq_e8m0(amax, rule, 0x400000u, 2) : (uint8_t)KLD_AQ_NAN_E8M0;
}

KLD_NUM uint8_t kld_aq_e8m0_of_e4m3(uint32_t amax, kld_aq_exponent rule) {
    return kld_aq_finite(amax) ? kld_aq_e8m0(amax, rule, 0x600000u, 8) : (uint8_t)KLD_AQ_NAN_E8M0;
}

KLD_NUM kld_aq_scale kld_aq_nvfp4(float global, uint32_t amax) {
    kld_aq_scale s = {0, 0, KLD_AQ_NAN_E4M3};
    if (kld_aq_finite(amax)) {
        float sixth = kld_f32_mul(kld_f32_from_bits(amax), kld_f32_div(1.0f, 6.0f));
        s.byte = kld_f32_to_e4m3(kld_f32_mul(global, sixth));
    }
    s.out = kld_e4m3_to_f32(s.byte);
    if (s.byte) s.in = kld_f32_div(1.0f, kld_f32_mul(s.out, kld_f32_div(1.0f, global)));
    return s;
}

/* E4M3 codes with an FP32 scale of their own amax. */
KLD_NUM kld_aq_scale kld_aq_fp8(const kld_act_quant *a, uint32_t amax) {
    kld_aq_scale s = {1.0f, 0, 0};
    if (!amax) return s;
    uint32_t least = kld_aq_magnitude(a->eps);
    if (amax < least) amax = least;
    if (a->format == KLD_AQ_FP8_BLOCK && a->power_of_two) {
        s.byte = kld_aq_e8m0_of_e4m3(amax, KLD_AQ_CEIL);
        s.out = kld_e8m0_to_f32(s.byte);
    } else {
        s.out = kld_aq_finite(amax) ? kld_f32_div(kld_f32_from_bits(amax), 448.0f)
                                    : kld_f32_from_bits(0x7fc00000u);
    }
    if (s.out > 0) s.in = s.out; /* 0 when amax is a few of FP32's smallest steps */
    return s;
}

/* The scale of a block with the largest magnitude amax (bits). */
KLD_NUM kld_aq_scale kld_aq_scale_of(const kld_act_quant *a, uint32_t amax) {
    kld_aq_scale s = {1.0f, 1.0f, 0};
    switch (a->format) {
    case KLD_AQ_NVFP4: return kld_aq_nvfp4(a->scale, amax);
    case KLD_AQ_MXFP4:
        s.byte = kld_aq_e8m0_of_e2m1(amax, a->exponent);
        s.out = kld_e8m0_to_f32(s.byte);
        s.in = s.byte == KLD_AQ_NAN_E8M0 ? 0 : kld_e8m0_to_f32((uint8_t)(254 - s.byte));
        return s;
    case KLD_AQ_MXFP8:
        s.byte = kld_aq_e8m0_of_e4m3(amax, a->exponent);
        s.in = s.out = kld_e8m0_to_f32(s.byte);
        return s;
    case KLD_AQ_FP8_TENSOR: s.in = a->scale; return s;
    case KLD_AQ_FP8_TOKEN:
    case KLD_AQ_FP8_BLOCK: return kld_aq_fp8(a, amax);
    case KLD_AQ_NONE:
    case KLD_AQ_COUNT: break;
    }
    return s;
}

KLD_NUM int kld_aq_is_e2m1(kld_act_format f) { return f == KLD_AQ_NVFP4 || f == KLD_AQ_MXFP4; }

/* The code of x: 4 bits for E2M1, a byte for E4M3. */
KLD_NUM uint8_t kld_aq_code(kld_act_format f, kld_aq_scale s, float x) {
    if (kld_aq_is_e2m1(f)) {
        float v = kld_f32_mul(x, s.in);
        uint32_t sign = kld_f32_bits(v) >> 31;
        v = kld_f32_from_bits(kld_aq_magnitude(v));
        return (uint8_t)(kld_f32_to_e2m1(v) | sign << 3);
    }
    uint8_t c = kld_f32_to_e4m3(kld_f32_div(x, s.in));
    return kld_aq_finite(kld_aq_magnitude(x)) ? c : (uint8_t)KLD_AQ_NAN_E4M3;
}

/* What the product sees.  `f` is best a constant. */
KLD_NUM float kld_aq_value(kld_act_format f, kld_aq_scale s, float x) {
    if (f == KLD_AQ_NONE) return x;
    uint8_t c = kld_aq_code(f, s, x);
    return kld_f32_mul(kld_aq_is_e2m1(f) ? kld_e2m1_to_f32(c) : kld_e4m3_to_f32(c), s.out);
}

#endif
