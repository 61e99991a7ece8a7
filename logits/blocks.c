/* What a layer computes: its sublayers as operations of the back end. */
#include "logits/graph.h"

/* The first n rows of a view, or n rows from row `from`. */
static kld_view rows_of(const kld_graph *g, kld_view v, size_t from, size_t n) {
    v.p = (unsigned char *)v.p + from * v.ld * g->be->elem_size(g->precision, v.elem);
    v.rows = n;
    return v;
}

/* Columns [from, from + n). */
static kld_view cols_of(const kld_graph *g, kld_view v, size_t from, size_t n) {
    v.p = (unsigned char *)v.p + from * g->be->elem_size(g->precision, v.elem);
    v.cols = n;
    return v;
}

/* The view as if it had been made for n columns. */
static kld_view narrow(kld_view v, size_t n) {
    v.cols = v.ld = n;
    return v;
}

/* A layer being computed. */
struct job {
    kld_graph *g;
    const kld_batch *b;
    const kld_attention *a;
    kld_view x, h;
    size_t kv_offset;
    kld_err *err;
};

static kld_status linear(const struct job *j, kld_view x, kld_slot slot, kld_view y, bool add) {
    return j->g->be->linear(j->g->dev, j->b, x, &j->g->w[slot], y, add, j->err);
}

static kld_view buffer(const struct job *j, kld_view v, size_t cols) {
    return rows_of(j->g, narrow(v, cols), 0, j->b->rows);
}

static const kld_dev_weight *optional(const kld_graph *g, kld_slot slot) {
    return slot != KLD_SLOT_COUNT && g->has[slot] ? &g->w[slot] : NULL;
}

static kld_rope_args rope_args(const struct job *j, kld_slot norm) {
    const kld_graph *g = j->g;
    const kld_config *c = &g->model->config;
    return (kld_rope_args){.dim = j->a->head_dim,
                           .first = j->a->rope_first,
                           .interleaved = c->rope_interleaved,
                           .table = &g->rope[j->a - c->attn],
                           .w = optional(g, norm),
                           .eps = c->norm_eps};
}

static kld_status rotate(const struct job *j, kld_view x, const kld_rope_args *args, kld_view y) {
    return j->g->be->rope(j->g->dev, j->b, x, args, y, j->err);
}

/* Rows of the key or value buffer that belong to the batch, and all of them. */
static kld_view own_keys(const struct job *j, kld_view v, size_t cols) {
    return rows_of(j->g, narrow(v, cols), j->kv_offset, j->b->rows);
}

static kld_status plain_qkv(const struct job *j, kld_view qa, kld_view ka, kld_view va) {
    kld_graph *g = j->g;
    kld_view q, k;
    kld_rope_args aq = rope_args(j, KLD_SLOT_Q_NORM), ak = rope_args(j, KLD_SLOT_K_NORM);
    aq.factor = g->query_factor;
    if (g->has[KLD_SLOT_QKV]) {
        kld_view all = buffer(j, g->qkv, qa.cols + ka.cols + va.cols);
        TRY(linear(j, j->h, KLD_SLOT_QKV, all, false));
        q = cols_of(g, all, 0, qa.cols);
        k = cols_of(g, all, qa.cols, ka.cols);
        kld_rope_args round = {.dim = va.cols};
        TRY(rotate(j, cols_of(g, all, qa.cols + ka.cols, va.cols), &round, va));
    } else {
        q = buffer(j, g->q, qa.cols);
        k = buffer(j, g->k, ka.cols);
        TRY(linear(j, j->h, KLD_SLOT_Q, q, false));
        TRY(linear(j, j->h, KLD_SLOT_K, k, false));
        TRY(linear(j, j->h, KLD_SLOT_V, va, false));
    }
    TRY(rotate(j, q, &aq, qa));
    return rotate(j, k, &ak, ka);
}

/* Keys and values are expanded from their latent vector; the rotated part of a key is common to
 * the heads. */
