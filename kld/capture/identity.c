#include "kld/capture/identity.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"

#include <string.h>

kld_status kld_identity_name(char **out, const char *model, kld_err *err) {
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    bool is_path = kld_path_exists(model);
    size_t start = n;
    while (is_path && start > 0 && model[start - 1] != '/') start--;
    if (!is_path) start = 0;
    size_t len = n - start;
    bool dots = (len == 1 && model[start] == '.') || (len == 2 && !strncmp(model + start, "..", 2));
    if (dots || len == 0) {
        char *real;
        TRY(kld_path_real(&real, model, err));
        const char *slash = strrchr(real, '/');
        kld_status st = kld_strdup(out, slash && slash[1] ? slash + 1 : real, err);
        kld_free(real);
        return st;
    }
    return kld_strndup(out, model + start, len, err);
}

kld_status kld_identity_partition(const kld_capture_info *other, const kld_suite *suite,
                                  kld_err *err) {
    const char *a = other->partition, *b = suite->partition ? suite->partition : "";
    const char *ask = !*a ? KLD_ALL_PARTITIONS : a;
    bool several = strcmp(a, KLD_ALL_BUT_QUALIFICATION) == 0;
    if (strcmp(a, b) == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "it holds the windows of partition '%s', this run those of '%s'; capture %s%s "
                    "to have the same",
                    *a ? a : KLD_ALL_PARTITIONS, *b ? b : KLD_ALL_PARTITIONS,
                    several ? "without --partition" : "with --partition ", several ? "" : ask);
}

const char *kld_identity_module(kld_slot s) {
    switch (s) {
    case KLD_SLOT_EMBED: return "embedding";
    case KLD_SLOT_HEAD: return "head";
    case KLD_SLOT_Q:
    case KLD_SLOT_K:
    case KLD_SLOT_V:
    case KLD_SLOT_QKV:
    case KLD_SLOT_SINKS:
    case KLD_SLOT_O: return "attention";
    case KLD_SLOT_Q_A:
    case KLD_SLOT_KV_A:
    case KLD_SLOT_KV_B: return "latent";
    case KLD_SLOT_GATE:
    case KLD_SLOT_UP:
    case KLD_SLOT_DOWN: return "mlp";
    case KLD_SLOT_ROUTER:
    case KLD_SLOT_ROUTER_BIAS: return "router";
    case KLD_SLOT_SHARED_GATE:
    case KLD_SLOT_SHARED_UP:
    case KLD_SLOT_SHARED_DOWN: return "shared_expert";
    case KLD_SLOT_EXPERT_GATE:
    case KLD_SLOT_EXPERT_UP:
    case KLD_SLOT_EXPERT_DOWN: return "experts";
    case KLD_SLOT_FINAL_NORM:
    case KLD_SLOT_ATTN_NORM:
    case KLD_SLOT_ATTN_POST:
    case KLD_SLOT_MLP_NORM:
    case KLD_SLOT_MLP_POST:
    case KLD_SLOT_Q_NORM:
    case KLD_SLOT_K_NORM:
    case KLD_SLOT_Q_A_NORM:
    case KLD_SLOT_KV_A_NORM:
    case KLD_SLOT_COUNT: break;
    }
    return "norm";
}

static kld_status count(json_t *root, kld_slot s, const kld_weight *w, kld_err *err) {
    json_t *kind = json_object_get(root, kld_identity_module(s));
    if (!kind) {
        kind = json_object();
        if (!kind || json_object_set_new(root, kld_identity_module(s), kind) != 0)
            return kld_fail(err, KLD_E_NOMEM, "out of memory");
    }
    const char *format = kld_format_name(w->format);
    json_int_t n = json_integer_value(json_object_get(kind, format));
    if (json_object_set_new(kind, format, json_integer(n + 1)) != 0)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    return KLD_OK;
}

kld_status kld_identity_quant(const kld_model *m, json_t **out, kld_err *err) {
    json_t *root = json_object();
    *out = NULL;
    if (!root) return kld_fail(err, KLD_E_NOMEM, "out of memory");
    kld_status st = KLD_OK;
    for (kld_weight_at at = {0}; st == KLD_OK && kld_model_next_weight(m, &at);)
        st = count(root, at.slot, at.w, err);
    if (st == KLD_OK) *out = root;
    else json_decref(root);
    return st;
}

kld_status kld_identity_run(const kld_capture_info *i, const kld_file *shards, size_t n_shards,
                            kld_digest *out, kld_err *err) {
    kld_buf b = {0};
    kld_status st;
    const kld_digest *digests[] = {&i->model, &i->tokenizer, &i->suite, &i->reference};
    for (size_t k = 0; k < sizeof digests / sizeof *digests; k++)
        TRY_TO(done, kld_buf_add(&b, digests[k], sizeof *digests[k], err));
    TRY_TO(done, kld_buf_addf(&b, err, "%llu %llu %llu %llu %llu %a ", (unsigned long long)i->vocab,
                              (unsigned long long)i->top_k, (unsigned long long)i->min_k,
                              (unsigned long long)i->tail_samples, (unsigned long long)i->seed,
                              i->tail_mass));
    TRY_TO(done, kld_buf_adds(&b, i->partition ? i->partition : "", err));
    for (size_t k = 0; k < n_shards; k++)
        TRY_TO(done, kld_buf_u64(&b, (uint64_t)shards[k].mtime_ns, err));
    TRY_TO(done, kld_json_dump(i->engine, false, &b, err));
    TRY_TO(done, kld_sha256_of(b.data, b.len, out, err));
done:
    kld_buf_free(&b);
    return st;
}

kld_status kld_identity_place(char **time, char **host, kld_err *err) {
    TRY(kld_utc_now(time, err));
    return kld_host_name(host, err);
}
