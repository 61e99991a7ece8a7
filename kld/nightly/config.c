#include "kld/nightly/config.h"

#include "kld/base/file.h"
#include "kld/base/place.h"
#include "kld/compare/gates.h"
#include "kld/nightly/keys.h"

#include <ctype.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, MAX_NAME = 64 };
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- the tables ----------------------------------------------------------------------- */

struct top {
    const char *output, *suite, *sign_key;
    uint64_t keep;
};
static const key_row TOP[] = {
    {"output", KEY_TEXT, offsetof(struct top, output), {0}},
    {"suite", KEY_TEXT, offsetof(struct top, suite), {0}},
    {"reference", KEY_ANY, 0, {0}},
    {"candidates", KEY_ANY, 0, {0}},
    {"capture", KEY_ANY, 0, {0}},
    {"compare", KEY_ANY, 0, {0}},
    {"gates", KEY_ANY, 0, {0}},
    {"gates_by_candidate", KEY_ANY, 0, {0}},
    {"regression", KEY_ANY, 0, {0}},
    {"floor", KEY_ANY, 0, {0}},
    {"keep", KEY_COUNT, offsetof(struct top, keep), {0}},
    {"html", KEY_ANY, 0, {0}},
    {"markdown", KEY_ANY, 0, {0}},
    {"receipt", KEY_ANY, 0, {0}},
    {"json", KEY_ANY, 0, {0}},
    {"sign_key", KEY_TEXT, offsetof(struct top, sign_key), {0}},
    {"junit", KEY_ANY, 0, {0}},
    {"prometheus", KEY_ANY, 0, {0}},
};

struct shared {
    kld_capture_options opt;
    const char *device, *routes;
    uint64_t threads;
};
#define OPT(s, f) offsetof(s, opt.f)
static const key_row CAPTURE[] = {
    {"device", KEY_TEXT, offsetof(struct shared, device), {0}},
    {"threads", KEY_COUNT, offsetof(struct shared, threads), {0}},
    {"gpu_memory", KEY_SIZE, OPT(struct shared, device_memory), {0}},
    {"memory", KEY_SIZE, OPT(struct shared, memory), {0}},
    {"precision", KEY_CHOICE, OPT(struct shared, precision), {"bf16", "fp32"}},
    {"activations", KEY_CHOICE, OPT(struct shared, activations), {"weights-only", "as-declared"}},
    {"fused_input_scale", KEY_CHOICE, OPT(struct shared, fused), {"own", "max"}},
    {"routes", KEY_TEXT, offsetof(struct shared, routes), {0}},
    {"partition", KEY_TEXT, OPT(struct shared, partition), {0}},
    {"top_k", KEY_COUNT, OPT(struct shared, top_k), {0}},
    {"min_k", KEY_COUNT, OPT(struct shared, min_k), {0}},
    {"tail_mass", KEY_REAL, OPT(struct shared, tail_mass), {0}},
    {"tail_samples", KEY_COUNT, OPT(struct shared, tail_samples), {0}},
    {"seed", KEY_COUNT, OPT(struct shared, seed), {0}},
    {"exact", KEY_FLAG, OPT(struct shared, exact), {0}},
    {"keep_head", KEY_FLAG, OPT(struct shared, keep_head), {0}},
    {"hash", KEY_SWITCH, OPT(struct shared, hash_full), {"fast", "full"}},
};

static const key_row ITEM[] = {
    {"name", KEY_TEXT, OPT(kld_nightly_item, name), {0}},
    {"model", KEY_TEXT, offsetof(kld_nightly_item, model), {0}},
    {"label", KEY_TEXT, OPT(kld_nightly_item, label), {0}},
    {"activations",
     KEY_CHOICE,
     OPT(kld_nightly_item, activations),
     {"weights-only", "as-declared"}},
    {"fused_input_scale", KEY_CHOICE, OPT(kld_nightly_item, fused), {"own", "max"}},
    {"routes", KEY_TEXT, offsetof(kld_nightly_item, routes), {0}},
};

