/* loaders/act_declared.h - how a checkpoint says that the inputs of its products are quantized.
 * Floor 1.
 *
 * A file's config and its input scales say what its serving kernels do; which kernel will run they
 * do not.  Docs: docs/activations.md.  Weights that are not quantized have inputs that are not, and
 * what is declared for weights only stays so.  An embedding has no input; a tied head, which is the
 * embedding, takes its input as it is.  kld_model_open leaves every kld_weight.act at
 * KLD_AQ_NONE: a model that is run without its activations is never refused for them. */
#ifndef KLD_LOADERS_ACT_DECLARED_H
#define KLD_LOADERS_ACT_DECLARED_H
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* Which static scale quantizes the input of matrices that engines fuse into one, or, for experts,
 * hand to one kernel. */
typedef enum kld_fused_scale {
    KLD_FUSED_OWN, /* each its own, as stored */
    KLD_FUSED_MAX  /* the largest input scale of q/k/v; of q_a/kv_a; of gate/up; of gate and up of
                      all experts of a layer, and of down of all: a scale that is missing, zero or
                      not finite is then that of the others */
} kld_fused_scale;
const char *kld_fused_scale_name(kld_fused_scale f); /* "own", "max" */

/* Set act.format and its arithmetic, and act_refused, of every weight from the config and from
 * which tensors there are; no scale is read and act.scale stays 0 or 1.  Again: no change.
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_act_declare(kld_model *m, kld_err *err);

/* The same, and read the static scales, so that the model can run as declared.  Appends to
 * m->warnings: input scales that are all 1 (nobody calibrated); scales taken from others.
 * KLD_E_UNSUPPORTED  something is declared that is not emulated (the first module, how many)
 * KLD_E_INPUT        a scale is missing, zero, negative or not finite, or rows do not divide into
 *                    blocks (the first tensor, how many, what to do)
 * KLD_E_IO, KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_act_resolve(kld_model *m, kld_fused_scale fused, kld_err *err);

/* Whether the format has a scale that the file holds. */
bool kld_act_is_static(kld_act_format f);

KLD_EXTERN_C_END
#endif
