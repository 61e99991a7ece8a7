/* Stored weights into what the products want: decoding is exact (see loaders/quant.h), so each
 * value is that of the CPU's kld_weight_decode. */
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "loaders/quant_int.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

static size_t padded(size_t bytes) { return num_cdiv(bytes, 256) * 256; }

/* The stored bytes are what the device wants. */
static bool as_stored(kld_precision precision, const kld_weight *w, kld_use use) {
    if (use == KLD_USE_EMBEDDING) return true;
    if (use == KLD_USE_VECTOR_PLUS_ONE || w->shards || w->in_major) return false;
    if (use == KLD_USE_VECTOR) return w->format == KLD_FMT_F32;
    bool bf16 = precision == KLD_PRECISION_BF16;
    if (use == KLD_USE_ROUTER && w->format == KLD_FMT_F32) return true;
    return w->format == (bf16 ? KLD_FMT_BF16 : KLD_FMT_F32);
}

/* A router keeps its FP32 values where rounding would change them. */
static bool exact(kld_precision precision, const kld_weight *w, kld_use use) {
    return use == KLD_USE_ROUTER && precision == KLD_PRECISION_BF16 && w->format != KLD_FMT_BF16;
}

static bool is_matrix(kld_use use) { return use == KLD_USE_MATRIX || use == KLD_USE_ROUTER; }

/* Decoded into BF16. */
static bool halved(kld_precision precision, const kld_weight *w, kld_use use) {
    return precision == KLD_PRECISION_BF16 && is_matrix(use) && !exact(precision, w, use);
}

static size_t value_bytes(kld_precision precision, const kld_weight *w, kld_use use) {
    if (as_stored(precision, w, use)) return 0;
    return padded(w->rows * w->cols * (halved(precision, w, use) ? 2 : 4));
}

size_t cuda_weight_bytes(kld_precision precision, const kld_weight *w, kld_use use) {
    size_t bias = w->bias && is_matrix(use) ? padded(w->rows * sizeof(float)) : 0;
    size_t pre = w->pre && is_matrix(use) ? padded(w->cols * sizeof(float)) : 0;
    return value_bytes(precision, w, use) + bias + pre;
}

/* ---- values ------------------------------------------------------------------------------ */

struct source {
    const unsigned char *data, *scale;
    kld_format format;
    kld_dtype scale_type;
    size_t cols;
    float global; /* 1 when it is left to alpha */
    bool divides; /* NVFP4: divide by it */
    /* Grids and groups; see kld_weight. */
    const unsigned char *zeros, *index;
    size_t rows, block_rows, block_cols, groups;
    unsigned bits, zero_add;
    bool in_major, plus_one;
    size_t shards, shard_rows[3];
};

