#include "loaders/encode.h"

#include "loaders/numfmt.h"

#include <math.h>

static const float NVFP4_RANGE = 6.0f * 448.0f;

float kld_amax(const float *x, size_t n) {
    float a = 0;
    for (size_t i = 0; i < n; i++) {
        float v = fabsf(x[i]);
        if (v > a) a = v;
    }
    return a;
}

uint8_t kld_f32_to_e4m3(float x) {
    uint32_t u = kld_f32_bits(x), sign = u >> 24 & 0x80, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (mag >= 0x43e80000u) return (uint8_t)(sign | 0x7e); /* 464: halfway to 480 */
    if (mag < 0x3c800000u) {
        /* Below 2^-6 the step is 2^-9.  Adding 2^14 leaves a 24-bit significand whose last
         * place is 2^-9, so the hardware does the rounding to even. */
        float shifted = kld_f32_from_bits(mag) + 0x1p14f;
        return (uint8_t)(sign | (kld_f32_bits(shifted) & 0xff));
    }
    uint32_t rounded = mag + 0x7ffffu + (mag >> 20 & 1); /* keep 3 bits of mantissa */
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
}

uint8_t kld_f32_to_e2m1(float x) {
    float a = fabsf(x);
    uint8_t sign = x < 0 ? 8 : 0;
    /* Midpoints between neighbours; a tie goes to the even code. */
    uint8_t c = 7;
    if (a <= 0.25f) c = 0;
    else if (a < 0.75f) c = 1;
    else if (a <= 1.25f) c = 2;
    else if (a < 1.75f) c = 3;
    else if (a <= 2.5f) c = 4;
    else if (a < 3.5f) c = 5;
    else if (a <= 5.0f) c = 6;
    return (uint8_t)(sign | c);
}

static void encode_block(const float *x, size_t n, float step, unsigned char *codes) {
    for (size_t i = 0; i < n; i += 2)
        codes[i / 2] =
            (unsigned char)(kld_f32_to_e2m1(x[i] / step) | kld_f32_to_e2m1(x[i + 1] / step) << 4);
}

static float round_bf16(float x) { return kld_bf16_to_f32(kld_f32_to_bf16(x)); }

float kld_nvfp4_global(kld_nvfp4_rule rule, float amax) {
    if (rule == KLD_NVFP4_MODELOPT) {
        float g = amax / NVFP4_RANGE;
        return g > 0 ? g : 1.0f;
    }
    /* The library raises amax to the smallest normal number. */
    float g = 1.0f / (amax < 0x1p-126f ? 0x1p-126f : amax);
    if (rule == KLD_NVFP4_CT_BF16) g = round_bf16(g);
    g *= NVFP4_RANGE;
    if (rule == KLD_NVFP4_CT_BF16) g = round_bf16(g);
    return isfinite(g) ? g : 1.0f;
}

static uint8_t modelopt_scale(float amax, float global) {
    float s = amax / (6.0f * global);
    if (s == 0) s = 1.0f;
    if (s < 0x1p-9f) s = 0x1p-9f;
    return kld_f32_to_e4m3(s);
}

static uint8_t ct_scale(kld_nvfp4_rule rule, float amax, float global) {
    enum { EIGHTH = 0x20 }; /* 0.125, the spacing of E4M3 at 1 */
    float s = amax / 6.0f;
    if (rule == KLD_NVFP4_CT_BF16) s = round_bf16(s);
    uint8_t b = kld_f32_to_e4m3(global * s);
    return b ? b : EIGHTH;
}

void kld_encode_nvfp4(kld_nvfp4_rule rule, const float *x, size_t n, float global,
                      unsigned char *codes, unsigned char *scales) {
    for (size_t b = 0; b < n / 16; b++) {
        float amax = kld_amax(x + 16 * b, 16), step;
        if (rule == KLD_NVFP4_MODELOPT) {
            scales[b] = modelopt_scale(amax, global);
            step = kld_e4m3_to_f32(scales[b]) * global;
        } else {
            scales[b] = ct_scale(rule, amax, global);
            step = kld_e4m3_to_f32(scales[b]) / global;
        }
        encode_block(x + 16 * b, 16, step, codes + 8 * b);
    }
}

void kld_encode_mxfp4(const float *x, size_t n, unsigned char *codes, unsigned char *scales) {
    for (size_t b = 0; b < n / 32; b++) {
        /* Adding a quarter of the leading bit carries into the exponent from 1.75 on. */
        uint32_t e = (kld_f32_bits(kld_amax(x + 32 * b, 32)) + (1u << 21)) >> 23;
        scales[b] = (unsigned char)(e > 2 ? e - 2 : 0);
        encode_block(x + 32 * b, 32, kld_e8m0_to_f32(scales[b]), codes + 16 * b);
    }
}
