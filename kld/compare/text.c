#include "kld/compare/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void text_puts(text_out *o, const char *s) {
    if (o->st == KLD_OK) o->st = kld_buf_adds(o->b, s, o->err);
}

void text_put(text_out *o, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    text_puts(o, line);
}

void text_style(text_out *o, const char *code) {
    if (o->color) text_put(o, "\x1b[%sm", code);
}

void text_title(text_out *o, const char *heading) {
    text_puts(o, "\n");
    text_style(o, "1");
    text_puts(o, heading);
    text_style(o, "0");
    text_puts(o, "\n");
}

/* ---- cells ------------------------------------------------------------------------------ */

const json_t *text_at(const json_t *o, const char *a, const char *b) {
    o = json_object_get(o, a);
    return b ? json_object_get(o, b) : o;
}

const char *text_of(const json_t *o, const char *a) {
    const char *s = json_string_value(json_object_get(o, a));
    return s ? s : "";
}

const char *text_number(char cell[TEXT_CELL], const json_t *v, size_t width) {
    if (!json_is_number(v)) return "-";
    double x = json_number_value(v);
    if (x == 0) return "0";
    for (int digits = 4; digits > 0; digits--) {
        size_t n = (size_t)snprintf(cell, TEXT_CELL, digits > 1 ? "%#.*g" : "%.*g", digits, x);
        if (n && cell[n - 1] == '.') cell[--n] = 0;
        if (n <= width) break;
    }
    return cell;
}

const char *text_fixed(char cell[TEXT_CELL], const json_t *v, int decimals) {
    if (!json_is_number(v)) return "-";
    (void)snprintf(cell, TEXT_CELL, "%.*f", decimals, json_number_value(v));
    return cell;
}

const char *text_percent(char cell[TEXT_CELL], const json_t *v) {
    if (!json_is_number(v)) return "-";
    double x = 100 * json_number_value(v);
    /* 99.96 must not read as 100. */
    if (x == 100) return "100%";
    (void)snprintf(cell, TEXT_CELL, "%.1f%%", fmin(x, 99.9));
    return cell;
}

const char *text_range(char cell[TEXT_CELL], const json_t *v) {
    char a[TEXT_CELL], b[TEXT_CELL];
    if (!json_is_array(v)) return "-";
    const char *lo = text_number(a, json_array_get(v, 0), 7),
               *hi = text_number(b, json_array_get(v, 1), 7);
    (void)snprintf(cell, TEXT_CELL, "%.20s..%.20s", lo, hi);
    return cell;
}

void text_name(text_out *o, const char *s, size_t n, bool pad) {
    size_t chars = 0, i = 0, cut = 0;
    while (s[i]) {
        size_t next = i + 1;
        while (((unsigned char)s[next] & 0xC0) == 0x80) next++;
        if (chars + 1 == n) cut = i;
        i = next;
        chars++;
    }
    if (chars > n) {
        text_put(o, "%.*s~", (int)cut, s);
        return;
    }
    text_puts(o, s);
    for (; pad && chars < n; chars++) text_puts(o, " ");
}

void text_row_name(text_out *o, const json_t *c, size_t k) {
    const json_t *routing = json_object_get(c, "routing");
    const char *label = text_of(c, "label"), *mode = text_of(routing, "mode");
    const char *cell = text_of(routing, "cell"), *lead = "";
    if (strcmp(mode, "replay-ids") == 0) lead = "id-pinned";
    else if (strcmp(mode, "replay") == 0) lead = *cell ? cell : "replay";
    size_t room = TEXT_NAME - strlen(lead) - (*lead != 0);
    text_put(o, "%s[%zu] %s%s", k + 1 < 10 ? " " : "", k + 1, lead, *lead ? " " : "");
    text_name(o, *label ? label : text_of(c, "name"), room, true);
}
