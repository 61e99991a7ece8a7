/* Times the operations of a back end on random data: one JSON line a measurement.
 * Usage: bench [device [name-prefix]]. */
#include "kld/base/log.h"
#include "kld/base/version.h"
#include "loaders/numfmt.h"
#include "logits/graph.h"
#include "logits/select.h"
#include "tests/bench/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_HIDDEN = 4096 };
/* A card's sizes and repetitions; a processor gets what it does in seconds. */
static size_t window = 2048, n_rows = 4 * 2048, vocab = 154880;
static int samples = 9, repeat = 36;

static const kld_backend *be;
static kld_device *dev;
static int device;
static const char *only = "";

static void need(kld_status st, const kld_err *err) {
    if (st == KLD_OK) return;
    fprintf(stderr, "bench: %s\n", err->text);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median milliseconds of fn, each sample `inner` calls between two waits. */
static double median_ms(void (*fn)(void *), void *arg, int inner) {
    double t[9];
    kld_err err = {0};
    if (inner > repeat) inner = repeat;
    fn(arg);
    for (int s = 0; s < samples; s++) {
        need(be->sync(dev, &err), &err);
        double from = kld_seconds();
        for (int i = 0; i < inner; i++) fn(arg);
        need(be->sync(dev, &err), &err);
        t[s] = (kld_seconds() - from) * 1e3 / inner;
    }
    qsort(t, (size_t)samples, sizeof *t, by_value);
    return t[samples / 2];
}

static bool wanted(const char *name) {
    size_t n = strlen(name), m = strlen(only);
    return strncmp(name, only, n < m ? n : m) == 0;
}

static void report(const char *name, double ms, double bytes, double flops, double tokens) {
    printf("{\"name\": \"%s\", \"ms\": %.4f", name, ms);
    if (bytes > 0) printf(", \"min_bytes\": %.0f, \"GBps\": %.4g", bytes, bytes / ms / 1e6);
    if (flops > 0) printf(", \"TFLOPs\": %.4g", flops / ms / 1e9);
    if (tokens > 0) printf(", \"tokens_per_s\": %.0f", tokens / ms * 1e3);
    printf("}\n");
    fflush(stdout);
}

/* Device memory full of plausible values: `std` times roughly normal ones, BF16 or FP32. */
static void *random_device(size_t n, size_t size, double std) {
    enum { POOL = 1 << 22 };
    static unsigned char pool[POOL * 4];
    uint64_t s = 88172645463325252u;
    kld_err err = {0};
    for (size_t i = 0; i < POOL; i++) {
        double v = -2;
        for (int k = 0; k < 4; k++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            v += (double)(s >> 11) * 0x1p-53;
        }
        float f = (float)(v * std * 1.7320508);
        uint16_t h = kld_f32_to_bf16(f);
        if (size == 2) memcpy(pool + 2 * i, &h, 2);
        else memcpy(pool + 4 * i, &f, 4);
    }
    unsigned char *p;
    need(be->alloc(dev, (void **)&p, n * size, &err), &err);
    for (size_t at = 0; at < n; at += POOL) {
        size_t m = n - at < POOL ? n - at : POOL;
        need(be->upload(dev, p + at * size, pool, m * size, &err), &err);
    }
    return p;
}

/* ---- the body of a model of Qwen3-8B's shape ------------------------------------------------ */

struct body {
    kld_model m;
    kld_layer layer;
    kld_tensor tensor[KLD_SLOT_COUNT];
    kld_graph g;
    kld_batch b;
    kld_span span[4 * 2048 / KLD_CHUNK];
    kld_view x;
};
static struct body body;

static void add_slot(kld_slot slot, size_t rows, size_t cols) {
    kld_tensor *t = &body.tensor[slot];
    *t = (kld_tensor){.name = "w", .dtype = KLD_BF16, .bytes = rows * cols * 2};
    body.layer.slot[slot] =
        (kld_weight){.format = KLD_FMT_BF16, .rows = rows, .cols = cols, .data = t};
}

/* A BF16 weight of random values. */
static kld_dev_weight random_weight(const kld_weight *w, kld_use use) {
    kld_err err = {0};
    kld_dev_weight out;
    kld_raw_weight raw = {.w = w, .alpha = 1, .global = 1};
    raw.v.data = random_device(w->rows * w->cols, 2, use == KLD_USE_VECTOR ? 0.5 : 0.02);
    void *mem = NULL;
    need(be->alloc(dev, &mem, be->weight_bytes(KLD_PRECISION_BF16, w, use), &err), &err);
    need(be->prepare(dev, &raw, use, mem, &out, &err), &err);
    return out;
}

static void prepare_slot(kld_slot slot, kld_use use) {
    body.g.w[slot] = random_weight(&body.layer.slot[slot], use);
    body.g.has[slot] = true;
}

static void body_open(const kld_device_spec *spec) {
    kld_config *c = &body.m.config;
    kld_attention *at = &c->attn[KLD_ATTN_FULL];
    *c = (kld_config){.hidden = 4096,
                      .intermediate = 12288,
                      .layers = 1,
                      .vocab = 151936,
                      .norm_eps = 1e-6,
                      .value_scale = 1,
                      .attn_scale = 0.08838834764831845};
    *at = (kld_attention){.heads = 32, .kv_heads = 8, .head_dim = 128, .value_dim = 128};
    at->rope = (kld_rope){.theta = 1e6, .partial = 1, .attention_factor = 1};
    at->rope_dim = 128;
    body.m.layer = &body.layer;
    body.layer.attn = at;
    body.layer.sub[0] = (kld_sublayer){KLD_BLOCK_ATTENTION, KLD_SLOT_ATTN_NORM, KLD_SLOT_COUNT};
    body.layer.sub[1] = (kld_sublayer){KLD_BLOCK_MLP, KLD_SLOT_MLP_NORM, KLD_SLOT_COUNT};
    body.layer.n_sub = 2;
    add_slot(KLD_SLOT_ATTN_NORM, c->hidden, 1);
    add_slot(KLD_SLOT_MLP_NORM, c->hidden, 1);
    add_slot(KLD_SLOT_Q_NORM, at->head_dim, 1);
    add_slot(KLD_SLOT_K_NORM, at->head_dim, 1);
    add_slot(KLD_SLOT_Q, 4096, 4096);
    add_slot(KLD_SLOT_K, 1024, 4096);
    add_slot(KLD_SLOT_V, 1024, 4096);
    add_slot(KLD_SLOT_O, 4096, 4096);
    add_slot(KLD_SLOT_GATE, 12288, 4096);
    add_slot(KLD_SLOT_UP, 12288, 4096);
    add_slot(KLD_SLOT_DOWN, 4096, 12288);
    kld_err err = {0};
    kld_schedule stages;
    need(kld_schedule_make(&stages, &body.m, 0, 0, &err), &err);
    need(kld_graph_open(&body.g, &body.m, &stages, be, dev, spec, KLD_ACTIVATIONS_WEIGHTS_ONLY,
                        true, window, &err),
         &err);
    kld_schedule_free(&stages);
    for (kld_slot s = KLD_SLOT_ATTN_NORM; s < KLD_SLOT_COUNT; s++)
        if (body.layer.slot[s].rows)
            prepare_slot(s, body.layer.slot[s].cols == 1 ? KLD_USE_VECTOR : KLD_USE_MATRIX);
    body.x = (kld_view){random_device(n_rows * c->hidden, 4, 1), n_rows, c->hidden, c->hidden,
                        KLD_ELEM_F32};
    body.b = (kld_batch){body.span, 0, n_rows};
    for (size_t r = 0; r < n_rows; r += KLD_CHUNK)
        body.span[body.b.n++] = (kld_span){r, KLD_CHUNK, r % window, r / window * window};
}

static void run_layer(void *arg) {
    (void)arg;
    kld_err err = {0};
    need(kld_graph_layer(&body.g, &body.layer, &body.b, body.x, 0, NULL, &err), &err);
}

static void run_norm(void *arg) {
    (void)arg;
    kld_err err = {0};
    need(be->norm(dev, body.x, &body.g.w[KLD_SLOT_ATTN_NORM], 1e-6, body.g.h, false, &err), &err);
}

static void run_rope(void *arg) {
    (void)arg;
    kld_err err = {0};
    kld_rope_args a = {.dim = 128, .table = &body.g.rope[KLD_ATTN_FULL], .eps = 1e-6};
    a.w = &body.g.w[KLD_SLOT_Q_NORM];
    need(be->rope(dev, &body.b, body.g.q, &a, body.g.qa, &err), &err);
}

static void run_attend(void *arg) {
    (void)arg;
    kld_err err = {0};
    kld_view y = body.g.q;
    y.elem = KLD_ELEM_ACT;
    kld_attend_args a = {.heads = 32, .kv_heads = 8, .head_dim = 128, .value_dim = 128};
    a.scale = 0.088388f;
    need(be->attend(dev, &body.b, body.g.qa, body.g.ka, body.g.va, &a, y, &err), &err);
}

/* Latent attention: 16 heads of their own, of dim[0] columns with values of dim[1]. */
struct latent {
    const size_t *dim;
    kld_view q, k, v, y;
};

static void run_latent(void *arg) {
    const struct latent *l = arg;
    kld_err err = {0};
    kld_attend_args a = {.heads = 16, .kv_heads = 16};
    a.head_dim = l->dim[0];
    a.value_dim = l->dim[1];
    a.scale = 0.07f;
    need(be->attend(dev, &body.b, l->q, l->k, l->v, &a, l->y, &err), &err);
}

static kld_view random_rows(size_t cols) {
    return (kld_view){random_device(n_rows * cols, 2, 1), n_rows, cols, cols, KLD_ELEM_ACT};
}

static void bench_latent(void) {
    static const size_t dims[2][2] = {{256, 256}, {192, 128}};
    for (size_t i = 0; i < 2; i++) {
        const size_t *d = dims[i];
        char name[32];
        snprintf(name, sizeof name, "body_attend_%zu_%zu", d[0], d[1]);
        if (!wanted(name) || be->host_memory) continue;
        struct latent l = {d, random_rows(16 * d[0]), random_rows(16 * d[0]),
                           random_rows(16 * d[1]), random_rows(16 * d[1])};
        report(name, median_ms(run_latent, &l, 20), 0,
               16.0 * (double)(d[0] + d[1]) * (double)n_rows * ((double)window + 1), 0);
        be->free(dev, l.q.p);
        be->free(dev, l.k.p);
        be->free(dev, l.v.p);
        be->free(dev, l.y.p);
    }
}

static void run_gated(void *arg) {
    (void)arg;
    kld_err err = {0};
    const kld_gate silu = {.act = KLD_ACT_SILU};
    need(be->gated(dev, &silu, body.g.gate, body.g.up, body.g.act, &err), &err);
}

struct product {
    kld_view x, y;
    const kld_dev_weight *w;
    bool add;
};

static void run_product(void *arg) {
    struct product *p = arg;
    kld_err err = {0};
    need(be->linear(dev, &body.b, p->x, p->w, p->y, p->add, &err), &err);
}

static void bench_product(const char *name, kld_view x, kld_slot slot, kld_view y, bool add) {
    struct product p = {x, y, &body.g.w[slot], add};
    if (!wanted(name)) return;
    double ms = median_ms(run_product, &p, 10);
    report(name, ms, 0, 2.0 * (double)n_rows * (double)p.w->rows * (double)p.w->cols, 0);
}

static void bench_body(void) {
    if (!wanted("body")) return;
    const double f32 = 4.0 * (double)n_rows, f16 = 2.0 * (double)n_rows;
    kld_view rows_x = body.x;
    if (wanted("body_norm"))
        report("body_norm", median_ms(run_norm, NULL, 20), (f32 + f16) * 4096, 0, 0);
    bench_product("body_q", body.g.h, KLD_SLOT_Q, body.g.q, false);
    bench_product("body_k", body.g.h, KLD_SLOT_K, body.g.k, false);
    bench_product("body_v", body.g.h, KLD_SLOT_V, body.g.va, false);
    if (wanted("body_rope_q"))
        report("body_rope_q", median_ms(run_rope, NULL, 20), (f32 + f16) * 4096, 0, 0);
    if (wanted("body_attend"))
        report("body_attend", median_ms(run_attend, NULL, 20), 0,
               4.0 * 32 * 128 * (double)n_rows * ((double)window + 1) / 2, 0);
    bench_product("body_o", body.g.qa, KLD_SLOT_O, rows_x, true);
    bench_product("body_gate", body.g.h, KLD_SLOT_GATE, body.g.gate, false);
    if (wanted("body_gated"))
        report("body_gated", median_ms(run_gated, NULL, 20), 3 * f16 * 12288, 0, 0);
    bench_product("body_down", body.g.act, KLD_SLOT_DOWN, rows_x, true);
    bench_latent();
    if (!wanted("body_qwen3_8b")) return;
    double ms = 36 * median_ms(run_layer, NULL, 36);
    report("body_qwen3_8b", ms, 0, 2.0 * 36 * 192937984.0 * (double)n_rows, (double)n_rows);
}

/* ---- head --------------------------------------------------------------------------------- */

struct stage {
    kld_view x, h, y;
    const kld_dev_weight *w, *norm;
    kld_head_args a;
    kld_records rec;
};

static void run_stats(void *arg) {
    struct stage *s = arg;
    kld_err err = {0};
    size_t bad, first;
    need(be->head_begin(dev, s->y, &s->a, &err), &err);
    need(be->head_end(dev, &s->rec, 0, &bad, &first, &err), &err);
}

/* The next rows' product is queued before this one's records are taken, where calls may be open. */
static void run_stage(void *arg) {
    struct stage *s = arg;
    kld_err err = {0};
    size_t bad, first;
    static bool open;
    need(be->norm(dev, s->x, s->norm, 1e-6, s->h, false, &err), &err);
    need(be->linear(dev, &body.b, s->h, s->w, s->y, false, &err), &err);
    need(be->head_begin(dev, s->y, &s->a, &err), &err);
    if (open || be->head_slots == 1) need(be->head_end(dev, &s->rec, 0, &bad, &first, &err), &err);
    open = true;
}

/* Logits with the spread of a model's: 0.12 * sqrt(512) as in the PyTorch peer. */
static void bench_head(kld_view h, kld_view y, const kld_dev_weight *w) {
    kld_err err = {0};
    static uint32_t labels[2048];
    struct stage s = {.h = h, .y = y, .w = w, .norm = &body.g.w[KLD_SLOT_ATTN_NORM]};
    s.x = body.x;
    s.x.rows = window;
    s.a = (kld_head_args){
        .top_k = 256, .min_k = 10, .tail_samples = 16, .tail_mass = 1e-3, .labels = labels};
    need(kld_records_alloc(&s.rec, window, 256, 16, 0, 0, &err), &err);
    report("head_stats_and_records", median_ms(run_stats, &s, 1), 4.0 * (double)(window * vocab), 0,
           0);
    report("head_stage", median_ms(run_stage, &s, 10), 0,
           2.0 * (double)(window * vocab) * HEAD_HIDDEN, 0);
    kld_records_free(&s.rec);
}

static void bench_head_gemm(void) {
    const kld_tensor t = {
        .name = "w", .dtype = KLD_BF16, .bytes = (uint64_t)vocab * HEAD_HIDDEN * 2};
    const kld_weight w = {.format = KLD_FMT_BF16, .rows = vocab, .cols = HEAD_HIDDEN, .data = &t};
    if (!wanted("gemm_head") && !wanted("head")) return;
    kld_err err = {0};
    kld_dev_weight d = random_weight(&w, KLD_USE_MATRIX);
    kld_view x = {random_device(window * HEAD_HIDDEN, 2, 1), window, HEAD_HIDDEN, HEAD_HIDDEN,
                  KLD_ELEM_ACT};
    kld_view y = {NULL, window, vocab, vocab, KLD_ELEM_F32};
    need(be->alloc(dev, &y.p, window * vocab * 4, &err), &err);
    struct product p = {x, y, &d, false};
    double flops = 2.0 * (double)(window * vocab) * HEAD_HIDDEN;
    report("gemm_head_f32", median_ms(run_product, &p, 5), 0, flops, 0);
    p.y.elem = KLD_ELEM_ACT;
    report("gemm_head", median_ms(run_product, &p, 5), 0, flops, 0);
    bench_head(x, y, &d);
    be->free(dev, y.p);
}

/* ---- experts of GLM-4.7-Flash ---------------------------------------------------------------- */

enum { WIDTH = 2048, INNER = 1536, CHOSEN = 4, MOST_EXPERTS = 64, MOST_ROWS = 16384 };

struct mixture {
    size_t experts, rows;
    kld_view h, x, z;
    kld_dev_weight w[MOST_EXPERTS][3];
    kld_expert_rows e[MOST_EXPERTS];
    uint32_t row[MOST_EXPERTS][MOST_ROWS], id[MOST_ROWS * CHOSEN];
    float weight[MOST_EXPERTS][MOST_ROWS], chosen[MOST_ROWS * CHOSEN], margin[MOST_ROWS];
};
static struct mixture mix;

static void run_experts(void *arg) {
    (void)arg;
    kld_err err = {0};
    const kld_gate silu = {.act = KLD_ACT_SILU};
    need(be->experts(dev, mix.h, mix.e, mix.experts, &silu, mix.x, &err), &err);
}

static void run_route(void *arg) {
    (void)arg;
    kld_err err = {0};
    kld_router r = {.score = KLD_SCORE_SIGMOID, .top_k = CHOSEN, .groups = 1, .top_groups = 1};
    kld_routes out = {mix.id, mix.chosen, mix.margin};
    r.experts = mix.experts;
    r.scale = 1.8;
    need(be->route(dev, mix.z, NULL, &r, NULL, &out, &err), &err);
}

static kld_dev_weight expert_matrix(unsigned char *data, size_t rows, size_t cols) {
    static const kld_tensor t = {.name = "w", .dtype = KLD_BF16, .bytes = 2 * WIDTH * INNER};
    kld_weight w = {.format = KLD_FMT_BF16, .rows = rows, .cols = cols, .data = &t};
    kld_raw_weight raw = {.w = &w, .alpha = 1, .global = 1};
    kld_dev_weight out;
    kld_err err = {0};
    void *mem;
    raw.v.data = data;
    need(be->alloc(dev, &mem, be->weight_bytes(KLD_PRECISION_BF16, &w, KLD_USE_MATRIX), &err),
         &err);
    need(be->prepare(dev, &raw, KLD_USE_MATRIX, mem, &out, &err), &err);
    return out;
}

/* Every row goes to four experts, evenly by chance. */
static void bench_experts(void) {
    if (!wanted("experts") && !wanted("route")) return;
    kld_err err = {0};
    mix.experts = be->host_memory ? 8 : MOST_EXPERTS;
    mix.rows = be->host_memory ? KLD_CHUNK : MOST_ROWS;
    kld_device_spec spec = {.precision = KLD_PRECISION_BF16,
                            .max_rows = mix.rows,
                            .max_keys = mix.rows,
                            .head_dim = 128,
                            .head_rows = KLD_CHUNK,
                            .vocab = 1024,
                            .top_k = 16,
                            .hidden = WIDTH,
                            .experts = mix.experts,
                            .chosen = CHOSEN,
                            .expert_cols = 2 * INNER};
    need(be->open(&dev, &spec, device, &err), &err);
    size_t one = (size_t)2 * WIDTH * INNER; /* bytes of a matrix */
    unsigned char *data = random_device(3 * mix.experts * WIDTH * INNER, 2, 0.02);
    for (size_t i = 0; i < mix.experts; i++) {
        for (size_t k = 0; k < 3; k++)
            mix.w[i][k] = expert_matrix(data + (3 * i + k) * one, k < 2 ? INNER : WIDTH,
                                        k < 2 ? WIDTH : INNER);
        mix.e[i] = (kld_expert_rows){&mix.w[i][0], &mix.w[i][1], &mix.w[i][2], 0,
                                     mix.row[i],   mix.weight[i]};
    }
    uint64_t s = 88172645463325252u;
    for (size_t r = 0; r < mix.rows; r++) {
        for (size_t k = 0; k < CHOSEN;) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            size_t i = (size_t)(s >> 33) % mix.experts, n = mix.e[i].n;
            if (n && mix.row[i][n - 1] == r) continue;
            mix.row[i][n] = (uint32_t)r;
            mix.weight[i][mix.e[i].n++] = 0.25f;
            k++;
        }
    }
    size_t act = be->elem_size(KLD_PRECISION_BF16, KLD_ELEM_ACT);
    mix.h =
        (kld_view){random_device(mix.rows * WIDTH, act, 1), mix.rows, WIDTH, WIDTH, KLD_ELEM_ACT};
    mix.x = (kld_view){random_device(mix.rows * WIDTH, 4, 1), mix.rows, WIDTH, WIDTH, KLD_ELEM_F32};
    mix.z = (kld_view){NULL, mix.rows, mix.experts, mix.experts, KLD_ELEM_F32};
    mix.z.p = random_device(mix.rows * mix.experts, 4, 1);
    if (wanted("experts"))
        report("experts_glm47_flash", median_ms(run_experts, NULL, 10), 0,
               6.0 * CHOSEN * WIDTH * INNER * (double)mix.rows, (double)mix.rows);
    if (wanted("route"))
        report("route_glm47_flash", median_ms(run_route, NULL, 10),
               4.0 * (double)(mix.rows * mix.experts), 0, (double)mix.rows);
}

