/* What a run needs, and what its arithmetic is called. */
#include "kld/base/num.h"
#include "kld/base/system.h"
#include "kld/base/version.h"
#include "logits/run.h"

#include <stdio.h>
#include <string.h>

static uint32_t formats_of(const kld_model *m) {
    uint32_t bits = 0;
    for (size_t i = 0; i <= m->config.layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        for (size_t j = 0; j < s.n; j++) bits |= 1u << s.w[j]->format;
    }
    return bits;
}

static kld_device_spec spec_of(const kld_model *m, const kld_backend *be,
                               const kld_engine_options *opt, size_t rows, size_t longest,
                               unsigned halvings) {
    const kld_config *c = &m->config;
    size_t chunks = num_max(1, num_cdiv(rows, KLD_CHUNK));
    size_t widest = num_max(num_max(c->intermediate, c->hidden), c->heads * c->head_dim);
    size_t batch = num_max(1, (be->batch_rows(widest) / KLD_CHUNK) >> halvings);
    size_t head = num_max(1, (be->head_rows() / KLD_CHUNK) >> halvings);
    kld_device_spec s = {.precision = opt->precision,
                         .max_rows = num_min(batch, chunks) * KLD_CHUNK,
                         .head_dim = c->head_dim,
                         .kv_cols = c->kv_heads * c->head_dim,
                         .vocab = opt->vocab,
                         .top_k = opt->top_k,
                         .tail_samples = opt->tail_samples,
                         .ref_ld = opt->ref_top_k,
                         .ref_m = opt->ref_tail_samples,
                         .formats = formats_of(m),
                         .activations = 1u << c->activation};
    s.head_rows = num_min(head, num_min(batch, chunks)) * KLD_CHUNK;
    s.max_keys = num_max(s.max_rows, longest);
    for (size_t i = 0; i < c->layers; i++)
        for (size_t j = 0; j < m->layer[i].n_sub; j++) s.blocks |= 1u << m->layer[i].sub[j].block;
    return s;
}

/* Windows of a few tokens make a span each; a batch of them is cut short rather than
 * given unlimited spans. */
size_t kld_run_spans(const kld_device_spec *spec) { return spec->max_rows / 16; }

static uint64_t resident_bytes(const kld_model *m, size_t rows) {
    return (uint64_t)rows * m->config.hidden * sizeof(float);
}

/* Device memory of a run, the residual stream aside. */
static uint64_t device_bytes(const kld_model *m, const kld_backend *be, const kld_device_spec *spec,
                             bool resident, size_t longest) {
    size_t act = be->elem_size(spec->precision, KLD_ELEM_ACT);
    return kld_stage_pair_bytes(m, 0) + kld_graph_largest_weights(m, be, spec->precision) +
           kld_graph_block_bytes(&m->config, act, spec, resident) + be->scratch_bytes(spec) +
           kld_graph_rope_bytes(&m->config, longest);
}

/* The host's memory, when that is the device's too: everything is taken as it comes, only the
 * residual stream may go to disk. */
static void fit_host(const kld_model *m, const kld_backend *be, const kld_engine_options *opt,
                     size_t rows, size_t longest, kld_fit *out) {
    uint64_t room = opt->memory ? opt->memory : kld_free_memory() / 2;
    out->place = resident_bytes(m, rows) <= room ? KLD_ON_DEVICE : KLD_ON_DISK;
    out->spec = spec_of(m, be, opt, rows, longest, 0);
    out->device_bytes =
        device_bytes(m, be, &out->spec, out->place == KLD_ON_DEVICE, longest) +
        resident_bytes(m, out->place == KLD_ON_DEVICE ? rows : num_min(rows, out->spec.max_rows));
}

/* How often batch and head calls may be halved before the residual stream leaves the device. */
enum { RESIDENT_HALVINGS = 3 };

kld_status kld_run_fit(const kld_model *m, const kld_backend *be, const kld_engine_options *opt,
                       size_t rows, size_t longest, uint64_t budget, kld_fit *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    if (be->host_memory) {
        fit_host(m, be, opt, rows, longest, out);
        return KLD_OK;
    }
    uint64_t stream = resident_bytes(m, rows);
    uint64_t room = opt->memory ? opt->memory : kld_free_memory() / 2;
    for (int resident = 1; resident >= 0; resident--) {
        out->place = resident ? KLD_ON_DEVICE : stream <= room ? KLD_ON_HOST : KLD_ON_DISK;
        for (unsigned h = 0; h <= (resident ? RESIDENT_HALVINGS : 16u); h++) {
            out->spec = spec_of(m, be, opt, rows, longest, h);
            out->device_bytes =
                device_bytes(m, be, &out->spec, resident, longest) + (resident ? stream : 0);
            if (out->device_bytes <= budget) return KLD_OK;
        }
    }
    double gib = 0x1p-30;
    return kld_fail(err, KLD_E_NOMEM,
                    "%.2f GiB of device memory are allowed or free, and the smallest possible "
                    "here is %.2f GiB: weights of two neighbouring stages %.2f, decoded weights "
                    "%.2f, activations, keys and logits %.2f, scratch %.2f",
                    gib * (double)budget, gib * (double)out->device_bytes,
                    gib * (double)kld_stage_pair_bytes(m, 0),
                    gib * (double)kld_graph_largest_weights(m, be, opt->precision),
                    gib * (double)(kld_graph_block_bytes(
                                       &m->config, be->elem_size(opt->precision, KLD_ELEM_ACT),
                                       &out->spec, false) +
                                   kld_graph_rope_bytes(&m->config, longest)),
                    gib * (double)be->scratch_bytes(&out->spec));
}

void kld_engine_plan(const kld_model *m, const kld_backend *backend, const kld_engine_options *opt,
                     uint64_t tokens, size_t longest_window, kld_plan *out) {
    const kld_config *c = &m->config;
    kld_plan p = {0};
    for (size_t i = 0; i <= c->layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        uint64_t decoded = kld_graph_weight_bytes(backend, opt->precision, &s);
        if (i == 0) {
            p.embed_bytes = s.bytes;
        } else if (i > c->layers) {
            p.head_bytes = decoded;
        } else {
            p.largest_layer_stored = num_max(p.largest_layer_stored, s.bytes);
            p.largest_layer_decoded = num_max(p.largest_layer_decoded, decoded);
        }
    }
    kld_fit fit;
    kld_status st =
        kld_run_fit(m, backend, opt, (size_t)tokens, longest_window, UINT64_MAX, &fit, NULL);
    (void)st; /* nothing exceeds that budget */
    p.residual_bytes = resident_bytes(m, (size_t)tokens);
    p.total_bytes = fit.device_bytes;
    p.scratch_bytes = p.total_bytes - p.residual_bytes - kld_stage_pair_bytes(m, 0) -
                      kld_graph_largest_weights(m, backend, opt->precision);
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
    backend->identity(opt->precision, opt->n_devices ? opt->devices[0] : 0, &id);
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
