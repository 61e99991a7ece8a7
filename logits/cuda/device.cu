/* The CUDA back end's table, its state, memory, and the way of weights to the card. */
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/thread.h"
#include "kld/base/version.h"
#include "logits/cuda/cuda.cuh"

#include <cstdio>
#include <cstring>

kld_status cuda_status(cudaError_t e, const char *doing, kld_err *err) {
    if (e == cudaSuccess) return KLD_OK;
    bool memory = e == cudaErrorMemoryAllocation;
    return kld_fail(
        err, memory ? KLD_E_NOMEM : KLD_E_DEVICE, "CUDA, %s: %s%s", doing, cudaGetErrorString(e),
        memory ? "; another program may hold the card's memory: lower --gpu-memory" : "");
}

/* The calling thread works on this card from now on. */
static kld_status use(const kld_device *dev, kld_err *err) {
    return cuda_status(cudaSetDevice(dev->index), "choosing the device", err);
}

/* ---- what there is --------------------------------------------------------------------- */

static kld_status cuda_devices(size_t *n, kld_err *err) {
    int count = 0, driver = 0, runtime = 0;
    *n = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaSuccess && count > 0) {
        *n = (size_t)count;
        return KLD_OK;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return kld_fail(err, KLD_E_DEVICE, "no NVIDIA driver is installed; use --device cpu");
    if (driver / 1000 < runtime / 1000)
        return kld_fail(err, KLD_E_DEVICE,
                        "the NVIDIA driver is too old: it supports CUDA %d.%d, this build needs "
                        "%d.%d; update the driver or use --device cpu",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return kld_fail(err, KLD_E_DEVICE, "no CUDA device can be used (%s); use --device cpu",
                    e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
}

static uint64_t cuda_memory(int index) {
    size_t free = 0, total = 0;
    if (cudaSetDevice(index) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
        return 0;
    return free;
}

static kld_status cuda_supports(const kld_device_spec *spec, kld_err *err) {
    if (spec->formats >> KLD_FMT_COUNT)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "a weight format is not known to the CUDA back end");
    uint32_t acts = 1u << KLD_ACT_SILU | 1u << KLD_ACT_GELU_TANH | 1u << KLD_ACT_CLAMPED_GLU;
    if (spec->activations & ~acts)
        return kld_fail(err, KLD_E_UNSUPPORTED, "an activation is not known to the CUDA back end");
    uint32_t blocks = 1u << KLD_BLOCK_ATTENTION | 1u << KLD_BLOCK_LATENT_ATTENTION |
                      1u << KLD_BLOCK_MLP | 1u << KLD_BLOCK_EXPERTS;
    if (spec->blocks & ~blocks)
        return kld_fail(err, KLD_E_UNSUPPORTED, "a layer block is not known to the CUDA back end");
    if (spec->head_dim > 512)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "attention heads of %zu columns; the CUDA back end has up to 512",
                        spec->head_dim);
    if (spec->experts > KLD_MAX_EXPERTS || spec->chosen > KLD_MAX_TOP_EXPERTS)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%zu of %zu experts; the CUDA back end has up to %d of %d", spec->chosen,
                        spec->experts, KLD_MAX_TOP_EXPERTS, KLD_MAX_EXPERTS);
    return KLD_OK;
}

static void cuda_identity(kld_precision precision, int index, kld_device_identity *out) {
    cudaDeviceProp p;
    int driver = 0;
    std::memset(out, 0, sizeof *out);
    if (cudaGetDeviceProperties(&p, index) != cudaSuccess) return;
    cudaDriverGetVersion(&driver);
    std::snprintf(out->device, sizeof out->device, "%.100s, sm_%d%d", p.name, p.major, p.minor);
    std::snprintf(out->blas, sizeof out->blas, "cuBLASLt %zu", cublasLtGetVersion());
    std::snprintf(
        out->arithmetic, sizeof out->arithmetic,
        "cuda; %s, %d multiprocessors; %s, algorithms by weight shape, no split-K; chunk %d; %s; "
        "accumulate fp32; residual, norms, rope, softmax and activations fp32; nvfp4 and "
        "fp8-per-tensor scale on the product; head statistics fp32 over columns, fp64 over blocks",
        out->device, p.multiProcessorCount, out->blas, KLD_CHUNK,
        precision == KLD_PRECISION_BF16
            ? "inputs of linear layers bf16, q k v bf16, softmax weights bf16 before the value "
              "product and fp32 in their sum"
            : "matrix inputs fp32, no tf32");
}