#define CMP(f) offsetof(kld_compare_options, f)
static const key_row COMPARE[] = {
    {"top_p", KEY_REAL, CMP(top_p), {0}},
    {"overlap_k", KEY_INDEX, CMP(overlap_k), {0}},
    {"partition", KEY_TEXT, CMP(partition), {0}},
    {"resamples", KEY_INDEX, CMP(resamples), {0}},
    {"seed", KEY_COUNT, CMP(seed), {0}},
    {"margin", KEY_REAL, CMP(margin), {0}},
    {"exact", KEY_SWITCH, CMP(exact_never), {"auto", "never"}},
    {"head", KEY_SWITCH, CMP(head_shared), {"own", "shared"}},
    {"tokenizer", KEY_TEXT, CMP(tokenizer), {0}},
    {"allow_arithmetic_mismatch", KEY_FLAG, CMP(allow_arithmetic_mismatch), {0}},
};

static const struct {
    const char *key, *name;
} FILES[KLD_NIGHTLY_FILES] = {
    {"html", "report.html"},  {"markdown", "summary.md"}, {"receipt", "receipt.json"},
    {"json", "compare.json"}, {"junit", "junit.xml"},     {"prometheus", "metrics.prom"},
};

/* ---- names and paths -------------------------------------------------------------------- */

static kld_status missing(kld_err *err, const char *key) {
    return kld_fail(err, KLD_E_INPUT, "'%s' is missing", key);
}

/* Arena text: `text` as seen from the folder of the configuration. */
static kld_status from_config(kld_nightly_config *c, const char *text, const char **out,
                              kld_err *err) {
    const char *slash = text[0] == '/' ? NULL : strrchr(c->path, '/');
    kld_buf b = {0};
    char *kept;
    if (!*text) return kld_fail(err, KLD_E_INPUT, "the path is empty");
    kld_status st = KLD_OK;
    if (slash) st = kld_buf_add(&b, c->path, (size_t)(slash - c->path) + 1, err);
    if (st == KLD_OK) st = kld_buf_adds(&b, text, err);
    if (st == KLD_OK) st = kld_arena_strndup(&c->arena, &kept, (char *)b.data, b.len, err);
    if (st == KLD_OK) *out = kept;
    kld_buf_free(&b);
    return st;
}

/* "org/name" when there is no such path, from the file or from here. */
static bool is_hub_name(const char *text) {
    const char *slash = strchr(text, '/');
    return slash && slash != text && slash[1] && !strchr(slash + 1, '/') && text[0] != '.' &&
           !kld_path_exists(text);
}

static bool plain_name(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n > MAX_NAME || s[0] == '.' || s[0] == '-') return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
    return true;
}

static long item_named(const kld_nightly_config *c, const char *name, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(c->item[i].name, name) == 0) return (long)i;
    return -1;
}

/* ---- captures ---------------------------------------------------------------------------- */

