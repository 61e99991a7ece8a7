/* Exact comparisons: captures of small models that keep hidden states, against sums over every
 * logit taken here; heads found, missing, wrong; one head for both sides. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/compare/compare.h"
#include "kld/store/capture.h"
#include "loaders/head.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/recastkit.h"

#include <math.h>
#include <stdlib.h>

/* ---- captures ------------------------------------------------------------------------------ */

enum { KEPT = 5 }; /* windows of a scene that score something */
static const size_t SCORED[KEPT] = {1, 3, 4, 5, 0};

/* A model, and everything that it says of the windows. */
typedef struct side {
    const kld_model *m;
    kld_records all[WINDOWS]; /* every id listed, with hidden states */
    size_t n;
} side;

static kld_status on_records(void *ctx, size_t i, kld_records *r, kld_err *err) {
    side *s = ctx;
    (void)err;
    assert_int_equal(i, s->n);
    s->all[s->n++] = *r;
    memset(r, 0, sizeof *r);
    return KLD_OK;
}

static kld_engine_options options_of(const scene *s, kld_precision p, size_t top_k) {
    kld_engine_options o = default_options(s->t.vocab);
    o.precision = p;
    o.top_k = top_k;
    o.min_k = 4;
    o.tail_samples = 0;
    o.hidden = true;
    if (top_k == s->t.vocab) o.min_k = top_k;
    return o;
}

static void run(side *out, const scene *s, const kld_model *m, const kld_engine_options *o) {
    kld_err err = {0};
    kld_engine_stats stats;
    kld_sink sink = {.ctx = out, .records = on_records};
    *out = (side){.m = m};
    need(kld_engine_run(m, kld_backend_cpu(), s->seqs, WINDOWS, o, &sink, &stats, &err), &err, "");
}

static void drop(side *s) {
    for (size_t i = 0; i < s->n; i++) kld_records_free(&s->all[i]);
}

typedef struct form {
    kld_precision precision;
    bool no_hidden;          /* an ordinary capture */
    const char *checkpoint;  /* what the header says; NULL: the model's directory */
    const kld_digest *head;  /* what the header says; NULL: the model's */
    const double *logit_cap; /* alike */
    size_t nan_row;          /* > 0: that row of the long window is not finite */
    double shift;            /* added to every recorded log-sum-exp */
    const char *arithmetic;  /* NULL: as it is */
} form;

