/* Mixtures of experts with grouped-query attention.  Defaults are those of the configuration
 * classes in transformers 5, or of the releases where it has none. */
#include "loaders/arch_rows.h"

static const kld_key_row qwen3_moe_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-6),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 4, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 32768, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("use_sliding_window", USE_WINDOW, FLAG, 0, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 4096, 0),
    KEY_OR("num_experts", "num_local_experts", EXPERTS, COUNT, 128, KLD_REQUIRED),
    KEY("num_experts_per_tok", TOP_EXPERTS, COUNT, 8, KLD_REQUIRED),
    KEY("moe_intermediate_size", EXPERT_INTERMEDIATE, COUNT, 768, KLD_REQUIRED),
    KEY("decoder_sparse_step", SPARSE_STEP, COUNT, 1, KLD_REQUIRED),
    KEY("norm_topk_prob", NORMALISE, FLAG, 0, KLD_REQUIRED),
};

static const kld_key_row mixtral_keys[] = {
    COMMON_KEYS,
    EPS_KEY(1e-5),
    KEY("intermediate_size", EXPERT_INTERMEDIATE, COUNT, 14336, KLD_REQUIRED),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 0, 0),
    KEY_OR("num_local_experts", "num_experts", EXPERTS, COUNT, 8, KLD_REQUIRED),
    KEY("num_experts_per_tok", TOP_EXPERTS, COUNT, 2, KLD_REQUIRED),
    KEY(NULL, NORMALISE, FLAG, 1, 1),
};

/* Routing of DeepSeek-V3 and what followed it. */
#define ROUTED_KEYS(experts, top, width, scale)                                                    \
    {"n_routed_experts", KLD_KEY_EXPERTS,    KLD_KIND_COUNT, experts,                              \
     KLD_REQUIRED,       "num_local_experts"},                                                     \
        {"num_experts_per_tok", KLD_KEY_TOP_EXPERTS, KLD_KIND_COUNT, top, KLD_REQUIRED, NULL},     \
        {"moe_intermediate_size",                                                                  \
         KLD_KEY_EXPERT_INTERMEDIATE,                                                              \
         KLD_KIND_COUNT,                                                                           \
         width,                                                                                    \
         KLD_REQUIRED,                                                                             \
         NULL},                                                                                    \
        {"n_group", KLD_KEY_GROUPS, KLD_KIND_COUNT, 1, KLD_REQUIRED, NULL},                        \
        {"topk_group", KLD_KEY_TOP_GROUPS, KLD_KIND_COUNT, 1, KLD_REQUIRED, NULL},                 \
        {"norm_topk_prob", KLD_KEY_NORMALISE, KLD_KIND_FLAG, 1, KLD_REQUIRED, NULL}, {             \
        "routed_scaling_factor", KLD_KEY_ROUTED_SCALE, KLD_KIND_REAL, scale, 1, NULL               \
    }

static const kld_key_row glm4_moe_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    EPS_KEY(1e-5),
    ROUTED_KEYS(128, 8, 1408, 1),
    KEY("n_shared_experts", SHARED_EXPERTS, COUNT, 1, 0),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 1, KLD_REQUIRED),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 128, KLD_DERIVED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY("use_qk_norm", QK_NORM, FLAG, 0, KLD_REQUIRED),
};

static const kld_key_row minimax_m2_keys[] = {
    COMMON_KEYS,
    EPS_KEY(1e-6),
    KEY("intermediate_size", EXPERT_INTERMEDIATE, COUNT, 1536, KLD_REQUIRED),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 128, KLD_DERIVED),
    KEY("rotary_dim", ROTARY_DIM, COUNT, 0, 0),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 196608, KLD_REQUIRED),
    KEY_OR("num_local_experts", "num_experts", EXPERTS, COUNT, 256, KLD_REQUIRED),
    KEY("num_experts_per_tok", TOP_EXPERTS, COUNT, 8, KLD_REQUIRED),
    KEY(NULL, NORMALISE, FLAG, 1, 1),
};

