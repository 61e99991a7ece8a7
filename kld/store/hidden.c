#include "kld/store/hidden.h"

#include <string.h>

size_t hidden_words(const kld_hidden_info *h) {
    return (size_t)(h->bytes == 2 ? (h->cols + 1) / 2 : h->cols);
}

/* Byte b of word w of a row: values lie in memory as they do in words, little-endian. */
static unsigned char byte_of(const unsigned char *row, size_t row_bytes, size_t at) {
    return at < row_bytes ? row[at] : 0;
}

kld_status hidden_planes(const kld_hidden_info *h, const kld_records *r, kld_buf *out, columns *c,
                         kld_err *err) {
    if (h->cols == 0) return KLD_OK;
    if (r->hidden_cols != h->cols || r->hidden_bytes != h->bytes)
        return kld_fail(err, KLD_E_INTERNAL, "hidden states are not those of the header");
    size_t words = hidden_words(h), n = r->n * words, bytes = (size_t)(h->cols * h->bytes);
    TRY(kld_buf_reserve(out, 4 * n, err));
    unsigned char *p = out->data + out->len;
    for (size_t i = 0; i < r->n; i++) {
        const unsigned char *row = (const unsigned char *)r->hidden + i * bytes;
        for (size_t b = 0; b < 4; b++) {
            unsigned char *plane = p + b * n + i * words;
            for (size_t w = 0; w + 1 < words; w++) plane[w] = row[4 * w + b];
            plane[words - 1] = byte_of(row, bytes, 4 * (words - 1) + b);
        }
    }
    c->hidden = p;
    c->hidden_n = n;
    out->len += 4 * n;
    return KLD_OK;
}

kld_status hidden_check(const kld_hidden_info *h, const columns *c, size_t rows, kld_err *err) {
    if (c->hidden_n == rows * hidden_words(h)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%zu values of hidden states, %zu rows of %llu are expected",
                    c->hidden_n, rows, (unsigned long long)h->cols);
}

kld_status hidden_take(const kld_hidden_info *h, const columns *c, kld_records *r, kld_err *err) {
    TRY(hidden_check(h, c, r->n, err));
    TRY(kld_records_alloc_hidden(r, (size_t)h->cols, (size_t)h->bytes, err));
    size_t words = hidden_words(h), n = c->hidden_n, bytes = (size_t)(h->cols * h->bytes);
    for (size_t i = 0; i < r->n; i++) {
        unsigned char *row = (unsigned char *)r->hidden + i * bytes;
        for (size_t b = 0; b < 4; b++) {
            const unsigned char *plane = c->hidden + b * n + i * words;
            size_t last = 4 * (words - 1) + b;
            for (size_t w = 0; w + 1 < words; w++) row[4 * w + b] = plane[w];
            if (last < bytes) row[last] = plane[words - 1];
        }
    }
    return KLD_OK;
}
