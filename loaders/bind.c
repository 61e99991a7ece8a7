#include "loaders/bind_impl.h"

#include "kld/base/buf.h"
#include "loaders/quant_config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

kld_status kld_model_warn(kld_model *m, kld_err *err, const char *fmt, ...) {
    char line[1024] = "";
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (m->n_warnings % 16 == 0) {
        char **grown;
        TRY(ARENA_ARRAY(&m->arena, &grown, m->n_warnings + 16, err));
        if (m->n_warnings) memcpy(grown, m->warnings, m->n_warnings * sizeof *grown);
        m->warnings = grown;
    }
    /* The text quotes names from the file. */
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    TRY(kld_arena_strndup(&m->arena, &m->warnings[m->n_warnings], line, strlen(line), err));
    m->n_warnings++;
    return KLD_OK;
}

static bool starts(const char *s, const char *prefix) {
    return !strncmp(s, prefix, strlen(prefix));
}

enum { MAX_LISTED = 5 };

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static size_t lower_bound(const kld_checkpoint *c, const char *name) {
    size_t lo = 0, hi = c->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(c->tensors[mid].name, name) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Layer number of PREFIXlayers.N.*; false when the name is not of that form. */
static bool layer_of(const char *name, const kld_prefix *prefix, size_t *layer) {
    if (!starts(name, prefix->base)) return false;
    name += strlen(prefix->base);
    if (!starts(name, prefix->part)) return false;
    name += strlen(prefix->part);
    size_t n = 0, digits = 0;
    for (; *name >= '0' && *name <= '9' && digits < 9; name++, digits++)
        n = n * 10 + (size_t)(*name - '0');
    *layer = n;
    return digits && *name == '.';
}

/* Why the tensor is skipped; KLD_SKIP_COUNT: it is not. */
static kld_skip skip_rule(kld_binder *b, const char *name) {
    size_t layer;
    if (layer_of(name, b->prefix, &layer) && layer >= b->r->config.layers) {
        b->n_past++;
        return KLD_SKIP_MTP;
    }
    for (const char *const *p = kld_skip_prefixes; *p; p++)
        if (starts(name, *p)) return strstr(*p, "mtp.") ? KLD_SKIP_MTP : KLD_SKIP_VISION;
    for (const char *const *s = kld_skip_suffixes; *s; s++)
        if (ends(name, *s)) return KLD_SKIP_OTHER;
    const char *indexer = b->r->arch->skipped;
    return indexer && strstr(name, indexer) ? KLD_SKIP_INDEXER : KLD_SKIP_COUNT;
}

static void skip_by_rule(kld_binder *b) {
    const kld_checkpoint *c = &b->m->ckpt;
    for (size_t i = 0; i < c->n_tensors; i++) {
        kld_skip why = skip_rule(b, c->tensors[i].name);
        if (why == KLD_SKIP_COUNT) continue;
        b->claimed[i] = true;
        b->m->n_skipped++;
        b->m->skipped[why]++;
        b->m->skipped_bytes += c->tensors[i].bytes;
    }
}

/* Usual for MTP layers, but a config with too few layers looks the same. */
static kld_status warn_past(kld_binder *b, kld_err *err) {
    if (!b->n_past) return KLD_OK;
    return kld_model_warn(b->m, err,
                          "%zu tensors of layers past num_hidden_layers (%zu) are not part of the "
                          "model",
                          b->n_past, b->r->config.layers);
}

const kld_tensor *kld_bind_find(const kld_binder *b, const char *name, bool *claimed) {
    const kld_checkpoint *c = &b->m->ckpt;
    size_t i = lower_bound(c, name);
    if (i == c->n_tensors || strcmp(c->tensors[i].name, name) != 0) return NULL;
    if (claimed) *claimed = b->claimed[i];
    return &c->tensors[i];
}

void kld_bind_claim(kld_binder *b, const kld_tensor *t) {
    b->claimed[t - b->m->ckpt.tensors] = true;
}

bool kld_bind_has(const kld_binder *b, const char *stem) {
    const kld_checkpoint *c = &b->m->ckpt;
    size_t i = lower_bound(c, stem);
    return i < c->n_tensors && starts(c->tensors[i].name, stem);
}

static bool has_under(const kld_binder *b, const char *base, const char *part) {
    char stem[KLD_MAX_NAME];
    snprintf(stem, sizeof stem, "%s%s", base, part);
    return kld_bind_has(b, stem);
}

static kld_status find_prefix(kld_binder *b, kld_err *err) {
    const kld_checkpoint *c = &b->m->ckpt;
    int best = -1;
    for (size_t i = 0; i < kld_n_prefixes; i++) {
        const kld_prefix *p = &kld_prefixes[i];
        int found = 2 * has_under(b, p->base, p->part) + has_under(b, p->head, ".");
        if (!has_under(b, p->base, "embed_tokens.") || found <= best) continue;
        b->prefix = p;
        best = found;
    }
    if (b->prefix) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "no tensor model.embed_tokens.weight, nor under model.language_model. or "
                    "language_model.model.; the first tensor is '%.200s'",
                    c->n_tensors ? c->tensors[0].name : "(none)");
}

