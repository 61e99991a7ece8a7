#include "kld/base/buf.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

kld_status kld_buf_reserve(kld_buf *b, size_t n, kld_err *err) {
    size_t max = b->max ? b->max : (size_t)1 << 30, need;
    if (!num_add_size(b->len, n, &need) || need > max)
        return kld_fail(err, KLD_E_NOMEM, "a buffer would grow past its limit of %zu bytes", max);
    if (need < b->cap) return KLD_OK;
    size_t cap = num_max(num_min(b->cap * 2, max + 1), num_max(need + 1, 64));
    TRY(kld_realloc((void **)&b->data, cap, 1, err));
    b->cap = cap;
    b->data[b->len] = 0;
    return KLD_OK;
}

kld_status kld_buf_add(kld_buf *b, const void *data, size_t n, kld_err *err) {
    TRY(kld_buf_reserve(b, n, err));
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return KLD_OK;
}

kld_status kld_buf_adds(kld_buf *b, const char *s, kld_err *err) {
    return kld_buf_add(b, s, strlen(s), err);
}

kld_status kld_buf_addf(kld_buf *b, kld_err *err, const char *fmt, ...) {
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    kld_status st = n < 0 ? kld_fail(err, KLD_E_INTERNAL, "format error") : KLD_OK;
    if (st == KLD_OK) st = kld_buf_reserve(b, (size_t)n, err);
    if (st == KLD_OK) {
        vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
    return st;
}

static kld_status add_le(kld_buf *b, uint64_t v, size_t n, kld_err *err) {
    unsigned char bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(v >> (8 * i));
    return kld_buf_add(b, bytes, n, err);
}

kld_status kld_buf_u8(kld_buf *b, uint8_t v, kld_err *err) { return add_le(b, v, 1, err); }
kld_status kld_buf_u16(kld_buf *b, uint16_t v, kld_err *err) { return add_le(b, v, 2, err); }
kld_status kld_buf_u32(kld_buf *b, uint32_t v, kld_err *err) { return add_le(b, v, 4, err); }
kld_status kld_buf_u64(kld_buf *b, uint64_t v, kld_err *err) { return add_le(b, v, 8, err); }

kld_status kld_buf_f64(kld_buf *b, double v, kld_err *err) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return add_le(b, bits, 8, err);
}

kld_status kld_buf_varint(kld_buf *b, uint64_t v, kld_err *err) {
    unsigned char bytes[10];
    size_t n = 0;
    do {
        bytes[n] = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
        n++;
    } while (v);
    return kld_buf_add(b, bytes, n, err);
}

void kld_buf_clear(kld_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

void kld_buf_free(kld_buf *b) {
    kld_free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
}
