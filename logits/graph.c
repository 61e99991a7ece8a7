#include "logits/graph.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <math.h>
#include <string.h>

/* Carves views out of one block; with base NULL it only adds sizes up. */
struct carver {
    unsigned char *base;
    size_t at, act;
};

static kld_view carve(struct carver *c, size_t rows, size_t cols, kld_elem elem) {
    kld_view v = {c->base ? c->base + c->at : NULL, rows, cols, cols, elem};
    c->at += num_cdiv(rows * cols * (elem == KLD_ELEM_ACT ? c->act : sizeof(float)), 256) * 256;
    return v;
}

/* Columns that every kind of attention of the model fits in. */
struct widths {
    size_t q, k, v, mixed, latent_kv, qkv;
};

static struct widths widths_of(const kld_model *m) {
    struct widths w = {0};
    const kld_config *c = &m->config;
    for (size_t l = 0; l < c->layers; l++) {
        const kld_attention *a = m->layer[l].attn;
        size_t q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim;
        size_t v = a->kv_heads * a->value_dim;
        w.q = num_max(w.q, q);
        w.k = num_max(w.k, k);
        w.v = num_max(w.v, v);
        w.mixed = num_max(w.mixed, a->heads * a->value_dim);
        if (c->kv_lora) w.latent_kv = num_max(w.latent_kv, a->heads * (c->nope_dim + a->value_dim));
        if (m->layer[l].slot[KLD_SLOT_QKV].rows) w.qkv = num_max(w.qkv, q + k + v);
    }
    w.q = num_max(w.q, w.mixed); /* its buffer takes the output, too */
    return w;
}

static void lay_out_attention(kld_graph *g, const kld_model *m, const struct widths *w, size_t rows,
                              struct carver *a) {
    const kld_config *c = &m->config;
    bool latent = c->kv_lora > 0;
    size_t rope = latent ? c->attn[KLD_ATTN_FULL].rope_dim : 0;
    g->q = carve(a, rows, w->q, KLD_ELEM_F32);
    g->qa = carve(a, rows, w->q, KLD_ELEM_ACT);
    g->k = carve(a, latent ? 0 : rows, w->k, KLD_ELEM_F32);
    g->qkv = carve(a, w->qkv ? rows : 0, w->qkv, KLD_ELEM_F32);
    g->ql = carve(a, rows, c->q_lora, KLD_ELEM_F32);
    g->qla = carve(a, rows, c->q_lora, KLD_ELEM_ACT);
    g->kvl = carve(a, rows, c->kv_lora + rope, KLD_ELEM_F32);
    g->kvla = carve(a, rows, c->kv_lora, KLD_ELEM_ACT);
    g->kr = carve(a, rows, rope, KLD_ELEM_ACT);
    g->kv = carve(a, rows, w->latent_kv, KLD_ELEM_ACT);
}

static size_t lay_out(kld_graph *g, const kld_model *m, size_t act, const kld_device_spec *spec,
                      bool resident, void *base) {
    const kld_config *c = &m->config;
    struct carver a = {base, 0, act};
    struct widths w = widths_of(m);
    size_t rows = spec->max_rows, keys = spec->max_keys;
    size_t wide = num_max(c->intermediate, c->shared_intermediate);
    bool posts = c->layers && m->layer[0].sub[0].post != KLD_SLOT_COUNT;
    g->x = carve(&a, resident ? 0 : rows, c->hidden, KLD_ELEM_F32);
    g->h = carve(&a, rows, c->hidden, KLD_ELEM_ACT);
    g->post = carve(&a, posts ? rows : 0, c->hidden, KLD_ELEM_F32);
    g->ka = carve(&a, keys, w.k, KLD_ELEM_ACT);
    g->va = carve(&a, keys, w.v, KLD_ELEM_ACT);
    /* Attention, the MLP and the head never need their buffers at the same time. */
    size_t shared = a.at, most;
    lay_out_attention(g, m, &w, rows, &a);
    most = a.at;
    a.at = shared;
    g->gate = carve(&a, rows, wide, KLD_ELEM_ACT);
    g->up = carve(&a, rows, wide, KLD_ELEM_ACT);
    g->act = carve(&a, rows, wide, KLD_ELEM_ACT);
    g->routed = carve(&a, rows, c->router.experts, KLD_ELEM_F32);
    most = num_max(most, a.at);
    a.at = shared;
    g->logits = carve(&a, spec->head_rows, spec->vocab, KLD_ELEM_F32);
    return num_max(most, a.at);
}

