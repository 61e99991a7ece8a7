/* loaders/tok_nfc.h - normalization form C, as tokenizers apply it.  Floor 1, private to the
 * tokenizer. */
#ifndef KLD_LOADERS_TOK_NFC_H
#define KLD_LOADERS_TOK_NFC_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include <stddef.h>

/* Append NFC of n bytes of valid UTF-8.  Code points for which kld_uni_nfc_inert holds are
 * starters that neither decompose nor compose.  Time is linear in n, also for long runs of
 * combining marks.
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tok_nfc(const char *text, size_t n, kld_buf *out, kld_err *err);

#endif
