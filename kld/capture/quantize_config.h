/* kld/capture/quantize_config.h - the texts beside the shards of a quantized checkpoint.
 * Floor 3; private to kld/capture.  Formats: docs/checkpoints.md. */
#ifndef KLD_CAPTURE_QUANTIZE_CONFIG_H
#define KLD_CAPTURE_QUANTIZE_CONFIG_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/capture/quantize.h"
#include "loaders/model.h"

/* config.json of the source plus quantization_config; hf_quant_config.json for ModelOpt.  Its list
 * of what is not quantized has the head, the routers and the indexers of the model. */
KLD_NODISCARD kld_status kld_quantize_write_config(const char *dir, const kld_model *source,
                                                   kld_target_format format, kld_err *err);

/* model.safetensors.index.json; weight_map is borrowed. */
KLD_NODISCARD kld_status kld_quantize_write_index(const char *dir, json_t *weight_map,
                                                  uint64_t total_bytes, kld_err *err);

/* Copy the small files a checkpoint comes with: tokenizer*, special_tokens_map.json,
 * added_tokens.json, vocab.json, merges.txt, generation_config.json, chat_template*, LICENSE*,
 * *.py; not directories.  KLD_E_INPUT when one is above 64 MiB. */
KLD_NODISCARD kld_status kld_quantize_copy_rest(const char *dir, const char *source, kld_err *err);

#endif
