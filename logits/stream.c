#include "logits/stream.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

kld_status kld_stream_open(kld_stream *s, size_t rows, size_t cols, uint64_t budget,
                           const char *spill_dir, size_t stage_rows, kld_err *err) {
    memset(s, 0, sizeof *s);
    s->spill.fd = -1;
    s->rows = rows;
    s->cols = cols;
    size_t row_bytes = cols * sizeof(float), bytes;
    if (!num_mul_size(rows, row_bytes, &bytes))
        return kld_fail(err, KLD_E_NOMEM, "%zu residual rows of %zu columns are too many", rows,
                        cols);
    if (budget == 0) budget = kld_free_memory() / 2;
    if (bytes <= budget) {
        s->bytes = bytes;
        return kld_calloc((void **)&s->mem, rows, row_bytes, err);
    }
    s->stage_rows = num_min(rows, stage_rows);
    s->bytes = s->stage_rows * row_bytes;
    TRY(kld_calloc((void **)&s->stage, s->stage_rows, row_bytes, err));
    kld_status st = kld_spill_open(&s->spill, spill_dir, bytes, err);
    if (st != KLD_OK) kld_stream_close(s);
    return st;
}

void kld_stream_close(kld_stream *s) {
    kld_free(s->mem);
    kld_free(s->stage);
    kld_spill_close(&s->spill);
    memset(s, 0, sizeof *s);
    s->spill.fd = -1;
}

kld_status kld_stream_get(kld_stream *s, size_t row0, size_t n, const float **rows, kld_err *err) {
    size_t row_bytes = s->cols * sizeof(float);
    *rows = kld_stream_room(s, row0);
    if (s->mem || n == 0) return KLD_OK;
    return kld_spill_read(&s->spill, s->stage, (uint64_t)row0 * row_bytes, n * row_bytes, err);
}

float *kld_stream_room(kld_stream *s, size_t row0) {
    return s->mem ? s->mem + row0 * s->cols : s->stage;
}

kld_status kld_stream_put(kld_stream *s, size_t row0, size_t n, kld_err *err) {
    size_t row_bytes = s->cols * sizeof(float);
    if (s->mem || n == 0) return KLD_OK;
    return kld_spill_write(&s->spill, s->stage, (uint64_t)row0 * row_bytes, n * row_bytes, err);
}
