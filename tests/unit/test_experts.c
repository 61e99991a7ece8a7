/* Routing and experts of the CPU back end against formulas in FP64, and what latent attention and
 * the other variants of rotation need. */
#include "tests/unit/opkit.h"

/* ---- routing ----------------------------------------------------------------------------- */

enum { E = 12, K = 4 };

static void route(const kld_router *r, const float *z, const float *bias, const uint32_t *forced,
                  uint32_t *id, float *weight, float *margin) {
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    float row[E];
    memcpy(row, z, r->experts * sizeof *row);
    kld_view v = {row, 1, r->experts, r->experts, KLD_ELEM_F32};
    kld_dev_weight b = {.rows = r->experts, .cols = 1, .data = bias};
    kld_routes out = {id, weight, margin};
    assert_int_equal(be->route(dev, v, bias ? &b : NULL, r, forced, &out, NULL), KLD_OK);
    be->close(dev);
}

static const float Z[E] = {0.5f, -1, 2, 0.25f, 1.5f, -3, 2, 0, 1, -0.5f, 0.75f, -2};

static void softmax_scores(void **state) {
    (void)state;
    kld_router r = {.score = KLD_SCORE_SOFTMAX, .experts = E, .top_k = K, .groups = 1};
    r.top_groups = 1;
    r.scale = 1;
    uint32_t id[K];
    float w[K], margin;
    double sum = 0, part = 0;
    static const uint32_t want[K] = {2, 6, 4, 8}; /* 2 and 6 are equal: the lower id first */
    for (size_t e = 0; e < E; e++) sum += exp((double)Z[e]);
    for (size_t i = 0; i < K; i++) part += exp((double)Z[want[i]]) / sum;
    route(&r, Z, NULL, NULL, id, w, &margin);
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(id[i], want[i]);
        close_to((double)w[i], exp((double)Z[want[i]]) / sum, 1e-7, "softmax", 0, i);
    }
    close_to((double)margin, (exp(1) - exp(0.75)) / sum, 1e-7, "margin", 0, 0);
    r.normalise = true;
    r.scale = 2.5;
    route(&r, Z, NULL, NULL, id, w, &margin);
    for (size_t i = 0; i < K; i++)
        close_to((double)w[i], 2.5 * exp((double)Z[want[i]]) / sum / part, 3e-7, "scaled", 0, i);
    r = (kld_router){KLD_SCORE_SOFTMAX_CHOSEN, E, K, 1, 1, false, 0, 1};
    route(&r, Z, NULL, NULL, id, w, &margin);
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(id[i], want[i]);
        close_to((double)w[i], exp((double)Z[want[i]]) / sum / part, 1e-7, "of the chosen", 0, i);
    }
    assert_true(margin == 0.25f);
}

/* The bias moves the choice and leaves the weights alone; groups go by their two best. */
static void sigmoid_scores(void **state) {
    (void)state;
    kld_router r = {KLD_SCORE_SIGMOID, E, K, 1, 1, false, 1e-20, 1};
    float bias[E] = {[5] = 2, [2] = -3};
    uint32_t id[K];
    float w[K], margin;
    static const uint32_t biased[K] = {5, 6, 4, 8};
    route(&r, Z, bias, NULL, id, w, &margin);
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(id[i], biased[i]);
        close_to((double)w[i], 1 / (1 + exp(-(double)Z[id[i]])), 1e-7, "sigmoid", 0, i);
    }
    /* Four groups of three; their two best: 0.88+0.62, 0.82+0.56, 0.88+0.73, 0.68+0.38.  By the
     * best alone 0 and 2 tie, and so they do not with a third group in between. */
    kld_router g = {KLD_SCORE_SIGMOID, E, K, 4, 2, true, 1e-20, 1};
    static const uint32_t grouped[K] = {2, 6, 8, 0};
    double sum = 0;
    for (size_t i = 0; i < K; i++) sum += 1 / (1 + exp(-(double)Z[grouped[i]]));
    route(&g, Z, NULL, NULL, id, w, &margin);
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(id[i], grouped[i]);
        close_to((double)w[i], 1 / (1 + exp(-(double)Z[id[i]])) / sum, 2e-7, "normalised", 0, i);
    }
    /* The best that was not chosen is 7 of group 2, not 4 of a group that is out. */
    close_to((double)margin, 1 / (1 + exp(-0.5)) - 0.5, 1e-7, "margin within groups", 0, 0);
}

