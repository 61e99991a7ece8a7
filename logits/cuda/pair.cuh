/* logits/cuda/pair.cuh - two chunks of logits against each other, as one launch over device memory.
 * Floor 2. */
#ifndef KLD_LOGITS_CUDA_PAIR_CUH
#define KLD_LOGITS_CUDA_PAIR_CUH
#include "logits/backend.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

struct cuda_pair_call {
    size_t rows, ldp, ldq;
    unsigned cols;
    double top_p;
    kld_pair_row *out; /* device [rows] */
};

/* Logits of FP32 or BF16.  Queued on the stream. */
cudaError_t cuda_pair_launch(const struct cuda_pair_call *c, const float *p, const float *q,
                             cudaStream_t s);
cudaError_t cuda_pair_launch(const struct cuda_pair_call *c, const __nv_bfloat16 *p,
                             const __nv_bfloat16 *q, cudaStream_t s);

#endif
