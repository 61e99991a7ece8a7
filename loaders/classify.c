#include "loaders/classify.h"

#include <stdio.h>
#include <string.h>

#define BIT(t) (1u << KLD_##t)
enum { FLOATS = BIT(BF16) | BIT(F16) | BIT(F32), INT32S = BIT(I32) | BIT(U32), ANY = ~0u >> 1 };

typedef enum shape_rule {
    SHAPE_ANY,
    SHAPE_FULL,    /* [rows, cols], or [rows] for a vector */
    SHAPE_HALF,    /* [rows, cols/2]: two codes a byte */
    SHAPE_BLOCK16, /* [rows, cols/16] */
    SHAPE_BLOCK32, /* [rows, cols/32] */
    SHAPE_SCALAR,  /* [] or [1] */
    SHAPE_SCALES   /* FP8: one element, or one a row as [rows] or [rows, 1] */
} shape_rule;

typedef enum role { ROLE_NONE, ROLE_DATA, ROLE_SCALE, ROLE_GLOBAL, ROLE_INPUT } role;

typedef struct part_row {
    const char *suffix;
    unsigned dtypes; /* bit set of kld_dtype */
    shape_rule shape;
    role role;
    bool optional;
} part_row;

enum { ROW_PARTS = 6 };

/* A format matches when every required part is there with a listed dtype and no other
 * suffix is.  The first match counts. */
typedef struct format_row {
    const char *refused; /* name of a format that is known and not implemented, or NULL */
    kld_format format;
    bool divides;
    unsigned block; /* cols must be a multiple */
    part_row part[ROW_PARTS];
} format_row;

#define INPUT(name)                                                                                \
    { name, FLOATS, SHAPE_SCALAR, ROLE_INPUT, true }
/* Calibration leftovers that no consumer reads. */
#define LEFTOVER                                                                                   \
    { "input_max", ANY, SHAPE_ANY, ROLE_NONE, true }

static const format_row implemented[] = {
    {NULL, KLD_FMT_BF16, false, 1, {{"weight", BIT(BF16), SHAPE_FULL, ROLE_DATA, false}}},
    {NULL, KLD_FMT_F16, false, 1, {{"weight", BIT(F16), SHAPE_FULL, ROLE_DATA, false}}},
    {NULL, KLD_FMT_F32, false, 1, {{"weight", BIT(F32), SHAPE_FULL, ROLE_DATA, false}}},
    {NULL,
     KLD_FMT_NVFP4,
     false,
     16,
     {{"weight", BIT(U8), SHAPE_HALF, ROLE_DATA, false},
      {"weight_scale", BIT(F8_E4M3), SHAPE_BLOCK16, ROLE_SCALE, false},
      {"weight_scale_2", BIT(F32), SHAPE_SCALAR, ROLE_GLOBAL, false},
      INPUT("input_scale"),
      LEFTOVER}},
    {NULL,
     KLD_FMT_NVFP4,
     true,
     16,
     {{"weight_packed", BIT(U8), SHAPE_HALF, ROLE_DATA, false},
      {"weight_scale", BIT(F8_E4M3), SHAPE_BLOCK16, ROLE_SCALE, false},
      {"weight_global_scale", BIT(F32), SHAPE_SCALAR, ROLE_GLOBAL, false},
      INPUT("input_global_scale"),
      LEFTOVER}},
    {NULL,
     KLD_FMT_MXFP4,
     false,
     32,
     {{"weight_packed", BIT(U8), SHAPE_HALF, ROLE_DATA, false},
      {"weight_scale", BIT(U8) | BIT(F8_E8M0), SHAPE_BLOCK32, ROLE_SCALE, false},
      INPUT("input_scale"),
      LEFTOVER}},
    {NULL,
     KLD_FMT_MXFP4,
     false,
     32,
     {{"weight", BIT(U8), SHAPE_HALF, ROLE_DATA, false},
      {"weight_scale", BIT(U8) | BIT(F8_E8M0), SHAPE_BLOCK32, ROLE_SCALE, false},
      INPUT("input_scale"),
      LEFTOVER}},
    {NULL,
     KLD_FMT_FP8_TENSOR, /* or _CHANNEL: the size of the scale decides */
     false,
     1,
     {{"weight", BIT(F8_E4M3), SHAPE_FULL, ROLE_DATA, false},
      {"weight_scale", FLOATS, SHAPE_SCALES, ROLE_SCALE, false},
      INPUT("input_scale"),
      LEFTOVER}},
};

