#include "logits/reader.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

static void add_weight(kld_stage *s, const kld_weight *table, kld_slot slot, kld_use use) {
    const kld_weight *w = &table[slot];
    if (w->rows == 0) return;
    s->slot[s->n] = slot;
    s->use[s->n] = use;
    s->weight[s->n].w = w;
    s->bytes += kld_weight_bytes(w);
    s->n++;
}

static kld_use use_of(kld_slot slot) {
    bool norm = slot == KLD_SLOT_ATTN_NORM || slot == KLD_SLOT_MLP_NORM ||
                slot == KLD_SLOT_Q_NORM || slot == KLD_SLOT_K_NORM;
    return norm ? KLD_USE_VECTOR : KLD_USE_MATRIX;
}

void kld_stage_of(const kld_model *m, size_t index, kld_stage *out) {
    memset(out, 0, sizeof *out);
    if (index == 0) {
        add_weight(out, m->global, KLD_SLOT_EMBED, KLD_USE_EMBEDDING);
    } else if (index > m->config.layers) {
        add_weight(out, m->global, KLD_SLOT_FINAL_NORM, KLD_USE_VECTOR);
        add_weight(out, m->global, KLD_SLOT_HEAD, KLD_USE_MATRIX);
    } else {
        const kld_weight *slot = m->layer[index - 1].slot;
        for (kld_slot i = KLD_SLOT_ATTN_NORM; i < KLD_SLOT_COUNT; i++)
            add_weight(out, slot, i, use_of(i));
    }
}

static uint64_t padded(const kld_tensor *t) { return t ? (t->bytes + 63) / 64 * 64 : 0; }

uint64_t kld_stage_buffer_bytes(const kld_stage *s) {
    uint64_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const kld_weight *w = s->weight[i].w;
        n += padded(w->data) + padded(w->scale) + padded(w->global) + padded(w->bias);
    }
    return n;
}

static kld_status read_part(const kld_reader *r, const kld_tensor *t, unsigned char **at,
                            const unsigned char **out, kld_err *err) {
    *out = NULL;
    if (!t) return KLD_OK;
    *out = *at;
    *at += padded(t);
    return kld_checkpoint_read(&r->model->ckpt, t, 0, *at - padded(t), (size_t)t->bytes, err);
}

/* Runs beside the computation; touches only the buffer and stage of `next`. */
static kld_status read_stage(void *arg, kld_err *err) {
    kld_reader *r = arg;
    kld_stage *s = &r->stage[r->next % 2];
    unsigned char *at = r->buf[r->next % 2];
    for (size_t i = 0; i < s->n; i++) {
        kld_host_weight *h = &s->weight[i];
        TRY(read_part(r, h->w->data, &at, &h->v.data, err));
        TRY(read_part(r, h->w->scale, &at, &h->v.scale, err));
        TRY(read_part(r, h->w->global, &at, &h->v.global, err));
        TRY(read_part(r, h->w->bias, &at, &h->bias, err));
        uint64_t bad = 0;
        TRY(kld_weight_check(h->w, h->v, &bad, err));
        s->nonfinite += bad;
        s->zero_blocks += kld_weight_zero_blocks(h->w, h->v);
        if (h->w->format == KLD_FMT_NVFP4) s->blocks += h->w->rows * (h->w->cols / 16);
    }
    return KLD_OK;
}

static kld_status start(kld_reader *r, kld_err *err) {
    kld_stage_of(r->model, r->next, &r->stage[r->next % 2]);
    return kld_task_start(&r->task, read_stage, r, err);
}

kld_status kld_reader_open(kld_reader *r, const kld_model *m, size_t first, kld_err *err) {
    memset(r, 0, sizeof *r);
    r->model = m;
    r->next = first;
    uint64_t need[2] = {0, 0};
    for (size_t i = first; i <= m->config.layers + 1; i++) {
        kld_stage s;
        kld_stage_of(m, i, &s);
        uint64_t n = kld_stage_buffer_bytes(&s);
        if (n > need[i % 2]) need[i % 2] = n;
    }
    kld_status st;
    for (size_t i = 0; i < 2; i++) {
        r->buffer_bytes += need[i];
        TRY_TO(out, kld_calloc((void **)&r->buf[i], (size_t)need[i], 1, err));
    }
    TRY_TO(out, start(r, err));
    return KLD_OK;
out:
    kld_reader_close(r);
    return st;
}

kld_status kld_reader_next(kld_reader *r, const kld_stage **out, kld_err *err) {
    double t = kld_seconds();
    TRY(kld_task_wait(&r->task, err));
    r->wait_seconds += kld_seconds() - t;
    *out = &r->stage[r->next % 2];
    r->bytes_read += (*out)->bytes;
    r->nonfinite += (*out)->nonfinite;
    r->zero_blocks += (*out)->zero_blocks;
    r->blocks += (*out)->blocks;
    if (r->next++ <= r->model->config.layers) TRY(start(r, err));
    return KLD_OK;
}

void kld_reader_close(kld_reader *r) {
    kld_status ended = kld_task_wait(&r->task, NULL);
    (void)ended; /* the run is over; its own status is the one that counts */
    kld_free(r->buf[0]);
    kld_free(r->buf[1]);
    memset(r, 0, sizeof *r);
}
