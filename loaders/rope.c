#include "loaders/rope.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static const char *const known[] = {"rope_type",
                                    "type",
                                    "rope_theta",
                                    "factor",
                                    "mscale",
                                    "mscale_all_dim",
                                    "attention_factor",
                                    "beta_fast",
                                    "beta_slow",
                                    "truncate",
                                    "low_freq_factor",
                                    "high_freq_factor",
                                    "partial_rotary_factor",
                                    "llama_4_scaling_beta",
                                    "original_max_position_embeddings"};

static const struct {
    const char *name;
    kld_rope_scaling scaling;
} types[] = {{"default", KLD_ROPE_DEFAULT},
             {"linear", KLD_ROPE_LINEAR},
             {"llama3", KLD_ROPE_LLAMA3},
             {"yarn", KLD_ROPE_YARN}};

/* A member that is absent or null takes `fallback`. */
static kld_status number(const json_t *d, const char *key, double fallback, double *out,
                         kld_err *err) {
    const json_t *v = json_object_get(d, key);
    *out = fallback;
    if (!v || json_is_null(v)) return KLD_OK;
    TRY(kld_json_f64(d, key, out, err));
    if (!isfinite(*out)) return kld_fail(err, KLD_E_INPUT, "'%s' is not finite", key);
    return KLD_OK;
}

static kld_status positive(const json_t *d, const char *key, double fallback, double *out,
                           kld_err *err) {
    TRY(number(d, key, fallback, out, err));
    if (!(*out > 0)) return kld_fail(err, KLD_E_INPUT, "'%s' must be above 0 and is %g", key, *out);
    return KLD_OK;
}

static kld_status required(const json_t *d, const char *key, double *out, kld_err *err) {
    if (!json_is_number(json_object_get(d, key)))
        return kld_fail(err, KLD_E_INPUT, "'%s' is required: expected a number, found %s", key,
                        kld_json_kind(json_object_get(d, key)));
    return positive(d, key, 0, out, err);
}

static kld_status check_keys(const json_t *d, const kld_rope_source *src, kld_err *err) {
    const char *k;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)d, k, v) {
        bool ok = false;
        for (size_t i = 0; !ok && i < sizeof known / sizeof *known; i++) ok = !strcmp(k, known[i]);
        /* Mistral writes it here too; the reference reads the one outside. */
        ok |= src->queries && !strcmp(k, "max_position_embeddings");
        if (ok) continue;
        if (json_is_object(v))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "'%s': RoPE that depends on the layer is not implemented", k);
        return kld_fail(err, KLD_E_UNSUPPORTED, "key '%s' is not implemented", k);
    }
    return KLD_OK;
}

static kld_status read_type(kld_rope *r, const json_t *d, kld_err *err) {
    const json_t *v = json_object_get(d, "rope_type");
    if (!v) v = json_object_get(d, "type");
    r->scaling = KLD_ROPE_DEFAULT;
    if (!v) return KLD_OK;
    const char *name = json_string_value(v);
    if (!name)
        return kld_fail(err, KLD_E_INPUT, "'rope_type': expected a string, found %s",
                        kld_json_kind(v));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        r->scaling = types[i].scaling;
        return KLD_OK;
    }
    return kld_fail(err, KLD_E_UNSUPPORTED,
                    "rope_type '%.40s' is not implemented (default, linear, llama3, yarn are)",
                    name);
}

