/* Experts.  The rows of all experts lie one after the other, expert by expert, so that everything
 * but the products is done for all of them at once; a product is an expert's own, by the algorithm
 * of its shape whatever its number of rows.  A product of some hundred rows does not fill a card:
 * those of different experts run side by side in a few streams.
 *
 * Scratch holds a round of rows.  Where a round ends, in the midst of an expert too, leaves no
 * trace: a row's products are its own, and x takes what its experts give one after the other. */
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/numfmt.h"
#include "logits/cuda/cuda.cuh"
#include "logits/cuda/kernel.cuh"

#include <cstring>

/* STREAMS share the workspace of the products.  SLOTS: rounds whose lists may be on their way. */
enum { STREAMS = 4, SLOTS = 2, ROUND_BYTES = 1 << 30, THREADS = 256 };
static const uint32_t NONE = UINT32_MAX;

struct cuda_experts {
    size_t rows; /* of a round */
    size_t typical;
    unsigned char *scratch; /* device; what follows lies in it */
    void *in;               /* ACT [rows][hidden] */
    void *gate;             /* ACT [rows][expert_cols]: gate, then up; their product over gate */
    float *y;               /* [rows][hidden] */
    uint32_t *lists;        /* [3 * rows + max_rows] */
    struct {
        uint32_t *lists; /* pinned */
        cudaEvent_t copied;
    } slot[SLOTS];
    size_t round; /* so far */
    cudaStream_t stream[STREAMS];
    cudaEvent_t begun, done[STREAMS];
};

/* ---- sizes ------------------------------------------------------------------------------ */

static size_t padded(size_t bytes) { return num_cdiv(bytes, 256) * 256; }

struct sizes {
    size_t rows, in, gate, y, lists;
};

/* As many rows as all tokens of a batch have experts, in about 1 GiB. */
static struct sizes sizes_of(const kld_device_spec *s) {
    size_t act = s->precision == KLD_PRECISION_BF16 ? 2 : 4;
    size_t row = s->hidden * (act + sizeof(float)) + s->expert_cols * act;
    size_t most = num_max(ROUND_BYTES / num_max(row, 1), KLD_CHUNK);
    size_t rows = num_min(num_max(s->max_rows * s->chosen, 1), most);
    return {rows, padded(rows * s->hidden * act), padded(rows * s->expert_cols * act),
            padded(rows * s->hidden * sizeof(float)),
            padded((3 * rows + s->max_rows) * sizeof(uint32_t))};
}

uint64_t cuda_experts_bytes(const kld_device_spec *spec) {
    if (!spec->experts) return 0;
    struct sizes z = sizes_of(spec);
    return z.in + z.gate + z.y + z.lists;
}

/* Rows that an expert gets of 16384 tokens: a power of two that follows from the model, not from
 * the memory at hand. */
static size_t typical_rows(const kld_device_spec *s) {
    size_t each = 16384 * num_max(s->chosen, 1) / s->experts, n = 128;
    while (n < 2048 && 2 * n <= each) n *= 2;
    return n;
}

/* ---- life ------------------------------------------------------------------------------- */

kld_status cuda_experts_open(kld_device *dev, kld_err *err) {
    const kld_device_spec *s = &dev->spec;
    if (!s->experts) return KLD_OK;
    struct sizes z = sizes_of(s);
    TRY(NEW_ARRAY(&dev->experts, 1, err));
    struct cuda_experts *x = dev->experts;
    x->rows = z.rows;
    x->typical = typical_rows(s);
    CUDA(cudaMalloc((void **)&x->scratch, z.in + z.gate + z.y + z.lists), "allocating for experts");
    x->in = x->scratch;
    x->gate = x->scratch + z.in;
    x->y = (float *)(void *)(x->scratch + z.in + z.gate);
    x->lists = (uint32_t *)(void *)(x->scratch + z.in + z.gate + z.y);
    for (int i = 0; i < SLOTS; i++) {
        CUDA(cudaHostAlloc((void **)&x->slot[i].lists, z.lists, cudaHostAllocPortable),
             "pinning lists of rows");
        CUDA(cudaEventCreateWithFlags(&x->slot[i].copied, cudaEventDisableTiming),
             "making an event");
    }
    CUDA(cudaEventCreateWithFlags(&x->begun, cudaEventDisableTiming), "making an event");
    for (int i = 0; i < STREAMS; i++) {
        CUDA(cudaStreamCreateWithFlags(&x->stream[i], cudaStreamNonBlocking), "making a stream");
        CUDA(cudaEventCreateWithFlags(&x->done[i], cudaEventDisableTiming), "making an event");
    }
    return KLD_OK;
}

