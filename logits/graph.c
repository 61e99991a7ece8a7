#include "logits/graph.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <math.h>
#include <string.h>

void kld_batcher_start(kld_batcher *b, size_t window) {
    b->window = window;
    b->pos = 0;
    b->row = 0;
    for (size_t i = 0; i < window; i++) b->row += b->seqs[i].n;
}

static void add_span(kld_batcher *b, size_t n, size_t pos, size_t kv_row) {
    kld_span *s = &b->span[b->batch.n++];
    *s = (kld_span){.row = b->batch.rows, .n = n, .pos = pos, .kv_row = kv_row};
    b->batch.rows += n;
    b->row += n;
}

bool kld_batcher_next(kld_batcher *b) {
    b->batch = (kld_batch){.span = b->span};
    b->batch_row = b->row;
    b->kv_offset = 0;
    b->ends_window = true;
    if (b->window < b->n_seqs && b->seqs[b->window].n > b->max_rows) {
        size_t n = b->seqs[b->window].n, end = num_min(n, b->pos + b->max_rows);
        b->kv_offset = b->pos;
        for (; b->pos < end; b->pos += b->span[b->batch.n - 1].n)
            add_span(b, num_min(KLD_CHUNK, end - b->pos), b->pos, 0);
        b->ends_window = end == n;
        if (b->ends_window) {
            b->pos = 0;
            b->window++;
        }
        return true;
    }
    for (; b->window < b->n_seqs; b->window++) {
        size_t n = b->seqs[b->window].n, kv_row = b->batch.rows;
        if (n > b->max_rows - b->batch.rows || b->batch.n + num_cdiv(n, KLD_CHUNK) > b->max_spans)
            break;
        for (size_t p = 0; p < n; p += KLD_CHUNK) add_span(b, num_min(KLD_CHUNK, n - p), p, kv_row);
    }
    return b->batch.rows > 0;
}

/* Carves views out of one block; with base NULL it only adds sizes up. */
struct carver {
    unsigned char *base;
    size_t at;
};

static kld_view carve(struct carver *c, size_t rows, size_t cols, kld_elem elem, size_t size) {
    kld_view v = {c->base ? c->base + c->at : NULL, rows, cols, cols, elem};
    c->at += num_cdiv(rows * cols * size, 256) * 256;
    return v;
}

static size_t lay_out(kld_graph *g, const kld_config *c, size_t act, const kld_device_spec *spec,
                      bool resident, void *base) {
    struct carver a = {base, 0};
    size_t f32 = sizeof(float), q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    size_t rows = spec->max_rows, keys = spec->max_keys;
    g->x = carve(&a, resident ? 0 : rows, c->hidden, KLD_ELEM_F32, f32);
    g->h = carve(&a, rows, c->hidden, KLD_ELEM_ACT, act);
    g->ka = carve(&a, keys, kv, KLD_ELEM_ACT, act);
    g->va = carve(&a, keys, kv, KLD_ELEM_ACT, act);
    /* Attention, the MLP and the head never need their buffers at the same time. */
    size_t shared = a.at, most;
    g->q = carve(&a, rows, q, KLD_ELEM_F32, f32);
    g->qa = carve(&a, rows, q, KLD_ELEM_ACT, act);
    g->k = carve(&a, rows, kv, KLD_ELEM_F32, f32);
    most = a.at;
    a.at = shared;
    g->gate = carve(&a, rows, c->intermediate, KLD_ELEM_ACT, act);
    g->up = carve(&a, rows, c->intermediate, KLD_ELEM_ACT, act);
    g->act = carve(&a, rows, c->intermediate, KLD_ELEM_ACT, act);
    most = num_max(most, a.at);
    a.at = shared;
    g->logits = carve(&a, spec->head_rows, spec->vocab, KLD_ELEM_F32, f32);
    return num_max(most, a.at);
}

uint64_t kld_graph_block_bytes(const kld_config *c, size_t act_size, const kld_device_spec *spec,
                               bool resident) {
    kld_graph g;
    return lay_out(&g, c, act_size, spec, resident, NULL);
}

