#include "kld/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* C0 controls and DEL, and C1 controls, which are C2 80 .. C2 9F in UTF-8: the number of bytes. */
static size_t control_at(const char *s) {
    unsigned char c = (unsigned char)s[0], next = c ? (unsigned char)s[1] : 0;
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) return 2;
    return (c && c < 0x20) || c == 0x7f;
}

bool kld_has_controls(const char *s) {
    for (; *s; s++)
        if (control_at(s)) return true;
    return false;
}

void kld_blank_controls(char *s) {
    while (*s) {
        size_t n = control_at(s);
        if (n == 0) s++;
        for (; n > 0; n--) *s++ = '?';
    }
}

kld_status kld_fail(kld_err *err, kld_status status, const char *fmt, ...) {
    if (!err) return status;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    kld_blank_controls(err->text);
    err->status = status;
    return status;
}

kld_status kld_where(kld_err *err, kld_status status, const char *fmt, ...) {
    if (!err || status == KLD_OK) return status;
    char place[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(place, sizeof place, fmt, ap);
    va_end(ap);
    kld_blank_controls(place);
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    old[sizeof old - 1] = '\0';
    size_t n = strlen(place);
    if (n > sizeof err->text - 3) n = sizeof err->text - 3;
    memcpy(err->text, place, n);
    memcpy(err->text + n, ": ", 2);
    size_t room = sizeof err->text - n - 3, m = strlen(old);
    if (m > room) m = room;
    memcpy(err->text + n + 2, old, m);
    err->text[n + 2 + m] = '\0';
    return status;
}

int kld_exit_code(kld_status status) {
    switch (status) {
    case KLD_OK: return 0;
    case KLD_E_GATE: return 1;
    case KLD_E_USAGE: return 2;
    case KLD_E_INPUT:
    case KLD_E_NUMERIC: return 3;
    case KLD_E_UNSUPPORTED: return 4;
    case KLD_E_NOMEM:
    case KLD_E_IO:
    case KLD_E_DEVICE: return 5;
    case KLD_E_INTERRUPTED: return 130;
    case KLD_E_INTERNAL: break;
    }
    return 70;
}