/* Claims every tensor NAME.* and hands them over as one module. */
static kld_status gather(kld_binder *b, const char *name, kld_module *mod, kld_err *err) {
    const kld_checkpoint *c = &b->m->ckpt;
    char stem[KLD_MAX_NAME + 1];
    size_t n = (size_t)snprintf(stem, sizeof stem, "%s.", name);
    *mod = (kld_module){.prefix = name};
    for (size_t i = lower_bound(c, stem); i < c->n_tensors && starts(c->tensors[i].name, stem);
         i++) {
        if (b->claimed[i]) continue;
        if (mod->n == KLD_MAX_PARTS)
            return kld_fail(err, KLD_E_INPUT, "%.300s: more than %d tensors in one module", name,
                            KLD_MAX_PARTS);
        mod->part[mod->n] = &c->tensors[i];
        mod->suffix[mod->n++] = c->tensors[i].name + n;
        b->claimed[i] = true;
    }
    return KLD_OK;
}

static bool wants_bias(const kld_binder *b, kld_bias_rule rule) {
    switch (rule) {
    case KLD_BIAS_NONE: return false;
    case KLD_BIAS_ALWAYS: return true;
    case KLD_BIAS_IF_ATTENTION: return b->r->value[KLD_KEY_ATTENTION_BIAS] != 0;
    case KLD_BIAS_IF_MLP: return b->r->value[KLD_KEY_MLP_BIAS] != 0;
    }
    return false;
}

kld_status kld_bind_module(kld_binder *b, const char *name, const kld_expect *want, kld_weight *w,
                           kld_err *err) {
    kld_module mod;
    TRY(gather(b, name, &mod, err));
    kld_expect all = *want;
    all.quant = kld_quant_config(&b->m->ckpt);
    return kld_weight_classify(w, &mod, &all, err);
}

/* A vector that is a tensor of its own: the module would be its name without a suffix. */
static kld_status bind_bare(kld_binder *b, const char *name, size_t rows, kld_weight *w,
                            kld_err *err) {
    const kld_tensor *t = kld_bind_find(b, name, NULL);
    kld_expect want = {.rows = rows, .cols = 1};
    if (!t)
        return kld_fail(err, KLD_E_INPUT, "tensor '%.300s' is missing: expected [%zu]", name, rows);
    kld_bind_claim(b, t);
    kld_module mod = {.prefix = name, .n = 1, .part = {t}, .suffix = {"weight"}};
    return kld_weight_classify(w, &mod, &want, err);
}

/* MiMo's fused projection: in layers that slide, too, as many as the others have key/value heads.
 */
static size_t qkv_shards(const kld_binder *b) { return (size_t)b->r->value[KLD_KEY_KV_HEADS]; }

static kld_status bind_row(kld_binder *b, const kld_tensor_row *row, const char *name,
                           kld_weight *w, kld_err *err) {
    if (row->bare) return bind_bare(b, name, b->dim[row->rows], w, err);
    kld_expect want = {.rows = b->dim[row->rows],
                       .cols = b->dim[row->cols],
                       .quantizable = row->quantizable,
                       .by_row = row->slot == KLD_SLOT_EMBED,
                       .bias = wants_bias(b, row->bias)};
    if (row->slot == KLD_SLOT_QKV) want.shards = qkv_shards(b);
    return kld_bind_module(b, name, &want, w, err);
}

