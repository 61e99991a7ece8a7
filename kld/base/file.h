/* kld/base/file.h - files: exact reads, whole files, and writing that is never seen
 * half done.  Floor 0.  Every message begins with the path. */
#ifndef KLD_BASE_FILE_H
#define KLD_BASE_FILE_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* A regular file open for reading. */
typedef struct kld_file {
    int fd; /* -1 when closed */
    uint64_t size;
    int64_t mtime_ns; /* last modification when it was opened, nanoseconds since 1970 */
    char *path;       /* owned */
} kld_file;

/* KLD_E_INPUT  missing, a directory, or not readable.  KLD_E_IO  any other system error. */
KLD_NODISCARD kld_status kld_file_open(kld_file *f, const char *path, kld_err *err);
void kld_file_close(kld_file *f);

/* Exactly n bytes at offset into dst.  Thread-safe (pread).
 * KLD_E_INPUT  the file ends before offset+n (it shrank, or the caller trusted a header).
 * KLD_E_IO     the system reports an error. */
KLD_NODISCARD kld_status kld_file_read(const kld_file *f, void *dst, uint64_t offset, size_t n,
                                       kld_err *err);

/* These bytes will be read soon: the system may begin to fetch them.  Returns without them. */
void kld_file_hint(const kld_file *f, uint64_t offset, uint64_t bytes);

/* Append the whole file to out.  KLD_E_INPUT if it is larger than max bytes. */
KLD_NODISCARD kld_status kld_file_slurp(const char *path, size_t max, kld_buf *out, kld_err *err);

/* Sequential writer.  Bytes go to `partial`; kld_writer_commit makes them durable and
 * renames to `path`; kld_writer_abort removes the partial.  Until commit returns, `path`
 * is untouched. */
typedef struct kld_writer {
    int fd;        /* -1 when closed */
    char *path;    /* owned: final name */
    char *partial; /* owned: path + ".partial" */
    uint64_t size; /* bytes written so far, counting those kept by resume */
} kld_writer;

/* Create or truncate path.partial.  KLD_E_INPUT when `path` is a directory, a device or a pipe, or
 * when another writer has the partial open. */
KLD_NODISCARD kld_status kld_writer_open(kld_writer *w, const char *path, kld_err *err);
/* Open an existing path.partial and cut it to `keep` bytes.  KLD_E_INPUT if it is absent
 * or shorter, or another writer has it open. */
KLD_NODISCARD kld_status kld_writer_resume(kld_writer *w, const char *path, uint64_t keep,
                                           kld_err *err);
/* KLD_E_IO with the system's text ("No space left on device"); what was written stays. */
KLD_NODISCARD kld_status kld_writer_add(kld_writer *w, const void *data, size_t n, kld_err *err);
/* The first n bytes of f; the partial gets the permissions of f.  What the file system can share
 * between two files is not copied.  KLD_E_INPUT  f ends before; KLD_E_IO; KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_writer_copy(kld_writer *w, const kld_file *f, uint64_t n,
                                         kld_err *err);
/* fdatasync without closing: what was added survives a crash. */
KLD_NODISCARD kld_status kld_writer_sync(kld_writer *w, kld_err *err);
KLD_NODISCARD kld_status kld_writer_commit(kld_writer *w, kld_err *err);
void kld_writer_abort(kld_writer *w); /* close and remove the partial */
void kld_writer_leave(kld_writer *w); /* close and keep the partial, for a later resume */

/* Whole small file at once, atomically (temporary name, sync, rename); into a device or a pipe
 * (/dev/null, /dev/stdout) as it stands. */
KLD_NODISCARD kld_status kld_file_write(const char *path, const void *data, size_t n, kld_err *err);

/* The same for what only its owner may read (mode 0600).  Without `replace` an existing file, or a
 * link of that name, is left alone: KLD_E_INPUT. */
KLD_NODISCARD kld_status kld_file_write_private(const char *path, const void *data, size_t n,
                                                bool replace, kld_err *err);
/* True when others than its owner may read or write the file. */
bool kld_file_exposed(const char *path);

/* Path helpers.  Results are owned by the caller (kld_free). */
KLD_NODISCARD kld_status kld_path_join(char **out, const char *dir, const char *name, kld_err *err);
/* Directory of a path, "." when it names none; owned. */
KLD_NODISCARD kld_status kld_path_dir(char **out, const char *path, kld_err *err);
bool kld_path_exists(const char *path);
bool kld_path_is_dir(const char *path);
bool kld_path_ends_with(const char *path, const char *tail);
/* Create one directory; fine if it exists already as a directory. */
KLD_NODISCARD kld_status kld_mkdir(const char *path, kld_err *err);
/* Make `path` a symbolic link to `target` (taken as it is written), in place of a link that is
 * there already, which is never seen missing.  KLD_E_INPUT when something else has the name. */
KLD_NODISCARD kld_status kld_link(const char *path, const char *target, kld_err *err);
/* Remove a file (fine if absent) and, for _tree, a directory of plain files (fine if absent).
 * Neither allocates, so both also clean up after a run that ran out of memory. */
KLD_NODISCARD kld_status kld_remove(const char *path, kld_err *err);
KLD_NODISCARD kld_status kld_remove_tree(const char *dir, kld_err *err);

/* Names (not paths) of the entries of a directory, sorted by byte value, without . and ..;
 * *names is an owned array of owned strings: kld_names_free. */
KLD_NODISCARD kld_status kld_list_dir(const char *dir, char ***names, size_t *n, kld_err *err);
void kld_names_free(char **names, size_t n);

KLD_EXTERN_C_END
#endif
