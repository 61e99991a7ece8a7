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
} kld_rope;

typedef enum kld_activation { KLD_ACT_SILU, KLD_ACT_GELU_TANH } kld_activation;

/* Hyper-parameters after defaults; a field a family lacks holds its neutral value. */
typedef struct kld_config {
    size_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
    size_t max_position;
    double norm_eps;
    kld_rope rope;
    kld_activation activation;
    bool tied;         /* the head is the embedding matrix */
    double attn_scale; /* multiplies q.k */
} kld_config;

/* Weights of one layer, or of the model.  An absent optional slot has rows == 0. */
typedef enum kld_slot {
    /* model */
    KLD_SLOT_EMBED,
    KLD_SLOT_FINAL_NORM,
    KLD_SLOT_HEAD,
    /* layer */
    KLD_SLOT_ATTN_NORM,
    KLD_SLOT_Q,
    KLD_SLOT_K,
    KLD_SLOT_V,
    KLD_SLOT_O,
    KLD_SLOT_Q_NORM,
    KLD_SLOT_K_NORM,
    KLD_SLOT_MLP_NORM,
    KLD_SLOT_GATE,
    KLD_SLOT_UP,
    KLD_SLOT_DOWN,
    KLD_SLOT_COUNT
} kld_slot;

/* A sublayer reads the residual stream, normalises it, runs a block and adds the result:
 * x += block(norm(x)). */
typedef enum kld_block { KLD_BLOCK_ATTENTION, KLD_BLOCK_MLP } kld_block;
typedef struct kld_sublayer {
    kld_block block;
    kld_slot norm;
} kld_sublayer;

typedef struct kld_layer {
    kld_weight slot[KLD_SLOT_COUNT]; /* only layer slots are used */
    const kld_sublayer *sub;         /* [n_sub] static */
    size_t n_sub;
    size_t window; /* sliding attention: keys j with i - window < j <= i;
                      0 = full causal */
} kld_layer;

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
    size_t n_skipped; /* tensors skipped by rule: MTP layers, vision towers, ... */
    kld_arena arena;
} kld_model;

/* dir as for kld_checkpoint_open.
 * KLD_E_UNSUPPORTED  architecture, config key or value, or quantization not implemented.
 * KLD_E_INPUT        missing, unclaimed, misshapen or conflicting tensor, bad config. */
KLD_NODISCARD kld_status kld_model_open(kld_model **out, const char *dir, kld_err *err);
void kld_model_free(kld_model *m);

/* Parameters (elements of logical weights) and stored bytes. */
uint64_t kld_model_parameters(const kld_model *m);

/* Inverse frequencies [head_dim/2] (FP32 as transformers computes them) for the RoPE of
 * the model; formulas in loaders/rope.h. */
void kld_rope_frequencies(const kld_rope *r, size_t dim, float *inv_freq);

KLD_EXTERN_C_END
#endif
