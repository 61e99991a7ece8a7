/* The capture file: round trips, odd values, damage, refusals, failed allocations. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <unistd.h>

enum { VOCAB = 300 };

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

static kld_status verify_only(const char *path, kld_err *e) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, e));
    kld_status st = kld_capture_verify(c, e);
    kld_capture_close(c);
    return st;
}

static kld_status read_only(const char *path, kld_capture *ref, kld_err *e) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, e));
    kld_status st = KLD_OK;
    for (size_t i = 0; st == KLD_OK && i < kld_capture_header(c)->windows; i++) {
        kld_records r = {0}, q = {0};
        if (ref) st = kld_capture_read(ref, i, NULL, &r, NULL, e);
        if (st == KLD_OK) st = kld_capture_read(c, i, ref ? &r : NULL, &q, NULL, e);
        kld_records_free(&q);
        kld_records_free(&r);
    }
    kld_capture_close(c);
    return st;
}

static void refused(const char *bad, kld_status st, const kld_err *e, const char *what, size_t at) {
    if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED)
        fail_msg("%s %zu: status %d", what, at, (int)st);
    if (strncmp(e->text, bad, strlen(bad)) != 0 || strchr(e->text, '\n'))
        fail_msg("%s %zu: '%s'", what, at, e->text);
}

/* T31: every single flipped bit and every truncation is refused, in one line, by verify and by
 * reading alone. */
static void damage_of(const char *good, const char *bad, kld_capture *ref) {
    kld_err e = {0};
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
        refused(bad, verify_only(bad, &e), &e, "bit", bit);
        refused(bad, read_only(bad, ref, &e), &e, "bit", bit);
        fseek(f, (long)(bit / 8), SEEK_SET);
        fwrite(&b.data[bit / 8], 1, 1, f);
    }
    assert_int_equal(verify_only(bad, &e), KLD_OK);
    assert_int_equal(read_only(bad, ref, &e), KLD_OK);
    fseek(f, 0, SEEK_END); /* and one byte too many */
    fwrite("", 1, 1, f);
    refused(bad, verify_only(bad, &e), &e, "length", b.len + 1);
    for (size_t n = b.len; n-- > 0;) {
        assert_int_equal(ftruncate(fileno(f), (off_t)n), 0);
        refused(bad, verify_only(bad, &e), &e, "length", n);
        refused(bad, read_only(bad, ref, &e), &e, "length", n);
    }
    fclose(f);
    kld_buf_free(&b);
}

static void damage(void **state) {
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *cand = t_path(*state, "cand.zst");
    char *bad = t_path(*state, "bad.zst");
    kld_capture *ref;
    write_capture(good, 2, 3, 40, 12, 1.5, NULL);
    write_capture(cand, 2, 3, 40, 12, 1.5, good);
    assert_int_equal(kld_capture_open(&ref, good, &e), KLD_OK);
    damage_of(good, bad, NULL);
    damage_of(cand, bad, ref);
    kld_capture_close(ref);
    free(good);
    free(cand);
    free(bad);
}

/* T32: a candidate is read with the records it was made against, or not at all. */
static void wrong_reference(void **state) {
    kld_err e = {0};
    char *rp = t_path(*state, "ref.zst"), *cp = t_path(*state, "c.zst");
    write_capture(rp, 2, 4, 40, 12, 1.5, NULL);
    write_capture(cp, 2, 4, 40, 12, 1.5, rp);
    kld_capture *ref, *c;
    kld_records r, q;
    assert_int_equal(kld_capture_open(&ref, rp, &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, cp, &e), KLD_OK);
    assert_int_equal(kld_capture_read(c, 0, NULL, &q, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "only be read together with it"));
    assert_int_equal(kld_capture_read(ref, 1, NULL, &r, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_read(c, 0, &r, &q, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not those it was captured against"));
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_OK);
    kld_records_free(&q);
    /* Records of no file are believed by their digest alone. */
    r.source_window = 0;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_OK);
    kld_records_free(&q);
    r.lp[3] += 0x1p-20;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_E_INPUT);
    /* Nor are those of another window or another capture. */
    r.source_window = 1;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_E_INPUT);
    r.source_window = 2;
    r.source.b[0] ^= 1;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not those it was captured against"));
    /* Those of the capture that it names are not hashed again, but their rows are counted. */
    r.source.b[0] ^= 1;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_OK);
    kld_records_free(&q);
    r.n--;
    assert_int_equal(kld_capture_read(c, 1, &r, &q, NULL, &e), KLD_E_INPUT);
    r.n++;
    kld_records_free(&r);
    kld_capture_close(ref);
    kld_capture_close(c);
    free(rp);
    free(cp);
}

