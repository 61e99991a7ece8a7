/* Factors of a product's input (ModelOpt's pre_quant_scale): operations against FP64 and against
 * themselves in parts, whole models against twins whose weights have them folded in. */
#include "kld/base/log.h"
#include "tests/unit/opkit.h"
#include "tests/unit/recastkit.h"

/* ---- operations --------------------------------------------------------------------------- */

/* A weight with factors, prepared; `like` has its values. */
typedef struct factored {
    stored s;
    kld_tensor pre;
    unsigned char *bytes; /* as stored */
    float *value;         /* [cols] */
} factored;

/* Stored as F32, BF16 or F16; coarse: multiples of 1/4. */
static void factor(factored *f, kld_device *dev, kld_precision p, const float *values,
                   const float *bias, size_t rows, size_t cols, kld_dtype dtype, bool coarse,
                   uint64_t *seed) {
    size_t width = dtype == KLD_F32 ? 4 : 2;
    kld_err err = {0};
    store(&f->s, dev, values, bias, rows, cols, KLD_USE_MATRIX);
    be->free(dev, f->s.mem);
    f->pre = (kld_tensor){.name = "p", .dtype = dtype, .bytes = cols * width};
    f->bytes = malloc(cols * width);
    f->value = malloc(cols * sizeof *f->value);
    assert_true(f->bytes && f->value);
    for (size_t i = 0; i < cols; i++) {
        float v = (float)(0.1 + 3 * rnd(seed));
        if (coarse) v = (float)(1 + (int)(rnd(seed) * 8)) / 4;
        uint16_t h = kld_f32_to_bf16(v);
        if (dtype == KLD_F16) h = (uint16_t)(0x3000 + rnd(seed) * 0x1000);
        if (width == 4) memcpy(f->bytes + 4 * i, &v, 4);
        else memcpy(f->bytes + 2 * i, &h, 2);
        f->value[i] = kld_scale_value(&f->pre, f->bytes, i);
    }
    f->s.w.pre = &f->pre;
    f->s.h.pre = f->bytes;
    need(be->alloc(dev, &f->s.mem, be->weight_bytes(p, &f->s.w, KLD_USE_MATRIX), &err), &err, "");
    need(be->prepare(dev, &f->s.h, KLD_USE_MATRIX, f->s.mem, &f->s.dev, &err), &err, "prepare");
    assert_memory_equal(f->s.dev.pre, f->value, cols * sizeof *f->value);
}

static void drop(factored *f, kld_device *dev) {
    be->free(dev, f->s.mem);
    free(f->bytes);
    free(f->value);
}

static kld_device *device(kld_precision p, size_t hidden, size_t inner) {
    kld_device_spec spec = {.precision = p,
                            .max_rows = 512,
                            .max_keys = 64,
                            .vocab = 8,
                            .top_k = 2,
                            .head_dim = 16,
                            .hidden = hidden,
                            .experts = 3,
                            .chosen = 2,
                            .expert_cols = 2 * inner,
                            .act_cols = hidden,
                            .act_formats = (1u << KLD_AQ_COUNT) - 1};
    return op_device(&spec);
}

static kld_view copy(kld_view v) {
    kld_view w = v;
    w.p = malloc(v.rows * v.ld * sizeof(float));
    assert_non_null(w.p);
    memcpy(w.p, v.p, v.rows * v.ld * sizeof(float));
    return w;
}

static kld_view input(size_t rows, size_t cols, size_t ld, bool bf, uint64_t *seed) {
    kld_view x = random_view(rows, cols, ld, seed);
    for (size_t r = 0; bf && r < rows; r++)
        for (size_t c = 0; c < cols; c++) *at(x, r, c) = (float)bf16((double)*at(x, r, c));
    x.elem = KLD_ELEM_ACT;
    return x;
}

