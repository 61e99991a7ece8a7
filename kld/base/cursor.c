#include "kld/base/cursor.h"

#include <string.h>

kld_cursor kld_cursor_of(const void *data, size_t size) {
    kld_cursor c = {data, size, 0, false};
    return c;
}

size_t kld_cursor_left(const kld_cursor *c) { return c->size - c->pos; }

const unsigned char *kld_cursor_take(kld_cursor *c, size_t n) {
    if (c->bad || n > c->size - c->pos) {
        c->bad = true;
        return NULL;
    }
    const unsigned char *p = c->p + c->pos;
    c->pos += n;
    return p;
}

static uint64_t take_le(kld_cursor *c, size_t n) {
    const unsigned char *p = kld_cursor_take(c, n);
    uint64_t v = 0;
    if (p)
        for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t kld_cursor_u8(kld_cursor *c) { return (uint8_t)take_le(c, 1); }
uint16_t kld_cursor_u16(kld_cursor *c) { return (uint16_t)take_le(c, 2); }
uint32_t kld_cursor_u32(kld_cursor *c) { return (uint32_t)take_le(c, 4); }
uint64_t kld_cursor_u64(kld_cursor *c) { return take_le(c, 8); }

float kld_cursor_f32(kld_cursor *c) {
    uint32_t bits = kld_cursor_u32(c);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

double kld_cursor_f64(kld_cursor *c) {
    uint64_t bits = kld_cursor_u64(c);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

uint64_t kld_cursor_varint(kld_cursor *c) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        uint8_t b = kld_cursor_u8(c);
        if (c->bad) return 0;
        if (shift == 63 && b > 1) break;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            if (b == 0 && shift > 0) break; /* a longer spelling of a shorter number */
            return v;
        }
    }
    c->bad = true;
    return 0;
}
