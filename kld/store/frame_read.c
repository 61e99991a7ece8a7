/* The columns of a window -> records.  The inverse of frame.c, which owns the layout. */
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/columns.h"
#include "kld/store/frame.h"
#include "kld/store/hidden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A small hostile file must not make the reader allocate without bound. */
static const size_t MAX_WINDOW_BYTES = (size_t)8 << 30;

typedef struct entry {
    double lp;
    uint32_t id;
} entry;

/* Log-probability descending, then id ascending: the order of an own list. */
static int by_probability(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static kld_status take_scalars(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                               kld_err *err) {
    TRY(column_take(c, COL_COUNT, &out->count[i], err));
    TRY(column_take(c, COL_LABEL, &out->label[i], err));
    TRY(column_take_f32(c, COL_LABEL_LP, &out->label_lp[i], err));
    TRY(column_take_f32(c, COL_LSE, &out->lse[i], err));
    TRY(column_take_f32(c, COL_ENTROPY, &out->entropy[i], err));
    TRY(column_take_f32(c, COL_TAIL_MASS, &out->tail_mass[i], err));
    if (out->count[i] > out->k_ld || out->label[i] >= info->vocab)
        return kld_fail(err, KLD_E_INPUT, "row %zu: a list of %u ids or label %u is out of range",
                        i, (unsigned)out->count[i], (unsigned)out->label[i]);
    return KLD_OK;
}

/* n ids of the vocabulary. */
static kld_status take_ids(columns *c, column_id col, const kld_capture_info *info, size_t n,
                           uint32_t *ids, kld_err *err) {
    const uint32_t *v;
    TRY(column_run(c, col, n, &v, err));
    uint32_t outside = 0;
    for (size_t i = 0; i < n; i++) {
        ids[i] = v[i];
        outside |= v[i] >= info->vocab;
    }
    for (size_t i = 0; outside && i < n; i++)
        if (v[i] >= info->vocab)
            return kld_fail(err, KLD_E_INPUT, "id %u is outside the vocabulary of %llu",
                            (unsigned)v[i], (unsigned long long)info->vocab);
    return KLD_OK;
}

/* n ids and their log-probabilities, each predicted by the one before. */
static kld_status take_sorted(columns *c, const kld_capture_info *info, size_t n, uint32_t *ids,
                              double *lp, kld_err *err) {
    size_t fine = num_min(n, LP_FINE);
    TRY(take_ids(c, COL_IDS, info, n, ids, err));
    TRY(lp_take_chain(c, COL_LP, fine, 0, 1, lp, err));
    if (n == fine) return KLD_OK;
    return lp_take_chain(c, COL_LP, n - fine, lp[fine - 1], 0, lp + fine, err);
}

static kld_status take_draws(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                             kld_err *err) {
    uint32_t *ids = out->tail_ids + i * out->m;
    double *lp = out->tail_lp + i * out->m;
    if (row_has_draws(out, i)) {
        TRY(take_ids(c, COL_TAIL_IDS, info, out->m, ids, err));
        return lp_take_run(c, COL_TAIL_LP, out->m, NULL, 0, lp, err);
    }
    for (size_t j = 0; j < out->m; j++) {
        ids[j] = UINT32_MAX;
        lp[j] = NAN;
    }
    return KLD_OK;
}

static kld_status take_at_reference(columns *c, kld_records *out, size_t i, const kld_records *ref,
                                    kld_err *err) {
    bool finite = out->count[i] > 0, draws = finite && row_has_draws(ref, i);
    size_t n = finite ? ref->count[i] : 0, fine = num_min(n, LP_FINE), m = draws ? ref->m : 0;
    const double *pred = ref->lp + i * ref->k_ld;
    double *lp = out->ref_lp + i * out->ref_ld, *tail = out->ref_tail_lp + i * out->ref_m;
    TRY(lp_take_run(c, COL_REF_LP, fine, pred, 1, lp, err));
    if (n > fine) TRY(lp_take_run(c, COL_REF_LP, n - fine, pred + fine, 0, lp + fine, err));
    if (m) TRY(lp_take_run(c, COL_REF_TAIL_LP, m, ref->tail_lp + i * ref->m, 0, tail, err));
    for (size_t j = n; j < out->ref_ld; j++) lp[j] = NAN;
    for (size_t j = m; j < out->ref_m; j++) tail[j] = NAN;
    return KLD_OK;
}

/* ---- the own list of a candidate ------------------------------------------------------- */

/* Room to put one list in order; all owned, for the longest there can be. */
typedef struct list_work {
    uint32_t *ids; /* of the extras */
    double *lp;    /* alike */
    entry *list;
    uint64_t *key, *dealt;
} list_work;

static kld_status list_work_alloc(list_work *w, size_t n, kld_err *err) {
    TRY(NEW_ARRAY(&w->ids, n, err));
    TRY(NEW_ARRAY(&w->lp, n, err));
    TRY(NEW_ARRAY(&w->list, n, err));
    TRY(NEW_ARRAY(&w->key, n, err));
    return NEW_ARRAY(&w->dealt, n, err);
}

static void list_work_free(list_work *w) {
    kld_free(w->ids);
    kld_free(w->lp);
    kld_free(w->list);
    kld_free(w->key);
    kld_free(w->dealt);
}

/* A value of the fine grid (and so of the coarse one), counted in its steps down from 1 nat, with
 * the id below it: ascending keys are the order of an own list. */
static const double KEY_STEPS = 0x1p20;

/* False when some value, wide or -inf, has no key. */
static bool keys_of(const double *lp, const uint32_t *ids, size_t n, uint64_t *key) {
    int beyond = 0;
    for (size_t j = 0; j < n; j++) {
        double down = (1 - lp[j]) * KEY_STEPS;
        bool fits = down >= 0 && down < 0x1p31;
        uint32_t steps = fits ? (uint32_t)(int32_t)down : 0;
        beyond |= !fits || 1 - (double)steps / KEY_STEPS != lp[j];
        key[j] = (uint64_t)steps << 32 | ids[j];
    }
    return !beyond;
}

static double lp_of_key(uint64_t key) { return 1 - (double)(key >> 32) / KEY_STEPS; }

static int by_key(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Ascending.  Keys are dealt to buckets by size, which leaves little for insertion to do, unless
 * most are alike. */
static void sort_keys(uint64_t *key, uint64_t *dealt, size_t n) {
    enum { BUCKETS = 1024, MOVES = 64 };
    uint32_t start[BUCKETS + 1] = {0};
    uint64_t low = UINT32_MAX, high = 0;
    for (size_t j = 0; j < n; j++) {
        low = num_min(low, key[j] >> 32);
        high = num_max(high, key[j] >> 32);
    }
    uint64_t scale = n ? ((uint64_t)BUCKETS << 32) / (high - low + 1) : 0;
    for (size_t j = 0; j < n; j++) start[1 + (((key[j] >> 32) - low) * scale >> 32)]++;
    for (size_t b = 1; b < BUCKETS; b++) start[b] += start[b - 1];
    for (size_t j = 0; j < n; j++) dealt[start[((key[j] >> 32) - low) * scale >> 32]++] = key[j];
    size_t moves = 0;
    for (size_t j = 0; j < n && moves <= MOVES * n; j++) {
        size_t at = j;
        for (; at > 0 && key[at - 1] > dealt[j]; at--) key[at] = key[at - 1];
        key[at] = dealt[j];
        moves += j - at;
    }
    if (moves <= MOVES * n) return;
    memcpy(key, dealt, n * sizeof *key);
    qsort(key, n, sizeof *key, by_key);
}

/* The reference's ids with own log-probabilities, and the extras, in order into w->list. */
static void merge_list(list_work *w, const double *lp, const uint32_t *ids, size_t known,
                       size_t extra) {
    size_t n = known + extra;
    if (keys_of(lp, ids, known, w->key) && keys_of(w->lp, w->ids, extra, w->key + known)) {
        sort_keys(w->key, w->dealt, n);
        for (size_t j = 0; j < n; j++)
            w->list[j] = (entry){lp_of_key(w->key[j]), (uint32_t)w->key[j]};
        return;
    }
    for (size_t j = 0; j < known; j++) w->list[j] = (entry){lp[j], ids[j]};
    for (size_t j = 0; j < extra; j++) w->list[known + j] = (entry){w->lp[j], w->ids[j]};
    if (n > 1) qsort(w->list, n, sizeof *w->list, by_probability);
}

static kld_status rebuild_list(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                               const kld_records *ref, list_work *w, kld_err *err) {
    uint32_t extra, top1;
    TRY(column_take(c, COL_EXTRA, &extra, err));
    TRY(column_take(c, COL_TOP1, &top1, err));
    if (extra > out->count[i])
        return kld_fail(err, KLD_E_INPUT, "row %zu: %u extra ids in a list of %u", i,
                        (unsigned)extra, (unsigned)out->count[i]);
    size_t known = out->count[i] > 0 ? ref->count[i] : 0, n = known + extra;
    TRY(take_sorted(c, info, extra, w->ids, w->lp, err));
    if (n < out->count[i])
        return kld_fail(err, KLD_E_INPUT, "row %zu: a list of %u ids, only %zu are known", i,
                        (unsigned)out->count[i], n);
    merge_list(w, out->ref_lp + i * out->ref_ld, ref->ids + i * ref->k_ld, known, extra);
    entry *list = w->list;
    /* Rounding can swap near-ties; the most probable id is stored outright. */
    for (size_t j = 0; j < n; j++)
        if (list[j].id == top1) {
            entry first = list[j];
            memmove(list + 1, list, j * sizeof *list);
            list[0] = first;
            break;
        }
    if (out->count[i] > 0 && list[0].id != top1)
        return kld_fail(err, KLD_E_INPUT, "row %zu: its most probable id %u is not in its list", i,
                        (unsigned)top1);
    for (size_t j = 0; j < out->count[i]; j++) {
        out->ids[i * out->k_ld + j] = list[j].id;
        out->lp[i * out->k_ld + j] = list[j].lp;
    }
    return KLD_OK;
}

/* ---- what a row can be ------------------------------------------------------------------ */

/* e^x for x of at most 1e-3, to 1e-5 of it, in a form that compilers make vectors of: 2^whole
 * times the Taylor series of 2^rest, |rest| <= 1/2. */
static inline float rough_exp(double x) {
    static const float ROUND = 0x1.8p23f; /* added and taken away, it rounds to whole numbers */
    float t = (float)(x * 1.4426950408889634), scale;
    t = t > -126 ? t : -126;
    t = t < 1 ? t : 1;
    float shifted = t + ROUND, y = (t - (shifted - ROUND)) * 0.69314718f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return scale * (1 + y * (1 + y * (0.5f + y * (1 / 6.f + y * (1 / 24.f + y * (1 / 120.f))))));
}

/* Sum of n probabilities; infinite when one of them is impossible. */
static double mass_of(const double *lp, size_t n) {
    enum { LANES = 8 };
    static const double ROUNDING = 1e-3;
    float sum[LANES] = {0};
    int impossible = 0;
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (size_t l = 0; l < LANES; l++) {
            impossible |= !(lp[j + l] <= ROUNDING);
            sum[l] += rough_exp(lp[j + l]);
        }
    for (; j < n; j++) {
        impossible |= !(lp[j] <= ROUNDING);
        sum[0] += rough_exp(lp[j]);
    }
    double all = 0;
    for (size_t l = 0; l < LANES; l++) all += (double)sum[l];
    return impossible ? INFINITY : all;
}

const char *frame_row_fault(const kld_records *r, size_t i, const kld_records *ref) {
    static const double ONE = 1.01; /* 4,096 entries of the coarse grid are off by 6e-5 at most */
    if (r->count[i] == 0) return NULL;
    double tail = (double)r->tail_mass[i], label = (double)r->label_lp[i];
    if (!(tail >= 0 && tail + mass_of(r->lp + i * r->k_ld, r->count[i]) <= ONE))
        return "its probabilities and tail mass are more than 1 or no numbers";
    if (!(label <= 1e-3)) return "the probability of the next token is above 1 or no number";
    if (row_has_draws(r, i) && mass_of(r->tail_lp + i * r->m, r->m) > (double)r->m * ONE)
        return "a draw has a probability above 1";
    if (!ref) return NULL;
    if (mass_of(r->ref_lp + i * r->ref_ld, ref->count[i]) > ONE)
        return "its probabilities at the reference's ids are more than 1";
    if (row_has_draws(ref, i) &&
        mass_of(r->ref_tail_lp + i * r->ref_m, ref->m) > (double)ref->m * ONE)
        return "its probability at a draw of the reference is above 1";
    return NULL;
}

static kld_status check_row(const kld_records *r, size_t i, const kld_records *ref, kld_err *err) {
    const char *fault = frame_row_fault(r, i, ref);
    return fault ? kld_fail(err, KLD_E_INPUT, "row %zu: %s", i, fault) : KLD_OK;
}

static kld_status take_row(columns *c, const kld_capture_info *info, kld_records *out, size_t i,
                           const kld_records *ref, list_work *w, kld_err *err) {
    TRY(take_scalars(c, info, out, i, err));
    if (!ref)
        TRY(take_sorted(c, info, out->count[i], out->ids + i * out->k_ld, out->lp + i * out->k_ld,
                        err));
    TRY(take_draws(c, info, out, i, err));
    if (ref) {
        TRY(take_at_reference(c, out, i, ref, err));
        TRY(rebuild_list(c, info, out, i, ref, w, err));
    }
    return check_row(out, i, ref, err);
}

/* No token has an expert twice: the sum over its slots would count it twice. */
static kld_status take_route(columns *c, uint64_t experts, kld_records *out, size_t row,
                             kld_err *err) {
    for (size_t j = 0; j < out->route_k; j++) {
        uint32_t *id = &out->route_id[row * out->route_k + j];
        TRY(column_take(c, COL_ROUTE_ID, id, err));
        TRY(column_take_f32(c, COL_ROUTE_WEIGHT, &out->route_weight[row * out->route_k + j], err));
        bool twice = false;
        for (size_t k = 1; k <= j; k++) twice = twice || *(id - k) == *id;
        if (*id >= experts || twice)
            return kld_fail(err, KLD_E_INPUT, "token %zu, layer %zu with experts: expert %u %s",
                            row / out->route_layers, row % out->route_layers, (unsigned)*id,
                            twice ? "is there twice" : "does not exist");
    }
    return column_take_f32(c, COL_ROUTE_MARGIN, &out->route_margin[row], err);
}

static kld_status take_routes(columns *c, const kld_capture_info *info, uint64_t tokens,
                              kld_records *out, kld_err *err) {
    const kld_route_info *r = &info->routes;
    if (!r->kept) return KLD_OK;
    /* Memory is bounded by what the file really holds. */
    if (c->col[COL_ROUTE_MARGIN].n != tokens * r->layers ||
        c->col[COL_ROUTE_ID].n != tokens * r->layers * r->top_k)
        return kld_fail(err, KLD_E_INPUT,
                        "%zu routes with %zu experts, but %llu tokens in %llu layers with %llu "
                        "experts each",
                        c->col[COL_ROUTE_MARGIN].n, c->col[COL_ROUTE_ID].n,
                        (unsigned long long)tokens, (unsigned long long)r->layers,
                        (unsigned long long)r->top_k);
    TRY(kld_records_alloc_routes(out, tokens, r->layers, r->top_k, err));
    for (size_t i = 0; i < tokens * r->layers; i++) TRY(take_route(c, r->experts, out, i, err));
    return KLD_OK;
}

/* Everything of a frame; the columns are the caller's to free, whatever is returned. */
static kld_status open_frame(const kld_buf *text, window_head *head, columns *c, kld_err *err) {
    kld_cursor in = kld_cursor_of(text->data, text->len);
    TRY(head_read(&in, NULL, head, err));
    return columns_read(c, &in, err);
}

kld_status frame_records(const kld_capture_info *info, const kld_buf *text, const kld_records *ref,
                         bool known, kld_records *out, kld_err *err) {
    columns c = {0};
    list_work w = {0};
    memset(out, 0, sizeof *out);
    window_head head;
    kld_digest bound;
    kld_status st;
    TRY_TO(done, open_frame(text, &head, &c, err));
    if (ref) {
        if (!known) TRY_TO(done, records_digest(ref, &bound, err));
        if (ref->n != head.rows || (!known && !kld_same_digest(&bound, &head.ref))) {
            st = kld_fail(err, KLD_E_INPUT,
                          "the reference records given are not those it was captured against");
            goto done;
        }
    }
    /* Every row has a label, so memory is bounded by what the file really holds. */
    if (c.col[COL_LABEL].n != head.rows) {
        st = kld_fail(err, KLD_E_INPUT, "%zu labels for %u rows", c.col[COL_LABEL].n,
                      (unsigned)head.rows);
        goto done;
    }
    TRY_TO(done, hidden_check(&info->hidden, &c, head.rows, err));
    size_t k_ld = 0;
    for (size_t i = 0; i < c.col[COL_COUNT].n; i++) k_ld = num_max(k_ld, c.col[COL_COUNT].v[i]);
    if (k_ld > info->top_k || (k_ld + info->tail_samples + (ref ? ref->k_ld + ref->m : 0)) * 12 >
                                  MAX_WINDOW_BYTES / ((size_t)head.rows + 1)) {
        st =
            kld_fail(err, KLD_E_INPUT, "%u rows with lists of %zu ids: more than a window may hold",
                     (unsigned)head.rows, k_ld);
        goto done;
    }
    TRY_TO(done, kld_records_alloc(out, head.rows, k_ld, info->tail_samples, ref ? ref->k_ld : 0,
                                   ref ? ref->m : 0, err));
    out->first = head.meta.score_from;
    if (ref) TRY_TO(done, list_work_alloc(&w, ref->k_ld + info->top_k, err));
    for (size_t i = 0; i < out->n; i++) TRY_TO(done, take_row(&c, info, out, i, ref, &w, err));
    TRY_TO(done, take_routes(&c, info, head.meta.tokens, out, err));
    TRY_TO(done, columns_finish(&c, err));
done:
    columns_free(&c);
    list_work_free(&w);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}

kld_status frame_routes(const kld_capture_info *info, const kld_buf *text, kld_records *out,
                        kld_err *err) {
    columns c = {0};
    window_head head;
    memset(out, 0, sizeof *out);
    kld_status st = open_frame(text, &head, &c, err);
    if (st == KLD_OK) st = take_routes(&c, info, head.meta.tokens, out, err);
    columns_free(&c);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}

kld_status frame_hidden(const kld_capture_info *info, const kld_buf *text, kld_records *out,
                        kld_err *err) {
    columns c = {0};
    window_head head;
    memset(out, 0, sizeof *out);
    kld_status st = open_frame(text, &head, &c, err);
    if (st == KLD_OK) {
        out->n = head.rows;
        out->first = (size_t)head.meta.score_from;
        st = hidden_take(&info->hidden, &c, out, err);
    }
    columns_free(&c);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}