static void forced_and_odd(void **state) {
    (void)state;
    kld_router r = {KLD_SCORE_SOFTMAX, E, K, 1, 1, true, 0, 1};
    static const uint32_t forced[K] = {11, 0, 5, 3};
    uint32_t id[K];
    float w[K], margin, z[E];
    double sum = 0;
    for (size_t i = 0; i < K; i++) sum += exp((double)Z[forced[i]]);
    route(&r, Z, NULL, forced, id, w, &margin);
    for (size_t i = 0; i < K; i++) {
        assert_int_equal(id[i], forced[i]);
        close_to((double)w[i], exp((double)Z[forced[i]]) / sum, 2e-7, "forced", 0, i);
    }
    /* Whatever the logits are, the ids are experts and differ. */
    for (size_t kind = 0; kind < 3; kind++) {
        for (size_t e = 0; e < E; e++)
            z[e] = kind == 0 ? NAN : kind == 1 ? -INFINITY : e == 7 ? NAN : Z[e];
        for (int score = 0; score < 3; score++) {
            r.score = (kld_score)score;
            route(&r, z, NULL, NULL, id, w, &margin);
            for (size_t i = 0; i < K; i++) {
                assert_true(id[i] < E);
                for (size_t j = 0; j < i; j++) assert_true(id[i] != id[j]);
            }
        }
    }
    kld_router all = {KLD_SCORE_SIGMOID, K, K, 1, 1, false, 0, 1};
    route(&all, Z, NULL, NULL, id, w, &margin);
    assert_true(isinf(margin) && margin > 0);
}

/* ---- experts ------------------------------------------------------------------------------ */

enum { N = 3, H = 21, I = 13, ROWS = 75 };

typedef struct bank {
    kld_view value[N][3]; /* gate, up, down */
    float *bias[N][3];
    stored w[N][3];
    kld_view both[N]; /* gate and up in one */
    stored fused[N];
} bank;

static kld_device *expert_device(kld_precision p) {
    kld_device_spec spec = {.precision = p,
                            .max_rows = 256,
                            .max_keys = 64,
                            .vocab = 8,
                            .top_k = 2,
                            .head_dim = 16,
                            .hidden = H,
                            .experts = N,
                            .chosen = 2,
                            .expert_cols = 2 * I};
    return op_device(&spec);
}

static void open_bank(bank *b, kld_device *dev, bool biased, uint64_t *seed) {
    for (size_t e = 0; e < N; e++) {
        for (size_t i = 0; i < 3; i++) {
            size_t rows = i < 2 ? I : H, cols = i < 2 ? H : I;
            b->value[e][i] = random_view(rows, cols, cols, seed);
            b->bias[e][i] = biased ? random_view(1, rows, rows, seed).p : NULL;
            store(&b->w[e][i], dev, b->value[e][i].p, b->bias[e][i], rows, cols, KLD_USE_MATRIX);
        }
        b->both[e] = random_view(2 * I, H, H, seed);
        memcpy(b->both[e].p, b->value[e][0].p, I * H * sizeof(float));
        memcpy(at(b->both[e], I, 0), b->value[e][1].p, I * H * sizeof(float));
        store(&b->fused[e], dev, b->both[e].p, NULL, 2 * I, H, KLD_USE_MATRIX);
    }
}

