#include "kld/compare/nucleus.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <math.h>

/* A slot holds turn << 32 | index of the token in the reference's list, so that a new
 * position needs no clearing. */
kld_status kld_match_alloc(kld_match *m, size_t max, kld_err *err) {
    *m = (kld_match){.max = max};
    size_t cap = 16;
    while (cap < 4 * max) cap *= 2; /* mostly empty: tokens seldom meet */
    m->mask = cap - 1;
    kld_status st = NEW_ARRAY(&m->to_ref, num_max(max, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&m->to_cand, num_max(max, 1), err);
    if (st == KLD_OK) st = NEW_ARRAY(&m->slots, cap, err);
    if (st != KLD_OK) kld_match_free(m);
    return st;
}

void kld_match_free(kld_match *m) {
    kld_free(m->to_ref);
    kld_free(m->to_cand);
    kld_free(m->slots);
    *m = (kld_match){0};
}

static size_t first_slot(const kld_match *m, uint32_t id) {
    return (size_t)((uint64_t)id * 0x9E3779B97F4A7C15u >> 32) & m->mask;
}

void kld_match_lists(kld_match *m, const kld_list *ref, const kld_list *cand) {
    if (++m->turn == 0) {
        for (size_t i = 0; i <= m->mask; i++) m->slots[i] = 0;
        m->turn = 1;
    }
    for (size_t i = 0; i < ref->n; i++) {
        size_t s = first_slot(m, ref->ids[i]);
        while (m->slots[s] >> 32 == m->turn) s = (s + 1) & m->mask;
        m->slots[s] = (uint64_t)m->turn << 32 | i;
        m->to_cand[i] = KLD_NO_MATCH;
    }
    for (size_t j = 0; j < cand->n; j++) {
        m->to_ref[j] = KLD_NO_MATCH;
        size_t s = first_slot(m, cand->ids[j]);
        for (; m->slots[s] >> 32 == m->turn; s = (s + 1) & m->mask) {
            uint32_t i = (uint32_t)m->slots[s];
            if (ref->ids[i] != cand->ids[j]) continue;
            m->to_ref[j] = i;
            m->to_cand[i] = (uint32_t)j;
            break;
        }
    }
}

double kld_topk_overlap(const kld_match *m, const kld_list *ref, const kld_list *cand, size_t k) {
    if (ref->complete && ref->n < k) k = ref->n;
    if (k == 0 || ref->n < k || cand->n < k) return NAN;
    size_t both = 0;
    for (size_t j = 0; j < k; j++) both += m->to_ref[j] < k;
    return (double)both / (double)k;
}

size_t kld_nucleus_size(const kld_list *l, double p) {
    double sum = 0;
    for (size_t i = 0; i < l->n; i++) {
        sum += l->p[i];
        if (sum >= p - 1e-9) return i + 1;
    }
    return l->complete ? l->n : 0;
}

static double mass(const double *p, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i];
    return sum;
}

/* Mass that `other` gives to n tokens, the i-th of which is its to_other[i]-th. */
static void mass_between(const uint32_t *to_other, size_t n, const kld_list *other, double out[2]) {
    double known = 0;
    size_t unknown = 0;
    for (size_t i = 0; i < n; i++) {
        if (to_other[i] == KLD_NO_MATCH) unknown++;
        else known += other->p[to_other[i]];
    }
    out[0] = out[1] = known;
    if (unknown && other->n) out[1] += fmin(other->tail, (double)unknown * other->p[other->n - 1]);
}

kld_nucleus kld_nucleus_compare(const kld_match *m, const kld_list *ref, const kld_list *cand,
                                const double *q_at_ref, double p) {
    kld_nucleus r = {.jaccard = NAN, .tv = NAN};
    for (int k = 0; k < 2; k++) r.on_reference[k] = r.on_candidate[k] = NAN;
    size_t np = kld_nucleus_size(ref, p), nq = kld_nucleus_size(cand, p);
    if (np == 0 || nq == 0) return r;
    r.decided = true;
    double zp = mass(ref->p, np), zq = mass(cand->p, nq), sum = 0;
    size_t both = 0;
    for (size_t j = 0; j < nq; j++) {
        double q = cand->p[j] / zq, pr = 0;
        if (m->to_ref[j] < np) {
            both++;
            pr = ref->p[m->to_ref[j]] / zp;
        }
        sum += fabs(q - pr);
    }
    for (size_t i = 0; i < np; i++)
        if (m->to_cand[i] >= nq) sum += ref->p[i] / zp;
    r.tv = 0.5 * sum;
    r.jaccard = (double)both / (double)(np + nq - both);
    if (q_at_ref) r.on_reference[0] = r.on_reference[1] = mass(q_at_ref, np);
    else mass_between(m->to_cand, np, cand, r.on_reference);
    mass_between(m->to_ref, nq, ref, r.on_candidate);
    return r;
}
