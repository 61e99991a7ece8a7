/* kld/capture/build_suite.h - documents and a tokenizer -> a suite.  Floor 3. */
#ifndef KLD_CAPTURE_BUILD_SUITE_H
#define KLD_CAPTURE_BUILD_SUITE_H
#include "datasets/partition.h"
#include "datasets/text.h"
#include "kld/base/status.h"
#include "kld/capture/choose.h"
#include "loaders/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_bos { KLD_BOS_NONE, KLD_BOS_FIRST, KLD_BOS_EVERY } kld_bos;

typedef struct kld_source_sums {
    size_t documents, windows; /* taken */
    uint64_t tokens, positions;
} kld_source_sums;

typedef struct kld_suite_options {
    size_t window, stride; /* tokens, BOS included; 1 <= stride <= window */
    bool score_last_set;
    size_t score_last; /* score only the last N positions of each window */
    kld_bos bos;
    const char *partition;         /* partition of documents that name none; NULL = "" */
    const kld_choice_rules *rules; /* which windows are taken; NULL = all */
    bool by_content; /* windows in an order that files and lines have no part in: by source, then by
                        what the document holds, then by offset */
    const kld_split *split; /* what has no partition by then is divided; NULL = not */
    uint64_t seed;          /* of the split */
    const kld_suite *keep;  /* partitions that clusters have had; NULL */
    kld_source_sums *sums;  /* [origins] or NULL: added up there */
} kld_suite_options;

typedef struct kld_suite_notes {
    size_t documents, empty_documents; /* those that give no scored position */
    size_t bos_present;                /* documents that already began with BOS, if it was asked */
    size_t windows;                    /* there were to choose from */
    size_t unnamed;                    /* as kld_choose_windows says */
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
 *   Of a document whose first ids are a context (kld_document.prefix, score_from) what comes before
 *   the first scored id is not scored.
 * Then `rules` choose among them, and `split` gives partitions.  Texts are encoded first, as by
 * kld_documents_encode.
 * s->digest and sums are sealed.  On error *s is empty.
 * KLD_E_USAGE  window or stride out of range, or BOS asked of a tokenizer that has none.
 * KLD_E_INPUT  what kld_documents_encode refuses; a document that begins with two BOS (message
 *              names the document); a quota that cannot be met; a cluster in two partitions, a
 *              partition with a reserved name; no scored position at all. */
KLD_NODISCARD kld_status kld_suite_build(kld_suite *s, kld_documents *docs,
                                         const kld_tokenizer *tokenizer,
                                         const kld_suite_options *opt, kld_suite_notes *notes,
                                         kld_err *err);

KLD_EXTERN_C_END
#endif