/* ---- sizes ------------------------------------------------------------------------------ */

static size_t span_room(const kld_device_spec *s) { return num_max(s->max_rows / 16, 64); }
static size_t wide_bytes(const kld_device_spec *s) {
    return s->max_rows * s->bias_cols * sizeof(float);
}
static size_t flag_bytes(const kld_device_spec *s) {
    return span_room(s) * 4 * CUDA_FLAG_HEADS * sizeof(int);
}

static uint64_t cuda_scratch_bytes(const kld_device_spec *s) {
    return CUDA_WORKSPACE + wide_bytes(s) + span_room(s) * sizeof(kld_span) +
           s->max_rows * sizeof(uint32_t) + flag_bytes(s) + cuda_head_bytes(s) +
           cuda_route_bytes(s) + cuda_experts_bytes(s);
}

/* About 1.2 GiB of activations at ten bytes a column of the widest buffer (gate and up in FP32,
 * their product in BF16): products of that many rows run at the full rate. */
static size_t cuda_batch_rows(size_t widest) {
    size_t fit = ((size_t)1200 << 20) / (10 * num_max(widest, 1)), rows = 2048;
    while (rows * 2 <= fit && rows < 16384) rows *= 2;
    return rows;
}

static size_t cuda_head_rows(void) { return 2048; }

static size_t cuda_elem_size(kld_precision precision, kld_elem elem) {
    return elem == KLD_ELEM_ACT && precision == KLD_PRECISION_BF16 ? 2 : 4;
}

/* ---- life ------------------------------------------------------------------------------- */

static void cuda_close(kld_device *dev);
static size_t lanes(void);

static kld_status open_streams(kld_device *dev, kld_err *err) {
    CUDA(cudaStreamCreateWithFlags(&dev->compute, cudaStreamNonBlocking), "making a stream");
    CUDA(cudaStreamCreateWithFlags(&dev->copy, cudaStreamNonBlocking), "making a stream");
    CUDA(cudaStreamCreateWithFlags(&dev->back, cudaStreamNonBlocking), "making a stream");
    CUDA(cudaEventCreateWithFlags(&dev->copied, cudaEventDisableTiming), "making an event");
    for (int i = 0; i < 2 * CUDA_WAITS; i++)
        CUDA(cudaEventCreate(&dev->wait[i / 2][i % 2]), "making an event");
    TRY(NEW_ARRAY(&dev->lane, lanes(), err));
    for (size_t i = 0; i < lanes(); i++)
        CUDA(cudaEventCreateWithFlags(&dev->lane[i], cudaEventDisableTiming), "making an event");
    return KLD_OK;
}

static kld_status open_scratch(kld_device *dev, kld_err *err) {
    const kld_device_spec *s = &dev->spec;
    static const char doing[] = "allocating scratch";
    dev->max_spans = span_room(s);
    CUDA(cudaMalloc(&dev->workspace, CUDA_WORKSPACE), doing);
    if (wide_bytes(s)) CUDA(cudaMalloc((void **)&dev->wide, wide_bytes(s)), doing);
    CUDA(cudaMalloc((void **)&dev->spans, dev->max_spans * sizeof(kld_span)), doing);
    CUDA(cudaMalloc((void **)&dev->ids, s->max_rows * sizeof(uint32_t)), doing);
    CUDA(cudaMalloc((void **)&dev->attend_flag, flag_bytes(s)), doing);
    CUDA(cudaMemsetAsync(dev->attend_flag, 0, flag_bytes(s), dev->compute), doing);
    TRY(NEW_ARRAY(&dev->spans_host, dev->max_spans, err));
    if (cublasLtCreate(&dev->lt) != CUBLAS_STATUS_SUCCESS)
        return kld_fail(err, KLD_E_DEVICE, "cuBLASLt cannot be started on cuda:%d", dev->index);
    TRY(cuda_route_open(dev, err));
    TRY(cuda_experts_open(dev, err));
    return cuda_head_open(dev, err);
}

