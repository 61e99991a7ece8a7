/* The capture file: round trips, damage, truncation, resume, size and rounding. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/philox.h"
#include "kld/store/capture.h"

#include "tests/unit/t.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VOCAB = 300 };

static double unit(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 0);
    return kld_philox_unit(b.v[0], b.v[1]);
}

static double gauss(uint64_t key, uint64_t i) {
    return sqrt(-2 * log(unit(key, 2 * i))) * cos(6.283185307179586 * unit(key, 2 * i + 1));
}

typedef struct weighed {
    double lp;
    uint32_t id;
} weighed;

static int descending(const void *a, const void *b) {
    const weighed *x = a, *y = b;
    if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Full log-probabilities of row i: Zipf-like with noise; `shift` makes a candidate of it. */
static void full_row(uint64_t seed, size_t i, size_t vocab, double temper, double shift,
                     double *lp) {
    double max = -INFINITY, sum = 0;
    for (size_t v = 0; v < vocab; v++) {
        uint64_t at = i * vocab + v;
        lp[v] = -temper * log(1.0 + (double)((v * 7919 + i * 104729) % vocab)) + gauss(seed, at) +
                shift * gauss(seed + 1, at);
        max = fmax(max, lp[v]);
    }
    for (size_t v = 0; v < vocab; v++) sum += exp(lp[v] - max);
    for (size_t v = 0; v < vocab; v++) lp[v] -= max + log(sum);
}

/* Records of n rows made from full_row; `ref` = records to report at, or NULL. */
static void make_records(kld_records *r, size_t n, size_t vocab, size_t k, size_t m, uint64_t seed,
                         double temper, double shift, const kld_records *ref) {
    kld_err e;
    assert_int_equal(kld_records_alloc(r, n, k, m, ref ? ref->k_ld : 0, ref ? ref->m : 0, &e),
                     KLD_OK);
    double *lp = malloc(vocab * sizeof *lp);
    weighed *w = malloc(vocab * sizeof *w);
    for (size_t i = 0; i < n; i++) {
        full_row(seed, i, vocab, temper, shift, lp);
        for (size_t v = 0; v < vocab; v++) w[v] = (weighed){lp[v], (uint32_t)v};
        qsort(w, vocab, sizeof *w, descending);
        double left = 1;
        size_t c = 0;
        while (c < k && c < vocab && (c < 10 || left > 1e-3)) {
            r->ids[i * k + c] = w[c].id;
            r->lp[i * k + c] = w[c].lp;
            left -= exp(w[c++].lp);
        }
        r->count[i] = (uint32_t)c;
        r->tail_mass[i] = c < vocab ? (float)fmax(left, 1e-9) : 0;
        r->label[i] = (uint32_t)(unit(seed + 2, i) * (double)vocab);
        r->label_lp[i] = i == 0 ? -22.0f : (float)lp[r->label[i]];
        r->lse[i] = (float)(20 * unit(seed + 3, i));
        r->entropy[i] = (float)unit(seed + 4, i);
        for (size_t j = 0; j < m; j++) {
            bool has = c < vocab;
            size_t pick = has ? c + (size_t)(unit(seed + 5, i * m + j) * (double)(vocab - c)) : 0;
            r->tail_ids[i * m + j] = has ? w[pick].id : UINT32_MAX;
            r->tail_lp[i * m + j] = has ? w[pick].lp : NAN;
        }
        if (!ref) continue;
        for (size_t j = 0; j < ref->count[i]; j++)
            r->ref_lp[i * ref->k_ld + j] = lp[ref->ids[i * ref->k_ld + j]];
        for (size_t j = 0; j < ref->m; j++) {
            uint32_t id = ref->tail_ids[i * ref->m + j];
            r->ref_tail_lp[i * ref->m + j] = id == UINT32_MAX ? NAN : lp[id];
        }
    }
    free(lp);
    free(w);
}

static kld_capture_info make_info(size_t windows, size_t rows, size_t vocab, size_t k, size_t m) {
    kld_err e;
    kld_capture_info i = {.vocab = vocab,
                          .vocab_rows = vocab,
                          .windows = windows,
                          .positions = windows * rows,
                          .top_k = k,
                          .min_k = k < 10 ? k : 10,
                          .tail_samples = m,
                          .tail_mass = 1e-3,
                          .seed = 1};
    assert_int_equal(kld_strdup(&i.name, "tiny", &e), KLD_OK);
    assert_int_equal(kld_strdup(&i.time, "2026-01-01T00:00:00Z", &e), KLD_OK);
    i.engine = json_pack("{s:s}", "arithmetic", "test");
    return i;
}

