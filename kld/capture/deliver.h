/* kld/capture/deliver.h - windows on their way into a capture: references are read ahead and
 * records compressed by background tasks, frames are written in suite order.  Floor 3. */
#ifndef KLD_CAPTURE_DELIVER_H
#define KLD_CAPTURE_DELIVER_H
#include "datasets/suite.h"
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include "logits/engine.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_deliver kld_deliver;

/* All borrowed; ref NULL for a reference.  Windows come from `first` on.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_deliver_open(kld_deliver **out, kld_capture_writer *w,
                                          kld_capture *ref, const kld_suite *suite, size_t first,
                                          kld_err *err);
/* The reference's lists of window i, valid until its records were delivered.
 * KLD_E_INPUT  a damaged frame, or one of other tokens than the suite's. */
KLD_NODISCARD kld_status kld_deliver_gather(kld_deliver *d, size_t i, kld_gather *out,
                                            kld_err *err);
/* Take over the records of window i (*r is left empty).  An error may be that of a window before,
 * whose compression ended only now; errors of kld_capture_add. */
KLD_NODISCARD kld_status kld_deliver_records(kld_deliver *d, size_t i, kld_records *r,
                                             kld_err *err);
/* Everything delivered so far is written when this returns. */
KLD_NODISCARD kld_status kld_deliver_flush(kld_deliver *d, kld_err *err);
void kld_deliver_close(kld_deliver *d); /* waits for what is under way; NULL is fine */

KLD_EXTERN_C_END
#endif
