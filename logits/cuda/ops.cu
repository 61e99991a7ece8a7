/* Row-wise operations: norm, rotation with an optional norm of each head, gated activation, the
 * cap of logits. */
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

enum { NORM_THREADS = 256 };

__device__ static float4 add4(float4 a, float4 b) {
    return make_float4(kld_f32_add(a.x, b.x), kld_f32_add(a.y, b.y), kld_f32_add(a.z, b.z),
                       kld_f32_add(a.w, b.w));
}

/* A block a row.  Sums: a thread's columns in order, then fixed trees.  ADD: to what y holds. */
template <typename T, bool FOURS, bool ADD>
__global__ static void norm_rows(const float *x, size_t ldx, const float *w, size_t cols,
                                 double eps, T *y, size_t ldy) {
    __shared__ float part[NORM_THREADS / 32];
    const float *in = x + blockIdx.x * ldx;
    T *out = y + blockIdx.x * ldy;
    float sum = 0;
    if (FOURS) {
        for (size_t i = threadIdx.x; i < cols / 4; i += NORM_THREADS) {
            float4 v = ((const float4 *)in)[i];
            sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
    } else {
        for (size_t i = threadIdx.x; i < cols; i += NORM_THREADS) sum += in[i] * in[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < NORM_THREADS / 32; i++) sum += part[i];
    float scale = (float)(1.0 / sqrt((double)sum / (double)cols + eps));
    if (FOURS) {
        for (size_t i = threadIdx.x; i < cols / 4; i += NORM_THREADS) {
            float4 v = ((const float4 *)in)[i], g = ((const float4 *)w)[i];
            v.x = g.x * (v.x * scale);
            v.y = g.y * (v.y * scale);
            v.z = g.z * (v.z * scale);
            v.w = g.w * (v.w * scale);
            put4(out + 4 * i, ADD ? add4(get4(out + 4 * i), v) : v);
        }
    } else {
        for (size_t i = threadIdx.x; i < cols; i += NORM_THREADS) {
            float v = w[i] * (in[i] * scale);
            put(out + i, ADD ? kld_f32_add(get(out + i), v) : v);
        }
    }
}

template <typename T, bool ADD>
static void launch_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps,
                        kld_view y) {
    const float *in = (const float *)x.p, *g = (const float *)w->data;
    bool four = cuda_fours(x, 4) && cuda_fours(y, sizeof(T)) && (uintptr_t)g % 16 == 0;
    auto kernel = four ? norm_rows<T, true, ADD> : norm_rows<T, false, ADD>;
    kernel<<<(unsigned)x.rows, NORM_THREADS, 0, dev->compute>>>(in, x.ld, g, x.cols, eps, (T *)y.p,
                                                                y.ld);
}

kld_status cuda_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                     bool add, kld_err *err) {
    if (!x.rows) return KLD_OK;
    if (cuda_is_bf16(dev, y)) launch_norm<__nv_bfloat16, false>(dev, x, w, eps, y);
    else if (add) launch_norm<float, true>(dev, x, w, eps, y);
    else launch_norm<float, false>(dev, x, w, eps, y);
    LAUNCHED("norm");
    return KLD_OK;
}

enum { ROPE_WARPS = 8 };

struct rope {
    const kld_span *spans;
    const float *x;
    size_t ldx, ldy, heads, dim, half;
    size_t first, step, apart; /* pair i: columns first + step * i, and `apart` after it */
    const float *w;            /* of the norm of a head, or NULL */
    double eps;
    const float *cos_tab, *sin_tab;
    const float *factor; /* by position, or NULL: 1 */
};

/* Column c of a head, after its norm. */
__device__ static float normed(const struct rope &a, const float *in, float scale, size_t c) {
    return a.w ? a.w[c] * (in[c] * scale) : in[c];
}

