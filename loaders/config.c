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
    for (; list && *list; list++) {
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

static bool is_read(const kld_arch *a, const char *key) {
    for (size_t i = 0; i < a->n_keys; i++) {
        const kld_key_row *row = &a->keys[i];
        if (row->name && !strcmp(row->name, key)) return true;
        if (row->alias && !strcmp(row->alias, key)) return true;
    }
    return listed(special, key) || listed(a->lists, key);
}

/* The family's word goes before what holds for all others. */
static const kld_assert_row *find_assert(const kld_arch *a, const char *key) {
    for (size_t i = 0; i < a->n_asserts; i++) {
        if (!strcmp(a->asserts[i].name, key)) return &a->asserts[i];
    }
    if (is_read(a, key) || listed(a->ignored, key)) return NULL;
    for (size_t i = 0; i < kld_n_config_asserts; i++) {
        if (!strcmp(kld_config_asserts[i].name, key)) return &kld_config_asserts[i];
    }
    return NULL;
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
        if (!read && !listed(kld_config_ignored, k) && !listed(a->ignored, k))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "config.json: key '%.200s' is not known for %s, so its effect on the "
                            "result is not implemented",
                            k, a->family);
    }
    return KLD_OK;
}

static kld_status read_named(const char *name, kld_key_kind kind, const json_t *text, double *out,
                             kld_err *err) {
    kld_status st = KLD_OK;
    bool flag;
    uint64_t count;
    switch (kind) {
    case KLD_KIND_FLAG:
        st = kld_json_bool(text, name, &flag, err);
        if (st == KLD_OK) *out = flag;
        break;
    case KLD_KIND_COUNT:
        st = kld_json_u64(text, name, &count, err);
        if (st == KLD_OK) *out = (double)count;
        if (st == KLD_OK && *out > MAX_COUNT)
            st = kld_fail(err, KLD_E_INPUT, "'%s' is %.17g, above %.17g", name, *out, MAX_COUNT);
        break;
    case KLD_KIND_REAL:
        st = kld_json_f64(text, name, out, err);
        if (st == KLD_OK && !(isfinite(*out) && *out >= 0))
            st = kld_fail(err, KLD_E_INPUT, "'%s' is %g, not a finite value of at least 0", name,
                          *out);
        break;
    }
    return kld_where(err, st, "config.json");
}

static kld_status read_key(const kld_key_row *row, const json_t *text, double *out, kld_err *err) {
    const json_t *v = row->name ? json_object_get(text, row->name) : NULL;
    const json_t *other = row->alias ? json_object_get(text, row->alias) : NULL;
    const char *name = v ? row->name : row->alias;
    if (v && other && !json_equal((json_t *)(uintptr_t)v, (json_t *)(uintptr_t)other))
        return kld_fail(err, KLD_E_INPUT, "config.json: '%s' and '%s' differ", row->name,
                        row->alias);
    if (!v) v = other;
    if (!v || json_is_null(v)) {
        *out = v ? row->if_null : row->if_absent;
        if (*out == KLD_REQUIRED)
            return kld_fail(err, KLD_E_INPUT, "config.json: '%s' is required and %s", row->name,
                            v ? "null" : "absent");
        return KLD_OK;
    }
    return read_named(name, row->kind, text, out, err);
}

/* Counts that may be 0: there is none of it. */
static bool may_be_zero(kld_key key) {
    switch (key) {
    case KLD_KEY_WINDOW:
    case KLD_KEY_FULL_LAYERS:
    case KLD_KEY_ROTARY_DIM:
    case KLD_KEY_Q_LORA:
    case KLD_KEY_ROPE_DIM:
    case KLD_KEY_SHARED_EXPERTS:
    case KLD_KEY_DENSE_LAYERS: return true;
    default: return false;
    }
}

