#include "logits/engine.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/resid.h"
#include "logits/run.h"

#include <string.h>

/* A checkpoint is written when it keeps the sum of them under this share of the run. */
#define CHECKPOINT_SHARE 0.05
/* Bytes a second assumed for the first one. */
#define CHECKPOINT_GUESS 5e8

static kld_status check_options(const kld_run *r, kld_err *err) {
    const kld_engine_options *o = r->opt;
    const kld_config *c = &r->model->config;
    if (o->vocab < 1 || o->vocab > c->vocab)
        return kld_fail(err, KLD_E_USAGE, "the softmax cannot run over %zu of %zu columns",
                        o->vocab, c->vocab);
    if (o->top_k < 1 || o->min_k > o->top_k)
        return kld_fail(err, KLD_E_USAGE, "at least %zu and at most %zu ids a position: %s",
                        o->min_k, o->top_k,
                        o->top_k < 1 ? "one must be allowed" : "the first is the larger");
    if (!(o->tail_mass >= 0 && o->tail_mass <= 1))
        return kld_fail(err, KLD_E_USAGE, "a remaining mass of %g is not in [0, 1]", o->tail_mass);
    for (size_t w = 0; w < r->n_seqs; w++) {
        const kld_seq *s = &r->seqs[w];
        for (size_t i = 0; i < s->n; i++)
            if (s->ids[i] >= c->vocab)
                return kld_fail(err, KLD_E_INPUT,
                                "window %zu, position %zu: token id %u, but the model has %zu", w,
                                i, (unsigned)s->ids[i], c->vocab);
    }
    return KLD_OK;
}

static kld_status open_run(kld_run *r, kld_err *err) {
    for (size_t i = 0; i < r->n_seqs; i++) {
        if (!num_add_size(r->rows, r->seqs[i].n, &r->rows))
            return kld_fail(err, KLD_E_INPUT, "too many tokens");
        r->longest = num_max(r->longest, r->seqs[i].n);
    }
    r->spec = kld_run_spec(r->model, r->be, r->opt, r->rows, r->longest);
    TRY(r->be->supports(&r->spec, err));
    TRY(check_options(r, err));
    size_t hidden = r->model->config.hidden, max_rows = r->spec.max_rows;
    TRY(r->be->open(&r->dev, &r->spec, err));
    TRY(kld_graph_open(&r->graph, r->model, r->be, r->dev, &r->spec, r->longest, err));
    TRY(kld_stream_open(&r->stream, r->rows, hidden, r->opt->memory, r->opt->spill_dir, max_rows,
                        err));
    r->batcher = (kld_batcher){.seqs = r->seqs, .n_seqs = r->n_seqs, .max_rows = max_rows};
    r->batcher.max_spans = kld_run_spans(&r->spec);
    TRY(NEW_ARRAY(&r->batcher.span, r->batcher.max_spans, err));
    TRY(NEW_ARRAY(&r->ids, max_rows, err));
    if (r->sink->logits) TRY(NEW_ARRAY(&r->host_logits, KLD_CHUNK * r->opt->vocab, err));
    r->save_cost = (double)r->rows * (double)hidden * sizeof(float) / CHECKPOINT_GUESS;
    return KLD_OK;
}

static void close_run(kld_run *r) {
    kld_reader_close(&r->reader);
    kld_free(r->host_logits);
    kld_free(r->ids);
    kld_free(r->batcher.span);
    kld_stream_close(&r->stream);
    kld_graph_close(&r->graph);
    r->be->close(r->dev);
}

kld_status kld_run_load(kld_run *r, size_t row0, size_t n, kld_err *err) {
    const float *rows;
    TRY(kld_stream_get(&r->stream, row0, n, &rows, err));
    return r->be->upload(r->dev, r->graph.x.p, rows, n * r->stream.cols * sizeof *rows, err);
}

