/* What a run needs, and what its arithmetic is called. */
#include "kld/base/num.h"
#include "kld/base/version.h"
#include "logits/run.h"

#include <stdio.h>

static uint32_t formats_of(const kld_model *m) {
    uint32_t bits = 0;
    for (size_t i = 0; i <= m->config.layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        for (size_t j = 0; j < s.n; j++) bits |= 1u << s.weight[j].w->format;
    }
    return bits;
}

kld_device_spec kld_run_spec(const kld_model *m, const kld_backend *be,
                             const kld_engine_options *opt, size_t rows, size_t longest) {
    const kld_config *c = &m->config;
    size_t chunks = num_max(1, num_cdiv(rows, KLD_CHUNK));
    size_t widest = num_max(num_max(c->intermediate, c->hidden), c->heads * c->head_dim);
    kld_device_spec s = {.precision = opt->precision,
                         .max_rows = num_min(be->batch_rows(widest), chunks * KLD_CHUNK),
                         .head_dim = c->head_dim,
                         .vocab = opt->vocab,
                         .top_k = opt->top_k,
                         .formats = formats_of(m),
                         .activations = 1u << c->activation};
    s.max_keys = num_max(s.max_rows, longest);
    for (size_t i = 0; i < c->layers; i++)
        for (size_t j = 0; j < m->layer[i].n_sub; j++) s.blocks |= 1u << m->layer[i].sub[j].block;
    return s;
}

/* Windows of a few tokens make a span each; a batch of them is cut short rather than
 * given unlimited spans. */
size_t kld_run_spans(const kld_device_spec *spec) { return spec->max_rows / 16; }

void kld_engine_plan(const kld_model *m, const kld_backend *backend, const kld_engine_options *opt,
                     uint64_t tokens, size_t longest_window, kld_plan *out) {
    const kld_config *c = &m->config;
    kld_device_spec spec = kld_run_spec(m, backend, opt, (size_t)tokens, longest_window);
    kld_plan p = {0};
    uint64_t read[2] = {0, 0}, weights = 0;
    for (size_t i = 0; i <= c->layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        uint64_t stored = kld_stage_buffer_bytes(&s);
        uint64_t decoded = kld_graph_weight_bytes(backend, opt->precision, &s);
        if (stored > read[i % 2]) read[i % 2] = stored;
        if (decoded > weights) weights = decoded;
        if (i == 0) {
            p.embed_bytes = s.bytes;
        } else if (i > c->layers) {
            p.head_bytes = decoded;
        } else {
            if (s.bytes > p.largest_layer_stored) p.largest_layer_stored = s.bytes;
            if (decoded > p.largest_layer_decoded) p.largest_layer_decoded = decoded;
        }
    }
    p.residual_bytes = tokens * c->hidden * sizeof(float);
    p.scratch_bytes =
        backend->scratch_bytes(&spec) +
        kld_graph_block_bytes(c, sizeof(float), spec.max_rows, spec.max_keys, spec.vocab) +
        2 * sizeof(float) * longest_window * (c->head_dim / 2);
    p.total_bytes = p.residual_bytes + p.scratch_bytes + read[0] + read[1] + weights;
    *out = p;
}

static kld_status set(json_t *obj, const char *key, const char *text, kld_err *err) {
    json_t *v = json_string(text);
    if (!v || json_object_set_new(obj, key, v) != 0)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    return KLD_OK;
}

kld_status kld_engine_identity(const kld_backend *backend, const kld_engine_options *opt,
                               json_t **out, kld_err *err) {
    *out = NULL;
    kld_device_identity id;
    backend->identity(opt->precision, &id);
    bool bf16 = opt->precision == KLD_PRECISION_BF16;
    char chunk[32];
    snprintf(chunk, sizeof chunk, "%d", KLD_CHUNK);
    json_t *obj = json_object();
    if (!obj) return kld_fail(err, KLD_E_NOMEM, "out of memory");
    kld_status st;
    TRY_TO(fail, set(obj, "version", kld_version(), err));
    TRY_TO(fail, set(obj, "commit", kld_commit(), err));
    TRY_TO(fail, set(obj, "backend", backend->name, err));
    TRY_TO(fail, set(obj, "device", id.device, err));
    TRY_TO(fail, set(obj, "blas", id.blas, err));
    TRY_TO(fail, set(obj, "precision", bf16 ? "bf16" : "fp32", err));
    TRY_TO(fail, set(obj, "accumulate", "fp32", err));
    TRY_TO(fail, set(obj, "activations", bf16 ? "bf16" : "fp32", err));
    TRY_TO(fail, set(obj, "chunk", chunk, err));
    TRY_TO(fail, set(obj, "arithmetic", id.arithmetic, err));
    *out = obj;
    return KLD_OK;
fail:
    json_decref(obj);
    return st;
}
