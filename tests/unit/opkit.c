#include "tests/unit/opkit.h"

/* rows x cols of random values inside rows x ld of NaN. */
kld_view random_view(size_t rows, size_t cols, size_t ld, uint64_t *seed) {
    float *p = malloc((rows * ld + 1) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < rows * ld; i++) p[i] = i % ld < cols ? (float)rnd_normal(seed) : NAN;
    return (kld_view){p, rows, cols, ld, KLD_ELEM_F32};
}

float *at(kld_view v, size_t r, size_t c) { return (float *)v.p + r * v.ld + c; }

/* What lies past the columns must still be NaN. */
void check_padding(kld_view v) {
    for (size_t r = 0; r < v.rows; r++)
        for (size_t c = v.cols; c < v.ld; c++) assert_true(isnan(*at(v, r, c)));
}

void close_to(double got, double want, double tol, const char *what, size_t r, size_t c) {
    if (!(fabs(got - want) <= tol))
        fail_msg("%s [%zu,%zu]: %.9g instead of %.9g", what, r, c, got, want);
}

double bf16(double x) { return (double)kld_bf16_to_f32(kld_f32_to_bf16((float)x)); }

kld_device *op_device(const kld_device_spec *spec) {
    kld_device *dev;
    kld_err err = {0};
    need(be->open(&dev, spec, 0, &err), &err, "open");
    return dev;
}

kld_device *open_dev(kld_precision p, size_t keys) {
    kld_device_spec spec = {.precision = p,
                            .max_rows = 1024,
                            .max_keys = keys,
                            .vocab = 64,
                            .top_k = 8,
                            .head_dim = 16};
    return op_device(&spec);
}

void store(stored *s, kld_device *dev, const float *values, const float *bias, size_t rows,
           size_t cols, kld_use use) {
    memset(s, 0, sizeof *s);
    s->data = (kld_tensor){.name = "w", .dtype = KLD_F32, .bytes = rows * cols * 4};
    s->bias = (kld_tensor){.name = "b", .dtype = KLD_F32, .bytes = rows * 4};
    s->w = (kld_weight){.format = KLD_FMT_F32, .rows = rows, .cols = cols, .data = &s->data};
    if (bias) s->w.bias = &s->bias;
    s->h = (kld_raw_weight){.w = &s->w,
                            .v = {.data = (const unsigned char *)values},
                            .bias = (const unsigned char *)bias,
                            .alpha = 1,
                            .global = 1};
    kld_err err = {0};
    size_t n = be->weight_bytes(KLD_PRECISION_FP32, &s->w, use);
    need(be->alloc(dev, &s->mem, n, &err), &err, "alloc");
    need(be->prepare(dev, &s->h, use, s->mem, &s->dev, &err), &err, "prepare");
}
