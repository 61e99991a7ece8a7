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
    kld_cluster_sums sums;
    double *replicates; /* [sums.cols][resamples], or NULL with few clusters */
    double *scratch;    /* [resamples] */
    kld_emit emit;
    double floor; /* mean KL of a repeat capture; NaN without one */
} kld_report;

/* *out is owned.  Only the first block of *r is read.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_report_build(kld_report *r, json_t **out, kld_err *err);

/* ---- shared by report.c, report_candidate.c and report_routes.c ---------------------- */

/* Interval of a column of candidate k; none when the column is not one of the metrics kept by
 * cluster or when it has infinite values. */
kld_interval kld_report_interval(const kld_report *r, size_t k, int column);
/* Index in the metrics of a column, and the column and scale of a metric. */
int kld_report_metric(int column);
typedef struct kld_metric {
    int column;
    kld_scale scale;
} kld_metric;
extern const kld_metric KLD_METRIC[KLD_METRICS];

/* Column of a contrast in sums. */
size_t kld_report_contrast(const kld_report *r, size_t contrast);

/* Members "routing" (reference and candidates), "routes" and "cells" (candidates). */
void kld_report_routing(kld_report *r, const kld_capture_info *info, const kld_role *role,
                        json_t *o);
void kld_report_routes(kld_report *r, size_t k, json_t *o);
void kld_report_cells(kld_report *r, size_t k, json_t *o);

/* Member object of candidate k appended to candidates. */
void kld_report_candidate(kld_report *r, size_t k, json_t *candidates);

KLD_EXTERN_C_END
#endif
