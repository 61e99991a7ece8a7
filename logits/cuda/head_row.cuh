/* logits/cuda/head_row.cuh - one row of logits by one block: shared memory, keys, scans, and the
 * pass over the columns.  Floor 2.
 *
 * Columns are cut into leaves whose width depends on their number alone.  A warp sums a leaf: each
 * lane its columns in order, then a tree over the lanes.  So sums do not depend on the card. */
#ifndef KLD_LOGITS_CUDA_HEAD_ROW_CUH
#define KLD_LOGITS_CUDA_HEAD_ROW_CUH
#include "logits/cuda/head.cuh"
#include "logits/cuda/kernel.cuh"

namespace head {

/* Threads of a block: set by the kernel that includes this. */
enum { THREADS = HEAD_THREADS, N_WARPS = THREADS / 32, BLOCK = 1024, MAX_LEAVES = 256 };
enum { STASH = 2048 };

/* One binary logarithm of e as FP32, and what it lacks. */
#define HEAD_L2E 1.44269502162933349609375f
#define HEAD_L2E_LACK 1.9259629911e-8

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
        *key;          /* [cap] candidates: ordered logit << 32 | id, ascending = best first */
    unsigned *sampled; /* [SAMPLE], before there are candidates; shares their memory */
    unsigned *stash;   /* [STASH] first columns of the vectors that hold candidates */
    unsigned cap, leaves, width; /* columns of a leaf, a multiple of BLOCK */
};

