/* kld/capture/capture.h - join a model and a suite into a capture file.  Floor 3. */
#ifndef KLD_CAPTURE_CAPTURE_H
#define KLD_CAPTURE_CAPTURE_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "logits/engine.h"
#include "logits/select.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* A second measurement of a reference, in an arithmetic that is as valid as the first. */
typedef enum kld_floor {
    KLD_FLOOR_NONE,
    KLD_FLOOR_PRECISION, /* FP32 inputs of products where the reference has BF16, or the other way
                          */
    KLD_FLOOR_CHUNK      /* tokens go through products and attention in spans of half the size */
} kld_floor;

typedef struct kld_capture_options {
    const char *model;     /* directory or org/name */
    const char *suite;     /* suite file */
    const char *output;    /* capture to write; its directory must exist */
    const char *ref;       /* reference capture, or NULL when this one is the reference */
    const char *label;     /* overrides the method label; NULL = from the checkpoint */
    const char *partition; /* as kld_suite_select; NULL = all but "qualification" */
    const char *name;      /* overrides the name; NULL = last part of `model` */
    kld_precision precision;
    kld_activations activations; /* weights only, or inputs quantized as the checkpoint says */
    kld_fused_scale fused;       /* of as-declared */
    uint64_t top_k, min_k;
    double tail_mass;
    bool tail_samples_set; /* tail_samples was asked for */
    uint64_t tail_samples; /* default 16; 0 for a candidate, whose draws nobody reads */
    uint64_t seed;
    const kld_choice *where; /* borrowed; NULL = the CPU */
    uint64_t device_memory;  /* of each device; 0 = auto */
    uint64_t memory;         /* host bytes of the residual stream; 0 = auto */
    /* Routes of a model with experts: keep its own; or use those of a capture, with its weights or
     * (ids_only) with the model's own. */
    bool keep_routes;
    const char *replay; /* capture to replay, or NULL */
    bool ids_only;
    bool exact;      /* keep hidden states, so that comparisons see the whole vocabulary */
    bool keep_head;  /* and put the head beside the output, unless it is there */
    kld_floor floor; /* needs ref, a capture of the same checkpoint; decides precision */
    bool hash_full;  /* also hash every byte of the checkpoint */
    bool resume;     /* continue OUTPUT.partial */
    bool force;      /* replace an existing output */
} kld_capture_options;
kld_capture_options kld_capture_defaults(void);

/* KLD_E_USAGE when a number is out of its range. */
KLD_NODISCARD kld_status kld_capture_check(const kld_capture_options *opt, kld_err *err);

typedef struct kld_capture_summary {
    uint64_t windows, positions, bytes; /* of the finished file */
    kld_digest digest;                  /* content digest */
    kld_engine_stats engine;
} kld_capture_summary;

/* Run and write.  Refused before any weight is read: tokenizer, suite, vocabulary, partition or
 * reference that do not match; an existing output or partial without force or resume; an output
 * that is an input; another run that writes the same output.
 * What happens to the partial:
 *   kept     KLD_E_INTERRUPTED, KLD_E_IO, KLD_E_NOMEM, KLD_E_DEVICE: `resume` continues it
 *            and any error of a resumed run: what an earlier one did is not this one's to lose
 *   removed  any other error: it could never become whole
 * A floor of another checkpoint, or one that names no reference, is refused; so is an exact capture
 * with a window whose hidden states a file cannot hold.
 * Warnings and notes go to the log.  Errors of as-declared are those of kld_act_resolve. */
KLD_NODISCARD kld_status kld_capture_run(const kld_capture_options *opt, kld_capture_summary *out,
                                         kld_err *err);

KLD_EXTERN_C_END
#endif
