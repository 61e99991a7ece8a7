/* kld/compare/nucleus.h - agreement of two lists of most probable tokens: top-k sets and
 * nuclei (top-p).  Floor 3; may include kld/base only.  No state; the scratch is the caller's. */
#ifndef KLD_COMPARE_NUCLEUS_H
#define KLD_COMPARE_NUCLEUS_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* The most probable tokens of one distribution, descending, ties by lower id.  Borrowed. */
typedef struct kld_list {
    size_t n;
    const uint32_t *ids;
    const double *lp, *p; /* p = exp(lp); p may be NULL where only ids are compared */
    double tail;          /* mass of the tokens not listed */
    bool complete;        /* the list is the whole vocabulary */
} kld_list;

/* Where the tokens of two lists are in each other. */
typedef struct kld_match {
    uint32_t *to_ref;  /* owned [max]: index in the reference's list of the candidate's j-th
                          token, or KLD_NO_MATCH */
    uint32_t *to_cand; /* owned [max]: the other way */
    uint64_t *slots;   /* owned: hash table of the reference's ids */
    size_t max, mask;
    uint32_t turn; /* marks the slots of the current position */
} kld_match;

#define KLD_NO_MATCH UINT32_MAX

/* Scratch for lists of at most max tokens.  KLD_E_NOMEM leaves *m empty. */
KLD_NODISCARD kld_status kld_match_alloc(kld_match *m, size_t max, kld_err *err);
void kld_match_free(kld_match *m);

/* Fill to_ref[cand->n] and to_cand[ref->n].  Lists longer than max are a bug of the caller. */
void kld_match_lists(kld_match *m, const kld_list *ref, const kld_list *cand);

/* |A and B| / k for the k most probable tokens of each; NaN (undecided) when a list holds
 * fewer than k and is not complete.  A vocabulary smaller than k counts as k. */
double kld_topk_overlap(const kld_match *m, const kld_list *ref, const kld_list *cand, size_t k);

/* Tokens in the smallest prefix whose probabilities sum to at least p (the crossing token
 * included; a sum within 1e-9 of p has reached it); 0 when the list ends before. */
size_t kld_nucleus_size(const kld_list *l, double p);

typedef struct kld_nucleus {
    bool decided;   /* both nuclei lie inside their lists; else the rest is NaN */
    double jaccard; /* |A and B| / |A or B| */
    double tv;      /* of the two distributions cut to their nuclei and renormalized; exact */
    double on_reference[2]; /* lower, upper: the candidate's mass on the reference's nucleus;
                               equal when q_at_ref was given */
    double on_candidate[2]; /* lower, upper: the reference's mass on the candidate's nucleus.
                               A token u that the reference does not list has p(u) at most
                               that of the last token listed, and all of them at most tail */
} kld_nucleus;

/* q_at_ref: the candidate's probabilities at the reference's list, or NULL.
 * kld_match_lists was called with the same lists. */
kld_nucleus kld_nucleus_compare(const kld_match *m, const kld_list *ref, const kld_list *cand,
                                const double *q_at_ref, double p);

KLD_EXTERN_C_END
#endif
