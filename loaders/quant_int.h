/* loaders/quant_int.h - decoding of integer weights.  Floor 1; C, and its inline functions CUDA.
 * Layouts as published with each format: compressed-tensors pack_to_int32, AutoAWQ's GEMM
 * packing, AutoGPTQ's QuantLinear, ModelOpt's INT4 export. */
#ifndef KLD_LOADERS_QUANT_INT_H
#define KLD_LOADERS_QUANT_INT_H
#include "loaders/numfmt.h"
#include "loaders/quant.h"

KLD_EXTERN_C_BEGIN

/* kld_weight_decode for the integer formats. */
void kld_int_decode(const kld_weight *w, kld_weight_view v, size_t row0, size_t n, float *out);

/* `bits` (at most 8) bits from bit `at` on of a little-endian stream, lowest first: bytes and
 * 32-bit words make the same stream. */
KLD_NUM unsigned kld_int_field(const unsigned char *p, size_t at, unsigned bits) {
    unsigned v = p[at / 8], shift = (unsigned)(at % 8);
    if (shift + bits > 8) v |= (unsigned)p[at / 8 + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

/* Nibble of an AWQ word that holds row `row`: rows 0..7 of a word are nibbles 0 4 1 5 2 6 3 7. */
KLD_NUM unsigned kld_awq_nibble(size_t row) { return (unsigned)(row % 8 / 2 + row % 2 * 4); }

KLD_EXTERN_C_END
#endif
