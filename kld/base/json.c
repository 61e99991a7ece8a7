#include "kld/base/json.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"

#include <stdlib.h>
#include <string.h>

static void raw_free(void *p) { kld_free(p); }

/* jansson recurses; a depth check on the text keeps its stack use bounded and gives
 * callers a tighter limit than jansson's own 2,048. */
static size_t text_depth(const unsigned char *s, size_t n) {
    size_t depth = 0, worst = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\') i++;
            else if (s[i] == '"') in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            if (++depth > worst) worst = depth;
        } else if ((s[i] == '}' || s[i] == ']') && depth) {
            depth--;
        }
    }
    return worst;
}

kld_status kld_json_parse(json_t **out, const void *text, size_t len, size_t max_depth,
                          kld_err *err) {
    *out = NULL;
    json_set_alloc_funcs(kld_mem_raw, raw_free);
    size_t depth = text_depth(text, len);
    if (depth > max_depth)
        return kld_fail(err, KLD_E_INPUT, "JSON nested %zu deep; at most %zu is accepted", depth,
                        max_depth);
    json_error_t je;
    size_t failures = kld_mem_raw_failures();
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (*out) return KLD_OK;
    /* jansson reports most failed allocations as syntax errors. */
    if (kld_mem_raw_failures() != failures)
        return kld_fail(err, KLD_E_NOMEM, "out of memory while parsing JSON");
    return kld_fail(err, KLD_E_INPUT, "not valid JSON at line %d, column %d: %s", je.line,
                    je.column, je.text);
}

kld_status kld_json_load(json_t **out, const char *path, size_t max, kld_err *err) {
    kld_buf b = {.max = max};
    *out = NULL;
    kld_status st = kld_file_slurp(path, max, &b, err);
    if (st == KLD_OK)
        st = kld_where(err,
                       kld_json_parse(out, b.data ? (void *)b.data : (void *)"", b.len, 64, err),
                       "%s", path);
    kld_buf_free(&b);
    return st;
}

const char *kld_json_kind(const json_t *v) {
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

static kld_status wrong(kld_err *err, const char *key, const char *want, const json_t *v) {
    return kld_fail(err, KLD_E_INPUT, "'%s': expected %s, found %s", key, want, kld_json_kind(v));
}

kld_status kld_json_u64(const json_t *obj, const char *key, uint64_t *out, kld_err *err) {
    const json_t *v = json_object_get(obj, key);
    if (!json_is_integer(v)) return wrong(err, key, "an integer", v);
    if (json_integer_value(v) < 0)
        return kld_fail(err, KLD_E_INPUT, "'%s': %lld is negative", key,
                        (long long)json_integer_value(v));
    *out = (uint64_t)json_integer_value(v);
    return KLD_OK;
}

kld_status kld_json_f64(const json_t *obj, const char *key, double *out, kld_err *err) {
    const json_t *v = json_object_get(obj, key);
    if (!json_is_number(v)) return wrong(err, key, "a number", v);
    *out = json_number_value(v);
    return KLD_OK;
}

kld_status kld_json_bool(const json_t *obj, const char *key, bool *out, kld_err *err) {
    const json_t *v = json_object_get(obj, key);
    if (!json_is_boolean(v)) return wrong(err, key, "true or false", v);
    *out = json_is_true(v);
    return KLD_OK;
}

kld_status kld_json_str(const json_t *obj, const char *key, const char **out, kld_err *err) {
    const json_t *v = json_object_get(obj, key);
    if (!json_is_string(v)) return wrong(err, key, "a string", v);
    *out = json_string_value(v);
    return KLD_OK;
}

kld_status kld_json_obj(const json_t *obj, const char *key, json_t **out, kld_err *err) {
    *out = json_object_get(obj, key);
    return json_is_object(*out) ? KLD_OK : wrong(err, key, "an object", *out);
}

kld_status kld_json_arr(const json_t *obj, const char *key, json_t **out, kld_err *err) {
    *out = json_object_get(obj, key);
    return json_is_array(*out) ? KLD_OK : wrong(err, key, "an array", *out);
}

static kld_status dump(const json_t *v, size_t flags, kld_buf *out, kld_err *err) {
    char *s = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17) | flags);
    if (!s) return kld_fail(err, KLD_E_NOMEM, "out of memory while writing JSON");
    kld_status st = kld_buf_adds(out, s, err);
    kld_free(s);
    return st;
}

kld_status kld_json_dump(const json_t *v, bool indent, kld_buf *out, kld_err *err) {
    return dump(v, indent ? JSON_INDENT(2) : JSON_COMPACT, out, err);
}

kld_status kld_json_canonical(const json_t *v, kld_buf *out, kld_err *err) {
    return dump(v, JSON_COMPACT | JSON_SORT_KEYS, out, err);
}

kld_status kld_json_save(const json_t *v, const char *path, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_json_dump(v, true, &b, err);
    if (st == KLD_OK) st = kld_buf_adds(&b, "\n", err);
    if (st == KLD_OK) st = kld_file_write(path, b.data, b.len, err);
    kld_buf_free(&b);
    return st;
}
