/* Routes kept by one run and taken up by the next: what comes out is what went in, and what an
 * earlier run left is checked before the next one computes on. */
#include "kld/capture/routes.h"

#include "tests/unit/t.h"

enum { LAYERS = 3, K = 2, WINDOWS = 3, LONGEST = 5 };
static const size_t LENGTH[WINDOWS] = {1, 0, LONGEST};

typedef struct rig {
    kld_expert expert;
    kld_layer layer[LAYERS + 1]; /* the first is dense */
    kld_model model;
    kld_window window[WINDOWS];
    kld_suite suite;
    kld_digest run_id;
    char *dir;
} rig;

static void rig_make(rig *g, const char *dir) {
    *g = (rig){.dir = t_path(dir, "state")};
    for (size_t l = 1; l <= LAYERS; l++) g->layer[l].expert = &g->expert;
    g->model.ckpt.dir = "model";
    g->model.layer = g->layer;
    g->model.config.layers = LAYERS + 1;
    g->model.config.router.experts = 300;
    g->model.config.router.top_k = K;
    for (size_t w = 0; w < WINDOWS; w++) g->window[w].n = LENGTH[w];
    g->suite.windows = g->window;
    g->suite.n_windows = WINDOWS;
    g->run_id.b[3] = 7;
}

static uint32_t id_of(size_t layer, size_t w, size_t i) {
    return (uint32_t)(layer * 89 + w * 31 + i * 7) % 300;
}

static kld_status feed(kld_route_book *b, size_t layer, kld_err *e) {
    const kld_route_io *io = kld_routes_io(b);
    for (size_t w = 0; w < WINDOWS; w++) {
        uint32_t id[LONGEST * K];
        float weight[LONGEST * K], margin[LONGEST];
        const kld_routes r = {id, weight, margin};
        for (size_t i = 0; i < LENGTH[w] * K; i++) {
            id[i] = id_of(layer, w, i);
            weight[i] = (float)id[i] / 3;
        }
        for (size_t i = 0; i < LENGTH[w]; i++) margin[i] = (float)(layer + i) / 7;
        kld_status st = io->take(io->ctx, layer, w, LENGTH[w], &r, e);
        if (st != KLD_OK) return st;
    }
    return KLD_OK;
}

static kld_route_book *book(const rig *g) {
    kld_err e = {0};
    kld_route_book *b;
    if (kld_routes_keep(&b, &g->model, &g->suite, g->dir, &g->run_id, &e) != KLD_OK)
        fail_msg("%s", e.text);
    return b;
}

/* Layers [0, n) by an earlier run. */
static void earlier(const rig *g, size_t n) {
    kld_err e = {0};
    kld_route_book *b = book(g);
    for (size_t l = 0; l < n; l++)
        if (feed(b, l, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_routes_close(b);
}

static void resumed(void **state) {
    rig g;
    kld_err e = {0};
    for (size_t done = 0; done <= LAYERS; done++) {
        rig_make(&g, *state);
        earlier(&g, done);
        kld_route_book *b = book(&g);
        for (size_t l = done; l < LAYERS; l++) assert_int_equal(feed(b, l, &e), KLD_OK);
        for (size_t w = 0; w < WINDOWS; w++) {
            kld_records r = {0};
            if (kld_routes_window(b, w, &r, &e) != KLD_OK) fail_msg("%s", e.text);
            assert_int_equal(r.route_tokens, LENGTH[w]);
            for (size_t i = 0; i < LENGTH[w] * LAYERS * K; i++) {
                size_t t = i / K / LAYERS, l = i / K % LAYERS, want = id_of(l, w, t * K + i % K);
                assert_int_equal(r.route_id[i], want);
                assert_true(r.route_weight[i] == (float)want / 3);
                assert_true(r.route_margin[i / K] == (float)(l + t) / 7);
            }
            kld_records_free(&r);
        }
        kld_routes_close(b);
        free(g.dir);
    }
}

static void change(const char *path, long at, long keep) {
    unsigned char bytes[1024];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    assert_true(n > 100 && n < sizeof bytes);
    bytes[at] ^= 1;
    f = fopen(path, "wb");
    assert_non_null(f);
    size_t want = keep ? (size_t)keep : n;
    assert_int_equal(fwrite(bytes, 1, want, f), want);
    assert_int_equal(fclose(f), 0);
}

/* Where: missing, a value, the run, too short. */
static void damaged(void **state) {
    static const char *const says[] = {"routes-0001.bin", "SHA-256", "not of this run",
                                       "cut short"};
    for (int how = 0; how < 4; how++) {
        rig g;
        kld_err e = {0};
        rig_make(&g, *state);
        earlier(&g, 2);
        char *path = t_path(g.dir, "routes-0001.bin");
        if (how == 0) assert_int_equal(remove(path), 0);
        else change(path, how == 2 ? 40 : 80, how == 3 ? 90 : 0);
        /* With the first layer of the next run, and without one. */
        kld_route_book *b = book(&g);
        assert_int_equal(feed(b, 2, &e), KLD_E_INPUT);
        if (!strstr(e.text, says[how]) || !strstr(e.text, "--force")) fail_msg("%s", e.text);
        kld_routes_close(b);
        kld_records r = {0};
        b = book(&g);
        assert_int_equal(kld_routes_window(b, 0, &r, &e), KLD_E_INPUT);
        kld_records_free(&r);
        kld_routes_close(b);
        /* A run that computes the layer again does not mind. */
        b = book(&g);
        for (size_t l = 1; l < LAYERS; l++) assert_int_equal(feed(b, l, &e), KLD_OK);
        kld_routes_close(b);
        free(path);
        free(g.dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(resumed, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(damaged, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests_name("route book", tests, NULL, NULL);
}
