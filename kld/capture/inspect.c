#include "kld/capture/inspect.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/capture/identity.h"
#include "kld/capture/inputs.h"
#include "kld/store/capture.h"
#include "loaders/model.h"
#include "logits/engine.h"

#include <string.h>

static kld_status packed(json_t *v, json_t **out, kld_err *err) {
    *out = v;
    return v ? KLD_OK : kld_fail(err, KLD_E_NOMEM, "out of memory");
}

/* A new object as member `key` of `root`, which owns it. */
static kld_status member(json_t *root, const char *key, json_t *v, json_t **out, kld_err *err) {
    *out = json_object_set_new(root, key, v) == 0 ? v : NULL;
    return *out ? KLD_OK : kld_fail(err, KLD_E_NOMEM, "out of memory");
}

/* ---- checkpoint ----------------------------------------------------------------------- */

/* weights, parameters and stored bytes of one weight (and its bias), added to
 * modules[kind][format]. */
static kld_status tally(json_t *modules, const char *kind, const kld_weight *w, kld_err *err) {
    static const char *const keys[] = {"weights", "parameters", "bytes"};
    json_t *by_format = json_object_get(modules, kind);
    if (!by_format) TRY(member(modules, kind, json_object(), &by_format, err));
    const char *format = kld_format_name(w->format);
    json_t *sum = json_object_get(by_format, format);
    if (!sum) {
        sum = json_pack("{s:i, s:i, s:i}", keys[0], 0, keys[1], 0, keys[2], 0);
        TRY(member(by_format, format, sum, &sum, err));
    }
    uint64_t add[] = {1, (uint64_t)w->rows * w->cols + (w->bias ? w->rows : 0),
                      kld_weight_bytes(w)};
    for (size_t k = 0; k < 3; k++) {
        json_t *v = json_object_get(sum, keys[k]);
        (void)json_integer_set(v, json_integer_value(v) + (json_int_t)add[k]);
    }
    return KLD_OK;
}

static kld_status modules_of(const kld_model *m, json_t **out, kld_err *err) {
    TRY(packed(json_object(), out, err));
    kld_status st = KLD_OK;
    for (kld_weight_at at = {0}; st == KLD_OK && kld_model_next_weight(m, &at);)
        st = tally(*out, kld_identity_module(at.slot), at.w, err);
    if (st != KLD_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return st;
}

static json_t *strings(char *const *text, size_t n) {
    json_t *a = json_array();
    for (size_t i = 0; a && i < n; i++) (void)json_array_append_new(a, json_string(text[i]));
    return a;
}

/* Layers that attend in this way, and its shapes; NULL when out of memory. */
static json_t *attention_of(const kld_model *m, const kld_attention *a) {
    json_int_t n = 0;
    for (size_t l = 0; l < m->config.layers; l++) n += m->layer[l].attn == a;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layers", n, "heads",
                     (json_int_t)a->heads, "kv_heads", (json_int_t)a->kv_heads, "head_dim",
                     (json_int_t)a->head_dim, "value_dim", (json_int_t)a->value_dim, "rotated",
                     (json_int_t)a->rope_dim, "window", (json_int_t)a->window);
}

static json_t *attentions(const kld_model *m) {
    json_t *list = json_array();
    for (int k = 0; list && k < KLD_ATTN_KINDS; k++) {
        json_t *one = attention_of(m, &m->config.attn[k]);
        bool used = json_integer_value(json_object_get(one, "layers")) > 0;
        if (one && !used) json_decref(one);
        else if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *latent_of(const kld_config *c) {
    if (!c->kv_lora) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I}", "q", (json_int_t)c->q_lora, "kv",
                     (json_int_t)c->kv_lora, "nope_dim", (json_int_t)c->nope_dim, "rope_dim",
                     (json_int_t)c->attn[KLD_ATTN_FULL].rope_dim);
}

static json_t *experts_of(const kld_model *m) {
    const kld_config *c = &m->config;
    json_int_t layers = (json_int_t)kld_model_expert_layers(m, c->layers);
    if (!layers) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "count", (json_int_t)c->router.experts,
                     "per_token", (json_int_t)c->router.top_k, "layers", layers, "intermediate",
                     (json_int_t)c->expert_intermediate, "shared_intermediate",
                     (json_int_t)c->shared_intermediate, "groups", (json_int_t)c->router.groups);
}

static json_t *skipped_of(const kld_model *m) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "mtp", (json_int_t)m->skipped[KLD_SKIP_MTP],
                     "vision", (json_int_t)m->skipped[KLD_SKIP_VISION], "indexer",
                     (json_int_t)m->skipped[KLD_SKIP_INDEXER], "other",
                     (json_int_t)m->skipped[KLD_SKIP_OTHER], "bytes", (json_int_t)m->skipped_bytes);
}

