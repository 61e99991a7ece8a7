#include "loaders/quant.h"

#include "loaders/numfmt.h"

#include <string.h>

static const char *const names[KLD_FMT_COUNT] = {
    [KLD_FMT_BF16] = "BF16",
    [KLD_FMT_F16] = "F16",
    [KLD_FMT_F32] = "F32",
    [KLD_FMT_NVFP4] = "NVFP4",
    [KLD_FMT_MXFP4] = "MXFP4",
    [KLD_FMT_FP8_TENSOR] = "FP8 (per tensor)",
    [KLD_FMT_FP8_CHANNEL] = "FP8 (per channel)",
};

const char *kld_format_name(kld_format f) { return f < KLD_FMT_COUNT ? names[f] : "?"; }

static uint64_t bytes_of(const kld_tensor *t) { return t ? t->bytes : 0; }
static uint64_t parts_of(const kld_weight *w) { return w->parts ? w->parts : 1; }

uint64_t kld_weight_bytes(const kld_weight *w) {
    return (bytes_of(w->data) + bytes_of(w->scale) + bytes_of(w->bias)) / parts_of(w) +
           bytes_of(w->global);
}

uint64_t kld_weight_bias(const kld_weight *w, uint64_t *bytes) {
    *bytes = bytes_of(w->bias) / parts_of(w);
    return w->part * *bytes;
}

/* Files promise no alignment, so values are assembled from bytes. */
static uint16_t load16(const unsigned char *p) { return (uint16_t)(p[0] | p[1] << 8); }

static float load_f32(const unsigned char *p) {
    return kld_f32_from_bits((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                             (uint32_t)p[3] << 24);
}

float kld_scale_value(const kld_tensor *t, const unsigned char *p, size_t i) {
    switch (t->dtype) {
    case KLD_BF16: return kld_bf16_to_f32(load16(p + 2 * i));
    case KLD_F16: return kld_f16_to_f32(load16(p + 2 * i));
    default: return load_f32(p + 4 * i);
    }
}

static void decode_dense(kld_dtype t, const unsigned char *p, size_t n, float *out) {
    if (t == KLD_BF16) {
        for (size_t i = 0; i < n; i++) out[i] = kld_bf16_to_f32(load16(p + 2 * i));
    } else if (t == KLD_F16) {
        for (size_t i = 0; i < n; i++) out[i] = kld_f16_to_f32(load16(p + 2 * i));
    } else {
        for (size_t i = 0; i < n; i++) out[i] = load_f32(p + 4 * i);
    }
}

/* E2M1 values of the 16 codes times one scale: a block needs one lookup an element.
 * Products with a finite E4M3 or power-of-two scale are exact. */
static void scaled_codes(float scale, float global, float lut[16]) {
    for (uint8_t c = 0; c < 16; c++) lut[c] = kld_e2m1_to_f32(c) * scale * global;
}

/* Low nibble first. */
static void expand(const unsigned char *codes, size_t n, const float lut[16], float *out) {
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = lut[codes[i] & 15];
        out[2 * i + 1] = lut[codes[i] >> 4];
    }
}

static void decode_nvfp4(const kld_weight *w, kld_weight_view v, size_t row0, size_t n,
                         float global, bool divides, float *out) {
    size_t blocks = w->cols / 16;
    const unsigned char *codes = v.data + row0 * (w->cols / 2), *scales = v.scale + row0 * blocks;
    for (size_t b = 0; b < n * blocks; b++) {
        float lut[16], s = kld_e4m3_to_f32(scales[b]);
        scaled_codes(s, divides ? 1.0f : global, lut);
        if (divides) {
            for (size_t c = 0; c < 16; c++) lut[c] /= global;
        }
        expand(codes + 8 * b, 8, lut, out + 16 * b);
    }
}

static void decode_mxfp4(const kld_weight *w, kld_weight_view v, size_t row0, size_t n,
                         float *out) {
    size_t blocks = w->cols / 32;
    const unsigned char *codes = v.data + row0 * (w->cols / 2), *scales = v.scale + row0 * blocks;
    for (size_t b = 0; b < n * blocks; b++) {
        float lut[16];
        scaled_codes(kld_e8m0_to_f32(scales[b]), 1.0f, lut);
        expand(codes + 16 * b, 16, lut, out + 32 * b);
    }
}

static void decode_fp8(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out) {
    float lut[256];
    for (unsigned b = 0; b < 256; b++) lut[b] = kld_e4m3_to_f32((uint8_t)b);
    bool channel = w->format == KLD_FMT_FP8_CHANNEL;
    for (size_t r = 0; r < n; r++) {
        const unsigned char *p = v.data + (row0 + r) * w->cols;
        float *o = out + r * w->cols;
        float s = !channel && unscaled ? 1.0f
                                       : kld_scale_value(w->scale, v.scale, channel ? row0 + r : 0);
        for (size_t i = 0; i < w->cols; i++) o[i] = lut[p[i]] * s;
    }
}

static void decode_rows(const kld_weight *w, kld_weight_view v, size_t row0, size_t n,
                        bool unscaled, float *out) {
    switch (w->format) {
    case KLD_FMT_BF16:
    case KLD_FMT_F16:
    case KLD_FMT_F32: {
        size_t width = kld_dtype_bits(w->data->dtype) / 8;
        decode_dense(w->data->dtype, v.data + row0 * w->cols * width, n * w->cols, out);
        break;
    }
    case KLD_FMT_NVFP4:
        if (unscaled) decode_nvfp4(w, v, row0, n, 1.0f, false, out);
        else decode_nvfp4(w, v, row0, n, load_f32(v.global), w->global_divides, out);
        break;
    case KLD_FMT_MXFP4: decode_mxfp4(w, v, row0, n, out); break;
    case KLD_FMT_FP8_TENSOR:
    case KLD_FMT_FP8_CHANNEL: decode_fp8(w, v, row0, n, unscaled, out); break;
    case KLD_FMT_COUNT: break;
    }
}

/* Column c of stored row r is element [c][r]. */
static void decode_in_major(const kld_weight *w, const unsigned char *p, size_t r, float *out) {
    for (size_t c = 0; c < w->cols; c++) out[c] = kld_scale_value(w->data, p, c * w->rows + r);
}

void kld_weight_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out) {
    if (!w->shards && !w->in_major) {
        decode_rows(w, v, row0, n, unscaled, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t r = kld_weight_stored_row(w->shards, w->shard_rows, row0 + i);
        if (w->in_major) decode_in_major(w, v.data, r, out + i * w->cols);
        else decode_rows(w, v, r, 1, unscaled, out + i * w->cols);
    }
}

float kld_weight_alpha(const kld_weight *w, kld_weight_view v) {
    if (w->format == KLD_FMT_NVFP4)
        return w->global_divides ? 1.0f / load_f32(v.global) : load_f32(v.global);
    if (w->format == KLD_FMT_FP8_TENSOR) return kld_scale_value(w->scale, v.scale, 0);
    return 1.0f;
}

kld_weight_slice kld_weight_rows(const kld_weight *w, size_t row0, size_t n) {
    uint64_t all = w->data->bytes / parts_of(w), row = all / kld_weight_stored_rows(w);
    kld_weight_slice s = {w->part * all + row0 * row, n * row, 0, bytes_of(w->scale)};
    if (!w->scale || w->format == KLD_FMT_FP8_TENSOR) return s;
    uint64_t scales = w->scale->bytes / parts_of(w);
    s.scale_at = w->part * scales + row0 * (scales / w->rows);
    s.scale_bytes = n * (scales / w->rows);
    return s;
}
