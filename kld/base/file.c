#include "kld/base/file.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static kld_status sys_fail(kld_err *err, const char *path, const char *what) {
    int e = errno;
    kld_status st = e == ENOENT || e == ENOTDIR || e == EACCES || e == EISDIR || e == ELOOP
                        ? KLD_E_INPUT
                        : KLD_E_IO;
    return kld_fail(err, st, "%s: %s: %s", path, what, strerror(e));
}

kld_status kld_file_open(kld_file *f, const char *path, kld_err *err) {
    memset(f, 0, sizeof *f);
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return sys_fail(err, path, "cannot open");
    struct stat sb;
    kld_status st = KLD_OK;
    if (fstat(f->fd, &sb) != 0) st = sys_fail(err, path, "cannot stat");
    else if (!S_ISREG(sb.st_mode)) st = kld_fail(err, KLD_E_INPUT, "%s: not a regular file", path);
    if (st == KLD_OK) st = kld_strdup(&f->path, path, err);
    if (st != KLD_OK) {
        kld_file_close(f);
        return st;
    }
    f->size = (uint64_t)sb.st_size;
    f->mtime_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
    return KLD_OK;
}

void kld_file_close(kld_file *f) {
    if (f->path || f->fd > 0) {
        if (f->fd >= 0) close(f->fd);
    }
    kld_free(f->path);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

kld_status kld_file_read(const kld_file *f, void *dst, uint64_t offset, size_t n, kld_err *err) {
    unsigned char *p = dst;
    for (size_t done = 0; done < n;) {
        size_t want = num_min(n - done, (size_t)1 << 30);
        ssize_t got = pread(f->fd, p + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return kld_fail(err, KLD_E_IO, "%s: read error at byte %llu: %s", f->path,
                            (unsigned long long)(offset + done), strerror(errno));
        if (got == 0)
            return kld_fail(err, KLD_E_INPUT,
                            "%s: the file ends at byte %llu, but %zu bytes at %llu were expected",
                            f->path, (unsigned long long)(offset + done), n,
                            (unsigned long long)offset);
        done += (size_t)got;
    }
    return KLD_OK;
}

void kld_file_hint(const kld_file *f, uint64_t offset, uint64_t bytes) {
    (void)posix_fadvise(f->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

kld_status kld_file_slurp(const char *path, size_t max, kld_buf *out, kld_err *err) {
    kld_file f;
    TRY(kld_file_open(&f, path, err));
    kld_status st = KLD_OK;
    if (f.size > max)
        st = kld_fail(err, KLD_E_INPUT, "%s: %llu bytes; at most %zu are accepted here", path,
                      (unsigned long long)f.size, max);
    if (st == KLD_OK) st = kld_where(err, kld_buf_reserve(out, (size_t)f.size, err), "%s", path);
    if (st == KLD_OK) st = kld_file_read(&f, out->data + out->len, 0, (size_t)f.size, err);
    if (st == KLD_OK) {
        out->len += (size_t)f.size;
        out->data[out->len] = 0;
    }
    kld_file_close(&f);
    return st;
}

/* A device, pipe or socket, or a name of the system for an open file (/dev/stdout): what a rename
 * would replace rather than write to. */
static bool is_stream(const char *path) {
    struct stat sb;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode)) return true;
    bool system = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    return system && lstat(path, &sb) == 0 && S_ISLNK(sb.st_mode);
}

static kld_status writer_names(kld_writer *w, const char *path, kld_err *err) {
    memset(w, 0, sizeof *w);
    w->fd = -1;
    if (!*path) {
        (void)kld_fail(err, KLD_E_USAGE, "the output path is empty");
        return KLD_E_USAGE;
    }
    if (kld_path_is_dir(path)) {
        (void)kld_fail(err, KLD_E_INPUT, "%s: is a directory; a file name is needed", path);
        return KLD_E_INPUT;
    }
    if (is_stream(path)) {
        (void)kld_fail(err, KLD_E_INPUT, "%s: is not a regular file; a file name is needed", path);
        return KLD_E_INPUT;
    }
    kld_buf b = {0};
    TRY(kld_strdup(&w->path, path, err));
    kld_status st = kld_buf_addf(&b, err, "%s.partial", path);
    w->partial = (char *)b.data;
    return st;
}

static void writer_close(kld_writer *w) {
    if (w->fd >= 0) close(w->fd);
    kld_free(w->path);
    kld_free(w->partial);
    memset(w, 0, sizeof *w);
    w->fd = -1;
}

/* Two runs that write one partial would mix their bytes.  After the lock the name is looked up
 * again: the run that held it may have finished and renamed the file.  A file system without
 * locks is not refused. */
static kld_status lock_partial(const kld_writer *w, kld_err *err) {
    struct stat mine, named;
    bool taken = flock(w->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && fstat(w->fd, &mine) == 0 && stat(w->partial, &named) == 0 &&
        mine.st_dev == named.st_dev && mine.st_ino == named.st_ino)
        return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s: another run is writing it; wait for it to end",
                    w->partial);
}

kld_status kld_writer_open(kld_writer *w, const char *path, kld_err *err) {
    kld_status st = writer_names(w, path, err);
    if (st == KLD_OK) {
        w->fd = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (w->fd < 0) st = sys_fail(err, w->partial, "cannot create");
        else st = lock_partial(w, err);
        if (st == KLD_OK && ftruncate(w->fd, 0) != 0)
            st = sys_fail(err, w->partial, "cannot empty");
    }
    if (st != KLD_OK) writer_close(w);
    return st;
}

/* Cut the open partial to what is kept of it. */
static kld_status cut_partial(const kld_writer *w, uint64_t keep, kld_err *err) {
    struct stat sb;
    if (fstat(w->fd, &sb) != 0) return sys_fail(err, w->partial, "cannot stat");
    if ((uint64_t)sb.st_size < keep)
        return kld_fail(err, KLD_E_INPUT, "%s: holds %lld bytes; %llu are needed to resume",
                        w->partial, (long long)sb.st_size, (unsigned long long)keep);
    if (ftruncate(w->fd, (off_t)keep) != 0 || lseek(w->fd, 0, SEEK_END) < 0)
        return sys_fail(err, w->partial, "cannot cut to the part that is whole");
    return KLD_OK;
}

kld_status kld_writer_resume(kld_writer *w, const char *path, uint64_t keep, kld_err *err) {
    kld_status st = writer_names(w, path, err);
    if (st == KLD_OK) {
        w->fd = open(w->partial, O_RDWR | O_CLOEXEC);
        if (w->fd < 0) st = sys_fail(err, w->partial, "cannot open");
    }
    if (st == KLD_OK) st = lock_partial(w, err);
    if (st == KLD_OK) st = cut_partial(w, keep, err);
    if (st == KLD_OK) w->size = keep;
    else writer_close(w);
    return st;
}

static kld_status write_all(int fd, const char *path, const void *data, size_t n, kld_err *err) {
    const unsigned char *p = data;
    for (size_t done = 0; done < n;) {
        ssize_t got = write(fd, p + done, num_min(n - done, (size_t)1 << 30));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return kld_fail(err, KLD_E_IO, "%s: cannot write: %s", path, strerror(errno));
        done += (size_t)got;
    }
    return KLD_OK;
}

kld_status kld_writer_add(kld_writer *w, const void *data, size_t n, kld_err *err) {
    TRY(write_all(w->fd, w->partial, data, n, err));
    w->size += n;
    return KLD_OK;
}

kld_status kld_writer_sync(kld_writer *w, kld_err *err) {
    if (fdatasync(w->fd) != 0 && errno != EINVAL && errno != EROFS)
        return kld_fail(err, KLD_E_IO, "%s: cannot flush to disk: %s", w->partial, strerror(errno));
    return KLD_OK;
}

/* The rename itself must survive a crash, so the directory is synced too.  Not every
 * file system lets a directory be synced; that is not an error. */
static void sync_parent(const char *path) {
    char dir[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + (slash == path) : 1;
    if (n >= sizeof dir) return;
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

kld_status kld_writer_commit(kld_writer *w, kld_err *err) {
    kld_status st = kld_writer_sync(w, err);
    if (st == KLD_OK && rename(w->partial, w->path) != 0)
        st = kld_fail(err, KLD_E_IO, "%s: cannot rename to %s: %s", w->partial, w->path,
                      strerror(errno));
    if (st != KLD_OK) return st;
    sync_parent(w->path);
    writer_close(w);
    return KLD_OK;
}

void kld_writer_abort(kld_writer *w) {
    if (w->partial) (void)unlink(w->partial);
    writer_close(w);
}

void kld_writer_leave(kld_writer *w) { writer_close(w); }

static kld_status stream_write(const char *path, const void *data, size_t n, kld_err *err) {
    struct stat sb;
    if (stat(path, &sb) == 0 && S_ISREG(sb.st_mode))
        return kld_fail(err, KLD_E_INPUT, "%s: stands for an open file; give the file's own name",
                        path);
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return sys_fail(err, path, "cannot open");
    kld_status st = write_all(fd, path, data, n, err);
    close(fd);
    return st;
}

kld_status kld_file_write(const char *path, const void *data, size_t n, kld_err *err) {
    kld_writer w;
    if (is_stream(path)) return stream_write(path, data, n, err);
    TRY(kld_writer_open(&w, path, err));
    kld_status st = kld_writer_add(&w, data, n, err);
    if (st == KLD_OK) st = kld_writer_commit(&w, err);
    if (st != KLD_OK) kld_writer_abort(&w);
    return st;
}

kld_status kld_file_write_private(const char *path, const void *data, size_t n, bool replace,
                                  kld_err *err) {
    kld_buf partial = {0};
    TRY(kld_buf_addf(&partial, err, "%s%s", path, replace ? ".partial" : ""));
    const char *name = (char *)partial.data;
    if (replace) (void)unlink(name);
    kld_status st = KLD_OK;
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        st = errno == EEXIST
                 ? kld_fail(err, KLD_E_INPUT, "%s: exists already; it was left as it is", path)
                 : sys_fail(err, name, "cannot create");
    if (st == KLD_OK) {
        st = write_all(fd, name, data, n, err);
        if (st == KLD_OK && fsync(fd) != 0) st = sys_fail(err, name, "cannot flush to disk");
        close(fd);
        if (st == KLD_OK && replace && rename(name, path) != 0)
            st = sys_fail(err, path, "cannot replace");
        if (st == KLD_OK) sync_parent(path);
        else (void)unlink(name);
    }
    kld_buf_free(&partial);
    return st;
}

bool kld_file_exposed(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && (sb.st_mode & (S_IRWXG | S_IRWXO)) != 0;
}

kld_status kld_path_join(char **out, const char *dir, const char *name, kld_err *err) {
    kld_buf b = {0};
    size_t n = strlen(dir);
    *out = NULL;
    kld_status st = kld_buf_addf(&b, err, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    if (st == KLD_OK) *out = (char *)b.data;
    return st;
}

kld_status kld_path_dir(char **out, const char *path, kld_err *err) {
    const char *slash = strrchr(path, '/');
    if (!slash) return kld_strdup(out, ".", err);
    return kld_strndup(out, path, slash == path ? 1 : (size_t)(slash - path), err);
}

bool kld_path_exists(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0;
}

bool kld_path_is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

bool kld_path_ends_with(const char *path, const char *tail) {
    size_t n = strlen(path), m = strlen(tail);
    return n >= m && strcmp(path + n - m, tail) == 0;
}

kld_status kld_mkdir(const char *path, kld_err *err) {
    if (mkdir(path, 0777) == 0) return KLD_OK;
    if (errno == EEXIST && kld_path_is_dir(path)) return KLD_OK;
    return sys_fail(err, path, "cannot create the directory");
}

kld_status kld_link(const char *path, const char *target, kld_err *err) {
    struct stat sb;
    if (lstat(path, &sb) == 0 && !S_ISLNK(sb.st_mode))
        return kld_fail(err, KLD_E_INPUT, "%s: is not a link; move it away", path);
    kld_buf b = {0};
    TRY(kld_buf_addf(&b, err, "%s.partial", path));
    const char *partial = (const char *)b.data;
    kld_status st = KLD_OK;
    if (unlink(partial) != 0 && errno != ENOENT) st = sys_fail(err, partial, "cannot remove");
    else if (symlink(target, partial) != 0) st = sys_fail(err, partial, "cannot link");
    else if (rename(partial, path) != 0) st = sys_fail(err, path, "cannot rename to it");
    kld_buf_free(&b);
    return st;
}

kld_status kld_remove(const char *path, kld_err *err) {
    if (unlink(path) == 0 || errno == ENOENT) return KLD_OK;
    return sys_fail(err, path, "cannot remove");
}

/* One pass over the directory; *n is how many files it removed. */
static kld_status remove_files(DIR *d, const char *dir, size_t *n, kld_err *err) {
    *n = 0;
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (unlinkat(dirfd(d), e->d_name, 0) == 0) ++*n;
        else if (errno != ENOENT)
            return kld_where(err, sys_fail(err, e->d_name, "cannot remove"), "%s", dir);
    }
    return KLD_OK;
}

/* Allocates nothing itself: it also cleans up after a run that ran out of memory. */
kld_status kld_remove_tree(const char *dir, kld_err *err) {
    if (!kld_path_is_dir(dir)) return KLD_OK;
    DIR *d = opendir(dir);
    if (!d) return sys_fail(err, dir, "cannot list");
    /* A directory may show only some of its entries while they are being removed. */
    size_t n = 1;
    kld_status st = KLD_OK;
    while (st == KLD_OK && n) st = remove_files(d, dir, &n, err);
    closedir(d);
    if (st == KLD_OK && rmdir(dir) != 0) st = sys_fail(err, dir, "cannot remove the directory");
    return st;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

kld_status kld_list_dir(const char *dir, char ***names, size_t *n, kld_err *err) {
    *names = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return sys_fail(err, dir, "cannot list");
    kld_status st = KLD_OK;
    size_t cap = 0;
    for (struct dirent *e; st == KLD_OK && (e = readdir(d)) != NULL;) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (*n == cap) {
            cap = cap ? cap * 2 : 16;
            st = kld_realloc((void **)names, cap, sizeof **names, err);
        }
        if (st == KLD_OK) st = kld_strdup(&(*names)[*n], e->d_name, err);
        if (st == KLD_OK) (*n)++;
    }
    closedir(d);
    if (st != KLD_OK) {
        kld_names_free(*names, *n);
        *names = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*names, *n, sizeof **names, by_bytes);
    }
    return st;
}

void kld_names_free(char **names, size_t n) {
    for (size_t i = 0; i < n; i++) kld_free(names[i]);
    kld_free(names);
}
