/* logits/cuda/head_exact.cuh - the selection that is right for every row: radix select over ordered
 * keys, ties by id.  Floor 2.  Reads the row several times; the fast path of head_kernel.cu leaves
 * to it what its sampled threshold does not serve. */
#ifndef KLD_LOGITS_CUDA_HEAD_EXACT_CUH
#define KLD_LOGITS_CUDA_HEAD_EXACT_CUH
#include "logits/cuda/head_row.cuh"

namespace head {

/* Add one to a bin, once a warp for lanes that agree. */
__device__ static inline void count_bin(unsigned *hist, unsigned bin, bool there) {
    unsigned active = __ballot_sync(0xffffffffu, there);
    if (!there) return;
    unsigned same = __match_any_sync(active, bin);
    if ((threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&hist[bin], __popc(same));
}

/* The key of the k-th best column, and how many columns of that key belong to the k best. */
template <typename T>
__device__ static inline unsigned kth_key(const T *l, unsigned cols, unsigned k, unsigned *ties,
                                          struct block_state *b) {
    unsigned prefix = 0, want = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < 256; i += THREADS) b->hist[i] = 0;
        __syncthreads();
        unsigned high = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (unsigned c0 = 0; c0 < cols; c0 += THREADS) {
            unsigned c = c0 + threadIdx.x, key = c < cols ? order_key(value(l[c])) : 0;
            count_bin(b->hist, key >> shift & 255, c < cols && (key & high) == prefix);
        }
        __syncthreads();
        unsigned digit = 0, before = 0;
        while (before + b->hist[digit] < want) before += b->hist[digit++];
        want -= before;
        prefix |= digit << shift;
    }
    *ties = want;
    return prefix;
}

/* The k best columns become the candidates: every key below `kth`, and the first `ties` of it in
 * order of id.  Returns the last of those ids. */
template <typename T>
__device__ static inline void collect(const T *l, unsigned cols, unsigned kth, unsigned ties,
                                      const struct row_state &s, struct block_state *b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned seen = 0;
    for (unsigned c0 = 0; c0 < cols; c0 += THREADS) {
        unsigned c = c0 + threadIdx.x;
        float x = c < cols ? value(l[c]) : 0;
        unsigned key = order_key(x);
        bool tie = c < cols && key == kth;
        if (c < cols && key < kth) append(s, &b->n, x, c);
        unsigned mask = __ballot_sync(0xffffffffu, tie);
        if (lane == 0) b->u[warp] = __popc(mask);
        __syncthreads();
        unsigned rank = seen + __popc(mask & ((1u << lane) - 1));
        for (int i = 0; i < N_WARPS; i++) {
            if (i < warp) rank += b->u[i];
            seen += b->u[i];
        }
        if (tie && rank < ties) append(s, &b->n, x, c);
        if (tie && rank == ties - 1) b->last = (unsigned long long)key << 32 | c;
        __syncthreads();
    }
}

/* Sums over the columns behind the candidates. */
template <typename T>
__device__ static inline double sums(const T *l, unsigned cols, float base,
                                     const struct row_state &s, struct block_state *b) {
    double dot = 0;
    for (unsigned leaf = threadIdx.x / 32; leaf < s.leaves; leaf += N_WARPS) {
        float rest = 0;
        unsigned end = min(cols, (leaf + 1) * s.width);
        for (unsigned c = leaf * s.width + threadIdx.x % 32; c < end; c += 32) {
            float x = value(l[c]), d = 0, p = share<true>(x, base, d);
            if (((unsigned long long)order_key(x) << 32 | c) <= b->last) continue;
            rest += p;
            dot += (double)d;
        }
        rest = warp_sum(rest);
        if (threadIdx.x % 32 == 0) s.rest[leaf] = rest;
    }
    return block_sum(dot, b);
}

template <typename T>
__device__ static inline float row_max(const T *l, unsigned cols, struct block_state *b) {
    float m = -INFINITY;
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) m = max_nan(m, value(l[c]));
    return block_max(m, b);
}

template <typename T>
__device__ static inline struct totals exact(const T *l, unsigned cols, unsigned k, float max,
                                             float base, const struct row_state &s,
                                             struct block_state *b) {
    unsigned ties, kth = kth_key(l, cols, k, &ties, b);
    __syncthreads();
    if (threadIdx.x == 0) b->n = 0;
    if (threadIdx.x == 0) b->left_dot = 0;
    for (unsigned i = threadIdx.x; i < s.leaves; i += THREADS) s.left[i] = 0;
    __syncthreads();
    collect(l, cols, kth, ties, s, b);
    struct totals t = {sums(l, cols, base, s, b), max};
    return t;
}

} // namespace head
#endif
