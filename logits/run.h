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

typedef struct kld_run {
    const kld_model *model;
    const kld_backend *be;
    const kld_seq *seqs;
    size_t n_seqs;
    const kld_engine_options *opt;
    const kld_sink *sink;
    kld_engine_stats *stats;
    kld_device_spec spec;
    kld_device *dev;
    kld_graph graph;
    kld_stream stream;
    kld_reader reader;
    kld_batcher batcher;
    uint32_t *ids;      /* [max_rows] of one batch */
    float *host_logits; /* [KLD_CHUNK][vocab] when the sink wants logits */
    size_t rows;        /* of the stream: tokens of all windows */
    size_t longest;     /* tokens of the longest window */
    double start;       /* kld_seconds */
    double save_cost;   /* seconds of the last checkpoint, or a guess */
} kld_run;

/* What a run over `rows` tokens with a longest window of `longest` asks of the back end. */
kld_device_spec kld_run_spec(const kld_model *m, const kld_backend *be,
                             const kld_engine_options *opt, size_t rows, size_t longest);
/* Most spans of a batch. */
size_t kld_run_spans(const kld_device_spec *spec);

/* Residual rows [row0, row0+n) to and from the graph's x. */
KLD_NODISCARD kld_status kld_run_load(kld_run *r, size_t row0, size_t n, kld_err *err);
KLD_NODISCARD kld_status kld_run_store(kld_run *r, size_t row0, size_t n, kld_err *err);

/* Final norm, head and statistics of every window from opt->skip_windows on, handed to
 * the sink in order.  KLD_E_INTERRUPTED between windows. */
KLD_NODISCARD kld_status kld_run_head(kld_run *r, kld_err *err);

KLD_EXTERN_C_END
#endif
