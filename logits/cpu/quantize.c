/* What happens to a product's inputs; the arithmetic of quantization is in loaders/actnum.h. */
#include "kld/base/num.h"
#include "loaders/actnum.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t block_amax(const float *x, size_t n) {
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = kld_aq_magnitude(x[i]);
        m = v > m ? v : m;
    }
    return m;
}

/* One row in blocks of `block` columns that share a scale.  Called with a constant format and
 * block, so that the loops are compiled for each by itself. */
INLINE void row_in_blocks(kld_act_format f, size_t block, const kld_act_quant *a, const float *x,
                          size_t cols, bool bf16, float *y) {
    for (size_t c = 0; c < cols; c += block) {
        size_t n = num_min(block, cols - c);
        kld_aq_scale s = kld_aq_scale_of(a, block_amax(x + c, n));
        if (bf16)
            for (size_t i = c; i < c + n; i++)
                y[i] = kld_bf16_to_f32(kld_f32_to_bf16(kld_aq_value(f, s, x[i])));
        else
            for (size_t i = c; i < c + n; i++) y[i] = kld_aq_value(f, s, x[i]);
    }
}

CLONES static void quantize_row(const kld_act_quant *a, const float *x, size_t cols, bool bf16,
                                float *y) {
    switch (a->format) {
    case KLD_AQ_NVFP4: row_in_blocks(KLD_AQ_NVFP4, 16, a, x, cols, bf16, y); return;
    case KLD_AQ_MXFP4: row_in_blocks(KLD_AQ_MXFP4, 32, a, x, cols, bf16, y); return;
    case KLD_AQ_MXFP8: row_in_blocks(KLD_AQ_MXFP8, 32, a, x, cols, bf16, y); return;
    case KLD_AQ_FP8_TENSOR: row_in_blocks(KLD_AQ_FP8_TENSOR, cols, a, x, cols, bf16, y); return;
    case KLD_AQ_FP8_TOKEN: row_in_blocks(KLD_AQ_FP8_TOKEN, cols, a, x, cols, bf16, y); return;
    case KLD_AQ_FP8_BLOCK: row_in_blocks(KLD_AQ_FP8_BLOCK, 128, a, x, cols, bf16, y); return;
    case KLD_AQ_NONE:
    case KLD_AQ_COUNT: break;
    }
    memmove(y, x, cols * sizeof *y);
}

kld_status cpu_quantize(kld_device *dev, kld_view x, const kld_act_quant *a, kld_view y,
                        kld_err *err) {
    TRY(kld_act_check(a, x.cols, err));
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < x.rows; r++)
        quantize_row(a, view_row(x, r), x.cols, dev->bf16, view_row(y, r));
    return KLD_OK;
}

CLONES static void multiply_row(const float *x, const float *pre, size_t n, bool bf16, float *y) {
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i < VL ? n - i : VL;
        vf v = {0}, p = {0};
        memcpy(&v, x + i, k * sizeof *x);
        memcpy(&p, pre + i, k * sizeof *pre);
        v *= p;
        if (bf16) vf_bf16(&v);
        memcpy(y + i, &v, k * sizeof *y);
    }
}

static void input_row(const kld_device *dev, const kld_dev_weight *w, const float *x, float *y) {
    if (w->pre) multiply_row(x, w->pre, w->cols, dev->bf16, y);
    quantize_row(&w->input, w->pre ? y : x, w->cols, dev->bf16, y);
}

void cpu_input_rows(const kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y) {
    for (size_t r = 0; r < x.rows; r++) input_row(dev, w, view_row(x, r), view_row(y, r));
}

kld_status cpu_input(kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y,
                     kld_err *err) {
    TRY(kld_act_check(&w->input, w->cols, err));
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t r = 0; r < x.rows; r++) input_row(dev, w, view_row(x, r), view_row(y, r));
    return KLD_OK;
}
