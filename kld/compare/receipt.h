/* kld/compare/receipt.h - a comparison as a small JSON document whose every value is under one
 * digest, and which can be signed.  Floor 3.  Format and canonical form: docs/receipts.md. */
#ifndef KLD_COMPARE_RECEIPT_H
#define KLD_COMPARE_RECEIPT_H
#include "kld/base/ed25519.h"
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

enum { KLD_RECEIPT_VERSION = 1 };

/* The receipt of a result of kld_compare_run, unsigned: {"kld_receipt", "content",
 * "content_sha256", "run", "signature": null}.  Content is a copy of what the result says about
 * identities, settings and numbers; it has no paths, no text of the suite, and nothing of the
 * machine or the hour but what the captures themselves say.  Equal results give equal content.
 * Member "gates" of the result is taken over when it is there.  *out is owned (json_decref).
 * KLD_E_INPUT  the object is not such a result (the message names the member).
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_receipt_build(const json_t *result, json_t **out, kld_err *err);

/* Put the signature of key over the content into a receipt, in place of the one that is there.
 * KLD_E_INPUT when its digest is not that of its content. */
KLD_NODISCARD kld_status kld_receipt_sign(json_t *receipt, const kld_key *key, kld_err *err);

/* What a receipt that was checked says of itself. */
typedef struct kld_receipt_facts {
    kld_digest content;
    bool has_signature;
    kld_signature signature; /* checked */
    kld_digest *capture;     /* owned [n_captures]: content of the reference, then of candidates */
    size_t n_captures;
} kld_receipt_facts;
void kld_receipt_facts_free(kld_receipt_facts *f);

/* Check a receipt in memory.  KLD_E_INPUT  a member is missing, unknown or of another type, the
 * digest is not that of the content, or the signature is not one of its key over it.
 * KLD_E_UNSUPPORTED  a later version. */
KLD_NODISCARD kld_status kld_receipt_check(const json_t *receipt, kld_receipt_facts *out,
                                           kld_err *err);

/* Read and check a file of at most 64 MiB.  Blanks between its parts may differ from what
 * kld_json_save gives, nothing else: a number written in another way is refused, so that no
 * change to the file passes because it rounds to the same value.  *out is owned (json_decref), and
 * may be NULL when the object is not wanted.  Errors as above, beginning with the path. */
KLD_NODISCARD kld_status kld_receipt_read(const char *path, json_t **out, kld_receipt_facts *facts,
                                          kld_err *err);

KLD_EXTERN_C_END
#endif
