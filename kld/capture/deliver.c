#include "kld/capture/deliver.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/thread.h"

#include <string.h>

/* A reference window being read, or read. */
typedef struct fetch {
    kld_deliver *d;
    kld_task *task;
    size_t window;
    bool used; /* this slot holds `window` */
    kld_records rec;
} fetch;

/* A window being compressed. */
typedef struct pack {
    const kld_deliver *d;
    kld_task *task;
    size_t window;
    kld_records rec, ref;
    kld_encoded out;
} pack;

enum { MAX_PACKS = 16, AHEAD = 8 };

struct kld_deliver {
    kld_capture_writer *w;
    kld_capture *ref;
    const kld_suite *suite;
    fetch fetch[KLD_OPEN_WINDOWS + AHEAD]; /* window i is at i % (KLD_OPEN_WINDOWS + AHEAD) */
    size_t next_fetch;
    pack pack[MAX_PACKS];
    size_t packs, begun, put; /* at most `packs` are under way */
};

kld_status kld_deliver_open(kld_deliver **out, kld_capture_writer *w, kld_capture *ref,
                            const kld_suite *suite, size_t first, kld_err *err) {
    TRY(NEW_ARRAY(out, 1, err));
    kld_deliver *d = *out;
    d->w = w;
    d->ref = ref;
    d->suite = suite;
    d->next_fetch = first;
    d->packs = num_min(kld_processors(), MAX_PACKS);
    return KLD_OK;
}

/* ---- references ------------------------------------------------------------------------- */

static fetch *slot_of(kld_deliver *d, size_t i) {
    return &d->fetch[i % (KLD_OPEN_WINDOWS + AHEAD)];
}

static kld_status read_reference(void *arg, kld_err *err) {
    fetch *f = arg;
    kld_window_meta meta;
    TRY(kld_capture_read(f->d->ref, f->window, NULL, &f->rec, &meta, err));
    const kld_window *w = &f->d->suite->windows[f->window];
    if (kld_same_digest(&meta.ids, &w->tokens) && meta.score_from == w->score_from &&
        f->rec.n == kld_window_scored(w))
        return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "%s: window %zu holds other tokens than the suite; capture the reference "
                    "again on this suite",
                    kld_capture_path(f->d->ref), f->window);
}

kld_status kld_deliver_gather(kld_deliver *d, size_t i, kld_gather *out, kld_err *err) {
    size_t end = num_min(d->suite->n_windows, i + 1 + AHEAD);
    for (; d->next_fetch < end; d->next_fetch++) {
        fetch *f = slot_of(d, d->next_fetch);
        f->d = d;
        f->window = d->next_fetch;
        f->used = true;
        TRY(kld_task_start(&f->task, read_reference, f, err));
    }
    fetch *f = slot_of(d, i);
    TRY(kld_task_wait(&f->task, err));
    const kld_records *r = &f->rec;
    *out = (kld_gather){
        .count = r->count, .ids = r->ids, .ld = r->k_ld, .tail_ids = r->tail_ids, .m = r->m};
    return KLD_OK;
}

/* ---- records ---------------------------------------------------------------------------- */

static kld_status compress(void *arg, kld_err *err) {
    pack *p = arg;
    const kld_window *w = &p->d->suite->windows[p->window];
    kld_window_meta meta = {
        .tokens = w->n,
        .score_from = w->score_from,
        .offset = w->offset,
        .source = w->source,
        .cluster = w->cluster,
        .stratum = w->stratum,
        .partition = w->partition,
        .ids = w->tokens,
    };
    return kld_capture_encode(p->d->w, p->window, &meta, &p->rec, p->d->ref ? &p->ref : NULL,
                              &p->out, err);
}

/* Wait for the oldest and write it. */
static kld_status put_oldest(kld_deliver *d, kld_err *err) {
    pack *p = &d->pack[d->put++ % d->packs];
    kld_status st = kld_task_wait(&p->task, err);
    kld_records_free(&p->rec);
    kld_records_free(&p->ref);
    return st == KLD_OK ? kld_capture_put(d->w, &p->out, err) : st;
}

kld_status kld_deliver_records(kld_deliver *d, size_t i, kld_records *r, kld_err *err) {
    if (d->begun - d->put == d->packs) TRY(put_oldest(d, err));
    pack *p = &d->pack[d->begun % d->packs];
    *p = (pack){.d = d, .window = i, .rec = *r};
    memset(r, 0, sizeof *r);
    if (d->ref) {
        fetch *f = slot_of(d, i);
        p->ref = f->rec;
        memset(&f->rec, 0, sizeof f->rec);
        f->used = false;
    }
    kld_status st = kld_task_start(&p->task, compress, p, err);
    if (st == KLD_OK) d->begun++;
    if (st != KLD_OK) kld_records_free(&p->rec);
    if (st != KLD_OK) kld_records_free(&p->ref);
    return st;
}

kld_status kld_deliver_flush(kld_deliver *d, kld_err *err) {
    while (d->put < d->begun) TRY(put_oldest(d, err));
    return KLD_OK;
}

void kld_deliver_close(kld_deliver *d) {
    if (!d) return;
    kld_status ended; /* what failed was reported, or is of no more use */
    while (d->put < d->begun) {
        pack *p = &d->pack[d->put++ % d->packs];
        ended = kld_task_wait(&p->task, NULL);
        if (ended == KLD_OK) kld_encoded_free(&p->out);
        kld_records_free(&p->rec);
        kld_records_free(&p->ref);
    }
    for (size_t i = 0; i < KLD_OPEN_WINDOWS + AHEAD; i++) {
        ended = kld_task_wait(&d->fetch[i].task, NULL);
        kld_records_free(&d->fetch[i].rec);
    }
    (void)ended;
    kld_free(d);
}
