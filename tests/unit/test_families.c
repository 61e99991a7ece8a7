/* Families with mixtures, latent attention, windows and sinks: what their configs resolve to, and
 * goldens changed in one place. */
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "tests/unit/tinymodel.h"

#include <math.h>
#include <stdlib.h>

/* ---- what the configs of the goldens say, worked out by hand from the reference's classes */

static const struct {
    const char *name, *family;
    size_t layers, sparse, slides, skipped; /* sparse, slides: bits of layers */
    size_t rope_dim, rope_first, heads, kv_heads, head_dim, value_dim;
    size_t experts, top_k, groups, width, shared;
    kld_score score;
    double scale, eps; /* of the weights; of the norms */
} FAMILIES[] = {
    {"qwen3_moe", "qwen3_moe",       2, 3,   0, 0, 14, 0, 6, 3, 14, 14, 7, 3, 1, 16,
     0,           KLD_SCORE_SOFTMAX, 1, 1e-6},
    {"qwen3_moe-fused", "qwen3_moe", 2,   3, 0, 0, 14, 0, 6, 3, 14, 14, 7, 3, 1, 16, 0,
     KLD_SCORE_SOFTMAX, 1,           1e-6},
    {"qwen3_moe-mixed", "qwen3_moe", 4,   2, 0, 0, 12, 0, 4, 2, 12, 12, 6, 2, 1, 12, 0,
     KLD_SCORE_SOFTMAX, 1,           1e-6},
    {"glm4_moe", "glm4_moe",        2,   2,   0, 28, 10, 0, 6, 2, 20, 20, 6, 3, 1, 16,
     16,         KLD_SCORE_SIGMOID, 2.5, 1e-5},
    {"glm4_moe-air",    "glm4_moe", 2,   2, 0, 0, 6, 0, 4, 2, 12, 12, 7, 3, 1, 16, 16,
     KLD_SCORE_SIGMOID, 1,          1e-5},
    {"minimax_m2",
     "minimax_m2",
     2,
     3,
     0,
     0,
     8,
     0,
     6,
     2,
     16,
     16,
     7,
     3,
     1,
     16,
     0,
     KLD_SCORE_SIGMOID,
     1,
     1e-6},
    {"mimo_v2", "mimo_v2",         3, 6,   2, 3, 8, 0, 4, 2, 24, 16, 6, 3, 1, 16,
     0,         KLD_SCORE_SIGMOID, 1, 1e-5},
    {"mimo_v2_flash",   "mimo_v2", 3,   6, 2, 3, 8, 0, 4, 2, 24, 16, 6, 3, 1, 16, 0,
     KLD_SCORE_SIGMOID, 1,         1e-5},
    {"deepseek_v3",     "deepseek_v3", 2,   2, 0, 26, 8, 10, 3, 3, 18, 12, 8, 3, 4, 16, 16,
     KLD_SCORE_SIGMOID, 2.5,           1e-6},
    {"deepseek_v32",
     "deepseek_v32",
     2,
     2,
     0,
     10,
     8,
     10,
     3,
     3,
     18,
     12,
     8,
     3,
     4,
     16,
     16,
     KLD_SCORE_SIGMOID,
     2.5,
     1e-6},
    {"glm_moe_dsa",     "glm_moe_dsa", 4,   12, 0, 41, 8, 10, 3, 3, 18, 12, 6, 3, 1, 12, 12,
     KLD_SCORE_SIGMOID, 2.5,           1e-5},
    {"glm4_moe_lite",
     "glm4_moe_lite",
     2,
     2,
     0,
     0,
     8,
     10,
     3,
     3,
     18,
     12,
     6,
     3,
     1,
     16,
     16,
     KLD_SCORE_SIGMOID,
     1.8,
     1e-5},
    {"kimi_k25", "kimi_k25",        2,     2,   0, 3, 8, 10, 3, 3, 18, 12, 7, 3, 1, 16,
     16,         KLD_SCORE_SIGMOID, 2.827, 1e-5},
    {"mistral4", "mistral4",        2,   3,   0, 0, 8, 10, 3, 3, 18, 12, 6, 3, 1, 16,
     16,         KLD_SCORE_SOFTMAX, 1.5, 1e-6},
    {"mistral3-moe",    "mistral4", 2,   3, 0, 3, 8, 10, 3, 3, 18, 12, 6, 3, 1, 16, 16,
     KLD_SCORE_SOFTMAX, 1.5,        1e-6},
    {"gemma3-mm", "gemma3",          6, 0,   31, 3, 10, 0, 4, 2, 10, 10, 0, 0, 0, 0,
     0,           KLD_SCORE_SOFTMAX, 0, 1e-6},
    {"mistral3", "ministral3",      2, 0,   0, 3, 12, 0, 6, 2, 12, 12, 0, 0, 0, 0,
     0,          KLD_SCORE_SOFTMAX, 0, 1e-5},
};

