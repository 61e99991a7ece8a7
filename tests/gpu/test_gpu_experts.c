/* Routing and experts: CUDA against the CPU's, and the promise that neither groups, rounds nor
 * company decide a row's bits. */
#include "tests/gpu/gpukit.h"

#include <math.h>
#include <stdlib.h>

/* ---- routing ----------------------------------------------------------------------------- */

typedef struct routes {
    uint32_t *id;
    float *weight, *margin;
} routes;

static const float UNSET = -77;

static routes routes_new(size_t rows, size_t k) {
    routes r = {calloc(rows * k, 4), calloc(rows * k, 4), calloc(rows, 4)};
    assert_true(r.id && r.weight && r.margin);
    for (size_t i = 0; i < rows; i++) r.margin[i] = UNSET;
    return r;
}

static void routes_free(routes *r) {
    free(r->id);
    free(r->weight);
    free(r->margin);
}

static bool near(float a, float b, double rel) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (a == b) return true;
    return fabs((double)a - (double)b) <= rel * fmax(fabs((double)a), fabs((double)b));
}

/* The ids are to be the same, but for scores that expf's last bit may turn round: one row in
 * `rows`. */
static void same_routes(const routes *c, const routes *g, size_t rows, size_t k, bool exact,
                        bool forced, size_t most) {
    size_t other = 0;
    for (size_t r = 0; r < rows; r++) {
        if (memcmp(c->id + r * k, g->id + r * k, k * 4) != 0) {
            if (exact) fail_msg("row %zu goes to other experts", r);
            other++;
            continue;
        }
        for (size_t i = r * k; i < (r + 1) * k; i++)
            if (!near(c->weight[i], g->weight[i], 2e-6))
                fail_msg("row %zu, slot %zu: weight %.9g on the GPU, %.9g on the CPU", r, i - r * k,
                         (double)g->weight[i], (double)c->weight[i]);
        float a = c->margin[r], b = g->margin[r];
        bool same = forced ? a == UNSET && b == UNSET
                           : near(a, b, 1e-6) || fabs((double)a - (double)b) < 1e-6;
        if (!same)
            fail_msg("row %zu: margin %.9g on the GPU, %.9g on the CPU", r, (double)b, (double)a);
    }
    if (other > most) fail_msg("%zu of %zu rows go to other experts", other, rows);
}

typedef struct how {
    kld_router r;
    bool bias, ties;
} how;

static void route_case(twin *t, const how *h, uint64_t *seed) {
    const kld_router *r = &h->r;
    size_t rows = 301, k = r->top_k, e = r->experts;
    both z = both_random(t, rows, e, e + 3, KLD_ELEM_F32, 1, seed);
    for (size_t i = 0; i < rows * z.c.ld; i++)
        if (h->ties && i % z.c.ld < e) z.host[i] = floorf(2 * z.host[i]) / 2;
    /* Not numbers, and nothing but the least of them. */
    z.host[5 * z.c.ld + 1] = NAN;
    for (size_t i = 0; i < e; i++) {
        z.host[6 * z.c.ld + i] = NAN;
        z.host[7 * z.c.ld + i] = -INFINITY;
    }
    weight b;
    weight_random(t, &b, KLD_FMT_F32, e, 1, false, KLD_USE_VECTOR, seed);
    uint32_t *forced = calloc(rows * k, sizeof *forced);
    assert_non_null(forced);
    for (size_t i = 0; i < rows * k; i++)
        forced[i] = (uint32_t)((i / k * 7 + i % k * (e / k ? e / k : 1)) % e);
    bool exact = h->ties || r->score == KLD_SCORE_SOFTMAX_CHOSEN;
    if (h->bias && h->ties) exact = false;
    for (int f = 0; f < 2; f++) {
        routes c = routes_new(rows, k), g = routes_new(rows, k);
        kld_routes oc = {c.id, c.weight, c.margin}, og = {g.id, g.weight, g.margin};
        kld_err err = {0};
        both_push(t, &z);
        need(t->cpu->route(t->c, z.c, h->bias ? &b.c : NULL, r, f ? forced : NULL, &oc, &err), &err,
             "cpu");
        need(t->gpu->route(t->g, z.g, h->bias ? &b.g : NULL, r, f ? forced : NULL, &og, &err), &err,
             "cuda");
        same_routes(&c, &g, rows, k, exact || f, f, 3);
        routes_free(&c);
        routes_free(&g);
    }
    free(forced);
    both_free(t, &z);
    weight_free(t, &b);
}

