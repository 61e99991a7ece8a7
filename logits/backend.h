/* logits/backend.h - the operations a device offers to the engine.  Floor 2.
 * One const struct of coarse operations, never NULL.  The CPU back end (logits/cpu) is the
 * specification; others are tested against it operation by operation. */
#ifndef KLD_LOGITS_BACKEND_H
#define KLD_LOGITS_BACKEND_H
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_backend kld_backend;

/* The CPU back end: OpenBLAS + OpenMP.  Static; never NULL. */
const kld_backend *kld_backend_cpu(void);

KLD_EXTERN_C_END
#endif
