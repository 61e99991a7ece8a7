/* kld/compare/heads.h - where the heads of exact captures are.  Floor 3.
 * A head is known by its digest, so it does not matter where it is found; every place is checked.
 */
#ifndef KLD_COMPARE_HEADS_H
#define KLD_COMPARE_HEADS_H
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include "loaders/model.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_heads {
    const char *const *given; /* [n_given] borrowed: --checkpoint, directories or kept heads */
    size_t n_given;
    struct kld_head_entry {
        kld_digest digest;
        kld_model *model; /* owned */
    } * entry;            /* owned [n]: what was opened so far */
    size_t n;
} kld_heads;

/* The head of a capture that keeps hidden states, opened once for each digest; *out is borrowed.
 * Looked for, in this order: head-<12 hex>.safetensors beside this capture and beside `other`; each
 * of `given`; the directory that the header names; the Hugging Face cache, by the capture's name.
 * With activations as declared, the model has been resolved.
 * KLD_E_INPUT  it is nowhere: the message has the digest, what was looked at and why not, and what
 *              to do; or the capture says another hidden size or logit cap than its head has.
 * KLD_E_IO, KLD_E_NOMEM; errors of kld_act_resolve. */
KLD_NODISCARD kld_status kld_heads_find(kld_heads *h, const kld_capture *c,
                                        const kld_capture *other, const kld_model **out,
                                        kld_err *err);
void kld_heads_free(kld_heads *h);

KLD_EXTERN_C_END
#endif