static void routing(void **state) {
    (void)state;
    static const how all[] = {
        {{KLD_SCORE_SOFTMAX, 128, 8, 1, 1, true, 0, 1}, false, false},
        {{KLD_SCORE_SOFTMAX, 8, 2, 1, 1, false, 0, 1}, false, true},
        {{KLD_SCORE_SIGMOID, 256, 8, 8, 4, true, 1e-20, 2.5}, true, false},
        {{KLD_SCORE_SIGMOID, 64, 4, 1, 1, true, 1e-20, 1.8}, true, false},
        {{KLD_SCORE_SIGMOID, 12, 4, 4, 2, false, 0, 1}, false, false},
        {{KLD_SCORE_SOFTMAX_CHOSEN, 32, 4, 1, 1, false, 0, 1}, false, false},
        {{KLD_SCORE_SOFTMAX_CHOSEN, 33, 3, 1, 1, false, 0, 1}, true, true},
        {{KLD_SCORE_SOFTMAX_CHOSEN, 1024, 32, 1, 1, false, 0, 1}, false, true},
        {{KLD_SCORE_SIGMOID, 7, 7, 1, 1, true, 0, 1}, false, true},
    };
    uint64_t seed = 21;
    twin t;
    kld_device_spec spec = {.precision = KLD_PRECISION_BF16,
                            .max_rows = 512,
                            .max_keys = 512,
                            .head_rows = 256,
                            .vocab = 64,
                            .top_k = 8,
                            .head_dim = 64,
                            .hidden = 8,
                            .experts = 1024,
                            .chosen = 32,
                            .expert_cols = 8};
    twin_open(&t, &spec);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) route_case(&t, &all[i], &seed);
    twin_close(&t);
}

/* ---- experts ------------------------------------------------------------------------------ */

enum { N = 5, ROWS = 300, MOST = 3 };
/* What a case is made of: hidden and inner columns, gate and up in one, biases, padding. */
typedef struct mix {
    size_t hidden, inner;
    bool fused, biased;
    size_t pad;
    kld_activation act;
    bool quantized, factors; /* inputs */
} mix;

typedef struct bank {
    weight gate[N], up[N], down[N];
    uint32_t row[N][ROWS];
    float weight[N][ROWS];
    kld_expert_rows c[N], g[N];
} bank;

/* Smaller weights, so that what an expert gives is about 1. */
static void expert_weight(twin *t, weight *w, size_t rows, size_t cols, bool bias, uint64_t *seed) {
    weight_random(t, w, KLD_FMT_BF16, rows, cols, bias, KLD_USE_MATRIX, seed);
    w->c.alpha = w->g.alpha = 1 / sqrtf((float)cols);
}

static void quantized(weight *w, kld_act_quant input) {
    w->c.input = w->g.input = input;
    w->c.alpha = w->g.alpha *= kld_act_alpha(&input);
}

/* Experts in pairs that are quantized alike; gate and up alike in the first pair only.  The last
 * product takes FP8: what one code of it weighs stays small where rounding before it differs. */
static void quantize_inputs(bank *b, const mix *m) {
    for (size_t e = 0; e < N; e++) {
        kld_act_quant in = {.format = KLD_AQ_NVFP4, .scale = 1 + (float)(e / 2)};
        quantized(&b->gate[e], in);
        if (e >= 2) in.scale /= 7;
        if (e == 4) in = (kld_act_quant){.format = KLD_AQ_MXFP8, .exponent = KLD_AQ_CEIL};
        if (!m->fused) quantized(&b->up[e], in);
        in = (kld_act_quant){.format = KLD_AQ_FP8_TENSOR, .scale = 0.01f * (float)(1 + e / 2)};
        if (e == 4) in = (kld_act_quant){.format = KLD_AQ_FP8_TOKEN};
        quantized(&b->down[e], in);
    }
}

/* To every weight but the up of expert 0 and the down of expert 2; gate and up of expert 3 share
 * theirs. */
