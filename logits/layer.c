/* One layer over all tokens of a run; a layer with experts in several stages: itself, which leaves
 * the normed rows and where each token goes, then one group of experts after the other.
 *
 * A token's experts are summed up in order of their number, whatever the groups, and what an expert
 * makes of a row does not depend on the others: so groups, batches and lanes leave no trace. */
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/run.h"

/* The rows of a batch sorted by expert. */
struct kld_dispatch {
    kld_expert_rows *expert; /* owned [experts] */
    size_t *at;              /* owned [experts + 1] */
    uint32_t *row;           /* owned [rows * top_k] */
    float *weight;           /* owned [rows * top_k] */
};

kld_status kld_dispatch_open(kld_dispatch **out, const kld_router *r, size_t rows, kld_err *err) {
    kld_status st;
    *out = NULL;
    TRY(NEW_ARRAY(out, 1, err));
    kld_dispatch *d = *out;
    TRY_TO(out, NEW_ARRAY(&d->expert, r->experts, err));
    TRY_TO(out, NEW_ARRAY(&d->at, r->experts + 1, err));
    TRY_TO(out, NEW_ARRAY(&d->row, rows * r->top_k, err));
    TRY_TO(out, NEW_ARRAY(&d->weight, rows * r->top_k, err));
    return KLD_OK;
out:
    kld_dispatch_close(d);
    *out = NULL;
    return st;
}

void kld_dispatch_close(kld_dispatch *d) {
    if (!d) return;
    kld_free(d->expert);
    kld_free(d->at);
    kld_free(d->row);
    kld_free(d->weight);
    kld_free(d);
}

/* Rows [0, rows) of the routes that go to experts [first, first + n). */
static void dispatch(kld_dispatch *d, const kld_routes *r, size_t rows, size_t k, size_t first,
                     size_t n) {
    for (size_t e = 0; e <= n; e++) d->at[e] = 0;
    for (size_t i = 0; i < rows * k; i++)
        if (r->id[i] - first < n) d->at[r->id[i] - first + 1]++;
    for (size_t e = 0; e < n; e++) d->at[e + 1] += d->at[e];
    for (size_t e = 0; e < n; e++)
        d->expert[e] = (kld_expert_rows){.row = d->row + d->at[e], .weight = d->weight + d->at[e]};
    for (size_t i = 0; i < rows * k; i++) {
        if (r->id[i] - first >= n) continue;
        kld_expert_rows *e = &d->expert[r->id[i] - first];
        size_t at = (size_t)(e->row - d->row) + e->n++;
        d->row[at] = (uint32_t)(i / k);
        d->weight[at] = r->weight[i];
    }
}

static kld_routes routes_at(const kld_routes *r, size_t k, size_t row) {
    return (kld_routes){r->id + row * k, r->weight + row * k, r->margin + row};
}

/* ---- stages ------------------------------------------------------------------------------ */

static bool stops_inside(const kld_run *r, size_t index) {
    /* With several lanes the windows that are done are no prefix before the layer's end, and a
     * layer with experts is not done before its last group. */
    return r->n_lanes == 1 && !r->model->layer[index].expert && kld_stop_requested();
}

/* A layer's stages count alike. */
static void show_progress(const kld_run *r, size_t index, size_t row) {
    size_t first = kld_schedule_layer(&r->fit.schedule, index);
    size_t stages = num_max(kld_schedule_layer(&r->fit.schedule, index + 1) - first, 1);
    size_t stage = r->reader.next - 1 - first; /* of the one after it, reading is under way */
    kld_progress_set((uint64_t)index * r->rows + (stage * r->rows + row * r->n_lanes) / stages);
}

static kld_status lane_body(kld_run *r, kld_lane *lane, size_t index, size_t first, kld_err *err) {
    const kld_layer *layer = &r->model->layer[index];
    const kld_route_io *io = r->opt->routes;
    size_t k = r->model->config.router.top_k, done = first;
    kld_batcher *b = &lane->batcher;
    kld_batcher_start(b, first);
    for (;;) {
        /* Only between windows: a piece of a window needs the keys of the ones before it. */
        if (b->pos == 0 && stops_inside(r, index)) return kld_run_leave(r, index, done, err);
        if (!kld_batcher_next(b)) return KLD_OK;
        size_t row = b->batch_row, n = b->batch.rows;
        kld_view x;
        kld_graph_routed to = {0};
        if (layer->expert) {
            to.h = kld_stream_view(&lane->normed, row, n, lane->graph.h);
            to.routes = routes_at(&lane->routes, k, row);
            to.given = io && io->give && !io->ids_only;
            if (io && io->give && io->ids_only) to.forced = to.routes.id;
        }
        TRY(kld_stream_load(&lane->stream, row, n, lane->graph.x, &x, err));
        TRY(kld_graph_layer(&lane->graph, layer, &b->batch, x, b->kv_offset, &to, err));
        TRY(kld_stream_store(&lane->stream, row, n, x, err));
        if (layer->expert) TRY(kld_stream_store(&lane->normed, row, n, to.h, err));
        if (b->ends_window) done = b->window;
        show_progress(r, index, b->row);
    }
}

