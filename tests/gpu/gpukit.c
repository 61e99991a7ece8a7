#include "tests/gpu/gpukit.h"

#include "loaders/numfmt.h"
#include "logits/select.h"

#include <math.h>
#include <stdlib.h>

enum { GUARD = 4096 };

const kld_backend *gpu_backend(void) {
    static kld_choice choice;
    kld_err err = {0};
    if (!choice.backend) need(kld_choose("cuda", &choice, &err), &err, "cuda");
    return choice.backend;
}

size_t gpu_size(size_t full, size_t small) { return getenv("KLD_TEST_SMALL") ? small : full; }

void twin_open(twin *t, const kld_device_spec *spec) {
    kld_err err = {0};
    t->cpu = kld_backend_cpu();
    t->gpu = gpu_backend();
    t->bf16 = spec->precision == KLD_PRECISION_BF16;
    need(t->cpu->open(&t->c, spec, 0, &err), &err, "open cpu");
    need(t->gpu->open(&t->g, spec, 0, &err), &err, "open cuda");
}

void twin_close(twin *t) {
    t->cpu->close(t->c);
    t->gpu->close(t->g);
}

static bool is_bf16(const twin *t, kld_elem e) { return t->bf16 && e == KLD_ELEM_ACT; }
static size_t size_of(const twin *t, kld_elem e) { return is_bf16(t, e) ? 2 : 4; }

void both_push(twin *t, both *b) {
    size_t n = b->c.rows * b->c.ld, size = size_of(t, b->g.elem);
    kld_err err = {0};
    for (size_t i = 0; size == 2 && i < n; i++)
        b->host[i] = kld_bf16_to_f32(kld_f32_to_bf16(b->host[i]));
    memcpy(b->c.p, b->host, n * sizeof *b->host);
    unsigned char *raw = malloc(n * size + 2 * GUARD);
    assert_non_null(raw);
    memset(raw, 0xff, n * size + 2 * GUARD); /* a NaN in BF16 and in FP32 */
    for (size_t i = 0; i < n; i++) {
        uint16_t h = kld_f32_to_bf16(b->host[i]);
        if (size == 2) memcpy(raw + GUARD + 2 * i, &h, 2);
        else memcpy(raw + GUARD + 4 * i, &b->host[i], 4);
    }
    need(t->gpu->upload(t->g, b->block, raw, n * size + 2 * GUARD, &err), &err, "upload");
    free(raw);
}

both both_random(twin *t, size_t rows, size_t cols, size_t ld, kld_elem elem, double scale,
                 uint64_t *seed) {
    both b;
    kld_err err = {0};
    size_t n = rows * ld;
    b.host = malloc((n + 1) * sizeof *b.host);
    b.c = (kld_view){malloc((n + 1) * sizeof(float)), rows, cols, ld, elem};
    assert_true(b.host && b.c.p);
    for (size_t i = 0; i < n; i++) {
        float v = (float)(scale * rnd_normal(seed));
        b.host[i] = i % ld < cols ? v : NAN;
    }
    need(t->gpu->alloc(t->g, &b.block, n * size_of(t, elem) + 2 * GUARD, &err), &err, "alloc");
    b.g = b.c;
    b.g.p = (unsigned char *)b.block + GUARD;
    both_push(t, &b);
    return b;
}

float *both_pull(twin *t, const both *b) {
    size_t n = b->g.rows * b->g.ld, size = size_of(t, b->g.elem);
    kld_err err = {0};
    unsigned char *raw = malloc(n * size + 2 * GUARD);
    float *out = malloc((n + 1) * sizeof *out);
    assert_true(raw && out);
    need(t->gpu->download(t->g, raw, b->block, n * size + 2 * GUARD, &err), &err, "download");
    for (size_t i = 0; i < GUARD; i++)
        if (raw[i] != 0xff || raw[GUARD + n * size + i] != 0xff)
            fail_msg("a kernel wrote outside its buffer");
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, raw + GUARD + 2 * i, 2);
        if (size == 2) out[i] = kld_bf16_to_f32(h);
        else memcpy(&out[i], raw + GUARD + 4 * i, 4);
    }
    free(raw);
    return out;
}

void both_free(twin *t, both *b) {
    t->gpu->free(t->g, b->block);
    free(b->c.p);
    free(b->host);
}

double both_same(twin *t, const both *b, double rel, const char *what) {
    float *got = both_pull(t, b);
    const float *want = b->c.p;
    double ss = 0, worst = 0;
    size_t count = 0, at = 0;
    for (size_t r = 0; r < b->c.rows; r++) {
        for (size_t c = 0; c < b->c.cols; c++) {
            double w = (double)want[r * b->c.ld + c];
            if (isfinite(w)) {
                ss += w * w;
                count++;
            }
        }
    }
    double rms = sqrt(ss / (double)(count ? count : 1));
    for (size_t i = 0; i < b->c.rows * b->c.ld; i++) {
        double g = (double)got[i], w = (double)want[i];
        if (isnan(g) != isnan(w))
            fail_msg("%s: [%zu,%zu] is %g on the GPU, %g on the CPU", what, i / b->c.ld,
                     i % b->c.ld, g, w);
        if (isnan(w) || g == w) continue;
        /* One BF16 value may round to either neighbour. */
        double e = fabs(g - w) - (is_bf16(t, b->g.elem) ? ldexp(fabs(w), -7) : 0);
        if (!(e <= worst)) {
            worst = e;
            at = i;
        }
    }
    if (!(worst <= rel * rms))
        fail_msg("%s: [%zu,%zu] is %.9g on the GPU, %.9g on the CPU; rms %.3g, tolerance %.3g",
                 what, at / b->c.ld, at % b->c.ld, (double)got[at], (double)want[at], rms, rel);
    free(got);
    return rms > 0 ? worst / rms : 0;
}

