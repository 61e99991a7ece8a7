/* kld/base/json.h - strict JSON on top of jansson.  Floor 0.
 * Duplicate keys, invalid UTF-8, trailing text, numbers that do not fit and nesting
 * deeper than asked are errors.  Getters report the JSON path and what was found. */
#ifndef KLD_BASE_JSON_H
#define KLD_BASE_JSON_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Parse one object or array of len bytes.  The caller owns *out (json_decref).
 * KLD_E_INPUT  the text is not such JSON (message has line and column).
 * KLD_E_NOMEM  allocation failed. */
KLD_NODISCARD kld_status kld_json_parse(json_t **out, const void *text, size_t len,
                                        size_t max_depth, kld_err *err);
/* A whole file of at most max bytes. */
KLD_NODISCARD kld_status kld_json_load(json_t **out, const char *path, size_t max, kld_err *err);

/* Required members; KLD_E_INPUT when absent or of another type ("'x': expected an integer,
 * found a string").  Borrowed results. */
KLD_NODISCARD kld_status kld_json_u64(const json_t *obj, const char *key, uint64_t *out,
                                      kld_err *err);
KLD_NODISCARD kld_status kld_json_f64(const json_t *obj, const char *key, double *out,
                                      kld_err *err);
KLD_NODISCARD kld_status kld_json_bool(const json_t *obj, const char *key, bool *out, kld_err *err);
KLD_NODISCARD kld_status kld_json_str(const json_t *obj, const char *key, const char **out,
                                      kld_err *err);
KLD_NODISCARD kld_status kld_json_obj(const json_t *obj, const char *key, json_t **out,
                                      kld_err *err);
KLD_NODISCARD kld_status kld_json_arr(const json_t *obj, const char *key, json_t **out,
                                      kld_err *err);

/* "an object", "a string", "null", ... for messages. */
const char *kld_json_kind(const json_t *v);

/* Append the compact text of v (keys in insertion order, reals with 17 significant
 * digits, shortest form not required), for hashing and for headers. */
KLD_NODISCARD kld_status kld_json_dump(const json_t *v, bool indent, kld_buf *out, kld_err *err);

/* Write v, indented, to a file: kld_file_write. */
KLD_NODISCARD kld_status kld_json_save(const json_t *v, const char *path, kld_err *err);

/* Append the canonical text of v (docs/receipts.md): compact, the keys of every object in the order
 * of their bytes, reals with 17 significant digits.  Equal values have equal texts. */
KLD_NODISCARD kld_status kld_json_canonical(const json_t *v, kld_buf *out, kld_err *err);

KLD_EXTERN_C_END
#endif
