/* logits/engine.h - run a model over token windows, layer by layer, and hand out what its
 * head says.  Floor 2.
 *
 * The loop is layer-outer: every weight is read from disk once, and every token of every
 * window is pushed through a layer before the next is read.  Chunks of tokens never span
 * windows and have a size fixed by the program, so a window's result does not depend on
 * which other windows run, on threads, on memory, or on where a run was resumed. */
#ifndef KLD_LOGITS_ENGINE_H
#define KLD_LOGITS_ENGINE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/store/records.h"
#include "loaders/act_declared.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_seq {
    const uint32_t *ids; /* [n] borrowed */
    size_t n;
    size_t score_from; /* positions score_from .. n-2 are scored */
} kld_seq;

/* Which ids the candidate must report at each scored position (the reference's). */
typedef struct kld_gather {
    const uint32_t *count, *ids; /* [n], [n][ld] */
    size_t ld;
    const uint32_t *tail_ids; /* [n][m]; UINT32_MAX = none */
    size_t m;
} kld_gather;

enum { KLD_OPEN_WINDOWS = 64, KLD_MAX_LANES = 16 };

/* Receives results in window order.  A callback's failure ends the run with its status. */
typedef struct kld_sink {
    void *ctx;
    /* What to gather for window i; NULL pointer = nothing.  Valid until the records of
     * window i were delivered; up to KLD_OPEN_WINDOWS windows are asked for ahead of that. */
    kld_status (*gather)(void *ctx, size_t i, kld_gather *out, kld_err *err);
    /* Records of window i, borrowed for the call; a sink that wants to keep them copies *r and
     * leaves it zeroed.  NULL when only logits are wanted. */
    kld_status (*records)(void *ctx, size_t i, kld_records *r, kld_err *err);
    /* Raw logits, rows [row0, row0+n) of window i, all positions 0..n-1 of the window, FP32
     * [n][vocab] with vocab as in the options; NULL when not wanted.  Asking for them makes
     * the head run over every position, and a row's bits may depend on that. */
    kld_status (*logits)(void *ctx, size_t i, size_t row0, size_t n, const float *logits,
                         kld_err *err);
} kld_sink;

/* The experts that tokens are sent to, as they are chosen or as they are to be.  Layers are counted
 * among those with experts; `routes` are of window w from its first token on, arrays as in
 * kld_routes.  A callback's failure ends the run with its status. */
typedef struct kld_route_io {
    void *ctx;
    /* What is used, for each window in order, once the layer has sent all of them; NULL = not
     * wanted. */
    kld_status (*take)(void *ctx, size_t layer, size_t w, size_t n, const kld_routes *routes,
                       kld_err *err);
    /* Fills in what is to be used: ids, and weights unless ids_only, which has the weights follow
     * from the model's own router; NULL = the model chooses. */
    kld_status (*give)(void *ctx, size_t layer, size_t w, size_t n, kld_routes *routes,
                       kld_err *err);
    bool ids_only;
} kld_route_io;

/* Inputs of products with quantized weights. */
typedef enum kld_activations {
    KLD_ACTIVATIONS_WEIGHTS_ONLY, /* as they are */
    KLD_ACTIVATIONS_AS_DECLARED   /* quantized as kld_weight.act says: the model went through
                                     kld_act_resolve */
} kld_activations;
const char *kld_activations_name(kld_activations a); /* "weights-only", "as-declared" */

typedef struct kld_engine_options {
    kld_precision precision;
    kld_activations activations;
    kld_fused_scale fused; /* what the model was resolved with; for the identity alone */
    size_t vocab;          /* columns used in the softmax; 1..config.vocab */
    size_t top_k;          /* at most this many ids a position; >= 1 */
    size_t min_k;          /* at least this many (or vocab); <= top_k */
    double tail_mass;      /* stop when the remaining mass is at most this */
    size_t tail_samples;
    uint64_t seed;                      /* of the tail draws */
    size_t ref_top_k, ref_tail_samples; /* at least the longest lists the sink gathers at */
    const int *devices;                 /* [n_devices] of the back end; 0 of them means device 0 */
    size_t n_devices;       /* windows are dealt to them in turn; one may be named twice */
    uint64_t device_memory; /* bytes to use of each, when its memory is not the host's; 0 = auto:
                               nine tenths of what is free */
    uint64_t memory;        /* host bytes for the residual streams of all devices before they spill
                               to files; 0 = auto: half of the free memory */
    size_t
        expert_group; /* experts on the device at a time; 0 = auto.  Results do not depend on it */
    const char *spill_dir;       /* where a spill file goes when needed; NULL = $TMPDIR or /tmp */
    const char *state_dir;       /* where the residual is checkpointed for a resume (created);
                                    NULL = no checkpoints */
    bool checkpoint_every_layer; /* whatever it costs; otherwise as often as it stays under
                                    5 % of the time run so far, and when interrupted or when the
                                    head stage fails */
    size_t stop_after_layer;     /* > 0: behave as if interrupted after that many layers */
    bool resume;                 /* start from the newest whole checkpoint in state_dir */
    size_t skip_windows;         /* head stage: windows already delivered in an earlier run */
    bool hidden;                 /* records carry hidden states: of BF16 runs 2 bytes a value, of
                                    FP32 runs 4 */
    size_t chunk;                /* longest span, a divisor of KLD_CHUNK of 16 or more; 0 =
                                    KLD_CHUNK.  Another one is an arithmetic of its own */
    const kld_route_io *routes;  /* NULL: experts are chosen, and nobody is told */
    kld_digest run_id;           /* identity of model + suite + options: a checkpoint with another
                                    run_id is refused */
} kld_engine_options;