static void resolved(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", FAMILIES[i].name);
        kld_model *m = tiny_open(dir);
        const kld_config *c = &m->config;
        const kld_attention *a = &c->attn[KLD_ATTN_FULL];
        print_message("%s\n", FAMILIES[i].name);
        assert_string_equal(m->family, FAMILIES[i].family);
        assert_int_equal(c->layers, FAMILIES[i].layers);
        assert_int_equal(m->n_skipped, FAMILIES[i].skipped);
        assert_int_equal(a->heads, FAMILIES[i].heads);
        assert_int_equal(a->kv_heads, FAMILIES[i].kv_heads);
        assert_int_equal(a->head_dim, FAMILIES[i].head_dim);
        assert_int_equal(a->value_dim, FAMILIES[i].value_dim);
        assert_int_equal(a->rope_dim, FAMILIES[i].rope_dim);
        assert_int_equal(a->rope_first, FAMILIES[i].rope_first);
        assert_int_equal(c->router.experts, FAMILIES[i].experts);
        assert_int_equal(c->router.top_k, FAMILIES[i].top_k);
        assert_int_equal(c->router.groups, FAMILIES[i].groups);
        assert_int_equal(c->expert_intermediate, FAMILIES[i].width);
        assert_int_equal(c->shared_intermediate, FAMILIES[i].shared);
        assert_int_equal(c->router.score, FAMILIES[i].score);
        assert_true(c->router.scale == FAMILIES[i].scale && c->norm_eps == FAMILIES[i].eps);
        for (size_t l = 0; l < c->layers; l++) {
            assert_int_equal(m->layer[l].expert != NULL, FAMILIES[i].sparse >> l & 1);
            assert_int_equal(m->layer[l].attn->window > 0, FAMILIES[i].slides >> l & 1);
        }
        kld_model_free(m);
    }
}

static kld_model *golden(const char *name) {
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    return tiny_open(dir);
}

