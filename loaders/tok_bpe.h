/* loaders/tok_bpe.h - from the bytes of one pre-token to ids.  Floor 1, private to the
 * tokenizer. */
#ifndef KLD_LOADERS_TOK_BPE_H
#define KLD_LOADERS_TOK_BPE_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include "loaders/tok_vocab.h"
#include "loaders/tokenizer.h" /* kld_ids */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kld_tok_bpe {
    kld_tok_vocab vocab;
    bool ignore_merges; /* a pre-token that is a token is taken whole */
    bool has_unk;       /* bytes without a token become unk; otherwise they vanish */
    bool fuse_unk;      /* a run of them becomes one unk */
    uint32_t unk;       /* KLD_TOK_NONE when it is named but not in the vocabulary */
} kld_tok_bpe;

/* Scratch of one encoding: room for one word, and a cache of words seen. */
typedef struct kld_tok_work {
    uint32_t *id, *rank, *next, *prev; /* [cap], owned */
    size_t cap;
    uint64_t *heap; /* [heap_cap], owned */
    size_t heap_cap;
    struct kld_tok_cached *cache; /* [cache_mask + 1], owned; NULL for short texts */
    size_t cache_mask;
    kld_buf keys;  /* their bytes */
    kld_ids found; /* their ids */
} kld_tok_work;

/* For a text of n bytes: the cache pays only in longer ones. */
KLD_NODISCARD kld_status kld_tok_work_init(kld_tok_work *w, size_t n, kld_err *err);
void kld_tok_work_free(kld_tok_work *w);

/* Append the ids of n bytes: repeatedly the adjacent pair of lowest rank is merged, the
 * leftmost first.  Time is O(n log n).
 * KLD_E_INPUT  a byte has no token and the unknown token that is named does not exist. */
KLD_NODISCARD kld_status kld_tok_bpe_word(const kld_tok_bpe *b, kld_tok_work *w, const char *word,
                                          size_t n, kld_ids *out, kld_err *err);

#endif