/* What a reader would refuse is not written, and nothing is said twice. */
static void refused_writes(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "x.zst");
    kld_capture_info info = make_info(1, 4, 40, 12, 16);
    kld_capture_writer *w;
    info.seed = UINT64_MAX;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'seed'"));
    info.seed = 1;
    info.tail_mass = NAN;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_E_INPUT);
    info.tail_mass = 1e-3;
    info.name[0] = (char)0xC0;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'name'"));
    info.name[0] = 't';
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    kld_records r;
    kld_window_meta meta = make_meta(0, 4);
    make_records(&r, 4, 40, 12, 16, 77, 1.5, 0, NULL);
    meta.tokens++;
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INPUT);
    meta.tokens--;
    r.m = 8;
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
    r.m = 16;
    r.ids[2] = 40;
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
    r.ids[2] = 39;
    double second = r.lp[1];
    r.lp[1] = 0.5;
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL);
    r.lp[1] = second;
    r.tail_lp[0] = NAN;
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_NUMERIC);
    r.tail_lp[0] = -9;
    assert_int_equal(kld_capture_finish(w, &e), KLD_E_INTERNAL); /* a window is missing */
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_E_INTERNAL); /* one too many */
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    assert_int_equal(read_all(path, NULL, &e), KLD_OK);
    kld_records_free(&r);
    kld_capture_info_free(&info);
    free(path);
}

/* A candidate whose list holds -inf, whose extras are among its most probable ids, whose first
 * two ids are closer than the grid, and rows that are not finite on either side. */
