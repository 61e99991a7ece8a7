/* kld/nightly/keys.h - members of a JSON object into fields of a structure, by table; and texts
 * back out.  Floor 4; private to kld/nightly. */
#ifndef KLD_NIGHTLY_KEYS_H
#define KLD_NIGHTLY_KEYS_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum key_kind {
    KEY_ANY,    /* known, read elsewhere */
    KEY_COUNT,  /* uint64_t */
    KEY_INDEX,  /* size_t */
    KEY_REAL,   /* double */
    KEY_SIZE,   /* uint64_t: bytes, or text such as "4GiB" */
    KEY_FLAG,   /* bool */
    KEY_TEXT,   /* const char *, borrowed */
    KEY_CHOICE, /* enumeration: 0 or 1, by which of two words it is */
    KEY_SWITCH  /* bool: true for the second word */
};
typedef struct key_row {
    const char *name;
    enum key_kind kind;
    size_t at; /* offset of the field */
    const char *word[2];
} key_row;

/* KLD_E_INPUT  not an object; an unknown member (known ones are listed); one of another type, a
 *              word that is not one of the two, or text with control characters. */
KLD_NODISCARD kld_status keys_read(const json_t *o, const key_row *keys, size_t n, void *into,
                                   kld_err *err);

/* A member that is text; "" when it is absent or anything else. */
const char *nightly_text(const json_t *o, const char *member);
/* A member that is a number; NaN when it is absent or anything else. */
double nightly_real(const json_t *o, const char *member);
bool nightly_is(const json_t *o, const char *member, const char *value);

/* Length of the day in "2026-11-30T02:00:00Z": 10. */
int nightly_day(const char *time);

#endif
