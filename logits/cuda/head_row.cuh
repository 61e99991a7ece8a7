/* logits/cuda/head_row.cuh - one row of logits by one block: shared memory, keys, scans, and the
 * pass over the columns.  Floor 2.
 *
 * Columns are cut into leaves whose width depends on their number alone.  A warp sums a leaf: each
 * lane its columns in order, then a tree over the lanes.  So sums do not depend on the card. */
#ifndef KLD_LOGITS_CUDA_HEAD_ROW_CUH
#define KLD_LOGITS_CUDA_HEAD_ROW_CUH
#include "logits/cuda/head.h"
#include "logits/cuda/kernel.cuh"

namespace head {

enum { THREADS = 512, N_WARPS = THREADS / 32, BLOCK = 1024, MAX_LEAVES = 512, STASH = 1024 };

/* One binary logarithm of e as FP32, what it lacks, and ln 2. */
#define HEAD_L2E 1.44269502162933349609375f
#define HEAD_L2E_LACK 1.9259629911e-8
#define HEAD_LN2 0.69314718055994530942

template <typename T> struct vec;
template <> struct vec<float> {
    enum { N = 4 };
};
template <> struct vec<__nv_bfloat16> {
    enum { N = 8 };
};

__device__ static inline float value(float v) { return v; }
__device__ static inline float value(__nv_bfloat16 v) { return __bfloat162float(v); }

/* What a row needs in shared memory besides the arrays of variable length. */
struct row_state {
    float *rest;              /* [leaves] sums of 2^t over columns that are no candidates */
    unsigned long long *left; /* [leaves] fixed point: columns of stashed vectors that are none */
    unsigned long long *late; /* [leaves] fixed point: candidates that are not listed */
    double *prefix;           /* [leaves] */
    unsigned long long
        *key;           /* [cap] candidates: ordered logit << 32 | id, ascending = best first */
    uint4 *stash;       /* [STASH] vectors that hold candidates */
    unsigned *stash_at; /* [STASH] */
    unsigned cap, leaves, width; /* columns of a leaf, a multiple of BLOCK */
};

/* The rest of a block's shared memory. */
struct block_state {
    double d[N_WARPS];
    float f[N_WARPS];
    unsigned u[N_WARPS];
    unsigned n, stashed, hist[256];
    unsigned long long last; /* composite key of the last candidate, or of the last listed */
    double mass;
};

/* Larger floats have smaller keys; -0 and +0 are one value. */
__device__ static inline unsigned order_key(float v) {
    unsigned u = __float_as_uint(v + 0.0f);
    return u >> 31 ? u : ~u & 0x7fffffffu;
}
__device__ static inline float key_value(unsigned k) {
    return __uint_as_float(k >> 31 ? k : ~k & 0x7fffffffu);
}

/* 2^x, ex2.approx: relative error below 2^-22. */
__device__ static inline float exp_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger, or NaN when either is. */
__device__ static inline float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* The block's result in every thread; a barrier before and after. */
__device__ static inline float block_max(float v, struct block_state *b) {
    for (int w = 16; w > 0; w /= 2) v = max_nan(v, __shfl_xor_sync(0xffffffffu, v, w));
    __syncthreads();
    if (threadIdx.x % 32 == 0) b->f[threadIdx.x / 32] = v;
    __syncthreads();
    v = b->f[0];
    for (int i = 1; i < N_WARPS; i++) v = max_nan(v, b->f[i]);
    return v;
}

__device__ static inline double block_sum(double v, struct block_state *b) {
    for (int w = 16; w > 0; w /= 2) v += __shfl_xor_sync(0xffffffffu, v, w);
    __syncthreads();
    if (threadIdx.x % 32 == 0) b->d[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < N_WARPS; i++) v += b->d[i];
    return v;
}

/* Inclusive sums over the threads, from thread 0 up. */
__device__ static inline double block_scan(double v, struct block_state *b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int w = 1; w < 32; w *= 2) {
        double x = __shfl_up_sync(0xffffffffu, v, w);
        if (lane >= w) v += x;
    }
    __syncthreads();
    if (lane == 31) b->d[warp] = v;
    __syncthreads();
    double before = 0;
    for (int i = 0; i < warp; i++) before += b->d[i];
    return before + v;
}

/* Sorts key[0 .. n) ascending; n <= cap.  Bitonic; a warp owns 64 neighbours in the short steps. */
__device__ static inline void sort_keys(unsigned long long *key, unsigned n) {
    unsigned size = 64;
    while (size < n) size *= 2;
    for (unsigned i = n + threadIdx.x; i < size; i += THREADS) key[i] = ~0ull;
    __syncthreads();
    for (unsigned k = 2; k <= size; k *= 2) {
        for (unsigned j = k / 2; j > 0; j /= 2) {
            for (unsigned t = threadIdx.x; t < size / 2; t += THREADS) {
                unsigned i = 2 * t - (t & (j - 1)), p = i | j;
                unsigned long long a = key[i], c = key[p];
                if ((a > c) == ((i & k) == 0)) {
                    key[i] = c;
                    key[p] = a;
                }
            }
            if (j > 32 || (j == 1 && k >= 64)) __syncthreads();
            else __syncwarp();
        }
    }
    __syncthreads();
}

/* Append to the candidates; *n counts on past cap. */
__device__ static inline void append(const struct row_state &s, unsigned *n, float v, unsigned id) {
    unsigned at = atomicAdd(n, 1u);
    if (at < s.cap) s.key[at] = (unsigned long long)order_key(v) << 32 | id;
}

/* Totals of the pass: over all columns, sum of 2^t and of 2^t t, where t = x * L2E - base. */
struct totals {
    double all, dot;
    float max; /* of the row; NaN when a logit is */
};