static kld_status plan_of(const kld_model *m, const kld_inspect_options *o, json_t **out,
                          kld_err *err) {
    kld_plan p;
    const kld_engine_options eo = {.precision = KLD_PRECISION_BF16,
                                   .vocab = m->config.vocab,
                                   .top_k = 256,
                                   .min_k = 10,
                                   .tail_samples = 16};
    *out = NULL;
    TRY(kld_engine_plan(m, kld_backend_cpu(), &eo, o->tokens, (size_t)o->window, &p, err));
    return packed(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "tokens", (json_int_t)o->tokens,
                            "largest_layer_stored", (json_int_t)p.largest_layer_stored,
                            "largest_layer_decoded", (json_int_t)p.largest_layer_decoded,
                            "largest_group", (json_int_t)p.largest_group, "residual_bytes",
                            (json_int_t)p.residual_bytes, "scratch_bytes",
                            (json_int_t)p.scratch_bytes, "total_bytes", (json_int_t)p.total_bytes),
                  out, err);
}

static json_t *summary_of(const kld_model *m, const char *path) {
    char hex[KLD_SHA256_HEX];
    const kld_config *c = &m->config;
    const kld_attention *a = m->layer[0].attn;
    json_int_t dense = c->dense_window == SIZE_MAX ? 0 : (json_int_t)c->dense_window;
    return json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I,"
        " s:I, s:I, s:I}",
        "schema", 1, "kind", "checkpoint", "path", path, "family", m->family, "label", m->label,
        "digest", kld_digest_hex(&m->ckpt.digest, hex), "parameters",
        (json_int_t)kld_model_parameters(m), "active_parameters",
        (json_int_t)kld_model_active_parameters(m), "bytes", (json_int_t)m->ckpt.total_bytes,
        "shards", (json_int_t)m->ckpt.n_shards, "tensors", (json_int_t)m->ckpt.n_tensors,
        "skipped_tensors", (json_int_t)m->n_skipped, "layers", (json_int_t)c->layers, "hidden",
        (json_int_t)c->hidden, "heads", (json_int_t)a->heads, "kv_heads", (json_int_t)a->kv_heads,
        "tied_head", (int)c->tied, "head_dim", (json_int_t)a->head_dim, "intermediate",
        (json_int_t)c->intermediate, "vocab", (json_int_t)c->vocab, "dense_window", dense);
}

/* `v` becomes member `key`; NULL is out of memory. */
static kld_status put(json_t *root, const char *key, json_t *v, kld_err *err) {
    return member(root, key, v, &v, err);
}

static kld_status describe_model(const kld_model *m, const char *path, const kld_inspect_options *o,
                                 json_t **out, kld_err *err) {
    json_t *part;
    kld_status st;
    uint64_t used = m->ckpt.total_bytes - m->skipped_bytes;
    TRY(packed(summary_of(m, path), out, err));
    TRY_TO(failed, put(*out, "skipped", skipped_of(m), err));
    TRY_TO(failed, put(*out, "attention", attentions(m), err));
    TRY_TO(failed, put(*out, "latent", latent_of(&m->config), err));
    TRY_TO(failed, put(*out, "experts", experts_of(m), err));
    TRY_TO(failed, modules_of(m, &part, err));
    TRY_TO(failed, put(*out, "modules", part, err));
    TRY_TO(failed, plan_of(m, o, &part, err));
    TRY_TO(failed, put(*out, "plan", part, err));
    part = json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)used, "disk_bytes_per_second",
                     o->disk_speed, "seconds", (double)used / o->disk_speed);
    TRY_TO(failed, put(*out, "read", part, err));
    TRY_TO(failed, put(*out, "warnings", strings(m->warnings, m->n_warnings), err));
    return KLD_OK;
failed:
    json_decref(*out);
    *out = NULL;
    return st;
}

static kld_status inspect_model(const char *path, const kld_inspect_options *o, json_t **out,
                                kld_err *err) {
    char *dir;
    kld_model *m = NULL;
    TRY(kld_hub_resolve(path, &dir, err));
    kld_status st = kld_model_open(&m, dir, err);
    if (st == KLD_OK) st = describe_model(m, path, o, out, err);
    json_t *inputs = NULL;
    if (st == KLD_OK) st = kld_inputs_declared(m, &inputs, err);
    if (st == KLD_OK) st = member(*out, "declared_inputs", inputs, &inputs, err);
    if (st != KLD_OK) {
        json_decref(*out);
        *out = NULL;
    }
    kld_model_free(m);
    kld_free(dir);
    return st;
}

/* ---- capture -------------------------------------------------------------------------- */

