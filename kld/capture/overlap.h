/* kld/capture/overlap.h - how much of some token ids is in other text: exactly, by n-grams, and as
 * a whole, by MinHash.  Floor 3.
 *
 * n-grams: KLD_GRAM ids in a row, found by hash and then compared, so that none is claimed that is
 * not there.  Ids and not words: it is what the model reads, and it means the same in every
 * language.  Of English, 13 ids are about ten words, which two texts hardly have in common unless
 * one is from the other or both quote.
 * Rows of fewer than KLD_VARIED different ids are passed over: rules of dashes and borders of
 * tables are in every file. Similarity: the Jaccard index of the sets of KLD_SHINGLE-grams,
 * estimated from one permutation cut into KLD_BINS bins (Li, Owen, Zhang, "One permutation
 * hashing", NIPS 2012): bins whose smallest hashes agree / bins that are not empty in both; its
 * standard error is at most 0.045 where no bin is empty. */
#ifndef KLD_CAPTURE_OVERLAP_H
#define KLD_CAPTURE_OVERLAP_H
#include "kld/base/status.h"
#include "loaders/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum { KLD_GRAM = 13, KLD_VARIED = 6, KLD_SHINGLE = 5, KLD_BINS = 128 };

typedef struct kld_overlap kld_overlap;

/* For ids in `groups` groups.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_overlap_open(kld_overlap **out, size_t groups, kld_err *err);
void kld_overlap_close(kld_overlap *o); /* NULL is fine */

/* n ids of a group, borrowed until close; before the first file.
 * KLD_E_INPUT  more than 2^32 - 2 pieces, or as many ids in one. */
KLD_NODISCARD kld_status kld_overlap_add(kld_overlap *o, size_t group, const uint32_t *ids,
                                         size_t n, kld_err *err);

/* Look for all of it in a file: JSON Lines when its name ends in .jsonl, of any size, with at most
 * a batch of documents in memory; else plain text of at most 1 GiB, one document.  The result does
 * not depend on threads.
 *  tokenizer  may be NULL when all documents have ids
 * KLD_E_INPUT  what kld_jsonl_next and kld_text_read refuse, text that cannot be encoded or has no
 *              tokenizer.  KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_overlap_file(kld_overlap *o, const char *path,
                                          const kld_tokenizer *tokenizer, kld_err *err);

typedef struct kld_overlap_group {
    uint64_t grams, found; /* n-grams, as often as they occur; those that are in the files, too */
    double similarity;     /* of the most similar document, an estimate; 0 when there is none */
    const char *similar;   /* cluster of that document, lives as long as o; "" when none */
} kld_overlap_group;
/* 0 when there is no n-gram. */
double kld_overlap_share(const kld_overlap_group *g);
/* Of every group, into out[groups], and their sum (similarity aside) into *total. */
void kld_overlap_result(const kld_overlap *o, kld_overlap_group *out, kld_overlap_group *total);
/* What was read so far. */
void kld_overlap_read(const kld_overlap *o, uint64_t *documents, uint64_t *tokens);

KLD_EXTERN_C_END
#endif
