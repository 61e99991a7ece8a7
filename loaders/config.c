#include "loaders/config.h"

#include "kld/base/buf.h"
#include "loaders/rope.h"

#include <math.h>
#include <string.h>

/* Larger counts than any model has; products of two of them fit 64 bits. */
static const double MAX_COUNT = 1 << 30;
enum { MAX_LAYERS = 100000 };

/* Read by code of their own, below. */
static const char *const special[] = {"hidden_act",
                                      "layer_types",
                                      "tie_word_embeddings",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "original_max_position_embeddings",
                                      NULL};

static bool listed(const char *const *list, const char *key) {
    for (; *list; list++) {
        if (!strcmp(*list, key)) return true;
    }
    return false;
}

const json_t *kld_config_text(const json_t *root) {
    const json_t *t = json_object_get(root, "text_config");
    return json_is_object(t) ? t : root;
}

static bool accepted(const char *values, const char *text, size_t n) {
    for (const char *p = values;;) {
        const char *end = strchr(p, '|');
        size_t m = end ? (size_t)(end - p) : strlen(p);
        if (m == n && !memcmp(p, text, n)) return true;
        if (!end) return false;
        p = end + 1;
    }
}

static kld_status check_assert(const kld_assert_row *row, const json_t *v, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_json_dump(v, false, &b, err);
    if (st == KLD_OK && !accepted(row->values, (char *)b.data, b.len))
        st = kld_fail(err, KLD_E_UNSUPPORTED, "config.json: '%s' is %.80s; only %s is implemented",
                      row->name, (char *)b.data, row->values);
    kld_buf_free(&b);
    return st;
}

static const kld_assert_row *find_assert(const kld_arch *a, const char *key) {
    for (size_t i = 0; i < a->n_asserts; i++) {
        if (!strcmp(a->asserts[i].name, key)) return &a->asserts[i];
    }
    for (size_t i = 0; i < kld_n_config_asserts; i++) {
        if (!strcmp(kld_config_asserts[i].name, key)) return &kld_config_asserts[i];
    }
    return NULL;
}

static bool is_read(const kld_arch *a, const char *key) {
    for (size_t i = 0; i < a->n_keys; i++) {
        if (!strcmp(a->keys[i].name, key)) return true;
    }
    return listed(special, key);
}

/* Keys of one object; `outer` is the root of a nested config, where only what every
 * family ignores may stand. */
static kld_status check_keys(const kld_arch *a, const json_t *obj, bool outer, kld_err *err) {
    const char *k;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)obj, k, v) {
        const kld_assert_row *row = find_assert(a, k);
        if (row) {
            TRY(check_assert(row, v, err));
            continue;
        }
        bool read = outer ? !strcmp(k, "tie_word_embeddings") : is_read(a, k);
        if (!read && !listed(kld_config_ignored, k))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "config.json: key '%.200s' is not known for %s, so its effect on the "
                            "result is not implemented",
                            k, a->family);
    }
    return KLD_OK;
}

static kld_status read_key(const kld_key_row *row, const json_t *text, double *out, kld_err *err) {
    const json_t *v = json_object_get(text, row->name);
    if (!v || json_is_null(v)) {
        *out = v ? row->if_null : row->if_absent;
        if (*out == KLD_REQUIRED)
            return kld_fail(err, KLD_E_INPUT, "config.json: '%s' is required and %s", row->name,
                            v ? "null" : "absent");
        return KLD_OK;
    }
    kld_status st = KLD_OK;
    bool flag;
    uint64_t count;
    switch (row->kind) {
    case KLD_KIND_FLAG:
        st = kld_json_bool(text, row->name, &flag, err);
        if (st == KLD_OK) *out = flag;
        break;
    case KLD_KIND_COUNT:
        st = kld_json_u64(text, row->name, &count, err);
        if (st == KLD_OK) *out = (double)count;
        if (st == KLD_OK && *out > MAX_COUNT)
            st = kld_fail(err, KLD_E_INPUT, "'%s' is %.17g, above %.17g", row->name, *out,
                          MAX_COUNT);
        break;
    case KLD_KIND_REAL:
        st = kld_json_f64(text, row->name, out, err);
        if (st == KLD_OK && !(isfinite(*out) && *out >= 0))
            st = kld_fail(err, KLD_E_INPUT, "'%s' is %g, not a finite value of at least 0",
                          row->name, *out);
        break;
    }
    return kld_where(err, st, "config.json");
}

