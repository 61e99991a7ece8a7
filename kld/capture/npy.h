/* kld/capture/npy.h - NumPy .npy files: format versions 1 to 3 are read, 1.0 written.  Floor 3.
 * Source: numpy.lib.format documentation. */
#ifndef KLD_CAPTURE_NPY_H
#define KLD_CAPTURE_NPY_H
#include "kld/base/file.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Read a 1-D (or [1][n]) array of little-endian int32, uint32, int64 or uint64, C order, as
 * token ids; *ids is owned (kld_free).
 * KLD_E_INPUT  other dtype, order or rank; a negative value or one above 2^32-1 (message has
 *              its index); truncated; more than 2^26 elements. */
KLD_NODISCARD kld_status kld_npy_read_ids(const char *path, uint32_t **ids, size_t *n,
                                          kld_err *err);

/* Header of a C-order float32 array [rows][cols]; rows*cols values follow. */
KLD_NODISCARD kld_status kld_npy_header_f32(kld_writer *w, size_t rows, size_t cols, kld_err *err);

KLD_EXTERN_C_END
#endif