kld_status kld_run_store(kld_run *r, size_t row0, size_t n, kld_err *err) {
    float *room = kld_stream_room(&r->stream, row0);
    TRY(r->be->download(r->dev, room, r->graph.x.p, n * r->stream.cols * sizeof *room, err));
    return kld_stream_put(&r->stream, row0, n, err);
}

/* Ids of the batch, window by window. */
static void batch_ids(const kld_run *r, size_t window, size_t pos) {
    size_t done = 0;
    for (; done < r->batcher.batch.rows; window++, pos = 0) {
        size_t n = num_min(r->seqs[window].n - pos, r->batcher.batch.rows - done);
        if (n) memcpy(r->ids + done, r->seqs[window].ids + pos, n * sizeof *r->ids);
        done += n;
    }
}

static kld_status next_stage(kld_run *r, kld_err *err) {
    const kld_stage *stage;
    TRY(kld_reader_next(&r->reader, &stage, err));
    return kld_graph_prepare(&r->graph, stage, err);
}

static kld_status embed(kld_run *r, kld_err *err) {
    TRY(next_stage(r, err));
    kld_batcher *b = &r->batcher;
    kld_batcher_start(b, 0);
    for (size_t window = 0, pos = 0; kld_batcher_next(b); window = b->window, pos = b->pos) {
        TRY(kld_stop_check(err));
        batch_ids(r, window, pos);
        kld_view x = r->graph.x;
        x.rows = b->batch.rows;
        TRY(r->be->embed(r->dev, &r->graph.w[KLD_SLOT_EMBED], r->ids, x, err));
        TRY(kld_run_store(r, b->batch_row, b->batch.rows, err));
    }
    return KLD_OK;
}

static kld_status save(kld_run *r, kld_resid_mark mark, kld_err *err) {
    double t = kld_seconds();
    TRY(kld_resid_save(r->opt->state_dir, &r->opt->run_id, mark, &r->stream, err));
    r->save_cost = kld_seconds() - t;
    r->stats->checkpoint_seconds += r->save_cost;
    return KLD_OK;
}

/* After a whole layer; `done` layers are behind us. */
static kld_status save_if_cheap(kld_run *r, size_t done, kld_err *err) {
    if (!r->opt->state_dir) return KLD_OK;
    double spent = kld_seconds() - r->start;
    bool cheap = r->stats->checkpoint_seconds + r->save_cost <= CHECKPOINT_SHARE * spent;
    bool last = done == r->model->config.layers; /* resuming in the head needs it */
    if (!cheap && !last && !r->opt->checkpoint_every_layer) return KLD_OK;
    return save(r, (kld_resid_mark){done, 0}, err);
}

/* Keep what is done, then report the interruption. */
static kld_status leave(kld_run *r, kld_resid_mark mark, kld_err *err) {
    kld_err why = {0};
    if (r->opt->state_dir && (mark.layer || mark.windows) && save(r, mark, &why) != KLD_OK)
        kld_warn("the state of the run could not be saved: %s", why.text);
    return kld_fail(err, KLD_E_INTERRUPTED, "interrupted");
}

/* Layer `index` over windows `first`.. of the stream. */
static kld_status run_layer(kld_run *r, size_t index, size_t first, kld_err *err) {
    const kld_layer *layer = &r->model->layer[index];
    kld_batcher *b = &r->batcher;
    kld_batcher_start(b, first);
    size_t done = first;
    for (;;) {
        /* Only between windows: a piece of a window needs the keys of the ones before it. */
        if (b->pos == 0 && kld_stop_requested())
            return leave(r, (kld_resid_mark){index, done}, err);
        if (!kld_batcher_next(b)) return KLD_OK;
        TRY(kld_run_load(r, b->batch_row, b->batch.rows, err));
        TRY(kld_graph_layer(&r->graph, layer, &b->batch, b->kv_offset, err));
        TRY(kld_run_store(r, b->batch_row, b->batch.rows, err));
        if (b->ends_window) done = b->window;
        kld_progress_set((uint64_t)index * r->rows + b->row);
    }
}

