#include "loaders/quant_config.h"

#include "kld/base/buf.h"
#include "loaders/bind.h"
#include "loaders/config.h"
#include "loaders/match.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LISTED = 5, MAX_NAME = KLD_NAME_MAX };

/* What is expected of a module: a set of formats, or anything. */
enum {
    EXPECT_ANY = 0,
    EXPECT_DENSE = 1 << KLD_FMT_BF16 | 1 << KLD_FMT_F16 | 1 << KLD_FMT_F32,
    EXPECT_NVFP4 = 1 << KLD_FMT_NVFP4,
    EXPECT_MXFP4 = 1 << KLD_FMT_MXFP4,
    EXPECT_FP8 = 1 << KLD_FMT_FP8_TENSOR | 1 << KLD_FMT_FP8_CHANNEL,
    EXPECT_BLOCKS = 1 << KLD_FMT_FP8_BLOCK,
    EXPECT_MXFP8 = 1 << KLD_FMT_MXFP8,
    EXPECT_INT4 = 1 << KLD_FMT_INT4_PACKED | 1 << KLD_FMT_INT4_PAIRS,
    EXPECT_INT8 = 1 << KLD_FMT_INT8 | 1 << KLD_FMT_INT8_PACKED,
    EXPECT_AWQ = 1 << KLD_FMT_AWQ,
    EXPECT_GPTQ = 1 << KLD_FMT_GPTQ4 | 1 << KLD_FMT_GPTQ8
};

/* Entries that say the same of every module they match. */
typedef struct rule_set {
    kld_pattern *p; /* [n] owned */
    size_t n, cap;
    unsigned *expect;        /* [n] owned, parallel */
    kld_pattern_index index; /* when all of them are there */
} rule_set;

typedef struct expectation {
    rule_set ignored, layers, groups; /* in order of priority */
    unsigned otherwise;               /* of a linear layer that nothing names */
    bool head_too;                    /* ... and of the head */
    const char *method;
} expectation;

/* quant_algo of ModelOpt and format of compressed-tensors, in any case. */
static const struct {
    const char *name;
    unsigned expect;
} algorithms[] = {
    {"nvfp4", EXPECT_NVFP4},
    {"w4a16_nvfp4", EXPECT_NVFP4},
    {"nvfp4_awq", EXPECT_NVFP4},
    {"w4a8_nvfp4_fp8", EXPECT_NVFP4},
    {"nvfp4-pack-quantized", EXPECT_NVFP4},
    {"mxfp4", EXPECT_MXFP4},
    {"w4a8_mxfp4_fp8", EXPECT_MXFP4},
    {"mxfp4-pack-quantized", EXPECT_MXFP4},
    {"fp8", EXPECT_FP8},
    {"fp8_per_channel_per_token", EXPECT_FP8},
    {"fp8_pb_wo", EXPECT_BLOCKS},
    {"float-quantized", EXPECT_FP8 | EXPECT_BLOCKS},
    {"mxfp8", EXPECT_MXFP8},
    {"mxfp8-quantized", EXPECT_MXFP8},
    {"w4a16_awq", EXPECT_INT4},
    {"w4a8_awq", EXPECT_INT4},
    {"int4_awq", EXPECT_INT4},
    {"w8a16", EXPECT_INT8},
    {"w8a8_sq_per_channel", EXPECT_INT8},
    {"int-quantized", EXPECT_INT8},
    {"pack-quantized", EXPECT_INT4 | EXPECT_INT8},
    {"dense", EXPECT_DENSE},
};

static bool same_word(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        char x = *a >= 'A' && *a <= 'Z' ? (char)(*a + 32) : *a;
        char y = *b >= 'A' && *b <= 'Z' ? (char)(*b + 32) : *b;
        if (x != y) return false;
    }
    return *a == *b;
}

static unsigned algorithm(const char *name) {
    for (size_t i = 0; name && i < sizeof algorithms / sizeof *algorithms; i++) {
        if (same_word(name, algorithms[i].name)) return algorithms[i].expect;
    }
    return EXPECT_ANY;
}

