#include "kld/store/info.h"

#include "kld/base/mem.h"
#include "kld/store/info_optional.h"

#include <stddef.h>
#include <string.h>

typedef enum kind { STRING, DIGEST, NUMBER, REAL, BOOLEAN, OBJECT } kind;

/* The identity, key by key, in file order. */
static const struct field {
    const char *key;
    kind kind;
    size_t offset;
} fields[] = {
    {"name", STRING, offsetof(kld_capture_info, name)},
    {"label", STRING, offsetof(kld_capture_info, label)},
    {"family", STRING, offsetof(kld_capture_info, family)},
    {"model", DIGEST, offsetof(kld_capture_info, model)},
    {"model_full", DIGEST, offsetof(kld_capture_info, model_full)},
    {"tokenizer", DIGEST, offsetof(kld_capture_info, tokenizer)},
    {"suite", DIGEST, offsetof(kld_capture_info, suite)},
    {"vocab", NUMBER, offsetof(kld_capture_info, vocab)},
    {"vocab_rows", NUMBER, offsetof(kld_capture_info, vocab_rows)},
    {"windows", NUMBER, offsetof(kld_capture_info, windows)},
    {"positions", NUMBER, offsetof(kld_capture_info, positions)},
    {"top_k", NUMBER, offsetof(kld_capture_info, top_k)},
    {"min_k", NUMBER, offsetof(kld_capture_info, min_k)},
    {"tail_samples", NUMBER, offsetof(kld_capture_info, tail_samples)},
    {"tail_mass", REAL, offsetof(kld_capture_info, tail_mass)},
    {"seed", NUMBER, offsetof(kld_capture_info, seed)},
    {"has_reference", BOOLEAN, offsetof(kld_capture_info, has_reference)},
    {"reference_name", STRING, offsetof(kld_capture_info, reference_name)},
    {"reference", DIGEST, offsetof(kld_capture_info, reference)},
    {"ref_top_k", NUMBER, offsetof(kld_capture_info, ref_top_k)},
    {"ref_tail_samples", NUMBER, offsetof(kld_capture_info, ref_tail_samples)},
    {"engine", OBJECT, offsetof(kld_capture_info, engine)},
    {"quant", OBJECT, offsetof(kld_capture_info, quant)},
};
/* After them come the optional ones: info_optional.h. */
enum { N_FIELDS = sizeof fields / sizeof *fields };

void kld_capture_info_free(kld_capture_info *info) {
    kld_free(info->name);
    kld_free(info->label);
    kld_free(info->family);
    kld_free(info->reference_name);
    kld_free(info->partition);
    kld_free(info->time);
    kld_free(info->host);
    kld_free(info->checkpoint);
    kld_free(info->floor);
    json_decref(info->engine);
    json_decref(info->quant);
    memset(info, 0, sizeof *info);
}

static json_t *field_value(const kld_capture_info *info, const struct field *f) {
    const char *at = (const char *)info + f->offset;
    char hex[KLD_SHA256_HEX];
    uint64_t u;
    double d;
    bool b;
    void *p;
    switch (f->kind) {
    case STRING: memcpy(&p, at, sizeof p); return json_string(p ? p : "");
    case DIGEST: return json_string(kld_digest_hex((const kld_digest *)at, hex));
    case NUMBER: memcpy(&u, at, sizeof u); return json_integer((json_int_t)u);
    case REAL: memcpy(&d, at, sizeof d); return json_real(d);
    case BOOLEAN: memcpy(&b, at, sizeof b); return json_boolean(b);
    case OBJECT: break;
    }
    memcpy(&p, at, sizeof p);
    return p ? json_incref(p) : json_object();
}

static kld_status dump_and_free(json_t *root, bool whole, kld_buf *out, kld_err *err) {
    kld_status st = whole && root ? kld_json_dump(root, false, out, err)
                                  : kld_fail(err, KLD_E_NOMEM, "out of memory for the header");
    json_decref(root);
    return st;
}

kld_status kld_info_identity(const kld_capture_info *info, kld_buf *out, kld_err *err) {
    json_t *root = json_object();
    bool whole = root != NULL;
    for (size_t i = 0; i < N_FIELDS && whole; i++)
        whole = json_object_set_new(root, fields[i].key, field_value(info, &fields[i])) == 0;
    whole = whole && info_optional_add(info, root);
    return dump_and_free(root, whole, out, err);
}