static void give_factors(twin *t, bank *b, const mix *m, uint64_t *seed) {
    for (size_t e = 0; e < N; e++) {
        weight *w[] = {&b->gate[e], e && !m->fused ? &b->up[e] : NULL, e == 2 ? NULL : &b->down[e]};
        for (size_t i = 0; i < 3; i++) {
            if (!w[i]) continue;
            weight_factors(t, w[i], i ? KLD_BF16 : KLD_F16, seed);
            w[i]->c.alpha = w[i]->g.alpha = 1 / sqrtf((float)w[i]->w.cols);
        }
    }
    if (m->fused) return;
    b->up[3].c.pre = b->gate[3].c.pre;
    b->up[3].g.pre = b->gate[3].g.pre;
}

static void bank_open(twin *t, bank *b, const mix *m, uint64_t *seed) {
    memset(b, 0, sizeof *b);
    for (size_t e = 0; e < N; e++) {
        expert_weight(t, &b->gate[e], m->fused ? 2 * m->inner : m->inner, m->hidden, m->biased,
                      seed);
        if (!m->fused) expert_weight(t, &b->up[e], m->inner, m->hidden, m->biased, seed);
        expert_weight(t, &b->down[e], m->hidden, m->inner, m->biased, seed);
        b->c[e].gate = &b->gate[e].c;
        b->g[e].gate = &b->gate[e].g;
        b->c[e].down = &b->down[e].c;
        b->g[e].down = &b->down[e].g;
        if (!m->fused) b->c[e].up = &b->up[e].c;
        if (!m->fused) b->g[e].up = &b->up[e].g;
    }
    if (m->factors) give_factors(t, b, m, seed);
    if (m->quantized) quantize_inputs(b, m);
}

static void bank_close(twin *t, bank *b) {
    for (size_t e = 0; e < N; e++) {
        weight_free(t, &b->gate[e]);
        if (b->c[e].up) weight_free(t, &b->up[e]);
        weight_free(t, &b->down[e]);
    }
}

/* Rows of each expert: expert 0 has all of `rows`, 1 has none, the others some; with `every`, all
 * have all. */
static void lists(bank *b, size_t rows, bool every, uint64_t *seed) {
    for (size_t e = 0; e < N; e++) {
        size_t n = 0;
        for (size_t r = 0; r < rows; r++) {
            bool there = every || e == 0 || (e != 1 && rnd(seed) < 0.3);
            if (!there) continue;
            b->row[e][n] = (uint32_t)r;
            b->weight[e][n++] = (float)rnd(seed);
        }
        b->c[e].n = b->g[e].n = n;
        b->c[e].row = b->g[e].row = b->row[e];
        b->c[e].weight = b->g[e].weight = b->weight[e];
    }
}

static void mix_open(twin *t, const mix *m, int precision, size_t chosen) {
    const kld_device_spec spec = {.precision = (kld_precision)precision,
                                  .max_rows = ROWS,
                                  .max_keys = ROWS,
                                  .head_rows = 256,
                                  .vocab = 64,
                                  .top_k = 8,
                                  .head_dim = 64,
                                  .bias_cols = m->biased ? 2 * m->inner : 0,
                                  .hidden = m->hidden,
                                  .experts = N,
                                  .chosen = chosen,
                                  .expert_cols = 2 * m->inner};
    twin_open(t, &spec);
}

static const mix mixes[] = {{64, 48, false, false, 0, KLD_ACT_SILU, false, false},
                            {64, 32, true, true, 8, KLD_ACT_CLAMPED_GLU, false, false},
                            {33, 7, false, false, 3, KLD_ACT_GELU_TANH, false, false},
                            {40, 20, true, false, 4, KLD_ACT_SILU, false, false},
                            {21, 13, false, true, 1, KLD_ACT_CLAMPED_GLU, false, false},
                            {64, 48, false, false, 4, KLD_ACT_SILU, true, false},
                            {96, 40, true, true, 0, KLD_ACT_CLAMPED_GLU, true, false},
                            {33, 7, false, false, 3, KLD_ACT_SILU, false, true},
                            {64, 48, false, false, 4, KLD_ACT_SILU, true, true}};
enum { MIXES = sizeof mixes / sizeof *mixes };

/* What x is after the experts in calls of `group` of them, on the GPU. */
static float *after(twin *t, both *x, both *h, const kld_expert_rows *e, size_t n, size_t group,
                    const mix *m) {
    kld_gate act = {m->act, 1.5f};
    kld_err err = {0};
    both_push(t, x);
    for (size_t i = 0; i < n; i += group)
        need(t->gpu->experts(t->g, h->g, e + i, n - i < group ? n - i : group, &act, x->g, &err),
             &err, "cuda");
    return both_pull(t, x);
}