static kld_window_meta make_meta(size_t i, size_t rows) {
    static const char *const cluster[] = {"a", "b", "c"};
    kld_window_meta m = {.tokens = rows + 3,
                         .score_from = 2,
                         .offset = 100 * i,
                         .source = "src",
                         .cluster = cluster[i % 3],
                         .stratum = "",
                         .partition = "analysis"};
    m.ids.b[0] = (unsigned char)i;
    return m;
}

/* Write `windows` windows of `rows` rows; a candidate when ref_path is given. */
static void write_capture(const char *path, size_t windows, size_t rows, size_t vocab, size_t k,
                          double temper, const char *ref_path) {
    kld_err e = {0};
    kld_capture *ref = NULL;
    kld_capture_info info = make_info(windows, rows, vocab, k, ref_path ? 0 : 16);
    if (ref_path) {
        assert_int_equal(kld_capture_open(&ref, ref_path, &e), KLD_OK);
        info.has_reference = true;
        info.reference = kld_capture_digest(ref);
        info.ref_top_k = k;
        info.ref_tail_samples = 16;
    }
    kld_capture_writer *w;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    for (size_t i = 0; i < windows; i++) {
        kld_records r, rr = {0};
        if (ref) assert_int_equal(kld_capture_read(ref, i, NULL, &rr, NULL, &e), KLD_OK);
        make_records(&r, rows, vocab, k, ref ? 0 : 16, 77 + i, temper, ref ? 0.3 : 0,
                     ref ? &rr : NULL);
        kld_window_meta meta = make_meta(i, rows);
        if (kld_capture_add(w, &meta, &r, ref ? &rr : NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_records_free(&r);
        kld_records_free(&rr);
    }
    if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_capture_close(ref);
    kld_capture_info_free(&info);
}

static void check_list(const kld_records *got, const kld_records *want, size_t i) {
    assert_int_equal(got->count[i], want->count[i]);
    assert_int_equal(got->ids[i * got->k_ld], want->ids[i * want->k_ld]);
    for (size_t j = 0; j < got->count[i]; j++) {
        double lp = want->lp[i * want->k_ld + j], d = fabs(got->lp[i * got->k_ld + j] - lp);
        assert_true(d <= (j < 8 && got->ref_ld == 0 ? 0x1p-21 : 0x1p-14) + 1e-12 ||
                    (got->ref_ld && d <= 0x1p-13));
        if (!got->ref_ld)
            assert_int_equal(got->ids[i * got->k_ld + j], want->ids[i * want->k_ld + j]);
    }
}

static void round_trip(void **state) {
    kld_err e = {0};
    char *rp = t_path(*state, "ref.zst"), *cp = t_path(*state, "c.zst");
    write_capture(rp, 3, 21, VOCAB, 64, 1.6, NULL);
    write_capture(cp, 3, 21, VOCAB, 64, 1.6, rp);
    kld_capture *ref, *c;
    assert_int_equal(kld_capture_open(&ref, rp, &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, cp, &e), KLD_OK);
    assert_int_equal(kld_capture_verify(ref, &e), KLD_OK);
    assert_int_equal(kld_capture_verify(c, &e), KLD_OK);
    assert_string_equal(kld_capture_header(ref)->name, "tiny");
    for (size_t i = 0; i < 3; i++) {
        kld_records r, q, wr, wq;
        kld_window_meta meta;
        assert_int_equal(kld_capture_read(ref, i, NULL, &r, &meta, &e), KLD_OK);
        assert_string_equal(meta.cluster, make_meta(i, 21).cluster);
        assert_int_equal(meta.ids.b[0], i);
        assert_int_equal(meta.offset, 100 * i);
        make_records(&wr, 21, VOCAB, 64, 16, 77 + i, 1.6, 0, NULL);
        make_records(&wq, 21, VOCAB, 64, 0, 77 + i, 1.6, 0.3, &r);
        assert_int_equal(kld_capture_read(c, i, NULL, &q, NULL, &e), KLD_E_INPUT);
        if (kld_capture_read(c, i, &r, &q, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        assert_true(r.label_lp[0] == -22.0f); /* T4 */
        assert_int_equal(r.first, 2);
        for (size_t t = 0; t < 21; t++) {
            check_list(&r, &wr, t);
            check_list(&q, &wq, t);
            assert_memory_equal(&r.lse[t], &wr.lse[t], sizeof(float));
            assert_memory_equal(&q.tail_mass[t], &wq.tail_mass[t], sizeof(float));
            for (size_t j = 0; j < 16; j++) {
                assert_int_equal(r.tail_ids[t * 16 + j], wr.tail_ids[t * 16 + j]);
                assert_true(fabs(r.tail_lp[t * 16 + j] - wr.tail_lp[t * 16 + j]) <=
                            0x1p-14 + 1e-12);
                assert_true(fabs(q.ref_tail_lp[t * 16 + j] - wq.ref_tail_lp[t * 16 + j]) <=
                            0x1p-14 + 1e-12);
            }
            for (size_t j = 0; j < r.count[t]; j++)
                assert_true(fabs(q.ref_lp[t * q.ref_ld + j] - wq.ref_lp[t * wq.ref_ld + j]) <=
                            (j < 8 ? 0x1p-21 : 0x1p-14) + 1e-12);
        }
        kld_records_free(&r);
        kld_records_free(&q);
        kld_records_free(&wr);
        kld_records_free(&wq);
    }
    kld_capture_close(ref);
    kld_capture_close(c);
    free(rp);
    free(cp);
}

/* -inf, values far off the grid, rows that are not finite, a list that covers everything. */
static void odd_values(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "odd.zst");
    kld_capture_info info = make_info(1, 3, 4, 4, 2);
    kld_records r, got;
    assert_int_equal(kld_records_alloc(&r, 3, 4, 2, 0, 0, &e), KLD_OK);
    static const double lp[4] = {-1e-9, -700.5, -5000.25, -1e7};
    for (size_t j = 0; j < 4; j++) {
        r.ids[j] = (uint32_t)(3 - j);
        r.lp[j] = lp[j];
    }
    r.count[0] = 4;
    r.label_lp[0] = -INFINITY;
    r.count[1] = 0; /* not finite */
    r.label_lp[1] = r.lse[1] = r.entropy[1] = r.tail_mass[1] = NAN;
    r.count[2] = 1;
    r.ids[8] = 2;
    r.lp[8] = -0.5;
    r.tail_mass[2] = 0.25f;
    r.tail_ids[4] = 0;
    r.tail_ids[5] = 1;
    r.tail_lp[4] = -INFINITY;
    r.tail_lp[5] = -3;
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 2; j++) r.tail_ids[i * 2 + j] = UINT32_MAX;
    kld_capture_writer *w;
    kld_window_meta meta = make_meta(0, 3);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    kld_capture *c;
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    if (kld_capture_read(c, 0, NULL, &got, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_true(got.lp[0] == 0 && got.lp[1] == -700.5 && got.lp[2] == -5000.25 &&
                got.lp[3] == -1e7);
    assert_true(got.label_lp[0] == -INFINITY);
    assert_true(isnan(got.lse[1]) && got.count[1] == 0);
    assert_true(got.tail_lp[4] == -INFINITY && got.tail_lp[5] == -3);
    assert_int_equal(got.tail_ids[0], UINT32_MAX);
    kld_records_free(&got);
    kld_records_free(&r);
    kld_capture_close(c);
    kld_capture_info_free(&info);
    free(path);
}

static kld_status read_all(const char *path, kld_capture *ref, kld_err *e) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, e));
    kld_status st = kld_capture_verify(c, e);
    for (size_t i = 0; st == KLD_OK && i < kld_capture_header(c)->windows; i++) {
        kld_records r = {0}, q;
        kld_window_meta meta;
        if (ref) st = kld_capture_read(ref, i, NULL, &r, NULL, e);
        if (st == KLD_OK) st = kld_capture_read(c, i, ref ? &r : NULL, &q, &meta, e);
        if (st == KLD_OK) kld_records_free(&q);
        kld_records_free(&r);
    }
    kld_capture_close(c);
    return st;
}

/* T31: every single flipped bit and every truncation is refused, in one line. */
static void damage(void **state) {
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *bad = t_path(*state, "bad.zst");
    write_capture(good, 2, 4, 40, 12, 1.5, NULL);
    kld_buf b = {0};
    assert_int_equal(kld_file_slurp(good, 1 << 20, &b, &e), KLD_OK);
    FILE *f = fopen(bad, "wb+");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    fwrite(b.data, 1, b.len, f);
    for (size_t bit = 0; bit < 8 * b.len; bit++) {
        unsigned char byte = b.data[bit / 8] ^ (unsigned char)(1u << bit % 8);
        fseek(f, (long)(bit / 8), SEEK_SET);
        fwrite(&byte, 1, 1, f);
        kld_status st = read_all(bad, NULL, &e);
        if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED)
            fail_msg("bit %zu of byte %zu of %zu: status %d", bit % 8, bit / 8, b.len, (int)st);
        assert_non_null(strstr(e.text, "bad.zst"));
        fseek(f, (long)(bit / 8), SEEK_SET);
        fwrite(&b.data[bit / 8], 1, 1, f);
    }
    assert_int_equal(read_all(bad, NULL, &e), KLD_OK);
    for (size_t n = b.len; n-- > 0;) {
        assert_int_equal(ftruncate(fileno(f), (off_t)n), 0);
        if (read_all(bad, NULL, &e) != KLD_E_INPUT) fail_msg("cut to %zu bytes", n);
    }
    fclose(f);
    kld_buf_free(&b);
    free(good);
    free(bad);
}

