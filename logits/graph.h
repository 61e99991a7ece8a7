/* logits/graph.h - the interpreter of a layer's sublayers, the buffers it works in, and
 * how windows are packed into batches.  Floor 2. */
#ifndef KLD_LOGITS_GRAPH_H
#define KLD_LOGITS_GRAPH_H
#include "kld/base/status.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include "logits/engine.h"
#include "logits/reader.h"
#include "logits/stage.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Cuts windows into batches: either several whole windows, or a piece of one window that
 * is longer than a batch.  Batches never mix the two, and a piece is a whole number of
 * chunks unless it ends the window. */
typedef struct kld_batcher {
    const kld_seq *seqs;
    size_t n_seqs, max_rows;
    size_t window, pos; /* where the next batch starts */
    size_t row;         /* its first row in the residual stream */
    kld_span *span;     /* borrowed, [max_spans] */
    size_t max_spans;   /* >= max_rows / chunk, rounded up */
    size_t chunk;       /* longest span */
    /* the current batch */
    kld_batch batch;
    size_t batch_row; /* its first row in the stream */
    size_t kv_offset; /* row of the key buffer that belongs to row 0 of the batch */
    bool ends_window; /* the window counter below is exact after this batch */
} kld_batcher;

/* Start at the first token of window `window`. */
void kld_batcher_start(kld_batcher *b, size_t window);
/* False at the end.  b->window is then n_seqs; after each batch with ends_window it is the
 * number of windows finished. */
bool kld_batcher_next(kld_batcher *b);

/* Device buffers and prepared weights of a run on one device. */
typedef struct kld_graph {
    const kld_model *model;
    const kld_backend *be;
    kld_device *dev; /* borrowed */
    kld_precision precision;
    kld_activations activations;
    kld_view x;         /* residual rows F32 [max_rows][hidden] when they are not resident */
    kld_view h;         /* normed rows ACT [max_rows][hidden] */
    kld_view post;      /* what a block gives, F32 [max_rows][hidden], before its norm */
    kld_view q, qa;     /* [max_rows][heads*head_dim] F32, ACT */
    kld_view k, ka, va; /* [max_rows][kv*head_dim] F32; [max_keys][kv*dim] ACT */
    kld_view qkv;       /* [max_rows][all three] F32, when they are one matrix */
    kld_view ql, qla;   /* latent attention: [max_rows][q_lora] F32, ACT */
    kld_view kvl, kvla, kr,
        kv;                 /* [kv_lora + rope] F32; [kv_lora], [rope], [heads*(nope+value)] ACT */
    kld_view gate, up, act; /* [max_rows][intermediate] ACT */
    kld_view routed;        /* router logits F32 [max_rows][experts] */
    kld_view logits;        /* [head_rows][vocab] F32 */
    kld_rope_table rope[KLD_ATTN_KINDS];
    const float *query_factor;        /* [positions] device memory, or NULL */
    void *block;                      /* owned: all of the views above */
    void *weights;                    /* owned: prepared weights of one stage */
    void *rope_mem;                   /* owned */
    uint64_t bytes;                   /* of device memory taken */
    kld_dev_weight w[KLD_SLOT_COUNT]; /* of the stage last prepared */
    bool has[KLD_SLOT_COUNT];
    kld_dev_weight (*expert)[3]; /* owned [largest group]: gate, up (rows 0: in gate), down */
} kld_graph;

/* Sizes without allocation, for plans.  resident: the residual stream is on the device and needs
 * no buffer of a batch. */
uint64_t kld_graph_block_bytes(const kld_model *m, size_t act_size, const kld_device_spec *spec,
                               bool resident);
uint64_t kld_graph_weight_bytes(const kld_model *m, const kld_backend *be, kld_precision p,
                                const kld_stage_key *key);
/* Of the largest stage. */
uint64_t kld_graph_largest_weights(const kld_model *m, const kld_schedule *s, const kld_backend *be,
                                   kld_precision p);
uint64_t kld_graph_rope_bytes(const kld_model *m, size_t positions);

/* KLD_E_NOMEM, KLD_E_DEVICE.  g is then empty; kld_graph_close is always fine. */
KLD_NODISCARD kld_status kld_graph_open(kld_graph *g, const kld_model *m, const kld_schedule *s,
                                        const kld_backend *be, kld_device *dev,
                                        const kld_device_spec *spec, kld_activations activations,
                                        bool resident, size_t positions, kld_err *err);
void kld_graph_close(kld_graph *g);

/* How the input of a weight's product is quantized: its own w->act, but of KLD_SLOT_O what
 * attention gives lacks config.value_scale, which is in the weight's factor instead, so that scales
 * are those of the smaller or larger input.  KLD_E_UNSUPPORTED  a format whose scales are powers of
 * two. */
KLD_NODISCARD kld_status kld_graph_input(const kld_config *c, kld_slot slot, const kld_weight *w,
                                         kld_act_quant *out, kld_err *err);

/* Decode a stage that reader gave into g->w or g->expert; this is the reader's device number d. */
KLD_NODISCARD kld_status kld_graph_prepare(kld_graph *g, const kld_reader *reader,
                                           const kld_stage *s, size_t d, kld_err *err);

/* Where a layer with experts leaves what they need. */
typedef struct kld_graph_routed {
    kld_view h;             /* normed rows ACT [b->rows][hidden] */
    kld_routes routes;      /* of the batch's rows, host */
    const uint32_t *forced; /* see kld_backend.route */
    bool given;             /* routes hold what is to be used: nothing is computed */
} kld_graph_routed;

/* Push the rows of x (F32 [b->rows][hidden]) through the layer whose weights are prepared; of a
 * layer with experts, up to them.  to: NULL without experts. */
KLD_NODISCARD kld_status kld_graph_layer(kld_graph *g, const kld_layer *layer, const kld_batch *b,
                                         kld_view x, size_t kv_offset, const kld_graph_routed *to,
                                         kld_err *err);
/* Add what the prepared group of experts makes of h to x.  experts: their rows in this batch; this
 * fills in their weights. */
KLD_NODISCARD kld_status kld_graph_experts(kld_graph *g, kld_expert_rows *experts, size_t n,
                                           kld_view h, kld_view x, kld_err *err);
/* Final norm and head of the rows of x (at most head_rows) into g->h and g->logits. */
KLD_NODISCARD kld_status kld_graph_head(kld_graph *g, const kld_batch *b, kld_view x, kld_err *err);
/* The second half of it: the head of the first b->rows rows of g->h. */
KLD_NODISCARD kld_status kld_graph_logits(kld_graph *g, const kld_batch *b, kld_err *err);

KLD_EXTERN_C_END
#endif