__device__ static float dense(kld_dtype t, const unsigned char *p, size_t i) {
    if (t == KLD_BF16) return kld_bf16_to_f32(((const uint16_t *)p)[i]);
    if (t == KLD_F16) return kld_f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

__device__ static float fp4(unsigned code, float scale, const struct source &s) {
    float v = kld_e2m1_to_f32((uint8_t)code) * scale;
    return s.divides ? v / s.global : v * s.global;
}

__device__ static float scale_of(const struct source &s, size_t i) {
    if (s.scale_type == KLD_F8_E8M0 || s.scale_type == KLD_U8) return kld_e8m0_to_f32(s.scale[i]);
    return dense(s.scale_type, s.scale, i);
}

__device__ static size_t group_of(const struct source &s, size_t c) {
    int g = s.index ? ((const int *)s.index)[c] : -1; /* negative: unset */
    return g >= 0 ? (size_t)g : c / s.block_cols;
}

__device__ static int code_at(const struct source &s, size_t r, size_t c) {
    size_t bit = c * s.bits;
    switch (s.format) {
    case KLD_FMT_INT8: return (signed char)s.data[r * s.cols + c];
    case KLD_FMT_INT4_PAIRS: return (int)((s.data[r / 2 * s.cols + c] >> r % 2 * 4 & 15) ^ 8) - 8;
    case KLD_FMT_AWQ:
        return (int)kld_int_field(s.data + (c * s.rows + r / 8 * 8) / 2, 4 * kld_awq_nibble(r), 4);
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8:
        return (int)kld_int_field(s.data + 4 * (bit / 32 * s.rows + r), bit % 32, s.bits);
    default: return (int)kld_int_field(s.data + r * ((s.cols * s.bits + 31) / 32 * 4), bit, s.bits);
    }
}

__device__ static int zero_at(const struct source &s, size_t r, size_t g) {
    size_t words = s.rows * s.bits / 32, bit = r * s.bits;
    switch (s.format) {
    case KLD_FMT_INT8:
    case KLD_FMT_INT4_PAIRS: return 0;
    case KLD_FMT_AWQ:
        return (int)kld_int_field(s.zeros + 4 * (g * words + r / 8), 4 * kld_awq_nibble(r), 4);
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8:
        return (int)(kld_int_field(s.zeros + 4 * g * words, bit, s.bits) + s.zero_add) &
               (int)((1u << s.bits) - 1);
    default:
        if (!s.zeros) return s.bits == 8 ? 128 : 8;
        return (int)kld_int_field(s.zeros + 4 * (bit / 32 * s.groups + g), bit % 32, s.bits);
    }
}

__device__ static float integer(const struct source &s, size_t r, size_t c) {
    size_t g = group_of(s, c);
    bool by_group = s.format >= KLD_FMT_AWQ;
    float scale = scale_of(s, by_group ? g * s.rows + r : r * s.groups + g);
    return (float)(code_at(s, r, c) - zero_at(s, r, g)) * scale;
}

/* Element (r, c) as stored; the same expressions as the CPU's, in the same order. */
__device__ static float element(const struct source &s, size_t r, size_t c) {
    size_t i = r * s.cols + c;
    unsigned code;
    switch (s.format) {
    case KLD_FMT_BF16: return dense(KLD_BF16, s.data, i);
    case KLD_FMT_F16: return dense(KLD_F16, s.data, i);
    case KLD_FMT_NVFP4:
        code = s.data[i / 2] >> (i % 2 * 4) & 15;
        return fp4(code, kld_e4m3_to_f32(s.scale[i / 16]), s);
    case KLD_FMT_MXFP4:
        code = s.data[i / 2] >> (i % 2 * 4) & 15;
        return kld_e2m1_to_f32((uint8_t)code) * kld_e8m0_to_f32(s.scale[i / 32]);
    case KLD_FMT_FP8_TENSOR: return kld_e4m3_to_f32(s.data[i]) * s.global;
    case KLD_FMT_FP8_CHANNEL: return kld_e4m3_to_f32(s.data[i]) * dense(s.scale_type, s.scale, r);
    case KLD_FMT_FP8_BLOCK: {
        size_t across = (s.cols + s.block_cols - 1) / s.block_cols;
        return kld_e4m3_to_f32(s.data[i]) *
               scale_of(s, kld_block_row(s.shards, s.shard_rows, s.block_rows, r) * across +
                               c / s.block_cols);
    }
    case KLD_FMT_MXFP8: return kld_e4m3_to_f32(s.data[i]) * kld_e8m0_to_f32(s.scale[i / 32]);
    case KLD_FMT_INT8:
    case KLD_FMT_INT4_PACKED:
    case KLD_FMT_INT8_PACKED:
    case KLD_FMT_INT4_PAIRS:
    case KLD_FMT_AWQ:
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8: return integer(s, r, c);
    default: return dense(KLD_F32, s.data, i);
    }
}

__device__ static kld_dtype dense_type(kld_format f) {
    return f == KLD_FMT_BF16 ? KLD_BF16 : f == KLD_FMT_F16 ? KLD_F16 : KLD_F32;
}

/* Element (r, c) of the weight, wherever it is stored. */
__device__ static float value(const struct source &s, size_t r, size_t c) {
    size_t from = kld_shard_row(s.shards, s.shard_rows, r);
    float v =
        s.in_major ? dense(dense_type(s.format), s.data, c * s.rows + from) : element(s, from, c);
    return s.plus_one ? kld_f32_add(v, 1.0f) : v;
}

template <typename T>
__global__ static void decode_any(const struct source s, size_t rows, T *out) {
    size_t n = rows * s.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        put(out + i, value(s, i / s.cols, i % s.cols));
}

/* Dense values stored as [cols][rows]: a tile passes through shared memory, so that stored rows and
 * decoded ones are both touched along their length. */
enum { TILE = 32, TILE_LINES = 8 };
template <typename T>
__global__ static void decode_in_major(const struct source s, size_t rows, T *out) {
    __shared__ float tile[TILE][TILE + 1];
    size_t r0 = blockIdx.x * (size_t)TILE, c0 = blockIdx.y * (size_t)TILE;
    unsigned tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    size_t from = r0 + tx < rows ? kld_shard_row(s.shards, s.shard_rows, r0 + tx) : 0;
    for (unsigned i = ty; i < TILE; i += TILE_LINES)
        if (r0 + tx < rows && c0 + i < s.cols)
            tile[i][tx] = dense(dense_type(s.format), s.data, (c0 + i) * s.rows + from);
    __syncthreads();
    for (unsigned i = ty; i < TILE; i += TILE_LINES)
        if (r0 + i < rows && c0 + tx < s.cols) put(out + (r0 + i) * s.cols + c0 + tx, tile[tx][i]);
}

/* Eight 4-bit codes a thread: one 4-byte load, one 16-byte (BF16) store. */
template <typename T> struct __align__(8 * sizeof(T)) eight { T v[8]; };

template <typename T, bool NV>
__global__ static void decode_fp4(const struct source s, size_t groups, struct eight<T> *out) {
    size_t across = s.cols / 8;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < groups;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t at =
            s.shards ? kld_shard_row(s.shards, s.shard_rows, i / across) * across + i % across : i;
        unsigned codes = ((const unsigned *)s.data)[at];
        float scale = NV ? kld_e4m3_to_f32(s.scale[at / 2]) : kld_e8m0_to_f32(s.scale[at / 4]);
        struct eight<T> e;
        for (int j = 0; j < 8; j++)
            put(&e.v[j], kld_e2m1_to_f32((uint8_t)(codes >> 4 * j & 15)) * scale);
        out[i] = e;
    }
}

