/* Matrix products by cuBLASLt, one algorithm a weight shape. */
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

#include <cstring>

/* The algorithm is chosen once for a shape of weight, for a typical number of rows, and then serves
 * every number of rows: a row's sum must not depend on how many ride along. */
enum { TYPICAL_ROWS = 2048, CANDIDATES = 16 };

struct shape {
    size_t n, k, ldx, ldy;
    size_t step;          /* columns that rows of y begin at a multiple of */
    size_t typical, room; /* rows; bytes of workspace */
    bool exact;           /* FP32 inputs whatever the run's */
    bool wide, bias, add; /* FP32 result; epilogue; beta = 1 */
};

struct cuda_algo {
    struct shape shape;
    cublasLtMatmulAlgo_t algo;
};

static kld_status lt_status(cublasStatus_t s, const char *doing, const struct shape *w,
                            kld_err *err) {
    if (s == CUBLAS_STATUS_SUCCESS) return KLD_OK;
    return kld_fail(err, s == CUBLAS_STATUS_ALLOC_FAILED ? KLD_E_NOMEM : KLD_E_DEVICE,
                    "cuBLASLt, %s for a weight of %zu x %zu: status %d", doing, w->n, w->k, (int)s);
}

/* cuBLASLt counts columns first: y^T [n][rows] = W [n][k] x^T [k][rows]. */
struct problem {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, c;
};

static bool half_inputs(const kld_device *dev, const struct shape *s) {
    return dev->bf16 && !s->exact;
}

static cublasStatus_t describe(const kld_device *dev, const struct shape *s, size_t rows,
                               const float *bias, struct problem *p) {
    cudaDataType_t in = half_inputs(dev, s) ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType_t out = s->wide ? CUDA_R_32F : in;
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bias_type = CUDA_R_32F;
    cublasStatus_t st = cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!st)
        st = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &trans,
                                            sizeof trans);
    if (!st && s->bias) {
        st = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue);
        if (!st)
            st = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                &bias_type, sizeof bias_type);
        if (!st)
            st = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias);
    }
    if (!st) st = cublasLtMatrixLayoutInit(&p->a, in, s->k, s->n, (int64_t)s->k);
    if (!st) st = cublasLtMatrixLayoutInit(&p->b, in, s->k, rows, (int64_t)s->ldx);
    if (!st) st = cublasLtMatrixLayoutInit(&p->c, out, s->n, rows, (int64_t)s->ldy);
    return st;
}

/* Largest power of two, up to 256, that divides every row's byte offset: what any row of the
 * matrix is aligned to.  It follows from the shape, unlike the pointer of one call. */
static uint32_t alignment(size_t ld, size_t size) {
    uint32_t a = 256;
    while (ld * size % a) a /= 2;
    return a;
}

static cublasStatus_t prefer(const kld_device *dev, const struct shape *s,
                             cublasLtMatmulPreferenceOpaque_t *pref) {
    size_t in = half_inputs(dev, s) ? 2 : 4, workspace = s->room;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    uint32_t a = alignment(s->k, in), b = alignment(s->ldx, in);
    uint32_t c = alignment(s->step, s->wide ? 4 : in);
    struct {
        cublasLtMatmulPreferenceAttributes_t attr;
        const void *value;
        size_t size;
    } set[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    cublasStatus_t st = cublasLtMatmulPreferenceInit(pref);
    for (auto &x : set)
        if (!st) st = cublasLtMatmulPreferenceSetAttribute(pref, x.attr, x.value, x.size);
    return st;
}

static bool one_sum(const cublasLtMatmulAlgo_t *algo) {
    uint32_t split = 1, scheme = 0;
    size_t n;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                         sizeof split, &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                         sizeof scheme, &n);
    return split <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static kld_status choose(kld_device *dev, const struct shape *s, const float *bias,
                         cublasLtMatmulAlgo_t *out, kld_err *err) {
    struct problem p;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    static const char doing[] = "choosing an algorithm";
    TRY(lt_status(describe(dev, s, s->typical, bias, &p), doing, s, err));
    TRY(lt_status(prefer(dev, s, &pref), doing, s, err));
    TRY(lt_status(cublasLtMatmulAlgoGetHeuristic(dev->lt, &p.op, &p.a, &p.b, &p.c, &p.c, &pref,
                                                 CANDIDATES, found, &n),
                  doing, s, err));
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !one_sum(&found[i].algo)) continue;
        *out = found[i].algo;
        return KLD_OK;
    }
    return lt_status(CUBLAS_STATUS_NOT_SUPPORTED, doing, s, err);
}

static kld_status algo_of(kld_device *dev, const struct shape *s, const float *bias,
                          const cublasLtMatmulAlgo_t **out, kld_err *err) {
    for (size_t i = 0; i < dev->n_algo; i++) {
        const struct shape *t = &dev->algo[i].shape;
        if (t->n != s->n || t->k != s->k || t->ldx != s->ldx || t->ldy != s->ldy ||
            t->step != s->step || t->typical != s->typical || t->room != s->room ||
            t->exact != s->exact || t->wide != s->wide || t->bias != s->bias || t->add != s->add)
            continue;
        *out = &dev->algo[i].algo;
        return KLD_OK;
    }
    if (dev->n_algo == dev->max_algo) {
        dev->max_algo = dev->max_algo ? 2 * dev->max_algo : 16;
        TRY(kld_realloc((void **)&dev->algo, dev->max_algo, sizeof *dev->algo, err));
    }
    struct cuda_algo *a = &dev->algo[dev->n_algo];
    a->shape = *s;
    TRY(choose(dev, s, bias, &a->algo, err));
    dev->n_algo++;
    *out = &a->algo;
    return KLD_OK;
}

