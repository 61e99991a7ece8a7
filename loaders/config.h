/* loaders/config.h - config.json against an architecture row.  Floor 1. */
#ifndef KLD_LOADERS_CONFIG_H
#define KLD_LOADERS_CONFIG_H
#include "kld/base/json.h"
#include "loaders/arch.h"

KLD_EXTERN_C_BEGIN

typedef struct kld_config_read {
    const kld_arch *arch;
    kld_config config; /* hyper-parameters */
    double value[KLD_KEY_COUNT];
    bool *slides; /* [config.layers] arena; the layer's attention is config.attn[slides] */
    bool *sparse; /* [config.layers] arena; the layer has a mixture of experts */
} kld_config_read;

/* The object that holds the text model's keys: text_config if there is one, else root. */
const json_t *kld_config_text(const json_t *root);

/* Which layers slide, and which have experts; r->config.layers and r->value are set.
 * KLD_E_INPUT, KLD_E_UNSUPPORTED as kld_config_parse. */
KLD_NODISCARD kld_status kld_config_layers(kld_config_read *r, const json_t *text, kld_arena *arena,
                                           kld_err *err);

/* Every key is read, asserted or ignored; any other is refused.
 * KLD_E_UNSUPPORTED  architecture, key or value not implemented (named).
 * KLD_E_INPUT        a required key is missing, or a value is out of range. */
KLD_NODISCARD kld_status kld_config_parse(kld_config_read *out, const json_t *root,
                                          kld_arena *arena, kld_err *err);

KLD_EXTERN_C_END
#endif
