#include "tests/unit/recastkit.h"

#include "kld/base/file.h"

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
