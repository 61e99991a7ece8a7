#include "logits/engine.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/numfmt.h"
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
    if (o->chunk && (o->chunk < 16 || KLD_CHUNK % o->chunk != 0))
        return kld_fail(err, KLD_E_USAGE, "spans of %zu tokens: a divisor of %d is needed",
                        o->chunk, KLD_CHUNK);
    if (o->n_devices > KLD_MAX_LANES)
        return kld_fail(err, KLD_E_USAGE, "%zu devices: at most %d are used", o->n_devices,
                        KLD_MAX_LANES);
    if (r->longest > c->dense_window)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "a window of %zu tokens: beyond %zu a sparse indexer picks the keys of %s "
                        "(index_topk), which is not implemented; use shorter windows",
                        r->longest, c->dense_window, r->model->family);
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

/* Every weight's input can be quantized as it says. */
static kld_status check_inputs(const kld_run *r, kld_err *err) {
    if (r->opt->activations == KLD_ACTIVATIONS_WEIGHTS_ONLY) return KLD_OK;
    for (kld_weight_at at = {0}; kld_model_next_weight(r->model, &at);) {
        kld_act_quant input;
        TRY(kld_graph_input(&r->model->config, at.slot, at.w, &input, err));
        TRY(kld_where(err, kld_act_check(&input, at.w->cols, err), "%.300s", at.w->data->name));
    }
    return KLD_OK;
}

/* Windows are dealt in turn, so that every device has work until the end of the head stage,
 * whose results are handed out in order. */
static kld_status deal(kld_run *r, kld_err *err) {
    TRY(NEW_ARRAY(&r->local, r->n_seqs, err));
    for (size_t l = 0; l < r->n_lanes; l++) {
        kld_lane *lane = &r->lane[l];
        TRY(NEW_ARRAY(&lane->seqs, num_cdiv(r->n_seqs, r->n_lanes), err));
        for (size_t w = l; w < r->n_seqs; w += r->n_lanes) {
            lane->seqs[lane->n_seqs++] = r->seqs[w];
            r->local[w] = lane->rows;
            lane->rows += r->seqs[w].n;
        }
    }
    return KLD_OK;
}

static int device_of(const kld_run *r, size_t lane) {
    return r->opt->n_devices ? r->opt->devices[lane] : 0;
}

/* The same for every lane, so that lanes differ in nothing but their windows. */
static kld_status fit(kld_run *r, kld_err *err) {
    uint64_t least = UINT64_MAX;
    size_t rows = 0;
    for (size_t l = 0; l < r->n_lanes; l++) {
        rows = num_max(rows, r->lane[l].rows);
        size_t same = 0;
        for (size_t k = 0; k < r->n_lanes; k++) same += device_of(r, k) == device_of(r, l);
        uint64_t free = r->be->host_memory ? 0 : r->be->memory(device_of(r, l)) / 10 * 9;
        if (r->opt->device_memory) {
            if (r->opt->device_memory < free || !free) free = r->opt->device_memory;
        }
        least = num_min(least, free / same);
    }
    return kld_run_fit(r->model, r->be, r->opt, rows, r->longest, least, &r->fit, err);
}

/* What a layer with experts keeps of every token. */
static kld_status open_routed(kld_run *r, kld_lane *lane, kld_err *err) {
    const kld_device_spec *spec = &r->fit.spec;
    size_t size = r->be->elem_size(spec->precision, KLD_ELEM_ACT), rows = num_max(lane->rows, 1);
    TRY(kld_stream_open(&lane->normed, r->be, lane->dev, lane->rows, r->model->config.hidden, size,
                        r->fit.place, r->opt->spill_dir, spec->max_rows, err));
    TRY(NEW_ARRAY(&lane->routes.id, rows * spec->chosen, err));
    TRY(NEW_ARRAY(&lane->routes.weight, rows * spec->chosen, err));
    return NEW_ARRAY(&lane->routes.margin, rows, err);
}

static kld_status open_lane(kld_run *r, size_t l, kld_err *err) {
    kld_lane *lane = &r->lane[l];
    const kld_device_spec *spec = &r->fit.spec;
    TRY(r->be->open(&lane->dev, spec, device_of(r, l), err));
    r->dev[l] = lane->dev;
    TRY(kld_graph_open(&lane->graph, r->model, &r->fit.schedule, r->be, lane->dev, spec,
                       r->opt->activations, r->fit.place == KLD_ON_DEVICE, r->longest, err));
    TRY(kld_stream_open(&lane->stream, r->be, lane->dev, lane->rows, r->model->config.hidden,
                        sizeof(float), r->fit.place, r->opt->spill_dir, spec->max_rows, err));
    if (r->dispatch) TRY(open_routed(r, lane, err));
    lane->batcher = (kld_batcher){
        .seqs = lane->seqs, .n_seqs = lane->n_seqs, .max_rows = spec->max_rows, .chunk = r->chunk};
    lane->batcher.max_spans = kld_run_spans(spec);
    return NEW_ARRAY(&lane->batcher.span, lane->batcher.max_spans, err);
}

