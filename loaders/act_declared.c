#include "loaders/act_declared.h"

#include "loaders/act_config.h"
#include "loaders/bind.h"
#include "loaders/match.h"
#include "loaders/quant_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *kld_fused_scale_name(kld_fused_scale f) { return f == KLD_FUSED_MAX ? "max" : "own"; }

bool kld_act_is_static(kld_act_format f) { return f == KLD_AQ_NVFP4 || f == KLD_AQ_FP8_TENSOR; }

static bool is_dense(kld_format f) { return f <= KLD_FMT_F32; }

/* Weights are bound, and this fills them in; the walk over them is for readers. */
static kld_weight *writable(kld_model *m, const kld_weight_at *at) {
    kld_layer *l = at->layer ? &m->layer[at->layer - 1] : NULL;
    kld_expert *e = l && at->slot >= KLD_SLOT_EXPERT_GATE ? &l->expert[at->expert] : NULL;
    if (!e) return l ? &l->slot[at->slot] : &m->global[at->slot];
    return at->slot == KLD_SLOT_EXPERT_GATE ? &e->gate
           : at->slot == KLD_SLOT_EXPERT_UP ? &e->up
                                            : &e->down;
}

/* ---- declarations ------------------------------------------------------------------------ */

/* An input scale beside a weight is a declaration by itself. */
static kld_act_format by_tensors(const kld_weight *w, const char **refused) {
    if (!w->input_scale) return KLD_AQ_NONE;
    switch (w->format) {
    case KLD_FMT_NVFP4: return KLD_AQ_NVFP4;
    case KLD_FMT_MXFP4:
    case KLD_FMT_FP8_TENSOR:
    case KLD_FMT_FP8_CHANNEL: return KLD_AQ_FP8_TENSOR;
    default: *refused = "an input scale that the config says nothing of"; return KLD_AQ_NONE;
    }
}

static kld_status declare(kld_act_config *c, kld_weight *w, kld_slot slot, bool tied,
                          kld_err *err) {
    char module[KLD_NAME_MAX];
    kld_act_said said;
    w->act = (kld_act_quant){0};
    w->act_refused = NULL;
    if (is_dense(w->format)) return KLD_OK;
    if (slot == KLD_SLOT_EMBED) { /* no product, but that of a tied head */
        if (tied && w->input_scale) w->act_refused = "an input scale of a tied embedding";
        return KLD_OK;
    }
    kld_quant_module(w, slot, module, sizeof module);
    TRY(kld_act_config_of(c, module, &said, err));
    bool other = said.formats && !(said.formats >> w->format & 1u);
    if (said.by_tensors || (other && w->input_scale)) {
        w->act.format = by_tensors(w, &w->act_refused);
        return KLD_OK;
    }
    w->act = said.quant;
    w->act_refused = said.refused;
    if (!other || said.quant.format == KLD_AQ_NONE) return KLD_OK;
    /* Of a weight in another format than the config's it says nothing that could be trusted. */
    w->act = (kld_act_quant){0};
    w->act_refused = "what the config says of weights in another format";
    return KLD_OK;
}

kld_status kld_act_declare(kld_model *m, kld_err *err) {
    kld_act_config *c;
    TRY(kld_act_config_open(&c, m, err));
    kld_status st = KLD_OK;
    for (kld_weight_at at = {0}; st == KLD_OK && kld_model_next_weight(m, &at);)
        st = declare(c, writable(m, &at), at.slot, m->config.tied, err);
    kld_act_config_close(c);
    return st;
}

/* ---- scales ------------------------------------------------------------------------------ */

/* Weights whose static scale cannot be used, and what all static scales have in common. */
typedef struct tally {
    size_t bad, read, ones, taken;
    const kld_weight *first; /* bad */
    float value;             /* of its tensor */
} tally;

/* Of input scales that multiply; NVFP4's `scale` is the reciprocal, which compressed-tensors
 * stores. */
static bool is_divisor(const kld_weight *w) { return w->act.format == KLD_AQ_NVFP4; }

static bool usable(float scale) { return scale >= 0x1p-100f && scale <= 0x1p100f; }

static kld_status read_scale(const kld_model *m, kld_weight *w, tally *t, kld_err *err) {
    unsigned char bytes[4] = {0};
    const kld_tensor *s = w->input_scale;
    if (!s) return KLD_OK; /* act.scale is 0, or 1 where that stands for none */
    TRY(kld_checkpoint_read(&m->ckpt, s, 0, bytes, kld_dtype_bits(s->dtype) / 8, err));
    float v = kld_scale_value(s, bytes, 0);
    t->read++;
    t->ones += v == 1;
    w->act.scale = usable(v) ? is_divisor(w) && !w->global_divides ? 1.0f / v : v : 0;
    if (!usable(w->act.scale) && !t->value) t->value = v;
    return KLD_OK;
}

/* The weights of a fused group that have static scales of one kind. */
typedef struct group {
    kld_act_format format;
    float scale; /* of the largest input scale; 0: none yet */
} group;

static void widen(group *g, const kld_weight *w) {
    if (w->act.format != g->format || !usable(w->act.scale)) return;
    bool larger = is_divisor(w) ? w->act.scale < g->scale : w->act.scale > g->scale;
    if (g->scale == 0 || larger) g->scale = w->act.scale;
}

