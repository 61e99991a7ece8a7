#include "logits/resid.h"

#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <stdio.h>
#include <string.h>

static const char magic[8] = {'k', 'l', 'd', 'r', 'e', 's', 'i', 'd'};
enum { VERSION = 1, HEAD_BYTES = 8 + 4 + 4 + 3 * 8 + KLD_SHA256_BYTES, PIECE_BYTES = 8 << 20 };

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && !strcmp(name + n - k, suffix);
}

static size_t piece_rows(const kld_stream *s) {
    size_t n = num_max(1, PIECE_BYTES / (s->cols * sizeof(float)));
    return s->stage ? num_min(n, s->stage_rows) : n;
}

static kld_status put(kld_writer *w, kld_sha256 *h, const void *p, size_t n, kld_err *err) {
    TRY(kld_sha256_add(h, p, n, err));
    return kld_writer_add(w, p, n, err);
}

static kld_status write_part(kld_writer *w, kld_sha256 *h, const kld_resid_part *p, kld_err *err) {
    kld_stream *s = p->stream;
    size_t step = piece_rows(s);
    for (size_t r = 0; r < p->n; r += step) {
        size_t n = num_min(step, p->n - r);
        const void *rows;
        TRY(kld_stream_get(s, p->row0 + r, n, &rows, err));
        TRY(put(w, h, rows, n * s->cols * s->size, err));
    }
    return KLD_OK;
}

static kld_status write_all(kld_writer *w, kld_sha256 *h, const kld_digest *run_id,
                            kld_resid_mark mark, const kld_resid_rows *s, kld_err *err) {
    kld_buf b = {0};
    kld_status st;
    TRY_TO(out, kld_buf_add(&b, magic, sizeof magic, err));
    TRY_TO(out, kld_buf_u32(&b, VERSION, err));
    TRY_TO(out, kld_buf_u32(&b, (uint32_t)mark.layer, err));
    TRY_TO(out, kld_buf_u64(&b, mark.windows, err));
    TRY_TO(out, kld_buf_u64(&b, s->rows, err));
    TRY_TO(out, kld_buf_u64(&b, s->cols, err));
    TRY_TO(out, kld_buf_add(&b, run_id->b, sizeof run_id->b, err));
    TRY_TO(out, put(w, h, b.data, b.len, err));
    for (size_t i = 0; i < s->n; i++) TRY_TO(out, write_part(w, h, &s->part[i], err));
    kld_digest d;
    TRY_TO(out, kld_sha256_end(h, &d, err));
    TRY_TO(out, kld_writer_add(w, d.b, sizeof d.b, err));
out:
    kld_buf_free(&b);
    return st;
}

static kld_status remove_others(const char *dir, const char *keep, kld_err *err) {
    char **names;
    size_t n;
    TRY(kld_list_dir(dir, &names, &n, err));
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n && st == KLD_OK; i++) {
        if (!strcmp(names[i], keep)) continue;
        if (!has_suffix(names[i], ".resid") && !has_suffix(names[i], ".resid.partial")) continue;
        char *path;
        st = kld_path_join(&path, dir, names[i], err);
        if (st == KLD_OK) st = kld_remove(path, err);
        kld_free(path);
    }
    kld_names_free(names, n);
    return st;
}

kld_status kld_resid_save(const char *dir, const kld_digest *run_id, kld_resid_mark mark,
                          const kld_resid_rows *s, kld_err *err) {
    char name[64], *path = NULL;
    snprintf(name, sizeof name, "layer-%04zu.resid", mark.layer);
    kld_sha256 h = {0};
    kld_writer w;
    TRY(kld_mkdir(dir, err));
    TRY(kld_path_join(&path, dir, name, err));
    kld_status st = kld_writer_open(&w, path, err);
    if (st == KLD_OK) {
        st = kld_sha256_begin(&h, err);
        if (st == KLD_OK) st = write_all(&w, &h, run_id, mark, s, err);
        if (st == KLD_OK) st = kld_writer_commit(&w, err);
        if (st != KLD_OK) kld_writer_abort(&w);
        kld_sha256_drop(&h);
    }
    kld_free(path);
    if (st == KLD_OK) st = remove_others(dir, name, err);
    return st;
}

