#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/capture.h"
#include "kld/store/frame.h"
#include "kld/store/info.h"
#include "kld/store/layout.h"

#include <string.h>

struct kld_capture_writer {
    kld_writer file;
    kld_capture_info shape; /* the numbers of the header; its strings are not kept */
    layout layout;
    kld_buf frame; /* scratch: header, footer, a frame being scanned */
    double synced; /* when the file was last made durable */
    bool torn;     /* a write failed, so the file may end in half a frame */
};

static void writer_free(kld_capture_writer *w) {
    layout_free(&w->layout);
    kld_buf_free(&w->frame);
    kld_free(w);
}

static void keep_shape(kld_capture_writer *w, const kld_capture_info *info) {
    w->shape = *info;
    w->shape.name = w->shape.label = w->shape.family = w->shape.reference_name = NULL;
    w->shape.time = w->shape.host = w->shape.checkpoint = w->shape.floor = NULL;
    w->shape.engine = w->shape.quant = NULL;
    w->frame.max = SIZE_MAX / 4;
    w->synced = kld_seconds();
}

kld_status kld_capture_create(kld_capture_writer **out, const char *path,
                              const kld_capture_info *info, kld_err *err) {
    *out = NULL;
    kld_capture_writer *w;
    TRY(kld_where(err, kld_info_check(info, err), "%s", path));
    TRY(NEW_ARRAY(&w, 1, err));
    keep_shape(w, info);
    kld_status st = kld_writer_open(&w->file, path, err);
    if (st == KLD_OK) {
        st = layout_header_write(&w->layout, info, &w->frame, err);
        if (st == KLD_OK) st = kld_writer_add(&w->file, w->frame.data, w->frame.len, err);
        if (st == KLD_OK) st = kld_writer_sync(&w->file, err);
        if (st != KLD_OK) kld_writer_abort(&w->file);
    }
    if (st == KLD_OK) *out = w;
    else writer_free(w);
    return st;
}

/* ---- resume --------------------------------------------------------------------------- */

/* One frame at `at`: *whole says whether it is all there and sound; a torn one is no error. */
static kld_status scan_frame(kld_capture_writer *w, const kld_file *f, uint64_t at, bool *whole,
                             kld_err *err) {
    enum { PEEK = 18 }; /* longest zstd frame header */
    unsigned char peek[PEEK];
    kld_buf text = {0};
    *whole = false;
    size_t n = (size_t)(f->size - at < PEEK ? f->size - at : PEEK);
    TRY(kld_file_read(f, peek, at, n, err));
    uint64_t claim = frame_claim(peek, n), max = frame_content_max(&w->shape, w->shape.positions);
    if (claim == 0 || claim > max) return KLD_OK;
    /* zstd's worst case for incompressible data, with room to spare. */
    size_t bound = (size_t)(claim + claim / 64 + 4096);
    n = (size_t)(f->size - at < bound ? f->size - at : bound);
    kld_buf_clear(&w->frame);
    TRY(kld_buf_reserve(&w->frame, n, err));
    TRY(kld_file_read(f, w->frame.data, at, n, err));
    frame_entry e = {.offset = at, .bytes = frame_size(w->frame.data, n)};
    kld_err torn = {0};
    if (e.bytes == 0) return KLD_OK;
    kld_status st = frame_inflate(w->frame.data, (size_t)e.bytes, (size_t)max, &text, &torn);
    kld_cursor c = kld_cursor_of(text.data, text.len);
    window_head head = {.rows = 0};
    if (st == KLD_OK) st = head_read(&c, NULL, &head, &torn);
    e.rows = head.rows;
    if (st == KLD_OK) st = kld_sha256_of(w->frame.data, (size_t)e.bytes, &e.sha256, &torn);
    if (st == KLD_OK) st = layout_add(&w->layout, &e, text.data, head.bytes, &torn);
    kld_buf_free(&text);
    *whole = st == KLD_OK;
    if (st == KLD_E_INPUT) return KLD_OK;
    if (st != KLD_OK && err) *err = torn;
    return st;
}

static kld_status scan(kld_capture_writer *w, const kld_file *f, const kld_capture_info *info,
                       uint64_t *keep, kld_err *err) {
    kld_capture_info old = {0};
    kld_buf identity = {0};
    TRY(layout_header_read(&w->layout, f, &old, err));
    kld_capture_info_free(&old);
    kld_status st = kld_info_identity(info, &identity, err);
    if (st == KLD_OK && (identity.len != w->layout.identity.len ||
                         memcmp(identity.data, w->layout.identity.data, identity.len) != 0)) {
        st = kld_info_difference(w->layout.identity.data, w->layout.identity.len, identity.data,
                                 identity.len, err);
        st = kld_where(err, st, "%s belongs to another run", f->path);
    }
    kld_buf_free(&identity);
    TRY(st);
    *keep = w->layout.header_bytes;
    bool whole = true;
    while (whole && w->layout.n < info->windows && *keep < f->size) {
        TRY(scan_frame(w, f, *keep, &whole, err));
        if (whole) *keep += w->layout.frame[w->layout.n - 1].bytes;
    }
    return KLD_OK;
}