static void describe(kld_capture_info *i, const scene *s, const kld_model *m, const form *f,
                     const kld_engine_options *o) {
    kld_err err = {0};
    *i = (kld_capture_info){.vocab = s->t.vocab,
                            .vocab_rows = s->t.vocab,
                            .windows = KEPT,
                            .top_k = o->top_k,
                            .min_k = o->min_k,
                            .tail_mass = o->tail_mass,
                            .seed = 1};
    for (size_t w = 0; w < KEPT; w++) {
        const kld_seq *q = &s->seqs[SCORED[w]];
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

static void spoil(kld_records *r, const form *f, size_t w) {
    for (size_t i = 0; i < r->n; i++) r->lse[i] += (float)f->shift;
    if (!f->nan_row || SCORED[w] != 4) return;
    size_t i = f->nan_row;
    r->count[i] = 0;
    r->label_lp[i] = r->lse[i] = r->entropy[i] = r->tail_mass[i] = NAN;
}

static void write_capture(const char *path, const scene *s, const kld_model *m, const form *f) {
    kld_engine_options o = options_of(s, f->precision, 32);
    kld_capture_info info;
    kld_capture_writer *w;
    kld_err err = {0};
    side got;
    o.hidden = !f->no_hidden;
    run(&got, s, m, &o);
    describe(&info, s, m, f, &o);
    need(kld_capture_create(&w, path, &info, &err), &err, path);
    for (size_t i = 0; i < KEPT; i++) {
        static const char *const cluster[] = {"a", "b", "c"};
        const kld_seq *q = &s->seqs[SCORED[i]];
        kld_window_meta meta = {.tokens = q->n,
                                .score_from = num_min(q->score_from, q->n - 1),
                                .source = "src",
                                .cluster = cluster[i % 3],
                                .stratum = "",
                                .partition = ""};
        meta.ids.b[0] = (unsigned char)i;
        spoil(&got.all[SCORED[i]], f, i);
        need(kld_capture_add(w, &meta, &got.all[SCORED[i]], NULL, &err), &err, path);
    }
    need(kld_capture_finish(w, &err), &err, path);
    kld_capture_info_free(&info);
    drop(&got);
}

/* ---- the truth ----------------------------------------------------------------------------- */

typedef struct truth {
    double kl, reverse_kl, js, tv, jaccard, nucleus_tv, on_ref, on_cand, top1, overlap, nll;
    size_t n;
} truth;

/* Log-probabilities in order of id. */
static void normalise(double *l, size_t n) {
    double max = -INFINITY, z = 0;
    for (size_t j = 0; j < n; j++) max = fmax(max, l[j]);
    for (size_t j = 0; j < n; j++) z += exp(l[j] - max);
    for (size_t j = 0; j < n; j++) l[j] -= max + log(z);
}

static const double *sorted_by;
static int by_rank(const void *a, const void *b) {
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    if (sorted_by[i] != sorted_by[j]) return sorted_by[i] > sorted_by[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

enum { MAX_VOCAB = 300 };

typedef struct ranked {
    size_t order[MAX_VOCAB], size;
    bool in[MAX_VOCAB], top[MAX_VOCAB];
    double mass;
} ranked;

static void rank(ranked *r, const double *l, size_t n, double top_p) {
    memset(r, 0, sizeof *r);
    for (size_t j = 0; j < n; j++) r->order[j] = j;
    sorted_by = l;
    qsort(r->order, n, sizeof *r->order, by_rank);
    for (size_t j = 0; j < 10; j++) r->top[r->order[j]] = true;
    while (r->mass < top_p) {
        r->in[r->order[r->size]] = true;
        r->mass += exp(l[r->order[r->size++]]);
    }
}

/* One position, from log-probabilities. */
static void add_position(truth *t, const double *a, const double *b, size_t n, uint32_t label) {
    ranked p, q;
    double ntv = 0, on_ref = 0, on_cand = 0;
    size_t both = 0, shared = 0;
    rank(&p, a, n, 0.95);
    rank(&q, b, n, 0.95);
    for (size_t j = 0; j < n; j++) {
        double x = exp(a[j]), y = exp(b[j]), m = log((x + y) / 2);
        t->kl += x * (a[j] - b[j]);
        t->reverse_kl += y * (b[j] - a[j]);
        t->js += (x * (a[j] - m) + y * (b[j] - m)) / 2;
        t->tv += fabs(x - y) / 2;
        both += p.in[j] && q.in[j];
        shared += p.top[j] && q.top[j];
        if (p.in[j]) on_ref += y;
        if (q.in[j]) on_cand += x;
        ntv += fabs((p.in[j] ? x / p.mass : 0) - (q.in[j] ? y / q.mass : 0)) / 2;
    }
    t->jaccard += (double)both / (double)(p.size + q.size - both);
    t->nucleus_tv += ntv;
    t->on_ref += on_ref;
    t->on_cand += on_cand;
    t->top1 += p.order[0] == q.order[0];
    t->overlap += (double)shared / 10;
    t->nll += a[label] - b[label];
    t->n++;
}

static void by_id(const kld_records *r, size_t i, size_t n, double *out) {
    for (size_t j = 0; j < n; j++) out[r->ids[i * r->k_ld + j]] = r->lp[i * r->k_ld + j];
    normalise(out, n);
}

/* What a head makes of a row, in FP64. */
static void through(const float *head, const kld_records *h, size_t i, size_t n, double *out) {
    size_t cols = h->hidden_cols;
    const float *x = (const float *)h->hidden + i * cols;
    for (size_t j = 0; j < n; j++) {
        out[j] = 0;
        for (size_t c = 0; c < cols; c++) out[j] += (double)head[j * cols + c] * (double)x[c];
    }
    normalise(out, n);
}

/* head: NULL, or the FP32 matrix that the candidate's hidden states go through instead. */
static truth truth_of(const scene *s, const kld_model *ref, const kld_model *cand, kld_precision p,
                      kld_precision q, const float *head, size_t skipped) {
    truth t = {0};
    side a, b;
    size_t n = s->t.vocab;
    kld_engine_options o = options_of(s, p, n);
    run(&a, s, ref, &o);
    o.precision = q;
    run(&b, s, cand, &o);
    for (size_t w = 0; w < KEPT; w++) {
        const kld_records *x = &a.all[SCORED[w]], *y = &b.all[SCORED[w]];
        for (size_t i = 0; i < x->n; i++) {
            double l[MAX_VOCAB], m[MAX_VOCAB];
            if (skipped && SCORED[w] == 4 && i == skipped) continue;
            by_id(x, i, n, l);
            if (head) through(head, y, i, n, m);
            else by_id(y, i, n, m);
            add_position(&t, l, m, n, x->label[i]);
        }
    }
    drop(&a);
    drop(&b);
    return t;
}

static void near(const json_t *r, const char *path, double want, double tol) {
    double got = cmp_real(r, path);
    if (!(fabs(got - want) <= tol * fmax(fabs(want), 1e-3)))
        fail_msg("%s: %.15g instead of %.15g", path, got, want);
}

static void near_truth(const json_t *r, const truth *t, double tol, bool shared) {
    double n = (double)t->n;
    assert_int_equal(cmp_count(r, "candidates.0.positions"), t->n);
    static const char *const kinds[] = {"kl", "reverse_kl", "js", "tv"};
    const double want[] = {t->kl, t->reverse_kl, t->js, t->tv};
    for (size_t k = 0; k < 4; k++) {
        char path[64];
        snprintf(path, sizeof path, "candidates.0.%s.mean", kinds[k]);
        near(r, path, want[k] / n, tol);
        snprintf(path, sizeof path, "candidates.0.%s.lower_bound", kinds[k]);
        near(r, path, want[k] / n, tol);
        snprintf(path, sizeof path, "candidates.0.%s.stderr_sampling", kinds[k]);
        assert_true(cmp_real(r, path) == 0);
        snprintf(path, sizeof path, "candidates.0.%s.exact", kinds[k]);
        assert_true(json_is_true(cmp_get(r, path)));
    }
    near(r, "candidates.0.top_p.jaccard", t->jaccard / n, tol);
    near(r, "candidates.0.top_p.tv", t->nucleus_tv / n, tol);
    near(r, "candidates.0.top_p.mass_on_reference", t->on_ref / n, tol);
    near(r, "candidates.0.top_p.mass_on_candidate", t->on_cand / n, tol);
    assert_int_equal(cmp_count(r, "candidates.0.top_p.undecided"), 0);
    near(r, "candidates.0.top1_agreement", t->top1 / n, 1e-12);
    near(r, "candidates.0.perplexity.ratio", exp(t->nll / n), 1e-6);
    if (shared) near(r, "candidates.0.topk_overlap.10", t->overlap / n, 1e-9);
    assert_true(cmp_real(r, "candidates.0.tail_mass") == 0);
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* A scene, a candidate of the same shape, captures in the scene's directory. */
typedef struct rig {
    scene s;
    tiny other;
    kld_model *cand;
    char ref_path[128], cand_path[128];
    kld_compare_options opt;
} rig;

static void rig_open(rig *g, tiny t, uint64_t seed) {
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

static void rig_close(rig *g) {
    kld_model_free(g->cand);
    tiny_remove(&g->other);
    scene_close(&g->s);
}

static json_t *compare(rig *g) {
    const char *cand[] = {g->cand_path};
    kld_err err = {0};
    json_t *r;
    need(kld_compare_run(g->ref_path, cand, 1, &g->opt, &r, &err), &err, "compare");
    return r;
}

static void fails(rig *g, kld_status want, const char *text) {
    const char *cand[] = {g->cand_path};
    kld_err err = {0};
    json_t *r;
    kld_status st = kld_compare_run(g->ref_path, cand, 1, &g->opt, &r, &err);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    assert_int_equal(st, want);
    assert_null(r);
}

static void own_heads(void **state) {
    (void)state;
    const tiny *const t[] = {&tiny_qwen, &tiny_llama}; /* tied and not */
    for (int k = 0; k < 4; k++) {
        rig g;
        rig_open(&g, *t[k / 2], 7);
        form f = {.precision = (kld_precision)(k % 2), .nan_row = 5};
        write_capture(g.ref_path, &g.s, g.s.m, &f);
        f.nan_row = 0;
        write_capture(g.cand_path, &g.s, g.cand, &f);
        json_t *r = compare(&g);
        truth want = truth_of(&g.s, g.s.m, g.cand, f.precision, f.precision, NULL, 5);
        near_truth(r, &want, 1e-9, false);
        assert_int_equal(cmp_count(r, "candidates.0.nonfinite.excluded"), 1);
        assert_true(cmp_real(r, "candidates.0.exact.check_max") == 0);
        assert_string_equal(json_string_value(cmp_get(r, "candidates.0.exact.head")), "own");
        assert_true(json_is_false(cmp_get(r, "candidates.0.exact.bodies_equal")));
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact.head_only_kl")));
        assert_int_equal(
            strncmp(json_string_value(cmp_get(r, "candidates.0.exact.replayed_on")), "cpu: ", 5),
            0);
        char *table = cmp_table(r, false);
        assert_non_null(strstr(table, "; exact\n"));
        assert_non_null(strstr(table, " ="));
        free(table);
        json_decref(r);
        /* The lists alone give bounds. */
        g.opt.exact_never = true;
        r = compare(&g);
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact")));
        assert_true(json_is_null(cmp_get(r, "candidates.0.kl.mean")));
        assert_true(cmp_real(r, "candidates.0.kl.lower_bound") < want.kl / (double)want.n);
        json_decref(r);
        rig_close(&g);
    }
}

/* A floor capture has another precision, and a candidate may have another hidden size. */
static void unlike_sides(void **state) {
    (void)state;
    rig g;
    tiny t = tiny_qwen;
    t.vocab = tiny_llama.vocab;
    rig_open(&g, t, 7);
    tiny small = tiny_llama;
    kld_model *m;
    kld_err err = {0};
    tiny_write(&small, 3);
    need(kld_model_open(&m, small.dir, &err), &err, "");
    form f = {.precision = KLD_PRECISION_BF16}, q = {.precision = KLD_PRECISION_FP32};
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    write_capture(g.cand_path, &g.s, m, &q);
    fails(&g, KLD_E_INPUT, "engine arithmetic differs");
    g.opt.allow_arithmetic_mismatch = true;
    json_t *r = compare(&g);
    truth want = truth_of(&g.s, g.s.m, m, KLD_PRECISION_BF16, KLD_PRECISION_FP32, NULL, 0);
    near_truth(r, &want, 1e-9, false);
    json_decref(r);
    g.opt.head_shared = true;
    fails(&g, KLD_E_INPUT,
          "hidden states of 24 values; the reference's head, which is to be shared");
    kld_model_free(m);
    tiny_remove(&small);
    rig_close(&g);
}

static void shared_head(void **state) {
    (void)state;
    rig g;
    rig_open(&g, tiny_qwen, 7);
    form f = {.precision = KLD_PRECISION_FP32};
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    f.checkpoint = "/nowhere"; /* its own head is not needed */
    write_capture(g.cand_path, &g.s, g.cand, &f);
    g.opt.head_shared = true;
    json_t *r = compare(&g);
    float *head = recast_values(g.s.m, &g.s.m->global[KLD_SLOT_HEAD]);
    truth want = truth_of(&g.s, g.s.m, g.cand, f.precision, f.precision, head, 0);
    near_truth(r, &want, 1e-5, true);
    assert_string_equal(json_string_value(cmp_get(r, "settings.head")), "shared");
    assert_string_equal(json_string_value(cmp_get(r, "candidates.0.exact.head")), "shared");
    char *table = cmp_table(r, false);
    assert_non_null(strstr(table, "One head for both sides"));
    free(table);
    free(head);
    json_decref(r);
    rig_close(&g);
}

/* A copy whose head alone is another. */
static bool other_head(built *b, const kld_weight_at *at, void *ctx) {
    const kld_model *m = ctx;
    if (at->layer || at->slot != KLD_SLOT_HEAD) return false;
    float *v = recast_values(m, at->w);
    for (size_t i = 0; i < at->w->rows * at->w->cols; i++) v[i] *= 1 + 0.1f * (float)(i % 3);
    recast_tensor(b, at->w, "weight", "F32", at->w->rows, at->w->cols, v,
                  at->w->rows * at->w->cols * sizeof *v);
    free(v);
    return true;
}

static void equal_bodies(void **state) {
    (void)state;
    rig g;
    built b;
    rig_open(&g, tiny_qwen, 7);
    kld_model *m = recast(&b, g.s.m, other_head, g.s.m);
    form f = {.precision = KLD_PRECISION_BF16};
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    write_capture(g.cand_path, &g.s, m, &f);
    json_t *r = compare(&g);
    assert_true(json_is_true(cmp_get(r, "candidates.0.exact.bodies_equal")));
    assert_true(cmp_real(r, "candidates.0.kl.mean") > 1e-3);
    assert_true(cmp_real(r, "candidates.0.exact.head_only_kl") ==
                cmp_real(r, "candidates.0.kl.mean"));
    json_decref(r);
    g.opt.head_shared = true;
    r = compare(&g);
    assert_true(json_is_true(cmp_get(r, "candidates.0.exact.bodies_equal")));
    assert_true(json_is_null(cmp_get(r, "candidates.0.exact.head_only_kl")));
    assert_true(cmp_real(r, "candidates.0.kl.mean") == 0);
    assert_true(cmp_real(r, "candidates.0.top1_agreement") == 1);
    json_decref(r);
    kld_model_free(m);
    build_end(&b);
    rig_close(&g);
}

/* ---- heads --------------------------------------------------------------------------------- */

static void found(void **state) {
    (void)state;
    rig g;
    kld_err err = {0};
    kld_digest d;
    char *path, hex[KLD_SHA256_HEX], text[64];
    rig_open(&g, tiny_qwen, 7);
    form f = {.precision = KLD_PRECISION_BF16, .checkpoint = "/nowhere"};
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    write_capture(g.cand_path, &g.s, g.cand, &f);
    need(kld_head_digest(g.s.m, &d, &err), &err, "");
    snprintf(text, sizeof text, "the head %.12s of 'no/such' was not found",
             kld_digest_hex(&d, hex));
    fails(&g, KLD_E_INPUT, text);
    fails(&g, KLD_E_INPUT, "/nowhere (is not there)");
    fails(&g, KLD_E_INPUT, "--exact never");
    /* Of two places one is right for each side, and the others are said. */
    const char *given[] = {g.cand->ckpt.dir, g.s.m->ckpt.dir, "/not/here"};
    g.opt.checkpoint = given;
    g.opt.n_checkpoints = 1;
    fails(&g, KLD_E_INPUT, "holds the head");
    g.opt.n_checkpoints = 3;
    json_t *r = compare(&g), *s;
    /* A kept head beside the capture, and one that is given. */
    need(kld_head_save(g.s.m, &d, g.s.t.dir, &path, &err), &err, "");
    g.opt.n_checkpoints = 1;
    s = compare(&g);
    assert_true(json_equal(r, s));
    json_decref(s);
    char moved[128];
    snprintf(moved, sizeof moved, "%s/kept.safetensors", g.s.t.dir);
    assert_int_equal(rename(path, moved), 0);
    given[1] = moved;
    g.opt.n_checkpoints = 2;
    s = compare(&g);
    assert_true(json_equal(r, s));
    json_decref(s);
    json_decref(r);
    /* What lies there by its name and is not it is passed over. */
    put_file(g.s.t.dir, strrchr(path, '/') + 1, "nonsense", 8);
    g.opt.n_checkpoints = 1;
    fails(&g, KLD_E_INPUT, strrchr(path, '/') + 1);
    kld_free(path);
    rig_close(&g);
}

/* Headers that are wrong about the head. */
static void wrong(void **state) {
    (void)state;
    rig g;
    kld_err err = {0};
    kld_digest d;
    double cap = 20;
    rig_open(&g, tiny_qwen, 7);
    form f = {.precision = KLD_PRECISION_FP32}, bad = f;
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    need(kld_head_digest(g.s.m, &d, &err), &err, "");
    bad.head = &d;
    bad.checkpoint = g.s.m->ckpt.dir;
    write_capture(g.cand_path, &g.s, g.cand, &bad);
    fails(&g, KLD_E_INPUT,
          "cand.zst: the head does not reproduce the capture: window 0, position 3");
    /* As bodies alone it may be what is meant. */
    g.opt.head_shared = true;
    json_decref(compare(&g));
    g.opt.head_shared = false;
    bad = f;
    bad.logit_cap = &cap;
    write_capture(g.cand_path, &g.s, g.cand, &bad);
    fails(&g, KLD_E_INPUT, "its logits were capped at 20");
    /* Differences of rounding are fine where another back end took the sums, and told. */
    bad = f;
    bad.shift = 2e-4;
    write_capture(g.cand_path, &g.s, g.cand, &bad);
    fails(&g, KLD_E_INPUT, "(1e-05 apart are allowed here)");
    bad.arithmetic = "another";
    write_capture(g.cand_path, &g.s, g.cand, &bad);
    g.opt.allow_arithmetic_mismatch = true;
    json_t *r = compare(&g);
    near(r, "candidates.0.exact.check_max", 2e-4, 0.1);
    json_decref(r);
    bad.shift = 2e-3;
    write_capture(g.cand_path, &g.s, g.cand, &bad);
    fails(&g, KLD_E_INPUT, "(0.001 apart are allowed here)");
    rig_close(&g);
}

static void one_side_only(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        rig g;
        rig_open(&g, tiny_qwen, 7);
        form f = {.precision = KLD_PRECISION_BF16}, plain = f;
        plain.no_hidden = true;
        write_capture(g.ref_path, &g.s, g.s.m, k ? &plain : &f);
        write_capture(g.cand_path, &g.s, g.cand, k ? &f : &plain);
        json_t *r = compare(&g);
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact")));
        assert_true(cmp_warned(r, "hidden_missing"));
        json_decref(r);
        g.opt.head_shared = true;
        fails(&g, KLD_E_USAGE, k ? "ref.zst keeps no hidden states" : "cand.zst keeps no hidden");
        g.opt.exact_never = true;
        fails(&g, KLD_E_USAGE, "exclude each other");
        g.opt.head_shared = false;
        r = compare(&g);
        assert_false(cmp_warned(r, "hidden_missing"));
        json_decref(r);
        rig_close(&g);
    }
}

static void memory(void **state) {
    (void)state;
    rig g;
    rig_open(&g, tiny_qwen, 7);
    form f = {.precision = KLD_PRECISION_BF16};
    write_capture(g.ref_path, &g.s, g.s.m, &f);
    write_capture(g.cand_path, &g.s, g.cand, &f);
    const char *cand[] = {g.cand_path};
    for (int shared = 0; shared < 2; shared++) {
        kld_status st = KLD_E_NOMEM;
        size_t n = 0;
        g.opt.head_shared = shared;
        while (st != KLD_OK) {
            json_t *r;
            kld_err err = {0};
            kld_mem_fail_after(n += 3);
            st = kld_compare_run(g.ref_path, cand, 1, &g.opt, &r, &err);
            kld_mem_fail_after(0);
            json_decref(r);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, err.text);
        }
        assert_true(n > 100);
    }
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_heads),     cmocka_unit_test(unlike_sides),
        cmocka_unit_test(shared_head),   cmocka_unit_test(equal_bodies),
        cmocka_unit_test(found),         cmocka_unit_test(wrong),
        cmocka_unit_test(one_side_only), cmocka_unit_test(memory),
    };
    kld_log_set_level(KLD_LOG_QUIET);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
