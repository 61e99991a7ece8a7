#include "kld/compare/emit.h"

#include <math.h>
#include <string.h>

void kld_emit_value(kld_emit *e, json_t *into, const char *key, json_t *value) {
    int rc = key ? json_object_set_new(into, key, value) : json_array_append_new(into, value);
    if (rc != 0) e->failed = true;
}

void kld_emit_real(kld_emit *e, json_t *into, const char *key, double v) {
    /* v + 0.0 turns a negative zero into zero. */
    kld_emit_value(e, into, key, isfinite(v) ? json_real(v + 0.0) : json_null());
}

void kld_emit_count(kld_emit *e, json_t *into, const char *key, uint64_t v) {
    kld_emit_value(e, into, key, json_integer((json_int_t)v));
}

void kld_emit_bool(kld_emit *e, json_t *into, const char *key, bool v) {
    kld_emit_value(e, into, key, json_boolean(v));
}

void kld_emit_text(kld_emit *e, json_t *into, const char *key, const char *v) {
    json_t *s = v ? json_string(v) : json_null();
    size_t n = v ? strlen(v) : 0;
    if (s && !(v && kld_has_controls(v))) {
        kld_emit_value(e, into, key, s);
        return;
    }
    json_decref(s);
    kld_buf b = {0};
    for (size_t i = 0; i < n && !e->failed; i++) {
        bool plain = v[i] >= 0x20 && v[i] < 0x7f;
        if (kld_buf_add(&b, plain ? v + i : "?", 1, NULL) != KLD_OK) e->failed = true;
    }
    kld_emit_value(e, into, key, b.data ? json_stringn((const char *)b.data, b.len) : NULL);
    kld_buf_free(&b);
}

void kld_emit_digest(kld_emit *e, json_t *into, const char *key, const kld_digest *d) {
    char hex[KLD_SHA256_HEX];
    kld_emit_text(e, into, key, d ? kld_digest_hex(d, hex) : NULL);
}

void kld_emit_range(kld_emit *e, json_t *into, const char *key, double lo, double hi) {
    if (!isfinite(lo) || !isfinite(hi)) {
        kld_emit_value(e, into, key, json_null());
        return;
    }
    json_t *a = kld_emit_array(e, into, key);
    kld_emit_real(e, a, NULL, lo);
    kld_emit_real(e, a, NULL, hi);
}

json_t *kld_emit_object(kld_emit *e, json_t *into, const char *key) {
    json_t *o = json_object();
    if (!o) e->failed = true;
    kld_emit_value(e, into, key, o);
    return e->failed ? NULL : o;
}

json_t *kld_emit_array(kld_emit *e, json_t *into, const char *key) {
    json_t *a = json_array();
    if (!a) e->failed = true;
    kld_emit_value(e, into, key, a);
    return e->failed ? NULL : a;
}

kld_status kld_emit_check(const kld_emit *e, kld_err *err) {
    return e->failed ? kld_fail(err, KLD_E_NOMEM, "out of memory while building the report")
                     : KLD_OK;
}
