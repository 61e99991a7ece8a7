/* Two distributions against each other, a block a row pair, three passes over the two rows:
 *   1  maxima, normalisers
 *   2  divergences; the mass above the bracket in which each nucleus ends, the columns inside it
 *   3  what the two nuclei share, most probable ids
 * A sample of the row sets the bracket.  A nucleus that ends outside it, or in a bracket of too
 * many columns, is looked for among all columns; the selection is exact either way.
 *
 * With d = ln p - ln q every divergence is a sum of terms that are never negative, so nearly equal
 * rows lose nothing to cancellation:
 *   KL = sum p (e^-d - 1 + d)        reverse = sum p (1 - e^-d (1 + d))
 *   TV = 1/2 sum p |1 - e^-d|        JS = sum p/2 (L + e^-d (L - d)),  L = ln 2 - ln(1 + e^-d)
 * Logits count from their row's maximum there, so that d is as exact as the likely columns'
 * distance from it, however large the logits are. A probability is 2^(x L2E - shift) in FP32, times
 * a factor close to 1 in FP64 that the sums get.
 */
#define HEAD_THREADS 256
#include "logits/cuda/head_row.cuh"
#include "logits/cuda/pair.cuh"

#include <cfloat>

using namespace head;

namespace {

/* SAMPLED: one column in so many; SPREAD: standard deviations on either side of its estimate. */
enum { BINS = 2048, DIGIT = 11, STEPS = 64, LIST = 3072, SAMPLED = 8, KEEP = 1024 };
#define SPREAD 3.5f

struct pair_state {
    unsigned bins[2][BINS];
    unsigned list[2][LIST], listed[2];
    float lo[2], hi[2];
    unsigned best[2]; /* lowest column that holds the maximum */
    struct block_state b;
};

struct side {
    float max, shift, lo, hi; /* the nucleus' last column has lo <= x <= hi */
    double log_z, fix;        /* log_z = lse - max */
    float last, next;         /* the nucleus' last column, and the next larger logit */
    unsigned last_id;
    double mass;       /* of the nucleus */
    float inner_shift; /* as shift, of the distribution renormalised to the nucleus */
    double inner_fix;  /* as fix */
};

__device__ float prob(float shift, float x) { return exp_two(fmaf(x, HEAD_L2E, -shift)); }

/* f(x of p, x of q, first column) for this thread's columns, some neighbours at a time.  The warp
 * meets after each: lanes with rare work would otherwise run on by themselves. */
template <typename T, typename F>
__device__ void each(const T *p, const T *q, unsigned cols, bool aligned, F f) {
    enum { N = vec<T>::N };
    unsigned whole = aligned ? cols / N : 0;
    for (unsigned v0 = 0; v0 < whole; v0 += THREADS) {
        unsigned v = v0 + threadIdx.x;
        if (v < whole) {
            uint4 a = ((const uint4 *)p)[v], b = ((const uint4 *)q)[v];
            float x[N], y[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] = element(a, i, (const T *)0);
                y[i] = element(b, i, (const T *)0);
            }
            f(x, y, v * N);
        }
        __syncwarp();
    }
    for (unsigned c = whole * N + threadIdx.x; c < cols; c += THREADS) {
        float x[1] = {value(p[c])}, y[1] = {value(q[c])};
        f(x, y, c);
    }
}

/* Maximum and sum of one side, a thread's: z = sum 2^(x L2E - base).  The base follows the maximum
 * lazily. */
struct seen {
    float max, base, z;
    template <int N> __device__ void add(const float (&x)[N]) {
        float m = x[0], part = 0;
#pragma unroll
        for (int i = 1; i < N; i++) m = max_nan(m, x[i]);
        max = max_nan(max, m);
        if (m * HEAD_L2E > base + 40.0f) {
            z *= exp_two(base - m * HEAD_L2E);
            base = m * HEAD_L2E;
        }
#pragma unroll
        for (int i = 0; i < N; i++) part += prob(base, x[i]);
        z += part;
    }
};

__device__ struct side normalise(const struct seen &t, struct pair_state *m) {
    struct side s = {};
    s.max = block_max(t.max, &m->b);
    if (!(s.max > -INFINITY && s.max < INFINITY)) return s;
    double top = (double)s.max * (double)HEAD_L2E; /* exponent of the maximum */
    double z = block_sum((double)t.z * exp2((double)t.base - top), &m->b);
    s.log_z = log(z);
    double shift = top + log2(z);
    s.shift = (float)shift;
    s.fix = exp2((double)s.shift - shift);
    return s;
}

struct sums {
    float kl, rev, js, tv, p_above, q_above;
    bool p_alone, q_alone; /* a column that only one side holds possible */
};