uint64_t kld_graph_weight_bytes(const kld_backend *be, kld_precision p, const kld_stage *s) {
    uint64_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += be->weight_bytes(p, s->w[i], s->use[i]);
    return n;
}

uint64_t kld_graph_largest_weights(const kld_model *m, const kld_backend *be, kld_precision p) {
    uint64_t most = 0;
    for (size_t i = 0; i <= m->config.layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        most = num_max(most, kld_graph_weight_bytes(be, p, &s));
    }
    return most;
}

uint64_t kld_graph_rope_bytes(const kld_config *c, size_t positions) {
    return 2 * sizeof(float) * positions * (c->head_dim / 2);
}

/* Angles as the reference implementation takes them: position times frequency in FP32;
 * their cos and sin rounded once to FP32, then times the attention factor. */
static kld_status open_rope(kld_graph *g, size_t positions, kld_err *err) {
    const kld_config *c = &g->model->config;
    size_t half = c->head_dim / 2, n = positions * half;
    float factor = (float)c->rope.attention_factor, *inv = NULL, *tab = NULL;
    kld_status st;
    TRY_TO(out, NEW_ARRAY(&inv, num_max(half, 1), err));
    TRY_TO(out, NEW_ARRAY(&tab, 2 * n, err));
    kld_rope_frequencies(&c->rope, c->head_dim, inv);
    for (size_t p = 0; p < positions; p++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)((float)p * inv[i]);
            tab[p * half + i] = (float)cos(angle) * factor;
            tab[n + p * half + i] = (float)sin(angle) * factor;
        }
    }
    TRY_TO(out, g->be->alloc(g->dev, &g->rope_mem, 2 * n * sizeof *tab, err));
    TRY_TO(out, g->be->upload(g->dev, g->rope_mem, tab, 2 * n * sizeof *tab, err));
    g->rope = (kld_rope_table){g->rope_mem, (const float *)g->rope_mem + n, half};
    g->bytes += 2 * n * sizeof *tab;
out:
    kld_free(inv);
    kld_free(tab);
    return st;
}

kld_status kld_graph_open(kld_graph *g, const kld_model *m, const kld_backend *be, kld_device *dev,
                          const kld_device_spec *spec, bool resident, size_t positions,
                          kld_err *err) {
    memset(g, 0, sizeof *g);
    g->model = m;
    g->be = be;
    g->dev = dev;
    g->precision = spec->precision;
    size_t act = be->elem_size(spec->precision, KLD_ELEM_ACT);
    uint64_t block = kld_graph_block_bytes(&m->config, act, spec, resident);
    uint64_t weights = kld_graph_largest_weights(m, be, spec->precision);
    kld_status st;
    TRY_TO(out, be->alloc(dev, &g->block, (size_t)block, err));
    TRY_TO(out, be->alloc(dev, &g->weights, (size_t)weights, err));
    lay_out(g, &m->config, act, spec, resident, g->block);
    g->bytes = block + weights;
    TRY_TO(out, open_rope(g, positions, err));
    return KLD_OK;
out:
    kld_graph_close(g);
    return st;
}

void kld_graph_close(kld_graph *g) {
    if (g->be) {
        g->be->free(g->dev, g->block);
        g->be->free(g->dev, g->weights);
        g->be->free(g->dev, g->rope_mem);
    }
    memset(g, 0, sizeof *g);
}

kld_status kld_graph_prepare(kld_graph *g, const kld_reader *reader, const kld_stage *s, size_t d,
                             kld_err *err) {
    const kld_backend *be = g->be;
    unsigned char *at = g->weights;
    memset(g->has, 0, sizeof g->has);
    for (size_t i = 0; i < s->n; i++) {
        kld_raw_weight raw;
        kld_reader_weight(reader, s, i, d, &raw);
        TRY(be->prepare(g->dev, &raw, s->use[i], at, &g->w[s->slot[i]], err));
        g->has[s->slot[i]] = true;
        at += be->weight_bytes(g->precision, s->w[i], s->use[i]);
    }
    return KLD_OK;
}

/* The first n rows of a view, or n rows from row `from`. */
static kld_view rows_of(const kld_graph *g, kld_view v, size_t from, size_t n) {
    v.p = (unsigned char *)v.p + from * v.ld * g->be->elem_size(g->precision, v.elem);
    v.rows = n;
    return v;
}

