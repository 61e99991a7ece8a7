/* kld/capture/logits.h - raw logits of one sequence as a NumPy file.  Floor 3. */
#ifndef KLD_CAPTURE_LOGITS_H
#define KLD_CAPTURE_LOGITS_H
#include "kld/base/status.h"
#include "logits/engine.h"
#include "logits/select.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_logits_options {
    const char *model;  /* directory or org/name */
    const char *ids;    /* FILE.npy, or "1,2,3" */
    const char *output; /* FILE.npy */
    kld_precision precision;
    kld_activations activations; /* as in kld_capture_options */
    kld_fused_scale fused;
    const kld_choice *where; /* borrowed; NULL = the CPU */
    uint64_t device_memory;  /* of each device; 0 = auto */
} kld_logits_options;

typedef struct kld_logits_summary {
    size_t tokens, vocab;
    kld_engine_stats engine;
} kld_logits_summary;

/* Write FP32 [T][vocab rows of the head], padding columns included, atomically.
 * KLD_E_USAGE  malformed id list.  KLD_E_INPUT  empty, or an id the embedding lacks; the
 * output is an input. */
KLD_NODISCARD kld_status kld_logits_run(const kld_logits_options *opt, kld_logits_summary *out,
                                        kld_err *err);

/* "1,2,3" -> owned array.  KLD_E_USAGE otherwise (position in the message). */
KLD_NODISCARD kld_status kld_parse_ids(const char *text, uint32_t **ids, size_t *n, kld_err *err);

KLD_EXTERN_C_END
#endif
