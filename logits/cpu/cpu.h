/* logits/cpu/cpu.h - state and operations of the CPU back end, shared by its files.
 * Floor 2.  The contract of each operation is in logits/backend.h. */
#ifndef KLD_LOGITS_CPU_CPU_H
#define KLD_LOGITS_CPU_CPU_H
#include "logits/backend.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Hot loops are compiled three times and picked at load.  Their arithmetic is written in
 * fixed lanes and contraction is off, so all three give the same bits.  Resolvers run
 * before a sanitizer is ready, hence not there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define CLONES
#else
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

/* OpenBLAS has a fixed pool of packing buffers and stops the program when more threads
 * than that call it at once; Debian's limit is 64. */
enum { CPU_MAX_THREADS = 64 };

/* Column tile of a weight and query block of attention.  Measured on a 2-core AVX-512
 * machine: 256 x 512 x K tiles run sgemm at 96 % of its best rate for K >= 576; smaller
 * ones lose to packing, larger ones leave cores without work. */
enum { CPU_TILE = 512, CPU_QBLOCK = 64 };

/* Rows of an expert that are computed together: with 16, every kernel of OpenBLAS 0.3.21 gives each
 * of them the same bits (Haswell's does not with 12, 24 or 32), at 0.85 of the rate of 32. */
enum { CPU_EXPERT_ROWS = 16 };

struct head_scratch;

struct kld_device {
    kld_device_spec spec;
    bool bf16;
    int threads;
    float *tile;  /* [threads][KLD_CHUNK][CPU_TILE] */
    float *act;   /* [max_rows][act_cols]: changed inputs of products; NULL without */
    float *score; /* [threads][CPU_QBLOCK][key_ld] */
    size_t key_ld;
    float *expert;             /* cpu_experts_scratch bytes; NULL without experts */
    struct head_scratch *head; /* [threads] */
    unsigned char *head_mem;   /* owned; the arrays behind head */
    kld_view pending;          /* logits and arguments of a head_begin that head_end works on */
    kld_head_args pending_args;
};

static inline float *view_row(kld_view v, size_t r) { return (float *)v.p + r * v.ld; }

/* Put OpenBLAS into the state this back end relies on: one thread, kernels of this CPU. */
void cpu_blas_setup(void);
void cpu_identity(kld_precision precision, int index, kld_device_identity *out);

/* Bytes of one thread's head_stats scratch, and carving it out of mem (64-byte aligned). */
size_t cpu_head_scratch_bytes(const kld_device_spec *spec);
void cpu_head_scratch_init(struct head_scratch *s, const kld_device_spec *spec, void *mem);
size_t cpu_head_scratch_struct(void);

size_t cpu_weight_bytes(kld_precision precision, const kld_weight *w, kld_use use);
kld_status cpu_prepare(kld_device *dev, const kld_raw_weight *raw, kld_use use, void *mem,
                       kld_dev_weight *out, kld_err *err);
kld_status cpu_linear(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                      kld_view y, bool add, kld_err *err);
/* CPU_EXPERT_ROWS rows, by the calling thread; what a row gives does not depend on its place. */
void cpu_linear_lanes(kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y);

kld_status cpu_embed(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, float scale,
                     kld_view y, kld_err *err);
kld_status cpu_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                    bool add, kld_err *err);
kld_status cpu_rope(kld_device *dev, const kld_batch *b, kld_view x, const kld_rope_args *args,
                    kld_view y, kld_err *err);
kld_status cpu_spread(kld_device *dev, kld_view kv, kld_view r, size_t heads, kld_view k,
                      kld_view v, kld_err *err);
kld_status cpu_gated(kld_device *dev, const kld_gate *act, kld_view gate, kld_view up, kld_view y,
                     kld_err *err);
/* By the calling thread. */
void cpu_gated_rows(const kld_device *dev, const kld_gate *act, kld_view gate, kld_view up,
                    kld_view y);
kld_status cpu_cap(kld_device *dev, kld_view x, float cap, kld_err *err);
kld_status cpu_quantize(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y,
                        kld_err *err);
/* x as the product with w sees it (see `linear`), into y, which may be x; x ACT, its columns those
 * of w.  By the calling thread; cpu_input by all. */
void cpu_input_rows(const kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y);
kld_status cpu_input(kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y,
                     kld_err *err);
/* Whether that is x itself; whether it is the same for two weights. */
static inline bool cpu_plain_input(const kld_dev_weight *w) {
    return !w->pre && w->input.format == KLD_AQ_NONE;
}
static inline bool cpu_same_input(const kld_dev_weight *a, const kld_dev_weight *b) {
    return a->pre == b->pre && kld_act_same(&a->input, &b->input);
}

size_t cpu_experts_scratch(const kld_device_spec *spec, size_t threads);
kld_status cpu_route(kld_device *dev, kld_view logits, const kld_dev_weight *bias,
                     const kld_router *r, const uint32_t *forced, const kld_routes *out,
                     kld_err *err);
kld_status cpu_experts(kld_device *dev, kld_view h, const kld_expert_rows *e, size_t n,
                       const kld_gate *act, kld_view x, kld_err *err);

kld_status cpu_attend(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                      const kld_attend_args *args, kld_view y, kld_err *err);
kld_status cpu_head_begin(kld_device *dev, kld_view logits, const kld_head_args *args,
                          kld_err *err);
kld_status cpu_head_end(kld_device *dev, kld_records *rec, size_t row0, size_t *nonfinite,
                        size_t *first_bad, kld_err *err);
kld_status cpu_pair(kld_device *dev, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                    kld_err *err);

#endif
