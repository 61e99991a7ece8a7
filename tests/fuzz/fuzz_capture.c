/* Captures from outside.  The SHA-256 checks stop nearly every mutation, so beside opening the
 * input as a file, its header and footer are sealed again after the mutation, and it is taken as
 * one window's frame or content and put through the decoder directly: as a reference's window,
 * with routes and without, and as a candidate's against fixed records.  What decodes is compared.
 */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/compare/position.h"
#include "kld/compare/routes.h"
#include "kld/store/capture.h"
#include "kld/store/frame.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 4, LIST = 12, DRAWS = 2, HEAD_REF_AT = 64, END = 12 };

/* What the candidates of the corpus are relative to. */
static kld_status fixed_records(kld_records *r, kld_err *err) {
    TRY(kld_records_alloc(r, ROWS, LIST, DRAWS, 0, 0, err));
    for (size_t i = 0; i < ROWS; i++) {
        r->count[i] = i == 2 ? 0 : LIST;
        r->label[i] = (uint32_t)i;
        r->tail_mass[i] = i == 1 ? 0 : 0.125f;
        for (size_t j = 0; j < LIST; j++) {
            r->ids[i * LIST + j] = (uint32_t)(3 * j + i);
            r->lp[i * LIST + j] = -0.5 - (double)j;
        }
        for (size_t j = 0; j < DRAWS; j++) {
            r->tail_ids[i * DRAWS + j] = (uint32_t)(200 + j);
            r->tail_lp[i * DRAWS + j] = -14 - (double)j;
        }
    }
    return KLD_OK;
}

static void compare(const kld_records *ref, const kld_records *cand) {
    const kld_position_options opt = {.vocab = 300, .top_p = 0.95, .overlap_k = 10};
    kld_err err;
    kld_position *out;
    if (NEW_ARRAY(&out, ref->n + 1, &err) != KLD_OK) return;
    kld_status st = kld_positions_compare(ref, cand, &opt, out, &err);
    for (size_t i = 0; st == KLD_OK && i < ref->n; i++)
        for (int k = 0; k < KLD_DIV_KINDS; k++)
            if (!out[i].nonfinite && out[i].v[KLD_COL_BOUND + k] < 0) abort();
    kld_free(out);
}

/* As a window whose capture keeps routes; alone, they are the same. */
static void decode_routes(const kld_buf *text, kld_capture_info info) {
    kld_err err;
    kld_records r, alone;
    kld_route_sums sums[2] = {0};
    info.routes = (kld_route_info){.kept = true, .layers = 2, .top_k = 2, .experts = 5};
    bool read = frame_routes(&info, text, &alone, &err) == KLD_OK;
    if (frame_records(&info, text, NULL, false, &r, &err) == KLD_OK) {
        if (!read || kld_routes_compare(&r, &alone, sums, &err) != KLD_OK) abort();
        for (size_t i = 0; i < 2; i++)
            if (sums[i].n[KLD_ROUTE_TOP1] && kld_route_mean(&sums[i], KLD_ROUTE_SLOTS) != 1)
                abort();
        kld_records_free(&r);
    }
    if (read) kld_records_free(&alone);
}

static void decode(const kld_buf *text, bool candidate) {
    kld_err err;
    kld_capture_info info = {.vocab = 300,
                             .vocab_rows = 300,
                             .top_k = 64,
                             .tail_samples = candidate ? 0 : 16,
                             .has_reference = candidate,
                             .ref_top_k = 64,
                             .ref_tail_samples = DRAWS};
    kld_records r, ref;
    kld_digest d;
    if (!candidate) {
        decode_routes(text, info);
        if (frame_records(&info, text, NULL, false, &r, &err) == KLD_OK) {
            compare(&r, &r);
            kld_records_free(&r);
        }
        return;
    }
    if (fixed_records(&ref, &err) != KLD_OK) return;
    if (text->len >= HEAD_REF_AT + sizeof d && records_digest(&ref, &d, &err) == KLD_OK)
        memcpy(text->data + HEAD_REF_AT, d.b, sizeof d);
    if (frame_records(&info, text, &ref, false, &r, &err) == KLD_OK) {
        compare(&ref, &r);
        kld_records_free(&r);
    }
    kld_records_free(&ref);
}

static void decode_directly(const uint8_t *data, size_t size) {
    kld_err err;
    kld_buf text = {0};
    if (frame_inflate(data, size, 1 << 22, &text, &err) != KLD_OK) {
        /* Not a frame: take it as the content of one. */
        kld_buf_clear(&text);
        text.max = 1 << 22;
        if (kld_buf_add(&text, data, size < 1 << 20 ? size : 1 << 20, &err) != KLD_OK) return;
    }
    decode(&text, false);
    decode(&text, true);
    kld_buf_free(&text);
}

static size_t u32_at(const uint8_t *p) {
    return p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

static void put_sha256(uint8_t *to, const uint8_t *from, size_t n) {
    kld_digest d;
    kld_err err;
    if (kld_sha256_of(from, n, &d, &err) == KLD_OK) memcpy(to, d.b, sizeof d);
}

/* Header and footer of a file made to fit their seals again. */
static void seal_again(uint8_t *p, size_t size) {
    enum { SHA = KLD_SHA256_BYTES, SKIP = 8, SIGNATURE = 96 };
    if (size < 256) return;
    size_t header = u32_at(p + 4), footer = u32_at(p + size - END);
    if (header >= SHA && header <= size - SKIP)
        put_sha256(p + SKIP + header - SHA, p + SKIP, header - SHA);
    if (footer < 4 + 3 * SHA + END || footer > size) return;
    uint8_t *seal = p + size - END - SHA, *count = seal - 4;
    if (footer >= 4 + 3 * SHA + END + SIGNATURE && u32_at(count - SIGNATURE) == SIGNATURE)
        count -= SIGNATURE;
    if (header <= size - SKIP) put_sha256(count - 2 * SHA, p, SKIP + header);
    put_sha256(seal, p + size - footer, footer - END - SHA);
}

static void as_file(const uint8_t *data, size_t size) {
    char path[] = "/tmp/kld-fuzz-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return;
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    kld_capture *c;
    kld_err err;
    if (written && kld_capture_open(&c, path, &err) == KLD_OK) {
        kld_status st = kld_capture_verify(c, &err);
        kld_signature s;
        if (st == KLD_OK && kld_capture_signature(c, &s) &&
            kld_capture_check_signature(c, &err) != KLD_OK)
            abort();
        kld_window_meta meta;
        for (size_t i = 0; st == KLD_OK && i < kld_capture_header(c)->windows; i++)
            st = kld_capture_meta(c, i, &meta, &err);
        kld_capture_close(c);
    }
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    decode_directly(data, size);
    as_file(data, size);
    if (size == 0) return 0;
    uint8_t *copy = malloc(size);
    if (!copy) return 0;
    memcpy(copy, data, size);
    seal_again(copy, size);
    as_file(copy, size);
    free(copy);
    return 0;
}
