/* logits/backend.h - the operations a device offers to the engine.  Floor 2.
 * One const struct of coarse operations, never NULL.  The CPU back end (logits/cpu) is the
 * specification; others are tested against it operation by operation.
 *
 * Operations are queued in call order and may return before they are done; launch errors
 * come back at once, device faults at sync() or at the next download().  An operation may
 * be called from one thread at a time.  Pointers in views are device memory from alloc();
 * everything else is host memory and is copied, or no longer needed, when the call returns
 * (the exception, stored weights for an embedding, is said at prepare).
 *
 * Determinism: a row's result depends on that row's inputs, on the span it is in (see
 * kld_span) and on the shapes of the weights; never on threads, on what else is in the
 * batch, or on rows outside the span (attention: outside the window).  Memory past `rows`
 * or `cols` of a view is never read. */
#ifndef KLD_LOGITS_BACKEND_H
#define KLD_LOGITS_BACKEND_H
#include "kld/base/status.h"
#include "kld/store/records.h"
#include "loaders/model.h"
#include "loaders/quant.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_precision {
    KLD_PRECISION_BF16, /* GEMM inputs rounded to BF16, accumulation and residual FP32 */
    KLD_PRECISION_FP32
} kld_precision;

/* F32 is FP32.  ACT holds inputs of matrix products: FP32 values in an FP32 run, values
 * rounded to BF16 (nearest even) in a BF16 run.  How ACT is stored is the back end's
 * affair; elem_size tells.  The operation that writes an ACT view does the rounding. */
typedef enum kld_elem { KLD_ELEM_F32, KLD_ELEM_ACT } kld_elem;

typedef struct kld_view {
    void *p; /* element [r][c] is at r * ld + c */
    size_t rows, cols, ld;
    kld_elem elem;
} kld_view;

/* Rows of a batch are cut into spans of at most KLD_CHUNK rows of one window.  Spans start
 * at multiples of KLD_CHUNK from the first row of the window that the stage computes, so
 * how a window is cut never depends on the batch. */
enum { KLD_CHUNK = 256 };
typedef struct kld_span {
    size_t row, n; /* rows [row, row+n) of the batch */
    size_t pos;    /* position in its window of the first one */
    size_t kv_row; /* row of the key and value buffers that holds position 0 of the window */
} kld_span;
typedef struct kld_batch {
    const kld_span *span; /* [n], rows ascending and without gaps */
    size_t n, rows;
} kld_batch;

/* What a run will ask for; known before a byte of weights is read. */
typedef struct kld_device_spec {
    kld_precision precision;
    size_t max_rows; /* rows of the largest batch */
    size_t max_keys; /* rows of the key and value buffers */
    size_t head_dim;
    size_t vocab, top_k;  /* of head_stats */
    uint32_t formats;     /* bit kld_format: formats of the weights */
    uint32_t activations; /* bit kld_activation */
    uint32_t blocks;      /* bit kld_block */
} kld_device_spec;

/* How a weight is going to be used. */
typedef enum kld_use { KLD_USE_MATRIX, KLD_USE_VECTOR, KLD_USE_EMBEDDING } kld_use;

/* A weight as read from disk. */
typedef struct kld_host_weight {
    const kld_weight *w;
    kld_weight_view v;
    const unsigned char *bias; /* NULL without one */
} kld_host_weight;

/* A weight as prepared; lives in the memory given to prepare. */
typedef struct kld_dev_weight {
    size_t rows, cols;
    void *data;           /* matrix [rows][cols] or vector [rows]; the back end's type */
    float *bias;          /* [rows] or NULL */
    float alpha;          /* multiplies the product: y = alpha * (x W^T) + bias */
    kld_host_weight host; /* embedding only: borrowed by the CPU back end */
} kld_dev_weight;

/* cos and sin of every angle: [positions][half] each, device memory, FP32. */
typedef struct kld_rope_table {
    const float *cos_tab, *sin_tab;
    size_t half; /* pairs (i, i + half) are rotated; columns past 2*half are copied */
} kld_rope_table;

typedef struct kld_attend_args {
    size_t heads, kv_heads, head_dim;
    float scale;
    size_t window; /* 0 = full causal */
} kld_attend_args;

/* Statistics of logits rows; meaning of the outputs in kld/store/records.h. */
typedef struct kld_head_args {
    size_t top_k, min_k;
    double tail_mass;
    uint64_t seed;
    uint64_t window;        /* index of the window, for the draws */
    size_t pos;             /* position in the window of row 0, for the draws */
    const uint32_t *labels; /* [rows] */
    /* What to gather (the reference's lists) for row 0 of the call; NULL = nothing. */
    const uint32_t *ref_count, *ref_ids; /* [rows], [rows][ref_ids_ld] */
    size_t ref_ids_ld;
    const uint32_t *ref_tail_ids; /* [rows][records.ref_m] */
} kld_head_args;

typedef struct kld_device_identity {
    char device[128]; /* "Intel(R) Xeon(R) ..., AVX-512" */
    char blas[256];
    char arithmetic[1024]; /* equal exactly when results are comparable bit for bit */
} kld_device_identity;

