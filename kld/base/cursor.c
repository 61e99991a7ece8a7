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
