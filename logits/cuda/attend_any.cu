/* Causal attention for every case that the fused kernel does not take: FP32 runs, other head
 * sizes, rows that are not aligned, and tiles whose values hold a NaN.  FP32 on CUDA cores; a
 * block takes QUERIES queries of one head and walks over the keys in tiles of KEYS, which begin at
 * multiples of KEYS of the window. */
#include "kld/base/num.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

/* Threads are 16 x 16; each has 4 queries and, of a tile, 4 keys.  DEPTH columns of queries and
 * keys are in shared memory at a time; of values, VALUES numbers. */
enum { QUERIES = 64, KEYS = 64, DEPTH = 32, THREADS = 256, VALUES = 4096, PAD = 4 };

struct any {
    const kld_span *spans;
    const void *q, *k, *v;
    void *y;
    size_t ldq, ldk, ldv, ldy;
    int heads, group, dim, vdim, window;
    float scale, cap;
    const float *sinks;
    int *flag; /* NULL: every tile */
    bool bf16; /* weights are rounded before they meet the values */
};

struct shared {
    union { /* never needed at the same time */
        struct {
            float q[DEPTH][QUERIES + PAD], k[DEPTH][KEYS + PAD];
        };
        float v[VALUES];
    };
    float p[QUERIES][KEYS + 1];
};

struct where {
    int q0, rows;      /* positions of the queries */
    const void *k, *v; /* position 0 of the window, this head */
};

__device__ static float get(const float *p, size_t i) { return p[i]; }
__device__ static float get(const __nv_bfloat16 *p, size_t i) { return __bfloat162float(p[i]); }

/* Sixteen neighbouring lanes share a row of queries. */
__device__ static float row_max(float v) {
    for (int w = 8; w > 0; w /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, w));
    return v;
}
__device__ static float row_sum(float v) {
    for (int w = 8; w > 0; w /= 2) v += __shfl_xor_sync(0xffffffffu, v, w);
    return v;
}

/* DEPTH columns from `col` of 64 rows, transposed; zeros past rows and columns. */
template <typename T>
__device__ static void load_columns(float to[DEPTH][QUERIES + PAD], const T *from, size_t ld,
                                    int rows, int col, int cols) {
    for (int i = threadIdx.x; i < 64 * DEPTH; i += THREADS) {
        int r = i / DEPTH, c = i % DEPTH;
        bool there = r < rows && col + c < cols;
        to[c][r] = there ? get(from, r * ld + col + c) : 0.0f;
    }
}

template <typename T>
__device__ static void dot_tile(const struct any &a, struct shared *m, const T *q, const T *k,
                                int rows, int keys, float s[4][4]) {
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int i = 0; i < 16; i++) s[i / 4][i % 4] = 0;
    for (int col = 0; col < a.dim; col += DEPTH) {
        __syncthreads();
        load_columns(m->q, q, a.ldq, rows, col, a.dim);
        load_columns(m->k, k, a.ldk, keys, col, a.dim);
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < DEPTH; c++) {
            float4 x = *(const float4 *)&m->q[c][4 * ty], z = *(const float4 *)&m->k[c][4 * tx];
            float xs[4] = {x.x, x.y, x.z, x.w}, zs[4] = {z.x, z.y, z.z, z.w};
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) s[i][j] = fmaf(xs[i], zs[j], s[i][j]);
        }
    }
}

/* Weights of the tile into m->p; the running maximum, sum, and what to scale earlier sums by. */
__device__ static void weigh(const struct any &a, const struct where &w, struct shared *m, int key0,
                             float s[4][4], float top[4], float sum[4], float keep[4]) {
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int i = 0; i < 4; i++) {
        int q = w.q0 + 4 * ty + i;
        float most = top[i], add = 0;
        for (int j = 0; j < 4; j++) {
            int k = key0 + 4 * tx + j;
            float v = s[i][j] * a.scale;
            if (a.cap > 0) v = a.cap * tanhf(v / a.cap);
            s[i][j] = k > q || q - k >= a.window ? -INFINITY : v;
            most = fmaxf(most, s[i][j]);
        }
        most = row_max(most);
        float base = most == -INFINITY ? 0 : most;
        keep[i] = expf(top[i] - base);
        top[i] = most;
        for (int j = 0; j < 4; j++) {
            float p = expf(s[i][j] - base);
            add += p;
            m->p[4 * ty + i][4 * tx + j] = a.bf16 ? __bfloat162float(__float2bfloat16_rn(p)) : p;
        }
        sum[i] = sum[i] * keep[i] + row_sum(add);
    }
}

/* acc += P V over the tile.  guard: a weight of 0 is a key not seen, whose value may be NaN. */
template <typename T, int DV>
__device__ static void mix(const struct any &a, struct shared *m, const T *v, int keys, bool guard,
                           float acc[4][DV / 16]) {
    enum { STEP = VALUES / DV };
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int k0 = 0; k0 < KEYS; k0 += STEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < STEP * DV; i += THREADS) {
            int r = i / DV, c = i % DV;
            bool there = k0 + r < keys && c < a.vdim;
            m->v[i] = there ? get(v, (k0 + r) * a.ldv + c) : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < STEP && r < KEYS; r++) {
            float p[4];
            for (int i = 0; i < 4; i++) p[i] = m->p[4 * ty + i][k0 + r];
#pragma unroll
            for (int c = 0; c < DV / 16; c++) {
                float x = m->v[r * DV + tx + 16 * c];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!guard || p[i] != 0) acc[i][c] = fmaf(p[i], x, acc[i][c]);
            }
        }
    }
}