static kld_status read_routes(kld_nightly_config *c, size_t i, kld_err *err) {
    kld_nightly_item *item = &c->item[i];
    const char *r = item->routes;
    item->replay = -1;
    if (!r) return KLD_OK;
    item->opt.keep_routes = !strcmp(r, "capture");
    if (item->opt.keep_routes) return KLD_OK;
    item->opt.ids_only = !strncmp(r, "replay-ids=", 11);
    const char *source = item->opt.ids_only ? r + 11 : !strncmp(r, "replay=", 7) ? r + 7 : NULL;
    if (!source)
        return kld_fail(err, KLD_E_INPUT,
                        "'routes': '%.80s' is neither capture nor replay=NAME nor replay-ids=NAME",
                        r);
    item->replay = item_named(c, source, i);
    if (item->replay >= 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'routes': '%.80s' is no capture before this one", source);
}

static kld_status read_item(kld_nightly_config *c, size_t i, const json_t *o,
                            const struct shared *shared, kld_err *err) {
    kld_nightly_item *item = &c->item[i];
    *item = (kld_nightly_item){.opt = shared->opt, .routes = shared->routes};
    TRY(keys_read(o, ITEM, COUNT(ITEM), item, err));
    if (!item->model) return missing(err, "model");
    if (i > 0 && !item->opt.name) return missing(err, "name");
    item->name = i > 0 ? item->opt.name : "reference";
    if (i > 0 && !plain_name(item->name))
        return kld_fail(err, KLD_E_INPUT,
                        "'name': '%.80s' must be 1 to %d letters, digits, '.', '_' or '-', and "
                        "begin with none of the last two",
                        item->name, MAX_NAME);
    if (i > 0 && (item_named(c, item->name, i) >= 0 || !strcmp(item->name, "floor")))
        return kld_fail(err, KLD_E_INPUT, "'name': '%s' is taken", item->name);
    if (item->opt.fused != KLD_FUSED_OWN && item->opt.activations != KLD_ACTIVATIONS_AS_DECLARED)
        return kld_fail(err, KLD_E_INPUT, "'fused_input_scale' needs activations as-declared");
    /* The draws of a candidate are read by nobody. */
    item->opt.tail_samples_set = false;
    const char *typed = item->model;
    TRY(kld_where(err, from_config(c, typed, &item->model, err), "'model'"));
    if (!kld_path_exists(item->model) && is_hub_name(typed)) item->model = typed;
    item->opt.model = item->model;
    item->opt.suite = c->suite;
    return read_routes(c, i, err);
}

static kld_status read_floor(kld_nightly_config *c, kld_floor *way, kld_err *err) {
    const json_t *v = json_object_get(c->root, "floor");
    const char *text = json_string_value(v);
    if (!v || json_is_false(v)) return KLD_OK;
    if (json_is_true(v)) text = "precision";
    if (!text)
        return kld_fail(err, KLD_E_INPUT,
                        "expected true, false, precision, chunk or a path, found %s",
                        kld_json_kind(v));
    *way = !strcmp(text, "precision") ? KLD_FLOOR_PRECISION
           : !strcmp(text, "chunk")   ? KLD_FLOOR_CHUNK
                                      : KLD_FLOOR_NONE;
    return *way == KLD_FLOOR_NONE ? from_config(c, text, &c->floor, err) : KLD_OK;
}

static kld_status read_items(kld_nightly_config *c, const struct shared *shared, kld_err *err) {
    json_t *cands;
    kld_floor floor = KLD_FLOOR_NONE;
    TRY(kld_json_arr(c->root, "candidates", &cands, err));
    c->n_candidates = json_array_size(cands);
    TRY(kld_where(err, read_floor(c, &floor, err), "'floor'"));
    TRY(ARENA_ARRAY(&c->arena, &c->item, c->n_candidates + 2, err));
    TRY(kld_where(err, read_item(c, 0, json_object_get(c->root, "reference"), shared, err),
                  "'reference'"));
    c->n_items = 1 + c->n_candidates;
    for (size_t k = 0; k < c->n_candidates; k++)
        TRY(kld_where(err, read_item(c, 1 + k, json_array_get(cands, k), shared, err),
                      "'candidates' %zu", k + 1));
    if (floor != KLD_FLOOR_NONE) {
        kld_nightly_item *again = &c->item[c->n_items++];
        *again = c->item[0];
        again->name = again->opt.name = "floor";
        again->opt.floor = floor;
    }
    return kld_compare_check(&c->compare, c->n_items - 1 + !!c->floor, err);
}

/* ---- gates ------------------------------------------------------------------------------- */

/* A limit of the list replaces one for the same metric that is there already. */
static kld_status add_gates(const json_t *list, kld_nightly_item *item, kld_err *err) {
    if (!list) return KLD_OK;
    if (!json_is_array(list))
        return kld_fail(err, KLD_E_INPUT, "expected an array such as [\"mean_kl=0.05\"], found %s",
                        kld_json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        kld_nightly_gate g = {0};
        if (!text)
            return kld_fail(err, KLD_E_INPUT, "expected text such as \"mean_kl=0.05\", found %s",
                            kld_json_kind(json_array_get(list, i)));
        TRY(kld_gate_parse(text, &g.metric, &g.limit, err));
        size_t k = 0;
        while (k < item->n_gates && item->gates[k].metric != g.metric) k++;
        item->gates[k] = g;
        if (k == item->n_gates) item->n_gates++;
    }
    return KLD_OK;
}

static kld_status add_regression(const json_t *o, kld_nightly_item *item, kld_err *err) {
    const char *name;
    json_t *v;
    if (o && !json_is_object(o))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(o));
    json_object_foreach((json_t *)(uintptr_t)o, name, v) {
        kld_nightly_gate g = {.relative = true};
        size_t i = 0;
        while ((g.metric = kld_gate_metric(i)) && strcmp(g.metric, name) != 0) i++;
        double ignored;
        if (!g.metric) return kld_gate_parse(name, &g.metric, &ignored, err);
        TRY(kld_json_f64(o, name, &g.limit, err));
        if (g.limit < 0)
            return kld_fail(err, KLD_E_INPUT, "'%s': %g is negative; 0.1 allows 10 %% more", name,
                            g.limit);
        item->gates[item->n_gates++] = g;
    }
    return KLD_OK;
}