/* What only some have. */
static void particulars(void **state) {
    (void)state;
    kld_model *m = golden("mimo_v2");
    const kld_layer *slides = &m->layer[1], *full = &m->layer[0];
    assert_int_equal(slides->slot[KLD_SLOT_SINKS].rows, 4); /* on sliding layers only */
    assert_int_equal(full->slot[KLD_SLOT_SINKS].rows, 0);
    assert_true(full->attn->rope.theta == 5e6 && slides->attn->rope.theta == 1e4);
    assert_int_equal(slides->attn->kv_heads, 4);
    /* As many shards as the full layers have key heads, in both kinds: 2 q heads of 24, one k head
     * and v of 16; when sliding two each. */
    assert_int_equal(full->slot[KLD_SLOT_QKV].shards, 2);
    assert_int_equal(full->slot[KLD_SLOT_QKV].shard_rows[0], 48);
    assert_int_equal(full->slot[KLD_SLOT_QKV].shard_rows[1], 24);
    assert_int_equal(full->slot[KLD_SLOT_QKV].shard_rows[2], 16);
    assert_int_equal(slides->slot[KLD_SLOT_QKV].shards, 2);
    assert_int_equal(slides->slot[KLD_SLOT_QKV].shard_rows[1], 48);
    assert_int_equal(slides->slot[KLD_SLOT_QKV].shard_rows[2], 32);
    assert_true(m->config.value_scale == 0.707);
    assert_int_equal(m->layer[1].slot[KLD_SLOT_ROUTER_BIAS].format, KLD_FMT_F32);
    kld_model_free(m);
    m = golden("gpt_oss");
    const kld_weight *g = &m->layer[0].expert[1].gate;
    assert_true(g->in_major && g->shards == 64 && g->shard_rows[0] == 1 && g->bias);
    assert_int_equal(m->layer[0].expert[1].up.rows, 0);
    assert_int_equal(m->config.activation, KLD_ACT_CLAMPED_GLU);
    assert_true(m->layer[0].attn->window && !m->layer[1].attn->window);
    assert_int_equal(m->layer[1].slot[KLD_SLOT_SINKS].rows, 6);
    kld_model_free(m);
    m = golden("minimax_m2");
    assert_int_equal(m->layer[0].slot[KLD_SLOT_Q_NORM].rows, 96); /* all heads together */
    kld_model_free(m);
    m = golden("deepseek_v3");
    double boost = 0.1 * log(4) + 1;
    assert_true(fabs(m->config.attn_scale * sqrt(18) - boost * boost) < 1e-12);
    assert_true(m->config.latent_eps == 1e-6 && m->config.rope_interleaved);
    assert_true(m->config.attn[0].rope.attention_factor == 1);
    kld_model_free(m);
    m = golden("glm_moe_dsa");
    assert_int_equal(m->config.dense_window, 64);
    kld_model_free(m);
    m = golden("mistral4");
    assert_true(m->config.query_beta == 0.1 && m->config.query_length == 16);
    kld_model_free(m);
    m = golden("gemma3-mm");
    assert_true(m->config.tied && m->config.norm_plus_one && m->config.attn_scale == 1 / sqrt(14));
    assert_true(m->layer[0].attn->rope.theta == 1e4 && m->layer[5].attn->rope.theta == 1e6);
    assert_true(m->layer[0].attn->rope.factor == 1 && m->layer[5].attn->rope.factor == 8);
    assert_true(m->config.embed_scale == sqrt(32));
    kld_model_free(m);
}

/* ---- one change each */

typedef struct change {
    const char *golden;
    const char *set;         /* members of the text config as JSON, or NULL; @key removes it */
    const char *from, *to;   /* part of tensor names to replace; to NULL: such tensors go */
    const char *add, *shape; /* a BF16 tensor to add */
    kld_status st;
    const char *text; /* of the message; of OK, NULL */
} change;

/* Applies {"key": value, "@key": null} to the text config. */
static void write_config(const built *b, const char *golden, const char *set) {
    char path[160];
    json_t *c, *patch, *v;
    const char *k;
    kld_buf text = {0};
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", golden);
    assert_int_equal(kld_json_load(&c, path, 1 << 20, NULL), KLD_OK);
    json_t *t = json_object_get(c, "text_config");
    if (set) {
        patch = json_loads(set, 0, NULL);
        assert_non_null(patch);
        json_object_foreach(patch, k, v) {
            if (*k == '@') assert_int_equal(json_object_del(t ? t : c, k + 1), 0);
            else assert_int_equal(json_object_set(t ? t : c, k, v), 0);
        }
        json_decref(patch);
    }
    assert_int_equal(kld_json_dump(c, false, &text, NULL), KLD_OK);
    build_text(b, "config.json", (char *)text.data);
    kld_buf_free(&text);
    json_decref(c);
}

static void shape_text(const kld_tensor *t, char *out, size_t size) {
    int n = snprintf(out, size, "[");
    for (unsigned d = 0; d < t->rank; d++)
        n += snprintf(out + n, size - (size_t)n, "%s%llu", d ? "," : "",
                      (unsigned long long)t->shape[d]);
    snprintf(out + n, size - (size_t)n, "]");
}

