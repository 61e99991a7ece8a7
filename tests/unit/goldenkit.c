#include "tests/unit/goldenkit.h"

#include "kld/base/file.h"
#include "tests/unit/enginekit.h"

#include <math.h>
#include <stdlib.h>

/* Largest error and first bad row of one golden model. */
static void check_golden(const kld_backend *be, const char *root, const char *name,
                         kld_precision precision, kld_activations activations, double limit) {
    char path[600], dir[512];
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    npy ids, want;
    snprintf(path, sizeof path, "%s/ids.npy", dir);
    if (!npy_load(&ids, path, "<i8")) return;
    snprintf(path, sizeof path, "%s/logits.npy", dir);
    if (!npy_load(&want, path, "<f4")) {
        kld_buf_free(&ids.bytes);
        return;
    }
    kld_err err = {0};
    kld_model *m;
    need(kld_model_open(&m, dir, &err), &err, name);
    size_t rows = want.dim[want.rank - 2], vocab = want.dim[want.rank - 1];
    size_t t = ids.dim[ids.rank - 1], n = rows > t ? rows : t * (ids.rank > 1 ? ids.dim[0] : 1);
    size_t n_seqs = n / t;
    uint32_t *tok = malloc(n * sizeof *tok);
    kld_seq *seqs = calloc(n_seqs, sizeof *seqs);
    assert_non_null(tok);
    assert_non_null(seqs);
    for (size_t i = 0; i < n; i++) tok[i] = (uint32_t)npy_i64(&ids, i);
    for (size_t i = 0; i < n_seqs; i++) seqs[i] = (kld_seq){tok + i * t, t, 0};
    collected c = {.vocab = vocab, .fail_at = SIZE_MAX, .want_logits = true};
    kld_sink sink = sink_of(&c);
    kld_engine_options opt = default_options(vocab);
    opt.precision = precision;
    opt.activations = activations;
    if (activations == KLD_ACTIVATIONS_AS_DECLARED)
        need(kld_act_resolve(m, KLD_FUSED_OWN, &err), &err, name);
    kld_engine_stats stats;
    need(kld_engine_run(m, be, seqs, n_seqs, &opt, &sink, &stats, &err), &err, name);
    assert_int_equal(c.logits.len, n * vocab * sizeof(float));
    const float *got = (const float *)(const void *)c.logits.data, *ref = npy_f32(&want);
    double top = 0, worst = 0;
    size_t bad = n;
    for (size_t i = 0; i < n * vocab; i++) top = fmax(top, fabs((double)ref[i]));
    for (size_t i = 0; i < n * vocab; i++) {
        double d = fabs((double)got[i] - (double)ref[i]) / top;
        if (!(d <= worst)) worst = d;
        if (!(d < limit) && bad == n) bad = i / vocab;
    }
    print_message("%-24s %s max relative error %.2e\n", name,
                  precision == KLD_PRECISION_FP32 ? "fp32" : "bf16", worst);
    if (bad < n) fail_msg("%s: row %zu is the first above %g", name, bad, limit);
    free(tok);
    free(seqs);
    collected_free(&c);
    kld_buf_free(&ids.bytes);
    kld_buf_free(&want.bytes);
    kld_model_free(m);
}

static void check_all(const kld_backend *be, const char *root, kld_precision precision,
                      kld_activations activations, double limit) {
    if (!kld_path_is_dir(root)) skip();
    char **names;
    size_t n;
    assert_int_equal(kld_list_dir(root, &names, &n, NULL), KLD_OK);
    for (size_t i = 0; i < n; i++) check_golden(be, root, names[i], precision, activations, limit);
    kld_names_free(names, n);
}

void goldens_check(const kld_backend *be, kld_precision precision, double limit) {
    check_all(be, "tests/golden/models", precision, KLD_ACTIVATIONS_WEIGHTS_ONLY, limit);
}

void goldens_check_inputs(const kld_backend *be, double limit) {
    check_all(be, "tests/golden/inputs", KLD_PRECISION_FP32, KLD_ACTIVATIONS_AS_DECLARED, limit);
}
