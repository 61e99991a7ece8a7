#include "loaders/classify.h"

#include "loaders/classify_rows.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

static bool row_matches(const kld_format_row *r, const kld_module *m) {
    size_t used = 0;
    for (size_t i = 0; i < KLD_ROW_PARTS && r->part[i].suffix; i++) {
        const kld_tensor *t = find(m, r->part[i].suffix);
        if (!t && r->part[i].optional) continue;
        if (!t || !(r->part[i].dtypes & 1u << t->dtype)) return false;
        used++;
    }
    return used + (find(m, "bias") != NULL) == m->n;
}

bool kld_shape_is(const kld_tensor *t, unsigned rank, size_t a, size_t b) {
    if (t->rank != rank) return false;
    return (rank < 1 || t->shape[0] == a) && (rank < 2 || t->shape[1] == b);
}

size_t kld_tensor_elements(const kld_tensor *t) {
    uint64_t n = 1;
    for (unsigned i = 0; i < t->rank; i++) n *= t->shape[i]; /* checked by the header */
    return (size_t)n;
}

/* Whether t has the shape of the rule; `expected` is how a message writes it. */
static bool shape_ok(kld_shape_rule rule, const kld_tensor *t, const kld_expect *w, char *expected,
                     size_t n) {
    size_t cols = w->cols;
    switch (rule) {
    case KLD_SHAPE_ANY: return true;
    case KLD_SHAPE_FULL:
        if (cols == 1) {
            snprintf(expected, n, "[%zu]", w->rows);
            return kld_shape_is(t, 1, w->rows, 0);
        }
        break;
    case KLD_SHAPE_HALF: cols /= 2; break;
    case KLD_SHAPE_BLOCK16: cols /= 16; break;
    case KLD_SHAPE_BLOCK32: cols /= 32; break;
    case KLD_SHAPE_COLS:
        snprintf(expected, n, "[%zu]", w->cols);
        return kld_shape_is(t, 1, w->cols, 0);
    case KLD_SHAPE_SCALAR:
        snprintf(expected, n, "[] or [1]");
        return kld_tensor_elements(t) == 1 && t->rank <= 1;
    }
    snprintf(expected, n, "[%zu, %zu]", w->rows, cols);
    return kld_shape_is(t, 2, w->rows, cols);
}

kld_status kld_wrong_shape(const kld_tensor *t, kld_err *err, const char *expected, ...) {
    char want[256], found[160];
    va_list ap;
    va_start(ap, expected);
    (void)vsnprintf(want, sizeof want, expected, ap);
    va_end(ap);
    return kld_fail(err, KLD_E_INPUT, "%.300s: expected shape %s, found %s", t->name, want,
                    kld_tensor_text(t, found, sizeof found));
}

static kld_status fill_part(kld_weight *w, const kld_part_row *p, const kld_tensor *t,
                            const kld_expect *want, const kld_format_row *row, kld_err *err) {
    char expected[96], found[160];
    if (!shape_ok(p->shape, t, want, expected, sizeof expected)) {
        kld_tensor_text(t, found, sizeof found);
        if (row->format == KLD_FMT_NVFP4 && p->role == KLD_ROLE_GLOBAL &&
            kld_tensor_elements(t) > 1)
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "%s: NVFP4 with a vector of global scales is not implemented: %s",
                            t->name, found);
        if (p->role == KLD_ROLE_SCALE && t->rank == 1 && row->block > 1)
            return kld_fail(err, KLD_E_INPUT,
                            "%.300s: expected shape %s, found %s: block scales in one dimension "
                            "are swizzled for a kernel; export the checkpoint again",
                            t->name, expected, found);
        return kld_wrong_shape(t, err, "%s", expected);
    }
    switch (p->role) {
    case KLD_ROLE_NONE: break;
    case KLD_ROLE_DATA: w->data = t; break;
    case KLD_ROLE_SCALE: w->scale = t; break;
    case KLD_ROLE_GLOBAL: w->global = t; break;
    case KLD_ROLE_INPUT: w->input_scale = t; break;
    case KLD_ROLE_ZEROS: w->zeros = t; break;
    case KLD_ROLE_INDEX: w->index = t; break;
    case KLD_ROLE_EXTENT: w->extent = t; break;
    case KLD_ROLE_PRE: w->pre = t; break;
    }
    return KLD_OK;
}

