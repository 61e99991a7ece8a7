/* kld/base/parse.h - numbers as people write them.  Floor 0.  No sign, blank, hexadecimal or
 * trailing text; false when malformed, and *out is then unspecified. */
#ifndef KLD_BASE_PARSE_H
#define KLD_BASE_PARSE_H
#include "kld/base/status.h"
#include <stdbool.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* A finite decimal number. */
bool kld_parse_real(const char *text, double *out);
/* Bytes with K, M, G or T (powers of 1024, with or without "iB" or "B"): "512M", "1.5GiB"; below
 * 2^63. */
bool kld_parse_size(const char *text, uint64_t *out);

KLD_EXTERN_C_END
#endif
