/* The last stage: final norm, head, statistics, delivery.
 *
 * A call covers up to head_rows rows of one window.  Every lane may have head_slots calls under
 * way; they are ended in the order they were begun, which is the order of the windows, so while
 * the host takes the records of one call the devices work on the next ones. */
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "logits/run.h"

#include <string.h>

/* A window that is being worked on. */
struct open_window {
    size_t first, end;         /* positions the head runs over */
    size_t scored, scored_end; /* those that are scored */
    kld_gather gather;
    kld_records rec;
};

/* A call under way. */
struct call {
    size_t window, from, to; /* positions that are scored */
    bool last;               /* of its window */
};

enum { MAX_CALLS = 2 * KLD_MAX_LANES };
_Static_assert((int)MAX_CALLS < (int)KLD_OPEN_WINDOWS, "every call may be a window of its own");

struct head {
    kld_run *r;
    struct open_window *open; /* owned [KLD_OPEN_WINDOWS]: window w is at w % KLD_OPEN_WINDOWS */
    struct call call[MAX_CALLS];
    size_t begun, ended;             /* calls */
    size_t under_way[KLD_MAX_LANES]; /* at most `slots` each */
    size_t slots, done_rows;
    kld_span *span; /* owned [head_rows / chunk] */
};

static struct open_window *window_of(const struct head *h, size_t w) {
    return &h->open[w % KLD_OPEN_WINDOWS];
}

static kld_status open_window(struct head *h, size_t w, kld_err *err) {
    const kld_run *r = h->r;
    const kld_seq *s = &r->seqs[w];
    struct open_window *o = window_of(h, w);
    memset(o, 0, sizeof *o);
    o->scored_end = s->n ? s->n - 1 : 0;
    o->scored = num_min(s->score_from, o->scored_end);
    o->first = r->sink->logits ? 0 : o->scored;
    o->end = r->sink->logits ? s->n : o->scored_end;
    if (!r->sink->records) return KLD_OK;
    kld_gather *g = &o->gather;
    if (r->sink->gather) TRY(r->sink->gather(r->sink->ctx, w, g, err));
    size_t ld = g->ids && g->count ? g->ld : 0, m = g->tail_ids ? g->m : 0;
    if (ld > r->opt->ref_top_k || m > r->opt->ref_tail_samples)
        return kld_fail(err, KLD_E_INTERNAL,
                        "lists of %zu ids and %zu draws; %zu and %zu were "
                        "announced",
                        ld, m, r->opt->ref_top_k, r->opt->ref_tail_samples);
    TRY(kld_records_alloc(&o->rec, o->scored_end - o->scored, r->opt->top_k, r->opt->tail_samples,
                          ld, m, err));
    o->rec.first = o->scored;
    if (!r->opt->hidden) return KLD_OK;
    return kld_records_alloc_hidden(&o->rec, r->model->config.hidden,
                                    r->opt->precision == KLD_PRECISION_BF16 ? 2 : 4, err);
}

static kld_status close_window(struct head *h, size_t w, kld_err *err) {
    kld_run *r = h->r;
    struct open_window *o = window_of(h, w);
    kld_status st = KLD_OK;
    if (r->sink->records) st = r->sink->records(r->sink->ctx, w, &o->rec, err);
    kld_records_free(&o->rec);
    kld_progress_set(h->done_rows += r->seqs[w].n);
    return st;
}

static kld_status end_call(struct head *h, kld_err *err) {
    kld_run *r = h->r;
    const struct call *c = &h->call[h->ended++ % MAX_CALLS];
    h->under_way[c->window % r->n_lanes]--;
    struct open_window *o = window_of(h, c->window);
    kld_device *dev = r->lane[c->window % r->n_lanes].dev;
    size_t bad = 0, first_bad = 0;
    if (c->to > c->from)
        TRY(r->be->head_end(dev, &o->rec, c->from - o->scored, &bad, &first_bad, err));
    if (bad && r->stats->nonfinite_rows == 0) {
        r->stats->nonfinite_window = c->window;
        r->stats->nonfinite_position = c->from + first_bad;
        kld_warn("window %zu, position %zu: the logits are not finite; such positions are "
                 "recorded as not finite",
                 c->window, c->from + first_bad);
    }
    r->stats->nonfinite_rows += bad;
    return c->last ? close_window(h, c->window, err) : KLD_OK;
}

static kld_status begin_stats(const struct head *h, const struct open_window *o,
                              const struct call *c, size_t pos, kld_err *err) {
    const kld_run *r = h->r;
    const kld_engine_options *opt = r->opt;
    const kld_lane *lane = &r->lane[c->window % r->n_lanes];
    const kld_gather *g = &o->gather;
    size_t row = c->from - o->scored;
    kld_head_args args = {.top_k = opt->top_k,
                          .min_k = opt->min_k,
                          .tail_samples = opt->tail_samples,
                          .tail_mass = opt->tail_mass,
                          .seed = opt->seed,
                          .window = c->window,
                          .pos = c->from,
                          .labels = r->seqs[c->window].ids + c->from + 1};
    if (g->ids && g->count) {
        args.ref_count = g->count + row;
        args.ref_ids = g->ids + row * g->ld;
        args.ref_ids_ld = g->ld;
    }
    if (g->tail_ids) {
        args.ref_tail_ids = g->tail_ids + row * g->m;
        args.ref_m = g->m;
    }
    kld_view l = lane->graph.logits;
    l.p = (float *)l.p + (c->from - pos) * l.ld;
    l.rows = c->to - c->from;
    return r->be->head_begin(lane->dev, l, &args, err);
}