static kld_status cuda_open(kld_device **out, const kld_device_spec *spec, int index,
                            kld_err *err) {
    *out = NULL;
    TRY(cuda_supports(spec, err));
    cudaDeviceProp p;
    CUDA(cudaSetDevice(index), "choosing the device");
    CUDA(cudaGetDeviceProperties(&p, index), "asking for its properties");
    if (p.major < 8)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "cuda:%d (%s) is sm_%d%d; sm_80 (Ampere) or later is needed", index, p.name,
                        p.major, p.minor);
    kld_device *dev;
    TRY(NEW_ARRAY(&dev, 1, err));
    dev->spec = *spec;
    dev->bf16 = spec->precision == KLD_PRECISION_BF16;
    dev->index = index;
    dev->multiprocessors = p.multiProcessorCount;
    dev->shared_optin = (int)p.sharedMemPerBlockOptin;
    kld_status st = open_streams(dev, err);
    if (st == KLD_OK) st = open_scratch(dev, err);
    if (st == KLD_OK) *out = dev;
    else cuda_close(dev);
    return st;
}

static void cuda_close(kld_device *dev) {
    if (!dev) return;
    cudaSetDevice(dev->index);
    cudaDeviceSynchronize();
    cuda_head_close(dev);
    cuda_experts_close(dev);
    cuda_route_close(dev);
    if (dev->lt) cublasLtDestroy(dev->lt);
    cudaFree(dev->workspace);
    cudaFree(dev->wide);
    cudaFree(dev->spans);
    cudaFree(dev->ids);
    cudaFree(dev->attend_flag);
    for (size_t i = 0; dev->lane && i < lanes(); i++)
        if (dev->lane[i]) cudaEventDestroy(dev->lane[i]);
    if (dev->copied) cudaEventDestroy(dev->copied);
    for (int i = 0; i < 2 * CUDA_WAITS; i++)
        if (dev->wait[i / 2][i % 2]) cudaEventDestroy(dev->wait[i / 2][i % 2]);
    if (dev->compute) cudaStreamDestroy(dev->compute);
    if (dev->copy) cudaStreamDestroy(dev->copy);
    if (dev->back) cudaStreamDestroy(dev->back);
    kld_free(dev->lane);
    kld_free(dev->algo);
    kld_free(dev->spans_host);
    kld_free(dev);
}

/* ---- memory ----------------------------------------------------------------------------- */

static kld_status cuda_alloc(kld_device *dev, void **p, size_t bytes, kld_err *err) {
    *p = NULL;
    TRY(use(dev, err));
    if (bytes) CUDA(cudaMalloc(p, bytes), "allocating device memory");
    return KLD_OK;
}

static void cuda_free(kld_device *dev, void *p) {
    if (!p) return;
    cudaSetDevice(dev->index);
    cudaFree(p);
}

static kld_status cuda_copy(kld_device *dev, void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, kld_err *err) {
    TRY(use(dev, err));
    if (!bytes) return KLD_OK;
    const char *doing =
        kind == cudaMemcpyHostToDevice ? "copying to the device" : "copying from it";
    CUDA(cudaMemcpyAsync(dst, src, bytes, kind, dev->compute), doing);
    CUDA(cudaStreamSynchronize(dev->compute), doing);
    return KLD_OK;
}

static kld_status cuda_upload(kld_device *dev, void *dst, const void *src, size_t bytes,
                              kld_err *err) {
    return cuda_copy(dev, dst, src, bytes, cudaMemcpyHostToDevice, err);
}

static kld_status cuda_download(kld_device *dev, void *dst, const void *src, size_t bytes,
                                kld_err *err) {
    return cuda_copy(dev, dst, src, bytes, cudaMemcpyDeviceToHost, err);
}

static kld_status cuda_sync(kld_device *dev, kld_err *err) {
    TRY(use(dev, err));
    CUDA(cudaStreamSynchronize(dev->copy), "copying weights");
    CUDA(cudaStreamSynchronize(dev->compute), "computing");
    return KLD_OK;
}

kld_status cuda_spans(kld_device *dev, const kld_batch *b, const kld_span **out, kld_err *err) {
    *out = dev->spans;
    size_t bytes = b->n * sizeof *b->span;
    if (b->n == dev->n_spans && !std::memcmp(dev->spans_host, b->span, bytes)) return KLD_OK;
    if (b->n > dev->max_spans)
        return kld_fail(err, KLD_E_INTERNAL, "%zu spans, room for %zu", b->n, dev->max_spans);
    /* Pageable memory: it has been staged when the call returns. */
    std::memcpy(dev->spans_host, b->span, bytes);
    dev->n_spans = b->n;
    CUDA(cudaMemcpyAsync(dev->spans, dev->spans_host, bytes, cudaMemcpyHostToDevice, dev->compute),
         "copying spans");
    return KLD_OK;
}