static kld_status attention(kld_graph *g, const kld_layer *layer, const kld_batch *b, kld_view x,
                            kld_view h, size_t kv_offset, kld_err *err) {
    const kld_config *c = &g->model->config;
    const kld_backend *be = g->be;
    kld_device *dev = g->dev;
    const kld_dev_weight *w = g->w;
    kld_view q = rows_of(g, g->q, 0, b->rows), qa = rows_of(g, g->qa, 0, b->rows);
    kld_view k = rows_of(g, g->k, 0, b->rows);
    kld_view ka = rows_of(g, g->ka, kv_offset, b->rows);
    kld_view va = rows_of(g, g->va, kv_offset, b->rows);
    TRY(be->linear(dev, b, h, &w[KLD_SLOT_Q], q, false, err));
    TRY(be->linear(dev, b, h, &w[KLD_SLOT_K], k, false, err));
    TRY(be->linear(dev, b, h, &w[KLD_SLOT_V], va, false, err));
    const kld_dev_weight *qn = g->has[KLD_SLOT_Q_NORM] ? &w[KLD_SLOT_Q_NORM] : NULL;
    const kld_dev_weight *kn = g->has[KLD_SLOT_K_NORM] ? &w[KLD_SLOT_K_NORM] : NULL;
    TRY(be->rope(dev, b, q, c->head_dim, qn, c->norm_eps, &g->rope, qa, err));
    TRY(be->rope(dev, b, k, c->head_dim, kn, c->norm_eps, &g->rope, ka, err));
    kld_attend_args a = {.heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .value_dim = c->head_dim,
                         .scale = (float)c->attn_scale,
                         .window = layer->window};
    /* The FP32 queries are no longer needed; their buffer takes the output. */
    kld_view y = q;
    y.elem = KLD_ELEM_ACT;
    TRY(be->attend(dev, b, qa, g->ka, g->va, &a, y, err));
    return be->linear(dev, b, y, &w[KLD_SLOT_O], x, true, err);
}

static kld_status mlp(kld_graph *g, const kld_batch *b, kld_view x, kld_view h, kld_err *err) {
    const kld_backend *be = g->be;
    kld_device *dev = g->dev;
    kld_view gate = rows_of(g, g->gate, 0, b->rows), up = rows_of(g, g->up, 0, b->rows);
    kld_view act = rows_of(g, g->act, 0, b->rows);
    TRY(be->linear(dev, b, h, &g->w[KLD_SLOT_GATE], gate, false, err));
    TRY(be->linear(dev, b, h, &g->w[KLD_SLOT_UP], up, false, err));
    TRY(be->gated(dev, g->model->config.activation, gate, up, act, err));
    return be->linear(dev, b, act, &g->w[KLD_SLOT_DOWN], x, true, err);
}

kld_status kld_graph_layer(kld_graph *g, const kld_layer *layer, const kld_batch *b, kld_view x,
                           size_t kv_offset, kld_err *err) {
    kld_view h = rows_of(g, g->h, 0, b->rows);
    double eps = g->model->config.norm_eps;
    for (size_t i = 0; i < layer->n_sub; i++) {
        const kld_sublayer *s = &layer->sub[i];
        TRY(g->be->norm(g->dev, x, &g->w[s->norm], eps, h, err));
        switch (s->block) {
        case KLD_BLOCK_ATTENTION: TRY(attention(g, layer, b, x, h, kv_offset, err)); break;
        case KLD_BLOCK_MLP: TRY(mlp(g, b, x, h, err)); break;
        }
    }
    return KLD_OK;
}

kld_status kld_graph_head(kld_graph *g, const kld_batch *b, kld_view x, kld_err *err) {
    kld_view h = rows_of(g, g->h, 0, b->rows);
    double eps = g->model->config.norm_eps;
    TRY(g->be->norm(g->dev, x, &g->w[KLD_SLOT_FINAL_NORM], eps, h, err));
    return g->be->linear(g->dev, b, h, &g->w[KLD_SLOT_HEAD], rows_of(g, g->logits, 0, b->rows),
                         false, err);
}