static void close_bank(bank *b, kld_device *dev) {
    for (size_t e = 0; e < N; e++) {
        for (size_t i = 0; i < 3; i++) {
            free(b->value[e][i].p);
            free(b->bias[e][i]);
            be->free(dev, b->w[e][i].mem);
        }
        free(b->both[e].p);
        be->free(dev, b->fused[e].mem);
    }
}

static double dot(const bank *b, size_t e, size_t i, size_t row, const double *x) {
    double sum = b->bias[e][i] ? (double)b->bias[e][i][row] : 0;
    for (size_t c = 0; c < b->value[e][i].cols; c++)
        sum += (double)*at(b->value[e][i], row, c) * x[c];
    return sum;
}

static void reference(const bank *b, size_t e, const float *h, double weight, double *y) {
    double x[H], a[I];
    for (size_t c = 0; c < H; c++) x[c] = (double)h[c];
    for (size_t r = 0; r < I; r++) {
        double g = dot(b, e, 0, r, x);
        a[r] = g / (1 + exp(-g)) * dot(b, e, 1, r, x);
    }
    for (size_t r = 0; r < H; r++) y[r] += weight * dot(b, e, 2, r, a);
}

/* Every row goes to two experts, but for expert 1 that has few. */
static void lists(kld_expert_rows *e, uint32_t (*row)[ROWS], float (*weight)[ROWS], bank *b) {
    memset(e, 0, N * sizeof *e);
    for (size_t i = 0; i < N; i++) {
        e[i].gate = &b->w[i][0].dev;
        e[i].up = &b->w[i][1].dev;
        e[i].down = &b->w[i][2].dev;
        e[i].row = row[i];
        e[i].weight = weight[i];
        for (size_t r = 0; r < ROWS; r++) {
            if (i == 1 ? r % 29 != 3 : r % 29 == 3 && i == 2) continue;
            row[i][e[i].n] = (uint32_t)r;
            weight[i][e[i].n++] = 0.25f + (float)(r % 5) / 8;
        }
    }
}

static void mixture(void **state) {
    (void)state;
    static const kld_gate silu = {KLD_ACT_SILU, 0};
    uint64_t seed = 4;
    for (int biased = 0; biased < 2; biased++) {
        kld_device *dev = expert_device(KLD_PRECISION_FP32);
        bank b;
        open_bank(&b, dev, biased, &seed);
        kld_view h = random_view(ROWS, H, H + 3, &seed), x = random_view(ROWS, H, H + 2, &seed);
        double(*want)[H] = calloc(ROWS, sizeof *want);
        uint32_t row[N][ROWS];
        float weight[N][ROWS];
        kld_expert_rows e[N];
        assert_non_null(want);
        lists(e, row, weight, &b);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < H; c++) want[r][c] = (double)*at(x, r, c);
        for (size_t i = 0; i < N; i++)
            for (size_t k = 0; k < e[i].n; k++)
                reference(&b, i, at(h, row[i][k], 0), (double)weight[i][k], want[row[i][k]]);
        assert_int_equal(be->experts(dev, h, e, N, &silu, x, NULL), KLD_OK);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < H; c++)
                close_to((double)*at(x, r, c), want[r][c], 2e-4, "experts", r, c);
        check_padding(x);
        free(want);
        free(h.p);
        free(x.p);
        close_bank(&b, dev);
        be->close(dev);
    }
}

