#include "loaders/quant_int.h"

#include "kld/base/num.h"
#include "loaders/numfmt.h"

/* One format's three questions, so that the loop over elements is written once. */
typedef struct layout {
    const kld_weight *w;
    kld_weight_view v;
    unsigned bits;
    size_t row_bytes; /* of the packed streams along cols */
    size_t words;     /* AWQ, GPTQ: 32-bit words in a line of zeros */
} layout;

static layout layout_of(const kld_weight *w, kld_weight_view v) {
    layout l = {w, v, kld_format_bits(w->format), 0, 0};
    l.row_bytes = num_cdiv(w->cols * l.bits, 32) * 4;
    l.words = w->rows * l.bits / 32;
    return l;
}

static size_t group_of(const layout *l, size_t c) {
    if (l->v.index) {
        const unsigned char *p = l->v.index + 4 * c;
        uint32_t g =
            (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (g < 0x80000000u) return g; /* negative: unset */
    }
    return c / l->w->block_cols;
}

/* The code at (r, c) as the format counts it: signed where there are no zero points. */
static int code_at(const layout *l, size_t r, size_t c) {
    const unsigned char *p = l->v.data;
    size_t rows = l->w->rows, cols = l->w->cols;
    switch (l->w->format) {
    case KLD_FMT_INT8: return (int8_t)p[r * cols + c];
    case KLD_FMT_INT4_PAIRS: return (int)((p[r / 2 * cols + c] >> r % 2 * 4 & 15) ^ 8) - 8;
    case KLD_FMT_AWQ:
        return (int)kld_int_field(p + (c * rows + r / 8 * 8) / 2, 4 * kld_awq_nibble(r), 4);
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8: {
        size_t bit = c * l->bits;
        return (int)kld_int_field(p + 4 * (bit / 32 * rows + r), bit % 32, l->bits);
    }
    default: return (int)kld_int_field(p + r * l->row_bytes, c * l->bits, l->bits);
    }
}

/* What is subtracted from the code: the zero point in the code's own count. */
static int zero_at(const layout *l, size_t r, size_t g) {
    const kld_weight *w = l->w;
    const unsigned char *p = l->v.zeros;
    unsigned bits = l->bits;
    switch (w->format) {
    case KLD_FMT_INT8:
    case KLD_FMT_INT4_PAIRS: return 0;
    case KLD_FMT_AWQ:
        return (int)kld_int_field(p + 4 * (g * l->words + r / 8), 4 * kld_awq_nibble(r), 4);
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8:
        /* Modulo 2^bits in the field itself: adding to whole words would carry into others. */
        return (int)(kld_int_field(p + 4 * g * l->words, r * bits, bits) + w->zero_add) &
               (int)((1u << bits) - 1);
    default: {
        if (!p) return bits == 8 ? 128 : 8;
        size_t bit = r * bits;
        return (int)kld_int_field(p + 4 * (bit / 32 * w->groups + g), bit % 32, bits);
    }
    }
}

static float scale_at(const layout *l, size_t r, size_t g) {
    bool by_group = l->w->format >= KLD_FMT_AWQ;
    size_t at = by_group ? g * l->w->rows + r : r * l->w->groups + g;
    return kld_scale_value(l->w->scale, l->v.scale, at);
}

void kld_int_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, float *out) {
    layout l = layout_of(w, v);
    for (size_t r = row0; r < row0 + n; r++) {
        size_t last = SIZE_MAX;
        int zero = 0;
        float scale = 0;
        for (size_t c = 0; c < w->cols; c++) {
            size_t g = group_of(&l, c);
            if (g != last) {
                last = g;
                zero = zero_at(&l, r, g);
                scale = scale_at(&l, r, g);
            }
            *out++ = (float)(code_at(&l, r, c) - zero) * scale;
        }
    }
}