static kld_status write_from(kld_capture_writer *w, size_t from, size_t windows, size_t rows,
                             kld_err *e) {
    for (size_t i = from; i < windows; i++) {
        kld_records r;
        make_records(&r, rows, 40, 12, 16, 77 + i, 1.5, 0, NULL);
        kld_window_meta meta = make_meta(i, rows);
        kld_status st = kld_capture_add(w, &meta, &r, NULL, e);
        kld_records_free(&r);
        if (st != KLD_OK) return st;
    }
    return KLD_OK;
}

/* T30: whatever was on disk when the run died, resume ends in the same bytes. */
static void resume(void **state) {
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *path = t_path(*state, "p.zst");
    char *part = t_path(*state, "p.zst.partial");
    write_capture(good, 3, 4, 40, 12, 1.5, NULL);
    kld_buf b = {0}, got = {0};
    assert_int_equal(kld_file_slurp(good, 1 << 20, &b, &e), KLD_OK);
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    size_t worst = 0;
    for (size_t n = 0; n <= b.len; n++) {
        FILE *f = fopen(part, "wb");
        fwrite(b.data, 1, n, f);
        fclose(f);
        kld_capture_writer *w;
        size_t done;
        kld_status st = kld_capture_resume(&w, path, &info, &done, &e);
        if (st != KLD_OK) { /* only when even the header is torn */
            assert_int_equal(st, KLD_E_INPUT);
            worst = n;
            continue;
        }
        assert_int_equal(write_from(w, done, 3, 4, &e), KLD_OK);
        if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_buf_clear(&got);
        assert_int_equal(kld_file_slurp(path, 1 << 20, &got, &e), KLD_OK);
        assert_int_equal(got.len, b.len);
        assert_memory_equal(got.data, b.data, b.len);
    }
    assert_true(worst < 1400); /* the header frame */
    /* Another time and host is the same run; another model is not, and is named. */
    FILE *f = fopen(part, "wb");
    fwrite(b.data, 1, b.len / 2, f);
    fclose(f);
    kld_capture_writer *w;
    size_t done;
    info.model.b[0] ^= 1;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'model'"));
    info.model.b[0] ^= 1;
    info.time[0] = '3';
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_OK);
    kld_capture_abort(w);
    assert_false(kld_path_exists(part));
    kld_buf_free(&b);
    kld_buf_free(&got);
    kld_capture_info_free(&info);
    free(good);
    free(path);
    free(part);
}