/* A column where |d| >= 1, or that one side holds impossible. */
__device__ void far_apart(struct sums &t, float x, float y, float a, float b, float d) {
    if (!(fabsf(d) < INFINITY)) {
        t.p_alone |= x > -INFINITY;
        t.q_alone |= y > -INFINITY;
        t.rev += a;
        t.kl += b;
        t.tv += a + b;
        t.js += 0.34657359f * (a + b);
        return;
    }
    bool q_larger = d < 0;
    float g = q_larger ? b : a;
    d = fabsf(d);
    float e = exp_two(-d * HEAD_L2E);
    float down = g * (e - 1 + d), up = g * (1 - e * (1 + d)), l = -__logf(0.5f + 0.5f * e);
    t.kl += q_larger ? up : down;
    t.rev += q_larger ? down : up;
    t.tv += g * (1 - e);
    t.js += 0.5f * g * (l + e * (l - d));
}

/* The terms of a column with |d| < 1, by polynomials interpolated at Chebyshev's points:
 * k = (e^-d - 1 + d) / d^2 to 1.3e-7 of its value, and JS over d (p - q), an even function, to
 * 6e-8. */
__device__ void close_by(struct sums &t, float a, float d) {
    float u = d * d, k = fmaf(d, 2.53586440e-5f, -2.03292017e-4f);
    float j = fmaf(u, -1.24511271e-5f, 2.59506574e-4f);
    k = fmaf(d, k, 1.38853944e-3f);
    j = fmaf(u, j, -5.20815421e-3f);
    k = fmaf(d, k, -8.33088439e-3f);
    j = fmaf(u, j, 0.125f);
    k = fmaf(d, k, 4.16667350e-2f);
    k = fmaf(d, k, -1.66666970e-1f);
    k = fmaf(d, k, 0.5f);
    float w = fmaf(-d, k, 1.0f), e = d * w, ad = a * d; /* e = 1 - e^-d */
    t.kl = fmaf(ad * d, k, t.kl);
    t.rev = fmaf(ad * d, w - k, t.rev);
    t.js = fmaf(ad * e, j, t.js);
    t.tv = fmaf(a, fabsf(e), t.tv);
}

/* ln p - ln q of a column; `gap` is the difference of the two log_z. */
__device__ float apart(float x, float y, const struct side &p, const struct side &q, float gap) {
    return ((x - p.max) - (y - q.max)) - gap;
}

/* Pass 2 over some neighbours; what is rare is done afterwards, out of memory again. */
template <typename T, int N>
__device__ void diverge(struct sums &t, const float (&x)[N], const float (&y)[N], unsigned c,
                        const T *lp, const T *lq, const struct side &p, const struct side &q,
                        float gap, struct pair_state *m) {
    struct sums v = {};
    unsigned far = 0, ends = 0; /* a bit a column; in `ends` one of p, then one of q */
#pragma unroll
    for (int i = 0; i < N; i++) {
        float d = apart(x[i], y[i], p, q, gap), a = prob(p.shift, x[i]), b = prob(q.shift, y[i]);
        bool near = fabsf(d) < 1.0f;
        if (!near) far += 1u << i;
        close_by(v, a, near ? d : 0.0f);
        if (x[i] > p.hi) v.p_above += a;
        if (x[i] >= p.lo && !(x[i] > p.hi)) ends += 1u << 2 * i;
        if (y[i] > q.hi) v.q_above += b;
        if (y[i] >= q.lo && !(y[i] > q.hi)) ends += 2u << 2 * i;
    }
    for (; far; far &= far - 1) {
        unsigned at = c + __ffs(far) - 1;
        float xf = value(lp[at]), yf = value(lq[at]);
        far_apart(v, xf, yf, prob(p.shift, xf), prob(q.shift, yf), apart(xf, yf, p, q, gap));
    }
    for (; ends; ends &= ends - 1) {
        unsigned bit = __ffs(ends) - 1, at = atomicAdd(&m->listed[bit & 1], 1u);
        if (at < LIST) m->list[bit & 1][at] = c + bit / 2;
    }
    t.kl += v.kl;
    t.rev += v.rev;
    t.js += v.js;
    t.tv += v.tv;
    t.p_above += v.p_above;
    t.q_above += v.q_above;
    t.p_alone |= v.p_alone;
    t.q_alone |= v.q_alone;
}

/* Counts of sampled columns by their distance from the maximum; adding 2^23 leaves the nearest
 * whole number in the low bits. */
