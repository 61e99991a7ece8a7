/* kld/capture/inspect.h - what a checkpoint or a capture holds.  Floor 3. */
#ifndef KLD_CAPTURE_INSPECT_H
#define KLD_CAPTURE_INSPECT_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_inspect_options {
    double disk_speed; /* bytes a second, for the expected read time */
    uint64_t tokens;   /* of a run, for the memory plan */
    uint64_t window;
} kld_inspect_options;

/* `path` is a capture file, a checkpoint directory or org/name.  *out (owned) has "kind":
 * "capture" or "checkpoint" and the fields that kld_inspect_text prints, sizes in bytes; errors
 * as opening it. */
KLD_NODISCARD kld_status kld_inspect(const char *path, const kld_inspect_options *opt, json_t **out,
                                     kld_err *err);

/* Lines for people from that object. */
KLD_NODISCARD kld_status kld_inspect_text(const json_t *v, kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
