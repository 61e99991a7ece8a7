/* kld/base/sha256.h - SHA-256 through OpenSSL.  Floor 0. */
#ifndef KLD_BASE_SHA256_H
#define KLD_BASE_SHA256_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum { KLD_SHA256_BYTES = 32, KLD_SHA256_HEX = 65 /* with the NUL */ };

typedef struct kld_digest {
    unsigned char b[KLD_SHA256_BYTES];
} kld_digest;

/* Incremental state; begin, then any number of adds, then end or drop. */
typedef struct kld_sha256 {
    void *ctx; /* owned; NULL when idle */
} kld_sha256;

/* KLD_E_NOMEM or KLD_E_INTERNAL when OpenSSL refuses. */
KLD_NODISCARD kld_status kld_sha256_begin(kld_sha256 *s, kld_err *err);
KLD_NODISCARD kld_status kld_sha256_add(kld_sha256 *s, const void *data, size_t n, kld_err *err);
KLD_NODISCARD kld_status kld_sha256_end(kld_sha256 *s, kld_digest *out, kld_err *err);
void kld_sha256_drop(kld_sha256 *s);

KLD_NODISCARD kld_status kld_sha256_of(const void *data, size_t n, kld_digest *out, kld_err *err);
/* Of a whole file, read in pieces. */
KLD_NODISCARD kld_status kld_sha256_file(const char *path, kld_digest *out, kld_err *err);

/* Lower-case hex of n bytes into hex[2 n + 1]; returns hex.  And back: false unless text is exactly
 * 2 n lower-case hex digits. */
char *kld_hex(const unsigned char *b, size_t n, char *hex);
bool kld_hex_parse(const char *text, unsigned char *b, size_t n);

bool kld_same_digest(const kld_digest *a, const kld_digest *b);
bool kld_zero_digest(const kld_digest *d); /* none: zeros stand for it */

/* Lower-case hex into hex[KLD_SHA256_HEX]; returns hex. */
char *kld_digest_hex(const kld_digest *d, char hex[KLD_SHA256_HEX]);
/* KLD_E_INPUT unless text is exactly 64 lower-case hex digits. */
KLD_NODISCARD kld_status kld_digest_parse(const char *text, kld_digest *out, kld_err *err);

KLD_EXTERN_C_END
#endif
