/* loaders/act_config.h - what a quantization config says of the inputs of each module's product.
 * Floor 1; used by act_declared.c alone. */
#ifndef KLD_LOADERS_ACT_CONFIG_H
#define KLD_LOADERS_ACT_CONFIG_H
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

typedef struct kld_act_said {
    /* quant.scale is 0 where the checkpoint must have an input scale, and 1 where the format has a
     * global scale that it may leave out. */
    kld_act_quant quant;
    const char *refused; /* what is said and not emulated, or NULL; lives as long as the model */
    uint32_t formats;    /* bit kld_format: weights that it is said of; 0: of any */
    bool by_tensors;     /* nothing is said: an input scale beside the weight speaks for itself */
} kld_act_said;

typedef struct kld_act_config kld_act_config;

/* Reads the config in force (kld_quant_config):
 *   compressed-tensors  input_activations of the group that targets the module
 *   modelopt            quant_algo, or that of quantized_layers
 *   fp8                 activation_scheme, weight_block_size, scale_fmt
 *   quark               input_tensors of global_quant_config, or of layer_quant_config
 *   mxfp8               inputs in blocks like the weights
 *   gptq, awq, mxfp4    weights only; of others nothing is known, and it is refused
 * *out owned.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_act_config_open(kld_act_config **out, kld_model *m, kld_err *err);
void kld_act_config_close(kld_act_config *c);

/* What is said of a module.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_act_config_of(kld_act_config *c, const char *module, kld_act_said *out,
                                           kld_err *err);

KLD_EXTERN_C_END
#endif