/* ---- weights on their way ---------------------------------------------------------------- */

static kld_status cuda_stage_alloc(kld_device *dev, void **p, size_t bytes, kld_err *err) {
    *p = NULL;
    TRY(use(dev, err));
    if (bytes) CUDA(cudaHostAlloc(p, bytes, cudaHostAllocPortable), "pinning host memory");
    return KLD_OK;
}

static void cuda_stage_free(kld_device *dev, void *p) {
    (void)dev;
    if (p) cudaFreeHost(p);
}

static kld_status cuda_feed_open(kld_device *dev, kld_err *err) {
    TRY(use(dev, err));
    CUDA(cudaEventRecord(dev->copied, dev->compute), "ordering copies");
    CUDA(cudaStreamWaitEvent(dev->copy, dev->copied, 0), "ordering copies");
    return KLD_OK;
}

static kld_status cuda_feed(kld_device *dev, size_t lane, void *dst, const void *src, size_t bytes,
                            kld_err *err) {
    TRY(use(dev, err));
    CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->copy), "copying weights");
    CUDA(cudaEventRecord(dev->lane[lane], dev->copy), "copying weights");
    return KLD_OK;
}

static kld_status cuda_feed_wait(kld_device *dev, size_t lane, kld_err *err) {
    TRY(use(dev, err));
    CUDA(cudaEventSynchronize(dev->lane[lane]), "copying weights");
    return KLD_OK;
}

/* The oldest wait that was not summed; the events of its place are free afterwards. */
static kld_status sum_wait(kld_device *dev, kld_err *err) {
    float ms = 0;
    cudaEvent_t *e = dev->wait[dev->summed % CUDA_WAITS];
    CUDA(cudaEventSynchronize(e[1]), "computing");
    CUDA(cudaEventElapsedTime(&ms, e[0], e[1]), "timing");
    dev->stalled += ms / 1e3;
    dev->summed++;
    return KLD_OK;
}

static kld_status cuda_stall(kld_device *dev, double *seconds, kld_err *err) {
    TRY(use(dev, err));
    while (dev->summed < dev->waits) TRY(sum_wait(dev, err));
    *seconds = dev->stalled;
    return KLD_OK;
}

static kld_status cuda_feed_need(kld_device *dev, kld_err *err) {
    TRY(use(dev, err));
    if (dev->waits - dev->summed == CUDA_WAITS) TRY(sum_wait(dev, err));
    CUDA(cudaEventRecord(dev->wait[dev->waits % CUDA_WAITS][0], dev->compute), "timing");
    return KLD_OK;
}

static kld_status cuda_feed_close(kld_device *dev, kld_err *err) {
    TRY(use(dev, err));
    CUDA(cudaEventRecord(dev->copied, dev->copy), "ordering copies");
    CUDA(cudaStreamWaitEvent(dev->compute, dev->copied, 0), "ordering copies");
    CUDA(cudaEventRecord(dev->wait[dev->waits++ % CUDA_WAITS][1], dev->compute), "timing");
    return KLD_OK;
}

/* ---- the table --------------------------------------------------------------------------- */

/* Several cards are driven from one thread: each operation first turns to its own. */
#define ON(dev, call)                                                                              \
    do {                                                                                           \
        TRY(use((dev), err));                                                                      \
        return call;                                                                               \
    } while (0)