/* The head may be absent when the embedding stands in for it. */
static kld_status bind_head(kld_binder *b, const kld_tensor_row *row, kld_err *err) {
    kld_model *m = b->m;
    char stem[KLD_MAX_NAME];
    snprintf(stem, sizeof stem, "%s.", b->prefix->head);
    if (kld_bind_has(b, stem)) {
        m->config.tied = false;
        return bind_row(b, row, b->prefix->head, &m->global[row->slot], err);
    }
    if (!b->r->config.tied)
        return kld_fail(err, KLD_E_INPUT,
                        "tensor '%s.weight' is missing, and config.json does not tie it to the "
                        "embedding: expected [%zu, %zu]",
                        b->prefix->head, b->dim[row->rows], b->dim[row->cols]);
    m->global[row->slot] = m->global[KLD_SLOT_EMBED];
    return KLD_OK;
}

static kld_status bind_model(kld_binder *b, kld_err *err) {
    const kld_arch *a = b->r->arch;
    for (size_t i = 0; i < a->n_model; i++) {
        const kld_tensor_row *row = &a->model[i];
        if (!row->name) {
            TRY(bind_head(b, row, err));
            continue;
        }
        char name[KLD_MAX_NAME];
        snprintf(name, sizeof name, "%s%s", b->prefix->base, row->name);
        TRY(bind_row(b, row, name, &b->m->global[row->slot], err));
    }
    return KLD_OK;
}

/* Sizes that depend on the kind of attention. */
static void set_attention_dims(kld_binder *b, const kld_attention *a) {
    const kld_config *c = &b->r->config;
    b->dim[KLD_DIM_Q] = a->heads * a->head_dim;
    b->dim[KLD_DIM_K] = a->kv_heads * a->head_dim;
    b->dim[KLD_DIM_V] = a->kv_heads * a->value_dim;
    b->dim[KLD_DIM_QKV] = b->dim[KLD_DIM_Q] + b->dim[KLD_DIM_K] + b->dim[KLD_DIM_V];
    b->dim[KLD_DIM_MIXED] = a->heads * a->value_dim;
    b->dim[KLD_DIM_HEAD] = a->head_dim;
    b->dim[KLD_DIM_HEADS] = a->heads;
    b->dim[KLD_DIM_KV_A] = c->kv_lora + a->rope_dim;
    b->dim[KLD_DIM_KV_B] = a->heads * (c->nope_dim + a->value_dim);
}

static bool present(const kld_binder *b, kld_when when, size_t l) {
    const kld_config *c = &b->r->config;
    const double *v = b->r->value;
    char stem[KLD_MAX_NAME];
    switch (when) {
    case KLD_WHEN_ALWAYS: return true;
    case KLD_WHEN_DENSE: return !b->r->sparse[l];
    case KLD_WHEN_SPARSE: return b->r->sparse[l];
    case KLD_WHEN_SHARED: return b->r->sparse[l] && c->shared_intermediate;
    case KLD_WHEN_Q_LORA: return c->q_lora > 0;
    case KLD_WHEN_NO_Q_LORA: return c->q_lora == 0;
    case KLD_WHEN_QK_NORM: return v[KLD_KEY_QK_NORM] != 0;
    case KLD_WHEN_SINKS:
        return v[b->r->slides[l] ? KLD_KEY_SLIDING_SINKS : KLD_KEY_FULL_SINKS] != 0;
    case KLD_WHEN_FUSED_QKV:
    case KLD_WHEN_SPLIT_QKV:
        snprintf(stem, sizeof stem, "%s%s%zu.self_attn.qkv_proj.", b->prefix->base, b->prefix->part,
                 l);
        return kld_bind_has(b, stem) == (when == KLD_WHEN_FUSED_QKV);
    }
    return false;
}

static void set_blocks(const kld_arch *a, kld_layer *layer, bool sparse) {
    kld_slot none = KLD_SLOT_COUNT;
    layer->n_sub = KLD_MAX_SUBLAYERS;
    layer->sub[0] =
        (kld_sublayer){a->attention, KLD_SLOT_ATTN_NORM, a->post_norms ? KLD_SLOT_ATTN_POST : none};
    layer->sub[1] = (kld_sublayer){sparse ? KLD_BLOCK_EXPERTS : KLD_BLOCK_MLP, KLD_SLOT_MLP_NORM,
                                   a->post_norms ? KLD_SLOT_MLP_POST : none};
}

