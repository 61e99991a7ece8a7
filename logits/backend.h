/* logits/backend.h - the operations a device offers to the engine.  Floor 2.
 * One const struct of coarse operations, never NULL.  The CPU back end (logits/cpu) is the
 * specification; others are tested against it operation by operation.
 *
 * Operations are queued in call order and may return before they are done; launch errors
 * come back at once, device faults at sync() or at the next download().  An operation may
 * be called from one thread at a time, except feed and feed_wait.  Pointers in views are
 * device memory from alloc(); everything else is host memory and is copied, or no longer
 * needed, when the call returns (exceptions are said where they are).
 *
 * Determinism: a row's result depends on that row's inputs, on the span it is in (see
 * kld_span) and on the shapes of the weights; never on threads, on what else is in the
 * batch, or on rows outside the span (attention: outside the window).  Memory past `rows`
 * or `cols` of a view is never read. */
#ifndef KLD_LOGITS_BACKEND_H
#define KLD_LOGITS_BACKEND_H
#include "kld/base/status.h"
#include "kld/store/records.h"
#include "loaders/actquant.h"
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
    size_t max_rows;  /* rows of the largest batch */
    size_t max_keys;  /* rows of the key and value buffers */
    size_t head_dim;  /* of the widest head */
    size_t kv_cols;   /* columns of the wider of the key and value buffers */
    size_t bias_cols; /* columns of the widest ACT product with a bias */
    /* Mixtures of experts; 0 without.  chosen: experts of a token; expert_cols: of gate and up
     * together. */
    size_t hidden, experts, chosen, expert_cols;
    /* Head statistics: rows and columns of a call, ids and draws a row, and the longest
     * reference lists to gather at. */
    size_t head_rows, vocab, top_k, tail_samples, ref_ld, ref_m;
    /* Inputs that products multiply by factors or quantize; 0 without.  act_cols: columns of the
     * widest such input of `linear`.  act_formats: bit kld_act_format, of experts' inputs too. */
    size_t act_cols;
    uint32_t act_formats;
    uint32_t formats;     /* bit kld_format: formats of the weights */
    uint32_t activations; /* bit kld_activation */
    uint32_t blocks;      /* bit kld_block */
} kld_device_spec;

/* How a weight is going to be used. */
typedef enum kld_use {
    KLD_USE_MATRIX,
    KLD_USE_ROUTER, /* a matrix that keeps its FP32 values; dense, and the product is FP32 */
    KLD_USE_VECTOR,
    KLD_USE_VECTOR_PLUS_ONE, /* stored less 1 */
    KLD_USE_EMBEDDING
} kld_use;

/* A weight as stored on disk, its bytes in device memory. */
typedef struct kld_raw_weight {
    const kld_weight *w;
    kld_weight_view v;               /* device memory; each part starts at a multiple of 256 */
    const unsigned char *bias, *pre; /* device memory; NULL without one */
    float alpha, global; /* kld_weight_alpha; the global or tensor scale, 1 without one */
} kld_raw_weight;

/* A weight as prepared; lives in the memory given to prepare, or in that of the raw weight
 * when the stored bytes are what the device wants. */
typedef struct kld_dev_weight {
    size_t rows, cols;
    const void *data;    /* matrix [rows][cols] or vector [rows]; the back end's type */
    const float *bias;   /* [rows] or NULL */
    const float *pre;    /* [cols] or NULL: multiplies x before anything else happens to it */
    float alpha;         /* multiplies the product: y = alpha * (x W^T) + bias */
    kld_act_quant input; /* x is quantized so before the product; alpha has kld_act_alpha.  NONE
                            from prepare: the caller sets it, of a KLD_USE_MATRIX alone */
    bool exact;          /* KLD_USE_ROUTER whose values are not those of a KLD_USE_MATRIX */
    kld_raw_weight raw;  /* embedding only */
} kld_dev_weight;

/* cos and sin of every angle: [positions][half] each, device memory, FP32. */
typedef struct kld_rope_table {
    const float *cos_tab, *sin_tab;
    size_t half;
} kld_rope_table;

/* What happens to a head of `dim` columns: norm, rotation, factor. */
typedef struct kld_rope_args {
    size_t dim;
    /* Columns first .. first + 2*half - 1 are rotated, the others copied.  Pairs (first + i, first
     * + half + i), or (first + 2i, first + 2i + 1) when interleaved; they stay in place. */
    size_t first;
    bool interleaved;
    const kld_rope_table *table;
    /* Norm before it: of each head when w has dim values, of the whole row when it has as many as
     * the row; NULL for none. */
    const kld_dev_weight *w;
    double eps;
    const float *factor; /* device memory [positions]: multiplies the row at each, or NULL */
} kld_rope_args;

