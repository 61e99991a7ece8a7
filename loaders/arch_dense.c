/* Dense decoders with grouped-query attention and a gated MLP: Llama and its relatives.
 * Defaults are those of the configuration classes in transformers 5. */
#include "loaders/arch.h"

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

#define KEY(name, key, kind, absent, null)                                                         \
    { name, KLD_KEY_##key, KLD_KIND_##kind, absent, null }

/* The keys that all of them share. */
#define COMMON_KEYS                                                                                \
    KEY("vocab_size", VOCAB, COUNT, KLD_REQUIRED, KLD_REQUIRED),                                   \
        KEY("hidden_size", HIDDEN, COUNT, KLD_REQUIRED, KLD_REQUIRED),                             \
        KEY("intermediate_size", INTERMEDIATE, COUNT, KLD_REQUIRED, KLD_REQUIRED),                 \
        KEY("num_hidden_layers", LAYERS, COUNT, KLD_REQUIRED, KLD_REQUIRED),                       \
        KEY("num_attention_heads", HEADS, COUNT, KLD_REQUIRED, KLD_REQUIRED),                      \
        KEY("rms_norm_eps", EPS, REAL, 1e-6, KLD_REQUIRED)

static const kld_key_row llama_keys[] = {
    COMMON_KEYS,
    KEY("num_key_value_heads", KV_HEADS, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 2048, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("mlp_bias", MLP_BIAS, FLAG, 0, KLD_REQUIRED),
};

static const kld_key_row mistral_keys[] = {
    COMMON_KEYS,
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
};

static const kld_key_row qwen2_keys[] = {
    COMMON_KEYS,
    KEY("num_key_value_heads", KV_HEADS, COUNT, 32, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 32768, KLD_REQUIRED),
    KEY("use_sliding_window", USE_WINDOW, FLAG, 0, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY("max_window_layers", FULL_LAYERS, COUNT, 28, KLD_REQUIRED),
};

static const kld_key_row qwen3_keys[] = {
    COMMON_KEYS,
    KEY("num_key_value_heads", KV_HEADS, COUNT, 32, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 128, KLD_REQUIRED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 32768, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("use_sliding_window", USE_WINDOW, FLAG, 0, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY("max_window_layers", FULL_LAYERS, COUNT, 28, KLD_REQUIRED),
};

/* Old Mistral and Qwen2 files repeat defaults of other families. */
static const kld_assert_row no_bias[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}};
static const kld_assert_row qwen2_asserts[] = {{"attention_bias", "true"}, {"mlp_bias", "false"}};
static const kld_assert_row qwen3_asserts[] = {{"mlp_bias", "false"}};

static const kld_tensor_row model_rows[] = {
    {KLD_SLOT_EMBED, "embed_tokens", KLD_DIM_VOCAB, KLD_DIM_HIDDEN, KLD_BIAS_NONE, false},
    {KLD_SLOT_FINAL_NORM, "norm", KLD_DIM_HIDDEN, KLD_DIM_ONE, KLD_BIAS_NONE, false},
    {KLD_SLOT_HEAD, NULL, KLD_DIM_VOCAB, KLD_DIM_HIDDEN, KLD_BIAS_NONE, true},
};

#define NORM(slot, name, dim)                                                                      \
    { KLD_SLOT_##slot, name, KLD_DIM_##dim, KLD_DIM_ONE, KLD_BIAS_NONE, false }
#define LINEAR(slot, name, rows, cols, bias)                                                       \
    { KLD_SLOT_##slot, name, KLD_DIM_##rows, KLD_DIM_##cols, KLD_BIAS_##bias, true }

/* [Q, H], [KV, H], [KV, H], [H, Q]; [I, H], [I, H], [H, I] */
#define ATTENTION_AND_MLP(qkv_bias, o_bias, mlp_bias)                                              \
    NORM(ATTN_NORM, "input_layernorm", HIDDEN),                                                    \
        LINEAR(Q, "self_attn.q_proj", Q, HIDDEN, qkv_bias),                                        \
        LINEAR(K, "self_attn.k_proj", KV, HIDDEN, qkv_bias),                                       \
        LINEAR(V, "self_attn.v_proj", KV, HIDDEN, qkv_bias),                                       \
        LINEAR(O, "self_attn.o_proj", HIDDEN, Q, o_bias),                                          \
        NORM(MLP_NORM, "post_attention_layernorm", HIDDEN),                                        \
        LINEAR(GATE, "mlp.gate_proj", INTERMEDIATE, HIDDEN, mlp_bias),                             \
        LINEAR(UP, "mlp.up_proj", INTERMEDIATE, HIDDEN, mlp_bias),                                 \
        LINEAR(DOWN, "mlp.down_proj", HIDDEN, INTERMEDIATE, mlp_bias)

static const kld_tensor_row llama_layer[] = {ATTENTION_AND_MLP(IF_ATTENTION, IF_ATTENTION, IF_MLP)};
static const kld_tensor_row mistral_layer[] = {ATTENTION_AND_MLP(NONE, NONE, NONE)};
static const kld_tensor_row qwen2_layer[] = {ATTENTION_AND_MLP(ALWAYS, NONE, NONE)};
static const kld_tensor_row qwen3_layer[] = {
    ATTENTION_AND_MLP(IF_ATTENTION, IF_ATTENTION, NONE),
    NORM(Q_NORM, "self_attn.q_norm", HEAD),
    NORM(K_NORM, "self_attn.k_norm", HEAD),
};

static const kld_sublayer standard[] = {{KLD_BLOCK_ATTENTION, KLD_SLOT_ATTN_NORM},
                                        {KLD_BLOCK_MLP, KLD_SLOT_MLP_NORM}};

static const char *const llama_names[] = {"LlamaForCausalLM", NULL};
static const char *const mistral_names[] = {"MistralForCausalLM", NULL};
static const char *const qwen2_names[] = {"Qwen2ForCausalLM", NULL};
static const char *const qwen3_names[] = {"Qwen3ForCausalLM", NULL};

#define ARCH(id, assert_rows, window_rule)                                                         \
    static const kld_arch id = {.family = #id,                                                     \
                                .architectures = id##_names,                                       \
                                .keys = id##_keys,                                                 \
                                .n_keys = COUNT_OF(id##_keys),                                     \
                                .asserts = (assert_rows),                                          \
                                .n_asserts = COUNT_OF(assert_rows),                                \
                                .model = model_rows,                                               \
                                .n_model = COUNT_OF(model_rows),                                   \
                                .layer = id##_layer,                                               \
                                .n_layer = COUNT_OF(id##_layer),                                   \
                                .sub = standard,                                                   \
                                .n_sub = COUNT_OF(standard),                                       \
                                .window = (window_rule),                                           \
                                .rope_theta = 10000}

static const kld_assert_row llama_asserts[] = {{"sliding_window", "null"},
                                               {"use_sliding_window", "false"}};

ARCH(llama, llama_asserts, KLD_WINDOW_NONE);
ARCH(mistral, no_bias, KLD_WINDOW_ALL_LAYERS);
ARCH(qwen2, qwen2_asserts, KLD_WINDOW_BY_LAYER);
ARCH(qwen3, qwen3_asserts, KLD_WINDOW_BY_LAYER);

const kld_arch *const kld_archs[] = {&llama, &mistral, &qwen2, &qwen3, NULL};