static const char *expect_name(unsigned e) {
    static const struct {
        unsigned expect;
        const char *name;
    } all[] = {
        {EXPECT_NVFP4, "NVFP4"},       {EXPECT_MXFP4, "MXFP4"}, {EXPECT_FP8, "FP8"},
        {EXPECT_BLOCKS, "FP8 blocks"}, {EXPECT_MXFP8, "MXFP8"}, {EXPECT_INT4, "INT4"},
        {EXPECT_INT8, "INT8"},         {EXPECT_AWQ, "AWQ"},     {EXPECT_GPTQ, "GPTQ"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (e & all[i].expect) return all[i].name;
    }
    return "not quantized";
}

const json_t *kld_quant_config(const kld_checkpoint *c) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    const json_t *at[] = {c->config, kld_config_text(c->config)};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *q = json_object_get(at[i], keys[k]);
            if (json_is_object(q) && json_object_size(q)) return q;
        }
    }
    const json_t *q = json_object_get(c->hf_quant, "quantization");
    return json_is_object(q) ? q : NULL;
}

static kld_status add_rule(rule_set *s, kld_match_rule rule, const char *text, unsigned expect,
                           kld_err *err) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        TRY(kld_realloc((void **)&s->p, cap, sizeof *s->p, err));
        TRY(kld_realloc((void **)&s->expect, cap, sizeof *s->expect, err));
        s->cap = cap;
    }
    TRY(kld_pattern_init(&s->p[s->n], rule, text, err));
    s->expect[s->n++] = expect;
    return KLD_OK;
}

static void free_rules(rule_set *s) {
    for (size_t i = 0; i < s->n; i++) kld_pattern_free(&s->p[i]);
    kld_free(s->p);
    kld_free(s->expect);
    kld_pattern_index_free(&s->index);
    *s = (rule_set){0};
}

static kld_status add_list(rule_set *s, kld_match_rule rule, const json_t *obj, const char *key,
                           unsigned expect, kld_err *err) {
    const json_t *list = json_object_get(obj, key);
    if (!list || json_is_null(list)) return KLD_OK;
    if (!json_is_array(list))
        return kld_fail(err, KLD_E_INPUT, "'%s': expected an array, found %s", key,
                        kld_json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text)
            return kld_fail(err, KLD_E_INPUT, "'%s[%zu]': expected a string, found %s", key, i,
                            kld_json_kind(json_array_get(list, i)));
        TRY(add_rule(s, rule, text, expect, err));
    }
    return KLD_OK;
}

/* A group of compressed-tensors: its format, narrowed by what it says of the weights. */
static unsigned of_group(const json_t *group, const char *top) {
    const char *format = json_string_value(json_object_get(group, "format"));
    const json_t *w = json_object_get(group, "weights");
    const char *strategy = json_string_value(json_object_get(w, "strategy"));
    json_int_t bits = json_integer_value(json_object_get(w, "num_bits"));
    unsigned e = algorithm(format ? format : top);
    if (e == (EXPECT_FP8 | EXPECT_BLOCKS) && strategy)
        return strcmp(strategy, "block") ? EXPECT_FP8 : EXPECT_BLOCKS;
    if (e == (EXPECT_INT4 | EXPECT_INT8) && (bits == 4 || bits == 8))
        return bits == 4 ? EXPECT_INT4 : EXPECT_INT8;
    return e;
}

static kld_status read_ct(expectation *e, const json_t *q, kld_err *err) {
    const char *top = json_string_value(json_object_get(q, "format"));
    e->head_too = true;
    e->otherwise = EXPECT_DENSE;
    TRY(add_list(&e->ignored, KLD_MATCH_CT, q, "ignore", EXPECT_DENSE, err));
    const char *name;
    json_t *g;
    json_object_foreach(json_object_get(q, "config_groups"), name, g) {
        TRY(add_list(&e->groups, KLD_MATCH_CT, g, "targets", of_group(g, top), err));
    }
    if (!e->groups.n) e->otherwise = EXPECT_ANY;
    return KLD_OK;
}

static kld_status read_modelopt(expectation *e, const json_t *q, kld_err *err) {
    const char *algo = json_string_value(json_object_get(q, "quant_algo"));
    TRY(add_list(&e->ignored, KLD_MATCH_GLOB, q, "ignore", EXPECT_DENSE, err));
    TRY(add_list(&e->ignored, KLD_MATCH_GLOB, q, "exclude_modules", EXPECT_DENSE, err));
    json_t *layers = json_object_get(q, "quantized_layers"), *info;
    const char *name;
    json_object_foreach(layers, name, info) {
        const char *a = json_string_value(json_object_get(info, "quant_algo"));
        TRY(add_rule(&e->layers, KLD_MATCH_PREFIX, name, algorithm(a), err));
    }
    e->otherwise = e->layers.n ? EXPECT_DENSE : algorithm(algo);
    return KLD_OK;
}

