/* Scales and values that cannot be right. */
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "loaders/quant.h"
#include "loaders/quant_int.h"

#include <math.h>
#include <string.h>

/* Where the first offender is and how many there are. */
typedef struct tally {
    uint64_t count;
    size_t first;
} tally;

static void hit(tally *t, size_t i) {
    if (!t->count++) t->first = i;
}

static kld_status report(const tally *t, const kld_tensor *at, size_t per_row, size_t row0,
                         const char *what, kld_err *err) {
    if (!t->count) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "tensor '%.300s': %llu %s, first at [%zu,%zu]", at->name,
                    (unsigned long long)t->count, what, row0 + t->first / per_row,
                    t->first % per_row);
}

static kld_status check_e4m3_blocks(const kld_weight *w, const unsigned char *p, size_t row0,
                                    size_t rows, kld_err *err) {
    size_t per_row = w->cols / 16, n = rows * per_row;
    tally nan = {0}, negative = {0};
    for (size_t i = 0; i < n; i++) {
        if ((p[i] & 0x7f) == 0x7f) hit(&nan, i);
        else if (p[i] > 0x80) hit(&negative, i); /* 0x80 is a zero */
    }
    TRY(report(&nan, w->scale, per_row, row0, "NaN block scales", err));
    return report(&negative, w->scale, per_row, row0, "negative block scales", err);
}

static kld_status check_e8m0_blocks(const kld_weight *w, const unsigned char *p, size_t row0,
                                    size_t rows, kld_err *err) {
    size_t per_row = w->cols / 32, n = rows * per_row;
    tally nan = {0};
    for (size_t i = 0; i < n; i++) {
        if (p[i] == 255) hit(&nan, i);
    }
    return report(&nan, w->scale, per_row, row0, "NaN (255) E8M0 block scales", err);
}

static kld_status check_scalar(const kld_tensor *t, const unsigned char *p, kld_err *err) {
    float v = kld_scale_value(t, p, 0);
    if (isfinite(v) && v > 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "tensor '%.300s': the scale is %g; it must be finite and above 0", t->name,
                    (double)v);
}

/* Scales [first, first+n), per_row of them in a row of the tensor. */
static kld_status check_scales(const kld_tensor *t, const unsigned char *p, size_t first, size_t n,
                               size_t per_row, kld_err *err) {
    tally bad = {0};
    bool e8m0 = t->dtype == KLD_F8_E8M0 || t->dtype == KLD_U8;
    for (size_t i = 0; i < n; i++) {
        float v = kld_scale_value(t, p, i);
        if (!isfinite(v) || v < 0) hit(&bad, first + i);
    }
    return report(
        &bad, t, per_row, 0,
        e8m0 ? "NaN (255) E8M0 block scales" : "scales that are not finite or are negative", err);
}

/* The bulk of all bytes that are read; blocks short enough for 16-bit sums vectorize. */
static uint64_t count_nonfinite_bf16(const unsigned char *p, size_t n) {
    uint64_t bad = 0;
    for (size_t i = 0; i < n; i += 4096) {
        size_t m = n - i < 4096 ? n - i : 4096;
        uint16_t some = 0;
        for (size_t j = 0; j < m; j++) {
            uint16_t u; /* the byte order of the file and of every supported machine */
            memcpy(&u, p + 2 * (i + j), sizeof u);
            some = (uint16_t)(some + ((u & 0x7f80) == 0x7f80));
        }
        bad += some;
    }
    return bad;
}

static uint64_t count_nonfinite(kld_dtype t, const unsigned char *p, size_t n) {
    uint64_t bad = 0;
    /* All exponent bits set: the top byte and a half of BF16 and F32, of F16, the code of
     * E4M3. */
    switch (t) {
    case KLD_BF16: return count_nonfinite_bf16(p, n);
    case KLD_F16:
        for (size_t i = 0; i < n; i++) bad += (p[2 * i + 1] & 0x7c) == 0x7c;
        break;
    case KLD_F32:
        for (size_t i = 0; i < n; i++) bad += ((p[4 * i + 3] & 0x7f) == 0x7f) & (p[4 * i + 2] >> 7);
        break;
    case KLD_F8_E4M3:
        for (size_t i = 0; i < n; i++) bad += (p[i] & 0x7f) == 0x7f;
        break;
    default: break;
    }
    return bad;
}