static void narrow(const group *g, kld_weight *w, tally *t) {
    if (w->act.format != g->format || g->scale == 0) return;
    t->taken += !usable(w->act.scale);
    w->act.scale = g->scale;
}

static void fuse(kld_weight *const *w, size_t n, tally *t) {
    static const kld_act_format formats[] = {KLD_AQ_NVFP4, KLD_AQ_FP8_TENSOR};
    for (size_t f = 0; f < 2; f++) {
        group g = {.format = formats[f]};
        for (size_t i = 0; i < n; i++) widen(&g, w[i]);
        for (size_t i = 0; i < n; i++) narrow(&g, w[i], t);
    }
}

static void fuse_experts(kld_expert *e, size_t n, tally *t) {
    static const kld_act_format formats[] = {KLD_AQ_NVFP4, KLD_AQ_FP8_TENSOR};
    for (size_t f = 0; f < 2; f++) {
        group in = {.format = formats[f]}, out = in;
        for (size_t i = 0; i < n; i++) {
            widen(&in, &e[i].gate);
            widen(&in, &e[i].up);
            widen(&out, &e[i].down);
        }
        for (size_t i = 0; i < n; i++) {
            narrow(&in, &e[i].gate, t);
            narrow(&in, &e[i].up, t);
            narrow(&out, &e[i].down, t);
        }
    }
}

static void fuse_layer(kld_model *m, kld_layer *l, tally *t) {
    static const kld_slot groups[][3] = {
        {KLD_SLOT_Q, KLD_SLOT_K, KLD_SLOT_V},
        {KLD_SLOT_GATE, KLD_SLOT_UP, KLD_SLOT_UP},
        {KLD_SLOT_SHARED_GATE, KLD_SLOT_SHARED_UP, KLD_SLOT_SHARED_UP},
        {KLD_SLOT_Q_A, KLD_SLOT_KV_A, KLD_SLOT_KV_A},
    };
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        kld_weight *w[3];
        for (size_t i = 0; i < 3; i++) w[i] = &l->slot[groups[g][i]];
        fuse(w, 3, t);
    }
    if (l->expert) fuse_experts(l->expert, m->config.router.experts, t);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static kld_status check_declared(const kld_model *m, kld_err *err) {
    const kld_weight *first = NULL;
    size_t n = 0;
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (!at.w->act_refused) continue;
        if (!n++) first = at.w;
    }
    if (!n) return KLD_OK;
    return kld_fail(
        err, KLD_E_UNSUPPORTED,
        "'%.300s' (%s): the quantization declared for its inputs is not emulated: %s (%zu such "
        "weight%s); use --activations weights-only",
        first->data->name, kld_format_name(first->format), first->act_refused, n, n > 1 ? "s" : "");
}

static kld_status bad_scale(const kld_weight *w, const tally *t, kld_fused_scale fused,
                            kld_err *err) {
    char found[64];
    const char *name = w->input_scale ? w->input_scale->name : w->data->name;
    snprintf(found, sizeof found, "found %g", (double)t->value);
    return kld_fail(err, KLD_E_INPUT,
                    "%s'%.300s': expected a positive finite input scale for %s inputs, %s (%zu "
                    "such weight%s); use %s--activations weights-only",
                    w->input_scale ? "" : "weight ", name, kld_act_format_name(w->act.format),
                    w->input_scale ? found : "found none", t->bad, t->bad > 1 ? "s" : "",
                    fused == KLD_FUSED_OWN
                        ? "--fused-input-scale max, which takes that of fused neighbours, or "
                        : "");
}

static kld_status check_scales(kld_model *m, tally *t, kld_fused_scale fused, kld_err *err) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (!kld_act_is_static(at.w->act.format) || usable(at.w->act.scale)) continue;
        if (!t->bad++) t->first = at.w;
    }
    if (!t->bad) return KLD_OK;
    tally of = {0};
    kld_weight again = *t->first;
    TRY(read_scale(m, &again, &of, err));
    t->value = of.value;
    return bad_scale(t->first, t, fused, err);
}

static kld_status check_blocks(const kld_model *m, kld_err *err) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        TRY(kld_where(err, kld_act_check(&at.w->act, at.w->cols, err), "%.300s", at.w->data->name));
    return KLD_OK;
}

static kld_status note(kld_model *m, const tally *t, kld_err *err) {
    if (t->read > 1 && t->ones == t->read)
        TRY(kld_model_warn(m, err,
                           "all %zu input scales are 1, which writers put where nobody calibrated; "
                           "quantized inputs may mean little, --activations weights-only does not "
                           "use them",
                           t->read));
    if (!t->taken) return KLD_OK;
    return kld_model_warn(m, err,
                          "%zu input scales are missing or not positive; the largest of the "
                          "weights they are fused with is used",
                          t->taken);
}

kld_status kld_act_resolve(kld_model *m, kld_fused_scale fused, kld_err *err) {
    tally t = {0};
    TRY(kld_act_declare(m, err));
    TRY(check_declared(m, err));
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        if (kld_act_is_static(at.w->act.format)) TRY(read_scale(m, writable(m, &at), &t, err));
    if (fused == KLD_FUSED_MAX)
        for (size_t l = 0; l < m->config.layers; l++) fuse_layer(m, &m->layer[l], &t);
    TRY(check_scales(m, &t, fused, err));
    TRY(check_blocks(m, err));
    return note(m, &t, err);
}