static const struct {
    kld_key slides, full;
} derived[] = {{KLD_KEY_SLIDING_HEADS, KLD_KEY_HEADS},
               {KLD_KEY_SLIDING_KV_HEADS, KLD_KEY_KV_HEADS},
               {KLD_KEY_SLIDING_HEAD_DIM, KLD_KEY_HEAD_DIM},
               {KLD_KEY_SLIDING_VALUE_DIM, KLD_KEY_VALUE_DIM}};

static kld_status read_values(kld_config_read *r, const json_t *text, kld_err *err) {
    static const kld_key one[] = {KLD_KEY_USE_WINDOW, KLD_KEY_VALUE_SCALE, KLD_KEY_SPARSE_STEP,
                                  KLD_KEY_GROUPS,     KLD_KEY_TOP_GROUPS,  KLD_KEY_ROUTED_SCALE};
    double *v = r->value;
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) v[one[i]] = 1;
    v[KLD_KEY_VALUE_DIM] = KLD_DERIVED;
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++)
        v[derived[i].slides] = KLD_DERIVED;
    for (size_t i = 0; i < r->arch->n_keys; i++) {
        const kld_key_row *row = &r->arch->keys[i];
        TRY(read_key(row, text, &v[row->key], err));
        if (row->kind == KLD_KIND_COUNT && v[row->key] == 0 && !may_be_zero(row->key))
            return kld_fail(err, KLD_E_INPUT, "config.json: '%s' is 0", row->name);
    }
    if (v[KLD_KEY_KV_HEADS] == KLD_DERIVED) v[KLD_KEY_KV_HEADS] = v[KLD_KEY_HEADS];
    if (r->arch->attention == KLD_BLOCK_LATENT_ATTENTION)
        v[KLD_KEY_HEAD_DIM] = v[KLD_KEY_NOPE_DIM] + v[KLD_KEY_ROPE_DIM];
    if (v[KLD_KEY_HEAD_DIM] == KLD_DERIVED)
        v[KLD_KEY_HEAD_DIM] = floor(v[KLD_KEY_HIDDEN] / v[KLD_KEY_HEADS]);
    if (v[KLD_KEY_VALUE_DIM] == KLD_DERIVED) v[KLD_KEY_VALUE_DIM] = v[KLD_KEY_HEAD_DIM];
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        double *own = &v[derived[i].slides], full = v[derived[i].full];
        if (*own == KLD_DERIVED || *own == KLD_TWICE) *own = *own == KLD_TWICE ? 2 * full : full;
    }
    if (v[KLD_KEY_LAYERS] > MAX_LAYERS)
        return kld_fail(err, KLD_E_INPUT, "config.json: 'num_hidden_layers' is %.0f, above %d",
                        v[KLD_KEY_LAYERS], MAX_LAYERS);
    return KLD_OK;
}

/* The outer flag wins: the loader of a multimodal release ties by its own config. */
static kld_status read_tied(const json_t *root, const json_t *text, const kld_arch *arch,
                            bool *tied, kld_err *err) {
    const json_t *from = json_object_get(root, "tie_word_embeddings") ? root : text;
    *tied = arch->tied;
    if (!json_object_get(from, "tie_word_embeddings")) return KLD_OK;
    return kld_where(err, kld_json_bool(from, "tie_word_embeddings", tied, err), "config.json");
}