static kld_status latent_qkv(const struct job *j, kld_view qa, kld_view ka, kld_view va) {
    kld_graph *g = j->g;
    const kld_config *c = &g->model->config;
    const kld_attention *a = j->a;
    kld_view in = j->h, q = buffer(j, g->q, qa.cols);
    if (c->q_lora) {
        kld_view l = buffer(j, g->ql, c->q_lora);
        in = buffer(j, g->qla, c->q_lora);
        TRY(linear(j, j->h, KLD_SLOT_Q_A, l, false));
        TRY(g->be->norm(g->dev, l, &g->w[KLD_SLOT_Q_A_NORM], c->latent_eps, in, false, j->err));
    }
    TRY(linear(j, in, KLD_SLOT_Q, q, false));
    kld_view l = buffer(j, g->kvl, c->kv_lora + a->rope_dim), la = buffer(j, g->kvla, c->kv_lora);
    kld_view r = buffer(j, g->kr, a->rope_dim);
    kld_view kv = buffer(j, g->kv, a->heads * (c->nope_dim + a->value_dim));
    TRY(linear(j, j->h, KLD_SLOT_KV_A, l, false));
    TRY(g->be->norm(g->dev, cols_of(g, l, 0, c->kv_lora), &g->w[KLD_SLOT_KV_A_NORM], c->latent_eps,
                    la, false, j->err));
    TRY(linear(j, la, KLD_SLOT_KV_B, kv, false));
    kld_rope_args aq = rope_args(j, KLD_SLOT_COUNT), ar = aq;
    aq.factor = g->query_factor;
    ar.dim = a->rope_dim;
    ar.first = 0;
    TRY(rotate(j, q, &aq, qa));
    if (a->rope_dim) TRY(rotate(j, cols_of(g, l, c->kv_lora, a->rope_dim), &ar, r));
    return g->be->spread(g->dev, kv, r, a->heads, ka, va, j->err);
}

static kld_status attention(const struct job *j, kld_block block, kld_view y, bool add) {
    kld_graph *g = j->g;
    const kld_config *c = &g->model->config;
    const kld_attention *a = j->a;
    size_t q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim,
           v = a->kv_heads * a->value_dim;
    kld_view qa = buffer(j, g->qa, q), ka = own_keys(j, g->ka, k), va = own_keys(j, g->va, v);
    TRY(block == KLD_BLOCK_ATTENTION ? plain_qkv(j, qa, ka, va) : latent_qkv(j, qa, ka, va));
    kld_attend_args args = {.heads = a->heads,
                            .kv_heads = a->kv_heads,
                            .head_dim = a->head_dim,
                            .value_dim = a->value_dim,
                            .scale = (float)c->attn_scale,
                            .window = a->window};
    if (g->has[KLD_SLOT_SINKS]) args.sinks = g->w[KLD_SLOT_SINKS].data;
    /* The FP32 queries are no longer needed; their buffer takes the output. */
    kld_view mixed = buffer(j, g->q, a->heads * a->value_dim);
    mixed.elem = KLD_ELEM_ACT;
    TRY(g->be->attend(g->dev, j->b, qa, narrow(g->ka, k), narrow(g->va, v), &args, mixed, j->err));
    return linear(j, mixed, KLD_SLOT_O, y, add);
}

static kld_gate gate_of(const kld_config *c) {
    return (kld_gate){c->activation, (float)c->activation_limit};
}

/* The dense MLP, or the shared expert. */
static kld_status mlp(const struct job *j, kld_slot gate_slot, kld_view y, bool add) {
    kld_graph *g = j->g;
    size_t n = g->w[gate_slot].rows;
    kld_view gate = buffer(j, g->gate, n), up = buffer(j, g->up, n), act = buffer(j, g->act, n);
    kld_gate how = gate_of(&g->model->config);
    TRY(linear(j, j->h, gate_slot, gate, false));
    TRY(linear(j, j->h, gate_slot + 1, up, false));
    TRY(g->be->gated(g->dev, &how, gate, up, act, j->err));
    return linear(j, act, gate_slot + 2, y, add);
}
_Static_assert(KLD_SLOT_UP == KLD_SLOT_GATE + 1 && KLD_SLOT_DOWN == KLD_SLOT_GATE + 2 &&
                   KLD_SLOT_SHARED_UP == KLD_SLOT_SHARED_GATE + 1 &&
                   KLD_SLOT_SHARED_DOWN == KLD_SLOT_SHARED_GATE + 2,
               "gate, up, down");

