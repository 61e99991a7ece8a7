/* logits/cuda/kernel.cuh - what kernels share: stores that round, loads, sums over a warp. Floor 2.
 */
#ifndef KLD_LOGITS_CUDA_KERNEL_CUH
#define KLD_LOGITS_CUDA_KERNEL_CUH
#include <cuda_bf16.h>

/* Store an FP32 value as what the view holds; BF16 to nearest even. */
__device__ static inline void put(float *p, float v) { *p = v; }
__device__ static inline void put(__nv_bfloat16 *p, float v) { *p = __float2bfloat16_rn(v); }

/* Four at a time; p is aligned to four elements. */
__device__ static inline void put4(float *p, float4 v) { *(float4 *)p = v; }
__device__ static inline void put4(__nv_bfloat16 *p, float4 v) {
    struct __align__(8) pair {
        __nv_bfloat162 a, b;
    }
    q = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    *(struct pair *)p = q;
}

/* The other way. */
__device__ static inline float get(const float *p) { return *p; }
__device__ static inline float get(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ static inline float4 get4(const float *p) { return *(const float4 *)p; }
__device__ static inline float4 get4(const __nv_bfloat16 *p) {
    uint2 v = *(const uint2 *)p;
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

/* Sum over the warp in a fixed tree, in every lane. */
__device__ static inline float warp_sum(float v) {
    for (int w = 16; w > 0; w /= 2) v += __shfl_xor_sync(0xffffffffu, v, w);
    return v;
}

#endif
