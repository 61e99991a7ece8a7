#include "loaders/model.h"

#include "loaders/arch.h"
#include "loaders/bind.h"
#include "loaders/config.h"
#include "loaders/notes.h"
#include "loaders/quant_config.h"

#include <string.h>

/* A model may have far more layers in its config than its file; the arrays are sized by
 * the config, so it is checked against the number of tensors first. */
static kld_status check_layers(const kld_checkpoint *c, const kld_config *cfg, kld_err *err) {
    if (cfg->layers <= c->n_tensors) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "num_hidden_layers is %zu, but the checkpoint has only %zu tensors",
                    cfg->layers, c->n_tensors);
}

static kld_status build(kld_model *m, kld_err *err) {
    kld_config_read r;
    TRY(kld_config_parse(&r, m->ckpt.config, &m->arena, err));
    TRY(check_layers(&m->ckpt, &r.config, err));
    m->arch = r.arch;
    m->family = r.arch->family;
    m->config = r.config;
    TRY(kld_model_bind(m, &r, err));
    TRY(kld_quant_config_check(m, err));
    TRY(kld_model_notes(m, r.config.tied, err));
    return kld_model_label(m, err);
}

kld_status kld_model_open(kld_model **out, const char *dir, kld_err *err) {
    *out = NULL;
    kld_model *m;
    TRY(NEW_ARRAY(&m, 1, err));
    kld_status st = kld_checkpoint_open(&m->ckpt, dir, err);
    if (st == KLD_OK) st = kld_where(err, build(m, err), "%s", dir);
    if (st == KLD_OK) *out = m;
    else kld_model_free(m);
    return st;
}

void kld_model_free(kld_model *m) {
    if (!m) return;
    kld_checkpoint_close(&m->ckpt);
    kld_free(m->label);
    kld_arena_free(&m->arena);
    kld_free(m);
}

static uint64_t weight_elements(const kld_weight *w) {
    return (uint64_t)w->rows * w->cols + (w->bias ? w->rows : 0);
}

bool kld_model_next_weight(const kld_model *m, kld_weight_at *at) {
    static const kld_weight absent;
    for (;; at->next++) {
        size_t i = at->next, n = KLD_SLOT_EXPERT_GATE;
        const kld_weight *own = at->layer ? m->layer[at->layer - 1].slot : m->global, *w = &absent;
        const kld_expert *experts = at->layer ? m->layer[at->layer - 1].expert : NULL;
        if (i < n) {
            bool shared = !at->layer && i == KLD_SLOT_HEAD && m->config.tied;
            at->slot = (kld_slot)i;
            if (!shared) w = &own[i];
        } else if (experts && (i - n) / 3 < m->config.router.experts) {
            at->expert = (i - n) / 3;
            const kld_expert *e = &experts[at->expert];
            at->slot = (kld_slot)(n + (i - n) % 3);
            w = (i - n) % 3 == 0 ? &e->gate : (i - n) % 3 == 1 ? &e->up : &e->down;
        } else {
            if (at->layer++ == m->config.layers) return false;
            at->next = SIZE_MAX;
            continue;
        }
        if (!w->rows) continue;
        at->w = w;
        at->next++;
        return true;
    }
}

static bool is_expert(kld_slot s) {
    return s == KLD_SLOT_EXPERT_GATE || s == KLD_SLOT_EXPERT_UP || s == KLD_SLOT_EXPERT_DOWN;
}

size_t kld_model_expert_layers(const kld_model *m, size_t n) {
    size_t found = 0;
    for (size_t l = 0; l < n; l++) found += m->layer[l].expert != NULL;
    return found;
}

uint64_t kld_model_parameters(const kld_model *m) {
    uint64_t n = 0;
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) n += weight_elements(at.w);
    return n;
}

uint64_t kld_model_active_parameters(const kld_model *m) {
    uint64_t n = 0;
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        if (!is_expert(at.slot) || at.expert < m->config.router.top_k) n += weight_elements(at.w);
    return n;
}
