/* tests/unit/keykit.h - keys of the test vectors in RFC 8032, 7.1: anyone has them. */
#ifndef KLD_TESTS_KEYKIT_H
#define KLD_TESTS_KEYKIT_H
#include "kld/base/ed25519.h"

typedef struct rfc8032 {
    const char *der;                       /* PKCS#8, base64 */
    const char *key, *message, *signature; /* hex */
} rfc8032;

enum { RFC8032_TESTS = 4 };
extern const rfc8032 RFC8032[RFC8032_TESTS]; /* "TEST 1" to "TEST 3", and "TEST SHA(abc)" */

/* A PEM file of mode 0600; kind "PRIVATE KEY", ... */
void key_file(const char *path, const char *kind, const char *base64);

/* Key k of the table, read from a file in dir; kld_key_free. */
kld_key *key_of(const char *dir, size_t k);

/* Bytes of a hex text, at most 64 of them; how many. */
size_t from_hex(const char *hex, unsigned char out[64]);

#endif
