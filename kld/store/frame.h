/* kld/store/frame.h - one window: records <-> a zstd frame.  Floor 1; private to kld/store. */
#ifndef KLD_STORE_FRAME_H
#define KLD_STORE_FRAME_H
#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"

/* Compress one window into out (replaced).  Errors as kld_capture_add. */
KLD_NODISCARD kld_status frame_encode(const kld_capture_info *info, const kld_window_meta *meta,
                                      const kld_records *r, const kld_records *ref, kld_buf *out,
                                      kld_err *err);

/* Decompress a whole frame of n bytes into text (replaced).  At most max bytes of content:
 * KLD_E_INPUT when it says more, is damaged, or does not end where the frame ends. */
KLD_NODISCARD kld_status frame_inflate(const void *frame, size_t n, size_t max, kld_buf *text,
                                       kld_err *err);

/* Rows and meta at the head of a window's content; strings are put into arena, or left NULL
 * when arena is NULL.  frame_head leaves the cursor at the columns. */
KLD_NODISCARD kld_status frame_head(kld_cursor *c, kld_arena *arena, kld_window_meta *meta,
                                    uint64_t *rows, kld_err *err);
KLD_NODISCARD kld_status frame_meta(const kld_buf *text, kld_arena *arena, kld_window_meta *meta,
                                    uint64_t *rows, kld_err *err);

/* Columns of a window's content into out; ref as kld_capture_read. */
KLD_NODISCARD kld_status frame_records(const kld_capture_info *info, const kld_buf *text,
                                       const kld_records *ref, kld_records *out, kld_err *err);

/* Largest legal content of a window of `rows` rows. */
size_t frame_content_max(const kld_capture_info *info, uint64_t rows);

/* Size of the frame that begins at p, of which n bytes are there; 0 when it is not a whole
 * frame.  *content is the size it claims to decompress to (0 when unknown). */
size_t frame_size(const void *p, size_t n);
uint64_t frame_claim(const void *p, size_t n);

#endif
