/* loaders/arch_rows.h - how the tables of the families are written: names for rows that many of
 * them share.  Floor 1; included by the arch_*.c files alone. */
#ifndef KLD_LOADERS_ARCH_ROWS_H
#define KLD_LOADERS_ARCH_ROWS_H
#include "loaders/arch.h"

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

#define KEY(name, key, kind, absent, null)                                                         \
    { name, KLD_KEY_##key, KLD_KIND_##kind, absent, null, NULL }
#define KEY_OR(name, alias, key, kind, absent, null)                                               \
    { name, KLD_KEY_##key, KLD_KIND_##kind, absent, null, alias }

/* The keys that all of them share. */
#define COMMON_KEYS                                                                                \
    KEY("vocab_size", VOCAB, COUNT, KLD_REQUIRED, KLD_REQUIRED),                                   \
        KEY("hidden_size", HIDDEN, COUNT, KLD_REQUIRED, KLD_REQUIRED),                             \
        KEY("num_hidden_layers", LAYERS, COUNT, KLD_REQUIRED, KLD_REQUIRED),                       \
        KEY("num_attention_heads", HEADS, COUNT, KLD_REQUIRED, KLD_REQUIRED)
#define DENSE_KEY KEY("intermediate_size", INTERMEDIATE, COUNT, KLD_REQUIRED, KLD_REQUIRED)
#define EPS_KEY(eps) KEY("rms_norm_eps", EPS, REAL, eps, KLD_REQUIRED)

#define NORM_IF(slot, name, dim, when)                                                             \
    {                                                                                              \
        KLD_SLOT_##slot, name, KLD_DIM_##dim, KLD_DIM_ONE, KLD_BIAS_NONE, false, KLD_WHEN_##when,  \
            false                                                                                  \
    }
#define NORM(slot, name, dim) NORM_IF(slot, name, dim, ALWAYS)
/* A tensor without a suffix. */
#define BARE(slot, name, dim, when)                                                                \
    {                                                                                              \
        KLD_SLOT_##slot, name, KLD_DIM_##dim, KLD_DIM_ONE, KLD_BIAS_NONE, false, KLD_WHEN_##when,  \
            true                                                                                   \
    }
#define LINEAR_IF(slot, name, rows, cols, bias, when)                                              \
    {                                                                                              \
        KLD_SLOT_##slot, name, KLD_DIM_##rows, KLD_DIM_##cols, KLD_BIAS_##bias, true,              \
            KLD_WHEN_##when, false                                                                 \
    }
#define LINEAR(slot, name, rows, cols, bias) LINEAR_IF(slot, name, rows, cols, bias, ALWAYS)
/* Its product is taken in FP32, so its weights are never quantized. */
#define ROUTER(name, bias)                                                                         \
    {                                                                                              \
        KLD_SLOT_ROUTER, name, KLD_DIM_EXPERTS, KLD_DIM_HIDDEN, KLD_BIAS_##bias, false,            \
            KLD_WHEN_SPARSE, false                                                                 \
    }

/* [Q, H], [K, H], [V, H], [H, Q] */
#define ATTENTION(qkv_bias, o_bias)                                                                \
    NORM(ATTN_NORM, "input_layernorm", HIDDEN),                                                    \
        LINEAR(Q, "self_attn.q_proj", Q, HIDDEN, qkv_bias),                                        \
        LINEAR(K, "self_attn.k_proj", K, HIDDEN, qkv_bias),                                        \
        LINEAR(V, "self_attn.v_proj", V, HIDDEN, qkv_bias),                                        \
        LINEAR(O, "self_attn.o_proj", HIDDEN, MIXED, o_bias)
/* [I, H], [I, H], [H, I] */
#define MLP_IF(mlp_bias, when)                                                                     \
    LINEAR_IF(GATE, "mlp.gate_proj", INTERMEDIATE, HIDDEN, mlp_bias, when),                        \
        LINEAR_IF(UP, "mlp.up_proj", INTERMEDIATE, HIDDEN, mlp_bias, when),                        \
        LINEAR_IF(DOWN, "mlp.down_proj", HIDDEN, INTERMEDIATE, mlp_bias, when)
#define MLP_NORM_ROW NORM(MLP_NORM, "post_attention_layernorm", HIDDEN)
#define SHARED_EXPERT(prefix)                                                                      \
    LINEAR_IF(SHARED_GATE, prefix ".gate_proj", SHARED, HIDDEN, NONE, SHARED),                     \
        LINEAR_IF(SHARED_UP, prefix ".up_proj", SHARED, HIDDEN, NONE, SHARED),                     \
        LINEAR_IF(SHARED_DOWN, prefix ".down_proj", HIDDEN, SHARED, NONE, SHARED)
#define HEAD_NORMS(when)                                                                           \
    NORM_IF(Q_NORM, "self_attn.q_norm", HEAD, when), NORM_IF(K_NORM, "self_attn.k_norm", HEAD, when)

/* Embedding, final norm, head. */
extern const kld_tensor_row kld_model_rows[3];

/* What every row needs. */
#define ARCH(id, assert_rows)                                                                      \
    .family = #id, .architectures = id##_names, .keys = id##_keys, .n_keys = COUNT_OF(id##_keys),  \
    .asserts = (assert_rows), .n_asserts = COUNT_OF(assert_rows), .model = kld_model_rows,         \
    .n_model = COUNT_OF(kld_model_rows), .layer = id##_layer, .n_layer = COUNT_OF(id##_layer)

/* The rows themselves, for the list in arch.c. */
extern const kld_arch kld_arch_llama, kld_arch_mistral, kld_arch_qwen2, kld_arch_qwen3,
    kld_arch_gemma3, kld_arch_ministral3;
extern const kld_arch kld_arch_qwen3_moe, kld_arch_mixtral, kld_arch_glm4_moe, kld_arch_minimax_m2,
    kld_arch_mimo_v2, kld_arch_gpt_oss;
extern const kld_arch kld_arch_deepseek_v3, kld_arch_deepseek_v32, kld_arch_kimi_k25,
    kld_arch_glm4_moe_lite, kld_arch_glm_moe_dsa, kld_arch_mistral4;

#endif
