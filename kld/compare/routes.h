/* kld/compare/routes.h - do two captures send tokens to the same experts?  Floor 3; no files.
 * Every number is defined in docs/metrics.md, "Routes". */
#ifndef KLD_COMPARE_ROUTES_H
#define KLD_COMPARE_ROUTES_H
#include "kld/base/status.h"
#include "kld/store/records.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* What is averaged over tokens. */
typedef enum kld_route_column {
    KLD_ROUTE_TOP1,    /* 1 when the first slots hold the same expert */
    KLD_ROUTE_SLOTS,   /* share of slots that hold the same expert in both */
    KLD_ROUTE_OVERLAP, /* share of the reference's experts that the candidate chose too */
    KLD_ROUTE_EXACT,   /* 1 when the sets are equal, in whatever order */
    KLD_ROUTE_TV,      /* of the weights, each side's scaled to sum 1; some are undecided */
    KLD_ROUTE_COLUMNS
} kld_route_column;

/* Sums over tokens of one layer, or of several. */
typedef struct kld_route_sums {
    double sum[KLD_ROUTE_COLUMNS];
    uint64_t n[KLD_ROUTE_COLUMNS]; /* all the same but TV's: weights that are negative, not finite
                                      or sum to 0 have none */
    /* Finite router margins of the reference: where the sets are equal, and where they differ. */
    double margin[2];
    uint64_t margin_n[2];
} kld_route_sums;

/* Add one window, layer by layer: out[ref->route_layers] are added to.
 * KLD_E_INPUT  the two have not the same tokens, layers and experts a token. */
KLD_NODISCARD kld_status kld_routes_compare(const kld_records *ref, const kld_records *cand,
                                            kld_route_sums *out, kld_err *err);

void kld_route_sums_add(kld_route_sums *to, const kld_route_sums *from);
/* Mean of a column; NaN without tokens. */
double kld_route_mean(const kld_route_sums *s, kld_route_column c);
/* Mean margin where the sets are equal (0), differ (1), or anywhere (2); NaN without any. */
double kld_route_margin(const kld_route_sums *s, int where);

/* A candidate's sums over windows; zero is empty. */
typedef struct kld_route_tally {
    size_t layers; /* 0: routes are not compared */
    uint64_t tokens;
    kld_route_sums *layer;      /* owned [layers] */
    kld_route_sums *by_cluster; /* owned [cap_clusters]: all layers together */
    size_t cap_clusters;
} kld_route_tally;

KLD_NODISCARD kld_status kld_route_tally_begin(kld_route_tally *t, size_t layers, kld_err *err);
void kld_route_tally_free(kld_route_tally *t);
/* Add what kld_routes_compare gave for one window, of `tokens` tokens and from `cluster`.  Windows
 * are added one after another, in file order, so every sum has one order.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_route_tally_window(kld_route_tally *t, size_t cluster, uint64_t tokens,
                                                const kld_route_sums *layer, kld_err *err);

KLD_EXTERN_C_END
#endif