static void products_against_cpu(void **state) {
    (void)state;
    uint64_t seed = 22;
    for (size_t i = 0; i < 2 * MIXES; i++) {
        const mix *m = &mixes[i / 2];
        kld_gate act = {m->act, 1.5f};
        twin t;
        bank b;
        char what[64];
        mix_open(&t, m, i % 2, MOST);
        bank_open(&t, &b, m, &seed);
        lists(&b, ROWS, false, &seed);
        both h = both_random(&t, ROWS, m->hidden, m->hidden + m->pad, KLD_ELEM_ACT, 1, &seed);
        both x = both_random(&t, ROWS, m->hidden, m->hidden + m->pad, KLD_ELEM_F32, 1, &seed);
        kld_err err = {0};
        need(t.cpu->experts(t.c, h.c, b.c, N, &act, x.c, &err), &err, "cpu");
        need(t.gpu->experts(t.g, h.g, b.g, N, &act, x.g, &err), &err, "cuda");
        snprintf(what, sizeof what, "experts %zu, %s", i / 2, i % 2 ? "fp32" : "bf16");
        /* A BF16 value inside may round to either neighbour. */
        double limit = m->quantized ? 6e-2 : t.bf16 ? 3e-2 : 1e-5;
        print_message("%s: %.1e\n", what, both_same(&t, &x, limit, what));
        both_free(&t, &h);
        both_free(&t, &x);
        bank_close(&t, &b);
        twin_close(&t);
    }
}

/* Again; in other groups; in rounds that end in the midst of experts; each row alone. */
static void products_leave_no_trace(void **state) {
    (void)state;
    uint64_t seed = 23;
    for (size_t i = 0; i < 2 * MIXES; i++) {
        const mix *m = &mixes[i / 2];
        size_t ld = m->hidden + m->pad, bytes = ROWS * ld * sizeof(float);
        twin t;
        bank b;
        /* Scratch for a row's experts: with every row going to every expert, five rounds; the
         * last ones begin and end within experts when rows are fewer than its own. */
        mix_open(&t, m, i % 2, 1);
        bank_open(&t, &b, m, &seed);
        for (int every = 0; every < 2; every++) {
            lists(&b, every ? ROWS - 37 : ROWS, every, &seed);
            both h = both_random(&t, ROWS, m->hidden, ld, KLD_ELEM_ACT, 1, &seed);
            both x = both_random(&t, ROWS, m->hidden, ld, KLD_ELEM_F32, 1, &seed);
            float *all = after(&t, &x, &h, b.g, N, N, m);
            for (size_t group = 1; group <= N; group++) {
                float *got = after(&t, &x, &h, b.g, N, group, m);
                if (memcmp(all, got, bytes) != 0)
                    fail_msg("mix %zu, rounds %d: groups of %zu show", i / 2, every, group);
                free(got);
            }
            for (size_t r = 0; r < ROWS - 37; r += gpu_size(23, 97)) {
                kld_expert_rows one[N];
                for (size_t e = 0; e < N; e++) {
                    size_t k = 0;
                    one[e] = b.g[e];
                    while (k < b.g[e].n && b.row[e][k] != r) k++;
                    one[e].n = k < b.g[e].n;
                    one[e].row += k;
                    one[e].weight += k;
                }
                float *got = after(&t, &x, &h, one, N, N, m);
                if (memcmp(all + r * ld, got + r * ld, m->hidden * sizeof *all) != 0)
                    fail_msg("mix %zu: row %zu alone is another one", i / 2, r);
                if (r && memcmp(got, x.host, ld * sizeof *got) != 0)
                    fail_msg("mix %zu: a row without experts changed", i / 2);
                free(got);
            }
            free(all);
            both_free(&t, &h);
            both_free(&t, &x);
        }
        bank_close(&t, &b);
        twin_close(&t);
    }
}

