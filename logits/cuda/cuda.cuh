/* logits/cuda/cuda.cuh - state and operations of the CUDA back end, shared by its files.
 * Floor 2.  The contract of each operation is in logits/backend.h.
 *
 * Kernels run on every card from sm_80 up and take their shapes from the problem, never from the
 * card: grids may follow the number of multiprocessors, the order of sums may not.  No float
 * atomics, no --use_fast_math; an approximate instruction is named where it is used, with its
 * error.  Index arithmetic on row * ld is 64-bit. */
#ifndef KLD_LOGITS_CUDA_CUDA_CUH
#define KLD_LOGITS_CUDA_CUDA_CUH
#include "logits/backend.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* What a KLD_ELEM_ACT view holds: __nv_bfloat16 in a BF16 run, float in an FP32 run. */

struct cuda_algo;    /* a pinned GEMM algorithm; linear.cu */
struct cuda_head;    /* buffers of the head statistics; head.cu */
struct cuda_route;   /* buffers of routing; route.cu */
struct cuda_experts; /* buffers and queues of the experts; experts.cu */

enum { CUDA_WAITS = 4 };

struct kld_device {
    kld_device_spec spec;
    bool bf16;
    int index; /* of the card */
    int multiprocessors;
    int shared_optin;     /* most shared memory of a block, bytes */
    cudaStream_t compute; /* all operations, in order */
    cudaStream_t copy;    /* fed weights */
    cudaStream_t back;    /* head statistics on their way to the host */
    cudaEvent_t copied;   /* scratch event of feed_open and feed_close */
    cudaEvent_t *lane;    /* [2 * readers] */
    /* Before and after the last waits for fed copies; summed up once they are surely over. */
    cudaEvent_t wait[CUDA_WAITS][2];
    size_t waits, summed;
    double stalled; /* seconds, of the summed ones */

    cublasLtHandle_t lt;
    void *workspace;        /* of cuBLASLt, CUDA_WORKSPACE bytes */
    struct cuda_algo *algo; /* [n_algo], found so far */
    size_t n_algo, max_algo;
    void *act;   /* device [max_rows][act_cols] ACT: changed inputs of products; NULL without */
    float *wide; /* device [max_rows][bias_cols]: an FP32 product on its way to BF16 */

    kld_span *spans;      /* device copy of the current batch's spans, [max_spans] */
    kld_span *spans_host; /* what `spans` holds */
    size_t n_spans, max_spans;
    uint32_t *ids;    /* device [max_rows] */
    int *attend_flag; /* device [max_spans][4][CUDA_FLAG_HEADS] at most, zero between calls */

    struct cuda_head *head;
    struct cuda_route *route;     /* NULL without experts */
    struct cuda_experts *experts; /* NULL without experts */
};

/* KLD_OK, or the error with what was being done.  cudaErrorMemoryAllocation is KLD_E_NOMEM, all
 * others KLD_E_DEVICE. */
kld_status cuda_status(cudaError_t e, const char *doing, kld_err *err);
#define CUDA(expr, doing) TRY(cuda_status((expr), (doing), err))
/* After a launch. */
#define LAUNCHED(doing) TRY(cuda_status(cudaGetLastError(), (doing), err))

/* The batch's spans in device memory, uploaded when they differ from the last ones. */
kld_status cuda_spans(kld_device *dev, const kld_batch *b, const kld_span **out, kld_err *err);

/* What the view holds: __nv_bfloat16, or else float. */
static inline bool cuda_is_bf16(const kld_device *dev, kld_view v) {
    return dev->bf16 && v.elem == KLD_ELEM_ACT;
}

/* Device memory at element (r, c) of a view; size is of an element. */
static inline void *cuda_at(kld_view v, size_t r, size_t c, size_t size) {
    return (unsigned char *)v.p + (r * v.ld + c) * size;
}

/* Whether every row can be taken four columns at a time; size is of an element. */
static inline bool cuda_fours(kld_view v, size_t size) {
    return v.cols % 4 == 0 && v.ld % 4 == 0 && (uintptr_t)v.p % (4 * size) == 0;
}

/* linear.cu */
enum { CUDA_WORKSPACE = 32 << 20 };
/* Where products are computed, and the number of rows that their algorithms are chosen for; both
 * this and the room belong to what decides a result's bits. */
