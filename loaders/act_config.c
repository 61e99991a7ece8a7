#include "loaders/act_config.h"

#include "kld/base/mem.h"
#include "loaders/match.h"
#include "loaders/quant_config.h"

#include <stdio.h>
#include <string.h>

/* Entries of lists, in the order in which they are asked: ignored modules, then layers by name,
 * then groups. */
typedef struct rule {
    kld_pattern pattern;
    kld_act_said said;
} rule;
typedef struct rule_list {
    rule *rule; /* owned [n] */
    size_t n, cap;
    kld_pattern_index index; /* when all of them are there */
} rule_list;
enum { SET_IGNORED, SET_LAYERS, SET_GROUPS, SETS };

struct kld_act_config {
    kld_model *m; /* borrowed; its arena keeps texts */
    rule_list set[SETS];
    kld_act_said otherwise;
    int weights_only; /* see below; -1: not asked yet */
};

static const kld_act_said NOTHING = {.by_tensors = true}, NONE;

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

/* In any case; n characters at most. */
static bool same_n(const char *a, const char *b, size_t n) {
    for (; n && a && b && lower(*a) == lower(*b); a++, b++, n--)
        if (!*a) return true;
    return a && b && !n;
}

static bool same(const char *a, const char *b) { return same_n(a, b, SIZE_MAX); }

static const char *text_of(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static kld_status add(kld_act_config *c, int set, kld_match_rule how, const char *text,
                      const kld_act_said *said, kld_err *err) {
    rule_list *l = &c->set[set];
    if (!text) return KLD_OK;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        TRY(kld_realloc((void **)&l->rule, cap, sizeof *l->rule, err));
        l->cap = cap;
    }
    TRY(kld_pattern_init(&l->rule[l->n].pattern, how, text, err));
    l->rule[l->n++].said = *said;
    return KLD_OK;
}

static kld_status add_list(kld_act_config *c, int set, kld_match_rule how, const json_t *list,
                           const kld_act_said *said, kld_err *err) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) TRY(add(c, set, how, json_string_value(v), said, err));
    return KLD_OK;
}

static kld_status refuse(kld_act_config *c, kld_act_said *out, const char *text, kld_err *err) {
    char *copy;
    TRY(kld_arena_strndup(&c->m->arena, &copy, text, strlen(text), err));
    *out = (kld_act_said){.refused = copy};
    return KLD_OK;
}

/* ---- compressed-tensors ------------------------------------------------------------------ */

/* Defaults are those of its QuantizationArgs. */
struct ct_args {
    const char *type, *strategy, *scale, *dynamic;
    long long bits, group;
    bool symmetric;
};

static struct ct_args ct_read(const json_t *a) {
    struct ct_args t = {.type = text_of(a, "type"), .strategy = text_of(a, "strategy")};
    const json_t *dynamic = json_object_get(a, "dynamic");
    const json_t *bits = json_object_get(a, "num_bits");
    t.scale = text_of(a, "scale_dtype");
    t.bits = bits ? (long long)json_integer_value(bits) : 8;
    t.group = (long long)json_integer_value(json_object_get(a, "group_size"));
    t.symmetric = !json_is_false(json_object_get(a, "symmetric"));
    t.dynamic = json_is_true(dynamic)     ? "true"
                : json_is_string(dynamic) ? json_string_value(dynamic)
                                          : "false";
    if (!t.type) t.type = "int";
    if (!t.strategy) t.strategy = t.group > 0 ? "group" : t.group < 0 ? "channel" : "tensor";
    return t;
}

static kld_act_format ct_format(const struct ct_args *t) {
    bool e8m0 = t->scale && (strstr(t->scale, "uint8") || strstr(t->scale, "e8m0"));
    bool group = same(t->strategy, "group"), running = same(t->dynamic, "true");
    if (!same(t->type, "float") || !t->symmetric) return KLD_AQ_NONE;
    if (t->bits == 4) {
        if (same(t->strategy, "tensor_group") && t->group == 16 && !same(t->dynamic, "false"))
            return KLD_AQ_NVFP4;
        return group && t->group == 32 && e8m0 && running ? KLD_AQ_MXFP4 : KLD_AQ_NONE;
    }
    if (t->bits != 8) return KLD_AQ_NONE;
    if (same(t->strategy, "tensor") && same(t->dynamic, "false")) return KLD_AQ_FP8_TENSOR;
    if (same(t->strategy, "token") && running) return KLD_AQ_FP8_TOKEN;
    if (group && t->group == 128 && !e8m0 && running) return KLD_AQ_FP8_BLOCK;
    return group && t->group == 32 && e8m0 && running ? KLD_AQ_MXFP8 : KLD_AQ_NONE;
}

