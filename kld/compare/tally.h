/* kld/compare/tally.h - sums over positions: all, by cluster, stratum, depth and confidence.
 * Floor 3.  Windows are added one after another, in file order, so every sum has one order. */
#ifndef KLD_COMPARE_TALLY_H
#define KLD_COMPARE_TALLY_H
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "kld/compare/position.h"
#include "kld/compare/roles.h"
#include "kld/store/capture.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum {
    KLD_DEPTHS = 4,      /* position in the window: 0-63, 64-255, 256-1023, 1024- */
    KLD_CONFIDENCES = 5, /* the reference's largest probability: 0-.25-.5-.75-.95-1 */
    KLD_DRAFTS = 7,      /* longest draft of the acceptance proxy */
    KLD_BINS = KLD_DEPTHS + KLD_CONFIDENCES,
    KLD_TAILS = 5,   /* quantiles of KL that have intervals */
    KLD_LOCATED = 8, /* rows that are not finite are located up to here */
    KLD_SPANS = 64,  /* of equal width over the longest window */
    KLD_WORST = 10,  /* positions of largest KL kept */
    KLD_HIST_PER_DECADE = 8,
    KLD_HIST_FIRST = -9, /* lower edge of the first bin: 1e-9 nats */
    KLD_HIST_BINS = 88   /* up to 1e2 nats */
};
extern const uint64_t KLD_DEPTH_FROM[KLD_DEPTHS + 1]; /* last: UINT64_MAX */
extern const double KLD_CONFIDENCE_FROM[KLD_CONFIDENCES + 1];
extern const double KLD_TAIL[KLD_TAILS]; /* 0.5, 0.9, 0.95, 0.99, 0.999 */

/* Sums of the finite values of each column. */
typedef struct kld_group {
    double sum[KLD_COLUMNS];
    uint64_t n[KLD_COLUMNS];   /* values in sum */
    uint64_t inf[KLD_COLUMNS]; /* infinite values, left out of sum */
    uint64_t positions;        /* finite rows; n + inf + undecided */
} kld_group;

/* KL at the positions of a span of all windows; a sum is not finite when a value is not. */
typedef struct kld_position_bin {
    double estimate, bound;
    uint64_t positions;
} kld_position_bin;

typedef struct kld_place {
    double value;
    size_t window;
    uint64_t position; /* in the window */
    uint32_t cluster, label, top_ref, top_cand;
    unsigned side; /* KLD_ROW_*, for rows that are not finite */
} kld_place;

/* Finite KL estimates of a cluster by depth, then by confidence. */
typedef struct kld_bins {
    double sum[KLD_BINS], n[KLD_BINS];
} kld_bins;

typedef struct kld_candidate_tally {
    kld_group all, by_depth[KLD_DEPTHS], by_confidence[KLD_CONFIDENCES];
    kld_group *by_cluster, *by_stratum; /* owned [clusters], [strata] */
    kld_bins *bins;                     /* owned [clusters] */
    double *values[KLD_DIV_KINDS];      /* owned [n_values]: the estimate, or the bound where there
                                           is none; sorted by kld_tally_end */
    size_t n_values, cap_values;
    uint32_t *value_cluster; /* owned [n_values]: of the values in order of adding */
    double
        *above; /* owned [clusters][KLD_TAILS], by kld_tally_end: KL values above each quantile */
    uint64_t inexact[KLD_DIV_KINDS], unestimated;
    double variance[KLD_DIV_KINDS]; /* sum over positions; NaN once one is unknown */
    kld_position_bin by_position[KLD_SPANS];
    uint64_t span; /* positions of each; a power of two, no larger than the longest window asks */
    uint64_t ref_nonfinite, cand_nonfinite;
    kld_place located[KLD_LOCATED], worst[KLD_WORST], max_at[KLD_DIV_KINDS];
    size_t n_located, n_worst;
    double expected[KLD_DRAFTS]; /* sum over starts of 1 + sum_j prod_{i<j} a */
    uint64_t expected_n[KLD_DRAFTS];
    uint64_t hist[KLD_HIST_BINS], hist_below, hist_above;
} kld_candidate_tally;

/* Mean KL of two candidates over the positions where both have a finite estimate. */
typedef struct kld_pair_tally {
    size_t a, b;
    double *sum_a, *sum_b, *n;     /* owned [clusters] */
    uint64_t lower, equal, higher; /* positions where b's KL is lower, ... than a's */
} kld_pair_tally;

/* Natural KL less what experts and routes explain each alone, QxQ - BxQ - QxB + BxB, over the
 * positions where all have a finite estimate. */
typedef struct kld_contrast_tally {
    long k[KLD_CELLS]; /* candidates in order of kld_cell; KLD_NO_CAPTURE counts as 0 */
    double *sum, *n;   /* owned [clusters] */
} kld_contrast_tally;

typedef struct kld_tally {
    size_t n_cands, n_pairs, n_contrasts;
    kld_candidate_tally *cand;    /* owned */
    kld_pair_tally *pair;         /* owned */
    kld_contrast_tally *contrast; /* owned [n_cands], of which n_contrasts are in use */
    uint32_t last_cluster;        /* of the window added last */
    size_t clusters, strata, cap_clusters, cap_strata;
    const char **cluster_name, **stratum_name; /* owned arrays of arena strings */
    uint32_t *stratum_of;                      /* owned [clusters] */
    uint64_t scored, windows;                  /* positions and windows added */
    json_t *index;                             /* owned: name -> number, clusters and strata */
    kld_arena strings;
} kld_tally;

/* All pairs of up to 16 candidates; of more, neighbours only.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tally_begin(kld_tally *t, size_t n_cands, kld_err *err);
void kld_tally_free(kld_tally *t);
/* Keep the contrast of these cells, too; before the first window, once a candidate. */
void kld_tally_contrast(kld_tally *t, const long k[KLD_CELLS]);

/* Add one window.  pos[k][n] are candidate k's positions first .. first+n-1 of it.
 * A window without a cluster is one by its source; without a source, by itself.  Clusters of
 * the same name in different strata are different clusters.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tally_window(kld_tally *t, size_t window, const kld_window_meta *meta,
                                          size_t first, size_t n, const kld_position *const *pos,
                                          kld_err *err);

/* Sort the values and count by cluster those above each of KLD_TAIL; nothing may be added
 * afterwards.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_tally_end(kld_tally *t, kld_err *err);

/* Mean of a column; NaN when a value was infinite, undecided positions left out. */
double kld_group_mean(const kld_group *g, int column);
/* Mean of an estimate; NaN also when a position has none. */
double kld_group_estimate(const kld_group *g, kld_div_kind kind);

KLD_EXTERN_C_END
#endif