static size_t spans_of(kld_span *span, size_t rows) {
    size_t n = 0;
    for (size_t r = 0; r < rows; r += span[n++].n)
        span[n] = (kld_span){r, rows - r < 200 ? rows - r : 200, r, 0};
    return n;
}

static void linear_case(size_t rows, size_t k, size_t n, bool bias, bool add, kld_precision p,
                        kld_dtype dtype, uint64_t *seed) {
    bool bf = p == KLD_PRECISION_BF16;
    kld_device *dev = device(p, k, 8);
    kld_view x = input(rows, k, k + 1, bf, seed), before = copy(x);
    kld_view w = random_view(n, k, k, seed), b = random_view(1, n, n, seed);
    kld_view y = random_view(rows, n, n + 4, seed), y0 = copy(y);
    factored f;
    factor(&f, dev, p, w.p, bias ? b.p : NULL, n, k, dtype, false, seed);
    f.s.dev.alpha = 0.37f;
    kld_span span[8];
    kld_batch batch = {span, spans_of(span, rows), rows};
    assert_int_equal(be->linear(dev, &batch, x, &f.s.dev, y, add, NULL), KLD_OK);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < n; c++) {
            double want = 0, size = 0;
            for (size_t i = 0; i < k; i++) {
                double wv = (double)*at(w, c, i);
                double xv = (double)(*at(x, r, i) * f.value[i]);
                if (bf) wv = bf16(wv);
                if (bf) xv = bf16(xv); /* once: with another rounding the sums are 1e-3 off */
                want += xv * wv;
                size += fabs(xv * wv);
            }
            want = (double)0.37f * want + (bias ? (double)*at(b, 0, c) : 0) +
                   (add ? (double)*at(y0, r, c) : 0);
            close_to((double)*at(y, r, c), want, 1e-6 * size + 1e-6, "linear", r, c);
        }
    }
    check_padding(y);
    check_padding(x);
    for (size_t r = 0; r < rows; r++)
        assert_memory_equal(at(x, r, 0), at(before, r, 0), k * sizeof(float));
    kld_view *all[] = {&x, &before, &w, &b, &y, &y0};
    for (size_t i = 0; i < 6; i++) free(all[i]->p);
    drop(&f, dev);
    be->close(dev);
}

static void linear(void **state) {
    (void)state;
    uint64_t seed = 5;
    linear_case(1, 1, 1, false, false, KLD_PRECISION_FP32, KLD_F32, &seed);
    linear_case(3, 54, 37, true, false, KLD_PRECISION_FP32, KLD_BF16, &seed);
    linear_case(257, 33, 529, false, true, KLD_PRECISION_FP32, KLD_F16, &seed);
    linear_case(300, 70, 513, true, false, KLD_PRECISION_BF16, KLD_BF16, &seed);
    linear_case(9, 1000, 16, false, true, KLD_PRECISION_BF16, KLD_F32, &seed);
    linear_case(17, 31, 5, false, false, KLD_PRECISION_BF16, KLD_F16, &seed);
}

/* What is quantized is x times the factors. */
static void quantized(void **state) {
    (void)state;
    enum { K = 128, N = 24, ROWS = 75 };
    uint64_t seed = 11;
    kld_span span[2];
    kld_batch batch = {span, spans_of(span, ROWS), ROWS};
    for (size_t i = 0; i < 2 * SAMPLE_INPUTS; i++) {
        kld_precision p = (kld_precision)(i % 2);
        bool bf = p == KLD_PRECISION_BF16;
        kld_device *dev = device(p, K, 8);
        kld_view x = input(ROWS, K, K + 3, bf, &seed), w = random_view(N, K, K, &seed);
        kld_view y = random_view(ROWS, N, N + 2, &seed), want = copy(y);
        factored f;
        factor(&f, dev, p, w.p, NULL, N, K, KLD_BF16, false, &seed);
        f.s.dev.input = sample_inputs[i / 2];
        f.s.dev.alpha = kld_act_alpha(&f.s.dev.input);
        kld_dev_weight plain = f.s.dev;
        plain.pre = NULL;
        assert_int_equal(be->linear(dev, &batch, x, &f.s.dev, y, false, NULL), KLD_OK);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < K; c++) {
                *at(x, r, c) *= f.value[c];
                if (bf) *at(x, r, c) = (float)bf16((double)*at(x, r, c));
            }
        assert_int_equal(be->linear(dev, &batch, x, &plain, want, false, NULL), KLD_OK);
        for (size_t r = 0; r < ROWS; r++)
            assert_memory_equal(at(y, r, 0), at(want, r, 0), N * sizeof(float));
        kld_view *all[] = {&x, &w, &y, &want};
        for (size_t k = 0; k < 4; k++) free(all[k]->p);
        drop(&f, dev);
        be->close(dev);
    }
}

