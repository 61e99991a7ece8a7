/* kld/capture/build_suite.h - documents and a tokenizer -> a suite.  Floor 3. */
#ifndef KLD_CAPTURE_BUILD_SUITE_H
#define KLD_CAPTURE_BUILD_SUITE_H
#include "datasets/suite.h"
#include "datasets/text.h"
#include "kld/base/status.h"
#include "loaders/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_bos { KLD_BOS_NONE, KLD_BOS_FIRST, KLD_BOS_EVERY } kld_bos;

typedef struct kld_suite_options {
    size_t window, stride; /* tokens, BOS included; 1 <= stride <= window */
    bool score_last_set;
    size_t score_last; /* score only the last N positions of each window */
    kld_bos bos;
    const char *partition; /* partition of documents that name none; NULL = "" */
} kld_suite_options;

typedef struct kld_suite_notes {
    size_t documents, empty_documents; /* those that give no scored position */
    size_t bos_present;                /* documents that already began with BOS, if it was asked */
} kld_suite_notes;

/* Cut every document into windows of `window` tokens that begin `stride` apart; windows never
 * span documents; the last, shorter one is kept if it scores anything new.
 *   Scored positions: all, but where windows overlap only those that no earlier window of the
 *   document scored, so each token counts once; with score_last the last N of each window.
 *   The first id of a window has no context and is not scored unless BOS or an earlier window
 *   gives it one.
 *   BOS takes one place of a window: in front of each document's first (FIRST) or of every
 *   window (EVERY); a window whose text begins with BOS gets no second one.  Neighbours share
 *   `window - stride` ids of the document all the same, so that BOS opens no gap (but a window
 *   begins at least one id after the last).
 * s->digest and sums are sealed.  On error *s is empty.
 * KLD_E_USAGE  window or stride out of range, or BOS asked of a tokenizer that has none.
 * KLD_E_INPUT  text that is not UTF-8, ids the tokenizer lacks, a document that begins with two
 *              BOS (message names the document); a cluster in two partitions; no scored
 *              position at all. */
KLD_NODISCARD kld_status kld_suite_build(kld_suite *s, const kld_documents *docs,
                                         const kld_tokenizer *tokenizer,
                                         const kld_suite_options *opt, kld_suite_notes *notes,
                                         kld_err *err);

KLD_EXTERN_C_END
#endif
