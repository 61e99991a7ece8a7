/* kld/store/columns.h - integer columns and the grid of log-probabilities.  Floor 1; private
 * to kld/store.  docs/format.md, "Columns" and "Log-probabilities". */
#ifndef KLD_STORE_COLUMNS_H
#define KLD_STORE_COLUMNS_H
#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

/* Column ids. */
typedef enum column_id {
    COL_COUNT = 1, /* ids in the own list, a row */
    COL_IDS,       /* own ids (of a candidate: only those the reference's list lacks) */
    COL_LP,        /* their log-probabilities, coded */
    COL_LABEL,
    COL_LABEL_LP, /* FP32 bits, as are the next three */
    COL_LSE,
    COL_ENTROPY,
    COL_TAIL_MASS,
    COL_TAIL_IDS,
    COL_TAIL_LP,      /* coded */
    COL_REF_LP,       /* candidate: at the reference's ids, coded */
    COL_REF_TAIL_LP,  /* candidate: at the reference's draws, coded */
    COL_EXTRA,        /* candidate: ids in COL_IDS, a row */
    COL_TOP1,         /* candidate: most probable id */
    COL_WIDE,         /* FP32 values that the grid cannot hold, in order of coding */
    COL_HIDDEN,       /* hidden states, when kept: never decoded with the others, see hidden.h */
    COL_ROUTE_ID,     /* routes, when kept: token by token, layer by layer, slot by slot */
    COL_ROUTE_WEIGHT, /* FP32 bits, alike */
    COL_ROUTE_MARGIN, /* FP32 bits, one a token and layer */
    COL_END
} column_id;

/* A growing column of 32-bit values. */
typedef struct column {
    uint32_t *v; /* owned */
    size_t n, cap;
    size_t at; /* next value to take when reading */
} column;

typedef struct columns {
    column col[COL_END];
    const unsigned char *hidden; /* borrowed: the four planes of COL_HIDDEN */
    size_t hidden_n;             /* values */
} columns;

KLD_NODISCARD kld_status column_add(column *c, uint32_t v, kld_err *err);
KLD_NODISCARD kld_status column_add_f32(column *c, float v, kld_err *err);
void columns_free(columns *c);

/* Append every non-empty column: u8 id, u32 n, then n first bytes, n second bytes, n third
 * and n fourth bytes of the values. */
KLD_NODISCARD kld_status columns_write(const columns *c, kld_buf *out, kld_err *err);
/* The inverse; ids ascend and each occurs once.  KLD_E_INPUT otherwise. */
KLD_NODISCARD kld_status columns_read(columns *c, kld_cursor *in, kld_err *err);

/* The next value of a column that is being read.  Past its end: KLD_E_INPUT, with the id. */
KLD_NODISCARD kld_status column_take(columns *c, column_id id, uint32_t *v, kld_err *err);
KLD_NODISCARD kld_status column_take_f32(columns *c, column_id id, float *v, kld_err *err);
/* The next n values at once, borrowed; NULL when n is 0.  Errors as column_take. */
KLD_NODISCARD kld_status column_run(columns *c, column_id id, size_t n, const uint32_t **v,
                                    kld_err *err);
/* KLD_E_INPUT unless every value of every column was taken. */
KLD_NODISCARD kld_status columns_finish(const columns *c, kld_err *err);

/* Code lp (nats) into column id as a step from `pred`, both on the grid 2^-20 when fine, else
 * 2^-13; *rounded is what a reader will see.  KLD_E_NUMERIC for NaN and +inf, which lp_take
 * refuses too (KLD_E_INPUT). */
KLD_NODISCARD kld_status lp_add(columns *c, column_id id, double lp, double pred, int fine,
                                double *rounded, kld_err *err);
KLD_NODISCARD kld_status lp_take(columns *c, column_id id, double pred, int fine, double *lp,
                                 kld_err *err);

/* n values of one grid at once: what n calls of lp_take give, the same bits and errors.  Each
 * is a step from its own prediction, pred[n] (NULL: from 0); lp_take_chain predicts the first by
 * `pred` and every other by the one before it. */
KLD_NODISCARD kld_status lp_take_run(columns *c, column_id id, size_t n, const double *pred,
                                     int fine, double *lp, kld_err *err);
KLD_NODISCARD kld_status lp_take_chain(columns *c, column_id id, size_t n, double pred, int fine,
                                       double *lp, kld_err *err);

enum { LP_FINE = 8 };
/* Grid of a list by rank: the eight most probable ids are fine. */
static inline int lp_fine(size_t rank) { return rank < LP_FINE; }

#endif
