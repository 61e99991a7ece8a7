/* config.json against the tables: keys, RoPE, released files. */
#include "tests/unit/tinymodel.h"

#include "kld/base/json.h"
#include "loaders/arch.h"
#include "loaders/config.h"
#include "loaders/rope.h"

#include <math.h>

/* ---- config keys */

static void config_keys(void **state) {
    (void)state;
    static const struct {
        const char *extra, *text;
        kld_status st;
    } all[] = {
        {",\"attn_logit_softcapping\":50", "key 'attn_logit_softcapping' is not known for llama",
         KLD_E_UNSUPPORTED},
        {",\"pretraining_tp\":2", "'pretraining_tp' is 2; only 1|null", KLD_E_UNSUPPORTED},
        {",\"rope_interleaved\":true", "'rope_interleaved' is true", KLD_E_UNSUPPORTED},
        {",\"hidden_act\":\"relu\"", "'hidden_act' is relu", KLD_E_UNSUPPORTED},
        {",\"sliding_window\":4096", "'sliding_window' is 4096", KLD_E_UNSUPPORTED},
        {",\"layer_types\":[\"sliding_attention\"]", "llama layers are all full",
         KLD_E_UNSUPPORTED},
        {",\"layer_types\":[\"linear_attention\"]", "layer_types[0] 'linear_attention'",
         KLD_E_UNSUPPORTED},
        {",\"layer_types\":[]", "not a list of 1 entries", KLD_E_INPUT},
        {",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", "rope_type 'dynamic'",
         KLD_E_UNSUPPORTED},
        {",\"rope_scaling\":{\"type\":\"linear\"}", "'factor' is required", KLD_E_INPUT},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", "'factor' must be above 0",
         KLD_E_INPUT},
        {",\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1]}", "key 'mrope_section'",
         KLD_E_UNSUPPORTED},
        {",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}", "depends on the layer",
         KLD_E_UNSUPPORTED},
        {",\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5",
         KLD_E_UNSUPPORTED},
        {",\"rope_parameters\":7", "'rope_parameters': expected an object", KLD_E_INPUT},
        {",\"rope_theta\":0", "'rope_theta' must be above 0", KLD_E_INPUT},
        {",\"attention_bias\":1", "'attention_bias': expected true or false", KLD_E_INPUT},
        {",\"head_dim\":7", "'head_dim' 7 is not even", KLD_E_UNSUPPORTED},
        {",\"tie_word_embeddings\":null", "'tie_word_embeddings': expected true or false",
         KLD_E_INPUT},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char config[1024];
        snprintf(config, sizeof config, "{" CONFIG "%s}", all[i].extra);
        tiny_fails(config, NULL, NULL, 0, all[i].st, all[i].text);
    }
    tiny_fails("{\"architectures\":[\"Gemma2ForCausalLM\"]}", NULL, NULL, 0, KLD_E_UNSUPPORTED,
               "architecture 'Gemma2ForCausalLM' is not implemented; these are: LlamaForCausalLM,");
    tiny_fails("{\"architectures\":[]}", NULL, NULL, 0, KLD_E_INPUT, "does not name a class");
    tiny_fails("{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":8}", NULL, NULL, 0,
               KLD_E_INPUT, "'hidden_size' is required and absent");
}

