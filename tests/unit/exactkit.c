#include "tests/unit/exactkit.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/capture.h"
#include "loaders/head.h"

#include <math.h>

const size_t EXACT_SCORED[EXACT_KEPT] = {1, 3, 4, 5, 0};

static kld_status on_records(void *ctx, size_t i, kld_records *r, kld_err *err) {
    exact_side *s = ctx;
    (void)err;
    assert_int_equal(i, s->n);
    s->all[s->n++] = *r;
    memset(r, 0, sizeof *r);
    return KLD_OK;
}

kld_engine_options exact_options(const scene *s, kld_precision p, size_t top_k) {
    kld_engine_options o = default_options(s->t.vocab);
    o.precision = p;
    o.top_k = top_k;
    o.min_k = 4;
    o.tail_samples = 0;
    o.hidden = true;
    if (top_k == s->t.vocab) o.min_k = top_k;
    return o;
}

void exact_run(exact_side *out, const scene *s, const kld_model *m, const kld_engine_options *o) {
    kld_err err = {0};
    kld_engine_stats stats;
    kld_sink sink = {.ctx = out, .records = on_records};
    *out = (exact_side){.m = m};
    need(kld_engine_run(m, kld_backend_cpu(), s->seqs, WINDOWS, o, &sink, &stats, &err), &err, "");
}

void exact_drop(exact_side *s) {
    for (size_t i = 0; i < s->n; i++) kld_records_free(&s->all[i]);
}

static void describe(kld_capture_info *i, const scene *s, const kld_model *m, const exact_form *f,
                     const kld_engine_options *o) {
    kld_err err = {0};
    *i = (kld_capture_info){.vocab = s->t.vocab,
                            .vocab_rows = s->t.vocab,
                            .windows = EXACT_KEPT,
                            .top_k = o->top_k,
                            .min_k = o->min_k,
                            .tail_mass = o->tail_mass,
                            .seed = 1};
    for (size_t w = 0; w < EXACT_KEPT; w++) {
        const kld_seq *q = &s->seqs[EXACT_SCORED[w]];
        i->positions += q->n > q->score_from + 1 ? q->n - 1 - q->score_from : 0;
    }
    need(kld_strdup(&i->name, "no/such", &err), &err, "");
    need(kld_strdup(&i->time, "2026-01-01T00:00:00Z", &err), &err, "");
    need(kld_strdup(&i->checkpoint, f->checkpoint ? f->checkpoint : m->ckpt.dir, &err), &err, "");
    i->model = m->ckpt.digest;
    need(kld_engine_identity(kld_backend_cpu(), o, &i->engine, &err), &err, "identity");
    if (f->arithmetic)
        assert_int_equal(json_object_set_new(i->engine, "arithmetic", json_string(f->arithmetic)),
                         0);
    if (f->no_hidden) return;
    i->hidden.cols = m->config.hidden;
    i->hidden.bytes = f->precision == KLD_PRECISION_BF16 ? 2 : 4;
    i->hidden.logit_cap = f->logit_cap ? *f->logit_cap : m->config.logit_cap;
    if (f->head) i->hidden.head = *f->head;
    else need(kld_head_digest(m, &i->hidden.head, &err), &err, "digest");
}

static void spoil(kld_records *r, const exact_form *f, size_t w) {
    for (size_t i = 0; i < r->n; i++) r->lse[i] += (float)f->shift;
    if (!f->nan_row || EXACT_SCORED[w] != 4) return;
    size_t i = f->nan_row;
    r->count[i] = 0;
    r->label_lp[i] = r->lse[i] = r->entropy[i] = r->tail_mass[i] = NAN;
}

void exact_capture(const char *path, const scene *s, const kld_model *m, const exact_form *f) {
    kld_engine_options o = exact_options(s, f->precision, 32);
    kld_capture_info info;
    kld_capture_writer *w;
    kld_err err = {0};
    exact_side got;
    o.hidden = !f->no_hidden;
    exact_run(&got, s, m, &o);
    describe(&info, s, m, f, &o);
    need(kld_capture_create(&w, path, &info, &err), &err, path);
    for (size_t i = 0; i < EXACT_KEPT; i++) {
        static const char *const cluster[] = {"a", "b", "c"};
        const kld_seq *q = &s->seqs[EXACT_SCORED[i]];
        kld_window_meta meta = {.tokens = q->n,
                                .score_from = num_min(q->score_from, q->n - 1),
                                .source = "src",
                                .cluster = cluster[i % 3],
                                .stratum = "",
                                .partition = ""};
        meta.ids.b[0] = (unsigned char)i;
        spoil(&got.all[EXACT_SCORED[i]], f, i);
        need(kld_capture_add(w, &meta, &got.all[EXACT_SCORED[i]], NULL, &err), &err, path);
    }
    need(kld_capture_finish(w, &err), &err, path);
    kld_capture_info_free(&info);
    exact_drop(&got);
}

void exact_open(exact_rig *g, tiny t, uint64_t seed) {
    kld_err err = {0};
    scene_open(&g->s, t);
    g->other = t;
    tiny_write(&g->other, seed);
    need(kld_model_open(&g->cand, g->other.dir, &err), &err, "candidate");
    snprintf(g->ref_path, sizeof g->ref_path, "%s/ref.zst", g->s.t.dir);
    snprintf(g->cand_path, sizeof g->cand_path, "%s/cand.zst", g->s.t.dir);
    g->opt = kld_compare_defaults();
    g->opt.resamples = 100;
    g->opt.device = "cpu";
}

void exact_close(exact_rig *g) {
    kld_model_free(g->cand);
    tiny_remove(&g->other);
    scene_close(&g->s);
}

json_t *exact_compare(exact_rig *g) {
    const char *cand[] = {g->cand_path};
    kld_err err = {0};
    json_t *r;
    need(kld_compare_run(g->ref_path, cand, 1, &g->opt, &r, &err), &err, "compare");
    return r;
}

void exact_fails(exact_rig *g, kld_status want, const char *text) {
    const char *cand[] = {g->cand_path};
    kld_err err = {0};
    json_t *r;
    kld_status st = kld_compare_run(g->ref_path, cand, 1, &g->opt, &r, &err);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    assert_int_equal(st, want);
    assert_null(r);
}

void exact_near(const json_t *r, const char *path, double want, double tol) {
    double got = cmp_real(r, path);
    if (!(fabs(got - want) <= tol * fmax(fabs(want), 1e-3)))
        fail_msg("%s: %.15g instead of %.15g", path, got, want);
}
