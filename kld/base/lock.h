/* kld/base/lock.h - one process at a time.  Floor 0. */
#ifndef KLD_BASE_LOCK_H
#define KLD_BASE_LOCK_H
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

typedef struct kld_lock {
    int fd; /* -1 when not held */
} kld_lock;

/* Hold `path` (created if absent; it stays) until kld_lock_drop or the end of the process, however
 * it ends.  The file holds the process id of the last holder.  A file system without locks is not
 * refused.
 * KLD_E_INPUT  another process holds it; the message has its id when it can be read; or the file
 *              cannot be opened.  KLD_E_IO  any other system error. */
KLD_NODISCARD kld_status kld_lock_take(kld_lock *l, const char *path, kld_err *err);
void kld_lock_drop(kld_lock *l); /* one that is not held is fine */

KLD_EXTERN_C_END
#endif