/* One by one, all together, and each row alone: the same bits. */
static void no_trace(void **state) {
    (void)state;
    static const kld_gate gelu = {KLD_ACT_GELU_TANH, 0};
    uint64_t seed = 8;
    for (int p = 0; p < 2; p++) {
        kld_device *dev = expert_device((kld_precision)p);
        bank b;
        open_bank(&b, dev, false, &seed);
        kld_view h = random_view(ROWS, H, H, &seed), x0 = random_view(ROWS, H, H, &seed);
        kld_view x[4];
        uint32_t row[N][ROWS];
        float weight[N][ROWS];
        kld_expert_rows e[N];
        lists(e, row, weight, &b);
        for (size_t i = 0; i < 4; i++) {
            x[i] = random_view(ROWS, H, H, &seed);
            memcpy(x[i].p, x0.p, ROWS * H * sizeof(float));
        }
        assert_int_equal(be->experts(dev, h, e, N, &gelu, x[0], NULL), KLD_OK);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(be->experts(dev, h, e + i, 1, &gelu, x[1], NULL), KLD_OK);
        for (size_t i = 0; i < N; i++) {
            for (size_t k = 0; k < e[i].n; k++) {
                kld_expert_rows one = e[i];
                one.n = 1;
                one.row += k;
                one.weight += k;
                assert_int_equal(be->experts(dev, h, &one, 1, &gelu, x[2], NULL), KLD_OK);
            }
        }
        for (size_t i = 0; i < N; i++) {
            e[i].gate = &b.fused[i].dev;
            e[i].up = NULL;
        }
        assert_int_equal(be->experts(dev, h, e, N, &gelu, x[3], NULL), KLD_OK);
        for (size_t i = 1; i < 3; i++) assert_memory_equal(x[i].p, x[0].p, ROWS * H * 4);
        /* Of another shape, the sums may be taken in another order. */
        for (size_t k = 0; k < ROWS * H; k++)
            close_to((double)*at(x[3], 0, k), (double)*at(x[0], 0, k),
                     p == KLD_PRECISION_FP32 ? 1e-4 : 0.5, "fused", 0, k);
        for (size_t i = 0; i < 4; i++) free(x[i].p);
        free(x0.p);
        free(h.p);
        close_bank(&b, dev);
        be->close(dev);
    }
}

/* ---- the rest ------------------------------------------------------------------------------ */

/* Pairs side by side from a column on, a norm over the whole row, a factor by position. */
static void rotations(void **state) {
    (void)state;
    uint64_t seed = 12;
    enum { ROW = 9, HEADS = 2, DIM = 14, FIRST = 5, HALF = 3, POS = 4 };
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    kld_view x = random_view(ROW, HEADS * DIM, HEADS * DIM + 1, &seed);
    kld_view y = random_view(ROW, HEADS * DIM, HEADS * DIM + 4, &seed);
    kld_view g = random_view(1, HEADS * DIM, HEADS * DIM, &seed);
    kld_view f = random_view(1, POS + ROW, POS + ROW, &seed);
    kld_view angle = random_view(POS + ROW, HALF, HALF, &seed);
    float co[(POS + ROW) * HALF], si[(POS + ROW) * HALF];
    double in[ROW][HEADS * DIM];
    for (size_t i = 0; i < (POS + ROW) * HALF; i++) {
        co[i] = cosf(((float *)angle.p)[i]);
        si[i] = sinf(((float *)angle.p)[i]);
    }
    for (size_t r = 0; r < ROW; r++) {
        double ss = 0;
        for (size_t c = 0; c < HEADS * DIM; c++) ss += pow((double)*at(x, r, c), 2);
        for (size_t c = 0; c < HEADS * DIM; c++)
            in[r][c] =
                (double)*at(x, r, c) * (double)*at(g, 0, c) / sqrt(ss / (HEADS * DIM) + 1e-6);
    }
    stored w;
    store(&w, dev, g.p, NULL, HEADS * DIM, 1, KLD_USE_VECTOR);
    kld_span span = {0, ROW, POS, 0};
    kld_batch b = {&span, 1, ROW};
    kld_rope_table t = {co, si, HALF};
    kld_rope_args a = {DIM, FIRST, true, &t, &w.dev, 1e-6, f.p};
    assert_int_equal(be->rope(dev, &b, x, &a, y, NULL), KLD_OK);
    for (size_t r = 0; r < ROW; r++) {
        for (size_t c = 0; c < HEADS * DIM; c++) {
            size_t i = c % DIM;
            double want = in[r][c], by = (double)*at(f, 0, POS + r);
            if (i >= FIRST && i < FIRST + 2 * HALF) {
                size_t j = (i - FIRST) / 2, k = (POS + r) * HALF + j;
                bool second = (i - FIRST) % 2;
                double other = second ? in[r][c - 1] : -in[r][c + 1];
                want = want * (double)co[k] + other * (double)si[k];
            }
            close_to((double)*at(y, r, c), want * by, 2e-6, "rotation", r, c);
        }
    }
    check_padding(y);
    be->free(dev, w.mem);
    be->close(dev);
    free(x.p);
    free(y.p);
    free(g.p);
    free(f.p);
    free(angle.p);
}

