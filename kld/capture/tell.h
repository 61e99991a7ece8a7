/* kld/capture/tell.h - lines for people, made from a JSON object.  Floor 3. */
#ifndef KLD_CAPTURE_TELL_H
#define KLD_CAPTURE_TELL_H
#include "kld/base/buf.h"
#include "kld/base/json.h"
#include "kld/base/status.h"
#include <stddef.h>
#include <string.h>

static inline double tell_num(const json_t *v, const char *key) {
    return json_number_value(json_object_get(v, key));
}
static inline const char *tell_str(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

/* A name from outside, with '?' for what could move the cursor: at most `width` characters of it,
 * filled up with spaces; 0 = as it is. */
static inline kld_status tell_name(const char *text, size_t width, kld_buf *out, kld_err *err) {
    size_t chars = 0, from = out->len;
    const char *p = text;
    for (; *p && (!width || chars < width); chars++) do
            p++;
        while (((unsigned char)*p & 0xC0) == 0x80);
    TRY(kld_buf_add(out, text, (size_t)(p - text), err));
    for (; chars < width; chars++) TRY(kld_buf_adds(out, " ", err));
    if (out->data) kld_blank_controls((char *)out->data + from);
    return KLD_OK;
}

#endif