void *gpu_copy(twin *t, const void *host, size_t n) {
    void *p = NULL;
    kld_err err = {0};
    need(t->gpu->alloc(t->g, &p, n, &err), &err, "alloc");
    need(t->gpu->upload(t->g, p, host, n, &err), &err, "upload");
    return p;
}

static void prepare(twin *t, weight *w, kld_use use) {
    kld_err err = {0};
    kld_precision p = t->bf16 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
    kld_raw_weight raw = {.w = &w->w, .alpha = 1, .global = 1};
    raw.v.data = w->values;
    raw.bias = (const unsigned char *)w->bias_values;
    raw.pre = (const unsigned char *)w->pre_values;
    need(t->cpu->alloc(t->c, &w->mem[0], t->cpu->weight_bytes(p, &w->w, use), &err), &err, "alloc");
    need(t->cpu->prepare(t->c, &raw, use, w->mem[0], &w->c, &err), &err, "prepare cpu");
    w->raw = gpu_copy(t, w->values, w->data.bytes);
    raw.v.data = w->raw;
    if (w->bias_values) raw.bias = w->raw_bias = gpu_copy(t, w->bias_values, w->bias.bytes);
    if (w->pre_values) raw.pre = w->raw_pre = gpu_copy(t, w->pre_values, w->pre.bytes);
    need(t->gpu->alloc(t->g, &w->mem[1], t->gpu->weight_bytes(p, &w->w, use), &err), &err, "alloc");
    need(t->gpu->prepare(t->g, &raw, use, w->mem[1], &w->g, &err), &err, "prepare cuda");
}

void weight_random(twin *t, weight *w, kld_format f, size_t rows, size_t cols, bool bias,
                   kld_use use, uint64_t *seed) {
    size_t n = rows * cols, size = f == KLD_FMT_F32 ? 4 : 2;
    memset(w, 0, sizeof *w);
    w->data = (kld_tensor){.name = "w", .dtype = KLD_F32, .bytes = n * size};
    if (f == KLD_FMT_BF16) w->data.dtype = KLD_BF16;
    if (f == KLD_FMT_F16) w->data.dtype = KLD_F16;
    w->bias = (kld_tensor){.name = "b", .dtype = KLD_F32, .bytes = rows * 4};
    w->w = (kld_weight){.format = f, .rows = rows, .cols = cols, .data = &w->data};
    w->values = malloc(n * size);
    assert_non_null(w->values);
    for (size_t i = 0; i < n; i++) {
        float v = (float)rnd_normal(seed);
        uint16_t h = kld_f32_to_bf16(v);
        if (f == KLD_FMT_F16) h = (uint16_t)(0x3000 + rnd(seed) * 0xc00); /* 0.125 .. 1 */
        if (size == 4) ((float *)w->values)[i] = v;
        else ((uint16_t *)w->values)[i] = h;
    }
    if (bias) {
        w->w.bias = &w->bias;
        w->bias_values = malloc(rows * sizeof(float));
        assert_non_null(w->bias_values);
        for (size_t i = 0; i < rows; i++) w->bias_values[i] = (float)rnd_normal(seed);
    }
    prepare(t, w, use);
}

static void unprepare(twin *t, weight *w) {
    t->cpu->free(t->c, w->mem[0]);
    t->gpu->free(t->g, w->mem[1]);
    t->gpu->free(t->g, w->raw);
    t->gpu->free(t->g, w->raw_bias);
    t->gpu->free(t->g, w->raw_pre);
}

void weight_factors(twin *t, weight *w, kld_dtype dtype, uint64_t *seed) {
    size_t n = w->w.cols;
    unprepare(t, w);
    w->pre = (kld_tensor){.name = "p", .dtype = dtype, .bytes = n * 2};
    w->w.pre = &w->pre;
    w->pre_values = malloc(n * sizeof *w->pre_values);
    assert_non_null(w->pre_values);
    for (size_t i = 0; i < n; i++) {
        w->pre_values[i] = kld_f32_to_bf16((float)(0.3 + rnd(seed)));
        if (dtype == KLD_F16) w->pre_values[i] = (uint16_t)(0x3400 + rnd(seed) * 0xa00);
    }
    prepare(t, w, KLD_USE_MATRIX);
}

void weight_free(twin *t, weight *w) {
    unprepare(t, w);
    free(w->values);
    free(w->bias_values);
    free(w->pre_values);
}
