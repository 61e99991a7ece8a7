/* From router logits to experts: a thread a row, by the very function that the CPU uses (see
 * logits/route.h), on a copy of the row in shared memory. */
#include "logits/route.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/cuda/cuda.cuh"

#include <cstring>

/* Threads that stage the rows of a block; the first ROWS of them then route one each.  What every
 * card gives a block without being asked: 48 KiB. */
enum { THREADS = 128, ROWS = 32, SHARED = 48 << 10 };

struct cuda_route {
    uint32_t *dev, *host; /* ids, weights, margins of max_rows rows, one after the other */
};

static size_t row_bytes(const kld_device_spec *s) { return (2 * s->chosen + 1) * sizeof(uint32_t); }

uint64_t cuda_route_bytes(const kld_device_spec *s) {
    return s->experts ? s->max_rows * row_bytes(s) : 0;
}

kld_status cuda_route_open(kld_device *dev, kld_err *err) {
    size_t bytes = (size_t)cuda_route_bytes(&dev->spec);
    if (!bytes) return KLD_OK;
    TRY(NEW_ARRAY(&dev->route, 1, err));
    CUDA(cudaMalloc((void **)&dev->route->dev, bytes), "allocating routes");
    CUDA(cudaHostAlloc((void **)&dev->route->host, bytes, cudaHostAllocPortable), "pinning routes");
    return KLD_OK;
}

void cuda_route_close(kld_device *dev) {
    if (!dev->route) return;
    cudaFree(dev->route->dev);
    if (dev->route->host) cudaFreeHost(dev->route->host);
    kld_free(dev->route);
    dev->route = NULL;
}

struct routing {
    const float *z, *bias;
    size_t ld, rows;
    unsigned per, stride; /* rows of a block, and their distance in shared memory */
    bool forced;          /* id holds the experts already */
    uint32_t *id;
    float *weight, *margin;
};

__global__ static void __launch_bounds__(THREADS)
    route_rows(const kld_router router, const struct routing a) {
    extern __shared__ float staged[];
    size_t first = blockIdx.x * (size_t)a.per, n = a.rows - first, width = router.experts;
    if (n > a.per) n = a.per;
    for (size_t i = threadIdx.x; i < n * width; i += THREADS)
        staged[i / width * a.stride + i % width] = a.z[(first + i / width) * a.ld + i % width];
    __syncthreads();
    if (threadIdx.x >= n) return;
    size_t r = first + threadIdx.x, at = r * router.top_k;
    kld_route_row(&router, staged + threadIdx.x * a.stride, a.bias, a.forced ? a.id + at : NULL,
                  a.id + at, a.weight + at, a.margin + r);
}

static kld_status check(const kld_device *dev, kld_view z, const kld_router *r, kld_err *err) {
    const kld_device_spec *s = &dev->spec;
    if (dev->route && z.rows <= s->max_rows && r->top_k <= s->chosen && z.cols == r->experts &&
        r->experts <= KLD_MAX_EXPERTS)
        return KLD_OK;
    return kld_fail(err, KLD_E_INTERNAL,
                    "routing of %zu rows to %zu of %zu experts was not announced", z.rows, r->top_k,
                    r->experts);
}

kld_status cuda_route(kld_device *dev, kld_view logits, const kld_dev_weight *bias,
                      const kld_router *r, const uint32_t *forced, const kld_routes *out,
                      kld_err *err) {
    size_t rows = logits.rows, n = rows * r->top_k;
    if (!rows) return KLD_OK;
    TRY(check(dev, logits, r, err));
    uint32_t *host = dev->route->host, *to = dev->route->dev;
    if (forced) {
        std::memcpy(host, forced, n * sizeof *host);
        CUDA(cudaMemcpyAsync(to, host, n * sizeof *host, cudaMemcpyHostToDevice, dev->compute),
             "copying routes");
    }
    struct routing a = {(const float *)logits.p};
    a.bias = bias ? (const float *)bias->data : NULL;
    a.ld = logits.ld;
    a.rows = rows;
    a.stride = (unsigned)(r->experts | 1); /* odd: the same column of all rows in different banks */
    a.per = (unsigned)num_min(ROWS, SHARED / (a.stride * sizeof(float)));
    a.forced = forced != NULL;
    a.id = to;
    a.weight = (float *)(to + n);
    a.margin = (float *)(to + 2 * n);
    route_rows<<<(unsigned)num_cdiv(rows, a.per), THREADS, a.per * a.stride * sizeof(float),
                 dev->compute>>>(*r, a);
    LAUNCHED("routing");
    CUDA(cudaMemcpyAsync(host, to, (2 * n + (forced ? 0 : rows)) * sizeof *host,
                         cudaMemcpyDeviceToHost, dev->compute),
         "copying routes");
    CUDA(cudaStreamSynchronize(dev->compute), "routing");
    std::memcpy(out->id, host, n * sizeof *host);
    std::memcpy(out->weight, host + n, n * sizeof *host);
    if (!forced) std::memcpy(out->margin, host + 2 * n, rows * sizeof *host);
    return KLD_OK;
}
