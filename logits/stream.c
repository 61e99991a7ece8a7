#include "logits/stream.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

static size_t row_bytes(const kld_stream *s) { return s->cols * s->size; }

static kld_status open_memory(kld_stream *s, size_t bytes, const char *spill_dir, kld_err *err) {
    const kld_backend *be = s->be;
    switch (s->place) {
    case KLD_ON_DEVICE:
        *(be->host_memory ? &s->host_bytes : &s->device_bytes) += bytes;
        return be->alloc(s->dev, (void **)&s->mem, bytes, err);
    case KLD_ON_HOST:
        s->host_bytes += bytes;
        return be->stage_alloc(s->dev, (void **)&s->mem, bytes, err);
    case KLD_ON_DISK: return kld_spill_open(&s->spill, spill_dir, bytes, err);
    }
    return KLD_OK;
}

/* The host may read and write mem. */
static bool direct(const kld_stream *s) {
    return s->place == KLD_ON_HOST || (s->place == KLD_ON_DEVICE && s->be->host_memory);
}

kld_status kld_stream_open(kld_stream *s, const kld_backend *be, kld_device *dev, size_t rows,
                           size_t cols, size_t size, kld_place place, const char *spill_dir,
                           size_t stage_rows, kld_err *err) {
    *s = (kld_stream){.be = be, .dev = dev, .place = place, .rows = rows, .cols = cols};
    s->size = size;
    if (be->host_memory && place == KLD_ON_HOST) s->place = KLD_ON_DEVICE;
    s->spill.fd = -1;
    size_t bytes;
    if (!num_mul_size(rows, row_bytes(s), &bytes))
        return kld_fail(err, KLD_E_NOMEM, "%zu rows of %zu columns are too many", rows, cols);
    kld_status st;
    if (!direct(s)) {
        s->stage_rows = num_min(rows, stage_rows);
        size_t n = s->stage_rows * row_bytes(s);
        TRY_TO(out, be->stage_alloc(dev, (void **)&s->stage, n, err));
        s->host_bytes += n;
    }
    TRY_TO(out, open_memory(s, bytes, spill_dir, err));
    return KLD_OK;
out:
    kld_stream_close(s);
    return st;
}

void kld_stream_close(kld_stream *s) {
    if (s->be) {
        if (s->place == KLD_ON_HOST) s->be->stage_free(s->dev, s->mem);
        else s->be->free(s->dev, s->mem);
        s->be->stage_free(s->dev, s->stage);
        kld_spill_close(&s->spill);
    }
    memset(s, 0, sizeof *s);
    s->spill.fd = -1;
}

static unsigned char *at(const kld_stream *s, size_t row0) { return s->mem + row0 * row_bytes(s); }

kld_view kld_stream_view(const kld_stream *s, size_t row0, size_t n, kld_view x) {
    x.rows = n;
    if (s->place == KLD_ON_DEVICE) x.p = at(s, row0);
    return x;
}

kld_status kld_stream_load(kld_stream *s, size_t row0, size_t n, kld_view x, kld_view *out,
                           kld_err *err) {
    *out = kld_stream_view(s, row0, n, x);
    if (s->place == KLD_ON_DEVICE || n == 0) return KLD_OK;
    const void *rows;
    TRY(kld_stream_get(s, row0, n, &rows, err));
    return s->be->upload(s->dev, x.p, rows, n * row_bytes(s), err);
}

kld_status kld_stream_store(kld_stream *s, size_t row0, size_t n, kld_view x, kld_err *err) {
    if (s->place == KLD_ON_DEVICE || n == 0) return KLD_OK;
    void *room = kld_stream_room(s, row0);
    TRY(s->be->download(s->dev, room, x.p, n * row_bytes(s), err));
    return kld_stream_put(s, row0, n, err);
}

void *kld_stream_room(kld_stream *s, size_t row0) { return direct(s) ? at(s, row0) : s->stage; }

kld_status kld_stream_get(kld_stream *s, size_t row0, size_t n, const void **rows, kld_err *err) {
    *rows = kld_stream_room(s, row0);
    if (direct(s) || n == 0) return KLD_OK;
    size_t bytes = n * row_bytes(s);
    if (s->place == KLD_ON_DEVICE)
        return s->be->download(s->dev, s->stage, at(s, row0), bytes, err);
    return kld_spill_read(&s->spill, s->stage, (uint64_t)row0 * row_bytes(s), bytes, err);
}

kld_status kld_stream_put(kld_stream *s, size_t row0, size_t n, kld_err *err) {
    if (direct(s) || n == 0) return KLD_OK;
    size_t bytes = n * row_bytes(s);
    if (s->place == KLD_ON_DEVICE) return s->be->upload(s->dev, at(s, row0), s->stage, bytes, err);
    return kld_spill_write(&s->spill, s->stage, (uint64_t)row0 * row_bytes(s), bytes, err);
}