/* A warp a row and head; a block, ROPE_WARPS rows of a span and one head. */
template <typename T> __global__ static void rope_rows(const struct rope a, T *y) {
    const kld_span *s = &a.spans[blockIdx.x];
    size_t r = blockIdx.y * ROPE_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (r >= s->n) return;
    const float *in = a.x + (s->row + r) * a.ldx + blockIdx.z * a.dim;
    T *out = y + (s->row + r) * a.ldy + blockIdx.z * a.dim;
    const float *c = a.cos_tab + (s->pos + r) * a.half, *d = a.sin_tab + (s->pos + r) * a.half;
    float scale = 1, f = a.factor ? a.factor[s->pos + r] : 1.0f;
    if (a.w) {
        float sum = 0;
        for (size_t i = lane; i < a.dim; i += 32) sum += in[i] * in[i];
        scale = (float)(1.0 / sqrt((double)warp_sum(sum) / (double)a.dim + a.eps));
    }
    for (size_t i = lane; i < a.half; i += 32) {
        size_t p = a.first + a.step * i, q = p + a.apart;
        float u = normed(a, in, scale, p), v = normed(a, in, scale, q);
        put(out + p, (u * c[i] - v * d[i]) * f);
        put(out + q, (v * c[i] + u * d[i]) * f);
    }
    for (size_t i = lane; i < a.dim - 2 * a.half; i += 32) {
        size_t p = i < a.first ? i : i + 2 * a.half;
        put(out + p, normed(a, in, scale, p) * f);
    }
}