uint64_t kld_graph_block_bytes(const kld_model *m, size_t act_size, const kld_device_spec *spec,
                               bool resident) {
    kld_graph g;
    return lay_out(&g, m, act_size, spec, resident, NULL);
}

uint64_t kld_graph_weight_bytes(const kld_model *m, const kld_backend *be, kld_precision p,
                                const kld_stage_key *key) {
    uint64_t n = 0;
    kld_stage_weight sw;
    for (size_t at = 0; kld_stage_next(m, key, &at, &sw);) n += be->weight_bytes(p, sw.w, sw.use);
    return n;
}

uint64_t kld_graph_largest_weights(const kld_model *m, const kld_schedule *s, const kld_backend *be,
                                   kld_precision p) {
    uint64_t most = 0;
    for (size_t i = 0; i < s->n; i++)
        most = num_max(most, kld_graph_weight_bytes(m, be, p, &s->stage[i]));
    return most;
}

/* ---- tables by position ----------------------------------------------------------------- */

static bool uses(const kld_model *m, const kld_attention *a) {
    for (size_t l = 0; l < m->config.layers; l++)
        if (m->layer[l].attn == a) return true;
    return false;
}

uint64_t kld_graph_rope_bytes(const kld_model *m, size_t positions) {
    const kld_config *c = &m->config;
    size_t n = c->query_beta > 0;
    for (size_t i = 0; i < KLD_ATTN_KINDS; i++)
        if (uses(m, &c->attn[i])) n += c->attn[i].rope_dim; /* half of it twice */
    return sizeof(float) * positions * n;
}

/* Angles as the reference implementation takes them: position times frequency in FP32;
 * their cos and sin rounded once to FP32, then times the attention factor. */
static kld_status fill_rope(const kld_attention *a, size_t positions, float *tab, kld_err *err) {
    size_t half = a->rope_dim / 2, n = positions * half;
    float factor = (float)a->rope.attention_factor, *inv;
    TRY(NEW_ARRAY(&inv, num_max(half, 1), err));
    kld_rope_frequencies(&a->rope, a->rope_dim, inv);
    for (size_t p = 0; p < positions; p++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)((float)p * inv[i]);
            tab[p * half + i] = (float)cos(angle) * factor;
            tab[n + p * half + i] = (float)sin(angle) * factor;
        }
    }
    kld_free(inv);
    return KLD_OK;
}

static kld_status fill_tables(kld_graph *g, size_t positions, float *tab, kld_err *err) {
    const kld_config *c = &g->model->config;
    const float *mem = g->rope_mem;
    size_t at = 0;
    for (size_t i = 0; i < KLD_ATTN_KINDS; i++) {
        const kld_attention *a = &c->attn[i];
        size_t half = a->rope_dim / 2, n = positions * half;
        if (!uses(g->model, a)) continue;
        TRY(fill_rope(a, positions, tab + at, err));
        g->rope[i] = (kld_rope_table){mem + at, mem + at + n, half};
        at += 2 * n;
    }
    if (c->query_beta <= 0) return KLD_OK;
    for (size_t p = 0; p < positions; p++)
        tab[at + p] = (float)(1 + c->query_beta * log(1 + floor((double)p / c->query_length)));
    g->query_factor = mem + at;
    return KLD_OK;
}

static kld_status open_tables(kld_graph *g, size_t positions, kld_err *err) {
    uint64_t bytes = kld_graph_rope_bytes(g->model, positions);
    float *tab;
    TRY(g->be->alloc(g->dev, &g->rope_mem, (size_t)num_max(bytes, 256), err));
    TRY(kld_calloc((void **)&tab, (size_t)num_max(bytes, 1), 1, err));
    kld_status st = fill_tables(g, positions, tab, err);
    if (st == KLD_OK && bytes) st = g->be->upload(g->dev, g->rope_mem, tab, (size_t)bytes, err);
    kld_free(tab);
    g->bytes += bytes;
    return st;
}

