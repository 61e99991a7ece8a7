/* kld/base/buf.h - growable byte buffer with a stated maximum.  Floor 0. */
#ifndef KLD_BASE_BUF_H
#define KLD_BASE_BUF_H
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* {.max = N} is an empty buffer; max 0 means 1 GiB. */
typedef struct kld_buf {
    unsigned char *data; /* owned; always followed by a NUL once anything was added */
    size_t len, cap;
    size_t max; /* len may not pass this */
} kld_buf;

/* Append.  KLD_E_NOMEM when the system refuses or len would pass max. */
KLD_NODISCARD kld_status kld_buf_add(kld_buf *b, const void *data, size_t n, kld_err *err);
KLD_NODISCARD kld_status kld_buf_adds(kld_buf *b, const char *s, kld_err *err);
KLD_PRINTF(3, 4)
KLD_NODISCARD kld_status kld_buf_addf(kld_buf *b, kld_err *err, const char *fmt, ...);

/* Little-endian integers, floats and LEB128, the inverse of kld_cursor_*. */
KLD_NODISCARD kld_status kld_buf_u8(kld_buf *b, uint8_t v, kld_err *err);
KLD_NODISCARD kld_status kld_buf_u16(kld_buf *b, uint16_t v, kld_err *err);
KLD_NODISCARD kld_status kld_buf_u32(kld_buf *b, uint32_t v, kld_err *err);
KLD_NODISCARD kld_status kld_buf_u64(kld_buf *b, uint64_t v, kld_err *err);
KLD_NODISCARD kld_status kld_buf_f64(kld_buf *b, double v, kld_err *err);
KLD_NODISCARD kld_status kld_buf_varint(kld_buf *b, uint64_t v, kld_err *err);

/* Room for n more bytes without reallocation. */
KLD_NODISCARD kld_status kld_buf_reserve(kld_buf *b, size_t n, kld_err *err);

void kld_buf_clear(kld_buf *b); /* len = 0, memory kept */
void kld_buf_free(kld_buf *b);  /* back to empty, max kept */

KLD_EXTERN_C_END
#endif
