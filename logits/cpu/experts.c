/* Routing, and experts in tiles of a fixed number of rows, so that what a row gives does not depend
 * on how many others an expert has. */
#include "kld/base/num.h"
#include "logits/cpu/cpu.h"
#include "logits/cpu/vmath.h"
#include "logits/route.h"

#include <omp.h>
#include <string.h>

kld_status cpu_route(kld_device *dev, kld_view logits, const kld_dev_weight *bias,
                     const kld_router *r, const uint32_t *forced, const kld_routes *out,
                     kld_err *err) {
    (void)err;
    size_t k = r->top_k;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (size_t i = 0; i < logits.rows; i++)
        kld_route_row(r, view_row(logits, i), bias ? bias->data : NULL,
                      forced ? forced + i * k : NULL, out->id + i * k, out->weight + i * k,
                      out->margin + i);
    return KLD_OK;
}

/* Tiles of a round: enough that no thread waits long at its end. */
static size_t round_tiles(const kld_device *dev) { return 2 * (size_t)dev->threads; }

size_t cpu_experts_scratch(const kld_device_spec *spec, size_t threads) {
    if (!spec->experts) return 0;
    size_t thread = spec->hidden + spec->expert_cols + spec->expert_cols / 2;
    return CPU_EXPERT_ROWS * (threads * thread + 2 * threads * spec->hidden) * sizeof(float);
}

struct tile {
    const kld_expert_rows *e;
    size_t first, n;
};

/* The tile's rows of h as w sees them; rows past the tile's are zeros. */
static void gather(const kld_device *dev, const struct tile *t, kld_view h, const kld_dev_weight *w,
                   kld_view x) {
    for (size_t r = 0; r < CPU_EXPERT_ROWS; r++) {
        float *to = view_row(x, r);
        if (r < t->n) memcpy(to, view_row(h, t->e->row[t->first + r]), x.cols * sizeof *to);
        else memset(to, 0, x.cols * sizeof *to);
    }
    if (!cpu_plain_input(w)) cpu_input_rows(dev, x, w, x);
}

static void run_tile(kld_device *dev, const struct tile *t, kld_view h, const kld_gate *act,
                     float *y) {
    size_t width = dev->spec.hidden, inner = dev->spec.expert_cols / 2;
    float *x =
        dev->expert + (size_t)omp_get_thread_num() * CPU_EXPERT_ROWS * (width + inner + 2 * inner);
    float *g = x + CPU_EXPERT_ROWS * width, *a = g + CPU_EXPERT_ROWS * 2 * inner;
    const kld_expert_rows *e = t->e;
    kld_view in = {x, CPU_EXPERT_ROWS, width, width, KLD_ELEM_ACT};
    kld_view gate = {g, CPU_EXPERT_ROWS, inner, 2 * inner, KLD_ELEM_ACT}, up = gate, both = gate;
    kld_view mid = {a, CPU_EXPERT_ROWS, inner, inner, KLD_ELEM_ACT};
    kld_view out = {y, CPU_EXPERT_ROWS, width, width, KLD_ELEM_F32};
    up.p = g + inner;
    both.cols = e->up ? inner : 2 * inner;
    gather(dev, t, h, e->gate, in);
    cpu_linear_lanes(dev, in, e->gate, both);
    if (e->up && !cpu_same_input(e->gate, e->up)) gather(dev, t, h, e->up, in);
    if (e->up) cpu_linear_lanes(dev, in, e->up, up);
    cpu_gated_rows(dev, act, gate, up, mid);
    if (!cpu_plain_input(e->down)) cpu_input_rows(dev, mid, e->down, mid);
    cpu_linear_lanes(dev, mid, e->down, out);
}

/* Columns [c, c + n) of the tiles' rows, tile after tile. */
CLONES static void add_tiles(const struct tile *t, size_t tiles, const float *y, size_t width,
                             kld_view x, size_t c, size_t n) {
    for (size_t i = 0; i < tiles; i++) {
        for (size_t r = 0; r < t[i].n; r++) {
            const float *from = y + (i * CPU_EXPERT_ROWS + r) * width + c;
            float *to = view_row(x, t[i].e->row[t[i].first + r]) + c;
            float w = t[i].e->weight[t[i].first + r];
            for (size_t k = 0; k < n; k++) to[k] += w * from[k];
        }
    }
}

kld_status cpu_experts(kld_device *dev, kld_view h, const kld_expert_rows *e, size_t n,
                       const kld_gate *act, kld_view x, kld_err *err) {
    (void)err;
    enum { SLICE = 256 };
    struct tile round[2 * CPU_MAX_THREADS];
    size_t most = round_tiles(dev), width = dev->spec.hidden, tiles = 0;
    float *y = dev->expert + (size_t)dev->threads * CPU_EXPERT_ROWS *
                                 (width + dev->spec.expert_cols + dev->spec.expert_cols / 2);
    for (size_t i = 0, row = 0; i < n;) {
        if (row < e[i].n) {
            round[tiles++] = (struct tile){&e[i], row, num_min(CPU_EXPERT_ROWS, e[i].n - row)};
            row += CPU_EXPERT_ROWS;
        }
        if (row >= e[i].n) {
            row = 0;
            i++;
        }
        if (tiles < most && i < n) continue;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
        for (size_t t = 0; t < tiles; t++)
            run_tile(dev, &round[t], h, act, y + t * CPU_EXPERT_ROWS * width);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
        for (size_t c = 0; c < width; c += SLICE)
            add_tiles(round, tiles, y, width, x, c, num_min(SLICE, width - c));
        tiles = 0;
    }
    return KLD_OK;
}
