/* Statistics of rows of logits, a block a row, one pass over memory for a row as models make them:
 *   - a sample of the row gives a threshold that somewhat more than k columns reach;
 *   - the pass sums, keeps the vectors that reach it, and takes the maximum;
 *   - their columns are sorted, the list is cut by the tail rule, draws are taken from the rest.
 * A row that the sample misjudged (too few, too many) is done again by exact selection. */
#define HEAD_THREADS 128
#include "kld/base/philox.h"
#include "logits/cuda/head_exact.cuh"
#include "logits/cuda/head_row.cuh"

#include <cmath>

using namespace head;

namespace {

struct layout {
    unsigned cap, leaves, width;
    bool fast; /* the sampled threshold may be used */
};

__device__ struct row_state carve(const struct layout &g, unsigned char *p) {
    struct row_state s = {};
    s.cap = g.cap;
    s.leaves = g.leaves;
    s.width = g.width;
    s.key = (unsigned long long *)p;
    s.sampled = (unsigned *)p;
    p += g.cap * 8;
    s.left = (unsigned long long *)p;
    s.late = s.left + g.leaves;
    s.prefix = (double *)(s.late + g.leaves);
    p = (unsigned char *)(s.prefix + g.leaves);
    s.rest = (float *)p;
    s.stash = (unsigned *)(s.rest + g.leaves);
    return s;
}

size_t shared_bytes(const struct layout &g) {
    return (g.fast ? STASH * 4 : 0) + g.cap * 8 + (size_t)g.leaves * (3 * 8 + 4);
}

/* A threshold that about `rank` of SAMPLE groups of eight sampled columns reach, and the largest
 * sampled logit.  -inf: no use. */
enum { SAMPLE = 512, MINE = SAMPLE / THREADS };
template <typename T>
__device__ float threshold(const T *l, unsigned cols, unsigned rank, const struct row_state &s,
                           float *top, struct block_state *b) {
    enum { PER = 8 / vec<T>::N };
    size_t vectors = cols / vec<T>::N;
    float m[MINE], most = -INFINITY;
#pragma unroll
    for (unsigned g = 0; g < MINE; g++) {
        m[g] = -INFINITY;
#pragma unroll
        for (unsigned j = 0; j < PER; j++) {
            size_t i = (size_t)(g * THREADS + threadIdx.x) * PER + j;
            m[g] = max_nan(
                m[g], vector_max(((const uint4 *)l)[i * vectors / (SAMPLE * PER)], (const T *)0));
        }
        most = max_nan(most, m[g]);
        s.sampled[g * THREADS + threadIdx.x] = ~order_key(m[g]) >> 16;
    }
    *top = block_max(most, b);
    /* Bisection over the upper half of the ordered key, by one warp. */
    if (threadIdx.x < 32) {
        unsigned key[SAMPLE / 32], t = 0;
#pragma unroll
        for (int g = 0; g < SAMPLE / 32; g++) key[g] = s.sampled[g * 32 + threadIdx.x];
        for (int bit = 15; bit >= 0; bit--) {
            unsigned c = t | 1u << bit, n = 0;
#pragma unroll
            for (int g = 0; g < SAMPLE / 32; g++) n += key[g] >= c;
            if (__reduce_add_sync(0xffffffffu, n) >= rank) t = c;
        }
        if (threadIdx.x == 0) b->n = t;
    }
    __syncthreads();
    return key_value(~(b->n << 16));
}

/* What the columns of a leaf that are not listed weigh, in units of e^(x - max). */
struct weights {
    double pass, left, late; /* factors of rest, left, late */
    float max, base;
};

__device__ double leaf_mass(const struct row_state &s, const struct weights &w, unsigned i) {
    return (double)s.rest[i] * w.pass + (double)s.left[i] * w.left + (double)s.late[i] * w.late;
}

/* Of this thread's leaves, neighbours; with `before` the mass up to each goes to s.prefix. */
__device__ double masses(const struct row_state &s, const struct weights &w, const double *before) {
    enum { PER = MAX_LEAVES / THREADS };
    double run = before ? *before : 0;
    for (unsigned i = threadIdx.x * PER; i < min(s.leaves, (threadIdx.x + 1) * PER); i++) {
        run += leaf_mass(s, w, i);
        if (before) s.prefix[i] = run;
    }
    return run;
}

__device__ float candidate(const struct row_state &s, unsigned i) {
    return key_value((unsigned)(s.key[i] >> 32));
}

/* Of the sorted candidates: how many are listed; the mass behind them (b->mass), and all of it.
 * Masses are summed from the last candidate up, so that nothing is ever subtracted. */
__device__ unsigned cut_list(const struct cuda_head_call &c, const struct row_state &s, unsigned n,
                             unsigned k, double rest, float best, double *z,
                             struct block_state *b) {
    unsigned per = (n + THREADS - 1) / THREADS, from = threadIdx.x * per, above = 0;
    double own = 0;
    for (unsigned r = from; r < min(n, from + per); r++)
        own += (double)expf(candidate(s, n - 1 - r) - best);
    double before = rest + threads_before(own, b);
    *z = rest + block_sum(own, b);
    double run = before;
    for (unsigned u = 0; u < per; u++) {
        unsigned i = n - 1 - (from + u); /* wraps beyond the last; r < n guards it */
        bool there = from + u < n;
        if (there) run += (double)expf(candidate(s, i) - best);
        above += __syncthreads_count(there && i < k && run > c.tail_mass * *z);
    }
    unsigned least = min(max(c.min_k, 1u), k), count = max(above, least);
    if (threadIdx.x == 0) b->mass = rest;
    __syncthreads();
    run = before;
    for (unsigned r = from; r < min(n, from + per); r++) {
        run += (double)expf(candidate(s, n - 1 - r) - best);
        if (n - 1 - r == count) b->mass = run;
    }
    if (threadIdx.x == 0) b->last = s.key[count - 1];
    __syncthreads();
    return count;
}

/* The last entry of the list: what is above it, or equal with no higher id, is listed. */
struct listed {
    float x;
    unsigned id;
};

/* 2^t of column c, whose logit is x; 0 when it is listed. */
__device__ float tail_share(float x, unsigned c, const struct weights &w, const struct listed &z) {
    bool in = x > z.x || (x == z.x && c <= z.id);
    return in ? 0.0f : exp_two(fmaf(x, HEAD_L2E, -w.base));
}

/* The first lane at which the running mass passes `target`, or the last with any when rounding
 * leaves it short; 32 when no lane has any.  *run becomes the mass before that lane, or behind all
 * of them; *passed says which. */
__device__ unsigned lane_of(double own, double target, double *run, bool *passed) {
    double incl, before = *run + lanes_before(own, &incl);
    unsigned pass = __ballot_sync(0xffffffffu, before + own > target && own > 0);
    unsigned some = __ballot_sync(0xffffffffu, own > 0);
    unsigned who = pass ? __ffs(pass) - 1 : some ? 31 - __clz(some) : 32;
    *passed = pass != 0;
    *run = pass ? __shfl_sync(0xffffffffu, before, who & 31)
                : *run + __shfl_sync(0xffffffffu, incl, 31);
    return who;
}

/* Of 32 * N columns from c, N neighbours a lane, the one that the draw falls on. */
template <typename T, int N>
__device__ bool draw_step(const T *x, const T *l, unsigned c, unsigned end, double *run,
                          double target, const struct weights &w, const struct listed &z,
                          unsigned *found) {
    unsigned lane = threadIdx.x % 32, at = c + lane * N;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (at + i < end) sum += tail_share(value(x[i]), at + i, w, z);
    double behind = *run;
    bool passed, inner;
    unsigned who = lane_of((double)sum * w.pass, target, run, &passed);
    if (who == 32) return false;
    /* That lane's columns, a lane each. */
    if (passed) behind = *run;
    at = c + who * N + lane;
    sum = lane < N && at < end ? tail_share(value(l[at]), at, w, z) : 0.0f;
    who = lane_of((double)sum * w.pass, passed ? target : INFINITY, &behind, &inner);
    if (who < 32) *found = at - lane + who;
    return passed;
}

/* The column of [c0, end) that a draw falls on; `run` is the mass before c0.  By one warp. */
template <typename T>
__device__ unsigned draw_in(const T *l, unsigned c0, unsigned end, double run, double target,
                            const struct weights &w, const struct listed &z) {
    unsigned found = 0xffffffffu;
    for (unsigned c = c0; c < end; c += 32) {
        unsigned at = c + threadIdx.x % 32;
        T x = l[at < end ? at : c];
        if (draw_step<T, 1>(&x, l, c, end, &run, target, w, z, &found)) break;
    }
    return found;
}

/* The same for a leaf of aligned whole steps: a step's vectors are read at once. */
template <typename T>
__device__ unsigned draw_steps(const T *l, unsigned c0, unsigned end, double run, double target,
                               const struct weights &w, const struct listed &z) {
    enum { N = vec<T>::N };
    unsigned found = 0xffffffffu;
    for (unsigned c = c0; c < end; c += step_vectors<T>::COLS) {
        step_vectors<T> x;
        x.load(l, c);
#pragma unroll
        for (int j = 0; j < step_vectors<T>::N; j++)
            if (draw_step<T, N>((const T *)&x.v[j], l, c + 32 * N * j, end, &run, target, w, z,
                                &found))
                return found;
    }
    return found;
}

/* The same over a leaf: by vectors as far as whole ones go. */
template <typename T>
__device__ unsigned draw_leaf(const T *l, unsigned cols, unsigned leaf, unsigned width, double run,
                              double target, const struct weights &w, const struct listed &z,
                              bool aligned) {
    unsigned c0 = leaf * width, end = min(cols, c0 + width);
    if (aligned && end - c0 == width) return draw_steps(l, c0, end, run, target, w, z);
    return draw_in(l, c0, end, run, target, w, z);
}

template <typename T>
__device__ void draw_all(const struct cuda_head_call &c, const T *l, size_t row,
                         const struct row_state &s, const struct weights &w,
                         const struct block_state *b) {
    bool aligned = c.ld * sizeof(T) % 16 == 0 && (uintptr_t)l % 16 == 0;
    double total = s.prefix[s.leaves - 1];
    const struct listed z = {key_value((unsigned)(b->last >> 32)), (unsigned)b->last};
    for (unsigned d = threadIdx.x / 32; d < c.draws; d += N_WARPS) {
        kld_philox_block p = kld_philox(c.seed, (c.pos + row) << 32 | d / 2, c.window);
        double u = d % 2 ? kld_philox_unit(p.v[2], p.v[3]) : kld_philox_unit(p.v[0], p.v[1]);
        unsigned id = 0xffffffffu, lo = 0, hi = s.leaves - 1;
        if (total > 0) {
            while (lo < hi) {
                unsigned mid = (lo + hi) / 2;
                if (s.prefix[mid] > u * total) hi = mid;
                else lo = mid + 1;
            }
            id = draw_leaf(l, c.cols, lo, s.width, lo ? s.prefix[lo - 1] : 0.0, u * total, w, z,
                           aligned);
        }
        if (threadIdx.x % 32) continue;
        c.draw_ids[row * c.draws + d] = id;
        c.draw_logit[row * c.draws + d] = id < c.cols ? value(l[id]) : 0.0f;
    }
}

template <typename T>
__device__ float logit_of(const struct cuda_head_call &c, const T *l, uint32_t id) {
    return id < c.cols ? value(l[id]) : -INFINITY;
}

template <typename T>
__device__ void gather(const struct cuda_head_call &c, const T *l, size_t row) {
    for (unsigned i = threadIdx.x; c.ref_ids && i < min(c.ref_count[row], c.ref_ld); i += THREADS)
        c.ref_logit[row * c.ref_ld + i] = logit_of(c, l, c.ref_ids[row * c.ref_ld + i]);
    for (unsigned i = threadIdx.x; c.ref_tail_ids && i < c.ref_m; i += THREADS)
        c.ref_tail_logit[row * c.ref_m + i] = logit_of(c, l, c.ref_tail_ids[row * c.ref_m + i]);
    if (threadIdx.x == 0) c.label_logit[row] = logit_of(c, l, c.labels[row]);
}

/* Everything that follows the candidates and the sums. */
template <typename T>
__device__ void finish_row(const struct cuda_head_call &c, const T *l, size_t row, unsigned k,
                           const struct row_state &s, const struct totals &t, float base,
                           double unit, struct block_state *b) {
    unsigned n = b->n, i = threadIdx.x;
    struct weights w = {0, 0, 0, t.max, base};
    /* 2^(x L2E - base) to e^(x - max) */
    w.pass = exp2((double)base - (double)t.max * ((double)HEAD_L2E + HEAD_L2E_LACK));
    w.left = w.pass * unit;
    sort_keys(s.key, n);
    double rest = block_sum(masses(s, w, NULL), b), z;
    unsigned count = cut_list(c, s, n, k, rest, t.max, &z, b);
    /* Sum of e^(x - max) (x - max): candidates by themselves, the rest from the pass. */
    double dot = 0;
    for (unsigned j = i; j < n; j += THREADS) {
        float d = candidate(s, j) - t.max;
        if (d > -104.0f) dot += (double)(expf(d) * d);
    }
    dot = block_sum(dot, b);
    dot += w.pass * (t.dot + (double)b->left_dot * (unit * 256)) / (double)HEAD_L2E;
    dot += rest * ((double)base / (double)HEAD_L2E - (double)t.max);
    for (unsigned j = i; j < count; j += THREADS) {
        c.ids[row * c.top_k + j] = (uint32_t)s.key[j];
        c.logit[row * c.top_k + j] = candidate(s, j);
    }
    if (i == 0) {
        double h = log(z) - dot / z;
        c.count[row] = count;
        c.lse[row] = (double)t.max + log(z);
        c.entropy[row] = h > 0 ? (float)h : 0.0f;
        c.tail_mass_out[row] = (float)(b->mass / z);
    }
    if (!c.draws) return;
    /* Candidates that are not listed join their leaves, in fixed point: the order is free. */
    float top = count < n ? expf(candidate(s, count) - t.max) : 0.0f;
    for (unsigned j = count + i; top > 0 && j < n; j += THREADS)
        atomicAdd(
            &s.late[(uint32_t)s.key[j] / s.width],
            (unsigned long long)((double)(expf(candidate(s, j) - t.max) / top) * 4294967296.0));
    __syncthreads();
    w.late = (double)top / 4294967296.0;
    double before = threads_before(masses(s, w, NULL), b);
    masses(s, w, &before);
    __syncthreads();
    draw_all(c, l, row, s, w, b);
}

/* The fast way, a few times with another threshold if need be.  False: it does not serve, t->max is
 * right all the same. */
template <typename T>
__device__ bool by_sample(const T *l, unsigned cols, unsigned k, unsigned rank,
                          const struct row_state &s, struct totals *t, float *base, double *unit,
                          struct block_state *b) {
    bool clamp = false;
    for (int attempt = 0; attempt < 4; attempt++) {
        float top, thr = threshold(l, cols, min(rank, SAMPLE / 2), s, &top, b);
        if (!(thr > -INFINITY && top < INFINITY)) break;
        __syncthreads();
        for (unsigned i = threadIdx.x; i < s.leaves; i += THREADS) s.left[i] = 0;
        if (threadIdx.x == 0) b->n = b->stashed = 0;
        if (threadIdx.x == 0) b->left_dot = 0;
        __syncthreads();
        *base = top * HEAD_L2E;
        *t = clamp ? pass<T, true>(l, cols, *base, thr, s, b)
                   : pass<T, false>(l, cols, *base, thr, s, b);
        if (!(t->max > -INFINITY && t->max < INFINITY)) return false;
        if (!(t->dot == t->dot)) {
            clamp = true;
            continue;
        }
        unsigned stashed = b->stashed, reached = b->n;
        bool fits = stashed <= STASH && reached <= KEPT * THREADS;
        if (fits) {
            float higher = raise(l, thr, k, &reached, s, b);
            *unit = (double)exp_two(fmaf(higher, HEAD_L2E, -*base)) / 4294967296.0;
            unstash(l, *base, higher, s, b);
            if (reached >= k && b->n <= s.cap) return true;
        }
        if (!fits || reached >= k) rank = max(1u, rank * STASH / 2 / max(stashed, reached));
        else rank *= 2;
        __syncthreads();
    }
    t->max = row_max(l, cols, b);
    return false;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 8)
    head_rows(const struct cuda_head_call c, const T *logits, const struct layout g,
              unsigned rank) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ struct block_state b;
    struct row_state s = carve(g, memory);
    size_t row = blockIdx.x;
    const T *l = logits + row * c.ld;
    unsigned k = min(c.top_k, c.cols);
    for (unsigned i = threadIdx.x; i < s.leaves; i += THREADS) s.late[i] = 0;
    struct totals t = {};
    float base = 0;
    double unit = 0;
    bool done = false;
    if (g.fast) done = by_sample(l, c.cols, k, rank, s, &t, &base, &unit, &b);
    else t.max = row_max(l, c.cols, &b);
    gather(c, l, row);
    if (!(t.max > -INFINITY && t.max < INFINITY)) {
        if (threadIdx.x == 0) c.lse[row] = NAN;
        return;
    }
    if (!done) {
        base = t.max * HEAD_L2E;
        unit = 0;
        t = exact(l, c.cols, k, t.max, base, s, &b);
    }
    __syncthreads();
    finish_row(c, l, row, k, s, t, base, unit, &b);
}