static kld_status ct_said(kld_act_config *c, const json_t *a, kld_act_said *out, kld_err *err) {
    *out = NONE;
    if (!json_is_object(a)) return KLD_OK;
    struct ct_args t = ct_read(a);
    kld_act_format f = ct_format(&t);
    if (f == KLD_AQ_NONE) {
        char text[256];
        snprintf(text, sizeof text,
                 "%.20s of %lld bits, strategy %.40s, group_size %lld, dynamic %.20s%s", t.type,
                 t.bits, t.strategy, t.group, t.dynamic, t.symmetric ? "" : ", asymmetric");
        return refuse(c, out, text, err);
    }
    /* Without a global scale of its own compressed-tensors quantizes as if it were 1. */
    out->quant.format = f;
    if (f == KLD_AQ_MXFP4 || f == KLD_AQ_MXFP8) out->quant.exponent = KLD_AQ_EVEN;
    if (f == KLD_AQ_NVFP4 && same(t.dynamic, "true")) out->quant.scale = 1;
    return KLD_OK;
}

static kld_status read_ct(kld_act_config *c, const json_t *q, kld_err *err) {
    const char *name;
    json_t *group;
    TRY(add_list(c, SET_IGNORED, KLD_MATCH_CT, json_object_get(q, "ignore"), &NOTHING, err));
    json_object_foreach(json_object_get(q, "config_groups"), name, group) {
        kld_act_said said;
        TRY(ct_said(c, json_object_get(group, "input_activations"), &said, err));
        TRY(add_list(c, SET_GROUPS, KLD_MATCH_CT, json_object_get(group, "targets"), &said, err));
    }
    return KLD_OK;
}

/* ---- ModelOpt ------------------------------------------------------------------------------ */

#define F(x) (1u << KLD_FMT_##x)
static const struct {
    const char *name, *refused;
    kld_act_quant quant;
    uint32_t formats;
} algorithms[] = {
    {"NVFP4", NULL, {.format = KLD_AQ_NVFP4}, F(NVFP4)},
    {"NVFP4_AWQ", NULL, {.format = KLD_AQ_NVFP4}, F(NVFP4)},
    {"W4A8_NVFP4_FP8", NULL, {.format = KLD_AQ_FP8_TENSOR}, F(NVFP4)},
    {"W4A8_MXFP4_FP8", NULL, {.format = KLD_AQ_FP8_TENSOR}, F(MXFP4)},
    {"FP8", NULL, {.format = KLD_AQ_FP8_TENSOR}, F(FP8_TENSOR) | F(FP8_CHANNEL)},
    {"FP8_PER_CHANNEL_PER_TOKEN",
     NULL,
     {.format = KLD_AQ_FP8_TOKEN},
     F(FP8_TENSOR) | F(FP8_CHANNEL)},
    {"MXFP4", NULL, {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL}, F(MXFP4)},
    {"MXFP8", NULL, {.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL}, F(MXFP8)},
    {"W4A16_NVFP4", NULL, {0}, F(NVFP4)},
    {"FP8_PB_WO", NULL, {0}, F(FP8_BLOCK)},
    {"W4A16_AWQ", NULL, {0}, 0},
    {"INT4_AWQ", NULL, {0}, 0},
    {"W8A16", NULL, {0}, 0},
    {"W4A8_AWQ", "W4A8_AWQ: FP8 inputs of INT4 weights", {0}, 0},
    {"W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL: INT8 inputs", {0}, 0},
};

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

/* Nowhere in the file is anything for NVFP4 inputs: neither a scale nor a declaration. */
static bool find_weights_only(const kld_model *m, const json_t *q) {
    const char *name;
    json_t *group;
    json_object_foreach(
        json_object_get(q, "config_groups"), name,
        group) if (json_is_object(json_object_get(group, "input_activations"))) return false;
    for (size_t i = 0; i < m->ckpt.n_tensors; i++)
        if (ends(m->ckpt.tensors[i].name, ".input_scale")) return false;
    return true;
}

/* Asked once: it looks at every tensor, and there may be an entry for each. */
static bool weights_only(kld_act_config *c, const json_t *q) {
    if (c->weights_only < 0) c->weights_only = find_weights_only(c->m, q);
    return c->weights_only;
}

static kld_status modelopt_said(kld_act_config *c, const json_t *q, const char *algo,
                                kld_act_said *out, kld_err *err) {
    *out = NOTHING;
    if (!algo) return KLD_OK;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        if (!same(algo, algorithms[i].name)) continue;
        *out = (kld_act_said){.quant = algorithms[i].quant,
                              .refused = algorithms[i].refused,
                              .formats = algorithms[i].formats};
        if (out->quant.format == KLD_AQ_NVFP4 && weights_only(c, q)) out->quant = NONE.quant;
        return KLD_OK;
    }
    char text[128];
    snprintf(text, sizeof text, "quant_algo %.60s", algo);
    return refuse(c, out, text, err);
}