void cuda_experts_close(kld_device *dev) {
    struct cuda_experts *x = dev->experts;
    if (!x) return;
    cudaFree(x->scratch);
    for (int i = 0; i < SLOTS; i++) {
        if (x->slot[i].lists) cudaFreeHost(x->slot[i].lists);
        if (x->slot[i].copied) cudaEventDestroy(x->slot[i].copied);
    }
    if (x->begun) cudaEventDestroy(x->begun);
    for (int i = 0; i < STREAMS; i++) {
        if (x->stream[i]) cudaStreamDestroy(x->stream[i]);
        if (x->done[i]) cudaEventDestroy(x->done[i]);
    }
    kld_free(x);
    dev->experts = NULL;
}

float *cuda_experts_floats(kld_device *dev, size_t cols, size_t *rows) {
    struct cuda_experts *x = dev->experts;
    *rows = x && cols && cols <= dev->spec.hidden ? x->rows : 0;
    return x ? x->y : NULL;
}

/* ---- rounds ----------------------------------------------------------------------------- */

struct call {
    const kld_expert_rows *e;
    size_t n;
    kld_view h, x;
    const kld_gate *act;
    bool biased;
};

/* Rows [first, first + n) of an expert, which are rows [at, at + n) of the round. */
struct piece {
    const kld_expert_rows *e;
    size_t first, at, n;
};

/* Where a round has got to; the next one begins there, with `at` 0. */
struct cursor {
    size_t expert, row, at;
};

/* False when the round is full or nothing is left. */
static bool next_piece(const struct call *c, struct cursor *at, size_t room, struct piece *p) {
    while (at->expert < c->n && at->row == c->e[at->expert].n) {
        at->expert++;
        at->row = 0;
    }
    if (at->expert == c->n || at->at == room) return false;
    const kld_expert_rows *e = &c->e[at->expert];
    *p = {e, at->row, at->at, num_min(room - at->at, e->n - at->row)};
    at->row += p->n;
    at->at += p->n;
    return true;
}

/* The lists of a round in device memory: of each of its n rows, whose it is, the next of the same
 * token and the weight; of each token, its first. */
struct lists {
    size_t n;
    const uint32_t *row, *next, *first;
    const float *weight;
};

static kld_status send_lists(kld_device *dev, const struct call *c, struct cursor at,
                             struct lists *l, kld_err *err) {
    struct cuda_experts *x = dev->experts;
    struct piece p;
    struct cursor count = at;
    while (next_piece(c, &count, x->rows, &p)) continue;
    size_t n = l->n = count.at, tokens = c->x.rows;
    if (!n) return KLD_OK;
    auto &slot = x->slot[x->round++ % SLOTS];
    CUDA(cudaEventSynchronize(slot.copied), "copying lists of rows");
    uint32_t *row = slot.lists, *next = row + n, *weight = next + n, *first = weight + n;
    while (next_piece(c, &at, x->rows, &p)) {
        std::memcpy(row + p.at, p.e->row + p.first, p.n * sizeof *row);
        std::memcpy(weight + p.at, p.e->weight + p.first, p.n * sizeof *weight);
    }
    for (size_t t = 0; t < tokens; t++) first[t] = NONE;
    for (size_t i = n; i-- > 0;) {
        if (row[i] >= tokens)
            return kld_fail(err, KLD_E_INTERNAL, "an expert's row %u of %zu", row[i], tokens);
        next[i] = first[row[i]];
        first[row[i]] = (uint32_t)i;
    }
    CUDA(cudaMemcpyAsync(x->lists, slot.lists, (3 * n + tokens) * sizeof *row,
                         cudaMemcpyHostToDevice, dev->compute),
         "copying lists of rows");
    CUDA(cudaEventRecord(slot.copied, dev->compute), "copying lists of rows");
    l->row = x->lists;
    l->next = l->row + n;
    l->weight = (const float *)(const void *)(l->next + n);
    l->first = l->next + 2 * n;
    return KLD_OK;
}

