/* What a run needs, and what its arithmetic is called. */
#include "kld/base/num.h"
#include "kld/base/system.h"
#include "kld/base/version.h"
#include "kld/store/capture.h"
#include "logits/run.h"

#include <stdio.h>
#include <string.h>

/* How much of a layer's experts is on the device at a time, in order of preference: the more of
 * them, the more rows a call has.  A back end that computes while it is called reads the next group
 * meanwhile, and so has several a layer. */
static const uint64_t group_bytes[] = {(uint64_t)1536 << 20, (uint64_t)256 << 20,
                                       (uint64_t)64 << 20, 0};
enum { GROUPINGS = sizeof group_bytes / sizeof *group_bytes, HOST_GROUPING = 1 };

static uint32_t formats_of(const kld_model *m) {
    uint32_t bits = 0;
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) bits |= 1u << at.w->format;
    return bits;
}

/* Widest buffers of any layer. */
static void widen(const kld_model *m, const kld_engine_options *opt, kld_device_spec *s,
                  size_t *widest) {
    const kld_config *c = &m->config;
    *widest = num_max(num_max(c->intermediate, c->shared_intermediate), c->hidden);
    for (size_t l = 0; l < c->layers; l++) {
        const kld_layer *y = &m->layer[l];
        const kld_attention *a = y->attn;
        size_t kv = a->kv_heads * num_max(a->head_dim, a->value_dim);
        *widest = num_max(*widest, a->heads * num_max(a->head_dim, a->value_dim));
        s->head_dim = num_max(s->head_dim, num_max(a->head_dim, a->value_dim));
        s->kv_cols = num_max(s->kv_cols, kv);
        for (size_t i = 0; i < y->n_sub; i++) s->blocks |= 1u << y->sub[i].block;
    }
    for (kld_weight_at at = {0}; opt->activations && kld_model_next_weight(m, &at);) {
        if (at.w->act.format == KLD_AQ_NONE) continue;
        s->act_formats |= 1u << at.w->act.format;
        if (at.slot < KLD_SLOT_EXPERT_GATE) s->act_cols = num_max(s->act_cols, at.w->cols);
    }
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (at.w->bias && at.slot != KLD_SLOT_O && at.slot != KLD_SLOT_DOWN)
            s->bias_cols = num_max(s->bias_cols, at.w->rows);
        if (at.w->pre && at.slot < KLD_SLOT_EXPERT_GATE)
            s->act_cols = num_max(s->act_cols, at.w->cols);
    }
    if (!c->router.experts) return;
    s->hidden = c->hidden;
    s->experts = c->router.experts;
    s->chosen = c->router.top_k;
    s->expert_cols = 2 * c->expert_intermediate;
}

static kld_device_spec spec_of(const kld_model *m, const kld_backend *be,
                               const kld_engine_options *opt, size_t rows, size_t longest,
                               unsigned halvings) {
    const kld_config *c = &m->config;
    kld_device_spec s = {.precision = opt->precision,
                         .vocab = opt->vocab,
                         .top_k = opt->top_k,
                         .tail_samples = opt->tail_samples,
                         .ref_ld = opt->ref_top_k,
                         .ref_m = opt->ref_tail_samples,
                         .formats = formats_of(m),
                         .activations = 1u << c->activation};
    size_t widest, chunks = num_max(1, num_cdiv(rows, KLD_CHUNK));
    widen(m, opt, &s, &widest);
    /* An expert gets few of a batch's rows.  So that they are enough for its products to run at
     * their full rate, a device with memory of its own gets larger batches than it would ask for;
     * when they do not fit, they are halved like others. */
    if (s.experts && !be->host_memory) widest /= 4;
    size_t batch = num_max(1, (be->batch_rows(widest) / KLD_CHUNK) >> halvings);
    size_t head = num_max(1, (be->head_rows() / KLD_CHUNK) >> halvings);
    s.max_rows = num_min(batch, chunks) * KLD_CHUNK;
    s.head_rows = num_min(head, num_min(batch, chunks)) * KLD_CHUNK;
    s.max_keys = num_max(s.max_rows, longest);
    return s;
}

/* Windows of a few tokens make a span each; a batch of them is cut short rather than
 * given unlimited spans. */
size_t kld_run_spans(const kld_device_spec *spec) { return spec->max_rows / 16; }

/* The residual stream, and with experts the rows that they read. */
static uint64_t resident_bytes(const kld_model *m, const kld_backend *be, kld_precision p,
                               size_t rows) {
    size_t act = m->config.router.experts ? be->elem_size(p, KLD_ELEM_ACT) : 0;
    return (uint64_t)rows * m->config.hidden * (sizeof(float) + act);
}

