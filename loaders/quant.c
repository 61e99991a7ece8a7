#include "loaders/quant.h"

#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "loaders/quant_int.h"

#include <string.h>

static const char *const names[KLD_FMT_COUNT] = {
    [KLD_FMT_BF16] = "BF16",
    [KLD_FMT_F16] = "F16",
    [KLD_FMT_F32] = "F32",
    [KLD_FMT_NVFP4] = "NVFP4",
    [KLD_FMT_MXFP4] = "MXFP4",
    [KLD_FMT_FP8_TENSOR] = "FP8 (per tensor)",
    [KLD_FMT_FP8_CHANNEL] = "FP8 (per channel)",
    [KLD_FMT_FP8_BLOCK] = "FP8 (blocks)",
    [KLD_FMT_MXFP8] = "MXFP8",
    [KLD_FMT_INT8] = "INT8",
    [KLD_FMT_INT4_PACKED] = "INT4 (packed)",
    [KLD_FMT_INT8_PACKED] = "INT8 (packed)",
    [KLD_FMT_INT4_PAIRS] = "INT4 (ModelOpt)",
    [KLD_FMT_AWQ] = "INT4 (AWQ)",
    [KLD_FMT_GPTQ4] = "INT4 (GPTQ)",
    [KLD_FMT_GPTQ8] = "INT8 (GPTQ)",
};

const char *kld_format_name(kld_format f) { return f < KLD_FMT_COUNT ? names[f] : "?"; }

static uint64_t bytes_of(const kld_tensor *t) { return t ? t->bytes : 0; }

const kld_tensor *kld_weight_part(const kld_weight *w, kld_part part) {
    switch (part) {
    case KLD_PART_DATA: return w->data;
    case KLD_PART_SCALE: return w->scale;
    case KLD_PART_GLOBAL: return w->global;
    case KLD_PART_ZEROS: return w->zeros;
    case KLD_PART_INDEX: return w->index;
    case KLD_PART_BIAS: return w->bias;
    case KLD_PART_PRE: return w->pre;
    case KLD_PART_COUNT: break;
    }
    return NULL;
}

uint64_t kld_weight_bytes(const kld_weight *w) {
    uint64_t n = 0;
    for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++) n += bytes_of(kld_weight_part(w, p));
    return n;
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
    case KLD_F8_E8M0:
    case KLD_U8: return kld_e8m0_to_f32(p[i]);
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

static void e4m3_table(float lut[256]) {
    for (unsigned b = 0; b < 256; b++) lut[b] = kld_e4m3_to_f32((uint8_t)b);
}

static void decode_fp8(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out) {
    float lut[256];
    e4m3_table(lut);
    bool channel = w->format == KLD_FMT_FP8_CHANNEL;
    for (size_t r = 0; r < n; r++) {
        const unsigned char *p = v.data + (row0 + r) * w->cols;
        float *o = out + r * w->cols;
        float s = !channel && unscaled ? 1.0f
                                       : kld_scale_value(w->scale, v.scale, channel ? row0 + r : 0);
        for (size_t i = 0; i < w->cols; i++) o[i] = lut[p[i]] * s;
    }
}

/* E4M3 codes under a grid of scales; MXFP8 is the grid of 1 x 32. */
static void decode_fp8_grid(const kld_weight *w, kld_weight_view v, size_t row0, size_t n,
                            size_t height, size_t width, float *out) {
    float lut[256];
    e4m3_table(lut);
    size_t across = num_cdiv(w->cols, width);
    for (size_t r = row0; r < row0 + n; r++) {
        const unsigned char *p = v.data + r * w->cols;
        size_t row = kld_block_row(w->shards, w->shard_rows, height, r);
        for (size_t b = 0; b < across; b++) {
            float s = kld_scale_value(w->scale, v.scale, row * across + b);
            size_t end = num_min((b + 1) * width, w->cols);
            for (size_t c = b * width; c < end; c++) *out++ = lut[p[c]] * s;
        }
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
    case KLD_FMT_FP8_BLOCK:
        decode_fp8_grid(w, v, row0, n, w->block_rows, w->block_cols, out);
        break;
    case KLD_FMT_MXFP8: decode_fp8_grid(w, v, row0, n, 1, 32, out); break;
    case KLD_FMT_INT8:
    case KLD_FMT_INT4_PACKED:
    case KLD_FMT_INT8_PACKED:
    case KLD_FMT_INT4_PAIRS:
    case KLD_FMT_AWQ:
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8: kld_int_decode(w, v, row0, n, out); break;
    case KLD_FMT_COUNT: break;
    }
}

