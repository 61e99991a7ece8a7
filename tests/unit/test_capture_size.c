/* The capture file at the default settings: bytes a position, by column; what rounding does to
 * the mean KL; time for a window of 2,047 positions. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <zstd.h>

enum { ROWS = 2047, K = 256 };

typedef struct sample {
    size_t vocab;
    double temper;
} sample;

static const sample samples[] = {
    {4096, 1.3}, {49152, 1.3}, {152064, 0.6}, {152064, 1.5}, {152064, 2.5}};
enum { SAMPLES = sizeof samples / sizeof *samples };

static kld_capture_info default_info(const sample *s, bool candidate) {
    kld_capture_info info = make_info(1, ROWS, s->vocab, K, candidate ? 0 : 16);
    info.has_reference = candidate;
    info.ref_top_k = candidate ? K : 0;
    info.ref_tail_samples = candidate ? 16 : 0;
    return info;
}

/* One window into path; seconds of add. */
static double write_one(const char *path, const sample *s, const kld_records *r,
                        const kld_records *ref) {
    kld_err e = {0};
    kld_capture_info info = default_info(s, ref != NULL);
    kld_window_meta meta = make_meta(0, ROWS);
    kld_capture_writer *w;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    double t = kld_seconds();
    if (kld_capture_add(w, &meta, r, ref, &e) != KLD_OK) fail_msg("%s", e.text);
    t = kld_seconds() - t;
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    kld_capture_info_free(&info);
    return t;
}

/* The window back; seconds of read, bytes of the file. */
static double read_one(const char *path, const kld_records *ref, kld_records *out, double *bytes) {
    kld_err e = {0};
    kld_capture *c;
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    double t = kld_seconds();
    if (kld_capture_read(c, 0, ref, out, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
    t = kld_seconds() - t;
    *bytes = (double)kld_capture_bytes(c);
    kld_capture_close(c);
    return t;
}

static void print_columns(const sample *s, const kld_records *r, const kld_records *ref) {
    static const char *const name[COL_END] = {
        "",         "count",    "ids",     "lp",     "label",       "label_lp", "lse",  "entropy",
        "tailmass", "tail_ids", "tail_lp", "ref_lp", "ref_tail_lp", "extra",    "top1", "wide"};
    kld_err e = {0};
    kld_capture_info info = default_info(s, ref != NULL);
    kld_window_meta meta = make_meta(0, ROWS);
    kld_buf frame = {0}, head = {0}, text = {0};
    assert_int_equal(frame_encode(&info, &meta, r, ref, &frame, &head, &e), KLD_OK);
    assert_int_equal(frame_inflate(frame.data, frame.len, (size_t)1 << 30, &text, &e), KLD_OK);
    kld_cursor in = kld_cursor_of(text.data + head.len, text.len - head.len);
    printf("    %s:", ref ? "candidate" : "reference");
    while (kld_cursor_left(&in) > 0) {
        size_t id = kld_cursor_u8(&in), n = 4 * (size_t)kld_cursor_u32(&in);
        const void *p = kld_cursor_take(&in, n);
        assert_non_null(p);
        size_t room = ZSTD_compressBound(n);
        void *to = malloc(room);
        printf(" %s %.1f", name[id], (double)ZSTD_compress(to, room, p, n, 9) / ROWS);
        free(to);
    }
    printf("\n");
    kld_buf_free(&frame);
    kld_buf_free(&head);
    kld_buf_free(&text);
    kld_capture_info_free(&info);
}

/* sum over the list of p (lp - lq), from these values. */
static double listed_kl(const kld_records *r, const kld_records *q, size_t i) {
    double kl = 0;
    for (size_t j = 0; j < r->count[i]; j++) {
        double p = r->lp[i * r->k_ld + j];
        kl += exp(p) * (p - q->ref_lp[i * q->ref_ld + j]);
    }
    return kl;
}

static void sizes(void **state) {
    char *rp = t_path(*state, "r.zst"), *cp = t_path(*state, "c.zst");
    for (size_t k = 0; k < SAMPLES; k++) {
        const sample *s = &samples[k];
        kld_records r, rr, q, qq;
        double rb, cb, ids = 0, moved = 0, kl = 0;
        pool_records(&r, ROWS, s->vocab, 40 + k, s->temper, 0, NULL);
        double wr = write_one(rp, s, &r, NULL), tr = read_one(rp, NULL, &rr, &rb);
        pool_records(&q, ROWS, s->vocab, 40 + k, s->temper, 0.3, &rr);
        double wc = write_one(cp, s, &q, &rr), tc = read_one(cp, &rr, &qq, &cb);
        for (size_t i = 0; i < ROWS; i++) {
            ids += r.count[i];
            kl += listed_kl(&r, &q, i);
            moved += listed_kl(&rr, &qq, i) - listed_kl(&r, &q, i);
        }
        printf("V %6zu, exponent %.1f: %5.1f ids, reference %4.0f B, candidate %4.0f B a position; "
               "KL %.4f moved by %+.1e; write %.3f + %.3f s, read %.3f + %.3f s\n",
               s->vocab, s->temper, ids / ROWS, rb / ROWS, cb / ROWS, kl / ROWS, moved / ROWS, wr,
               wc, tr, tc);
        print_columns(s, &r, NULL);
        print_columns(s, &q, &rr);
        assert_true(rb / ROWS <= 1024 && cb / ROWS <= 1024);
        assert_true(fabs(moved / ROWS) < 1e-6);
        kld_records_free(&r);
        kld_records_free(&rr);
        kld_records_free(&q);
        kld_records_free(&qq);
    }
    free(rp);
    free(cp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sizes, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
