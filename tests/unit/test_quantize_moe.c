/* Quantization of mixtures and latent attention: which weights, what shares a global, stacked
 * experts. */
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "loaders/model.h"
#include "tests/unit/quantkit.h"

#include <math.h>

enum { H = 32, WIDTH = 32, EXPERTS = 3 };

/* Values of a magnitude that only this tensor has, so that sharing shows. */
static void fill(unsigned char *p, size_t n, uint32_t seed) {
    float scale = 0.01f * (float)(1 + seed % 97);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint16_t v = kld_f32_to_bf16(scale * ((float)(seed >> 8) * 0x1p-23f - 1));
        memcpy(p + 2 * i, &v, 2);
    }
}

static unsigned char data[2 * 2 * WIDTH * H * EXPERTS];

static void add(built *b, const char *name, size_t rows, size_t cols, uint32_t seed) {
    char shape[48];
    if (cols > 1) snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else snprintf(shape, sizeof shape, "[%zu]", rows);
    fill(data, rows * cols, seed);
    build_tensor(b, name, "BF16", shape, data, 2 * rows * cols, 0);
}

/* Expert e's seed for projection k of gate, up and down. */
static uint32_t seed_of(size_t e, int k) { return (uint32_t)(100 + 7 * e) + (uint32_t)(40 * k); }

static void add_expert_layer(built *b, const char *layer, bool stacked) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    enum { ONE = 2 * WIDTH * H };
    static unsigned char gate_up[2 * ONE * EXPERTS], down[ONE * EXPERTS];
    char name[160], shape[48];
    for (size_t e = 0; e < EXPERTS; e++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%smlp.experts.%zu.%s.weight", layer, e, names[k]);
            if (!stacked) add(b, name, WIDTH, H, seed_of(e, k));
            else
                fill(k < 2 ? gate_up + (2 * e + (size_t)k) * ONE : down + e * ONE, WIDTH * H,
                     seed_of(e, k));
        }
    if (!stacked) return;
    snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", layer);
    snprintf(shape, sizeof shape, "[%d,%d,%d]", EXPERTS, 2 * WIDTH, H);
    build_tensor(b, name, "BF16", shape, gate_up, sizeof gate_up, 0);
    snprintf(name, sizeof name, "%smlp.experts.down_proj", layer);
    snprintf(shape, sizeof shape, "[%d,%d,%d]", EXPERTS, H, WIDTH);
    build_tensor(b, name, "BF16", shape, down, sizeof down, 0);
}

#define LAYER "model.layers.0."
static const char ROUTED[] =
    "\"num_hidden_layers\":1,\"vocab_size\":8,\"hidden_size\":32,\"num_attention_heads\":2,"
    "\"intermediate_size\":64,\"moe_intermediate_size\":32,\"num_experts_per_tok\":2}";

static void begin(built *b, const char *config) {
    char text[1024];
    build_begin(b);
    snprintf(text, sizeof text, "{%s,%s", config, ROUTED);
    build_text(b, "config.json", text);
    add(b, "model.embed_tokens.weight", 8, H, 1);
    add(b, "lm_head.weight", 8, H, 2);
    add(b, "model.norm.weight", H, 1, 3);
    add(b, LAYER "input_layernorm.weight", H, 1, 4);
    add(b, LAYER "post_attention_layernorm.weight", H, 1, 5);
    add(b, LAYER "mlp.gate.weight", EXPERTS, H, 6);
}

static void make_qwen(built *b, bool stacked) {
    begin(b, "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"num_experts\":3,"
             "\"num_key_value_heads\":1,\"head_dim\":16");
    add(b, LAYER "self_attn.q_proj.weight", 32, H, 11);
    add(b, LAYER "self_attn.k_proj.weight", 16, H, 12);
    add(b, LAYER "self_attn.v_proj.weight", 16, H, 13);
    add(b, LAYER "self_attn.o_proj.weight", H, 32, 14);
    add(b, LAYER "self_attn.q_norm.weight", 16, 1, 15);
    add(b, LAYER "self_attn.k_norm.weight", 16, 1, 16);
    add_expert_layer(b, LAYER, stacked);
    build_write(b, "model.safetensors");
}