template <typename T> __device__ void sample(unsigned *bins, const T *l, unsigned cols, float max) {
    for (unsigned i = threadIdx.x; i < cols / SAMPLED; i += THREADS) {
        float n = (max - value(l[i / 32 * (32 * SAMPLED) + i % 32])) * STEPS;
        n = fminf(n, (float)(BINS - 1)) + 8388608.0f;
        atomicAdd(&bins[__float_as_uint(n) - 0x4b000000u], 1u);
    }
}

/* By one warp: between which logits the nucleus ends, if the sample is fair.  `need` is the mass
 * outside the nucleus relative to the most probable column's.  KEEP columns from the top are always
 * inside: a sample says little about those few that may have most of the mass. */
__device__ void bracket(const unsigned *bins, float top, float need, float *lo, float *hi) {
    enum { PER = BINS / 32 };
    int lane = threadIdx.x % 32, last = BINS - 1 - lane * PER;
    float mass = 0, var = 0;
    unsigned own = 0;
    for (int k = last; k > last - PER; k--) {
        float w = exp_two((float)-k * (HEAD_L2E / STEPS)), n = (float)bins[k];
        mass += n * w;
        var += n * w * w;
        own += bins[k];
    }
    double incl;
    mass = (float)lanes_before((double)mass, &incl);
    var = (float)lanes_before((double)var, &incl);
    unsigned above = (unsigned)lanes_before((double)own, &incl);
    above = (unsigned)__shfl_sync(0xffffffffu, incl, 31) - above; /* of this step and up */
    unsigned low = BINS, rank = BINS, high = 0;
    for (int k = last; k > last - PER; k--) { /* from here on: what is below step k's upper edge */
        float w = exp_two((float)-k * (HEAD_L2E / STEPS)), n = (float)bins[k];
        mass += n * w;
        var += n * w * w;
        above -= bins[k];
        float part = SAMPLED * mass, doubt = SAMPLED * SPREAD * sqrtf(var) + 0.01f * part;
        if (part + doubt <= need) low = k;
        if (above * SAMPLED >= KEEP || k == BINS - 1) rank = k;
        if (above * SAMPLED >= KEEP / 2 && part - doubt >= need) high = max(high, k + 1u);
    }
    low = max(__reduce_min_sync(0xffffffffu, low), __reduce_min_sync(0xffffffffu, rank));
    high = __reduce_max_sync(0xffffffffu, high);
    if (lane) return;
    *lo = low < BINS ? top - ((float)low - 0.5f) / STEPS : -FLT_MAX;
    *hi = high ? top - ((float)high - 1.5f) / STEPS : INFINITY;
}

template <typename T>
__device__ void brackets(struct side *p, struct side *q, const T *lp, const T *lq, unsigned cols,
                         double top_p, struct pair_state *m) {
    for (unsigned i = threadIdx.x; i < 2 * BINS; i += THREADS) (&m->bins[0][0])[i] = 0;
    if (threadIdx.x < 2) {
        m->listed[threadIdx.x] = 0;
        m->best[threadIdx.x] = 0xffffffffu;
        m->lo[threadIdx.x] = -FLT_MAX;
        m->hi[threadIdx.x] = INFINITY;
    }
    __syncthreads();
    if (cols > LIST) {
        sample(m->bins[0], lp, cols, p->max);
        sample(m->bins[1], lq, cols, q->max);
        __syncthreads();
        unsigned w = threadIdx.x / 32;
        const struct side *s = w ? q : p;
        float need = (float)((1 - top_p) * exp(s->log_z));
        if (w < 2) bracket(m->bins[w], s->max, need, &m->lo[w], &m->hi[w]);
        __syncthreads();
    }
    p->lo = m->lo[0];
    p->hi = m->hi[0];
    q->lo = m->lo[1];
    q->hi = m->hi[1];
}

/* The bin at which the running mass reaches `target`, and the mass before it; when it does not,
 * the last bin with anything, and *before = INFINITY. */
__device__ unsigned reach(const unsigned *bins, double target, double *before,
                          struct block_state *b) {
    enum { PER = BINS / THREADS };
    double own = 0;
    for (int i = 0; i < PER; i++) own += (double)bins[threadIdx.x * PER + i];
    double run = threads_before(own, b) * 0x1p-31 + *before, at = 0;
    unsigned found = BINS, some = 0;
    for (int i = 0; i < PER; i++) {
        unsigned k = threadIdx.x * PER + i;
        double m = (double)bins[k] * 0x1p-31;
        if (m > 0) some = k + 1;
        if (found == BINS && m > 0 && run + m >= target) {
            found = k;
            at = run;
        }
        run += m;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        b->n = BINS;
        b->stashed = 0;
    }
    __syncthreads();
    atomicMin(&b->n, found);
    atomicMax(&b->stashed, some);
    __syncthreads();
    unsigned k = b->n;
    if (k == BINS) {
        *before = INFINITY;
        return b->stashed ? b->stashed - 1 : 0;
    }
    if (found == k) b->mass = at;
    __syncthreads();
    *before = b->mass;
    return k;
}