static kld_status read_gates(kld_nightly_config *c, kld_err *err) {
    const json_t *all = json_object_get(c->root, "gates");
    const json_t *own = json_object_get(c->root, "gates_by_candidate");
    const json_t *growth = json_object_get(c->root, "regression");
    const char *name;
    json_t *v;
    if (own && !json_is_object(own))
        return kld_fail(err, KLD_E_INPUT, "'gates_by_candidate': expected an object, found %s",
                        kld_json_kind(own));
    json_object_foreach((json_t *)(uintptr_t)own, name, v) {
        if (item_named(c, name, 1 + c->n_candidates) < 1)
            return kld_fail(err, KLD_E_INPUT,
                            "'gates_by_candidate': no candidate is called '%.80s'", name);
    }
    for (size_t k = 1; k <= c->n_candidates; k++) {
        kld_nightly_item *item = &c->item[k];
        const json_t *mine = json_object_get(own, item->name);
        size_t n = json_array_size(all) + json_array_size(mine) + json_object_size(growth);
        TRY(ARENA_ARRAY(&c->arena, &item->gates, n, err));
        TRY(kld_where(err, add_gates(all, item, err), "'gates'"));
        TRY(kld_where(err, add_gates(mine, item, err), "'gates_by_candidate': '%s'", item->name));
        TRY(kld_where(err, add_regression(growth, item, err), "'regression'"));
    }
    return KLD_OK;
}

/* ---- files of a run ---------------------------------------------------------------------- */

static kld_status read_file_name(kld_nightly_config *c, size_t f, kld_err *err) {
    const json_t *v = json_object_get(c->root, FILES[f].key);
    c->name[f] = FILES[f].name;
    if (!v || json_is_true(v)) return KLD_OK;
    if (json_is_false(v)) c->name[f] = NULL;
    if (json_is_false(v)) return KLD_OK;
    const char *text = json_string_value(v);
    if (!text)
        return kld_fail(err, KLD_E_INPUT, "expected a file name, true or false, found %s",
                        kld_json_kind(v));
    if (strchr(text, '/')) return from_config(c, text, &c->second[f], err);
    if (!plain_name(text) || kld_path_ends_with(text, ".partial"))
        return kld_fail(err, KLD_E_INPUT, "'%.80s' is no plain file name and no path", text);
    c->name[f] = text;
    return KLD_OK;
}

/* A copy must not take the place of what is read, nor of another copy. */
static kld_status check_second(const kld_nightly_config *c, size_t f, kld_err *err) {
    const char *inputs[] = {c->path, c->suite, c->sign_key, c->floor};
    for (size_t i = 0; i < COUNT(inputs); i++)
        TRY(kld_output_not_input(c->second[f], inputs[i], err));
    for (size_t g = 0; g < f; g++)
        if (c->second[g] && strcmp(c->second[f], c->second[g]) == 0)
            return kld_fail(err, KLD_E_INPUT, "'%.80s' is taken", c->second[f]);
    return KLD_OK;
}

static kld_status read_files(kld_nightly_config *c, kld_err *err) {
    for (size_t f = 0; f < KLD_NIGHTLY_FILES; f++) {
        TRY(kld_where(err, read_file_name(c, f, err), "'%s'", FILES[f].key));
        if (c->second[f]) TRY(kld_where(err, check_second(c, f, err), "'%s'", FILES[f].key));
        bool taken = c->name[f] && strcmp(c->name[f], "nightly.json") == 0;
        for (size_t g = 0; g < f && c->name[f]; g++)
            taken = taken || (c->name[g] && strcmp(c->name[f], c->name[g]) == 0);
        if (taken)
            return kld_fail(err, KLD_E_INPUT, "'%s': '%s' is taken", FILES[f].key, c->name[f]);
    }
    return KLD_OK;
}

/* ---- the whole file ----------------------------------------------------------------------- */