static void make_latent(built *b) {
    begin(b, "\"architectures\":[\"DeepseekV32ForCausalLM\"],\"n_routed_experts\":3,\"n_group\":1,"
             "\"topk_group\":1,\"first_k_dense_replace\":0,\"q_lora_rank\":32,\"kv_lora_rank\":16,"
             "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":8,\"v_head_dim\":16");
    add(b, LAYER "self_attn.q_a_proj.weight", 32, H, 21);
    add(b, LAYER "self_attn.q_a_layernorm.weight", 32, 1, 22);
    add(b, LAYER "self_attn.q_b_proj.weight", 32, 32, 23);
    add(b, LAYER "self_attn.kv_a_proj_with_mqa.weight", 24, H, 24);
    add(b, LAYER "self_attn.kv_a_layernorm.weight", 16, 1, 25);
    add(b, LAYER "self_attn.kv_b_proj.weight", 48, 16, 26);
    add(b, LAYER "self_attn.o_proj.weight", H, 32, 27);
    add(b, LAYER "self_attn.indexer.wq_b.weight", 16, 32, 28);
    add(b, LAYER "mlp.gate.e_score_correction_bias", EXPERTS, 1, 29);
    add(b, LAYER "mlp.shared_experts.gate_proj.weight", WIDTH, H, 30);
    add(b, LAYER "mlp.shared_experts.up_proj.weight", WIDTH, H, 31);
    add(b, LAYER "mlp.shared_experts.down_proj.weight", H, WIDTH, 32);
    add_expert_layer(b, LAYER, false);
    build_write(b, "model.safetensors");
}

static void load_out(loaded *f, const built *b) {
    char path[160];
    snprintf(path, sizeof path, "%s/model.safetensors", out_dir(b));
    load(f, path);
}

static void end(built *b) {
    assert_int_equal(kld_remove_tree(out_dir(b), NULL), KLD_OK);
    build_end(b);
}

/* amax of a source tensor. */
static float amax_of(const built *b, const char *name) {
    loaded f;
    char path[160];
    snprintf(path, sizeof path, "%s/model.safetensors", b->dir);
    load(&f, path);
    const kld_tensor *t = tensor(&f, name);
    float most = 0;
    for (size_t i = 0; i < t->bytes / 2; i++)
        most = fmaxf(most, fabsf(kld_scale_value(t, part(&f, name), i)));
    unload(&f);
    return most;
}

static float global_of(const loaded *f, const char *module) {
    char name[160];
    float v;
    snprintf(name, sizeof name, "%s%s.weight_scale_2", LAYER, module);
    memcpy(&v, part(f, name), 4);
    return v;
}

/* The members have the global of the largest among them. */
static void shares(const built *b, const loaded *f, const char *const *module, size_t n) {
    float most = 0;
    char name[160];
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%s.weight", LAYER, module[i]);
        most = fmaxf(most, amax_of(b, name));
    }
    for (size_t i = 0; i < n; i++)
        if (global_of(f, module[i]) != most / 2688)
            fail_msg("%s: %g, not %g", module[i], (double)global_of(f, module[i]),
                     (double)most / 2688);
}

static kld_model *opens(const built *b, const char *label) {
    kld_model *m;
    kld_err err = {0};
    if (kld_model_open(&m, out_dir(b), &err) != KLD_OK) fail_msg("%s", err.text);
    if (m->n_warnings) fail_msg("%s", m->warnings[0]);
    assert_string_equal(m->label, label);
    return m;
}

static void experts(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"},
                                           {"mlp.experts.1.gate_proj", "mlp.experts.1.up_proj"},
                                           {"mlp.experts.2.gate_proj", "mlp.experts.2.up_proj"}};
    static const char *const downs[] = {"mlp.experts.0.down_proj", "mlp.experts.1.down_proj",
                                        "mlp.experts.2.down_proj"};
    built b;
    loaded f;
    kld_quantize_summary sum;
    make_qwen(&b, false);
    quantizes(&b, KLD_TARGET_NVFP4_MODELOPT, &sum);
    load_out(&f, &b);
    assert_int_equal(sum.weights, 4 + 3 * EXPERTS);
    for (size_t e = 0; e < EXPERTS; e++) {
        shares(&b, &f, pairs[e], 2);
        shares(&b, &f, &downs[e], 1);
        if (e) assert_true(global_of(&f, pairs[e][0]) != global_of(&f, pairs[0][0]));
    }
    assert_int_equal(tensor(&f, LAYER "mlp.gate.weight")->dtype, KLD_BF16);
    unload(&f);
    kld_model *m = opens(&b, "NVFP4");
    assert_int_equal(m->layer[0].slot[KLD_SLOT_ROUTER].format, KLD_FMT_BF16);
    assert_int_equal(m->layer[0].expert[2].down.format, KLD_FMT_NVFP4);
    kld_model_free(m);
    end(&b);
}

