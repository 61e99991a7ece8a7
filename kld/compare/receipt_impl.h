/* kld/compare/receipt_impl.h - what writing and checking receipts share.  Floor 3; private to
 * receipt*.c. */
#ifndef KLD_COMPARE_RECEIPT_IMPL_H
#define KLD_COMPARE_RECEIPT_IMPL_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"

#define RECEIPT_DOMAIN "kld receipt signature 1"
#define RECEIPT_ALGORITHM "ed25519"

/* SHA-256 of the canonical text of the content. */
KLD_NODISCARD kld_status receipt_digest(const json_t *content, kld_digest *out, kld_err *err);

#endif
