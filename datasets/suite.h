/* datasets/suite.h - an evaluation suite: frozen token ids with where they came from.
 * Floor 1; may include kld/base only.
 *
 * On disk a suite is JSON Lines (docs/suites.md).  Line 1 is the header object
 *   {"kld_suite": 1, "tokenizer": HEX, "vocab": N, "window": N, "stride": N,
 *    "bos": "none|first|every", "windows": N, "digest": HEX, ...}
 * where what stands for "..." tells how it was built and is outside the digest,
 * and every further line one window
 *   {"ids": [...], "score_from": S, "source": "...", "cluster": "...", "stratum": "...",
 *    "partition": "...", "offset": O, "tokens_sha256": HEX}
 * in suite order.  A file without a header whose lines hold "ids" is accepted as a foreign
 * suite: defaults fill the rest, and tokenizer stays all zero (unknown). */
#ifndef KLD_DATASETS_SUITE_H
#define KLD_DATASETS_SUITE_H
#include "kld/base/mem.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum { KLD_SUITE_MAX_TEXT = 4096 }; /* bytes; what a capture holds of each text of a window */

/* Position t of a window scores token ids[t+1] given ids[0..t]; scored positions are
 * t = score_from .. n-2, so a window of one token has none. */
typedef struct kld_window {
    uint32_t *ids; /* [n] arena */
    size_t n;
    size_t score_from;
    const char *source;    /* file, data set and revision: free text */
    const char *cluster;   /* unit of resampling: document or repository */
    const char *stratum;   /* "" when none */
    const char *partition; /* "analysis", "qualification" or "" */
    uint64_t offset;       /* of ids[0] in the token stream of its document */
    kld_digest tokens;     /* kld_ids_digest */
} kld_window;

size_t kld_window_scored(const kld_window *w); /* n-1-score_from, or 0 */
/* What intervals resample: the cluster, or the source where there is none.  Borrowed. */
const char *kld_window_unit(const kld_window *w);
/* SHA-256 of ids as little-endian u32.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_ids_digest(const uint32_t *ids, size_t n, kld_digest *out,
                                        kld_err *err);

typedef struct kld_suite {
    kld_window *windows; /* [n_windows] */
    size_t n_windows;
    uint64_t tokens, positions; /* sums over windows */
    kld_digest tokenizer;       /* kld_tokenizer_digest; zero when unknown */
    size_t vocab;               /* kld_tokenizer_size; 0 when unknown */
    size_t window, stride;
    const char *bos;   /* "none", "first", "every", "" unknown */
    kld_digest digest; /* over tokenizer, vocab, bos and every window's ids, score_from,
                          cluster, stratum and partition, in order */
    const char *built; /* JSON object of the header's keys "seed", "sources", "choice", "allocation"
                          and "partitions", as far as there are; NULL when there are none */
    const char *partition; /* set by kld_suite_select: which windows are here; NULL = all */
    kld_arena arena;
} kld_suite;

/* On error *s is empty.
 * KLD_E_INPUT        missing or malformed file, with line number; an id >= vocab when vocab is
 *                    known; a digest that does not match; the same cluster in two partitions;
 *                    no scored position at all; a text above KLD_SUITE_MAX_TEXT.
 * KLD_E_UNSUPPORTED  a header of another version. */
KLD_NODISCARD kld_status kld_suite_load(kld_suite *s, const char *path, kld_err *err);

/* Compute digests and write the file atomically.
 * KLD_E_INPUT  what kld_suite_load would refuse of the whole suite; a string that is not
 *              UTF-8, with its key. */
KLD_NODISCARD kld_status kld_suite_save(kld_suite *s, const char *path, kld_err *err);

/* Fill in tokens/positions and all digests from the windows. */
KLD_NODISCARD kld_status kld_suite_seal(kld_suite *s, kld_err *err);

void kld_suite_free(kld_suite *s);

KLD_EXTERN_C_END
#endif
