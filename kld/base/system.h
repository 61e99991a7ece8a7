/* kld/base/system.h - what the machine has, and scratch space on its disk.  Floor 0. */
#ifndef KLD_BASE_SYSTEM_H
#define KLD_BASE_SYSTEM_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Bytes of memory that can be taken without swapping (MemAvailable, or the free pages
 * when the system does not tell), capped by the limit of the control group, if any. */
uint64_t kld_free_memory(void);

/* Set an environment variable unless it is set already.  For libraries whose only knob it
 * is; call it while the process has one thread.  False when it was set or cannot be. */
bool kld_env_default(const char *name, const char *value);

/* A file without a name that vanishes with the process: room for what memory cannot hold. */
typedef struct kld_spill {
    int fd;    /* -1 when closed */
    char *dir; /* owned; for messages */
} kld_spill;

/* dir NULL means $TMPDIR, else /tmp.  The space is reserved now, so that a full disk is
 * reported before the work and not in the middle of it.
 * KLD_E_IO  the directory cannot be written, or has no room for `bytes`. */
KLD_NODISCARD kld_status kld_spill_open(kld_spill *s, const char *dir, uint64_t bytes,
                                        kld_err *err);
/* Exactly n bytes at offset.  KLD_E_IO on any failure.  Thread-safe. */
KLD_NODISCARD kld_status kld_spill_read(const kld_spill *s, void *dst, uint64_t offset, size_t n,
                                        kld_err *err);
KLD_NODISCARD kld_status kld_spill_write(const kld_spill *s, const void *src, uint64_t offset,
                                         size_t n, kld_err *err);
void kld_spill_close(kld_spill *s); /* a zeroed or closed one is fine */

KLD_EXTERN_C_END
#endif
