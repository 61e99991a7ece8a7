/* kld/base/ed25519.h - Ed25519 keys and signatures (RFC 8032) through OpenSSL.  Floor 0.
 * Keys are PEM files that `openssl pkey` reads: PKCS#8 for the private one, SPKI for the public
 * one. A private key never gets into a message. */
#ifndef KLD_BASE_ED25519_H
#define KLD_BASE_ED25519_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

enum { KLD_ED25519_KEY = 32, KLD_ED25519_BYTES = 64, KLD_KEY_ID = 17 /* with the NUL */ };

typedef struct kld_public_key {
    unsigned char b[KLD_ED25519_KEY];
} kld_public_key;

/* Who signed, and the signature. */
typedef struct kld_signature {
    kld_public_key key;
    unsigned char b[KLD_ED25519_BYTES];
} kld_signature;

/* A private key, with its public one. */
typedef struct kld_key kld_key;

/* A new key from the system's random numbers.  *out is owned: kld_key_free, which wipes it.
 * KLD_E_INTERNAL when OpenSSL refuses. */
KLD_NODISCARD kld_status kld_key_generate(kld_key **out, kld_err *err);
void kld_key_free(kld_key *k);
kld_public_key kld_key_public(const kld_key *k);

/* Write both files: `path` with mode 0600, and `public_path`.
 * KLD_E_INPUT  one of them exists and replace is false; then neither is written.
 * KLD_E_IO     the system refuses. */
KLD_NODISCARD kld_status kld_key_save(const kld_key *k, const char *path, const char *public_path,
                                      bool replace, kld_err *err);

/* A private key; others than its owner being able to read the file is warned of.
 * KLD_E_INPUT  missing, no PEM, damaged, encrypted, a public key, or a key of another kind. */
KLD_NODISCARD kld_status kld_key_load(kld_key **out, const char *path, kld_err *err);
/* A public key.  KLD_E_INPUT  as above; a private key is refused. */
KLD_NODISCARD kld_status kld_public_key_load(kld_public_key *out, const char *path, kld_err *err);

/* The first 16 hex digits of the SHA-256 of the 32 bytes of the key, into id; returns id. */
char *kld_key_id(const kld_public_key *k, char id[KLD_KEY_ID]);

/* Sign a message; check a signature.  The same key and message give the same signature.
 * KLD_E_INPUT  (check) it is not a signature of that key over that message. */
KLD_NODISCARD kld_status kld_sign(const kld_key *k, const void *message, size_t n,
                                  kld_signature *out, kld_err *err);
KLD_NODISCARD kld_status kld_signature_check(const kld_signature *s, const void *message, size_t n,
                                             kld_err *err);

/* The same over what a digest stands for: the message is the text of `domain`, a zero byte and the
 * 32 bytes of the digest, so that a signature in one domain says nothing in another.  A domain is
 * at most 63 bytes. */
KLD_NODISCARD kld_status kld_sign_digest(const kld_key *k, const char *domain, const kld_digest *d,
                                         kld_signature *out, kld_err *err);
KLD_NODISCARD kld_status kld_signature_check_digest(const kld_signature *s, const char *domain,
                                                    const kld_digest *d, kld_err *err);

KLD_EXTERN_C_END
#endif
