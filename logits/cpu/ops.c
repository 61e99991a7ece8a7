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

kld_status cpu_embed(kld_device *dev, const kld_dev_weight *w, const uint32_t *ids, kld_view y,
                     kld_err *err) {
    (void)err;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < y.rows; r++)
        kld_weight_decode(w->raw.w, w->raw.v, ids[r], 1, false, view_row(y, r));
    return KLD_OK;
}

/* Sum of squares in FP64: lane i takes columns i, i+16, ..., then a fixed tree. */
CLONES static void norm_row(const float *x, const float *w, size_t n, double eps, bool bf16,
                            float *y) {
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
        store_some(y + i, &v, n - i);
    }
}

kld_status cpu_norm(kld_device *dev, kld_view x, const kld_dev_weight *w, double eps, kld_view y,
                    kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < x.rows; r++)
        norm_row(view_row(x, r), w->data, x.cols, eps, bf16, view_row(y, r));
    return KLD_OK;
}

CLONES static void rope_row(const float *x, size_t cols, size_t dim, const float *cosv,
                            const float *sinv, size_t half, bool bf16, float *y) {
    for (size_t c = 0; c < cols; c += dim) {
        for (size_t i = 0; i < half; i++) {
            float a = x[c + i], b = x[c + half + i];
            y[c + i] = a * cosv[i] - b * sinv[i];
            y[c + half + i] = b * cosv[i] + a * sinv[i];
        }
        for (size_t i = 2 * half; i < dim; i++) y[c + i] = x[c + i];
    }
    if (!bf16) return;
    for (size_t i = 0; i < cols; i += VL) {
        vf v;
        load_some(&v, y + i, cols - i);
        vf_bf16(&v);
        store_some(y + i, &v, cols - i);
    }
}

kld_status cpu_rope(kld_device *dev, const kld_batch *b, kld_view x, size_t dim,
                    const kld_dev_weight *w, double eps, const kld_rope_table *table, kld_view y,
                    kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y);
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t i = 0; i < b->n; i++) {
        const kld_span *s = &b->span[i];
        for (size_t r = 0; r < s->n; r++) {
            const float *c = table->cos_tab + (s->pos + r) * table->half;
            const float *d = table->sin_tab + (s->pos + r) * table->half;
            float *in = view_row(x, s->row + r);
            for (size_t h = 0; w && h < x.cols; h += dim)
                norm_row(in + h, w->data, dim, eps, false, in + h);
            rope_row(in, x.cols, dim, c, d, table->half, bf16, view_row(y, s->row + r));
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

kld_status cpu_gated(kld_device *dev, kld_activation act, kld_view gate, kld_view up, kld_view y,
                     kld_err *err) {
    (void)err;
    bool bf16 = rounds(dev, y), gelu = act == KLD_ACT_GELU_TANH;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < gate.rows; r++)
        gated_row(view_row(gate, r), view_row(up, r), gate.cols, gelu, bf16, view_row(y, r));
    return KLD_OK;
}
