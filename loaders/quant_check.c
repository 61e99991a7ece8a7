/* Scales and values that cannot be right. */
#include "loaders/numfmt.h"
#include "loaders/quant.h"

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

static kld_status check_channels(const kld_weight *w, const unsigned char *p, size_t row0,
                                 size_t rows, kld_err *err) {
    tally bad = {0};
    for (size_t i = 0; i < rows; i++) {
        float v = kld_scale_value(w->scale, p, i);
        if (!isfinite(v) || v < 0) hit(&bad, i);
    }
    return report(&bad, w->scale, 1, row0, "scales that are not finite or are negative", err);
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

kld_status kld_weight_check(const kld_weight *w, kld_weight_view v, size_t row0, size_t n,
                            uint64_t *nonfinite, kld_err *err) {
    if (nonfinite) *nonfinite += count_nonfinite(w->data->dtype, v.data, n * w->cols);
    switch (w->format) {
    case KLD_FMT_NVFP4:
        TRY(check_scalar(w->global, v.global, err));
        return check_e4m3_blocks(w, v.scale, row0, n, err);
    case KLD_FMT_MXFP4: return check_e8m0_blocks(w, v.scale, row0, n, err);
    case KLD_FMT_FP8_TENSOR: return check_scalar(w->scale, v.scale, err);
    case KLD_FMT_FP8_CHANNEL: return check_channels(w, v.scale, row0, n, err);
    case KLD_FMT_BF16:
    case KLD_FMT_F16:
    case KLD_FMT_F32:
    case KLD_FMT_COUNT: break;
    }
    return KLD_OK;
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
