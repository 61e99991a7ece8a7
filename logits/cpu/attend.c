/* Causal attention in blocks of queries: a task is one span, one head, one block of
 * CPU_QBLOCK queries against every key the block can see. */
#include "kld/base/num.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Scores s[0..n) become e^(s - max) on [lo, hi) and 0 elsewhere.  Returns their sum, taken
 * in FP64: lane i adds columns lo+i, lo+i+16, ..., then a fixed tree.  A BF16 run rounds
 * the weights after they were summed.  A sink (-inf = none) is one more score without a column. */
CLONES static double softmax_row(float *s, size_t lo, size_t hi, size_t n, float sink, bool bf16) {
    for (size_t j = 0; j < lo; j++) s[j] = 0;
    for (size_t j = hi; j < n; j++) s[j] = 0;
    float *p = s + lo;
    size_t m = hi - lo, whole = m / VL * VL;
    const vf low = (vf){0} - INFINITY;
    vf tail = low, top = low;
    memcpy(&tail, p + whole, (m - whole) * sizeof *p);
    for (size_t j = 0; j < whole; j += VL) {
        vf v;
        vf_load(&v, p + j);
        vi more = v > top;
        vf_select(&top, &more, &v, &top);
    }
    vi more = tail > top;
    vf_select(&top, &more, &tail, &top);
    float max = vf_max(&top);
    if (sink > max) max = sink;
    vd sum = {0};
    for (size_t j = 0; j < whole; j += VL) {
        vf v, e;
        vf_load(&v, p + j);
        v -= max;
        vf_exp(&e, &v);
        sum += __builtin_convertvector(e, vd);
        if (bf16) vf_bf16(&e);
        vf_store(p + j, &e);
    }
    if (whole < m) {
        vf v = tail - max, e;
        vf_exp(&e, &v); /* lanes past the end are e^-inf = 0 */
        sum += __builtin_convertvector(e, vd);
        if (bf16) vf_bf16(&e);
        memcpy(p + whole, &e, (m - whole) * sizeof *p);
    }
    return vd_sum(&sum) + exp((double)(sink - max));
}

static void cap_row(float *s, size_t lo, size_t hi, float cap) {
    for (size_t j = lo; j < hi; j++) s[j] = cap * tanhf(s[j] / cap);
}

CLONES static void scale_row(float *y, size_t n, float by, bool bf16) {
    for (size_t i = 0; i < n; i += VL) {
        vf v = {0};
        size_t k = n - i < VL ? n - i : VL;
        memcpy(&v, y + i, k * sizeof *y);
        v *= by;
        if (bf16) vf_bf16(&v);
        memcpy(y + i, &v, k * sizeof *y);
    }
}

/* Rows before the first that holds NaN or Inf; n when none does. */
static size_t finite_rows(const float *v, size_t ld, size_t n, size_t dim) {
    for (size_t r = 0; r < n; r++) {
        float sum = 0; /* v - v is 0, or NaN */
        for (size_t i = 0; i < dim; i++) sum += v[r * ld + i] - v[r * ld + i];
        if (sum != 0) return r;
    }
    return n;
}

struct job {
    kld_device *dev;
    kld_view q, k, v, y;
    const kld_attend_args *a;
};

static void attend_block(const struct job *j, const kld_span *s, size_t head, size_t q0) {
    const kld_attend_args *a = j->a;
    kld_device *dev = j->dev;
    size_t nq = num_min(CPU_QBLOCK, s->n - q0), pos = s->pos + q0;
    size_t group = head / (a->heads / a->kv_heads), vcol = group * a->value_dim;
    /* Keys any query of the block sees. */
    size_t lo = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0, hi = pos + nq;
    float *score = dev->score + (size_t)omp_get_thread_num() * CPU_QBLOCK * dev->key_ld;
    const float *q = view_row(j->q, s->row + q0) + head * a->head_dim;
    const float *k = view_row(j->k, s->kv_row + lo) + group * a->head_dim;
    const float *v = view_row(j->v, s->kv_row + lo) + vcol;
    float *y = view_row(j->y, s->row + q0) + head * a->value_dim;
    blasint nk = (blasint)(hi - lo), ld = (blasint)dev->key_ld, dim = (blasint)a->head_dim;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)nq, nk, dim, a->scale, q,
                (blasint)j->q.ld, k, (blasint)j->k.ld, 0.0f, score, ld);
    float inv[CPU_QBLOCK];
    for (size_t r = 0; r < nq; r++) {
        size_t i = pos + r, first = a->window && i + 1 > a->window ? i + 1 - a->window : 0;
        float *row = score + r * dev->key_ld;
        if (a->softcap > 0) cap_row(row, first - lo, i + 1 - lo, a->softcap);
        double sum = softmax_row(row, first - lo, i + 1 - lo, hi - lo,
                                 a->sinks ? a->sinks[head] : -INFINITY, dev->bf16);
        inv[r] = (float)(1.0 / sum);
    }
    /* A weight of 0 does not hide a NaN: queries ahead of one must not multiply its row. */
    size_t clean = finite_rows(view_row(j->v, s->kv_row + pos) + vcol, j->v.ld, nq, a->value_dim);
    dim = (blasint)a->value_dim;
    for (size_t r = 0; r < nq; r = clean, clean = nq) {
        nk = (blasint)(pos + clean - lo);
        if (clean > r)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)(clean - r), dim, nk,
                        1.0f, score + r * dev->key_ld, ld, v, (blasint)j->v.ld, 0.0f,
                        y + r * j->y.ld, (blasint)j->y.ld);
    }
    bool round = dev->bf16 && j->y.elem == KLD_ELEM_ACT;
    for (size_t r = 0; r < nq; r++) scale_row(y + r * j->y.ld, a->value_dim, inv[r], round);
}

kld_status cpu_attend(kld_device *dev, const kld_batch *b, kld_view q, kld_view k, kld_view v,
                      const kld_attend_args *args, kld_view y, kld_err *err) {
    (void)err;
    struct job j = {dev, q, k, v, y, args};
    size_t blocks = KLD_CHUNK / CPU_QBLOCK, tasks = b->n * args->heads * blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
    for (size_t t = 0; t < tasks; t++) {
        const kld_span *s = &b->span[t / (args->heads * blocks)];
        size_t head = t / blocks % args->heads, q0 = t % blocks * CPU_QBLOCK;
        if (q0 < s->n) attend_block(&j, s, head, q0);
    }
    return KLD_OK;
}
