/* Head statistics: the kernel's buffers, two slots of them, and what comes back as records. */
#include "logits/cuda/head.cuh"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/cuda/cuda.cuh"

#include <cmath>
#include <cstring>

enum { SLOTS = 2 };

/* One part of a slot, the same in device and in pinned host memory. */
struct part {
    size_t at, bytes;
};

/* What goes to the device comes first, what comes back from it after. */
struct slot_layout {
    struct part labels, ref_count, ref_ids, ref_tail_ids;
    size_t in_bytes;
    struct part lse, entropy, tail_mass, label, count, ids, logit, draw_ids, draw_logit, ref_logit,
        ref_tail_logit;
    size_t bytes;
};

struct slot {
    unsigned char *dev, *host; /* slot_layout.bytes each; host is pinned */
    cudaEvent_t computed, done;
    struct cuda_head_call call;
    kld_head_args args;
};

struct cuda_head {
    struct slot_layout at;
    struct slot slot[SLOTS];
    size_t begun, ended;
};

static struct part take(size_t *at, size_t bytes) {
    struct part p = {*at, bytes};
    *at += num_cdiv(bytes, 256) * 256;
    return p;
}

static struct slot_layout lay_out(const kld_device_spec *s) {
    struct slot_layout a = {};
    size_t n = 0, rows = s->head_rows, k = s->top_k, m = s->tail_samples;
    a.labels = take(&n, rows * 4);
    a.ref_count = take(&n, rows * 4);
    a.ref_ids = take(&n, rows * s->ref_ld * 4);
    a.ref_tail_ids = take(&n, rows * s->ref_m * 4);
    a.in_bytes = n;
    a.lse = take(&n, rows * 8);
    a.entropy = take(&n, rows * 4);
    a.tail_mass = take(&n, rows * 4);
    a.label = take(&n, rows * 4);
    a.count = take(&n, rows * 4);
    a.draw_ids = take(&n, rows * m * 4);
    a.draw_logit = take(&n, rows * m * 4);
    a.ref_tail_logit = take(&n, rows * s->ref_m * 4);
    a.ids = take(&n, rows * k * 4);
    a.logit = take(&n, rows * k * 4);
    a.ref_logit = take(&n, rows * s->ref_ld * 4);
    a.bytes = n;
    return a;
}

uint64_t cuda_head_bytes(const kld_device_spec *spec) { return SLOTS * lay_out(spec).bytes; }

kld_status cuda_head_open(kld_device *dev, kld_err *err) {
    TRY(NEW_ARRAY(&dev->head, 1, err));
    struct cuda_head *h = dev->head;
    h->at = lay_out(&dev->spec);
    for (int i = 0; i < SLOTS && h->at.bytes; i++) {
        CUDA(cudaMalloc((void **)&h->slot[i].dev, h->at.bytes), "allocating head buffers");
        CUDA(cudaHostAlloc((void **)&h->slot[i].host, h->at.bytes, cudaHostAllocPortable),
             "pinning head buffers");
        CUDA(cudaEventCreateWithFlags(&h->slot[i].computed, cudaEventDisableTiming),
             "making an event");
        CUDA(cudaEventCreateWithFlags(&h->slot[i].done, cudaEventDisableTiming), "making an event");
    }
    return KLD_OK;
}

void cuda_head_close(kld_device *dev) {
    if (!dev->head) return;
    for (int i = 0; i < SLOTS; i++) {
        cudaFree(dev->head->slot[i].dev);
        if (dev->head->slot[i].host) cudaFreeHost(dev->head->slot[i].host);
        if (dev->head->slot[i].computed) cudaEventDestroy(dev->head->slot[i].computed);
        if (dev->head->slot[i].done) cudaEventDestroy(dev->head->slot[i].done);
    }
    kld_free(dev->head);
    dev->head = NULL;
}

