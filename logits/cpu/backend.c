/* The CPU back end's table, its state, and memory, which is plain host memory. */
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/system.h"
#include "kld/base/version.h"
#include "logits/cpu/cpu.h"

#include <omp.h>
#include <string.h>

static kld_status cpu_supports(const kld_device_spec *spec, kld_err *err) {
    if (spec->formats >> KLD_FMT_COUNT)
        return kld_fail(err, KLD_E_UNSUPPORTED, "a weight format is not known to the CPU back end");
    uint32_t acts = 1u << KLD_ACT_SILU | 1u << KLD_ACT_GELU_TANH | 1u << KLD_ACT_CLAMPED_GLU;
    if (spec->act_formats >> KLD_AQ_COUNT)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "a format of quantized inputs is not known to the CPU back end");
    if (spec->activations & ~acts)
        return kld_fail(err, KLD_E_UNSUPPORTED, "an activation is not known to the CPU back end");
    uint32_t blocks = 1u << KLD_BLOCK_ATTENTION | 1u << KLD_BLOCK_LATENT_ATTENTION |
                      1u << KLD_BLOCK_MLP | 1u << KLD_BLOCK_EXPERTS;
    if (spec->blocks & ~blocks)
        return kld_fail(err, KLD_E_UNSUPPORTED, "a layer block is not known to the CPU back end");
    return KLD_OK;
}

static int thread_count(void) {
    int n = omp_get_max_threads();
    return n < CPU_MAX_THREADS ? n : CPU_MAX_THREADS;
}

static size_t key_ld_of(const kld_device_spec *spec) { return num_cdiv(spec->max_keys, 16) * 16; }

static uint64_t cpu_scratch_bytes(const kld_device_spec *spec) {
    uint64_t a_thread = sizeof(float) * KLD_CHUNK * CPU_TILE +
                        sizeof(float) * CPU_QBLOCK * key_ld_of(spec) +
                        cpu_head_scratch_bytes(spec) + cpu_head_scratch_struct();
    return a_thread * (uint64_t)thread_count() + cpu_experts_scratch(spec, (size_t)thread_count()) +
           sizeof(float) * (uint64_t)spec->max_rows * spec->act_cols;
}

static void cpu_close(kld_device *dev) {
    if (!dev) return;
    kld_free(dev->tile);
    kld_free(dev->act);
    kld_free(dev->score);
    kld_free(dev->expert);
    kld_free(dev->head);
    kld_free(dev->head_mem);
    kld_free(dev);
}

static kld_status cpu_devices(size_t *n, kld_err *err) {
    (void)err;
    *n = 1;
    return KLD_OK;
}

static uint64_t cpu_memory(int index) {
    (void)index;
    return kld_free_memory();
}

static kld_status cpu_open(kld_device **out, const kld_device_spec *spec, int index, kld_err *err) {
    (void)index;
    *out = NULL;
    TRY(cpu_supports(spec, err));
    cpu_blas_setup();
    kld_device *dev;
    TRY(NEW_ARRAY(&dev, 1, err));
    dev->spec = *spec;
    dev->bf16 = spec->precision == KLD_PRECISION_BF16;
    dev->threads = thread_count();
    dev->key_ld = key_ld_of(spec);
    size_t n = (size_t)dev->threads, bytes = cpu_head_scratch_bytes(spec);
    kld_status st;
    TRY_TO(out, NEW_ARRAY(&dev->tile, n * KLD_CHUNK * CPU_TILE, err));
    TRY_TO(out, kld_calloc((void **)&dev->score, dev->key_ld, n * CPU_QBLOCK * sizeof(float), err));
    if (spec->act_cols)
        TRY_TO(out,
               kld_calloc((void **)&dev->act, spec->max_rows, spec->act_cols * sizeof(float), err));
    size_t expert = cpu_experts_scratch(spec, n);
    if (expert) TRY_TO(out, kld_calloc((void **)&dev->expert, expert, 1, err));
    TRY_TO(out, kld_calloc((void **)&dev->head, n, cpu_head_scratch_struct(), err));
    TRY_TO(out, kld_calloc((void **)&dev->head_mem, n, bytes, err));
    for (size_t i = 0; i < n; i++) {
        unsigned char *s = (unsigned char *)dev->head + i * cpu_head_scratch_struct();
        cpu_head_scratch_init((struct head_scratch *)(void *)s, spec, dev->head_mem + i * bytes);
    }
    *out = dev;
    return KLD_OK;
out:
    cpu_close(dev);
    return st;
}