/* Everything that can be refused without taking memory for it. */
static kld_status plan_run(kld_run *r, kld_err *err) {
    for (size_t i = 0; i < r->n_seqs; i++) {
        if (!num_add_size(r->rows, r->seqs[i].n, &r->rows))
            return kld_fail(err, KLD_E_INPUT, "too many tokens");
        r->longest = num_max(r->longest, r->seqs[i].n);
    }
    r->n_lanes = num_max(1, r->opt->n_devices);
    r->chunk = r->opt->chunk ? r->opt->chunk : KLD_CHUNK;
    TRY(NEW_ARRAY(&r->lane, r->n_lanes, err));
    TRY(NEW_ARRAY(&r->dev, r->n_lanes, err));
    TRY(check_options(r, err));
    TRY(check_inputs(r, err));
    TRY(deal(r, err));
    TRY(fit(r, err));
    return r->be->supports(&r->fit.spec, err);
}

static kld_status open_run(kld_run *r, kld_err *err) {
    TRY(plan_run(r, err));
    if (r->fit.spec.experts)
        TRY(kld_dispatch_open(&r->dispatch, &r->model->config.router, r->fit.spec.max_rows, err));
    for (size_t l = 0; l < r->n_lanes; l++) TRY(open_lane(r, l, err));
    TRY(NEW_ARRAY(&r->ids, r->fit.spec.max_rows, err));
    if (r->sink->logits)
        TRY(NEW_ARRAY(&r->host_logits, r->fit.spec.head_rows * r->opt->vocab, err));
    if (r->opt->hidden)
        TRY(kld_calloc(&r->host_hidden, r->fit.spec.head_rows * r->model->config.hidden,
                       r->be->elem_size(r->opt->precision, KLD_ELEM_ACT), err));
    r->save_cost =
        (double)r->rows * (double)r->model->config.hidden * sizeof(float) / CHECKPOINT_GUESS;
    return KLD_OK;
}

static void close_run(kld_run *r) {
    kld_reader_close(&r->reader);
    for (size_t l = 0; r->lane && l < r->n_lanes; l++) {
        kld_lane *lane = &r->lane[l];
        kld_free(lane->batcher.span);
        kld_free(lane->seqs);
        kld_stream_close(&lane->stream);
        kld_stream_close(&lane->normed);
        kld_free(lane->routes.id);
        kld_free(lane->routes.weight);
        kld_free(lane->routes.margin);
        kld_graph_close(&lane->graph);
        r->be->close(lane->dev);
    }
    kld_free(r->lane);
    kld_free(r->dev);
    kld_free(r->local);
    kld_dispatch_close(r->dispatch);
    kld_schedule_free(&r->fit.schedule);
    kld_free(r->host_logits);
    kld_free(r->host_hidden);
    kld_free(r->ids);
}

kld_status kld_run_next_stage(kld_run *r, kld_err *err) {
    const kld_stage *stage;
    TRY(kld_reader_next(&r->reader, &stage, err));
    for (size_t l = 0; l < r->n_lanes; l++)
        TRY(kld_graph_prepare(&r->lane[l].graph, &r->reader, stage, l, err));
    return KLD_OK;
}

kld_status kld_run_sync(kld_run *r, kld_err *err) {
    for (size_t l = 0; l < r->n_lanes; l++) TRY(r->be->sync(r->lane[l].dev, err));
    return KLD_OK;
}

/* Ids of the batch, window by window. */
static void batch_ids(const kld_run *r, const kld_lane *lane, size_t window, size_t pos) {
    size_t rows = lane->batcher.batch.rows;
    for (size_t done = 0; done < rows; window++, pos = 0) {
        size_t n = num_min(lane->seqs[window].n - pos, rows - done);
        if (n) memcpy(r->ids + done, lane->seqs[window].ids + pos, n * sizeof *r->ids);
        done += n;
    }
}