static void full_disk(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "p.zst"), *good = t_path(*state, "good.zst");
    write_capture(good, 3, 4, 40, 12, 1.5, NULL);
    struct rlimit old, cut;
    getrlimit(RLIMIT_FSIZE, &old);
    cut = old;
    cut.rlim_cur = 2000;
    signal(SIGXFSZ, SIG_IGN);
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    kld_capture_writer *w;
    setrlimit(RLIMIT_FSIZE, &cut);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    kld_status st = write_from(w, 0, 3, 4, &e);
    if (st == KLD_OK) st = kld_capture_finish(w, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, KLD_E_IO);
    kld_capture_leave(w);
    size_t done;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_OK);
    assert_int_equal(write_from(w, done, 3, 4, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    assert_int_equal(read_all(path, NULL, &e), KLD_OK);
    kld_capture_info_free(&info);
    free(path);
    free(good);
}

static void out_of_memory(void **state) {
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *cp = t_path(*state, "c.zst");
    write_capture(good, 2, 4, 40, 12, 1.5, NULL);
    write_capture(cp, 2, 4, 40, 12, 1.5, good);
    kld_capture *ref;
    assert_int_equal(kld_capture_open(&ref, good, &e), KLD_OK);
    kld_status st = KLD_E_NOMEM;
    size_t n = 0;
    while (st == KLD_E_NOMEM && n < 5000) {
        kld_mem_fail_after(++n);
        st = read_all(cp, ref, &e);
        kld_mem_fail_after(0);
    }
    assert_int_equal(st, KLD_OK);
    assert_true(n > 20);
    kld_capture_close(ref);
    free(good);
    free(cp);
}

/* Bytes a position at the default settings, and what rounding does to the mean KL. */
static void size_and_rounding(void **state) {
    kld_err e = {0};
    static const struct {
        size_t vocab, rows;
        double temper;
    } cases[] = {{4096, 127, 1.2}, {49152, 48, 1.3}, {152064, 24, 1.5}};
    for (size_t k = 0; k < 3; k++) {
        size_t V = cases[k].vocab, n = cases[k].rows;
        char *rp = t_path(*state, "r.zst"), *cp = t_path(*state, "c.zst");
        double t0 = kld_seconds();
        write_capture(rp, 1, n, V, 256, cases[k].temper, NULL);
        write_capture(cp, 1, n, V, 256, cases[k].temper, rp);
        kld_capture *ref, *c;
        kld_records r, q, wr, wq;
        assert_int_equal(kld_capture_open(&ref, rp, &e), KLD_OK);
        assert_int_equal(kld_capture_open(&c, cp, &e), KLD_OK);
        double t1 = kld_seconds();
        assert_int_equal(kld_capture_read(ref, 0, NULL, &r, NULL, &e), KLD_OK);
        assert_int_equal(kld_capture_read(c, 0, &r, &q, NULL, &e), KLD_OK);
        double t2 = kld_seconds();
        make_records(&wr, n, V, 256, 16, 77, cases[k].temper, 0, NULL);
        make_records(&wq, n, V, 256, 0, 77, cases[k].temper, 0.3, &r);
        double exact = 0, stored = 0, ids = 0;
        for (size_t i = 0; i < n; i++) {
            ids += r.count[i];
            for (size_t j = 0; j < r.count[i]; j++) {
                double p = wr.lp[i * 256 + j], s = r.lp[i * r.k_ld + j];
                exact += exp(p) * (p - wq.ref_lp[i * wq.ref_ld + j]);
                stored += exp(s) * (s - q.ref_lp[i * q.ref_ld + j]);
            }
        }
        double rb = (double)kld_capture_bytes(ref) / (double)n,
               cb = (double)kld_capture_bytes(c) / (double)n;
        printf(
            "V %6zu: %5.1f ids, reference %4.0f B, candidate %4.0f B a position; KL moved by %.1e; "
            "write %.2f s, read %.3f s\n",
            V, ids / (double)n, rb, cb, (stored - exact) / (double)n, t1 - t0, t2 - t1);
        assert_true(rb <= 1024 && cb <= 1024);
        assert_true(fabs(stored - exact) / (double)n < 1e-6);
        kld_records_free(&r);
        kld_records_free(&q);
        kld_records_free(&wr);
        kld_records_free(&wq);
        kld_capture_close(ref);
        kld_capture_close(c);
        free(rp);
        free(cp);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(odd_values, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(damage, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(resume, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(full_disk, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(out_of_memory, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(size_and_rounding, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
