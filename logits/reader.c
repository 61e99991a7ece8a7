#include "logits/reader.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <stdatomic.h>
#include <string.h>

enum { PART_ALIGN = 256 };
/* Large enough for the disk and for the link to the card, small enough that 16 threads times two
 * of them are little memory. */
#define PIECE_BYTES ((uint64_t)8 << 20)

static uint64_t padded(uint64_t n) { return num_cdiv(n, PART_ALIGN) * PART_ALIGN; }

/* ---- pieces ---------------------------------------------------------------------------- */

/* Lines of data with the scales that belong to them, or elements of a part read aside. */
struct kld_piece {
    size_t weight;
    kld_part part;
    uint64_t first, n;
};

static uint64_t element_bytes(const kld_tensor *t) { return kld_dtype_bits(t->dtype) / 8; }

/* Lines or elements of the part altogether; 0: it is not read by itself. */
static uint64_t part_length(const kld_weight *w, kld_part part) {
    if (part == KLD_PART_DATA) return kld_weight_lines(w);
    if (!kld_weight_aside(w, part)) return 0;
    const kld_tensor *t = kld_weight_part(w, part);
    return t->bytes / element_bytes(t);
}

static uint64_t piece_length(const kld_weight *w, kld_part part) {
    uint64_t one = part == KLD_PART_DATA ? kld_weight_cut(w, 0, 1).data_bytes
                                         : element_bytes(kld_weight_part(w, part));
    return num_max(1, num_min(part_length(w, part), PIECE_BYTES / num_max(1, one)));
}

static size_t count_pieces(const kld_weight *w) {
    size_t n = 0;
    for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++) {
        uint64_t length = part_length(w, p);
        if (length) n += num_cdiv(length, piece_length(w, p));
    }
    return n;
}

/* Of the longest piece of a part. */
static uint64_t piece_bytes(const kld_weight *w, kld_part part) {
    uint64_t n = piece_length(w, part);
    if (part != KLD_PART_DATA) return padded(n * element_bytes(kld_weight_part(w, part)));
    kld_weight_slice s = kld_weight_cut(w, 0, (size_t)n);
    return padded(s.data_bytes) + padded(s.scale_bytes) +
           (w->global ? padded(w->global->bytes) : 0);
}

static void cut(kld_reader *r, const kld_stage *s) {
    r->n_pieces = 0;
    for (size_t i = 0; i < s->n; i++) {
        /* What lies aside is little: first, so that data keeps all threads busy to the end. */
        for (int p = KLD_PART_COUNT - 1; p >= KLD_PART_DATA; p--) {
            kld_part part = (kld_part)p;
            uint64_t length = part_length(s->weight[i].w, part);
            uint64_t step = length ? piece_length(s->weight[i].w, part) : 1;
            for (uint64_t at = 0; at < length; at += step)
                r->piece[r->n_pieces++] =
                    (struct kld_piece){i, part, at, num_min(step, length - at)};
        }
    }
}

/* What the pieces of a stage add up to; several threads read at a time. */
struct reading {
    kld_reader *r;
    kld_stage *s;
    atomic_ullong nonfinite, zero_blocks;
};

static unsigned char *stage_memory(const kld_reader *r, const kld_stage *s, size_t d) {
    bool odd = s == &r->stage[1];
    return r->raw[d] + (odd ? r->raw_bytes - s->raw_bytes : 0);
}

/* Read bytes of a tensor to `at` in the stage's memory: straight, or by way of *room, which moves
 * on.  *seen is where the host can look at them. */
static kld_status fetch(const struct reading *g, const kld_tensor *t, uint64_t from, uint64_t n,
                        uint64_t at, size_t lane, unsigned char **room, const unsigned char **seen,
                        kld_err *err) {
    const kld_reader *r = g->r;
    *seen = NULL;
    if (!t || !n) return KLD_OK;
    unsigned char *to = r->be->host_memory ? stage_memory(r, g->s, 0) + at : *room;
    *seen = to;
    TRY(kld_checkpoint_read(&r->model->ckpt, t, from, to, (size_t)n, err));
    if (r->be->host_memory) return KLD_OK;
    *room += padded(n);
    r->lane_busy[lane] = 1;
    for (size_t d = 0; d < r->n_dev; d++)
        TRY(r->be->feed(r->dev[d], lane, stage_memory(r, g->s, d) + at, to, (size_t)n, err));
    return KLD_OK;
}

