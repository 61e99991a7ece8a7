/* loaders/match.h - the patterns by which quantization configs name modules.  Floor 1. */
#ifndef KLD_LOADERS_MATCH_H
#define KLD_LOADERS_MATCH_H
#include "kld/base/status.h"
#include <stdbool.h>

KLD_EXTERN_C_BEGIN

/* Whose rules a list follows. */
typedef enum kld_match_rule {
    KLD_MATCH_CT,     /* compressed-tensors: exact name, "re:" + regex, or class name */
    KLD_MATCH_GLOB,   /* ModelOpt: shell wildcards (* crosses dots), or a plain substring */
    KLD_MATCH_PREFIX, /* fp8: exact name, or a parent's name */
    KLD_MATCH_QUARK,  /* exact name, shell wildcards, or "re:" + regex */
    KLD_MATCH_REGEX,  /* Hugging Face mxfp4: a regex from the start of the name */
    KLD_MATCH_SUBSTRING
} kld_match_rule;

/* One entry, compiled.  {0} is empty. */
typedef struct kld_pattern {
    const char *text; /* borrowed */
    kld_match_rule rule;
    void *regex; /* owned; NULL when the entry is no regex, or none that compiles */
    bool used;   /* something matched; set by the caller */
} kld_pattern;

/* KLD_E_NOMEM only: an entry that is no valid regex matches nothing. */
KLD_NODISCARD kld_status kld_pattern_init(kld_pattern *p, kld_match_rule rule, const char *text,
                                          kld_err *err);
void kld_pattern_free(kld_pattern *p);

/* Whether the entry names this module; class_name is "Linear", "Embedding" or NULL.
 * Regexes match from the start of the name and need not reach its end, as Python's
 * re.match. */
KLD_NODISCARD kld_status kld_pattern_match(const kld_pattern *p, const char *module,
                                           const char *class_name, bool *hit, kld_err *err);

/* The same, then under the other prefixes by which the text model is known: without, or
 * with, model., language_model., language_model.model., model.language_model. */
KLD_NODISCARD kld_status kld_pattern_match_any(const kld_pattern *p, const char *module,
                                               const char *class_name, bool *hit, kld_err *err);

/* Shell wildcards * ? [set] [!set] over the whole text; no escapes, as Python's fnmatch. */
bool kld_glob(const char *pattern, const char *text);

KLD_EXTERN_C_END
#endif