/* Column c of stored row r is element [c][r]. */
static void decode_in_major(const kld_weight *w, const unsigned char *p, size_t r, float *out) {
    for (size_t c = 0; c < w->cols; c++) out[c] = kld_scale_value(w->data, p, c * w->rows + r);
}

/* Decoded rows from row r on that are stored one after another. */
static size_t run_length(const kld_weight *w, size_t r) {
    if (!w->shards) return w->rows - r;
    const size_t *n = w->shard_rows;
    int p = 0;
    for (; p < 2 && r >= w->shards * n[p]; p++) r -= w->shards * n[p];
    return n[p] - r % n[p];
}

void kld_weight_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, bool unscaled,
                       float *out) {
    for (size_t i = 0, m; i < n; i += m) {
        size_t r = kld_shard_row(w->shards, w->shard_rows, row0 + i);
        m = num_min(run_length(w, row0 + i), n - i);
        float *to = out + i * w->cols;
        if (!w->in_major) decode_rows(w, v, r, m, unscaled, to);
        for (size_t k = 0; w->in_major && k < m; k++)
            decode_in_major(w, v.data, r + k, to + k * w->cols);
    }
}

float kld_weight_alpha(const kld_weight *w, kld_weight_view v) {
    if (w->format == KLD_FMT_NVFP4)
        return w->global_divides ? 1.0f / load_f32(v.global) : load_f32(v.global);
    if (w->format == KLD_FMT_FP8_TENSOR) return kld_scale_value(w->scale, v.scale, 0);
    return 1.0f;
}

static bool is_gptq(kld_format f) { return f == KLD_FMT_GPTQ4 || f == KLD_FMT_GPTQ8; }

size_t kld_weight_lines(const kld_weight *w) {
    if (w->format == KLD_FMT_AWQ || w->in_major) return w->cols;
    if (is_gptq(w->format)) return w->cols * kld_format_bits(w->format) / 32;
    return w->format == KLD_FMT_INT4_PAIRS ? w->rows / 2 : w->rows;
}

bool kld_weight_aside(const kld_weight *w, kld_part part) {
    switch (part) {
    case KLD_PART_SCALE:
        return w->format == KLD_FMT_FP8_BLOCK || w->format == KLD_FMT_AWQ || is_gptq(w->format);
    case KLD_PART_ZEROS: return w->zeros;
    case KLD_PART_INDEX: return w->index;
    case KLD_PART_BIAS: return w->bias;
    case KLD_PART_PRE: return w->pre;
    default: return false;
    }
}

kld_weight_slice kld_weight_cut(const kld_weight *w, size_t line0, size_t n) {
    size_t lines = kld_weight_lines(w);
    uint64_t line = w->data->bytes / lines;
    kld_weight_slice s = {line0 * line, n * line, 0, 0};
    if (!w->scale || kld_weight_aside(w, KLD_PART_SCALE)) return s;
    s.scale_bytes = w->scale->bytes;
    if (w->format == KLD_FMT_FP8_TENSOR) return s;
    uint64_t scales = w->scale->bytes / lines;
    s.scale_at = line0 * scales;
    s.scale_bytes = n * scales;
    return s;
}
