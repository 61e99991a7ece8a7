/* loaders/model.h - a checkpoint bound to its architecture: what the engine runs.
 * Floor 1.  Names and shapes are resolved here once, strictly; the engine sees slots. */
#ifndef KLD_LOADERS_MODEL_H
#define KLD_LOADERS_MODEL_H
#include "loaders/checkpoint.h"
#include "loaders/quant.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_rope_scaling {
    KLD_ROPE_DEFAULT,
    KLD_ROPE_LINEAR,
    KLD_ROPE_LLAMA3,
    KLD_ROPE_YARN
} kld_rope_scaling;

typedef struct kld_rope {
    kld_rope_scaling scaling;
    double theta;
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double original_max_position;             /* llama3, yarn */
    double attention_factor; /* yarn: multiplies cos and sin; resolved, 1 elsewhere */
    bool truncate;           /* yarn: floor/ceil of the correction range */
    double partial;          /* share of a head's columns that is rotated */
    double mscale_all_dim;   /* yarn: 0 = not given */
    double llama_4_beta;     /* of position-scaled queries; 0 = none */
} kld_rope;

typedef enum kld_activation {
    KLD_ACT_SILU,
    KLD_ACT_GELU_TANH,
    KLD_ACT_CLAMPED_GLU /* gpt-oss: (clip(u, -l, l) + 1) * g' sigma(1.702 g'), g' = min(g, l) */
} kld_activation;

/* One kind of attention layer. */
typedef struct kld_attention {
    size_t heads, kv_heads;
    size_t head_dim, value_dim; /* columns of a head of q and k; of v */
    size_t window;              /* keys j with i - window < j <= i; 0 = full causal */
    kld_rope rope;
    size_t rope_first, rope_dim; /* rotated columns of a head; rope_dim is even, may be 0 */
} kld_attention;
enum { KLD_ATTN_FULL, KLD_ATTN_SLIDING, KLD_ATTN_KINDS };

enum { KLD_MAX_EXPERTS = 1024, KLD_MAX_TOP_EXPERTS = 32 };

/* How a token's experts follow from its router logits z. */
typedef enum kld_score {
    KLD_SCORE_SOFTMAX,       /* over all experts */
    KLD_SCORE_SIGMOID,       /* of each */
    KLD_SCORE_SOFTMAX_CHOSEN /* the logits choose; softmax over those that were chosen */
} kld_score;
typedef struct kld_router {
    kld_score score;
    size_t experts, top_k;
    size_t groups, top_groups; /* consecutive experts; only those in the best top_groups groups, by
                                  the sum of their two largest (score + bias), can be chosen */
    bool normalise;            /* weights are divided by (their sum + eps) */
    double eps, scale;         /* scale multiplies the weights */
} kld_router;

/* Hyper-parameters after defaults; a field a family lacks holds its neutral value. */
typedef struct kld_config {
    size_t hidden, intermediate, layers, vocab;
    size_t max_position;
    size_t dense_window; /* longer windows need a sparse selection of keys, which is not
                            implemented; SIZE_MAX without one */
    double norm_eps;
    bool norm_plus_one; /* norm weights are stored less 1 */
    double embed_scale; /* multiplies embeddings */
    double logit_cap;   /* > 0: logits become cap * tanh(logit / cap) */
    kld_activation activation;
    double activation_limit; /* of KLD_ACT_CLAMPED_GLU */
    bool tied;               /* the head is the embedding matrix */

    kld_attention attn[KLD_ATTN_KINDS];
    double attn_scale;     /* multiplies q.k */
    double value_scale;    /* multiplies what attention gives */
    bool rope_interleaved; /* pairs are (2i, 2i+1) instead of (i, i + rope_dim/2) */
    /* Queries at position p are multiplied by 1 + query_beta ln(1 + floor(p / query_length)). */
    double query_beta, query_length;
    /* Multi-head latent attention, kv_lora > 0: keys are [nope_dim | rope_dim] columns a head. */
    size_t q_lora, kv_lora, nope_dim;
    double latent_eps; /* of the norms of the latent vectors */

    kld_router router; /* experts == 0: no mixture */
    size_t expert_intermediate, shared_intermediate;
} kld_config;

