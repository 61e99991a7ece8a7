#include "tests/unit/t_records.h"

#include "kld/base/philox.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static double uniform(uint64_t key, uint64_t i) {
    kld_philox_block b = kld_philox(key, i, 11);
    return kld_philox_unit(b.v[0], b.v[1]);
}

static double normal(uint64_t key, uint64_t i) {
    return sqrt(-2 * log(uniform(key, 2 * i))) * cos(6.283185307179586 * uniform(key, 2 * i + 1));
}

static void normalize(double *l) {
    double z = 0;
    for (size_t v = 0; v < V; v++) z += exp(l[v]);
    for (size_t v = 0; v < V; v++) l[v] -= log(z);
}

/* The k most probable ids, ties by lower id, and m draws from the rest. */
static void keep(struct rec *x, size_t i, size_t k, size_t m, uint64_t seed) {
    uint32_t *ids = x->ids + i * MAX_K;
    double mass = 0;
    bool taken[V] = {false};
    for (size_t j = 0; j < k; j++) {
        uint32_t best = V;
        for (uint32_t v = 0; v < V; v++)
            if (!taken[v] && (best == V || x->full[i][v] > x->full[i][best])) best = v;
        taken[best] = true;
        ids[j] = best;
        x->lp[i * MAX_K + j] = x->full[i][best];
    }
    for (uint32_t v = 0; v < V; v++)
        if (!taken[v]) mass += exp(x->full[i][v]);
    x->count[i] = (uint32_t)k;
    x->tail_mass[i] = (float)mass;
    for (size_t j = 0; j < m; j++) {
        double u = uniform(seed, i * 64 + j) * mass, c = 0;
        uint32_t pick = UINT32_MAX;
        for (uint32_t v = 0; v < V; v++) {
            if (taken[v]) continue;
            if (pick == UINT32_MAX || c < u) pick = v;
            c += exp(x->full[i][v]);
        }
        x->tail_ids[i * MAX_M + j] = pick;
        x->tail_lp[i * MAX_M + j] = pick == UINT32_MAX ? NAN : x->full[i][pick];
    }
}

struct rec *t_records(size_t n, size_t k, size_t m, uint64_t seed, double noise,
                      uint64_t noise_seed, const struct rec *ref) {
    struct rec *x = calloc(1, sizeof *x);
    if (!x) abort();
    x->r = (kld_records){.n = n, .first = 1, .k_ld = MAX_K, .m = m ? MAX_M : 0};
    x->r.count = x->count;
    x->r.ids = x->ids;
    x->r.lp = x->lp;
    x->r.label = x->label;
    x->r.label_lp = x->label_lp;
    x->r.lse = x->lse;
    x->r.entropy = x->entropy;
    x->r.tail_mass = x->tail_mass;
    x->r.tail_ids = x->tail_ids;
    x->r.tail_lp = x->tail_lp;
    for (size_t i = 0; i < n; i++) {
        for (size_t v = 0; v < V; v++)
            x->full[i][v] = 2.2 * normal(seed, i * V + v) + noise * normal(noise_seed, i * V + v);
        normalize(x->full[i]);
        keep(x, i, k, m ? MAX_M : 0, seed + 999);
        x->label[i] = (uint32_t)(uniform(seed + 5, i) * V);
        x->label_lp[i] = (float)x->full[i][x->label[i]];
    }
    if (!ref) return x;
    x->r.ref_ld = MAX_K;
    x->r.ref_m = ref->r.m;
    x->r.ref_lp = x->ref_lp;
    x->r.ref_tail_lp = x->ref_tail_lp;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < ref->count[i]; j++)
            x->ref_lp[i * MAX_K + j] = x->full[i][ref->ids[i * MAX_K + j]];
        for (size_t j = 0; j < ref->r.m; j++) {
            uint32_t id = ref->tail_ids[i * MAX_M + j];
            x->ref_tail_lp[i * MAX_M + j] = id == UINT32_MAX ? NAN : x->full[i][id];
        }
    }
    return x;
}

void t_routes(uint32_t *id, float *weight, float *margin, size_t n, size_t k, uint32_t experts,
              uint64_t seed) {
    uint64_t draw = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) {
            bool taken = true;
            while (taken) {
                id[i * k + j] = (uint32_t)(uniform(seed, draw++) * experts);
                taken = false;
                for (size_t s = 0; s < j; s++) taken = taken || id[i * k + s] == id[i * k + j];
            }
            weight[i * k + j] = (float)(2 * uniform(seed + 1, i * k + j));
        }
        margin[i] = i % 16 == 7 ? INFINITY : (float)uniform(seed + 2, i);
    }
}

void t_routed(struct rec *x, size_t tokens, size_t layers, size_t k, uint32_t experts,
              uint64_t seed) {
    if (tokens * layers * k > MAX_ROUTES) abort();
    x->r.route_tokens = tokens;
    x->r.route_layers = layers;
    x->r.route_k = k;
    x->r.route_id = x->route_id;
    x->r.route_weight = x->route_weight;
    x->r.route_margin = x->route_margin;
    t_routes(x->route_id, x->route_weight, x->route_margin, tokens * layers, k, experts, seed);
}
