/* Multi-head latent attention with a mixture of experts: DeepSeek-V3 and its relatives.  Defaults
 * are those of the configuration classes in transformers 5. */
#include "loaders/arch_rows.h"

#define LATENT_KEYS(eps, position)                                                                 \
    COMMON_KEYS, DENSE_KEY, EPS_KEY(eps),                                                          \
        KEY("num_key_value_heads", KV_HEADS, COUNT, KLD_DERIVED, KLD_DERIVED),                     \
        KEY("q_lora_rank", Q_LORA, COUNT, KLD_REQUIRED, 0),                                        \
        KEY("kv_lora_rank", KV_LORA, COUNT, KLD_REQUIRED, KLD_REQUIRED),                           \
        KEY("qk_nope_head_dim", NOPE_DIM, COUNT, KLD_REQUIRED, KLD_REQUIRED),                      \
        KEY("qk_rope_head_dim", ROPE_DIM, COUNT, KLD_REQUIRED, KLD_REQUIRED),                      \
        KEY("v_head_dim", VALUE_DIM, COUNT, KLD_REQUIRED, KLD_REQUIRED),                           \
        KEY("max_position_embeddings", MAX_POSITION, COUNT, position, KLD_REQUIRED),               \
        KEY("attention_bias", ATTENTION_BIAS, FLAG, 0, KLD_REQUIRED),                              \
        KEY_OR("n_routed_experts", "num_local_experts", EXPERTS, COUNT, KLD_REQUIRED,              \
               KLD_REQUIRED),                                                                      \
        KEY("num_experts_per_tok", TOP_EXPERTS, COUNT, KLD_REQUIRED, KLD_REQUIRED),                \
        KEY("moe_intermediate_size", EXPERT_INTERMEDIATE, COUNT, KLD_REQUIRED, KLD_REQUIRED),      \
        KEY("n_shared_experts", SHARED_EXPERTS, COUNT, 1, 0),                                      \
        KEY("norm_topk_prob", NORMALISE, FLAG, 1, KLD_REQUIRED)

static const kld_key_row deepseek_v3_keys[] = {
    LATENT_KEYS(1e-6, 4096),
    KEY("n_group", GROUPS, COUNT, 8, 1),
    KEY("topk_group", TOP_GROUPS, COUNT, 4, 1),
    KEY("routed_scaling_factor", ROUTED_SCALE, REAL, 2.5, 1),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 3, KLD_REQUIRED),
};
static const kld_key_row deepseek_v32_keys[] = {
    LATENT_KEYS(1e-6, 163840),
    KEY("n_group", GROUPS, COUNT, 8, 1),
    KEY("topk_group", TOP_GROUPS, COUNT, 4, 1),
    KEY("routed_scaling_factor", ROUTED_SCALE, REAL, 2.5, 1),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 3, KLD_REQUIRED),
    KEY("index_topk", INDEX_TOP_K, COUNT, 2048, KLD_REQUIRED),
};
static const kld_key_row glm4_moe_lite_keys[] = {
    LATENT_KEYS(1e-5, 202752),
    KEY("n_group", GROUPS, COUNT, 1, 1),
    KEY("topk_group", TOP_GROUPS, COUNT, 1, 1),
    KEY("routed_scaling_factor", ROUTED_SCALE, REAL, 1.8, 1),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 1, KLD_REQUIRED),
};
static const kld_key_row glm_moe_dsa_keys[] = {
    LATENT_KEYS(1e-5, 202752),
    KEY("n_group", GROUPS, COUNT, 1, 1),
    KEY("topk_group", TOP_GROUPS, COUNT, 1, 1),
    KEY("routed_scaling_factor", ROUTED_SCALE, REAL, 2.5, 1),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 3, KLD_REQUIRED),
    KEY("index_topk", INDEX_TOP_K, COUNT, 2048, KLD_REQUIRED),
};
static const kld_key_row mistral4_keys[] = {
    LATENT_KEYS(1e-6, 1048576),
    KEY("n_group", GROUPS, COUNT, 1, 1),
    KEY("topk_group", TOP_GROUPS, COUNT, 1, 1),
    KEY("routed_scaling_factor", ROUTED_SCALE, REAL, 1, 1),
    KEY("first_k_dense_replace", DENSE_LAYERS, COUNT, 0, KLD_REQUIRED),
};
#define kimi_k25_keys deepseek_v3_keys

static const kld_assert_row latent_asserts[] = {{"scoring_func", "\"sigmoid\""},
                                                {"topk_method", "\"noaux_tc\""},
                                                {"moe_layer_freq", "1"},
                                                {"mlp_bias", "false"},
                                                {"sliding_window", "null"}};
static const kld_assert_row mistral4_asserts[] = {
    {"moe_layer_freq", "1"}, {"mlp_bias", "false"}, {"sliding_window", "null"}};

#define LATENT_ATTENTION                                                                           \
    NORM(ATTN_NORM, "input_layernorm", HIDDEN),                                                    \
        LINEAR_IF(Q, "self_attn.q_proj", Q, HIDDEN, NONE, NO_Q_LORA),                              \
        LINEAR_IF(Q_A, "self_attn.q_a_proj", Q_LORA, HIDDEN, IF_ATTENTION, Q_LORA),                \
        NORM_IF(Q_A_NORM, "self_attn.q_a_layernorm", Q_LORA, Q_LORA),                              \
        LINEAR_IF(Q, "self_attn.q_b_proj", Q, Q_LORA, NONE, Q_LORA),                               \
        LINEAR(KV_A, "self_attn.kv_a_proj_with_mqa", KV_A, HIDDEN, IF_ATTENTION),                  \
        NORM(KV_A_NORM, "self_attn.kv_a_layernorm", KV_LORA),                                      \
        LINEAR(KV_B, "self_attn.kv_b_proj", KV_B, KV_LORA, NONE),                                  \
        LINEAR(O, "self_attn.o_proj", HIDDEN, MIXED, IF_ATTENTION)