static kld_status read_lines(struct reading *g, const struct kld_piece *p, size_t lane,
                             unsigned char *room, kld_err *err) {
    kld_stage *s = g->s;
    kld_stage_weight *sw = &s->weight[p->weight];
    const kld_weight *w = sw->w;
    const uint64_t *at = sw->at;
    kld_weight_slice c = kld_weight_cut(w, (size_t)p->first, (size_t)p->n);
    kld_weight_view v = {0};
    TRY(fetch(g, w->global, 0, w->global ? w->global->bytes : 0, at[KLD_PART_GLOBAL], lane, &room,
              &v.global, err));
    TRY(fetch(g, w->scale, c.scale_at, c.scale_bytes, at[KLD_PART_SCALE] + c.scale_at, lane, &room,
              &v.scale, err));
    TRY(fetch(g, w->data, c.data_at, c.data_bytes, at[KLD_PART_DATA] + c.data_at, lane, &room,
              &v.data, err));
    uint64_t bad = 0;
    TRY(kld_weight_check(w, v, (size_t)p->first, (size_t)p->n, &bad, err));
    atomic_fetch_add(&g->nonfinite, bad);
    atomic_fetch_add(&g->zero_blocks, kld_weight_zero_blocks(w, v, (size_t)p->n));
    if (p->first == 0) {
        sw->alpha = kld_weight_alpha(w, v);
        sw->global = w->global ? kld_scale_value(w->global, v.global, 0) : 1.0f;
        if (w->format == KLD_FMT_FP8_TENSOR) sw->global = kld_scale_value(w->scale, v.scale, 0);
    }
    return KLD_OK;
}

static kld_status read_aside(struct reading *g, const struct kld_piece *p, size_t lane,
                             unsigned char *room, kld_err *err) {
    const kld_weight *w = g->s->weight[p->weight].w;
    const kld_tensor *t = kld_weight_part(w, p->part);
    uint64_t from = p->first * element_bytes(t);
    const unsigned char *seen;
    TRY(fetch(g, t, from, p->n * element_bytes(t), g->s->weight[p->weight].at[p->part] + from, lane,
              &room, &seen, err));
    return kld_weight_check_aside(w, p->part, seen, p->first, p->n, err);
}

/* The last job of a stage: the disk goes on with the next one while the last pieces, too few for
 * all threads, are under way, and beyond. */
static void hint_next(const kld_reader *r) {
    kld_stage_weight sw;
    if (r->next + 1 >= r->schedule->n) return;
    for (size_t at = 0; kld_stage_next(r->model, &r->schedule->stage[r->next + 1], &at, &sw);)
        for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++)
            if (kld_weight_part(sw.w, p))
                kld_checkpoint_hint(&r->model->ckpt, kld_weight_part(sw.w, p));
}

static kld_status read_piece(void *arg, size_t thread, size_t job, kld_err *err) {
    struct reading *g = arg;
    kld_reader *r = g->r;
    if (job == r->n_pieces) {
        hint_next(r);
        return KLD_OK;
    }
    const struct kld_piece *p = &r->piece[job];
    unsigned char *room = NULL;
    size_t lane = 0;
    if (!r->be->host_memory) {
        lane = 2 * thread + r->lane_next[thread];
        r->lane_next[thread] ^= 1;
        if (r->lane_busy[lane])
            for (size_t d = 0; d < r->n_dev; d++) TRY(r->be->feed_wait(r->dev[d], lane, err));
        r->lane_busy[lane] = 0;
        room = r->lane[lane];
    }
    return p->part == KLD_PART_DATA ? read_lines(g, p, lane, room, err)
                                    : read_aside(g, p, lane, room, err);
}

/* Runs beside the computation; touches only the memory and the stage of `next`. */
static kld_status read_stage(void *arg, kld_err *err) {
    kld_reader *r = arg;
    double t = kld_seconds();
    struct reading g = {.r = r, .s = &r->stage[r->next % 2]};
    cut(r, g.s);
    kld_status st = kld_parallel(r->be->readers, r->n_pieces + 1, read_piece, &g, err);
    g.s->nonfinite = atomic_load(&g.nonfinite);
    g.s->zero_blocks = atomic_load(&g.zero_blocks);
    for (size_t i = 0; i < g.s->n; i++)
        if (g.s->weight[i].w->format == KLD_FMT_NVFP4)
            g.s->blocks += g.s->weight[i].w->rows * (g.s->weight[i].w->cols / 16);
    r->read_seconds += kld_seconds() - t;
    return st;
}

/* ---- life ------------------------------------------------------------------------------ */

static kld_status start(kld_reader *r, kld_err *err) {
    size_t half = r->next % 2;
    kld_stage_of(r->model, &r->schedule->stage[r->next], r->weights[half], &r->stage[half]);
    for (size_t d = 0; d < r->n_dev && !r->be->host_memory; d++)
        TRY(r->be->feed_open(r->dev[d], err));
    return kld_task_start(&r->task, read_stage, r, err);
}

static uint64_t largest_piece(const kld_model *m, const kld_schedule *schedule, size_t first,
                              size_t *pieces) {
    uint64_t most = 0;
    *pieces = 0;
    for (size_t i = first; i < schedule->n; i++) {
        kld_stage_weight sw;
        size_t n = 0;
        for (size_t at = 0; kld_stage_next(m, &schedule->stage[i], &at, &sw);) {
            n += count_pieces(sw.w);
            for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++)
                if (part_length(sw.w, p)) most = num_max(most, piece_bytes(sw.w, p));
        }
        *pieces = num_max(*pieces, n);
    }
    return most;
}

