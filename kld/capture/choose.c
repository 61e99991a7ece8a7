#include "kld/capture/choose.h"

#include "kld/base/buf.h"
#include "kld/base/mem.h"

#include <stdlib.h>
#include <string.h>

typedef const kld_choice_window *item;

static int compare_sizes(size_t a, size_t b) { return (a > b) - (a < b); }

/* Documents that are the same to the last id have the same keys; the earlier goes first. */
static int by_key(item x, item y) {
    int c = memcmp(&x->key, &y->key, sizeof x->key);
    return c ? c : compare_sizes(x->document, y->document);
}

static int by_document(const void *a, const void *b) {
    item x = *(const item *)a, y = *(const item *)b;
    int c = compare_sizes(x->document, y->document);
    return c ? c : by_key(x, y);
}

static int by_cluster(const void *a, const void *b) {
    item x = *(const item *)a, y = *(const item *)b;
    int c = strcmp(x->cluster, y->cluster);
    if (c == 0) c = compare_sizes(x->rank, y->rank);
    return c ? c : by_key(x, y);
}

static int by_rank(const void *a, const void *b) {
    item x = *(const item *)a, y = *(const item *)b;
    int c = compare_sizes(x->rank, y->rank);
    return c ? c : by_key(x, y);
}

static void sort(kld_choice_window **v, size_t n, int (*order)(const void *, const void *)) {
    if (n) qsort(v, n, sizeof *v, order);
}

static kld_status make_key(kld_choice_window *w, uint64_t seed, kld_buf *b, kld_err *err) {
    kld_buf_clear(b);
    TRY(kld_buf_adds(b, "kld window 1", err));
    TRY(kld_buf_u64(b, seed, err));
    TRY(kld_buf_add(b, w->content.b, sizeof w->content.b, err));
    TRY(kld_buf_u64(b, w->offset, err));
    return kld_sha256_of(b->data, b->len, &w->key, err);
}

static bool same_cluster(item x, item y) { return strcmp(x->cluster, y->cluster) == 0; }
static bool same_document(item x, item y) { return x->document == y->document; }

/* Number the windows of each group in their order, and leave out those past the limit; the number
 * of those left. */
static size_t number(kld_choice_window **v, size_t n, bool (*same)(item, item), size_t limit) {
    size_t left = 0, rank = 0;
    for (size_t i = 0; i < n; i++) {
        kld_choice_window *w = v[i];
        /* v[left - 1] is of the group whenever any of it was kept, and the first always is. */
        rank = left && same(v[left - 1], w) ? rank + 1 : 0;
        w->rank = rank;
        if (!limit || rank < limit) v[left++] = w;
    }
    return left;
}

static bool wants(const kld_quota *q, item w) {
    return q->origin == w->origin && (!q->stratum || strcmp(q->stratum, w->stratum) == 0);
}

static kld_status fall_short(const kld_choice_rules *r, const kld_quota *q, kld_err *err) {
    bool limits = r->per_document || r->per_cluster;
    return kld_fail(
        err, KLD_E_INPUT, "source '%s'%s%s%s: %llu %s are asked for, and there are %llu%s",
        r->source[q->origin], q->stratum ? ", stratum '" : "", q->stratum ? q->stratum : "",
        q->stratum ? "'" : "", (unsigned long long)q->asked, q->in_tokens ? "tokens" : "windows",
        (unsigned long long)(q->in_tokens ? q->tokens : q->windows),
        limits ? " with at most so many windows a document or cluster" : "");
}

/* v in the order of rank. */
static kld_status fill(const kld_choice_rules *r, kld_quota *q, kld_choice_window **v, size_t n,
                       kld_err *err) {
    q->windows = q->tokens = 0;
    for (size_t i = 0; i < n; i++) {
        if ((q->in_tokens ? q->tokens : q->windows) >= q->asked) return KLD_OK;
        if (!wants(q, v[i])) continue;
        v[i]->taken = true;
        q->windows++;
        q->tokens += v[i]->tokens;
    }
    return (q->in_tokens ? q->tokens : q->windows) >= q->asked ? KLD_OK : fall_short(r, q, err);
}

/* Windows of sources without a quota are taken; of others, those that no quota names are told. */
static size_t take_rest(const kld_choice_rules *r, kld_choice_window **v, size_t n) {
    size_t unnamed = 0;
    for (size_t i = 0; i < n; i++) {
        bool any = false, named = false;
        for (size_t k = 0; k < r->n_quotas; k++) {
            any = any || r->quota[k].origin == v[i]->origin;
            named = named || wants(&r->quota[k], v[i]);
        }
        if (!any) v[i]->taken = true;
        unnamed += any && !named;
    }
    return unnamed;
}

kld_status kld_choose_windows(kld_choice_window *w, size_t n, const kld_choice_rules *rules,
                              size_t *unnamed, kld_err *err) {
    kld_choice_window **v = NULL;
    kld_buf b = {0};
    kld_status st;
    *unnamed = 0;
    TRY_TO(done, NEW_ARRAY(&v, n, err));
    for (size_t i = 0; i < n; i++) {
        w[i].taken = false;
        TRY_TO(done, make_key(&w[i], rules->seed, &b, err));
        v[i] = &w[i];
    }
    sort(v, n, by_document);
    n = number(v, n, same_document, rules->per_document);
    sort(v, n, by_cluster);
    n = number(v, n, same_cluster, rules->per_cluster);
    sort(v, n, by_rank);
    *unnamed = take_rest(rules, v, n);
    for (size_t k = 0; k < rules->n_quotas; k++)
        TRY_TO(done, fill(rules, &rules->quota[k], v, n, err));
done:
    kld_buf_free(&b);
    kld_free(v);
    return st;
}