static const kld_key_row mimo_v2_keys[] = {
    COMMON_KEYS,
    DENSE_KEY,
    KEY_OR("layernorm_epsilon", "rms_norm_eps", EPS, REAL, 1e-5, KLD_REQUIRED),
    ROUTED_KEYS(256, 8, 2048, 1),
    KEY("n_shared_experts", SHARED_EXPERTS, COUNT, 0, 0),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 4, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 192, KLD_REQUIRED),
    KEY("v_head_dim", VALUE_DIM, COUNT, 128, KLD_REQUIRED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 262144, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),
    KEY_OR("sliding_window", "sliding_window_size", WINDOW, COUNT, 128, KLD_REQUIRED),
    KEY("swa_num_attention_heads", SLIDING_HEADS, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("swa_num_key_value_heads", SLIDING_KV_HEADS, COUNT, KLD_TWICE, KLD_DERIVED),
    KEY("swa_head_dim", SLIDING_HEAD_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("swa_v_head_dim", SLIDING_VALUE_DIM, COUNT, KLD_DERIVED, KLD_DERIVED),
    KEY("add_swa_attention_sink_bias", SLIDING_SINKS, FLAG, 1, KLD_REQUIRED),
    KEY("add_full_attention_sink_bias", FULL_SINKS, FLAG, 0, KLD_REQUIRED),
    KEY("attention_value_scale", VALUE_SCALE, REAL, 0.707, 1),
    KEY(NULL, DENSE_LAYERS, COUNT, 1, 1),
};

static const kld_key_row gpt_oss_keys[] = {
    COMMON_KEYS,
    EPS_KEY(1e-5),
    KEY("intermediate_size", EXPERT_INTERMEDIATE, COUNT, 2880, KLD_REQUIRED),
    KEY("num_key_value_heads", KV_HEADS, COUNT, 8, KLD_DERIVED),
    KEY("head_dim", HEAD_DIM, COUNT, 64, KLD_REQUIRED),
    KEY("max_position_embeddings", MAX_POSITION, COUNT, 131072, KLD_REQUIRED),
    KEY("attention_bias", ATTENTION_BIAS, FLAG, 1, KLD_REQUIRED),
    KEY("sliding_window", WINDOW, COUNT, 128, KLD_REQUIRED),
    KEY_OR("num_local_experts", "num_experts", EXPERTS, COUNT, 128, KLD_REQUIRED),
    KEY_OR("num_experts_per_tok", "experts_per_token", TOP_EXPERTS, COUNT, 4, KLD_REQUIRED),
    KEY("swiglu_limit", ACTIVATION_LIMIT, REAL, 7, KLD_REQUIRED),
    KEY(NULL, FULL_SINKS, FLAG, 1, 1),
    KEY(NULL, SLIDING_SINKS, FLAG, 1, 1),
};

static const kld_assert_row qwen3_moe_asserts[] = {{"mlp_bias", "false"},
                                                   {"qkv_bias", "false"},
                                                   {"use_qk_norm", "true"},
                                                   {"shared_expert_intermediate_size", "0"}};
static const kld_assert_row glm4_moe_asserts[] = {{"mlp_bias", "false"},
                                                  {"scoring_func", "\"sigmoid\""},
                                                  {"topk_method", "\"noaux_tc\""},
                                                  {"moe_layer_freq", "1"}};
static const kld_assert_row mixtral_asserts[] = {{"attention_bias", "false"}};
static const kld_assert_row minimax_m2_asserts[] = {
    {"use_qk_norm", "true"},           {"qk_norm_type", "\"per_layer\""},
    {"scoring_func", "\"sigmoid\""},   {"use_routing_bias", "true"},
    {"shared_intermediate_size", "0"}, {"attention_bias", "false"},
    {"sliding_window", "null"}};
static const kld_assert_row mimo_v2_asserts[] = {
    {"scoring_func", "\"sigmoid\""},
    {"topk_method", "\"noaux_tc\""},
    {"attention_projection_layout", "\"split\"|\"fused_qkv\"|null"},
    {"moe_router_dtype", "\"bfloat16\"|\"float32\""},
    {"hybrid_block_size", "null"}};
static const kld_assert_row gpt_oss_asserts[] = {{"mlp_bias", "false"}};

static const kld_tensor_row qwen3_moe_layer[] = {
    ATTENTION(IF_ATTENTION, IF_ATTENTION),
    HEAD_NORMS(ALWAYS),
    MLP_NORM_ROW,
    MLP_IF(NONE, DENSE),
    ROUTER("mlp.gate", NONE),
};
static const kld_tensor_row mixtral_layer[] = {ATTENTION(NONE, NONE), MLP_NORM_ROW,
                                               ROUTER("block_sparse_moe.gate", NONE)};
static const kld_tensor_row glm4_moe_layer[] = {
    ATTENTION(IF_ATTENTION, NONE),
    HEAD_NORMS(QK_NORM),
    MLP_NORM_ROW,
    MLP_IF(NONE, DENSE),
    BARE(ROUTER_BIAS, "mlp.gate.e_score_correction_bias", EXPERTS, SPARSE),
    ROUTER("mlp.gate", NONE),
    SHARED_EXPERT("mlp.shared_experts"),
};
static const kld_tensor_row minimax_m2_layer[] = {
    ATTENTION(NONE, NONE),
    NORM(Q_NORM, "self_attn.q_norm", Q),
    NORM(K_NORM, "self_attn.k_norm", K),
    MLP_NORM_ROW,
    BARE(ROUTER_BIAS, "block_sparse_moe.e_score_correction_bias", EXPERTS, SPARSE),
    ROUTER("block_sparse_moe.gate", NONE),
};
static const kld_tensor_row mimo_v2_layer[] = {
    NORM(ATTN_NORM, "input_layernorm", HIDDEN),
    LINEAR_IF(QKV, "self_attn.qkv_proj", QKV, HIDDEN, IF_ATTENTION, FUSED_QKV),
    LINEAR_IF(Q, "self_attn.q_proj", Q, HIDDEN, IF_ATTENTION, SPLIT_QKV),
    LINEAR_IF(K, "self_attn.k_proj", K, HIDDEN, IF_ATTENTION, SPLIT_QKV),
    LINEAR_IF(V, "self_attn.v_proj", V, HIDDEN, IF_ATTENTION, SPLIT_QKV),
    LINEAR(O, "self_attn.o_proj", HIDDEN, MIXED, NONE),
    BARE(SINKS, "self_attn.attention_sink_bias", HEADS, SINKS),
    MLP_NORM_ROW,
    MLP_IF(NONE, DENSE),
    BARE(ROUTER_BIAS, "mlp.gate.e_score_correction_bias", EXPERTS, SPARSE),
    ROUTER("mlp.gate", NONE),
};
static const kld_tensor_row gpt_oss_layer[] = {
    ATTENTION(IF_ATTENTION, IF_ATTENTION),
    BARE(SINKS, "self_attn.sinks", HEADS, SINKS),
    MLP_NORM_ROW,
    ROUTER("mlp.router", ALWAYS),
};

static const kld_expert_row mlp_experts = {
    .prefix = "mlp.experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
static const kld_expert_row mixtral_experts = {
    .prefix = "block_sparse_moe.experts", .gate = "w1", .up = "w3", .down = "w2"};
static const kld_expert_row gpt_oss_experts = {.prefix = "mlp.experts",
                                               .gate = "gate_proj",
                                               .up = "up_proj",
                                               .down = "down_proj",
                                               .in_major = true,
                                               .interleaved = true,
                                               .biased = true};

static const char *const qwen3_moe_names[] = {"Qwen3MoeForCausalLM", NULL};
static const char *const mixtral_names[] = {"MixtralForCausalLM", NULL};
static const char *const glm4_moe_names[] = {"Glm4MoeForCausalLM", NULL};
static const char *const minimax_m2_names[] = {"MiniMaxM2ForCausalLM", NULL};
static const char *const mimo_v2_names[] = {"MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", NULL};
static const char *const gpt_oss_names[] = {"GptOssForCausalLM", NULL};

static const char *const qwen3_moe_lists[] = {"mlp_only_layers", NULL};
static const char *const qwen3_moe_ignored[] = {"max_window_layers",
                                                NULL}; /* nor by transformers */
const kld_arch kld_arch_qwen3_moe = {
    ARCH(qwen3_moe, qwen3_moe_asserts), .ignored = qwen3_moe_ignored,
    .lists = qwen3_moe_lists,           .experts = &mlp_experts,
    .window = KLD_WINDOW_ALL_LAYERS,    .rope_theta = 10000,
    .score = KLD_SCORE_SOFTMAX};
const kld_arch kld_arch_mixtral = {ARCH(mixtral, mixtral_asserts), .experts = &mixtral_experts,
                                   .window = KLD_WINDOW_ALL_LAYERS, .rope_theta = 1e6,
                                   .score = KLD_SCORE_SOFTMAX};

static const char *const partial_lists[] = {"partial_rotary_factor", "mlp_layer_types", NULL};
const kld_arch kld_arch_glm4_moe = {ARCH(glm4_moe, glm4_moe_asserts),
                                    .lists = partial_lists,
                                    .experts = &mlp_experts,
                                    .rope_theta = 10000,
                                    .partial_rope = true,
                                    .rope_partial = 0.5,
                                    .score = KLD_SCORE_SIGMOID,
                                    .router_eps = 1e-20};

/* attn_type_list: all of them full, checked by value would need the layer count; tensors of another
 * kind of attention have other names and have no place. */
static const char *const minimax_m2_ignored[] = {"attn_type_list",
                                                 "layernorm_full_attention_beta",
                                                 "layernorm_linear_attention_alpha",
                                                 "layernorm_linear_attention_beta",
                                                 "layernorm_mlp_alpha",
                                                 "layernorm_mlp_beta",
                                                 "layernorm_full_attention_alpha",
                                                 "block_size",
                                                 "rotary_type",
                                                 "max_model_len",
                                                 "qk_norm",
                                                 NULL};
const kld_arch kld_arch_minimax_m2 = {ARCH(minimax_m2, minimax_m2_asserts),
                                      .ignored = minimax_m2_ignored,
                                      .lists = partial_lists,
                                      .experts = &mixtral_experts,
                                      .rope_theta = 5e6,
                                      .partial_rope = true,
                                      .score = KLD_SCORE_SIGMOID};

static const char *const mimo_v2_lists[] = {"partial_rotary_factor", "mlp_layer_types",
                                            "moe_layer_freq",        "hybrid_layer_pattern",
                                            "swa_rope_theta",        NULL};
const kld_arch kld_arch_mimo_v2 = {
    ARCH(mimo_v2, mimo_v2_asserts),    .lists = mimo_v2_lists, .experts = &mlp_experts,
    .window = KLD_WINDOW_LISTED,       .rope_theta = 5e6,      .sliding_rope_theta = 1e4,
    .sliding_theta = "swa_rope_theta", .partial_rope = true,   .rope_partial = 0.334,
    .score = KLD_SCORE_SIGMOID,        .router_eps = 1e-20};

static const char *const gpt_oss_ignored[] = {"initial_context_length", NULL};
const kld_arch kld_arch_gpt_oss = {ARCH(gpt_oss, gpt_oss_asserts),
                                   .ignored = gpt_oss_ignored,
                                   .experts = &gpt_oss_experts,
                                   .window = KLD_WINDOW_ALTERNATE,
                                   .rope_theta = 150000,
                                   .rope_required = true,
                                   .activation = KLD_ACT_CLAMPED_GLU,
                                   .score = KLD_SCORE_SOFTMAX_CHOSEN};