/* The rest of a block's shared memory. */
struct block_state {
    double d[N_WARPS];
    float f[N_WARPS];
    unsigned u[N_WARPS];
    unsigned n, stashed, hist[256];
    long long left_dot;      /* fixed point: of stashed columns that are no candidates */
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

/* Over the warps' results, in a fixed tree; the same in every lane. */
__device__ static inline double sum_of_warps(const double *d) {
    double v = threadIdx.x % 32 < N_WARPS ? d[threadIdx.x % 32] : 0.0;
    for (int w = N_WARPS / 2; w > 0; w /= 2) v += __shfl_xor_sync(0xffffffffu, v, w);
    return __shfl_sync(0xffffffffu, v, 0);
}

/* The block's result in every thread; a barrier before and after. */
__device__ static inline float block_max(float v, struct block_state *b) {
    for (int w = 16; w > 0; w /= 2) v = max_nan(v, __shfl_xor_sync(0xffffffffu, v, w));
    __syncthreads();
    if (threadIdx.x % 32 == 0) b->f[threadIdx.x / 32] = v;
    __syncthreads();
    v = b->f[threadIdx.x % N_WARPS];
    for (int w = N_WARPS / 2; w > 0; w /= 2) v = max_nan(v, __shfl_xor_sync(0xffffffffu, v, w));
    return v;
}

__device__ static inline double block_sum(double v, struct block_state *b) {
    for (int w = 16; w > 0; w /= 2) v += __shfl_xor_sync(0xffffffffu, v, w);
    __syncthreads();
    if (threadIdx.x % 32 == 0) b->d[threadIdx.x / 32] = v;
    __syncthreads();
    return sum_of_warps(b->d);
}

/* Sums over the lanes before this one; never by subtraction, which would lose the small beside
 * the large. */
__device__ static inline double lanes_before(double v, double *incl) {
    for (int k = 1; k < 32; k *= 2) {
        double x = __shfl_up_sync(0xffffffffu, v, k);
        if (threadIdx.x % 32 >= k) v += x;
    }
    *incl = v;
    v = __shfl_up_sync(0xffffffffu, v, 1);
    return threadIdx.x % 32 ? v : 0.0;
}

/* Sums over the threads before this one. */
__device__ static inline double threads_before(double v, struct block_state *b) {
    int warp = threadIdx.x / 32;
    double incl, before = lanes_before(v, &incl);
    __syncthreads();
    if (threadIdx.x % 32 == 31) b->d[warp] = incl;
    __syncthreads();
    double lower = 0;
    for (int i = 0; i < warp; i++) lower += b->d[i];
    return lower + before;
}

/* Sorts key[0 .. n) ascending; nothing past n is touched.  Bitonic, each merge beginning with
 * mirrored pairs, so that every exchange puts the smaller first and the places past n, as if they
 * held the largest, never take part.  A warp owns 64 neighbours in the short steps. */
__device__ static inline void sort_keys(unsigned long long *key, unsigned n) {
    unsigned size = 64;
    while (size < n) size *= 2;
    __syncthreads();
    for (unsigned k = 2; k <= size; k *= 2) {
        for (unsigned j = k / 2; j > 0; j /= 2) {
            for (unsigned t = threadIdx.x; t < size / 2; t += THREADS) {
                unsigned i = 2 * t - (t & (j - 1)), p = j == k / 2 ? i ^ (k - 1) : i | j;
                if (p >= n) continue;
                unsigned long long a = key[i], c = key[p];
                if (a > c) {
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

/* What a pass finds, t = x * L2E - base: the sum of 2^t t over columns that are no candidates (and
 * not in the stash), and the largest logit, NaN when one is. */
struct totals {
    double dot;
    float max;
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

/* 2^t, and 2^t t; a logit of -inf needs the clamp, or the product is NaN. */
template <bool CLAMP> __device__ static inline float share(float x, float base, float &dot) {
    float t = fmaf(x, HEAD_L2E, -base);
    if (CLAMP) t = fmaxf(t, -200.0f);
    float p = exp_two(t);
    dot = fmaf(p, t, dot);
    return p;
}

/* A lane's vectors of a step of a warp: COLS columns. */
template <typename T> struct step_vectors {
    enum { N = 4, COLS = 32 * N * vec<T>::N };
    uint4 v[N];
    __device__ void load(const T *l, unsigned col0) {
        const uint4 *p = (const uint4 *)(l + col0) + threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = __ldcs(p + 32 * j);
    }
};

/* A whole step of columns: sums, the maximum; vectors with candidates go to the stash. */
template <typename T, bool CLAMP>
__device__ static inline void
whole_step(const step_vectors<T> &x, unsigned col0, float base, float thr,
           const struct row_state &s, struct block_state *b, float &rest, float &dot, float &most) {
    unsigned hits = 0;
#pragma unroll
    for (int j = 0; j < step_vectors<T>::N; j++) {
        float m = vector_max(x.v[j], (const T *)0), sum = 0, d = 0;
        bool hit = m >= thr;
        most = max_nan(most, m);
#pragma unroll
        for (int i = 0; i < vec<T>::N; i++)
            sum += share<CLAMP>(element(x.v[j], i, (const T *)0), base, d);
        rest += hit ? 0.0f : sum;
        dot += hit ? 0.0f : d;
        if (hit) hits += 1u << j;
    }
    if (!hits) return;
    unsigned at = atomicAdd(&b->stashed, (unsigned)__popc(hits));
    col0 += threadIdx.x % 32 * vec<T>::N;
#pragma unroll
    for (int j = 0; j < step_vectors<T>::N; j++)
        if (hits >> j & 1) {
            if (at < STASH) s.stash[at] = col0 + 32 * vec<T>::N * j;
            at++;
        }
}

/* The last, partial step: a column at a time. */
template <typename T>
__device__ static inline void part_step(const T *l, unsigned col0, unsigned cols, float base,
                                        float thr, const struct row_state &s, struct block_state *b,
                                        float &rest, float &dot, float &most) {
    for (unsigned c = col0 + threadIdx.x % 32; c < cols; c += 32) {
        float x = value(l[c]), d = 0, p = share<true>(x, base, d);
        most = max_nan(most, x);
        if (x >= thr) {
            append(s, &b->n, x, c);
        } else {
            rest += p;
            dot += d;
        }
    }
}

/* A step is loaded and computed before the next: other warps fill the wait, and a second step in
 * registers would spill. */
template <typename T, bool CLAMP>
__device__ static inline struct totals pass(const T *l, unsigned cols, float base, float thr,
                                            const struct row_state &s, struct block_state *b) {
    enum { COLS = step_vectors<T>::COLS };
    const unsigned whole = cols / COLS, per = s.width / COLS;
    double dot = 0;
    float most = -INFINITY;
    for (unsigned leaf = threadIdx.x / 32; leaf < s.leaves; leaf += N_WARPS) {
        float rest = 0;
        for (unsigned at = leaf * per; at < (leaf + 1) * per && at * COLS < cols; at++) {
            float d = 0;
            if (at < whole) {
                step_vectors<T> x;
                x.load(l, at * COLS);
                whole_step<T, CLAMP>(x, at * COLS, base, thr, s, b, rest, d, most);
            } else {
                part_step(l, at * COLS, cols, base, thr, s, b, rest, d, most);
            }
            dot += (double)d;
        }
        rest = warp_sum(rest);
        if (threadIdx.x % 32 == 0) s.rest[leaf] = rest;
    }
    struct totals t;
    t.dot = block_sum(dot, b);
    t.max = block_max(most, b);
    return t;
}

/* Steps of the upper half of the ordered key above a threshold; larger is more probable. */
__device__ static inline unsigned steps_above(float x, float thr) {
    return min(255u, (~order_key(x) >> 16) - (~order_key(thr) >> 16));
}

/* The sampled threshold lets through somewhat more than k columns.  The highest that still lets k
 * through; *reached: in, candidates that are in s.key already; out, columns above the threshold
 * given. */
template <typename T>
__device__ static inline float raise(const T *l, float thr, unsigned k, unsigned *reached,
                                     const struct row_state &s, struct block_state *b) {
    for (unsigned i = threadIdx.x; i < 256; i += THREADS) b->hist[i] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < b->stashed; i += THREADS) {
        uint4 v = *(const uint4 *)(l + s.stash[i]);
        for (int j = 0; j < vec<T>::N; j++) {
            float x = element(v, j, (const T *)0);
            if (x >= thr) atomicAdd(&b->hist[steps_above(x, thr)], 1u);
        }
    }
    for (unsigned i = threadIdx.x; i < *reached; i += THREADS)
        atomicAdd(&b->hist[steps_above(key_value((unsigned)(s.key[i] >> 32)), thr)], 1u);
    __syncthreads();
    /* Every warp for itself: lane i has bins 8i .. 8i + 7. */
    unsigned lane = threadIdx.x % 32, own = 0, cut = 0;
    for (int j = 0; j < 8; j++) own += b->hist[8 * lane + j];
    unsigned above = own;
    for (int w = 1; w < 32; w *= 2) {
        unsigned x = __shfl_down_sync(0xffffffffu, above, w);
        if (lane + w < 32) above += x;
    }
    *reached = __shfl_sync(0xffffffffu, above, 0);
    above -= own; /* of the lanes after this one */
    for (int j = 7; j >= 0; j--) {
        above += b->hist[8 * lane + j];
        if (above >= k && !cut) cut = 8 * lane + j + 1;
    }
    cut = __reduce_max_sync(0xffffffffu, cut);
    if (cut <= 1) return thr;
    return key_value(~(((~order_key(thr) >> 16) + cut - 1) << 16));
}

/* A share of a column that is no candidate joins its leaf; the product is returned. */
__device__ static inline long long leave(const struct row_state &s, unsigned col, float sum,
                                         float dot, double one) {
    atomicAdd(&s.left[col / s.width], (unsigned long long)((double)sum * one * 0x1p32));
    return (long long)((double)dot * one * 0x1p24);
}

/* Candidates out of the stash, and of those in s.key the ones that are still such; what is none
 * goes to its leaf in fixed point, 2^32 the share of the threshold, so that the order does not
 * matter. (2^24 for the products.) */
enum { KEPT = 4 };
template <typename T>
__device__ static inline void unstash(const T *l, float base, float thr, const struct row_state &s,
                                      struct block_state *b) {
    double one = 1.0 / (double)exp_two(fmaf(thr, HEAD_L2E, -base));
    unsigned long long kept[KEPT];
    long long products = 0;
    unsigned n = b->n;
    for (int j = 0; j < KEPT; j++) {
        unsigned i = threadIdx.x + j * THREADS;
        kept[j] = i < n ? s.key[i] : ~0ull;
    }
    __syncthreads();
    if (threadIdx.x == 0) b->n = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < b->stashed; i += THREADS) {
        unsigned col = s.stash[i];
        uint4 v = *(const uint4 *)(l + col);
        float sum = 0, dot = 0;
        for (int j = 0; j < vec<T>::N; j++) {
            float x = element(v, j, (const T *)0), d = 0;
            if (x >= thr) {
                append(s, &b->n, x, col + j);
                continue;
            }
            sum += share<true>(x, base, d);
            dot += d;
        }
        products += leave(s, col, sum, dot, one);
    }
    for (int j = 0; j < KEPT; j++) {
        float x = key_value((unsigned)(kept[j] >> 32)), d = 0;
        if (threadIdx.x + j * THREADS >= n) continue;
        if (x >= thr) append(s, &b->n, x, (unsigned)kept[j]);
        else {
            float p = share<true>(x, base, d);
            products += leave(s, (unsigned)kept[j], p, d, one);
        }
    }
    for (int w = 16; w > 0; w /= 2) products += __shfl_xor_sync(0xffffffffu, products, w);
    if (threadIdx.x % 32 == 0)
        atomicAdd((unsigned long long *)&b->left_dot, (unsigned long long)products);
    __syncthreads();
}

} // namespace head
#endif