/* Weights of one layer, or of the model.  An absent optional slot has rows == 0. */
typedef enum kld_slot {
    /* model */
    KLD_SLOT_EMBED,
    KLD_SLOT_FINAL_NORM,
    KLD_SLOT_HEAD,
    /* layer */
    KLD_SLOT_ATTN_NORM,
    KLD_SLOT_Q, /* from q_a when there is one */
    KLD_SLOT_K,
    KLD_SLOT_V,
    KLD_SLOT_QKV, /* q, k and v in one: see kld_layer.qkv_shards */
    KLD_SLOT_Q_A, /* latent attention: hidden -> q_lora */
    KLD_SLOT_Q_A_NORM,
    KLD_SLOT_KV_A, /* hidden -> kv_lora + rope_dim */
    KLD_SLOT_KV_A_NORM,
    KLD_SLOT_KV_B, /* kv_lora -> heads * (nope_dim + value_dim) */
    KLD_SLOT_O,
    KLD_SLOT_Q_NORM, /* [head_dim]: each head; wider: all heads together */
    KLD_SLOT_K_NORM,
    KLD_SLOT_SINKS,     /* [heads] */
    KLD_SLOT_ATTN_POST, /* norm of what attention adds */
    KLD_SLOT_MLP_NORM,
    KLD_SLOT_GATE,
    KLD_SLOT_UP,
    KLD_SLOT_DOWN,
    KLD_SLOT_MLP_POST, /* norm of what the MLP adds */
    KLD_SLOT_ROUTER,
    KLD_SLOT_ROUTER_BIAS, /* [experts]: takes part in the choice, not in the weights */
    KLD_SLOT_SHARED_GATE,
    KLD_SLOT_SHARED_UP,
    KLD_SLOT_SHARED_DOWN,
    /* an expert: kld_layer.expert */
    KLD_SLOT_EXPERT_GATE,
    KLD_SLOT_EXPERT_UP,
    KLD_SLOT_EXPERT_DOWN,
    KLD_SLOT_COUNT
} kld_slot;

/* A sublayer reads the residual stream, normalises it, runs a block and adds the result:
 * x += block(norm(x)), or x += post(block(norm(x))). */
typedef enum kld_block {
    KLD_BLOCK_ATTENTION,
    KLD_BLOCK_LATENT_ATTENTION,
    KLD_BLOCK_MLP,
    KLD_BLOCK_EXPERTS /* router, shared expert if any, routed experts; always the last */
} kld_block;
typedef struct kld_sublayer {
    kld_block block;
    kld_slot norm, post; /* post: KLD_SLOT_COUNT = none */
} kld_sublayer;
enum { KLD_MAX_SUBLAYERS = 2 };

/* gate [I, H], up [I, H] and down [H, I]; when gate is [2I, H] it is gate and up in one (the
 * first I rows of the decoded matrix are the gate) and up is absent. */
typedef struct kld_expert {
    kld_weight gate, up, down;
} kld_expert;

typedef struct kld_layer {
    kld_weight slot[KLD_SLOT_COUNT]; /* only layer slots are used */
    kld_expert *expert;              /* [config.router.experts] arena, or NULL: no mixture */
    kld_sublayer sub[KLD_MAX_SUBLAYERS];
    size_t n_sub;
    const kld_attention *attn; /* in config.attn */
} kld_layer;

/* Why a tensor of the file is not used. */
typedef enum kld_skip {
    KLD_SKIP_MTP,     /* layers past the model's own, for drafting tokens */
    KLD_SKIP_VISION,  /* towers of other inputs, and their projectors */
    KLD_SKIP_INDEXER, /* selection of keys, see dense_window */
    KLD_SKIP_OTHER,   /* KV-cache scales, rotary frequencies */
    KLD_SKIP_COUNT
} kld_skip;

typedef struct kld_arch kld_arch; /* loaders/arch.h */

typedef struct kld_model {
    kld_checkpoint ckpt;
    const kld_arch *arch;
    const char *family; /* "qwen3" */
    kld_config config;
    kld_weight global[KLD_SLOT_COUNT]; /* only model slots are used; HEAD = EMBED when tied */
    kld_layer *layer;                  /* [config.layers], arena */
    char *label;     /* owned; method label: "BF16", "NVFP4", "NVFP4 (QAD)", ... */
    char **warnings; /* [n_warnings] arena; one line each, e.g. config/tensor conflicts */
    size_t n_warnings;
    size_t n_skipped; /* tensors skipped by rule, all of */
    size_t skipped[KLD_SKIP_COUNT];
    uint64_t skipped_bytes;
    kld_arena arena;
} kld_model;

/* dir as for kld_checkpoint_open.
 * KLD_E_UNSUPPORTED  architecture, config key or value, or quantization not implemented.
 * KLD_E_INPUT        missing, unclaimed, misshapen or conflicting tensor, bad config. */
KLD_NODISCARD kld_status kld_model_open(kld_model **out, const char *dir, kld_err *err);
void kld_model_free(kld_model *m);

/* Walks over every bound weight: those of the model (a tied head is the embedding and left out),
 * then layer by layer its own and its experts'.  Begin with {0}. */
typedef struct kld_weight_at {
    const kld_weight *w;
    kld_slot slot;
    size_t layer;  /* 0: the model; else one more than the layer's number */
    size_t expert; /* of an expert's slot */
    size_t next;
} kld_weight_at;
bool kld_model_next_weight(const kld_model *m, kld_weight_at *at);

/* Layers with experts among the first n. */
size_t kld_model_expert_layers(const kld_model *m, size_t n);

/* Elements of logical weights and biases; of those that a token meets: the experts it chooses
 * instead of all. */
uint64_t kld_model_parameters(const kld_model *m);
uint64_t kld_model_active_parameters(const kld_model *m);

/* Inverse frequencies [head_dim/2] (FP32 as transformers computes them) for the RoPE of
 * the model; formulas in loaders/rope.h. */
void kld_rope_frequencies(const kld_rope *r, size_t dim, float *inv_freq);

KLD_EXTERN_C_END
#endif
