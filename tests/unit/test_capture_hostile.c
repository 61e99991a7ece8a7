/* A writer that lies: frames whose checksums are right and whose numbers are no probabilities, or
 * in the order that costs a reader most. */
#include "kld/base/mem.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"
#include "kld/store/info.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <math.h>

/* A window of one row with one listed id and one draw. */
typedef struct row {
    double lp, draw;
    float label, tail;
} row;

static kld_status decode(const row *v, kld_err *e) {
    kld_capture_info info = make_info(1, 1, 40, 12, 1);
    window_head head = {.rows = 1, .meta = make_meta(0, 1)};
    head.meta.tokens = 2;
    head.meta.score_from = 0;
    kld_buf text = {0};
    columns c = {0};
    kld_records r;
    double rounded;
    assert_int_equal(head_write(&head, &text, e), KLD_OK);
    assert_int_equal(column_add(&c.col[COL_COUNT], 1, e), KLD_OK);
    assert_int_equal(column_add(&c.col[COL_IDS], 7, e), KLD_OK);
    assert_int_equal(lp_add(&c, COL_LP, v->lp, 0, 1, &rounded, e), KLD_OK);
    assert_int_equal(column_add(&c.col[COL_LABEL], 3, e), KLD_OK);
    assert_int_equal(column_add_f32(&c.col[COL_LABEL_LP], v->label, e), KLD_OK);
    assert_int_equal(column_add_f32(&c.col[COL_LSE], 1, e), KLD_OK);
    assert_int_equal(column_add_f32(&c.col[COL_ENTROPY], 1, e), KLD_OK);
    assert_int_equal(column_add_f32(&c.col[COL_TAIL_MASS], v->tail, e), KLD_OK);
    if (v->tail > 0) {
        assert_int_equal(column_add(&c.col[COL_TAIL_IDS], 9, e), KLD_OK);
        assert_int_equal(lp_add(&c, COL_TAIL_LP, v->draw, 0, 0, &rounded, e), KLD_OK);
    }
    assert_int_equal(columns_write(&c, &text, e), KLD_OK);
    kld_status st = frame_records(&info, &text, NULL, false, &r, e);
    if (st == KLD_OK) kld_records_free(&r);
    columns_free(&c);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
    return st;
}

