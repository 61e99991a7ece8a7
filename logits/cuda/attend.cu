/* Fused causal attention on tensor cores, for BF16 and heads of 64, 128 or 256 columns, or of 192
 * with values of 128 (DeepSeek, Kimi, MiMo); the rest is attend_any.cu's.  D is the columns of a
 * head of queries and keys, V of values.
 *
 * A block takes a tile of queries of one head and walks over the keys they see in tiles of
 * KN, which begin at multiples of KN of the window, so a row's sums depend on its position
 * alone.  Softmax is online: running maximum and sum a row, FP32.  The method is that of
 * FlashAttention-2 (Dao, 2023); fragments are those of mma.sync.m16n8k16 in the PTX manual. */
#include "kld/base/num.h"
#include "logits/cuda/cuda.cuh"

enum { FLAG_ROWS = 64 };
#define LOG2E 1.44269504f

struct attend {
    const kld_span *spans;
    const __nv_bfloat16 *q, *k, *v;
    __nv_bfloat16 *y;
    size_t ldq, ldk, ldv, ldy;
    int n_spans, heads, group; /* group: query heads a key head */
    int window;                /* INT_MAX = none */
    float scale;               /* of a (capped) score into log2 */
    float precap, cap;         /* score -> cap * tanh(score * precap); cap 0 = none */
    const float *sinks;
    int *flag;
};

/* Rows of 16-byte pieces, D / 8 of them; the low bits of a piece's place are mixed with the row so
 * that eight rows of one column lie in different banks. */
template <int D> __device__ static unsigned place(int row, int piece) {
    return (unsigned)(row * (D / 8) + ((piece & ~7) | ((piece ^ row) & 7))) * 16;
}

__device__ static void copy16(unsigned to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0));
}
__device__ static void commit() { asm volatile("cp.async.commit_group;\n"); }
template <int N> __device__ static void wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