static void latent_keys(void **state) {
    (void)state;
    uint64_t seed = 13;
    enum { ROW = 5, HEADS = 3, NOPE = 4, ROPE = 2, VALUE = 7 };
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    kld_view kv = random_view(ROW, HEADS * (NOPE + VALUE), HEADS * (NOPE + VALUE) + 1, &seed);
    kld_view r = random_view(ROW, ROPE, ROPE + 1, &seed);
    kld_view k = random_view(ROW, HEADS * (NOPE + ROPE), HEADS * (NOPE + ROPE) + 2, &seed);
    kld_view v = random_view(ROW, HEADS * VALUE, HEADS * VALUE + 3, &seed);
    assert_int_equal(be->spread(dev, kv, r, HEADS, k, v, NULL), KLD_OK);
    for (size_t i = 0; i < ROW; i++) {
        for (size_t h = 0; h < HEADS; h++) {
            size_t from = h * (NOPE + VALUE), to = h * (NOPE + ROPE);
            assert_memory_equal(at(k, i, to), at(kv, i, from), NOPE * 4);
            assert_memory_equal(at(k, i, to + NOPE), at(r, i, 0), ROPE * 4);
            assert_memory_equal(at(v, i, h * VALUE), at(kv, i, from + NOPE), VALUE * 4);
        }
    }
    check_padding(k);
    check_padding(v);
    be->close(dev);
    free(kv.p);
    free(r.p);
    free(k.p);
    free(v.p);
}

static void sums_and_caps(void **state) {
    (void)state;
    uint64_t seed = 14;
    kld_device *dev = open_dev(KLD_PRECISION_FP32, 64);
    kld_view x = random_view(3, 37, 40, &seed), y = random_view(3, 37, 38, &seed);
    kld_view g = random_view(1, 37, 37, &seed);
    float before = *at(y, 2, 36);
    double ss = 0;
    for (size_t c = 0; c < 37; c++) ss += pow((double)*at(x, 2, c), 2);
    stored w;
    store(&w, dev, g.p, NULL, 37, 1, KLD_USE_VECTOR_PLUS_ONE);
    assert_int_equal(be->norm(dev, x, &w.dev, 1e-6, y, true, NULL), KLD_OK);
    double want = (1 + (double)*at(g, 0, 36)) * (double)*at(x, 2, 36) / sqrt(ss / 37 + 1e-6);
    close_to((double)*at(y, 2, 36), (double)before + want, 1e-6, "added norm", 2, 36);
    check_padding(y);
    float z = *at(x, 1, 5);
    assert_int_equal(be->cap(dev, x, 0.5f, NULL), KLD_OK);
    close_to((double)*at(x, 1, 5), 0.5 * tanh((double)z / 0.5), 1e-6, "cap", 1, 5);
    check_padding(x);
    be->free(dev, w.mem);
    be->close(dev);
    free(x.p);
    free(y.p);
    free(g.p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_scores), cmocka_unit_test(sigmoid_scores),
        cmocka_unit_test(forced_and_odd), cmocka_unit_test(mixture),
        cmocka_unit_test(no_trace),       cmocka_unit_test(rotations),
        cmocka_unit_test(latent_keys),    cmocka_unit_test(sums_and_caps),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