static kld_status read_all(kld_nightly_config *c, kld_err *err) {
    struct top top = {.keep = 30};
    struct shared shared = {.opt = kld_capture_defaults(), .device = "auto"};
    const json_t *capture = json_object_get(c->root, "capture");
    const json_t *compare = json_object_get(c->root, "compare");
    c->compare = kld_compare_defaults();
    TRY(keys_read(c->root, TOP, COUNT(TOP), &top, err));
    if (!top.output) return missing(err, "output");
    if (!top.suite) return missing(err, "suite");
    if (!json_object_get(c->root, "reference")) return missing(err, "reference");
    if (!json_object_get(c->root, "candidates")) return missing(err, "candidates");
    TRY(kld_where(err, from_config(c, top.output, &c->output, err), "'output'"));
    TRY(kld_where(err, from_config(c, top.suite, &c->suite, err), "'suite'"));
    if (top.sign_key)
        TRY(kld_where(err, from_config(c, top.sign_key, &c->sign_key, err), "'sign_key'"));
    c->keep = top.keep;
    if (capture)
        TRY(kld_where(err, keys_read(capture, CAPTURE, COUNT(CAPTURE), &shared, err), "'capture'"));
    TRY(kld_where(err, kld_capture_check(&shared.opt, err), "'capture'"));
    if (shared.opt.keep_head && !shared.opt.exact)
        return kld_fail(err, KLD_E_INPUT, "'capture': 'keep_head' needs exact");
    if (shared.routes && strcmp(shared.routes, "capture") != 0)
        return kld_fail(err, KLD_E_INPUT, "'capture': 'routes': only capture is for all");
    if (compare)
        TRY(kld_where(err, keys_read(compare, COMPARE, COUNT(COMPARE), &c->compare, err),
                      "'compare'"));
    if (c->compare.tokenizer)
        TRY(kld_where(err, from_config(c, c->compare.tokenizer, &c->compare.tokenizer, err),
                      "'compare': 'tokenizer'"));
    c->device = c->compare.device = shared.device;
    c->threads = shared.threads;
    TRY(read_items(c, &shared, err));
    TRY(read_gates(c, err));
    return read_files(c, err);
}

kld_status kld_nightly_config_load(kld_nightly_config *c, const char *path, kld_err *err) {
    char *kept;
    *c = (kld_nightly_config){0};
    kld_status st = kld_arena_strndup(&c->arena, &kept, path, strlen(path), err);
    if (st == KLD_OK) {
        c->path = kept;
        st = kld_json_load(&c->root, path, MAX_BYTES, err);
    }
    if (st == KLD_OK) st = kld_where(err, read_all(c, err), "%s", path);
    if (st == KLD_OK) return KLD_OK;
    kld_nightly_config_free(c);
    /* What is a wrong option on the command line is a wrong file here. */
    if (st == KLD_E_USAGE && err) err->status = KLD_E_INPUT;
    return st == KLD_E_USAGE ? KLD_E_INPUT : st;
}

void kld_nightly_config_free(kld_nightly_config *c) {
    json_decref(c->root);
    kld_arena_free(&c->arena);
    *c = (kld_nightly_config){0};
}

const char *kld_nightly_example(void) {
    return "{\n"
           "  \"output\": \"nightly\",\n"
           "  \"suite\": \"suite.jsonl\",\n"
           "  \"reference\": {\"model\": \"models/reference\"},\n"
           "  \"candidates\": [\n"
           "    {\"name\": \"nvfp4\", \"model\": \"models/nvfp4\", \"label\": \"NVFP4\"},\n"
           "    {\"name\": \"qad\", \"model\": \"models/qad\", \"label\": \"NVFP4 (QAD)\"}\n"
           "  ],\n"
           "  \"capture\": {\"device\": \"auto\", \"precision\": \"bf16\", \"top_k\": 256, "
           "\"tail_mass\": 0.001},\n"
           "  \"compare\": {\"top_p\": 0.95, \"margin\": 0.1},\n"
           "  \"gates\": [\"mean_kl=0.05\", \"top1_disagreement=0.1\"],\n"
           "  \"gates_by_candidate\": {\"nvfp4\": [\"mean_kl=0.1\"]},\n"
           "  \"regression\": {\"mean_kl\": 0.1},\n"
           "  \"floor\": true,\n"
           "  \"keep\": 30\n"
           "}\n";
}
