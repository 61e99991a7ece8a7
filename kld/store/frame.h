/* kld/store/frame.h - one window: records <-> a zstd frame.  Floor 1; private to kld/store. */
#ifndef KLD_STORE_FRAME_H
#define KLD_STORE_FRAME_H
#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/store/capture.h"
#include "kld/store/head.h"
#include <stdbool.h>

/* Compress one window into out (replaced) and put its head alone into head (replaced).
 * Errors as kld_capture_add. */
KLD_NODISCARD kld_status frame_encode(const kld_capture_info *info, const kld_window_meta *meta,
                                      const kld_records *r, const kld_records *ref, kld_buf *out,
                                      kld_buf *head, kld_err *err);

/* Decompress a whole frame of n bytes into text (replaced).  At most max bytes of content:
 * KLD_E_INPUT when it says more, is damaged, or does not end where the frame ends. */
KLD_NODISCARD kld_status frame_inflate(const void *frame, size_t n, size_t max, kld_buf *text,
                                       kld_err *err);

/* Columns of a window's content into out; ref as kld_capture_read.  known: ref is certain to be
 * what the window is relative to; else its digest is compared. */
KLD_NODISCARD kld_status frame_records(const kld_capture_info *info, const kld_buf *text,
                                       const kld_records *ref, bool known, kld_records *out,
                                       kld_err *err);

/* The routes alone. */
KLD_NODISCARD kld_status frame_routes(const kld_capture_info *info, const kld_buf *text,
                                      kld_records *out, kld_err *err);

/* The hidden states alone: rows, first and hidden of *out. */
KLD_NODISCARD kld_status frame_hidden(const kld_capture_info *info, const kld_buf *text,
                                      kld_records *out, kld_err *err);

/* Why row i cannot hold probabilities, or NULL: a log-probability above 0, a mass above 1 (each
 * beyond what rounding explains), a tail mass or label_lp that is not a number.  ref as
 * kld_capture_add.  A row that is not finite has none. */
const char *frame_row_fault(const kld_records *r, size_t i, const kld_records *ref);

/* Largest legal content of a window of `rows` rows: what the header's numbers imply, and
 * never more than 2 GiB. */
size_t frame_content_max(const kld_capture_info *info, uint64_t rows);

/* Size of the frame that begins at p, of which n bytes are there; 0 when it is not a whole
 * frame.  frame_claim is the size it says it decompresses to (0 when it does not say). */
size_t frame_size(const void *p, size_t n);
uint64_t frame_claim(const void *p, size_t n);

#endif