static kld_status check(const kld_device *dev, kld_view l, const kld_head_args *a, kld_err *err) {
    const kld_device_spec *s = &dev->spec;
    const struct cuda_head *h = dev->head;
    if (h->begun - h->ended == SLOTS) return kld_fail(err, KLD_E_INTERNAL, "a third head_begin");
    if (l.rows > s->head_rows || a->top_k > s->top_k || a->top_k > 4096 ||
        a->tail_samples > s->tail_samples || (a->ref_ids && a->ref_ids_ld > s->ref_ld) ||
        (a->ref_tail_ids && a->ref_m > s->ref_m))
        return kld_fail(err, KLD_E_INTERNAL, "head statistics beyond what was announced");
    return KLD_OK;
}

static void put_in(const struct slot *s, struct part p, const void *from, size_t bytes) {
    if (from && bytes) std::memcpy(s->host + p.at, from, bytes);
}

kld_status cuda_head_begin(kld_device *dev, kld_view logits, const kld_head_args *args,
                           kld_err *err) {
    TRY(check(dev, logits, args, err));
    struct cuda_head *h = dev->head;
    struct slot *s = &h->slot[h->begun % SLOTS];
    const struct slot_layout *a = &h->at;
    size_t rows = logits.rows, ld = args->ref_ids_ld;
    s->args = *args;
    put_in(s, a->labels, args->labels, rows * 4);
    put_in(s, a->ref_count, args->ref_count, rows * 4);
    put_in(s, a->ref_ids, args->ref_ids, rows * ld * 4);
    put_in(s, a->ref_tail_ids, args->ref_tail_ids, rows * args->ref_m * 4);
    CUDA(cudaMemcpyAsync(s->dev, s->host, a->in_bytes, cudaMemcpyHostToDevice, dev->compute),
         "copying labels");
    unsigned char *d = s->dev;
    struct cuda_head_call c = {};
    c.rows = rows;
    c.ld = logits.ld;
    c.cols = (unsigned)logits.cols;
    c.top_k = (unsigned)args->top_k;
    c.min_k = (unsigned)args->min_k;
    c.draws = (unsigned)args->tail_samples;
    c.ref_ld = (unsigned)ld;
    c.ref_m = (unsigned)args->ref_m;
    c.tail_mass = args->tail_mass;
    c.seed = args->seed;
    c.window = args->window;
    c.pos = args->pos;
    c.labels = (const uint32_t *)(d + a->labels.at);
    if (args->ref_ids) c.ref_count = (const uint32_t *)(d + a->ref_count.at);
    if (args->ref_ids) c.ref_ids = (const uint32_t *)(d + a->ref_ids.at);
    if (args->ref_tail_ids) c.ref_tail_ids = (const uint32_t *)(d + a->ref_tail_ids.at);
    c.lse = (double *)(d + a->lse.at);
    c.entropy = (float *)(d + a->entropy.at);
    c.tail_mass_out = (float *)(d + a->tail_mass.at);
    c.label_logit = (float *)(d + a->label.at);
    c.count = (uint32_t *)(d + a->count.at);
    c.ids = (uint32_t *)(d + a->ids.at);
    c.logit = (float *)(d + a->logit.at);
    c.draw_ids = (uint32_t *)(d + a->draw_ids.at);
    c.draw_logit = (float *)(d + a->draw_logit.at);
    c.ref_logit = (float *)(d + a->ref_logit.at);
    c.ref_tail_logit = (float *)(d + a->ref_tail_logit.at);
    s->call = c;
    CUDA(cuda_is_bf16(dev, logits)
             ? cuda_head_launch(&c, (const __nv_bfloat16 *)logits.p, dev->compute)
             : cuda_head_launch(&c, (const float *)logits.p, dev->compute),
         "head statistics");
    /* The results travel while the next rows are computed. */
    CUDA(cudaEventRecord(s->computed, dev->compute), "head statistics");
    CUDA(cudaStreamWaitEvent(dev->back, s->computed, 0), "head statistics");
    CUDA(cudaMemcpyAsync(s->host + a->in_bytes, d + a->in_bytes, a->bytes - a->in_bytes,
                         cudaMemcpyDeviceToHost, dev->back),
         "copying head statistics");
    CUDA(cudaEventRecord(s->done, dev->back), "head statistics");
    h->begun++;
    return KLD_OK;
}