uint64_t kld_reader_host_bytes(const kld_model *m, const kld_schedule *schedule,
                               const kld_backend *be, size_t first) {
    size_t pieces;
    return be->host_memory ? 0 : 2 * be->readers * largest_piece(m, schedule, first, &pieces);
}

static kld_status open_lanes(kld_reader *r, kld_err *err) {
    if (r->be->host_memory) return KLD_OK;
    size_t n = 2 * r->be->readers;
    TRY(NEW_ARRAY(&r->lane, n, err));
    TRY(NEW_ARRAY(&r->lane_busy, n, err));
    TRY(NEW_ARRAY(&r->lane_next, r->be->readers, err));
    for (size_t i = 0; i < n; i++)
        TRY(r->be->stage_alloc(r->dev[0], (void **)&r->lane[i], (size_t)r->lane_bytes, err));
    r->host_bytes = n * r->lane_bytes;
    return KLD_OK;
}

kld_status kld_reader_open(kld_reader *r, const kld_model *m, const kld_schedule *schedule,
                           const kld_backend *be, kld_device *const *dev, size_t n_dev,
                           size_t first, kld_err *err) {
    memset(r, 0, sizeof *r);
    r->model = m;
    r->schedule = schedule;
    r->be = be;
    r->dev = dev;
    r->n_dev = be->host_memory ? 1 : n_dev; /* they share it */
    r->next = first;
    r->raw_bytes = kld_schedule_pair_bytes(m, schedule, first);
    r->lane_bytes = largest_piece(m, schedule, first, &r->max_pieces);
    size_t most = kld_schedule_weights(m, schedule, first);
    kld_status st;
    TRY_TO(out, NEW_ARRAY(&r->piece, r->max_pieces, err));
    for (size_t i = 0; i < 2; i++) TRY_TO(out, NEW_ARRAY(&r->weights[i], most, err));
    TRY_TO(out, NEW_ARRAY(&r->raw, n_dev, err));
    for (size_t d = 0; d < r->n_dev; d++) {
        TRY_TO(out, be->alloc(dev[d], (void **)&r->raw[d], (size_t)r->raw_bytes, err));
        r->device_bytes += r->raw_bytes;
    }
    TRY_TO(out, open_lanes(r, err));
    TRY_TO(out, start(r, err));
    return KLD_OK;
out:
    kld_reader_close(r);
    return st;
}

kld_status kld_reader_next(kld_reader *r, const kld_stage **out, kld_err *err) {
    double t = kld_seconds();
    for (size_t d = 0; d < r->n_dev && !r->be->host_memory; d++)
        TRY(r->be->feed_need(r->dev[d], err));
    TRY(kld_task_wait(&r->task, err));
    for (size_t d = 0; d < r->n_dev && !r->be->host_memory; d++)
        TRY(r->be->feed_close(r->dev[d], err));
    r->wait_seconds += kld_seconds() - t;
    *out = &r->stage[r->next % 2];
    r->bytes_read += (*out)->bytes;
    r->nonfinite += (*out)->nonfinite;
    r->zero_blocks += (*out)->zero_blocks;
    r->blocks += (*out)->blocks;
    if (++r->next < r->schedule->n) TRY(start(r, err));
    return KLD_OK;
}

void kld_reader_weight(const kld_reader *r, const kld_stage *s, size_t i, size_t d,
                       kld_raw_weight *out) {
    const kld_stage_weight *sw = &s->weight[i];
    const kld_weight *w = sw->w;
    const unsigned char *base = stage_memory(r, s, num_min(d, r->n_dev - 1));
    *out = (kld_raw_weight){.w = w, .alpha = sw->alpha, .global = sw->global};
    out->v.data = base + sw->at[KLD_PART_DATA];
    if (w->scale) out->v.scale = base + sw->at[KLD_PART_SCALE];
    if (w->global) out->v.global = base + sw->at[KLD_PART_GLOBAL];
    if (w->zeros) out->v.zeros = base + sw->at[KLD_PART_ZEROS];
    if (w->index) out->v.index = base + sw->at[KLD_PART_INDEX];
    if (w->bias) out->bias = base + sw->at[KLD_PART_BIAS];
    if (w->pre) out->pre = base + sw->at[KLD_PART_PRE];
}

void kld_reader_close(kld_reader *r) {
    kld_status ended = kld_task_wait(&r->task, NULL);
    (void)ended; /* the run is over; its own status is the one that counts */
    for (size_t d = 0; r->raw && d < r->n_dev; d++) {
        (void)!r->be->sync(r->dev[d], NULL); /* copies out of the lanes */
        r->be->free(r->dev[d], r->raw[d]);
    }
    for (size_t i = 0; r->lane && i < 2 * r->be->readers; i++)
        r->be->stage_free(r->dev[0], r->lane[i]);
    kld_free(r->raw);
    kld_free(r->lane);
    kld_free(r->lane_busy);
    kld_free(r->lane_next);
    kld_free(r->weights[0]);
    kld_free(r->weights[1]);
    kld_free(r->piece);
    memset(r, 0, sizeof *r);
}
