/* What happens to a product's inputs.  The arithmetic of quantization is loaders/actnum.h, as in
 * logits/cpu; the largest magnitude of a block does not depend on the order in which it is found,
 * so the bits are those of the CPU. */
#include "kld/base/num.h"
#include "loaders/actnum.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

enum { THREADS = 256 };

/* Four columns from c on; those past the end read as 0, which no largest magnitude notices. */
template <bool FOURS, typename T>
__device__ static float4 load(const T *row, size_t c, size_t cols) {
    if (FOURS) return c < cols ? get4(row + c) : make_float4(0, 0, 0, 0);
    return make_float4(c < cols ? get(row + c) : 0, c + 1 < cols ? get(row + c + 1) : 0,
                       c + 2 < cols ? get(row + c + 2) : 0, c + 3 < cols ? get(row + c + 3) : 0);
}

template <bool FOURS, typename T>
__device__ static void store(T *row, size_t c, size_t cols, float4 v) {
    if (FOURS) {
        if (c < cols) put4(row + c, v);
        return;
    }
    if (c < cols) put(row + c, v.x);
    if (c + 1 < cols) put(row + c + 1, v.y);
    if (c + 2 < cols) put(row + c + 2, v.z);
    if (c + 3 < cols) put(row + c + 3, v.w);
}

__device__ static uint32_t amax4(float4 v) {
    return max(max(kld_aq_magnitude(v.x), kld_aq_magnitude(v.y)),
               max(kld_aq_magnitude(v.z), kld_aq_magnitude(v.w)));
}

template <kld_act_format F> __device__ static float4 values(kld_aq_scale s, float4 v) {
    return make_float4(kld_aq_value(F, s, v.x), kld_aq_value(F, s, v.y), kld_aq_value(F, s, v.z),
                       kld_aq_value(F, s, v.w));
}

/* Blocks of BLOCK columns (4 for the formats without blocks) along a row: a thread four columns,
 * the BLOCK / 4 lanes of a block side by side in one warp.  Threads past the last column stay for
 * the shuffles. */
template <typename T, bool FOURS, kld_act_format F, int BLOCK>
__global__ static void quantize_blocks(const T *x, size_t ldx, const kld_act_quant a, size_t rows,
                                       size_t cols, T *y, size_t ldy) {
    size_t c = 4 * (blockIdx.x * (size_t)THREADS + threadIdx.x);
    for (size_t r = blockIdx.y; r < rows; r += gridDim.y) {
        float4 v = load<FOURS>(x + r * ldx, c, cols);
        uint32_t m = amax4(v);
        for (int w = BLOCK / 8; w > 0; w /= 2) m = max(m, __shfl_xor_sync(0xffffffffu, m, w));
        store<FOURS>(y + r * ldy, c, cols, values<F>(kld_aq_scale_of(&a, m), v));
    }
}

/* One scale a row: a block a row, which it reads twice.  A thread writes only what it read itself,
 * so y may be x. */
template <typename T, bool FOURS, kld_act_format F>
__global__ static void quantize_rows(const T *x, size_t ldx, const kld_act_quant a, size_t cols,
                                     T *y, size_t ldy) {
    __shared__ uint32_t part[THREADS / 32];
    const T *in = x + blockIdx.x * ldx;
    uint32_t m = 0;
    for (size_t c = 4 * threadIdx.x; c < cols; c += 4 * THREADS)
        m = max(m, amax4(load<FOURS>(in, c, cols)));
    m = __reduce_max_sync(0xffffffffu, m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) m = max(m, part[i]);
    kld_aq_scale s = kld_aq_scale_of(&a, m);
    for (size_t c = 4 * threadIdx.x; c < cols; c += 4 * THREADS)
        store<FOURS>(y + blockIdx.x * ldy, c, cols, values<F>(s, load<FOURS>(in, c, cols)));
}

template <typename T, kld_act_format F, int BLOCK>
static void launch_blocks(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y) {
    bool four = cuda_fours(x, sizeof(T)) && cuda_fours(y, sizeof(T));
    auto kernel = four ? quantize_blocks<T, true, F, BLOCK> : quantize_blocks<T, false, F, BLOCK>;
    dim3 grid((unsigned)num_cdiv(num_cdiv(x.cols, 4), THREADS), (unsigned)num_min(x.rows, 65535));
    kernel<<<grid, THREADS, 0, dev->compute>>>((const T *)x.p, x.ld, *a, x.rows, x.cols, (T *)y.p,
                                               y.ld);
}

template <typename T>
static void launch_rows(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y) {
    bool four = cuda_fours(x, sizeof(T)) && cuda_fours(y, sizeof(T));
    auto kernel =
        four ? quantize_rows<T, true, KLD_AQ_FP8_TOKEN> : quantize_rows<T, false, KLD_AQ_FP8_TOKEN>;
    kernel<<<(unsigned)x.rows, THREADS, 0, dev->compute>>>((const T *)x.p, x.ld, *a, x.cols,
                                                           (T *)y.p, y.ld);
}

template <typename T>
static void launch(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y) {
    switch (a->format) {
    case KLD_AQ_NVFP4: launch_blocks<T, KLD_AQ_NVFP4, 16>(dev, x, a, y); break;
    case KLD_AQ_MXFP4: launch_blocks<T, KLD_AQ_MXFP4, 32>(dev, x, a, y); break;
    case KLD_AQ_MXFP8: launch_blocks<T, KLD_AQ_MXFP8, 32>(dev, x, a, y); break;
    case KLD_AQ_FP8_TENSOR: launch_blocks<T, KLD_AQ_FP8_TENSOR, 4>(dev, x, a, y); break;
    case KLD_AQ_FP8_TOKEN: launch_rows<T>(dev, x, a, y); break;
    case KLD_AQ_FP8_BLOCK: launch_blocks<T, KLD_AQ_FP8_BLOCK, 128>(dev, x, a, y); break;
    case KLD_AQ_NONE:
    case KLD_AQ_COUNT: launch_blocks<T, KLD_AQ_NONE, 4>(dev, x, a, y); break;
    }
}

kld_status cuda_quantize(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y,
                         kld_err *err) {
    TRY(kld_act_check(a, x.cols, err));
    if (!x.rows || !x.cols) return KLD_OK;
    if (dev->bf16) launch<__nv_bfloat16>(dev, x, a, y);
    else launch<float>(dev, x, a, y);
    LAUNCHED("quantization of activations");
    return KLD_OK;
}

/* A block a row, which may be written where it is read. */
template <typename T>
__global__ static void multiply_rows(const T *x, size_t ldx, const float *pre, size_t cols, T *y,
                                     size_t ldy) {
    const T *in = x + blockIdx.x * ldx;
    T *out = y + blockIdx.x * ldy;
    for (size_t c = threadIdx.x; c < cols; c += THREADS)
        put(out + c, kld_f32_mul(get(in + c), pre[c]));
}

template <typename T>
static void launch_multiply(kld_device *dev, kld_view x, const float *pre, kld_view y) {
    multiply_rows<<<(unsigned)x.rows, THREADS, 0, dev->compute>>>((const T *)x.p, x.ld, pre, x.cols,
                                                                  (T *)y.p, y.ld);
}

kld_status cuda_multiply_input(kld_device *dev, kld_view x, const float *pre, kld_view y,
                               kld_err *err) {
    if (!x.rows || !x.cols) return KLD_OK;
    if (dev->bf16) launch_multiply<__nv_bfloat16>(dev, x, pre, y);
    else launch_multiply<float>(dev, x, pre, y);
    LAUNCHED("multiplying an input");
    return KLD_OK;
}