static void copy_tensors(built *b, const change *x) {
    char path[160], name[256], shape[96];
    loaded f;
    snprintf(path, sizeof path, "tests/golden/models/%s/model.safetensors", x->golden);
    load(&f, path);
    for (size_t i = 0; i < f.n; i++) {
        const kld_tensor *t = &f.t[i];
        const char *at = x->from ? strstr(t->name, x->from) : NULL;
        if (at && !x->to) continue;
        snprintf(name, sizeof name, "%s", t->name);
        if (at)
            snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, x->to,
                     at + strlen(x->from));
        shape_text(t, shape, sizeof shape);
        build_tensor(b, name, kld_dtype_name(t->dtype), shape, f.bytes.data + t->offset,
                     (size_t)t->bytes, 0);
    }
    if (x->add) {
        size_t bytes = 2;
        char *end;
        for (const char *p = x->shape + 1; *p; p = end + (*end != '\0'))
            bytes *= strtoull(p, &end, 10);
        build_tensor(b, x->add, "BF16", x->shape, NULL, bytes, 0);
    }
    unload(&f);
}

static void check_change(const change *x) {
    built b;
    kld_model *m;
    kld_err err = {0};
    build_begin(&b);
    write_config(&b, x->golden, x->set);
    copy_tensors(&b, x);
    build_write(&b, "model.safetensors");
    kld_status st = kld_model_open(&m, b.dir, &err);
    build_end(&b);
    kld_model_free(m);
    const char *about = x->set ? x->set : x->from ? x->from : x->add;
    if (st != x->st || (x->text && !strstr(err.text, x->text)))
        fail_msg("%s, %s: status %d, '%s' instead of '%s'", x->golden, about, st, err.text,
                 x->text ? x->text : "");
}