typedef struct kld_device kld_device; /* one run's state */

typedef struct kld_backend {
    const char *name; /* "cpu" */

    /* KLD_E_UNSUPPORTED with the reason when something in spec cannot be computed. */
    kld_status (*supports)(const kld_device_spec *spec, kld_err *err);
    /* Scratch for spec; *dev owned, release with close (NULL is fine).
     * KLD_E_NOMEM, KLD_E_DEVICE, KLD_E_UNSUPPORTED as supports. */
    kld_status (*open)(kld_device **dev, const kld_device_spec *spec, kld_err *err);
    void (*close)(kld_device *dev);
    void (*identity)(kld_precision precision, kld_device_identity *out);
    /* Bytes that open takes for spec. */
    uint64_t (*scratch_bytes)(const kld_device_spec *spec);
    /* Rows of a batch that keep the device busy, when the widest buffer has `widest` columns;
     * a multiple of KLD_CHUNK. */
    size_t (*batch_rows)(size_t widest);

    size_t (*elem_size)(const kld_device *dev, kld_elem elem);
    kld_status (*alloc)(kld_device *dev, void **p, size_t bytes, kld_err *err);
    void (*free)(kld_device *dev, void *p);
    kld_status (*upload)(kld_device *dev, void *dst, const void *src, size_t bytes, kld_err *err);
    kld_status (*download)(kld_device *dev, void *dst, const void *src, size_t bytes, kld_err *err);
    kld_status (*sync)(kld_device *dev, kld_err *err);

    /* Bytes of device memory that prepare needs; a multiple of 64.  Depends on nothing but
     * its arguments. */
    size_t (*weight_bytes)(kld_precision precision, const kld_weight *w, kld_use use);
    /* Decode a weight into mem (weight_bytes, 64-byte aligned).  Matrices: FP32 values (FP32
     * run) or values rounded to BF16 (BF16 run); NVFP4 and FP8 per tensor leave their global
     * scale to alpha, which makes them exact.  Vectors and biases: FP32.  An embedding may
     * borrow h's bytes until its last use. */
    kld_status (*prepare)(kld_device *dev, const kld_host_weight *h, kld_use use, void *mem,
                          kld_dev_weight *out, kld_err *err);

    /* y[r] = row ids[r] of the embedding, FP32.  ids < w->rows. */
    kld_status (*embed)(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, kld_view y,
                        kld_err *err);
    /* y = w * (x / sqrt(mean(x^2) + eps)); x F32, y F32 or ACT, may be x when F32. */
    kld_status (*norm)(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                       kld_err *err);
    /* The same over each head of dim columns, in place; w has dim values; x F32. */
    kld_status (*head_norm)(kld_device *dev, kld_view x, size_t dim, const kld_dev_weight *w,
                            double eps, kld_err *err);
    /* Half-split rotation of every head of dim columns by its row's position.  x F32; y F32
     * or ACT, may be x when both are F32. */
    kld_status (*rope)(kld_device *dev, const kld_batch *b, kld_view x, size_t dim,
                       const kld_rope_table *table, kld_view y, kld_err *err);
    /* y = alpha * (x W^T) + bias over the first y.cols rows of W; x ACT, y F32 or ACT.  With
     * `add` (y F32) the result is added to y.  y does not overlap x. */
    kld_status (*linear)(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                         kld_view y, bool add, kld_err *err);
    /* Causal attention of the batch's queries over the key and value rows of their windows,
     * positions 0 .. own.  q [rows][heads*dim], k and v [max_keys][kv_heads*dim], y as q; all
     * ACT; y does not overlap.  Query head h reads key head h / (heads / kv_heads).  NaN in a
     * row of v reaches no query before it. */
    kld_status (*attend)(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                         const kld_attend_args *args, kld_view y, kld_err *err);
    /* y = act(gate) * up; gate, up F32, y F32 or ACT (may be gate when F32). */
    kld_status (*gated)(kld_device *dev, kld_activation act, kld_view gate, kld_view up, kld_view y,
                        kld_err *err);
    /* x += y, both F32. */
    kld_status (*add)(kld_device *dev, kld_view x, kld_view y, kld_err *err);
    /* Fill rows [row0, row0 + logits.rows) of rec, which was allocated with k_ld = top_k (or
     * more) and zeroed, from F32 logits; the softmax is over logits.cols.
     *  *nonfinite  rows with NaN, +Inf or nothing but -Inf; *first_bad the first such row of
     *              the call (unset when there is none)
     * A label or id >= logits.cols has log-probability -inf.
     * Draw d of a row: Philox key = seed, counter = (pos << 32 | d / 2, window), words 0,1
     * for even d and 2,3 for odd d; inverse CDF over the tail in order of id. */
    kld_status (*head_stats)(kld_device *dev, kld_view logits, const kld_head_args *args,
                             kld_records *rec, size_t row0, size_t *nonfinite, size_t *first_bad,
                             kld_err *err);
} kld_backend;

/* The CPU back end: OpenBLAS + OpenMP.  Static; never NULL. */
const kld_backend *kld_backend_cpu(void);

KLD_EXTERN_C_END
#endif
