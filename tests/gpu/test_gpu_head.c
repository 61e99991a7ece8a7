/* Head statistics: CUDA against the CPU's. */
#include "tests/gpu/gpukit.h"

#include <math.h>
#include <stdlib.h>

/* ZERO: the last listed logits lie about 0, where floats are densest, so that a threshold given by
 * the upper half of a float lets many more than top_k through. */
enum kind { NORMAL, TIED, FLAT, RISING, PEAKED, HOLES, ZERO, KINDS };
static const char *const names[] = {"normal", "tied", "flat", "rising", "peaked", "holes", "zero"};

typedef struct rig {
    twin t;
    both l;
    kld_head_args a;
    kld_records rec[2]; /* CPU, CUDA */
    size_t bad[2], first[2];
    uint32_t *labels, *count, *ids, *tails;
} rig;

static void fill(both *l, enum kind kind, uint64_t *seed) {
    for (size_t r = 0; r < l->c.rows; r++) {
        float *p = l->host + r * l->c.ld;
        for (size_t c = 0; c < l->c.cols; c++) {
            double x = 2.7 * rnd_normal(seed);
            switch (kind) {
            case TIED: x = floor(4 * x) / 4; break;
            case FLAT: x = 1.5; break;
            case RISING: x = (double)c * 20 / (double)l->c.cols; break;
            case PEAKED: x = c == (r * 977) % l->c.cols ? 30 : x / 3 - 20; break;
            case HOLES: x = c % 3 ? x : -INFINITY; break;
            case ZERO: x -= 6.25 + 0.25 * (double)(r % 8); break;
            default: break;
            }
            p[c] = (float)x;
        }
    }
}

static void rig_open(rig *g, size_t rows, size_t vocab, size_t pad, kld_elem elem, size_t k,
                     size_t m, size_t ref_ld, size_t ref_m, uint64_t *seed) {
    memset(g, 0, sizeof *g);
    const kld_device_spec spec = {.precision = elem == KLD_ELEM_ACT ? KLD_PRECISION_BF16
                                                                    : KLD_PRECISION_FP32,
                                  .max_rows = 1024,
                                  .max_keys = 64,
                                  .kv_cols = 1,
                                  .head_rows = rows,
                                  .vocab = vocab,
                                  .top_k = k,
                                  .tail_samples = m,
                                  .ref_ld = ref_ld,
                                  .ref_m = ref_m};
    twin_open(&g->t, &spec);
    g->l = both_random(&g->t, rows, vocab, vocab + pad, elem, 1, seed);
    g->labels = calloc(rows, 4);
    g->count = calloc(rows, 4);
    g->ids = calloc(rows * (ref_ld + 1), 4);
    g->tails = calloc(rows * (ref_m + 1), 4);
    assert_true(g->labels && g->count && g->ids && g->tails);
    for (size_t r = 0; r < rows; r++) {
        g->labels[r] = (uint32_t)(rnd(seed) * (double)vocab);
        g->count[r] = (uint32_t)(rnd(seed) * (double)(ref_ld + 1));
    }
    for (size_t i = 0; i < rows * ref_ld; i++)
        g->ids[i] = (uint32_t)(rnd(seed) * (double)vocab * 1.1); /* some beyond the vocabulary */
    for (size_t i = 0; i < rows * ref_m; i++)
        g->tails[i] = i % 5 ? (uint32_t)(rnd(seed) * (double)vocab) : UINT32_MAX;
    g->a = (kld_head_args){.top_k = k, .min_k = 1, .tail_samples = m, .seed = 11, .window = 5};
    g->a.labels = g->labels;
    g->a.pos = 77;
    if (ref_ld) {
        g->a.ref_count = g->count;
        g->a.ref_ids = g->ids;
        g->a.ref_ids_ld = ref_ld;
    }
    if (ref_m) g->a.ref_tail_ids = g->tails;
    g->a.ref_m = ref_m;
    kld_err err = {0};
    for (int i = 0; i < 2; i++)
        need(kld_records_alloc(&g->rec[i], rows, k, m, ref_ld, ref_m, &err), &err, "records");
}

static void rig_run(rig *g) {
    kld_err err = {0};
    twin *t = &g->t;
    g->first[0] = g->first[1] = SIZE_MAX;
    need(t->cpu->head_begin(t->c, g->l.c, &g->a, &err), &err, "cpu");
    need(t->cpu->head_end(t->c, &g->rec[0], 0, &g->bad[0], &g->first[0], &err), &err, "cpu");
    need(t->gpu->head_begin(t->g, g->l.g, &g->a, &err), &err, "cuda");
    need(t->gpu->head_end(t->g, &g->rec[1], 0, &g->bad[1], &g->first[1], &err), &err, "cuda");
}