/* KLD_E_NUMERIC stands for "damaged: try another" between here and kld_resid_load. */
static kld_status read_head(const kld_file *f, const kld_digest *run_id, const kld_resid_rows *s,
                            kld_sha256 *h, kld_resid_mark *mark, kld_err *err) {
    unsigned char head[HEAD_BYTES];
    uint64_t payload = (uint64_t)s->rows * s->cols * sizeof(float);
    if (f->size < HEAD_BYTES) return kld_fail(err, KLD_E_NUMERIC, "it is too short");
    TRY(kld_file_read(f, head, 0, sizeof head, err));
    kld_cursor c = kld_cursor_of(head, sizeof head);
    const unsigned char *m = kld_cursor_take(&c, sizeof magic);
    uint32_t version = kld_cursor_u32(&c);
    mark->layer = kld_cursor_u32(&c);
    mark->windows = (size_t)kld_cursor_u64(&c);
    uint64_t rows = kld_cursor_u64(&c), cols = kld_cursor_u64(&c);
    const unsigned char *id = kld_cursor_take(&c, KLD_SHA256_BYTES);
    if (!m || !id || memcmp(m, magic, sizeof magic) != 0 || version != VERSION)
        return kld_fail(err, KLD_E_NUMERIC, "it does not begin like a checkpoint");
    if (memcmp(id, run_id->b, KLD_SHA256_BYTES) != 0)
        return kld_fail(err, KLD_E_INPUT,
                        "%s: belongs to another run (other model, suite or options, or weights "
                        "modified since); remove it "
                        "or start without --resume",
                        f->path);
    if (rows != s->rows || cols != s->cols)
        return kld_fail(err, KLD_E_INPUT, "%s: holds %llu x %llu values; this run has %zu x %zu",
                        f->path, (unsigned long long)rows, (unsigned long long)cols, s->rows,
                        s->cols);
    if (f->size != HEAD_BYTES + payload + KLD_SHA256_BYTES)
        return kld_fail(err, KLD_E_NUMERIC, "it has %llu bytes instead of %llu",
                        (unsigned long long)f->size,
                        (unsigned long long)(HEAD_BYTES + payload + KLD_SHA256_BYTES));
    return kld_sha256_add(h, head, sizeof head, err);
}

static kld_status read_part(const kld_file *f, uint64_t *at, kld_sha256 *h, const kld_resid_part *p,
                            kld_err *err) {
    kld_stream *s = p->stream;
    size_t step = piece_rows(s);
    for (size_t r = 0; r < p->n; r += step) {
        size_t n = num_min(step, p->n - r), bytes = n * s->cols * sizeof(float);
        void *room = kld_stream_room(s, p->row0 + r);
        TRY(kld_file_read(f, room, *at, bytes, err));
        TRY(kld_sha256_add(h, room, bytes, err));
        TRY(kld_stream_put(s, p->row0 + r, n, err));
        *at += bytes;
    }
    return KLD_OK;
}

static kld_status read_one(const char *path, const kld_digest *run_id, const kld_resid_rows *s,
                           kld_resid_mark *mark, kld_err *err) {
    kld_file f;
    kld_sha256 h = {0};
    TRY(kld_file_open(&f, path, err));
    kld_status st;
    TRY_TO(out, kld_sha256_begin(&h, err));
    TRY_TO(out, read_head(&f, run_id, s, &h, mark, err));
    uint64_t at = HEAD_BYTES;
    for (size_t i = 0; i < s->n; i++) TRY_TO(out, read_part(&f, &at, &h, &s->part[i], err));
    kld_digest got, want;
    TRY_TO(out, kld_sha256_end(&h, &got, err));
    TRY_TO(out, kld_file_read(&f, want.b, at, sizeof want.b, err));
    if (memcmp(&got, &want, sizeof got) != 0)
        st = kld_fail(err, KLD_E_NUMERIC, "its content does not match its SHA-256");
out:
    kld_sha256_drop(&h);
    kld_file_close(&f);
    return st;
}

kld_status kld_resid_load(const char *dir, const kld_digest *run_id, const kld_resid_rows *s,
                          kld_resid_mark *mark, bool *found, kld_err *err) {
    *found = false;
    char **names;
    size_t n;
    if (!kld_path_is_dir(dir)) return KLD_OK;
    TRY(kld_list_dir(dir, &names, &n, err));
    kld_status st = KLD_OK;
    for (size_t i = n; i-- > 0 && st == KLD_OK && !*found;) {
        if (!has_suffix(names[i], ".resid")) continue;
        char *path;
        kld_err why = {0};
        kld_resid_mark there = {0, 0};
        st = kld_path_join(&path, dir, names[i], err);
        if (st != KLD_OK) break;
        kld_status got = read_one(path, run_id, s, &there, &why);
        if (got == KLD_OK) {
            *found = true;
            *mark = there;
        } else if (got == KLD_E_NUMERIC) {
            kld_note("%s: ignored, %s", path, why.text);
        } else {
            st = got;
            if (err) *err = why;
        }
        kld_free(path);
    }
    kld_names_free(names, n);
    return st;
}
