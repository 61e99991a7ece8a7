/* Checkpoints bound to an architecture: strictness in both directions. */
#include "tests/unit/tinymodel.h"

#include "kld/base/mem.h"

#include <math.h>

static void base(void **state) {
    (void)state;
    built b;
    tiny_make(&b, "{" CONFIG "}", NULL, NULL, 0);
    kld_model *m = tiny_open(b.dir);
    assert_string_equal(m->family, "llama");
    assert_string_equal(m->label, "BF16");
    assert_int_equal(m->n_warnings, 0);
    assert_int_equal(m->n_skipped, 0);
    assert_int_equal(m->config.attn[KLD_ATTN_FULL].head_dim, 8);
    assert_false(m->config.tied);
    assert_true(m->config.attn[KLD_ATTN_FULL].rope.theta == 10000);
    assert_true(m->config.attn_scale == 1 / sqrt(8.0));
    assert_int_equal(kld_model_parameters(m),
                     2 * 8 * 32 + 3 * 32 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32);
    const kld_weight *q = &m->layer[0].slot[KLD_SLOT_Q];
    assert_int_equal(q->rows, 32);
    assert_int_equal(q->cols, 32);
    assert_int_equal(kld_weight_bytes(q), 2048);
    assert_int_equal(m->layer[0].slot[KLD_SLOT_Q_NORM].rows, 0);
    assert_int_equal(m->layer[0].n_sub, 2);
    kld_model_free(m);
    build_end(&b);
    kld_model_free(NULL);
}

/* ---- tensors */

static void tensors(void **state) {
    (void)state;
    static const char c[] = "{" CONFIG "}";
    tiny_fails(c, L "self_attn.v_proj.weight", NULL, 0, KLD_E_INPUT,
               "tensor '" L "self_attn.v_proj.weight' is missing: expected [16, 32]");
    tiny_fails(c, "model.norm.weight", NULL, 0, KLD_E_INPUT,
               "tensor 'model.norm.weight' is missing: expected [32]");
    tiny_fails(c, "model.embed_tokens.weight", NULL, 0, KLD_E_INPUT,
               "no tensor model.embed_tokens.weight");
    static const spec wide = {L "mlp.up_proj.weight", "BF16", "[64,31]", 3968, 0, NULL};
    tiny_fails(c, NULL, &wide, 1, KLD_E_INPUT,
               L "mlp.up_proj.weight: expected shape [64, 32], found BF16 [64, 31]");
    static const spec norm = {"model.norm.weight", "BF16", "[32,1]", 64, 0, NULL};
    tiny_fails(c, NULL, &norm, 1, KLD_E_INPUT, "expected shape [32], found BF16 [32, 1]");
    static const spec f64 = {L "mlp.up_proj.weight", "F64", "[64,32]", 16384, 0, NULL};
    tiny_fails(c, NULL, &f64, 1, KLD_E_UNSUPPORTED, "F64 weights is not implemented");
    static const spec ints = {L "mlp.up_proj.weight", "I32", "[64,32]", 8192, 0, NULL};
    tiny_fails(c, NULL, &ints, 1, KLD_E_INPUT,
               "these tensors form no known weight format: weight I32 [64, 32]");
    static const spec bias = {L "mlp.up_proj.bias", "BF16", "[64]", 128, 0, NULL};
    tiny_fails(c, NULL, &bias, 1, KLD_E_INPUT, "is not part of this model by its config.json");
    tiny_fails("{" CONFIG ",\"mlp_bias\":true}", NULL, &bias, 1, KLD_E_INPUT,
               "tensor '" L "mlp.gate_proj.bias' is missing: expected [64]");
    static const spec norm_bias = {"model.norm.bias", "BF16", "[32]", 64, 0, NULL};
    tiny_fails(c, NULL, &norm_bias, 1, KLD_E_INPUT, "is not part of this model");
    static const spec extra[] = {{L "self_attn.q_norm.weight", "BF16", "[8]", 16, 0, NULL},
                                 {L "self_attn.sinks", "F32", "[4]", 16, 0, NULL}};
    tiny_fails(c, NULL, extra, 2, KLD_E_INPUT,
               "2 tensors of the file have no place in a llama model: '" L
               "self_attn.q_norm.weight' (BF16 [8]), '" L "self_attn.sinks' (F32 [4])");
    static const spec stray = {"model.layers.00.mlp.up_proj.weight", "BF16", "[1]", 2, 0, NULL};
    tiny_fails(c, NULL, &stray, 1, KLD_E_INPUT, "1 tensor of the file has no place");
}

