/* A reference capture and a candidate of it at their largest: POSITIONS in windows of 2,048, every
 * list full (256 ids), 16 draws, for timing what reads captures.
 *   captures POSITIONS DIR        writes DIR/ref.zst and DIR/cand.zst
 * The rows of a few windows are made up and taken in turns; every window is a frame of its own,
 * in a cluster of its own, in one of four strata. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "tests/unit/capturekit.h"

#include <stdio.h>
#include <stdlib.h>

enum { MADE = 8, ROWS = 2045, FIRST = 2, VOCAB = 152064, BATCH = 16 };

static void need(kld_status st, const kld_err *err) {
    if (st == KLD_OK) return;
    fprintf(stderr, "captures: %s\n", err->text);
    exit(1);
}

/* Rows 0 .. n-1 of r, which stays the owner. */
static kld_records cut(const kld_records *r, size_t n) {
    kld_records some = *r;
    some.n = n;
    return some;
}

/* made[i % MADE] are window i's rows, ref[i % MADE] those of its reference. */
static void write_windows(kld_capture_writer *w, const kld_capture_info *info,
                          const kld_records *made, const kld_records *ref) {
    static const char *const strata[] = {"code", "math", "text", "chat"};
    kld_encoded done[BATCH];
    kld_err err[BATCH];
    for (size_t from = 0; from < info->windows; from += BATCH) {
        size_t n = info->windows - from < BATCH ? info->windows - from : BATCH;
#pragma omp parallel for schedule(dynamic, 1)
        for (size_t k = 0; k < n; k++) {
            size_t i = from + k, left = info->positions - i * ROWS;
            size_t rows = left < ROWS ? left : ROWS;
            char name[32];
            snprintf(name, sizeof name, "document %zu", i);
            kld_window_meta meta = {.tokens = rows + FIRST + 1,
                                    .score_from = FIRST,
                                    .source = "made up",
                                    .cluster = name,
                                    .stratum = strata[i % 4]};
            kld_records r = cut(&made[i % MADE], rows), q = {0};
            if (ref) q = cut(&ref[i % MADE], rows);
            need(kld_capture_encode(w, i, &meta, &r, ref ? &q : NULL, &done[k], &err[k]), &err[k]);
        }
        for (size_t k = 0; k < n; k++) need(kld_capture_put(w, &done[k], err), err);
    }
}

static void write_side(const char *path, kld_capture_info *info, const kld_records *made,
                       const kld_records *ref) {
    kld_capture_writer *w;
    kld_err err = {0};
    need(kld_capture_create(&w, path, info, &err), &err);
    write_windows(w, info, made, ref);
    need(kld_capture_finish(w, &err), &err);
    kld_capture_info_free(info);
}

int main(int argc, char **argv) {
    size_t positions = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    if (positions < MADE * ROWS) {
        fprintf(stderr, "usage: captures POSITIONS DIR (at least %d positions)\n", MADE * ROWS);
        return 2;
    }
    static kld_records made[MADE], ref[MADE], own[MADE];
    char path[2][512];
    kld_err err[MADE] = {{0}};
    need(kld_mkdir(argv[2], err), err);
    snprintf(path[0], sizeof path[0], "%s/ref.zst", argv[2]);
    snprintf(path[1], sizeof path[1], "%s/cand.zst", argv[2]);

    size_t windows = (positions + ROWS - 1) / ROWS;
    kld_capture_info info = make_info(windows, ROWS, VOCAB, 256, 16);
    info.positions = positions;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < MADE; i++) pool_records(&made[i], ROWS, VOCAB, 77 + i, 1, 0, NULL);
    write_side(path[0], &info, made, NULL);

    /* A candidate belongs to what a reader of the reference gets. */
    kld_capture *c;
    need(kld_capture_open(&c, path[0], err), err);
    info = make_info(windows, ROWS, VOCAB, 256, 0);
    info.positions = positions;
    info.has_reference = true;
    info.reference = kld_capture_digest(c);
    info.ref_top_k = 256;
    info.ref_tail_samples = 16;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < MADE; i++) {
        need(kld_capture_read(c, i, NULL, &ref[i], NULL, &err[i]), &err[i]);
        pool_records(&own[i], ROWS, VOCAB, 77 + i, 1, 0.3, &ref[i]);
    }
    write_side(path[1], &info, own, ref);
    kld_capture_close(c);
    printf("%s, %s: %zu positions in %zu windows\n", path[0], path[1], positions, windows);
    return 0;
}
