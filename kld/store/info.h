/* kld/store/info.h - the header's JSON texts.  Floor 1; private to kld/store. */
#ifndef KLD_STORE_INFO_H
#define KLD_STORE_INFO_H
#include "kld/base/buf.h"
#include "kld/store/capture.h"

/* Identity text: everything but time and host, compact, keys in a fixed order, so that equal
 * captures have equal bytes. */
KLD_NODISCARD kld_status kld_info_identity(const kld_capture_info *info, kld_buf *out,
                                           kld_err *err);
/* {"time": ..., "host": ...} */
KLD_NODISCARD kld_status kld_info_run(const kld_capture_info *info, kld_buf *out, kld_err *err);

/* The inverse of both.  KLD_E_INPUT for a missing or mistyped key or a value out of range;
 * unknown keys are refused, since the version says which there are. */
KLD_NODISCARD kld_status kld_info_parse(kld_capture_info *info, const void *identity, size_t n,
                                        const void *run, size_t n_run, kld_err *err);

/* Name the first key in which two identity texts differ.  KLD_E_INPUT always. */
KLD_NODISCARD kld_status kld_info_difference(const void *a, size_t na, const void *b, size_t nb,
                                             kld_err *err);

#endif