static const change CHANGES[] = {
    /* tensors that the table asks for by the config */
    {"glm4_moe", NULL, "0.self_attn.q_proj.bias", NULL, NULL, NULL, KLD_E_INPUT,
     "tensor 'model.layers.0.self_attn.q_proj.bias' is missing: expected [120]"},
    {"glm4_moe", "{\"attention_bias\":false}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'model.layers.0.self_attn.q_proj.bias' (BF16 [120]) is not part of this model"},
    {"glm4_moe", "{\"use_qk_norm\":false}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "4 tensors of the file have no place in a glm4_moe model"},
    {"glm4_moe", NULL, NULL, NULL, "model.layers.0.self_attn.o_proj.bias", "[32]", KLD_E_INPUT,
     "'model.layers.0.self_attn.o_proj.bias' (BF16 [32]) is not part of this model"},
    {"gpt_oss", NULL, "0.mlp.router.bias", NULL, NULL, NULL, KLD_E_INPUT,
     "'model.layers.0.mlp.router.bias' is missing: expected [5]"},
    {"gpt_oss", NULL, "1.self_attn.sinks", NULL, NULL, NULL, KLD_E_INPUT,
     "'model.layers.1.self_attn.sinks' is missing: expected [6]"},
    {"gpt_oss", NULL, "down_proj_bias", NULL, NULL, NULL, KLD_E_INPUT,
     "mlp.experts.down_proj_bias' is missing: expected [5, 32]"},
    {"gpt_oss-mxfp4", NULL, "0.mlp.experts.gate_up_proj_scales", NULL, NULL, NULL, KLD_E_INPUT,
     "gate_up_proj_scales' is missing: expected [5, 128, 1]"},
    {"mimo_v2_flash", NULL, "attention_sink_bias", NULL, NULL, NULL, KLD_E_INPUT,
     "'model.layers.1.self_attn.attention_sink_bias' is missing: expected [4]"},
    {"mimo_v2_flash", NULL, NULL, NULL, "model.layers.0.self_attn.attention_sink_bias", "[4]",
     KLD_E_INPUT, "1 tensor of the file has no place in a mimo_v2 model"},
    {"deepseek_v3", NULL, "e_score_correction_bias", NULL, NULL, NULL, KLD_E_INPUT,
     "mlp.gate.e_score_correction_bias' is missing: expected [8]"},
    {"deepseek_v3", NULL, "kv_a_layernorm", NULL, NULL, NULL, KLD_E_INPUT,
     "self_attn.kv_a_layernorm.weight' is missing: expected [14]"},
    {"deepseek_v3", NULL, NULL, NULL, "model.layers.0.self_attn.indexer.wk.weight", "[2,2]",
     KLD_E_INPUT, "'model.layers.0.self_attn.indexer.wk.weight'"},
    {"deepseek_v3", NULL, NULL, NULL, "model.layers.1.mlp.extra.weight", "[2]", KLD_E_INPUT,
     "1 tensor of the file has no place in a deepseek_v3 model: 'model.layers.1.mlp.extra.weight'"},
    /* experts */
    {"glm4_moe", "{\"n_routed_experts\":5}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "e_score_correction_bias: expected shape [5], found F32 [6]"},
    {"qwen3_moe", "{\"num_experts\":6}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "mlp.gate.weight: expected shape [6, 36], found BF16 [7, 36]"},
    {"qwen3_moe", NULL, "0.mlp.experts.6.", "0.mlp.experts.7.", NULL, NULL, KLD_E_INPUT,
     "'model.layers.0.mlp.experts.6.gate_proj.weight' is missing: expected [16, 36]"},
    {"qwen3_moe", NULL, NULL, NULL, "model.layers.1.mlp.experts.7.up_proj.weight", "[16,36]",
     KLD_E_INPUT, "1 tensor of the file has no place in a qwen3_moe model"},
    {"qwen3_moe", "{\"num_local_experts\":8}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'num_experts' and 'num_local_experts' differ"},
    {"qwen3_moe", "{\"num_experts_per_tok\":8}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "8 experts a token, but there are 7"},
    {"qwen3_moe", "{\"num_experts\":1025}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "1025 experts, 3 a token: at most 1024 and 32"},
    {"qwen3_moe-fused", "{\"moe_intermediate_size\":8}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "gate_up_proj: expected shape [7, 16, 36], found BF16 [7, 32, 36]"},
    {"qwen3_moe-fused", NULL, "0.mlp.experts.down_proj", NULL, NULL, NULL, KLD_E_INPUT,
     "mlp.experts.down_proj' is missing: expected [7, 36, 16]"},
    {"glm4_moe", "{\"n_shared_experts\":2}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "shared_experts.gate_proj.weight: expected shape [32, 32], found BF16 [16, 32]"},
    {"glm4_moe", "{\"n_shared_experts\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "3 tensors of the file have no place"},
    {"deepseek_v3", "{\"n_group\":3}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "3 of 8 experts cannot be chosen from 2 of 3 groups"},
    {"deepseek_v3", "{\"topk_group\":1}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "3 of 8 experts cannot be chosen from 1 of 4 groups"},
    {"qwen3_moe-mixed", "{\"mlp_only_layers\":[4]}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "mlp_only_layers[0] is not the number of a layer"},
    {"mimo_v2_flash", "{\"moe_layer_freq\":[0,1]}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'moe_layer_freq' is not a list of 3 entries"},
    {"mimo_v2_flash", "{\"moe_layer_freq\":[0,1,2]}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "moe_layer_freq[2] is not 0 or 1"},
    {"deepseek_v3", "{\"mlp_layer_types\":[\"dense\",\"moe\"]}", NULL, NULL, NULL, NULL,
     KLD_E_UNSUPPORTED, "mlp_layer_types[1] 'moe' is not implemented"},
    /* values that would compute something else */
    {"deepseek_v3", "{\"moe_layer_freq\":2}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'moe_layer_freq' is 2; only 1 is implemented"},
    {"deepseek_v3", "{\"scoring_func\":\"softmax\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'scoring_func' is \"softmax\""},
    {"deepseek_v3", "{\"topk_method\":\"greedy\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'topk_method' is \"greedy\""},
    {"glm4_moe", "{\"topk_method\":\"greedy\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'topk_method' is \"greedy\""},
    {"glm4_moe", "{\"topk_method\":\"noaux_tc\",\"scoring_func\":\"sigmoid\",\"moe_layer_freq\":1}",
     NULL, NULL, NULL, NULL, KLD_OK, NULL},
    {"gpt_oss", "{\"hidden_act\":\"gelu_pytorch_tanh\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "of gpt_oss only silu"},
    {"qwen3_moe-fused", NULL, "experts.gate_up_proj", "experts.gate_up_proj_blocks", NULL, NULL,
     KLD_E_UNSUPPORTED, "experts are those of gpt-oss"},
    {"minimax_m2", "{\"qk_norm_type\":\"per_head\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'qk_norm_type' is \"per_head\""},
    {"minimax_m2",
     "{\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}", NULL, NULL,
     NULL, NULL, KLD_E_INPUT,
     "partial_rotary_factor 0.25 of 16 columns is not the 8 that 'rotary_dim' says"},
    {"mimo_v2_flash", "{\"attention_projection_layout\":\"interleaved\"}", NULL, NULL, NULL, NULL,
     KLD_E_UNSUPPORTED, "'attention_projection_layout' is"},
    {"mistral4", "{\"@rope_parameters\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'rope_parameters' or 'rope_scaling' is required"},
    {"gpt_oss", "{\"rope_scaling\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'rope_parameters' or 'rope_scaling' is required"},
    {"glm4_moe_lite", "{\"partial_rotary_factor\":0.5}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "partial_rotary_factor 0.5 of 18 columns is not the 8 that 'qk_rope_head_dim' says"},
    {"gemma3-mm", "{\"use_bidirectional_attention\":true}", NULL, NULL, NULL, NULL,
     KLD_E_UNSUPPORTED, "'use_bidirectional_attention' is true"},
    {"gemma3-mm", "{\"sliding_window\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "layer_types[0] slides, but there is no sliding window"},
    {"mimo_v2_flash", "{\"@hybrid_layer_pattern\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'layer_types' or 'hybrid_layer_pattern' is required"},
    {"mimo_v2_flash", "{\"sliding_window_size\":9}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'sliding_window' and 'sliding_window_size' differ"},
    {"qwen3_moe", "{\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", NULL, NULL, NULL,
     NULL, KLD_E_UNSUPPORTED,
     "layer_types[0] is sliding_attention, but qwen3_moe layers are all full"},
    {"deepseek_v3", "{\"attn_gate\":true}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "key 'attn_gate' is not known for deepseek_v3"},
    {"qwen3_moe", "{\"qkv_bias\":true}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'qkv_bias' is true"},
    {"deepseek_v3", "{\"first_k_dense_replace\":0}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "'model.layers.0.mlp.gate.e_score_correction_bias' is missing"},
    /* classes that wrap several families */
    {"mistral3", "{\"@model_type\":null}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "'Mistral3ForConditionalGeneration' with a text_config of model_type (none) is not "
     "implemented; these are: mistral, ministral3, mistral4"},
    {"kimi_k25", "{\"model_type\":\"kimi_linear\"}", NULL, NULL, NULL, NULL, KLD_E_UNSUPPORTED,
     "model_type kimi_linear is not implemented; these are: kimi_k2, deepseek_v3"},
    /* the same said otherwise */
    {"kimi_k25", "{\"model_type\":\"deepseek_v3\"}", NULL, NULL, NULL, NULL, KLD_OK, NULL},
    {"kimi_k25", "{\"@model_type\":null}", NULL, NULL, NULL, NULL, KLD_OK, NULL},
    {"kimi_k25", NULL, "language_model.model.layers.", "language_model.model.blocks.", NULL, NULL,
     KLD_OK, NULL},
    {"kimi_k25", NULL, "language_model.model.", "language_model.", NULL, NULL, KLD_OK, NULL},
    {"kimi_k25", NULL, "language_model.model.", "model.language_model.", NULL, NULL, KLD_E_INPUT,
     "tensor 'lm_head.weight' is missing"},
    {"qwen3_moe", "{\"@num_experts\":null,\"num_local_experts\":7}", NULL, NULL, NULL, NULL, KLD_OK,
     NULL},
    {"qwen3_moe", "{\"use_sliding_window\":true,\"sliding_window\":null}", NULL, NULL, NULL, NULL,
     KLD_OK, NULL},
    {"mimo_v2_flash", "{\"@swa_num_key_value_heads\":null}", NULL, NULL, NULL, NULL, KLD_OK, NULL},
    {"mimo_v2_flash", "{\"swa_num_key_value_heads\":null}", NULL, NULL, NULL, NULL, KLD_E_INPUT,
     "1.self_attn.k_proj.weight: expected shape [48, 32], found BF16 [96, 32]"},
    {"mimo_v2_flash", "{\"n_shared_experts\":null,\"routed_scaling_factor\":null}", NULL, NULL,
     NULL, NULL, KLD_OK, NULL},
    {"glm4_moe", "{\"@partial_rotary_factor\":null}", NULL, NULL, NULL, NULL, KLD_OK, NULL},
    {"glm_moe_dsa", "{\"head_dim\":192}", NULL, NULL, NULL, NULL, KLD_OK, NULL},
};

static void changes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) check_change(&CHANGES[i]);
}

/* Defaults that a config may leave out decide numbers, not only whether it opens. */
static void defaults(void **state) {
    (void)state;
    static const change none = {
        "glm4_moe", "{\"@partial_rotary_factor\":null}", NULL, NULL, NULL, NULL, KLD_OK, NULL};
    built b;
    build_begin(&b);
    write_config(&b, none.golden, none.set);
    copy_tensors(&b, &none);
    build_write(&b, "model.safetensors");
    kld_model *m = tiny_open(b.dir);
    assert_int_equal(m->config.attn[0].rope_dim, 10); /* half of 20 */
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(strstr(m->warnings[0], "28 tensors of layers past num_hidden_layers (2)"));
    kld_model_free(m);
    build_end(&b);
}

/* Defect 24: a fused projection with one FP8 scale, which is that of all its shards. */
static void one_scale(void **state) {
    (void)state;
    static const char *const file[] = {"model_pp0_ep0_shard0", "model_pp0_ep0_shard1"};
    static unsigned char codes[176 * 32];
    const float scale = 0.5f;
    built b;
    loaded f;
    char path[160], shape[64];
    build_begin(&b);
    write_config(&b, "mimo_v2", NULL);
    for (size_t k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "tests/golden/models/mimo_v2/%s.safetensors", file[k]);
        load(&f, path);
        for (size_t i = 0; i < f.n; i++) {
            const kld_tensor *t = &f.t[i];
            bool fused = !strcmp(t->name, "model.layers.0.self_attn.qkv_proj.weight");
            shape_text(t, shape, sizeof shape);
            if (fused) assert_int_equal(t->shape[0] * t->shape[1], sizeof codes);
            if (fused) build_tensor(&b, t->name, "F8_E4M3", shape, codes, sizeof codes, 0);
            else
                build_tensor(&b, t->name, kld_dtype_name(t->dtype), shape, f.bytes.data + t->offset,
                             (size_t)t->bytes, 0);
        }
        unload(&f);
    }
    build_tensor(&b, "model.layers.0.self_attn.qkv_proj.weight_scale", "F32", "[]", &scale, 4, 0);
    build_write(&b, "model.safetensors");
    kld_model *m = tiny_open(b.dir);
    const kld_weight *w = &m->layer[0].slot[KLD_SLOT_QKV];
    assert_int_equal(w->format, KLD_FMT_FP8_TENSOR);
    assert_int_equal(w->shards, 2);
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (unsigned char)(i / 32 % 127);
    float row[32];
    kld_weight_view v = {.data = codes, .scale = (const unsigned char *)&scale};
    /* The first k row is stored after the first shard's two q heads of 24. */
    kld_weight_decode(w, v, 96, 1, false, row);
    assert_true(row[0] == 0.5f * kld_e4m3_to_f32(48));
    kld_model_free(m);
    build_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(resolved), cmocka_unit_test(particulars),
                                       cmocka_unit_test(changes), cmocka_unit_test(defaults),
                                       cmocka_unit_test(one_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