static const kld_tensor_row deepseek_v3_layer[] = {
    LATENT_ATTENTION,
    MLP_NORM_ROW,
    MLP_IF(NONE, DENSE),
    BARE(ROUTER_BIAS, "mlp.gate.e_score_correction_bias", EXPERTS, SPARSE),
    ROUTER("mlp.gate", NONE),
    SHARED_EXPERT("mlp.shared_experts"),
};
static const kld_tensor_row mistral4_layer[] = {
    LATENT_ATTENTION,
    MLP_NORM_ROW,
    MLP_IF(NONE, DENSE),
    ROUTER("mlp.gate", NONE),
    SHARED_EXPERT("mlp.shared_experts"),
};
#define deepseek_v32_layer deepseek_v3_layer
#define kimi_k25_layer deepseek_v3_layer
#define glm4_moe_lite_layer deepseek_v3_layer
#define glm_moe_dsa_layer deepseek_v3_layer

static const kld_expert_row experts = {
    .prefix = "mlp.experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};

static const char *const deepseek_v3_names[] = {"DeepseekV3ForCausalLM", NULL};
static const char *const deepseek_v32_names[] = {"DeepseekV32ForCausalLM", NULL};
static const char *const kimi_k25_names[] = {"KimiK2ForCausalLM", NULL};
static const char *const kimi_k25_wrappers[] = {"KimiK25ForConditionalGeneration",
                                                "Kimi_K25ForConditionalGeneration", NULL};
static const char *const kimi_k25_text[] = {"kimi_k2", "deepseek_v3", NULL};
static const char *const mistral_wrappers[] = {"Mistral3ForConditionalGeneration", NULL};
static const char *const mistral4_text[] = {"mistral4", NULL};
static const char *const glm4_moe_lite_names[] = {"Glm4MoeLiteForCausalLM", NULL};
static const char *const glm_moe_dsa_names[] = {"GlmMoeDsaForCausalLM", NULL};
static const char *const mistral4_names[] = {"Mistral4ForCausalLM", NULL};

/* head_dim and qk_head_dim say in several ways what the widths above say. */
static const char *const latent_ignored[] = {"head_dim", "qk_head_dim", NULL};
static const char *const kimi_k25_ignored[] = {"head_dim",
                                               "qk_head_dim",
                                               "media_placeholder_token_id",
                                               "use_unified_vision_chunk",
                                               "video_placeholder",
                                               "projection_hidden_size",
                                               "projection_layer_norm_eps",
                                               NULL};
static const char *const sparse_ignored[] = {"head_dim",
                                             "qk_head_dim",
                                             "index_head_dim",
                                             "index_n_heads",
                                             "index_topk_freq",
                                             "index_skip_topk_offset",
                                             "indexer_types",
                                             "index_topk_pattern",
                                             "indexer_rope_interleave",
                                             "index_share_for_mtp_iteration",
                                             "scale_fmt",
                                             NULL};
static const char *const latent_lists[] = {"mlp_layer_types", "rope_interleave",
                                           "partial_rotary_factor", NULL};

#define LATENT(ignore)                                                                             \
    .ignored = (ignore), .lists = latent_lists, .experts = &experts,                               \
    .attention = KLD_BLOCK_LATENT_ATTENTION, .partial_rope = true, .rope_interleaved = true,       \
    .rope_theta = 10000, .router_eps = 1e-20, .latent_eps = 1e-6

const kld_arch kld_arch_deepseek_v3 = {ARCH(deepseek_v3, latent_asserts), LATENT(latent_ignored),
                                       .score = KLD_SCORE_SIGMOID};
const kld_arch kld_arch_deepseek_v32 = {ARCH(deepseek_v32, latent_asserts), LATENT(sparse_ignored),
                                        .score = KLD_SCORE_SIGMOID,
                                        .skipped = ".self_attn.indexer."};
const kld_arch kld_arch_kimi_k25 = {ARCH(kimi_k25, latent_asserts), LATENT(kimi_k25_ignored),
                                    .wrappers = kimi_k25_wrappers,  .text_types = kimi_k25_text,
                                    .text_default = true,           .score = KLD_SCORE_SIGMOID};
const kld_arch kld_arch_glm4_moe_lite = {ARCH(glm4_moe_lite, latent_asserts),
                                         LATENT(latent_ignored), .score = KLD_SCORE_SIGMOID};
const kld_arch kld_arch_glm_moe_dsa = {ARCH(glm_moe_dsa, latent_asserts), LATENT(sparse_ignored),
                                       .score = KLD_SCORE_SIGMOID,
                                       .skipped = ".self_attn.indexer."};
const kld_arch kld_arch_mistral4 = {ARCH(mistral4, mistral4_asserts),
                                    LATENT(latent_ignored),
                                    .wrappers = mistral_wrappers,
                                    .text_types = mistral4_text,
                                    .rope_required = true,
                                    .score = KLD_SCORE_SOFTMAX,
                                    .scaled_queries = true};