/* An input that was not announced has no room. */
static void unannounced(void **state) {
    (void)state;
    uint64_t seed = 2;
    kld_err err = {0};
    kld_device *dev = device(KLD_PRECISION_FP32, 8, 8);
    kld_view x = input(1, 9, 9, false, &seed), w = random_view(2, 9, 9, &seed);
    kld_view y = random_view(1, 2, 2, &seed);
    kld_span span = {0, 1, 0, 0};
    kld_batch batch = {&span, 1, 1};
    factored f;
    factor(&f, dev, KLD_PRECISION_FP32, w.p, NULL, 2, 9, KLD_F32, false, &seed);
    assert_int_equal(be->linear(dev, &batch, x, &f.s.dev, y, false, &err), KLD_E_INTERNAL);
    drop(&f, dev);
    be->close(dev);
    free(x.p);
    free(w.p);
    free(y.p);
}

enum { HID = 128, INNER = 64, ROWS = 75, EXPERTS = 3 };

/* Small multiples of 1/4, so that sums of products are exact in whatever order. */
static kld_view coarse(size_t rows, size_t cols, size_t ld, uint64_t *seed) {
    kld_view v = input(rows, cols, ld, false, seed);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) *at(v, r, c) = (float)(floor(rnd(seed) * 9) - 4) / 4;
    return v;
}

typedef struct bank {
    kld_view value[EXPERTS][3];
    factored f[EXPERTS][3];
} bank;

/* Expert 0: its up has none; expert 1: all have; expert 2: gate and up share one; the inputs of 1
 * are quantized, too. */
static void open_bank(bank *b, kld_device *dev, kld_precision p, uint64_t *seed) {
    for (size_t i = 0; i < 3 * EXPERTS; i++) {
        size_t e = i / 3, k = i % 3, rows = k < 2 ? INNER : HID, cols = k < 2 ? HID : INNER;
        kld_view *v = &b->value[e][k];
        kld_dev_weight *w = &b->f[e][k].s.dev;
        *v = coarse(rows, cols, cols, seed);
        factor(&b->f[e][k], dev, p, v->p, NULL, rows, cols, KLD_BF16, true, seed);
        w->alpha = 1.0f / 64;
        if (e == 1) w->input = sample_inputs[k];
        if (e == 1) w->alpha *= kld_act_alpha(&w->input);
        if (e == 0 && k == 1) w->pre = NULL;
        if (e == 2 && k == 1) w->pre = b->f[2][0].s.dev.pre;
    }
}

/* One row through one expert, by the single operations. */
static void by_parts(kld_device *dev, const bank *b, size_t e, kld_view h, float *y) {
    static const kld_gate silu = {KLD_ACT_SILU, 0};
    static const kld_span span = {0, 1, 0, 0};
    static const kld_batch batch = {&span, 1, 1};
    float g[2][INNER];
    kld_view half[2] = {{g[0], 1, INNER, INNER, KLD_ELEM_ACT},
                        {g[1], 1, INNER, INNER, KLD_ELEM_ACT}};
    kld_view out = {y, 1, HID, HID, KLD_ELEM_F32};
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(be->linear(dev, &batch, h, &b->f[e][i].s.dev, half[i], false, NULL),
                         KLD_OK);
    assert_int_equal(be->gated(dev, &silu, half[0], half[1], half[0], NULL), KLD_OK);
    assert_int_equal(be->linear(dev, &batch, half[0], &b->f[e][2].s.dev, out, false, NULL), KLD_OK);
}

