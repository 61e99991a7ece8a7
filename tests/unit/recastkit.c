#include "tests/unit/recastkit.h"

#include "kld/base/file.h"
#include "loaders/numfmt.h"

#include <math.h>
#include <stdlib.h>

static unsigned char *bytes_of(const kld_model *m, const kld_tensor *t) {
    kld_err err = {0};
    if (!t) return NULL;
    unsigned char *p = malloc((size_t)t->bytes + 1);
    assert_non_null(p);
    need(kld_checkpoint_read(&m->ckpt, t, 0, p, (size_t)t->bytes, &err), &err, t->name);
    return p;
}

static void copy(built *b, const kld_model *m, const kld_tensor *t) {
    char shape[64] = "[]";
    unsigned char *p = bytes_of(m, t);
    if (t->rank == 1) snprintf(shape, sizeof shape, "[%zu]", (size_t)t->shape[0]);
    if (t->rank == 2)
        snprintf(shape, sizeof shape, "[%zu,%zu]", (size_t)t->shape[0], (size_t)t->shape[1]);
    build_tensor(b, t->name, kld_dtype_name(t->dtype), shape, p, (size_t)t->bytes, 0);
    free(p);
}

kld_model *recast(built *b, const kld_model *m, recast_fn *fn, void *ctx) {
    kld_buf config = {0};
    kld_err err = {0};
    kld_model *out;
    char path[512];
    build_begin(b);
    snprintf(path, sizeof path, "%s/config.json", m->ckpt.dir);
    need(kld_file_slurp(path, 1 << 20, &config, &err), &err, path);
    put_file(b->dir, "config.json", config.data, config.len);
    kld_buf_free(&config);
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (fn(b, &at, ctx)) continue;
        copy(b, m, at.w->data);
        if (at.w->bias) copy(b, m, at.w->bias);
    }
    build_write(b, "model.safetensors");
    need(kld_model_open(&out, b->dir, &err), &err, "recast");
    return out;
}

float *recast_values(const kld_model *m, const kld_weight *w) {
    const kld_tensor *part[] = {w->data, w->scale, w->global, w->zeros, w->index, w->pre};
    unsigned char *p[6];
    float *out = malloc(w->rows * w->cols * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < 6; i++) p[i] = bytes_of(m, part[i]);
    kld_weight_decode(w, (kld_weight_view){p[0], p[1], p[2], p[3], p[4]}, 0, w->rows, false, out);
    for (size_t i = 0; w->pre && i < w->rows * w->cols; i++)
        out[i] *= kld_scale_value(w->pre, p[5], i % w->cols);
    for (size_t i = 0; i < 6; i++) free(p[i]);
    return out;
}

void recast_tensor(built *b, const kld_weight *w, const char *suffix, const char *dtype,
                   size_t rows, size_t cols, const void *data, size_t bytes) {
    char name[256], shape[64] = "[]";
    const char *dot = strrchr(w->data->name, '.');
    snprintf(name, sizeof name, "%.*s.%s", (int)(dot - w->data->name), w->data->name, suffix);
    if (cols) snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else if (rows) snprintf(shape, sizeof shape, "[%zu]", rows);
    build_tensor(b, name, dtype, shape, data, bytes, 0);
}

bool recast_dense(built *b, const kld_weight_at *at, void *model) {
    const kld_weight *w = at->w;
    if (w->format <= KLD_FMT_F32) return false;
    float *v = recast_values(model, w);
    recast_tensor(b, w, "weight", "F32", w->rows, w->cols, v, w->rows * w->cols * sizeof *v);
    free(v);
    return true;
}

static void put_pre(built *b, const kld_weight_at *at, awq_form *f) {
    uint16_t pre[256];
    bool shared = at->slot == KLD_SLOT_UP || (at->slot == KLD_SLOT_EXPERT_UP && at->expert % 2);
    uint64_t seed = f->seed + (shared ? at->next - 1 : at->next) + 1000 * at->layer;
    for (size_t c = 0; c < at->w->cols; c++)
        pre[c] = kld_f32_to_bf16((float)exp(2 * rnd(&seed) - 1));
    if (f->n == f->poisoned) pre[5] = 0x7fc1;
    recast_tensor(b, at->w, "pre_quant_scale", "BF16", at->w->cols, 0, pre, 2 * at->w->cols);
}

bool recast_awq(built *b, const kld_weight_at *at, void *ctx) {
    awq_form *f = ctx;
    const kld_weight *w = at->w;
    if (!at->layer || w->cols == 1 || at->slot == KLD_SLOT_ROUTER) return false;
    size_t n = w->rows * w->cols, blocks = n / 16;
    unsigned char *code = malloc(n), *scale = malloc(blocks);
    float *rows = malloc(w->rows * sizeof *rows), global = 0.02f;
    assert_true(code && scale && rows);
    f->n++;
    for (size_t i = 0; i < n; i++) code[i] = (unsigned char)(rnd(&f->seed) * 256);
    for (size_t i = 0; i < blocks; i++) scale[i] = (unsigned char)(0x30 + rnd(&f->seed) * 16);
    for (size_t i = 0; i < w->rows; i++) rows[i] = (float)(1e-3 + 1e-3 * rnd(&f->seed));
    if (f->integer) {
        recast_tensor(b, w, "weight", "I8", w->rows, w->cols, code, n);
        recast_tensor(b, w, "weight_scale", "F32", w->rows, 0, rows, w->rows * sizeof *rows);
    } else {
        recast_tensor(b, w, "weight", "U8", w->rows, w->cols / 2, code, n / 2);
        recast_tensor(b, w, "weight_scale", "F8_E4M3", w->rows, w->cols / 16, scale, blocks);
        recast_tensor(b, w, "weight_scale_2", "F32", 0, 0, &global, sizeof global);
    }
    if (f->has_pre) put_pre(b, at, f);
    free(code);
    free(scale);
    free(rows);
    return true;
}