/* The same with a row of a head in registers: half / 4 threads, each four pairs. */
template <typename T, int HALF> __global__ static void rope_fours(const struct rope a, T *y) {
    enum { LANES = HALF / 4, PER = 256 / LANES };
    const kld_span *s = &a.spans[blockIdx.x];
    size_t i = blockIdx.y * PER + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    size_t r = i / a.heads, head = i % a.heads;
    bool there = r < s->n;
    if (!there) r = 0; /* the shuffles need every lane */
    const float *in = a.x + (s->row + r) * a.ldx + head * a.dim + 4 * lane;
    float4 u = *(const float4 *)in, v = *(const float4 *)(in + HALF);
    if (a.w) {
        float sum = ((u.x * u.x + u.y * u.y) + (u.z * u.z + u.w * u.w)) +
                    ((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
        for (int w = LANES / 2; w > 0; w /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, w);
        float scale = (float)(1.0 / sqrt((double)sum / (2 * HALF) + a.eps));
        float4 g = *(const float4 *)(a.w + 4 * lane), h = *(const float4 *)(a.w + HALF + 4 * lane);
        u = make_float4(g.x * (u.x * scale), g.y * (u.y * scale), g.z * (u.z * scale),
                        g.w * (u.w * scale));
        v = make_float4(h.x * (v.x * scale), h.y * (v.y * scale), h.z * (v.z * scale),
                        h.w * (v.w * scale));
    }
    if (!there) return;
    float f = a.factor ? a.factor[s->pos + r] : 1.0f;
    size_t at = (s->pos + r) * HALF + 4 * lane;
    float4 c = *(const float4 *)(a.cos_tab + at), d = *(const float4 *)(a.sin_tab + at);
    T *out = y + (s->row + r) * a.ldy + head * a.dim + 4 * lane;
    put4(out, make_float4((u.x * c.x - v.x * d.x) * f, (u.y * c.y - v.y * d.y) * f,
                          (u.z * c.z - v.z * d.z) * f, (u.w * c.w - v.w * d.w) * f));
    put4(out + HALF, make_float4((v.x * c.x + u.x * d.x) * f, (v.y * c.y + u.y * d.y) * f,
                                 (v.z * c.z + u.z * d.z) * f, (v.w * c.w + u.w * d.w) * f));
}

template <typename T>
static void launch_rope(kld_device *dev, const struct rope &a, size_t n, T *y) {
    bool whole =
        a.dim == 2 * a.half && a.step == 1 && a.ldx % 4 == 0 && a.ldy % 4 == 0 &&
        ((uintptr_t)a.x | (uintptr_t)a.w | (uintptr_t)a.cos_tab | (uintptr_t)a.sin_tab) % 16 == 0 &&
        (uintptr_t)y % (4 * sizeof(T)) == 0;
    unsigned work = (unsigned)(KLD_CHUNK * a.heads);
    if (whole && a.half == 32)
        rope_fours<T, 32><<<dim3((unsigned)n, work / 32), 256, 0, dev->compute>>>(a, y);
    else if (whole && a.half == 64)
        rope_fours<T, 64><<<dim3((unsigned)n, work / 16), 256, 0, dev->compute>>>(a, y);
    else if (whole && a.half == 128)
        rope_fours<T, 128><<<dim3((unsigned)n, work / 8), 256, 0, dev->compute>>>(a, y);
    else
        rope_rows<<<dim3((unsigned)n, KLD_CHUNK / ROPE_WARPS, (unsigned)a.heads), 32 * ROPE_WARPS,
                    0, dev->compute>>>(a, y);
}

kld_status cuda_rope(kld_device *dev, const kld_batch *b, kld_view x, const kld_rope_args *args,
                     kld_view y, kld_err *err) {
    struct rope a = {};
    const kld_dev_weight *w = args->w;
    if (!b->n) return KLD_OK;
    TRY(cuda_spans(dev, b, &a.spans, err));
    /* A norm of the whole row is an operation of its own; x may be overwritten. */
    if (w && w->rows != args->dim) {
        TRY(cuda_norm(dev, x, w, args->eps, x, false, err));
        w = NULL;
    }
    a.x = (const float *)x.p;
    a.ldx = x.ld;
    a.ldy = y.ld;
    a.heads = x.cols / args->dim;
    a.dim = args->dim;
    if (args->table) {
        a.half = args->table->half;
        a.cos_tab = args->table->cos_tab;
        a.sin_tab = args->table->sin_tab;
    }
    a.first = args->first;
    a.step = args->interleaved ? 2 : 1;
    a.apart = args->interleaved ? 1 : a.half;
    a.w = w ? (const float *)w->data : NULL;
    a.eps = args->eps;
    a.factor = args->factor;
    if (cuda_is_bf16(dev, y)) launch_rope(dev, a, b->n, (__nv_bfloat16 *)y.p);
    else launch_rope(dev, a, b->n, (float *)y.p);
    LAUNCHED("rope");
    return KLD_OK;
}

/* The same formulas as logits/cpu/ops.c; expf is within 2 ulp. */
__device__ static float gate_one(float g, float u, kld_gate a) {
    if (a.act == KLD_ACT_CLAMPED_GLU) {
        /* Not fminf and fmaxf, which a NaN does not pass. */
        g = g > a.limit ? a.limit : g;
        u = u > a.limit ? a.limit : u < -a.limit ? -a.limit : u;
        return g / (expf(g * -1.702f) + 1.0f) * (u + 1.0f);
    }
    bool gelu = a.act == KLD_ACT_GELU_TANH;
    float t = gelu ? (g * g * 0.044715f + 1.0f) * (g * -1.5957691216f) : -g;
    return g / (expf(t) + 1.0f) * u;
}

template <typename T, bool FOURS>
__global__ static void gated_rows(const T *gate, size_t ldg, const T *up, size_t ldu, size_t rows,
                                  size_t cols, const kld_gate a, T *y, size_t ldy) {
    size_t width = FOURS ? cols / 4 : cols;
    for (size_t r = blockIdx.y; r < rows; r += gridDim.y) {
        size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
        if (i >= width) continue;
        if (FOURS) {
            float4 g = get4(gate + r * ldg + 4 * i), u = get4(up + r * ldu + 4 * i);
            put4(y + r * ldy + 4 * i, make_float4(gate_one(g.x, u.x, a), gate_one(g.y, u.y, a),
                                                  gate_one(g.z, u.z, a), gate_one(g.w, u.w, a)));
        } else {
            put(y + r * ldy + i, gate_one(get(gate + r * ldg + i), get(up + r * ldu + i), a));
        }
    }
}

template <typename T>
static void launch_gated(kld_device *dev, const kld_gate *a, kld_view g, kld_view u, kld_view y) {
    bool four = cuda_fours(g, sizeof(T)) && cuda_fours(u, sizeof(T)) && cuda_fours(y, sizeof(T));
    auto kernel = four ? gated_rows<T, true> : gated_rows<T, false>;
    size_t width = four ? g.cols / 4 : g.cols;
    dim3 grid((unsigned)num_cdiv(width, 256), (unsigned)num_min(g.rows, 65535));
    kernel<<<grid, 256, 0, dev->compute>>>((const T *)g.p, g.ld, (const T *)u.p, u.ld, g.rows,
                                           g.cols, *a, (T *)y.p, y.ld);
}

kld_status cuda_gated(kld_device *dev, const kld_gate *act, kld_view gate, kld_view up, kld_view y,
                      kld_err *err) {
    if (!gate.rows || !gate.cols) return KLD_OK;
    if (dev->bf16) launch_gated<__nv_bfloat16>(dev, act, gate, up, y);
    else launch_gated<float>(dev, act, gate, up, y);
    LAUNCHED("gated activation");
    return KLD_OK;
}

/* tanhf is within 2 ulp. */
__global__ static void cap_rows(float *x, size_t ld, size_t rows, size_t cols, float cap) {
    size_t c = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (c >= cols) return;
    for (size_t r = blockIdx.y; r < rows; r += gridDim.y)
        x[r * ld + c] = cap * tanhf(x[r * ld + c] / cap);
}

kld_status cuda_cap(kld_device *dev, kld_view x, float cap, kld_err *err) {
    if (!x.rows || !x.cols) return KLD_OK;
    dim3 grid((unsigned)num_cdiv(x.cols, 256), (unsigned)num_min(x.rows, 65535));
    cap_rows<<<grid, 256, 0, dev->compute>>>((float *)x.p, x.ld, x.rows, x.cols, cap);
    LAUNCHED("cap of logits");
    return KLD_OK;
}

/* Columns of a row in units of V: as many at a time as everything is a multiple of. */
struct spread {
    size_t ldkv, ldr, ldk, ldv;
    unsigned heads, nope, rope, value;
};

/* A block a row.  Nothing is computed: elements are moved as they are. */
template <typename V>
__global__ static void spread_rows(const struct spread a, const V *kv, const V *r, V *k, V *v) {
    unsigned key = a.nope + a.rope, both = a.nope + a.value;
    const V *from = kv + blockIdx.x * a.ldkv, *rot = r + blockIdx.x * a.ldr;
    for (unsigned i = threadIdx.x; i < a.heads * key; i += blockDim.x) {
        unsigned h = i / key, c = i % key;
        k[blockIdx.x * a.ldk + i] = c < a.nope ? from[h * both + c] : rot[c - a.nope];
    }
    for (unsigned i = threadIdx.x; i < a.heads * a.value; i += blockDim.x)
        v[blockIdx.x * a.ldv + i] = from[i / a.value * both + a.nope + i % a.value];
}

template <typename V>
static void launch_spread(kld_device *dev, struct spread a, size_t rows, unsigned per,
                          const void *kv, const void *r, void *k, void *v) {
    a.ldkv /= per;
    a.ldr /= per;
    a.ldk /= per;
    a.ldv /= per;
    a.nope /= per;
    a.rope /= per;
    a.value /= per;
    spread_rows<<<(unsigned)rows, 256, 0, dev->compute>>>(a, (const V *)kv, (const V *)r, (V *)k,
                                                          (V *)v);
}

kld_status cuda_spread(kld_device *dev, kld_view kv, kld_view r, size_t heads, kld_view k,
                       kld_view v, kld_err *err) {
    if (!kv.rows) return KLD_OK;
    size_t size = dev->bf16 ? 2 : 4, per = 16 / size, rope = r.cols;
    size_t nope = k.cols / heads - rope, value = v.cols / heads;
    struct spread a = {kv.ld, r.ld, k.ld, v.ld};
    a.heads = (unsigned)heads;
    a.nope = (unsigned)nope;
    a.rope = (unsigned)rope;
    a.value = (unsigned)value;
    if (!rope) a.ldr = 0; /* the view may be anything */
    size_t widths = nope | rope | value | kv.ld | a.ldr | k.ld | v.ld; /* per: a power of two */
    uintptr_t at = (uintptr_t)kv.p | (uintptr_t)k.p | (uintptr_t)v.p | (rope ? (uintptr_t)r.p : 0);
    if (widths % per == 0 && at % 16 == 0)
        launch_spread<uint4>(dev, a, kv.rows, (unsigned)per, kv.p, r.p, k.p, v.p);
    else if (dev->bf16) launch_spread<uint16_t>(dev, a, kv.rows, 1, kv.p, r.p, k.p, v.p);
    else launch_spread<uint32_t>(dev, a, kv.rows, 1, kv.p, r.p, k.p, v.p);
    LAUNCHED("keys and values of latent attention");
    return KLD_OK;
}