/* A block a row; widths in units of V. */
template <typename V>
__global__ static void gather_rows(const V *h, size_t ld, const uint32_t *row, size_t cols,
                                   V *out) {
    const V *from = h + row[blockIdx.x] * ld;
    for (size_t i = threadIdx.x; i < cols; i += THREADS) out[blockIdx.x * cols + i] = from[i];
}

static kld_status gather(kld_device *dev, kld_view h, const struct lists *l, kld_err *err) {
    size_t size = dev->bf16 ? 2 : 4, per = 16 / size;
    void *out = dev->experts->in;
    unsigned n = (unsigned)l->n;
    if (h.cols % per == 0 && h.ld % per == 0 && (uintptr_t)h.p % 16 == 0)
        gather_rows<<<n, THREADS, 0, dev->compute>>>((const uint4 *)h.p, h.ld / per, l->row,
                                                     h.cols / per, (uint4 *)out);
    else if (dev->bf16)
        gather_rows<<<n, THREADS, 0, dev->compute>>>((const uint16_t *)h.p, h.ld, l->row, h.cols,
                                                     (uint16_t *)out);
    else
        gather_rows<<<n, THREADS, 0, dev->compute>>>((const uint32_t *)h.p, h.ld, l->row, h.cols,
                                                     (uint32_t *)out);
    LAUNCHED("gathering rows");
    return KLD_OK;
}

__device__ static float plus(float x, float w, float y) {
    return kld_f32_add(x, kld_f32_mul(w, y));
}

/* A block a token: what its rows of the round give, in their order, which is that of the experts.
 */
template <bool FOURS>
__global__ static void combine_rows(const struct lists l, const float *y, size_t cols, float *x,
                                    size_t ldx) {
    uint32_t from = l.first[blockIdx.x];
    float *out = x + blockIdx.x * ldx;
    if (from == NONE) return;
    for (size_t c = threadIdx.x; c < (FOURS ? cols / 4 : cols); c += THREADS) {
        if (FOURS) {
            float4 sum = ((const float4 *)out)[c];
            for (uint32_t i = from; i != NONE; i = l.next[i]) {
                float w = l.weight[i];
                float4 v = ((const float4 *)(y + i * cols))[c];
                sum = make_float4(plus(sum.x, w, v.x), plus(sum.y, w, v.y), plus(sum.z, w, v.z),
                                  plus(sum.w, w, v.w));
            }
            ((float4 *)out)[c] = sum;
        } else {
            float sum = out[c];
            for (uint32_t i = from; i != NONE; i = l.next[i])
                sum = plus(sum, l.weight[i], y[i * cols + c]);
            out[c] = sum;
        }
    }
}

/* ---- products ----------------------------------------------------------------------------- */

/* Products with a bias and a BF16 result share a buffer and take turns. */
static int streams_of(const kld_device *dev, const struct call *c) {
    return dev->bf16 && c->biased ? 1 : STREAMS;
}

static kld_status branch(kld_device *dev, int streams, kld_err *err) {
    struct cuda_experts *x = dev->experts;
    CUDA(cudaEventRecord(x->begun, dev->compute), "ordering experts");
    for (int i = 0; i < streams; i++)
        CUDA(cudaStreamWaitEvent(x->stream[i], x->begun, 0), "ordering experts");
    return KLD_OK;
}

static kld_status join(kld_device *dev, int streams, kld_err *err) {
    struct cuda_experts *x = dev->experts;
    for (int i = 0; i < streams; i++) {
        CUDA(cudaEventRecord(x->done[i], x->stream[i]), "ordering experts");
        CUDA(cudaStreamWaitEvent(dev->compute, x->done[i], 0), "ordering experts");
    }
    return KLD_OK;
}

/* Rows [at, at + n) of a buffer whose rows have ld columns, from column c on. */
static kld_view part(const kld_device *dev, void *p, size_t at, size_t n, size_t ld, size_t c,
                     size_t cols, kld_elem elem) {
    size_t size = elem == KLD_ELEM_ACT && dev->bf16 ? 2 : 4;
    return {(unsigned char *)p + (at * ld + c) * size, n, cols, ld, elem};
}

