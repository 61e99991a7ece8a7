/* Dense decoders with grouped-query attention and a gated MLP: Llama and its relatives.
 * Defaults are those of the configuration classes in transformers 5. */
#include "loaders/arch_rows.h"

static const kld_key_row llama_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 2048, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("mlp_bias", MLP_BIAS, FLAG, 0, KLD_REQUIRED),
};

static const kld_key_row mistral_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
};

/* Rope, and queries scaled by their position. */
static const kld_key_row ministral3_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-5),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 128, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 262144, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 0, 0),
};

static const kld_key_row qwen2_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 32, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 32768, KLD_REQUIRED),
    KEY("use_sliding_window", USE_WINDOW, FLAG, 0, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY("max_window_layers", FULL_LAYERS, COUNT, 28, KLD_REQUIRED),
};

static const kld_key_row qwen3_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 32, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 128, KLD_REQUIRED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 32768, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("use_sliding_window", USE_WINDOW, FLAG, 0, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY("max_window_layers", FULL_LAYERS, COUNT, 28, KLD_REQUIRED),
};

/* The cap on attention scores is in the files and not applied by the reference.  Released configs
 * leave out whatever is the default. */
static const kld_key_row gemma3_keys[] = {
    KEY("vocab_size", VOCAB, COUNT, 262208, KLD_REQUIRED),
    KEY("hidden_size", HIDDEN, COUNT, 2304, KLD_REQUIRED),
    KEY("intermediate_size", INTERMEDIATE, COUNT, 9216, KLD_REQUIRED),
    KEY("num_hidden_layers", LAYERS, COUNT, 26, KLD_REQUIRED),
    KEY("num_attention_heads", HEADS, COUNT, 8, KLD_REQUIRED),
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 4, KLD_REQUIRED),
    KEY("head_dim", HEAD_DIM, COUNT, 256, KLD_REQUIRED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("query_pre_attn_scalar", QUERY_SCALAR, COUNT, 256, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY_OR("sliding_window_pattern", "_sliding_window_pattern", PATTERN, COUNT, 6, KLD_REQUIRED),
    KEY("final_logit_softcapping", LOGIT_CAP, REAL, 0, 0),
};

/* Old Mistral and Qwen2 files repeat defaults of other families. */
static const kld_assert_row no_bias[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}};
static const kld_assert_row qwen2_asserts[] = {{"attention_bias", "true"}, {"mlp_bias", "false"}};
static const kld_assert_row qwen3_asserts[] = {{"mlp_bias", "false"}};
static const kld_assert_row llama_asserts[] = {{"sliding_window", "null"},
                                               {"use_sliding_window", "false"}};

#define DENSE(qkv_bias, o_bias, mlp_bias)                                                          \
    ATTENTION(qkv_bias, o_bias), MLP_NORM_ROW, MLP_IF(mlp_bias, ALWAYS)

static const kld_tensor_row llama_layer[] = {DENSE(IF_ATTENTION, IF_ATTENTION, IF_MLP)};
static const kld_tensor_row mistral_layer[] = {DENSE(NONE, NONE, NONE)};
static const kld_tensor_row qwen2_layer[] = {DENSE(ALWAYS, NONE, NONE)};
static const kld_tensor_row qwen3_layer[] = {
    DENSE(IF_ATTENTION, IF_ATTENTION, NONE),
    HEAD_NORMS(ALWAYS),
};
static const kld_tensor_row gemma3_layer[] = {
    ATTENTION(IF_ATTENTION, IF_ATTENTION),
    HEAD_NORMS(ALWAYS),
    NORM(ATTN_POST, "post_attention_layernorm", HIDDEN),
    NORM(MLP_NORM, "pre_feedforward_layernorm", HIDDEN),
    MLP_IF(NONE, ALWAYS),
    NORM(MLP_POST, "post_feedforward_layernorm", HIDDEN),
};
#define ministral3_layer mistral_layer

static const char *const llama_names[] = {"LlamaForCausalLM", NULL};
static const char *const mistral_names[] = {"MistralForCausalLM", NULL};
static const char *const qwen2_names[] = {"Qwen2ForCausalLM", NULL};
static const char *const qwen3_names[] = {"Qwen3ForCausalLM", NULL};
static const char *const gemma3_names[] = {"Gemma3ForCausalLM", NULL};
static const char *const ministral3_names[] = {"Ministral3ForCausalLM", NULL};
static const char *const gemma3_wrappers[] = {"Gemma3ForConditionalGeneration", NULL};
static const char *const gemma3_text[] = {"gemma3_text", NULL};
static const char *const mistral_wrappers[] = {"Mistral3ForConditionalGeneration", NULL};
static const char *const mistral_text[] = {"mistral", NULL};
static const char *const ministral3_text[] = {"ministral3", NULL};

const kld_arch kld_arch_llama = {ARCH(llama, llama_asserts), .rope_theta = 10000};
const kld_arch kld_arch_mistral = {ARCH(mistral, no_bias), .wrappers = mistral_wrappers,
                                   .text_types = mistral_text, .window = KLD_WINDOW_ALL_LAYERS,
                                   .rope_theta = 10000};
const kld_arch kld_arch_ministral3 = {ARCH(ministral3, no_bias),
                                      .wrappers = mistral_wrappers,
                                      .text_types = ministral3_text,
                                      .window = KLD_WINDOW_ALL_LAYERS,
                                      .rope_theta = 1e6,
                                      .rope_required = true,
                                      .scaled_queries = true};
const kld_arch kld_arch_qwen2 = {ARCH(qwen2, qwen2_asserts), .window = KLD_WINDOW_BY_LAYER,
                                 .rope_theta = 10000};
const kld_arch kld_arch_qwen3 = {ARCH(qwen3, qwen3_asserts), .window = KLD_WINDOW_BY_LAYER,
                                 .rope_theta = 10000};

static const char *const gemma3_ignored[] = {"attn_logit_softcapping", "mm_tokens_per_image",
                                             "boi_token_index", "eoi_token_index", NULL};
static const char *const gemma3_lists[] = {"rope_local_base_freq", "hidden_activation", NULL};

const kld_arch kld_arch_gemma3 = {ARCH(gemma3, qwen3_asserts),
                                  .wrappers = gemma3_wrappers,
                                  .text_types = gemma3_text,
                                  .text_default = true,
                                  .ignored = gemma3_ignored,
                                  .lists = gemma3_lists,
                                  .window = KLD_WINDOW_PATTERN,
                                  .rope_theta = 1e6,
                                  .sliding_rope_theta = 1e4,
                                  .sliding_theta = "rope_local_base_freq",
                                  .activation = KLD_ACT_GELU_TANH,
                                  .post_norms = true,
                                  .norm_plus_one = true,
                                  .embed_scaled = true,
                                  .tied = true};