static kld_status read_activation(const json_t *text, const kld_arch *arch, kld_activation *out,
                                  kld_err *err) {
    bool other = listed(arch->lists, "hidden_activation");
    const char *key =
        other && json_object_get(text, "hidden_activation") ? "hidden_activation" : "hidden_act";
    const json_t *v = json_object_get(text, key);
    *out = arch->activation;
    if (!v || json_is_null(v)) return KLD_OK;
    const char *s = json_string_value(v);
    bool silu = s && (!strcmp(s, "silu") || !strcmp(s, "swish"));
    /* What gpt-oss computes is written down as silu. */
    if (arch->activation == KLD_ACT_CLAMPED_GLU) {
        if (silu) return KLD_OK;
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "config.json: '%s' is %.80s; of %s only silu is implemented", key,
                        s ? s : kld_json_kind(v), arch->family);
    }
    *out = silu ? KLD_ACT_SILU : KLD_ACT_GELU_TANH;
    if (silu || (s && !strcmp(s, "gelu_pytorch_tanh"))) return KLD_OK;
    return kld_fail(err, KLD_E_UNSUPPORTED,
                    "config.json: '%s' is %.80s; only silu and gelu_pytorch_tanh are implemented",
                    key, s ? s : kld_json_kind(v));
}

static kld_status read_interleave(const json_t *text, const kld_arch *arch, bool *out,
                                  kld_err *err) {
    *out = arch->rope_interleaved;
    if (!listed(arch->lists, "rope_interleave") || !json_object_get(text, "rope_interleave"))
        return KLD_OK;
    return kld_where(err, kld_json_bool(text, "rope_interleave", out, err), "config.json");
}

/* Several keys may say how many columns are rotated. */
static kld_status set_rotated(kld_config_read *r, kld_attention *a, kld_err *err) {
    double width = (double)a->head_dim * a->rope.partial, given = r->value[KLD_KEY_ROTARY_DIM];
    bool latent = r->arch->attention == KLD_BLOCK_LATENT_ATTENTION;
    a->rope_dim = (size_t)width;
    if (latent) {
        a->kv_heads = a->heads;
        a->rope_first = (size_t)r->value[KLD_KEY_NOPE_DIM];
        given = r->value[KLD_KEY_ROPE_DIM];
    }
    if (latent || given > 0) a->rope_dim = (size_t)given;
    if (!(latent || given > 0) || a->rope.partial == 1 || fabs(width - given) < 1) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "config.json: partial_rotary_factor %g of %zu columns is not the %.0f that "
                    "'%s' says",
                    a->rope.partial, a->head_dim, given,
                    latent ? "qk_rope_head_dim" : "rotary_dim");
}

static kld_status check_attention(const kld_attention *a, const kld_arch *arch, kld_err *err) {
    if (a->heads % a->kv_heads)
        return kld_fail(
            err, KLD_E_INPUT,
            "config.json: %zu attention heads are not a multiple of %zu key/value heads", a->heads,
            a->kv_heads);
    bool latent = arch->attention == KLD_BLOCK_LATENT_ATTENTION;
    if (!latent && (a->head_dim < 2 || a->head_dim % 2))
        return kld_fail(err, KLD_E_UNSUPPORTED, "config.json: 'head_dim' %zu is not even",
                        a->head_dim);
    if (a->rope_dim % 2 || a->rope_first + a->rope_dim > a->head_dim)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "config.json: %zu rotated columns in a head of %zu: expected an even "
                        "number of at most as many",
                        a->rope_dim, a->head_dim);
    return KLD_OK;
}

static kld_status read_attention(kld_config_read *r, const json_t *text, bool slides,
                                 kld_err *err) {
    const kld_arch *arch = r->arch;
    const double *v = r->value;
    kld_attention *a = &r->config.attn[slides];
    bool own = slides && arch->sliding_rope_theta > 0;
    kld_rope_source src = {.kind = slides ? "sliding_attention" : "full_attention",
                           .theta_key = own ? arch->sliding_theta : "rope_theta",
                           .theta = own ? arch->sliding_rope_theta : arch->rope_theta,
                           .scaling = !own,
                           .partial = arch->partial_rope,
                           .partial_default = arch->rope_partial > 0 ? arch->rope_partial : 1,
                           .required = arch->rope_required,
                           .queries = arch->scaled_queries};
    if (arch->sliding_rope_theta <= 0) src.kind = NULL;
    *a = (kld_attention){
        .heads = (size_t)v[slides ? KLD_KEY_SLIDING_HEADS : KLD_KEY_HEADS],
        .kv_heads = (size_t)v[slides ? KLD_KEY_SLIDING_KV_HEADS : KLD_KEY_KV_HEADS],
        .head_dim = (size_t)v[slides ? KLD_KEY_SLIDING_HEAD_DIM : KLD_KEY_HEAD_DIM],
        .value_dim = (size_t)v[slides ? KLD_KEY_SLIDING_VALUE_DIM : KLD_KEY_VALUE_DIM],
        .window = slides ? (size_t)v[KLD_KEY_WINDOW] : 0};
    TRY(kld_where(err, kld_rope_parse(&a->rope, text, &src, r->config.max_position, err),
                  "config.json"));
    TRY(set_rotated(r, a, err));
    return check_attention(a, arch, err);
}