static kld_status gate_product(kld_device *dev, const struct cuda_queue *q, const struct piece *p,
                               kld_err *err) {
    struct cuda_experts *x = dev->experts;
    size_t width = dev->spec.hidden, both = dev->spec.expert_cols, inner = both / 2;
    kld_view in = part(dev, x->in, p->at, p->n, width, 0, width, KLD_ELEM_ACT);
    kld_view g = part(dev, x->gate, p->at, p->n, both, 0, p->e->up ? inner : both, KLD_ELEM_ACT);
    return cuda_multiply(dev, q, in, p->e->gate, g, inner, false, err);
}

static kld_status up_product(kld_device *dev, const struct cuda_queue *q, const struct piece *p,
                             kld_err *err) {
    struct cuda_experts *x = dev->experts;
    size_t width = dev->spec.hidden, both = dev->spec.expert_cols, inner = both / 2;
    kld_view in = part(dev, x->in, p->at, p->n, width, 0, width, KLD_ELEM_ACT);
    kld_view u = part(dev, x->gate, p->at, p->n, both, inner, inner, KLD_ELEM_ACT);
    return p->e->up ? cuda_multiply(dev, q, in, p->e->up, u, inner, false, err) : KLD_OK;
}

static kld_status wide_products(kld_device *dev, const struct cuda_queue *q, const struct piece *p,
                                kld_err *err) {
    TRY(gate_product(dev, q, p, err));
    return up_product(dev, q, p, err);
}

static kld_status down_product(kld_device *dev, const struct cuda_queue *q, const struct piece *p,
                               kld_err *err) {
    struct cuda_experts *x = dev->experts;
    size_t width = dev->spec.hidden, both = dev->spec.expert_cols;
    kld_view in = part(dev, x->gate, p->at, p->n, both, 0, both / 2, KLD_ELEM_ACT);
    kld_view y = part(dev, x->y, p->at, p->n, width, 0, width, KLD_ELEM_F32);
    return cuda_multiply(dev, q, in, p->e->down, y, width, false, err);
}

/* One kind of product for every piece of the round. */
static kld_status products(kld_device *dev, const struct call *c, struct cursor at,
                           kld_status (*of)(kld_device *, const struct cuda_queue *,
                                            const struct piece *, kld_err *),
                           kld_err *err) {
    struct cuda_experts *x = dev->experts;
    int streams = streams_of(dev, c);
    size_t room = CUDA_WORKSPACE / STREAMS;
    struct piece p;
    TRY(branch(dev, streams, err));
    for (int i = 0; next_piece(c, &at, x->rows, &p); i = (i + 1) % streams) {
        struct cuda_queue q = {x->stream[i], (unsigned char *)dev->workspace + i * room, room,
                               x->typical};
        TRY(of(dev, &q, &p, err));
    }
    return join(dev, streams, err);
}

/* ---- inputs ------------------------------------------------------------------------------- */

enum projection { GATE, UP, DOWN };

static const kld_dev_weight *weight_of(const kld_expert_rows *e, enum projection which) {
    return which == UP && e->up ? e->up : which == DOWN ? e->down : e->gate;
}

/* Rows [at, at + n) of the round that a projection reads. */
static kld_view rows_of(const kld_device *dev, enum projection which, size_t at, size_t n) {
    const struct cuda_experts *x = dev->experts;
    size_t width = dev->spec.hidden, both = dev->spec.expert_cols;
    if (which == DOWN) return part(dev, x->gate, at, n, both, 0, both / 2, KLD_ELEM_ACT);
    return part(dev, x->in, at, n, width, 0, width, KLD_ELEM_ACT);
}

/* The inputs of one projection in place: each expert's by its own factors. */
static kld_status multiply(kld_device *dev, const struct call *c, struct cursor at,
                           enum projection which, kld_err *err) {
    struct piece p;
    while (next_piece(c, &at, dev->experts->rows, &p)) {
        const float *pre = weight_of(p.e, which)->pre;
        kld_view v = rows_of(dev, which, p.at, p.n);
        if (pre) TRY(cuda_multiply_input(dev, v, pre, v, err));
    }
    return KLD_OK;
}

/* The same, neighbours that are quantized alike in one. */
static kld_status quantize(kld_device *dev, const struct call *c, struct cursor at,
                           enum projection which, kld_err *err) {
    const kld_act_quant *how = NULL;
    size_t first = 0, n = 0;
    struct piece p;
    for (bool more = true; more;) {
        more = next_piece(c, &at, dev->experts->rows, &p);
        const kld_act_quant *now = more ? &weight_of(p.e, which)->input : NULL;
        if (how && (!now || !kld_act_same(how, now))) {
            kld_view v = rows_of(dev, which, first, n);
            if (how->format != KLD_AQ_NONE) TRY(cuda_quantize(dev, v, how, v, err));
            first += n;
            n = 0;
        }
        how = now;
        n += more ? p.n : 0;
    }
    return KLD_OK;
}

