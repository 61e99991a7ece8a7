/* Receipts from outside: as a file, and with the digest made to fit the content, so that what lies
 * behind it is reached.  What passes as a file passes in memory and stays as it is. */
#include "kld/base/file.h"
#include "kld/compare/receipt.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void as_file(const uint8_t *data, size_t size) {
    char path[] = "/tmp/kld-fuzz-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return;
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    json_t *r;
    kld_receipt_facts f;
    kld_err err;
    if (written && kld_receipt_read(path, &r, &f, &err) == KLD_OK) {
        kld_receipt_facts_free(&f);
        if (kld_receipt_check(r, &f, &err) != KLD_OK) abort();
        kld_receipt_facts_free(&f);
        if (kld_json_save(r, path, &err) == KLD_OK) {
            if (kld_receipt_read(path, NULL, &f, &err) != KLD_OK) abort();
            kld_receipt_facts_free(&f);
        }
        json_decref(r);
    }
    unlink(path);
}

static void resealed(const uint8_t *data, size_t size) {
    json_t *r;
    kld_err err;
    kld_buf text = {0};
    kld_digest d;
    char hex[KLD_SHA256_HEX];
    kld_receipt_facts f;
    if (kld_json_parse(&r, size ? (const void *)data : "", size, 64, &err) != KLD_OK) return;
    const json_t *content = json_object_get(r, "content");
    if (content && kld_json_canonical(content, &text, &err) == KLD_OK &&
        kld_sha256_of(text.data, text.len, &d, &err) == KLD_OK &&
        json_object_set_new(r, "content_sha256", json_string(kld_digest_hex(&d, hex))) == 0 &&
        kld_receipt_check(r, &f, &err) == KLD_OK)
        kld_receipt_facts_free(&f);
    kld_buf_free(&text);
    json_decref(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    as_file(data, size);
    resealed(data, size);
    return 0;
}
