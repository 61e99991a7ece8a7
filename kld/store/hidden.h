/* kld/store/hidden.h - hidden states <-> the planes of their column.  Floor 1; private to
 * kld/store. docs/format.md, "Hidden states".  They are most of an exact capture, so they go from
 * and to records without a copy of 32-bit values in between. */
#ifndef KLD_STORE_HIDDEN_H
#define KLD_STORE_HIDDEN_H
#include "kld/base/buf.h"
#include "kld/store/capture.h"
#include "kld/store/columns.h"

/* Values of 32 bits a row: one of FP32, or two of BF16, the even column in the low half. */
size_t hidden_words(const kld_hidden_info *h);

/* The planes of r's hidden states appended to out; c borrows them.  KLD_E_INTERNAL  not of the
 * header's shape. */
KLD_NODISCARD kld_status hidden_planes(const kld_hidden_info *h, const kld_records *r, kld_buf *out,
                                       columns *c, kld_err *err);

/* The inverse, into r->hidden, allocated here for r->n rows.  KLD_E_INPUT  another number of
 * values. */
KLD_NODISCARD kld_status hidden_take(const kld_hidden_info *h, const columns *c, kld_records *r,
                                     kld_err *err);
/* That number alone. */
KLD_NODISCARD kld_status hidden_check(const kld_hidden_info *h, const columns *c, size_t rows,
                                      kld_err *err);

#endif
