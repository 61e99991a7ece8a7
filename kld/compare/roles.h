/* kld/compare/roles.h - what the captures of one comparison are to each other: who was run with
 * whose routes.  From headers alone.  Floor 3.  docs/metrics.md, "The four cells". */
#ifndef KLD_COMPARE_ROLES_H
#define KLD_COMPARE_ROLES_H
#include "kld/store/capture.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* One capture; everything borrowed. */
typedef struct kld_report_side {
    const kld_capture_info *info;
    kld_digest content;
    const char *path;
    bool self;                /* the candidate is the reference's own content */
    bool arithmetic_mismatch; /* against the reference */
} kld_report_side;

/* Source of the routes x weights of everything else; B is the reference, Q a candidate. */
typedef enum kld_cell { KLD_BXB, KLD_BXQ, KLD_QXB, KLD_QXQ, KLD_CELLS } kld_cell;
extern const char *const KLD_CELL_NAME[KLD_CELLS]; /* "BxB", ... */

typedef enum kld_route_source {
    KLD_SOURCE_OWN, /* natural */
    KLD_SOURCE_REFERENCE,
    KLD_SOURCE_CANDIDATE,
    KLD_SOURCE_ELSEWHERE /* none of the captures here */
} kld_route_source;

/* Why a replayed capture is in no cell. */
typedef enum kld_left_out {
    KLD_PLACED,
    KLD_LEFT_SOURCE,     /* its routes are from elsewhere, or of a candidate that is not the other
                            side of a cell, such as itself */
    KLD_LEFT_CHECKPOINT, /* no natural capture of its checkpoint is here */
    KLD_LEFT_ARITHMETIC, /* that was captured with other arithmetic */
    KLD_LEFT_REPEATED    /* an earlier capture is this cell */
} kld_left_out;

enum { KLD_NO_CAPTURE = -1 };

typedef struct kld_role {
    kld_route_source source;
    long source_candidate; /* index when source is KLD_SOURCE_CANDIDATE, else KLD_NO_CAPTURE */
    /* The cell that it is; one whose ids alone were pinned is beside it and never in it.
     * KLD_CELLS when it is none, and left_out says why.  Natural captures are KLD_CELLS, too:
     * each is the QxQ of its own cells. */
    kld_cell cell;
    long of; /* the natural candidate whose cell it is; KLD_NO_CAPTURE for BxB, which is everyone's
              */
    kld_left_out left_out;
} kld_role;

/* The captures of the cells of one natural candidate. */
typedef struct kld_quad {
    bool shown;        /* something is known beside the candidate's own capture */
    long k[KLD_CELLS]; /* candidate or KLD_NO_CAPTURE; [KLD_BXB] is a check: the cell is 0 */
} kld_quad;

/* Fill role[n] and quad[n].
 *
 * Of one checkpoint is what kld_same_checkpoint says (belong.h).  Where several captures fit, one
 * with the same digest of every byte or the same name is taken first, then the reference, then the
 * first. */
void kld_roles_find(const kld_report_side *ref, const kld_report_side *cand, size_t n,
                    kld_role *role, kld_quad *quad);

KLD_EXTERN_C_END
#endif