/* What the head was given for the scored rows of a call that begins at pos. */
static kld_status keep_hidden(struct head *h, struct open_window *o, const struct call *c,
                              size_t pos, kld_err *err) {
    kld_run *r = h->r;
    const kld_lane *lane = &r->lane[c->window % r->n_lanes];
    size_t cols = o->rec.hidden_cols, bytes = o->rec.hidden_bytes, n = (c->to - c->from) * cols;
    size_t elem = r->be->elem_size(r->opt->precision, KLD_ELEM_ACT);
    unsigned char *to = (unsigned char *)o->rec.hidden + (c->from - o->scored) * cols * bytes;
    const unsigned char *from = lane->graph.h.p;
    void *host = elem == bytes ? (void *)to : r->host_hidden;
    TRY(r->be->download(lane->dev, host, from + (c->from - pos) * cols * elem, n * elem, err));
    /* FP32 that holds BF16 values, so that nothing is rounded. */
    const float *wide = r->host_hidden;
    for (size_t i = 0; elem != bytes && i < n; i++) {
        uint16_t half = kld_f32_to_bf16(wide[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
    return KLD_OK;
}

/* Head over positions [pos, pos + n) of a window. */
static kld_status begin_call(struct head *h, size_t w, size_t pos, size_t n, kld_err *err) {
    kld_run *r = h->r;
    kld_lane *lane = &r->lane[w % r->n_lanes];
    const struct open_window *o = window_of(h, w);
    kld_batch b = {h->span, 0, n};
    for (size_t i = 0; i < n; i += r->chunk)
        h->span[b.n++] = (kld_span){.row = i, .n = num_min(r->chunk, n - i), .pos = pos + i};
    kld_view x;
    TRY(kld_stream_load(&lane->stream, r->local[w] + pos, n, lane->graph.x, &x, err));
    TRY(kld_graph_head(&lane->graph, &b, x, err));
    if (r->sink->logits) {
        size_t bytes = n * r->opt->vocab * sizeof *r->host_logits;
        TRY(r->be->download(lane->dev, r->host_logits, lane->graph.logits.p, bytes, err));
        TRY(r->sink->logits(r->sink->ctx, w, pos, n, r->host_logits, err));
    }
    struct call *c = &h->call[h->begun % MAX_CALLS];
    *c = (struct call){w, num_max(pos, o->scored), num_min(pos + n, o->scored_end),
                       pos + n == o->end};
    if (!r->sink->records || c->from >= c->to) {
        c->to = c->from;
    } else {
        TRY(begin_stats(h, o, c, pos, err));
        if (r->opt->hidden) TRY(keep_hidden(h, window_of(h, w), c, pos, err));
    }
    h->begun++;
    h->under_way[w % r->n_lanes]++;
    return KLD_OK;
}

static kld_status window_head(struct head *h, size_t w, kld_err *err) {
    size_t step = h->r->fit.spec.head_rows;
    TRY(open_window(h, w, err));
    const struct open_window *o = window_of(h, w);
    for (size_t p = o->first; p < o->end; p += step) {
        while (h->under_way[w % h->r->n_lanes] >= h->slots) TRY(end_call(h, err));
        TRY(begin_call(h, w, p, num_min(step, o->end - p), err));
    }
    if (o->first < o->end) return KLD_OK;
    /* Nothing to compute; it is delivered when its turn comes. */
    while (h->ended < h->begun) TRY(end_call(h, err));
    return close_window(h, w, err);
}

static kld_status all_windows(struct head *h, size_t skip, kld_err *err) {
    for (size_t w = skip; w < h->r->n_seqs; w++) {
        /* What is under way is whole windows' work: finish it, then leave. */
        if (kld_stop_requested())
            while (h->ended < h->begun) TRY(end_call(h, err));
        TRY(kld_stop_check(err));
        TRY(window_head(h, w, err));
    }
    while (h->ended < h->begun) TRY(end_call(h, err));
    return KLD_OK;
}

kld_status kld_run_head(kld_run *r, kld_err *err) {
    struct head h = {.r = r, .slots = num_min(r->be->head_slots, MAX_CALLS / KLD_MAX_LANES)};
    TRY(kld_run_next_stage(r, err));
    size_t rows = 0, skip = num_min(r->opt->skip_windows, r->n_seqs);
    for (size_t w = skip; w < r->n_seqs; w++) rows += r->seqs[w].n;
    kld_progress_begin("head", rows, 1, "tok");
    kld_status st;
    TRY_TO(out, NEW_ARRAY(&h.open, KLD_OPEN_WINDOWS, err));
    TRY_TO(out, NEW_ARRAY(&h.span, r->fit.spec.head_rows / r->chunk, err));
    TRY_TO(out, all_windows(&h, skip, err));
out:
    kld_progress_end();
    for (size_t i = 0; h.open && i < KLD_OPEN_WINDOWS; i++) kld_records_free(&h.open[i].rec);
    kld_free(h.open);
    kld_free(h.span);
    return st;
}