static unsigned blocks_for(size_t n) {
    return (unsigned)num_min(num_max(num_cdiv(n, 256), 1), 65535);
}

template <typename T>
static void decode(kld_device *dev, const struct source &s, size_t rows, T *out) {
    size_t groups = rows * s.cols / 8;
    dim3 tiles((unsigned)num_cdiv(rows, TILE), (unsigned)num_cdiv(s.cols, TILE));
    if (s.in_major && tiles.y <= 65535)
        decode_in_major<<<tiles, TILE * TILE_LINES, 0, dev->compute>>>(s, rows, out);
    else if (s.format == KLD_FMT_NVFP4)
        decode_fp4<T, true>
            <<<blocks_for(groups), 256, 0, dev->compute>>>(s, groups, (struct eight<T> *)out);
    else if (s.format == KLD_FMT_MXFP4)
        decode_fp4<T, false>
            <<<blocks_for(groups), 256, 0, dev->compute>>>(s, groups, (struct eight<T> *)out);
    else decode_any<<<blocks_for(rows * s.cols), 256, 0, dev->compute>>>(s, rows, out);
}

static struct source source_of(const kld_raw_weight *raw, bool unscaled) {
    const kld_weight *w = raw->w;
    struct source s = {raw->v.data, raw->v.scale, w->format, KLD_F32, w->cols, 1, false};
    s.zeros = raw->v.zeros;
    s.index = raw->v.index;
    s.rows = w->rows;
    s.block_rows = w->block_rows;
    s.block_cols = w->block_cols;
    s.groups = w->groups;
    s.bits = kld_format_bits(w->format);
    s.zero_add = w->zero_add;
    s.in_major = w->in_major;
    s.shards = w->shards;
    for (int i = 0; i < 3; i++) s.shard_rows[i] = w->shard_rows[i];
    if (w->scale) s.scale_type = w->scale->dtype;
    if (!unscaled) s.global = raw->global;
    if (!unscaled) s.divides = w->global_divides;
    return s;
}

