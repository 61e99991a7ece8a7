#include "logits/stage.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

enum { PART_ALIGN = 256, EXPERT_SLOTS = 3 };

static uint64_t padded(uint64_t n) { return num_cdiv(n, PART_ALIGN) * PART_ALIGN; }

static const kld_weight *expert_weight(const kld_expert *e, size_t i) {
    return i == 0 ? &e->gate : i == 1 ? &e->up : &e->down;
}

static kld_use use_of(const kld_model *m, kld_slot slot) {
    switch (slot) {
    case KLD_SLOT_EMBED: return KLD_USE_EMBEDDING;
    case KLD_SLOT_ROUTER: return KLD_USE_ROUTER;
    case KLD_SLOT_SINKS:
    case KLD_SLOT_ROUTER_BIAS: return KLD_USE_VECTOR;
    case KLD_SLOT_FINAL_NORM:
    case KLD_SLOT_ATTN_NORM:
    case KLD_SLOT_Q_A_NORM:
    case KLD_SLOT_KV_A_NORM:
    case KLD_SLOT_Q_NORM:
    case KLD_SLOT_K_NORM:
    case KLD_SLOT_ATTN_POST:
    case KLD_SLOT_MLP_NORM:
    case KLD_SLOT_MLP_POST:
        return m->config.norm_plus_one ? KLD_USE_VECTOR_PLUS_ONE : KLD_USE_VECTOR;
    default: return KLD_USE_MATRIX;
    }
}

/* The i-th candidate of the stage, which may be absent (NULL); false past the last. */
static bool candidate(const kld_model *m, const kld_stage_key *key, size_t i,
                      kld_stage_weight *out) {
    size_t first = KLD_SLOT_ATTN_NORM;
    switch (key->kind) {
    case KLD_STAGE_EMBED:
        out->slot = KLD_SLOT_EMBED;
        out->w = &m->global[KLD_SLOT_EMBED];
        return i == 0;
    case KLD_STAGE_HEAD:
        out->slot = i ? KLD_SLOT_HEAD : KLD_SLOT_FINAL_NORM;
        out->w = &m->global[out->slot];
        return i < 2;
    case KLD_STAGE_LAYER:
        if (i >= KLD_SLOT_EXPERT_GATE - first) return false;
        out->slot = (kld_slot)(first + i);
        out->w = &m->layer[key->layer].slot[out->slot];
        return true;
    case KLD_STAGE_EXPERTS: break;
    }
    if (i >= key->n_experts * EXPERT_SLOTS) return false;
    out->expert = i / EXPERT_SLOTS;
    out->slot = (kld_slot)(KLD_SLOT_EXPERT_GATE + i % EXPERT_SLOTS);
    out->w =
        expert_weight(&m->layer[key->layer].expert[key->expert + out->expert], i % EXPERT_SLOTS);
    return true;
}

bool kld_stage_next(const kld_model *m, const kld_stage_key *key, size_t *at,
                    kld_stage_weight *out) {
    memset(out, 0, sizeof *out);
    while (candidate(m, key, (*at)++, out)) {
        if (!out->w->rows) continue;
        out->use = use_of(m, out->slot);
        return true;
    }
    return false;
}

void kld_stage_of(const kld_model *m, const kld_stage_key *key, kld_stage_weight *room,
                  kld_stage *out) {
    kld_stage_weight w;
    memset(out, 0, sizeof *out);
    out->key = *key;
    out->weight = room;
    for (size_t at = 0; kld_stage_next(m, key, &at, &w); out->n++) {
        for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++) {
            const kld_tensor *t = kld_weight_part(w.w, p);
            w.at[p] = out->raw_bytes;
            if (t) out->raw_bytes += padded(t->bytes);
        }
        out->bytes += kld_weight_bytes(w.w);
        if (room) room[out->n] = w;
    }
}

/* ---- schedule -------------------------------------------------------------------------- */

/* How many experts of a layer make a group. */
static size_t group_of(const kld_model *m, size_t layer, uint64_t group_bytes, size_t group) {
    size_t n = num_max(m->config.router.experts, 1); /* a layer with experts has some */
    if (group) return num_min(group, n);
    kld_stage_key one = {KLD_STAGE_EXPERTS, layer, 0, 1};
    uint64_t most = 1;
    for (; one.expert < n; one.expert++) {
        kld_stage s;
        kld_stage_of(m, &one, NULL, &s);
        most = num_max(most, s.raw_bytes);
    }
    size_t fit = (size_t)num_max(1, num_min(n, group_bytes / most)), groups = num_cdiv(n, fit);
    return groups ? num_cdiv(n, groups) : n;
}

static size_t count_groups(const kld_model *m, size_t layer, uint64_t group_bytes, size_t group) {
    if (!m->layer[layer].expert) return 0;
    return num_cdiv(m->config.router.experts, group_of(m, layer, group_bytes, group));
}

kld_status kld_schedule_make(kld_schedule *s, const kld_model *m, uint64_t group_bytes,
                             size_t group, kld_err *err) {
    size_t layers = m->config.layers, n = layers + 2;
    *s = (kld_schedule){0};
    for (size_t l = 0; l < layers; l++) n += count_groups(m, l, group_bytes, group);
    TRY(NEW_ARRAY(&s->stage, n, err));
    s->stage[s->n++] = (kld_stage_key){.kind = KLD_STAGE_EMBED};
    for (size_t l = 0; l < layers; l++) {
        s->stage[s->n++] = (kld_stage_key){.kind = KLD_STAGE_LAYER, .layer = l};
        if (!m->layer[l].expert) continue;
        size_t step = group_of(m, l, group_bytes, group), all = m->config.router.experts;
        for (size_t e = 0; e < all; e += step)
            s->stage[s->n++] = (kld_stage_key){KLD_STAGE_EXPERTS, l, e, num_min(step, all - e)};
    }
    s->stage[s->n++] = (kld_stage_key){.kind = KLD_STAGE_HEAD, .layer = layers};
    return KLD_OK;
}

void kld_schedule_free(kld_schedule *s) {
    kld_free(s->stage);
    *s = (kld_schedule){0};
}

size_t kld_schedule_layer(const kld_schedule *s, size_t layer) {
    size_t i = 1;
    while (i + 1 < s->n && s->stage[i].layer < layer) i++;
    return i;
}

uint64_t kld_schedule_pair_bytes(const kld_model *m, const kld_schedule *s, size_t first) {
    uint64_t most = 0, before = 0;
    for (size_t i = first; i < s->n; i++) {
        kld_stage t;
        kld_stage_of(m, &s->stage[i], NULL, &t);
        most = num_max(most, before + t.raw_bytes);
        before = t.raw_bytes;
    }
    return most;
}

size_t kld_schedule_weights(const kld_model *m, const kld_schedule *s, size_t first) {
    size_t most = 0;
    for (size_t i = first; i < s->n; i++) {
        kld_stage t;
        kld_stage_of(m, &s->stage[i], NULL, &t);
        most = num_max(most, t.n);
    }
    return most;
}
