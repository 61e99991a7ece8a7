#include "kld/capture/logits.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/capture/inputs.h"
#include "kld/capture/npy.h"
#include "loaders/model.h"

#include <string.h>

kld_status kld_parse_ids(const char *text, uint32_t **ids, size_t *n, kld_err *err) {
    *ids = NULL;
    *n = 0;
    size_t count = 1;
    for (const char *p = text; *p; p++) count += *p == ',';
    uint32_t *v;
    TRY(NEW_ARRAY(&v, count, err));
    const char *p = text;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        const char *start = p;
        while (*p == ' ') p++;
        const char *digits = p;
        for (; *p >= '0' && *p <= '9' && id <= UINT32_MAX; p++) id = id * 10 + (uint64_t)(*p - '0');
        bool ok = p > digits && id <= UINT32_MAX;
        while (*p == ' ') p++;
        if (!ok || (*p != ',' && *p)) {
            kld_free(v);
            return kld_fail(err, KLD_E_USAGE,
                            "--ids: '%.20s' at position %zu is not a token id; give FILE.npy or "
                            "numbers like 1,2,3",
                            start, i);
        }
        v[i] = (uint32_t)id;
        if (*p) p++;
    }
    *ids = v;
    *n = count;
    return KLD_OK;
}

typedef struct target {
    kld_writer *w;
    size_t vocab;
} target;

static kld_status on_logits(void *ctx, size_t i, size_t row0, size_t n, const float *logits,
                            kld_err *err) {
    (void)i;
    (void)row0;
    target *s = ctx;
    return kld_writer_add(s->w, logits, n * s->vocab * sizeof *logits, err);
}

kld_status kld_logits_run(const kld_logits_options *opt, kld_logits_summary *out, kld_err *err) {
    char *dir = NULL;
    kld_model *m = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    kld_writer w = {.fd = -1};
    kld_status st;
    memset(out, 0, sizeof *out);
    TRY_TO(done, kld_path_ends_with(opt->ids, ".npy") ? kld_npy_read_ids(opt->ids, &ids, &n, err)
                                                      : kld_parse_ids(opt->ids, &ids, &n, err));
    if (n == 0) {
        st = kld_fail(err, KLD_E_INPUT, "%s: no token ids", opt->ids);
        goto done;
    }
    TRY_TO(done, kld_hub_resolve(opt->model, &dir, err));
    TRY_TO(done, kld_model_open(&m, dir, err));
    TRY_TO(done, kld_output_not_input(opt->output, opt->ids, err));
    TRY_TO(done, kld_checkpoint_not_output(&m->ckpt, opt->output, err));
    if (opt->activations == KLD_ACTIVATIONS_AS_DECLARED)
        TRY_TO(done, kld_inputs_resolve(m, dir, opt->fused, err));
    for (size_t i = 0; i < m->n_warnings; i++) kld_warn("%s", m->warnings[i]);
    out->tokens = n;
    out->vocab = m->config.vocab;
    TRY_TO(done, kld_writer_open(&w, opt->output, err));
    TRY_TO(done, kld_npy_header_f32(&w, n, out->vocab, err));
    const kld_engine_options eo = {.precision = opt->precision,
                                   .activations = opt->activations,
                                   .fused = opt->fused,
                                   .vocab = out->vocab,
                                   .top_k = 1,
                                   .min_k = 1,
                                   .tail_mass = 1e-3,
                                   .devices = opt->where ? opt->where->device : NULL,
                                   .n_devices = opt->where ? opt->where->n : 0,
                                   .device_memory = opt->device_memory};
    const kld_backend *be = opt->where ? opt->where->backend : kld_backend_cpu();
    const kld_seq seq = {.ids = ids, .n = n, .score_from = 0};
    target ctx = {&w, out->vocab};
    const kld_sink sink = {.ctx = &ctx, .logits = on_logits};
    TRY_TO(done, kld_engine_run(m, be, &seq, 1, &eo, &sink, &out->engine, err));
    TRY_TO(done, kld_writer_commit(&w, err));
done:
    kld_writer_abort(&w);
    kld_model_free(m);
    kld_free(ids);
    kld_free(dir);
    return st;
}
