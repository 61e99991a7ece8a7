/* Whose routes with whose weights: roles from headers, the four cells, and how both are told. */
#include "kld/compare/compare.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"

#include <math.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { Q, BXQ, QXB, BXB, PINNED, FAR, ALL };

/* Content digest k + 20; a replay's source is given by its first byte. */
static void replayed(struct cmp_rig *g, size_t k, kld_route_mode mode, unsigned char source,
                     const kld_capture_info *checkpoint) {
    g->info[k].model = checkpoint->model;
    g->info[k].name = checkpoint->name;
    g->info[k].label = checkpoint->label;
    g->info[k].routes = (kld_route_info){.mode = mode, .layers = 3, .top_k = 2, .experts = 8};
    g->info[k].routes.source.b[0] = source;
}

/* The whole set: the reference has content 10. */
static void begin(struct cmp_rig *g, size_t n) {
    cmp_begin(g, n);
    g->ref.content.b[0] = 10;
    for (size_t k = 0; k < n; k++) g->side[k].content.b[0] = (unsigned char)(20 + k);
    g->info[Q].label = (char *)"NVFP4";
    if (n > BXQ) replayed(g, BXQ, KLD_ROUTES_REPLAYED, 10, &g->info[Q]);
    if (n > QXB) replayed(g, QXB, KLD_ROUTES_REPLAYED, 20, &g->ref_info);
    if (n > BXB) replayed(g, BXB, KLD_ROUTES_REPLAYED, 10, &g->ref_info);
    if (n > PINNED) replayed(g, PINNED, KLD_ROUTES_ID_PINNED, 10, &g->info[Q]);
    if (n > FAR) replayed(g, FAR, KLD_ROUTES_REPLAYED, 99, &g->info[Q]);
}

/* n positions of two tokens: the likelier has probability p. */
static struct rec *coin(size_t n, double p, const struct rec *ref) {
    struct rec *x = t_records(n, 2, 0, 1, 0, 0, ref);
    for (size_t i = 0; i < n; i++) {
        x->tail_mass[i] = 0;
        x->lp[i * MAX_K] = x->ref_lp[i * MAX_K] = log(p);
        x->lp[i * MAX_K + 1] = x->ref_lp[i * MAX_K + 1] = log(1 - p);
    }
    return x;
}

static double kl(double p, double q) { return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)); }

/* What candidate k gives the likelier token in cluster c; the reference gives 0.9. */
static double prob(size_t k, size_t c) {
    static const double SHIFT[ALL] = {0.2, 0.07, 0.05, 0, 0.08, 0.1};
    return 0.9 - SHIFT[k] * (1 + 0.25 * (double)c);
}

static const char *const CLUSTER[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};

static void add_cluster(struct cmp_rig *g, size_t c, size_t n, size_t nan_row) {
    struct rec *ref = coin(n, 0.9, NULL), *q[ALL];
    for (size_t k = 0; k < g->n_cands; k++) q[k] = coin(n, prob(k, c), ref);
    if (nan_row < n && g->n_cands > BXQ) q[BXQ]->count[nan_row] = 0;
    cmp_add(g, CLUSTER[c], "", ref, q);
    for (size_t k = 0; k < g->n_cands; k++) free(q[k]);
    free(ref);
}

static json_t *run(struct cmp_rig *g, size_t clusters) {
    for (size_t c = 0; c < clusters; c++) add_cluster(g, c, 5, SIZE_MAX);
    return cmp_finish(g);
}

static double mean(size_t k, size_t clusters) {
    double s = 0;
    for (size_t c = 0; c < clusters; c++) s += kl(0.9, prob(k, c)) / (double)clusters;
    return s;
}

