#include "tests/unit/capturekit.h"

#include "kld/base/mem.h"
#include "kld/base/philox.h"

#include "tests/unit/t.h"
#include "tests/unit/t_records.h"

#include <math.h>

double unit(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 0);
    return kld_philox_unit(b.v[0], b.v[1]);
}

double gauss(uint64_t key, uint64_t i) {
    return sqrt(-2 * log(unit(key, 2 * i))) * cos(6.283185307179586 * unit(key, 2 * i + 1));
}

typedef struct weighed {
    double lp;
    uint32_t id;
} weighed;

static int descending(const void *a, const void *b) {
    const weighed *x = a, *y = b;
    if (x->lp != y->lp) return x->lp > y->lp ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Full log-probabilities of row i: Zipf-like with noise; `shift` makes a candidate of it. */
static void full_row(uint64_t seed, size_t i, size_t vocab, double temper, double shift,
                     double *lp) {
    double max = -INFINITY, sum = 0;
    for (size_t v = 0; v < vocab; v++) {
        uint64_t at = i * vocab + v;
        lp[v] = -temper * log(1.0 + (double)((v * 7919 + i * 104729) % vocab)) + gauss(seed, at) +
                shift * gauss(seed + 1, at);
        max = fmax(max, lp[v]);
    }
    for (size_t v = 0; v < vocab; v++) sum += exp(lp[v] - max);
    for (size_t v = 0; v < vocab; v++) lp[v] -= max + log(sum);
}

/* Records of n rows made from full_row; `ref` = records to report at, or NULL. */
void make_records(kld_records *r, size_t n, size_t vocab, size_t k, size_t m, uint64_t seed,
                  double temper, double shift, const kld_records *ref) {
    kld_err e;
    assert_int_equal(kld_records_alloc(r, n, k, m, ref ? ref->k_ld : 0, ref ? ref->m : 0, &e),
                     KLD_OK);
    r->first = 2;
    double *lp = malloc(vocab * sizeof *lp);
    weighed *w = malloc(vocab * sizeof *w);
    for (size_t i = 0; i < n; i++) {
        full_row(seed, i, vocab, temper, shift, lp);
        for (size_t v = 0; v < vocab; v++) w[v] = (weighed){lp[v], (uint32_t)v};
        qsort(w, vocab, sizeof *w, descending);
        double left = 1;
        size_t c = 0;
        while (c < k && c < vocab && (c < 10 || left > 1e-3)) {
            r->ids[i * k + c] = w[c].id;
            r->lp[i * k + c] = w[c].lp;
            left -= exp(w[c++].lp);
        }
        r->count[i] = (uint32_t)c;
        r->tail_mass[i] = c < vocab ? (float)fmax(left, 1e-9) : 0;
        r->label[i] = (uint32_t)(unit(seed + 2, i) * (double)vocab);
        r->label_lp[i] = i == 0 ? -22.0f : (float)lp[r->label[i]];
        r->lse[i] = (float)(20 * unit(seed + 3, i));
        r->entropy[i] = (float)unit(seed + 4, i);
        for (size_t j = 0; j < m; j++) {
            bool has = c < vocab;
            size_t pick = has ? c + (size_t)(unit(seed + 5, i * m + j) * (double)(vocab - c)) : 0;
            r->tail_ids[i * m + j] = has ? w[pick].id : UINT32_MAX;
            r->tail_lp[i * m + j] = has ? w[pick].lp : NAN;
        }
        if (!ref) continue;
        for (size_t j = 0; j < ref->count[i]; j++)
            r->ref_lp[i * ref->k_ld + j] = lp[ref->ids[i * ref->k_ld + j]];
        for (size_t j = 0; j < ref->m; j++) {
            uint32_t id = ref->tail_ids[i * ref->m + j];
            r->ref_tail_lp[i * ref->m + j] = id == UINT32_MAX ? NAN : lp[id];
        }
    }
    free(lp);
    free(w);
}

void make_routes(kld_records *r, size_t tokens, const kld_route_info *info, uint64_t seed) {
    kld_err e;
    assert_int_equal(kld_records_alloc_routes(r, tokens, info->layers, info->top_k, &e), KLD_OK);
    t_routes(r->route_id, r->route_weight, r->route_margin, tokens * info->layers, info->top_k,
             (uint32_t)info->experts, seed);
}

kld_route_info make_route_info(kld_route_mode mode, unsigned char source) {
    return (kld_route_info){.mode = mode,
                            .kept = mode == KLD_ROUTES_NATURAL,
                            .layers = 3,
                            .top_k = 2,
                            .experts = 7,
                            .source = {{source}}};
}

kld_capture_info make_info(size_t windows, size_t rows, size_t vocab, size_t k, size_t m) {
    kld_err e;
    kld_capture_info i = {.vocab = vocab,
                          .vocab_rows = vocab,
                          .windows = windows,
                          .positions = windows * rows,
                          .top_k = k,
                          .min_k = k < 10 ? k : 10,
                          .tail_samples = m,
                          .tail_mass = 1e-3,
                          .seed = 1};
    assert_int_equal(kld_strdup(&i.name, "tiny", &e), KLD_OK);
    assert_int_equal(kld_strdup(&i.time, "2026-01-01T00:00:00Z", &e), KLD_OK);
    i.engine = json_pack("{s:s}", "arithmetic", "test");
    return i;
}

kld_window_meta make_meta(size_t i, size_t rows) {
    static const char *const cluster[] = {"a", "b", "c"};
    kld_window_meta m = {.tokens = rows + 3,
                         .score_from = 2,
                         .offset = 100 * i,
                         .source = "src",
                         .cluster = cluster[i % 3],
                         .stratum = "",
                         .partition = "analysis"};
    m.ids.b[0] = (unsigned char)i;
    return m;
}

kld_status write_from(kld_capture_writer *w, size_t from, size_t windows, size_t rows, size_t vocab,
                      size_t k, double temper, kld_capture *ref, kld_err *e) {
    kld_status st = KLD_OK;
    for (size_t i = from; i < windows && st == KLD_OK; i++) {
        kld_records r, rr = {0};
        if (ref) assert_int_equal(kld_capture_read(ref, i, NULL, &rr, NULL, e), KLD_OK);
        make_records(&r, rows, vocab, k, ref ? 0 : 16, 77 + i, temper, ref ? 0.3 : 0,
                     ref ? &rr : NULL);
        kld_window_meta meta = make_meta(i, rows);
        st = kld_capture_add(w, &meta, &r, ref ? &rr : NULL, e);
        kld_records_free(&r);
        kld_records_free(&rr);
    }
    return st;
}

/* Write `windows` windows of `rows` rows; a candidate when ref_path is given. */
void write_capture(const char *path, size_t windows, size_t rows, size_t vocab, size_t k,
                   double temper, const char *ref_path) {
    kld_err e = {0};
    kld_capture *ref = NULL;
    kld_capture_info info = make_info(windows, rows, vocab, k, ref_path ? 0 : 16);
    if (ref_path) {
        assert_int_equal(kld_capture_open(&ref, ref_path, &e), KLD_OK);
        info.has_reference = true;
        info.reference = kld_capture_digest(ref);
        info.ref_top_k = k;
        info.ref_tail_samples = 16;
    }
    kld_capture_writer *w;
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    if (write_from(w, 0, windows, rows, vocab, k, temper, ref, &e) != KLD_OK)
        fail_msg("%s", e.text);
    if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
    kld_capture_close(ref);
    kld_capture_info_free(&info);
}

kld_status read_all(const char *path, kld_capture *ref, kld_err *e) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, e));
    kld_status st = kld_capture_verify(c, e);
    for (size_t i = 0; st == KLD_OK && i < kld_capture_header(c)->windows; i++) {
        kld_records r = {0}, q;
        kld_window_meta meta;
        if (ref) st = kld_capture_read(ref, i, NULL, &r, NULL, e);
        if (st == KLD_OK) st = kld_capture_read(c, i, ref ? &r : NULL, &q, &meta, e);
        if (st == KLD_OK) kld_records_free(&q);
        kld_records_free(&r);
    }
    kld_capture_close(c);
    return st;
}

