/* Made-up captures whose means and quantiles are known: what intervals are tried on. */
#ifndef KLD_TESTS_SIMKIT_H
#define KLD_TESTS_SIMKIT_H
#include "kld/compare/stats.h"
#include "kld/compare/verdict.h"

#include <stddef.h>
#include <stdint.h>

/* What is drawn.  ln KL of a token is mean + document + token, all normal, tokens of a document
 * autocorrelated; documents have lognormal lengths, and longer ones are better predicted. */
typedef struct sim_design {
    size_t clusters, strata;  /* cluster c is of stratum c % strata */
    double tokens, tokens_sd; /* median of a document, standard deviation of ln */
    double document_sd, token_sd, stratum_sd;
    double ratio; /* of candidate b's KL to candidate a's */
    int copies;   /* times that each token is scored, in other windows */
} sim_design;
sim_design sim_defaults(void);

enum { SIM_QUANTILES = 5 };
extern const double SIM_QUANTILE[SIM_QUANTILES];

/* Ratios, in order of columns; the last ones are shares above the sample's quantiles of a. */
typedef enum sim_column {
    SIM_KL,
    SIM_JS,
    SIM_TV,
    SIM_TOP1,
    SIM_DIFFERENCE, /* KL of b less that of a */
    SIM_RATIO,      /* KL of b by that of a */
    SIM_ABOVE,
    SIM_COLUMNS = SIM_ABOVE + SIM_QUANTILES
} sim_column;
extern const char *const SIM_NAME[SIM_COLUMNS];

/* Means, and for the last columns quantiles, of what is drawn, by numerical integration. */
void sim_truth(const sim_design *d, double truth[SIM_COLUMNS]);

typedef struct sim {
    kld_strata strata;
    kld_cluster_sums sums;
    double *num, *den, *values; /* owned; values: sorted KL of a */
    size_t n_values, tokens;    /* scored positions */
    double iid_se;              /* of the mean KL if positions were independent */
} sim;
void sim_draw(sim *s, const sim_design *d, uint64_t seed);
void sim_free(sim *s);

/* Interval that kld compare would give for a column. */
kld_interval sim_interval(const sim *s, const kld_estimate *e, size_t col);

#endif