static kld_status on_prepare(kld_device *d, const kld_raw_weight *raw, kld_use u, void *mem,
                             kld_dev_weight *out, kld_err *err) {
    ON(d, cuda_prepare(d, raw, u, mem, out, err));
}
static kld_status on_embed(kld_device *d, const kld_dev_weight *w, const uint32_t *ids, float scale,
                           kld_view y, kld_err *err) {
    ON(d, cuda_embed(d, w, ids, scale, y, err));
}
static kld_status on_norm(kld_device *d, kld_view x, const kld_dev_weight *w, double eps,
                          kld_view y, bool add, kld_err *err) {
    ON(d, cuda_norm(d, x, w, eps, y, add, err));
}
static kld_status on_rope(kld_device *d, const kld_batch *b, kld_view x, const kld_rope_args *args,
                          kld_view y, kld_err *err) {
    ON(d, cuda_rope(d, b, x, args, y, err));
}
static kld_status on_spread(kld_device *d, kld_view kv, kld_view r, size_t heads, kld_view k,
                            kld_view v, kld_err *err) {
    ON(d, cuda_spread(d, kv, r, heads, k, v, err));
}
static kld_status on_linear(kld_device *d, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                            kld_view y, bool add, kld_err *err) {
    ON(d, cuda_linear(d, b, x, w, y, add, err));
}
static kld_status on_attend(kld_device *d, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                            const kld_attend_args *args, kld_view y, kld_err *err) {
    ON(d, cuda_attend(d, b, q, k, v, args, y, err));
}
static kld_status on_gated(kld_device *d, const kld_gate *act, kld_view g, kld_view u, kld_view y,
                           kld_err *err) {
    ON(d, cuda_gated(d, act, g, u, y, err));
}
static kld_status on_cap(kld_device *d, kld_view x, float cap, kld_err *err) {
    ON(d, cuda_cap(d, x, cap, err));
}
static kld_status on_route(kld_device *d, kld_view l, const kld_dev_weight *bias,
                           const kld_router *r, const uint32_t *forced, const kld_routes *out,
                           kld_err *err) {
    ON(d, cuda_route(d, l, bias, r, forced, out, err));
}
static kld_status on_experts(kld_device *d, kld_view h, const kld_expert_rows *e, size_t n,
                             const kld_gate *act, kld_view x, kld_err *err) {
    ON(d, cuda_experts(d, h, e, n, act, x, err));
}
static kld_status on_quantize(kld_device *d, kld_view x, const kld_act_quant *a, kld_view y,
                              kld_err *err) {
    ON(d, cuda_quantize(d, x, a, y, err));
}
static kld_status on_head_begin(kld_device *d, kld_view l, const kld_head_args *args,
                                kld_err *err) {
    ON(d, cuda_head_begin(d, l, args, err));
}
static kld_status on_head_end(kld_device *d, kld_records *rec, size_t row0, size_t *nonfinite,
                              size_t *first_bad, kld_err *err) {
    ON(d, cuda_head_end(d, rec, row0, nonfinite, first_bad, err));
}
static kld_status on_pair(kld_device *d, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                          kld_err *err) {
    ON(d, cuda_pair(d, p, q, top_p, out, err));
}

static kld_backend make_table(void) {
    kld_backend b = {};
    b.name = "cuda";
    b.build = kld_commit;
    b.head_slots = 2;
    b.readers = num_min(16, kld_processors());
    b.devices = cuda_devices;
    b.memory = cuda_memory;
    b.supports = cuda_supports;
    b.open = cuda_open;
    b.close = cuda_close;
    b.identity = cuda_identity;
    b.scratch_bytes = cuda_scratch_bytes;
    b.batch_rows = cuda_batch_rows;
    b.head_rows = cuda_head_rows;
    b.elem_size = cuda_elem_size;
    b.alloc = cuda_alloc;
    b.free = cuda_free;
    b.upload = cuda_upload;
    b.download = cuda_download;
    b.sync = cuda_sync;
    b.stall = cuda_stall;
    b.stage_alloc = cuda_stage_alloc;
    b.stage_free = cuda_stage_free;
    b.feed_open = cuda_feed_open;
    b.feed = cuda_feed;
    b.feed_wait = cuda_feed_wait;
    b.feed_need = cuda_feed_need;
    b.feed_close = cuda_feed_close;
    b.weight_bytes = cuda_weight_bytes;
    b.prepare = on_prepare;
    b.embed = on_embed;
    b.norm = on_norm;
    b.rope = on_rope;
    b.spread = on_spread;
    b.linear = on_linear;
    b.attend = on_attend;
    b.gated = on_gated;
    b.cap = on_cap;
    b.route = on_route;
    b.experts = on_experts;
    b.quantize = on_quantize;
    b.head_begin = on_head_begin;
    b.head_end = on_head_end;
    b.pair = on_pair;
    return b;
}

static const kld_backend &table(void) {
    static const kld_backend b = make_table();
    return b;
}

static size_t lanes(void) { return 2 * table().readers; }

extern "C" __attribute__((visibility("default"))) const kld_backend *kld_backend_cuda(void) {
    return &table();
}
