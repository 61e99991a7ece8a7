/* kld/compare/options.h - what a comparison may be asked.  Floor 3. */
#ifndef KLD_COMPARE_OPTIONS_H
#define KLD_COMPARE_OPTIONS_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_compare_options {
    double top_p;          /* nucleus, in (0, 1], default 0.95; temperature is 1 */
    size_t overlap_k;      /* top-k set overlap, default 10 */
    size_t resamples;      /* cluster bootstrap, 100 to 1000000, default 10000 */
    uint64_t seed;         /* of the bootstrap, default 1 */
    const char *tokenizer; /* directory or file for the text of worst positions; or NULL */
    bool find_tokenizer;   /* without one, take that of the reference's checkpoint, if it is
                              still where it was captured from */
    const char *partition; /* only windows of this one, or "all"; NULL = all but those of
                              "qualification", where there are others */
    bool allow_arithmetic_mismatch; /* mark instead of refusing */
    double margin;     /* practical equivalence: |ln(KL_a/KL_b)| < ln(1+margin); > 0; 0.10 */
    double margin_abs; /* nats; above 0 it is |KL_a - KL_b| < margin_abs instead; default 0 */
    /* Captures that keep hidden states. */
    bool exact_never;              /* compare their lists as those of others */
    bool head_shared;              /* both sides through the reference's head: bodies alone */
    const char *device;            /* where heads are run, as kld_choose takes it; "auto" */
    const char *const *checkpoint; /* [n_checkpoints] places to look for heads at */
    size_t n_checkpoints;
} kld_compare_options;

kld_compare_options kld_compare_defaults(void);

enum { KLD_MAX_CANDIDATES = 64 };

/* KLD_E_USAGE  an option, or the number of candidates, is out of range. */
KLD_NODISCARD kld_status kld_compare_check(const kld_compare_options *o, size_t n_cands,
                                           kld_err *err);

KLD_EXTERN_C_END
#endif
