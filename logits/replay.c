#include "logits/replay.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "logits/graph.h"
#include "logits/reader.h"
#include "logits/stage.h"

#include <string.h>

/* A head on the device: the last stage of a run, with room for the rows of a call. */
struct lane {
    kld_replay_head head;
    kld_stage_key key;
    kld_schedule schedule; /* that one stage */
    kld_reader reader;     /* holds the stored bytes, which the head may be used from */
    kld_graph graph;
    kld_device *dev;
    bool owns_dev;
    void *h;   /* owned, device memory */
    void *own; /* owned: logits in a device that is not that of the first lane, else NULL */
};

struct kld_replay {
    kld_replay_options opt;
    size_t rows; /* of a call, a multiple of KLD_CHUNK */
    struct lane lane[KLD_REPLAY_HEADS];
    size_t n;
    kld_span *span;  /* owned [rows / 16] */
    void *wide;      /* owned, host: hidden states as the device stores them */
    void *logits[2]; /* owned, memory of the first lane's device: of both sides of a pair */
    void *host;      /* owned: logits on their way from the other device, or NULL */
};

static size_t logits_bytes(const kld_replay *r) { return r->rows * r->opt.vocab * sizeof(float); }

/* ---- opening ----------------------------------------------------------------------------- */

static kld_status check_head(const kld_replay *r, const kld_model *m, kld_err *err) {
    const kld_weight *w = &m->global[KLD_SLOT_HEAD];
    if (w->rows >= r->opt.vocab) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s: the head has %zu rows; the softmax runs over %zu",
                    m->ckpt.dir, w->rows, r->opt.vocab);
}

/* What heads of one precision ask of their device. */
static kld_device_spec spec_of(const kld_replay *r, kld_precision precision) {
    kld_device_spec s = {.precision = precision,
                         .max_rows = r->rows,
                         .max_keys = 1,
                         .head_dim = 1,
                         .kv_cols = 1,
                         .head_rows = r->rows,
                         .vocab = r->opt.vocab,
                         .top_k = r->opt.top_k};
    for (size_t i = 0; i < r->n; i++) {
        const kld_replay_head *h = &r->lane[i].head;
        const kld_weight *w = &h->model->global[KLD_SLOT_HEAD];
        if (h->precision != precision) continue;
        s.formats |= 1u << w->format;
        if (w->pre) s.act_cols = num_max(s.act_cols, w->cols);
        if (h->activations != KLD_ACTIVATIONS_AS_DECLARED || w->act.format == KLD_AQ_NONE) continue;
        s.act_cols = num_max(s.act_cols, w->cols);
        s.act_formats |= 1u << w->act.format;
    }
    return s;
}

static kld_status open_device(kld_replay *r, struct lane *l, kld_err *err) {
    const kld_backend *be = r->opt.backend;
    if (l != r->lane && r->lane[0].head.precision == l->head.precision) {
        l->dev = r->lane[0].dev;
        return KLD_OK;
    }
    kld_device_spec spec = spec_of(r, l->head.precision);
    TRY(be->supports(&spec, err));
    TRY(be->open(&l->dev, &spec, r->opt.device, err));
    l->owns_dev = true;
    return KLD_OK;
}

static kld_status open_lane(kld_replay *r, struct lane *l, kld_err *err) {
    const kld_backend *be = r->opt.backend;
    const kld_model *m = l->head.model;
    kld_precision p = l->head.precision;
    size_t cols = m->global[KLD_SLOT_HEAD].cols;
    const kld_stage *stage;
    TRY(check_head(r, m, err));
    TRY(open_device(r, l, err));
    l->key = (kld_stage_key){.kind = KLD_STAGE_HEAD, .layer = m->config.layers};
    l->schedule = (kld_schedule){.stage = &l->key, .n = 1};
    l->graph = (kld_graph){
        .model = m, .be = be, .dev = l->dev, .precision = p, .activations = l->head.activations};
    TRY(kld_reader_open(&l->reader, m, &l->schedule, be, &l->dev, 1, 0, err));
    TRY(be->alloc(l->dev, &l->h, r->rows * cols * be->elem_size(p, KLD_ELEM_ACT), err));
    TRY(be->alloc(l->dev, &l->graph.weights,
                  (size_t)num_max(kld_graph_weight_bytes(m, be, p, &l->key), 256), err));
    if (l->dev != r->lane[0].dev) TRY(be->alloc(l->dev, &l->own, logits_bytes(r), err));
    l->graph.h = (kld_view){l->h, r->rows, cols, cols, KLD_ELEM_ACT};
    l->graph.logits = (kld_view){l->own, r->rows, r->opt.vocab, r->opt.vocab, KLD_ELEM_F32};
    TRY(kld_reader_next(&l->reader, &stage, err));
    return kld_graph_prepare(&l->graph, &l->reader, stage, 0, err);
}