static kld_status change_inputs(kld_device *dev, const struct call *c, struct cursor at,
                                enum projection which, kld_err *err) {
    TRY(multiply(dev, c, at, which, err));
    return quantize(dev, c, at, which, err);
}

/* Whether gate and up of some expert see the same rows otherwise. */
static bool inputs_differ(const struct call *c) {
    for (size_t i = 0; i < c->n; i++) {
        const kld_dev_weight *g = weight_of(&c->e[i], GATE), *u = weight_of(&c->e[i], UP);
        if (c->e[i].n && (g->pre != u->pre || !kld_act_same(&g->input, &u->input))) return true;
    }
    return false;
}

static kld_status gate_and_up(kld_device *dev, const struct call *c, struct cursor at,
                              const struct lists *l, kld_err *err) {
    TRY(gather(dev, c->h, l, err));
    TRY(change_inputs(dev, c, at, GATE, err));
    if (!inputs_differ(c)) return products(dev, c, at, wide_products, err);
    TRY(products(dev, c, at, gate_product, err));
    TRY(gather(dev, c->h, l, err));
    TRY(change_inputs(dev, c, at, UP, err));
    return products(dev, c, at, up_product, err);
}

static kld_status run_round(kld_device *dev, const struct call *c, struct cursor at,
                            const struct lists *l, kld_err *err) {
    struct cuda_experts *x = dev->experts;
    size_t width = dev->spec.hidden, both = dev->spec.expert_cols, inner = both / 2;
    kld_view g = part(dev, x->gate, 0, l->n, both, 0, inner, KLD_ELEM_ACT);
    kld_view u = part(dev, x->gate, 0, l->n, both, inner, inner, KLD_ELEM_ACT);
    TRY(gate_and_up(dev, c, at, l, err));
    TRY(cuda_gated(dev, c->act, g, u, g, err));
    TRY(change_inputs(dev, c, at, DOWN, err));
    TRY(products(dev, c, at, down_product, err));
    auto kernel = width % 4 == 0 && cuda_fours(c->x, 4) ? combine_rows<true> : combine_rows<false>;
    kernel<<<(unsigned)c->x.rows, THREADS, 0, dev->compute>>>(*l, x->y, width, (float *)c->x.p,
                                                              c->x.ld);
    LAUNCHED("adding experts up");
    return KLD_OK;
}

static kld_status check(const kld_device *dev, const struct call *c, kld_err *err) {
    const kld_device_spec *s = &dev->spec;
    size_t inner = s->expert_cols / 2;
    bool fine = dev->experts && c->x.rows <= s->max_rows && c->h.cols == s->hidden &&
                c->x.cols == s->hidden;
    for (size_t i = 0; fine && i < c->n; i++) {
        const kld_expert_rows *e = &c->e[i];
        if (!e->n) continue;
        fine = e->gate->cols == s->hidden && e->gate->rows == (e->up ? inner : 2 * inner) &&
               (!e->up || (e->up->cols == s->hidden && e->up->rows == inner)) &&
               e->down->cols == inner && e->down->rows == s->hidden && e->n <= c->x.rows;
    }
    return fine ? KLD_OK : kld_fail(err, KLD_E_INTERNAL, "experts beyond what was announced");
}

kld_status cuda_experts(kld_device *dev, kld_view h, const kld_expert_rows *e, size_t n,
                        const kld_gate *act, kld_view x, kld_err *err) {
    struct call c = {e, n, h, x, act, false};
    struct cursor at = {};
    struct piece p;
    struct lists l;
    TRY(check(dev, &c, err));
    for (size_t i = 0; i < n; i++) c.biased |= e[i].gate->bias || (e[i].up && e[i].up->bias);
    for (;;) {
        at.at = 0;
        TRY(send_lists(dev, &c, at, &l, err));
        if (!l.n) return KLD_OK;
        TRY(run_round(dev, &c, at, &l, err));
        while (next_piece(&c, &at, dev->experts->rows, &p)) continue;
    }
}
