/* Hidden states in a capture: as they were put in, alone and beside everything else; refusals. */
#include "kld/base/mem.h"
#include "kld/store/capture.h"
#include "kld/store/frame.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <string.h>

enum { ROWS = 9, VOCAB = 60, LIST = 20 };

static kld_hidden_info kind(size_t cols, size_t bytes) {
    return (kld_hidden_info){.cols = cols, .bytes = bytes, .logit_cap = 30, .head = {{0xab, 1}}};
}

static void fill(kld_records *r, const kld_hidden_info *h, uint64_t seed) {
    kld_err e;
    if (!h->cols) return;
    assert_int_equal(kld_records_alloc_hidden(r, (size_t)h->cols, (size_t)h->bytes, &e), KLD_OK);
    unsigned char *p = r->hidden;
    for (size_t i = 0; i < r->n * h->cols * h->bytes; i++)
        p[i] = (unsigned char)(256 * unit(seed, i));
}

static kld_status put(const char *path, const kld_hidden_info *h, const kld_hidden_info *kept,
                      const char *ref_path, kld_err *e) {
    kld_capture_info info = make_info(1, ROWS, VOCAB, LIST, ref_path ? 0 : 16);
    kld_records r, rr = {0};
    kld_capture *ref = NULL;
    kld_capture_writer *w;
    info.hidden = *h;
    if (ref_path) {
        assert_int_equal(kld_capture_open(&ref, ref_path, e), KLD_OK);
        assert_int_equal(kld_capture_read(ref, 0, NULL, &rr, NULL, e), KLD_OK);
        assert_null(rr.hidden);
        info.has_reference = true;
        info.reference = kld_capture_digest(ref);
        info.ref_top_k = LIST;
        info.ref_tail_samples = 16;
    }
    kld_status st = kld_capture_create(&w, path, &info, e);
    if (st == KLD_OK) {
        kld_window_meta meta = make_meta(0, ROWS);
        make_records(&r, ROWS, VOCAB, LIST, ref ? 0 : 16, 77, 1.6, ref ? 0.3 : 0, ref ? &rr : NULL);
        fill(&r, kept, 5);
        st = kld_capture_add(w, &meta, &r, ref ? &rr : NULL, e);
        if (st == KLD_OK) st = kld_capture_finish(w, e);
        else kld_capture_abort(w);
        kld_records_free(&r);
    }
    kld_records_free(&rr);
    kld_capture_close(ref);
    kld_capture_info_free(&info);
    return st;
}

static void check(const char *path, const kld_hidden_info *h) {
    kld_capture *c;
    kld_records got, want = {.n = ROWS};
    kld_err e = {0};
    if (kld_capture_open(&c, path, &e) != KLD_OK) fail_msg("%s", e.text);
    const kld_hidden_info *i = &kld_capture_header(c)->hidden;
    assert_true(i->cols == h->cols && i->bytes == h->bytes && i->logit_cap == 30);
    assert_memory_equal(&i->head, &h->head, sizeof h->head);
    assert_int_equal(kld_capture_verify(c, &e), KLD_OK);
    if (kld_capture_read_hidden(c, 0, &got, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_true(got.n == ROWS && got.first == 2 && got.hidden_cols == h->cols);
    assert_int_equal(got.hidden_bytes, h->bytes);
    assert_null(got.lp);
    fill(&want, h, 5);
    assert_memory_equal(got.hidden, want.hidden, ROWS * h->cols * h->bytes);
    kld_records_free(&got);
    kld_records_free(&want);
    kld_capture_close(c);
}

/* Odd and even numbers of columns, both types, of references and candidates. */
static void round_trip(void **state) {
    static const size_t COLS[] = {1, 2, 7, 64};
    char *rp = t_path(*state, "r.zst"), *cp = t_path(*state, "c.zst");
    for (size_t k = 0; k < 4; k++)
        for (size_t bytes = 2; bytes <= 4; bytes += 2) {
            kld_err e = {0};
            kld_hidden_info h = kind(COLS[k], bytes);
            if (put(rp, &h, &h, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
            check(rp, &h);
            if (put(cp, &h, &h, rp, &e) != KLD_OK) fail_msg("%s", e.text);
            check(cp, &h);
        }
    free(rp);
    free(cp);
}

/* A capture without them has the bytes it always had, and says so when asked. */
static void without(void **state) {
    kld_err e = {0};
    kld_capture *c;
    kld_records r;
    char *path = t_path(*state, "n.zst");
    kld_hidden_info none = {0};
    assert_int_equal(put(path, &none, &none, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_int_equal(kld_capture_read_hidden(c, 0, &r, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "keeps no hidden states"));
    kld_capture_close(c);
    free(path);
}

static void refused(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "x.zst");
    kld_hidden_info h = kind(8, 2), other[] = {kind(7, 2), kind(8, 4), {0}};
    for (size_t k = 0; k < 3; k++)
        assert_int_equal(put(path, &h, &other[k], NULL, &e), KLD_E_INTERNAL);
    kld_hidden_info bad[] = {kind(8, 3), kind((size_t)1 << 21, 2), kind(8, 2)};
    bad[2].logit_cap = -1;
    for (size_t k = 0; k < 3; k++) {
        assert_int_equal(put(path, &bad[k], &h, NULL, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "'hidden'"));
    }
    free(path);
}

/* Columns that are not those that the header promises. */
static void wrong_columns(void **state) {
    (void)state;
    kld_err e = {0};
    kld_capture_info info = make_info(1, ROWS, VOCAB, LIST, 16), claims = info;
    kld_window_meta meta = make_meta(0, ROWS);
    kld_records r, got;
    kld_buf frame = {0}, head = {0}, text = {0};
    info.hidden = kind(8, 2);
    make_records(&r, ROWS, VOCAB, LIST, 16, 77, 1.6, 0, NULL);
    fill(&r, &info.hidden, 5);
    assert_int_equal(frame_encode(&info, &meta, &r, NULL, &frame, &head, &e), KLD_OK);
    assert_int_equal(frame_inflate(frame.data, frame.len, 1 << 20, &text, &e), KLD_OK);
    assert_int_equal(frame_records(&info, &text, NULL, false, &got, &e), KLD_OK);
    kld_records_free(&got);
    const kld_hidden_info says[] = {kind(10, 2), kind(8, 4), {0}};
    for (size_t k = 0; k < 3; k++) {
        claims.hidden = says[k];
        assert_int_equal(frame_records(&claims, &text, NULL, false, &got, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "hidden states"));
        assert_int_equal(frame_hidden(&claims, &text, &got, &e), KLD_E_INPUT);
    }
    for (size_t n = 1; n < 6; n++) {
        kld_mem_fail_after(n);
        kld_status st = frame_hidden(&info, &text, &got, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) kld_records_free(&got);
        else assert_int_equal(st, KLD_E_NOMEM);
    }
    kld_records_free(&r);
    kld_buf_free(&frame);
    kld_buf_free(&head);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(without, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(refused, t_dir_make, t_dir_remove),
        cmocka_unit_test(wrong_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
