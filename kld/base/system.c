#include "kld/base/system.h"

#include "kld/base/buf.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* First number after `key` in a small text file; false when there is none. */
static bool file_number(const char *path, const char *key, uint64_t *out) {
    char text[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    const char *p = strstr(text, key);
    if (!p) return false;
    p += strlen(key);
    while (*p == ' ' || *p == '\t') p++;
    if (*p < '0' || *p > '9') return false;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (!num_mul_u64(v, 10, &v) || !num_add_u64(v, (uint64_t)(*p - '0'), &v)) return false;
    *out = v;
    return true;
}

uint64_t kld_free_memory(void) {
    uint64_t avail = 0, limit, used;
    if (file_number("/proc/meminfo", "MemAvailable:", &avail)) {
        avail *= 1024;
    } else {
        long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
        if (pages > 0 && size > 0) avail = (uint64_t)pages * (uint64_t)size / 2;
    }
    if (file_number("/sys/fs/cgroup/memory.max", "", &limit) &&
        file_number("/sys/fs/cgroup/memory.current", "", &used)) {
        uint64_t left = limit > used ? limit - used : 0;
        if (left < avail) avail = left;
    }
    return avail;
}

bool kld_env_default(const char *name, const char *value) {
    return !getenv(name) && setenv(name, value, 0) == 0;
}

kld_status kld_spill_open(kld_spill *s, const char *dir, uint64_t bytes, kld_err *err) {
    s->fd = -1;
    s->dir = NULL;
    if (!dir) dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    kld_buf name = {0};
    TRY(kld_buf_addf(&name, err, "%s/kld-spill-XXXXXX", dir));
    kld_status st = kld_strdup(&s->dir, dir, err);
    if (st == KLD_OK) {
        s->fd = mkstemp((char *)name.data);
        if (s->fd < 0)
            st = kld_fail(err, KLD_E_IO, "%s: cannot create a scratch file: %s", dir,
                          strerror(errno));
    }
    if (st == KLD_OK) {
        (void)unlink((const char *)name.data);
        (void)fcntl(s->fd, F_SETFD, FD_CLOEXEC);
        int e = bytes ? posix_fallocate(s->fd, 0, (off_t)bytes) : 0;
        if (e != 0)
            st = kld_fail(err, KLD_E_IO, "%s: cannot reserve %llu bytes of scratch space: %s", dir,
                          (unsigned long long)bytes, strerror(e));
    }
    kld_buf_free(&name);
    if (st != KLD_OK) kld_spill_close(s);
    return st;
}

kld_status kld_spill_read(const kld_spill *s, void *dst, uint64_t offset, size_t n, kld_err *err) {
    unsigned char *p = dst;
    for (size_t done = 0; done < n;) {
        ssize_t got =
            pread(s->fd, p + done, num_min(n - done, (size_t)1 << 30), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return kld_fail(err, KLD_E_IO, "%s: cannot read the scratch file: %s", s->dir,
                            got < 0 ? strerror(errno) : "it is too short");
        done += (size_t)got;
    }
    return KLD_OK;
}

kld_status kld_spill_write(const kld_spill *s, const void *src, uint64_t offset, size_t n,
                           kld_err *err) {
    const unsigned char *p = src;
    for (size_t done = 0; done < n;) {
        ssize_t got =
            pwrite(s->fd, p + done, num_min(n - done, (size_t)1 << 30), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return kld_fail(err, KLD_E_IO, "%s: cannot write the scratch file: %s", s->dir,
                            got < 0 ? strerror(errno) : "nothing was written");
        done += (size_t)got;
    }
    return KLD_OK;
}

void kld_spill_close(kld_spill *s) {
    if (s->dir && s->fd >= 0) close(s->fd);
    kld_free(s->dir);
    s->dir = NULL;
    s->fd = -1;
}
