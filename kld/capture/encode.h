/* kld/capture/encode.h - texts of documents -> ids.  Floor 3. */
#ifndef KLD_CAPTURE_ENCODE_H
#define KLD_CAPTURE_ENCODE_H
#include "datasets/text.h"
#include "kld/base/status.h"
#include "loaders/tokenizer.h"

KLD_EXTERN_C_BEGIN

/* Give ids to every document that has none (in the arena of docs; its text stays).  A prefix is
 * encoded together with what follows it and its ids are found again: score_from becomes that of
 * the first id behind it.  All processors work; the result does not depend on how many.
 * KLD_E_INPUT  text that is not UTF-8, a token that lies across the end of a prefix, ids the
 *              tokenizer lacks: the message names the first such document. */
KLD_NODISCARD kld_status kld_documents_encode(kld_documents *docs, const kld_tokenizer *tokenizer,
                                              kld_err *err);

/* Index of the first id that is scored where it has a context: 0 = all. */
size_t kld_document_first(const kld_document *d);

KLD_EXTERN_C_END
#endif
