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

/* A running sum that keeps what rounding loses (Neumaier); a vector's terms are added up plainly
 * before they join it. */
struct sum {
    float s, lost, part;
    __device__ void flush() {
        float t = s + part;
        lost += fabsf(s) >= fabsf(part) ? (s - t) + part : (part - t) + s;
        s = t;
        part = 0;
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
    float inverse;           /* 1 / mass */
};

/* f(x of p, x of q, column) for this thread's columns, in ascending order; flush() after each
 * vector of them. */
template <typename T, typename F, typename G>
__device__ void each(const T *p, const T *q, unsigned cols, bool aligned, F f, G flush) {
    enum { N = vec<T>::N };
    unsigned whole = aligned ? cols / N : 0;
#pragma unroll 2
    for (unsigned v = threadIdx.x; v < whole; v += THREADS) {
        uint4 a = ((const uint4 *)p)[v], b = ((const uint4 *)q)[v];
#pragma unroll
        for (int i = 0; i < N; i++)
            f(element(a, i, (const T *)0), element(b, i, (const T *)0), v * N + i);
        flush();
    }
    for (unsigned c = whole * N + threadIdx.x; c < cols; c += THREADS) {
        f(value(p[c]), value(q[c]), c);
        flush();
    }
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

/* sqrt.approx: relative error below 2^-22. */
__device__ float root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct sums {
    struct sum kl, rev, js, tv;
    bool p_alone, q_alone; /* a column that only one side holds possible */
};

__device__ float log_of(const struct side &s, float x) { return (x - s.max) - s.shift; }
__device__ float prob(const struct side &s, float x) { return exp_two(log_of(s, x) * HEAD_L2E); }

/* Where one side has no mass, or the two are far apart: by the definitions. */
__device__ void far_apart(struct sums &t, float x, float y, float a, float b, float d) {
    float m = 0.5f * (a + b), js = 0;
    if (a > 0) js += a * logf(a / m);
    if (b > 0) js += b * logf(b / m);
    t.js.part += 0.5f * js;
    t.tv.part += fabsf(a - b);
    t.p_alone |= x > -INFINITY && y == -INFINITY;
    t.q_alone |= y > -INFINITY && x == -INFINITY;
    if (x == -INFINITY || y == -INFINITY) { /* the rest of b - a + a d, or of its mirror */
        t.kl.part += b;
        t.rev.part += a;
        return;
    }
    t.kl.part += b - a + a * d;
    t.rev.part += a - b - b * d;
}

__device__ void diverge(struct sums &t, float x, float y, float a, float b, float d) {
    if (!(fabsf(d) < 0.5f)) {
        far_apart(t, x, y, a, b, d);
        return;
    }
    /* cosh d - 1 and sinh d - d; e^-d - 1 + d is their difference, e^d - 1 - d their sum. */
    float u = d * d;
    float even = u * fmaf(u, fmaf(u, fmaf(u, 1.0f / 40320, 1.0f / 720), 1.0f / 24), 0.5f);
    float odd = d * u * fmaf(u, fmaf(u, 1.0f / 5040, 1.0f / 120), 1.0f / 6);
    t.kl.part = fmaf(a, even - odd, t.kl.part);
    t.rev.part = fmaf(b, even + odd, t.rev.part);
    t.tv.part = fmaf(a, fabsf(even - odd - d), t.tv.part);
    u *= 0.25f;
    t.js.part =
        fmaf(root(a * b) * u, fmaf(u * u, fmaf(u, -1.0f / 720, 1.0f / 144), 0.5f), t.js.part);
}

/* Adding 2^23 leaves the nearest whole number in the low bits. */
__device__ unsigned step_of(const struct side &s, float x) {
    float n = fminf((s.max - x) * STEPS, (float)(BINS - 1));
    return __float_as_uint(n + 8388608.0f) - 0x4b000000u;
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

/* The last column of the nucleus, digit by digit of the keys of one step's columns: for steps of
 * more columns than can be sorted. */
template <typename T>
__device__ void by_digits(struct side *s, const T *l, unsigned cols, unsigned step, double before,
                          double target, struct pair_state *m) {
    unsigned long long prefix = 0;
    bool all = before > 1;
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

/* The same by sorting: key holds the step's n columns. */
__device__ void by_order(struct side *s, unsigned long long *key, unsigned n, double before,
                         double target, struct pair_state *m) {
    bool all = before > 1;
    sort_keys(key, n);
    for (unsigned i = threadIdx.x; i < BINS; i += THREADS)
        m->mass[0][i] = i < n ? fixed(prob(*s, key_value((unsigned)(key[i] >> 32)))) : 0;
    __syncthreads();
    unsigned i = reach(m->mass[0], all ? 3.0 : target, &before, &m->b);
    s->last = key[min(i, max(n, 1u) - 1)];
    s->mass = all ? 1.0 : before + (double)prob(*s, key_value((unsigned)(s->last >> 32)));
    __syncthreads();
}

/* The last column of either nucleus. */
template <typename T>
__device__ void nuclei(struct side *p, struct side *q, const T *lp, const T *lq, unsigned cols,
                       bool aligned, double top_p, struct pair_state *m) {
    enum { HALF = KEYS / 2 };
    double bp = 0, bq = 0;
    unsigned sp = reach(m->mass[0], top_p, &bp, &m->b);
    __syncthreads();
    unsigned sq = reach(m->mass[1], top_p, &bq, &m->b);
    __syncthreads();
    if (threadIdx.x == 0) m->b.n = m->b.stashed = 0;
    __syncthreads();
    each(
        lp, lq, cols, aligned,
        [&](float x, float y, unsigned c) {
            if (step_of(*p, x) == sp) {
                unsigned at = atomicAdd(&m->b.n, 1u);
                if (at < HALF) m->key[at] = composite(x, c);
            }
            if (step_of(*q, y) == sq) {
                unsigned at = atomicAdd(&m->b.stashed, 1u);
                if (at < HALF) m->key[HALF + at] = composite(y, c);
            }
        },
        [] {});
    __syncthreads();
    unsigned np = m->b.n, nq = m->b.stashed;
    __syncthreads();
    if (np <= HALF) by_order(p, m->key, np, bp, top_p, m);
    else by_digits(p, lp, cols, sp, bp, top_p, m);
    if (nq <= HALF) by_order(q, m->key + HALF, nq, bq, top_p, m);
    else by_digits(q, lq, cols, sq, bq, top_p, m);
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
    if (in_q) t.p_on_q.part += a;
    if (in_p) t.q_on_p.part += b;
    t.tv.part += fabsf((in_p ? a * p.inverse : 0.0f) - (in_q ? b * q.inverse : 0.0f));
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
    pair_rows(const struct cuda_pair_call c, const T *pl, const T *ql, bool aligned) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct pair_state *m = (struct pair_state *)memory;
    const T *lp = pl + blockIdx.x * c.ldp, *lq = ql + blockIdx.x * c.ldq;
    kld_pair_row out = {};
    struct seen a = {-INFINITY, -1e30f, 0, 0}, b = a;
    each(
        lp, lq, c.cols, aligned,
        [&](float x, float y, unsigned i) {
            a.add(x, i);
            b.add(y, i);
        },
        [] {});
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
    each(
        lp, lq, c.cols, aligned,
        [&](float x, float y, unsigned) {
            float a = prob(p, x), b = prob(q, y);
            unsigned fa = fixed(a), fb = fixed(b);
            diverge(t, x, y, a, b, (x - y) - gap);
            if (fa) atomicAdd(&m->mass[0][step_of(p, x)], fa);
            if (fb) atomicAdd(&m->mass[1][step_of(q, y)], fb);
        },
        [&] {
            t.kl.flush();
            t.rev.flush();
            t.js.flush();
            t.tv.flush();
        });
    out.kl = t.kl.total(&m->b);
    out.reverse_kl = t.rev.total(&m->b);
    out.js = t.js.total(&m->b);
    out.tv = t.tv.total(&m->b) / 2;
    if (__syncthreads_or(t.p_alone)) out.kl = INFINITY;
    if (__syncthreads_or(t.q_alone)) out.reverse_kl = INFINITY;
    nuclei(&p, &q, lp, lq, c.cols, aligned, c.top_p, m);
    p.inverse = (float)(1 / p.mass);
    q.inverse = (float)(1 / q.mass);
    struct shared_sums u = {};
    each(
        lp, lq, c.cols, aligned,
        [&](float x, float y, unsigned i) { share_nuclei(u, x, y, i, p, q); },
        [&] {
            u.p_on_q.flush();
            u.q_on_p.flush();
            u.tv.flush();
        });
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
