/* How windows are packed into batches. */
#include "kld/base/num.h"
#include "logits/graph.h"

void kld_batcher_start(kld_batcher *b, size_t window) {
    b->window = window;
    b->pos = 0;
    b->row = 0;
    for (size_t i = 0; i < window; i++) b->row += b->seqs[i].n;
}

static void add_span(kld_batcher *b, size_t n, size_t pos, size_t kv_row) {
    kld_span *s = &b->span[b->batch.n++];
    *s = (kld_span){.row = b->batch.rows, .n = n, .pos = pos, .kv_row = kv_row};
    b->batch.rows += n;
    b->row += n;
}

bool kld_batcher_next(kld_batcher *b) {
    b->batch = (kld_batch){.span = b->span};
    b->batch_row = b->row;
    b->kv_offset = 0;
    b->ends_window = true;
    if (b->window < b->n_seqs && b->seqs[b->window].n > b->max_rows) {
        size_t n = b->seqs[b->window].n, end = num_min(n, b->pos + b->max_rows);
        b->kv_offset = b->pos;
        for (; b->pos < end; b->pos += b->span[b->batch.n - 1].n)
            add_span(b, num_min(b->chunk, end - b->pos), b->pos, 0);
        b->ends_window = end == n;
        if (b->ends_window) {
            b->pos = 0;
            b->window++;
        }
        return true;
    }
    for (; b->window < b->n_seqs; b->window++) {
        size_t n = b->seqs[b->window].n, kv_row = b->batch.rows;
        if (n > b->max_rows - b->batch.rows || b->batch.n + num_cdiv(n, b->chunk) > b->max_spans)
            break;
        for (size_t p = 0; p < n; p += b->chunk) add_span(b, num_min(b->chunk, n - p), p, kv_row);
    }
    return b->batch.rows > 0;
}
