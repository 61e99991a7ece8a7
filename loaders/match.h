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
    KLD_MATCH_PREFIX, /* fp8: exact name, a parent's name, or its last components */
    KLD_MATCH_QUARK,  /* exact name, shell wildcards, or "re:" + regex */
    KLD_MATCH_REGEX,  /* Hugging Face mxfp4: a regex from the start of the name */
    KLD_MATCH_SUBSTRING
} kld_match_rule;

/* One entry, compiled.  {0} is empty. */
typedef struct kld_pattern {
    const char *text; /* borrowed */
    kld_match_rule rule;
    void *regex;          /* owned; NULL when the entry is no regex, or none that compiles */
    void *found, *limits; /* owned: what a match needs */
    bool used;            /* something matched; set by the caller */
    long layer; /* it names layers.N. and matches no module of another layer; -1: it may */
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

/* A module's name, then under the other prefixes by which the text model is known: without, or
 * with, model.language_model., language_model.model., language_model., model. */
enum { KLD_NAME_FORMS = 6, KLD_NAME_MAX = 1024 };
typedef struct kld_module_names {
    const char *form[KLD_NAME_FORMS]; /* into text */
    size_t n;
    long layer; /* N of layers.N., or -1 */
    char text[4 * KLD_NAME_MAX];
} kld_module_names;
/* Longer names than KLD_NAME_MAX less the longest prefix are cut; a config cannot mean them. */
void kld_module_names_init(kld_module_names *m, const char *module);

/* Whether the entry names the module in any of its forms. */
KLD_NODISCARD kld_status kld_pattern_match_any(const kld_pattern *p, const kld_module_names *m,
                                               const char *class_name, bool *hit, kld_err *err);

/* The entries of a list, so that a module need not be held against each: mixtures have lists of
 * 50,000.  {0} is empty. */
typedef struct kld_pattern_name {
    const char *text; /* borrowed from the pattern */
    size_t at;
} kld_pattern_name;
typedef struct kld_pattern_index {
    kld_pattern_name
        *name; /* owned: entries that are a name or a part of it up to a dot, by text */
    size_t n_names;
    size_t *rest; /* owned: those that must be tried, in order */
    size_t n_rest;
    size_t *found; /* owned: what kld_pattern_index_find gave */
    size_t n_found, cap_found;
} kld_pattern_index;

/* Of p[0] .. p[n-1], which must stay; `stride` bytes from one to the next.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_pattern_index_init(kld_pattern_index *x, const kld_pattern *p,
                                                size_t n, size_t stride, kld_err *err);
void kld_pattern_index_free(kld_pattern_index *x);

/* found[0] .. found[n_found-1]: numbers of all entries that may match, some twice, in no order; no
 * other does.  Until the next call.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_pattern_index_find(kld_pattern_index *x, const kld_module_names *m,
                                                const char *class_name, kld_err *err);

/* Shell wildcards * ? [set] [!set] over the whole text; no escapes, as Python's fnmatch. */
bool kld_glob(const char *pattern, const char *text);

KLD_EXTERN_C_END
#endif