struct cuda_queue {
    cudaStream_t stream;
    void *workspace;
    size_t room, typical;
};
/* As `linear`, in a queue; rows of y begin at multiples of `step` columns (y.ld, or less when y is
 * part of a wider buffer).  Products with a bias and a BF16 result share a buffer: they are not for
 * several streams at a time. */
kld_status cuda_multiply(kld_device *dev, const struct cuda_queue *q, kld_view x,
                         const kld_dev_weight *w, kld_view y, size_t step, bool add, kld_err *err);
kld_status cuda_linear(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                       kld_view y, bool add, kld_err *err);

/* weights.cu */
size_t cuda_weight_bytes(kld_precision precision, const kld_weight *w, kld_use use);
kld_status cuda_prepare(kld_device *dev, const kld_raw_weight *raw, kld_use use, void *mem,
                        kld_dev_weight *out, kld_err *err);
kld_status cuda_embed(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, float scale,
                      kld_view y, kld_err *err);

/* ops.cu */
kld_status cuda_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                     bool add, kld_err *err);
kld_status cuda_rope(kld_device *dev, const kld_batch *b, kld_view x, const kld_rope_args *args,
                     kld_view y, kld_err *err);
kld_status cuda_spread(kld_device *dev, kld_view kv, kld_view r, size_t heads, kld_view k,
                       kld_view v, kld_err *err);
kld_status cuda_gated(kld_device *dev, const kld_gate *act, kld_view gate, kld_view up, kld_view y,
                      kld_err *err);
kld_status cuda_cap(kld_device *dev, kld_view x, float cap, kld_err *err);

/* route.cu */
uint64_t cuda_route_bytes(const kld_device_spec *spec); /* of device memory */
kld_status cuda_route_open(kld_device *dev, kld_err *err);
void cuda_route_close(kld_device *dev);
kld_status cuda_route(kld_device *dev, kld_view logits, const kld_dev_weight *bias,
                      const kld_router *r, const uint32_t *forced, const kld_routes *out,
                      kld_err *err);

/* experts.cu */
uint64_t cuda_experts_bytes(const kld_device_spec *spec); /* of device memory */
kld_status cuda_experts_open(kld_device *dev, kld_err *err);
void cuda_experts_close(kld_device *dev);
kld_status cuda_experts(kld_device *dev, kld_view h, const kld_expert_rows *e, size_t n,
                        const kld_gate *act, kld_view x, kld_err *err);
/* Their scratch as rows of `cols` floats, for other work in the compute stream; *rows 0 when they
 * do not fit it. */
float *cuda_experts_floats(kld_device *dev, size_t cols, size_t *rows);

/* quantize.cu */
kld_status cuda_quantize(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y,
                         kld_err *err);
/* y = x * pre, column by column; x, y ACT; y may be x. */
kld_status cuda_multiply_input(kld_device *dev, kld_view x, const float *pre, kld_view y,
                               kld_err *err);

/* Most heads of the fused attention. */
enum { CUDA_FLAG_HEADS = 512 };
/* attend.cu (fused, tensor cores, head sizes 64, 128, 256) and attend_any.cu (every other case) */
kld_status cuda_attend(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                       const kld_attend_args *args, kld_view y, kld_err *err);
/* only_flagged: redo just the tiles whose flag is set, and clear it.  Flag of span s, query tile t
 * (0 .. 3, 64 rows each), head h: attend_flag[(s * 4 + t) * heads + h]. */
kld_status cuda_attend_any(kld_device *dev, const kld_span *spans, size_t n_spans, kld_view q,
                           kld_view k, kld_view v, const kld_attend_args *args, kld_view y,
                           bool only_flagged, kld_err *err);

/* head.cu */
uint64_t cuda_head_bytes(const kld_device_spec *spec); /* of device memory */
kld_status cuda_head_open(kld_device *dev, kld_err *err);
void cuda_head_close(kld_device *dev);
kld_status cuda_head_begin(kld_device *dev, kld_view logits, const kld_head_args *args,
                           kld_err *err);
kld_status cuda_head_end(kld_device *dev, kld_records *rec, size_t row0, size_t *nonfinite,
                         size_t *first_bad, kld_err *err);

/* pair.cu */
kld_status cuda_pair(kld_device *dev, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                     kld_err *err);

#endif
