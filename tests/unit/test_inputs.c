/* Products with quantized inputs: whole forwards against compressed-tensors, operations against
 * themselves in parts, and that nothing else leaves a trace. */
#include "logits/graph.h"
#include "tests/unit/goldenkit.h"
#include "tests/unit/opkit.h"

#include "kld/base/log.h"

#include <omp.h>

static void goldens(void **state) {
    (void)state;
    goldens_check_inputs(kld_backend_cpu(), 1e-5);
}

/* ---- operations --------------------------------------------------------------------------- */

enum { HID = 128, INNER = 64, ROWS = 75, EXPERTS = 3 };

static kld_device *device(kld_precision p) {
    kld_device_spec spec = {.precision = p,
                            .max_rows = 256,
                            .max_keys = 64,
                            .vocab = 8,
                            .top_k = 2,
                            .head_dim = 16,
                            .hidden = HID,
                            .experts = EXPERTS,
                            .chosen = 2,
                            .expert_cols = 2 * INNER,
                            .act_cols = HID,
                            .act_formats = (1u << KLD_AQ_COUNT) - 1};
    return op_device(&spec);
}

/* Small multiples of 1/4, so that sums of products are exact in whatever order. */
static kld_view coarse(size_t rows, size_t cols, size_t ld, uint64_t *seed) {
    kld_view v = random_view(rows, cols, ld, seed);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) *at(v, r, c) = (float)(floor(rnd(seed) * 9) - 4) / 4;
    v.elem = KLD_ELEM_ACT;
    return v;
}

static kld_view copy(kld_view v) {
    kld_view w = v;
    w.p = malloc(v.rows * v.ld * sizeof(float));
    assert_non_null(w.p);
    memcpy(w.p, v.p, v.rows * v.ld * sizeof(float));
    return w;
}

static void same_view(kld_view a, kld_view b, const char *what) {
    for (size_t r = 0; r < a.rows; r++)
        if (memcmp(at(a, r, 0), at(b, r, 0), a.cols * sizeof(float)) != 0)
            fail_msg("%s: row %zu differs", what, r);
}

/* A product is that of `quantize` and then the same weight without; x stays as it was. */
static void products(void **state) {
    (void)state;
    static const kld_span spans[2] = {{0, 40, 0, 0}, {40, ROWS - 40, 0, 40}};
    static const kld_batch batch = {spans, 2, ROWS};
    uint64_t seed = 11;
    for (int p = 0; p < 2; p++) {
        kld_device *dev = device((kld_precision)p);
        for (size_t i = 0; i < SAMPLE_INPUTS; i++) {
            kld_view v = coarse(24, HID, HID, &seed), x = coarse(ROWS, HID, HID + 3, &seed);
            kld_view y = random_view(ROWS, 24, 26, &seed), want = copy(y), q = copy(x),
                     before = copy(x);
            stored w;
            store(&w, dev, v.p, NULL, 24, HID, KLD_USE_MATRIX);
            kld_dev_weight plain = w.dev;
            w.dev.input = sample_inputs[i];
            plain.alpha = w.dev.alpha = kld_act_alpha(&sample_inputs[i]);
            assert_int_equal(be->linear(dev, &batch, x, &w.dev, y, true, NULL), KLD_OK);
            assert_int_equal(be->quantize(dev, x, &sample_inputs[i], q, NULL), KLD_OK);
            assert_int_equal(be->linear(dev, &batch, q, &plain, want, true, NULL), KLD_OK);
            same_view(y, want, kld_act_format_name(sample_inputs[i].format));
            same_view(x, before, "x");
            assert_int_equal(be->linear(dev, &batch, x, &plain, want, false, NULL), KLD_OK);
            assert_memory_not_equal(at(y, 0, 0), at(want, 0, 0), 24 * sizeof(float));
            kld_view *all[] = {&v, &x, &y, &want, &q, &before};
            for (size_t k = 0; k < 6; k++) free(all[k]->p);
            be->free(dev, w.mem);
        }
        be->close(dev);
    }
}

typedef struct bank {
    kld_view value[EXPERTS][3];
    stored w[EXPERTS][3];
} bank;

static void open_bank(bank *b, kld_device *dev, size_t first, uint64_t *seed) {
    for (size_t e = 0; e < EXPERTS; e++) {
        for (size_t i = 0; i < 3; i++) {
            size_t rows = i < 2 ? INNER : HID, cols = i < 2 ? HID : INNER;
            b->value[e][i] = coarse(rows, cols, cols, seed);
            store(&b->w[e][i], dev, b->value[e][i].p, NULL, rows, cols, KLD_USE_MATRIX);
            kld_dev_weight *w = &b->w[e][i].dev;
            /* Each its own scale or format; gate and up of expert 1 share one. */
            w->input = sample_inputs[(first + e) % SAMPLE_INPUTS];
            if (w->input.scale > 0) w->input.scale *= (float)(1 + e + (e == 1 && i == 1 ? 0 : i));
            w->alpha = kld_act_alpha(&w->input) / 64;
        }
    }
}