/* ---- embeddings --------------------------------------------------------------------------- */

const char *const recast_embeddings[RECAST_EMBEDDINGS] = {"NVFP4 (ModelOpt)",
                                                          "NVFP4 (compressed-tensors)",
                                                          "MXFP4",
                                                          "FP8, one scale",
                                                          "FP8, a row",
                                                          "FP8, blocks",
                                                          "MXFP8",
                                                          "INT8, a row",
                                                          "INT8, groups",
                                                          "INT4, packed",
                                                          "INT4, zero points and order",
                                                          "INT8, packed with zero points"};

/* Random bytes, or FP32 scales. */
static void put(built *b, const kld_weight *w, const char *suffix, const char *dtype, size_t rows,
                size_t cols, unsigned from, unsigned to, uint64_t *seed) {
    size_t n = (rows ? rows : 1) * (cols ? cols : 1);
    bool wide = dtype[1] == '3';
    unsigned char *p = malloc(4 * n);
    assert_non_null(p);
    for (size_t i = 0; i < (wide ? 4 * n : n); i++)
        p[i] = (unsigned char)(from + rnd(seed) * (to - from));
    for (size_t i = 0; dtype[0] == 'F' && wide && i < n; i++) {
        float v = (float)(0.01 + 0.02 * rnd(seed));
        memcpy(p + 4 * i, &v, 4);
    }
    recast_tensor(b, w, suffix, dtype, rows, cols, p, wide ? 4 * n : n);
    free(p);
}

static void put_packed(built *b, const kld_weight *w, size_t bits, bool zeros, bool order,
                       uint64_t *seed) {
    const int64_t extent[2] = {(int64_t)w->rows, (int64_t)w->cols};
    int32_t group[256];
    put(b, w, "weight_packed", "I32", w->rows, w->cols * bits / 32, 0, 256, seed);
    put(b, w, "weight_scale", "F32", w->rows, w->cols / 32, 0, 0, seed);
    recast_tensor(b, w, "weight_shape", "I64", 2, 0, extent, sizeof extent);
    if (zeros)
        put(b, w, "weight_zero_point", "I32", w->rows * bits / 32, w->cols / 32, 0, 256, seed);
    for (size_t c = 0; c < w->cols; c++) group[c] = (int32_t)(c % (w->cols / 32));
    if (order) recast_tensor(b, w, "weight_g_idx", "I32", w->cols, 0, group, 4 * w->cols);
}

bool recast_embedding(built *b, const kld_weight_at *at, void *which) {
    const kld_weight *w = at->w;
    size_t kind = *(size_t *)which, rows = w->rows, cols = w->cols;
    uint64_t seed = 77 + kind;
    if (at->layer || at->slot != KLD_SLOT_EMBED) return false;
    switch (kind) {
    case 0:
        put(b, w, "weight", "U8", rows, cols / 2, 0, 256, &seed);
        put(b, w, "weight_scale", "F8_E4M3", rows, cols / 16, 0x40, 0x70, &seed);
        put(b, w, "weight_scale_2", "F32", 0, 0, 0, 0, &seed);
        break;
    case 1:
        put(b, w, "weight_packed", "U8", rows, cols / 2, 0, 256, &seed);
        put(b, w, "weight_scale", "F8_E4M3", rows, cols / 16, 1, 0x14, &seed);
        put(b, w, "weight_global_scale", "F32", 1, 0, 0, 0, &seed);
        break;
    case 2:
        put(b, w, "weight_packed", "U8", rows, cols / 2, 0, 256, &seed);
        put(b, w, "weight_scale", "U8", rows, cols / 32, 118, 123, &seed);
        break;
    case 3:
    case 4:
        put(b, w, "weight", "F8_E4M3", rows, cols, 0, 0x7f, &seed);
        put(b, w, "weight_scale", "F32", kind == 3 ? 1 : rows, 0, 0, 0, &seed);
        break;
    case 5:
        put(b, w, "weight", "F8_E4M3", rows, cols, 0x80, 0xff, &seed);
        put(b, w, "weight_scale_inv", "F32", (rows + 127) / 128, (cols + 127) / 128, 0, 0, &seed);
        break;
    case 6:
        put(b, w, "weight", "F8_E4M3", rows, cols, 0, 0x7f, &seed);
        put(b, w, "weight_scale", "U8", rows, cols / 32, 113, 120, &seed);
        break;
    case 7:
    case 8:
        put(b, w, "weight", "I8", rows, cols, 0, 256, &seed);
        put(b, w, "weight_scale", "F32", rows, kind == 7 ? 0 : cols / 16, 0, 0, &seed);
        break;
    default: put_packed(b, w, kind == 11 ? 8 : 4, kind > 9, kind == 10, &seed);
    }
    return true;
}
