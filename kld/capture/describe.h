/* kld/capture/describe.h - what is in a suite, for `kld suite info`.  Floor 3. */
#ifndef KLD_CAPTURE_DESCRIBE_H
#define KLD_CAPTURE_DESCRIBE_H
#include "datasets/suite.h"
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"

KLD_EXTERN_C_BEGIN

enum { KLD_ENOUGH_CLUSTERS = 30, KLD_ENOUGH_POSITIONS = 10000 };

/* [{"name", "clusters", "windows", "positions"}, ...] by name; clusters are counted in each
 * stratum, as `kld compare` resamples them.  *out is owned. */
KLD_NODISCARD kld_status kld_suite_partitions(const kld_suite *s, json_t **out, kld_err *err);

/* The object of docs/suites.md ("kld suite info --json"); *out is owned.  `path` is told on. */
KLD_NODISCARD kld_status kld_suite_describe(const kld_suite *s, const char *path, json_t **out,
                                            kld_err *err);

/* The same in lines for people, made from that object alone.  Nothing in a name can move the
 * cursor. */
KLD_NODISCARD kld_status kld_suite_describe_text(const json_t *v, kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