static kld_status read_values(kld_config_read *r, const json_t *text, kld_err *err) {
    double *v = r->value;
    v[KLD_KEY_USE_WINDOW] = 1;
    for (size_t i = 0; i < r->arch->n_keys; i++)
        TRY(read_key(&r->arch->keys[i], text, &v[r->arch->keys[i].key], err));
    if (v[KLD_KEY_KV_HEADS] == KLD_DERIVED) v[KLD_KEY_KV_HEADS] = v[KLD_KEY_HEADS];
    static const struct {
        kld_key key;
        const char *name;
    } nonzero[] = {{KLD_KEY_VOCAB, "vocab_size"},
                   {KLD_KEY_INTERMEDIATE, "intermediate_size"},
                   {KLD_KEY_MAX_POSITION, "max_position_embeddings"},
                   {KLD_KEY_HIDDEN, "hidden_size"},
                   {KLD_KEY_LAYERS, "num_hidden_layers"},
                   {KLD_KEY_HEADS, "num_attention_heads"},
                   {KLD_KEY_KV_HEADS, "num_key_value_heads"}};
    for (size_t i = 0; i < sizeof nonzero / sizeof *nonzero; i++) {
        if (v[nonzero[i].key] < 1)
            return kld_fail(err, KLD_E_INPUT, "config.json: '%s' is 0", nonzero[i].name);
    }
    if (v[KLD_KEY_HEAD_DIM] == KLD_DERIVED)
        v[KLD_KEY_HEAD_DIM] = floor(v[KLD_KEY_HIDDEN] / v[KLD_KEY_HEADS]);
    if (v[KLD_KEY_LAYERS] > MAX_LAYERS)
        return kld_fail(err, KLD_E_INPUT, "config.json: 'num_hidden_layers' is %.0f, above %d",
                        v[KLD_KEY_LAYERS], MAX_LAYERS);
    if (fmod(v[KLD_KEY_HEADS], v[KLD_KEY_KV_HEADS]) != 0)
        return kld_fail(
            err, KLD_E_INPUT,
            "config.json: %.0f attention heads are not a multiple of %.0f key/value heads",
            v[KLD_KEY_HEADS], v[KLD_KEY_KV_HEADS]);
    if (v[KLD_KEY_HEAD_DIM] < 2 || fmod(v[KLD_KEY_HEAD_DIM], 2) != 0)
        return kld_fail(err, KLD_E_UNSUPPORTED, "config.json: 'head_dim' %.0f is not even",
                        v[KLD_KEY_HEAD_DIM]);
    return KLD_OK;
}

/* The outer flag wins: the loader of a multimodal release ties by its own config. */
static kld_status read_tied(const json_t *root, const json_t *text, bool *tied, kld_err *err) {
    const json_t *from = json_object_get(root, "tie_word_embeddings") ? root : text;
    *tied = false;
    if (!json_object_get(from, "tie_word_embeddings")) return KLD_OK;
    return kld_where(err, kld_json_bool(from, "tie_word_embeddings", tied, err), "config.json");
}

static kld_status read_activation(const json_t *text, kld_activation *out, kld_err *err) {
    const json_t *v = json_object_get(text, "hidden_act");
    *out = KLD_ACT_SILU;
    if (!v) return KLD_OK;
    const char *s = json_string_value(v);
    if (s && (!strcmp(s, "silu") || !strcmp(s, "swish"))) return KLD_OK;
    *out = KLD_ACT_GELU_TANH;
    if (s && !strcmp(s, "gelu_pytorch_tanh")) return KLD_OK;
    return kld_fail(
        err, KLD_E_UNSUPPORTED,
        "config.json: 'hidden_act' is %.80s; only silu and gelu_pytorch_tanh are implemented",
        s ? s : kld_json_kind(v));
}

/* What layer_types says of layer i; absent: -1. */
static kld_status layer_type(const json_t *types, size_t i, int *sliding, kld_err *err) {
    *sliding = -1;
    if (!types) return KLD_OK;
    const char *s = json_string_value(json_array_get(types, i));
    if (s && !strcmp(s, "full_attention")) *sliding = 0;
    else if (s && !strcmp(s, "sliding_attention")) *sliding = 1;
    else
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "config.json: layer_types[%zu] '%.80s' is not implemented", i,
                        s ? s : kld_json_kind(json_array_get(types, i)));
    return KLD_OK;
}