static double mscale(double factor, double m) {
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static kld_status read_yarn(kld_rope *r, const json_t *d, size_t max_position, kld_err *err) {
    TRY(positive(d, "factor", (double)max_position / r->original_max_position, &r->factor, err));
    TRY(number(d, "beta_fast", 32, &r->beta_fast, err));
    TRY(number(d, "beta_slow", 1, &r->beta_slow, err));
    if (r->beta_fast == 0) r->beta_fast = 32; /* as transformers takes 0 for absent */
    if (r->beta_slow == 0) r->beta_slow = 1;
    if (r->beta_fast < 0 || r->beta_slow < 0)
        return kld_fail(err, KLD_E_INPUT, "beta_fast and beta_slow must be above 0");
    const json_t *t = json_object_get(d, "truncate");
    if (t) TRY(kld_json_bool(d, "truncate", &r->truncate, err));
    double m, m_all;
    TRY(number(d, "mscale", 0, &m, err));
    TRY(number(d, "mscale_all_dim", 0, &m_all, err));
    r->mscale_all_dim = m_all;
    double fallback = m != 0 && m_all != 0 ? mscale(r->factor, m) / mscale(r->factor, m_all)
                                           : mscale(r->factor, 1);
    return positive(d, "attention_factor", fallback, &r->attention_factor, err);
}

static kld_status read_partial(kld_rope *r, const json_t *d, const kld_rope_source *src,
                               kld_err *err) {
    TRY(positive(d, "partial_rotary_factor", r->partial, &r->partial, err));
    if (r->partial > 1 || (r->partial != 1 && !src->partial))
        return kld_fail(err, KLD_E_UNSUPPORTED, "partial_rotary_factor %g is not implemented",
                        r->partial);
    return KLD_OK;
}

static kld_status read_dict(kld_rope *r, const json_t *d, const json_t *text,
                            const kld_rope_source *src, size_t max_position, kld_err *err) {
    TRY(check_keys(d, src, err));
    TRY(read_type(r, d, err));
    TRY(positive(d, "rope_theta", r->theta, &r->theta, err));
    TRY(read_partial(r, d, src, err));
    TRY(number(d, "llama_4_scaling_beta", 0, &r->llama_4_beta, err));
    if (r->llama_4_beta != 0 && !src->queries)
        return kld_fail(err, KLD_E_UNSUPPORTED, "key 'llama_4_scaling_beta' is not implemented");
    /* transformers: a value outside the dictionary wins, and the longest position is the
     * last resort. */
    double outside;
    TRY(number(text, "original_max_position_embeddings", 0, &outside, err));
    TRY(positive(d, "original_max_position_embeddings", (double)max_position,
                 &r->original_max_position, err));
    if (outside > 0) r->original_max_position = outside;
    switch (r->scaling) {
    case KLD_ROPE_DEFAULT: return KLD_OK;
    case KLD_ROPE_LINEAR: return required(d, "factor", &r->factor, err);
    case KLD_ROPE_LLAMA3:
        TRY(required(d, "factor", &r->factor, err));
        TRY(required(d, "low_freq_factor", &r->low_freq_factor, err));
        TRY(required(d, "high_freq_factor", &r->high_freq_factor, err));
        if (r->high_freq_factor <= r->low_freq_factor)
            return kld_fail(err, KLD_E_INPUT, "high_freq_factor must be above low_freq_factor");
        return KLD_OK;
    case KLD_ROPE_YARN: return read_yarn(r, d, max_position, err);
    }
    return KLD_OK;
}

/* The member that is about these layers, when the object differs by layer kind. */
static kld_status of_kind(const json_t **d, const char *kind, bool *nested, kld_err *err) {
    const char *k;
    json_t *v;
    *nested = false;
    json_object_foreach((json_t *)(uintptr_t)*d, k, v) *nested |= kind && json_is_object(v);
    if (!*nested) return KLD_OK;
    json_object_foreach((json_t *)(uintptr_t)*d, k, v) {
        if (strcmp(k, "full_attention") != 0 && strcmp(k, "sliding_attention") != 0)
            return kld_fail(err, KLD_E_UNSUPPORTED, "key '%s' is not implemented", k);
    }
    *d = json_object_get(*d, kind);
    if (!json_is_object(*d))
        return kld_fail(err, KLD_E_INPUT, "'%s': expected an object, found %s", kind,
                        kld_json_kind(*d));
    return KLD_OK;
}

kld_status kld_rope_parse(kld_rope *r, const json_t *text, const kld_rope_source *src,
                          size_t max_position, kld_err *err) {
    *r = (kld_rope){.factor = 1,
                    .attention_factor = 1,
                    .truncate = true,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .partial = src->partial_default,
                    .original_max_position = (double)max_position};
    TRY(positive(text, src->theta_key, src->theta, &r->theta, err));
    TRY(read_partial(r, text, src, err));
    const char *key = "rope_scaling";
    const json_t *d = json_object_get(text, key);
    bool nested;
    if (!json_is_object(d) || !json_object_size(d)) {
        if (d && !json_is_object(d) && !json_is_null(d))
            return kld_fail(err, KLD_E_INPUT, "'rope_scaling': expected an object, found %s",
                            kld_json_kind(d));
        key = "rope_parameters";
        d = json_object_get(text, key);
    }
    bool absent = !d || json_is_null(d) || (json_is_object(d) && !json_object_size(d));
    if (absent && src->required)
        return kld_fail(err, KLD_E_INPUT, "'rope_parameters' or 'rope_scaling' is required");
    if (absent) return KLD_OK;
    if (!json_is_object(d))
        return kld_fail(err, KLD_E_INPUT, "'%s': expected an object, found %s", key,
                        kld_json_kind(d));
    TRY(kld_where(err, of_kind(&d, src->kind, &nested, err), "%s", key));
    /* One object for all is about the full layers: the others have a theta of their own and no
     * scaling, but as many rotated columns. */
    if (!src->scaling && !nested) return kld_where(err, read_partial(r, d, src, err), "%s", key);
    return kld_where(err, read_dict(r, d, text, src, max_position, err), "%s", key);
}

/* theta^(2i/d): the exponent is an FP32 quotient, as in transformers. */
static float base_power(double theta, size_t i, size_t d) {
    float e = (float)(2 * i) / (float)d;
    return (float)pow(theta, (double)e);
}

static void yarn_frequencies(const kld_rope *r, size_t d, float *inv) {
    double dd = (double)d, scale = dd / (2 * log(r->theta));
    double lo = scale * log(r->original_max_position / (r->beta_fast * 2 * PI));
    double hi = scale * log(r->original_max_position / (r->beta_slow * 2 * PI));
    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    if (lo < 0) lo = 0;
    if (hi > dd - 1) hi = dd - 1;
    if (lo == hi) hi += 0.001; /* as published: avoids 0/0 */
    float flo = (float)lo, span = (float)(hi - lo), factor = (float)r->factor;
    for (size_t i = 0; i < d / 2; i++) {
        float p = base_power(r->theta, i, d);
        float extrapolated = 1.0f / p, interpolated = 1.0f / (factor * p);
        float g = ((float)i - flo) / span;
        g = g < 0 ? 0 : g > 1 ? 1 : g;
        float keep = 1.0f - g;
        inv[i] = interpolated * (1.0f - keep) + extrapolated * keep;
    }
}

static float llama3_frequency(const kld_rope *r, float inv) {
    float wavelength = (float)(2 * PI) / inv, factor = (float)r->factor;
    double l = r->original_max_position, low = r->low_freq_factor, high = r->high_freq_factor;
    if (wavelength > (float)(l / low)) return inv / factor;
    if (wavelength < (float)(l / high)) return inv;
    float s = ((float)l / wavelength - (float)low) / (float)(high - low);
    return (1.0f - s) * inv / factor + s * inv;
}

void kld_rope_frequencies(const kld_rope *r, size_t dim, float *inv_freq) {
    if (r->scaling == KLD_ROPE_YARN) {
        yarn_frequencies(r, dim, inv_freq);
        return;
    }
    for (size_t i = 0; i < dim / 2; i++) {
        float inv = 1.0f / base_power(r->theta, i, dim);
        if (r->scaling == KLD_ROPE_LINEAR) inv /= (float)r->factor;
        if (r->scaling == KLD_ROPE_LLAMA3) inv = llama3_frequency(r, inv);
        inv_freq[i] = inv;
    }
}