typedef struct kld_attend_args {
    size_t heads, kv_heads;
    size_t head_dim, value_dim; /* columns of a head in q and k; in v and y */
    float scale;
    size_t window;      /* 0 = full causal; else keys j with i - window < j <= i */
    float softcap;      /* > 0: scores become softcap * tanh(score / softcap) */
    const float *sinks; /* device memory [heads], or NULL: e^sink joins the denominator */
} kld_attend_args;

/* The experts of each row, in host memory: [rows][top_k] in order of the choice, best first;
 * margin [rows]: how far the score of the last chosen is above the best that was not, +inf when
 * there is none. */
typedef struct kld_routes {
    uint32_t *id;
    float *weight, *margin;
} kld_routes;

/* One expert, and the rows that go to it: ascending, each at most once; host memory. */
typedef struct kld_expert_rows {
    const kld_dev_weight *gate, *up, *down; /* up NULL: the rows of gate are gate and then up */
    size_t n;
    const uint32_t *row;
    const float *weight;
} kld_expert_rows;

typedef struct kld_gate {
    kld_activation act;
    float limit; /* of KLD_ACT_CLAMPED_GLU */
} kld_gate;

/* Statistics of logits rows; meaning of the outputs in kld/store/records.h. */
typedef struct kld_head_args {
    size_t top_k, min_k, tail_samples;
    double tail_mass;
    uint64_t seed;
    uint64_t window;        /* index of the window, for the draws */
    size_t pos;             /* position in the window of row 0, for the draws */
    const uint32_t *labels; /* [rows] */
    /* What to gather (the reference's lists) for row 0 of the call; NULL = nothing. */
    const uint32_t *ref_count, *ref_ids; /* [rows], [rows][ref_ids_ld] */
    size_t ref_ids_ld;
    const uint32_t *ref_tail_ids; /* [rows][ref_m] or NULL */
    size_t ref_m;
} kld_head_args;

/* What two distributions have to do with each other, per row; natural log, softmax over the
 * columns of the views.  A row where either side is not finite (NaN, +Inf, nothing but -Inf) has
 * NaN in every field and 0 in the counts. */
typedef struct kld_pair_row {
    double kl, reverse_kl;   /* sum p ln(p/q), sum q ln(q/p); +inf where q (p) is 0 and p (q) not */
    double js, tv;           /* tv = 1 - acceptance of speculative sampling */
    uint32_t top1_p, top1_q; /* most probable id of each; a tie goes to the lower id */
    /* Nuclei: the most probable ids (ties: lower id first) until their mass reaches top_p. */
    uint32_t nucleus_p, nucleus_q, nucleus_both; /* sizes, and of the intersection */
    double p_on_q, q_on_p;                       /* mass of p on q's nucleus, of q on p's */
    double nucleus_tv; /* TV of the two distributions renormalised to their nuclei */
} kld_pair_row;

typedef struct kld_device_identity {
    char device[128]; /* "Intel(R) Xeon(R) ..., AVX-512" */
    char blas[256];
    char arithmetic[1024]; /* equal exactly when results are comparable bit for bit */
} kld_device_identity;

typedef struct kld_device kld_device; /* one run's state */