/* Ascending = larger logits first; BF16 needs the upper half alone. */
__device__ unsigned rank_of(float x, const float *) { return order_key(x); }
__device__ unsigned rank_of(float x, const __nv_bfloat16 *) { return order_key(x) >> 16; }
__device__ float of_rank(unsigned k, const float *) { return key_value(k); }
__device__ float of_rank(unsigned k, const __nv_bfloat16 *) {
    return __uint_as_float(__float_as_uint(key_value(k << 16)) & 0xffff0000u);
}

/* The nucleus' last column among the n of `list` (NULL: among the row's), digit by digit of rank
 * and id, with `before` the mass above them.  Masses are fixed point: their order is free.  False:
 * the mass of all of them does not reach top_p; then it is the last with any. */
template <typename T>
__device__ __noinline__ bool find_last(struct side *s, const T *l, unsigned cols,
                                       const unsigned *list, unsigned n, double before,
                                       double top_p, struct pair_state *m) {
    const T *kind = NULL;
    int ids = 32 - __clz(cols);
    unsigned base = rank_of(list ? fminf(s->hi, s->max) : s->max, kind);
    int left = ids + 32 - __clz(rank_of(list ? s->lo : -FLT_MAX, kind) - base);
    float fix = (float)s->fix;
    unsigned long long prefix = 0;
    for (int low; left > 0; left = low) {
        low = max(left - DIGIT, 0);
        for (unsigned i = threadIdx.x; i < BINS; i += THREADS) m->bins[0][i] = 0;
        __syncthreads();
        for (unsigned i = threadIdx.x; i < n; i += THREADS) {
            unsigned c = list ? list[i] : i;
            float x = value(l[c]), w = prob(s->shift, x) * fix;
            unsigned long long k = (unsigned long long)(rank_of(x, kind) - base) << ids | c;
            if (k >> left != prefix || !(w > 0)) continue;
            atomicAdd(&m->bins[0][k >> low & ((1u << (left - low)) - 1)],
                      max(1u, __float2uint_rn(w * 2147483648.0f)));
        }
        __syncthreads();
        unsigned digit = reach(m->bins[0], before < 2 ? top_p : INFINITY, &before, &m->b);
        prefix = prefix << (left - low) | digit;
        __syncthreads();
    }
    s->last_id = (unsigned)prefix & ((1u << ids) - 1);
    s->last = of_rank(base + (unsigned)(prefix >> ids), kind);
    s->next = nextafterf(s->last, INFINITY);
    s->mass = before < 2 ? before + (double)prob(s->shift, s->last) * s->fix : 1.0;
    return before < 2;
}

template <typename T>
__device__ void nucleus(struct side *s, const T *l, unsigned cols, int which, double above,
                        double top_p, struct pair_state *m) {
    unsigned n = m->listed[which];
    bool found = n <= LIST && above < top_p &&
                 (find_last(s, l, cols, m->list[which], n, above, top_p, m) || s->lo == -FLT_MAX);
    if (!found) find_last(s, l, cols, (const unsigned *)NULL, cols, 0.0, top_p, m);
    double less = log2(s->mass);
    s->inner_shift = (float)((double)s->shift + less);
    s->inner_fix = s->fix * exp2((double)s->inner_shift - (double)s->shift - less);
}

struct shared_sums {
    float p_on_q, q_on_p, tv; /* of the renormalised nuclei's probabilities, but for p's inner_fix
                               * (q_on_p: q's) */
    unsigned np, nq, both;
};

/* What columns from c on must reach to be in the nucleus. */
__device__ float least(const struct side &s, unsigned c) {
    return c <= s.last_id ? s.last : s.next;
}