/* Rows that are not finite stay by themselves; experts and rows that are none are fine. */
static void products_odd(void **state) {
    (void)state;
    uint64_t seed = 24;
    for (int p = 0; p < 2; p++) {
        const mix *m = &mixes[0];
        twin t;
        bank b;
        mix_open(&t, m, p, MOST);
        bank_open(&t, &b, m, &seed);
        lists(&b, ROWS, false, &seed);
        both h = both_random(&t, ROWS, m->hidden, m->hidden, KLD_ELEM_ACT, 1, &seed);
        both x = both_random(&t, ROWS, m->hidden, m->hidden, KLD_ELEM_F32, 1, &seed);
        float *fine = after(&t, &x, &h, b.g, N, N, m);
        h.host[70 * m->hidden + 5] = NAN;
        both_push(&t, &h);
        float *odd = after(&t, &x, &h, b.g, N, N, m);
        for (size_t i = 0; i < ROWS * m->hidden; i++)
            if (i / m->hidden == 70 ? !isnan(odd[i]) : memcmp(&odd[i], &fine[i], 4) != 0)
                fail_msg("element %zu: %g", i, (double)odd[i]);
        free(odd);
        for (size_t e = 0; e < N; e++) b.g[e].n = 0;
        odd = after(&t, &x, &h, b.g, N, N, m);
        assert_memory_equal(odd, x.host, ROWS * m->hidden * sizeof *odd);
        free(odd);
        free(fine);
        both_free(&t, &h);
        both_free(&t, &x);
        bank_close(&t, &b);
        twin_close(&t);
    }
}

/* Router logits are FP32 products of the weights' own values; in pieces, of more rows than scratch
 * holds. */
static void products_of_routers(void **state) {
    (void)state;
    static const kld_format formats[] = {KLD_FMT_F32, KLD_FMT_F16, KLD_FMT_BF16};
    static const size_t shapes[][3] = {{64, 64, 0}, {33, 7, 3}, {40, 128, 8}};
    uint64_t seed = 25;
    for (size_t i = 0; i < 36; i++) {
        const size_t *s = shapes[i / 12];
        size_t hidden = s[0], experts = s[1], rows = 700;
        bool bias = i / 6 % 2;
        const kld_device_spec spec = {.precision = (kld_precision)(i % 2),
                                      .max_rows = 256,
                                      .max_keys = 256,
                                      .head_rows = 256,
                                      .vocab = 64,
                                      .top_k = 8,
                                      .head_dim = 64,
                                      .hidden = hidden,
                                      .experts = experts,
                                      .chosen = 1,
                                      .expert_cols = 8};
        twin t;
        weight w;
        kld_span span[3] = {{0, 256, 0, 0}, {256, 256, 256, 0}, {512, 188, 512, 0}};
        kld_batch b = {span, 3, rows};
        kld_err err = {0};
        twin_open(&t, &spec);
        weight_random(&t, &w, formats[i / 2 % 3], experts, hidden, bias, KLD_USE_ROUTER, &seed);
        both x = both_random(&t, rows, hidden, hidden + s[2], KLD_ELEM_ACT, 1, &seed);
        both y = both_random(&t, rows, experts, experts + s[2], KLD_ELEM_F32, 1, &seed);
        need(t.cpu->linear(t.c, &b, x.c, &w.c, y.c, false, &err), &err, "cpu");
        need(t.gpu->linear(t.g, &b, x.g, &w.g, y.g, false, &err), &err, "cuda");
        both_same(&t, &y, 1e-5, "router");
        float *all = both_pull(&t, &y);
        kld_view xs = x.g, ys = y.g; /* rows 300 .. 309 alone */
        xs.p = (unsigned char *)xs.p + 300 * xs.ld * (t.bf16 ? 2 : 4);
        ys.p = (float *)ys.p + 300 * ys.ld;
        xs.rows = ys.rows = 10;
        both_push(&t, &y);
        need(t.gpu->linear(t.g, &b, xs, &w.g, ys, false, &err), &err, "some");
        float *few = both_pull(&t, &y);
        for (size_t r = 300; r < 310; r++)
            assert_memory_equal(all + r * y.c.ld, few + r * y.c.ld, experts * sizeof *all);
        free(all);
        free(few);
        both_free(&t, &x);
        both_free(&t, &y);
        weight_free(&t, &w);
        twin_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routing),
        cmocka_unit_test(products_against_cpu),
        cmocka_unit_test(products_leave_no_trace),
        cmocka_unit_test(products_odd),
        cmocka_unit_test(products_of_routers),
    };
    if (getenv("KLD_TEST_NO_PRODUCTS")) cmocka_set_skip_filter("products*");
    return cmocka_run_group_tests_name("gpu experts", tests, NULL, NULL);
}