/* Threads meet at the end of every operation, so narrow models want many rows between two
 * meetings; wide ones are busy long enough with two spans a core. */
static size_t cpu_batch_rows(size_t widest) {
    size_t rows = num_min(4096, ((size_t)32 << 20) / (num_max(widest, 1) * sizeof(float)));
    return num_max(num_max(rows, 1024) / KLD_CHUNK, 2 * (size_t)thread_count()) * KLD_CHUNK;
}

static size_t cpu_head_rows(void) { return KLD_CHUNK; }

static size_t cpu_elem_size(kld_precision precision, kld_elem elem) {
    (void)precision;
    (void)elem;
    return sizeof(float);
}

static kld_status cpu_alloc(kld_device *dev, void **p, size_t bytes, kld_err *err) {
    (void)dev;
    return kld_calloc(p, bytes, 1, err);
}

static void cpu_free(kld_device *dev, void *p) {
    (void)dev;
    kld_free(p);
}

static kld_status cpu_copy(kld_device *dev, void *dst, const void *src, size_t bytes,
                           kld_err *err) {
    (void)dev;
    (void)err;
    if (bytes) memcpy(dst, src, bytes);
    return KLD_OK;
}

static kld_status cpu_sync(kld_device *dev, kld_err *err) {
    (void)dev;
    (void)err;
    return KLD_OK;
}

/* Weights are read straight into device memory; these would be copies for nothing. */
static kld_status no_feed(kld_device *dev, kld_err *err) {
    (void)dev;
    return kld_fail(err, KLD_E_INTERNAL, "the CPU is not fed");
}

static kld_status no_feed_copy(kld_device *dev, size_t lane, void *dst, const void *src,
                               size_t bytes, kld_err *err) {
    (void)lane;
    (void)dst;
    (void)src;
    (void)bytes;
    return no_feed(dev, err);
}

static kld_status no_feed_wait(kld_device *dev, size_t lane, kld_err *err) {
    (void)lane;
    return no_feed(dev, err);
}

static kld_status no_stall(kld_device *dev, double *seconds, kld_err *err) {
    (void)dev;
    (void)err;
    *seconds = 0;
    return KLD_OK;
}

static const kld_backend cpu = {
    .name = "cpu",
    .build = kld_commit,
    .host_memory = true,
    .head_slots = 1,
    .readers = 1,
    .devices = cpu_devices,
    .memory = cpu_memory,
    .supports = cpu_supports,
    .open = cpu_open,
    .close = cpu_close,
    .identity = cpu_identity,
    .scratch_bytes = cpu_scratch_bytes,
    .batch_rows = cpu_batch_rows,
    .head_rows = cpu_head_rows,
    .elem_size = cpu_elem_size,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .sync = cpu_sync,
    .stall = no_stall,
    .stage_alloc = cpu_alloc,
    .stage_free = cpu_free,
    .feed_open = no_feed,
    .feed = no_feed_copy,
    .feed_wait = no_feed_wait,
    .feed_need = no_feed,
    .feed_close = no_feed,
    .weight_bytes = cpu_weight_bytes,
    .prepare = cpu_prepare,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .rope = cpu_rope,
    .linear = cpu_linear,
    .attend = cpu_attend,
    .spread = cpu_spread,
    .gated = cpu_gated,
    .cap = cpu_cap,
    .route = cpu_route,
    .experts = cpu_experts,
    .quantize = cpu_quantize,
    .head_begin = cpu_head_begin,
    .head_end = cpu_head_end,
    .pair = cpu_pair,
};

const kld_backend *kld_backend_cpu(void) { return &cpu; }
