/* kld/compare/report.h - sums -> the JSON object of docs/metrics.md.  Floor 3; no files. */
#ifndef KLD_COMPARE_REPORT_H
#define KLD_COMPARE_REPORT_H
#include "kld/base/json.h"
#include "kld/compare/emit.h"
#include "kld/compare/exact.h"
#include "kld/compare/options.h"
#include "kld/compare/roles.h"
#include "kld/compare/routes.h"
#include "kld/compare/stats.h"
#include "kld/compare/tally.h"
#include "kld/compare/worst.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Ratios kept by cluster for each candidate, and their intervals. */
enum { KLD_METRICS = 13 };

typedef struct kld_report {
    const kld_compare_options *opt;
    const kld_tally *tally; /* after kld_tally_end */
    size_t left_out;        /* windows of "qualification" that nobody asked for */
    const kld_exact *exact; /* NULL: none is */
    kld_report_side ref;
    const kld_report_side *cand; /* [tally->n_cands], as are the next three */
    const kld_role *role;
    const kld_quad *quad;
    const kld_route_tally *routes;
    const kld_worst *worst;         /* of kld_worst_read; NULL: places alone are told */
    const kld_tokenizer *tokenizer; /* may be NULL */

    /* Filled by kld_report_build. */
    struct kld_report_sums *sums; /* of clusters, and their resamples */
    kld_emit emit;
    double floor; /* mean KL of a repeat capture; NaN without one */
} kld_report;

/* *out is owned.  Only the first block of *r is read.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_report_build(kld_report *r, json_t **out, kld_err *err);

/* ---- report_sums.c: what is kept by cluster ----------------------------------------- */

/* Owned; freed by kld_report_sums_free.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_report_sums_make(kld_report *r, kld_err *err);
void kld_report_sums_free(kld_report *r);

/* Interval of a column of candidate k; none when the column is not one of the metrics kept by
 * cluster or when it has infinite values.  Cut where a mean of JS or TV must end. */
kld_interval kld_report_interval(const kld_report *r, size_t k, int column);
double kld_report_cluster_mean(const kld_report *r, size_t k, int column);

/* Mean KL of candidate k in a bin (kld_bins) and in a stratum. */
kld_estimate kld_report_bin(const kld_report *r, size_t k, size_t bin);
kld_estimate kld_report_stratum(const kld_report *r, size_t k, size_t stratum);
/* Interval of the quantile KLD_TAIL[tail] of KL; none unless KLD_TAIL_POSITIONS lie above it. */
kld_interval kld_report_tail(const kld_report *r, size_t k, size_t tail);
enum { KLD_TAIL_POSITIONS = 100 };

/* Mean KL of a pair: candidate b less candidate a, and their quotient. */
kld_estimate kld_report_difference(const kld_report *r, size_t pair);
kld_estimate kld_report_ratio(const kld_report *r, size_t pair);
kld_estimate kld_report_contrast(const kld_report *r, size_t contrast);

/* Index in the metrics of a column, and the column and scale of a metric. */
int kld_report_metric(int column);
typedef struct kld_metric {
    int column;
    kld_scale scale;
} kld_metric;
extern const kld_metric KLD_METRIC[KLD_METRICS];

/* ---- shared by report.c, report_candidate.c, report_pairs.c and report_routes.c ------- */

/* Members "routing" (reference and candidates), "routes" and "cells" (candidates). */
void kld_report_routing(kld_report *r, const kld_capture_info *info, const kld_role *role,
                        json_t *o);
void kld_report_routes(kld_report *r, size_t k, json_t *o);
void kld_report_cells(kld_report *r, size_t k, json_t *o);

/* Member "pairs", the verdicts among them adjusted for each other.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_report_pairs(kld_report *r, json_t *top, kld_err *err);

/* Member object of candidate k appended to candidates. */
void kld_report_candidate(kld_report *r, size_t k, json_t *candidates);

KLD_EXTERN_C_END
#endif
