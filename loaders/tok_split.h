/* loaders/tok_split.h - the pre-tokenizer: a chain of splits that ends in ByteLevel.
 * Floor 1, private to the tokenizer. */
#ifndef KLD_LOADERS_TOK_SPLIT_H
#define KLD_LOADERS_TOK_SPLIT_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include "loaders/tok_regex.h"
#include <stdbool.h>
#include <stddef.h>

/* What becomes of a match, and of the text between matches. */
typedef enum kld_tok_behavior {
    KLD_TOK_ISOLATED,   /* each is a piece */
    KLD_TOK_REMOVED,    /* matches are dropped */
    KLD_TOK_PREVIOUS,   /* a match is glued to the text before it */
    KLD_TOK_NEXT,       /* a match is glued to the text after it */
    KLD_TOK_CONTIGUOUS, /* neighbouring matches are one piece */
} kld_tok_behavior;

typedef struct kld_tok_stage {
    kld_tok_regex *re; /* owned */
    char *pattern;     /* owned; as in the file */
    size_t n_pattern;
    bool literal;
    bool invert; /* matches and the text between them change places */
    kld_tok_behavior behavior;
} kld_tok_stage;

enum { KLD_TOK_MAX_STAGES = 16 };

typedef struct kld_tok_split {
    kld_tok_stage stage[KLD_TOK_MAX_STAGES];
    size_t n;
    bool byte_level;   /* ByteLevel has been added: the chain is complete */
    bool prefix_space; /* a piece that does not begin with ' ' gets one ... */
    size_t prefix_at;  /* ... before this stage */
} kld_tok_split;

/* Append a stage; the pattern is copied.  KLD_E_UNSUPPORTED  too many stages, one after
 * ByteLevel, or a pattern that is not implemented. */
KLD_NODISCARD kld_status kld_tok_split_add(kld_tok_split *s, const char *pattern, size_t n,
                                           bool literal, kld_tok_behavior behavior, bool invert,
                                           kld_err *err);
/* End the chain.  use_regex adds GPT-2's pattern as the last stage. */
KLD_NODISCARD kld_status kld_tok_split_byte_level(kld_tok_split *s, bool prefix_space,
                                                  bool use_regex, kld_err *err);
void kld_tok_split_free(kld_tok_split *s);

/* Receives the pieces (n > 0), left to right, borrowed for the call. */
typedef kld_status (*kld_tok_piece_fn)(void *arg, const char *piece, size_t n, kld_err *err);

/* Split n bytes of valid UTF-8.  scratch is the caller's and holds a prefixed piece.
 * Errors are those of kld_tok_regex_next and of fn. */
KLD_NODISCARD kld_status kld_tok_split_run(const kld_tok_split *s, kld_tok_matcher *m,
                                           kld_buf *scratch, const char *text, size_t n,
                                           kld_tok_piece_fn fn, void *arg, kld_err *err);

#endif
