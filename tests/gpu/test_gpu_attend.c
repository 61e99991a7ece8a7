/* Attention: CUDA, fused and general, against the CPU's. */
#include "tests/gpu/gpukit.h"

#include <math.h>
#include <stdlib.h>

typedef struct shape {
    size_t heads, kv_heads, dim, vdim, window;
    float softcap;
    bool sinks;
    size_t pad; /* columns beyond the rows' own */
} shape;

/* Windows of these lengths, one after the other; the last one is a later piece of a window of
 * which `before` keys were there already. */
enum { MANY = 7, BEFORE = 512 };
static const size_t lengths[MANY] = {1, 17, 255, 256, 257, 700, 300};

typedef struct rig {
    both q, k, v, y;
    float *sinks;
    void *sinks_g;
    kld_span span[32];
    kld_batch b;
    kld_attend_args c, g; /* arguments for either side */
} rig;

static void rig_open(twin *t, rig *r, const shape *s, uint64_t *seed) {
    memset(r, 0, sizeof *r);
    size_t rows = 0, keys = 3;
    r->b.span = r->span;
    for (size_t w = 0; w < MANY; w++) {
        size_t pos0 = w == MANY - 1 ? BEFORE : 0;
        for (size_t p = 0; p < lengths[w]; p += KLD_CHUNK) {
            size_t n = lengths[w] - p < KLD_CHUNK ? lengths[w] - p : KLD_CHUNK;
            r->span[r->b.n++] = (kld_span){rows + p, n, pos0 + p, keys};
        }
        rows += lengths[w];
        keys += pos0 + lengths[w];
    }
    r->b.rows = rows;
    size_t qc = s->heads * s->dim, kc = s->kv_heads * s->dim, vc = s->kv_heads * s->vdim;
    size_t yc = s->heads * s->vdim;
    r->q = both_random(t, rows, qc, qc + s->pad, KLD_ELEM_ACT, 1, seed);
    r->k = both_random(t, keys, kc, kc + s->pad, KLD_ELEM_ACT, 1, seed);
    r->v = both_random(t, keys, vc, vc + s->pad, KLD_ELEM_ACT, 1, seed);
    r->y = both_random(t, rows, yc, yc + s->pad, KLD_ELEM_ACT, 1, seed);
    r->c = (kld_attend_args){.heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->dim};
    r->c.value_dim = s->vdim;
    r->c.scale = 0.7f / sqrtf((float)s->dim);
    r->c.window = s->window;
    r->c.softcap = s->softcap;
    r->g = r->c;
    if (!s->sinks) return;
    r->sinks = malloc(s->heads * sizeof *r->sinks);
    assert_non_null(r->sinks);
    for (size_t h = 0; h < s->heads; h++) r->sinks[h] = (float)rnd_normal(seed);
    r->c.sinks = r->sinks;
    r->g.sinks = r->sinks_g = gpu_copy(t, r->sinks, s->heads * sizeof *r->sinks);
}

static void rig_close(twin *t, rig *r) {
    both_free(t, &r->q);
    both_free(t, &r->k);
    both_free(t, &r->v);
    both_free(t, &r->y);
    t->gpu->free(t->g, r->sinks_g);
    free(r->sinks);
}

static void run_both(twin *t, rig *r) {
    kld_err err = {0};
    need(t->cpu->attend(t->c, &r->b, r->q.c, r->k.c, r->v.c, &r->c, r->y.c, &err), &err, "cpu");
    need(t->gpu->attend(t->g, &r->b, r->q.g, r->k.g, r->v.g, &r->g, r->y.g, &err), &err, "cuda");
}

static void open_twin(twin *t, int precision) {
    const kld_device_spec spec = {.precision = (kld_precision)precision,
                                  .max_rows = 2048,
                                  .max_keys = 4096,
                                  .kv_cols = 64,
                                  .head_rows = 256,
                                  .vocab = 64,
                                  .top_k = 8,
                                  .head_dim = 64};
    twin_open(t, &spec);
}