static kld_status run_layers(kld_run *r, kld_resid_mark from, kld_err *err) {
    size_t n = r->model->config.layers;
    kld_progress_begin("layers", (uint64_t)n * r->rows, n, "tok");
    kld_status st = KLD_OK;
    for (size_t i = from.layer; i < n && st == KLD_OK; i++) {
        st = next_stage(r, err);
        if (st == KLD_OK) st = run_layer(r, i, i == from.layer ? from.windows : 0, err);
        if (st != KLD_OK) break;
        r->stats->layers_computed++;
        if (i + 1 == r->opt->stop_after_layer) st = leave(r, (kld_resid_mark){i + 1, 0}, err);
        else st = save_if_cheap(r, i + 1, err);
    }
    kld_progress_end();
    return st;
}

static kld_status resume(kld_run *r, kld_resid_mark *mark, bool *found, kld_err *err) {
    *found = false;
    if (!r->opt->resume || !r->opt->state_dir) return KLD_OK;
    TRY(kld_resid_load(r->opt->state_dir, &r->opt->run_id, &r->stream, mark, found, err));
    if (*found && (mark->layer > r->model->config.layers || mark->windows > r->n_seqs))
        return kld_fail(err, KLD_E_INPUT, "%s: the checkpoint is past the end of this run",
                        r->opt->state_dir);
    if (*found) kld_debug("resumed after %zu layers", mark->layer);
    return KLD_OK;
}

static kld_status stages(kld_run *r, kld_err *err) {
    kld_resid_mark from = {0, 0};
    bool found;
    TRY(resume(r, &from, &found, err));
    TRY(kld_reader_open(&r->reader, r->model, found ? from.layer + 1 : 0, err));
    r->stats->peak_bytes = r->stream.bytes + r->graph.bytes + r->be->scratch_bytes(&r->spec) +
                           r->reader.buffer_bytes +
                           (r->host_logits ? KLD_CHUNK * r->opt->vocab * sizeof(float) : 0);
    r->stats->resumed_layer = from.layer;
    if (!found) TRY(embed(r, err));
    double t = kld_seconds();
    kld_status st = run_layers(r, from, err);
    r->stats->layer_seconds = kld_seconds() - t;
    TRY(st);
    t = kld_seconds();
    st = kld_run_head(r, err);
    r->stats->head_seconds = kld_seconds() - t;
    return st;
}

kld_status kld_engine_run(const kld_model *m, const kld_backend *backend, const kld_seq *seqs,
                          size_t n_seqs, const kld_engine_options *opt, const kld_sink *sink,
                          kld_engine_stats *stats, kld_err *err) {
    kld_run r = {.model = m, .be = backend, .seqs = seqs, .n_seqs = n_seqs};
    r.opt = opt;
    r.sink = sink;
    r.stats = stats;
    r.start = kld_seconds();
    r.stream.spill.fd = -1;
    memset(stats, 0, sizeof *stats);
    kld_status st = open_run(&r, err);
    if (st == KLD_OK) st = stages(&r, err);
    stats->tokens = r.rows;
    stats->bytes_read = r.reader.bytes_read;
    stats->nonfinite_weights = r.reader.nonfinite;
    stats->zero_blocks = r.reader.zero_blocks;
    stats->blocks = r.reader.blocks;
    stats->read_wait_seconds = r.reader.wait_seconds;
    stats->seconds = kld_seconds() - r.start;
    close_run(&r);
    if (stats->nonfinite_weights)
        kld_warn("%llu weights are NaN or infinite", (unsigned long long)stats->nonfinite_weights);
    if (stats->zero_blocks > stats->blocks / 1000)
        kld_warn(
            "%llu of %llu NVFP4 blocks have scale 0 and decode to zeros although their codes are "
            "not: their scales were too small for E4M3 when the checkpoint was written; check "
            "the global scales",
            (unsigned long long)stats->zero_blocks, (unsigned long long)stats->blocks);
    return st;
}