static kld_status bind_layer(kld_binder *b, size_t l, kld_err *err) {
    const kld_arch *a = b->r->arch;
    kld_layer *layer = &b->m->layer[l];
    set_blocks(a, layer, b->r->sparse[l]);
    layer->attn = &b->m->config.attn[b->r->slides[l]];
    set_attention_dims(b, layer->attn);
    for (size_t i = 0; i < a->n_layer; i++) {
        const kld_tensor_row *row = &a->layer[i];
        char name[KLD_MAX_NAME];
        if (!present(b, row->when, l)) continue;
        snprintf(name, sizeof name, "%s%s%zu.%s", b->prefix->base, b->prefix->part, l, row->name);
        TRY(bind_row(b, row, name, &layer->slot[row->slot], err));
    }
    kld_weight *qkv = &layer->slot[KLD_SLOT_QKV];
    if (qkv->rows) {
        size_t n = qkv_shards(b);
        if (layer->attn->kv_heads % n || layer->attn->heads % n)
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "layer %zu: %zu and %zu heads in %zu shards of self_attn.qkv_proj", l,
                            layer->attn->heads, layer->attn->kv_heads, n);
        qkv->shards = n;
        qkv->shard_rows[0] = b->dim[KLD_DIM_Q] / n;
        qkv->shard_rows[1] = b->dim[KLD_DIM_K] / n;
        qkv->shard_rows[2] = b->dim[KLD_DIM_V] / n;
    }
    return b->r->sparse[l] ? kld_bind_experts(b, l, err) : KLD_OK;
}

static kld_status check_claimed(const kld_binder *b, kld_err *err) {
    const kld_checkpoint *c = &b->m->ckpt;
    kld_buf list = {0};
    size_t n = 0;
    kld_status st = KLD_OK;
    for (size_t i = 0; st == KLD_OK && i < c->n_tensors; i++) {
        char text[160];
        if (b->claimed[i] || ++n > MAX_LISTED) continue;
        st = kld_buf_addf(&list, err, "%s'%.120s' (%s)", n > 1 ? ", " : "", c->tensors[i].name,
                          kld_tensor_text(&c->tensors[i], text, sizeof text));
    }
    if (st == KLD_OK && n)
        st =
            kld_fail(err, KLD_E_INPUT, "%zu tensor%s of the file ha%s no place in a %s model: %s%s",
                     n, n > 1 ? "s" : "", n > 1 ? "ve" : "s", b->r->arch->family, (char *)list.data,
                     n > MAX_LISTED ? ", ..." : "");
    kld_buf_free(&list);
    return st;
}

static void set_dims(kld_binder *b) {
    const kld_config *c = &b->r->config;
    b->dim[KLD_DIM_ONE] = 1;
    b->dim[KLD_DIM_VOCAB] = c->vocab;
    b->dim[KLD_DIM_HIDDEN] = c->hidden;
    b->dim[KLD_DIM_INTERMEDIATE] = c->intermediate;
    b->dim[KLD_DIM_Q_LORA] = c->q_lora;
    b->dim[KLD_DIM_KV_LORA] = c->kv_lora;
    b->dim[KLD_DIM_EXPERTS] = c->router.experts;
    b->dim[KLD_DIM_SHARED] = c->shared_intermediate;
}

kld_status kld_model_bind(kld_model *m, const kld_config_read *r, kld_err *err) {
    kld_binder b = {.m = m, .r = r};
    set_dims(&b);
    TRY(find_prefix(&b, err));
    TRY(NEW_ARRAY(&b.claimed, m->ckpt.n_tensors, err));
    kld_status st = ARENA_ARRAY(&m->arena, &m->layer, r->config.layers, err);
    if (st == KLD_OK) {
        skip_by_rule(&b);
        st = warn_past(&b, err);
    }
    if (st == KLD_OK) st = bind_model(&b, err);
    for (size_t l = 0; st == KLD_OK && l < r->config.layers; l++) st = bind_layer(&b, l, err);
    if (st == KLD_OK) st = check_claimed(&b, err);
    kld_free(b.claimed);
    return st;
}
