/* loaders/numfmt.h - decoding of small number formats.  Floor 1; C and CUDA.
 * Definitions: OCP Microscaling Formats (MX) v1.0 for E2M1 and E8M0; OCP 8-bit Floating
 * Point (OFP8) v1.0 for E4M3.  Every function is exact and total. */
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
