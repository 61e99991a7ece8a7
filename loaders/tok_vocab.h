/* loaders/tok_vocab.h - the tokens of a byte-level BPE and their merges.  Floor 1, private to
 * the tokenizer.
 *
 * tokenizer.json writes each byte of a token as one character of a 256-letter alphabet.  Here
 * a token whose characters are all in it is kept as those bytes; one with any other character
 * can only be an added token and is kept as its UTF-8 (`raw`). */
#ifndef KLD_LOADERS_TOK_VOCAB_H
#define KLD_LOADERS_TOK_VOCAB_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ids are below this; the largest vocabulary in use has an eighth of it. */
enum { KLD_TOK_MAX_ID = 1 << 21, KLD_TOK_MAX_WRITTEN = 4096 /* bytes of a written form */ };
#define KLD_TOK_NONE UINT32_MAX /* no such id, token or rank */

typedef struct kld_tok_entry {
    size_t off;       /* into pool */
    size_t shown_off; /* what decoding writes; the token itself unless it was normalized */
    uint32_t len, shown_len;
    uint32_t id;
    bool raw;
    bool model;   /* from model.vocab: text can become this token */
    bool special; /* left out of decoded text when asked */
} kld_tok_entry;

typedef struct kld_tok_pair {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX when the slot is free */
    uint32_t rank, id;
} kld_tok_pair;

typedef struct kld_tok_vocab {
    kld_buf pool;
    kld_tok_entry *entry; /* [n], owned; in order of arrival */
    size_t n, cap;
    uint32_t *slot; /* [mask + 1], owned: index into entry plus 1, open addressing */
    size_t mask;
    uint32_t *by_id; /* [id_cap], owned: index into entry plus 1, 0 for a hole */
    size_t size;     /* largest id plus 1 */
    size_t id_cap;
    kld_tok_pair *pair; /* [pair_mask + 1], owned, open addressing */
    size_t pair_mask;
    uint32_t byte_id[256]; /* id of the one-byte token or KLD_TOK_NONE */
} kld_tok_vocab;

/* Room for `cap` tokens, no more. */
KLD_NODISCARD kld_status kld_tok_vocab_init(kld_tok_vocab *v, size_t cap, kld_err *err);
void kld_tok_vocab_free(kld_tok_vocab *v);

/* Add a token by its written form (n bytes of UTF-8).
 * KLD_E_INPUT        the id is too large or taken, or the written form is there already.
 * KLD_E_UNSUPPORTED  longer than KLD_TOK_MAX_WRITTEN. */
KLD_NODISCARD kld_status kld_tok_vocab_add(kld_tok_vocab *v, const char *written, size_t n,
                                           uint64_t id, bool model, kld_err *err);
/* Let the token decode to the bytes that n bytes of another written form stand for. */
KLD_NODISCARD kld_status kld_tok_vocab_show(kld_tok_vocab *v, kld_tok_entry *e, const char *written,
                                            size_t n, kld_err *err);
/* By written form; NULL if absent. */
kld_tok_entry *kld_tok_vocab_find(const kld_tok_vocab *v, const char *written, size_t n);
/* Id of the model token that stands for these bytes, or KLD_TOK_NONE. */
uint32_t kld_tok_vocab_bytes(const kld_tok_vocab *v, const void *bytes, size_t n);
/* NULL if there is no such id. */
const kld_tok_entry *kld_tok_vocab_by_id(const kld_tok_vocab *v, uint32_t id);

/* Room for n merges; then kld_tok_vocab_merge for ranks 0..n-1 in order.  The same pair again
 * takes the later rank.
 * KLD_E_INPUT        either side, or the two together, is not in model.vocab, or one is empty.
 * KLD_E_UNSUPPORTED  a side is not written in the byte alphabet. */
KLD_NODISCARD kld_status kld_tok_vocab_merges(kld_tok_vocab *v, size_t n, kld_err *err);
KLD_NODISCARD kld_status kld_tok_vocab_merge(kld_tok_vocab *v, const char *left, size_t n_left,
                                             const char *right, size_t n_right, uint32_t rank,
                                             kld_err *err);
/* NULL if the two do not merge. */
const kld_tok_pair *kld_tok_vocab_pair(const kld_tok_vocab *v, uint32_t left, uint32_t right);

/* Once all is added: fill byte_id. */
void kld_tok_vocab_done(kld_tok_vocab *v);

#endif