template <typename T>
cudaError_t launch(const struct cuda_head_call *c, const T *logits, cudaStream_t stream) {
    struct layout g = {};
    unsigned k = c->top_k < c->cols ? c->top_k : c->cols;
    bool aligned = c->ld * sizeof(T) % 16 == 0 && (uintptr_t)logits % 16 == 0;
    g.width =
        (unsigned)((c->cols + (size_t)BLOCK * MAX_LEAVES - 1) / ((size_t)BLOCK * MAX_LEAVES)) *
        BLOCK;
    g.leaves = (c->cols + g.width - 1) / g.width;
    g.fast = aligned && c->cols >= 16384 && k <= 1024 && k * 16 <= c->cols;
    g.cap = k <= 256 ? 768 : k <= 1024 ? 2048 : 4096;
    /* k columns are expected above the sample's x-th of 8 * SAMPLE; some deviations more. */
    double x = (double)k * 8 * SAMPLE / c->cols;
    unsigned rank = (unsigned)ceil(x + 3.5 * sqrt(x) + 3);
    if (rank > SAMPLE / 2) g.fast = false;
    size_t shared = shared_bytes(g);
    cudaError_t e = cudaFuncSetAttribute(head_rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)shared);
    if (e != cudaSuccess || !c->rows) return e;
    head_rows<<<(unsigned)c->rows, THREADS, shared, stream>>>(*c, logits, g, rank);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_head_launch(const struct cuda_head_call *c, const float *logits, cudaStream_t s) {
    return launch(c, logits, s);
}

cudaError_t cuda_head_launch(const struct cuda_head_call *c, const __nv_bfloat16 *logits,
                             cudaStream_t s) {
    return launch(c, logits, s);
}
