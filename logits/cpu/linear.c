/* Weights in FP32 and matrix products in fixed tiles. */
#include "kld/base/num.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"

#include <cblas.h>
#include <omp.h>
#include <string.h>

static size_t padded(size_t bytes) { return num_cdiv(bytes, 256) * 256; }

size_t cpu_weight_bytes(kld_precision precision, const kld_weight *w, kld_use use) {
    (void)precision;
    if (use == KLD_USE_EMBEDDING) return 0;
    return padded(w->rows * w->cols * sizeof(float)) +
           (w->bias ? padded(w->rows * sizeof(float)) : 0) +
           (w->pre ? padded(w->cols * sizeof(float)) : 0);
}

CLONES static void round_bf16(float *p, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf v;
        vf_load(&v, p + i);
        vf_bf16(&v);
        vf_store(p + i, &v);
    }
    if (i < n) {
        vf v = {0};
        memcpy(&v, p + i, (n - i) * sizeof *p);
        vf_bf16(&v);
        memcpy(p + i, &v, (n - i) * sizeof *p);
    }
}

/* Biases and factors of the input, behind the values in mem. */
static void prepare_vectors(const kld_raw_weight *raw, unsigned char *mem, kld_dev_weight *out) {
    const kld_weight *w = raw->w;
    float *bias = (float *)(void *)mem;
    float *pre = (float *)(void *)(mem + (w->bias ? padded(w->rows * sizeof *bias) : 0));
    for (size_t i = 0; w->bias && i < w->rows; i++) {
        size_t at = kld_shard_row(w->shards, w->shard_rows, i);
        bias[i] = kld_scale_value(w->bias, raw->bias, at);
    }
    for (size_t i = 0; w->pre && i < w->cols; i++) pre[i] = kld_scale_value(w->pre, raw->pre, i);
    if (w->bias) out->bias = bias;
    if (w->pre) out->pre = pre;
}

kld_status cpu_prepare(kld_device *dev, const kld_raw_weight *raw, kld_use use, void *mem,
                       kld_dev_weight *out, kld_err *err) {
    (void)err;
    const kld_weight *w = raw->w;
    memset(out, 0, sizeof *out);
    out->rows = w->rows;
    out->cols = w->cols;
    out->alpha = 1.0f;
    out->raw = *raw;
    if (use == KLD_USE_EMBEDDING) return KLD_OK;
    float *data = mem;
    bool matrix = use == KLD_USE_MATRIX;
    float plus = use == KLD_USE_VECTOR_PLUS_ONE ? 1.0f : 0.0f;
    if (matrix) out->alpha = raw->alpha;
    /* Decoding is element-wise, so the cut into slices is free to follow the cores. */
    enum { SLICE = 32 };
    size_t slices = num_cdiv(w->rows, SLICE);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t s = 0; s < slices; s++) {
        size_t row = s * SLICE, n = num_min(SLICE, w->rows - row);
        float *p = data + row * w->cols;
        kld_weight_decode(w, raw->v, row, n, matrix, p);
        if (matrix && dev->bf16 && w->format != KLD_FMT_BF16) round_bf16(p, n * w->cols);
        for (size_t i = 0; plus != 0 && i < n * w->cols; i++) p[i] += plus;
    }
    out->data = data;
    prepare_vectors(raw, (unsigned char *)mem + padded(w->rows * w->cols * sizeof(float)), out);
    return KLD_OK;
}

struct finish {
    float alpha;
    bool bf16, add;
};

/* y (+)= round(alpha * c + bias), n columns. */
CLONES static void finish_row(float *y, const float *c, const float *bias, size_t n,
                              const struct finish *f) {
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i < VL ? n - i : VL;
        vf v = {0}, t = {0};
        if (k == VL) vf_load(&v, c + i);
        else memcpy(&v, c + i, k * sizeof *c);
        v *= f->alpha;
        if (bias) {
            memcpy(&t, bias + i, k * sizeof *bias);
            v += t;
        }
        if (f->bf16) vf_bf16(&v);
        if (f->add) {
            if (k == VL) vf_load(&t, y + i);
            else memcpy(&t, y + i, k * sizeof *y);
            v = t + v;
        }
        if (k == VL) vf_store(y + i, &v);
        else memcpy(y + i, &v, k * sizeof *y);
    }
}