static kld_status lane_experts(kld_run *r, kld_lane *lane, const kld_stage_key *key, kld_err *err) {
    size_t k = r->model->config.router.top_k;
    kld_batcher *b = &lane->batcher;
    kld_batcher_start(b, 0);
    while (kld_batcher_next(b)) {
        size_t row = b->batch_row, n = b->batch.rows;
        kld_view x, h;
        kld_routes routes = routes_at(&lane->routes, k, row);
        dispatch(r->dispatch, &routes, n, k, key->expert, key->n_experts);
        TRY(kld_stream_load(&lane->stream, row, n, lane->graph.x, &x, err));
        TRY(kld_stream_load(&lane->normed, row, n, lane->graph.h, &h, err));
        TRY(kld_graph_experts(&lane->graph, r->dispatch->expert, key->n_experts, h, x, err));
        TRY(kld_stream_store(&lane->stream, row, n, x, err));
        show_progress(r, key->layer, b->row);
    }
    return KLD_OK;
}

/* Ids that are given come from a file: they must be experts, and no one of a token's twice. */
static kld_status check_given(const kld_run *r, size_t layer, size_t w, size_t n,
                              const kld_routes *routes, kld_err *err) {
    const kld_router *t = &r->model->config.router;
    for (size_t i = 0; i < n * t->top_k; i++) {
        size_t row = i / t->top_k, slot = i % t->top_k;
        bool twice = false;
        for (size_t j = i - slot; j < i; j++) twice = twice || routes->id[j] == routes->id[i];
        if (routes->id[i] < t->experts && !twice) continue;
        return kld_fail(err, KLD_E_INPUT,
                        "window %zu, position %zu, layer %zu with experts, slot %zu: expert %u %s",
                        w, row, layer, slot, (unsigned)routes->id[i],
                        twice ? "is there twice" : "does not exist in this model");
    }
    return KLD_OK;
}

static kld_status exchange(kld_run *r, size_t index, bool give, kld_err *err) {
    const kld_route_io *io = r->opt->routes;
    size_t k = r->model->config.router.top_k, layer = kld_model_expert_layers(r->model, index);
    if (!io || !r->n_lanes || !(give ? io->give != NULL : io->take != NULL)) return KLD_OK;
    for (size_t w = 0; w < r->n_seqs; w++) {
        kld_lane *lane = &r->lane[w % r->n_lanes];
        kld_routes at = routes_at(&lane->routes, k, r->local[w]);
        size_t n = r->seqs[w].n;
        if (!give) {
            TRY(io->take(io->ctx, layer, w, n, &at, err));
            continue;
        }
        TRY(io->give(io->ctx, layer, w, n, &at, err));
        TRY(check_given(r, layer, w, n, &at, err));
    }
    return KLD_OK;
}

kld_status kld_run_layer(kld_run *r, size_t index, size_t first, kld_err *err) {
    const kld_layer *layer = &r->model->layer[index];
    TRY(kld_run_next_stage(r, err));
    if (layer->expert) TRY(exchange(r, index, true, err));
    for (size_t l = 0; l < r->n_lanes; l++) {
        size_t mine = first > l ? num_cdiv(first - l, r->n_lanes) : 0;
        TRY(lane_body(r, &r->lane[l], index, mine, err));
    }
    if (layer->expert) TRY(exchange(r, index, false, err));
    for (size_t s = kld_schedule_layer(&r->fit.schedule, index) + 1;
         r->fit.schedule.stage[s].layer == index; s++) {
        TRY(kld_run_next_stage(r, err));
        for (size_t l = 0; l < r->n_lanes; l++)
            TRY(lane_experts(r, &r->lane[l], &r->fit.schedule.stage[s], err));
    }
    if ((r->n_lanes > 1 || layer->expert) && kld_stop_requested())
        return kld_run_leave(r, index + 1, 0, err);
    return KLD_OK;
}