/* One row through one expert, by the single operations. */
static void by_parts(kld_device *dev, bank *b, size_t e, kld_view h, float *y) {
    static const kld_gate silu = {KLD_ACT_SILU, 0};
    static const kld_span span = {0, 1, 0, 0};
    static const kld_batch batch = {&span, 1, 1};
    float q[HID], g[2][INNER];
    kld_view in = {q, 1, HID, HID, KLD_ELEM_ACT}, out = {y, 1, HID, HID, KLD_ELEM_F32};
    kld_view half[2] = {{g[0], 1, INNER, INNER, KLD_ELEM_ACT},
                        {g[1], 1, INNER, INNER, KLD_ELEM_ACT}};
    for (size_t i = 0; i < 2; i++) {
        kld_dev_weight w = b->w[e][i].dev;
        w.input.format = KLD_AQ_NONE;
        assert_int_equal(be->quantize(dev, h, &b->w[e][i].dev.input, in, NULL), KLD_OK);
        assert_int_equal(be->linear(dev, &batch, in, &w, half[i], false, NULL), KLD_OK);
    }
    kld_dev_weight w = b->w[e][2].dev;
    w.input.format = KLD_AQ_NONE;
    assert_int_equal(be->gated(dev, &silu, half[0], half[1], half[0], NULL), KLD_OK);
    assert_int_equal(be->quantize(dev, half[0], &b->w[e][2].dev.input, half[0], NULL), KLD_OK);
    assert_int_equal(be->linear(dev, &batch, half[0], &w, out, false, NULL), KLD_OK);
}

static void experts(void **state) {
    (void)state;
    static const kld_gate silu = {KLD_ACT_SILU, 0};
    uint64_t seed = 21;
    for (size_t first = 0; first < SAMPLE_INPUTS; first++) {
        for (int p = 0; p < 2; p++) {
            kld_device *dev = device((kld_precision)p);
            bank b;
            open_bank(&b, dev, first, &seed);
            kld_view h = coarse(ROWS, HID, HID + 3, &seed), x = random_view(ROWS, HID, HID, &seed);
            kld_view want = copy(x);
            kld_expert_rows e[EXPERTS] = {0};
            uint32_t row[EXPERTS][ROWS];
            float weight[ROWS];
            for (size_t i = 0; i < EXPERTS; i++) {
                for (size_t r = 0; r < ROWS; r++) {
                    weight[r] = 0.5f;
                    if (r % (i + 1) == 0) row[i][e[i].n++] = (uint32_t)r;
                }
                e[i] = (kld_expert_rows){&b.w[i][0].dev, &b.w[i][1].dev, &b.w[i][2].dev,
                                         e[i].n,         row[i],         weight};
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
            for (size_t i = 0; i < 3 * EXPERTS; i++) {
                free(b.value[i / 3][i % 3].p);
                be->free(dev, b.w[i / 3][i % 3].mem);
            }
            free(h.p);
            free(x.p);
            free(want.p);
            be->close(dev);
        }
    }
}

/* The factor that a model multiplies what attention gives with stands after the product. */
static void value_scale(void **state) {
    (void)state;
    kld_err err = {0};
    kld_tensor t = {.name = "o_proj.weight"};
    kld_weight w = {.rows = 4, .cols = HID, .data = &t};
    uint64_t seed = 3;
    kld_device *dev = device(KLD_PRECISION_FP32);
    kld_view x = coarse(5, HID, HID, &seed), scaled = copy(x), a = copy(x), b = copy(x);
    for (size_t i = 0; i < SAMPLE_INPUTS; i++) {
        kld_config c = {.value_scale = 1};
        kld_act_quant in;
        w.act = sample_inputs[i];
        assert_int_equal(kld_graph_input(&c, KLD_SLOT_O, &w, &in, &err), KLD_OK);
        assert_true(kld_act_same(&in, &w.act));
        c.value_scale = 0.75;
        assert_int_equal(kld_graph_input(&c, KLD_SLOT_Q, &w, &in, &err), KLD_OK);
        assert_true(kld_act_same(&in, &w.act));
        bool powers = in.format == KLD_AQ_MXFP4 || in.format == KLD_AQ_MXFP8 || in.power_of_two;
        kld_status st = kld_graph_input(&c, KLD_SLOT_O, &w, &in, &err);
        assert_int_equal(st, powers ? KLD_E_UNSUPPORTED : KLD_OK);
        if (powers) continue;
        for (size_t r = 0; r < 5; r++)
            for (size_t k = 0; k < HID; k++) *at(scaled, r, k) = *at(x, r, k) * 0.75f;
        assert_int_equal(be->quantize(dev, scaled, &w.act, a, &err), KLD_OK);
        assert_int_equal(be->quantize(dev, x, &in, b, &err), KLD_OK);
        for (size_t r = 0; r < 5; r++)
            for (size_t k = 0; k < HID; k++)
                close_to((double)(*at(b, r, k) * kld_act_alpha(&in) * 0.75f),
                         (double)(*at(a, r, k) * kld_act_alpha(&w.act)), 1e-6, "value", r, k);
    }
    kld_view *all[] = {&x, &scaled, &a, &b};
    for (size_t k = 0; k < 4; k++) free(all[k]->p);
    be->close(dev);
}

/* ---- whole runs --------------------------------------------------------------------------- */

static void no_trace(void **state) {
    (void)state;
    static const int lanes[3] = {0, 0, 0};
    int threads = omp_get_max_threads();
    for (int p = 0; p < 2; p++) {
        scene s;
        scene_open(&s, tiny_blocks);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = (kld_precision)p;
        collected plain, a, b;
        kld_engine_stats st;
        scene_run_ok(&s, &o, &plain, NULL);
        declare_inputs(s.m);
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&plain, &b, "weights only, whatever is declared");
        collected_free(&b);
        o.activations = KLD_ACTIVATIONS_AS_DECLARED;
        scene_run_ok(&s, &o, &a, &st);
        assert_memory_not_equal(a.records.data, plain.records.data, a.records.len);
        for (size_t g = 1; g < 8; g += 2) {
            o.expert_group = g;
            omp_set_num_threads(1 + (int)g % 3);
            scene_run_ok(&s, &o, &b, NULL);
            same_records(&a, &b, "other groups and threads");
            collected_free(&b);
        }
        omp_set_num_threads(threads);
        o.memory = 1;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "spilled");
        collected_free(&b);
        o.devices = lanes;
        o.n_devices = 3;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "three lanes");
        collected_free(&b);
        same_alone(&s, &o, &a);
        collected_free(&a);
        collected_free(&plain);
        scene_close(&s);
    }
}