static kld_status embed_lane(kld_run *r, kld_lane *lane, kld_err *err) {
    kld_batcher *b = &lane->batcher;
    /* The reference rounds the factor to the type of its activations. */
    float scale = (float)r->model->config.embed_scale;
    if (r->opt->precision == KLD_PRECISION_BF16) scale = kld_bf16_to_f32(kld_f32_to_bf16(scale));
    kld_batcher_start(b, 0);
    for (size_t window = 0, pos = 0; kld_batcher_next(b); window = b->window, pos = b->pos) {
        TRY(kld_stop_check(err));
        batch_ids(r, lane, window, pos);
        kld_view x = kld_stream_view(&lane->stream, b->batch_row, b->batch.rows, lane->graph.x);
        TRY(r->be->embed(lane->dev, &lane->graph.w[KLD_SLOT_EMBED], r->ids, scale, x, err));
        TRY(kld_stream_store(&lane->stream, b->batch_row, b->batch.rows, x, err));
    }
    return KLD_OK;
}

static kld_status embed(kld_run *r, kld_err *err) {
    TRY(kld_run_next_stage(r, err));
    for (size_t l = 0; l < r->n_lanes; l++) TRY(embed_lane(r, &r->lane[l], err));
    return kld_run_sync(r, err);
}

/* ---- checkpoints ------------------------------------------------------------------------- */

static kld_status rows_of(const kld_run *r, kld_resid_rows *out, kld_resid_part **part,
                          kld_err *err) {
    TRY(NEW_ARRAY(part, num_max(r->n_seqs, 1), err));
    for (size_t w = 0; w < r->n_seqs; w++)
        (*part)[w] = (kld_resid_part){&r->lane[w % r->n_lanes].stream, r->local[w], r->seqs[w].n};
    *out = (kld_resid_rows){*part, r->n_seqs, r->rows, r->model->config.hidden};
    return KLD_OK;
}

static kld_status save(kld_run *r, kld_resid_mark mark, kld_err *err) {
    kld_resid_rows rows;
    kld_resid_part *part;
    TRY(kld_run_sync(r, err));
    double t = kld_seconds();
    TRY(rows_of(r, &rows, &part, err));
    kld_status st = kld_resid_save(r->opt->state_dir, &r->opt->run_id, mark, &rows, err);
    kld_free(part);
    r->save_cost = kld_seconds() - t;
    if (st == KLD_OK) r->saved = mark.windows ? SIZE_MAX : mark.layer;
    r->stats->checkpoint_seconds += r->save_cost;
    return st;
}

/* After a whole layer; `done` layers are behind us. */
static kld_status save_if_cheap(kld_run *r, size_t done, kld_err *err) {
    if (!r->opt->state_dir) return KLD_OK;
    double spent = kld_seconds() - r->start;
    bool cheap = r->stats->checkpoint_seconds + r->save_cost <= CHECKPOINT_SHARE * spent;
    if (!cheap && !r->opt->checkpoint_every_layer) return KLD_OK;
    return save(r, (kld_resid_mark){done, 0}, err);
}

kld_status kld_run_leave(kld_run *r, size_t layer, size_t windows, kld_err *err) {
    kld_err why = {0};
    kld_resid_mark mark = {layer, windows};
    if (r->opt->state_dir && (layer || windows) && save(r, mark, &why) != KLD_OK)
        kld_warn("the state of the run could not be saved: %s", why.text);
    return kld_fail(err, KLD_E_INTERRUPTED, "interrupted");
}

static kld_status run_layers(kld_run *r, kld_resid_mark from, kld_err *err) {
    size_t n = r->model->config.layers;
    kld_progress_begin("layers", (uint64_t)n * r->rows, n, "tok");
    kld_status st = KLD_OK;
    for (size_t i = from.layer; i < n && st == KLD_OK; i++) {
        st = kld_run_layer(r, i, i == from.layer ? from.windows : 0, err);
        if (st != KLD_OK) break;
        r->stats->layers_computed++;
        if (i + 1 == r->opt->stop_after_layer) st = kld_run_leave(r, i + 1, 0, err);
        else st = save_if_cheap(r, i + 1, err);
    }
    if (st == KLD_OK) st = kld_run_sync(r, err);
    kld_progress_end();
    return st;
}

