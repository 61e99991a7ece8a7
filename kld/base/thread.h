/* kld/base/thread.h - a background task, and jobs shared out to threads, for reading ahead.
 * Floor 0. */
#ifndef KLD_BASE_THREAD_H
#define KLD_BASE_THREAD_H
#include "kld/base/status.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_task kld_task;

/* Run fn(arg, err) on a thread of its own.  arg is borrowed until kld_task_wait returns.
 * KLD_E_NOMEM when no thread can be made. */
KLD_NODISCARD kld_status kld_task_start(kld_task **out, kld_status (*fn)(void *arg, kld_err *err),
                                        void *arg, kld_err *err);
/* Wait for the end, free the task, set *task to NULL, and give the task's own status and
 * message.  A NULL *task is KLD_OK. */
KLD_NODISCARD kld_status kld_task_wait(kld_task **task, kld_err *err);

/* Run fn(arg, thread, job, err) for job 0 .. n-1, taken in order by `threads` threads (one of them
 * the caller's); returns when all are done.  After a failure no further job is begun, and the
 * failure of the lowest job is returned.  Fewer threads are used when no more can be made. */
KLD_NODISCARD kld_status kld_parallel(size_t threads, size_t n,
                                      kld_status (*fn)(void *arg, size_t thread, size_t job,
                                                       kld_err *err),
                                      void *arg, kld_err *err);

/* Processors that this process may use, >= 1. */
size_t kld_processors(void);

KLD_EXTERN_C_END
#endif
