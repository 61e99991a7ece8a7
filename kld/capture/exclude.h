/* kld/capture/exclude.h - drop documents that are in calibration text.  Floor 3. */
#ifndef KLD_CAPTURE_EXCLUDE_H
#define KLD_CAPTURE_EXCLUDE_H
#include "datasets/text.h"
#include "kld/base/status.h"
#include "loaders/tokenizer.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Encode the documents (kld_documents_encode) and remove those of which more than the share `above`
 * of their n-grams is in the files (kld_overlap_file); *dropped of them.  With above 0 one n-gram
 * is enough.  Documents shorter than an n-gram stay. */
KLD_NODISCARD kld_status kld_documents_exclude(kld_documents *docs, const kld_tokenizer *tokenizer,
                                               const char *const *files, size_t n, double above,
                                               size_t *dropped, kld_err *err);

KLD_EXTERN_C_END
#endif