static kld_status resume(kld_run *r, kld_resid_mark *mark, bool *found, kld_err *err) {
    *found = false;
    if (!r->opt->resume || !r->opt->state_dir) return KLD_OK;
    kld_resid_rows rows;
    kld_resid_part *part;
    TRY(rows_of(r, &rows, &part, err));
    kld_status st = kld_resid_load(r->opt->state_dir, &r->opt->run_id, &rows, mark, found, err);
    kld_free(part);
    TRY(st);
    if (*found && (mark->layer > r->model->config.layers || mark->windows > r->n_seqs))
        return kld_fail(err, KLD_E_INPUT, "%s: the checkpoint is past the end of this run",
                        r->opt->state_dir);
    if (*found && !mark->windows) r->saved = mark->layer;
    if (*found) kld_debug("resumed after %zu layers", mark->layer);
    return KLD_OK;
}

static void note_memory(kld_run *r) {
    static const char *const place[] = {"device memory", "host memory", "a spill file"};
    kld_engine_stats *s = r->stats;
    uint64_t device = 0, host = r->reader.host_bytes;
    for (size_t l = 0; l < r->n_lanes; l++) {
        const kld_lane *lane = &r->lane[l];
        device += lane->graph.bytes + lane->stream.device_bytes + lane->normed.device_bytes +
                  r->be->scratch_bytes(&r->fit.spec);
        host += lane->stream.host_bytes + lane->normed.host_bytes;
        host += kld_run_route_bytes(&r->fit.spec, lane->rows);
    }
    device += r->reader.device_bytes;
    if (r->host_logits) host += r->fit.spec.head_rows * r->opt->vocab * sizeof(float);
    s->peak_bytes = device + host;
    if (!r->be->host_memory) s->device_bytes = device / num_max(1, r->n_lanes);
    s->resident_bytes = (uint64_t)r->rows * r->model->config.hidden * sizeof(float);
    s->resident_in =
        place[r->fit.place == KLD_ON_DEVICE && r->be->host_memory ? KLD_ON_HOST : r->fit.place];
    s->batch_rows = r->fit.spec.max_rows;
    s->head_rows = r->fit.spec.head_rows;
}

static kld_status stages(kld_run *r, kld_err *err) {
    kld_resid_mark from = {0, 0};
    bool found;
    TRY(resume(r, &from, &found, err));
    const kld_schedule *sched = &r->fit.schedule;
    TRY(kld_reader_open(&r->reader, r->model, sched, r->be, r->dev, r->n_lanes,
                        found ? kld_schedule_layer(sched, from.layer) : 0, err));
    note_memory(r);
    kld_engine_stats *s = r->stats;
    s->resumed_layer = from.layer;
    s->open_seconds = kld_seconds() - r->start;
    double t = kld_seconds();
    if (!found) TRY(embed(r, err));
    s->embed_seconds = kld_seconds() - t;
    t = kld_seconds();
    kld_status st = run_layers(r, from, err);
    s->layer_seconds = kld_seconds() - t;
    TRY(st);
    t = kld_seconds();
    st = kld_run_head(r, err);
    s->head_seconds = kld_seconds() - t;
    size_t layers = r->model->config.layers;
    kld_err why = {0};
    if (st != KLD_OK && st != KLD_E_DEVICE && r->opt->state_dir && r->saved != layers &&
        save(r, (kld_resid_mark){layers, 0}, &why) != KLD_OK)
        kld_warn("the state of the run could not be saved: %s", why.text);
    return st;
}

kld_status kld_engine_check(const kld_model *m, const kld_backend *backend, const kld_seq *seqs,
                            size_t n_seqs, const kld_engine_options *opt, const kld_sink *sink,
                            kld_err *err) {
    kld_run r = {.model = m, .be = backend, .seqs = seqs, .n_seqs = n_seqs};
    r.opt = opt;
    r.sink = sink;
    kld_status st = plan_run(&r, err);
    close_run(&r);
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
    r.saved = SIZE_MAX;
    memset(stats, 0, sizeof *stats);
    kld_status st = open_run(&r, err);
    if (st == KLD_OK) st = stages(&r, err);
    stats->tokens = r.rows;
    stats->bytes_read = r.reader.bytes_read;
    stats->nonfinite_weights = r.reader.nonfinite;
    stats->zero_blocks = r.reader.zero_blocks;
    stats->blocks = r.reader.blocks;
    stats->read_wait_seconds = r.reader.wait_seconds;
    /* A device that is fed is asked itself: the host waits while it computes, too. */
    for (size_t l = 0; st == KLD_OK && l < r.n_lanes && !backend->host_memory; l++) {
        double waited = 0;
        st = backend->stall(r.lane[l].dev, &waited, err);
        if (l == 0 || waited > stats->read_wait_seconds) stats->read_wait_seconds = waited;
    }
    stats->read_seconds = r.reader.read_seconds;
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
