/* Heads run again over kept hidden states: bit for bit what the engine said, in every format, and
 * pairs of them against sums taken another way. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/head.h"
#include "logits/replay.h"
#include "tests/unit/recastkit.h"

#include <math.h>
#include <stdlib.h>

/* ---- a run that keeps everything ----------------------------------------------------------- */

typedef struct kept {
    kld_records rec[WINDOWS];
    size_t n;
} kept;

static kld_status on_records(void *ctx, size_t i, kld_records *r, kld_err *err) {
    kept *k = ctx;
    (void)err;
    assert_int_equal(i, k->n);
    k->rec[k->n++] = *r;
    memset(r, 0, sizeof *r);
    return KLD_OK;
}

/* Every id is listed, so that records hold every logit. */
static kld_engine_options whole(size_t vocab, kld_precision p) {
    kld_engine_options o = default_options(vocab);
    o.precision = p;
    o.top_k = o.min_k = vocab;
    o.tail_mass = 0;
    o.tail_samples = 0;
    o.hidden = true;
    return o;
}

static void run(kept *k, const kld_model *m, const kld_seq *seqs, size_t n,
                const kld_engine_options *o) {
    kld_err err = {0};
    kld_engine_stats stats;
    kld_sink sink = {.ctx = k, .records = on_records};
    *k = (kept){.n = 0};
    need(kld_engine_run(m, kld_backend_cpu(), seqs, n, o, &sink, &stats, &err), &err, "run");
}

static void drop(kept *k) {
    for (size_t i = 0; i < k->n; i++) kld_records_free(&k->rec[i]);
}

static kld_replay *replay(const kld_replay_head *head, size_t n, size_t vocab, size_t top_k) {
    kld_replay_options o = {.backend = kld_backend_cpu(), .vocab = vocab, .top_k = top_k};
    kld_err err = {0};
    kld_replay *r;
    need(kld_replay_open(&r, &o, head, n, &err), &err, "replay");
    return r;
}

static bool same_doubles(const double *a, const double *b, size_t n) {
    return !memcmp(a, b, n * sizeof *a);
}

/* Records that a head makes of the hidden states, against those of the run. */
static void same_window(kld_replay *r, const kld_records *live, size_t chunk, size_t vocab,
                        const char *what) {
    kld_records again;
    kld_err err = {0};
    kld_replay_rows rows = {0, live->hidden, chunk};
    need(kld_records_alloc(&again, live->n, vocab, 0, 0, 0, &err), &err, what);
    need(kld_replay_stats(r, &rows, live->n, live->label, &again, &err), &err, what);
    size_t n = live->n * sizeof(float);
    bool same = !memcmp(live->lse, again.lse, n) && !memcmp(live->entropy, again.entropy, n) &&
                !memcmp(live->label_lp, again.label_lp, n) &&
                !memcmp(live->count, again.count, live->n * sizeof *live->count) &&
                !memcmp(live->ids, again.ids, live->n * vocab * sizeof *live->ids) &&
                same_doubles(live->lp, again.lp, live->n * vocab);
    if (!same) fail_msg("%s: replayed records differ from the live ones", what);
    kld_records_free(&again);
}

/* The model's head, from itself and, when it can be, from a file of its own. */
static void same_head(const kld_model *m, const kept *k, const kld_engine_options *o,
                      const char *what) {
    kld_replay_head head = {m, o->precision, o->activations};
    kld_replay *r = replay(&head, 1, o->vocab, o->vocab);
    for (size_t i = 0; i < k->n; i++)
        if (k->rec[i].n) same_window(r, &k->rec[i], o->chunk, o->vocab, what);
    kld_replay_close(r);
    if (m->global[KLD_SLOT_HEAD].format > KLD_FMT_F32) return;
    built out;
    kld_err err = {0};
    kld_digest d;
    kld_model *alone;
    char *path;
    build_begin(&out);
    need(kld_head_digest(m, &d, &err), &err, what);
    need(kld_head_save(m, &d, out.dir, &path, &err), &err, what);
    need(kld_head_open(&alone, path, &d, &err), &err, what);
    head.model = alone;
    r = replay(&head, 1, o->vocab, o->vocab);
    for (size_t i = 0; i < k->n; i++)
        if (k->rec[i].n) same_window(r, &k->rec[i], o->chunk, o->vocab, what);
    kld_replay_close(r);
    kld_model_free(alone);
    kld_free(path);
    build_end(&out);
}

static void same_scene(const scene *s, const kld_model *m, const kld_engine_options *o,
                       const char *what) {
    kept k;
    run(&k, m, s->seqs, WINDOWS, o);
    same_head(m, &k, o, what);
    drop(&k);
}

/* ---- bit for bit --------------------------------------------------------------------------- */

