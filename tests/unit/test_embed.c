/* Quantized embeddings: each format gives what its decoded twin gives, also as a tied head; what an
 * embedding cannot be is refused, and what a config or a second head says of it is heard. */
#include "kld/base/log.h"
#include "kld/capture/quantize.h"
#include "tests/unit/opkit.h"
#include "tests/unit/recastkit.h"
#include "tests/unit/tinymodel.h"

#define EMBED "model.embed_tokens."

static const kld_format formats[RECAST_EMBEDDINGS] = {
    KLD_FMT_NVFP4,       KLD_FMT_NVFP4,       KLD_FMT_MXFP4,       KLD_FMT_FP8_TENSOR,
    KLD_FMT_FP8_CHANNEL, KLD_FMT_FP8_BLOCK,   KLD_FMT_MXFP8,       KLD_FMT_INT8,
    KLD_FMT_INT8,        KLD_FMT_INT4_PACKED, KLD_FMT_INT4_PACKED, KLD_FMT_INT8_PACKED};

static const tiny dense = {.hidden = 64,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .intermediate = 96,
                           .vocab = 200};

/* The scene's model in other tensors; what it was is restored by the second call. */
static void swap(scene *s, kld_model **m) {
    kld_model *was = s->m;
    s->m = *m;
    *m = was;
}

static collected run(scene *s, kld_model *m, kld_precision p, kld_engine_stats *stats) {
    kld_engine_options o = default_options(m->config.vocab);
    collected c = {.vocab = o.vocab, .fail_at = SIZE_MAX, .want_logits = true};
    kld_err err = {0};
    o.precision = p;
    swap(s, &m);
    need(scene_run(s, s->seqs, WINDOWS, &o, &c, stats, &err), &err, "run");
    swap(s, &m);
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

static void one_format(scene *s, size_t kind, const collected plain[2]) {
    bool tied = s->m->config.tied;
    bool scaled = formats[kind] == KLD_FMT_NVFP4 || formats[kind] == KLD_FMT_FP8_TENSOR;
    built b, d;
    kld_model *m = recast(&b, s->m, recast_embedding, &kind);
    kld_model *twin = recast(&d, m, recast_dense, m);
    assert_int_equal(m->global[KLD_SLOT_EMBED].format, formats[kind]);
    assert_int_equal(twin->global[KLD_SLOT_EMBED].format, KLD_FMT_F32);
    assert_int_equal(m->global[KLD_SLOT_HEAD].format, tied ? formats[kind] : KLD_FMT_F32);
    for (int p = 0; p < 2; p++) {
        kld_engine_stats stats, other;
        collected x = run(s, m, (kld_precision)p, &stats),
                  y = run(s, twin, (kld_precision)p, &other);
        uint64_t again = tied ? kld_weight_bytes(&m->global[KLD_SLOT_EMBED]) : 0;
        uint64_t unread =
            formats[kind] == KLD_FMT_INT4_PACKED || formats[kind] == KLD_FMT_INT8_PACKED
                ? m->global[KLD_SLOT_EMBED].extent->bytes
                : 0;
        assert_int_equal(stats.bytes_read, m->ckpt.total_bytes + again - unread);
        assert_int_equal(stats.nonfinite_rows, 0);
        /* A tied head leaves one scale for the whole matrix to the product's factor. */
        if (!tied || !scaled) same_records(&x, &y, recast_embeddings[kind]);
        double same = apart(&x, &y), else_ = apart(&x, &plain[p]);
        /* BF16 values of such a twin are rounded, its own are exact. */
        if (tied && scaled && p == KLD_PRECISION_BF16) assert_true(same < 0.02);
        else if (same > 2e-6) fail_msg("%s: %g from its twin", recast_embeddings[kind], same);
        assert_true(else_ > 0.05);
        collected_free(&x);
        collected_free(&y);
    }
    kld_model_free(m);
    kld_model_free(twin);
    build_end(&b);
    build_end(&d);
}

static void as_decoded(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        scene s;
        tiny t = dense;
        t.tied = tied;
        scene_open(&s, t);
        kld_engine_stats stats;
        collected plain[2];
        for (int p = 0; p < 2; p++) plain[p] = run(&s, s.m, (kld_precision)p, &stats);
        for (size_t kind = 0; kind < RECAST_EMBEDDINGS; kind++) one_format(&s, kind, plain);
        for (int p = 0; p < 2; p++) collected_free(&plain[p]);
        scene_close(&s);
    }
}