static kld_status read_quark(expectation *e, const json_t *q, kld_err *err) {
    const json_t *w = json_object_get(json_object_get(q, "global_quant_config"), "weight");
    const char *dtype = json_string_value(json_object_get(w, "dtype"));
    TRY(add_list(&e->ignored, KLD_MATCH_QUARK, q, "exclude", EXPECT_DENSE, err));
    const char *stored =
        json_string_value(json_object_get(json_object_get(q, "export"), "weight_format"));
    if (dtype && !strcmp(dtype, "fp4")) e->otherwise = EXPECT_MXFP4;
    if (dtype && !strncmp(dtype, "fp8", 3)) e->otherwise = EXPECT_FP8;
    if (stored && !strcmp(stored, "fake_quantized")) e->otherwise = EXPECT_DENSE;
    /* Per-layer maps override; what they say is not expected of anything. */
    if (json_object_size(json_object_get(q, "layer_quant_config")) ||
        json_object_size(json_object_get(q, "layer_type_quant_config")))
        e->otherwise = EXPECT_ANY;
    return KLD_OK;
}

/* `-:REGEX` leaves modules dense, `+:REGEX` or REGEX changes how they are quantized. */
static kld_status read_gptq(expectation *e, const json_t *q, kld_err *err) {
    json_int_t bits = json_integer_value(json_object_get(q, "bits"));
    e->otherwise = bits == 4   ? 1u << KLD_FMT_GPTQ4
                   : bits == 8 ? 1u << KLD_FMT_GPTQ8
                               : (unsigned)EXPECT_GPTQ;
    const char *name;
    json_t *rule;
    json_object_foreach(json_object_get(q, "dynamic"), name, rule) {
        bool skip = !strncmp(name, "-:", 2);
        const char *text = skip || !strncmp(name, "+:", 2) ? name + 2 : name;
        TRY(add_rule(skip ? &e->ignored : &e->layers, KLD_MATCH_REGEX, text,
                     skip ? (unsigned)EXPECT_DENSE : (unsigned)EXPECT_GPTQ, err));
    }
    return KLD_OK;
}

static kld_status read_fp8(expectation *e, const json_t *q, kld_err *err) {
    const json_t *block = json_object_get(q, "weight_block_size");
    /* DeepSeek-V4: experts are FP4 under the same method. */
    const char *experts = json_string_value(json_object_get(q, "expert_dtype"));
    e->otherwise = json_is_array(block) ? EXPECT_BLOCKS : EXPECT_FP8;
    if (experts && same_word(experts, "fp4")) e->otherwise |= EXPECT_MXFP4;
    TRY(add_list(&e->ignored, KLD_MATCH_PREFIX, q, "ignored_layers", EXPECT_DENSE, err));
    return add_list(&e->ignored, KLD_MATCH_PREFIX, q, "modules_to_not_convert", EXPECT_DENSE, err);
}

/* modelopt, modelopt_fp4, ..., in any case. */
static bool is_modelopt(const char *method) {
    static const char name[] = "modelopt";
    char start[sizeof name];
    snprintf(start, sizeof start, "%s", method);
    return same_word(start, name);
}

static kld_status read_expectation(expectation *e, const json_t *q, kld_err *err) {
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method && json_object_get(q, "quant_algo")) method = "modelopt";
    if (!method && json_object_get(q, "config_groups")) method = "compressed-tensors";
    e->method = method ? method : "unknown";
    if (same_word(e->method, "compressed-tensors")) return read_ct(e, q, err);
    if (is_modelopt(e->method)) return read_modelopt(e, q, err);
    if (same_word(e->method, "quark")) return read_quark(e, q, err);
    if (same_word(e->method, "fp8")) return read_fp8(e, q, err);
    if (same_word(e->method, "gptq")) return read_gptq(e, q, err);
    if (same_word(e->method, "awq")) {
        e->otherwise = EXPECT_AWQ;
        return add_list(&e->ignored, KLD_MATCH_SUBSTRING, q, "modules_to_not_convert", EXPECT_DENSE,
                        err);
    }
    if (same_word(e->method, "mxfp8")) e->otherwise = EXPECT_MXFP8;
    if (same_word(e->method, "mxfp4") || same_word(e->method, "mxfp8"))
        return add_list(&e->ignored, KLD_MATCH_REGEX, q, "modules_to_not_convert", EXPECT_DENSE,
                        err);
    return KLD_OK;
}

/* compressed-tensors: an exact name wins over a regex, and that over a class name. */
static int rank_of(const kld_pattern *p, const char *class_name) {
    if (p->regex) return 1;
    return class_name && !strcmp(p->text, class_name) ? 2 : 0;
}

