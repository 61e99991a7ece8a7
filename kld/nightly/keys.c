#include "kld/nightly/keys.h"

#include "kld/base/parse.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static kld_status unknown(const char *name, const key_row *keys, size_t n, kld_err *err) {
    kld_buf list = {0};
    kld_status st = KLD_OK;
    for (size_t k = 0; k < n && st == KLD_OK; k++)
        st = kld_buf_addf(&list, err, "%s%s", k ? ", " : "", keys[k].name);
    if (st == KLD_OK)
        st = kld_fail(err, KLD_E_INPUT, "unknown key '%.60s'; known are %s", name,
                      (const char *)list.data);
    kld_buf_free(&list);
    return st;
}

static kld_status read_size(const json_t *o, const char *name, uint64_t *out, kld_err *err) {
    const json_t *v = json_object_get(o, name);
    if (!json_is_string(v)) return kld_json_u64(o, name, out, err);
    if (kld_parse_size(json_string_value(v), out)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s': '%.40s' is no size such as 512M or 4GiB", name,
                    json_string_value(v));
}

static kld_status read_text(const json_t *o, const char *name, const char **out, kld_err *err) {
    TRY(kld_json_str(o, name, out, err));
    if (!kld_has_controls(*out)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s': holds control characters", name);
}

static kld_status read_word(const json_t *o, const key_row *k, unsigned *out, kld_err *err) {
    const char *text;
    TRY(kld_json_str(o, k->name, &text, err));
    for (*out = 0; *out < 2; ++*out)
        if (strcmp(text, k->word[*out]) == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s': '%.40s' is neither %s nor %s", k->name, text,
                    k->word[0], k->word[1]);
}

static kld_status read_key(const json_t *o, const key_row *k, void *field, kld_err *err) {
    uint64_t u;
    unsigned word;
    switch (k->kind) {
    case KEY_ANY: return KLD_OK;
    case KEY_COUNT: return kld_json_u64(o, k->name, field, err);
    case KEY_INDEX:
        TRY(kld_json_u64(o, k->name, &u, err));
        *(size_t *)field = (size_t)u;
        return KLD_OK;
    case KEY_REAL: return kld_json_f64(o, k->name, field, err);
    case KEY_SIZE: return read_size(o, k->name, field, err);
    case KEY_FLAG: return kld_json_bool(o, k->name, field, err);
    case KEY_TEXT: return read_text(o, k->name, field, err);
    case KEY_CHOICE:
    case KEY_SWITCH: break;
    }
    TRY(read_word(o, k, &word, err));
    if (k->kind == KEY_SWITCH) *(bool *)field = word == 1;
    else memcpy(field, &word, sizeof word);
    return KLD_OK;
}

kld_status keys_read(const json_t *o, const key_row *keys, size_t n, void *into, kld_err *err) {
    const char *name;
    json_t *v;
    if (!json_is_object(o))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(o));
    json_object_foreach((json_t *)(uintptr_t)o, name, v) {
        size_t k = 0;
        while (k < n && strcmp(keys[k].name, name) != 0) k++;
        if (k == n) return unknown(name, keys, n, err);
        TRY(read_key(o, &keys[k], (char *)into + keys[k].at, err));
    }
    return KLD_OK;
}

const char *nightly_text(const json_t *o, const char *member) {
    const char *s = json_string_value(json_object_get(o, member));
    return s ? s : "";
}

double nightly_real(const json_t *o, const char *member) {
    const json_t *v = json_object_get(o, member);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

int nightly_day(const char *time) { return (int)strcspn(time, "T"); }

bool nightly_is(const json_t *o, const char *member, const char *value) {
    return strcmp(nightly_text(o, member), value) == 0;
}