kld_status kld_weight_check(const kld_weight *w, kld_weight_view v, size_t line0, size_t n,
                            uint64_t *nonfinite, kld_err *err) {
    size_t per_row = w->groups;
    if (nonfinite && !kld_format_bits(w->format))
        *nonfinite +=
            count_nonfinite(w->data->dtype, v.data, n * (w->in_major ? w->rows : w->cols));
    switch (w->format) {
    case KLD_FMT_NVFP4:
        TRY(check_scalar(w->global, v.global, err));
        return check_e4m3_blocks(w, v.scale, line0, n, err);
    case KLD_FMT_MXFP4:
    case KLD_FMT_MXFP8: return check_e8m0_blocks(w, v.scale, line0, n, err);
    case KLD_FMT_FP8_TENSOR: return check_scalar(w->scale, v.scale, err);
    case KLD_FMT_FP8_CHANNEL: return check_scales(w->scale, v.scale, line0, n, 1, err);
    case KLD_FMT_INT4_PAIRS: line0 *= 2, n *= 2; /* fall through */
    case KLD_FMT_INT8:
    case KLD_FMT_INT4_PACKED:
    case KLD_FMT_INT8_PACKED:
        return check_scales(w->scale, v.scale, line0 * per_row, n * per_row, per_row, err);
    case KLD_FMT_FP8_BLOCK:
    case KLD_FMT_AWQ:
    case KLD_FMT_GPTQ4:
    case KLD_FMT_GPTQ8: /* scales are read aside */
    case KLD_FMT_BF16:
    case KLD_FMT_F16:
    case KLD_FMT_F32:
    case KLD_FMT_COUNT: break;
    }
    return KLD_OK;
}

/* Any finite factor is one; what writers mean are positive ones. */
static kld_status check_pre(const kld_weight *w, const unsigned char *p, size_t first, size_t n,
                            kld_err *err) {
    tally bad = {0};
    for (size_t i = 0; i < n; i++)
        if (!isfinite(kld_scale_value(w->pre, p, i))) hit(&bad, first + i);
    if (!bad.count) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "tensor '%.300s': %llu factors are not finite, the first at [%zu]",
                    w->pre->name, (unsigned long long)bad.count, bad.first);
}

/* The index of compressed-tensors is -1 throughout until activation ordering sets it. */
static kld_status check_index(const kld_weight *w, const unsigned char *p, size_t first, size_t n,
                              kld_err *err) {
    tally bad = {0}, unset = {0};
    int32_t worst = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t g;
        memcpy(&g, p + 4 * i, sizeof g);
        if (g == -1) hit(&unset, i);
        if (g >= 0 && (size_t)g < w->groups) continue;
        if (!bad.count) worst = g;
        hit(&bad, first + i);
    }
    bool packed = w->format == KLD_FMT_INT4_PACKED || w->format == KLD_FMT_INT8_PACKED;
    if (!bad.count || (packed && unset.count == n)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "tensor '%.300s': %llu groups are not in 0..%zu, the first is %d at [%zu]",
                    w->index->name, (unsigned long long)bad.count, w->groups - 1, (int)worst,
                    bad.first);
}

/* Symmetric files have every zero point at the middle, m; v1 stores m - 1 and v2 m.  One off in
 * every field is the other version under this one's name. */
static kld_status check_zeros(const kld_weight *w, const unsigned char *p, size_t n, kld_err *err) {
    if (!w->symmetric || (w->format != KLD_FMT_GPTQ4 && w->format != KLD_FMT_GPTQ8)) return KLD_OK;
    unsigned bits = w->format == KLD_FMT_GPTQ8 ? 8 : 4, middle = 1u << (bits - 1);
    unsigned other = w->zero_add ? middle : middle - 1;
    for (size_t i = 0; i < n * 32 / bits; i++) {
        if (kld_int_field(p, i * bits, bits) != other) return KLD_OK;
    }
    return kld_fail(err, KLD_E_INPUT,
                    "tensor '%.300s': every zero point is stored as %u, but sym is true and "
                    "checkpoint_format %s stores %u; the file is %s: set checkpoint_format so",
                    w->zeros->name, other, w->zero_add ? "gptq (v1)" : "gptq_v2",
                    w->zero_add ? middle - 1 : middle, w->zero_add ? "gptq_v2" : "gptq (v1)");
}

kld_status kld_weight_check_aside(const kld_weight *w, kld_part part, const unsigned char *p,
                                  uint64_t first, uint64_t n, kld_err *err) {
    size_t at = (size_t)first, count = (size_t)n;
    switch (part) {
    case KLD_PART_SCALE: {
        size_t per_row = w->format == KLD_FMT_FP8_BLOCK
                             ? num_cdiv(w->cols, w->block_cols)
                             : w->rows; /* AWQ and GPTQ: [groups][rows] */
        return check_scales(w->scale, p, at, count, per_row, err);
    }
    case KLD_PART_ZEROS: return check_zeros(w, p, count, err);
    case KLD_PART_INDEX: return check_index(w, p, at, count, err);
    case KLD_PART_PRE: return check_pre(w, p, at, count, err);
    default: return KLD_OK;
    }
}

uint64_t kld_weight_zero_blocks(const kld_weight *w, kld_weight_view v, size_t n) {
    if (w->format != KLD_FMT_NVFP4) return 0;
    uint64_t lost = 0;
    for (size_t b = 0; b < n * (w->cols / 16); b++) {
        if (v.scale[b] & 0x7f) continue;
        unsigned char any = 0;
        for (size_t i = 0; i < 8; i++) any |= v.data[8 * b + i];
        lost += (any & 0x77) != 0; /* code 8 is a zero too */
    }
    return lost;
}
