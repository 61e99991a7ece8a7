/* kld/store/head.h - the head of a window: where it came from, how many rows it has, which
 * records of a reference it is relative to.  Floor 1; private to kld/store.
 * docs/format.md, "Window head". */
#ifndef KLD_STORE_HEAD_H
#define KLD_STORE_HEAD_H
#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"

typedef struct window_head {
    kld_window_meta meta; /* strings NULL when read without an arena */
    uint32_t rows;
    kld_digest ref; /* records_digest of the reference's records, or zero */
    size_t bytes;   /* of its encoding; set when read */
} window_head;

/* Append.  KLD_E_INPUT  a string is too long, or the rows are not those that tokens and
 * score_from leave to score. */
KLD_NODISCARD kld_status head_write(const window_head *h, kld_buf *out, kld_err *err);

/* Read one and leave the cursor behind it.  Strings are put into arena, or left NULL when
 * arena is NULL.  KLD_E_INPUT  cut short, reserved bits set, or as head_write. */
KLD_NODISCARD kld_status head_read(kld_cursor *c, kld_arena *arena, window_head *h, kld_err *err);

/* SHA-256 of what a candidate is stored relative to: ids and log-probabilities of the list and
 * the draws, as a reader of the reference sees them. */
KLD_NODISCARD kld_status records_digest(const kld_records *r, kld_digest *out, kld_err *err);

/* Whether row i has draws at all: it is finite and its list does not cover everything. */
static inline bool row_has_draws(const kld_records *r, size_t i) {
    return r->m > 0 && r->count[i] > 0 && r->tail_mass[i] > 0;
}

enum { HEAD_MAX_STRING = 4096, HEAD_MAX = 96 + 4 * (HEAD_MAX_STRING + 2) };

#endif