/* Latent attention makes up for what YaRN does to the scores: DeepSeek-V3's modeling code. */
static double score_scale(const kld_config_read *r) {
    const kld_attention *a = &r->config.attn[KLD_ATTN_FULL];
    double by = r->value[KLD_KEY_QUERY_SCALAR];
    double scale = 1 / sqrt(by > 0 ? by : (double)a->head_dim);
    if (r->arch->attention != KLD_BLOCK_LATENT_ATTENTION || a->rope.scaling == KLD_ROPE_DEFAULT ||
        a->rope.mscale_all_dim == 0 || a->rope.factor <= 1)
        return scale;
    double m = 0.1 * a->rope.mscale_all_dim * log(a->rope.factor) + 1;
    return scale * m * m;
}

static kld_status read_router(kld_config_read *r, kld_err *err) {
    const double *v = r->value;
    kld_config *c = &r->config;
    if (!r->arch->experts) return KLD_OK;
    c->router = (kld_router){.score = r->arch->score,
                             .experts = (size_t)v[KLD_KEY_EXPERTS],
                             .top_k = (size_t)v[KLD_KEY_TOP_EXPERTS],
                             .groups = (size_t)v[KLD_KEY_GROUPS],
                             .top_groups = (size_t)v[KLD_KEY_TOP_GROUPS],
                             .normalise = v[KLD_KEY_NORMALISE] != 0,
                             .eps = r->arch->router_eps,
                             .scale = v[KLD_KEY_ROUTED_SCALE]};
    const kld_router *t = &c->router;
    c->expert_intermediate = (size_t)v[KLD_KEY_EXPERT_INTERMEDIATE];
    c->shared_intermediate = (size_t)v[KLD_KEY_SHARED_EXPERTS] * c->expert_intermediate;
    if (t->top_k > t->experts)
        return kld_fail(err, KLD_E_INPUT, "config.json: %zu experts a token, but there are %zu",
                        t->top_k, t->experts);
    if (t->experts > KLD_MAX_EXPERTS || t->top_k > KLD_MAX_TOP_EXPERTS)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "config.json: %zu experts, %zu a token: at most %d and %d are implemented",
                        t->experts, t->top_k, KLD_MAX_EXPERTS, KLD_MAX_TOP_EXPERTS);
    if (t->experts % t->groups || t->top_groups > t->groups ||
        (t->groups > 1 && t->experts / t->groups < 2) ||
        t->top_k > t->experts / t->groups * t->top_groups)
        return kld_fail(err, KLD_E_INPUT,
                        "config.json: %zu of %zu experts cannot be chosen from %zu of %zu groups",
                        t->top_k, t->experts, t->top_groups, t->groups);
    return KLD_OK;
}

/* The accepted classes; or, of a class that wraps several families, their text_config.model_type.
 */
