#include "kld/base/thread.h"

#include "kld/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

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

struct pool {
    kld_status (*fn)(void *arg, size_t thread, size_t job, kld_err *err);
    void *arg;
    size_t n;
    atomic_size_t next, threads;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards the rest */
    size_t worst;         /* lowest job that failed */
    kld_err err;
};

static void *work(void *p) {
    struct pool *q = p;
    size_t thread = atomic_fetch_add(&q->threads, 1);
    while (!atomic_load(&q->failed)) {
        size_t job = atomic_fetch_add(&q->next, 1);
        if (job >= q->n) break;
        kld_err err = {0};
        kld_status st = q->fn(q->arg, thread, job, &err);
        if (st == KLD_OK) continue;
        pthread_mutex_lock(&q->lock);
        if (job < q->worst) {
            q->worst = job;
            q->err = err;
            q->err.status = st;
        }
        pthread_mutex_unlock(&q->lock);
        atomic_store(&q->failed, true);
    }
    return NULL;
}

enum { MAX_THREADS = 64 };

kld_status kld_parallel(size_t threads, size_t n,
                        kld_status (*fn)(void *arg, size_t thread, size_t job, kld_err *err),
                        void *arg, kld_err *err) {
    struct pool q = {.fn = fn, .arg = arg, .n = n, .worst = SIZE_MAX};
    pthread_t others[MAX_THREADS];
    size_t started = 0;
    pthread_mutex_init(&q.lock, NULL);
    if (threads > n) threads = n;
    while (started + 1 < threads && started < MAX_THREADS &&
           pthread_create(&others[started], NULL, work, &q) == 0)
        started++;
    work(&q);
    for (size_t i = 0; i < started; i++) pthread_join(others[i], NULL);
    pthread_mutex_destroy(&q.lock);
    if (q.worst == SIZE_MAX) return KLD_OK;
    if (err) *err = q.err;
    return q.err.status;
}

size_t kld_processors(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}