/* Four clusters of equal size: the interval of a contrast has a closed form. */
static void closed_form(void **state) {
    (void)state;
    enum { C = 4 };
    struct cmp_rig g;
    begin(&g, ALL);
    json_t *o = run(&g, C);
    double d[C], at = 0, ss = 0;
    for (size_t c = 0; c < C; c++) {
        d[c] = kl(0.9, prob(Q, c)) - kl(0.9, prob(BXQ, c)) - kl(0.9, prob(QXB, c));
        at += d[c] / C;
    }
    for (size_t c = 0; c < C; c++) ss += (d[c] - at) * (d[c] - at);
    double half = 3.18244631 * sqrt(ss / (C - 1) / C);
    assert_true(cmp_real(o, "candidates.0.cells.BxB") == 0);
    NEAR(cmp_real(o, "candidates.0.cells.QxQ"), mean(Q, C), 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.BxQ"), mean(BXQ, C), 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.QxB"), mean(QXB, C), 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.interaction"), at, 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.interaction"),
         mean(Q, C) - mean(BXQ, C) - mean(QXB, C) + 0, 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.interaction_ci95.0"), at - half, 1e-9);
    NEAR(cmp_real(o, "candidates.0.cells.interaction_ci95.1"), at + half, 1e-9);
    assert_int_equal(cmp_count(o, "candidates.0.cells.interaction_positions"), 5 * C);
    static const char *const CELL[] = {"QxQ", "BxQ", "QxB", "BxB"};
    for (int k = 0; k < 4; k++) {
        char path[64];
        snprintf(path, sizeof path, "candidates.0.cells.candidates.%s", CELL[k]);
        assert_int_equal(cmp_count(o, path), k);
        snprintf(path, sizeof path, "candidates.%d.routing.cell", k);
        if (k) assert_string_equal(json_string_value(cmp_get(o, path)), CELL[k]);
    }
    /* Pinned ids fill no cell; they are told beside it. */
    assert_true(json_is_null(cmp_get(o, "candidates.4.routing.cell")));
    const json_t *beside = json_array_get(cmp_get(o, "candidates.0.cells.id_pinned"), 0);
    assert_string_equal(json_string_value(cmp_get(beside, "beside")), "BxQ");
    assert_int_equal(cmp_count(beside, "candidate"), PINNED);
    NEAR(cmp_real(beside, "kl_mean"), mean(PINNED, C), 1e-12);
    for (int k = 1; k < ALL; k++) {
        char path[64];
        snprintf(path, sizeof path, "candidates.%d.cells", k);
        assert_true(json_is_null(cmp_get(o, path)));
        snprintf(path, sizeof path, "candidates.%d.routes", k);
        assert_true(json_is_null(cmp_get(o, path)));
    }
    assert_true(!cmp_warned(o, "replay_broken") && !cmp_warned(o, "replay_unplaced"));
    assert_true(cmp_warned(o, "replay_source") && cmp_warned(o, "id_pinned"));
    assert_true(json_is_null(cmp_get(o, "floor"))); /* a replay is no repeat */
    json_decref(o);
}

/* Enough clusters for the bootstrap, whose draws are those of every other pair; and rows that are
 * left out on one side are left out of the contrast alone. */
static void many_clusters(void **state) {
    (void)state;
    struct cmp_rig g;
    begin(&g, 3);
    double sum = 0;
    for (size_t c = 0; c < 9; c++) {
        size_t n = 4 + c;
        add_cluster(&g, c, n, c == 2 ? 1 : SIZE_MAX);
        sum += (double)(n - (c == 2)) *
               (kl(0.9, prob(Q, c)) - kl(0.9, prob(BXQ, c)) - kl(0.9, prob(QXB, c)));
    }
    json_t *o = cmp_finish(&g);
    assert_int_equal(cmp_count(o, "candidates.0.cells.interaction_positions"), 9 * 8 - 1);
    assert_int_equal(cmp_count(o, "candidates.0.positions"), 9 * 8);
    double at = cmp_real(o, "candidates.0.cells.interaction");
    NEAR(at, sum / 71, 1e-12);
    assert_true(cmp_real(o, "candidates.0.cells.interaction_ci95.0") < at &&
                at < cmp_real(o, "candidates.0.cells.interaction_ci95.1"));
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.candidates.BxB")));
    assert_true(cmp_real(o, "candidates.0.cells.BxB") == 0);
    json_decref(o);
}

/* A cell that is missing, or infinite, leaves no interaction. */
static void incomplete(void **state) {
    (void)state;
    struct cmp_rig g;
    begin(&g, 2);
    json_t *o = run(&g, 2);
    NEAR(cmp_real(o, "candidates.0.cells.BxQ"), mean(BXQ, 2), 1e-12);
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.QxB")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.interaction")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.interaction_ci95")));
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "- not run"));
    assert_null(strstr(t, "     interaction "));
    free(t);
    json_decref(o);
    begin(&g, 3);
    struct rec *ref = coin(5, 0.9, NULL), *q[3];
    for (size_t k = 0; k < 3; k++) q[k] = coin(5, prob(k, 0), ref);
    q[QXB]->ref_lp[1] = -INFINITY;
    cmp_add(&g, "x", "", ref, q);
    o = cmp_finish(&g);
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.QxB")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.cells.interaction")));
    json_decref(o);
    for (size_t k = 0; k < 3; k++) free(q[k]);
    free(ref);
}