kld_status kld_info_run(const kld_capture_info *info, kld_buf *out, kld_err *err) {
    json_t *root = json_pack("{s:s, s:s}", "time", info->time ? info->time : "", "host",
                             info->host ? info->host : "");
    bool whole = root != NULL;
    if (whole && info->checkpoint && *info->checkpoint)
        whole = json_object_set_new(root, "checkpoint", json_string(info->checkpoint)) == 0;
    return dump_and_free(root, whole, out, err);
}

static kld_status parse_field(kld_capture_info *info, const json_t *root, const struct field *f,
                              kld_err *err) {
    char *at = (char *)info + f->offset;
    const char *text;
    json_t *obj;
    uint64_t u;
    switch (f->kind) {
    case STRING:
        TRY(kld_json_str(root, f->key, &text, err));
        return kld_strdup((char **)(void *)at, text, err);
    case DIGEST:
        TRY(kld_json_str(root, f->key, &text, err));
        return kld_where(err, kld_digest_parse(text, (kld_digest *)at, err), "'%s'", f->key);
    case NUMBER:
        TRY(kld_json_u64(root, f->key, &u, err));
        memcpy(at, &u, sizeof u);
        return KLD_OK;
    case REAL: return kld_json_f64(root, f->key, (double *)(void *)at, err);
    case BOOLEAN: return kld_json_bool(root, f->key, (bool *)at, err);
    case OBJECT: break;
    }
    TRY(kld_json_obj(root, f->key, &obj, err));
    *(json_t **)(void *)at = json_incref(obj);
    return KLD_OK;
}

static kld_status check_ranges(const kld_capture_info *i, kld_err *err) {
    const struct {
        const char *key;
        uint64_t value, max;
    } limits[] = {
        {"vocab", i->vocab, UINT32_MAX - 1},
        {"vocab_rows", i->vocab_rows, UINT32_MAX},
        {"windows", i->windows, UINT64_C(1) << 32},
        {"positions", i->positions, UINT64_C(1) << 40},
        {"top_k", i->top_k, 4096},
        {"min_k", i->min_k, i->top_k},
        {"tail_samples", i->tail_samples, 256},
        {"ref_top_k", i->ref_top_k, 4096},
        {"ref_tail_samples", i->ref_tail_samples, 256},
        {"seed", i->seed, INT64_MAX}, /* JSON integers are signed here */
    };
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++)
        if (limits[k].value > limits[k].max)
            return kld_fail(err, KLD_E_INPUT, "'%s' is %llu; at most %llu is legal", limits[k].key,
                            (unsigned long long)limits[k].value, (unsigned long long)limits[k].max);
    if (i->vocab == 0 || i->vocab > i->vocab_rows || i->top_k == 0)
        return kld_fail(err, KLD_E_INPUT, "'vocab', 'vocab_rows' or 'top_k' is out of range");
    if (i->has_reference && i->ref_top_k == 0)
        return kld_fail(err, KLD_E_INPUT, "'ref_top_k' is 0 in a capture with a reference");
    if (!(i->tail_mass >= 0 && i->tail_mass <= 1))
        return kld_fail(err, KLD_E_INPUT, "'tail_mass' is %g; 0 to 1 is legal", i->tail_mass);
    return info_optional_check(i, err);
}

/* As jansson sees it, which refuses what is not; done here because it does not say why. */
static bool is_utf8(const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        size_t n = *p < 0x80 ? 0 : *p >= 0xC2 && *p < 0xE0 ? 1 : *p >= 0xE0 && *p < 0xF0 ? 2 : 3;
        if (n == 3 && (*p < 0xF0 || *p > 0xF4)) return false;
        uint32_t lead = *p++, v = n == 0 ? lead : lead & (0x3Fu >> n);
        for (size_t i = 0; i < n; i++, p++) {
            if ((*p & 0xC0) != 0x80) return false;
            v = v << 6 | (*p & 0x3Fu);
        }
        if ((n == 2 && (v < 0x800 || (v >= 0xD800 && v < 0xE000))) ||
            (n == 3 && (v < 0x10000 || v > 0x10FFFF)))
            return false;
    }
    return true;
}

