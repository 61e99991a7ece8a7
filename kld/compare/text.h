/* kld/compare/text.h - lines of a table for people.  Floor 3; private to kld/compare. */
#ifndef KLD_COMPARE_TEXT_H
#define KLD_COMPARE_TEXT_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum { TEXT_WIDTH = 100, TEXT_NAME = 14, TEXT_CELL = 48 };

/* The first failure stays; later writes do nothing. */
typedef struct text_out {
    kld_buf *b;
    kld_err *err;
    kld_status st;
    bool color;
} text_out;

void text_puts(text_out *o, const char *s);
KLD_PRINTF(2, 3) void text_put(text_out *o, const char *fmt, ...); /* up to 1,023 bytes */
void text_style(text_out *o, const char *code);                    /* nothing without color */
void text_title(text_out *o, const char *heading);                 /* after an empty line, bold */

/* At most n characters of UTF-8, padded with spaces to n when pad. */
void text_name(text_out *o, const char *s, size_t n, bool pad);
/* "[k+1] label" of a candidate in TEXT_NAME columns; of one with routes of another capture the
 * cell goes first ("BxQ", else "replay"), or "id-pinned". */
void text_row_name(text_out *o, const json_t *c, size_t k);

/* Member a of o, or member b of that. */
const json_t *text_at(const json_t *o, const char *a, const char *b);
const char *text_of(const json_t *o, const char *a); /* "" when it is no string */

/* Numbers in `cell` or in a literal; "-" for null. */

/* As many of four significant digits as fit into width; exactly "0" for zero. */
const char *text_number(char cell[TEXT_CELL], const json_t *v, size_t width);
const char *text_fixed(char cell[TEXT_CELL], const json_t *v, int decimals);
const char *text_percent(char cell[TEXT_CELL], const json_t *v);
const char *text_range(char cell[TEXT_CELL], const json_t *v); /* "lo..hi" of an array */

#endif