/* Columns of a tile; they follow from the columns of y alone. */
static size_t tile_width(size_t cols) {
    return num_cdiv(num_cdiv(cols, num_cdiv(cols, CPU_TILE)), 16) * 16;
}

static struct finish finish_of(const kld_device *dev, const kld_dev_weight *w, kld_view y,
                               bool add) {
    return (struct finish){w->alpha, dev->bf16 && y.elem == KLD_ELEM_ACT, add};
}

static void run_tile(kld_device *dev, const kld_span *s, size_t col, size_t n, kld_view x,
                     const kld_dev_weight *w, kld_view y, const struct finish *f) {
    bool direct = f->alpha == 1.0f && !f->bf16 && !f->add && !w->bias;
    float *yt = view_row(y, s->row) + col;
    float *c = direct ? yt : dev->tile + (size_t)omp_get_thread_num() * KLD_CHUNK * CPU_TILE;
    size_t ldc = direct ? y.ld : CPU_TILE;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)s->n, (blasint)n,
                (blasint)w->cols, 1.0f, view_row(x, s->row), (blasint)x.ld,
                (const float *)w->data + col * w->cols, (blasint)w->cols, 0.0f, c, (blasint)ldc);
    for (size_t r = 0; !direct && r < s->n; r++)
        finish_row(yt + r * y.ld, c + r * ldc, w->bias ? w->bias + col : NULL, n, f);
}

/* Computed as W x^T: rows of x then are lanes of vectors, which all go through the same
 * instructions, while the other way round a row's bits depend on its place in the tile. */
void cpu_linear_lanes(kld_device *dev, kld_view x, const kld_dev_weight *w, kld_view y) {
    size_t width = tile_width(y.cols);
    struct finish f = finish_of(dev, w, y, false);
    float *c = dev->tile + (size_t)omp_get_thread_num() * KLD_CHUNK * CPU_TILE;
    float *row = c + CPU_EXPERT_ROWS * CPU_TILE;
    for (size_t col = 0; col < y.cols; col += width) {
        size_t n = num_min(width, y.cols - col);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, CPU_EXPERT_ROWS,
                    (blasint)w->cols, 1.0f, (const float *)w->data + col * w->cols,
                    (blasint)w->cols, x.p, (blasint)x.ld, 0.0f, c, CPU_EXPERT_ROWS);
        for (size_t r = 0; r < CPU_EXPERT_ROWS; r++) {
            for (size_t k = 0; k < n; k++) row[k] = c[k * CPU_EXPERT_ROWS + r];
            finish_row(view_row(y, r) + col, row, w->bias ? w->bias + col : NULL, n, &f);
        }
    }
}
_Static_assert((CPU_EXPERT_ROWS + 1) * CPU_TILE <= KLD_CHUNK * CPU_TILE, "in a thread's tile");

/* A task is one span times one column tile.  The tile width follows from the number of
 * columns alone and every product has the span's rows, so its sums are the same whoever
 * computes it, whatever else is in the batch.  Tasks of one tile are neighbours: the tile
 * stays in cache while the spans pass by. */
kld_status cpu_linear(kld_device *dev, const kld_batch *b, kld_view x, const kld_dev_weight *w,
                      kld_view y, bool add, kld_err *err) {
    if (!cpu_plain_input(w)) {
        kld_view q = {dev->act, x.rows, w->cols, w->cols, KLD_ELEM_ACT};
        x.cols = w->cols;
        if (x.cols > dev->spec.act_cols || x.rows > dev->spec.max_rows)
            return kld_fail(err, KLD_E_INTERNAL, "inputs of %zu x %zu were not announced", x.rows,
                            x.cols);
        TRY(cpu_input(dev, x, w, q, err));
        x = q;
    }
    size_t width = tile_width(y.cols), tasks = num_cdiv(y.cols, width) * b->n;
    struct finish f = finish_of(dev, w, y, add);
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t t = 0; t < tasks; t++) {
        size_t col = t / b->n * width;
        run_tile(dev, &b->span[t % b->n], col, num_min(width, y.cols - col), x, w, y, &f);
    }
    return KLD_OK;
}
