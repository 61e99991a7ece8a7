/* datasets/text.h - documents from plain text and JSON Lines.  Floor 1; kld/base only. */
#ifndef KLD_DATASETS_TEXT_H
#define KLD_DATASETS_TEXT_H
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Either text or ids; strings are never NULL. */
typedef struct kld_document {
    const char *text; /* [bytes], NUL-terminated, not checked for UTF-8; NULL when ids are given */
    size_t bytes;
    size_t prefix; /* of them, at the front: a context that is not scored */
    uint32_t *ids; /* [n_ids] */
    size_t n_ids;
    size_t score_from; /* first scored position of the ids: t scores id t+1.  0 = all */
    const char *source, *cluster, *stratum, *partition;
    size_t origin; /* kld_documents.origin when it was read */
} kld_document;

typedef struct kld_documents {
    kld_document *doc; /* owned */
    size_t n, cap;
    kld_arena arena; /* texts and strings */
    /* What documents that name none get; NULL = the defaults below.  Borrowed. */
    const char *source, *cluster, *stratum, *partition;
    size_t origin;
} kld_documents;
void kld_documents_free(kld_documents *d);

/* Append one file as one document; source is the path, cluster its last component.
 * KLD_E_INPUT  missing, or larger than 1 GiB. */
KLD_NODISCARD kld_status kld_text_read(kld_documents *d, const char *path, kld_err *err);

/* Append every line {"text": ...} or {"ids": [...]}, optionally with "source", "cluster",
 * "stratum", "partition" (strings), "prefix" (a string in front of text) or "score_from" (a number,
 * beside ids).  Defaults: source the path, cluster "FILE:LINE".  Blank lines are skipped, other
 * keys ignored.
 * KLD_E_INPUT  malformed line, both or neither of text and ids, a chat that was not rendered
 *              ("messages"); message has the line.  A file larger than 1 GiB. */
KLD_NODISCARD kld_status kld_jsonl_read(kld_documents *d, const char *path, kld_err *err);

/* The same of a file of any size, a batch at a time. */
typedef struct kld_jsonl {
    kld_file file;
    const char *path; /* borrowed */
    uint64_t at;      /* bytes of the file that were taken */
    size_t line;      /* lines of it */
} kld_jsonl;
KLD_NODISCARD kld_status kld_jsonl_open(kld_jsonl *r, const char *path, kld_err *err);
/* Append the documents of the next lines, at least one of about `bytes` of them; none at the end.
 * Errors as above; a line above 1 GiB. */
KLD_NODISCARD kld_status kld_jsonl_next(kld_jsonl *r, size_t bytes, kld_documents *d, kld_err *err);
void kld_jsonl_close(kld_jsonl *r);

KLD_EXTERN_C_END
#endif