static void experts(void **state) {
    (void)state;
    static const kld_gate silu = {KLD_ACT_SILU, 0};
    uint64_t seed = 21;
    for (int p = 0; p < 2; p++) {
        kld_device *dev = device((kld_precision)p, HID, INNER);
        bank b;
        open_bank(&b, dev, (kld_precision)p, &seed);
        kld_view h = coarse(ROWS, HID, HID + 3, &seed), x = random_view(ROWS, HID, HID + 1, &seed);
        kld_view want = copy(x);
        kld_expert_rows e[EXPERTS] = {0};
        uint32_t row[EXPERTS][ROWS];
        float weight[ROWS];
        for (size_t i = 0; i < EXPERTS; i++) {
            for (size_t r = 0; r < ROWS; r++) {
                weight[r] = 0.5f;
                if (r % (i + 1) == 0) row[i][e[i].n++] = (uint32_t)r;
            }
            e[i] = (kld_expert_rows){&b.f[i][0].s.dev, &b.f[i][1].s.dev, &b.f[i][2].s.dev,
                                     e[i].n,           row[i],           weight};
            for (size_t k = 0; k < e[i].n; k++) {
                float y[HID], *to = at(want, row[i][k], 0);
                kld_view one = h;
                one.p = at(h, row[i][k], 0);
                one.rows = 1;
                by_parts(dev, &b, i, one, y);
                for (size_t c = 0; c < HID; c++) to[c] += 0.5f * y[c];
            }
        }
        assert_int_equal(be->experts(dev, h, e, EXPERTS, &silu, x, NULL), KLD_OK);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < HID; c++)
                close_to((double)*at(x, r, c), (double)*at(want, r, c), 1e-5, "experts", r, c);
        check_padding(x);
        for (size_t i = 0; i < 3 * EXPERTS; i++) {
            free(b.value[i / 3][i % 3].p);
            drop(&b.f[i / 3][i % 3], dev);
        }
        free(h.p);
        free(x.p);
        free(want.p);
        be->close(dev);
    }
}

/* ---- whole models ------------------------------------------------------------------------- */

static collected logits_of(const kld_model *m, const scene *s, const kld_engine_options *o,
                           kld_engine_stats *stats) {
    collected c = {.vocab = m->config.vocab, .fail_at = SIZE_MAX, .want_logits = true};
    kld_sink sink = sink_of(&c);
    kld_err err = {0};
    need(kld_engine_run(m, be, s->seqs, WINDOWS, o, &sink, stats, &err), &err, "run");
    return c;
}

/* Largest difference, relative to the largest logit. */
static double apart(const collected *a, const collected *b) {
    const float *x = (const float *)(const void *)a->logits.data;
    const float *y = (const float *)(const void *)b->logits.data;
    double top = 0, worst = 0;
    assert_int_equal(a->logits.len, b->logits.len);
    assert_true(a->logits.len > 0);
    for (size_t i = 0; i < a->logits.len / sizeof *x; i++) {
        assert_true(isfinite(x[i]) && isfinite(y[i]));
        top = fmax(top, fabs((double)x[i]));
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
    }
    return worst / top;
}

