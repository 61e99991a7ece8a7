#include "kld/base/thread.h"

#include "kld/base/mem.h"

#include <pthread.h>

struct kld_task {
    pthread_t thread;
    kld_status (*fn)(void *arg, kld_err *err);
    void *arg;
    kld_status st;
    kld_err err;
};

static void *run(void *p) {
    kld_task *t = p;
    t->st = t->fn(t->arg, &t->err);
    return NULL;
}

kld_status kld_task_start(kld_task **out, kld_status (*fn)(void *arg, kld_err *err), void *arg,
                          kld_err *err) {
    *out = NULL;
    kld_task *t;
    TRY(NEW_ARRAY(&t, 1, err));
    t->fn = fn;
    t->arg = arg;
    if (pthread_create(&t->thread, NULL, run, t) != 0) {
        kld_free(t);
        return kld_fail(err, KLD_E_NOMEM, "cannot start a thread");
    }
    *out = t;
    return KLD_OK;
}

kld_status kld_task_wait(kld_task **task, kld_err *err) {
    kld_task *t = *task;
    if (!t) return KLD_OK;
    pthread_join(t->thread, NULL);
    kld_status st = t->st;
    if (st != KLD_OK && err) *err = t->err;
    kld_free(t);
    *task = NULL;
    return st;
}