#if BENCH_KERNELS
static void kernel_row(const char *name, double ms, double bytes) { report(name, ms, bytes, 0, 0); }
#endif

int main(int argc, char **argv) {
    kld_err err = {0};
    kld_choice c;
    need(kld_choose(argc > 1 ? argv[1] : "auto", &c, &err), &err);
    if (argc > 2) only = argv[2];
    be = c.backend;
    if (be->host_memory) {
        window = n_rows = KLD_CHUNK;
        vocab = 16384;
        samples = 3;
        repeat = 1;
    }
    kld_device_spec spec = {.precision = KLD_PRECISION_BF16,
                            .max_rows = n_rows,
                            .max_keys = n_rows,
                            .head_dim = 128,
                            .kv_cols = 1024,
                            .head_rows = window,
                            .vocab = vocab,
                            .top_k = 256,
                            .tail_samples = 16};
    device = c.device[0];
    need(be->open(&dev, &spec, device, &err), &err);
    kld_device_identity id = {0};
    be->identity(KLD_PRECISION_BF16, c.device[0], &id);
    printf("{\"device\": \"%s\", \"rows\": %zu, \"vocab\": %zu, \"commit\": \"%s\"}\n", id.device,
           n_rows, vocab, kld_commit());
#if BENCH_KERNELS
    if (!be->host_memory && wanted("kernels")) bench_kernels(kernel_row);
#endif
    body_open(&spec);
    bench_body();
    bench_head_gemm();
    bench_experts();
    return 0;
}