/* (x p) W^T is x (W p)^T; without the factors it is something else. */
static void folded(void **state) {
    (void)state;
    static const tiny dense = {.hidden = 64,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 16,
                               .intermediate = 96,
                               .vocab = 90};
    for (int i = 0; i < 4; i++) {
        scene s;
        built with, without, twin;
        scene_open(&s, i < 2 ? dense : tiny_blocks);
        awq_form f = {.seed = 3, .integer = i % 2, .has_pre = true}, none = f;
        none.has_pre = false;
        kld_model *m = recast(&with, s.m, recast_awq, &f),
                  *other = recast(&without, s.m, recast_awq, &none);
        kld_model *t = recast(&twin, m, recast_dense, m);
        kld_engine_options o = default_options(s.m->config.vocab);
        kld_engine_stats stats;
        collected a = logits_of(m, &s, &o, &stats), b = logits_of(t, &s, &o, &stats);
        collected c = logits_of(other, &s, &o, &stats);
        double same = apart(&a, &b), lost = apart(&a, &c);
        print_message("%s%s: %.1e from its twin, %.1e without factors\n", i < 2 ? "" : "experts, ",
                      m->label, same, lost);
        assert_true(same < 2e-5);
        assert_true(lost > 1e-2);
        collected_free(&a);
        collected_free(&b);
        collected_free(&c);
        kld_model_free(m);
        kld_model_free(other);
        kld_model_free(t);
        build_end(&with);
        build_end(&without);
        build_end(&twin);
        scene_close(&s);
    }
}

/* The scratch is in the plan, without quantized inputs too, and every byte of the file is read. */
static void planned(void **state) {
    (void)state;
    scene s;
    built with, without;
    kld_err err = {0};
    kld_plan a, b;
    kld_engine_stats sa, sb;
    scene_open(&s, tiny_blocks);
    awq_form f = {.seed = 3, .has_pre = true}, none = {.seed = 3};
    kld_model *m = recast(&with, s.m, recast_awq, &f),
              *other = recast(&without, s.m, recast_awq, &none);
    kld_engine_options o = default_options(s.m->config.vocab);
    need(kld_engine_plan(m, be, &o, TOKENS, 1400, &a, &err), &err, "plan");
    need(kld_engine_plan(other, be, &o, TOKENS, 1400, &b, &err), &err, "plan");
    size_t rows = (a.scratch_bytes - b.scratch_bytes) / (96 * sizeof(float));
    assert_true(rows >= TOKENS && rows % KLD_CHUNK == 0);
    collected x = logits_of(m, &s, &o, &sa), y = logits_of(other, &s, &o, &sb);
    assert_int_equal(sa.peak_bytes - sb.peak_bytes, a.total_bytes - b.total_bytes);
    assert_int_equal(sa.bytes_read, m->ckpt.total_bytes);
    assert_true(sa.bytes_read > sb.bytes_read);
    collected_free(&x);
    collected_free(&y);
    kld_model_free(m);
    kld_model_free(other);
    build_end(&with);
    build_end(&without);
    scene_close(&s);
}

static void poisoned(void **state) {
    (void)state;
    scene s;
    built b;
    kld_err err = {0};
    scene_open(&s, tiny_blocks);
    awq_form f = {.seed = 3, .has_pre = true, .poisoned = 2};
    kld_model *m = recast(&b, s.m, recast_awq, &f);
    kld_engine_options o = default_options(s.m->config.vocab);
    kld_engine_stats stats;
    collected c = {.vocab = o.vocab, .fail_at = SIZE_MAX};
    kld_sink sink = sink_of(&c);
    assert_int_equal(kld_engine_run(m, be, s.seqs, WINDOWS, &o, &sink, &stats, &err), KLD_E_INPUT);
    if (!strstr(err.text, "self_attn.k_proj.pre_quant_scale': 1 factors are not finite, the first "
                          "at [5]"))
        fail_msg("%s", err.text);
    collected_free(&c);
    kld_model_free(m);
    build_end(&b);
    scene_close(&s);
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),   cmocka_unit_test(quantized), cmocka_unit_test(unannounced),
        cmocka_unit_test(experts),  cmocka_unit_test(folded),    cmocka_unit_test(planned),
        cmocka_unit_test(poisoned),
    };
    return cmocka_run_group_tests_name("factors of inputs", tests, NULL, NULL);
}
