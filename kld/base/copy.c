/* Copying within the kernel, which shares blocks where the file system can; of Linux, not POSIX. */
#define _GNU_SOURCE /* copy_file_range; NOLINT(bugprone-reserved-identifier) */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARED_STEP = 1 << 30, READ_STEP = 4 << 20 };

/* As much as the kernel takes: *done may fall short of n, and the rest is to be read and written.
 */
static kld_status share(kld_writer *w, const kld_file *f, uint64_t n, uint64_t *done,
                        kld_err *err) {
    for (*done = 0; *done < n;) {
        TRY(kld_stop_check(err));
        off_t from = (off_t)*done;
        ssize_t got = copy_file_range(f->fd, &from, w->fd, NULL,
                                      (size_t)num_min(n - *done, (uint64_t)SHARED_STEP), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
            return kld_fail(err, KLD_E_IO, "%s: cannot write: %s", w->partial, strerror(errno));
        if (got <= 0) return KLD_OK;
        *done += (uint64_t)got;
        w->size += (uint64_t)got;
    }
    return KLD_OK;
}

kld_status kld_writer_copy(kld_writer *w, const kld_file *f, uint64_t n, kld_err *err) {
    struct stat sb;
    uint64_t done;
    void *block = NULL;
    if (fstat(f->fd, &sb) != 0 || fchmod(w->fd, sb.st_mode & 07777) != 0)
        return kld_fail(err, KLD_E_IO, "%s: cannot take over the permissions of %s: %s", w->partial,
                        f->path, strerror(errno));
    TRY(share(w, f, n, &done, err));
    if (done == n) return KLD_OK;
    TRY(kld_calloc(&block, READ_STEP, 1, err));
    kld_status st = KLD_OK;
    while (done < n && st == KLD_OK) {
        size_t step = (size_t)num_min(n - done, (uint64_t)READ_STEP);
        st = kld_stop_check(err);
        if (st == KLD_OK) st = kld_file_read(f, block, done, step, err);
        if (st == KLD_OK) st = kld_writer_add(w, block, step, err);
        done += step;
    }
    kld_free(block);
    return st;
}
