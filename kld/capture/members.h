/* kld/capture/members.h - building a JSON object with one check at the end: whatever fails makes
 * *ok false, and what is built on a failure is NULL, which these take.  Floor 3. */
#ifndef KLD_CAPTURE_MEMBERS_H
#define KLD_CAPTURE_MEMBERS_H
#include "kld/base/json.h"
#include <stdbool.h>

static inline json_t *kld_count(uint64_t n) { return json_integer((json_int_t)n); }

/* Takes v. */
static inline void kld_put(json_t *o, const char *key, json_t *v, bool *ok) {
    if (json_object_set_new(o, key, v) != 0) *ok = false;
}

/* A new object at the end of an array, borrowed. */
static inline json_t *kld_element(json_t *a, bool *ok) {
    json_t *o = json_object();
    if (json_array_append_new(a, o) == 0) return o;
    *ok = false;
    return NULL;
}

#endif
