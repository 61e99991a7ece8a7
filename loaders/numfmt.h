/* loaders/numfmt.h - small number formats: what a code means, and the code nearest to a value.
 * Floor 1; C and CUDA.
 * Definitions: OCP Microscaling Formats (MX) v1.0 for E2M1 and E8M0; OCP 8-bit Floating
 * Point (OFP8) v1.0 for E4M3.  Every function is total and gives the same bits on every device;
 * decoding is exact. */
#ifndef KLD_LOADERS_NUMFMT_H
#define KLD_LOADERS_NUMFMT_H
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KLD_NUM static __host__ __device__ inline
#else
#define KLD_NUM static inline
#endif

KLD_NUM float kld_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

KLD_NUM uint32_t kld_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* One FP32 operation, rounded to nearest even.  By name, because nvcc fuses a product with a sum
 * that follows it; C is compiled with contraction off. */
#ifdef __CUDA_ARCH__
KLD_NUM float kld_f32_add(float a, float b) { return __fadd_rn(a, b); }
KLD_NUM float kld_f32_mul(float a, float b) { return __fmul_rn(a, b); }
KLD_NUM float kld_f32_div(float a, float b) { return __fdiv_rn(a, b); }
#else
KLD_NUM float kld_f32_add(float a, float b) { return a + b; }
KLD_NUM float kld_f32_mul(float a, float b) { return a * b; }
KLD_NUM float kld_f32_div(float a, float b) { return a / b; }
#endif

/* 4-bit code: s ee m.  0 .5 1 1.5 2 3 4 6 and the same negated; code 8 is -0. */
KLD_NUM float kld_e2m1_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 8) << 28, mag = code & 7;
    /* mag >= 2: exponent (mag >> 1) - 1 + 127 and one mantissa bit. */
    uint32_t bits = mag >= 2 ? ((mag >> 1) + 126) << 23 | (mag & 1) << 22 : mag ? 0x3f000000u : 0;
    return kld_f32_from_bits(sign | bits);
}

/* E4M3FN: bias 7, 0x7f and 0xff are NaN, no infinity. */
KLD_NUM float kld_e4m3_to_f32(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24, e = (b >> 3) & 15, m = b & 7;
    if (e == 15 && m == 7) return kld_f32_from_bits(sign | 0x7fc00000u);
    if (e) return kld_f32_from_bits(sign | (e + 120) << 23 | m << 20);
    float sub = (float)m * 0x1p-9f;
    return kld_f32_from_bits(sign | kld_f32_bits(sub));
}

/* Nearest code, ties to even; saturates at 448 and 6.  NaN gives 0x7f and code 7.  The sign of a
 * zero is kept by E4M3; E2M1 has its sign bit set exactly when x is below 0, as encoders of weights
 * write it: small negatives give code 8 (-0), an input of -0 gives code 0. */
KLD_NUM uint8_t kld_f32_to_e4m3(float x) {
    uint32_t u = kld_f32_bits(x), sign = u >> 24 & 0x80, mag = u & 0x7fffffffu;
    /* Below 2^-6 the step is 2^-9.  Adding 2^14 leaves a 24-bit significand whose last place is
     * 2^-9, so the hardware does the rounding to even. */
    uint32_t low = kld_f32_bits(kld_f32_add(kld_f32_from_bits(mag), 0x1p14f)) & 0xff;
    /* Above, keep 3 bits of mantissa. */
    uint32_t code = ((mag + 0x7ffffu + (mag >> 20 & 1)) >> 20) - (120u << 3);
    code = mag < 0x3c800000u ? low : code;
    code = mag >= 0x43e80000u ? 0x7e : code; /* 464: halfway to 480 */
    code = mag > 0x7f800000u ? 0x7f : code;
    return (uint8_t)(sign | code);
}

KLD_NUM uint8_t kld_f32_to_e2m1(float x) {
    float a = kld_f32_from_bits(kld_f32_bits(x) & 0x7fffffffu);
    /* Midpoints passed; a tie goes to the even code.  Negated, so that NaN passes all. */
    int c = !(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) + !(a < 1.75f) + !(a <= 2.5f) +
            !(a < 3.5f) + !(a <= 5.0f);
    return (uint8_t)(c | (x < 0 ? 8 : 0));
}

/* 2^(b-127); 0 is the subnormal 2^-127, 255 is NaN. */
KLD_NUM float kld_e8m0_to_f32(uint8_t b) {
    if (b == 255) return kld_f32_from_bits(0x7fc00000u);
    return kld_f32_from_bits(b ? (uint32_t)b << 23 : 0x00400000u);
}

KLD_NUM float kld_bf16_to_f32(uint16_t h) { return kld_f32_from_bits((uint32_t)h << 16); }

/* Round to nearest even; NaN stays NaN. */
KLD_NUM uint16_t kld_f32_to_bf16(float f) {
    uint32_t u = kld_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

KLD_NUM float kld_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (e == 31) return kld_f32_from_bits(sign | 0x7f800000u | m << 13);
    if (e) return kld_f32_from_bits(sign | (e + 112) << 23 | m << 13);
    float sub = (float)m * 0x1p-24f;
    return kld_f32_from_bits(sign | kld_f32_bits(sub));
}

#endif
