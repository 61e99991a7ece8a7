/* tests/unit/tokkit.h - a small byte-level tokenizer for tests: the 256 byte tokens with their
 * bytes as ids, and what a recipe adds. */
#ifndef KLD_TESTS_TOKKIT_H
#define KLD_TESTS_TOKKIT_H
#include "kld/base/buf.h"
#include "loaders/tokenizer.h"

typedef struct tok_recipe {
    const char *pre;    /* pre_tokenizer; NULL: every piece gets a space before it */
    const char *norm;   /* normalizer */
    const char *vocab;  /* more of model.vocab, with its leading comma */
    const char *merges; /* members of the array */
    const char *model;  /* more of model, with its leading comma */
    const char *added;  /* members of added_tokens */
    const char *rest;   /* more of the file, with its leading comma */
    unsigned bytes;     /* how many byte tokens; 0 means 256 */
} tok_recipe;

#define BYTE_LEVEL(prefix, regex)                                                                  \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix                                         \
    ",\"trim_offsets\":true,\"use_regex\":" regex "}"
#define SPLIT(pattern, behavior, invert)                                                           \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"" behavior         \
    "\",\"invert\":" invert "}"
/* Each piece is given a space, so that the ids show where the text was cut. */
#define SHOWN(stages)                                                                              \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" stages "," BYTE_LEVEL("true", "false") "]}"
#define ADDED(id, content, flags)                                                                  \
    "{\"id\":" id ",\"content\":\"" content "\"," flags ",\"special\":true}"
/* Flags of an added token. */
#define PLAIN "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false"

#define FLAGS(single, left, right, norm)                                                           \
    "\"single_word\":" single ",\"lstrip\":" left ",\"rstrip\":" right ",\"normalized\":" norm

/* The text of its tokenizer.json. */
void tok_cook(kld_buf *b, const tok_recipe *r);
kld_status tok_try(kld_tokenizer **t, const tok_recipe *r, kld_err *err);

/* These fail the running test. */
kld_tokenizer *tok_make(const tok_recipe *r);
kld_ids tok_encode(const kld_tokenizer *t, const char *text, size_t n);
void tok_expect_ids(const kld_tokenizer *t, const char *text, const uint32_t *want, size_t n);
/* Encode and decode again: where ids are bytes, this shows what became of the text. */
void tok_expect_text(const tok_recipe *r, const char *text, const char *want);
/* Parsing must fail so, with this in the message. */
void tok_expect_error(const tok_recipe *r, kld_status want, const char *text);

#define EXPECT_IDS(t, text, ...)                                                                   \
    do {                                                                                           \
        const uint32_t want_[] = {__VA_ARGS__};                                                    \
        tok_expect_ids((t), (text), want_, sizeof want_ / sizeof *want_);                          \
    } while (0)

#endif
