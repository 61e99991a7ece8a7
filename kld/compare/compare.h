/* kld/compare/compare.h - captures -> statistics.  Floor 3. */
#ifndef KLD_COMPARE_COMPARE_H
#define KLD_COMPARE_COMPARE_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_compare_options {
    double top_p;          /* nucleus, default 0.95; temperature is 1 */
    size_t overlap_k;      /* top-k set overlap, default 10 */
    size_t resamples;      /* cluster bootstrap, default 10000 */
    uint64_t seed;         /* of the bootstrap, default 1 */
    const char *partition; /* only windows of this partition; NULL = all */
    bool allow_arithmetic_mismatch; /* mark instead of refusing */
    double margin;         /* practical equivalence: |ln(KL_a/KL_b)| < ln(1+margin); 0.10 */
} kld_compare_options;
kld_compare_options kld_compare_defaults(void);

/* Compare candidates with one reference; the result is the JSON object of design section 5
 * (every table is rendered from it).  *out is owned (json_decref).
 * KLD_E_INPUT  the captures do not belong together (tokenizer, suite, vocabulary, reference,
 *              arithmetic): one line naming the field and both values; or a damaged frame. */
KLD_NODISCARD kld_status kld_compare_run(const char *ref_path, const char *const *cand_paths,
                                         size_t n_cands, const kld_compare_options *opt,
                                         json_t **out, kld_err *err);

/* A table for people, from that object; width fits 100 columns. */
KLD_NODISCARD kld_status kld_compare_table(const json_t *result, bool color, kld_buf *out,
                                           kld_err *err);

/* Check "metric=limit" gates ("mean_kl=0.05", "p99_kl=1", "top1_disagreement=0.1", ...) against
 * every candidate; failures are appended to `report`, one line each.
 * KLD_E_USAGE  unknown metric or malformed limit (message lists the metrics).
 * KLD_E_GATE   a gate failed or its metric is not finite. */
KLD_NODISCARD kld_status kld_compare_gates(const json_t *result, const char *const *gates, size_t n,
                                           kld_buf *report, kld_err *err);

KLD_EXTERN_C_END
#endif
