#include "tests/unit/goldenkit.h"

#include "kld/base/file.h"
#include "tests/unit/enginekit.h"

#include <math.h>
#include <stdlib.h>

static const char *const goldens = "tests/golden/models";

/* The routes of a run, layer by layer: rounding sends a token whose experts are nearly equal to
 * another one, and what comes of that is no rounding error.  So a model with experts is run in BF16
 * along the routes of its FP32 run. */
typedef struct trail {
    size_t rows, t, k; /* windows of t tokens */
    uint32_t *id;
    float *weight;
} trail;

static kld_status keep(void *ctx, size_t layer, size_t w, size_t n, const kld_routes *r,
                       kld_err *err) {
    trail *a = ctx;
    size_t at = (layer * a->rows + w * a->t) * a->k;
    (void)err;
    memcpy(a->id + at, r->id, n * a->k * sizeof *r->id);
    memcpy(a->weight + at, r->weight, n * a->k * sizeof *r->weight);
    return KLD_OK;
}

static kld_status give(void *ctx, size_t layer, size_t w, size_t n, kld_routes *r, kld_err *err) {
    const trail *a = ctx;
    size_t at = (layer * a->rows + w * a->t) * a->k;
    (void)err;
    memcpy(r->id, a->id + at, n * a->k * sizeof *r->id);
    memcpy(r->weight, a->weight + at, n * a->k * sizeof *r->weight);
    return KLD_OK;
}

static void record(trail *a, const kld_model *m, const kld_backend *be, const kld_seq *seqs,
                   size_t n_seqs, const kld_engine_options *opt) {
    kld_engine_options o = *opt;
    kld_route_io io = {.ctx = a, .take = keep};
    collected c = {.vocab = o.vocab, .fail_at = SIZE_MAX};
    kld_sink sink = sink_of(&c);
    kld_engine_stats stats;
    kld_err err = {0};
    a->k = m->config.router.top_k;
    a->t = seqs[0].n;
    a->rows = n_seqs * a->t;
    a->id = calloc(m->config.layers * a->rows * a->k + 1, sizeof *a->id);
    a->weight = calloc(m->config.layers * a->rows * a->k + 1, sizeof *a->weight);
    assert_true(a->id && a->weight);
    o.precision = KLD_PRECISION_FP32;
    o.routes = &io;
    need(kld_engine_run(m, be, seqs, n_seqs, &o, &sink, &stats, &err), &err, "routes");
    collected_free(&c);
}

/* Largest error and first bad row of one golden model. */
static void check_golden(const kld_backend *be, const char *name, kld_precision precision,
                         double limit) {
    char path[600], dir[512];
    snprintf(dir, sizeof dir, "%s/%s", goldens, name);
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
    kld_engine_stats stats;
    trail routes = {0};
    kld_route_io io = {.ctx = &routes, .give = give};
    if (precision == KLD_PRECISION_BF16 && m->config.router.experts) {
        record(&routes, m, be, seqs, n_seqs, &opt);
        opt.routes = &io;
    }
    need(kld_engine_run(m, be, seqs, n_seqs, &opt, &sink, &stats, &err), &err, name);
    free(routes.id);
    free(routes.weight);
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

void goldens_check(const kld_backend *be, kld_precision precision, double limit) {
    if (!kld_path_is_dir(goldens)) skip();
    char **names;
    size_t n;
    assert_int_equal(kld_list_dir(goldens, &names, &n, NULL), KLD_OK);
    for (size_t i = 0; i < n; i++) check_golden(be, names[i], precision, limit);
    kld_names_free(names, n);
}
