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
    double *p;            /* [n] probabilities */
    struct ranked *order; /* [n] */
    unsigned char *in;    /* [n] nucleus */
    uint32_t size;
    double mass; /* of the nucleus */
};

/* A nucleus is looked for among the ids of the first bins: by how far a logit is below the largest,
 * in steps of 1/8; what is further below than 64 shares the last one. */
enum { BINS_A_NAT = 8, BINS = 64 * BINS_A_NAT + 1 };

static int by_rank(const void *a, const void *b) {
    const struct ranked *p = a, *q = b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

static double lp_of(const struct side *s, size_t i) { return (double)s->l[i] - s->lse; }

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
    for (size_t i = 0; i < n; i++) s->p[i] = exp(lp_of(s, i));
    return true;
}

/* Ascends with the distance, so that the ids of the bins up to one are the most probable ids. */
static size_t bin_of(const struct side *s, size_t i) {
    float at = (s->l[s->top] - s->l[i]) * BINS_A_NAT;
    return at < BINS - 1 ? (size_t)at : BINS - 1;
}

/* The last bin that a nucleus reaches into, up to rounding. */
static size_t last_bin(const struct side *s, size_t n, double top_p) {
    double mass[BINS] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++) mass[bin_of(s, i)] += s->p[i];
    for (size_t k = 0; k < BINS; k++) {
        sum += mass[k];
        if (sum >= top_p) return k;
    }
    return BINS - 1;
}

/* Until the mass reaches top_p, from ids that are ranked.  False when they do not suffice. */
static bool fill(struct side *s, size_t ranked, double top_p) {
    s->size = 0;
    s->mass = 0;
    for (size_t i = 0; i < ranked && (s->mass < top_p || i == 0); i++) {
        uint32_t id = s->order[i].id;
        if (s->p[id] == 0) return true;
        s->in[id] = 1;
        s->size++;
        s->mass += s->p[id];
    }
    return s->mass >= top_p;
}

/* Until the mass reaches top_p; every id whose probability is not 0 when rounding leaves it
 * short.  Only the ids of the bins that it may reach into are put in order. */
static void nucleus(struct side *s, size_t n, double top_p) {
    memset(s->in, 0, n);
    for (size_t k = last_bin(s, n, top_p);; k = num_min(2 * k + 1, BINS - 1)) {
        size_t m = 0;
        for (size_t i = 0; i < n; i++)
            if (bin_of(s, i) <= k) s->order[m++] = (struct ranked){s->l[i] + 0.0f, (uint32_t)i};
        qsort(s->order, m, sizeof *s->order, by_rank);
        if (fill(s, m, top_p) || k == BINS - 1) return;
    }
}

/* a ln(a / m) for m = (a + b) / 2, by way of ln(1 + d / 2a) where a and b are close. */
static double js_part(double a, double b) { return a > 0 ? -a * log1p((b - a) / (2 * a)) : 0; }

static void sums(const struct side *p, const struct side *q, size_t n, kld_pair_row *out) {
    double kl = 0, rev = 0, js = 0, tv = 0;
    for (size_t i = 0; i < n; i++) {
        double lp = lp_of(p, i), lq = lp_of(q, i), a = p->p[i], b = q->p[i];
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
        double a = p->p[i], b = q->p[i];
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
    size_t n = p.cols, places = 2 * (size_t)dev->threads;
    struct ranked *order = NULL;
    unsigned char *in = NULL;
    double *mass = NULL;
    kld_status st;
    TRY_TO(done, kld_calloc((void **)&order, places * n, sizeof *order, err));
    TRY_TO(done, kld_calloc((void **)&in, places * n, 1, err));
    TRY_TO(done, kld_calloc((void **)&mass, places * n, sizeof *mass, err));
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t r = 0; r < p.rows; r++) {
        size_t t = 2 * (size_t)omp_get_thread_num() * n, u = t + n;
        struct side a = {.l = view_row(p, r), .p = mass + t, .order = order + t, .in = in + t};
        struct side b = {.l = view_row(q, r), .p = mass + u, .order = order + u, .in = in + u};
        pair_row(&a, &b, n, top_p, &out[r]);
    }
done:
    kld_free(order);
    kld_free(in);
    kld_free(mass);
    return st;
}
