/* kld/capture/quantize.h - round-to-nearest FP4 of a dense checkpoint.  Floor 3.
 * The baseline that any calibrated or trained quantization has to beat. */
#ifndef KLD_CAPTURE_QUANTIZE_H
#define KLD_CAPTURE_QUANTIZE_H
#include "kld/base/status.h"
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_target_format {
    KLD_TARGET_NVFP4_MODELOPT, /* weight, weight_scale, weight_scale_2; W4A16_NVFP4 */
    KLD_TARGET_NVFP4_CT,       /* weight_packed, weight_scale, weight_global_scale */
    KLD_TARGET_MXFP4_CT        /* weight_packed, weight_scale (E8M0) */
} kld_target_format;

typedef struct kld_quantize_options {
    const char *model;  /* directory or org/name, dense BF16, F16 or F32 */
    const char *output; /* directory; must not exist, or be empty */
    kld_target_format format;
} kld_quantize_options;

typedef struct kld_quantize_summary {
    uint64_t weights, parameters; /* quantized */
    uint64_t bytes_in, bytes_out; /* of all tensors */
} kld_quantize_summary;

/* Quantizes the projections of attention (latent attention's too), of MLPs and of experts, routed
 * and shared, of every decoder layer; embeddings, head, routers, norms and biases stay as they are,
 * and so do tensors the engine does not use.  The NVFP4 global is shared over q/k/v, q_a/kv_a, and
 * gate/up of an MLP or of one expert.  Experts stacked in one tensor become a module each.
 * No activation is calibrated, so none is declared quantized.  config.json gains
 * `quantization_config` (and ModelOpt's layout hf_quant_config.json); tokenizer and other small
 * files are copied; shards keep their names.  One weight is in memory at a time.
 *   On any error nothing is left of the output.
 * KLD_E_UNSUPPORTED  the checkpoint is quantized already, or has experts stacked in a form that
 *                    its family does not have with a module each (gpt-oss)
 * KLD_E_INPUT        a weight's columns are no multiple of the block, or a weight is not
 *                    finite; the output exists and is not empty */
KLD_NODISCARD kld_status kld_quantize_run(const kld_quantize_options *opt,
                                          kld_quantize_summary *out, kld_err *err);

KLD_EXTERN_C_END
#endif