static kld_status refuse_arch(const char *name, const char *type, kld_err *err) {
    kld_buf b = {0};
    kld_status st = KLD_OK;
    bool wrapper = false;
    for (const kld_arch *const *row = kld_archs; *row; row++)
        wrapper |= listed((*row)->wrappers, name);
    for (const kld_arch *const *row = kld_archs; st == KLD_OK && *row; row++) {
        const char *const *lists[] = {(*row)->architectures, (*row)->wrappers};
        if (wrapper)
            lists[0] = lists[1] = listed((*row)->wrappers, name) ? (*row)->text_types : NULL;
        for (size_t k = 0; k < (wrapper ? 1 : 2); k++)
            for (const char *const *a = lists[k]; st == KLD_OK && a && *a; a++)
                if (!b.len || !strstr((char *)b.data, *a))
                    st = kld_buf_addf(&b, err, "%s%s", b.len ? ", " : "", *a);
    }
    if (st == KLD_OK && wrapper)
        st = kld_fail(err, KLD_E_UNSUPPORTED,
                      "config.json: '%.120s' with a text_config of model_type %.80s is not "
                      "implemented; these are: %s",
                      name, type ? type : "(none)", (char *)b.data);
    else if (st == KLD_OK)
        st = kld_fail(err, KLD_E_UNSUPPORTED,
                      "config.json: architecture '%.120s' is not implemented; these are: %s", name,
                      (char *)b.data);
    kld_buf_free(&b);
    return st;
}

static kld_status find_arch(const json_t *root, const json_t *text, const kld_arch **arch,
                            kld_err *err) {
    json_t *list = json_object_get(root, "architectures");
    if (!json_is_array(list) || !json_array_size(list))
        list = json_object_get(text, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name)
        return kld_fail(err, KLD_E_INPUT, "config.json: 'architectures' does not name a class");
    const char *type = text == root ? NULL : json_string_value(json_object_get(text, "model_type"));
    *arch = kld_arch_find(name, text != root, type);
    return *arch ? KLD_OK : refuse_arch(name, type, err);
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
    kld_config *c = &out->config;
    *c = (kld_config){.hidden = (size_t)v[KLD_KEY_HIDDEN],
                      .intermediate = (size_t)v[KLD_KEY_INTERMEDIATE],
                      .layers = (size_t)v[KLD_KEY_LAYERS],
                      .vocab = (size_t)v[KLD_KEY_VOCAB],
                      .max_position = (size_t)v[KLD_KEY_MAX_POSITION],
                      .dense_window = SIZE_MAX,
                      .norm_eps = v[KLD_KEY_EPS],
                      .norm_plus_one = out->arch->norm_plus_one,
                      .embed_scale = out->arch->embed_scaled ? sqrt(v[KLD_KEY_HIDDEN]) : 1,
                      .logit_cap = v[KLD_KEY_LOGIT_CAP],
                      .activation_limit = v[KLD_KEY_ACTIVATION_LIMIT],
                      .value_scale = v[KLD_KEY_VALUE_SCALE],
                      .q_lora = (size_t)v[KLD_KEY_Q_LORA],
                      .kv_lora = (size_t)v[KLD_KEY_KV_LORA],
                      .nope_dim = (size_t)v[KLD_KEY_NOPE_DIM],
                      .latent_eps = out->arch->latent_eps};
    if (v[KLD_KEY_INDEX_TOP_K] > 0) c->dense_window = (size_t)v[KLD_KEY_INDEX_TOP_K];
    TRY(read_tied(root, text, out->arch, &c->tied, err));
    TRY(read_activation(text, out->arch, &c->activation, err));
    for (int slides = 0; slides < KLD_ATTN_KINDS; slides++)
        TRY(read_attention(out, text, slides, err));
    c->attn_scale = score_scale(out);
    const kld_rope *rope = &c->attn[KLD_ATTN_FULL].rope;
    c->query_beta = rope->llama_4_beta;
    c->query_length = rope->original_max_position;
    TRY(read_interleave(text, out->arch, &c->rope_interleaved, err));
    TRY(read_router(out, err));
    return kld_config_layers(out, text, arena, err);
}