static void rig_close(rig *g) {
    both_free(&g->t, &g->l);
    twin_close(&g->t);
    kld_records_free(&g->rec[0]);
    kld_records_free(&g->rec[1]);
    free(g->labels);
    free(g->count);
    free(g->ids);
    free(g->tails);
}

static void near(double got, double want, double tol, const char *what, size_t r, size_t i) {
    if (got == want || (isnan(got) && isnan(want))) return;
    if (!(fabs(got - want) <= tol))
        fail_msg("row %zu, %s %zu: %.12g instead of %.12g", r, what, i, got, want);
}

/* Draws differ where the running mass comes close to the target; they must be of the tail. */
static size_t check_draws(const rig *g, size_t r) {
    const kld_records *a = &g->rec[0], *b = &g->rec[1];
    size_t other = 0;
    for (size_t d = 0; d < a->m; d++) {
        uint32_t id = b->tail_ids[r * b->m + d];
        if (a->tail_ids[r * a->m + d] == UINT32_MAX) {
            assert_int_equal(id, UINT32_MAX);
            continue;
        }
        assert_true(id < g->l.c.cols);
        double l = (double)g->l.host[r * g->l.c.ld + id];
        near(b->tail_lp[r * b->m + d], l - (double)a->lse[r], 4e-6, "draw", r, d);
        for (size_t i = 0; i < b->count[r]; i++) assert_int_not_equal(b->ids[r * b->k_ld + i], id);
        other += id != a->tail_ids[r * a->m + d];
    }
    return other;
}

static size_t check_row(const rig *g, size_t r) {
    const kld_records *a = &g->rec[0], *b = &g->rec[1];
    near((double)b->lse[r], (double)a->lse[r], 2e-6, "lse", r, 0);
    near((double)b->entropy[r], (double)a->entropy[r], 2e-6 + 1e-6 * (double)a->entropy[r],
         "entropy", r, 0);
    near((double)b->label_lp[r], (double)a->label_lp[r], 4e-6, "label", r, 0);
    assert_int_equal(a->label[r], b->label[r]);
    size_t n = a->count[r];
    if (b->count[r] != n) { /* the mass at the cut is the target, to rounding */
        fail_msg("row %zu: %u ids instead of %zu; tail %.9g and %.9g", r, b->count[r], n,
                 (double)b->tail_mass[r], (double)a->tail_mass[r]);
    }
    if (memcmp(a->ids + r * a->k_ld, b->ids + r * b->k_ld, n * 4) != 0)
        fail_msg("row %zu: other ids", r);
    for (size_t i = 0; i < n; i++)
        near(b->lp[r * b->k_ld + i], a->lp[r * a->k_ld + i], 1e-6, "lp", r, i);
    near((double)b->tail_mass[r], (double)a->tail_mass[r], 3e-6 * (double)a->tail_mass[r], "tail",
         r, 0);
    for (size_t i = 0; i < a->ref_ld; i++)
        near(b->ref_lp[r * b->ref_ld + i], a->ref_lp[r * a->ref_ld + i], 1e-6, "ref", r, i);
    for (size_t i = 0; i < a->ref_m; i++)
        near(b->ref_tail_lp[r * b->ref_m + i], a->ref_tail_lp[r * a->ref_m + i], 1e-6, "ref tail",
             r, i);
    return check_draws(g, r);
}

static void rows_case(size_t rows, size_t vocab, size_t pad, kld_elem elem, size_t k, size_t m,
                      double tail, size_t min_k, enum kind kind, uint64_t *seed) {
    rig g;
    rig_open(&g, rows, vocab, pad, elem, k, m, 9, 5, seed);
    g.a.tail_mass = tail;
    g.a.min_k = min_k < k ? min_k : k;
    fill(&g.l, kind, seed);
    both_push(&g.t, &g.l);
    rig_run(&g);
    size_t other = 0;
    assert_int_equal(g.bad[0], g.bad[1]);
    for (size_t r = 0; r < rows; r++) other += check_row(&g, r);
    if (other * 200 > rows * m + 400)
        fail_msg("%s: %zu of %zu draws differ", names[kind], other, rows * m);
    kld_records first = g.rec[1]; /* again: the same bytes */
    kld_err err = {0};
    need(kld_records_alloc(&g.rec[1], rows, k, m, 9, 5, &err), &err, "records");
    g.l.c.rows = rows;
    rig_run(&g);
    assert_memory_equal(first.ids, g.rec[1].ids, rows * k * 4);
    assert_memory_equal(first.lp, g.rec[1].lp, rows * k * 8);
    assert_memory_equal(first.lse, g.rec[1].lse, rows * 4);
    assert_memory_equal(first.entropy, g.rec[1].entropy, rows * 4);
    assert_memory_equal(first.tail_mass, g.rec[1].tail_mass, rows * 4);
    if (m) assert_memory_equal(first.tail_ids, g.rec[1].tail_ids, rows * m * 4);
    kld_records_free(&first);
    rig_close(&g);
}

