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
    KLD_KEY_INTERMEDIATE,
    KLD_KEY_LAYERS,
    KLD_KEY_HEADS,
    KLD_KEY_KV_HEADS,
    KLD_KEY_HEAD_DIM,
    KLD_KEY_MAX_POSITION,
    KLD_KEY_EPS,
    KLD_KEY_ATTENTION_BIAS, /* q, k, v and o */
    KLD_KEY_MLP_BIAS,
    KLD_KEY_USE_WINDOW,  /* 0: no layer slides, whatever the window is */
    KLD_KEY_WINDOW,      /* 0: none */
    KLD_KEY_FULL_LAYERS, /* layers before this one do not slide */
    KLD_KEY_COUNT
} kld_key;

typedef enum kld_key_kind { KLD_KIND_COUNT, KLD_KIND_REAL, KLD_KIND_FLAG } kld_key_kind;

/* Instead of a value (values are never negative). */
enum {
    KLD_REQUIRED = -1, /* absence (or null) is an error */
    KLD_DERIVED = -2   /* kv_heads = heads; head_dim = hidden / heads */
};

typedef struct kld_key_row {
    const char *name; /* NULL: no such key; the value is if_absent */
    kld_key key;
    kld_key_kind kind;
    double if_absent, if_null; /* what transformers' config class does */
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
    KLD_DIM_Q,  /* heads * head_dim */
    KLD_DIM_KV, /* kv_heads * head_dim */
    KLD_DIM_HEAD,
    KLD_DIM_COUNT
} kld_dim;

typedef enum kld_bias_rule {
    KLD_BIAS_NONE,
    KLD_BIAS_ALWAYS,
    KLD_BIAS_IF_ATTENTION, /* KLD_KEY_ATTENTION_BIAS */
    KLD_BIAS_IF_MLP        /* KLD_KEY_MLP_BIAS */
} kld_bias_rule;

/* One module; its tensors are NAME.weight and companions.  Layer rows are relative to
 * PREFIXlayers.L., model rows to PREFIX; the head is looked for beside the prefix. */
typedef struct kld_tensor_row {
    kld_slot slot;
    const char *name;
    kld_dim rows, cols;
    kld_bias_rule bias;
    bool quantizable; /* false: only dense values are accepted */
} kld_tensor_row;

/* How layer i picks its attention window. */
typedef enum kld_window_rule {
    KLD_WINDOW_NONE,       /* layer_types, if present, must all be full */
    KLD_WINDOW_ALL_LAYERS, /* every layer uses KLD_KEY_WINDOW */
    KLD_WINDOW_BY_LAYER    /* layer_types, else layers >= KLD_KEY_FULL_LAYERS */
} kld_window_rule;

struct kld_arch {
    const char *family;
    const char *const *architectures; /* NULL-terminated; values of config "architectures" */
    const kld_key_row *keys;          /* [n_keys] */
    size_t n_keys;
    const kld_assert_row *asserts; /* [n_asserts] beside the common ones */
    size_t n_asserts;
    const kld_tensor_row *model; /* [n_model] */
    size_t n_model;
    const kld_tensor_row *layer; /* [n_layer] */
    size_t n_layer;
    const kld_sublayer *sub; /* [n_sub], every layer */
    size_t n_sub;
    kld_window_rule window;
    double rope_theta; /* when the config names none */
};

/* All rows, for lookup and for listing what is supported. */
extern const kld_arch *const kld_archs[]; /* NULL-terminated */

/* NULL when no row accepts the string. */
const kld_arch *kld_arch_find(const char *architecture);

/* Keys of any config that do not change the forward pass, and keys that must hold a
 * neutral value in every family. */
extern const char *const kld_config_ignored[]; /* NULL-terminated */
extern const kld_assert_row kld_config_asserts[];
extern const size_t kld_n_config_asserts;

/* Tensors that belong to the file but not to the text model: a prefix or suffix of the
 * full name. */
extern const char *const kld_skip_prefixes[]; /* NULL-terminated */
extern const char *const kld_skip_suffixes[]; /* NULL-terminated */

/* Where the text model's tensors are: PREFIXembed_tokens., and the head beside it. */
typedef struct kld_prefix {
    const char *layers, *head;
} kld_prefix;
extern const kld_prefix kld_prefixes[];
extern const size_t kld_n_prefixes;

KLD_EXTERN_C_END
#endif