/* Replaying the reference's own routes must change nothing. */
static void broken_replay(void **state) {
    (void)state;
    struct cmp_rig g;
    begin(&g, 4);
    struct rec *ref = coin(5, 0.9, NULL), *q[4];
    for (size_t k = 0; k < 4; k++) q[k] = coin(5, k == BXB ? 0.89 : prob(k, 0), ref);
    cmp_add(&g, "x", "", ref, q);
    json_t *o = cmp_finish(&g);
    assert_true(cmp_warned(o, "replay_broken"));
    NEAR(cmp_real(o, "candidates.0.cells.BxB"), kl(0.9, 0.89), 1e-12);
    NEAR(cmp_real(o, "candidates.0.cells.interaction"),
         kl(0.9, prob(Q, 0)) - kl(0.9, prob(BXQ, 0)) - kl(0.9, prob(QXB, 0)) + kl(0.9, 0.89),
         1e-12);
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "[4] WARNING: the reference with its own routes must score exactly"));
    free(t);
    json_decref(o);
    for (size_t k = 0; k < 4; k++) free(q[k]);
    free(ref);
}

static void text(void **state) {
    (void)state;
    struct cmp_rig g;
    begin(&g, ALL);
    json_t *o = run(&g, 4);
    char *t = cmp_table(o, false);
    static const char *const SAYS[] = {
        "[2] a - NVFP4; activations weights-only, routes of the reference\n",
        "[3] ref - BF16; activations weights-only, routes of [1]\n",
        "[4] ref - BF16; activations weights-only, routes of the reference\n",
        "[5] a - NVFP4; activations weights-only, id-pinned to routes of the reference\n",
        "[6] a - NVFP4; activations weights-only, routes of 630000000000\n",
        "[2] BxQ NVFP4 ",
        "[3] QxB BF16 ",
        "[4] BxB BF16 ",
        "[5] id-pinned NVF~",
        "[6] replay NVFP4 ",
        "Mean KL: whose routes (rows) x whose weights (columns)\n",
        "the cells do not add up",
        "id-pinned, beside BxQ",
        "(content digest 630000000000)",
    };
    for (size_t i = 0; i < sizeof SAYS / sizeof *SAYS; i++)
        if (!strstr(t, SAYS[i])) fail_msg("'%s' is not in\n%s", SAYS[i], t);
    /* Pairs of different routings are no verdicts on checkpoints. */
    assert_null(strstr(t, "[2] - [1]"));
    assert_null(strstr(t, "[3] - [2]"));
    assert_null(strstr(t, "[4] - [2]")); /* the check says nothing of a candidate */
    assert_null(strstr(t, " \n    "));   /* no spaces at ends of lines */
    for (const char *s = t; *s;) {
        size_t n = strcspn(s, "\n");
        if (n > 100) fail_msg("%zu columns: %.*s", n, (int)n, s);
        s += n + (s[n] == '\n');
    }
    if (getenv("KLD_TEST_SHOW")) puts(t);
    free(t);
    json_decref(o);
}

/* ---- roles from headers alone ------------------------------------------------------------ */

static void find(struct cmp_rig *g) {
    kld_roles_find(&g->ref, g->side, g->n_cands, g->role, g->quad);
}

static void expect(const struct cmp_rig *g, size_t k, kld_cell cell, long of, kld_left_out why) {
    assert_int_equal(g->role[k].cell, cell);
    assert_int_equal(g->role[k].of, of);
    assert_int_equal(g->role[k].left_out, why);
}

