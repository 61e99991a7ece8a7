/* logits/stream.h - values of every token of one device, [rows][cols] in its memory, in host
 * memory, or in a spill file, in that order of preference: the residual stream (FP32), and in a
 * layer with experts the normed rows that they read.  Floor 2. */
#ifndef KLD_LOGITS_STREAM_H
#define KLD_LOGITS_STREAM_H
#include "kld/base/status.h"
#include "kld/base/system.h"
#include "logits/backend.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_place { KLD_ON_DEVICE, KLD_ON_HOST, KLD_ON_DISK } kld_place;

typedef struct kld_stream {
    const kld_backend *be;
    kld_device *dev; /* borrowed */
    kld_place place;
    size_t rows, cols, size; /* size: bytes of a value */
    unsigned char
        *mem; /* owned; device memory, or host memory that the device copies from; NULL on disk */
    kld_spill spill;
    unsigned char *stage; /* owned [stage_rows][cols], host; NULL when mem can be used directly */
    size_t stage_rows;
    uint64_t device_bytes, host_bytes; /* taken */
} kld_stream;

/* stage_rows: most rows of one call.  For a back end whose memory is the host's, on device and on
 * host are the same.
 * KLD_E_NOMEM, KLD_E_DEVICE; KLD_E_IO when the spill directory has no room. */
KLD_NODISCARD kld_status kld_stream_open(kld_stream *s, const kld_backend *be, kld_device *dev,
                                         size_t rows, size_t cols, size_t size, kld_place place,
                                         const char *spill_dir, size_t stage_rows, kld_err *err);
void kld_stream_close(kld_stream *s);

/* For the device: rows [row0, row0+n) as a view of x.  It is x itself, which they are copied into,
 * unless they are on the device already; store takes back what became of them. */
KLD_NODISCARD kld_status kld_stream_load(kld_stream *s, size_t row0, size_t n, kld_view x,
                                         kld_view *out, kld_err *err);
/* x must be what load gave or would give: see kld_stream_view. */
KLD_NODISCARD kld_status kld_stream_store(kld_stream *s, size_t row0, size_t n, kld_view x,
                                          kld_err *err);
/* Where load would put the rows, without loading them. */
kld_view kld_stream_view(const kld_stream *s, size_t row0, size_t n, kld_view x);

/* For the host: rows [row0, row0+n), borrowed until the next call.  n <= stage_rows. */
KLD_NODISCARD kld_status kld_stream_get(kld_stream *s, size_t row0, size_t n, const void **rows,
                                        kld_err *err);
/* A place to write rows into; kld_stream_put with the same arguments makes them count. */
void *kld_stream_room(kld_stream *s, size_t row0);
KLD_NODISCARD kld_status kld_stream_put(kld_stream *s, size_t row0, size_t n, kld_err *err);

KLD_EXTERN_C_END
#endif
