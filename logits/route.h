/* logits/route.h - from the router logits of one token to its experts.  Floor 2; C and CUDA: the
 * choice and the order of sums are the same on every device, expf is the device's own. */
#ifndef KLD_LOGITS_ROUTE_H
#define KLD_LOGITS_ROUTE_H
#include "loaders/model.h"
#include "loaders/numfmt.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Experts that are out: excluded, or chosen already. */
typedef struct kld_route_set {
    uint32_t bits[KLD_MAX_EXPERTS / 32];
} kld_route_set;

KLD_NUM bool kld_route_out(const kld_route_set *s, size_t e) {
    return s->bits[e / 32] >> e % 32 & 1;
}
KLD_NUM void kld_route_put(kld_route_set *s, size_t e) { s->bits[e / 32] |= 1u << e % 32; }

/* What an expert is chosen by.  A NaN is below every number. */
KLD_NUM float kld_route_choice(const float *score, const float *bias, size_t e) {
    float c = bias ? score[e] + bias[e] : score[e];
    return c == c ? c : -INFINITY;
}

/* The best of experts [from, to) that are not out, the lower one of equals; `to` when all are. */
KLD_NUM size_t kld_route_best(const float *score, const float *bias, const kld_route_set *out,
                              size_t from, size_t to) {
    size_t best = to;
    float top = 0;
    for (size_t e = from; e < to; e++) {
        float c = kld_route_choice(score, bias, e);
        if (kld_route_out(out, e) || (best < to && !(c > top))) continue;
        best = e;
        top = c;
    }
    return best;
}

/* Takes the experts of all but the best top_groups groups out.  A group is worth the sum of its
 * two best (DeepSeek-V3). */
KLD_NUM void kld_route_groups(const kld_router *r, const float *score, const float *bias,
                              kld_route_set *out) {
    size_t width = r->experts / r->groups;
    kld_route_set kept = {{0}};
    if (!width) return; /* the config was checked: groups are of two experts at least */
    for (size_t n = 0; n < r->top_groups; n++) {
        size_t best = r->groups;
        float top = 0;
        for (size_t g = 0; g < r->groups; g++) {
            kld_route_set one = {{0}};
            size_t from = g * width, to = from + width;
            size_t a = kld_route_best(score, bias, &one, from, to);
            kld_route_put(&one, a);
            size_t b = kld_route_best(score, bias, &one, from, to);
            float worth = kld_route_choice(score, bias, a) + kld_route_choice(score, bias, b);
            if (kld_route_out(&kept, g) || (best < r->groups && !(worth > top))) continue;
            best = g;
            top = worth;
        }
        kld_route_put(&kept, best);
    }
    for (size_t e = 0; e < r->experts; e++)
        if (!kld_route_out(&kept, e / width)) kld_route_put(out, e);
}

/* Logits become scores, in place. */
KLD_NUM void kld_route_scores(const kld_router *r, float *z) {
    double sum = 0;
    float top = -INFINITY;
    if (r->score == KLD_SCORE_SIGMOID)
        for (size_t e = 0; e < r->experts; e++) z[e] = 1.0f / (1.0f + expf(-z[e]));
    if (r->score != KLD_SCORE_SOFTMAX) return;
    for (size_t e = 0; e < r->experts; e++) top = z[e] > top ? z[e] : top;
    for (size_t e = 0; e < r->experts; e++) sum += z[e] = expf(z[e] - top);
    for (size_t e = 0; e < r->experts; e++) z[e] = (float)(z[e] / sum);
}

KLD_NUM void kld_route_weights(const kld_router *r, const float *score, const uint32_t *id,
                               float *weight) {
    float sum = 0, top = -INFINITY;
    bool chosen = r->score == KLD_SCORE_SOFTMAX_CHOSEN;
    for (size_t i = 0; i < r->top_k; i++) {
        weight[i] = score[id[i]];
        top = weight[i] > top ? weight[i] : top;
    }
    for (size_t i = 0; i < r->top_k; i++) {
        if (chosen) weight[i] = expf(weight[i] - top);
        sum += weight[i];
    }
    if (!chosen && !r->normalise) sum = 1;
    else if (!chosen) sum += (float)r->eps;
    for (size_t i = 0; i < r->top_k; i++) weight[i] = weight[i] / sum * (float)r->scale;
}

/* The contract of kld_backend.route for one row; z [experts] is used up.  margin is not set when
 * the experts are forced. */
KLD_NUM void kld_route_row(const kld_router *r, float *z, const float *bias, const uint32_t *forced,
                           uint32_t *id, float *weight, float *margin) {
    kld_route_set out = {{0}};
    kld_route_scores(r, z);
    if (r->groups > 1 && !forced) kld_route_groups(r, z, bias, &out);
    for (size_t i = 0; i < r->top_k; i++) {
        id[i] = forced ? forced[i] : (uint32_t)kld_route_best(z, bias, &out, 0, r->experts);
        kld_route_put(&out, id[i]);
    }
    kld_route_weights(r, z, id, weight);
    if (forced) return;
    size_t next = kld_route_best(z, bias, &out, 0, r->experts);
    float last = kld_route_choice(z, bias, id[r->top_k - 1]);
    *margin = next < r->experts ? last - kld_route_choice(z, bias, next) : INFINITY;
}

#endif
