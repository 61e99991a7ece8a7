#include "kld/compare/receipt.h"

#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/compare/emit.h"
#include "kld/compare/receipt_impl.h"

#include <string.h>

/* What is taken over, so that a member that the result gets later is not published unseen. */
static const char *const TOP[] = {
    "schema", "tool",  "positions",           "windows",  "clusters", "strata", "unit",
    "valid",  "gates", "arithmetic_mismatch", "settings", "floor",    "pairs",  NULL};
static const char *const REFERENCE[] = {"name",           "label",
                                        "family",         "activations",
                                        "partition",      "model_digest",
                                        "vocab",          "model_full_digest",
                                        "suite_digest",   "tokenizer_digest",
                                        "content_digest", "top_k",
                                        "tail_samples",   "tail_mass",
                                        "routing",        "engine",
                                        "quant",          NULL};
static const char *const CANDIDATE[] = {"name",
                                        "label",
                                        "activations",
                                        "partition",
                                        "model_digest",
                                        "model_full_digest",
                                        "content_digest",
                                        "capture",
                                        "arithmetic_mismatch",
                                        "routing",
                                        "positions",
                                        "status",
                                        "valid",
                                        "resolved",
                                        "nonfinite",
                                        "kl",
                                        "reverse_kl",
                                        "js",
                                        "tv",
                                        "top1_agreement",
                                        "top1_ci95",
                                        "topk_overlap",
                                        "topk_ci95",
                                        "topk_undecided",
                                        "top_p",
                                        "acceptance",
                                        "perplexity",
                                        "tail_mass",
                                        "by_stratum",
                                        "by_depth",
                                        "by_confidence",
                                        "routes",
                                        "cells",
                                        "exact",
                                        "engine",
                                        "quant",
                                        NULL};
static const char *const WARNING[] = {"code", "candidate", NULL};
/* Places in the text, details and paths, wherever they stand. */
static const char *const DROPPED[] = {"worst",    "histogram", "max_at", "first",
                                      "by_layer", "path",      NULL};

static bool listed(const char *const *list, const char *key) {
    while (*list && strcmp(*list, key) != 0) list++;
    return *list != NULL;
}

/* A copy without what is dropped. */
static json_t *kept(kld_emit *e, json_t *v) {
    json_t *copy, *item;
    const char *key;
    size_t i;
    if (json_is_object(v)) {
        copy = json_object();
        json_object_foreach(v, key, item) {
            if (!listed(DROPPED, key)) kld_emit_value(e, copy, key, kept(e, item));
        }
    } else if (json_is_array(v)) {
        copy = json_array();
        json_array_foreach(v, i, item) kld_emit_value(e, copy, NULL, kept(e, item));
    } else {
        copy = json_deep_copy(v);
    }
    if (!copy) e->failed = true;
    return copy;
}

/* The members of `from` that are listed, in that order. */
static void members(kld_emit *e, json_t *into, const json_t *from, const char *const *list) {
    for (; *list; list++) {
        json_t *v = json_object_get(from, *list);
        if (v) kld_emit_value(e, into, *list, kept(e, v));
    }
}

static void rows(kld_emit *e, json_t *into, const char *key, const json_t *from,
                 const char *const *list) {
    json_t *a = kld_emit_array(e, into, key);
    for (size_t i = 0; i < json_array_size(from); i++)
        members(e, kld_emit_object(e, a, NULL), json_array_get(from, i), list);
}

static kld_status build_content(const json_t *result, json_t **out, kld_err *err) {
    json_t *reference, *candidates, *warnings;
    uint64_t schema;
    TRY(kld_json_u64(result, "schema", &schema, err));
    if (schema != 1)
        return kld_fail(err, KLD_E_INPUT, "'schema' is %llu; results of schema 1 have receipts",
                        (unsigned long long)schema);
    TRY(kld_json_obj(result, "reference", &reference, err));
    TRY(kld_json_arr(result, "candidates", &candidates, err));
    TRY(kld_json_arr(result, "warnings", &warnings, err));
    kld_emit e = {0};
    json_t *content = json_object();
    if (!content) e.failed = true;
    members(&e, content, result, TOP);
    members(&e, kld_emit_object(&e, content, "reference"), reference, REFERENCE);
    rows(&e, content, "candidates", candidates, CANDIDATE);
    rows(&e, content, "warnings", warnings, WARNING);
    kld_status st = kld_emit_check(&e, err);
    if (st == KLD_OK) *out = content;
    else json_decref(content);
    return st;
}

/* When and where; outside the content. */
static kld_status build_run(kld_emit *e, json_t *into, kld_err *err) {
    char *time = NULL, *host = NULL;
    kld_status st = kld_utc_now(&time, err);
    if (st == KLD_OK) st = kld_host_name(&host, err);
    if (st == KLD_OK) {
        json_t *run = kld_emit_object(e, into, "run");
        kld_emit_text(e, run, "time", time);
        kld_emit_text(e, run, "host", host);
    }
    kld_free(time);
    kld_free(host);
    return st;
}

kld_status kld_receipt_build(const json_t *result, json_t **out, kld_err *err) {
    kld_emit e = {0};
    kld_digest d;
    kld_receipt_facts facts;
    *out = NULL;
    json_t *top = json_object(), *content = NULL;
    kld_status st = top ? KLD_OK : kld_fail(err, KLD_E_NOMEM, "out of memory for a receipt");
    if (st != KLD_OK) return st;
    TRY_TO(done, build_content(result, &content, err));
    TRY_TO(done, receipt_digest(content, &d, err));
    kld_emit_count(&e, top, "kld_receipt", KLD_RECEIPT_VERSION);
    kld_emit_value(&e, top, "content", json_incref(content));
    kld_emit_digest(&e, top, "content_sha256", &d);
    TRY_TO(done, build_run(&e, top, err));
    kld_emit_value(&e, top, "signature", json_null());
    TRY_TO(done, kld_emit_check(&e, err));
    /* What a reader would refuse is not written. */
    TRY_TO(done, kld_receipt_check(top, &facts, err));
    kld_receipt_facts_free(&facts);
    *out = json_incref(top);
done:
    json_decref(content);
    json_decref(top);
    return st;
}

kld_status kld_receipt_sign(json_t *receipt, const kld_key *key, kld_err *err) {
    kld_receipt_facts facts;
    kld_signature s;
    TRY(kld_receipt_check(receipt, &facts, err));
    kld_digest d = facts.content;
    kld_receipt_facts_free(&facts);
    TRY(kld_sign_digest(key, RECEIPT_DOMAIN, &d, &s, err));
    char id[KLD_KEY_ID], public_hex[2 * sizeof s.key.b + 1], hex[2 * sizeof s.b + 1];
    kld_emit e = {0};
    json_t *o = kld_emit_object(&e, receipt, "signature");
    kld_emit_text(&e, o, "algorithm", RECEIPT_ALGORITHM);
    kld_emit_text(&e, o, "key_id", kld_key_id(&s.key, id));
    kld_emit_text(&e, o, "public_key", kld_hex(s.key.b, sizeof s.key.b, public_hex));
    kld_emit_text(&e, o, "signature", kld_hex(s.b, sizeof s.b, hex));
    return kld_emit_check(&e, err);
}