/* Config values that do not fit the file are refused before anything is sized by them. */
static void hostile_sizes(void **state) {
    (void)state;
    static const struct {
        const char *key, *value, *text;
    } all[] = {
        {"num_hidden_layers", "90000",
         "num_hidden_layers is 90000, but the checkpoint has only 12"},
        {"num_hidden_layers", "1000000", "'num_hidden_layers' is 1000000, above"},
        {"num_hidden_layers", "0", "'num_hidden_layers' is 0"},
        {"vocab_size", "1073741825", "'vocab_size' is 1073741825, above"},
        {"vocab_size", "-1", "'vocab_size': -1 is negative"},
        {"num_key_value_heads", "3", "4 attention heads are not a multiple of 3"},
        {"hidden_size", "1073741824", "expected shape [8, 1073741824], found BF16 [8, 32]"},
        {"rms_norm_eps", "-1", "'rms_norm_eps' is -1"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        json_t *c;
        assert_int_equal(kld_json_parse(&c, "{" CONFIG "}", strlen("{" CONFIG "}"), 8, NULL), 0);
        json_t *v = json_loads(all[i].value, JSON_DECODE_ANY, NULL);
        assert_int_equal(json_object_set_new(c, all[i].key, v), 0);
        kld_buf text = {0};
        assert_int_equal(kld_json_dump(c, false, &text, NULL), 0);
        tiny_fails((char *)text.data, NULL, NULL, 0, KLD_E_INPUT, all[i].text);
        kld_buf_free(&text);
        json_decref(c);
    }
}

static kld_model *open_golden(const char *name) {
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    return tiny_open(dir);
}

/* ---- RoPE */

static void rope_close(const kld_rope *r, size_t dim, const double *want) {
    float inv[64];
    kld_rope_frequencies(r, dim, inv);
    for (size_t i = 0; i < dim / 2; i++) {
        if (fabs((double)inv[i] - want[i]) > 3e-7 * want[i])
            fail_msg("frequency %zu is %.9g, not %.9g", i, (double)inv[i], want[i]);
    }
}

/* Values of transformers 5 for the same configurations. */
static const double LLAMA3_12[] = {0.576056361,   0.0269304309,   0.00580198551,
                                   0.00124999997, 0.000269304292, 5.80198684e-05};
static const double LINEAR_12[] = {0.5,           0.107721724,   0.023207942,
                                   0.00499999989, 0.00107721717, 0.000232079474};
static const double YARN_24[] = {1,
                                 0.290099323,
                                 0.0538608618,
                                 0.0250000004,
                                 0.011603971,
                                 0.00538608711,
                                 0.00249999994,
                                 0.00116039743,
                                 0.000538608583,
                                 0.000250000012,
                                 0.000116039737,
                                 5.38608547e-05};
static const double YARN_FACTOR_24[] = {1,
                                        0.376107305,
                                        0.114932902,
                                        0.0256643984,
                                        0.011603971,
                                        0.00538608711,
                                        0.00249999994,
                                        0.00116039743,
                                        0.000538608583,
                                        0.000250000012,
                                        0.000116039737,
                                        5.38608547e-05};

static const kld_rope *rope_of(const kld_model *m) { return &m->config.attn[KLD_ATTN_FULL].rope; }

static void rope(void **state) {
    (void)state;
    kld_model *m = open_golden("llama");
    assert_int_equal(rope_of(m)->scaling, KLD_ROPE_LLAMA3);
    assert_true(rope_of(m)->factor == 8 && rope_of(m)->original_max_position == 16);
    rope_close(rope_of(m), 12, LLAMA3_12);
    kld_model_free(m);
    m = open_golden("llama-linear");
    assert_int_equal(rope_of(m)->scaling, KLD_ROPE_LINEAR);
    rope_close(rope_of(m), 12, LINEAR_12);
    kld_model_free(m);
    m = open_golden("qwen3-yarn");
    assert_int_equal(rope_of(m)->scaling, KLD_ROPE_YARN);
    assert_true(rope_of(m)->attention_factor == 0.1 * log(4) + 1);
    rope_close(rope_of(m), 24, YARN_24);
    kld_model_free(m);
    m = open_golden("qwen3-yarn-factor");
    assert_true(rope_of(m)->attention_factor == 0.85 && !rope_of(m)->truncate);
    rope_close(rope_of(m), 24, YARN_FACTOR_24);
    kld_model_free(m);
    m = open_golden("llama-yarn-mscale");
    double g = 0.1 * log(4);
    assert_true(fabs(rope_of(m)->attention_factor - (0.7 * g + 1) / (g + 1)) < 1e-15);
    kld_model_free(m);
}

/* Missing numbers of YaRN, as transformers fills them in. */
static void rope_defaults(void **state) {
    (void)state;
    static const char text[] =
        "{\"max_position_embeddings\":131072,\"rope_theta\":1000000.0,"
        "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"beta_fast\":0,"
        "\"original_max_position_embeddings\":32768,\"mscale\":1.0,\"mscale_all_dim\":1.0}}";
    const kld_rope_source src = {.theta_key = "rope_theta", .theta = 10000, .scaling = true, .partial_default = 1};
    json_t *c;
    kld_rope r;
    kld_err err = {0};
    assert_int_equal(kld_json_parse(&c, text, sizeof text - 1, 8, NULL), KLD_OK);
    assert_int_equal(kld_rope_parse(&r, c, &src, 131072, &err), KLD_OK);
    assert_true(r.factor == 4 && r.beta_fast == 32 && r.beta_slow == 1 && r.truncate);
    assert_true(r.attention_factor == 1 && r.theta == 1e6);
    json_t *s = json_object_get(c, "rope_scaling");
    json_object_del(s, "original_max_position_embeddings");
    json_object_set_new(s, "factor", json_real(2));
    assert_int_equal(kld_rope_parse(&r, c, &src, 131072, &err), KLD_OK);
    assert_true(r.original_max_position == 131072); /* the longest position stands in */
    json_object_set_new(c, "original_max_position_embeddings", json_integer(4096));
    assert_int_equal(kld_rope_parse(&r, c, &src, 131072, &err), KLD_OK);
    assert_true(r.original_max_position == 4096);
    json_decref(c);
}

/* ---- configs as released, reduced to keys and shapes that matter */

static const struct {
    const char *name, *text;
    size_t window0, window_last, head_dim;
    double theta;
    bool tied;
} released[] = {
    {"Llama-3.2",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
     "\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,"
     "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
     "\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"mlp_bias\":false,"
     "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,"
     "\"num_key_value_heads\":8,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{"
     "\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
     "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},\"rope_theta\":500000.0,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.45.0.dev0\",\"use_cache\":true,\"vocab_size\":128256}",
     0, 0, 64, 500000, true},
    {"Mistral-7B-v0.1",
     "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,"
     "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
     "\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"model_type\":\"mistral\","
     "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
     "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.34.0.dev0\",\"use_cache\":true,\"vocab_size\":32000}",
     4096, 4096, 128, 10000, false},
    {"Mistral-7B-v0.3",
     "{\"architectures\":[\"MistralForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
     "\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"model_type\":\"mistral\","
     "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
     "\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"sliding_window\":null,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.42.0.dev0\",\"use_cache\":true,\"vocab_size\":32768}",
     0, 0, 128, 1000000, false},
    {"Qwen2.5",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":151643,"
     "\"eos_token_id\":151645,\"hidden_act\":\"silu\",\"hidden_size\":896,\"initializer_range\":0."
     "02,"
     "\"intermediate_size\":4864,\"max_position_embeddings\":32768,\"max_window_layers\":21,"
     "\"model_type\":\"qwen2\",\"num_attention_heads\":14,\"num_hidden_layers\":24,"
     "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
     "\"sliding_window\":32768,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.43.1\",\"use_cache\":true,\"use_sliding_window\":false,"
     "\"use_mrope\":false,\"vocab_size\":151936}",
     0, 0, 64, 1000000, true},
    {"Qwen3",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
     "\"bos_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\","
     "\"hidden_size\":1024,\"initializer_range\":0.02,\"intermediate_size\":3072,"
     "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\","
     "\"num_attention_heads\":16,\"num_hidden_layers\":28,\"num_key_value_heads\":8,"
     "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.51.0\",\"use_cache\":true,\"use_sliding_window\":false,"
     "\"vocab_size\":151936}",
     0, 0, 128, 1000000, true},
    {"SmolLM2",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
     "\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":576,"
     "\"initializer_range\":0.041666666666666664,\"intermediate_size\":1536,"
     "\"is_llama_config\":true,\"max_position_embeddings\":8192,\"mlp_bias\":false,"
     "\"model_type\":\"llama\",\"num_attention_heads\":9,\"num_hidden_layers\":30,"
     "\"num_key_value_heads\":3,\"pad_token_id\":2,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,"
     "\"rope_interleaved\":false,\"rope_scaling\":null,\"rope_theta\":100000,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"transformers.js_config\":{"
     "\"kv_cache_dtype\":{\"q4f16\":\"float16\",\"fp16\":\"float16\"}},"
     "\"transformers_version\":\"4.42.3\",\"use_cache\":true,\"vocab_size\":49152}",
     0, 0, 64, 100000, true},
};

static void released_configs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof released / sizeof *released; i++) {
        json_t *c;
        kld_config_read r;
        kld_arena arena = {0};
        kld_err err = {0};
        if (kld_json_parse(&c, released[i].text, strlen(released[i].text), 8, &err) != KLD_OK ||
            kld_config_parse(&r, c, &arena, &err) != KLD_OK)
            fail_msg("%s: %s", released[i].name, err.text);
        const kld_attention *a = r.config.attn;
        assert_int_equal(a[r.slides[0]].window, released[i].window0);
        assert_int_equal(a[r.slides[r.config.layers - 1]].window, released[i].window_last);
        assert_int_equal(a->head_dim, released[i].head_dim);
        assert_true(a->rope.theta == released[i].theta);
        assert_int_equal(r.config.tied, released[i].tied);
        kld_arena_free(&arena);
        json_decref(c);
    }
}

