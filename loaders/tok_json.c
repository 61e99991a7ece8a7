#include "loaders/tok_json.h"

#include "loaders/tok_model.h"

#include <string.h>

/* Accepted parts:
 *   normalizer      null, NFC, Sequence of these
 *   pre_tokenizer   Split, Digits, ByteLevel, Sequence of these; ByteLevel must come last
 *   model           BPE over bytes (tok_model.c)
 *   post_processor  null, ByteLevel, TemplateProcessing, Sequence of these
 *   decoder         null, ByteLevel, Sequence of one
 *   truncation, padding   any: they say how batches were cut when the file was saved, and are
 *                   never applied here */

/* Digits go by Rust's char::is_numeric, whose Unicode version (17) is ahead of the one behind
 * the regular expressions. */
static const char digits[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";

kld_status kld_tok_json_keys(const json_t *obj, const char *names, kld_err *err) {
    for (void *it = json_object_iter((json_t *)(uintptr_t)obj); it;
         it = json_object_iter_next((json_t *)(uintptr_t)obj, it)) {
        const char *key = json_object_iter_key(it);
        size_t n = strlen(key);
        const char *at = names;
        while (at && !(strncmp(at, key, n) == 0 && (at[n] == '|' || at[n] == '\0'))) {
            at = strchr(at, '|');
            if (at) at++;
        }
        if (!at || !n) return kld_fail(err, KLD_E_UNSUPPORTED, "key '%.100s' is not known", key);
    }
    return KLD_OK;
}

static kld_status type_of(const json_t *v, const char **type, kld_err *err) {
    if (!json_is_object(v))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(v));
    return kld_json_str(v, "type", type, err);
}

static kld_status not_implemented(const char *type, kld_err *err) {
    return kld_fail(err, KLD_E_UNSUPPORTED, "type '%.100s' is not implemented", type);
}

/* Call `each` on the members of a Sequence. */
typedef kld_status (*member_fn)(kld_tokenizer *t, const json_t *v, kld_err *err);

static kld_status sequence(kld_tokenizer *t, const json_t *v, const char *list, member_fn each,
                           kld_err *err) {
    json_t *members;
    char names[64] = "type|";
    strncat(names, list, sizeof names - 6);
    TRY(kld_tok_json_keys(v, names, err));
    TRY(kld_json_arr(v, list, &members, err));
    for (size_t i = 0; i < json_array_size(members); i++)
        TRY(kld_where(err, each(t, json_array_get(members, i), err), "%s[%zu]", list, i));
    return KLD_OK;
}

static kld_status normalizer(kld_tokenizer *t, const json_t *v, kld_err *err) {
    const char *type;
    TRY(type_of(v, &type, err));
    if (strcmp(type, "Sequence") == 0) return sequence(t, v, "normalizers", normalizer, err);
    if (strcmp(type, "NFC") != 0) return not_implemented(type, err);
    t->nfc = true;
    return kld_tok_json_keys(v, "type", err);
}

static kld_status split(kld_tokenizer *t, const json_t *v, kld_err *err) {
    static const char *const behaviors[] = {
        [KLD_TOK_ISOLATED] = "Isolated",           [KLD_TOK_REMOVED] = "Removed",
        [KLD_TOK_PREVIOUS] = "MergedWithPrevious", [KLD_TOK_NEXT] = "MergedWithNext",
        [KLD_TOK_CONTIGUOUS] = "Contiguous",
    };
    json_t *pattern;
    const char *name, *text;
    bool invert;
    TRY(kld_tok_json_keys(v, "type|pattern|behavior|invert", err));
    TRY(kld_json_obj(v, "pattern", &pattern, err));
    TRY(kld_json_str(v, "behavior", &name, err));
    TRY(kld_json_bool(v, "invert", &invert, err));
    TRY(kld_where(err, kld_tok_json_keys(pattern, "String|Regex", err), "pattern"));
    if (json_object_size(pattern) != 1)
        return kld_fail(err, KLD_E_INPUT, "'pattern' must have one of String and Regex");
    bool literal = json_object_get(pattern, "String") != NULL;
    TRY(kld_json_str(pattern, literal ? "String" : "Regex", &text, err));
    size_t k = 0, n = sizeof behaviors / sizeof *behaviors;
    while (k < n && strcmp(behaviors[k], name) != 0) k++;
    if (k == n)
        return kld_fail(err, KLD_E_UNSUPPORTED, "behavior '%.100s' is not implemented", name);
    return kld_tok_split_add(&t->split, text, strlen(text), literal, (kld_tok_behavior)k, invert,
                             err);
}

/* The options of ByteLevel, which is a pre-tokenizer, a post-processor and a decoder.
 * trim_offsets moves offsets only, and use_regex came later and is true when absent. */
static kld_status byte_level(const json_t *v, bool *prefix_space, bool *use_regex, kld_err *err) {
    bool trim;
    TRY(kld_tok_json_keys(v, "type|add_prefix_space|trim_offsets|use_regex", err));
    TRY(kld_json_bool(v, "add_prefix_space", prefix_space, err));
    TRY(kld_json_bool(v, "trim_offsets", &trim, err));
    *use_regex = true;
    return json_object_get(v, "use_regex") ? kld_json_bool(v, "use_regex", use_regex, err) : KLD_OK;
}

