#include "kld/base/parse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number at the start of text and what follows it. */
static bool leading_number(const char *text, double *out, const char **rest) {
    if (!((*text >= '0' && *text <= '9') || *text == '.')) return false;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return false;
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    *rest = end;
    return end != text && errno == 0 && isfinite(*out);
}

bool kld_parse_real(const char *text, double *out) {
    const char *rest = text;
    return leading_number(text, out, &rest) && !*rest;
}

bool kld_parse_size(const char *text, uint64_t *out) {
    double v = 0;
    const char *rest = text;
    if (!leading_number(text, &v, &rest)) return false;
    static const char units[] = "KMGT";
    const char *u = *rest ? strchr(units, *rest) : NULL;
    if (u) {
        v = ldexp(v, 10 * (int)(u - units + 1));
        rest++;
        if (strcmp(rest, "iB") == 0 || strcmp(rest, "B") == 0) rest += strlen(rest);
    }
    if (*rest || v >= 0x1p63) return false;
    *out = (uint64_t)v;
    return true;
}
