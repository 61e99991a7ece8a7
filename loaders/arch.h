/* loaders/arch.h - an architecture as a table: which config keys it has, which tensors,
 * and how its layers are built.  Floor 1.  No callbacks: what a row cannot say becomes a
 * new column or block kind with both back ends. */
#ifndef KLD_LOADERS_ARCH_H
#define KLD_LOADERS_ARCH_H
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* Values read from config.json, by the role they play. */
typedef enum kld_key {
    KLD_KEY_VOCAB,
    KLD_KEY_HIDDEN,
    KLD_KEY_INTERMEDIATE, /* of dense MLPs */
    KLD_KEY_LAYERS,
    KLD_KEY_HEADS,
    KLD_KEY_KV_HEADS,
    KLD_KEY_HEAD_DIM,
    KLD_KEY_VALUE_DIM,
    KLD_KEY_MAX_POSITION,
    KLD_KEY_EPS,
    KLD_KEY_ATTENTION_BIAS, /* q, k, v and o */
    KLD_KEY_MLP_BIAS,
    KLD_KEY_QK_NORM,
    KLD_KEY_USE_WINDOW,  /* 0: no layer slides, whatever the window is */
    KLD_KEY_WINDOW,      /* 0: none */
    KLD_KEY_FULL_LAYERS, /* layers before this one do not slide */
    KLD_KEY_PATTERN,     /* every so-many-th layer is full, the others slide */
    /* sliding layers, where they have shapes of their own */
    KLD_KEY_SLIDING_HEADS,
    KLD_KEY_SLIDING_KV_HEADS,
    KLD_KEY_SLIDING_HEAD_DIM,
    KLD_KEY_SLIDING_VALUE_DIM,
    KLD_KEY_SLIDING_SINKS,
    KLD_KEY_FULL_SINKS,
    KLD_KEY_ROTARY_DIM,   /* 0: from partial_rotary_factor */
    KLD_KEY_QUERY_SCALAR, /* scores are divided by its square root */
    KLD_KEY_VALUE_SCALE,
    KLD_KEY_LOGIT_CAP,
    KLD_KEY_Q_LORA, /* 0: queries come from the hidden state */
    KLD_KEY_KV_LORA,
    KLD_KEY_NOPE_DIM,
    KLD_KEY_ROPE_DIM,
    KLD_KEY_EXPERTS, /* 0: no mixture */
    KLD_KEY_TOP_EXPERTS,
    KLD_KEY_EXPERT_INTERMEDIATE,
    KLD_KEY_SHARED_EXPERTS,
    KLD_KEY_DENSE_LAYERS, /* layers before this one are dense */
    KLD_KEY_SPARSE_STEP,  /* layer i is sparse when (i + 1) % step == 0 */
    KLD_KEY_GROUPS,
    KLD_KEY_TOP_GROUPS,
    KLD_KEY_NORMALISE,
    KLD_KEY_ROUTED_SCALE,
    KLD_KEY_ACTIVATION_LIMIT,
    KLD_KEY_INDEX_TOP_K, /* keys a sparse indexer keeps: dense up to that many tokens */
    KLD_KEY_COUNT
} kld_key;

typedef enum kld_key_kind { KLD_KIND_COUNT, KLD_KIND_REAL, KLD_KIND_FLAG } kld_key_kind;

/* Instead of a value (values are never negative). */
enum {
    KLD_REQUIRED = -1, /* absence (or null) is an error */
    KLD_DERIVED = -2,  /* kv_heads = heads; head_dim = hidden / heads; what slides as the rest */
    KLD_TWICE = -3     /* what slides: twice as many as the rest */
};

typedef struct kld_key_row {
    const char *name; /* NULL: no such key; the value is if_absent */
    kld_key key;
    kld_key_kind kind;
    double if_absent, if_null; /* what transformers' config class does */
    const char *alias;         /* another spelling, or NULL; both must agree */
} kld_key_row;

/* A key whose only accepted values are `values`: compact JSON texts separated by '|'. */
typedef struct kld_assert_row {
    const char *name, *values;
} kld_assert_row;

/* Symbolic sizes of tensors. */
typedef enum kld_dim {
    KLD_DIM_ONE,
    KLD_DIM_VOCAB,
    KLD_DIM_HIDDEN,
    KLD_DIM_INTERMEDIATE,
    KLD_DIM_Q,     /* heads * head_dim */
    KLD_DIM_K,     /* kv_heads * head_dim */
    KLD_DIM_V,     /* kv_heads * value_dim */
    KLD_DIM_QKV,   /* their sum */
    KLD_DIM_MIXED, /* heads * value_dim: what attention gives */
    KLD_DIM_HEAD,
    KLD_DIM_HEADS,
    KLD_DIM_Q_LORA,
    KLD_DIM_KV_LORA,
    KLD_DIM_KV_A, /* kv_lora + rope_dim */
    KLD_DIM_KV_B, /* heads * (nope_dim + value_dim) */
    KLD_DIM_EXPERTS,
    KLD_DIM_SHARED, /* shared_intermediate */
    KLD_DIM_COUNT
} kld_dim;

typedef enum kld_bias_rule {
    KLD_BIAS_NONE,
    KLD_BIAS_ALWAYS,
    KLD_BIAS_IF_ATTENTION, /* KLD_KEY_ATTENTION_BIAS */
    KLD_BIAS_IF_MLP        /* KLD_KEY_MLP_BIAS */
} kld_bias_rule;