/* Null where they are the model's own and not kept. */
static json_t *routes_json(const kld_route_info *r) {
    char hex[KLD_SHA256_HEX];
    if (!r->kept && r->mode == KLD_ROUTES_NATURAL) return json_null();
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:s}", "mode", kld_route_mode_name(r->mode), "kept",
                     (int)r->kept, "layers", (json_int_t)r->layers, "top_k", (json_int_t)r->top_k,
                     "experts", (json_int_t)r->experts, "source",
                     r->kept ? "" : kld_digest_hex(&r->source, hex));
}

/* Null in a capture that keeps none. */
static json_t *hidden_json(const kld_hidden_info *h) {
    char hex[KLD_SHA256_HEX];
    if (!h->cols) return json_null();
    return json_pack("{s:s, s:s, s:I, s:f, s:s}", "point", "after the final norm", "dtype",
                     h->bytes == 2 ? "BF16" : "FP32", "cols", (json_int_t)h->cols, "logit_cap",
                     h->logit_cap, "head", kld_digest_hex(&h->head, hex));
}

/* Who signed, or null; the signature was checked. */
static json_t *signed_json(const kld_capture *c) {
    kld_signature s;
    char id[KLD_KEY_ID], hex[2 * sizeof s.key.b + 1];
    if (!kld_capture_signature(c, &s)) return json_null();
    return json_pack("{s:s, s:s}", "key_id", kld_key_id(&s.key, id), "public_key",
                     kld_hex(s.key.b, sizeof s.key.b, hex));
}

static kld_status describe(const kld_capture *c, json_t **out, kld_err *err) {
    char hex[5][KLD_SHA256_HEX];
    const kld_capture_info *i = kld_capture_header(c);
    kld_digest content = kld_capture_digest(c);
    double per = i->positions ? (double)kld_capture_bytes(c) / (double)i->positions : 0;
    return packed(
        json_pack(
            "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:I,"
            " s:I, s:I, s:f, s:I, s:o, s:o, s:s, s:o, s:s, s:O, s:O, s:o, s:s, s:s, s:s}",
            "schema", 1, "kind", "capture", "path", kld_capture_path(c), "name", i->name, "label",
            i->label, "family", i->family, "digest", kld_digest_hex(&content, hex[0]), "model",
            kld_digest_hex(&i->model, hex[1]), "tokenizer", kld_digest_hex(&i->tokenizer, hex[2]),
            "suite", kld_digest_hex(&i->suite, hex[3]), "vocab", (json_int_t)i->vocab, "vocab_rows",
            (json_int_t)i->vocab_rows, "windows", (json_int_t)i->windows, "positions",
            (json_int_t)i->positions, "bytes", (json_int_t)kld_capture_bytes(c),
            "bytes_per_position", per, "top_k", (json_int_t)i->top_k, "min_k", (json_int_t)i->min_k,
            "tail_samples", (json_int_t)i->tail_samples, "tail_mass", i->tail_mass, "seed",
            (json_int_t)i->seed, "reference",
            i->has_reference ? json_pack("{s:s, s:s}", "name", i->reference_name, "digest",
                                         kld_digest_hex(&i->reference, hex[4]))
                             : json_null(),
            "hidden", hidden_json(&i->hidden), "partition", i->partition, "routes",
            routes_json(&i->routes), "floor", i->floor, "engine", i->engine, "quant", i->quant,
            "signed_by", signed_json(c), "time", i->time, "host", i->host, "checkpoint",
            i->checkpoint),
        out, err);
}

static kld_status inspect_capture(const char *path, json_t **out, kld_err *err) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, err));
    kld_status st = kld_capture_check_signature(c, err);
    if (st == KLD_OK) st = describe(c, out, err);
    kld_capture_close(c);
    return st;
}

/* The object holds the path, and JSON knows UTF-8 only. */
static kld_status check_path(const char *path, kld_err *err) {
    size_t failures = kld_mem_raw_failures();
    json_t *v = json_string(path);
    if (!v && kld_mem_raw_failures() != failures)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    if (!v) return kld_fail(err, KLD_E_INPUT, "%s: the path is not valid UTF-8", path);
    json_decref(v);
    return KLD_OK;
}

kld_status kld_inspect(const char *path, const kld_inspect_options *opt, json_t **out,
                       kld_err *err) {
    *out = NULL;
    TRY(check_path(path, err));
    bool is_file = kld_path_exists(path) && !kld_path_is_dir(path);
    if (is_file && (kld_path_ends_with(path, ".safetensors") || kld_path_ends_with(path, ".json")))
        return kld_fail(err, KLD_E_INPUT,
                        "%s: is a file of a checkpoint; give the directory that holds it", path);
    if (is_file) return inspect_capture(path, out, err);
    return inspect_model(path, opt, out, err);
}