typedef struct kld_backend {
    const char *name;           /* "cpu", "cuda" */
    const char *(*build)(void); /* kld_commit: a loaded back end must be of the program's build */
    bool host_memory;           /* device memory is host memory: the host may read and write it */
    size_t head_slots;          /* head_begin calls that may be open at a time, >= 1 */
    size_t readers;             /* threads that read weights */

    /* Devices that can be opened, 0 .. n-1.  KLD_E_DEVICE with the reason when there is none
     * (no driver, driver too old). */
    kld_status (*devices)(size_t *n, kld_err *err);
    /* Bytes free on a device; 0 when it does not answer. */
    uint64_t (*memory)(int index);
    /* KLD_E_UNSUPPORTED with the reason when something in spec cannot be computed. */
    kld_status (*supports)(const kld_device_spec *spec, kld_err *err);
    /* Scratch for spec; *dev owned, release with close (NULL is fine).
     * KLD_E_NOMEM, KLD_E_DEVICE, KLD_E_UNSUPPORTED as supports. */
    kld_status (*open)(kld_device **dev, const kld_device_spec *spec, int index, kld_err *err);
    void (*close)(kld_device *dev);
    void (*identity)(kld_precision precision, int index, kld_device_identity *out);
    /* Bytes that open takes for spec. */
    uint64_t (*scratch_bytes)(const kld_device_spec *spec);
    /* Rows of a batch, and of a call of the head, that keep the device busy, when the widest
     * buffer has `widest` columns; multiples of KLD_CHUNK. */
    size_t (*batch_rows)(size_t widest);
    size_t (*head_rows)(void);

    size_t (*elem_size)(kld_precision precision, kld_elem elem);
    kld_status (*alloc)(kld_device *dev, void **p, size_t bytes, kld_err *err);
    void (*free)(kld_device *dev, void *p);
    kld_status (*upload)(kld_device *dev, void *dst, const void *src, size_t bytes, kld_err *err);
    kld_status (*download)(kld_device *dev, void *dst, const void *src, size_t bytes, kld_err *err);
    kld_status (*sync)(kld_device *dev, kld_err *err);
    /* Seconds the device has been idle for want of fed copies so far; 0 when nothing is fed. */
    kld_status (*stall)(kld_device *dev, double *seconds, kld_err *err);

    /* Stored weights on their way to the device, beside the computation.  Not used when
     * host_memory is set: then the reader writes into device memory itself.
     * stage_alloc gives host memory that the device can copy from quickly.  feed queues a copy
     * out of it, from any thread; src may be written again after feed_wait(dev, lane), which
     * waits for the copies fed with that lane (0 .. 2*readers-1).  Copies fed after feed_open
     * wait for the computation queued before it; computation queued after feed_close waits for
     * the copies fed before it.  feed_need comes before feed_close, when nothing more can be
     * queued without those copies: stall counts from the end of what is queued then. */
    kld_status (*stage_alloc)(kld_device *dev, void **p, size_t bytes, kld_err *err);
    void (*stage_free)(kld_device *dev, void *p);
    kld_status (*feed_open)(kld_device *dev, kld_err *err);
    kld_status (*feed)(kld_device *dev, size_t lane, void *dst, const void *src, size_t bytes,
                       kld_err *err);
    kld_status (*feed_wait)(kld_device *dev, size_t lane, kld_err *err);
    kld_status (*feed_need)(kld_device *dev, kld_err *err);
    kld_status (*feed_close)(kld_device *dev, kld_err *err);

    /* Bytes of device memory that prepare needs; a multiple of 256.  Depends on nothing but
     * its arguments. */
    size_t (*weight_bytes)(kld_precision precision, const kld_weight *w, kld_use use);
    /* Decode a weight into mem (weight_bytes, 256-byte aligned).  Matrices: FP32 values (FP32
     * run) or values rounded to BF16 (BF16 run), the router's not; NVFP4 and FP8 per tensor leave
     * their global scale to alpha, which makes them exact.  Vectors, biases and factors of the
     * input: FP32.  The raw bytes must stay until the last use. */
    kld_status (*prepare)(kld_device *dev, const kld_raw_weight *raw, kld_use use, void *mem,
                          kld_dev_weight *out, kld_err *err);

    /* y[r] = scale * row ids[r] of the embedding, FP32.  ids < w->rows. */
    kld_status (*embed)(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, float scale,
                        kld_view y, kld_err *err);
    /* y = w * (x / sqrt(mean(x^2) + eps)); x F32, y F32 or ACT, may be x when F32.  With `add` (y
     * F32) the result is added to y. */
    kld_status (*norm)(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                       bool add, kld_err *err);
    /* Every head of x by its row's position: see kld_rope_args.  x F32, which may be overwritten; y
     * F32 or ACT, may be x when both are F32. */
    kld_status (*rope)(kld_device *dev, const kld_batch *b, kld_view x, const kld_rope_args *args,
                       kld_view y, kld_err *err);
    /* Keys and values of latent attention: kv [rows][heads * (nope + value)] and the rotated part
     * r [rows][rope], which all heads share, become k [rows][heads * (nope + rope)] and v
     * [rows][heads * value]; all ACT. */
    kld_status (*spread)(kld_device *dev, kld_view kv, kld_view r, size_t heads, kld_view k,
                         kld_view v, kld_err *err);
    /* y = alpha * (x W^T) + bias over the first y.cols rows of W; x ACT, y F32 or ACT.  With
     * `add` (y F32) the result is added to y.  y does not overlap x.  Of a router, y is F32.
     * What is multiplied is x, which other products read and which stays as it is, after two steps:
     * x * w->pre, rounded to ACT (ModelOpt multiplies in the model's type, too, before it
     * quantizes: TensorQuantizer.forward); then quantized as w->input says, like `quantize`. */
    kld_status (*linear)(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                         kld_view y, bool add, kld_err *err);
    /* Causal attention of the batch's queries over the key and value rows of their windows,
     * positions 0 .. own.  q [rows][heads*head_dim], k [max_keys][kv_heads*head_dim], v
     * [max_keys][kv_heads*value_dim], y [rows][heads*value_dim]; all ACT; y does not overlap.
     * Query head h reads key head h / (heads / kv_heads).  NaN in a row of v reaches no query
     * before it. */
    kld_status (*attend)(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                         const kld_attend_args *args, kld_view y, kld_err *err);
    /* y = act(gate) * up, formulas at kld_activation; all ACT; y may be gate. */
    kld_status (*gated)(kld_device *dev, const kld_gate *act, kld_view gate, kld_view up,
                        kld_view y, kld_err *err);
    /* x = cap * tanh(x / cap), F32. */
    kld_status (*cap)(kld_device *dev, kld_view x, float cap, kld_err *err);
    /* The experts of each row from its router logits, F32 [rows][r->experts], into host memory;
     * returns when they are there.  bias [r->experts] or NULL takes part in the choice only.
     * Scores by r->score; a NaN is less than any number, equal scores go to the lower id.  With
     * `forced` (host memory [rows][top_k], ids < r->experts) those are the experts, and only their
     * weights are computed. */
    kld_status (*route)(kld_device *dev, kld_view logits, const kld_dev_weight *bias,
                        const kld_router *r, const uint32_t *forced, const kld_routes *out,
                        kld_err *err);
    /* x[row] += weight * (down (act(gate h[row]) * up h[row])), expert after expert in the order
     * given: products, roundings and biases as `linear` and `gated`, the sum FP32.  h ACT [rows],
     * x F32 [rows].  Inputs are multiplied and quantized as each weight's own `pre` and `input`
     * say.  A row's result does not depend on which other rows an expert has. */
    kld_status (*experts)(kld_device *dev, kld_view h, const kld_expert_rows *e, size_t n,
                          const kld_gate *act, kld_view x, kld_err *err);
    /* y = x as a product of quantized inputs sees it, without the factor kld_act_alpha(a), which
     * the caller multiplies the product by; formulas in loaders/actnum.h.  x, y ACT; y may be x. In
     * a BF16 run values that are not exact in BF16 (FP8_TOKEN, FP8_BLOCK) are rounded. Errors as
     * kld_act_check. */
    kld_status (*quantize)(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y,
                           kld_err *err);
    /* Statistics of logits, F32 or ACT, the softmax over logits.cols.  begin queues the work; what
     * args points to must stay until the end.  Calls are ended in the order they were begun.  end
     * fills rows [row0, row0 + logits.rows) of rec, which was allocated with k_ld = top_k (or more)
     * and zeroed.
     *  *nonfinite  rows with NaN, +Inf or nothing but -Inf; *first_bad the first such row of
     *              the call (unset when there is none)
     * A label or id >= logits.cols has log-probability -inf.
     * Draw d of a row: Philox key = seed, counter = (pos << 32 | d / 2, window), words 0,1
     * for even d and 2,3 for odd d; inverse CDF over the tail in order of id. */
    kld_status (*head_begin)(kld_device *dev, kld_view logits, const kld_head_args *args,
                             kld_err *err);
    kld_status (*head_end)(kld_device *dev, kld_records *rec, size_t row0, size_t *nonfinite,
                           size_t *first_bad, kld_err *err);
    /* Compare row r of p with row r of q, both F32 or both ACT, of one shape, into host memory
     * out[rows]; returns when they are there.  0 < top_p < 1. */
    kld_status (*pair)(kld_device *dev, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                       kld_err *err);
} kld_backend;

/* The CPU back end: OpenBLAS + OpenMP.  Static; never NULL. */
const kld_backend *kld_backend_cpu(void);

KLD_EXTERN_C_END
#endif
