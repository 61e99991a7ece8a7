/* kld/store/records.h - what is kept of the distributions of one window, in memory.
 * Floor 1.  The engine fills it, the capture file stores it, compare reads it. */
#ifndef KLD_STORE_RECORDS_H
#define KLD_STORE_RECORDS_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Everything is natural log, over the first `vocab` columns of the logits.
 * Row i describes scored position first + i of the window.
 * A row whose logits hold NaN or +Inf is not finite: count 0, all its values NaN. */
typedef struct kld_records {
    size_t n;     /* rows */
    size_t first; /* position in the window of row 0 */
    /* Where they were read: content digest of the capture, one more than the window's number; 0:
     * made, or changed, by somebody, who sets it to that. */
    kld_digest source;
    uint64_t source_window;

    /* Own distribution: the most probable tokens until the remaining mass is at most the
     * tail target, at least min_k and at most top_k of them; sorted by log-probability
     * descending, a tie goes to the lower id.  ids[i*k_ld + j], j < count[i]. */
    size_t k_ld;
    uint32_t *count;  /* [n]; 0 marks a row that is not finite */
    uint32_t *ids;    /* [n][k_ld] */
    double *lp;       /* [n][k_ld] */
    uint32_t *label;  /* [n] the token that follows */
    float *label_lp;  /* [n] its log-probability; -inf is legal */
    float *lse;       /* [n] log-sum-exp of the logits */
    float *entropy;   /* [n] nats, full vocabulary */
    float *tail_mass; /* [n] 1 - sum of p over the list, summed over the tail itself; >= 0 */

    /* M ids drawn independently (with replacement) from the tail, proportional to p, and
     * their log-probabilities; UINT32_MAX and NaN when tail_mass is 0. */
    size_t m;           /* draws a row; 0 = none kept */
    uint32_t *tail_ids; /* [n][m] */
    double *tail_lp;    /* [n][m] */

    /* Own log-probabilities at the reference's list and tail draws, in the reference's
     * order; only when captured against a reference (ref_ld > 0). */
    size_t ref_ld, ref_m;
    double *ref_lp;      /* [n][ref_ld], j < the reference's count[i]; -inf legal */
    double *ref_tail_lp; /* [n][ref_m] */

    /* Where the tokens of the window were sent, all of them from position 0 on; only when routes
     * are kept (route_layers > 0).  Layers are those with experts, in order; slots are in the order
     * of the choice, best first. */
    size_t route_tokens, route_layers, route_k;
    uint32_t *route_id;  /* [route_tokens][route_layers][route_k] logical expert */
    float *route_weight; /* alike: what multiplied its output */
    float *route_margin; /* [route_tokens][route_layers]: the score of the last expert chosen less
                            that of the best that was not; +inf without one */

    /* What the head was given for each row, only in exact captures (hidden_cols > 0). */
    size_t hidden_cols, hidden_bytes; /* bytes of a value: 2 BF16, 4 FP32 */
    void *hidden;                     /* [n][hidden_cols] */
} kld_records;

/* Allocate every array for n rows (contents zero).  Pass ref_ld = ref_m = 0 for a capture
 * without a reference.  KLD_E_NOMEM leaves *r empty. */
KLD_NODISCARD kld_status kld_records_alloc(kld_records *r, size_t n, size_t k_ld, size_t m,
                                           size_t ref_ld, size_t ref_m, kld_err *err);
/* Room for routes (contents zero).  KLD_E_NOMEM leaves *r without. */
KLD_NODISCARD kld_status kld_records_alloc_routes(kld_records *r, size_t tokens, size_t layers,
                                                  size_t k, kld_err *err);
/* Room for hidden states (contents zero) of bytes 2 or 4 a value.  KLD_E_NOMEM leaves *r without.
 */
KLD_NODISCARD kld_status kld_records_alloc_hidden(kld_records *r, size_t cols, size_t bytes,
                                                  kld_err *err);
void kld_records_free(kld_records *r);

KLD_EXTERN_C_END
#endif