static kld_status read_windows(kld_config_read *r, const json_t *text, kld_arena *arena,
                               kld_err *err) {
    size_t n = r->config.layers;
    TRY(ARENA_ARRAY(arena, &r->window, n, err));
    json_t *types = json_object_get(text, "layer_types");
    if (json_is_null(types)) types = NULL;
    if (types && (!json_is_array(types) || json_array_size(types) != n))
        return kld_fail(err, KLD_E_INPUT, "config.json: 'layer_types' is not a list of %zu entries",
                        n);
    size_t window = r->value[KLD_KEY_USE_WINDOW] != 0 ? (size_t)r->value[KLD_KEY_WINDOW] : 0;
    for (size_t i = 0; i < n; i++) {
        int said;
        TRY(layer_type(types, i, &said, err));
        bool slides = false;
        switch (r->arch->window) {
        case KLD_WINDOW_NONE: break;
        case KLD_WINDOW_ALL_LAYERS: slides = window > 0; break;
        case KLD_WINDOW_BY_LAYER:
            slides = said >= 0 ? said == 1 : window && (double)i >= r->value[KLD_KEY_FULL_LAYERS];
            break;
        }
        if (said >= 0 && slides != (said == 1))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "config.json: layer_types[%zu] is %s, but %s layers are %s", i,
                            said ? "sliding_attention" : "full_attention", r->arch->family,
                            slides ? "all sliding" : "all full");
        if (slides && !window)
            return kld_fail(err, KLD_E_INPUT,
                            "config.json: layer_types[%zu] slides, but there is no sliding window",
                            i);
        r->window[i] = slides ? window : 0;
    }
    return KLD_OK;
}

static kld_status find_arch(const json_t *root, const json_t *text, const kld_arch **arch,
                            kld_err *err) {
    json_t *list = json_object_get(root, "architectures");
    if (!json_is_array(list) || !json_array_size(list))
        list = json_object_get(text, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name)
        return kld_fail(err, KLD_E_INPUT, "config.json: 'architectures' does not name a class");
    *arch = kld_arch_find(name);
    if (*arch) return KLD_OK;
    kld_buf b = {0};
    kld_status st = KLD_OK;
    for (const kld_arch *const *row = kld_archs; st == KLD_OK && *row; row++) {
        for (const char *const *a = (*row)->architectures; st == KLD_OK && *a; a++)
            st = kld_buf_addf(&b, err, "%s%s", b.len ? ", " : "", *a);
    }
    if (st == KLD_OK)
        st = kld_fail(err, KLD_E_UNSUPPORTED,
                      "config.json: architecture '%.120s' is not implemented; these are: %s", name,
                      (char *)b.data);
    kld_buf_free(&b);
    return st;
}

kld_status kld_config_parse(kld_config_read *out, const json_t *root, kld_arena *arena,
                            kld_err *err) {
    memset(out, 0, sizeof *out);
    const json_t *text = kld_config_text(root);
    TRY(find_arch(root, text, &out->arch, err));
    if (text != root) TRY(check_keys(out->arch, root, true, err));
    TRY(check_keys(out->arch, text, false, err));
    TRY(read_values(out, text, err));
    const double *v = out->value;
    out->config = (kld_config){.hidden = (size_t)v[KLD_KEY_HIDDEN],
                               .intermediate = (size_t)v[KLD_KEY_INTERMEDIATE],
                               .layers = (size_t)v[KLD_KEY_LAYERS],
                               .heads = (size_t)v[KLD_KEY_HEADS],
                               .kv_heads = (size_t)v[KLD_KEY_KV_HEADS],
                               .head_dim = (size_t)v[KLD_KEY_HEAD_DIM],
                               .vocab = (size_t)v[KLD_KEY_VOCAB],
                               .max_position = (size_t)v[KLD_KEY_MAX_POSITION],
                               .norm_eps = v[KLD_KEY_EPS],
                               .attn_scale = 1 / sqrt(v[KLD_KEY_HEAD_DIM])};
    TRY(read_tied(root, text, &out->config.tied, err));
    TRY(read_activation(text, &out->config.activation, err));
    TRY(kld_where(err,
                  kld_rope_parse(&out->config.rope, text, out->arch->rope_theta,
                                 out->config.max_position, err),
                  "config.json"));
    return read_windows(out, text, arena, err);
}
