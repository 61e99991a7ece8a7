/* kld/nightly/config.h - the file that says what a nightly run measures.  Floor 4.
 * Keys and defaults: docs/nightly.md. */
#ifndef KLD_NIGHTLY_CONFIG_H
#define KLD_NIGHTLY_CONFIG_H
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "kld/base/status.h"
#include "kld/capture/capture.h"
#include "kld/compare/options.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* A limit for one metric (kld/compare/gates.h) of one candidate. */
typedef struct kld_nightly_gate {
    const char *metric; /* static */
    double limit; /* of the value; of a relative gate, of its growth since the last good run */
    bool relative;
} kld_nightly_gate;

/* A capture to have. */
typedef struct kld_nightly_item {
    const char *name;        /* "reference", a candidate's own, or "floor" */
    const char *model;       /* a path from here, or org/name */
    const char *routes;      /* as in the file, or NULL */
    kld_capture_options opt; /* all but output, ref, replay, where, resume and force */
    long replay;             /* item whose routes are used, an earlier one; -1 = none */
    kld_nightly_gate *gates; /* [n_gates], arena; the absolute ones first */
    size_t n_gates;
} kld_nightly_item;

typedef enum kld_nightly_file {
    KLD_NIGHTLY_HTML,
    KLD_NIGHTLY_MARKDOWN,
    KLD_NIGHTLY_RECEIPT,
    KLD_NIGHTLY_JSON,
    KLD_NIGHTLY_JUNIT,
    KLD_NIGHTLY_PROMETHEUS,
    KLD_NIGHTLY_FILES
} kld_nightly_file;

typedef struct kld_nightly_config {
    const char *path, *output, *suite; /* as seen from here */
    const char *sign_key;              /* private key for receipts, or NULL */
    const char *device;
    uint64_t threads;       /* 0 = all cores */
    kld_nightly_item *item; /* [n_items]: the reference, the candidates, perhaps the floor */
    size_t n_items, n_candidates;
    const char *floor; /* capture of the reference made before, or NULL */
    kld_compare_options compare;
    uint64_t keep;                         /* folders of runs to keep; 0 = all */
    const char *name[KLD_NIGHTLY_FILES];   /* in the folder of a run; NULL = not written */
    const char *second[KLD_NIGHTLY_FILES]; /* path of a further copy, or NULL */
    json_t *root;                          /* owned; strings above are its or the arena's */
    kld_arena arena;
} kld_nightly_config;

/* On error *c is empty.  Checkpoints are not looked at: one that is missing or broken is that
 * capture's failure, not the file's.
 * KLD_E_INPUT  the file is missing or no JSON; a key is unknown (known ones are listed), missing,
 *              mistyped or out of range; a name is no plain file name, taken or reserved; a
 *              candidate, metric or route is unknown; a copy of a report would
 *              replace what is read. */
KLD_NODISCARD kld_status kld_nightly_config_load(kld_nightly_config *c, const char *path,
                                                 kld_err *err);
void kld_nightly_config_free(kld_nightly_config *c);

/* A file to begin with. */
const char *kld_nightly_example(void);

KLD_EXTERN_C_END
#endif
