/* kld/compare/exact.h - comparisons over the whole vocabulary, from hidden states and heads.
 * Floor 3.  docs/metrics.md, "Exact comparisons". */
#ifndef KLD_COMPARE_EXACT_H
#define KLD_COMPARE_EXACT_H
#include "kld/base/status.h"
#include "kld/compare/options.h"
#include "kld/compare/position.h"
#include "kld/store/capture.h"
#include "logits/backend.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* What the lists of a capture do not say when its body runs under another head. */
typedef struct kld_exact_body {
    double nll_ref, nll_cand; /* nats; of the token that follows */
    double overlap;           /* of the top-k sets */
} kld_exact_body;

typedef struct kld_exact_candidate {
    kld_pair_row *row;    /* owned [positions of the windows], or NULL: it is compared by lists */
    kld_exact_body *body; /* owned, alike; with a shared head alone */
    bool bodies_equal;    /* every hidden state is the reference's, bit for bit */
    double check_max; /* largest difference of recorded and replayed values, nats: log-sum-exp and
                         log-probability of the token that follows, over the first window */
} kld_exact_candidate;

typedef struct kld_exact {
    kld_exact_candidate *cand; /* owned [n_cands]; NULL when no candidate is exact */
    size_t n_cands;
    size_t *first;         /* owned [windows of the capture]: place of a window's first position */
    char replayed_on[160]; /* "cpu: Intel(R) Xeon(R) ..." */
    bool shared;           /* one head, the reference's, for both hidden states */
} kld_exact;

/* Replay the chosen windows of every candidate that keeps hidden states, when the reference does.
 * Recorded and replayed values of the first window must agree: on the arithmetic of the capture to
 * 1e-5 nats (they are equal bit for bit), on another back end or device to 1e-3, which is what
 * another order of FP32 sums may cost.
 * KLD_E_USAGE  a shared head is asked for and a side keeps no hidden states, or opt->device is
 * none. KLD_E_INPUT  a head is not found (kld_heads_find) or does not reproduce its capture; a
 * damaged frame; a shared head, and hidden states of another size. KLD_E_UNSUPPORTED, KLD_E_DEVICE,
 * KLD_E_NOMEM, KLD_E_IO, KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_exact_run(kld_exact *x, kld_capture *ref, kld_capture *const *cand,
                                       size_t n_cands, const size_t *window, size_t n_windows,
                                       const kld_compare_options *opt, kld_err *err);
void kld_exact_free(kld_exact *x);

/* Put what was replayed in the place of what lists say of window `window` of candidate k: every
 * divergence, with bounds equal to it and no variance, and the nuclei; with a shared head also
 * top-1, top-k and the likelihoods.  Nothing when the candidate is not exact, or a row not finite.
 * KLD_E_NUMERIC  a replayed row is not finite where the recorded one is. */
KLD_NODISCARD kld_status kld_exact_apply(const kld_exact *x, size_t k, size_t window, size_t n,
                                         kld_position *pos, kld_err *err);

KLD_EXTERN_C_END
#endif