/* Recognised by one telling part; what else is there does not matter. */
static const struct {
    const char *name, *suffix;
    const char *with; /* another suffix that must be there, or NULL */
    unsigned dtypes, with_dtypes;
} refused[] = {
    {"NVFP4_SVD (low-rank branch)", "svdquant_lora_a", NULL, ANY, 0},
    {"a pre_quant_scale on the activations (NVFP4_AWQ, W4A8_AWQ)", "pre_quant_scale", NULL, ANY, 0},
    {"EXL3", "trellis", NULL, ANY, 0},
    {"GPTQ", "qweight", "g_idx", INT32S, ANY},
    {"AWQ or GPTQ", "qweight", NULL, INT32S, 0},
    {"INT4/INT8 pack-quantized", "weight_packed", NULL, INT32S, 0},
    {"MXFP8", "weight", "weight_scale", BIT(F8_E4M3), BIT(U8) | BIT(F8_E8M0)},
    {"MXFP8", "weight", "weight_scale_inv", BIT(F8_E4M3), BIT(U8)},
    {"FP8 in blocks", "weight", "weight_scale_inv", BIT(F8_E4M3), ANY},
    {"FP8 in blocks", "weight", "scale", BIT(F8_E4M3), ANY},
    {"FP4 of DeepSeek-V4", "weight", "scale", BIT(I8), BIT(F8_E8M0)},
    {"bitsandbytes INT8", "weight", "SCB", BIT(I8), ANY},
    {"INT8", "weight", "weight_scale", BIT(I8), ANY},
    {"INT4 of ModelOpt", "weight", "weight_scale", BIT(U8), FLOATS},
    {"bitsandbytes 4-bit", "weight.absmax", NULL, ANY, 0},
    {"FP8 E5M2", "weight", NULL, BIT(F8_E5M2), 0},
    {"FP8 FNUZ", "weight", NULL, BIT(F8_E4M3FNUZ) | BIT(F8_E5M2FNUZ), 0},
    {"weights with zero points", "weight_zero_point", NULL, ANY, 0},
    {"F64 weights", "weight", NULL, BIT(F64), 0},
};

char *kld_tensor_text(const kld_tensor *t, char *buf, size_t n) {
    int at = snprintf(buf, n, "%s [", kld_dtype_name(t->dtype));
    for (unsigned i = 0; i < t->rank && at >= 0 && (size_t)at < n; i++)
        at += snprintf(buf + at, n - (size_t)at, "%s%llu", i ? ", " : "",
                       (unsigned long long)t->shape[i]);
    if (at >= 0 && (size_t)at < n) snprintf(buf + at, n - (size_t)at, "]");
    return buf;
}

static const kld_tensor *find(const kld_module *m, const char *suffix) {
    for (size_t i = 0; i < m->n; i++) {
        if (!strcmp(m->suffix[i], suffix)) return m->part[i];
    }
    return NULL;
}

static bool has(const kld_module *m, const char *suffix, unsigned dtypes) {
    const kld_tensor *t = find(m, suffix);
    return t && (dtypes & 1u << t->dtype);
}

/* "weight U8 [4, 8], weight_scale F32 [4]" */
static void list_parts(const kld_module *m, char *buf, size_t n) {
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < m->n; i++) {
        char one[128];
        int k = snprintf(buf + at, n - at, "%s%.60s %s", i ? ", " : "", m->suffix[i],
                         kld_tensor_text(m->part[i], one, sizeof one));
        if (k < 0 || (size_t)k >= n - at) return;
        at += (size_t)k;
    }
}

