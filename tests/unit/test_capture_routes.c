/* Routes in the capture file: round trips, and every way in which they are refused. */
#include "kld/base/mem.h"
#include "kld/store/capture.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"
#include "kld/store/info.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <math.h>

enum { WINDOWS = 2, ROWS = 6, VOCAB = 60, LIST = 20, TOKENS = ROWS + 3 };

static void same_routes(const kld_records *a, const kld_records *b) {
    size_t rows = a->route_tokens * a->route_layers;
    assert_int_equal(a->route_tokens, b->route_tokens);
    assert_int_equal(a->route_layers, b->route_layers);
    assert_int_equal(a->route_k, b->route_k);
    assert_memory_equal(a->route_id, b->route_id, rows * a->route_k * sizeof *a->route_id);
    assert_memory_equal(a->route_weight, b->route_weight,
                        rows * a->route_k * sizeof *a->route_weight);
    assert_memory_equal(a->route_margin, b->route_margin, rows * sizeof *a->route_margin);
}

/* A capture with routes; a candidate when ref is given. */
static void write(const char *path, const kld_route_info *routes, kld_capture *ref) {
    kld_err e = {0};
    kld_capture_info info = make_info(WINDOWS, ROWS, VOCAB, LIST, ref ? 0 : 16);
    kld_capture_writer *w;
    info.routes = *routes;
    if (ref) {
        info.has_reference = true;
        info.reference = kld_capture_digest(ref);
        info.ref_top_k = LIST;
        info.ref_tail_samples = 16;
    }
    if (kld_capture_create(&w, path, &info, &e) != KLD_OK) fail_msg("%s", e.text);
    for (size_t i = 0; i < WINDOWS; i++) {
        kld_window_meta meta = make_meta(i, ROWS);
        kld_records r, at = {0};
        if (ref) assert_int_equal(kld_capture_read(ref, i, NULL, &at, NULL, &e), KLD_OK);
        make_records(&r, ROWS, VOCAB, LIST, ref ? 0 : 16, 77 + i, 1.6, ref ? 0.3 : 0,
                     ref ? &at : NULL);
        if (routes->kept) make_routes(&r, TOKENS, routes, (ref ? 500 : 5) + i);
        if (kld_capture_add(w, &meta, &r, ref ? &at : NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_records_free(&r);
        kld_records_free(&at);
    }
    if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_capture_info_free(&info);
}

static kld_capture *open_it(const char *path) {
    kld_err e = {0};
    kld_capture *c;
    if (kld_capture_open(&c, path, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(kld_capture_verify(c, &e), KLD_OK);
    return c;
}

static void round_trip(void **state) {
    char *rp = t_path(*state, "ref.zst"), *cp = t_path(*state, "c.zst");
    const kld_route_info routes = make_route_info(KLD_ROUTES_NATURAL, 0);
    write(rp, &routes, NULL);
    kld_capture *ref = open_it(rp);
    write(cp, &routes, ref);
    kld_capture *cand = open_it(cp);
    for (size_t i = 0; i < WINDOWS; i++) {
        kld_err e = {0};
        kld_records r, q, alone, want = {0}, want_q = {0};
        make_routes(&want, TOKENS, &routes, 5 + i);
        make_routes(&want_q, TOKENS, &routes, 500 + i);
        assert_true(isinf(want.route_margin[7]));
        assert_int_equal(kld_capture_read(ref, i, NULL, &r, NULL, &e), KLD_OK);
        assert_int_equal(kld_capture_read(cand, i, &r, &q, NULL, &e), KLD_OK);
        same_routes(&r, &want);
        same_routes(&q, &want_q);
        assert_int_equal(r.n, ROWS);
        /* Those of a candidate need no reference, and nothing else comes along. */
        assert_int_equal(kld_capture_read_routes(cand, i, &alone, &e), KLD_OK);
        same_routes(&alone, &want_q);
        assert_int_equal(alone.n, 0);
        kld_records *all[] = {&r, &q, &alone, &want, &want_q};
        for (size_t k = 0; k < 5; k++) kld_records_free(all[k]);
    }
    const kld_route_info *got = &kld_capture_header(cand)->routes;
    assert_true(got->kept && got->mode == KLD_ROUTES_NATURAL && got->layers == 3 &&
                got->top_k == 2 && got->experts == 7);
    kld_capture_close(ref);
    kld_capture_close(cand);
    free(rp);
    free(cp);
}

/* A replayed capture tells whose routes it had, and keeps none. */
static void replays(void **state) {
    for (int m = KLD_ROUTES_REPLAYED; m <= KLD_ROUTES_ID_PINNED; m++) {
        kld_err e = {0};
        kld_records r;
        char *path = t_path(*state, "r.zst");
        const kld_route_info routes = make_route_info((kld_route_mode)m, 0xab);
        write(path, &routes, NULL);
        kld_capture *c = open_it(path);
        const kld_route_info *got = &kld_capture_header(c)->routes;
        assert_int_equal(got->mode, m);
        assert_memory_equal(&got->source, &routes.source, sizeof routes.source);
        assert_false(got->kept);
        assert_int_equal(kld_capture_read_routes(c, 0, &r, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "keeps no routes"));
        assert_int_equal(kld_capture_read(c, 0, NULL, &r, NULL, &e), KLD_OK);
        assert_int_equal(r.route_layers, 0);
        kld_records_free(&r);
        kld_capture_close(c);
        free(path);
    }
}

/* ---- columns ---------------------------------------------------------------------------- */

typedef struct change {
    const char *says;
    int drop;        /* column to leave out, or 0 */
    size_t at;       /* route_id[at] becomes id */
    uint32_t id;     /* UINT32_MAX: nothing changes */
    int more;        /* values added to column drop */
    uint64_t top_k;  /* of the header, when not 0 */
    uint64_t layers; /* alike */
    bool not_kept;   /* the header says so */
} change;

/* A window without rows, so that routes are all there is. */
static kld_status decode(const change *x, bool alone, kld_err *e) {
    kld_capture_info info = make_info(1, 0, VOCAB, LIST, 0);
    kld_route_info routes = make_route_info(KLD_ROUTES_NATURAL, 0);
    window_head head = {.rows = 0, .meta = make_meta(0, 0)};
    head.meta.tokens = 3;
    kld_buf text = {0};
    columns c = {0};
    kld_records r = {0};
    make_routes(&r, 3, &routes, 9);
    if (x->id != UINT32_MAX) r.route_id[x->at] = x->id;
    assert_int_equal(head_write(&head, &text, e), KLD_OK);
    for (size_t i = 0; i < 18; i++) {
        assert_int_equal(column_add(&c.col[COL_ROUTE_ID], r.route_id[i], e), KLD_OK);
        assert_int_equal(column_add_f32(&c.col[COL_ROUTE_WEIGHT], r.route_weight[i], e), KLD_OK);
        if (i % 2)
            assert_int_equal(column_add_f32(&c.col[COL_ROUTE_MARGIN], r.route_margin[i / 2], e),
                             KLD_OK);
    }
    if (x->drop && !x->more) c.col[x->drop].n = 0;
    for (int i = 0; i < x->more; i++) assert_int_equal(column_add(&c.col[x->drop], 1, e), KLD_OK);
    assert_int_equal(columns_write(&c, &text, e), KLD_OK);
    if (x->top_k) routes.top_k = x->top_k;
    if (x->layers) routes.layers = x->layers;
    if (!x->not_kept) info.routes = routes;
    kld_records got;
    kld_status st = alone ? frame_routes(&info, &text, &got, e)
                          : frame_records(&info, &text, NULL, false, &got, e);
    if (st == KLD_OK) {
        same_routes(&got, &r);
        kld_records_free(&got);
    }
    kld_records_free(&r);
    columns_free(&c);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
    return st;
}

static void refused_columns(void **state) {
    (void)state;
    kld_err e = {0};
    const change none = {.id = UINT32_MAX};
    for (int alone = 0; alone < 2; alone++)
        if (decode(&none, alone, &e) != KLD_OK) fail_msg("%s", e.text);
    static const change bad[] = {
        {"9 routes with 0 experts", COL_ROUTE_ID, 0, UINT32_MAX, 0, 0, 0, false},
        {"column 18 ends", COL_ROUTE_WEIGHT, 0, UINT32_MAX, 0, 0, 0, false},
        {"0 routes with 18 experts", COL_ROUTE_MARGIN, 0, UINT32_MAX, 0, 0, 0, false},
        {"9 routes with 20 experts", COL_ROUTE_ID, 0, UINT32_MAX, 2, 0, 0, false},
        {"10 routes with 18 experts", COL_ROUTE_MARGIN, 0, UINT32_MAX, 1, 0, 0, false},
        {"3 layers with 3 experts each", 0, 0, UINT32_MAX, 0, 3, 0, false},
        {"3 tokens in 4 layers", 0, 0, UINT32_MAX, 0, 0, 4, false},
        {"token 0, layer 1 with experts: expert 7 does not exist", 0, 2, 7, 0, 0, 0, false},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int alone = 0; alone < 2; alone++) {
            assert_int_equal(decode(&bad[i], alone, &e), KLD_E_INPUT);
            if (!strstr(e.text, bad[i].says)) fail_msg("'%s' is not '%s'", e.text, bad[i].says);
        }
    /* Values that no row takes: seen by whoever reads the whole window. */
    const change more = {.drop = COL_ROUTE_WEIGHT, .id = UINT32_MAX, .more = 1};
    assert_int_equal(decode(&more, false, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "column 18 holds 19 values, 18 are used"));
    const change unannounced = {.id = UINT32_MAX, .not_kept = true};
    assert_int_equal(decode(&unannounced, false, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "column 17 holds 18 values, 0 are used"));
}

static void an_expert_twice(void **state) {
    (void)state;
    kld_err e = {0};
    const kld_route_info routes = make_route_info(KLD_ROUTES_NATURAL, 0);
    kld_records r = {0};
    make_routes(&r, 3, &routes, 9);
    const change twice = {.at = 15, .id = r.route_id[14]}; /* token 2, layer 1, slot 1 */
    kld_records_free(&r);
    for (int alone = 0; alone < 2; alone++) {
        assert_int_equal(decode(&twice, alone, &e), KLD_E_INPUT);
        if (!strstr(e.text, "token 2, layer 1 with experts: expert ") ||
            !strstr(e.text, "is there twice"))
            fail_msg("%s", e.text);
    }
}

/* ---- headers ---------------------------------------------------------------------------- */

static kld_status parse(const char *routes, kld_err *e) {
    static const char run[] = "{\"time\":\"\",\"host\":\"\"}";
    kld_capture_info info = make_info(1, 1, VOCAB, LIST, 1), got;
    kld_buf b = {0}, text = {0};
    assert_int_equal(kld_info_identity(&info, &b, e), KLD_OK);
    assert_null(strstr((char *)b.data, "routes")); /* captures without are as they always were */
    b.data[--b.len] = 0;                           /* the closing brace */
    assert_int_equal(kld_buf_addf(&text, e, "%s,\"routes\":%s}", (char *)b.data, routes), KLD_OK);
    kld_status st = kld_info_parse(&got, text.data, text.len, run, sizeof run - 1, e);
    if (st == KLD_OK) kld_capture_info_free(&got);
    kld_buf_free(&b);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
    return st;
}

#define ZERO16 "0000000000000000"
#define ZEROS ZERO16 ZERO16 ZERO16 ZERO16
#define SOME ZERO16 ZERO16 ZERO16 "00000000000000ab"
#define ROUTES(mode, kept, layers, k, experts, source)                                             \
    "{\"mode\":" mode ",\"kept\":" kept ",\"layers\":" layers ",\"top_k\":" k                      \
    ",\"experts\":" experts ",\"source\":" source "}"

static void refused_headers(void **state) {
    (void)state;
    static const char *const good[] = {
        ROUTES("\"natural\"", "true", "3", "2", "7", "\"" ZEROS "\""),
        ROUTES("\"natural\"", "true", "3", "7", "7", "\"" ZEROS "\""),
        ROUTES("\"replay\"", "false", "3", "2", "7", "\"" SOME "\""),
        ROUTES("\"replay-ids\"", "false", "3", "2", "7", "\"" SOME "\""),
    };
    static const struct {
        const char *routes, *says;
    } bad[] = {
        {ROUTES("\"random\"", "true", "3", "2", "7", "\"" ZEROS "\""),
         "mode 'random' is not known"},
        {ROUTES("7", "true", "3", "2", "7", "\"" ZEROS "\""), "mode"},
        {ROUTES("\"natural\"", "1", "3", "2", "7", "\"" ZEROS "\""), "kept"},
        {ROUTES("\"natural\"", "true", "3", "8", "7", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "0", "2", "7", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "3", "0", "7", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "3", "2", "65537", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "100001", "2", "7", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "3", "1025", "2000", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"natural\"", "true", "-3", "2", "7", "\"" ZEROS "\""), "layers"},
        {ROUTES("\"natural\"", "true", "3", "2", "7", "\"" SOME "\""), "out of range"},
        {ROUTES("\"natural\"", "false", "3", "2", "7", "\"" ZEROS "\""), "says nothing"},
        {ROUTES("\"replay\"", "true", "3", "2", "7", "\"" SOME "\""), "out of range"},
        {ROUTES("\"replay\"", "false", "3", "2", "7", "\"" ZEROS "\""), "out of range"},
        {ROUTES("\"replay\"", "false", "0", "0", "0", "\"" SOME "\""), "out of range"},
        {ROUTES("\"replay\"", "false", "3", "2", "7", "\"ab\""), "'routes'"},
        {ROUTES("\"natural\"", "true", "3", "2", "7", "\"" ZEROS "\",\"x\":1"), "has 7 keys"},
        {"{\"mode\":\"natural\",\"kept\":true}", "layers"},
        {"[]", "routes"},
    };
    kld_err e = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (parse(good[i], &e) != KLD_OK) fail_msg("%s: %s", good[i], e.text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(bad[i].routes, &e), KLD_E_INPUT);
        if (!strstr(e.text, bad[i].says)) fail_msg("%zu: '%s' is no '%s'", i, e.text, bad[i].says);
    }
}

/* A writer refuses what a reader would. */
static void refused_writes(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "w.zst");
    kld_capture_info info = make_info(1, ROWS, VOCAB, LIST, 16);
    kld_capture_writer *w;
    kld_records r;
    kld_window_meta meta = make_meta(0, ROWS);
    info.routes = make_route_info(KLD_ROUTES_NATURAL, 0xab);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_E_INPUT);
    info.routes = make_route_info(KLD_ROUTES_NATURAL, 0);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    make_records(&r, ROWS, VOCAB, LIST, 16, 77, 1.6, 0, NULL);
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
    make_routes(&r, TOKENS, &info.routes, 3);
    size_t *const shape[] = {&r.route_tokens, &r.route_layers, &r.route_k};
    for (size_t i = 0; i < 3; i++) {
        --*shape[i];
        assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
        ++*shape[i];
    }
    uint32_t last = r.route_id[TOKENS * 6 - 1];
    const uint32_t wrong[] = {7, UINT32_MAX, r.route_id[TOKENS * 6 - 2]};
    for (size_t i = 0; i < 3; i++) {
        r.route_id[TOKENS * 6 - 1] = wrong[i];
        assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
    }
    r.route_id[TOKENS * 6 - 1] = last;
    if (kld_capture_add(w, &meta, &r, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    kld_records_free(&r);
    kld_capture_info_free(&info);
    free(path);
}

/* A partial with other routes is another run's. */
static void resumed(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "p.zst");
    kld_capture_info info = make_info(1, ROWS, VOCAB, LIST, 16);
    kld_capture_writer *w;
    size_t done;
    info.routes = make_route_info(KLD_ROUTES_REPLAYED, 0xab);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    kld_capture_leave(w);
    info.routes.source.b[0] = 0xcd;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "its 'routes' is"));
    info.routes = (kld_route_info){0};
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "this run's is absent"));
    info.routes = make_route_info(KLD_ROUTES_REPLAYED, 0xab);
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_OK);
    assert_int_equal(done, 0);
    kld_capture_abort(w);
    kld_capture_info_free(&info);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(replays, t_dir_make, t_dir_remove),
        cmocka_unit_test(refused_columns),
        cmocka_unit_test(an_expert_twice),
        cmocka_unit_test(refused_headers),
        cmocka_unit_test_setup_teardown(refused_writes, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(resumed, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests_name("capture_routes", tests, NULL, NULL);
}
