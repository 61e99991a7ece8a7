/* logits/select.h - which back end and which of its devices a run uses.  Floor 2. */
#ifndef KLD_LOGITS_SELECT_H
#define KLD_LOGITS_SELECT_H
#include "kld/base/status.h"
#include "logits/engine.h"

KLD_EXTERN_C_BEGIN

typedef struct kld_choice {
    const kld_backend *backend; /* never NULL after success */
    int device[KLD_MAX_LANES];  /* a device may be named twice */
    size_t n;
} kld_choice;

/* text: "auto" (CUDA when there is a card it can use, else the CPU), "cpu", "cuda", "cuda:1",
 * "cuda:0,1".  The CUDA back end is loaded here and nowhere else: kld-cuda.so beside the program,
 * or in ../lib/kld.
 * KLD_E_USAGE        anything else, or a device given more than KLD_MAX_LANES times
 * KLD_E_UNSUPPORTED  this build has no CUDA back end, or it belongs to another build
 * KLD_E_DEVICE       no driver, driver too old, no such card, a library that it needs is missing */
KLD_NODISCARD kld_status kld_choose(const char *text, kld_choice *out, kld_err *err);

KLD_EXTERN_C_END
#endif
