/* Shapes of integer weights, whose tensors must fit one another. */
#include "kld/base/num.h"
#include "loaders/classify_rows.h"

#include <string.h>

/* Columns in equal groups: sets groups and block_cols. */
static kld_status set_groups(kld_weight *w, const kld_tensor *t, size_t groups, kld_err *err) {
    if (groups == 0 || w->cols % groups)
        return kld_fail(err, KLD_E_INPUT,
                        "%.300s: %zu groups do not divide the %zu columns of the weight", t->name,
                        groups, w->cols);
    w->groups = groups;
    w->block_cols = w->cols / groups;
    return KLD_OK;
}

/* [rows, groups], or [rows] for one group. */
static kld_status settle_row_scales(kld_weight *w, kld_err *err) {
    const kld_tensor *t = w->scale;
    if (kld_shape_is(t, 1, w->rows, 0)) return set_groups(w, t, 1, err);
    if (t->rank == 2 && t->shape[0] == w->rows && t->shape[1])
        return set_groups(w, t, (size_t)t->shape[1], err);
    return kld_wrong_shape(t, err, "[%zu] or [%zu, groups]", w->rows, w->rows);
}

kld_status kld_settle_int8(kld_weight *w, const char *prefix, const kld_expect *want,
                           kld_err *err) {
    (void)prefix;
    (void)want;
    return settle_row_scales(w, err);
}

kld_status kld_settle_pairs(kld_weight *w, const char *prefix, const kld_expect *want,
                            kld_err *err) {
    (void)prefix;
    if (want->rows % 2 || !kld_shape_is(w->data, 2, want->rows / 2, want->cols))
        return kld_wrong_shape(w->data, err, "[%zu, %zu] (two rows a byte)", want->rows / 2,
                               want->cols);
    return settle_row_scales(w, err);
}

static kld_status check_index(const kld_weight *w, kld_err *err) {
    if (!w->index || kld_shape_is(w->index, 1, w->cols, 0)) return KLD_OK;
    return kld_wrong_shape(w->index, err, "[%zu]", w->cols);
}

kld_status kld_settle_packed(kld_weight *w, const char *prefix, const kld_expect *want,
                             kld_err *err) {
    (void)prefix;
    size_t four = num_cdiv(want->cols, 8), eight = num_cdiv(want->cols, 4);
    if (kld_shape_is(w->data, 2, want->rows, four)) w->format = KLD_FMT_INT4_PACKED;
    else if (kld_shape_is(w->data, 2, want->rows, eight)) w->format = KLD_FMT_INT8_PACKED;
    else
        return kld_wrong_shape(w->data, err, "[%zu, %zu] (4 bits) or [%zu, %zu] (8 bits)",
                               want->rows, four, want->rows, eight);
    if (!kld_shape_is(w->extent, 1, 2, 0)) return kld_wrong_shape(w->extent, err, "[2]");
    TRY(settle_row_scales(w, err));
    size_t words = num_cdiv(want->rows * kld_format_bits(w->format), 32);
    if (w->zeros && !kld_shape_is(w->zeros, 2, words, w->groups))
        return kld_wrong_shape(w->zeros, err, "[%zu, %zu]", words, w->groups);
    return check_index(w, err);
}

/* ---- qweight: AWQ and GPTQ -------------------------------------------------------------- */

static const char *text_of(const json_t *quant, const char *key) {
    const char *s = json_string_value(json_object_get(quant, key));
    return s ? s : "";
}

static bool is_one_of(const char *s, const char *a, const char *b) {
    return !*s || !strcmp(s, a) || !strcmp(s, b);
}

/* Packings made for one kernel say so in the config; their shapes may look like others'. */
static kld_status check_packing(const kld_weight *w, const char *prefix, const kld_expect *want,
                                kld_err *err) {
    const char *method = text_of(want->quant, "quant_method");
    bool awq = !strcmp(method, "awq");
    const char *key = awq ? "version" : "checkpoint_format", *said = text_of(want->quant, key);
    if (awq ? !is_one_of(said, "gemm", "GEMM") : !is_one_of(said, "gptq", "gptq_v2"))
        return kld_fail(err, KLD_E_UNSUPPORTED, "%.300s: %s with %s %.60s is not implemented",
                        prefix, awq ? "AWQ" : "GPTQ", key, said);
    if (json_is_true(json_object_get(want->quant, "is_marlin_format")))
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%.300s: GPTQ in Marlin's packing is not implemented", prefix);
    if (awq && w->index)
        return kld_fail(err, KLD_E_INPUT, "%.300s: AWQ has no such tensor", w->index->name);
    return KLD_OK;
}

/* Whether 1 is to be added to stored zero points is written nowhere but in the config. */
static kld_status settle_zeros(kld_weight *w, const char *prefix, const kld_expect *want,
                               kld_err *err) {
    const char *format = text_of(want->quant, "checkpoint_format");
    if (!*format && strcmp(text_of(want->quant, "quant_method"), "gptq") != 0)
        return kld_fail(err, KLD_E_INPUT,
                        "%.300s: these are GPTQ tensors, but no quantization config says whether "
                        "zero points are stored less 1: expected quant_method gptq, and "
                        "checkpoint_format gptq or gptq_v2",
                        prefix);
    w->zero_add = strcmp(format, "gptq_v2") != 0;
    w->symmetric = json_is_true(json_object_get(want->quant, "sym"));
    return KLD_OK;
}

/* The last group may be short, which the number of groups does not tell. */
static kld_status settle_groups(kld_weight *w, const json_t *quant, size_t groups, kld_err *err) {
    json_int_t size = json_integer_value(json_object_get(quant, "group_size"));
    if (size > 0 && num_cdiv(w->cols, (size_t)size) == groups) {
        w->groups = groups;
        w->block_cols = (size_t)size;
        return KLD_OK;
    }
    return set_groups(w, w->scale, groups, err);
}

kld_status kld_settle_qweight(kld_weight *w, const char *prefix, const kld_expect *want,
                              kld_err *err) {
    size_t in = want->cols, out = want->rows;
    TRY(check_packing(w, prefix, want, err));
    bool whole = out % 8 == 0 && in % 8 == 0;
    if (whole && kld_shape_is(w->data, 2, in, out / 8)) w->format = KLD_FMT_AWQ;
    else if (whole && kld_shape_is(w->data, 2, in / 8, out)) w->format = KLD_FMT_GPTQ4;
    else if (whole && kld_shape_is(w->data, 2, in / 4, out)) w->format = KLD_FMT_GPTQ8;
    else
        return kld_wrong_shape(w->data, err,
                               "[%zu, %zu] (AWQ GEMM), [%zu, %zu] (GPTQ, 4 bits) or [%zu, %zu] "
                               "(8 bits) for [%zu, %zu]",
                               in, out / 8, in / 8, out, in / 4, out, out, in);
    const kld_tensor *t = w->scale;
    if (t->rank != 2 || t->shape[0] == 0 || t->shape[0] > in || t->shape[1] != out)
        return kld_wrong_shape(t, err, "[groups, %zu]", out);
    TRY(settle_groups(w, want->quant, (size_t)t->shape[0], err));
    size_t words = out * kld_format_bits(w->format) / 32;
    if (!kld_shape_is(w->zeros, 2, w->groups, words))
        return kld_wrong_shape(w->zeros, err, "[%zu, %zu]", w->groups, words);
    if (w->format == KLD_FMT_AWQ) return KLD_OK;
    TRY(settle_zeros(w, prefix, want, err));
    return check_index(w, err);
}
