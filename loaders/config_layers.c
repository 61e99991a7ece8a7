/* Which layers slide, and which have experts: a list in the config, or a rule. */
#include "loaders/config.h"

#include <string.h>

/* A list of one entry a layer, or NULL when the key is absent or null.  `read`: the family knows
 * the key. */
static kld_status layer_list(const kld_config_read *r, const json_t *text, const char *key,
                             const json_t **out, kld_err *err) {
    *out = json_object_get(text, key);
    if (json_is_null(*out)) *out = NULL;
    if (!*out || (json_is_array(*out) && json_array_size(*out) == r->config.layers)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "config.json: '%s' is not a list of %zu entries", key,
                    r->config.layers);
}

/* What the list says of layer i: 0 for the first word, 1 for the second; -1 without a list. */
static kld_status word(const json_t *list, const char *key, size_t i, const char *zero,
                       const char *one, int *out, kld_err *err) {
    *out = -1;
    if (!list) return KLD_OK;
    const json_t *v = json_array_get(list, i);
    const char *s = json_string_value(v);
    if (s && !strcmp(s, zero)) *out = 0;
    else if (s && !strcmp(s, one)) *out = 1;
    else
        return kld_fail(err, KLD_E_UNSUPPORTED, "config.json: %s[%zu] '%.80s' is not implemented",
                        key, i, s ? s : kld_json_kind(v));
    return KLD_OK;
}

static kld_status bit(const json_t *list, const char *key, size_t i, int *out, kld_err *err) {
    *out = -1;
    if (!list) return KLD_OK;
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1)
        return kld_fail(err, KLD_E_INPUT, "config.json: %s[%zu] is not 0 or 1", key, i);
    *out = (int)json_integer_value(v);
    return KLD_OK;
}

/* By the family's rule, where no list says it; *fixed: a list that says otherwise is wrong. */
static bool slides_by_rule(const kld_config_read *r, size_t i, size_t window, bool *fixed) {
    const double *v = r->value;
    *fixed = false;
    switch (r->arch->window) {
    case KLD_WINDOW_NONE: *fixed = true; return false;
    case KLD_WINDOW_ALL_LAYERS: *fixed = true; return window > 0;
    case KLD_WINDOW_BY_LAYER: return window && (double)i >= v[KLD_KEY_FULL_LAYERS];
    case KLD_WINDOW_ALTERNATE: return i % 2 == 0;
    case KLD_WINDOW_PATTERN: return (i + 1) % (size_t)v[KLD_KEY_PATTERN] != 0;
    case KLD_WINDOW_LISTED: break;
    }
    return false;
}

static kld_status read_windows(kld_config_read *r, const json_t *text, kld_err *err) {
    const json_t *types, *hybrid = NULL;
    TRY(layer_list(r, text, "layer_types", &types, err));
    /* Layers whose keys an indexer picks are full up to config.dense_window. */
    const char *full = r->arch->skipped ? "deepseek_sparse_attention" : "full_attention";
    bool listed = r->arch->window == KLD_WINDOW_LISTED;
    if (listed) TRY(layer_list(r, text, "hybrid_layer_pattern", &hybrid, err));
    if (listed && !types && !hybrid)
        return kld_fail(err, KLD_E_INPUT,
                        "config.json: 'layer_types' or 'hybrid_layer_pattern' is required");
    size_t window = r->value[KLD_KEY_USE_WINDOW] != 0 ? (size_t)r->value[KLD_KEY_WINDOW] : 0;
    for (size_t i = 0; i < r->config.layers; i++) {
        int said, also;
        TRY(word(types, "layer_types", i, full, "sliding_attention", &said, err));
        TRY(bit(hybrid, "hybrid_layer_pattern", i, &also, err));
        if (said >= 0 && also >= 0 && said != also)
            return kld_fail(err, KLD_E_INPUT,
                            "config.json: layer_types and hybrid_layer_pattern differ in layer %zu",
                            i);
        if (said < 0) said = also;
        bool fixed, slides = slides_by_rule(r, i, window, &fixed);
        if (said >= 0 && fixed && slides != (said == 1))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "config.json: layer_types[%zu] is %s, but %s layers are %s", i,
                            said ? "sliding_attention" : full, r->arch->family,
                            slides ? "all sliding" : "all full");
        if (said >= 0) slides = said == 1;
        if (slides && !window)
            return kld_fail(err, KLD_E_INPUT,
                            "config.json: layer_types[%zu] slides, but there is no sliding window",
                            i);
        r->slides[i] = slides;
    }
    return KLD_OK;
}

static bool reads(const kld_arch *a, const char *key) {
    for (const char *const *l = a->lists; l && *l; l++)
        if (!strcmp(*l, key)) return true;
    return false;
}

/* mlp_only_layers: indices of layers without experts. */
static kld_status only_dense(kld_config_read *r, const json_t *text, kld_err *err) {
    const json_t *list = json_object_get(text, "mlp_only_layers");
    if (!list || json_is_null(list) || !reads(r->arch, "mlp_only_layers")) return KLD_OK;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t at = json_integer_value(v);
        if (!json_is_integer(v) || at < 0 || (size_t)at >= r->config.layers)
            return kld_fail(err, KLD_E_INPUT,
                            "config.json: mlp_only_layers[%zu] is not the number of a layer", i);
        r->sparse[at] = false;
    }
    if (json_is_array(list)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "config.json: 'mlp_only_layers': expected a list, found %s",
                    kld_json_kind(list));
}

static kld_status read_sparse(kld_config_read *r, const json_t *text, kld_err *err) {
    const json_t *types = NULL, *freq = NULL;
    if (!r->arch->experts) return KLD_OK;
    if (reads(r->arch, "mlp_layer_types")) TRY(layer_list(r, text, "mlp_layer_types", &types, err));
    if (reads(r->arch, "moe_layer_freq")) TRY(layer_list(r, text, "moe_layer_freq", &freq, err));
    size_t first = (size_t)r->value[KLD_KEY_DENSE_LAYERS];
    size_t step = (size_t)r->value[KLD_KEY_SPARSE_STEP];
    for (size_t i = 0; i < r->config.layers; i++) {
        int said, also;
        TRY(word(types, "mlp_layer_types", i, "dense", "sparse", &said, err));
        TRY(bit(freq, "moe_layer_freq", i, &also, err));
        if (said >= 0 && also >= 0 && said != also)
            return kld_fail(err, KLD_E_INPUT,
                            "config.json: mlp_layer_types and moe_layer_freq differ in layer %zu",
                            i);
        if (said < 0) said = also;
        r->sparse[i] = said >= 0 ? said == 1 : i >= first && (i + 1) % step == 0;
    }
    return only_dense(r, text, err);
}

kld_status kld_config_layers(kld_config_read *r, const json_t *text, kld_arena *arena,
                             kld_err *err) {
    TRY(ARENA_ARRAY(arena, &r->slides, r->config.layers, err));
    TRY(ARENA_ARRAY(arena, &r->sparse, r->config.layers, err));
    TRY(read_windows(r, text, err));
    return read_sparse(r, text, err);
}