static bool row_matches(const format_row *r, const kld_module *m) {
    size_t used = 0;
    for (size_t i = 0; i < ROW_PARTS && r->part[i].suffix; i++) {
        const kld_tensor *t = find(m, r->part[i].suffix);
        if (!t && r->part[i].optional) continue;
        if (!t || !(r->part[i].dtypes & 1u << t->dtype)) return false;
        used++;
    }
    return used + (find(m, "bias") != NULL) == m->n;
}

static bool shape_is(const kld_tensor *t, unsigned rank, size_t a, size_t b) {
    if (t->rank != rank) return false;
    return (rank < 1 || t->shape[0] == a) && (rank < 2 || t->shape[1] == b);
}

static size_t elements(const kld_tensor *t) {
    uint64_t n = 1;
    for (unsigned i = 0; i < t->rank; i++) n *= t->shape[i]; /* checked by the header */
    return (size_t)n;
}

/* Whether t has the shape of the rule; `expected` is how a message writes it. */
static bool shape_ok(shape_rule rule, const kld_tensor *t, const kld_expect *w, char *expected,
                     size_t n) {
    size_t cols = w->cols;
    switch (rule) {
    case SHAPE_ANY: return true;
    case SHAPE_FULL:
        if (cols == 1) {
            snprintf(expected, n, "[%zu]", w->rows);
            return shape_is(t, 1, w->rows, 0);
        }
        break;
    case SHAPE_HALF: cols /= 2; break;
    case SHAPE_BLOCK16: cols /= 16; break;
    case SHAPE_BLOCK32: cols /= 32; break;
    case SHAPE_SCALAR: snprintf(expected, n, "[] or [1]"); return elements(t) == 1 && t->rank <= 1;
    case SHAPE_SCALES:
        snprintf(expected, n, "[], [1], [%zu] or [%zu, 1]", w->rows, w->rows);
        return (elements(t) == 1 && t->rank <= 2) || shape_is(t, 1, w->rows, 0) ||
               shape_is(t, 2, w->rows, 1);
    }
    snprintf(expected, n, "[%zu, %zu]", w->rows, cols);
    return shape_is(t, 2, w->rows, cols);
}

static kld_status fill_part(kld_weight *w, const part_row *p, const kld_tensor *t,
                            const kld_expect *want, const format_row *row, kld_err *err) {
    char expected[96], found[160];
    if (!shape_ok(p->shape, t, want, expected, sizeof expected)) {
        kld_tensor_text(t, found, sizeof found);
        if (row->format == KLD_FMT_NVFP4 && p->role == ROLE_GLOBAL && elements(t) > 1)
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "%s: NVFP4 with a vector of global scales is not implemented: %s",
                            t->name, found);
        if (p->shape == SHAPE_SCALES && elements(t) > 1 && t->rank >= 2 && t->shape[1] > 0 &&
            elements(t) < want->rows * want->cols)
            return kld_fail(err, KLD_E_UNSUPPORTED, "%s: FP8 in blocks is not implemented: %s",
                            t->name, found);
        return kld_fail(err, KLD_E_INPUT, "%.300s: expected shape %s, found %s", t->name, expected,
                        found);
    }
    switch (p->role) {
    case ROLE_NONE: break;
    case ROLE_DATA: w->data = t; break;
    case ROLE_SCALE: w->scale = t; break;
    case ROLE_GLOBAL: w->global = t; break;
    case ROLE_INPUT: w->input_scale = t; break;
    }
    return KLD_OK;
}

