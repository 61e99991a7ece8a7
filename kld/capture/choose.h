/* kld/capture/choose.h - which windows of many are taken.  Floor 3.
 *
 * The choice is a function of the seed and of what the documents hold (their ids), not of files,
 * lines or order.  It goes by clusters: everyone's first window comes before anyone's second, so
 * that a given number of windows is from as many clusters as there are. */
#ifndef KLD_CAPTURE_CHOOSE_H
#define KLD_CAPTURE_CHOOSE_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* How much is taken of one source, or of one stratum of it. */
typedef struct kld_quota {
    size_t origin;       /* kld_document.origin */
    const char *stratum; /* NULL = of all of the source */
    bool in_tokens;      /* else windows */
    uint64_t asked;
    uint64_t windows, tokens; /* filled in: what was taken; tokens are the first sum >= asked */
} kld_quota;

/* A window that can be taken; strings borrowed. */
typedef struct kld_choice_window {
    size_t document, origin, tokens;
    const char *cluster, *stratum;
    kld_digest content; /* SHA-256 of the document's ids, as little-endian u32 */
    uint64_t offset;    /* of the window in the document */
    bool taken;         /* filled in */
    kld_digest key;     /* filled in: SHA-256 over seed, content and offset */
    size_t rank;        /* filled in: how many of its cluster go first */
} kld_choice_window;

typedef struct kld_choice_rules {
    uint64_t seed;
    size_t per_document, per_cluster; /* at most this many windows; 0 = no limit */
    kld_quota *quota;                 /* [n_quotas]; sources without one are taken whole */
    size_t n_quotas;
    const char *const *source; /* names of sources, by origin, for messages; NULL without quotas */
} kld_choice_rules;

/* Set `taken` (and the rest) of w[n].  Within a document windows go by key, within a cluster by
 * that rank, then by key; a quota takes by rank in the cluster, then by key.  *unnamed = windows
 * in strata of which their source asks for others but not for them; they are not taken.
 * KLD_E_INPUT  a quota cannot be met: the message says how many there were. */
KLD_NODISCARD kld_status kld_choose_windows(kld_choice_window *w, size_t n,
                                            const kld_choice_rules *rules, size_t *unnamed,
                                            kld_err *err);

KLD_EXTERN_C_END
#endif
