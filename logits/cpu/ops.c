/* Row-wise operations: embedding, norms, rotation, gated activation, sums. */
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"

#include <math.h>
#include <string.h>

VM_INLINE void load_some(vf *v, const float *p, size_t k) {
    if (k >= VL) {
        vf_load(v, p);
    } else {
        memset(v, 0, sizeof *v);
        memcpy(v, p, k * sizeof *p);
    }
}

VM_INLINE void store_some(float *p, const vf *v, size_t k) {
    if (k >= VL) vf_store(p, v);
    else memcpy(p, v, k * sizeof *p);
}

static bool rounds(const kld_device *dev, kld_view y) {
    return dev->bf16 && y.elem == KLD_ELEM_ACT;
}

kld_status cpu_embed(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, float scale,
                     kld_view y, kld_err *err) {
    (void)err;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < y.rows; r++) {
        float *row = view_row(y, r);
        kld_weight_decode(w->raw.w, w->raw.v, ids[r], 1, false, row);
        for (size_t i = 0; scale != 1.0f && i < y.cols; i++) row[i] *= scale;
    }
    return KLD_OK;
}

/* Sum of squares in FP64: lane i takes columns i, i+16, ..., then a fixed tree. */
CLONES static void norm_row(const float *x, const float *w, size_t n, double eps, bool bf16,
                            bool add, float *y) {
    vd sum = {0};
    for (size_t i = 0; i < n; i += VL) {
        vf v;
        load_some(&v, x + i, n - i);
        vd d = __builtin_convertvector(v, vd);
        sum += d * d;
    }
    float scale = (float)(1.0 / sqrt(vd_sum(&sum) / (double)n + eps));
    for (size_t i = 0; i < n; i += VL) {
        vf v, g;
        load_some(&v, x + i, n - i);
        load_some(&g, w + i, n - i);
        v = g * (v * scale);
        if (bf16) vf_bf16(&v);
        if (add) {
            load_some(&g, y + i, n - i);
            v = g + v;
        }
        store_some(y + i, &v, n - i);
    }
}

kld_status cpu_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                    bool add, kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < x.rows; r++)
        norm_row(view_row(x, r), w->data, x.cols, eps, bf16, add, view_row(y, r));
    return KLD_OK;
}

/* One head: cosv and sinv have `half` angles. */
CLONES static void rope_head(const float *x, const kld_rope_args *a, const float *cosv,
                             const float *sinv, size_t half, float *y) {
    size_t first = a->first, step = a->interleaved ? 2 : 1, apart = a->interleaved ? 1 : half;
    for (size_t i = 0; i < first; i++) y[i] = x[i];
    for (size_t i = 0; i < half; i++) {
        size_t p = first + step * i, q = p + apart;
        float u = x[p], v = x[q];
        y[p] = u * cosv[i] - v * sinv[i];
        y[q] = v * cosv[i] + u * sinv[i];
    }
    for (size_t i = first + 2 * half; i < a->dim; i++) y[i] = x[i];
}

CLONES static void finish_rope(float *y, size_t cols, float factor, bool bf16) {
    if (!bf16 && factor == 1.0f) return;
    for (size_t i = 0; i < cols; i += VL) {
        vf v;
        load_some(&v, y + i, cols - i);
        v *= factor;
        if (bf16) vf_bf16(&v);
        store_some(y + i, &v, cols - i);
    }
}

kld_status cpu_rope(kld_device *dev, const kld_batch *b, kld_view x, const kld_rope_args *a,
                    kld_view y, kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y);
    size_t half = a->table ? a->table->half : 0, dim = a->dim;
    size_t norm = a->w ? num_min(a->w->rows, x.cols) : 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t i = 0; i < b->n; i++) {
        const kld_span *s = &b->span[i];
        for (size_t r = 0; r < s->n; r++) {
            size_t at = (s->pos + r) * half;
            float *in = view_row(x, s->row + r), *out = view_row(y, s->row + r);
            for (size_t h = 0; a->w && h < x.cols; h += norm)
                norm_row(in + h, a->w->data, norm, a->eps, false, false, in + h);
            for (size_t h = 0; h < x.cols; h += dim)
                rope_head(in + h, a, half ? a->table->cos_tab + at : NULL,
                          half ? a->table->sin_tab + at : NULL, half, out + h);
            finish_rope(out, x.cols, a->factor ? a->factor[s->pos + r] : 1.0f, bf16);
        }
    }
    return KLD_OK;
}

