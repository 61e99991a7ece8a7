#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/store/capture_impl.h"
#include "kld/store/frame.h"

#include <string.h>

/* The heads that the footer holds. */
static kld_status read_heads(kld_capture *c, kld_err *err) {
    TRY(NEW_ARRAY(&c->meta, c->layout.n, err));
    for (size_t i = 0; i < c->layout.n; i++) {
        const frame_entry *e = &c->layout.frame[i];
        kld_cursor in = kld_cursor_of(c->layout.heads.data + e->head_at, e->head_bytes);
        window_head h;
        kld_status st = head_read(&in, &c->arena, &h, err);
        if (st == KLD_OK && (kld_cursor_left(&in) != 0 || h.rows != e->rows))
            st = kld_fail(err, KLD_E_INPUT, "its head does not have the size or rows said");
        TRY(kld_where(err, st, "%s: footer, window %zu", c->file.path, i));
        c->meta[i] = h.meta;
    }
    return KLD_OK;
}

kld_status kld_capture_open(kld_capture **out, const char *path, kld_err *err) {
    *out = NULL;
    kld_capture *c;
    TRY(NEW_ARRAY(&c, 1, err));
    c->file.fd = -1;
    kld_status st;
    TRY_TO(fail, kld_file_open(&c->file, path, err));
    TRY_TO(fail, layout_header_read(&c->layout, &c->file, &c->info, err));
    TRY_TO(fail, layout_footer_read(&c->layout, &c->file, &c->info, &c->digest, err));
    TRY_TO(fail, read_heads(c, err));
    *out = c;
    return KLD_OK;
fail:
    kld_capture_close(c);
    return st;
}

void kld_capture_close(kld_capture *c) {
    if (!c) return;
    kld_file_close(&c->file);
    kld_capture_info_free(&c->info);
    layout_free(&c->layout);
    kld_free(c->meta);
    kld_arena_free(&c->arena);
    kld_free(c);
}

const kld_capture_info *kld_capture_header(const kld_capture *c) { return &c->info; }
kld_digest kld_capture_digest(const kld_capture *c) { return c->digest; }
const char *kld_capture_path(const kld_capture *c) { return c->file.path; }
uint64_t kld_capture_bytes(const kld_capture *c) { return c->file.size; }

static kld_status where(const kld_capture *c, size_t i, kld_status st, kld_err *err) {
    if (st != KLD_E_INPUT || i >= c->layout.n) return st;
    const frame_entry *e = &c->layout.frame[i];
    return kld_where(err, st, "%s: window %zu (bytes %llu..%llu)", c->file.path, i,
                     (unsigned long long)e->offset, (unsigned long long)(e->offset + e->bytes - 1));
}

/* Read, check and decompress window i. */
static kld_status load(const kld_capture *c, size_t i, kld_buf *text, kld_err *err) {
    if (i >= c->layout.n)
        return kld_fail(err, KLD_E_INTERNAL, "%s: there is no window %zu", c->file.path, i);
    const frame_entry *e = &c->layout.frame[i];
    unsigned char *frame;
    kld_digest sha;
    TRY(kld_calloc((void **)&frame, (size_t)e->bytes, 1, err));
    kld_status st;
    TRY_TO(done, kld_file_read(&c->file, frame, e->offset, (size_t)e->bytes, err));
    TRY_TO(done, kld_sha256_of(frame, (size_t)e->bytes, &sha, err));
    if (!kld_same_digest(&sha, &e->sha256)) {
        st = kld_fail(err, KLD_E_INPUT, "its SHA-256 does not match the footer's");
        goto done;
    }
    TRY_TO(done,
           frame_inflate(frame, (size_t)e->bytes, frame_content_max(&c->info, e->rows), text, err));
    if (text->len < e->head_bytes ||
        memcmp(text->data, c->layout.heads.data + e->head_at, e->head_bytes) != 0)
        st = kld_fail(err, KLD_E_INPUT, "its head is not the one in the footer");
done:
    kld_free(frame);
    return where(c, i, st, err);
}

kld_status kld_capture_meta(kld_capture *c, size_t i, kld_window_meta *meta, kld_err *err) {
    if (i >= c->layout.n)
        return kld_fail(err, KLD_E_INTERNAL, "%s: there is no window %zu", c->file.path, i);
    *meta = c->meta[i];
    return KLD_OK;
}

/* Read from window i of the capture of that content: its bytes were checked then, so hashing what
 * they unfolded to again would tell nothing new. */
static bool is_from(const kld_records *r, const kld_digest *content, size_t i) {
    return r->source_window == i + 1 && kld_same_digest(&r->source, content);
}

kld_status kld_capture_read(kld_capture *c, size_t i, const kld_records *ref, kld_records *out,
                            kld_window_meta *meta, kld_err *err) {
    memset(out, 0, sizeof *out);
    if (c->info.has_reference && !ref)
        return kld_fail(err, KLD_E_INPUT,
                        "%s was captured against '%s' and can only be read together with it",
                        c->file.path, c->info.reference_name);
    kld_buf text = {0};
    kld_status st = load(c, i, &text, err);
    if (st == KLD_OK)
        st = where(c, i,
                   frame_records(&c->info, &text, c->info.has_reference ? ref : NULL,
                                 ref && is_from(ref, &c->info.reference, i), out, err),
                   err);
    if (st == KLD_OK) {
        out->source = c->digest;
        out->source_window = i + 1;
    }
    if (st == KLD_OK && meta) *meta = c->meta[i];
    kld_buf_free(&text);
    return st;
}

/* A part of window i that needs no reference. */
static kld_status read_alone(kld_capture *c, size_t i,
                             kld_status (*take)(const kld_capture_info *, const kld_buf *,
                                                kld_records *, kld_err *),
                             kld_records *out, kld_err *err) {
    kld_buf text = {0};
    kld_status st = load(c, i, &text, err);
    if (st == KLD_OK) st = where(c, i, take(&c->info, &text, out, err), err);
    kld_buf_free(&text);
    return st;
}

kld_status kld_capture_read_routes(kld_capture *c, size_t i, kld_records *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    if (!c->info.routes.kept)
        return kld_fail(err, KLD_E_INPUT, "%s: keeps no routes", c->file.path);
    return read_alone(c, i, frame_routes, out, err);
}

kld_status kld_capture_read_hidden(kld_capture *c, size_t i, kld_records *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    if (!c->info.hidden.cols)
        return kld_fail(err, KLD_E_INPUT, "%s: keeps no hidden states", c->file.path);
    return read_alone(c, i, frame_hidden, out, err);
}

kld_status kld_capture_verify(kld_capture *c, kld_err *err) {
    /* Header, footer and the absence of gaps were checked by open; what is left are the
     * frames, and, where the reference is not needed for it, their columns. */
    kld_mem_keep();
    kld_buf text = {0};
    kld_status st = kld_capture_check_signature(c, err);
    for (size_t i = 0; i < c->layout.n && st == KLD_OK; i++) {
        kld_records r;
        st = kld_stop_check(err);
        if (st == KLD_OK) st = load(c, i, &text, err);
        if (st != KLD_OK || c->info.has_reference) continue;
        st = where(c, i, frame_records(&c->info, &text, NULL, false, &r, err), err);
        if (st == KLD_OK) kld_records_free(&r);
    }
    kld_buf_free(&text);
    return st;
}
