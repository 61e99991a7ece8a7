/* loaders/tok_json.h - the parts of tokenizer.json, read strictly: a component, key or option
 * that is not listed in tok_json.c is refused by name.  Floor 1, private to the tokenizer. */
#ifndef KLD_LOADERS_TOK_JSON_H
#define KLD_LOADERS_TOK_JSON_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/tok_impl.h"

/* Fill everything but the digest; t is zero and on error may be half filled.
 * KLD_E_INPUT        malformed, or parts that contradict each other.
 * KLD_E_UNSUPPORTED  well-formed but not implemented. */
KLD_NODISCARD kld_status kld_tok_json_read(kld_tokenizer *t, const json_t *root, kld_err *err);

/* bos_token of tokenizer_config.json, unless a BOS is known already. */
KLD_NODISCARD kld_status kld_tok_json_config(kld_tokenizer *t, const json_t *root, kld_err *err);

/* Every key of obj must be one of the `|`-separated names: "type|pattern|invert". */
KLD_NODISCARD kld_status kld_tok_json_keys(const json_t *obj, const char *names, kld_err *err);

#endif
