/* loaders/tok_regex.h - compiled patterns and the iteration over their matches.  Floor 1,
 * private to the tokenizer. */
#ifndef KLD_LOADERS_TOK_REGEX_H
#define KLD_LOADERS_TOK_REGEX_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

/* Immutable; may be shared by threads. */
typedef struct kld_tok_regex kld_tok_regex;

/* Compile n bytes of pattern: literal text, or an expression that kld_tok_pattern accepts.
 * Owned result.
 * KLD_E_UNSUPPORTED, KLD_E_INPUT  as kld_tok_pattern.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tok_regex_new(kld_tok_regex **out, const char *pattern, size_t n,
                                           bool literal, kld_err *err);
/* Matches one word character: alphabetic, mark, decimal digit, connector or joiner. */
KLD_NODISCARD kld_status kld_tok_regex_word(kld_tok_regex **out, kld_err *err);
void kld_tok_regex_free(kld_tok_regex *re);

/* What matching needs and a thread may not share. */
typedef struct kld_tok_matcher {
    void *general, *match, *stack, *data; /* owned PCRE2 objects */
} kld_tok_matcher;

/* For subjects of at most max_bytes.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tok_matcher_init(kld_tok_matcher *m, size_t max_bytes, kld_err *err);
void kld_tok_matcher_free(kld_tok_matcher *m);

/* Walk over the matches in n bytes of valid UTF-8, from left to right; zero-initialise.  An
 * empty match right after another match is skipped. */
typedef struct kld_tok_walk {
    size_t from;       /* where the next search begins */
    size_t last_end;   /* end of the last match */
    bool any;          /* there was one */
    size_t start, end; /* the current match */
} kld_tok_walk;

/* *found is false when there are no more matches.
 * KLD_E_INPUT  the match needed more steps or stack than allowed (a hostile pattern). */
KLD_NODISCARD kld_status kld_tok_regex_next(const kld_tok_regex *re, kld_tok_matcher *m,
                                            const char *text, size_t n, kld_tok_walk *w,
                                            bool *found, kld_err *err);

#endif
