/* loaders/rope.h - rotary position embedding: parameters from config.json and inverse
 * frequencies.  Floor 1.
 *
 * d = rotated width, i = 0 .. d/2-1, b_i = theta^(-2i/d).
 *  default  inv_i = b_i
 *  linear   inv_i = b_i / factor
 *  llama3   w = 2 pi / b_i, L = original_max_position:
 *           w > L/low: b_i / factor;  w < L/high: b_i;  else with
 *           s = (L/w - low) / (high - low):  (1-s) b_i / factor + s b_i
 *  yarn     c(r) = d ln(L / (2 pi r)) / (2 ln theta), lo = c(beta_fast), hi = c(beta_slow),
 *           floor and ceil unless truncate is false, clamped to 0 and d-1;
 *           g_i = clip((i-lo)/(hi-lo), 0, 1) (hi += 0.001 when equal);
 *           inv_i = g_i b_i / factor + (1-g_i) b_i
 * Source: transformers modeling_rope_utils.py; Peng et al., YaRN, arXiv 2309.00071.
 * Each step is done in FP32 in the order of transformers, except that the power is
 * taken in double and rounded once. */
#ifndef KLD_LOADERS_ROPE_H
#define KLD_LOADERS_ROPE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* What the family says about its rotation, or about that of one kind of its layers. */
typedef struct kld_rope_source {
    const char *kind;       /* which member of a rope_parameters that differs by layer kind */
    const char *theta_key;  /* "rope_theta", or its name for layers of this kind */
    double theta;           /* when the config names none */
    bool scaling;           /* one object for all layers is about these */
    bool partial;           /* partial_rotary_factor may be below 1 */
    double partial_default; /* it, when the config does not say */
    bool required;          /* a config without the object has no default */
    bool queries;           /* llama_4_scaling_beta is allowed */
} kld_rope_source;

/* Reads `rope_parameters`, or `rope_scaling` with `rope_theta`, from the text config.
 *  max_position   stands in for a missing original_max_position_embeddings
 * KLD_E_UNSUPPORTED  a scaling type, key or layer-dependent form not implemented.
 * KLD_E_INPUT        a missing or impossible number. */
KLD_NODISCARD kld_status kld_rope_parse(kld_rope *r, const json_t *text, const kld_rope_source *src,
                                        size_t max_position, kld_err *err);

KLD_EXTERN_C_END
#endif
