/* kld/store/info_optional.h - keys of a header's identity that are there only when there is
 * something to say, so that captures without them have the bytes they always had.  Floor 1; private
 * to kld/store.  docs/format.md, "Header frame". */
#ifndef KLD_STORE_INFO_OPTIONAL_H
#define KLD_STORE_INFO_OPTIONAL_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include <stdbool.h>
#include <stddef.h>

enum { INFO_OPTIONAL = 4 };
extern const char *const INFO_OPTIONAL_KEY[INFO_OPTIONAL]; /* in file order */

/* Append what info has to the object.  False: out of memory, or text that is not UTF-8. */
bool info_optional_add(const kld_capture_info *info, json_t *root);

/* The inverse; *n keys were there.  KLD_E_INPUT for a mistyped, missing or unknown member. */
KLD_NODISCARD kld_status info_optional_parse(kld_capture_info *info, const json_t *root, size_t *n,
                                             kld_err *err);

/* KLD_E_INPUT for a value out of range, or values that contradict each other. */
KLD_NODISCARD kld_status info_optional_check(const kld_capture_info *info, kld_err *err);

#endif
