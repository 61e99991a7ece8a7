/* loaders/tokenizer.h - byte-level BPE from a Hugging Face tokenizer.json.
 * Floor 1.  Supported: the pipelines of GPT-2, Llama 3, Qwen 2/3, DeepSeek V3, GLM 4,
 * gpt-oss and SmolLM2 (see tok_json.c for the accepted parts); anything else in the file
 * is refused by name, because a near-miss tokenizer gives plausible wrong ids.
 *
 * Ids are those of Hugging Face `tokenizers` 0.23, to its quirks: the id written beside an
 * added token does not count (a warning says when it differs), a byte without a token is
 * dropped when there is no unk_token, NFC knows Unicode 9, patterns know Unicode 16.
 * "truncation" and "padding" in the file are never applied. */
#ifndef KLD_LOADERS_TOKENIZER_H
#define KLD_LOADERS_TOKENIZER_H
#include "kld/base/buf.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_tokenizer kld_tokenizer;

/* `path` is a directory holding tokenizer.json (and perhaps tokenizer_config.json, whose
 * bos/eos names are read), or a tokenizer.json itself.
 * KLD_E_INPUT        missing or malformed, or parts contradict each other.
 * KLD_E_UNSUPPORTED  a model type, normalizer, pre-tokenizer or option not implemented. */
KLD_NODISCARD kld_status kld_tokenizer_open(kld_tokenizer **out, const char *path, kld_err *err);
/* From memory; `name` is used in messages. */
KLD_NODISCARD kld_status kld_tokenizer_parse(kld_tokenizer **out, const char *name,
                                             const void *json, size_t n, kld_err *err);
void kld_tokenizer_free(kld_tokenizer *t);

/* Growable array of ids. */
typedef struct kld_ids {
    uint32_t *v; /* owned; kld_ids_free */
    size_t n, cap;
} kld_ids;
KLD_NODISCARD kld_status kld_ids_push(kld_ids *ids, uint32_t id, kld_err *err);
void kld_ids_free(kld_ids *ids);

/* Append the ids of n bytes of text; special tokens named in the text are recognised, none
 * are added (add_special_tokens=False).
 * On error `out` holds what it held before.  Near-linear time in n, whatever the text.
 * KLD_E_INPUT  the text is not valid UTF-8 (message has the byte offset); or a pattern gave
 *              up on it (catastrophic backtracking); or added tokens that strip white space
 *              overlap in a way on which `tokenizers` fails; or a byte has no token and the
 *              unk_token does not exist.
 * Thread-safe for distinct `out`. */
KLD_NODISCARD kld_status kld_tokenizer_encode(const kld_tokenizer *t, const char *text, size_t n,
                                              kld_ids *out, kld_err *err);

/* Append the text of n ids.  skip_special leaves special tokens out.  Bytes that are not
 * UTF-8 are passed through.
 * KLD_E_INPUT        an id the tokenizer does not have; what came before it is appended.
 * KLD_E_UNSUPPORTED  the file names no decoder. */
KLD_NODISCARD kld_status kld_tokenizer_decode(const kld_tokenizer *t, const uint32_t *ids, size_t n,
                                              bool skip_special, kld_buf *out, kld_err *err);

/* Largest id of vocabulary and added tokens, plus 1: the number of real columns of the
 * logits. */
size_t kld_tokenizer_size(const kld_tokenizer *t);

/* Id of a token by its written form (special tokens as "<|endoftext|>"); false if absent. */
bool kld_tokenizer_id(const kld_tokenizer *t, const char *token, uint32_t *id);

/* BOS: the one special token that the post-processor puts before the text; else the
 * bos_token of tokenizer_config.json.  False if there is neither.  A template that puts
 * several tokens before the text (GLM 4) names no BOS. */
bool kld_tokenizer_bos(const kld_tokenizer *t, uint32_t *id);

/* Identity: SHA-256 over a canonical form of everything that decides ids (model type,
 * vocabulary, merges, added tokens, normalizer, pre-tokenizer), so that a re-serialised
 * file with the same behaviour has the same digest.  Post-processor, decoder and the
 * `special` flags are not in. */
kld_digest kld_tokenizer_digest(const kld_tokenizer *t);

KLD_EXTERN_C_END
#endif
