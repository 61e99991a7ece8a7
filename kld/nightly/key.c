#include "kld/nightly/key.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/capture/identity.h"
#include "kld/compare/emit.h"
#include "loaders/checkpoint.h"

#include <string.h>

/* Read by a capture beside config.json, the index and the shards. */
enum { MAX_BYTES = 256 << 20 };
static const char *const OTHERS[] = {"tokenizer.json", "hf_quant_config.json"};

static kld_status add_other(const char *dir, const char *name, kld_buf *b, kld_err *err) {
    char *path;
    kld_buf text = {0};
    kld_digest d;
    TRY(kld_path_join(&path, dir, name, err));
    kld_status st = KLD_OK;
    if (kld_path_exists(path)) {
        st = kld_file_slurp(path, MAX_BYTES, &text, err);
        if (st == KLD_OK) st = kld_sha256_of(text.data, text.len, &d, err);
        if (st == KLD_OK) st = kld_buf_adds(b, name, err);
        if (st == KLD_OK) st = kld_buf_add(b, &d, sizeof d, err);
    }
    kld_buf_free(&text);
    kld_free(path);
    return st;
}

static kld_status add_times(const kld_checkpoint *c, kld_buf *b, kld_err *err) {
    for (size_t i = 0; i < c->n_shards; i++)
        TRY(kld_buf_u64(b, (uint64_t)c->shards[i].mtime_ns, err));
    return KLD_OK;
}

static kld_status add_bytes(const kld_checkpoint *c, kld_buf *b, kld_err *err) {
    kld_digest full;
    TRY(kld_checkpoint_hash_full(c, &full, err));
    return kld_buf_add(b, &full, sizeof full, err);
}

/* out->times covers what add says of the shards, and the other files. */
static kld_status stamp_of(const char *name,
                           kld_status (*add)(const kld_checkpoint *, kld_buf *, kld_err *),
                           nightly_stamp *out, kld_err *err) {
    kld_checkpoint c = {0};
    kld_buf b = {0};
    char *dir;
    TRY(kld_hub_resolve(name, &dir, err));
    kld_status st = kld_checkpoint_open(&c, dir, err);
    if (st == KLD_OK) {
        out->model = c.digest;
        st = add(&c, &b, err);
        for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS && st == KLD_OK; i++)
            st = add_other(dir, OTHERS[i], &b, err);
        if (st == KLD_OK) st = kld_sha256_of(b.data, b.len, &out->times, err);
        kld_checkpoint_close(&c);
    }
    kld_buf_free(&b);
    kld_free(dir);
    return st;
}

kld_status nightly_stamp_of(const char *model, nightly_stamp *out, kld_err *err) {
    return stamp_of(model, add_times, out, err);
}

static void settings(kld_emit *e, json_t *key, const kld_capture_options *o, bool reference) {
    json_t *s = kld_emit_object(e, key, "settings");
    kld_emit_count(e, s, "top_k", o->top_k);
    kld_emit_count(e, s, "min_k", o->min_k);
    kld_emit_real(e, s, "tail_mass", o->tail_mass);
    kld_emit_count(e, s, "tail_samples", reference ? o->tail_samples : 0);
    kld_emit_count(e, s, "seed", o->seed);
    kld_emit_text(e, s, "partition", o->partition);
    kld_emit_bool(e, s, "keep_routes", o->keep_routes);
    kld_emit_bool(e, s, "ids_only", o->ids_only);
    kld_emit_bool(e, s, "exact", o->exact);
    kld_emit_count(e, s, "floor", o->floor);
    kld_emit_bool(e, s, "hash_full", o->hash_full);
}

/* An exact capture is compared with the head of its checkpoint, which it knows by its place. */
static kld_status names(kld_emit *e, json_t *key, const kld_capture_options *o, kld_err *err) {
    char *dir = NULL, *real = NULL, *name = NULL;
    json_t *n = kld_emit_object(e, key, "names");
    kld_status st = kld_identity_name(&name, o->name ? o->name : o->model, err);
    if (st == KLD_OK && o->exact) st = kld_hub_resolve(o->model, &dir, err);
    if (st == KLD_OK && o->exact) st = kld_path_real(&real, dir, err);
    if (st == KLD_OK) kld_emit_text(e, n, "name", name);
    if (st == KLD_OK) kld_emit_text(e, n, "label", o->label);
    if (st == KLD_OK && real) kld_emit_text(e, n, "directory", real);
    kld_free(real);
    kld_free(dir);
    kld_free(name);
    return st;
}

kld_status nightly_key(const kld_nightly_item *item, const kld_choice *where,
                       const nightly_stamp *stamp, const kld_digest *suite,
                       const kld_digest *reference, const kld_digest *routes, json_t **out,
                       kld_digest *digest, kld_err *err) {
    const kld_capture_options *o = &item->opt;
    kld_engine_options engine = {.precision = o->precision,
                                 .activations = o->activations,
                                 .fused = o->fused,
                                 .devices = where->device,
                                 .n_devices = where->n};
    nightly_stamp made_of = *stamp;
    kld_emit e = {0};
    kld_buf b = {0};
    json_t *identity = NULL, *k = NULL;
    kld_status st;
    *out = NULL;
    if (o->hash_full) TRY(stamp_of(item->model, add_bytes, &made_of, err));
    TRY_TO(done, kld_engine_identity(where->backend, &engine, &identity, err));
    k = json_object();
    kld_emit_digest(&e, k, "checkpoint", &made_of.model);
    kld_emit_digest(&e, k, "weights", &made_of.times);
    kld_emit_digest(&e, k, "suite", suite);
    if (reference) kld_emit_digest(&e, k, "reference", reference);
    if (routes) kld_emit_digest(&e, k, "routes", routes);
    kld_emit_value(&e, k, "engine", json_incref(identity));
    settings(&e, k, o, !reference);
    TRY_TO(done, names(&e, k, o, err));
    TRY_TO(done, kld_emit_check(&e, err));
    TRY_TO(done, kld_json_dump(k, false, &b, err));
    TRY_TO(done, kld_sha256_of(b.data, b.len, digest, err));
    *out = json_incref(k);
done:
    kld_buf_free(&b);
    json_decref(k);
    json_decref(identity);
    return st;
}

const char *nightly_key_change(const json_t *before, const json_t *now) {
    static const struct {
        const char *member, *text;
    } parts[] = {{"checkpoint", "the checkpoint changed"},
                 {"weights", "the checkpoint changed"},
                 {"suite", "the suite changed"},
                 {"reference", "the reference changed"},
                 {"routes", "the routes changed"},
                 {"engine", "kld, the device or the precision changed"},
                 {"settings", "the settings changed"},
                 {"names", "its name, label or place changed"}};
    if (!before) return "there is none yet";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *a = json_object_get(before, parts[i].member);
        const json_t *b = json_object_get(now, parts[i].member);
        if ((a || b) && !json_equal(a, b)) return parts[i].text;
    }
    return "its file is gone";
}
