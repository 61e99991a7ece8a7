/* loaders/tokenizer.h - byte-level BPE from a Hugging Face tokenizer.json.
 * Floor 1.  Supported: the pipelines of GPT-2, Llama 3, Qwen 2/3, DeepSeek V3, GLM 4,
 * gpt-oss and SmolLM2 (see tok_json.c for the accepted parts); anything else in the file
 * is refused by name, because a near-miss tokenizer gives plausible wrong ids. */
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
 * KLD_E_INPUT        missing or malformed.
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
 * KLD_E_INPUT  the text is not valid UTF-8 (message has the byte offset).
 * Thread-safe for distinct `out`. */
KLD_NODISCARD kld_status kld_tokenizer_encode(const kld_tokenizer *t, const char *text, size_t n,
                                              kld_ids *out, kld_err *err);

/* Append the text of n ids.  KLD_E_INPUT for an id the tokenizer does not have.
 * skip_special leaves special tokens out.  Bytes that are not UTF-8 are passed through. */
KLD_NODISCARD kld_status kld_tokenizer_decode(const kld_tokenizer *t, const uint32_t *ids, size_t n,
                                              bool skip_special, kld_buf *out, kld_err *err);

/* Largest id of vocabulary and added tokens, plus 1: the number of real columns of the
 * logits. */
size_t kld_tokenizer_size(const kld_tokenizer *t);

/* Id of a token by its written form (special tokens as "<|endoftext|>"); false if absent. */
bool kld_tokenizer_id(const kld_tokenizer *t, const char *token, uint32_t *id);

/* BOS as the post-processor or tokenizer_config.json names it; false if there is none. */
bool kld_tokenizer_bos(const kld_tokenizer *t, uint32_t *id);

/* Identity: SHA-256 over a canonical form of everything that decides ids (model type,
 * vocabulary, merges, added tokens, normalizer, pre-tokenizer), so that a re-serialised
 * file with the same behaviour has the same digest.  Post-processor and decoder are not in. */
kld_digest kld_tokenizer_digest(const kld_tokenizer *t);

KLD_EXTERN_C_END
#endif