static kld_status product(kld_device *dev, const struct cuda_queue *q, const struct shape *s,
                          kld_view x, const kld_dev_weight *w, size_t rows, void *y, kld_err *err) {
    const cublasLtMatmulAlgo_t *algo;
    struct problem p;
    float alpha = w->alpha, beta = s->add ? 1.0f : 0.0f;
    TRY(algo_of(dev, s, w->bias, &algo, err));
    TRY(lt_status(describe(dev, s, rows, w->bias, &p), "describing", s, err));
    return lt_status(cublasLtMatmul(dev->lt, &p.op, &alpha, w->data, &p.a, x.p, &p.b, &beta, y,
                                    &p.c, y, &p.c, algo, q->workspace, q->room, q->stream),
                     "multiplying", s, err);
}

template <typename A, typename B>
__global__ static void convert(const A *in, size_t ldi, size_t rows, size_t cols, B *out,
                               size_t ldo) {
    size_t n = rows * cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        put(out + i / cols * ldo + i % cols, get(in + i / cols * ldi + i % cols));
}

static unsigned blocks_for(size_t n) { return (unsigned)num_min(num_cdiv(n, 256), 4096); }

kld_status cuda_multiply(kld_device *dev, const struct cuda_queue *q, kld_view x,
                         const kld_dev_weight *w, kld_view y, size_t step, bool add, kld_err *err) {
    bool bf16 = cuda_is_bf16(dev, y);
    /* A bias is added in FP32 and rounded once, which cuBLASLt does not do for BF16 results. */
    bool detour = bf16 && w->bias;
    struct shape s = {.n = y.cols, .k = w->cols, .ldx = x.ld, .ldy = detour ? y.cols : y.ld};
    if (!y.rows) return KLD_OK;
    s.step = detour ? y.cols : step;
    s.typical = q->typical;
    s.room = q->room;
    s.exact = w->exact;
    s.wide = !bf16 || detour;
    s.bias = w->bias != NULL;
    s.add = add;
    if (!detour) return product(dev, q, &s, x, w, y.rows, y.p, err);
    if (y.rows > dev->spec.max_rows || y.cols > dev->spec.bias_cols)
        return kld_fail(err, KLD_E_INTERNAL, "a BF16 product with a bias of %zu columns", y.cols);
    TRY(product(dev, q, &s, x, w, y.rows, dev->wide, err));
    convert<<<blocks_for(y.rows * y.cols), 256, 0, q->stream>>>(dev->wide, y.cols, y.rows, y.cols,
                                                                (__nv_bfloat16 *)y.p, y.ld);
    LAUNCHED("rounding a product");
    return KLD_OK;
}

/* The FP32 product of BF16 rows: they become FP32 in the experts' scratch, which is idle while a
 * router is at work, as many at a time as it holds. */
static kld_status exact_linear(kld_device *dev, const struct cuda_queue *q, kld_view x,
                               const kld_dev_weight *w, kld_view y, bool add, kld_err *err) {
    size_t most;
    float *rows = cuda_experts_floats(dev, w->cols, &most);
    if (!most)
        return kld_fail(err, KLD_E_INTERNAL, "a router of %zu columns was not announced", w->cols);
    for (size_t r = 0; r < y.rows; r += most) {
        kld_view in = {rows, num_min(most, y.rows - r), w->cols, w->cols, KLD_ELEM_F32}, out = y;
        convert<<<blocks_for(in.rows * in.cols), 256, 0, q->stream>>>(
            (const __nv_bfloat16 *)x.p + r * x.ld, x.ld, in.rows, in.cols, rows, in.ld);
        LAUNCHED("widening a router's input");
        out.rows = in.rows;
        out.p = (float *)y.p + r * y.ld;
        TRY(cuda_multiply(dev, q, in, w, out, y.ld, add, err));
    }
    return KLD_OK;
}

kld_status cuda_linear(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                       kld_view y, bool add, kld_err *err) {
    (void)b;
    struct cuda_queue q = {dev->compute, dev->workspace, CUDA_WORKSPACE, TYPICAL_ROWS};
    if (w->pre || w->input.format != KLD_AQ_NONE) {
        kld_view in = {dev->act, x.rows, w->cols, w->cols, KLD_ELEM_ACT};
        x.cols = w->cols;
        if (x.cols > dev->spec.act_cols || x.rows > dev->spec.max_rows)
            return kld_fail(err, KLD_E_INTERNAL, "inputs of %zu x %zu were not announced", x.rows,
                            x.cols);
        if (w->pre) TRY(cuda_multiply_input(dev, x, w->pre, in, err));
        if (w->input.format != KLD_AQ_NONE)
            TRY(cuda_quantize(dev, w->pre ? in : x, &w->input, in, err));
        x = in;
    }
    if (dev->bf16 && w->exact) return exact_linear(dev, &q, x, w, y, add, err);
    return cuda_multiply(dev, &q, x, w, y, y.ld, add, err);
}