/* Which layers have a tensor. */
typedef enum kld_when {
    KLD_WHEN_ALWAYS,
    KLD_WHEN_DENSE,
    KLD_WHEN_SPARSE, /* a mixture of experts */
    KLD_WHEN_SHARED, /* a mixture with a shared expert */
    KLD_WHEN_Q_LORA,
    KLD_WHEN_NO_Q_LORA,
    KLD_WHEN_QK_NORM,   /* KLD_KEY_QK_NORM */
    KLD_WHEN_SINKS,     /* KLD_KEY_FULL_SINKS, KLD_KEY_SLIDING_SINKS */
    KLD_WHEN_FUSED_QKV, /* the file has self_attn.qkv_proj */
    KLD_WHEN_SPLIT_QKV
} kld_when;

/* One module; its tensors are NAME.weight and companions, or NAME itself.  Layer rows are relative
 * to PREFIXlayers.L., model rows to PREFIX; the head is looked for beside the prefix. */
typedef struct kld_tensor_row {
    kld_slot slot;
    const char *name;
    kld_dim rows, cols;
    kld_bias_rule bias;
    bool quantizable; /* false: only dense values are accepted */
    kld_when when;
    bool bare; /* NAME is the tensor */
} kld_tensor_row;

/* Where the experts of a layer are, relative to the layer: PREFIX.E.GATE and so on, one module an
 * expert; or two tensors for all of them, PREFIX.gate_up_proj and PREFIX.down_proj. */
typedef struct kld_expert_row {
    const char *prefix, *gate, *up, *down;
    /* Of the two tensors: BF16 matrices are [in][out]; gate and up rows take turns; each expert has
     * biases, PREFIX.gate_up_proj_bias and PREFIX.down_proj_bias. */
    bool in_major, interleaved, biased;
} kld_expert_row;

/* How layer i picks its attention window. */
typedef enum kld_window_rule {
    KLD_WINDOW_NONE,       /* layer_types, if present, must all be full */
    KLD_WINDOW_ALL_LAYERS, /* every layer uses KLD_KEY_WINDOW */
    KLD_WINDOW_BY_LAYER,   /* layer_types, else layers >= KLD_KEY_FULL_LAYERS */
    KLD_WINDOW_ALTERNATE,  /* layer_types, else layers 0, 2, 4, ... */
    KLD_WINDOW_PATTERN,    /* layer_types, else all but every KLD_KEY_PATTERN-th */
    KLD_WINDOW_LISTED      /* layer_types or hybrid_layer_pattern (1 slides); one is required */
} kld_window_rule;

struct kld_arch {
    const char *family;
    const char *const *architectures; /* NULL-terminated; values of config "architectures" */
    /* NULL-terminated or NULL: multimodal classes whose text model may be of this family, and the
     * text_config.model_type that says so. */
    const char *const *wrappers, *const *text_types;
    bool text_default;       /* ... as does a text_config without model_type */
    const kld_key_row *keys; /* [n_keys] */
    size_t n_keys;
    const kld_assert_row *asserts; /* [n_asserts] beside the common ones */
    size_t n_asserts;
    const char *const
        *ignored;             /* NULL-terminated or NULL: keys without effect, beside the common */
    const char *const *lists; /* NULL-terminated or NULL: keys that code of their own reads */
    const kld_tensor_row *model; /* [n_model] */
    size_t n_model;
    const kld_tensor_row *layer; /* [n_layer] */
    size_t n_layer;
    const kld_expert_row *experts; /* NULL: no mixture */
    const char *skipped; /* part of the names of layer tensors that are not used, or NULL */
    kld_block attention;
    kld_window_rule window;
    double rope_theta;         /* when the config names none */
    double sliding_rope_theta; /* the same for layers that slide; 0: as the others */
    const char *sliding_theta; /* the key for it, or NULL */
    kld_activation activation; /* when the config names none */
    kld_score score;
    double router_eps, latent_eps;
    bool partial_rope;                      /* partial_rotary_factor may be below 1 */
    double rope_partial;                    /* it, when the config does not say; 0: 1 */
    bool rope_required;                     /* there is no default that a config could leave out */
    bool rope_interleaved;                  /* when the config does not say */
    bool scaled_queries;                    /* llama_4_scaling_beta is read */
    bool post_norms;                        /* ATTN_POST and MLP_POST */
    bool norm_plus_one, embed_scaled, tied; /* tied: when the config does not say */
};

/* All rows, for lookup and for listing what is supported. */
extern const kld_arch *const kld_archs[]; /* NULL-terminated */

/* The row of this class, NULL without one.  wrapped: the config has a text_config, and text_type is
 * its model_type or NULL. */
const kld_arch *kld_arch_find(const char *architecture, bool wrapped, const char *text_type);

/* Keys of any config that do not change the forward pass, and keys that must hold a
 * neutral value in every family. */
extern const char *const kld_config_ignored[]; /* NULL-terminated */
extern const kld_assert_row kld_config_asserts[];
extern const size_t kld_n_config_asserts;

/* Tensors that belong to the file but not to the text model: a prefix or suffix of the
 * full name. */
extern const char *const kld_skip_prefixes[]; /* NULL-terminated */
extern const char *const kld_skip_suffixes[]; /* NULL-terminated */

/* Where the text model's tensors are: BASEembed_tokens., BASEnorm., BASE PART 0. and so on, and the
 * head.  Of those whose embedding is in the file, the first that has layers and a head. */
typedef struct kld_prefix {
    const char *base, *part, *head;
} kld_prefix;
extern const kld_prefix kld_prefixes[];
extern const size_t kld_n_prefixes;

KLD_EXTERN_C_END
#endif