static void kinds(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int kind = 0; kind < KINDS; kind++) {
        enum kind q = (enum kind)kind;
        print_message("%s\n", names[kind]);
        const size_t wide = gpu_size(151936, 16384), many = gpu_size(24, 3);
        kld_elem e = KLD_ELEM_ACT;
        rows_case(many, wide, 0, e, 256, 16, 1e-3, 10, q, &seed);
        rows_case(5, 20011, 2, e, 64, 3, 1e-2, 1, q, &seed);
        e = KLD_ELEM_F32;
        rows_case(many, wide, 0, e, 256, 16, 1e-3, 10, q, &seed);
        rows_case(5, gpu_size(154880, 16388), 4, e, 256, 16, 0, 10, q, &seed);
        rows_case(5, 20011, 2, e, 64, 3, 1e-2, 1, q, &seed); /* rows are not aligned */
        rows_case(5, 50257, 3, e, 10, 33, 0.5, 1, q, &seed);
        rows_case(3, 32768, 0, e, 1024, 4, 1e-4, 10, q, &seed);
        rows_case(2, 40000, 0, e, 4096, 4, 1e-6, 10, q, &seed);
        rows_case(7, 1000, 0, e, 256, 5, 1e-3, 10, q, &seed);
        rows_case(3, 31, 1, e, 40, 2, 1e-3, 40, q, &seed);
        rows_case(2, 1, 0, e, 4, 2, 1e-3, 1, q, &seed);
        rows_case(gpu_size(300, 20), 4097, 0, e, 32, 1, 1e-2, 3, q, &seed);
    }
}

static void not_finite(void **state) {
    (void)state;
    static const size_t vocabs[] = {50, 151936};
    uint64_t seed = 2;
    for (int v = 0; v < 2; v++) {
        rig g;
        rig_open(&g, 6, vocabs[v], 0, KLD_ELEM_F32, 16, 3, 4, 4, &seed);
        fill(&g.l, NORMAL, &seed);
        g.l.host[1 * g.l.c.ld + 17] = NAN;
        g.l.host[2 * g.l.c.ld + vocabs[v] - 1] = INFINITY;
        for (size_t i = 0; i < vocabs[v]; i++) g.l.host[3 * g.l.c.ld + i] = -INFINITY;
        for (size_t i = 0; i < vocabs[v]; i++)
            if (i != 40) g.l.host[4 * g.l.c.ld + i] = -INFINITY;
        both_push(&g.t, &g.l);
        rig_run(&g);
        assert_int_equal(g.bad[1], 3);
        assert_int_equal(g.first[1], 1);
        for (size_t r = 0; r < 6; r++) (void)check_row(&g, r);
        rig_close(&g);
    }
}

/* Two calls under way, ended in order. */
static void two_slots(void **state) {
    (void)state;
    uint64_t seed = 3;
    rig g;
    kld_err err = {0};
    rig_open(&g, 8, 30000, 0, KLD_ELEM_F32, 64, 4, 0, 0, &seed);
    fill(&g.l, NORMAL, &seed);
    both_push(&g.t, &g.l);
    rig_run(&g);
    const kld_backend *be = g.t.gpu;
    kld_records two;
    need(kld_records_alloc(&two, 8, 64, 4, 0, 0, &err), &err, "records");
    for (int i = 0; i < 2; i++) {
        kld_view half = g.l.g;
        kld_head_args a = g.a;
        half.p = (float *)half.p + (size_t)i * 4 * half.ld;
        half.rows = 4;
        a.labels += (size_t)4 * (size_t)i;
        a.pos += (size_t)4 * (size_t)i;
        need(be->head_begin(g.t.g, half, &a, &err), &err, "begin");
    }
    assert_int_equal(be->head_begin(g.t.g, g.l.g, &g.a, &err), KLD_E_INTERNAL);
    for (size_t i = 0; i < 2; i++)
        need(be->head_end(g.t.g, &two, 4 * i, &g.bad[1], &g.first[1], &err), &err, "end");
    assert_memory_equal(two.ids, g.rec[1].ids, (size_t)8 * 64 * 4);
    assert_memory_equal(two.lp, g.rec[1].lp, (size_t)8 * 64 * 8);
    assert_memory_equal(two.tail_ids, g.rec[1].tail_ids, (size_t)8 * 4 * 4);
    assert_memory_equal(two.label, g.rec[1].label, (size_t)8 * 4);
    kld_records_free(&two);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(two_slots),
    };
    return cmocka_run_group_tests_name("gpu head", tests, NULL, NULL);
}
