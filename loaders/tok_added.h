/* loaders/tok_added.h - finding added tokens in text.  Floor 1, private to the tokenizer. */
#ifndef KLD_LOADERS_TOK_ADDED_H
#define KLD_LOADERS_TOK_ADDED_H
#include "kld/base/status.h"
#include "loaders/tok_regex.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kld_tok_added {
    char *text; /* owned, n bytes: what is looked for (normalized if `normalized`) */
    size_t n;
    uint32_t id;
    bool single_word;    /* not when a word character touches it */
    bool lstrip, rstrip; /* white space on that side is swallowed */
    bool normalized;     /* looked for in normalized text, after the others */
} kld_tok_added;

enum { KLD_TOK_MAX_ADDED = 1024 /* bytes of one; bounds the work at each position */ };

/* One of the two sets, sorted by text. */
typedef struct kld_tok_added_set {
    const kld_tok_added **v; /* [n], owned array of borrowed tokens */
    size_t n;
    uint32_t first[257]; /* tokens that begin with byte b are first[b] .. first[b + 1] */
    kld_tok_regex *word; /* owned: one word character; NULL unless some token needs it */
} kld_tok_added_set;

/* The tokens of all[n] whose `normalized` is as asked; they must outlive the set.
 * KLD_E_INPUT  two of them look for the same text. */
KLD_NODISCARD kld_status kld_tok_added_build(kld_tok_added_set *set, const kld_tok_added *all,
                                             size_t n, bool normalized, kld_err *err);
void kld_tok_added_free(kld_tok_added_set *set);

/* Receives the stretches between tokens (token NULL, n > 0) and the tokens, left to right. */
typedef kld_status (*kld_tok_stretch_fn)(void *arg, const kld_tok_added *token, const char *s,
                                         size_t n, kld_err *err);

/* Leftmost-longest search in n bytes of valid UTF-8; a match that single_word rules out is
 * passed over whole.
 * KLD_E_INPUT  white space that one token takes with rstrip holds another one with lstrip. */
KLD_NODISCARD kld_status kld_tok_added_find(const kld_tok_added_set *set, kld_tok_matcher *m,
                                            const char *text, size_t n, kld_tok_stretch_fn fn,
                                            void *arg, kld_err *err);

#endif
