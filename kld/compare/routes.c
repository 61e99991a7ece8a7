#include "kld/compare/routes.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <math.h>
#include <stdbool.h>

/* One token in one layer, as one side chose. */
struct route {
    const uint32_t *id;
    const float *weight;
    size_t k;
};

/* What the weights sum to; NaN when they are no shares of anything. */
static double total(const struct route *r) {
    double sum = 0;
    for (size_t j = 0; j < r->k; j++) {
        double w = (double)r->weight[j];
        if (!(w >= 0) || isinf(w)) return NAN;
        sum += w;
    }
    return sum > 0 ? sum : NAN;
}

/* Slot of an expert; k when it was not chosen. */
static size_t slot_of(const struct route *r, uint32_t id) {
    size_t j = 0;
    while (j < r->k && r->id[j] != id) j++;
    return j;
}

static void add(kld_route_sums *s, kld_route_column c, double v) {
    s->sum[c] += v;
    s->n[c]++;
}

static void compare_token(const struct route *a, const struct route *b, double margin,
                          kld_route_sums *s) {
    size_t k = a->k, same = 0, shared = 0;
    double sum_a = total(a), sum_b = total(b), apart = 0;
    for (size_t j = 0; j < k; j++) {
        size_t at = slot_of(b, a->id[j]);
        double w = (double)a->weight[j] / sum_a;
        same += at == j;
        shared += at < k;
        apart += at < k ? fabs(w - (double)b->weight[at] / sum_b) : w;
        if (slot_of(a, b->id[j]) == k) apart += (double)b->weight[j] / sum_b;
    }
    add(s, KLD_ROUTE_TOP1, a->id[0] == b->id[0]);
    add(s, KLD_ROUTE_SLOTS, (double)same / (double)k);
    add(s, KLD_ROUTE_OVERLAP, (double)shared / (double)k);
    add(s, KLD_ROUTE_EXACT, shared == k);
    /* Shares are rounded: two sets without a common expert must not be further apart than 1. */
    if (!isnan(apart)) add(s, KLD_ROUTE_TV, fmin(0.5 * apart, 1));
    if (!isfinite(margin)) return;
    s->margin[shared < k] += margin;
    s->margin_n[shared < k]++;
}

kld_status kld_routes_compare(const kld_records *ref, const kld_records *cand, kld_route_sums *out,
                              kld_err *err) {
    size_t layers = ref->route_layers, k = ref->route_k;
    if (ref->route_tokens != cand->route_tokens || layers != cand->route_layers ||
        k != cand->route_k || (layers && !k))
        return kld_fail(err, KLD_E_INPUT,
                        "the reference has routes of %zu tokens in %zu layers to %zu experts each, "
                        "the candidate of %zu in %zu to %zu",
                        ref->route_tokens, layers, k, cand->route_tokens, cand->route_layers,
                        cand->route_k);
    for (size_t i = 0; i < ref->route_tokens * layers; i++) {
        struct route a = {ref->route_id + i * k, ref->route_weight + i * k, k};
        struct route b = {cand->route_id + i * k, cand->route_weight + i * k, k};
        compare_token(&a, &b, (double)ref->route_margin[i], &out[i % layers]);
    }
    return KLD_OK;
}

void kld_route_sums_add(kld_route_sums *to, const kld_route_sums *from) {
    for (int c = 0; c < KLD_ROUTE_COLUMNS; c++) {
        to->sum[c] += from->sum[c];
        to->n[c] += from->n[c];
    }
    for (int e = 0; e < 2; e++) {
        to->margin[e] += from->margin[e];
        to->margin_n[e] += from->margin_n[e];
    }
}

double kld_route_mean(const kld_route_sums *s, kld_route_column c) {
    return s->n[c] ? s->sum[c] / (double)s->n[c] : NAN;
}

double kld_route_margin(const kld_route_sums *s, int where) {
    double sum = where < 2 ? s->margin[where] : s->margin[0] + s->margin[1];
    uint64_t n = where < 2 ? s->margin_n[where] : s->margin_n[0] + s->margin_n[1];
    return n ? sum / (double)n : NAN;
}

/* ---- over windows --------------------------------------------------------------------- */

kld_status kld_route_tally_begin(kld_route_tally *t, size_t layers, kld_err *err) {
    *t = (kld_route_tally){.layers = layers};
    return NEW_ARRAY(&t->layer, layers, err);
}

void kld_route_tally_free(kld_route_tally *t) {
    kld_free(t->layer);
    kld_free(t->by_cluster);
    *t = (kld_route_tally){0};
}

kld_status kld_route_tally_window(kld_route_tally *t, size_t cluster, uint64_t tokens,
                                  const kld_route_sums *layer, kld_err *err) {
    if (cluster >= t->cap_clusters) {
        size_t cap = num_max(cluster + 1, 2 * t->cap_clusters);
        TRY(kld_realloc((void **)&t->by_cluster, cap, sizeof *t->by_cluster, err));
        for (size_t c = t->cap_clusters; c < cap; c++) t->by_cluster[c] = (kld_route_sums){0};
        t->cap_clusters = cap;
    }
    for (size_t i = 0; i < t->layers; i++) {
        kld_route_sums_add(&t->layer[i], &layer[i]);
        kld_route_sums_add(&t->by_cluster[cluster], &layer[i]);
    }
    t->tokens += tokens;
    return KLD_OK;
}
