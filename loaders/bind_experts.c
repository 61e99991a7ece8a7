/* Experts: one module each, or all of a layer stacked in a few tensors. */
#include "loaders/bind_impl.h"

#include <stdio.h>
#include <string.h>

/* One module an expert and projection. */
static kld_status bind_split(kld_binder *b, const char *base, kld_layer *layer, kld_err *err) {
    const kld_expert_row *row = b->r->arch->experts;
    const kld_config *c = &b->r->config;
    kld_expect wide = {.rows = c->expert_intermediate, .cols = c->hidden, .quantizable = true};
    kld_expect back = {.rows = c->hidden, .cols = c->expert_intermediate, .quantizable = true};
    for (size_t e = 0; e < c->router.experts; e++) {
        char name[KLD_MAX_NAME];
        snprintf(name, sizeof name, "%s.%zu.%s", base, e, row->gate);
        TRY(kld_bind_module(b, name, &wide, &layer->expert[e].gate, err));
        snprintf(name, sizeof name, "%s.%zu.%s", base, e, row->up);
        TRY(kld_bind_module(b, name, &wide, &layer->expert[e].up, err));
        snprintf(name, sizeof name, "%s.%zu.%s", base, e, row->down);
        TRY(kld_bind_module(b, name, &back, &layer->expert[e].down, err));
    }
    return KLD_OK;
}

static kld_status stacked_tensor(kld_binder *b, const char *name, unsigned rank,
                                 const size_t shape[4], const kld_tensor **out, kld_err *err) {
    char found[160], want[96] = "";
    const kld_tensor *t = kld_bind_find(b, name, NULL);
    *out = t;
    size_t at = 0;
    bool same = t && t->rank == rank;
    for (unsigned i = 0; i < rank; i++) {
        int n = snprintf(want + at, sizeof want - at, "%s%zu", i ? ", " : "", shape[i]);
        at += n > 0 ? (size_t)n : 0;
        same = same && t->shape[i] == shape[i];
    }
    if (!t)
        return kld_fail(err, KLD_E_INPUT, "tensor '%.300s' is missing: expected [%s]", name, want);
    kld_bind_claim(b, t);
    if (same) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%.300s: expected shape [%s], found %s", name, want,
                    kld_tensor_text(t, found, sizeof found));
}

static kld_status dense_format(const kld_tensor *t, kld_format *out, kld_err *err) {
    char found[160];
    switch (t->dtype) {
    case KLD_BF16: *out = KLD_FMT_BF16; return KLD_OK;
    case KLD_F16: *out = KLD_FMT_F16; return KLD_OK;
    case KLD_F32: *out = KLD_FMT_F32; return KLD_OK;
    default:
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%.300s: stacked experts of this type are not implemented: %s", t->name,
                        kld_tensor_text(t, found, sizeof found));
    }
}

/* NAME [E, rows, cols] (or [E, cols, rows]); or NAME_blocks [E, rows, cols/32, 16] with NAME_scales
 * [E, rows, cols/32], which are MXFP4 (gpt-oss). */
