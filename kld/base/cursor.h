/* kld/base/cursor.h - bounded reading of bytes that came from outside.  Floor 0.
 * A cursor never reads past its end.  Integers are little-endian.  Reading past the
 * end sets `bad` and returns zeros, so a sequence of reads needs one check at its end. */
#ifndef KLD_BASE_CURSOR_H
#define KLD_BASE_CURSOR_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_cursor {
    const unsigned char *p; /* borrowed */
    size_t size, pos;
    bool bad; /* a read went past the end */
} kld_cursor;

kld_cursor kld_cursor_of(const void *data, size_t size);
size_t kld_cursor_left(const kld_cursor *c);

/* n bytes, borrowed from the underlying buffer, or NULL (and bad). */
const unsigned char *kld_cursor_take(kld_cursor *c, size_t n);

uint8_t kld_cursor_u8(kld_cursor *c);
uint16_t kld_cursor_u16(kld_cursor *c);
uint32_t kld_cursor_u32(kld_cursor *c);
uint64_t kld_cursor_u64(kld_cursor *c);

KLD_EXTERN_C_END
#endif
