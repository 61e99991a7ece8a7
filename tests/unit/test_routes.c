/* Agreement of routes: closed forms, a second way of computing, intervals, report and text. */
#include "kld/compare/compare.h"
#include "kld/compare/routes.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"

#include <math.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { LAYERS = 2, K = 2 };

/* Two tokens in two layers. */
static const uint32_t REF_ID[] = {0, 1, /**/ 0, 1, /* token 1 */ 2, 3, /**/ 0, 1};
static const uint32_t CAND_ID[] = {0, 1, /**/ 1, 0, /* token 1 */ 2, 1, /**/ 2, 3};
static const float REF_W[] = {0.75f, 0.25f, 0.625f, 0.375f, 1, 1, 0.5f, 0.5f};
static const float CAND_W[] = {0.5f, 0.5f, 0.625f, 0.375f, 3, 1, 0.5f, 0.5f};
static const float MARGIN[] = {0.125f, 0.25f, 0.5f, INFINITY};

static void hand_made(struct rec *x, const uint32_t *id, const float *w) {
    t_routed(x, 2, LAYERS, K, 4, 1);
    memcpy(x->route_id, id, 8 * sizeof *id);
    memcpy(x->route_weight, w, 8 * sizeof *w);
    memcpy(x->route_margin, MARGIN, sizeof MARGIN);
}

static struct rec *empty(void) {
    struct rec *x = calloc(1, sizeof *x);
    if (!x) abort();
    return x;
}

static void expect(const kld_route_sums *s, const double want[KLD_ROUTE_COLUMNS],
                   const double margin[3]) {
    for (int c = 0; c < KLD_ROUTE_COLUMNS; c++)
        NEAR(kld_route_mean(s, (kld_route_column)c), want[c], 1e-15);
    for (int m = 0; m < 3; m++) {
        double got = kld_route_margin(s, m);
        if (isnan(margin[m])) assert_true(isnan(got));
        else NEAR(got, margin[m], 1e-15);
    }
}

static void closed_form(void **state) {
    (void)state;
    struct rec *a = empty(), *b = empty();
    kld_route_sums layer[LAYERS] = {0}, all = {0};
    hand_made(a, REF_ID, REF_W);
    hand_made(b, CAND_ID, CAND_W);
    for (size_t i = 0; i < 4; i++) b->route_margin[i] = 77; /* the reference's count */
    assert_int_equal(kld_routes_compare(&a->r, &b->r, layer, NULL), KLD_OK);
    /* TV: (1/4) of the same set; then of {2,3} at 1/2, 1/2 against {2,1} at 3/4, 1/4 is 1/2. */
    expect(&layer[0], (double[]){1, 0.75, 0.75, 0.5, 0.375}, (double[]){0.125, 0.5, 0.3125});
    /* Exchanged slots keep the set: 1/4; no common expert: 1. */
    expect(&layer[1], (double[]){0, 0, 0.5, 0.5, 0.625}, (double[]){0.25, NAN, 0.25});
    for (size_t i = 0; i < LAYERS; i++) kld_route_sums_add(&all, &layer[i]);
    expect(&all, (double[]){0.5, 0.375, 0.625, 0.5, 0.5}, (double[]){0.1875, 0.5, 0.875 / 3});
    assert_int_equal(all.margin_n[0] + all.margin_n[1], 3);
    /* Against itself everything is exactly 1 and 0, whatever the scale of the weights. */
    kld_route_sums self[LAYERS] = {0};
    memcpy(b->route_id, REF_ID, sizeof REF_ID);
    for (size_t i = 0; i < 8; i++) b->route_weight[i] = 4 * REF_W[i];
    assert_int_equal(kld_routes_compare(&a->r, &b->r, self, NULL), KLD_OK);
    for (size_t i = 0; i < LAYERS; i++) {
        for (int c = 0; c < KLD_ROUTE_COLUMNS; c++)
            assert_true(kld_route_mean(&self[i], (kld_route_column)c) == (c != KLD_ROUTE_TV));
        assert_true(isnan(kld_route_margin(&self[i], 1)));
    }
    free(a);
    free(b);
}

