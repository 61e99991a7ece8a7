/* kld/compare/table_routes.h - routes and cells as text.  Floor 3; private to kld/compare. */
#ifndef KLD_COMPARE_TABLE_ROUTES_H
#define KLD_COMPARE_TABLE_ROUTES_H
#include "kld/compare/text.h"

/* A candidate that ran with the routes of a capture. */
bool table_replayed(const json_t *c);
/* The reference with its own routes, which is 0 by construction. */
bool table_replay_check(const json_t *c);
/* Both natural, or both replayed alike from the same kind of source. */
bool table_same_routing(const json_t *a, const json_t *b);
/* A pair with the reference itself says nothing that the candidate's own row does not, and one of
 * different routings compares estimands, not checkpoints: the cells are for that. */
bool table_pair_told_elsewhere(const json_t *result, const json_t *pair);
/* The verdict, or "unresolved" where the difference is within twice the noise floor. */
const char *table_pair_verdict(const json_t *pair);
/* "10 %" or "0.001 nats", whichever decides. */
enum { TABLE_MARGIN = 40 };
const char *table_margin(char out[TABLE_MARGIN], const json_t *result);
/* ", routes of the reference" and the like, in up to 38 columns. */
void table_replay_label(text_out *o, const json_t *c);

/* Agreement of routes, each candidate over all layers and by layer; nothing when none has any. */
void table_routes(text_out *o, const json_t *result);
/* Source of routes x weights, a table for each candidate that has a cell. */
void table_cells(text_out *o, const json_t *result);

#endif
