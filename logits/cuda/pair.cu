/* The operation around the kernel of pair_kernel.cu. */
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/pair.cuh"

kld_status cuda_pair(kld_device *dev, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                     kld_err *err) {
    struct cuda_pair_call c = {};
    c.rows = p.rows;
    c.ldp = p.ld;
    c.ldq = q.ld;
    c.cols = (unsigned)p.cols;
    c.top_p = top_p;
    if (!p.rows) return KLD_OK;
    CUDA(cudaMallocAsync((void **)&c.out, p.rows * sizeof *out, dev->compute), "pairs");
    typedef const __nv_bfloat16 *half;
    cudaError_t e = cuda_is_bf16(dev, p) ? cuda_pair_launch(&c, (half)p.p, (half)q.p, dev->compute)
                                         : cuda_pair_launch(&c, (const float *)p.p,
                                                            (const float *)q.p, dev->compute);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(out, c.out, p.rows * sizeof *out, cudaMemcpyDeviceToHost, dev->compute);
    cudaError_t freed = cudaFreeAsync(c.out, dev->compute);
    if (e == cudaSuccess) e = freed;
    if (e == cudaSuccess) e = cudaStreamSynchronize(dev->compute);
    return cuda_status(e, "pairs", err);
}
