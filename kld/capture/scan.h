/* kld/capture/scan.h - is calibration text in a suite?  Floor 3. */
#ifndef KLD_CAPTURE_SCAN_H
#define KLD_CAPTURE_SCAN_H
#include "datasets/suite.h"
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/tokenizer.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_scan_options {
    const char *const *files; /* [n_files] as kld_overlap_file takes them */
    size_t n_files;
    double above;   /* list clusters of which more than this share of n-grams is found */
    double similar; /* and those at least as similar as this to a document */
} kld_scan_options;

/* The object of docs/suites.md ("kld suite scan --json"); *out is owned.
 *  tokenizer  of the suite; NULL when all files have ids
 * KLD_E_INPUT  another tokenizer than the suite's; errors of kld_overlap_file. */
KLD_NODISCARD kld_status kld_suite_scan(const kld_suite *s, const char *path,
                                        const kld_tokenizer *tokenizer, const kld_scan_options *opt,
                                        json_t **out, kld_err *err);

/* The same in lines for people, made from that object alone; at most 20 clusters. */
KLD_NODISCARD kld_status kld_suite_scan_text(const json_t *v, kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
