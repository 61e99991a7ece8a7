/* logits/run.h - the state of one engine run, shared by its stages.  Floor 2. */
#ifndef KLD_LOGITS_RUN_H
#define KLD_LOGITS_RUN_H
#include "kld/base/status.h"
#include "logits/backend.h"
#include "logits/engine.h"
#include "logits/graph.h"
#include "logits/reader.h"
#include "logits/stream.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Which rows of a batch go to which expert; layer.c. */
typedef struct kld_dispatch kld_dispatch;
KLD_NODISCARD kld_status kld_dispatch_open(kld_dispatch **out, const kld_router *r, size_t rows,
                                           kld_err *err);
void kld_dispatch_close(kld_dispatch *d);

/* One device and what is on it.  Window w belongs to lane w % n_lanes. */
typedef struct kld_lane {
    kld_device *dev;
    kld_graph graph;
    kld_stream stream; /* of the lane's tokens */
    kld_stream normed; /* with experts: their inputs */
    kld_routes routes; /* owned, with experts: of the lane's tokens in this layer */
    kld_batcher batcher;
    kld_seq *seqs; /* owned: the lane's windows */
    size_t n_seqs, rows;
} kld_lane;

typedef struct kld_fit {
    kld_device_spec spec;
    kld_schedule schedule; /* owned */
    kld_place place;       /* of the residual stream */
    uint64_t device_bytes;
} kld_fit;

typedef struct kld_run {
    const kld_model *model;
    const kld_backend *be;
    const kld_seq *seqs;
    size_t n_seqs;
    const kld_engine_options *opt;
    const kld_sink *sink;
    kld_engine_stats *stats;
    kld_lane *lane;   /* owned [n_lanes] */
    kld_device **dev; /* owned [n_lanes]: the lanes' devices */
    size_t n_lanes;
    kld_fit fit; /* the same for every lane */
    kld_reader reader;
    uint32_t *ids;      /* [max_rows] of one batch */
    float *host_logits; /* [head_rows][vocab] when the sink wants logits */
    size_t *local;      /* [n_seqs]: first row of a window in its lane's stream */
    size_t rows;        /* tokens of all windows */
    size_t longest;     /* tokens of the longest window */
    size_t chunk;       /* longest span */
    void *host_hidden;  /* owned: ACT rows of a call of the head, when records carry them */
    double start;       /* kld_seconds */
    size_t saved;       /* whole layers in the last checkpoint; SIZE_MAX = none, or part of one */
    kld_dispatch *dispatch; /* owned; NULL without experts */
    double save_cost;       /* seconds of the last checkpoint, or a guess */
} kld_run;

/* What a run of `rows` tokens on a device, with a longest window of `longest`, asks of it under
 * `budget` bytes: the largest batches for which the residual stream stays on the device, or else
 * the largest that fit without it.  out->schedule is to be freed, after an error too.
 * KLD_E_NOMEM with the arithmetic when nothing fits. */
KLD_NODISCARD kld_status kld_run_fit(const kld_model *m, const kld_backend *be,
                                     const kld_engine_options *opt, size_t rows, size_t longest,
                                     uint64_t budget, kld_fit *out, kld_err *err);
/* Host memory for the routes of `rows` tokens in a layer. */
uint64_t kld_run_route_bytes(const kld_device_spec *spec, size_t rows);
/* Most spans of a batch. */
size_t kld_run_spans(const kld_device_spec *spec);

/* Hand the next stage to every lane. */
KLD_NODISCARD kld_status kld_run_next_stage(kld_run *r, kld_err *err);
/* Wait for every lane. */
KLD_NODISCARD kld_status kld_run_sync(kld_run *r, kld_err *err);

/* Layer `index` over the windows from `first` on.  KLD_E_INTERRUPTED, with the state saved when the
 * run keeps one. */
KLD_NODISCARD kld_status kld_run_layer(kld_run *r, size_t index, size_t first, kld_err *err);

/* Save the state if there is a place for it, then KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_run_leave(kld_run *r, size_t layer, size_t windows, kld_err *err);

/* Final norm, head and statistics of every window from opt->skip_windows on, handed to
 * the sink in order.  KLD_E_INTERRUPTED between windows. */
KLD_NODISCARD kld_status kld_run_head(kld_run *r, kld_err *err);

KLD_EXTERN_C_END
#endif
