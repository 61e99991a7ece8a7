/* logits/cuda/head.cuh - the head statistics as one launch over device memory.  Floor 2. */
#ifndef KLD_LOGITS_CUDA_HEAD_CUH
#define KLD_LOGITS_CUDA_HEAD_CUH
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

/* Everything in device memory.  Log-probabilities are left to the host: it has lse in FP64. */
struct cuda_head_call {
    size_t rows, ld; /* of the logits */
    unsigned cols, top_k, min_k, draws, ref_ld, ref_m;
    double tail_mass;
    uint64_t seed, window, pos;
    const uint32_t *labels; /* [rows] */
    /* NULL = nothing to gather. */
    const uint32_t *ref_count, *ref_ids, *ref_tail_ids; /* [rows], [rows][ref_ld], [rows][ref_m] */
    double *lse;                                  /* [rows]; NaN marks a row that is not finite */
    float *entropy, *tail_mass_out, *label_logit; /* [rows] */
    uint32_t *count, *ids;                        /* [rows], [rows][top_k] */
    float *logit;                                 /* [rows][top_k] of ids */
    uint32_t *draw_ids;                           /* [rows][draws]; UINT32_MAX = none */
    float *draw_logit, *ref_logit, *ref_tail_logit;
};

/* Logits of FP32 or BF16, [rows][ld].  Queued on the stream. */
cudaError_t cuda_head_launch(const struct cuda_head_call *c, const float *logits, cudaStream_t s);
cudaError_t cuda_head_launch(const struct cuda_head_call *c, const __nv_bfloat16 *logits,
                             cudaStream_t s);

#endif
