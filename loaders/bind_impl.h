/* loaders/bind_impl.h - what the parts of the binder share.  Floor 1; bind*.c alone. */
#ifndef KLD_LOADERS_BIND_IMPL_H
#define KLD_LOADERS_BIND_IMPL_H
#include "loaders/bind.h"
#include "loaders/classify.h"

enum { KLD_MAX_NAME = 1024 }; /* of a module; longer names cannot be one of ours */

typedef struct kld_binder {
    kld_model *m;
    const kld_config_read *r;
    const kld_prefix *prefix;
    bool *claimed; /* [ckpt.n_tensors] */
    size_t dim[KLD_DIM_COUNT];
    size_t n_past; /* tensors of layers past num_hidden_layers */
} kld_binder;

/* The tensor of this name, or NULL. */
const kld_tensor *kld_bind_find(const kld_binder *b, const char *name, bool *claimed);
void kld_bind_claim(kld_binder *b, const kld_tensor *t);
/* Whether a tensor's name begins with `stem`. */
bool kld_bind_has(const kld_binder *b, const char *stem);
/* Claim NAME.* as one weight.  Errors as kld_weight_classify. */
KLD_NODISCARD kld_status kld_bind_module(kld_binder *b, const char *name, const kld_expect *want,
                                         kld_weight *w, kld_err *err);
/* The experts of layer l: a module each, or stacked in a few tensors; what is there decides. */
KLD_NODISCARD kld_status kld_bind_experts(kld_binder *b, size_t l, kld_err *err);

#endif