/* Rows in any order, scaled as some families do. */
static void rows(void **state) {
    (void)state;
    scene s;
    uint64_t seed = 4;
    scene_open(&s, dense);
    for (size_t kind = 0; kind < RECAST_EMBEDDINGS; kind++) {
        built b;
        kld_model *m = recast(&b, s.m, recast_embedding, &kind);
        const kld_weight *w = &m->global[KLD_SLOT_EMBED];
        const kld_tensor *part[] = {w->data, w->scale, w->global, w->zeros, w->index};
        unsigned char *p[5] = {0};
        kld_err err = {0};
        for (size_t i = 0; i < 5; i++) {
            if (!part[i]) continue;
            p[i] = malloc((size_t)part[i]->bytes);
            assert_non_null(p[i]);
            need(kld_checkpoint_read(&m->ckpt, part[i], 0, p[i], (size_t)part[i]->bytes, &err),
                 &err, "read");
        }
        kld_raw_weight raw = {.w = w, .v = {p[0], p[1], p[2], p[3], p[4]}, .alpha = 1, .global = 1};
        kld_device *dev = open_dev(KLD_PRECISION_BF16, 64);
        kld_dev_weight ready;
        assert_int_equal(be->weight_bytes(KLD_PRECISION_BF16, w, KLD_USE_EMBEDDING), 0);
        need(be->prepare(dev, &raw, KLD_USE_EMBEDDING, NULL, &ready, &err), &err, "prepare");
        static const uint32_t ids[] = {199, 0, 7, 199, 128, 127};
        kld_view y = random_view(6, w->cols, w->cols + 3, &seed);
        need(be->embed(dev, &ready, ids, 1.5f, y, &err), &err, "embed");
        float *want = recast_values(m, w);
        for (size_t r = 0; r < 6; r++)
            for (size_t c = 0; c < w->cols; c++)
                if (*at(y, r, c) != want[ids[r] * w->cols + c] * 1.5f)
                    fail_msg("%s: [%zu,%zu]", recast_embeddings[kind], r, c);
        check_padding(y);
        free(y.p);
        free(want);
        for (size_t i = 0; i < 5; i++) free(p[i]);
        be->close(dev);
        kld_model_free(m);
        build_end(&b);
    }
    scene_close(&s);
}

/* ---- what configs say --------------------------------------------------------------------- */

#define CT(target, ignored)                                                                        \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"float-quantized\",\"config_groups\":{\"g\":{\"targets\":[\"" target "\"],\"weights\":"      \
    "{\"strategy\":\"channel\",\"num_bits\":8}}},\"ignore\":[" ignored "]}"
#define FP8                                                                                        \
    {EMBED "weight", "F8_E4M3", "[8,32]", 256, 0x38, NULL}, {                                      \
        EMBED "weight_scale", "F32", "[8]", 32, 1, NULL                                            \
    }

static void expected(void **state) {
    (void)state;
    static const spec fp8[] = {FP8};
    static const struct {
        const char *config;
        const char *text[2];
    } all[] = {
        {"", {"no config says so"}},
        {CT("Embedding", ""), {NULL}},
        {CT("re:.*embed_tokens", "\"lm_head\""), {NULL}},
        {CT("Embedding", "\"re:.*embed.*\""), {"says not quantized for 'model.embed_tokens'"}},
        {",\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":null}", {NULL}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char config[1024];
        snprintf(config, sizeof config, "{" CONFIG "%s}", all[i].config);
        tiny_warns(config, NULL, fp8, 2, "BF16", all[i].text);
    }
}

/* Defect 17 of two quantized matrices: equal codes under other scales are another head. */
static void second_head(void **state) {
    (void)state;
    static const char config[] =
        "{" CONFIG ",\"tie_word_embeddings\":true,\"quantization_config\":{"
        "\"quant_method\":\"modelopt\",\"quant_algo\":null}}";
    static const char *const none[] = {NULL},
                             *const differs[] = {
                                 "the file has a different head 'lm_head.weight' (FP8 "
                                 "(per channel))",
                                 NULL};
    spec s[] = {FP8,
                {"lm_head.weight", "F8_E4M3", "[8,32]", 256, 0x38, NULL},
                {"lm_head.weight_scale", "F32", "[8]", 32, 1, NULL}};
    tiny_warns(config, NULL, s, 4, "FP8 (per channel)", none);
    s[3].fill = 2;
    tiny_warns(config, NULL, s, 4, "FP8 (per channel)", differs);
    s[3].shape = "[1]";
    s[3].bytes = 4;
    static const char *const tensor[] = {"a different head 'lm_head.weight' (FP8 (per tensor))",
                                         NULL};
    tiny_warns(config, NULL, s, 4, "FP8 (per tensor)", tensor);
    s[1].shape = "[1]";
    s[1].bytes = 4;
    s[1].fill = 2;
    tiny_warns(config, NULL, s, 4, "FP8 (per tensor)", none);
}

