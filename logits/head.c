/* The last stage: final norm, head, statistics, delivery. */
#include "kld/base/log.h"
#include "kld/base/num.h"
#include "logits/run.h"

#include <string.h>

/* Rows of window w that the head runs over, and those that are scored. */
struct range {
    size_t first, end, scored, scored_end;
};

static struct range range_of(const kld_run *r, size_t w) {
    const kld_seq *s = &r->seqs[w];
    struct range a = {0};
    a.scored_end = s->n ? s->n - 1 : 0;
    a.scored = num_min(s->score_from, a.scored_end);
    a.first = r->sink->logits ? 0 : a.scored;
    a.end = r->sink->logits ? s->n : a.scored_end;
    return a;
}

static kld_status deliver_logits(kld_run *r, size_t w, size_t pos, size_t n, kld_err *err) {
    size_t bytes = n * r->opt->vocab * sizeof *r->host_logits;
    TRY(r->be->download(r->dev, r->host_logits, r->graph.logits.p, bytes, err));
    return r->sink->logits(r->sink->ctx, w, pos, n, r->host_logits, err);
}

static kld_status score(kld_run *r, size_t w, const struct range *a, size_t pos, size_t n,
                        const kld_gather *g, kld_records *rec, kld_err *err) {
    size_t from = num_max(pos, a->scored), to = num_min(pos + n, a->scored_end);
    if (from >= to) return KLD_OK;
    const kld_engine_options *o = r->opt;
    size_t row = from - a->scored, bad = 0, first_bad = 0;
    kld_head_args args = {.top_k = o->top_k,
                          .min_k = o->min_k,
                          .tail_mass = o->tail_mass,
                          .seed = o->seed,
                          .window = w,
                          .pos = from,
                          .labels = r->seqs[w].ids + from + 1};
    if (g->ids && g->count) {
        args.ref_count = g->count + row;
        args.ref_ids = g->ids + row * g->ld;
        args.ref_ids_ld = g->ld;
    }
    if (g->tail_ids) args.ref_tail_ids = g->tail_ids + row * g->m;
    kld_view l = r->graph.logits;
    l.p = (float *)l.p + (from - pos) * l.ld;
    l.rows = to - from;
    TRY(r->be->head_stats(r->dev, l, &args, rec, row, &bad, &first_bad, err));
    if (bad && r->stats->nonfinite_rows == 0) {
        r->stats->nonfinite_window = w;
        r->stats->nonfinite_position = from + first_bad;
        kld_warn("window %zu, position %zu: the logits are not finite; such positions are "
                 "recorded as not finite",
                 w, from + first_bad);
    }
    r->stats->nonfinite_rows += bad;
    return KLD_OK;
}

static kld_status window_head(kld_run *r, size_t w, size_t row0, kld_err *err) {
    const kld_sink *sink = r->sink;
    struct range a = range_of(r, w);
    kld_gather g = {0};
    kld_records rec = {0};
    kld_status st = KLD_OK;
    if (sink->records) {
        if (sink->gather) TRY(sink->gather(sink->ctx, w, &g, err));
        TRY(kld_records_alloc(&rec, a.scored_end - a.scored, r->opt->top_k, r->opt->tail_samples,
                              g.ids && g.count ? g.ld : 0, g.tail_ids ? g.m : 0, err));
        rec.first = a.scored;
    }
    for (size_t p = a.first; p < a.end; p += KLD_CHUNK) {
        size_t n = num_min(KLD_CHUNK, a.end - p);
        kld_span span = {.row = 0, .n = n, .pos = p, .kv_row = 0};
        kld_batch b = {&span, 1, n};
        TRY_TO(out, kld_run_load(r, row0 + p, n, err));
        TRY_TO(out, kld_graph_head(&r->graph, &b, err));
        if (sink->logits) TRY_TO(out, deliver_logits(r, w, p, n, err));
        if (sink->records) TRY_TO(out, score(r, w, &a, p, n, &g, &rec, err));
    }
    if (sink->records) st = sink->records(sink->ctx, w, &rec, err);
out:
    kld_records_free(&rec);
    return st;
}

kld_status kld_run_head(kld_run *r, kld_err *err) {
    const kld_stage *stage;
    TRY(kld_reader_next(&r->reader, &stage, err));
    TRY(kld_graph_prepare(&r->graph, stage, err));
    size_t row = 0, skip = num_min(r->opt->skip_windows, r->n_seqs);
    for (size_t w = 0; w < skip; w++) row += r->seqs[w].n;
    kld_status st = KLD_OK;
    kld_progress_begin("head", r->rows - row, 1, "tok");
    for (size_t w = skip, done = 0; w < r->n_seqs; w++) {
        TRY_TO(out, kld_stop_check(err));
        TRY_TO(out, window_head(r, w, row, err));
        row += r->seqs[w].n;
        kld_progress_set(done += r->seqs[w].n);
    }
out:
    kld_progress_end();
    return st;
}