/* Pass 3; `unit` is q's inner_fix in units of p's. */
template <typename T, int N>
__device__ void share_nuclei(struct shared_sums &t, const float (&x)[N], const float (&y)[N],
                             unsigned c, const T *lp, const T *lq, const struct side &p,
                             const struct side &q, float unit, unsigned *best) {
    float mx = x[0], my = y[0];
#pragma unroll
    for (int i = 1; i < N; i++) {
        mx = fmaxf(mx, x[i]);
        my = fmaxf(my, y[i]);
    }
    if (mx < p.last && my < q.last) return;
    if (N == 1 && mx == p.max) atomicMin(&best[0], c);
    if (N == 1 && my == q.max) atomicMin(&best[1], c);
    /* Ties end here, or a maximum is here. */
    if (N > 1 && (p.last_id - c < N || q.last_id - c < N || mx == p.max || my == q.max)) {
#pragma unroll 1
        for (unsigned i = c; i < c + N; i++) {
            float xi[1] = {value(lp[i])}, yi[1] = {value(lq[i])};
            share_nuclei(t, xi, yi, i, lp, lq, p, q, unit, best);
        }
        return;
    }
    float p_from = least(p, c), q_from = least(q, c), p_on_q = 0, q_on_p = 0, tv = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float a = prob(p.inner_shift, x[i]), b = prob(q.inner_shift, y[i]);
        bool ip = x[i] >= p_from, iq = y[i] >= q_from;
        t.np += ip;
        t.nq += iq;
        t.both += ip && iq;
        p_on_q += iq ? a : 0.0f;
        q_on_p += ip ? b : 0.0f;
        tv += fabsf(fmaf(iq ? b : 0.0f, -unit, ip ? a : 0.0f));
    }
    t.p_on_q += p_on_q;
    t.q_on_p += q_on_p;
    t.tv += tv;
}

/* Pass 3 and what comes out of it. */
template <typename T>
__device__ void overlap(kld_pair_row *out, const struct side &p, const struct side &q, const T *lp,
                        const T *lq, unsigned cols, bool aligned, struct pair_state *m) {
    struct shared_sums u = {};
    float unit = (float)(q.inner_fix / p.inner_fix);
    each(lp, lq, cols, aligned, [&](auto &x, auto &y, unsigned c) {
        share_nuclei(u, x, y, c, lp, lq, p, q, unit, m->best);
    });
    out->p_on_q = block_sum((double)u.p_on_q, &m->b) * p.inner_fix * p.mass;
    out->q_on_p = block_sum((double)u.q_on_p, &m->b) * q.inner_fix * q.mass;
    out->nucleus_tv = block_sum((double)u.tv, &m->b) * p.inner_fix / 2;
    out->nucleus_p = (unsigned)block_sum((double)u.np, &m->b);
    out->nucleus_q = (unsigned)block_sum((double)u.nq, &m->b);
    out->nucleus_both = (unsigned)block_sum((double)u.both, &m->b);
    out->top1_p = m->best[0];
    out->top1_q = m->best[1];
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
    pair_rows(const struct cuda_pair_call c, const T *pl, const T *ql, bool aligned) {
    extern __shared__ __align__(16) unsigned char memory[];
    struct pair_state *m = (struct pair_state *)memory;
    const T *lp = pl + blockIdx.x * c.ldp, *lq = ql + blockIdx.x * c.ldq;
    kld_pair_row out = {};
    struct seen a = {-INFINITY, -1e30f, 0}, b = a;
    each(lp, lq, c.cols, aligned, [&](auto &x, auto &y, unsigned) {
        a.add(x);
        b.add(y);
    });
    struct side p = normalise(a, m), q = normalise(b, m);
    if (!(p.max > -INFINITY && p.max < INFINITY && q.max > -INFINITY && q.max < INFINITY)) {
        out.kl = out.reverse_kl = out.js = out.tv = out.p_on_q = out.q_on_p = out.nucleus_tv = NAN;
        if (threadIdx.x == 0) c.out[blockIdx.x] = out;
        return;
    }
    brackets(&p, &q, lp, lq, c.cols, c.top_p, m);
    struct sums t = {};
    float gap = (float)(p.log_z - q.log_z);
    each(lp, lq, c.cols, aligned,
         [&](auto &x, auto &y, unsigned at) { diverge(t, x, y, at, lp, lq, p, q, gap, m); });
    out.kl = block_sum((double)t.kl, &m->b) * p.fix;
    out.reverse_kl = block_sum((double)t.rev, &m->b) * p.fix;
    out.js = block_sum((double)t.js, &m->b) * p.fix;
    out.tv = block_sum((double)t.tv, &m->b) * p.fix / 2;
    if (__syncthreads_or(t.p_alone)) out.kl = INFINITY;
    if (__syncthreads_or(t.q_alone)) out.reverse_kl = INFINITY;
    double above = block_sum((double)t.p_above, &m->b) * p.fix;
    nucleus(&p, lp, c.cols, 0, above, c.top_p, m);
    above = block_sum((double)t.q_above, &m->b) * q.fix;
    nucleus(&q, lq, c.cols, 1, above, c.top_p, m);
    overlap(&out, p, q, lp, lq, c.cols, aligned, m);
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