static kld_status open_all(kld_replay *r, kld_err *err) {
    size_t widest = 0;
    for (size_t i = 0; i < r->n; i++) {
        TRY(open_lane(r, &r->lane[i], err));
        widest = num_max(widest, r->lane[i].graph.h.cols);
    }
    for (size_t i = 0; i < 2; i++)
        TRY(r->opt.backend->alloc(r->lane[0].dev, &r->logits[i], logits_bytes(r), err));
    if (r->lane[r->n - 1].own) TRY(kld_calloc(&r->host, logits_bytes(r), 1, err));
    TRY(NEW_ARRAY(&r->span, r->rows / 16, err));
    return kld_calloc(&r->wide, r->rows * widest, sizeof(float), err);
}

kld_status kld_replay_open(kld_replay **out, const kld_replay_options *opt,
                           const kld_replay_head *head, size_t n, kld_err *err) {
    kld_replay *r;
    *out = NULL;
    TRY(NEW_ARRAY(&r, 1, err));
    r->opt = *opt;
    r->rows = opt->backend->head_rows();
    r->n = n;
    for (size_t i = 0; i < n; i++) r->lane[i].head = head[i];
    kld_status st = open_all(r, err);
    if (st == KLD_OK) *out = r;
    else kld_replay_close(r);
    return st;
}

void kld_replay_close(kld_replay *r) {
    if (!r) return;
    const kld_backend *be = r->opt.backend;
    for (size_t i = r->n; i-- > 0;) {
        struct lane *l = &r->lane[i];
        if (!l->dev) continue;
        if (l->reader.be) kld_reader_close(&l->reader);
        be->free(l->dev, l->graph.weights);
        be->free(l->dev, l->h);
        be->free(l->dev, l->own);
        for (size_t k = 0; i == 0 && k < 2; k++) be->free(l->dev, r->logits[k]);
        if (l->owns_dev) be->close(l->dev);
    }
    kld_free(r->span);
    kld_free(r->wide);
    kld_free(r->host);
    kld_free(r);
}

/* ---- running ----------------------------------------------------------------------------- */

/* Hidden states as the device stores them: BF16 bits may have to become FP32. */
static const void *as_stored(kld_replay *r, const struct lane *l, const void *from, size_t n) {
    bool bf16 = l->head.precision == KLD_PRECISION_BF16;
    if (!bf16 || r->opt.backend->elem_size(l->head.precision, KLD_ELEM_ACT) == 2) return from;
    const uint16_t *half = from;
    float *wide = r->wide;
    for (size_t i = 0; i < n; i++) wide[i] = kld_bf16_to_f32(half[i]);
    return wide;
}

/* Logits of rows [at, at + n) into the place of a side. */
static kld_status logits_of(kld_replay *r, const kld_replay_rows *rows, size_t side, size_t at,
                            size_t n, kld_view *out, kld_err *err) {
    const kld_backend *be = r->opt.backend;
    struct lane *l = &r->lane[rows->head];
    kld_precision p = l->head.precision;
    size_t cols = l->graph.h.cols, kept = p == KLD_PRECISION_BF16 ? 2 : 4;
    size_t chunk = rows->chunk ? rows->chunk : KLD_CHUNK;
    const void *from = (const unsigned char *)rows->hidden + at * cols * kept;
    TRY(be->upload(l->dev, l->h, as_stored(r, l, from, n * cols),
                   n * cols * be->elem_size(p, KLD_ELEM_ACT), err));
    kld_batch b = {r->span, 0, n};
    for (size_t i = 0; i < n; i += chunk)
        r->span[b.n++] = (kld_span){.row = i, .n = num_min(chunk, n - i), .pos = at + i};
    if (!l->own) l->graph.logits.p = r->logits[side];
    TRY(kld_graph_logits(&l->graph, &b, err));
    *out = l->graph.logits;
    out->rows = n;
    out->p = r->logits[side];
    if (!l->own) return KLD_OK;
    size_t bytes = n * r->opt.vocab * sizeof(float);
    TRY(be->download(l->dev, r->host, l->own, bytes, err));
    return be->upload(r->lane[0].dev, out->p, r->host, bytes, err);
}

kld_status kld_replay_pair(kld_replay *r, const kld_replay_rows *p, const kld_replay_rows *q,
                           size_t n, double top_p, kld_pair_row *out, kld_err *err) {
    for (size_t at = 0; at < n; at += r->rows) {
        size_t m = num_min(r->rows, n - at);
        kld_view a, b;
        TRY(logits_of(r, p, 0, at, m, &a, err));
        TRY(logits_of(r, q, 1, at, m, &b, err));
        TRY(r->opt.backend->pair(r->lane[0].dev, a, b, top_p, out + at, err));
    }
    return KLD_OK;
}

kld_status kld_replay_stats(kld_replay *r, const kld_replay_rows *rows, size_t n,
                            const uint32_t *labels, kld_records *rec, kld_err *err) {
    for (size_t at = 0; at < n; at += r->rows) {
        size_t bad, first_bad;
        kld_view l;
        kld_head_args args = {.top_k = r->opt.top_k,
                              .min_k = r->opt.top_k,
                              .tail_mass = 1,
                              .pos = at,
                              .labels = labels + at};
        TRY(logits_of(r, rows, 0, at, num_min(r->rows, n - at), &l, err));
        TRY(r->opt.backend->head_begin(r->lane[0].dev, l, &args, err));
        TRY(r->opt.backend->head_end(r->lane[0].dev, rec, at, &bad, &first_bad, err));
    }
    return KLD_OK;
}