static void shapes(void **state) {
    (void)state;
    const tiny *const t[] = {&tiny_llama, &tiny_qwen, &tiny_moe};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        scene s;
        scene_open(&s, *t[i]);
        for (int p = 0; p < 2; p++) {
            kld_engine_options o = whole(s.t.vocab, (kld_precision)p);
            same_scene(&s, s.m, &o, "scene");
            o.chunk = 128;
            same_scene(&s, s.m, &o, "scene in spans of 128");
            o.vocab -= 3; /* padding rows of a head */
            o.top_k = o.min_k = o.vocab;
            same_scene(&s, s.m, &o, "scene with padding");
            s.m->config.logit_cap = 2.5;
            same_scene(&s, s.m, &o, "scene with a cap");
            s.m->config.logit_cap = 0;
        }
        scene_close(&s);
    }
}

/* A head with a bias, which no family has yet. */
static void bias(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_qwen);
    kld_tensor b = *s.m->global[KLD_SLOT_EMBED].data;
    b.rank = 1;
    b.shape[0] = s.t.vocab;
    b.bytes = s.t.vocab * 4;
    s.m->global[KLD_SLOT_HEAD].bias = &b;
    for (int p = 0; p < 2; p++) {
        kld_engine_options o = whole(s.t.vocab, (kld_precision)p);
        same_scene(&s, s.m, &o, "bias");
    }
    scene_close(&s);
}

/* Quantized heads: embeddings in every form, tied. */
static void quantized(void **state) {
    (void)state;
    tiny t = tiny_blocks;
    t.tied = true;
    t.experts = 0;
    scene s;
    scene_open(&s, t);
    for (size_t i = 0; i < RECAST_EMBEDDINGS; i++) {
        built b;
        kld_model *m = recast(&b, s.m, recast_embedding, &i);
        for (int p = 0; p < 2; p++) {
            kld_engine_options o = whole(s.t.vocab, (kld_precision)p);
            same_scene(&s, m, &o, recast_embeddings[i]);
        }
        kld_model_free(m);
        build_end(&b);
    }
    scene_close(&s);
}

/* Heads whose inputs are quantized, as declared and not. */
static void inputs(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_blocks);
    kept plain;
    kld_engine_options o = whole(s.t.vocab, KLD_PRECISION_BF16);
    run(&plain, s.m, s.seqs, WINDOWS, &o);
    for (size_t i = 0; i < SAMPLE_INPUTS; i++) {
        kept k;
        s.m->global[KLD_SLOT_HEAD].act = sample_inputs[i];
        s.m->global[KLD_SLOT_HEAD].act.scale *= 0.1f;
        o.activations = KLD_ACTIVATIONS_AS_DECLARED;
        run(&k, s.m, s.seqs, WINDOWS, &o);
        assert_memory_equal(k.rec[4].hidden, plain.rec[4].hidden,
                            k.rec[4].n * k.rec[4].hidden_cols * 2);
        assert_memory_not_equal(k.rec[4].lse, plain.rec[4].lse, k.rec[4].n * sizeof(float));
        kld_replay_head head = {s.m, o.precision, o.activations};
        kld_replay *r = replay(&head, 1, o.vocab, o.vocab);
        same_window(r, &k.rec[4], 0, o.vocab, "declared");
        kld_replay_close(r);
        head.activations = KLD_ACTIVATIONS_WEIGHTS_ONLY;
        r = replay(&head, 1, o.vocab, o.vocab);
        same_window(r, &plain.rec[4], 0, o.vocab, "weights only");
        kld_replay_close(r);
        drop(&k);
    }
    drop(&plain);
    scene_close(&s);
}

/* The families of the golden models; Gemma 3 here has a cap. */
static void families(void **state) {
    (void)state;
    static const char root[] = "tests/golden/models";
    char **names;
    size_t n, capped = 0;
    if (!kld_path_is_dir(root)) skip();
    assert_int_equal(kld_list_dir(root, &names, &n, NULL), KLD_OK);
    for (size_t i = 0; i < n; i++) {
        char dir[512];
        kld_model *m;
        kld_err err = {0};
        uint32_t ids[40];
        snprintf(dir, sizeof dir, "%s/%s", root, names[i]);
        need(kld_model_open(&m, dir, &err), &err, dir);
        for (size_t j = 0; j < 40; j++) ids[j] = (uint32_t)(j * 7 % m->config.vocab);
        kld_seq seq = {ids, num_min(40, m->config.dense_window), 3};
        for (int p = 0; p < 2; p++) {
            kept k;
            kld_engine_options o = whole(m->config.vocab, (kld_precision)p);
            run(&k, m, &seq, 1, &o);
            same_head(m, &k, &o, dir);
            drop(&k);
        }
        capped += m->config.logit_cap > 0;
        kld_model_free(m);
    }
    assert_true(capped > 0);
    kld_names_free(names, n);
}

/* ---- pairs --------------------------------------------------------------------------------- */

/* Log-probabilities in order of id, from records that list all; what they were normalised by has
 * the error of an FP32 exponential. */