static void odd_candidates(void **state) {
    enum { V = 30, K = 12, N = 4 };
    kld_err e = {0};
    char *rp = t_path(*state, "r.zst"), *cp = t_path(*state, "c.zst");
    kld_capture_info info = make_info(1, N, V, K, 0);
    kld_window_meta meta = make_meta(0, N);
    kld_records r, rr, q, got;
    kld_capture_writer *w;
    make_records(&r, N, V, K, 0, 5, 1.5, 0, NULL);
    r.count[2] = 0;
    assert_int_equal(kld_capture_create(&w, rp, &info, &e), KLD_OK);
    assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    kld_capture *ref, *c;
    assert_int_equal(kld_capture_open(&ref, rp, &e), KLD_OK);
    assert_int_equal(kld_capture_read(ref, 0, NULL, &rr, NULL, &e), KLD_OK);
    info.has_reference = true;
    info.reference = kld_capture_digest(ref);
    info.ref_top_k = K;
    make_records(&q, N, V, K, 0, 5, 1.5, 0.3, &rr);
    q.count[1] = 0;
    /* Row 0: the reference's rank 9 first by less than 2^-13, then rank 0, an extra, rank 2. */
    uint32_t *ids = q.ids, known = rr.ids[9], next = rr.ids[0], extra = 0;
    for (size_t j = 0; j < rr.count[0]; j++)
        if (rr.ids[j] == extra) {
            extra++;
            j = SIZE_MAX; /* from the start again */
        }
    for (size_t j = 0; j < rr.count[0]; j++) q.ref_lp[j] = -INFINITY;
    /* Values that no code holds, in two columns that share the place where they go. */
    q.ref_lp[2] = -2e6;
    q.ref_lp[3] = -3e7;
    q.count[0] = 4;
    ids[0] = known;
    ids[1] = next;
    ids[2] = extra;
    ids[3] = rr.ids[2];
    q.ref_lp[9] = q.lp[0] = -1 - 0x1p-15;
    q.ref_lp[0] = q.lp[1] = -1 - 0x1p-15 - 0x1p-20;
    q.lp[2] = -1e5;
    q.lp[3] = -2e6;
    uint32_t *last = ids + K * 3; /* row 3: an extra alone, then -inf */
    for (size_t j = 0; j < rr.count[3]; j++) q.ref_lp[3 * q.ref_ld + j] = -INFINITY;
    q.count[3] = 2;
    last[0] = V;
    for (uint32_t id = 0; id < V && last[0] == V; id++) {
        last[0] = id;
        for (size_t j = 0; j < rr.count[3]; j++)
            if (rr.ids[3 * rr.k_ld + j] == id) last[0] = V;
    }
    q.lp[3 * K] = -3.0000001;
    q.lp[3 * K + 1] = -INFINITY;
    last[1] = V;
    for (size_t j = 0; j < rr.count[3]; j++)
        if (rr.ids[3 * rr.k_ld + j] < last[1]) last[1] = rr.ids[3 * rr.k_ld + j];
    assert_int_equal(kld_capture_create(&w, cp, &info, &e), KLD_OK);
    if (kld_capture_add(w, &meta, &q, &rr, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, cp, &e), KLD_OK);
    if (kld_capture_read(c, 0, &rr, &got, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(got.count[0], 4);
    for (size_t j = 0; j < 4; j++) assert_int_equal(got.ids[j], ids[j]);
    assert_true(got.lp[0] == -1 && got.lp[1] == q.lp[1]);
    assert_true(got.lp[2] == -1e5 && got.lp[3] == -2e6 && got.ref_lp[3] == -3e7);
    for (size_t j = 0; j < 2; j++) assert_int_equal(got.ids[3 * got.k_ld + j], last[j]);
    /* An extra on the fine grid. */
    assert_true(fabs(got.lp[3 * got.k_ld] - q.lp[3 * K]) <= 0x1p-21);
    assert_true(got.lp[3 * got.k_ld + 1] == -INFINITY);
    assert_int_equal(got.count[1], 0);
    assert_true(isnan(got.ref_lp[got.ref_ld]));
    assert_int_equal(got.count[2], q.count[2]); /* all extras */
    for (size_t j = 0; j < q.count[2]; j++)
        assert_int_equal(got.ids[2 * got.k_ld + j], q.ids[2 * K + j]);
    kld_records_free(&r);
    kld_records_free(&rr);
    kld_records_free(&q);
    kld_records_free(&got);
    kld_capture_close(c);
    kld_capture_close(ref);
    kld_capture_info_free(&info);
    free(rp);
    free(cp);
}

/* Any zstd program reads the file, and lists one frame a window between two skippable ones. */
static void zstd_program(void **state) {
    char *path = t_path(*state, "a.zst"), line[512];
    if (system("zstd --version >/dev/null 2>&1") != 0) {
        printf("zstd is not installed: not checked against it\n");
        free(path);
        return;
    }
    write_capture(path, 3, 4, 40, 12, 1.5, NULL);
    snprintf(line, sizeof line, "zstd -q -t '%s'", path);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "zstd -l '%s' | grep -Eq '^ *5 +2 .*XXH64'", path);
    assert_int_equal(system(line), 0);
    free(path);
}

/* Time and host are outside the content digest; everything else is inside. */
static void content_digest(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "a.zst");
    kld_digest d[4];
    for (size_t k = 0; k < 4; k++) {
        kld_capture_info info = make_info(1, 4, 40, 12, 16);
        kld_capture_writer *w;
        if (k == 1) {
            info.time[0] = '3';
            assert_int_equal(kld_strdup(&info.host, "elsewhere", &e), KLD_OK);
        }
        if (k == 2) info.suite.b[31] = 1;
        assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
        kld_window_meta meta = make_meta(0, 4);
        kld_records r;
        make_records(&r, 4, 40, 12, 16, 77, 1.5, 0, NULL);
        if (k == 3) r.lse[3] += 1;
        assert_int_equal(kld_capture_add(w, &meta, &r, NULL, &e), KLD_OK);
        assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
        kld_capture *c;
        assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
        d[k] = kld_capture_digest(c);
        kld_capture_close(c);
        kld_records_free(&r);
        kld_capture_info_free(&info);
    }
    assert_memory_equal(&d[0], &d[1], sizeof d[0]);
    assert_memory_not_equal(&d[0], &d[2], sizeof d[0]);
    assert_memory_not_equal(&d[0], &d[3], sizeof d[0]);
    free(path);
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
    /* Writing: the same, and nothing but a partial is left by a failed run. */
    st = KLD_E_NOMEM;
    kld_records r, rr;
    kld_window_meta meta = make_meta(0, 4);
    assert_int_equal(kld_capture_read(ref, 0, NULL, &rr, NULL, &e), KLD_OK);
    make_records(&r, 4, 40, 12, 0, 77, 1.5, 0.3, &rr);
    kld_capture_info info = make_info(1, 4, 40, 12, 0);
    info.has_reference = true;
    info.ref_top_k = 12;
    info.ref_tail_samples = 16;
    for (n = 0; st == KLD_E_NOMEM && n < 5000;) {
        assert_int_equal(kld_remove(cp, &e), KLD_OK);
        kld_mem_fail_after(++n);
        kld_capture_writer *w = NULL;
        st = kld_capture_create(&w, cp, &info, &e);
        if (st == KLD_OK) st = kld_capture_add(w, &meta, &r, &rr, &e);
        if (st == KLD_OK) st = kld_capture_finish(w, &e);
        if (st != KLD_OK) kld_capture_abort(w);
        kld_mem_fail_after(0);
        if (st != KLD_OK) assert_false(kld_path_exists(cp));
    }
    assert_int_equal(st, KLD_OK);
    assert_true(n > 20);
    kld_records_free(&r);
    kld_records_free(&rr);
    kld_capture_info_free(&info);
    kld_capture_close(ref);
    free(good);
    free(cp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(odd_values, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(odd_candidates, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(damage, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(wrong_reference, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(refused_writes, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(zstd_program, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(content_digest, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(out_of_memory, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