static kld_status read_modelopt(kld_act_config *c, const json_t *q, kld_err *err) {
    static const char *const lists[] = {"ignore", "exclude_modules"};
    json_t *layers = json_object_get(q, "quantized_layers"), *info;
    const char *name;
    for (size_t i = 0; i < 2; i++)
        TRY(add_list(c, SET_IGNORED, KLD_MATCH_GLOB, json_object_get(q, lists[i]), &NOTHING, err));
    json_object_foreach(layers, name, info) {
        kld_act_said said;
        TRY(modelopt_said(c, q, text_of(info, "quant_algo"), &said, err));
        TRY(add(c, SET_LAYERS, KLD_MATCH_PREFIX, name, &said, err));
    }
    if (json_object_size(layers)) return KLD_OK;
    return modelopt_said(c, q, text_of(q, "quant_algo"), &c->otherwise, err);
}

/* ---- fp8 ------------------------------------------------------------------------------------ */

/* The clamp is DeepSeek-V3's (inference/kernel.py). */
static kld_status fp8_said(kld_act_config *c, const json_t *q, kld_act_said *out, kld_err *err) {
    const json_t *block = json_object_get(q, "weight_block_size");
    const char *scheme = text_of(q, "activation_scheme");
    bool fixed = same(scheme, "static");
    char text[128];
    *out = (kld_act_said){.formats = F(FP8_TENSOR) | F(FP8_CHANNEL)};
    out->quant.format = fixed ? KLD_AQ_FP8_TENSOR : KLD_AQ_FP8_TOKEN;
    snprintf(text, sizeof text, "activation_scheme %.40s", scheme ? scheme : "dynamic");
    if (scheme && !fixed && !same(scheme, "dynamic")) return refuse(c, out, text, err);
    if (!json_is_array(block)) return KLD_OK;
    long long width = (long long)json_integer_value(json_array_get(block, 1));
    snprintf(text, sizeof text, "%s FP8 in blocks of %lld", fixed ? "static" : "dynamic", width);
    if (fixed || width != 128) return refuse(c, out, text, err);
    out->formats = F(FP8_BLOCK);
    out->quant = (kld_act_quant){.format = KLD_AQ_FP8_BLOCK, .eps = 1e-4f};
    out->quant.power_of_two = same(text_of(q, "scale_fmt"), "ue8m0");
    return KLD_OK;
}

static kld_status read_fp8(kld_act_config *c, const json_t *q, kld_err *err) {
    static const char *const lists[] = {"ignored_layers", "modules_to_not_convert"};
    for (size_t i = 0; i < 2; i++)
        TRY(add_list(c, SET_IGNORED, KLD_MATCH_PREFIX, json_object_get(q, lists[i]), &NOTHING,
                     err));
    return fp8_said(c, q, &c->otherwise, err);
}

/* ---- Quark --------------------------------------------------------------------------------- */

static kld_status quark_said(kld_act_config *c, const json_t *config, kld_act_said *out,
                             kld_err *err) {
    static const struct {
        const char *name;
        kld_aq_exponent rule;
    } rules[] = {{"even", KLD_AQ_EVEN}, {"floor", KLD_AQ_FLOOR}, {"ceil", KLD_AQ_CEIL}};
    const json_t *a = json_object_get(config, "input_tensors");
    *out = NONE;
    if (json_is_array(a) && json_array_size(a) == 1) a = json_array_get(a, 0);
    if (!a || json_is_null(a)) return KLD_OK;
    const char *dtype = text_of(a, "dtype"), *scheme = text_of(a, "qscheme");
    const char *mode = text_of(a, "scale_calculation_mode");
    bool running = json_is_true(json_object_get(a, "is_dynamic"));
    long long group = (long long)json_integer_value(json_object_get(a, "group_size"));
    bool fp8 = same(dtype, "fp8_e4m3"), mx = same(text_of(a, "scale_format"), "e8m0") && running;
    mx = mx && same(scheme, "per_group") && group == 32;
    for (size_t i = 0; mx && i < 3; i++)
        if (same(mode, rules[i].name)) out->quant.exponent = rules[i].rule;
    if (mx && mode && (fp8 || same(dtype, "fp4")))
        out->quant.format = fp8 ? KLD_AQ_MXFP8 : KLD_AQ_MXFP4;
    else if (fp8 && same(scheme, "per_tensor") && !running) out->quant.format = KLD_AQ_FP8_TENSOR;
    else if (fp8 && same(scheme, "per_channel") && running) out->quant.format = KLD_AQ_FP8_TOKEN;
    if (out->quant.format != KLD_AQ_NONE) return KLD_OK;
    char text[256];
    snprintf(text, sizeof text, "%.40s, %.40s, group_size %lld, %s", dtype ? dtype : "no dtype",
             scheme ? scheme : "no qscheme", group, running ? "dynamic" : "static");
    return refuse(c, out, text, err);
}