/* Strings are printed: nothing in them may move the cursor of whoever inspects the file. */
static kld_status check_printable(const char *key, const char *text, kld_err *err) {
    if (!text || !kld_has_controls(text)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s' holds a control character: '%.80s'", key, text);
}

static kld_status check_strings(const kld_capture_info *info, kld_err *err) {
    const struct {
        const char *key, *text;
    } strings[] = {{"name", info->name},          {"label", info->label},
                   {"family", info->family},      {"reference_name", info->reference_name},
                   {"time", info->time},          {"host", info->host},
                   {"floor", info->floor},        {"checkpoint", info->checkpoint},
                   {"partition", info->partition}};
    for (size_t k = 0; k < sizeof strings / sizeof *strings; k++)
        TRY(check_printable(strings[k].key, strings[k].text, err));
    const char *key;
    json_t *v;
    json_object_foreach(info->engine, key, v) {
        if (!json_is_string(v))
            return kld_fail(err, KLD_E_INPUT, "'engine': '%.80s' is %s, not a string", key,
                            kld_json_kind(v));
        TRY(check_printable("engine", key, err));
        TRY(check_printable("engine", json_string_value(v), err));
    }
    return KLD_OK;
}

kld_status kld_info_check(const kld_capture_info *info, kld_err *err) {
    const struct {
        const char *key, *text;
    } strings[] = {{"name", info->name},          {"label", info->label},
                   {"family", info->family},      {"reference_name", info->reference_name},
                   {"time", info->time},          {"host", info->host},
                   {"floor", info->floor},        {"checkpoint", info->checkpoint},
                   {"partition", info->partition}};
    TRY(check_ranges(info, err));
    for (size_t k = 0; k < sizeof strings / sizeof *strings; k++)
        if (strings[k].text && !is_utf8(strings[k].text))
            return kld_fail(err, KLD_E_INPUT, "'%s' is not valid UTF-8: '%.80s'", strings[k].key,
                            strings[k].text);
    return check_strings(info, err);
}

kld_status kld_info_parse(kld_capture_info *info, const void *identity, size_t n, const void *run,
                          size_t n_run, kld_err *err) {
    memset(info, 0, sizeof *info);
    json_t *root = NULL, *where = NULL;
    const char *time, *host, *checkpoint = "";
    size_t optional;
    kld_status st;
    TRY_TO(done, kld_json_parse(&root, identity, n, 8, err));
    for (size_t i = 0; i < N_FIELDS; i++) TRY_TO(done, parse_field(info, root, &fields[i], err));
    TRY_TO(done, info_optional_parse(info, root, &optional, err));
    size_t known = N_FIELDS + optional;
    if (json_object_size(root) != known) {
        st = kld_fail(err, KLD_E_INPUT, "%zu keys where version 1 has %zu", json_object_size(root),
                      known);
        goto done;
    }
    TRY_TO(done, check_ranges(info, err));
    TRY_TO(done, kld_json_parse(&where, run, n_run, 2, err));
    TRY_TO(done, kld_json_str(where, "time", &time, err));
    TRY_TO(done, kld_json_str(where, "host", &host, err));
    if (json_object_get(where, "checkpoint"))
        TRY_TO(done, kld_json_str(where, "checkpoint", &checkpoint, err));
    TRY_TO(done, kld_strdup(&info->checkpoint, checkpoint, err));
    TRY_TO(done, kld_strdup(&info->time, time, err));
    TRY_TO(done, kld_strdup(&info->host, host, err));
    TRY_TO(done, check_strings(info, err));
done:
    json_decref(root);
    json_decref(where);
    if (st != KLD_OK) kld_capture_info_free(info);
    return st;
}

static const char *shown(const json_t *v, kld_buf *text) {
    kld_err ignored;
    return v && kld_json_dump(v, false, text, &ignored) == KLD_OK ? (char *)text->data : "absent";
}

kld_status kld_info_difference(const void *a, size_t na, const void *b, size_t nb, kld_err *err) {
    json_t *ja = NULL, *jb = NULL;
    kld_status st;
    TRY_TO(done, kld_json_parse(&ja, a, na, 8, err));
    TRY_TO(done, kld_json_parse(&jb, b, nb, 8, err));
    st = kld_fail(err, KLD_E_INPUT, "its header differs from this run's");
    for (size_t i = 0; i < N_FIELDS + INFO_OPTIONAL; i++) {
        const char *name = i < N_FIELDS ? fields[i].key : INFO_OPTIONAL_KEY[i - N_FIELDS];
        const json_t *va = json_object_get(ja, name), *vb = json_object_get(jb, name);
        if ((!va && !vb) || json_equal(va, vb)) continue;
        kld_buf ta = {0}, tb = {0};
        st = kld_fail(err, KLD_E_INPUT, "its '%s' is %.200s, this run's is %.200s", name,
                      shown(va, &ta), shown(vb, &tb));
        kld_buf_free(&ta);
        kld_buf_free(&tb);
        break;
    }
done:
    json_decref(ja);
    json_decref(jb);
    return st;
}