/* The rule of a set that names the module most closely; the first of equals. */
static kld_status apply(rule_set *s, const kld_module_names *module, const char *class_name,
                        bool *hit, unsigned *expect, kld_err *err) {
    int best = 3;
    size_t first = 0;
    TRY(kld_pattern_index_find(&s->index, module, class_name, err));
    for (size_t k = 0; k < s->index.n_found; k++) {
        size_t i = s->index.found[k];
        bool now;
        TRY(kld_pattern_match_any(&s->p[i], module, class_name, &now, err));
        if (!now) continue;
        s->p[i].used = true;
        int rank = rank_of(&s->p[i], class_name);
        if (rank > best || (rank == best && i >= first)) continue;
        best = rank;
        first = i;
    }
    *hit = best < 3;
    if (*hit) *expect = s->expect[first];
    return KLD_OK;
}

/* The code of many models has no linear layer for the router, and an embedding is none: only what
 * names them is about them. */
static kld_status expected(expectation *e, const char *name, kld_slot slot, unsigned *expect,
                           kld_err *err) {
    rule_set *sets[] = {&e->ignored, &e->layers, &e->groups};
    bool found = false, router = slot == KLD_SLOT_ROUTER, embed = slot == KLD_SLOT_EMBED;
    const char *class_name = router ? NULL : embed ? "Embedding" : "Linear";
    kld_module_names module;
    kld_module_names_init(&module, name);
    bool silent = router || embed || (slot == KLD_SLOT_HEAD && !e->head_too);
    *expect = silent ? EXPECT_ANY : e->otherwise;
    for (size_t i = 0; i < 3; i++) {
        bool hit;
        unsigned said = EXPECT_ANY;
        TRY(apply(sets[i], &module, class_name, &hit, &said, err));
        if (hit && !found) *expect = said;
        found |= hit;
    }
    return KLD_OK;
}

/* Disagreements of one module class. */
typedef struct conflict {
    size_t count, of;
    unsigned said;
    kld_format found;
    char first[MAX_NAME];
} conflict;

void kld_quant_module(const kld_weight *w, kld_slot slot, char *out, size_t n) {
    static const char blocks[] = "_blocks";
    const char *name = w->data->name, *dot = strrchr(name, '.');
    size_t len = strlen(name), tail = sizeof blocks - 1;
    bool stacked = slot >= KLD_SLOT_EXPERT_GATE && dot && strstr(dot, "_proj");
    if (stacked && len > tail && !strcmp(name + len - tail, blocks)) len -= tail;
    if (!stacked) len = dot ? (size_t)(dot - name) : 0;
    snprintf(out, n, "%.*s", (int)len, name);
}

static kld_status compare(expectation *e, const kld_weight_at *at, conflict *c, kld_err *err) {
    char name[MAX_NAME];
    const kld_weight *w = at->w;
    kld_quant_module(w, at->slot, name, sizeof name);
    unsigned said;
    TRY(expected(e, name, at->slot, &said, err));
    c->of++;
    if (said == EXPECT_ANY || (said & 1u << w->format) || c->count++) return KLD_OK;
    c->said = said;
    c->found = w->format;
    memcpy(c->first, name, sizeof name);
    return KLD_OK;
}

static kld_status report(kld_model *m, const conflict *c, kld_err *err) {
    if (!c->count) return KLD_OK;
    return kld_model_warn(m, err,
                          "the quantization config says %s for '%.300s', but the file has %s "
                          "(%zu of %zu such modules); decoded as the file has it",
                          expect_name(c->said), c->first, kld_format_name(c->found), c->count,
                          c->of);
}

/* Slots whose format a config speaks of.  Of a dense embedding even wide patterns mean nothing. */
static bool is_judged(const kld_weight_at *at) {
    return at->w->cols > 1 && (at->slot != KLD_SLOT_EMBED || at->w->format > KLD_FMT_F32);
}

static kld_status check_modules(kld_model *m, expectation *e, kld_err *err) {
    conflict *c;
    TRY(NEW_ARRAY(&c, KLD_SLOT_COUNT, err));
    kld_status st = KLD_OK;
    for (kld_weight_at at = {0}; st == KLD_OK && kld_model_next_weight(m, &at);)
        if (is_judged(&at)) st = compare(e, &at, &c[at.slot], err);
    for (size_t s = 0; st == KLD_OK && s < KLD_SLOT_COUNT; s++) st = report(m, &c[s], err);
    kld_free(c);
    return st;
}