/* MLA: what reads the hidden state shares a global, as engines fuse it. */
static void latent(void **state) {
    (void)state;
    static const char *const fused[] = {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"};
    static const char *const shared[] = {"mlp.shared_experts.gate_proj",
                                         "mlp.shared_experts.up_proj"};
    static const char *const alone[] = {"self_attn.q_b_proj", "self_attn.kv_b_proj",
                                        "self_attn.o_proj", "mlp.shared_experts.down_proj"};
    built b;
    loaded f;
    kld_quantize_summary sum;
    make_latent(&b);
    quantizes(&b, KLD_TARGET_NVFP4_MODELOPT, &sum);
    load_out(&f, &b);
    assert_int_equal(sum.weights, 5 + 3 + 3 * EXPERTS);
    shares(&b, &f, fused, 2);
    shares(&b, &f, shared, 2);
    for (size_t i = 0; i < 4; i++) shares(&b, &f, &alone[i], 1);
    assert_int_equal(tensor(&f, LAYER "self_attn.indexer.wq_b.weight")->dtype, KLD_BF16);
    assert_int_equal(tensor(&f, LAYER "mlp.gate.e_score_correction_bias")->dtype, KLD_BF16);
    unload(&f);
    kld_model_free(opens(&b, "NVFP4"));
    end(&b);
}

/* What is left alone is said in the form of each library, and only there. */
static void ignore_list(void **state) {
    (void)state;
    static const struct {
        kld_target_format format;
        const char *want[3];
    } all[] = {{KLD_TARGET_NVFP4_MODELOPT, {"lm_head", "*.mlp.gate", "*.self_attn.indexer.*"}},
               {KLD_TARGET_NVFP4_CT, {"lm_head", "re:.*.mlp.gate$", "re:.*self_attn.indexer"}}};
    for (size_t k = 0; k < 2; k++) {
        built b;
        json_t *c;
        char path[160];
        kld_err err = {0};
        kld_quantize_summary sum;
        make_latent(&b);
        quantizes(&b, all[k].format, &sum);
        snprintf(path, sizeof path, "%s/config.json", out_dir(&b));
        assert_int_equal(kld_json_load(&c, path, 1 << 20, &err), KLD_OK);
        const json_t *list = json_object_get(json_object_get(c, "quantization_config"), "ignore");
        assert_int_equal(json_array_size(list), 3);
        for (size_t i = 0; i < 3; i++)
            assert_string_equal(json_string_value(json_array_get(list, i)), all[k].want[i]);
        json_decref(c);
        kld_model_free(opens(&b, "NVFP4"));
        end(&b);
    }
}

/* Stacked experts become the same tensors as if they had been apart. */
static void stacked(void **state) {
    (void)state;
    static const kld_target_format formats[] = {KLD_TARGET_NVFP4_MODELOPT, KLD_TARGET_NVFP4_CT,
                                                KLD_TARGET_MXFP4_CT};
    for (size_t k = 0; k < 3; k++) {
        built apart, in_one;
        loaded f, g;
        kld_quantize_summary sum[2];
        make_qwen(&apart, false);
        make_qwen(&in_one, true);
        quantizes(&apart, formats[k], &sum[0]);
        quantizes(&in_one, formats[k], &sum[1]);
        load_out(&f, &apart);
        load_out(&g, &in_one);
        assert_int_equal(sum[0].weights, sum[1].weights);
        assert_int_equal(f.n, g.n);
        for (size_t i = 0; i < f.n; i++) {
            const kld_tensor *t = &f.t[i], *u = tensor(&g, t->name);
            assert_int_equal(t->dtype, u->dtype);
            assert_int_equal(t->bytes, u->bytes);
            assert_memory_equal(part(&f, t->name), part(&g, t->name), t->bytes);
        }
        unload(&f);
        unload(&g);
        kld_model_free(opens(&in_one, k < 2 ? "NVFP4" : "MXFP4"));
        end(&apart);
        end(&in_one);
    }
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *text;
    } all[] = {{"gpt_oss", "holds the experts of a layer in one, and gpt_oss has no form"},
               {"gpt_oss-mxfp4", "is MXFP4 already"}};
    for (size_t k = 0; k < 2; k++) {
        char dir[128];
        kld_err err = {0};
        kld_quantize_summary sum;
        snprintf(dir, sizeof dir, "tests/golden/models/%s", all[k].model);
        kld_quantize_options opt = {
            .model = dir, .output = "/tmp/kldtest.moe.out", .format = KLD_TARGET_NVFP4_CT};
        kld_status st = kld_quantize_run(&opt, &sum, &err);
        if (!strstr(err.text, all[k].text)) fail_msg("'%s'", err.text);
        assert_int_equal(st, KLD_E_UNSUPPORTED);
        assert_false(kld_path_exists(opt.output));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts), cmocka_unit_test(latent),
                                       cmocka_unit_test(ignore_list), cmocka_unit_test(stacked),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