/* An embedding has no input; a tied head takes its own as it is. */
static void inputs(void **state) {
    (void)state;
    static const spec s[] = {FP8, {EMBED "input_scale", "F32", "[]", 4, 1, NULL}};
    for (int tied = 0; tied < 2; tied++) {
        for (size_t n = 2; n < 4; n++) {
            built b;
            kld_err err = {0};
            tiny_make(&b, tied ? "{" CONFIG ",\"tie_word_embeddings\":true}" : "{" CONFIG "}",
                      tied ? "lm_head.weight" : NULL, s, n);
            kld_model *m = tiny_open(b.dir);
            kld_status st = kld_act_resolve(m, KLD_FUSED_OWN, &err);
            assert_int_equal(st, tied && n == 3 ? KLD_E_UNSUPPORTED : KLD_OK);
            if (st != KLD_OK)
                assert_non_null(strstr(err.text, "an input scale of a tied embedding"));
            assert_int_equal(m->global[KLD_SLOT_EMBED].act.format, KLD_AQ_NONE);
            assert_int_equal(m->global[KLD_SLOT_HEAD].act.format, KLD_AQ_NONE);
            kld_model_free(m);
            build_end(&b);
        }
    }
}

static void quantized_again(void **state) {
    (void)state;
    static const spec fp8[] = {FP8};
    built b;
    char out[80];
    kld_quantize_summary sum;
    kld_err err = {0};
    tiny_make(&b, "{" CONFIG "}", NULL, fp8, 2);
    snprintf(out, sizeof out, "%s.out", b.dir);
    const kld_quantize_options o = {
        .model = b.dir, .output = out, .format = KLD_TARGET_NVFP4_MODELOPT};
    assert_int_equal(kld_quantize_run(&o, &sum, &err), KLD_E_UNSUPPORTED);
    if (!strstr(err.text, EMBED "weight' is FP8 (per channel) already")) fail_msg("%s", err.text);
    build_end(&b);
}

/* ---- refusals ----------------------------------------------------------------------------- */

#define GONE                                                                                       \
    { EMBED "weight", NULL, NULL, 0, 0, NULL }
#define QUANT(text) ",\"quantization_config\":{" text "}"

static void refused(void **state) {
    (void)state;
    static const struct {
        spec s[5];
        const char *quant;
        kld_status st;
        const char *text;
    } all[] = {
        {{GONE,
          {EMBED "qweight", "I32", "[32,1]", 128, 0, NULL},
          {EMBED "qzeros", "I32", "[1,1]", 4, 0, NULL},
          {EMBED "scales", "F16", "[1,8]", 16, 0, NULL}},
         QUANT("\"quant_method\":\"awq\""),
         KLD_E_UNSUPPORTED,
         "model.embed_tokens: an embedding in INT4 (AWQ) is not implemented"},
        {{GONE,
          {EMBED "qweight", "I32", "[4,8]", 128, 0, NULL},
          {EMBED "qzeros", "I32", "[1,1]", 4, 0, NULL},
          {EMBED "scales", "F16", "[1,8]", 16, 0, NULL}},
         QUANT("\"quant_method\":\"gptq\",\"bits\":4"),
         KLD_E_UNSUPPORTED,
         "model.embed_tokens: an embedding in INT4 (GPTQ) is not implemented"},
        {{GONE,
          {EMBED "qweight", "I32", "[8,8]", 256, 0, NULL},
          {EMBED "qzeros", "I32", "[1,2]", 8, 0, NULL},
          {EMBED "scales", "F16", "[1,8]", 16, 0, NULL}},
         QUANT("\"quant_method\":\"gptq\",\"bits\":8"),
         KLD_E_UNSUPPORTED,
         "model.embed_tokens: an embedding in INT8 (GPTQ) is not implemented"},
        {{{EMBED "weight", "U8", "[4,32]", 128, 0, NULL},
          {EMBED "weight_scale", "F32", "[8]", 32, 1, NULL}},
         "",
         KLD_E_UNSUPPORTED,
         "model.embed_tokens: an embedding in INT4 (ModelOpt) is not implemented: its rows do not "
         "have bytes of their own"},
        {{{EMBED "weight", "I8", "[8,32]", 256, 0, NULL},
          {EMBED "weight_scale", "F32", "[8]", 32, 1, NULL},
          {EMBED "pre_quant_scale", "F32", "[32]", 128, 1, NULL}},
         "",
         KLD_E_INPUT,
         "embed_tokens.pre_quant_scale': an embedding has no input"},
        {{{EMBED "weight", "F8_E4M3", "[8,32]", 256, 0, NULL}},
         "",
         KLD_E_INPUT,
         "model.embed_tokens: 'weight_scale' is missing beside weight F8_E4M3 [8, 32]"},
        {{{EMBED "weight", "F8_E4M3", "[8,32]", 256, 0, NULL},
          {EMBED "weight_scale", "F32", "[7]", 28, 0, NULL}},
         "",
         KLD_E_INPUT,
         "expected shape [], [1], [8] or [8, 1], found F32 [7]"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char config[1024];
        size_t n = 0;
        while (n < 5 && all[i].s[n].name) n++;
        snprintf(config, sizeof config, "{" CONFIG "%s}", all[i].quant);
        tiny_fails(config, NULL, all[i].s, n, all[i].st, all[i].text);
    }
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_decoded),  cmocka_unit_test(rows),   cmocka_unit_test(expected),
        cmocka_unit_test(second_head), cmocka_unit_test(inputs), cmocka_unit_test(quantized_again),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("embeddings", tests, NULL, NULL);
}
