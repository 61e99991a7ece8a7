/* loaders/quant_config.h - what the quantization config says of each module, checked
 * against what the file holds.  Floor 1; used by model.c and act_*.c.
 * The tensors decide how bytes are decoded; the config only gives expectations, because
 * released ones are wrong often enough. */
#ifndef KLD_LOADERS_QUANT_CONFIG_H
#define KLD_LOADERS_QUANT_CONFIG_H
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* The config in force: quantization_config of config.json, of its text_config, or the old
 * compression_config; else `quantization` of hf_quant_config.json; else NULL. */
const json_t *kld_quant_config(const kld_checkpoint *c);

/* The name by which configs know a weight's module: its tensors are NAME.weight, of stacked experts
 * NAME or NAME_blocks. */
void kld_quant_module(const kld_weight *w, kld_slot slot, char *out, size_t n);

/* Append to m->warnings, each once:
 *  - modules of one class (self_attn.q_proj, ...) whose format is not the config's
 *  - entries of its lists that name no module of the file
 *  - config.json and hf_quant_config.json that disagree, or a config where all is dense
 * KLD_E_INPUT  the config is not of the shape its quant_method has. */
KLD_NODISCARD kld_status kld_quant_config_check(kld_model *m, kld_err *err);

KLD_EXTERN_C_END
#endif