static void arch_tables(void **state) {
    (void)state;
    assert_null(kld_arch_find("NoSuchForCausalLM", false, NULL));
    for (size_t i = 0; kld_archs[i]; i++) {
        const kld_arch *a = kld_archs[i];
        assert_ptr_equal(kld_arch_find(a->architectures[0], false, NULL), a);
        bool key[KLD_KEY_COUNT] = {false}, slot[KLD_SLOT_COUNT] = {false};
        for (size_t k = 0; k < a->n_keys; k++) {
            assert_false(key[a->keys[k].key]); /* one source a value */
            key[a->keys[k].key] = true;
        }
        for (size_t k = 0; k < a->n_model + a->n_layer; k++) {
            const kld_tensor_row *row = k < a->n_model ? &a->model[k] : &a->layer[k - a->n_model];
            /* Q comes from the hidden state or from the latent vector. */
            assert_true(!slot[row->slot] || row->when == KLD_WHEN_Q_LORA);
            slot[row->slot] = true;
        }
        assert_true(slot[KLD_SLOT_ATTN_NORM] && slot[KLD_SLOT_MLP_NORM] && slot[KLD_SLOT_O]);
        assert_int_equal(slot[KLD_SLOT_ATTN_POST] && slot[KLD_SLOT_MLP_POST], a->post_norms);
        assert_int_equal(slot[KLD_SLOT_ROUTER], a->experts != NULL);
        assert_int_equal(slot[KLD_SLOT_KV_B], a->attention == KLD_BLOCK_LATENT_ATTENTION);
        for (size_t k = 0; k < a->n_asserts; k++) {
            for (const char *const *p = kld_config_ignored; *p; p++)
                assert_string_not_equal(a->asserts[k].name, *p);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(config_keys),
                                       cmocka_unit_test(hostile_sizes),
                                       cmocka_unit_test(rope),
                                       cmocka_unit_test(rope_defaults),
                                       cmocka_unit_test(released_configs),
                                       cmocka_unit_test(arch_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
