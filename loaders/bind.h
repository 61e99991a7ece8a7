/* loaders/bind.h - every tensor of a checkpoint claimed once: by a slot of the model, or
 * by a skip rule.  Floor 1; used by model.c alone. */
#ifndef KLD_LOADERS_BIND_H
#define KLD_LOADERS_BIND_H
#include "loaders/arch.h"
#include "loaders/config.h"

KLD_EXTERN_C_BEGIN

/* Fill m->global, m->layer and what is skipped from m->ckpt by the rows of r->arch.
 * KLD_E_INPUT        a tensor is missing, misshapen, of a wrong dtype, or unclaimed.
 * KLD_E_UNSUPPORTED  a weight format that is not implemented. */
KLD_NODISCARD kld_status kld_model_bind(kld_model *m, const kld_config_read *r, kld_err *err);

/* Append one line to m->warnings. */
KLD_PRINTF(3, 4)
KLD_NODISCARD kld_status kld_model_warn(kld_model *m, kld_err *err, const char *fmt, ...);

KLD_EXTERN_C_END
#endif
