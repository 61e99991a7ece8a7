/* Captures on disk, as four commands leave them, through the whole comparison. */
#include "kld/base/mem.h"
#include "kld/compare/compare.h"
#include "tests/unit/capturekit.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <omp.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

enum { WINDOWS = 20, ROWS = 7, VOCAB = 10, TOKENS = ROWS + 3 };

/* A capture to be made.  Lists of a vocabulary this small are whole, so that every KL is exact. */
struct plan {
    const char *name;
    unsigned char model;
    double shift;       /* of the logits; the reference has 0 */
    const char *ref;    /* candidate of */
    const char *source; /* of the routes, when replayed */
    kld_route_info routes;
};

static void made_against(kld_capture_info *info, const char *path, kld_capture **ref) {
    kld_err e = {0};
    assert_int_equal(kld_capture_open(ref, path, &e), KLD_OK);
    info->has_reference = true;
    info->reference = kld_capture_digest(*ref);
    info->ref_top_k = VOCAB;
}

static void make(const char *path, const struct plan *p) {
    kld_err e = {0};
    kld_capture *ref = NULL, *source;
    kld_capture_writer *w;
    kld_capture_info info = make_info(WINDOWS, ROWS, VOCAB, VOCAB, 0);
    kld_free(info.name);
    assert_int_equal(kld_strdup(&info.name, p->name, &e), KLD_OK);
    info.model.b[0] = p->model;
    info.routes = p->routes;
    if (p->ref) made_against(&info, p->ref, &ref);
    if (p->source) {
        assert_int_equal(kld_capture_open(&source, p->source, &e), KLD_OK);
        info.routes.source = kld_capture_digest(source);
        kld_capture_close(source);
    }
    if (kld_capture_create(&w, path, &info, &e) != KLD_OK) fail_msg("%s", e.text);
    for (size_t i = 0; i < WINDOWS; i++) {
        kld_records r, at = {0};
        char cluster[16];
        kld_window_meta meta = make_meta(i, ROWS);
        (void)snprintf(cluster, sizeof cluster, "doc %zu", i / 2);
        meta.cluster = cluster;
        if (i >= 12) meta.partition = "held out";
        if (ref) assert_int_equal(kld_capture_read(ref, i, NULL, &at, NULL, &e), KLD_OK);
        make_records(&r, ROWS, VOCAB, VOCAB, 0, 10 + i, 1.2, p->shift, ref ? &at : NULL);
        if (p->routes.kept) make_routes(&r, TOKENS, &p->routes, p->model == 1 ? i : 100 + i / 3);
        if (kld_capture_add(w, &meta, &r, ref ? &at : NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_records_free(&r);
        kld_records_free(&at);
    }
    if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_capture_close(ref);
    kld_capture_info_free(&info);
}

enum { B, Q, BQ, QB, BB, IDS, DENSE, N };
static char *path[N];

static int setup(void **state) {
    static const char *const FILE_OF[N] = {"b", "q", "bq", "qb", "bb", "ids", "dense"};
    if (t_dir_make(state) != 0) return -1;
    for (int k = 0; k < N; k++) path[k] = t_path(*state, FILE_OF[k]);
    const kld_route_info own = make_route_info(KLD_ROUTES_NATURAL, 0), none = {0},
                         other = make_route_info(KLD_ROUTES_REPLAYED, 0),
                         ids = make_route_info(KLD_ROUTES_ID_PINNED, 0);
    make(path[B], &(struct plan){"ref", 1, 0, NULL, NULL, own});
    make(path[Q], &(struct plan){"nvfp4", 2, 0.4, path[B], NULL, own});
    make(path[BQ], &(struct plan){"nvfp4", 2, 0.2, path[B], path[B], other});
    make(path[QB], &(struct plan){"ref", 1, 0.1, path[B], path[Q], other});
    make(path[BB], &(struct plan){"ref", 1, 0, path[B], path[B], other});
    make(path[IDS], &(struct plan){"nvfp4", 2, 0.25, path[B], path[B], ids});
    make(path[DENSE], &(struct plan){"ref", 1, 0, NULL, NULL, none});
    return 0;
}

static int teardown(void **state) {
    for (int k = 0; k < N; k++) free(path[k]);
    return t_dir_remove(state);
}

static kld_status compare(const int *files, size_t n, const char *partition, json_t **out,
                          kld_err *err) {
    const char *cand[N];
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 200;
    o.partition = partition;
    for (size_t k = 1; k < n; k++) cand[k - 1] = path[files[k]];
    return kld_compare_run(path[files[0]], cand, n - 1, &o, out, err);
}

static json_t *compared(const int *files, size_t n, const char *partition) {
    kld_err e = {0};
    json_t *o = NULL;
    if (compare(files, n, partition, &o, &e) != KLD_OK) fail_msg("%s", e.text);
    return o;
}

/* From the files again: the mean of sum p (ln p - ln q), lists being whole. */
static double mean_kl(int file, size_t windows) {
    kld_err e = {0};
    kld_capture *ref, *c;
    double sum = 0;
    assert_int_equal(kld_capture_open(&ref, path[B], &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, path[file], &e), KLD_OK);
    for (size_t i = 0; i < windows; i++) {
        kld_records p, q;
        assert_int_equal(kld_capture_read(ref, i, NULL, &p, NULL, &e), KLD_OK);
        assert_int_equal(kld_capture_read(c, i, &p, &q, NULL, &e), KLD_OK);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t j = 0; j < VOCAB; j++)
                sum +=
                    exp(p.lp[r * p.k_ld + j]) * (p.lp[r * p.k_ld + j] - q.ref_lp[r * q.ref_ld + j]);
        kld_records_free(&p);
        kld_records_free(&q);
    }
    kld_capture_close(ref);
    kld_capture_close(c);
    return sum / (double)(windows * ROWS);
}

/* And of the routes: share of equal slots, over all tokens. */
static double slots(size_t windows) {
    double same = 0, n = 0;
    kld_err e = {0};
    kld_capture *c[2];
    for (int s = 0; s < 2; s++)
        assert_int_equal(kld_capture_open(&c[s], path[s ? Q : B], &e), KLD_OK);
    for (size_t i = 0; i < windows; i++) {
        kld_records r[2];
        for (int s = 0; s < 2; s++)
            assert_int_equal(kld_capture_read_routes(c[s], i, &r[s], &e), KLD_OK);
        for (size_t j = 0; j < r[0].route_tokens * r[0].route_layers * r[0].route_k; j++, n++)
            same += r[0].route_id[j] == r[1].route_id[j];
        for (int s = 0; s < 2; s++) kld_records_free(&r[s]);
    }
    for (int s = 0; s < 2; s++) kld_capture_close(c[s]);
    return same / n;
}

static void five_files(void **state) {
    (void)state;
    json_t *o = compared((int[]){B, Q, BQ, QB, BB, IDS}, 6, NULL);
    const double tol = 1e-5; /* stored log-probabilities are rounded, and do not quite sum to 1 */
    double q = mean_kl(Q, WINDOWS), bq = mean_kl(BQ, WINDOWS), qb = mean_kl(QB, WINDOWS);
    assert_true(q > bq && bq > qb && qb > 1e-3);
    NEAR(cmp_real(o, "candidates.0.cells.QxQ"), q, tol);
    NEAR(cmp_real(o, "candidates.0.cells.BxQ"), bq, tol);
    NEAR(cmp_real(o, "candidates.0.cells.QxB"), qb, tol);
    assert_true(cmp_real(o, "candidates.0.cells.BxB") == 0);
    NEAR(cmp_real(o, "candidates.0.cells.interaction"), q - bq - qb, 3 * tol);
    assert_int_equal(cmp_count(o, "candidates.0.cells.candidates.BxB"), 3);
    assert_true(json_is_null(cmp_get(o, "floor")));
    assert_true(!cmp_warned(o, "replay_broken"));
    assert_int_equal(cmp_count(o, "candidates.0.routes.tokens"), WINDOWS * TOKENS);
    NEAR(cmp_real(o, "candidates.0.routes.overall.slot_agreement"), slots(WINDOWS), 1e-14);
    assert_true(slots(WINDOWS) > 0.02 && slots(WINDOWS) < 0.9);
    /* Ten documents: each window counts in its own. */
    assert_string_equal(json_string_value(cmp_get(o, "candidates.0.routes.ci_method")),
                        "student-t");
    assert_true(cmp_real(o, "candidates.0.routes.overall.slot_agreement_ci95.0") < slots(WINDOWS));
    assert_true(cmp_real(o, "candidates.0.routes.overall.slot_agreement_ci95.1") > slots(WINDOWS));
    for (int k = 1; k < 5; k++) {
        char at[40];
        snprintf(at, sizeof at, "candidates.%d.routes", k);
        assert_true(json_is_null(cmp_get(o, at)));
    }
    if (getenv("KLD_TEST_SHOW")) {
        char *t = cmp_table(o, false);
        puts(t);
        free(t);
    }
    json_decref(o);
}

/* Only windows of the partition count, in KL and in routes. */
static void partition(void **state) {
    (void)state;
    json_t *o = compared((int[]){B, Q, BQ, QB}, 4, "analysis");
    assert_int_equal(cmp_count(o, "candidates.0.routes.tokens"), 12 * TOKENS);
    assert_int_equal(cmp_count(o, "candidates.0.cells.interaction_positions"), 12 * ROWS);
    NEAR(cmp_real(o, "candidates.0.routes.overall.slot_agreement"), slots(12), 1e-14);
    NEAR(cmp_real(o, "candidates.0.cells.QxQ"), mean_kl(Q, 12), 1e-5);
    json_decref(o);
}

/* The reference file itself: equal everywhere. */
static void itself(void **state) {
    (void)state;
    json_t *o = compared((int[]){B, B, BB}, 3, NULL);
    assert_true(cmp_real(o, "candidates.0.routes.overall.exact_agreement") == 1);
    assert_true(cmp_real(o, "candidates.0.routes.overall.weight_tv") == 0);
    assert_true(json_is_null(cmp_get(o, "candidates.0.routes.overall.margin.differ")));
    assert_int_equal(cmp_count(o, "floor.candidate"), 0); /* and not the replay */
    json_decref(o);
}

static void one_side_only(void **state) {
    (void)state;
    json_t *o = compared((int[]){B, DENSE, Q}, 3, NULL);
    assert_true(cmp_warned(o, "routes_missing"));
    assert_true(json_is_null(cmp_get(o, "candidates.0.routes")));
    assert_true(json_is_object(cmp_get(o, "candidates.1.routes")));
    json_decref(o);
    o = compared((int[]){DENSE, DENSE}, 2, NULL);
    assert_true(!cmp_warned(o, "routes_missing"));
    assert_true(json_is_null(cmp_get(o, "reference.routing")));
    json_decref(o);
}

static void refused(void **state) {
    kld_err e = {0};
    json_t *o = NULL;
    char *replayed = t_path(*state, "alone"), *wide = t_path(*state, "wide");
    make(replayed,
         &(struct plan){"ref", 1, 0, NULL, path[B], make_route_info(KLD_ROUTES_REPLAYED, 0)});
    const char *cand = path[Q];
    kld_compare_options opt = kld_compare_defaults();
    assert_int_equal(kld_compare_run(replayed, &cand, 1, &opt, &o, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "(--routes replay=) and cannot be a reference"));
    for (int k = 0; k < 3; k++) {
        static const char *const SAYS[] = {"4 with 2 of 7", "3 with 3 of 7", "3 with 2 of 8"};
        kld_route_info r = make_route_info(KLD_ROUTES_NATURAL, 0);
        r.layers += k == 0;
        r.top_k += k == 1;
        r.experts += k == 2;
        make(wide, &(struct plan){"pruned", 3, 0.1, path[B], NULL, r});
        cand = wide;
        assert_int_equal(kld_compare_run(path[B], &cand, 1, &opt, &o, &e), KLD_E_INPUT);
        if (!strstr(e.text, SAYS[k]) || !strstr(e.text, "3 layers with 2 of 7 experts a token"))
            fail_msg("%s", e.text);
        assert_null(strchr(e.text, '\n'));
    }
    free(replayed);
    free(wide);
}

static void threads_do_not_matter(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    kld_buf text[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 5 : 1);
        json_t *o = compared((int[]){B, Q, BQ, QB, BB}, 5, NULL);
        assert_int_equal(kld_json_dump(o, true, &text[k], NULL), KLD_OK);
        json_decref(o);
    }
    omp_set_num_threads(before);
    assert_string_equal((char *)text[0].data, (char *)text[1].data);
    kld_buf_free(&text[0]);
    kld_buf_free(&text[1]);
}

/* Every allocation may fail; each failure is reported and leaks nothing (under the sanitizer). */
static void out_of_memory(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    json_t *o = compared((int[]){B, Q}, 2, NULL); /* puts JSON under the hook */
    json_decref(o);
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK && n < 10000000; n += 1 + n / 8) {
        kld_err e = {0};
        kld_mem_fail_after(n);
        st = compare((int[]){B, Q, BQ, QB, IDS}, 5, NULL, &o, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) json_decref(o);
        else assert_null(o);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%d: %s", (int)st, e.text);
    }
    assert_true(n > 100 && st == KLD_OK);
    omp_set_num_threads(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five_files),    cmocka_unit_test(partition),
        cmocka_unit_test(itself),        cmocka_unit_test(one_side_only),
        cmocka_unit_test(refused),       cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("compare_routes", tests, setup, teardown);
}