typedef struct kld_engine_stats {
    uint64_t bytes_read; /* of weights, as stored: each bound weight once, except that a
                            tied head is the embedding read a second time */
    uint64_t tokens;
    uint64_t peak_bytes;     /* of engine buffers, all devices and the host together */
    uint64_t device_bytes;   /* of them on each device, when its memory is not the host's */
    uint64_t resident_bytes; /* of the residual stream, where it is in memory */
    const char *resident_in; /* "device memory", "host memory" or "a spill file" */
    size_t batch_rows, head_rows;
    /* open: allocation; embed, layer, head: the stages, each until the device was done with it;
     * read: reading was under way; wait: the computation waited for it. */
    double seconds, open_seconds, embed_seconds, layer_seconds, head_seconds;
    double read_seconds, read_wait_seconds, checkpoint_seconds;
    size_t resumed_layer;   /* first layer computed in this run */
    size_t layers_computed; /* whole ones, in this run */
    uint64_t nonfinite_rows;
    size_t nonfinite_window, nonfinite_position; /* of the first, when there is one */
    uint64_t nonfinite_weights;                  /* NaN or Inf among dense weights */
    uint64_t zero_blocks, blocks; /* NVFP4 blocks that underflow made zero, of how many */
} kld_engine_stats;

/* seqs[i].n == 0 is fine and gives records of no rows, as does score_from >= n - 1.
 * KLD_E_USAGE  an option out of its range
 * KLD_E_INPUT  an id >= config.vocab, damaged weights, foreign checkpoint in state_dir
 * KLD_E_UNSUPPORTED  the back end refuses the plan (before anything is read); a window longer than
 *              config.dense_window
 * KLD_E_NOMEM / KLD_E_IO / KLD_E_INTERRUPTED  as they come; what state_dir holds stays valid
 * After success state_dir is removed by the caller, not here. */
KLD_NODISCARD kld_status kld_engine_run(const kld_model *m, const kld_backend *backend,
                                        const kld_seq *seqs, size_t n_seqs,
                                        const kld_engine_options *opt, const kld_sink *sink,
                                        kld_engine_stats *stats, kld_err *err);

/* The refusals of kld_engine_run that need no weight: options, ids, what the back end lacks, device
 * memory that cannot be enough. */
KLD_NODISCARD kld_status kld_engine_check(const kld_model *m, const kld_backend *backend,
                                          const kld_seq *seqs, size_t n_seqs,
                                          const kld_engine_options *opt, const kld_sink *sink,
                                          kld_err *err);

/* Identity of the arithmetic, for the capture header: flat JSON object (owned by the caller)
 * with "version", "backend", "device", "blas", "precision", "accumulate", "activations"
 * (kld_activations_name), "chunk", with as-declared "fused_input_scale" (kld_fused_scale_name), and
 * "arithmetic": one string that is equal exactly when results are those of the same arithmetic.
 * How inputs are quantized is its end, from KLD_ARITHMETIC_INPUTS (kld/store/capture.h) on, and
 * absent for weights-only: it belongs to the checkpoint rather than to the engine. */
KLD_NODISCARD kld_status kld_engine_identity(const kld_backend *backend,
                                             const kld_engine_options *opt, json_t **out,
                                             kld_err *err);

/* What a run would need, for `kld inspect` (memory is taken as unlimited).  KLD_E_USAGE: more than
 * 2^40 tokens. */
typedef struct kld_plan {
    uint64_t largest_layer_stored, largest_layer_decoded; /* bytes */
    uint64_t largest_group; /* stored, of experts that are on the device at a time; 0 without */
    uint64_t embed_bytes, head_bytes; /* stored embedding; decoded head */
    uint64_t residual_bytes;          /* may spill to a file; counted as memory here */
    uint64_t scratch_bytes;           /* activations and the back end's own */
    uint64_t total_bytes;             /* all of it at the worst moment, residual included */
} kld_plan;
KLD_NODISCARD kld_status kld_engine_plan(const kld_model *m, const kld_backend *backend,
                                         const kld_engine_options *opt, uint64_t tokens,
                                         size_t longest_window, kld_plan *out, kld_err *err);

KLD_EXTERN_C_END
#endif