static void impossible_probabilities(void **state) {
    (void)state;
    kld_err e = {0};
    const row good = {.lp = -0.5, .draw = -2, .label = -3, .tail = 0.3f};
    if (decode(&good, &e) != KLD_OK) fail_msg("%s", e.text);
    static const struct {
        row v;
        const char *says;
    } bad[] = {
        {{100, -2, -3, 0.3f}, "more than 1"},  {{0.1, -2, -3, 0}, "more than 1"},
        {{-0.5, -2, -3, NAN}, "no numbers"},   {{-0.5, -2, -3, -0.1f}, "no numbers"},
        {{-0.5, -2, -3, INFINITY}, "than 1"},  {{-0.5, -2, -3, 0.5f}, "more than 1"},
        {{-0.5, -2, NAN, 0.3f}, "next token"}, {{-0.5, -2, 0.5f, 0.3f}, "next token"},
        {{-0.5, 3, -3, 0.3f}, "a draw"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(decode(&bad[i].v, &e), KLD_E_INPUT);
        if (!strstr(e.text, bad[i].says) || !strstr(e.text, "row 0"))
            fail_msg("%zu: '%s' does not say '%s'", i, e.text, bad[i].says);
    }
}

/* The same of a candidate's answers; a writer refuses what a reader would. */
static void impossible_answers(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst");
    kld_capture_info info = make_info(1, 4, 40, 12, 0);
    info.has_reference = true;
    info.ref_top_k = 12;
    info.ref_tail_samples = 16;
    kld_records ref, r;
    make_records(&ref, 4, 40, 12, 16, 77, 1.5, 0, NULL);
    make_records(&r, 4, 40, 12, 0, 77, 1.5, 0.3, &ref);
    kld_window_meta meta = make_meta(0, 4);
    kld_capture_writer *w;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    double *at[] = {&r.ref_lp[0], &r.ref_tail_lp[0], &r.lp[0]};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        double was = *at[i];
        *at[i] = 0.2;
        assert_int_equal(kld_capture_add(w, &meta, &r, &ref, &e), KLD_E_NUMERIC);
        *at[i] = was;
    }
    assert_int_equal(kld_capture_add(w, &meta, &r, &ref, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    kld_records_free(&r);
    kld_records_free(&ref);
    kld_capture_info_free(&info);
    free(path);
}

/* A list that is slow to put in order: all but its ends are equal, and the reference has their ids
 * from the largest down. */
static void mostly_equal(void **state) {
    (void)state;
    enum { N = 250, VOCAB = 300 };
    kld_err e = {0};
    kld_capture_info info = make_info(1, 1, VOCAB, N, 0);
    info.has_reference = true;
    info.ref_top_k = N;
    kld_window_meta meta = make_meta(0, 1);
    kld_records ref, r, got;
    kld_buf frame = {0}, head = {0}, text = {0};
    assert_int_equal(kld_records_alloc(&ref, 1, N, 0, 0, 0, &e), KLD_OK);
    assert_int_equal(kld_records_alloc(&r, 1, N, 0, N, 0, &e), KLD_OK);
    ref.first = r.first = 2;
    ref.count[0] = r.count[0] = N;
    for (size_t j = 0; j < N; j++) {
        bool inner = j > 0 && j < N - 1;
        ref.ids[j] = (uint32_t)(VOCAB - 1 - j);
        ref.lp[j] = j ? -9 - (double)j * 0x1p-7 : -0.125;
        r.ref_lp[j] = r.lp[j] = j == 0 ? -0.125 : inner ? -9 : -30;
        r.ids[j] = (uint32_t)(inner ? VOCAB - N + j : VOCAB - 1 - j);
    }
    if (frame_encode(&info, &meta, &r, &ref, &frame, &head, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(frame_inflate(frame.data, frame.len, 1 << 20, &text, &e), KLD_OK);
    if (frame_records(&info, &text, &ref, false, &got, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_memory_equal(got.ids, r.ids, N * sizeof *r.ids);
    assert_memory_equal(got.lp, r.lp, N * sizeof *r.lp);
    kld_records_free(&got);
    kld_records_free(&r);
    kld_records_free(&ref);
    kld_buf_free(&frame);
    kld_buf_free(&head);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
}

/* What kld inspect prints must not drive the terminal. */
static void strings_that_act(void **state) {
    (void)state;
    static const char *const name[] = {"a\x1b[31m", "a\nb", "a\x7f",
                                       "\xC2\x9B"
                                       "31m"};
    static const char run[] = "{\"time\":\"\",\"host\":\"\"}";
    for (size_t i = 0; i <= sizeof name / sizeof *name + 1; i++) {
        kld_err e = {0};
        kld_capture_info info = make_info(1, 1, 40, 12, 1), got;
        kld_buf b = {0};
        bool named = i < sizeof name / sizeof *name;
        if (named) {
            kld_free(info.name);
            assert_int_equal(kld_strdup(&info.name, name[i], &e), KLD_OK);
            assert_int_equal(kld_info_check(&info, &e), KLD_E_INPUT);
        } else {
            assert_int_equal(json_object_set_new(info.engine, "device",
                                                 i % 2 ? json_integer(1) : json_string("\x1b")),
                             0);
        }
        assert_int_equal(kld_info_identity(&info, &b, &e), KLD_OK);
        assert_int_equal(kld_info_parse(&got, b.data, b.len, run, sizeof run - 1, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, named ? "'name' holds a control" : "'engine'"));
        kld_buf_free(&b);
        kld_capture_info_free(&info);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_probabilities),
        cmocka_unit_test(strings_that_act),
        cmocka_unit_test(mostly_equal),
        cmocka_unit_test_setup_teardown(impossible_answers, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