template <typename T, int DV>
__device__ static void tile(const struct any &a, const struct where &w, struct shared *m,
                            const T *q, T *y, int head) {
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float acc[4][DV / 16] = {}, top[4], sum[4], s[4][4], keep[4];
    for (int i = 0; i < 4; i++) {
        top[i] = a.sinks ? a.sinks[head] : -INFINITY;
        sum[i] = a.sinks ? 1.0f : 0.0f;
    }
    int all = w.q0 + w.rows, key0 = max(0, w.q0 - (a.window - 1)) / KEYS * KEYS;
    for (; key0 < all; key0 += KEYS) {
        int keys = min(KEYS, all - key0);
        dot_tile(a, m, q, (const T *)w.k + (size_t)key0 * a.ldk, w.rows, keys, s);
        weigh(a, w, m, key0, s, top, sum, keep);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < DV / 16; c++) acc[i][c] *= keep[i];
        bool guard = key0 + KEYS > w.q0 + 1 || all - 1 - key0 >= a.window;
        mix<T, DV>(a, m, (const T *)w.v + (size_t)key0 * a.ldv, keys, guard, acc);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int c = 0; c < DV / 16; c++)
            if (4 * ty + i < w.rows && tx + 16 * c < a.vdim)
                put(y + (4 * ty + i) * a.ldy + tx + 16 * c, acc[i][c] / sum[i]);
    }
}

template <typename T, int DV>
__global__ static void __launch_bounds__(THREADS) attend_any(const struct any a) {
    __shared__ struct shared m;
    enum { PER = KLD_CHUNK / QUERIES };
    int i = (int)gridDim.x - 1 - (int)blockIdx.x, head = blockIdx.y, part = i % PER * QUERIES;
    const kld_span *s = &a.spans[i / PER];
    if (part >= (int)s->n) return;
    int *flag = a.flag ? &a.flag[i * a.heads + head] : NULL;
    if (flag && !*flag) return;
    size_t row = s->row + part;
    struct where w;
    w.q0 = (int)s->pos + part;
    w.rows = min((int)QUERIES, (int)s->n - part);
    w.k = (const T *)a.k + s->kv_row * a.ldk + (size_t)(head / a.group) * a.dim;
    w.v = (const T *)a.v + s->kv_row * a.ldv + (size_t)(head / a.group) * a.vdim;
    tile<T, DV>(a, w, &m, (const T *)a.q + row * a.ldq + (size_t)head * a.dim,
                (T *)a.y + row * a.ldy + (size_t)head * a.vdim, head);
    if (!flag) return;
    __syncthreads();
    if (threadIdx.x == 0) *flag = 0;
}

template <typename T> static void launch(kld_device *dev, const struct any &a, size_t n_spans) {
    dim3 grid((unsigned)(n_spans * (KLD_CHUNK / QUERIES)), (unsigned)a.heads);
    auto kernel = a.vdim <= 64    ? attend_any<T, 64>
                  : a.vdim <= 128 ? attend_any<T, 128>
                  : a.vdim <= 256 ? attend_any<T, 256>
                                  : attend_any<T, 512>;
    kernel<<<grid, THREADS, 0, dev->compute>>>(a);
}

kld_status cuda_attend_any(kld_device *dev, const kld_span *spans, size_t n_spans, kld_view q,
                           kld_view k, kld_view v, const kld_attend_args *args, kld_view y,
                           bool only_flagged, kld_err *err) {
    if (args->value_dim > 512 || args->head_dim > 576)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "attention heads of %zu and %zu columns; the CUDA back end has up to 576 "
                        "and 512",
                        args->head_dim, args->value_dim);
    struct any a = {};
    a.spans = spans;
    a.q = q.p;
    a.k = k.p;
    a.v = v.p;
    a.y = y.p;
    a.ldq = q.ld;
    a.ldk = k.ld;
    a.ldv = v.ld;
    a.ldy = y.ld;
    a.heads = (int)args->heads;
    a.group = (int)(args->heads / args->kv_heads);
    a.dim = (int)args->head_dim;
    a.vdim = (int)args->value_dim;
    a.window = args->window && args->window < INT_MAX ? (int)args->window : INT_MAX;
    a.scale = args->scale;
    a.cap = args->softcap;
    a.sinks = args->sinks;
    a.flag = only_flagged ? dev->attend_flag : NULL;
    a.bf16 = dev->bf16;
    if (dev->bf16) launch<__nv_bfloat16>(dev, a, n_spans);
    else launch<float>(dev, a, n_spans);
    LAUNCHED("attention");
    return KLD_OK;
}