kld_status kld_capture_resume(kld_capture_writer **out, const char *path,
                              const kld_capture_info *info, size_t *windows_done, kld_err *err) {
    *out = NULL;
    *windows_done = 0;
    kld_capture_writer *w;
    kld_buf partial = {0};
    kld_file f = {.fd = -1};
    uint64_t keep = 0;
    bool torn = false;
    TRY(kld_info_check(info, err));
    TRY(NEW_ARRAY(&w, 1, err));
    keep_shape(w, info);
    w->file.fd = -1;
    kld_status st;
    TRY_TO(done, kld_buf_addf(&partial, err, "%s.partial", path));
    TRY_TO(done, kld_file_open(&f, (char *)partial.data, err));
    TRY_TO(done, layout_header_torn(&f, &torn, err));
    if (torn) goto done;
    TRY_TO(done, scan(w, &f, info, &keep, err));
    TRY_TO(done, kld_writer_resume(&w->file, path, keep, err));
    *windows_done = w->layout.n;
done:
    kld_buf_free(&partial);
    kld_file_close(&f);
    if (st == KLD_OK && !torn) *out = w;
    else writer_free(w);
    /* Nothing was lost but the time of the first start. */
    return st == KLD_OK && torn ? kld_capture_create(out, path, info, err) : st;
}

/* ---- windows -------------------------------------------------------------------------- */

/* After a failed write the end of the file is unknown; a resume finds it again. */
static kld_status append(kld_capture_writer *w, const kld_buf *frame, kld_err *err) {
    if (w->torn)
        return kld_fail(err, KLD_E_IO, "%s: an earlier write failed; resume to continue",
                        w->file.partial);
    kld_status st = kld_writer_add(&w->file, frame->data, frame->len, err);
    w->torn = st != KLD_OK;
    return st;
}

kld_status kld_capture_encode(const kld_capture_writer *w, size_t window,
                              const kld_window_meta *meta, const kld_records *r,
                              const kld_records *ref, kld_encoded *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    out->frame.max = SIZE_MAX / 4;
    out->rows = r->n;
    kld_status st =
        kld_where(err, frame_encode(&w->shape, meta, r, ref, &out->frame, &out->head, err),
                  "%s: window %zu", w->file.path, window);
    if (st == KLD_OK) st = kld_sha256_of(out->frame.data, out->frame.len, &out->sha256, err);
    if (st != KLD_OK) kld_encoded_free(out);
    return st;
}

void kld_encoded_free(kld_encoded *e) {
    kld_buf_free(&e->frame);
    kld_buf_free(&e->head);
}

static kld_status put(kld_capture_writer *w, const kld_encoded *e, kld_err *err) {
    if (w->layout.n == w->shape.windows)
        return kld_fail(err, KLD_E_INTERNAL, "more windows than the header promises");
    frame_entry f = {.offset = w->file.size, .bytes = e->frame.len, .rows = e->rows};
    f.sha256 = e->sha256;
    TRY(layout_add(&w->layout, &f, e->head.data, e->head.len, err));
    kld_status st = append(w, &e->frame, err);
    if (st != KLD_OK) {
        w->layout.n--;
        return st;
    }
    double now = kld_seconds();
    if (now - w->synced < 1) return KLD_OK;
    w->synced = now;
    return kld_writer_sync(&w->file, err);
}

kld_status kld_capture_put(kld_capture_writer *w, kld_encoded *e, kld_err *err) {
    kld_status st = put(w, e, err);
    kld_encoded_free(e);
    return st;
}

kld_status kld_capture_add(kld_capture_writer *w, const kld_window_meta *meta, const kld_records *r,
                           const kld_records *ref, kld_err *err) {
    kld_encoded e;
    TRY(kld_capture_encode(w, w->layout.n, meta, r, ref, &e, err));
    return kld_capture_put(w, &e, err);
}

kld_status kld_capture_sync(kld_capture_writer *w, kld_err *err) {
    return kld_writer_sync(&w->file, err);
}

kld_status kld_capture_finish(kld_capture_writer *w, kld_err *err) {
    uint64_t positions = 0;
    for (size_t i = 0; i < w->layout.n; i++) positions += w->layout.frame[i].rows;
    if (w->layout.n != w->shape.windows || positions != w->shape.positions)
        return kld_fail(err, KLD_E_INTERNAL,
                        "%zu windows and %llu positions were written; the header "
                        "promises %llu and %llu",
                        w->layout.n, (unsigned long long)positions,
                        (unsigned long long)w->shape.windows,
                        (unsigned long long)w->shape.positions);
    kld_buf_clear(&w->frame);
    TRY(layout_footer_write(&w->layout, &w->frame, err));
    TRY(append(w, &w->frame, err));
    w->torn = true; /* a footer is in the file: nothing may follow it */
    TRY(kld_writer_commit(&w->file, err));
    writer_free(w);
    return KLD_OK;
}

void kld_capture_leave(kld_capture_writer *w) {
    if (!w) return;
    kld_writer_leave(&w->file);
    writer_free(w);
}

void kld_capture_abort(kld_capture_writer *w) {
    if (!w) return;
    kld_writer_abort(&w->file);
    writer_free(w);
}