__device__ static inline float vector_max(const uint4 &v, const float *) {
    return max_nan(max_nan(__uint_as_float(v.x), __uint_as_float(v.y)),
                   max_nan(__uint_as_float(v.z), __uint_as_float(v.w)));
}
__device__ static inline float vector_max(const uint4 &v, const __nv_bfloat16 *) {
    const __nv_bfloat162 *p = (const __nv_bfloat162 *)&v;
    __nv_bfloat162 m = __hmax2_nan(__hmax2_nan(p[0], p[1]), __hmax2_nan(p[2], p[3]));
    return max_nan(__low2float(m), __high2float(m));
}

__device__ static inline float element(const uint4 &v, int i, const float *) {
    return __uint_as_float(((const unsigned *)&v)[i]);
}
__device__ static inline float element(const uint4 &v, int i, const __nv_bfloat16 *) {
    unsigned w = ((const unsigned *)&v)[i / 2];
    return __uint_as_float(i % 2 ? w & 0xffff0000u : w << 16);
}

/* Sums of one vector: 2^t, and 2^t t added to dot. */
template <typename T>
__device__ static inline float vector_sum(const uint4 &v, float base, float &dot) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < vec<T>::N; i++) {
        float t = fmaf(element(v, i, (const T *)0), HEAD_L2E, -base), p = exp_two(t);
        s += p;
        dot = fmaf(p, t, dot);
    }
    return s;
}

/* Vectors at `l` that a lane takes of a block of BLOCK columns. */
template <typename T> struct lane_vectors {
    enum { N = BLOCK / 32 / vec<T>::N };
    uint4 v[N];
};

/* A whole block of columns: one read of memory; candidates' vectors go to the stash. */
template <typename T>
__device__ static inline float whole_block(const T *l, unsigned col0, float base, float thr,
                                           const struct row_state &s, struct block_state *b,
                                           float &all, float &dot, float &most) {
    enum { N = lane_vectors<T>::N };
    unsigned lane = threadIdx.x % 32, vec0 = col0 / vec<T>::N + lane;
    uint4 v[N];
    float rest = 0;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = __ldcs((const uint4 *)l + vec0 + 32 * j);
#pragma unroll
    for (int j = 0; j < N; j++) {
        float m = vector_max(v[j], (const T *)0);
        bool hit = m >= thr;
        most = max_nan(most, m);
        float sum = vector_sum<T>(v[j], base, dot);
        all += sum;
        rest += hit ? 0.0f : sum;
        unsigned mask = __ballot_sync(0xffffffffu, hit);
        if (mask) {
            unsigned at = 0;
            if (lane == 0) at = atomicAdd(&b->stashed, __popc(mask));
            at = __shfl_sync(0xffffffffu, at, 0) + __popc(mask & ((1u << lane) - 1));
            if (hit && at < STASH) {
                s.stash[at] = v[j];
                s.stash_at[at] = (vec0 + 32 * j) * vec<T>::N;
            }
        }
    }
    return rest;
}

/* The last, partial block, or rows that are not aligned: a column at a time. */
template <typename T>
__device__ static inline float
part_block(const T *l, unsigned col0, unsigned cols, float base, float thr,
           const struct row_state &s, struct block_state *b, float &all, float &dot, float &most) {
    float rest = 0;
    unsigned end = min(cols, col0 + BLOCK);
    for (unsigned c = col0 + threadIdx.x % 32; c < end; c += 32) {
        float x = value(l[c]), t = fmaf(x, HEAD_L2E, -base), p = exp_two(t);
        most = max_nan(most, x);
        all += p;
        dot = fmaf(p, t, dot);
        if (x >= thr) append(s, &b->n, x, c);
        else rest += p;
    }
    return rest;
}

template <typename T>
__device__ static inline struct totals pass(const T *l, unsigned cols, bool aligned, float base,
                                            float thr, const struct row_state &s,
                                            struct block_state *b) {
    double all = 0, dot = 0;
    float most = -INFINITY;
    for (unsigned leaf = threadIdx.x / 32; leaf < s.leaves; leaf += N_WARPS) {
        float rest = 0;
        for (unsigned c = leaf * s.width; c < min(cols, (leaf + 1) * s.width); c += BLOCK) {
            float a = 0, d = 0;
            if (aligned && c + BLOCK <= cols)
                rest += whole_block(l, c, base, thr, s, b, a, d, most);
            else rest += part_block(l, c, cols, base, thr, s, b, a, d, most);
            all += (double)a;
            dot += (double)d;
        }
        rest = warp_sum(rest);
        if (threadIdx.x % 32 == 0) s.rest[leaf] = rest;
    }
    struct totals t;
    t.all = block_sum(all, b);
    t.dot = block_sum(dot, b);
    t.max = block_max(most, b);
    return t;
}

/* Candidates out of the stash; what is none goes to its leaf in fixed point, `unit` = 2^32, so
 * that the order of the stash does not matter. */
template <typename T>
__device__ static inline void unstash(float base, float thr, const struct row_state &s,
                                      struct block_state *b) {
    double unit = 4294967296.0 / (double)exp_two(fmaf(thr, HEAD_L2E, -base));
    for (unsigned i = threadIdx.x; i < b->stashed; i += THREADS) {
        uint4 v = s.stash[i];
        unsigned col = s.stash_at[i];
        float sum = 0;
        for (int j = 0; j < vec<T>::N; j++) {
            float x = element(v, j, (const T *)0);
            if (x >= thr) append(s, &b->n, x, col + j);
            else sum += exp_two(fmaf(x, HEAD_L2E, -base));
        }
        atomicAdd(&s.left[col / s.width], (unsigned long long)((double)sum * unit));
    }
    __syncthreads();
}

} // namespace head
#endif
