/* loaders/tok_model.h - the "model" and "added_tokens" of tokenizer.json.  Floor 1, private to
 * the tokenizer. */
#ifndef KLD_LOADERS_TOK_MODEL_H
#define KLD_LOADERS_TOK_MODEL_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/tok_impl.h"

/* Vocabulary, added tokens and merges into t->bpe and t->added.  t->nfc must be set: added
 * tokens that are looked for in normalized text are normalized themselves.
 *  added  the array, or NULL
 * KLD_E_INPUT, KLD_E_UNSUPPORTED  as kld_tok_json_read. */
KLD_NODISCARD kld_status kld_tok_model_read(kld_tokenizer *t, const json_t *model,
                                            const json_t *added, kld_err *err);

#endif