static kld_status bind_stack(kld_binder *b, const char *base, const char *name, size_t rows,
                             size_t cols, kld_weight *w, kld_err *err) {
    const kld_expert_row *row = b->r->arch->experts;
    size_t n = b->r->config.router.experts;
    char full[KLD_MAX_NAME], found[160];
    *w = (kld_weight){
        .rows = rows,
        .cols = cols,
    };
    snprintf(full, sizeof full, "%s.%s", base, name);
    char blocked[KLD_MAX_NAME];
    snprintf(blocked, sizeof blocked, "%s.%s_blocks", base, name);
    if (!kld_bind_find(b, blocked, NULL)) {
        w->in_major = row->in_major;
        size_t shape[4] = {n, w->in_major ? cols : rows, w->in_major ? rows : cols};
        TRY(stacked_tensor(b, full, 3, shape, &w->data, err));
        TRY(dense_format(w->data, &w->format, err));
    } else {
        /* The order of gate and up is no property of the tensor. */
        if (!row->interleaved)
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "%.300s: stacked MXFP4 experts are those of gpt-oss; in a %s model "
                            "the order of their rows is not known",
                            blocked, b->r->arch->family);
        w->format = KLD_FMT_MXFP4;
        w->block_cols = 32;
        if (cols % 32)
            return kld_fail(err, KLD_E_INPUT,
                            "%.300s: MXFP4 needs rows in blocks of 32, but they have %zu", full,
                            cols);
        size_t blocks[4] = {n, rows, cols / 32, 16}, scales[4] = {n, rows, cols / 32};
        TRY(stacked_tensor(b, blocked, 4, blocks, &w->data, err));
        snprintf(full, sizeof full, "%s.%s_scales", base, name);
        TRY(stacked_tensor(b, full, 3, scales, &w->scale, err));
        if (w->data->dtype != KLD_U8 ||
            (w->scale->dtype != KLD_U8 && w->scale->dtype != KLD_F8_E8M0))
            return kld_fail(err, KLD_E_INPUT, "%.300s: expected U8 blocks and scales, found %s",
                            w->data->name,
                            kld_tensor_text(w->data->dtype != KLD_U8 ? w->data : w->scale, found,
                                            sizeof found));
    }
    if (!row->biased) return KLD_OK;
    size_t shape[4] = {n, rows};
    kld_format ignored;
    snprintf(full, sizeof full, "%s.%s_bias", base, name);
    TRY(stacked_tensor(b, full, 2, shape, &w->bias, err));
    return dense_format(w->bias, &ignored, err);
}

/* The n equal slices of a tensor along its first dimension; *out NULL for none. */
static kld_status slices(kld_binder *b, const kld_tensor *t, size_t n, kld_tensor **out,
                         kld_err *err) {
    *out = NULL;
    if (!t) return KLD_OK;
    TRY(ARENA_ARRAY(&b->m->arena, out, n, err));
    for (size_t e = 0; e < n; e++) {
        kld_tensor *s = &(*out)[e];
        *s = *t;
        s->rank--;
        memmove(s->shape, s->shape + 1, s->rank * sizeof *s->shape);
        s->bytes = t->bytes / n;
        s->offset = t->offset + e * s->bytes;
    }
    return KLD_OK;
}

static kld_status bind_stacked(kld_binder *b, const char *base, kld_layer *layer, kld_err *err) {
    const kld_config *c = &b->r->config;
    size_t width = c->expert_intermediate, n = c->router.experts;
    static const char *const name[2] = {"gate_up_proj", "down_proj"};
    const size_t rows[2] = {2 * width, c->hidden}, cols[2] = {c->hidden, width};
    for (int i = 0; i < 2; i++) {
        kld_weight all;
        kld_tensor *data, *scale, *bias;
        TRY(bind_stack(b, base, name[i], rows[i], cols[i], &all, err));
        TRY(slices(b, all.data, n, &data, err));
        TRY(slices(b, all.scale, n, &scale, err));
        TRY(slices(b, all.bias, n, &bias, err));
        if (!i && b->r->arch->experts->interleaved) {
            all.shards = width;
            all.shard_rows[0] = all.shard_rows[1] = 1;
        }
        for (size_t e = 0; e < n; e++) {
            kld_weight *w = i ? &layer->expert[e].down : &layer->expert[e].gate;
            *w = all;
            w->data = data + e;
            if (scale) w->scale = scale + e;
            if (bias) w->bias = bias + e;
        }
    }
    return KLD_OK;
}

kld_status kld_bind_experts(kld_binder *b, size_t l, kld_err *err) {
    const kld_expert_row *row = b->r->arch->experts;
    const kld_config *c = &b->r->config;
    kld_layer *layer = &b->m->layer[l];
    char base[KLD_MAX_NAME / 2], stem[KLD_MAX_NAME];
    TRY(ARENA_ARRAY(&b->m->arena, &layer->expert, c->router.experts, err));
    snprintf(base, sizeof base, "%s%s%zu.%s", b->prefix->base, b->prefix->part, l, row->prefix);
    snprintf(stem, sizeof stem, "%s.gate_up_proj", base);
    return kld_bind_has(b, stem) ? bind_stacked(b, base, layer, err)
                                 : bind_split(b, base, layer, err);
}
