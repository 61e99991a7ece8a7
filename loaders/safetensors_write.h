/* loaders/safetensors_write.h - the header of a new safetensors file.  Floor 1.
 * Tensors are laid out by descending alignment of their dtype (8, 4, 2, 1 bytes) and, within
 * one alignment, in the caller's order: every tensor is naturally aligned, which some
 * readers need although the format does not promise it. */
#ifndef KLD_LOADERS_SAFETENSORS_WRITE_H
#define KLD_LOADERS_SAFETENSORS_WRITE_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/safetensors.h"
#include <stddef.h>

KLD_EXTERN_C_BEGIN

/* Sets offset (relative to the data that follows the header) and bytes of t[0..n) from dtype
 * and shape, sorts t into file order (stable), and appends the 8-byte length and the header
 * text, padded with spaces to a multiple of 8, to out.
 *  metadata  an object of strings, or NULL for {"format": "pt"}
 * KLD_E_INPUT  a size overflows.  KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_safetensors_layout(kld_tensor *t, size_t n, const json_t *metadata,
                                                kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