static kld_status fill(kld_weight *w, const format_row *row, const kld_module *m,
                       const kld_expect *want, kld_err *err) {
    w->format = row->format;
    w->global_divides = row->divides;
    if (want->cols % row->block)
        return kld_fail(err, KLD_E_INPUT,
                        "%.300s: %s needs rows in blocks of %u, but they have %zu", m->prefix,
                        kld_format_name(row->format), row->block, want->cols);
    for (size_t i = 0; i < ROW_PARTS && row->part[i].suffix; i++) {
        const kld_tensor *t = find(m, row->part[i].suffix);
        if (t) TRY(fill_part(w, &row->part[i], t, want, row, err));
    }
    if (w->format == KLD_FMT_FP8_TENSOR && elements(w->scale) != 1) w->format = KLD_FMT_FP8_CHANNEL;
    if (row->format > KLD_FMT_F32 && !want->quantizable)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%.300s: %s here is not implemented; BF16, F16 or F32 is", m->prefix,
                        kld_format_name(w->format));
    return KLD_OK;
}

/* Nothing matched: say the most useful thing that is true. */
static kld_status explain(const kld_module *m, kld_err *err) {
    char found[640];
    list_parts(m, found, sizeof found);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (has(m, refused[i].suffix, refused[i].dtypes) &&
            (!refused[i].with || has(m, refused[i].with, refused[i].with_dtypes)))
            return kld_fail(err, KLD_E_UNSUPPORTED, "%.200s: %s is not implemented: %s", m->prefix,
                            refused[i].name, found);
    }
    /* A row of which some parts are there and nothing else is: the rest got lost. */
    for (size_t i = 0; i < sizeof implemented / sizeof *implemented; i++) {
        const format_row *r = &implemented[i];
        const char *missing = NULL;
        size_t known = find(m, "bias") != NULL;
        bool data = false;
        for (size_t k = 0; k < ROW_PARTS && r->part[k].suffix; k++) {
            const part_row *p = &r->part[k];
            if (has(m, p->suffix, p->dtypes)) known++;
            else if (!p->optional && !missing) missing = p->suffix;
            if (p->role == ROLE_DATA) data = has(m, p->suffix, p->dtypes);
        }
        if (data && missing && known == m->n)
            return kld_fail(err, KLD_E_INPUT, "%.200s: '%s' is missing beside %s", m->prefix,
                            missing, found);
    }
    return kld_fail(err, KLD_E_INPUT, "%.200s: these tensors form no known weight format: %s",
                    m->prefix, found);
}

static kld_status check_bias(kld_weight *w, const kld_module *m, const kld_expect *want,
                             kld_err *err) {
    const kld_tensor *t = find(m, "bias");
    char found[160];
    if (!t && !want->bias) return KLD_OK;
    if (!t)
        return kld_fail(err, KLD_E_INPUT, "tensor '%.300s.bias' is missing: expected [%zu]",
                        m->prefix, want->rows);
    kld_tensor_text(t, found, sizeof found);
    if (!want->bias)
        return kld_fail(err, KLD_E_INPUT,
                        "tensor '%.300s' (%s) is not part of this model by its config.json",
                        t->name, found);
    if (!(FLOATS & 1u << t->dtype) || !shape_is(t, 1, want->rows, 0))
        return kld_fail(err, KLD_E_INPUT, "%.300s: expected BF16, F16 or F32 [%zu], found %s",
                        t->name, want->rows, found);
    w->bias = t;
    return KLD_OK;
}

kld_status kld_weight_classify(kld_weight *w, const kld_module *m, const kld_expect *want,
                               kld_err *err) {
    memset(w, 0, sizeof *w);
    w->rows = want->rows;
    w->cols = want->cols;
    if (m->n == 0)
        return want->cols == 1
                   ? kld_fail(err, KLD_E_INPUT, "tensor '%.300s.weight' is missing: expected [%zu]",
                              m->prefix, want->rows)
                   : kld_fail(err, KLD_E_INPUT,
                              "tensor '%.300s.weight' is missing: expected [%zu, %zu]", m->prefix,
                              want->rows, want->cols);
    const format_row *row = NULL;
    for (size_t i = 0; !row && i < sizeof implemented / sizeof *implemented; i++) {
        if (row_matches(&implemented[i], m)) row = &implemented[i];
    }
    if (!row) return explain(m, err);
    TRY(fill(w, row, m, want, err));
    return check_bias(w, m, want, err);
}
