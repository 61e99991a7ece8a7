/* kld/compare/emit.h - building a JSON object without a check at every line.
 * Floor 3; may include kld/base only.  The first failed allocation sets `failed`, and one
 * check at the end suffices. */
#ifndef KLD_COMPARE_EMIT_H
#define KLD_COMPARE_EMIT_H
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include <stdbool.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_emit {
    bool failed;
} kld_emit;

/* Add a member to an object, or, with key NULL, an element to an array.  `into` may be NULL
 * after an earlier failure. */
void kld_emit_value(kld_emit *e, json_t *into, const char *key, json_t *value); /* takes value */
void kld_emit_real(kld_emit *e, json_t *into, const char *key, double v); /* null if not finite */
void kld_emit_count(kld_emit *e, json_t *into, const char *key, uint64_t v);
void kld_emit_bool(kld_emit *e, json_t *into, const char *key, bool v);
/* NULL gives null.  Bytes that are not UTF-8 and control characters become '?'. */
void kld_emit_text(kld_emit *e, json_t *into, const char *key, const char *v);
/* Lower-case hex; NULL gives null. */
void kld_emit_digest(kld_emit *e, json_t *into, const char *key, const kld_digest *d);
/* [lo, hi], or null when either is not finite. */
void kld_emit_range(kld_emit *e, json_t *into, const char *key, double lo, double hi);
/* New member object or array, borrowed. */
json_t *kld_emit_object(kld_emit *e, json_t *into, const char *key);
json_t *kld_emit_array(kld_emit *e, json_t *into, const char *key);
/* KLD_E_NOMEM if anything failed. */
KLD_NODISCARD kld_status kld_emit_check(const kld_emit *e, kld_err *err);

KLD_EXTERN_C_END
#endif