/* Marks what names a module of the file or a parent of one. */
static kld_status mark_named(rule_set *s, const char *module, size_t *left, kld_err *err) {
    kld_module_names names;
    kld_module_names_init(&names, module);
    TRY(kld_pattern_index_find(&s->index, &names, NULL, err));
    for (size_t k = 0; k < s->index.n_found; k++) {
        size_t i = s->index.found[k];
        bool hit;
        if (s->p[i].used) continue;
        TRY(kld_pattern_match_any(&s->p[i], &names, NULL, &hit, err));
        if (!hit) continue;
        s->p[i].used = true;
        --*left;
    }
    return KLD_OK;
}

/* An entry may name a module that is not one of ours (a vision tower, a norm), a parent
 * of modules, or the head that a tied model does not have. */
static kld_status mark_others(const kld_model *m, rule_set *s, kld_err *err) {
    char last[MAX_NAME] = "";
    size_t left = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (m->config.tied && strstr(s->p[i].text, "lm_head")) s->p[i].used = true;
        left += !s->p[i].used;
    }
    for (size_t i = 0; left && i < m->ckpt.n_tensors; i++) {
        char name[MAX_NAME];
        snprintf(name, sizeof name, "%s", m->ckpt.tensors[i].name);
        TRY(mark_named(s, name, &left, err)); /* a parameter of its own */
        for (char *dot = strrchr(name, '.'); dot && left; dot = strrchr(name, '.')) {
            *dot = '\0';
            /* Names are sorted: this module and its parents were tried just before. */
            size_t n = strlen(name);
            if (!strncmp(last, name, n) && (last[n] == '.' || !last[n])) break;
            TRY(mark_named(s, name, &left, err));
        }
        snprintf(last, sizeof last, "%s", m->ckpt.tensors[i].name);
    }
    return KLD_OK;
}

static kld_status check_unused(kld_model *m, rule_set *s, kld_err *err) {
    kld_buf b = {0};
    size_t n = 0;
    kld_status st = mark_others(m, s, err);
    for (size_t i = 0; st == KLD_OK && i < s->n; i++) {
        if (!s->p[i].used && ++n <= MAX_LISTED)
            st = kld_buf_addf(&b, err, "%s'%.100s'", n > 1 ? ", " : "", s->p[i].text);
    }
    if (st == KLD_OK && n)
        st = kld_model_warn(
            m, err, "%zu entr%s of the quantization config match%s no module of the file: %s%s", n,
            n > 1 ? "ies" : "y", n > 1 ? "" : "es", (char *)b.data, n > MAX_LISTED ? ", ..." : "");
    kld_buf_free(&b);
    return st;
}

/* Class names always may match nothing. */
static kld_status check_lists(kld_model *m, expectation *e, kld_err *err) {
    TRY(check_unused(m, &e->ignored, err));
    return check_unused(m, &e->layers, err);
}

static bool any_quantized(const kld_model *m) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        if (!(EXPECT_DENSE & 1u << at.w->format)) return true;
    return false;
}

static kld_status check_pair(kld_model *m, const json_t *q, kld_err *err) {
    const json_t *other = json_object_get(m->ckpt.hf_quant, "quantization");
    const char *a = json_string_value(json_object_get(q, "quant_algo"));
    const char *b = json_string_value(json_object_get(other, "quant_algo"));
    if (!a || !b || q == other || same_word(a, b)) return KLD_OK;
    return kld_model_warn(m, err,
                          "config.json says quant_algo %.60s and hf_quant_config.json %.60s; "
                          "config.json is compared with the file",
                          a, b);
}

kld_status kld_quant_config_check(kld_model *m, kld_err *err) {
    const json_t *q = kld_quant_config(&m->ckpt);
    bool quantized = any_quantized(m);
    if (!q)
        return quantized ? kld_model_warn(m, err,
                                          "the weights are quantized, but no config says so; "
                                          "decoded as the file has it")
                         : KLD_OK;
    TRY(check_pair(m, q, err));
    if (!quantized)
        return kld_model_warn(m, err, "there is a quantization config, but no weight is quantized");
    expectation e = {0};
    kld_status st = kld_where(err, read_expectation(&e, q, err), "quantization config");
    rule_set *sets[] = {&e.ignored, &e.layers, &e.groups};
    for (size_t i = 0; st == KLD_OK && i < 3; i++)
        st = kld_pattern_index_init(&sets[i]->index, sets[i]->p, sets[i]->n, sizeof(kld_pattern),
                                    err);
    if (st == KLD_OK) st = check_modules(m, &e, err);
    if (st == KLD_OK) st = check_lists(m, &e, err);
    free_rules(&e.ignored);
    free_rules(&e.layers);
    free_rules(&e.groups);
    return st;
}