static kld_status routed(const struct job *j, const kld_graph_routed *to, kld_view y) {
    kld_graph *g = j->g;
    const kld_router *r = &g->model->config.router;
    if (!to->given) {
        kld_view z = buffer(j, g->routed, r->experts);
        TRY(linear(j, j->h, KLD_SLOT_ROUTER, z, false));
        TRY(g->be->route(g->dev, z, optional(g, KLD_SLOT_ROUTER_BIAS), r, to->forced, &to->routes,
                         j->err));
    }
    return g->has[KLD_SLOT_SHARED_GATE] ? mlp(j, KLD_SLOT_SHARED_GATE, y, true) : KLD_OK;
}

kld_status kld_graph_layer(kld_graph *g, const kld_layer *layer, const kld_batch *b, kld_view x,
                           size_t kv_offset, const kld_graph_routed *to, kld_err *err) {
    struct job j = {.g = g, .b = b, .a = layer->attn, .x = x, .kv_offset = kv_offset, .err = err};
    double eps = g->model->config.norm_eps;
    for (size_t i = 0; i < layer->n_sub; i++) {
        const kld_sublayer *s = &layer->sub[i];
        bool post = s->post != KLD_SLOT_COUNT;
        kld_view y = post ? rows_of(g, g->post, 0, b->rows) : x;
        j.h = s->block == KLD_BLOCK_EXPERTS ? to->h : rows_of(g, g->h, 0, b->rows);
        TRY(g->be->norm(g->dev, x, &g->w[s->norm], eps, j.h, false, err));
        switch (s->block) {
        case KLD_BLOCK_ATTENTION:
        case KLD_BLOCK_LATENT_ATTENTION: TRY(attention(&j, s->block, y, !post)); break;
        case KLD_BLOCK_MLP: TRY(mlp(&j, KLD_SLOT_GATE, y, !post)); break;
        case KLD_BLOCK_EXPERTS: TRY(routed(&j, to, y)); break;
        }
        if (post) TRY(g->be->norm(g->dev, y, &g->w[s->post], eps, x, true, err));
    }
    return KLD_OK;
}

kld_status kld_graph_experts(kld_graph *g, kld_expert_rows *experts, size_t n, kld_view h,
                             kld_view x, kld_err *err) {
    kld_gate how = gate_of(&g->model->config);
    for (size_t i = 0; i < n; i++) {
        const kld_dev_weight *w = g->expert[i];
        experts[i].gate = &w[0];
        experts[i].up = w[1].rows ? &w[1] : NULL;
        experts[i].down = &w[2];
    }
    return g->be->experts(g->dev, h, experts, n, &how, x, err);
}

kld_status kld_graph_logits(kld_graph *g, const kld_batch *b, kld_err *err) {
    const kld_config *c = &g->model->config;
    kld_view h = rows_of(g, g->h, 0, b->rows), logits = rows_of(g, g->logits, 0, b->rows);
    TRY(g->be->linear(g->dev, b, h, &g->w[KLD_SLOT_HEAD], logits, false, err));
    return c->logit_cap > 0 ? g->be->cap(g->dev, logits, (float)c->logit_cap, err) : KLD_OK;
}

kld_status kld_graph_head(kld_graph *g, const kld_batch *b, kld_view x, kld_err *err) {
    kld_view h = rows_of(g, g->h, 0, b->rows);
    TRY(g->be->norm(g->dev, x, &g->w[KLD_SLOT_FINAL_NORM], g->model->config.norm_eps, h, false,
                    err));
    return kld_graph_logits(g, b, err);
}
