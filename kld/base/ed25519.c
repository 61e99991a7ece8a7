#include "kld/base/ed25519.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

enum { MAX_PEM = 64 * 1024, MAX_DOMAIN = 64 };

struct kld_key {
    EVP_PKEY *pkey; /* owned */
    kld_public_key public;
};

static kld_status refused(kld_err *err, const char *what) {
    ERR_clear_error();
    return kld_fail(err, KLD_E_INTERNAL, "OpenSSL: %s failed", what);
}

/* Takes pkey. */
static kld_status wrap(kld_key **out, EVP_PKEY *pkey, kld_err *err) {
    kld_key *k = NULL;
    size_t n = KLD_ED25519_KEY;
    kld_status st = NEW_ARRAY(&k, 1, err);
    if (st == KLD_OK &&
        (EVP_PKEY_get_raw_public_key(pkey, k->public.b, &n) != 1 || n != sizeof k->public.b))
        st = refused(err, "reading the public half of a key");
    if (st == KLD_OK) {
        k->pkey = pkey;
        *out = k;
        return KLD_OK;
    }
    EVP_PKEY_free(pkey);
    kld_free(k);
    return st;
}

kld_status kld_key_generate(kld_key **out, kld_err *err) {
    EVP_PKEY *pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    *out = NULL;
    return pkey ? wrap(out, pkey, err) : refused(err, "making an Ed25519 key");
}

void kld_key_free(kld_key *k) {
    if (!k) return;
    EVP_PKEY_free(k->pkey);
    kld_free(k);
}

kld_public_key kld_key_public(const kld_key *k) { return k->public; }

/* ---- files ------------------------------------------------------------------------------ */

kld_status kld_key_save(const kld_key *k, const char *path, const char *public_path, bool replace,
                        kld_err *err) {
    if (!replace && kld_path_exists(public_path))
        return kld_fail(err, KLD_E_INPUT, "%s: exists already; it was left as it is", public_path);
    BIO *private = BIO_new(BIO_s_secmem()), *public = BIO_new(BIO_s_mem());
    char *text;
    kld_status st = KLD_OK;
    if (!private || !public ||
        PEM_write_bio_PKCS8PrivateKey(private, k->pkey, NULL, NULL, 0, NULL, NULL) != 1 ||
        PEM_write_bio_PUBKEY(public, k->pkey) != 1)
        st = refused(err, "writing a key");
    if (st == KLD_OK) {
        long n = BIO_get_mem_data(private, &text);
        st = kld_file_write_private(path, text, (size_t)n, replace, err);
    }
    if (st == KLD_OK) {
        long n = BIO_get_mem_data(public, &text);
        st = kld_file_write(public_path, text, (size_t)n, err);
        kld_err ignored;
        if (st != KLD_OK && !replace && kld_remove(path, &ignored) != KLD_OK)
            st = kld_where(err, st, "%s stays", path);
    }
    BIO_free(private); /* secure memory is wiped */
    BIO_free(public);
    return st;
}

/* OpenSSL would ask at the terminal. */
static int no_password(char *buf, int size, int writing, void *unused) {
    (void)buf, (void)size, (void)writing, (void)unused;
    return -1;
}

static bool holds(const kld_buf *b, const char *what) {
    return b->data && strstr((const char *)b->data, what);
}

/* The key of a PEM file, of the kind that was asked for. */
static kld_status read_pem(EVP_PKEY **out, const char *path, bool private, kld_err *err) {
    kld_buf b = {0};
    *out = NULL;
    TRY(kld_file_slurp(path, MAX_PEM, &b, err));
    const char *want = private ? "a private Ed25519 key (kld keygen makes one)"
                               : "a public Ed25519 key (NAME.pub of kld keygen)";
    bool other = holds(&b, private ? "-----BEGIN PUBLIC KEY" : "PRIVATE KEY-----");
    BIO *in = BIO_new_mem_buf(b.data, (int)b.len);
    kld_status st = in ? KLD_OK : kld_fail(err, KLD_E_NOMEM, "out of memory for a key");
    if (st == KLD_OK && holds(&b, "ENCRYPTED"))
        st = kld_fail(err, KLD_E_INPUT,
                      "%s: the key is encrypted, which is not supported; `openssl pkey -in FILE` "
                      "decrypts it",
                      path);
    else if (st == KLD_OK && other)
        st = kld_fail(err, KLD_E_INPUT, "%s: holds a %s key; %s is needed", path,
                      private ? "public" : "private", want);
    if (st == KLD_OK)
        *out = private ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL)
                       : PEM_read_bio_PUBKEY(in, NULL, no_password, NULL);
    if (st == KLD_OK && !*out)
        st = kld_fail(err, KLD_E_INPUT, "%s: %s; %s is needed", path,
                      holds(&b, "-----BEGIN ") ? "the key is damaged or of an unknown form"
                                               : "is not a PEM file",
                      want);
    if (*out && !EVP_PKEY_is_a(*out, "ED25519")) {
        st = kld_fail(err, KLD_E_INPUT, "%s: the key is for %s; %s is needed", path,
                      EVP_PKEY_get0_type_name(*out), want);
        EVP_PKEY_free(*out);
        *out = NULL;
    }
    ERR_clear_error();
    BIO_free(in);
    OPENSSL_cleanse(b.data, b.len);
    kld_buf_free(&b);
    return st;
}

