/* Header parsers over arbitrary bytes: no crash, no leak, and what is accepted keeps the
 * promises of loaders/safetensors.h. */
#include "kld/base/json.h"
#include "loaders/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void check_tensors(const kld_tensor *t, size_t n, uint64_t file_size) {
    uint64_t at = n ? t[0].offset : file_size;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = kld_dtype_bits(t[i].dtype);
        require(t[i].rank <= KLD_MAX_RANK);
        for (unsigned d = 0; d < t[i].rank; d++) bits *= t[i].shape[d];
        require(bits % 8 == 0 && bits / 8 == t[i].bytes);
        require(t[i].offset == at); /* they tile the data */
        at += t[i].bytes;
        require(memchr(t[i].name, 0, 65537) != NULL);
    }
    require(at == file_size);
}

static void parse_header(const uint8_t *data, size_t size, uint64_t file_size) {
    kld_arena arena = {0};
    kld_tensor *t;
    size_t n;
    kld_err err = {0};
    kld_status st = kld_safetensors_parse("fuzz", data, size, file_size, 0, &arena, &t, &n, &err);
    if (st == KLD_OK) check_tensors(t, n, file_size);
    else require(st == KLD_E_INPUT && err.text[0]);
    kld_arena_free(&arena);
}

/* What was accepted is written and accepted again. */
static void parse_json(const uint8_t *data, size_t size) {
    json_t *v, *again;
    if (kld_json_parse(&v, data, size, 16, NULL) != KLD_OK) return;
    kld_buf b = {0};
    if (kld_json_dump(v, false, &b, NULL) == KLD_OK) {
        require(kld_json_parse(&again, b.data, b.len, 16, NULL) == KLD_OK);
        json_decref(again);
    }
    kld_buf_free(&b);
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse_header(data, size, size);
    /* Data that is not at hand. */
    if (size >= 8) parse_header(data, size, (uint64_t)size + (data[size - 1] & 63));
    parse_json(data, size);
    if (size > 8) parse_json(data + 8, size - 8);
    return 0;
}
