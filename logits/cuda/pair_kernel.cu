/* Two distributions against each other, a block a row pair, four passes over the two rows:
 *   1  maxima, most probable ids, normalisers
 *   2  divergences, and the mass by steps of 1/64 nat below the maximum, in fixed point
 *   3  the columns of the step in which each nucleus ends, which are then sorted
 *   4  what the two nuclei share
 * With d = ln p - ln q every divergence is a sum of terms that are never negative, so nearly equal
 * rows lose nothing to cancellation:
 *   KL = sum p (e^-d - 1 + d)        JS = sum sqrt(pq) (h sinh h - cosh h ln cosh h), h = d / 2
 *   TV = 1/2 sum p |e^-d - 1| */
#include "logits/cuda/head_row.cuh"
#include "logits/cuda/pair.cuh"

using namespace head;

namespace {

enum { BINS = 2048, STEPS = 64, KEYS = 2048, DIGIT = 11 };

struct pair_state {
    unsigned mass[2][BINS]; /* 2^31 = 1 */
    unsigned long long key[KEYS];
    struct block_state b;
    unsigned long long best[N_WARPS];
};

/* A running sum that keeps what rounding loses (Neumaier). */
struct sum {
    float s, lost;
    __device__ void add(float v) {
        float t = s + v;
        lost += fabsf(s) >= fabsf(v) ? (s - t) + v : (v - t) + s;
        s = t;
    }
    __device__ double total(struct block_state *b) const {
        return block_sum((double)s + (double)lost, b);
    }
};

struct side {
    float max, shift; /* ln p = (x - max) - shift */
    double lse;
    unsigned id;
    unsigned long long last; /* composite key of the nucleus' last column */
    double mass;             /* of the nucleus */
};

/* f(x of p, x of q, column) for this thread's columns, in ascending order. */
template <typename T, typename F>
__device__ void each(const T *p, const T *q, unsigned cols, bool aligned, F f) {
    enum { N = vec<T>::N };
    unsigned whole = aligned ? cols / N : 0;
    for (unsigned v = threadIdx.x; v < whole; v += THREADS) {
        uint4 a = ((const uint4 *)p)[v], b = ((const uint4 *)q)[v];
#pragma unroll
        for (int i = 0; i < N; i++)
            f(element(a, i, (const T *)0), element(b, i, (const T *)0), v * N + i);
    }
    for (unsigned c = whole * N + threadIdx.x; c < cols; c += THREADS)
        f(value(p[c]), value(q[c]), c);
}

/* Maximum and sum of one side, a thread's; the base follows the maximum lazily. */
struct seen {
    float max, base, z;
    unsigned id;
    __device__ void add(float x, unsigned c) {
        if (x > max || !(x == x)) {
            if (!(max != max)) max = x; /* a NaN stays */
            id = c;
            if (x > base + 40.0f) {
                z *= exp_two((base - x) * HEAD_L2E);
                base = x;
            }
        }
        z += exp_two((x - base) * HEAD_L2E);
    }
};

__device__ struct side normalise(struct seen t, struct pair_state *m) {
    struct side s = {};
    s.max = block_max(t.max, &m->b);
    if (!(s.max > -INFINITY && s.max < INFINITY)) return s;
    /* Of the columns that hold the maximum, the lowest. */
    unsigned id = t.max == s.max ? t.id : 0xffffffffu;
    id = __reduce_min_sync(0xffffffffu, id);
    if (threadIdx.x % 32 == 0) m->best[threadIdx.x / 32] = id;
    double z = block_sum((double)t.z * exp((double)t.base - (double)s.max), &m->b);
    s.id = 0xffffffffu;
    for (int i = 0; i < N_WARPS; i++) s.id = min(s.id, (unsigned)m->best[i]);
    s.lse = (double)s.max + log(z);
    s.shift = (float)log(z);
    return s;
}

/* e^-d - 1 + d, without cancellation. */
__device__ float bregman(float d) {
    if (fabsf(d) >= 0.5f) return exp_two(-d * HEAD_L2E) - 1.0f + d;
    float t = fmaf(d, -1.0f / 362880, 1.0f / 40320);
    t = fmaf(d, -t, 1.0f / 5040);
    t = fmaf(d, -t, 1.0f / 720);
    t = fmaf(d, -t, 1.0f / 120);
    t = fmaf(d, -t, 1.0f / 24);
    t = fmaf(d, -t, 1.0f / 6);
    t = fmaf(d, -t, 0.5f);
    return d * d * t;
}

/* One column's share of JS. */
__device__ float js_term(float p, float q, float d) {
    if (fabsf(d) >= 0.5f) {
        float m = 0.5f * (p + q), s = 0;
        if (p > 0) s += p * logf(p / m);
        if (q > 0) s += q * logf(q / m);
        return 0.5f * s;
    }
    float u = 0.25f * d * d;
    return sqrtf(p * q) * u * fmaf(u * u, fmaf(u, -1.0f / 720, 1.0f / 144), 0.5f);
}

struct sums {
    struct sum kl, rev, js, tv;
    bool p_alone, q_alone; /* a column that only one side holds possible */
};

__device__ float log_of(const struct side &s, float x) { return (x - s.max) - s.shift; }
__device__ float prob(const struct side &s, float x) { return exp_two(log_of(s, x) * HEAD_L2E); }

__device__ void diverge(struct sums &t, float x, float y, float gap, const struct side &p,
                        const struct side &q) {
    float a = prob(p, x), b = prob(q, y), d = (x - y) - gap;
    if (x == -INFINITY || y == -INFINITY) {
        t.p_alone |= x > -INFINITY;
        t.q_alone |= y > -INFINITY;
        t.tv.add(fabsf(a - b));
        t.js.add(0.5f * (a + b) * (float)HEAD_LN2);
        return;
    }
    float g = bregman(d);
    t.kl.add(a * g);
    t.rev.add(b * bregman(-d));
    t.js.add(js_term(a, b, d));
    t.tv.add(fabsf(d) < 0.5f ? a * fabsf(g - d) : fabsf(a - b));
}

__device__ unsigned step_of(const struct side &s, float x) {
    float n = (s.max - x) * STEPS;
    return n < (float)(BINS - 1) ? (unsigned)n : BINS - 1;
}

__device__ unsigned fixed(float p) { return __float2uint_rn(p * 2147483648.0f); }
__device__ unsigned long long composite(float x, unsigned c) {
    return (unsigned long long)order_key(x) << 32 | c;
}

/* The bin at which the running mass reaches `target`, and the mass before it. */
__device__ unsigned reach(const unsigned *mass, double target, double *before,
                          struct block_state *b) {
    enum { PER = BINS / THREADS };
    double own = 0;
    for (int i = 0; i < PER; i++) own += (double)mass[threadIdx.x * PER + i];
    double run = threads_before(own, b) * 0x1p-31 + *before;
    unsigned found = BINS, some = 0;
    double at = 0;
    for (int i = 0; i < PER; i++) {
        unsigned k = threadIdx.x * PER + i;
        double m = (double)mass[k] * 0x1p-31;
        if (m > 0) some = k + 1;
        if (found == BINS && m > 0 && run + m >= target) {
            found = k;
            at = run;
        }
        run += m;
    }
    __syncthreads();
    if (threadIdx.x == 0) b->n = BINS;
    if (threadIdx.x == 0) b->stashed = 0;
    __syncthreads();
    atomicMin(&b->n, found);
    atomicMax(&b->stashed, some);
    __syncthreads();
    unsigned k = b->n;
    if (k == BINS) { /* rounding left it short: the last bin with anything */
        k = b->stashed ? b->stashed - 1 : 0;
        *before = 2; /* whatever it holds belongs */
        return k;
    }
    if (found == k) b->mass = at;
    __syncthreads();
    *before = b->mass;
    return k;
}

/* The last column of the nucleus: of the columns of one step, sorted; or, when they are too many,
 * digit by digit of their keys. */
template <typename T>
__device__ void last_column(struct side *s, const T *l, unsigned cols, unsigned step, double before,
                            double target, struct pair_state *m) {
    __syncthreads();
    if (threadIdx.x == 0) m->b.n = 0;
    __syncthreads();
    for (unsigned c = threadIdx.x; c < cols; c += THREADS) {
        float x = value(l[c]);
        if (step_of(*s, x) != step || !(prob(*s, x) > 0)) continue;
        unsigned at = atomicAdd(&m->b.n, 1u);
        if (at < KEYS) m->key[at] = composite(x, c);
    }
    __syncthreads();
    unsigned n = m->b.n;
    bool all = before > 1;
    if (n <= KEYS) {
        sort_keys(m->key, n);
        /* A few hundred: one thread adds them up in order. */
        if (threadIdx.x == 0) {
            double run = all ? 0 : before;
            unsigned i = 0;
            for (; i < n; i++) {
                run += (double)prob(*s, key_value((unsigned)(m->key[i] >> 32)));
                if (!all && run >= target) break;
            }
            m->b.last = n ? m->key[min(i, n - 1)] : 0;
            m->b.mass = run;
        }
        __syncthreads();
        s->last = m->b.last;
        s->mass = all ? 1.0 : m->b.mass;
        __syncthreads();
        return;
    }
    unsigned long long prefix = 0;
    for (int shift = 64 - DIGIT; shift > -DIGIT; shift -= DIGIT) {
        int low = max(shift, 0), bits = DIGIT + min(shift, 0);
        unsigned long long above = low + bits >= 64 ? 0 : ~0ull << (low + bits);
        for (unsigned i = threadIdx.x; i < BINS; i += THREADS) m->mass[0][i] = 0;
        __syncthreads();
        for (unsigned c = threadIdx.x; c < cols; c += THREADS) {
            float x = value(l[c]);
            unsigned long long k = composite(x, c);
            if (step_of(*s, x) != step || (k & above) != prefix) continue;
            atomicAdd(&m->mass[0][k >> low & ((1u << bits) - 1)], max(1u, fixed(prob(*s, x))));
        }
        __syncthreads();
        unsigned digit = reach(m->mass[0], all ? 3.0 : target, &before, &m->b);
        prefix |= (unsigned long long)digit << low;
        __syncthreads();
    }
    s->last = prefix;
    s->mass = all ? 1.0 : before + (double)prob(*s, key_value((unsigned)(prefix >> 32)));
}

template <typename T>
__device__ void nuclei(struct side *p, struct side *q, const T *lp, const T *lq, unsigned cols,
                       double top_p, struct pair_state *m) {
    double bp = 0, bq = 0;
    unsigned sp = reach(m->mass[0], top_p, &bp, &m->b);
    __syncthreads();
    unsigned sq = reach(m->mass[1], top_p, &bq, &m->b);
    last_column(p, lp, cols, sp, bp, top_p, m);
    last_column(q, lq, cols, sq, bq, top_p, m);
}

struct shared_sums {
    struct sum p_on_q, q_on_p, tv;
    unsigned np, nq, both;
};

__device__ void share_nuclei(struct shared_sums &t, float x, float y, unsigned c,
                             const struct side &p, const struct side &q) {
    bool in_p = composite(x, c) <= p.last, in_q = composite(y, c) <= q.last;
    if (!in_p && !in_q) return;
    float a = prob(p, x), b = prob(q, y);
    in_p = in_p && a > 0;
    in_q = in_q && b > 0;
    t.np += in_p;
    t.nq += in_q;
    t.both += in_p && in_q;
    if (in_q) t.p_on_q.add(a);
    if (in_p) t.q_on_p.add(b);
    t.tv.add(fabsf((in_p ? a / (float)p.mass : 0.0f) - (in_q ? b / (float)q.mass : 0.0f)));
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
    pair_rows(const struct cuda_pair_call c, const T *pl, const T *ql, bool aligned) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct pair_state *m = (struct pair_state *)memory;
    const T *lp = pl + blockIdx.x * c.ldp, *lq = ql + blockIdx.x * c.ldq;
    kld_pair_row out = {};
    struct seen a = {-INFINITY, -1e30f, 0, 0}, b = a;
    each(lp, lq, c.cols, aligned, [&](float x, float y, unsigned i) {
        a.add(x, i);
        b.add(y, i);
    });
    struct side p = normalise(a, m), q = normalise(b, m);
    bool bad = !(p.max > -INFINITY && p.max < INFINITY && q.max > -INFINITY && q.max < INFINITY);
    if (bad) {
        out.kl = out.reverse_kl = out.js = out.tv = out.p_on_q = out.q_on_p = out.nucleus_tv = NAN;
        if (threadIdx.x == 0) c.out[blockIdx.x] = out;
        return;
    }
    for (unsigned i = threadIdx.x; i < 2 * BINS; i += THREADS) (&m->mass[0][0])[i] = 0;
    __syncthreads();
    struct sums t = {};
    float gap = (float)(p.lse - q.lse);
    each(lp, lq, c.cols, aligned, [&](float x, float y, unsigned) {
        diverge(t, x, y, gap, p, q);
        atomicAdd(&m->mass[0][step_of(p, x)], fixed(prob(p, x)));
        atomicAdd(&m->mass[1][step_of(q, y)], fixed(prob(q, y)));
    });
    out.kl = t.kl.total(&m->b);
    out.reverse_kl = t.rev.total(&m->b);
    out.js = t.js.total(&m->b);
    out.tv = t.tv.total(&m->b) / 2;
    if (__syncthreads_or(t.p_alone)) out.kl = INFINITY;
    if (__syncthreads_or(t.q_alone)) out.reverse_kl = INFINITY;
    nuclei(&p, &q, lp, lq, c.cols, c.top_p, m);
    struct shared_sums u = {};
    each(lp, lq, c.cols, aligned,
         [&](float x, float y, unsigned i) { share_nuclei(u, x, y, i, p, q); });
    out.top1_p = p.id;
    out.top1_q = q.id;
    out.p_on_q = u.p_on_q.total(&m->b);
    out.q_on_p = u.q_on_p.total(&m->b);
    out.nucleus_tv = u.tv.total(&m->b) / 2;
    out.nucleus_p = (unsigned)block_sum((double)u.np, &m->b);
    out.nucleus_q = (unsigned)block_sum((double)u.nq, &m->b);
    out.nucleus_both = (unsigned)block_sum((double)u.both, &m->b);
    if (threadIdx.x == 0) c.out[blockIdx.x] = out;
}

template <typename T>
cudaError_t launch(const struct cuda_pair_call *c, const T *p, const T *q, cudaStream_t s) {
    bool aligned =
        (c->ldp | c->ldq) * sizeof(T) % 16 == 0 && ((uintptr_t)p | (uintptr_t)q) % 16 == 0;
    cudaError_t e = cudaFuncSetAttribute(pair_rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         sizeof(struct pair_state));
    if (e != cudaSuccess || !c->rows) return e;
    pair_rows<<<(unsigned)c->rows, THREADS, sizeof(struct pair_state), s>>>(*c, p, q, aligned);
    return cudaGetLastError();
}

} // namespace

cudaError_t cuda_pair_launch(const struct cuda_pair_call *c, const float *p, const float *q,
                             cudaStream_t s) {
    return launch(c, p, q, s);
}

cudaError_t cuda_pair_launch(const struct cuda_pair_call *c, const __nv_bfloat16 *p,
                             const __nv_bfloat16 *q, cudaStream_t s) {
    return launch(c, p, q, s);
}
