#include "kld/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* The holder's id, or 0 when the file does not say. */
static long holder(int fd) {
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    return pid > 0 ? pid : 0;
}

kld_status kld_lock_take(kld_lock *l, const char *path, kld_err *err) {
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->fd < 0) {
        kld_status st = errno == ENOENT || errno == EACCES || errno == EISDIR || errno == ENOTDIR
                            ? KLD_E_INPUT
                            : KLD_E_IO;
        return kld_fail(err, st, "%s: cannot open: %s", path, strerror(errno));
    }
    if (flock(l->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        long pid = holder(l->fd);
        char who[40] = "";
        if (pid) snprintf(who, sizeof who, " (process %ld)", pid);
        kld_lock_drop(l);
        return kld_fail(err, KLD_E_INPUT,
                        "%s: another run%s holds it; wait for it to end, or end it", path, who);
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* Only a message needs the id: a full disk does not stop a run here. */
    (void)!(ftruncate(l->fd, 0) == 0 && pwrite(l->fd, text, (size_t)n, 0) == n);
    return KLD_OK;
}

void kld_lock_drop(kld_lock *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}
