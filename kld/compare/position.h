/* kld/compare/position.h - everything measured at one scored position, from plain records.
 * Floor 3; reads no files. */
#ifndef KLD_COMPARE_POSITION_H
#define KLD_COMPARE_POSITION_H
#include "kld/base/status.h"
#include "kld/compare/fdiv.h"
#include "kld/store/records.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Values of a position that are averaged over positions.  The first four and the next four
 * follow kld_div_kind. */
typedef enum kld_column {
    KLD_COL_ESTIMATE,                                 /* [KLD_DIV_KINDS] nats; NaN = bound only */
    KLD_COL_BOUND = KLD_COL_ESTIMATE + KLD_DIV_KINDS, /* [KLD_DIV_KINDS] */
    KLD_COL_TOP1 = KLD_COL_BOUND + KLD_DIV_KINDS,     /* 1 when the most probable ids agree */
    KLD_COL_TOPK,       /* overlap of the top-k sets; NaN = undecided */
    KLD_COL_JACCARD,    /* of the nuclei; NaN = undecided, as are the next five */
    KLD_COL_NUCLEUS_TV, /* of the renormalized nuclei */
    KLD_COL_ON_REF_LO,  /* candidate's mass on the reference's nucleus: bounds */
    KLD_COL_ON_REF_HI,
    KLD_COL_ON_CAND_LO, /* reference's mass on the candidate's nucleus: bounds */
    KLD_COL_ON_CAND_HI,
    KLD_COL_NLL_REF, /* nats; -log p of the token that follows; +inf is legal */
    KLD_COL_NLL_CAND,
    KLD_COL_NLL_DIFF, /* candidate minus reference */
    KLD_COL_TAIL,     /* reference's mass outside the tokens known on both sides */
    KLD_COLUMNS
} kld_column;

enum { KLD_ROW_REF_NONFINITE = 1, KLD_ROW_CAND_NONFINITE = 2 };

typedef struct kld_position {
    double v[KLD_COLUMNS];
    double variance[KLD_DIV_KINDS]; /* of the estimates; NaN = unknown */
    unsigned nonfinite;             /* KLD_ROW_*; not 0: every value above is NaN */
    unsigned exact;                 /* bit k: divergence k is exact here */
    double confidence;              /* the reference's largest probability */
    uint32_t label, top_ref, top_cand;
} kld_position;

typedef struct kld_position_options {
    uint64_t vocab; /* a list of that many tokens is complete */
    double top_p;
    size_t overlap_k;
} kld_position_options;

/* Compare n = ref->n rows into out[n].
 *  cand  the candidate's records of the same window.  With ref_ld > 0 it knows its
 *        log-probabilities at the reference's list and draws.  Without, the tokens of both
 *        lists are compared and all other mass is lumped: bounds only, unless nothing is
 *        left over.  cand == ref compares the reference with itself.
 * KLD_E_INPUT  the two do not describe the same positions, or a count exceeds its list
 *              (message names the row).  KLD_E_NOMEM.
 * Thread-safe. */
KLD_NODISCARD kld_status kld_positions_compare(const kld_records *ref, const kld_records *cand,
                                               const kld_position_options *opt, kld_position *out,
                                               kld_err *err);

KLD_EXTERN_C_END
#endif
