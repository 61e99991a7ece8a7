/* Two distributions held against each other, row by row; a thread has a row.  Everything in FP64:
 * this is the specification. */
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "logits/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* An id with its logit; sorted: most probable first, a tie to the lower id. */
struct ranked {
    float x;
    uint32_t id;
};

struct side {
    const float *l;
    double lse;
    uint32_t top;
    struct ranked *order; /* [n] */
    unsigned char *in;    /* [n] nucleus */
    uint32_t size;
    double mass; /* of the nucleus */
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *p = a, *q = b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* False when the row is not finite. */
static bool normalise(struct side *s, size_t n) {
    float max = -INFINITY;
    s->top = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(s->l[i])) return false;
        if (s->l[i] > max) {
            max = s->l[i];
            s->top = (uint32_t)i;
        }
    }
    if (!isfinite(max)) return false;
    double z = 0;
    for (size_t i = 0; i < n; i++) z += exp((double)s->l[i] - (double)max);
    s->lse = (double)max + log(z);
    return true;
}

static double lp_of(const struct side *s, size_t i) { return (double)s->l[i] - s->lse; }

/* Until the mass reaches top_p; every id whose probability is not 0 when rounding leaves it
 * short. */
static void nucleus(struct side *s, size_t n, double top_p) {
    for (size_t i = 0; i < n; i++) s->order[i] = (struct ranked){s->l[i] + 0.0f, (uint32_t)i};
    qsort(s->order, n, sizeof *s->order, by_rank);
    memset(s->in, 0, n);
    s->size = 0;
    s->mass = 0;
    for (size_t i = 0; i < n && (s->mass < top_p || i == 0); i++) {
        double p = exp(lp_of(s, s->order[i].id));
        if (p == 0) break;
        s->in[s->order[i].id] = 1;
        s->size++;
        s->mass += p;
    }
}

/* a ln(a / m) for m = (a + b) / 2, by way of ln(1 + d / 2a) where a and b are close. */
static double js_part(double a, double b) { return a > 0 ? -a * log1p((b - a) / (2 * a)) : 0; }

static void sums(const struct side *p, const struct side *q, size_t n, kld_pair_row *out) {
    double kl = 0, rev = 0, js = 0, tv = 0;
    for (size_t i = 0; i < n; i++) {
        double lp = lp_of(p, i), lq = lp_of(q, i), a = exp(lp), b = exp(lq);
        if (a > 0) kl += a * (lp - lq);
        if (b > 0) rev += b * (lq - lp);
        js += js_part(a, b) + js_part(b, a);
        tv += fabs(a - b);
    }
    /* Sums of terms of either sign: rounding may leave a hair below 0. */
    out->kl = fmax(kl, 0);
    out->reverse_kl = fmax(rev, 0);
    out->js = fmax(js / 2, 0);
    out->tv = tv / 2;
}

static void overlap(const struct side *p, const struct side *q, size_t n, kld_pair_row *out) {
    double tv = 0;
    for (size_t i = 0; i < n; i++) {
        if (!p->in[i] && !q->in[i]) continue;
        double a = exp(lp_of(p, i)), b = exp(lp_of(q, i));
        if (q->in[i]) out->p_on_q += a;
        if (p->in[i]) out->q_on_p += b;
        out->nucleus_both += p->in[i] && q->in[i];
        tv += fabs((p->in[i] ? a / p->mass : 0) - (q->in[i] ? b / q->mass : 0));
    }
    out->nucleus_tv = tv / 2;
    out->nucleus_p = p->size;
    out->nucleus_q = q->size;
}

static void pair_row(struct side *p, struct side *q, size_t n, double top_p, kld_pair_row *out) {
    memset(out, 0, sizeof *out);
    if (!normalise(p, n) || !normalise(q, n)) {
        out->kl = out->reverse_kl = out->js = out->tv = (double)NAN;
        out->p_on_q = out->q_on_p = out->nucleus_tv = (double)NAN;
        return;
    }
    out->top1_p = p->top;
    out->top1_q = q->top;
    nucleus(p, n, top_p);
    nucleus(q, n, top_p);
    sums(p, q, n, out);
    overlap(p, q, n, out);
}

kld_status cpu_pair(kld_device *dev, kld_view p, kld_view q, double top_p, kld_pair_row *out,
                    kld_err *err) {
    size_t n = p.cols, threads = (size_t)dev->threads;
    struct ranked *order = NULL;
    unsigned char *in = NULL;
    kld_status st;
    TRY_TO(done, kld_calloc((void **)&order, 2 * threads * n, sizeof *order, err));
    TRY_TO(done, kld_calloc((void **)&in, 2 * threads * n, 1, err));
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t r = 0; r < p.rows; r++) {
        size_t t = 2 * (size_t)omp_get_thread_num();
        struct side a = {.l = view_row(p, r), .order = order + t * n, .in = in + t * n};
        struct side b = {.l = view_row(q, r), .order = order + (t + 1) * n, .in = in + (t + 1) * n};
        pair_row(&a, &b, n, top_p, &out[r]);
    }
done:
    kld_free(order);
    kld_free(in);
    return st;
}