/* Rows at the size of real ones, without a softmax over a whole vocabulary: POOL ids a row stand
 * for it, low ids the more likely to be drawn, and they hold all of the mass. */
enum { POOL = 1024 };

static void pool_row(uint64_t seed, size_t i, size_t vocab, double temper, double shift,
                     unsigned char *seen, weighed *w) {
    double max = -INFINITY, sum = 0;
    for (size_t j = 0, draw = 0; j < POOL; draw++) {
        double u = unit(seed + 9, i * 8 * POOL + draw);
        uint32_t id = (uint32_t)(u * sqrt(u) * (double)vocab);
        if (seen[id / 8] >> id % 8 & 1) continue;
        seen[id / 8] |= (unsigned char)(1u << id % 8);
        uint64_t at = (uint64_t)i * POOL + j;
        w[j].id = id;
        w[j].lp =
            -temper * log(1.0 + (double)j) + 0.5 * gauss(seed, at) + shift * gauss(seed + 1, at);
        max = fmax(max, w[j++].lp);
    }
    for (size_t j = 0; j < POOL; j++) {
        sum += exp(w[j].lp - max);
        seen[w[j].id / 8] = 0;
    }
    for (size_t j = 0; j < POOL; j++) w[j].lp -= max + log(sum);
}

void pool_records(kld_records *r, size_t n, size_t vocab, uint64_t seed, double temper,
                  double shift, const kld_records *ref) {
    enum { K = 256 };
    size_t m = ref ? 0 : 16;
    kld_err e;
    assert_int_equal(kld_records_alloc(r, n, K, m, ref ? ref->k_ld : 0, ref ? ref->m : 0, &e),
                     KLD_OK);
    r->first = 2;
    weighed *w = calloc(POOL, sizeof *w);
    double *at = calloc(vocab, sizeof *at);
    unsigned char *seen = calloc(vocab / 8 + 1, 1);
    for (size_t i = 0; i < n; i++) {
        pool_row(seed, i, vocab, temper, shift, seen, w);
        for (size_t j = 0; j < POOL; j++) at[w[j].id] = w[j].lp;
        qsort(w, POOL, sizeof *w, descending);
        double left = 1;
        size_t c = 0;
        while (c < K && (c < 10 || left > 1e-3)) {
            r->ids[i * K + c] = w[c].id;
            r->lp[i * K + c] = w[c].lp;
            left -= exp(w[c++].lp);
        }
        r->count[i] = (uint32_t)c;
        r->tail_mass[i] = (float)fmax(left, 1e-9);
        r->label[i] = w[(size_t)(unit(7, i) * 20)].id;
        if (ref) r->label[i] = ref->label[i];
        r->label_lp[i] = (float)w[i % 20].lp;
        r->lse[i] = (float)(15 + 3 * gauss(seed + 3, i));
        r->entropy[i] = (float)fabs(2 + gauss(seed + 4, i));
        for (size_t j = 0; j < m; j++) {
            size_t pick = c + (size_t)(unit(seed + 5, i * m + j) * (double)(POOL - c));
            r->tail_ids[i * m + j] = w[pick].id;
            r->tail_lp[i * m + j] = w[pick].lp;
        }
        for (size_t j = 0; ref && j < ref->count[i]; j++)
            r->ref_lp[i * ref->k_ld + j] = at[ref->ids[i * ref->k_ld + j]];
        for (size_t j = 0; ref && j < ref->m; j++)
            r->ref_tail_lp[i * ref->m + j] = at[ref->tail_ids[i * ref->m + j]];
    }
    free(w);
    free(at);
    free(seen);
}
