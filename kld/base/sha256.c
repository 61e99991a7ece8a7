#include "kld/base/sha256.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <openssl/evp.h>
#include <string.h>

kld_status kld_sha256_begin(kld_sha256 *s, kld_err *err) {
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx) return kld_fail(err, KLD_E_NOMEM, "out of memory for SHA-256");
    if (EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        kld_sha256_drop(s);
        return kld_fail(err, KLD_E_INTERNAL, "OpenSSL has no SHA-256");
    }
    return KLD_OK;
}

kld_status kld_sha256_add(kld_sha256 *s, const void *data, size_t n, kld_err *err) {
    if (EVP_DigestUpdate(s->ctx, data, n) != 1)
        return kld_fail(err, KLD_E_INTERNAL, "OpenSSL: SHA-256 update failed");
    return KLD_OK;
}

kld_status kld_sha256_end(kld_sha256 *s, kld_digest *out, kld_err *err) {
    unsigned n = 0;
    int ok = EVP_DigestFinal_ex(s->ctx, out->b, &n);
    kld_sha256_drop(s);
    if (ok != 1 || n != KLD_SHA256_BYTES)
        return kld_fail(err, KLD_E_INTERNAL, "OpenSSL: SHA-256 failed");
    return KLD_OK;
}

void kld_sha256_drop(kld_sha256 *s) {
    EVP_MD_CTX_free(s->ctx);
    s->ctx = NULL;
}

kld_status kld_sha256_of(const void *data, size_t n, kld_digest *out, kld_err *err) {
    kld_sha256 s;
    TRY(kld_sha256_begin(&s, err));
    kld_status st = kld_sha256_add(&s, data, n, err);
    if (st == KLD_OK) return kld_sha256_end(&s, out, err);
    kld_sha256_drop(&s);
    return st;
}

kld_status kld_sha256_file(const char *path, kld_digest *out, kld_err *err) {
    enum { PIECE = 1 << 20 };
    kld_file f;
    kld_sha256 s = {0};
    unsigned char *piece = NULL;
    TRY(kld_file_open(&f, path, err));
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&piece, PIECE, err));
    TRY_TO(done, kld_sha256_begin(&s, err));
    for (uint64_t at = 0; at < f.size; at += PIECE) {
        size_t n = f.size - at < PIECE ? (size_t)(f.size - at) : PIECE;
        TRY_TO(done, kld_file_read(&f, piece, at, n, err));
        TRY_TO(done, kld_sha256_add(&s, piece, n, err));
    }
    TRY_TO(done, kld_sha256_end(&s, out, err));
done:
    kld_sha256_drop(&s);
    kld_free(piece);
    kld_file_close(&f);
    return st;
}

char *kld_hex(const unsigned char *b, size_t n, char *hex) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digit[b[i] >> 4];
        hex[2 * i + 1] = digit[b[i] & 15];
    }
    hex[2 * n] = '\0';
    return hex;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* 2 n digits; what follows is not looked at. */
static bool hex_digits(const char *text, unsigned char *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int hi = hex_value(text[2 * i]), lo = hi < 0 ? -1 : hex_value(text[2 * i + 1]);
        if (lo < 0) return false;
        b[i] = (unsigned char)(hi << 4 | lo);
    }
    return true;
}

bool kld_hex_parse(const char *text, unsigned char *b, size_t n) {
    return hex_digits(text, b, n) && !text[2 * n];
}

bool kld_same_digest(const kld_digest *a, const kld_digest *b) {
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

bool kld_zero_digest(const kld_digest *d) {
    static const kld_digest zero;
    return kld_same_digest(d, &zero);
}

char *kld_digest_hex(const kld_digest *d, char hex[KLD_SHA256_HEX]) {
    return kld_hex(d->b, sizeof d->b, hex);
}

kld_status kld_digest_parse(const char *text, kld_digest *out, kld_err *err) {
    if (!hex_digits(text, out->b, sizeof out->b))
        return kld_fail(err, KLD_E_INPUT, "'%.80s' is not a SHA-256 digest in lower-case hex",
                        text);
    if (text[2 * KLD_SHA256_BYTES])
        return kld_fail(err, KLD_E_INPUT, "'%.80s' is longer than a SHA-256 digest", text);
    return KLD_OK;
}