static kld_status pre_tokenizer(kld_tokenizer *t, const json_t *v, kld_err *err) {
    const char *type;
    bool a, b;
    TRY(type_of(v, &type, err));
    if (strcmp(type, "Sequence") == 0) return sequence(t, v, "pretokenizers", pre_tokenizer, err);
    if (strcmp(type, "Split") == 0) return split(t, v, err);
    if (strcmp(type, "ByteLevel") == 0) {
        TRY(byte_level(v, &a, &b, err));
        return kld_tok_split_byte_level(&t->split, a, b, err);
    }
    if (strcmp(type, "Digits") != 0) return not_implemented(type, err);
    TRY(kld_tok_json_keys(v, "type|individual_digits", err));
    TRY(kld_json_bool(v, "individual_digits", &a, err));
    return kld_tok_split_add(&t->split, digits, sizeof digits - 1, false,
                             a ? KLD_TOK_ISOLATED : KLD_TOK_CONTIGUOUS, false, err);
}

static kld_status decoder(kld_tokenizer *t, const json_t *v, kld_err *err) {
    const char *type;
    bool a, b;
    TRY(type_of(v, &type, err));
    if (strcmp(type, "Sequence") == 0) return sequence(t, v, "decoders", decoder, err);
    if (strcmp(type, "ByteLevel") != 0) return not_implemented(type, err);
    if (t->byte_decoder)
        return kld_fail(err, KLD_E_UNSUPPORTED, "ByteLevel twice is not implemented");
    t->byte_decoder = true;
    return byte_level(v, &a, &b, err);
}

/* The id behind a special token of a template: special_tokens[name].ids, which must be one id
 * and the vocabulary's. */
static kld_status template_id(const kld_tokenizer *t, const json_t *specials, const char *name,
                              uint32_t *id, kld_err *err) {
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    const json_t *first = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(first))
        return kld_fail(err, KLD_E_INPUT, "special_tokens: '%.100s' does not have one id", name);
    if (!kld_tokenizer_id(t, name, id) || json_integer_value(first) != (json_int_t)*id)
        return kld_fail(err, KLD_E_INPUT,
                        "special_tokens: '%.100s' has id %lld, which is not the vocabulary's", name,
                        (long long)json_integer_value(first));
    return KLD_OK;
}

/* BOS is the one special token before the text.  Where a template puts several there (GLM-4
 * has two) none of them is named BOS. */
static kld_status template_bos(kld_tokenizer *t, const json_t *v, kld_err *err) {
    json_t *single, *specials, *part;
    size_t before = 0;
    TRY(kld_tok_json_keys(v, "type|single|pair|special_tokens", err));
    TRY(kld_json_arr(v, "single", &single, err));
    TRY(kld_json_obj(v, "special_tokens", &specials, err));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *name;
        uint32_t id;
        if (json_object_get(item, "Sequence")) break;
        TRY(kld_where(err, kld_json_obj(item, "SpecialToken", &part, err), "single[%zu]", i));
        TRY(kld_where(err, kld_json_str(part, "id", &name, err), "single[%zu]", i));
        TRY(template_id(t, specials, name, &id, err));
        t->bos = id;
        before++;
    }
    t->has_bos = before == 1;
    return KLD_OK;
}

static kld_status post_processor(kld_tokenizer *t, const json_t *v, kld_err *err) {
    const char *type;
    bool a, b;
    TRY(type_of(v, &type, err));
    if (strcmp(type, "Sequence") == 0) return sequence(t, v, "processors", post_processor, err);
    if (strcmp(type, "ByteLevel") == 0) return byte_level(v, &a, &b, err);
    if (strcmp(type, "TemplateProcessing") != 0) return not_implemented(type, err);
    return template_bos(t, v, err);
}

/* A part that may be null or absent. */
static kld_status optional(kld_tokenizer *t, const json_t *root, const char *key, member_fn read,
                           kld_err *err) {
    const json_t *v = json_object_get(root, key);
    return !v || json_is_null(v) ? KLD_OK : kld_where(err, read(t, v, err), "%s", key);
}

kld_status kld_tok_json_read(kld_tokenizer *t, const json_t *root, kld_err *err) {
    const char *version;
    json_t *model, *added = json_object_get(root, "added_tokens");
    if (!json_is_object(root))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(root));
    TRY(kld_tok_json_keys(root,
                          "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                          "post_processor|decoder|model",
                          err));
    TRY(kld_json_str(root, "version", &version, err));
    if (strcmp(version, "1.0") != 0)
        return kld_fail(err, KLD_E_UNSUPPORTED, "version '%.20s' is not implemented; 1.0 is",
                        version);
    if (added && !json_is_array(added))
        return kld_fail(err, KLD_E_INPUT, "'added_tokens': expected an array, found %s",
                        kld_json_kind(added));
    TRY(kld_json_obj(root, "model", &model, err));
    TRY(optional(t, root, "normalizer", normalizer, err));
    TRY(optional(t, root, "pre_tokenizer", pre_tokenizer, err));
    if (!t->split.byte_level)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "pre_tokenizer: only byte-level models are implemented, and there is no "
                        "ByteLevel");
    TRY(kld_tok_model_read(t, model, added, err));
    TRY(optional(t, root, "post_processor", post_processor, err));
    return optional(t, root, "decoder", decoder, err);
}

kld_status kld_tok_json_config(kld_tokenizer *t, const json_t *root, kld_err *err) {
    const json_t *bos = json_object_get(root, "bos_token");
    if (t->has_bos || !bos || json_is_null(bos)) return KLD_OK;
    if (json_is_object(bos)) bos = json_object_get(bos, "content");
    if (!json_is_string(bos))
        return kld_fail(err, KLD_E_INPUT, "'bos_token': expected a string, found %s",
                        kld_json_kind(bos));
    if (!kld_tokenizer_id(t, json_string_value(bos), &t->bos))
        return kld_fail(err, KLD_E_INPUT, "'bos_token': '%.100s' is not in the vocabulary",
                        json_string_value(bos));
    t->has_bos = true;
    return KLD_OK;
}
