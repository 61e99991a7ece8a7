/* Exact comparisons: a pair of small models, captures of them that keep hidden states, and the
 * comparison of these. */
#ifndef TESTS_UNIT_EXACTKIT_H
#define TESTS_UNIT_EXACTKIT_H
#include "kld/compare/compare.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/recastkit.h"

enum { EXACT_KEPT = 5 }; /* windows of a scene that score something */
extern const size_t EXACT_SCORED[EXACT_KEPT];

/* A model, and everything that it says of the windows. */
typedef struct exact_side {
    const kld_model *m;
    kld_records all[WINDOWS]; /* every id listed, with hidden states */
    size_t n;
} exact_side;

kld_engine_options exact_options(const scene *s, kld_precision p, size_t top_k);
void exact_run(exact_side *out, const scene *s, const kld_model *m, const kld_engine_options *o);
void exact_drop(exact_side *s);

typedef struct exact_form {
    kld_precision precision;
    bool no_hidden;          /* an ordinary capture */
    const char *checkpoint;  /* what the header says; NULL: the model's directory */
    const kld_digest *head;  /* what the header says; NULL: the model's */
    const double *logit_cap; /* alike */
    size_t nan_row;          /* > 0: that row of the long window is not finite */
    double shift;            /* added to every recorded log-sum-exp */
    const char *arithmetic;  /* NULL: as it is */
} exact_form;

void exact_capture(const char *path, const scene *s, const kld_model *m, const exact_form *f);

/* A scene, a candidate of the same shape, captures in the scene's directory. */
typedef struct exact_rig {
    scene s;
    tiny other;
    kld_model *cand;
    char ref_path[128], cand_path[128];
    kld_compare_options opt;
} exact_rig;

void exact_open(exact_rig *g, tiny t, uint64_t seed);
void exact_close(exact_rig *g);
json_t *exact_compare(exact_rig *g);
/* That the comparison fails, and says this. */
void exact_fails(exact_rig *g, kld_status want, const char *text);

/* The number at path is want, to tol of it or of 1e-3. */
void exact_near(const json_t *r, const char *path, double want, double tol);

#endif