__device__ static void matrices(unsigned from, unsigned r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
__device__ static void matrices_trans(unsigned from, unsigned r[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
__device__ static void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 2^x, ex2.approx: relative error below 2^-22; 0 for -inf. */
__device__ static float exp_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static unsigned pack(float lo, float hi) {
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *(unsigned *)&p;
}

/* Rows [0, n) of a matrix into shared memory, zeros from `valid` on. */
template <int D, int THREADS>
__device__ static void load_tile(unsigned to, const __nv_bfloat16 *from, size_t ld, int n,
                                 int valid) {
    for (int i = threadIdx.x; i < n * (D / 8); i += THREADS) {
        int row = i / (D / 8), piece = i % (D / 8);
        copy16(to + place<D>(row, piece), from + (row < valid ? row * ld : 0) + 8 * piece,
               row < valid);
    }
}

/* Some value of the tile is NaN or infinite; the same answer in every thread. */
template <int D, int KN, int THREADS> __device__ static bool odd_values(const unsigned char *tile) {
    int odd = 0;
    for (int i = threadIdx.x; i < KN * D / 8; i += THREADS) {
        uint4 v = *(const uint4 *)(tile + 16 * i);
        unsigned w[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 4; j++)
            odd |= (w[j] & 0x7f80u) == 0x7f80u || (w[j] & 0x7f800000u) == 0x7f800000u;
    }
    return __syncthreads_or(odd);
}

/* A block's tile: queries are positions q0 .. q0+rows-1 of the window. */
struct tile {
    int q0, rows;
    size_t row;     /* of the batch */
    size_t kv_row;  /* of position 0 */
    int first, end; /* key tiles */
};

template <int V, int MT> struct state {
    float o[MT][V / 8][4];
    float base[MT][2], sum[MT][2]; /* of rows g and g + 8 of each m-tile; base in log2 */
};

/* S = Q K^T for this warp's rows. */
template <int D, int MT, int KN>
__device__ static void scores(unsigned sq, unsigned sk, float s[MT][KN / 8][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KN / 8; n++)
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            matrices(sq + place<D>((warp * MT + m) * 16 + lane % 16, 2 * k + lane / 16), a[m]);
#pragma unroll
        for (int n = 0; n < KN / 16; n++) {
            unsigned b[4];
            matrices(sk + place<D>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2), b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(s[m][2 * n], a[m], b[0], b[1]);
                mma(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Hide what a query does not see; with a cap, scale and cap (a.scale is then 1 to what follows). */
template <int MT, int KN, bool CAP>
__device__ static void shape_scores(const struct attend &a, const struct tile &t, int key0,
                                    bool hide, float s[MT][KN / 8][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!CAP && !hide) return;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < KN / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (CAP) s[m][n][i] = a.cap * tanhf(s[m][n][i] * a.precap);
                int q = t.q0 + (warp * MT + m) * 16 + lane / 4 + i / 2 * 8;
                int k = key0 + 8 * n + lane % 4 * 2 + i % 2;
                if (hide && (k > q || q - k >= a.window)) s[m][n][i] = -INFINITY;
            }
        }
    }
}

/* Scores become weights 2^(score * scale - base).  The base of a row follows its maximum only when
 * that has grown by more than 2^LAG: until then weights of up to 2^LAG are as exact, and the sums
 * so far need not be scaled. */
enum { LAG = 8 };
template <int V, int MT, int KN>
__device__ static void soften(float scale, float s[MT][KN / 8][4], struct state<V, MT> &z) {
    float keep[MT][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < KN / 8; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * scale;
            bool move = top > z.base[m][h] + LAG;
            keep[m][h] = move ? exp_two(z.base[m][h] - top) : 1.0f;
            if (move) z.base[m][h] = top;
            moved |= move;
            /* Nothing seen yet: any finite base makes every weight 0. */
            float base = z.base[m][h] == -INFINITY ? 0 : z.base[m][h], sum = 0;
#pragma unroll
            for (int n = 0; n < KN / 8; n++) {
                s[m][n][2 * h] = exp_two(fmaf(s[m][n][2 * h], scale, -base));
                s[m][n][2 * h + 1] = exp_two(fmaf(s[m][n][2 * h + 1], scale, -base));
                sum += s[m][n][2 * h] + s[m][n][2 * h + 1];
            }
            z.sum[m][h] = z.sum[m][h] * keep[m][h] + sum; /* this thread's columns */
        }
    }
    if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < V / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) z.o[m][n][i] *= keep[m][i / 2];
}

/* O += P V, P rounded to BF16. */
template <int V, int MT, int KN>
__device__ static void values(unsigned sv, const float s[MT][KN / 8][4], struct state<V, MT> &z) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KN / 16; k++) {
        unsigned p[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            p[m][0] = pack(s[m][2 * k][0], s[m][2 * k][1]);
            p[m][1] = pack(s[m][2 * k][2], s[m][2 * k][3]);
            p[m][2] = pack(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
            p[m][3] = pack(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < V / 16; n++) {
            unsigned b[4];
            matrices_trans(sv + place<V>(16 * k + lane % 16, 2 * n + lane / 16), b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(z.o[m][2 * n], p[m], b[0], b[1]);
                mma(z.o[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

template <int V, int MT>
__device__ static void finish(const struct attend &a, const struct tile &t, int head,
                              struct state<V, MT> &z) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = z.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (a.sinks) sum += exp_two(a.sinks[head] * LOG2E - z.base[m][h]);
            float by = 1.0f / sum;
            int r = (warp * MT + m) * 16 + lane / 4 + 8 * h;
            if (r >= t.rows) continue;
            __nv_bfloat16 *y = a.y + (t.row + r) * a.ldy + (size_t)head * V + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < V / 8; n++)
                *(unsigned *)(y + 8 * n) = pack(z.o[m][n][2 * h] * by, z.o[m][n][2 * h + 1] * by);
        }
    }
}

template <int BM, int KN>
__device__ static bool tile_of(const struct attend &a, struct tile *t, int *index) {
    /* The latest positions see the most keys: they begin first. */
    int per = KLD_CHUNK / BM, i = (int)gridDim.x - 1 - (int)blockIdx.x, part = i % per * BM;
    const kld_span *s = &a.spans[i / per];
    *index = i / per * (KLD_CHUNK / FLAG_ROWS) + part / FLAG_ROWS;
    if (part >= (int)s->n) return false;
    t->rows = min(BM, (int)s->n - part);
    t->q0 = (int)s->pos + part;
    t->row = s->row + part;
    t->kv_row = s->kv_row;
    t->end = (t->q0 + t->rows + KN - 1) / KN;
    t->first = max(0, t->q0 - (a.window - 1)) / KN;
    return true;
}

template <int D, int V, int W, int MT, int KN, bool CAP>
__global__ static void __launch_bounds__(32 * W) attend_tiles(const struct attend a) {
    extern __shared__ __align__(128) unsigned char shared[];
    enum { BM = 16 * W * MT, KEYS = KN * D * 2, VALUES = KN * V * 2 };
    struct tile t;
    int index, head = blockIdx.y;
    if (!tile_of<BM, KN>(a, &t, &index)) return;
    unsigned sq = (unsigned)__cvta_generic_to_shared(shared), sk = sq + BM * D * 2;
    unsigned sv = sk + 2 * KEYS;
    const __nv_bfloat16 *k = a.k + t.kv_row * a.ldk + (size_t)(head / a.group) * D;
    const __nv_bfloat16 *v = a.v + t.kv_row * a.ldv + (size_t)(head / a.group) * V;
    int keys = t.q0 + t.rows; /* positions 0 .. keys-1 exist for these queries */
    struct state<V, MT> z = {};
    for (int m = 0; m < MT; m++)
        for (int h = 0; h < 2; h++) z.base[m][h] = a.sinks ? a.sinks[head] * LOG2E : -INFINITY;
    load_tile<D, 32 * W>(sq, a.q + t.row * a.ldq + (size_t)head * D, a.ldq, BM, t.rows);
    load_tile<D, 32 * W>(sk, k + (size_t)t.first * KN * a.ldk, a.ldk, KN, keys - t.first * KN);
    load_tile<V, 32 * W>(sv, v + (size_t)t.first * KN * a.ldv, a.ldv, KN, keys - t.first * KN);
    commit();
    for (int j = t.first; j < t.end; j++) {
        int now = (j - t.first) & 1, key0 = j * KN, next = key0 + KN;
        if (j + 1 < t.end) {
            load_tile<D, 32 * W>(sk + (now ^ 1) * KEYS, k + (size_t)next * a.ldk, a.ldk, KN,
                                 keys - next);
            load_tile<V, 32 * W>(sv + (now ^ 1) * VALUES, v + (size_t)next * a.ldv, a.ldv, KN,
                                 keys - next);
            commit();
            wait<1>();
        } else {
            wait<0>();
        }
        __syncthreads();
        bool hide = next > t.q0 + 1 || t.q0 + t.rows - 1 - key0 >= a.window;
        /* A weight of 0 does not hide a NaN: such a tile is done again key by key. */
        if (hide && odd_values<V, KN, 32 * W>(shared + (sv - sq) + now * VALUES)) {
            for (int f = threadIdx.x; f < BM / FLAG_ROWS; f += 32 * W)
                a.flag[(index + f) * a.heads + head] = 1;
            wait<0>();
            return;
        }
        float s[MT][KN / 8][4];
        scores<D, MT, KN>(sq, sk + now * KEYS, s);
        shape_scores<MT, KN, CAP>(a, t, key0, hide, s);
        soften<V, MT, KN>(a.scale, s, z);
        values<V, MT, KN>(sv + now * VALUES, s, z);
        __syncthreads();
    }
    finish<V, MT>(a, t, head, z);
}

template <int D, int V, int W, int MT, int KN>
static kld_status launch(kld_device *dev, const struct attend &a, kld_err *err) {
    /* At most 96 KiB: cards of sm_86 and sm_120 give a block 99. */
    enum { BM = 16 * W * MT, SHARED = BM * D * 2 + 4 * KN * (D + V) };
    auto kernel =
        a.cap > 0 ? attend_tiles<D, V, W, MT, KN, true> : attend_tiles<D, V, W, MT, KN, false>;
    CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
         "attention");
    dim3 grid((unsigned)(a.n_spans * (KLD_CHUNK / BM)), (unsigned)a.heads);
    kernel<<<grid, 32 * W, SHARED, dev->compute>>>(a);
    LAUNCHED("attention");
    return KLD_OK;
}

static bool aligned(kld_view v) { return v.ld % 8 == 0 && (uintptr_t)v.p % 16 == 0; }

kld_status cuda_attend(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                       const kld_attend_args *args, kld_view y, kld_err *err) {
    size_t d = args->head_dim, v_dim = args->value_dim;
    struct attend a = {};
    if (!b->n) return KLD_OK;
    TRY(cuda_spans(dev, b, &a.spans, err));
    bool fused =
        dev->bf16 &&
        ((d == v_dim && (d == 64 || d == 128 || d == 256)) || (d == 192 && v_dim == 128)) &&
        args->heads <= CUDA_FLAG_HEADS && aligned(q) && aligned(k) && aligned(v) && aligned(y);
    if (!fused) return cuda_attend_any(dev, a.spans, b->n, q, k, v, args, y, false, err);
    a.q = (const __nv_bfloat16 *)q.p;
    a.k = (const __nv_bfloat16 *)k.p;
    a.v = (const __nv_bfloat16 *)v.p;
    a.y = (__nv_bfloat16 *)y.p;
    a.ldq = q.ld;
    a.ldk = k.ld;
    a.ldv = v.ld;
    a.ldy = y.ld;
    a.n_spans = (int)b->n;
    a.heads = (int)args->heads;
    a.group = (int)(args->heads / args->kv_heads);
    a.window = args->window && args->window < INT_MAX ? (int)args->window : INT_MAX;
    a.cap = args->softcap;
    a.precap = a.cap > 0 ? args->scale / a.cap : 0;
    a.scale = a.cap > 0 ? LOG2E : args->scale * LOG2E;
    a.sinks = args->sinks;
    a.flag = dev->attend_flag;
    if (d == 64) TRY((launch<64, 64, 4, 2, 64>(dev, a, err)));
    else if (d == 128) TRY((launch<128, 128, 4, 2, 64>(dev, a, err)));
    else if (d == 192) TRY((launch<192, 128, 4, 2, 32>(dev, a, err)));
    else TRY((launch<256, 256, 4, 1, 32>(dev, a, err)));
    return cuda_attend_any(dev, a.spans, b->n, q, k, v, args, y, true, err);
}
