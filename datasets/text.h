/* datasets/text.h - documents from plain text and JSON Lines.  Floor 1; kld/base only. */
#ifndef KLD_DATASETS_TEXT_H
#define KLD_DATASETS_TEXT_H
#include "kld/base/mem.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Either text or ids; strings are never NULL. */
typedef struct kld_document {
    const char *text; /* [bytes], NUL-terminated, not checked for UTF-8; NULL when ids are given */
    size_t bytes;
    uint32_t *ids; /* [n_ids] */
    size_t n_ids;
    const char *source, *cluster, *stratum, *partition;
} kld_document;

typedef struct kld_documents {
    kld_document *doc; /* owned */
    size_t n, cap;
    kld_arena arena; /* texts and strings */
} kld_documents;
void kld_documents_free(kld_documents *d);

/* Append one file as one document; source is the path, cluster its last component.
 * KLD_E_INPUT  missing, or larger than 1 GiB. */
KLD_NODISCARD kld_status kld_text_read(kld_documents *d, const char *path, kld_err *err);

/* Append every line {"text": ...} or {"ids": [...]}, optionally with "source", "cluster",
 * "stratum", "partition" (strings).  Defaults: source the path, cluster "FILE:LINE".  Blank
 * lines are skipped, other keys ignored.
 * KLD_E_INPUT  malformed line, both or neither of text and ids (message has the line). */
KLD_NODISCARD kld_status kld_jsonl_read(kld_documents *d, const char *path, kld_err *err);

KLD_EXTERN_C_END
#endif