static void skipped(void **state) {
    (void)state;
    static const spec extra[] = {
        {"model.layers.1.self_attn.q_proj.weight", "BF16", "[1]", 2, 0, NULL}, /* MTP layer */
        {"mtp.x.weight", "BF16", "[1]", 2, 0, NULL},
        {"vision_tower.a.weight", "BF16", "[1]", 2, 0, NULL},
        {L "self_attn.rotary_emb.inv_freq", "F32", "[4]", 16, 0, NULL},
        {L "self_attn.k_proj.k_scale", "F32", "[]", 4, 0, NULL},
        {L "self_attn.v_scale", "BF16", "[1]", 2, 0, NULL}};
    built b;
    tiny_make(&b, "{" CONFIG "}", NULL, extra, 6);
    kld_model *m = tiny_open(b.dir);
    assert_int_equal(m->n_skipped, 6);
    assert_int_equal(m->n_warnings, 2);
    assert_non_null(strstr(m->warnings[0], "1 tensors of layers past num_hidden_layers (1)"));
    assert_non_null(strstr(m->warnings[1], "2 KV-cache scales are not used"));
    kld_model_free(m);
    build_end(&b);
}

/* Defect 17. */
static void tied(void **state) {
    (void)state;
    static const char flag[] = "{" CONFIG ",\"tie_word_embeddings\":true}";
    static const spec same = {"lm_head.weight", "BF16", "[8,32]", 512, 1, NULL};
    built b;
    tiny_make(&b, flag, "lm_head.weight", NULL, 0);
    kld_model *m = tiny_open(b.dir);
    assert_true(m->config.tied);
    assert_ptr_equal(m->global[KLD_SLOT_HEAD].data, m->global[KLD_SLOT_EMBED].data);
    assert_int_equal(m->n_warnings, 0);
    kld_model_free(m);
    build_end(&b);
    tiny_make(&b, flag, NULL, &same, 1);
    m = tiny_open(b.dir);
    assert_false(m->config.tied);
    assert_int_equal(m->n_warnings, 0);
    kld_model_free(m);
    build_end(&b);
    static const char *const differs[] = {"the file has a different head 'lm_head.weight' (BF16)",
                                          NULL};
    tiny_warns(flag, NULL, NULL, 0, "BF16", differs);
    tiny_fails("{" CONFIG "}", "lm_head.weight", NULL, 0, KLD_E_INPUT,
               "tensor 'lm_head.weight' is missing, and config.json does not tie it");
}