/* ---- records ----------------------------------------------------------------------------- */

struct view_of {
    const struct slot *s;
    const struct slot_layout *a;
    const float *f(struct part p) const { return (const float *)(s->host + p.at); }
    const uint32_t *u(struct part p) const { return (const uint32_t *)(s->host + p.at); }
    const double *d(struct part p) const { return (const double *)(s->host + p.at); }
};

static void gathered(const struct view_of &v, size_t r, double lse, kld_records *rec, size_t row) {
    const kld_head_args *g = &v.s->args;
    size_t n = g->ref_ids && g->ref_count ? num_min(g->ref_count[r], rec->ref_ld) : 0;
    const float *l = v.f(v.a->ref_logit) + r * g->ref_ids_ld;
    for (size_t i = 0; i < n; i++) rec->ref_lp[row * rec->ref_ld + i] = (double)l[i] - lse;
    l = v.f(v.a->ref_tail_logit) + r * g->ref_m;
    for (size_t i = 0; g->ref_tail_ids && i < rec->ref_m; i++) {
        bool none = g->ref_tail_ids[r * g->ref_m + i] == UINT32_MAX;
        rec->ref_tail_lp[row * rec->ref_m + i] = none ? (double)NAN : (double)l[i] - lse;
    }
}

static void good_row(const struct view_of &v, size_t r, double lse, kld_records *rec, size_t row) {
    const struct cuda_head_call *c = &v.s->call;
    uint32_t n = v.u(v.a->count)[r];
    const float *logit = v.f(v.a->logit) + r * c->top_k;
    rec->count[row] = n;
    std::memcpy(rec->ids + row * rec->k_ld, v.u(v.a->ids) + r * c->top_k, n * 4);
    for (uint32_t i = 0; i < n; i++) rec->lp[row * rec->k_ld + i] = (double)logit[i] - lse;
    rec->label_lp[row] = (float)((double)v.f(v.a->label)[r] - lse);
    rec->lse[row] = (float)lse;
    rec->entropy[row] = v.f(v.a->entropy)[r];
    rec->tail_mass[row] = v.f(v.a->tail_mass)[r];
    for (size_t i = 0; i < rec->m; i++) {
        uint32_t id = v.u(v.a->draw_ids)[r * rec->m + i];
        double l = (double)v.f(v.a->draw_logit)[r * rec->m + i];
        rec->tail_ids[row * rec->m + i] = id;
        rec->tail_lp[row * rec->m + i] = id == UINT32_MAX ? (double)NAN : l - lse;
    }
}

static void bad_row(kld_records *rec, size_t row) {
    rec->count[row] = 0;
    rec->label_lp[row] = rec->lse[row] = rec->entropy[row] = rec->tail_mass[row] = NAN;
    for (size_t i = 0; i < rec->m; i++) {
        rec->tail_ids[row * rec->m + i] = UINT32_MAX;
        rec->tail_lp[row * rec->m + i] = (double)NAN;
    }
}

kld_status cuda_head_end(kld_device *dev, kld_records *rec, size_t row0, size_t *nonfinite,
                         size_t *first_bad, kld_err *err) {
    struct cuda_head *h = dev->head;
    if (h->begun == h->ended) return kld_fail(err, KLD_E_INTERNAL, "head_end without head_begin");
    const struct slot *s = &h->slot[h->ended++ % SLOTS];
    const struct view_of v = {s, &h->at};
    CUDA(cudaEventSynchronize(s->done), "head statistics");
    *nonfinite = 0;
    for (size_t r = 0; r < s->call.rows; r++) {
        double lse = v.d(h->at.lse)[r];
        rec->label[row0 + r] = s->args.labels[r];
        gathered(v, r, lse, rec, row0 + r); /* NaN when lse is */
        if (lse == lse) {
            good_row(v, r, lse, rec, row0 + r);
            continue;
        }
        bad_row(rec, row0 + r);
        if (!(*nonfinite)++) *first_bad = r;
    }
    return KLD_OK;
}