/* A stored vector of floats. */
static struct source vector_of(const kld_tensor *t, const unsigned char *data) {
    struct source s = {data, NULL, KLD_FMT_F32, KLD_F32, 1, 1, false};
    if (t->dtype == KLD_BF16) s.format = KLD_FMT_BF16;
    if (t->dtype == KLD_F16) s.format = KLD_FMT_F16;
    return s;
}

/* Biases and factors of the input, behind the values in mem. */
static kld_status prepare_vectors(kld_device *dev, const kld_raw_weight *raw, unsigned char *mem,
                                  kld_dev_weight *out, kld_err *err) {
    const kld_weight *w = raw->w;
    float *to = (float *)(void *)mem;
    if (w->bias) {
        struct source b = vector_of(w->bias, raw->bias);
        b.shards = w->shards;
        for (int i = 0; i < 3; i++) b.shard_rows[i] = w->shard_rows[i];
        decode_any<<<blocks_for(w->rows), 256, 0, dev->compute>>>(b, w->rows, to);
        LAUNCHED("decoding a bias");
        out->bias = to;
        to = (float *)(void *)(mem + padded(w->rows * sizeof *to));
    }
    if (w->pre) {
        decode_any<<<blocks_for(w->cols), 256, 0, dev->compute>>>(vector_of(w->pre, raw->pre),
                                                                  w->cols, to);
        LAUNCHED("decoding factors of an input");
        out->pre = to;
    }
    return KLD_OK;
}

kld_status cuda_prepare(kld_device *dev, const kld_raw_weight *raw, kld_use use, void *mem,
                        kld_dev_weight *out, kld_err *err) {
    const kld_weight *w = raw->w;
    kld_precision precision = dev->bf16 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    *out = (kld_dev_weight){.rows = w->rows, .cols = w->cols, .data = raw->v.data, .alpha = 1.0f};
    out->raw = *raw;
    if (use == KLD_USE_EMBEDDING) return KLD_OK;
    if (use == KLD_USE_MATRIX) out->alpha = raw->alpha;
    out->exact = exact(precision, w, use);
    if (!as_stored(precision, w, use)) {
        struct source s = source_of(raw, use == KLD_USE_MATRIX);
        s.plus_one = use == KLD_USE_VECTOR_PLUS_ONE;
        if (halved(precision, w, use)) decode(dev, s, w->rows, (__nv_bfloat16 *)mem);
        else decode(dev, s, w->rows, (float *)mem);
        LAUNCHED("decoding a weight");
        out->data = mem;
    }
    if (!is_matrix(use)) return KLD_OK;
    return prepare_vectors(dev, raw, (unsigned char *)mem + value_bytes(precision, w, use), out,
                           err);
}

__global__ static void embed_rows(const struct source s, const uint32_t *ids, float scale, float *y,
                                  size_t ld) {
    size_t id = ids[blockIdx.x];
    float *row = y + blockIdx.x * ld;
    for (size_t c = threadIdx.x; c < s.cols; c += blockDim.x)
        row[c] = kld_f32_mul(value(s, id, c), scale);
}

kld_status cuda_embed(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, float scale,
                      kld_view y, kld_err *err) {
    if (!y.rows) return KLD_OK;
    if (y.rows > dev->spec.max_rows)
        return kld_fail(err, KLD_E_INTERNAL, "%zu rows, room for %zu", y.rows, dev->spec.max_rows);
    CUDA(cudaMemcpyAsync(dev->ids, ids, y.rows * sizeof *ids, cudaMemcpyHostToDevice, dev->compute),
         "copying ids");
    /* The host may change them; copies beyond 64 KiB of pageable memory need not be staged yet. */
    CUDA(cudaStreamSynchronize(dev->compute), "copying ids");
    embed_rows<<<(unsigned)y.rows, 256, 0, dev->compute>>>(source_of(&w->raw, false), dev->ids,
                                                           scale, (float *)y.p, y.ld);
    LAUNCHED("embedding");
    return KLD_OK;
}