/* T23: the text model of a multimodal release. */
static void nested(void **state) {
    (void)state;
    built b;
    build_begin(&b);
    build_text(&b, "config.json",
               "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true,"
               "\"vision_config\":{\"depth\":1},\"text_config\":{" CONFIG
               ",\"tie_word_embeddings\":false}}");
    for (size_t i = 0; i < N_PLAIN; i++) {
        char name[128];
        if (!strcmp(tiny_plain[i].name, "lm_head.weight")) continue;
        snprintf(name, sizeof name, "model.language_model.%s", tiny_plain[i].name + 6);
        build_tensor(&b, name, tiny_plain[i].dtype, tiny_plain[i].shape, NULL, tiny_plain[i].bytes,
                     1);
    }
    build_tensor(&b, "model.visual.patch.weight", "F32", "[2]", NULL, 8, 0);
    build_tensor(&b, "mtp.layers.0.x.weight", "F32", "[2]", NULL, 8, 0);
    build_tensor(&b, "model.language_model.layers.1.x.weight", "F32", "[2]", NULL, 8, 0);
    build_write(&b, "model.safetensors");
    kld_model *m = tiny_open(b.dir);
    assert_true(m->config.tied); /* the outer flag wins */
    assert_int_equal(m->n_skipped, 3);
    assert_int_equal(m->config.vocab, 8);
    kld_model_free(m);
    build_text(&b, "config.json",
               "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true,"
               "\"attn_temperature\":2,\"text_config\":{" CONFIG "}}");
    kld_err err = {0};
    assert_int_equal(kld_model_open(&m, b.dir, &err), KLD_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'attn_temperature'"));
    build_end(&b);
}

/* T23: wherever the text model lies, its own head is found, and everything around it is left
 * alone; but only what is known to be around it. */
static void prefixes(void **state) {
    (void)state;
    static const char *const where[][2] = {
        {"model.", "lm_head.weight"},
        {"model.language_model.", "lm_head.weight"},
        {"language_model.model.", "language_model.lm_head.weight"}};
    static const char *const around[] = {
        "mtp.layers.0.mlp.up_proj.weight",          "language_model.mtp.fc.weight",
        "model.visual.blocks.0.attn.q_proj.weight", "visual.patch_embed.proj.weight",
        "vision_tower.layers.0.mlp.up_proj.weight", "model.vision_tower.x.weight",
        "multi_modal_projector.linear_1.weight"};
    for (size_t k = 0; k < sizeof where / sizeof *where; k++) {
        built b;
        char name[128];
        build_begin(&b);
        build_text(&b, "config.json",
                   "{\"architectures\":[\"LlamaForCausalLM\"],\"vision_config\":{\"depth\":1},"
                   "\"text_config\":{" CONFIG "}}");
        for (size_t i = 0; i < N_PLAIN; i++) {
            const spec *t = &tiny_plain[i];
            bool head = !strcmp(t->name, "lm_head.weight");
            snprintf(name, sizeof name, "%s%s", head ? "" : where[k][0],
                     head ? where[k][1] : t->name + strlen("model."));
            build_tensor(&b, name, t->dtype, t->shape, NULL, t->bytes, t->fill);
        }
        for (size_t i = 0; i < sizeof around / sizeof *around; i++)
            build_tensor(&b, around[i], "F32", "[2]", NULL, 8, 0);
        build_write(&b, "model.safetensors");
        kld_model *m = tiny_open(b.dir);
        assert_false(m->config.tied);
        assert_string_equal(m->global[KLD_SLOT_HEAD].data->name, where[k][1]);
        assert_int_equal(m->n_skipped, sizeof around / sizeof *around);
        assert_int_equal(m->n_warnings, 0);
        assert_int_equal(m->layer[0].slot[KLD_SLOT_UP].rows, 64);
        kld_model_free(m);
        build_end(&b);
    }
    static const spec unknown = {"audio.x.weight", "F32", "[2]", 8, 0, NULL};
    tiny_fails("{" CONFIG "}", NULL, &unknown, 1, KLD_E_INPUT, "'audio.x.weight'");
}

/* ---- golden checkpoints of transformers, compressed-tensors and ModelOpt */

static const struct {
    const char *name, *family, *label;
    size_t layers, window[3], skipped;
    bool tied;
} golden[] = {
    {"llama", "llama", "BF16", 2, {0}, 0, false},
    {"llama-old", "llama", "BF16", 2, {0}, 0, false},
    {"llama-linear", "llama", "BF16", 2, {0}, 0, false},
    {"llama-yarn", "llama", "BF16", 2, {0}, 0, false},
    {"llama-yarn-mscale", "llama", "BF16", 2, {0}, 0, false},
    {"smollm-like", "llama", "BF16", 2, {0}, 0, true},
    {"mistral", "mistral", "BF16", 2, {8, 8}, 0, false},
    {"mistral-nowin", "mistral", "BF16", 2, {0}, 0, false},
    {"qwen2", "qwen2", "BF16", 2, {0}, 0, true},
    {"qwen2-window", "qwen2", "BF16", 3, {0, 8, 8}, 0, false},
    {"qwen2-window-old", "qwen2", "BF16", 3, {0, 8, 8}, 0, false},
    {"qwen3", "qwen3", "F32", 2, {0}, 0, true},
    {"qwen3-nested", "qwen3", "F32", 2, {0}, 2, true},
    {"qwen3-yarn", "qwen3", "F16", 2, {0}, 0, false},
    {"qwen3-yarn-factor", "qwen3", "F16", 2, {0}, 0, false},
    {"qwen3-nvfp4-modelopt", "qwen3", "NVFP4", 2, {0}, 0, false},
    {"qwen3-nvfp4-ct", "qwen3", "NVFP4", 2, {0}, 0, false},
    {"qwen3-mxfp4-ct", "qwen3", "MXFP4", 2, {0}, 0, false},
    {"qwen3-fp8-ct-channel", "qwen3", "FP8 (per channel)", 2, {0}, 0, false},
    {"qwen3-fp8-modelopt", "qwen3", "FP8 (per tensor)", 2, {0}, 0, false},
    {"qwen3-fp8-tensor", "qwen3", "FP8 (per tensor)", 2, {0}, 0, false},
    {"qwen3-fp8-block", "qwen3", "FP8 (blocks)", 2, {0}, 0, false},
    {"qwen3-int4-ct", "qwen3", "INT4 (packed)", 2, {0}, 0, false},
};

static void goldens(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", golden[i].name);
        kld_model *m = tiny_open(dir);
        assert_string_equal(m->family, golden[i].family);
        assert_string_equal(m->label, golden[i].label);
        assert_int_equal(m->config.layers, golden[i].layers);
        assert_int_equal(m->n_skipped, golden[i].skipped);
        assert_int_equal(m->config.tied, golden[i].tied);
        for (size_t l = 0; l < golden[i].layers; l++)
            assert_int_equal(m->layer[l].attn->window, golden[i].window[l]);
        if (m->n_warnings) fail_msg("%s: %s", dir, m->warnings[0]);
        kld_model_free(m);
    }
}

static void no_memory(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3-nvfp4-ct", "qwen3-nested",  "llama-old",
                                        "deepseek_v3",    "gpt_oss-mxfp4", "kimi_k25"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", names[i]);
        kld_status st = KLD_E_NOMEM;
        for (size_t k = 1; st != KLD_OK; k++) {
            kld_model *m;
            kld_err err = {0};
            kld_mem_fail_after(k);
            st = kld_model_open(&m, dir, &err);
            kld_mem_fail_after(0);
            if (st == KLD_OK) kld_model_free(m);
            else if (st != KLD_E_NOMEM) fail_msg("%s, allocation %zu: %s", dir, k, err.text);
            assert_true(k < 20000);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(base),    cmocka_unit_test(tensors),
                                       cmocka_unit_test(skipped), cmocka_unit_test(tied),
                                       cmocka_unit_test(nested),  cmocka_unit_test(prefixes),
                                       cmocka_unit_test(goldens), cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