/* Device memory of a run, what is resident aside. */
static uint64_t device_bytes(const kld_model *m, const kld_schedule *sched, const kld_backend *be,
                             const kld_device_spec *spec, bool resident, size_t longest) {
    size_t act = be->elem_size(spec->precision, KLD_ELEM_ACT);
    return kld_schedule_pair_bytes(m, sched, 0) +
           kld_graph_largest_weights(m, sched, be, spec->precision) +
           kld_graph_block_bytes(m, act, spec, resident) + be->scratch_bytes(spec) +
           kld_graph_rope_bytes(m, longest);
}

uint64_t kld_run_route_bytes(const kld_device_spec *spec, size_t rows) {
    return spec->experts ? (uint64_t)rows * (2 * spec->chosen + 1) * sizeof(float) : 0;
}

/* Host memory for the residual stream of one device: several share what there is. */
static uint64_t host_room(const kld_engine_options *opt) {
    return (opt->memory ? opt->memory : kld_free_memory() / 2) / num_max(1, opt->n_devices);
}

/* The host's memory, when that is the device's too: everything is taken as it comes, only the
 * residual stream may go to disk. */
static void fit_host(const kld_model *m, const kld_backend *be, const kld_engine_options *opt,
                     size_t rows, size_t longest, kld_fit *out) {
    uint64_t all = resident_bytes(m, be, opt->precision, rows);
    out->place = all <= host_room(opt) ? KLD_ON_DEVICE : KLD_ON_DISK;
    out->spec = spec_of(m, be, opt, rows, longest, 0);
    bool there = out->place == KLD_ON_DEVICE;
    size_t batch = num_min(rows, out->spec.max_rows);
    out->device_bytes = device_bytes(m, &out->schedule, be, &out->spec, there, longest) +
                        (there ? all : resident_bytes(m, be, opt->precision, batch)) +
                        kld_run_route_bytes(&out->spec, rows);
}

/* How often batch and head calls may be halved before the residual stream leaves the device. */
enum { RESIDENT_HALVINGS = 3 };

static kld_status try_fit(const kld_model *m, const kld_backend *be, const kld_engine_options *opt,
                          size_t rows, size_t longest, bool resident, unsigned halvings,
                          uint64_t group, kld_fit *out, kld_err *err) {
    uint64_t stream = resident_bytes(m, be, opt->precision, rows);
    kld_schedule_free(&out->schedule);
    TRY(kld_schedule_make(&out->schedule, m, group, opt->expert_group, err));
    out->place = resident ? KLD_ON_DEVICE : stream <= host_room(opt) ? KLD_ON_HOST : KLD_ON_DISK;
    out->spec = spec_of(m, be, opt, rows, longest, halvings);
    out->device_bytes = device_bytes(m, &out->schedule, be, &out->spec, resident, longest) +
                        (resident ? stream : 0);
    return KLD_OK;
}

static kld_status too_small(const kld_model *m, const kld_backend *be, const kld_fit *f,
                            size_t longest, uint64_t budget, kld_err *err) {
    double gib = 0x1p-30;
    kld_precision p = f->spec.precision;
    size_t act = be->elem_size(p, KLD_ELEM_ACT);
    return kld_fail(err, KLD_E_NOMEM,
                    "%.2f GiB of device memory are allowed or free, and the smallest possible "
                    "here is %.2f GiB: weights of two neighbouring stages %.2f, decoded weights "
                    "%.2f, activations, keys and logits %.2f, scratch %.2f",
                    gib * (double)budget, gib * (double)f->device_bytes,
                    gib * (double)kld_schedule_pair_bytes(m, &f->schedule, 0),
                    gib * (double)kld_graph_largest_weights(m, &f->schedule, be, p),
                    gib * (double)(kld_graph_block_bytes(m, act, &f->spec, false) +
                                   kld_graph_rope_bytes(m, longest)),
                    gib * (double)be->scratch_bytes(&f->spec));
}

kld_status kld_run_fit(const kld_model *m, const kld_backend *be, const kld_engine_options *opt,
                       size_t rows, size_t longest, uint64_t budget, kld_fit *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    if (be->host_memory) {
        TRY(kld_schedule_make(&out->schedule, m, group_bytes[HOST_GROUPING], opt->expert_group,
                              err));
        fit_host(m, be, opt, rows, longest, out);
        return KLD_OK;
    }
    /* Groups are of one size without experts, or when it is given. */
    size_t groupings = m->config.router.experts && !opt->expert_group ? GROUPINGS : 1;
    for (int resident = 1; resident >= 0; resident--) {
        for (unsigned h = 0; h <= (resident ? RESIDENT_HALVINGS : 16u); h++) {
            for (size_t g = 0; g < groupings; g++) {
                TRY(try_fit(m, be, opt, rows, longest, resident, h, group_bytes[g], out, err));
                if (out->device_bytes <= budget) return KLD_OK;
            }
        }
    }
    return too_small(m, be, out, longest, budget, err);
}