kld_status kld_key_load(kld_key **out, const char *path, kld_err *err) {
    EVP_PKEY *pkey;
    *out = NULL;
    TRY(read_pem(&pkey, path, true, err));
    if (kld_file_exposed(path))
        kld_warn("%s: others can read this private key; `chmod 600` closes it", path);
    return wrap(out, pkey, err);
}

kld_status kld_public_key_load(kld_public_key *out, const char *path, kld_err *err) {
    EVP_PKEY *pkey;
    size_t n = sizeof out->b;
    TRY(read_pem(&pkey, path, false, err));
    bool ok = EVP_PKEY_get_raw_public_key(pkey, out->b, &n) == 1 && n == sizeof out->b;
    EVP_PKEY_free(pkey);
    return ok ? KLD_OK : refused(err, "reading a public key");
}

char *kld_key_id(const kld_public_key *k, char id[KLD_KEY_ID]) {
    kld_digest d = {{0}};
    kld_err ignored;
    /* SHA-256 of 32 bytes fails only without memory or without SHA-256: the id is then zeros. */
    if (kld_sha256_of(k->b, sizeof k->b, &d, &ignored) != KLD_OK) memset(&d, 0, sizeof d);
    return kld_hex(d.b, (KLD_KEY_ID - 1) / 2, id);
}

/* ---- signatures ------------------------------------------------------------------------- */

kld_status kld_sign(const kld_key *k, const void *message, size_t n, kld_signature *out,
                    kld_err *err) {
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    size_t bytes = sizeof out->b;
    bool ok = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, k->pkey) == 1 &&
              EVP_DigestSign(ctx, out->b, &bytes, message, n) == 1 && bytes == sizeof out->b;
    EVP_MD_CTX_free(ctx);
    out->key = k->public;
    return ok ? KLD_OK : refused(err, "signing");
}

kld_status kld_signature_check(const kld_signature *s, const void *message, size_t n,
                               kld_err *err) {
    char id[KLD_KEY_ID];
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, s->key.b, sizeof s->key.b);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ready = pkey && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey) == 1;
    bool ok = ready && EVP_DigestVerify(ctx, s->b, sizeof s->b, message, n) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    ERR_clear_error();
    if (!ready) return refused(err, "checking a signature");
    if (ok) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "the signature is not one of key %s over this content",
                    kld_key_id(&s->key, id));
}

/* Domain, zero byte, digest into m; the bytes of it. */
static size_t message_of(unsigned char m[MAX_DOMAIN + KLD_SHA256_BYTES], const char *domain,
                         const kld_digest *d) {
    size_t n = strnlen(domain, MAX_DOMAIN - 1);
    memcpy(m, domain, n);
    m[n++] = 0;
    memcpy(m + n, d->b, sizeof d->b);
    return n + sizeof d->b;
}

kld_status kld_sign_digest(const kld_key *k, const char *domain, const kld_digest *d,
                           kld_signature *out, kld_err *err) {
    unsigned char m[MAX_DOMAIN + KLD_SHA256_BYTES];
    return kld_sign(k, m, message_of(m, domain, d), out, err);
}

kld_status kld_signature_check_digest(const kld_signature *s, const char *domain,
                                      const kld_digest *d, kld_err *err) {
    unsigned char m[MAX_DOMAIN + KLD_SHA256_BYTES];
    return kld_signature_check(s, m, message_of(m, domain, d), err);
}