static void by_id(const kld_records *r, size_t row, size_t vocab, double *out) {
    double z = 0;
    for (size_t j = 0; j < vocab; j++) z += exp(r->lp[row * r->k_ld + j]);
    for (size_t j = 0; j < vocab; j++)
        out[r->ids[row * r->k_ld + j]] = r->lp[row * r->k_ld + j] - log(z);
}

static void near(double got, double want, const char *what, size_t row) {
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s, row %zu: %.12g instead of %.12g", what, row, got, want);
}

static void check_pairs(const kld_records *p, const kld_records *q, const kld_pair_row *got,
                        size_t vocab) {
    double *a = malloc(vocab * sizeof *a), *b = malloc(vocab * sizeof *b);
    assert_true(a && b);
    for (size_t i = 0; i < p->n; i++) {
        double kl = 0, tv = 0, reverse = 0;
        by_id(p, i, vocab, a);
        by_id(q, i, vocab, b);
        for (size_t j = 0; j < vocab; j++) {
            kl += exp(a[j]) * (a[j] - b[j]);
            reverse += exp(b[j]) * (b[j] - a[j]);
            tv += fabs(exp(a[j]) - exp(b[j])) / 2;
        }
        near(got[i].kl, kl, "kl", i);
        near(got[i].reverse_kl, reverse, "reverse kl", i);
        near(got[i].tv, tv, "tv", i);
        assert_int_equal(got[i].top1_p, p->ids[i * vocab]);
        assert_int_equal(got[i].top1_q, q->ids[i * vocab]);
    }
    free(a);
    free(b);
}

static void pairs(void **state) {
    (void)state;
    scene s, t;
    scene_open(&s, tiny_llama);
    tiny other = tiny_qwen; /* another hidden size */
    other.vocab = s.t.vocab;
    scene_open(&t, other);
    kld_model *model[2] = {s.m, t.m};
    kept run_of[2][2]; /* model, precision */
    kld_err err = {0};
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 2; p++) {
            kld_engine_options o = whole(s.t.vocab, (kld_precision)p);
            run(&run_of[m][p], model[m], s.seqs, WINDOWS, &o);
        }
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++) {
            /* The precisions of the two sides; two of them are two devices. */
            kld_replay_head head[2] = {{s.m, (kld_precision)a, KLD_ACTIVATIONS_WEIGHTS_ONLY},
                                       {t.m, (kld_precision)b, KLD_ACTIVATIONS_WEIGHTS_ONLY}};
            const kld_records *p = &run_of[0][a].rec[4], *q = &run_of[1][b].rec[4];
            kld_replay_rows x = {0, p->hidden, 0}, y = {1, q->hidden, 0};
            kld_replay *r = replay(head, 2, s.t.vocab, 1);
            kld_pair_row *out = malloc(p->n * sizeof *out), *back = malloc(p->n * sizeof *back);
            assert_true(out && back);
            need(kld_replay_pair(r, &x, &y, p->n, 0.95, out, &err), &err, "pair");
            check_pairs(p, q, out, s.t.vocab);
            need(kld_replay_pair(r, &y, &x, p->n, 0.95, back, &err), &err, "pair");
            check_pairs(q, p, back, s.t.vocab);
            /* Both sides through one head. */
            need(kld_replay_pair(r, &x, &x, p->n, 0.95, out, &err), &err, "pair");
            for (size_t i = 0; i < p->n; i++) assert_true(out[i].kl == 0 && out[i].tv == 0);
            free(out);
            free(back);
            kld_replay_close(r);
        }
    for (int m = 0; m < 4; m++) drop(&run_of[m / 2][m % 2]);
    scene_close(&s);
    scene_close(&t);
}

/* ---- failures ------------------------------------------------------------------------------ */

static void failures(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_replay_options o = {.backend = kld_backend_cpu(), .vocab = s.t.vocab + 1, .top_k = 1};
    kld_replay_head head[2] = {{s.m, KLD_PRECISION_BF16, KLD_ACTIVATIONS_WEIGHTS_ONLY},
                               {s.m, KLD_PRECISION_FP32, KLD_ACTIVATIONS_WEIGHTS_ONLY}};
    kld_err err = {0};
    kld_replay *r;
    assert_int_equal(kld_replay_open(&r, &o, head, 2, &err), KLD_E_INPUT);
    assert_null(r);
    assert_non_null(strstr(err.text, "the head has 300 rows; the softmax runs over 301"));
    o.vocab--;
    kld_status st = KLD_E_NOMEM;
    size_t n = 0;
    while (st != KLD_OK) {
        kld_mem_fail_after(++n);
        st = kld_replay_open(&r, &o, head, 2, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) break;
        assert_int_equal(st, KLD_E_NOMEM);
        assert_null(r);
    }
    assert_true(n > 10);
    kld_replay_close(r);
    kld_replay_close(NULL);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),   cmocka_unit_test(bias),     cmocka_unit_test(quantized),
        cmocka_unit_test(inputs),   cmocka_unit_test(families), cmocka_unit_test(pairs),
        cmocka_unit_test(failures),
    };
    kld_log_set_level(KLD_LOG_QUIET);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