static kld_status check_by_row(const kld_weight *w, const kld_module *m, kld_err *err) {
    if (!kld_format_by_row(w->format))
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%.300s: an embedding in %s is not implemented: its rows do not have bytes "
                        "of their own",
                        m->prefix, kld_format_name(w->format));
    if (w->pre)
        return kld_fail(err, KLD_E_INPUT,
                        "tensor '%.300s': an embedding has no input that it could multiply",
                        w->pre->name);
    return KLD_OK;
}

static kld_status fill(kld_weight *w, const kld_format_row *row, const kld_module *m,
                       const kld_expect *want, kld_err *err) {
    w->format = row->format;
    w->global_divides = row->divides;
    if (row->block > 1) w->block_cols = row->block;
    if (want->cols % row->block)
        return kld_fail(err, KLD_E_INPUT,
                        "%.300s: %s needs rows in blocks of %u, but they have %zu", m->prefix,
                        kld_format_name(row->format), row->block, want->cols);
    for (size_t i = 0; i < KLD_ROW_PARTS && row->part[i].suffix; i++) {
        const kld_tensor *t = find(m, row->part[i].suffix);
        if (t) TRY(fill_part(w, &row->part[i], t, want, row, err));
    }
    if (row->settle) TRY(row->settle(w, m->prefix, want, err));
    if (row->format > KLD_FMT_F32 && !want->quantizable)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%.300s: %s here is not implemented; BF16, F16 or F32 is", m->prefix,
                        kld_format_name(w->format));
    return want->by_row ? check_by_row(w, m, err) : KLD_OK;
}

/* Nothing matched: say the most useful thing that is true. */
static kld_status explain(const kld_module *m, kld_err *err) {
    char found[640];
    list_parts(m, found, sizeof found);
    for (size_t i = 0; i < kld_n_refused_rows; i++) {
        if (has(m, kld_refused_rows[i].suffix, kld_refused_rows[i].dtypes) &&
            (!kld_refused_rows[i].with ||
             has(m, kld_refused_rows[i].with, kld_refused_rows[i].with_dtypes)))
            return kld_fail(err, KLD_E_UNSUPPORTED, "%.200s: %s is not implemented: %s", m->prefix,
                            kld_refused_rows[i].name, found);
    }
    /* A row of which some parts are there and nothing else is: the rest got lost. */
    for (size_t i = 0; i < kld_n_format_rows; i++) {
        const kld_format_row *r = &kld_format_rows[i];
        const char *missing = NULL;
        size_t known = find(m, "bias") != NULL;
        bool data = false;
        for (size_t k = 0; k < KLD_ROW_PARTS && r->part[k].suffix; k++) {
            const kld_part_row *p = &r->part[k];
            if (has(m, p->suffix, p->dtypes)) known++;
            else if (!p->optional && !missing) missing = p->suffix;
            if (p->role == KLD_ROLE_DATA) data = has(m, p->suffix, p->dtypes);
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
    if (!(KLD_DTYPES_FLOAT & 1u << t->dtype) || !kld_shape_is(t, 1, want->rows, 0))
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
    const kld_format_row *row = NULL;
    for (size_t i = 0; !row && i < kld_n_format_rows; i++) {
        if (row_matches(&kld_format_rows[i], m)) row = &kld_format_rows[i];
    }
    if (!row) return explain(m, err);
    TRY(fill(w, row, m, want, err));
    return check_bias(w, m, want, err);
}