/* The scratch is in the plan; what no back end could do is refused before anything is read. */
static void planned(void **state) {
    (void)state;
    scene s;
    kld_err err = {0};
    scene_open(&s, tiny_blocks);
    kld_engine_options o = default_options(s.m->config.vocab);
    kld_plan without, with;
    collected c;
    kld_engine_stats st, plain;
    declare_inputs(s.m);
    need(kld_engine_plan(s.m, kld_backend_cpu(), &o, TOKENS, 1400, &without, &err), &err, "plan");
    scene_run_ok(&s, &o, &c, &plain);
    collected_free(&c);
    o.activations = KLD_ACTIVATIONS_AS_DECLARED;
    need(kld_engine_plan(s.m, kld_backend_cpu(), &o, TOKENS, 1400, &with, &err), &err, "plan");
    size_t rows = (with.scratch_bytes - without.scratch_bytes) / (96 * sizeof(float));
    assert_true(rows >= TOKENS && rows % KLD_CHUNK == 0);
    scene_run_ok(&s, &o, &c, &st);
    assert_int_equal(st.peak_bytes - plain.peak_bytes, with.total_bytes - without.total_bytes);
    collected_free(&c);
    s.m->layer[0].slot[KLD_SLOT_Q].act = (kld_act_quant){.format = KLD_AQ_NVFP4};
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &c, &st, &err), KLD_E_INPUT);
    assert_non_null(
        strstr(err.text, "layers.0.self_attn.q_proj.weight: NVFP4 activations: scale 0"));
    kld_device_spec unknown = {.act_formats = 1u << KLD_AQ_COUNT};
    assert_int_equal(kld_backend_cpu()->supports(&unknown, &err), KLD_E_UNSUPPORTED);
    scene_close(&s);
}

static void identity(void **state) {
    (void)state;
    kld_engine_options o = default_options(8);
    kld_err err = {0};
    json_t *v[3];
    const char *arithmetic[3], *mode;
    for (int i = 0; i < 3; i++) {
        o.activations = i ? KLD_ACTIVATIONS_AS_DECLARED : KLD_ACTIVATIONS_WEIGHTS_ONLY;
        o.fused = i == 2 ? KLD_FUSED_MAX : KLD_FUSED_OWN;
        need(kld_engine_identity(kld_backend_cpu(), &o, &v[i], &err), &err, "identity");
        need(kld_json_str(v[i], "arithmetic", &arithmetic[i], &err), &err, "arithmetic");
        need(kld_json_str(v[i], "activations", &mode, &err), &err, "activations");
        assert_string_equal(mode, i ? "as-declared" : "weights-only");
        const char *fused = json_string_value(json_object_get(v[i], "fused_input_scale"));
        if (i) assert_string_equal(fused, i == 2 ? "max" : "own");
        else assert_null(fused);
    }
    size_t n = strlen(arithmetic[0]);
    assert_memory_equal(arithmetic[0], arithmetic[1], n);
    assert_string_equal(arithmetic[1] + n, "; quantized inputs as-declared, scales own");
    assert_string_equal(arithmetic[2] + n, "; quantized inputs as-declared, scales max");
    for (int i = 0; i < 3; i++) json_decref(v[i]);
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),     cmocka_unit_test(products), cmocka_unit_test(experts),
        cmocka_unit_test(value_scale), cmocka_unit_test(no_trace), cmocka_unit_test(planned),
        cmocka_unit_test(identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
