/* kld/base/thread.h - one background task, for reading ahead.  Floor 0. */
#ifndef KLD_BASE_THREAD_H
#define KLD_BASE_THREAD_H
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

typedef struct kld_task kld_task;

/* Run fn(arg, err) on a thread of its own.  arg is borrowed until kld_task_wait returns.
 * KLD_E_NOMEM when no thread can be made. */
KLD_NODISCARD kld_status kld_task_start(kld_task **out, kld_status (*fn)(void *arg, kld_err *err),
                                        void *arg, kld_err *err);
/* Wait for the end, free the task, set *task to NULL, and give the task's own status and
 * message.  A NULL *task is KLD_OK. */
KLD_NODISCARD kld_status kld_task_wait(kld_task **task, kld_err *err);

KLD_EXTERN_C_END
#endif