/* ---- life ------------------------------------------------------------------------------- */

kld_status kld_graph_open(kld_graph *g, const kld_model *m, const kld_schedule *s,
                          const kld_backend *be, kld_device *dev, const kld_device_spec *spec,
                          kld_activations activations, bool resident, size_t positions,
                          kld_err *err) {
    memset(g, 0, sizeof *g);
    g->activations = activations;
    g->model = m;
    g->be = be;
    g->dev = dev;
    g->precision = spec->precision;
    size_t act = be->elem_size(spec->precision, KLD_ELEM_ACT), group = 0;
    uint64_t block = kld_graph_block_bytes(m, act, spec, resident);
    uint64_t weights = kld_graph_largest_weights(m, s, be, spec->precision);
    for (size_t i = 0; i < s->n; i++) group = num_max(group, s->stage[i].n_experts);
    kld_status st;
    TRY_TO(out, NEW_ARRAY(&g->expert, num_max(group, 1), err));
    TRY_TO(out, be->alloc(dev, &g->block, (size_t)block, err));
    TRY_TO(out, be->alloc(dev, &g->weights, (size_t)weights, err));
    lay_out(g, m, act, spec, resident, g->block);
    g->bytes = block + weights;
    TRY_TO(out, open_tables(g, positions, err));
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
    kld_free(g->expert);
    memset(g, 0, sizeof *g);
}

kld_status kld_graph_input(const kld_config *c, kld_slot slot, const kld_weight *w,
                           kld_act_quant *out, kld_err *err) {
    float v = (float)c->value_scale;
    *out = w->act;
    if (slot != KLD_SLOT_O || v == 1) return KLD_OK;
    switch (w->act.format) {
    case KLD_AQ_NVFP4: out->scale *= v; return KLD_OK;
    case KLD_AQ_FP8_TENSOR: out->scale /= v; return KLD_OK;
    case KLD_AQ_FP8_BLOCK:
        out->eps /= v;
        if (w->act.power_of_two) break;
        return KLD_OK;
    case KLD_AQ_MXFP4:
    case KLD_AQ_MXFP8: break;
    default: return KLD_OK;
    }
    return kld_fail(err, KLD_E_UNSUPPORTED,
                    "'%.300s': %s inputs with power-of-two scales of values that are multiplied by "
                    "%g are not emulated; use --activations weights-only",
                    w->data->name, kld_act_format_name(w->act.format), (double)v);
}

kld_status kld_graph_prepare(kld_graph *g, const kld_reader *reader, const kld_stage *s, size_t d,
                             kld_err *err) {
    const kld_backend *be = g->be;
    unsigned char *at = g->weights;
    memset(g->has, 0, sizeof g->has);
    if (s->key.n_experts) memset(g->expert, 0, s->key.n_experts * sizeof *g->expert);
    for (size_t i = 0; i < s->n; i++) {
        const kld_stage_weight *sw = &s->weight[i];
        kld_raw_weight raw;
        bool expert = s->key.kind == KLD_STAGE_EXPERTS;
        kld_dev_weight *w =
            expert ? &g->expert[sw->expert][sw->slot - KLD_SLOT_EXPERT_GATE] : &g->w[sw->slot];
        kld_reader_weight(reader, s, i, d, &raw);
        TRY(be->prepare(g->dev, &raw, sw->use, at, w, err));
        if (sw->use == KLD_USE_MATRIX && g->activations == KLD_ACTIVATIONS_AS_DECLARED) {
            TRY(kld_graph_input(&g->model->config, sw->slot, sw->w, &w->input, err));
            w->alpha *= kld_act_alpha(&w->input);
        }
        /* What attention gives is a sum of values: their factor can wait until after it. */
        if (sw->slot == KLD_SLOT_O) w->alpha *= (float)g->model->config.value_scale;
        g->has[sw->slot] = true;
        at += be->weight_bytes(g->precision, sw->w, sw->use);
    }
    return KLD_OK;
}