kld_status cpu_spread(kld_device *dev, kld_view kv, kld_view r, size_t heads, kld_view k,
                      kld_view v, kld_err *err) {
    (void)err;
    size_t rope = r.cols, nope = k.cols / heads - rope, value = v.cols / heads;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t i = 0; i < kv.rows; i++) {
        const float *from = view_row(kv, i), *rot = view_row(r, i);
        float *key = view_row(k, i), *val = view_row(v, i);
        for (size_t h = 0; h < heads; h++, from += nope + value) {
            memcpy(key + h * (nope + rope), from, nope * sizeof *from);
            if (rope) memcpy(key + h * (nope + rope) + nope, rot, rope * sizeof *rot);
            memcpy(val + h * value, from + nope, value * sizeof *from);
        }
    }
    return KLD_OK;
}

/* silu(g) = g / (1 + e^-g); gelu-tanh(g) = g / (1 + e^(-2 sqrt(2/pi) (g + 0.044715 g^3))). */
CLONES static void gated_row(const float *g, const float *u, size_t n, bool gelu, bool bf16,
                             float *y) {
    for (size_t i = 0; i < n; i += VL) {
        vf a, b, t, e;
        load_some(&a, g + i, n - i);
        load_some(&b, u + i, n - i);
        t = -a;
        if (gelu) t = (a * a * 0.044715f + 1.0f) * (a * -1.5957691216f);
        vf_exp(&e, &t);
        vf v = a / (e + 1.0f) * b;
        if (bf16) vf_bf16(&v);
        store_some(y + i, &v, n - i);
    }
}

/* g sigma(1.702 g) (u + 1), both clamped: gpt_oss/torch/model.py of openai/gpt-oss. */
CLONES static void clamped_row(const float *g, const float *u, size_t n, float limit, bool bf16,
                               float *y) {
    const vf high = (vf){0} + limit, low = (vf){0} - limit;
    for (size_t i = 0; i < n; i += VL) {
        vf a, b, t, e;
        load_some(&a, g + i, n - i);
        load_some(&b, u + i, n - i);
        vi over = a > high;
        vf_select(&a, &over, &high, &a);
        over = b > high;
        vf_select(&b, &over, &high, &b);
        over = b < low;
        vf_select(&b, &over, &low, &b);
        t = a * -1.702f;
        vf_exp(&e, &t);
        vf v = a / (e + 1.0f) * (b + 1.0f);
        if (bf16) vf_bf16(&v);
        store_some(y + i, &v, n - i);
    }
}

static void gate_row(const kld_gate *act, const float *g, const float *u, size_t n, bool bf16,
                     float *y) {
    if (act->act == KLD_ACT_CLAMPED_GLU) clamped_row(g, u, n, act->limit, bf16, y);
    else gated_row(g, u, n, act->act == KLD_ACT_GELU_TANH, bf16, y);
}

void cpu_gated_rows(const kld_device *dev, const kld_gate *act, kld_view gate, kld_view up,
                    kld_view y) {
    bool bf16 = rounds(dev, y);
    for (size_t r = 0; r < gate.rows; r++)
        gate_row(act, view_row(gate, r), view_row(up, r), gate.cols, bf16, view_row(y, r));
}

kld_status cpu_gated(kld_device *dev, const kld_gate *act, kld_view gate, kld_view up, kld_view y,
                     kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < gate.rows; r++)
        gate_row(act, view_row(gate, r), view_row(up, r), gate.cols, bf16, view_row(y, r));
    return KLD_OK;
}

kld_status cpu_cap(kld_device *dev, kld_view x, float cap, kld_err *err) {
    (void)err;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < x.rows; r++) {
        float *row = view_row(x, r);
        for (size_t i = 0; i < x.cols; i++) row[i] = cap * tanhf(row[i] / cap);
    }
    return KLD_OK;
}
