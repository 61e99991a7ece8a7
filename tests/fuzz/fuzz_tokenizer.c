/* A tokenizer.json up to the first NUL byte, then text.  What parses must encode valid text to
 * ids it has, the same ones each time, and decode them. */
#include "kld/base/mem.h"
#include "loaders/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok) {
    if (!ok) abort();
}

static void use(const kld_tokenizer *t, const char *text, size_t n) {
    kld_ids ids = {0}, again = {0};
    kld_buf out = {.max = 1 << 26};
    kld_err err;
    uint32_t bos;
    if (kld_tokenizer_bos(t, &bos)) require(bos < kld_tokenizer_size(t));
    if (kld_tokenizer_encode(t, text, n, &ids, &err) == KLD_OK) {
        for (size_t i = 0; i < ids.n; i++) require(ids.v[i] < kld_tokenizer_size(t));
        require(kld_tokenizer_encode(t, text, n, &again, &err) == KLD_OK);
        require(again.n == ids.n && (!ids.n || !memcmp(again.v, ids.v, ids.n * sizeof *ids.v)));
        kld_status st = kld_tokenizer_decode(t, ids.v, ids.n, true, &out, &err);
        require(st == KLD_OK || st == KLD_E_UNSUPPORTED || st == KLD_E_NOMEM);
    } else {
        require(ids.n == 0);
    }
    kld_ids_free(&ids);
    kld_ids_free(&again);
    kld_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    kld_tokenizer *t;
    kld_err err;
    /* Bounds the work of one input, not what a tokenizer may be. */
    if (size > 1 << 16) return 0;
    kld_status st = kld_tokenizer_parse(&t, "fuzz", size ? (const char *)data : "", n, &err);
    require((st == KLD_OK) == (t != NULL));
    if (!t) return 0;
    if (nul) use(t, (const char *)nul + 1, size - n - 1);
    kld_tokenizer_free(t);
    return 0;
}