/* Weights that are no shares have no TV, and say so. */
static void weights_that_are_none(void **state) {
    (void)state;
    static const float BAD[][K] = {{NAN, 1}, {INFINITY, 1}, {0, 0}, {-0.5f, 1}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        for (int side = 0; side < 2; side++) {
            struct rec *a = empty(), *b = empty();
            kld_route_sums layer[LAYERS] = {0};
            hand_made(a, REF_ID, REF_W);
            hand_made(b, CAND_ID, CAND_W);
            memcpy((side ? b : a)->route_weight, BAD[i], sizeof BAD[i]);
            assert_int_equal(kld_routes_compare(&a->r, &b->r, layer, NULL), KLD_OK);
            assert_int_equal(layer[0].n[KLD_ROUTE_TV], 1);
            assert_int_equal(layer[0].n[KLD_ROUTE_TOP1], 2);
            NEAR(kld_route_mean(&layer[0], KLD_ROUTE_TV), 0.5, 1e-15);
            NEAR(kld_route_mean(&layer[0], KLD_ROUTE_SLOTS), 0.75, 1e-15);
            free(a);
            free(b);
        }
    kld_route_sums none = {0};
    assert_true(isnan(kld_route_mean(&none, KLD_ROUTE_TOP1)) && isnan(kld_route_margin(&none, 2)));
}

static void other_shapes(void **state) {
    (void)state;
    struct rec *a = empty(), *b = empty();
    kld_route_sums layer[LAYERS] = {0};
    kld_err err = {0};
    hand_made(a, REF_ID, REF_W);
    size_t *const field[] = {&b->r.route_tokens, &b->r.route_layers, &b->r.route_k};
    for (size_t i = 0; i < 3; i++) {
        hand_made(b, CAND_ID, CAND_W);
        --*field[i];
        assert_int_equal(kld_routes_compare(&a->r, &b->r, layer, &err), KLD_E_INPUT);
        assert_non_null(strstr(err.text, "the reference has routes of 2 tokens in 2 layers to 2"));
    }
    free(a);
    free(b);
}

/* ---- a second way --------------------------------------------------------------------- */

enum { EXPERTS = 11, WIDE = 4, DEEP = 5, TOKENS = 31, WINDOWS = 6 };

/* Dense vectors over all experts instead of lists. */
static void dense(const struct rec *a, const struct rec *b, size_t layer, double out[5]) {
    for (size_t t = 0; t < TOKENS; t++) {
        double p[EXPERTS] = {0}, q[EXPERTS] = {0}, sp = 0, sq = 0, tv = 0, both = 0, slots = 0;
        size_t at = (t * DEEP + layer) * WIDE;
        for (size_t j = 0; j < WIDE; j++) {
            p[a->route_id[at + j]] = (double)a->route_weight[at + j];
            q[b->route_id[at + j]] = (double)b->route_weight[at + j];
            slots += a->route_id[at + j] == b->route_id[at + j];
        }
        for (size_t x = 0; x < EXPERTS; x++) {
            sp += p[x];
            sq += q[x];
            both += p[x] > 0 && q[x] > 0;
        }
        for (size_t x = 0; x < EXPERTS; x++) tv += 0.5 * fabs(p[x] / sp - q[x] / sq);
        out[KLD_ROUTE_TOP1] += a->route_id[at] == b->route_id[at];
        out[KLD_ROUTE_SLOTS] += slots / WIDE;
        out[KLD_ROUTE_OVERLAP] += both / WIDE;
        out[KLD_ROUTE_EXACT] += both == WIDE;
        out[KLD_ROUTE_TV] += tv;
    }
}

/* Some tokens keep their route, some have it turned, some are sent elsewhere. */
static void disturb(struct rec *x, const struct rec *ref, uint64_t seed) {
    t_routed(x, TOKENS, DEEP, WIDE, EXPERTS, seed);
    for (size_t i = 0; i < (size_t)TOKENS * DEEP; i++) {
        if (i % 3 == 0) continue;
        for (size_t j = 0; j < WIDE; j++)
            x->route_id[i * WIDE + (i % 3 == 1 ? j : (j + i) % WIDE)] = ref->route_id[i * WIDE + j];
    }
}

static const char *const NAME[] = {"top1_agreement", "slot_agreement", "overlap", "exact_agreement",
                                   "weight_tv"};

static double field(const json_t *o, const char *prefix, const char *name) {
    char path[96];
    snprintf(path, sizeof path, "%s.%s", prefix, name);
    return cmp_real(o, path);
}

static void recomputed(void **state) {
    (void)state;
    struct cmp_rig g;
    double sum[DEEP][5] = {{0}}, by_cluster[3][5] = {{0}};
    cmp_begin(&g, 2);
    g.ref_info.routes =
        (kld_route_info){.kept = true, .layers = DEEP, .top_k = WIDE, .experts = EXPERTS};
    g.info[1].routes = g.ref_info.routes; /* the other keeps none */
    for (size_t w = 0; w < WINDOWS; w++) {
        static const char *const CLUSTER[] = {"x", "y", "z"};
        struct rec *ref = t_records(20, 8, 16, w, 0, 0, NULL);
        struct rec *q[] = {t_records(20, 8, 16, w, 0.3, 90 + w, ref),
                           t_records(20, 8, 16, w, 0.3, 50 + w, ref)};
        t_routed(ref, TOKENS, DEEP, WIDE, EXPERTS, 10 * w);
        disturb(q[1], ref, 1000 + w);
        for (size_t l = 0; l < DEEP; l++) {
            double one[5] = {0};
            dense(ref, q[1], l, one);
            for (int c = 0; c < 5; c++) {
                sum[l][c] += one[c];
                by_cluster[w % 3][c] += one[c];
            }
        }
        cmp_add(&g, CLUSTER[w % 3], "", ref, q);
        free(ref);
        free(q[0]);
        free(q[1]);
    }
    json_t *o = cmp_finish(&g);
    assert_true(json_is_null(cmp_get(o, "candidates.0.routes")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.routing")));
    assert_int_equal(cmp_count(o, "candidates.1.routes.tokens"), WINDOWS * TOKENS);
    assert_int_equal(cmp_count(o, "candidates.1.routes.layers"), DEEP);
    double n = WINDOWS * TOKENS, all[5] = {0};
    for (size_t l = 0; l < DEEP; l++) {
        char at[64];
        snprintf(at, sizeof at, "candidates.1.routes.by_layer.%zu", l);
        assert_true(field(o, at, "layer") == (double)l);
        for (int c = 0; c < 5; c++) {
            NEAR(field(o, at, NAME[c]), sum[l][c] / n, 1e-13);
            all[c] += sum[l][c] / (n * DEEP);
        }
    }
    /* Three clusters: Student-t with two degrees of freedom on the spread of cluster sums, on
     * ln(m/(1-m)). */
    assert_string_equal(json_string_value(cmp_get(o, "candidates.1.routes.ci_method")),
                        "student-t");
    for (int c = 0; c < 5; c++) {
        char range[64];
        double ss = 0, per = n * DEEP / 3;
        for (int k = 0; k < 3; k++) ss += pow(by_cluster[k][c] - all[c] * per, 2);
        double half = 4.30265273 * sqrt(1.5 * ss) / (n * DEEP);
        assert_true(half > 0);
        NEAR(field(o, "candidates.1.routes.overall", NAME[c]), all[c], 1e-13);
        snprintf(range, sizeof range, "%s_ci95.0", NAME[c]);
        half /= all[c] * (1 - all[c]);
        double at = log(all[c] / (1 - all[c]));
        NEAR(field(o, "candidates.1.routes.overall", range), 1 / (1 + exp(half - at)), 1e-8);
        snprintf(range, sizeof range, "%s_ci95.1", NAME[c]);
        NEAR(field(o, "candidates.1.routes.overall", range), 1 / (1 + exp(-half - at)), 1e-8);
    }
    assert_int_equal(cmp_count(o, "candidates.1.routes.overall.weight_tv_undecided"), 0);
    /* Every sixteenth margin is infinite. */
    assert_int_equal(cmp_count(o, "candidates.1.routes.overall.margin.finite"),
                     WINDOWS * (TOKENS * DEEP - 10));
    assert_true(cmp_warned(o, "routes_missing"));
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "186 tokens, 4 of 11 experts in 5 layers\n"));
    assert_non_null(strstr(t, "layer 4 "));
    assert_null(strstr(t, "layer 5 "));
    if (getenv("KLD_TEST_SHOW")) puts(t);
    free(t);
    json_decref(o);
}

/* What is said of KL does not depend on whether routes were kept. */
static void kl_stays(void **state) {
    (void)state;
    char *text[2];
    for (uint64_t kept = 0; kept < 2; kept++) {
        struct cmp_rig g;
        cmp_begin(&g, 1);
        g.ref_info.routes = (kld_route_info){
            .kept = kept, .layers = kept * LAYERS, .top_k = kept * K, .experts = kept * 4};
        g.info[0].routes = g.ref_info.routes;
        for (size_t w = 0; w < 9; w++) {
            char cluster[8];
            snprintf(cluster, sizeof cluster, "%zu", w);
            struct rec *ref = t_records(w ? 10 : 0, 8, 16, w, 0, 0, NULL);
            struct rec *q = t_records(w ? 10 : 0, 8, 16, w, 0.3, 90 + w, ref);
            hand_made(ref, REF_ID, REF_W);
            hand_made(q, CAND_ID, CAND_W);
            cmp_add(&g, cluster, "", ref, &q);
            free(ref);
            free(q);
        }
        json_t *o = cmp_finish(&g);
        assert_int_equal(json_is_object(cmp_get(o, "candidates.0.routes")), kept);
        if (kept) {
            assert_int_equal(cmp_count(o, "candidates.0.routes.tokens"), 18);
            NEAR(cmp_real(o, "candidates.0.routes.overall.overlap"), 0.625, 1e-15);
            NEAR(cmp_real(o, "candidates.0.routes.overall.overlap_ci95.0"), 0.625, 1e-15);
        }
        kld_buf b = {0};
        assert_int_equal(kld_json_dump(cmp_get(o, "candidates.0.kl"), true, &b, NULL), KLD_OK);
        text[kept] = strdup((const char *)b.data);
        kld_buf_free(&b);
        json_decref(o);
    }
    assert_string_equal(text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_form),  cmocka_unit_test(weights_that_are_none),
        cmocka_unit_test(other_shapes), cmocka_unit_test(recomputed),
        cmocka_unit_test(kl_stays),
    };
    return cmocka_run_group_tests_name("routes", tests, NULL, NULL);
}