static kld_status read_quark(kld_act_config *c, const json_t *q, kld_err *err) {
    const char *name;
    json_t *config;
    TRY(add_list(c, SET_IGNORED, KLD_MATCH_QUARK, json_object_get(q, "exclude"), &NOTHING, err));
    json_object_foreach(json_object_get(q, "layer_quant_config"), name, config) {
        kld_act_said said;
        TRY(quark_said(c, config, &said, err));
        TRY(add(c, SET_LAYERS, KLD_MATCH_QUARK, name, &said, err));
    }
    if (json_object_size(json_object_get(q, "layer_type_quant_config")))
        return refuse(c, &c->otherwise, "layer_type_quant_config of Quark", err);
    return quark_said(c, json_object_get(q, "global_quant_config"), &c->otherwise, err);
}

/* ---- all ------------------------------------------------------------------------------------ */

static kld_status read_config(kld_act_config *c, const json_t *q, kld_err *err) {
    static const char *const plain[] = {"gptq", "awq", "mxfp4", "auto-round", "bitsandbytes"};
    const char *method = text_of(q, "quant_method");
    c->otherwise = NOTHING;
    if (!q) return KLD_OK;
    if (!method && json_object_get(q, "quant_algo")) method = "modelopt";
    if (!method && json_object_get(q, "config_groups")) method = "compressed-tensors";
    if (!method) return KLD_OK;
    if (same(method, "compressed-tensors")) return read_ct(c, q, err);
    if (same_n(method, "modelopt", 8)) return read_modelopt(c, q, err);
    if (same(method, "fp8")) return read_fp8(c, q, err);
    if (same(method, "quark")) return read_quark(c, q, err);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (!same(method, plain[i])) continue;
        c->otherwise = NONE;
        return KLD_OK;
    }
    if (same(method, "mxfp8")) {
        c->otherwise = (kld_act_said){.formats = F(MXFP8)};
        c->otherwise.quant = (kld_act_quant){.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL};
        return KLD_OK;
    }
    char text[128];
    snprintf(text, sizeof text, "what quant_method %.60s does to them", method);
    return refuse(c, &c->otherwise, text, err);
}

kld_status kld_act_config_open(kld_act_config **out, kld_model *m, kld_err *err) {
    *out = NULL;
    kld_act_config *c;
    TRY(NEW_ARRAY(&c, 1, err));
    c->m = m;
    c->weights_only = -1;
    kld_status st = read_config(c, kld_quant_config(&m->ckpt), err);
    for (int i = 0; st == KLD_OK && i < SETS; i++) {
        rule_list *l = &c->set[i];
        if (l->n)
            st = kld_pattern_index_init(&l->index, &l->rule->pattern, l->n, sizeof *l->rule, err);
    }
    if (st == KLD_OK) *out = c;
    else kld_act_config_close(c);
    return st;
}

void kld_act_config_close(kld_act_config *c) {
    if (!c) return;
    for (int i = 0; i < SETS; i++) {
        rule_list *l = &c->set[i];
        for (size_t k = 0; k < l->n; k++) kld_pattern_free(&l->rule[k].pattern);
        kld_free(l->rule);
        kld_pattern_index_free(&l->index);
    }
    kld_free(c);
}

/* An exact name or a wildcard wins over a regex, and that over the name of a class. */
static int rank_of(const kld_pattern *p) {
    return p->regex ? 1 : strcmp(p->text, "Linear") != 0 ? 0 : 2;
}

kld_status kld_act_config_of(kld_act_config *c, const char *module, kld_act_said *out,
                             kld_err *err) {
    kld_module_names names;
    kld_module_names_init(&names, module);
    *out = c->otherwise;
    for (int set = 0; set < SETS; set++) {
        rule_list *l = &c->set[set];
        int best = 3;
        size_t first = 0;
        TRY(kld_pattern_index_find(&l->index, &names, "Linear", err));
        for (size_t k = 0; k < l->index.n_found; k++) {
            size_t i = l->index.found[k];
            const kld_pattern *p = &l->rule[i].pattern;
            int rank = rank_of(p);
            bool hit;
            if (rank > best || (rank == best && i >= first)) continue;
            TRY(kld_pattern_match_any(p, &names, "Linear", &hit, err));
            if (!hit) continue;
            best = rank;
            first = i;
        }
        if (best == 3) continue;
        *out = l->rule[first].said;
        return KLD_OK;
    }
    return KLD_OK;
}