static void plan_layers(const kld_model *m, const kld_schedule *s, const kld_backend *be,
                        kld_precision precision, kld_plan *p) {
    uint64_t stored = 0, decoded = 0;
    for (size_t i = 0; i < s->n; i++) {
        kld_stage t;
        kld_stage_of(m, &s->stage[i], NULL, &t);
        uint64_t d = kld_graph_weight_bytes(m, be, precision, &s->stage[i]);
        switch (t.key.kind) {
        case KLD_STAGE_EMBED: p->embed_bytes = t.bytes; continue;
        case KLD_STAGE_HEAD: p->head_bytes = d; continue;
        case KLD_STAGE_LAYER: stored = decoded = 0; break;
        case KLD_STAGE_EXPERTS: p->largest_group = num_max(p->largest_group, t.bytes); break;
        }
        stored += t.bytes;
        decoded += d;
        p->largest_layer_stored = num_max(p->largest_layer_stored, stored);
        p->largest_layer_decoded = num_max(p->largest_layer_decoded, decoded);
    }
}

/* Whatever a token takes, the bytes of so many can be counted. */
static const uint64_t MAX_PLANNED = UINT64_C(1) << 40;

kld_status kld_engine_plan(const kld_model *m, const kld_backend *backend,
                           const kld_engine_options *opt, uint64_t tokens, size_t longest_window,
                           kld_plan *out, kld_err *err) {
    kld_fit fit;
    kld_plan p = {0};
    *out = p;
    /* What a run needs, not where this machine would put it: nothing spills. */
    kld_engine_options roomy = *opt;
    roomy.memory = UINT64_MAX;
    if (tokens > MAX_PLANNED)
        return kld_fail(err, KLD_E_USAGE, "%llu tokens are too many to plan for; at most %llu are",
                        (unsigned long long)tokens, (unsigned long long)MAX_PLANNED);
    size_t longest = (size_t)num_min(longest_window, tokens);
    kld_status st = kld_run_fit(m, backend, &roomy, (size_t)tokens, longest, UINT64_MAX, &fit, err);
    if (st == KLD_OK) {
        plan_layers(m, &fit.schedule, backend, opt->precision, &p);
        p.residual_bytes = resident_bytes(m, backend, opt->precision, (size_t)tokens);
        p.total_bytes = fit.device_bytes;
        p.scratch_bytes = p.total_bytes - p.residual_bytes -
                          kld_schedule_pair_bytes(m, &fit.schedule, 0) -
                          kld_graph_largest_weights(m, &fit.schedule, backend, opt->precision);
        *out = p;
    }
    kld_schedule_free(&fit.schedule);
    return st;
}

static kld_status set(json_t *obj, const char *key, const char *text, kld_err *err) {
    json_t *v = json_string(text);
    if (!v || json_object_set_new(obj, key, v) != 0)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    return KLD_OK;
}

const char *kld_activations_name(kld_activations a) {
    return a == KLD_ACTIVATIONS_AS_DECLARED ? "as-declared" : "weights-only";
}

kld_status kld_engine_identity(const kld_backend *backend, const kld_engine_options *opt,
                               json_t **out, kld_err *err) {
    *out = NULL;
    kld_device_identity id;
    backend->identity(opt->precision, opt->n_devices ? opt->devices[0] : 0, &id);
    bool bf16 = opt->precision == KLD_PRECISION_BF16;
    bool declared = opt->activations == KLD_ACTIVATIONS_AS_DECLARED;
    const char *fused = kld_fused_scale_name(opt->fused);
    size_t span = opt->chunk ? opt->chunk : KLD_CHUNK;
    char chunk[32], spans[48] = "", arithmetic[sizeof id.arithmetic + 192];
    if (span != KLD_CHUNK) snprintf(spans, sizeof spans, "; spans of %zu", span);
    snprintf(arithmetic, sizeof arithmetic, "%s%s%s%s%s%s", id.arithmetic, spans,
             declared ? KLD_ARITHMETIC_INPUTS : "",
             declared ? kld_activations_name(opt->activations) : "", declared ? ", scales " : "",
             declared ? fused : "");
    snprintf(chunk, sizeof chunk, "%zu", span);
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
    TRY_TO(fail, set(obj, "activations", kld_activations_name(opt->activations), err));
    if (declared) TRY_TO(fail, set(obj, "fused_input_scale", fused, err));
    TRY_TO(fail, set(obj, "chunk", chunk, err));
    TRY_TO(fail, set(obj, "arithmetic", arithmetic, err));
    *out = obj;
    return KLD_OK;
fail:
    json_decref(obj);
    return st;
}