static void left_out(void **state) {
    (void)state;
    struct cmp_rig g;
    begin(&g, ALL);
    find(&g);
    expect(&g, Q, KLD_CELLS, -1, KLD_PLACED);
    expect(&g, BXQ, KLD_BXQ, Q, KLD_PLACED);
    expect(&g, QXB, KLD_QXB, Q, KLD_PLACED);
    expect(&g, BXB, KLD_BXB, -1, KLD_PLACED);
    expect(&g, PINNED, KLD_BXQ, Q, KLD_PLACED);
    expect(&g, FAR, KLD_CELLS, -1, KLD_LEFT_SOURCE);
    assert_int_equal(g.quad[Q].k[KLD_BXQ], BXQ);
    /* The same cell again. */
    g.info[FAR].routes.source.b[0] = 10;
    find(&g);
    expect(&g, BXQ, KLD_BXQ, Q, KLD_PLACED);
    assert_int_equal(g.role[FAR].left_out, KLD_LEFT_REPEATED);
    assert_int_equal(g.role[FAR].cell, KLD_CELLS);
    assert_int_equal(g.quad[Q].k[KLD_BXQ], BXQ);
    /* A candidate with its own routes is no cell. */
    g.info[FAR].routes.source.b[0] = 20;
    find(&g);
    expect(&g, FAR, KLD_CELLS, -1, KLD_LEFT_SOURCE);
    assert_int_equal(g.role[FAR].source, KLD_SOURCE_CANDIDATE);
    /* A checkpoint that was not captured with its own routes. */
    g.info[FAR].routes.source.b[0] = 10;
    g.info[FAR].model.b[0] = 55;
    find(&g);
    expect(&g, FAR, KLD_CELLS, -1, KLD_LEFT_CHECKPOINT);
    /* Other arithmetic than that of the natural capture. */
    g.info[BXQ].engine = json_pack("{s:s}", "arithmetic", "other");
    find(&g);
    expect(&g, BXQ, KLD_CELLS, -1, KLD_LEFT_ARITHMETIC);
    assert_int_equal(g.quad[Q].k[KLD_BXQ], -1);
    json_decref(g.info[BXQ].engine);
    kld_tally_free(&g.tally);
    assert_int_equal(strlen(KLD_CELL_NAME[KLD_QXQ]), 3);
}

/* Fine-tunes of one shape share a model digest: the digest of every byte or the name tells. */
static void same_shape(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 5);
    g.ref.content.b[0] = 10;
    for (size_t k = 0; k < 5; k++) g.side[k].content.b[0] = (unsigned char)(20 + k);
    g.info[1].model = g.info[0].model; /* a and b, natural */
    replayed(&g, 2, KLD_ROUTES_REPLAYED, 10, &g.info[1]);
    replayed(&g, 3, KLD_ROUTES_REPLAYED, 10, &g.info[0]);
    replayed(&g, 4, KLD_ROUTES_REPLAYED, 21, &g.ref_info);
    find(&g);
    expect(&g, 2, KLD_BXQ, 1, KLD_PLACED);
    expect(&g, 3, KLD_BXQ, 0, KLD_PLACED);
    expect(&g, 4, KLD_QXB, 1, KLD_PLACED);
    /* A name that fits none: the first of that shape. */
    g.info[2].name = (char *)"renamed";
    g.info[3].model.b[0] = 77;
    find(&g);
    expect(&g, 2, KLD_BXQ, 0, KLD_PLACED);
    /* Every byte is surer than a name. */
    g.info[0].model_full.b[0] = 1;
    g.info[1].model_full.b[0] = g.info[2].model_full.b[0] = 2;
    g.info[2].name = g.info[0].name;
    find(&g);
    expect(&g, 2, KLD_BXQ, 1, KLD_PLACED);
    /* A fine-tune of the reference's own shape is a candidate, not the reference. */
    g.info[0] = g.ref_info;
    g.info[0].name = (char *)"tuned";
    replayed(&g, 2, KLD_ROUTES_REPLAYED, 10, &g.info[0]);
    g.info[2].model_full = (kld_digest){{0}};
    find(&g);
    expect(&g, 2, KLD_BXQ, 0, KLD_PLACED);
    kld_tally_free(&g.tally);
}

/* The reference captured again is its noise floor with routes of its own, and none without. */
static void floor_is_natural(void **state) {
    (void)state;
    for (int natural = 0; natural < 2; natural++) {
        struct cmp_rig g;
        begin(&g, 4);
        if (natural) {
            g.info[Q] = g.ref_info;
            g.info[Q].has_reference = true;
        }
        json_t *o = run(&g, 2);
        if (natural) {
            assert_int_equal(cmp_count(o, "floor.candidate"), Q);
            assert_true(json_is_null(cmp_get(o, "candidates.0.cells")));
        } else {
            assert_true(json_is_null(cmp_get(o, "floor")));
            assert_true(cmp_warned(o, "no_floor"));
        }
        assert_string_equal(json_string_value(cmp_get(o, "candidates.3.routing.cell")), "BxB");
        json_decref(o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_form), cmocka_unit_test(many_clusters),
        cmocka_unit_test(incomplete),  cmocka_unit_test(broken_replay),
        cmocka_unit_test(text),        cmocka_unit_test(left_out),
        cmocka_unit_test(same_shape),  cmocka_unit_test(floor_is_natural),
    };
    return cmocka_run_group_tests_name("cells", tests, NULL, NULL);
}
