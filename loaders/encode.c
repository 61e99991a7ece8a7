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