static void shapes(void **state) {
    (void)state;
    static const shape all[] = {
        {4, 2, 128, 128, 0, 0, false, 0},  {6, 2, 64, 64, 0, 0, false, 0},
        {2, 1, 256, 256, 0, 0, false, 0},  {4, 1, 128, 128, 100, 0, false, 8},
        {4, 4, 64, 64, 1, 0, false, 0},    {4, 4, 64, 64, 7, 30, true, 0},
        {2, 2, 256, 256, 65, 0, true, 16}, {4, 2, 128, 128, 0, 2, false, 0},
        {4, 2, 128, 128, 0, 0, true, 0},   {3, 3, 80, 80, 0, 0, false, 0},
        {2, 2, 192, 128, 0, 0, false, 0},  {2, 1, 576, 512, 0, 0, false, 0},
        {4, 2, 24, 24, 90, 3, true, 1},    {4, 2, 128, 128, 0, 0, false, 3},
        {1, 1, 1, 1, 0, 0, false, 0},      {5, 1, 96, 200, 128, 0, true, 0},
        {4, 2, 192, 128, 100, 0, true, 8}, {3, 1, 192, 128, 0, 5, false, 0},
    };
    uint64_t seed = 1;
    for (int p = 0; p < 2; p++) {
        twin t;
        open_twin(&t, p);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            rig r;
            char what[64];
            rig_open(&t, &r, &all[i], &seed);
            run_both(&t, &r);
            snprintf(what, sizeof what, "attend shape %zu, %s", i, p ? "fp32" : "bf16");
            print_message("%s: %.1e\n", what, both_same(&t, &r.y, t.bf16 ? 0.04 : 2e-5, what));
            rig_close(&t, &r);
        }
        twin_close(&t);
    }
}

/* NaN or Inf in a value shows in its own position and later ones, in no other. */
static void odd_values(void **state) {
    (void)state;
    static const shape kinds[] = {{2, 1, 128, 128, 0, 0, false, 0},
                                  {2, 2, 64, 64, 20, 0, false, 0},
                                  {2, 2, 40, 40, 0, 0, false, 0},
                                  {2, 2, 256, 256, 0, 0, false, 0},
                                  {2, 1, 192, 128, 0, 0, false, 0}};
    static const size_t bad[] = {0, 1, 63, 64, 100, 127, 128, 500, 699};
    uint64_t seed = 2;
    for (int p = 0; p < 2; p++) {
        twin t;
        open_twin(&t, p);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            rig r;
            rig_open(&t, &r, &kinds[i], &seed);
            size_t first = 0, row0 = 0;
            for (size_t s = 0; s < r.b.n; s++)
                if (r.span[s].row == 1u + 17 + 255 + 256 + 257) {
                    first = r.span[s].kv_row;
                    row0 = r.span[s].row;
                }
            for (size_t n = 0; n < sizeof bad / sizeof *bad; n += gpu_size(1, 3)) {
                float *at = &r.v.host[(first + bad[n]) * r.v.c.ld + 3], was = *at;
                *at = n % 2 ? NAN : INFINITY;
                both_push(&t, &r.v);
                run_both(&t, &r);
                float *got = both_pull(&t, &r.y);
                for (size_t q = 0; q < bad[n]; q++)
                    if (!isfinite(got[(row0 + q) * r.y.c.ld + 3]))
                        fail_msg("kind %zu: position %zu sees the value of %zu", i, q, bad[n]);
                assert_true(!isfinite(got[(row0 + bad[n]) * r.y.c.ld + 3]));
                free(got);
                *at = was;
            }
            both_push(&t, &r.v); /* no flag is left behind */
            run_both(&t, &r);
            both_same(&t, &r.y, t.bf16 ? 0.04 : 2e-5, "after odd values");
            rig_close(&t, &r);
        }
        twin_close(&t);
    }
}

/* The bits of a window do not depend on its company or on the run. */
static void alone(void **state) {
    (void)state;
    static const shape kinds[] = {{4, 2, 128, 128, 0, 0, false, 0},
                                  {2, 2, 48, 48, 0, 0, false, 0},
                                  {2, 1, 192, 128, 0, 0, false, 0}};
    uint64_t seed = 3;
    kld_err err = {0};
    for (int p = 0; p < 2; p++) {
        twin t;
        open_twin(&t, p);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            rig r;
            rig_open(&t, &r, &kinds[i], &seed);
            run_both(&t, &r);
            float *all = both_pull(&t, &r.y);
            run_both(&t, &r);
            float *again = both_pull(&t, &r.y);
            assert_memory_equal(all, again, r.y.c.rows * r.y.c.ld * sizeof *all);
            free(again);
            for (size_t s = 0; s < r.b.n; s++) { /* every span by itself */
                kld_batch one = {&r.span[s], 1, r.b.rows};
                both_push(&t, &r.y);
                need(t.gpu->attend(t.g, &one, r.q.g, r.k.g, r.v.g, &r.g, r.y.g, &err), &err, "one");
                float *got = both_pull(&t, &r.y);
                size_t from = r.span[s].row * r.y.c.ld, n = r.span[s].n * r.y.c.ld;
                assert_memory_equal(got + from, all + from, n * sizeof *got);
                free(got);
            }
            free(all);
            rig_close(&t, &r);
        }
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(odd_values),
        cmocka_unit_test(alone),
    };
    return cmocka_run_group_tests_name("gpu attention", tests, NULL, NULL);
}
