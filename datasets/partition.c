#include "datasets/partition.h"

#include "kld/base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- clusters ------------------------------------------------------------------------- */

static int by_cluster(const void *a, const void *b) {
    const kld_window *x = *(const kld_window *const *)a, *y = *(const kld_window *const *)b;
    int c = strcmp(x->cluster, y->cluster);
    if (c == 0) c = strcmp(x->stratum, y->stratum);
    return c ? c : strcmp(x->partition, y->partition);
}

/* Windows in the order of their clusters; *out is owned. */
static kld_status order_by_cluster(const kld_suite *s, kld_window ***out, kld_err *err) {
    TRY(kld_calloc((void **)out, s->n_windows, sizeof(kld_window *), err));
    for (size_t i = 0; i < s->n_windows; i++) (*out)[i] = &s->windows[i];
    if (s->n_windows) qsort(*out, s->n_windows, sizeof(kld_window *), by_cluster);
    return KLD_OK;
}

kld_status kld_suite_check_partitions(const kld_suite *s, kld_err *err) {
    kld_window **order;
    TRY(order_by_cluster(s, &order, err));
    kld_status st = KLD_OK;
    for (size_t i = 1; i < s->n_windows && st == KLD_OK; i++) {
        const kld_window *a = order[i - 1], *b = order[i];
        if (strcmp(a->cluster, b->cluster) == 0 && strcmp(a->partition, b->partition) != 0)
            st = kld_fail(
                err, KLD_E_INPUT,
                "cluster '%s' is in partition '%s' and in '%s'; a cluster must stay in one",
                a->cluster, a->partition, b->partition);
    }
    kld_free(order);
    return st;
}

kld_status kld_partition_check_name(const char *name, kld_err *err) {
    if (strcmp(name, KLD_ALL_PARTITIONS) != 0 && strcmp(name, KLD_ALL_BUT_QUALIFICATION) != 0)
        return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "a partition cannot be called '%s', which stands for several; give it another "
                    "name",
                    name);
}

/* ---- choosing one --------------------------------------------------------------------- */

kld_status kld_no_such_partition(const char *asked,
                                 const char *(*partition_of)(void *ctx, size_t i), void *ctx,
                                 size_t n_windows, kld_err *err) {
    enum { NAMED = 8 };
    const char *name[NAMED];
    kld_buf list = {0};
    kld_status st = KLD_OK;
    size_t n = 0;
    for (size_t i = 0; i < n_windows && n < NAMED; i++) {
        const char *p = partition_of(ctx, i);
        size_t k = 0;
        while (k < n && strcmp(name[k], p) != 0) k++;
        if (k == n) name[n++] = p;
    }
    for (size_t k = 0; k < n && st == KLD_OK; k++)
        st = kld_buf_addf(&list, err, "%s'%.40s'", k ? ", " : "", name[k]);
    if (st == KLD_OK && (n == 0 || (n == 1 && !*name[0])))
        st =
            kld_fail(err, KLD_E_USAGE, "no window is in partition '%s'; the suite has none", asked);
    else if (st == KLD_OK)
        st = kld_fail(err, KLD_E_USAGE, "no window is in partition '%s'; there %s %s%s", asked,
                      n == 1 ? "is" : "are", (const char *)list.data, n == NAMED ? ", ..." : "");
    kld_buf_free(&list);
    return st;
}

static const char *partition_of(void *ctx, size_t i) {
    const kld_suite *s = ctx;
    return s->windows[i].partition;
}

static bool chosen(const kld_window *w, const char *partition) {
    if (partition) return strcmp(w->partition, partition) == 0;
    return strcmp(w->partition, KLD_QUALIFICATION) != 0;
}

kld_status kld_suite_select(kld_suite *s, const char *partition, size_t *left_out, kld_err *err) {
    size_t n = 0, all = s->n_windows;
    if (left_out) *left_out = 0;
    if (partition && !*partition) return kld_fail(err, KLD_E_USAGE, "the partition has no name");
    s->partition = "";
    if (partition && strcmp(partition, KLD_ALL_PARTITIONS) == 0) return KLD_OK;
    for (size_t i = 0; i < all; i++) n += chosen(&s->windows[i], partition);
    if (n == all) return KLD_OK;
    if (n == 0 && partition) return kld_no_such_partition(partition, partition_of, s, all, err);
    if (n == 0)
        return kld_fail(err, KLD_E_INPUT,
                        "every window is of partition '" KLD_QUALIFICATION
                        "', which is read only when it is asked for: --partition %s",
                        KLD_QUALIFICATION);
    n = 0;
    s->tokens = s->positions = 0;
    for (size_t i = 0; i < all; i++) {
        kld_window *w = &s->windows[i];
        if (!chosen(w, partition)) continue;
        bool other = n > 0 && strcmp(w->partition, s->partition) != 0;
        s->partition = other || !*w->partition ? KLD_ALL_BUT_QUALIFICATION : w->partition;
        s->tokens += w->n;
        s->positions += kld_window_scored(w);
        s->windows[n++] = *w;
    }
    s->n_windows = n;
    if (left_out) *left_out = all - n;
    if (s->positions > 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "no scored position in the %zu windows of partition '%s'", n,
                    s->partition);
}

/* ---- dividing clusters ---------------------------------------------------------------- */

kld_status kld_split_parse(kld_split *out, const char *text, kld_err *err) {
    double sum = 0;
    *out = (kld_split){0};
    for (const char *p = text;;) {
        const char *eq = strchr(p, '=');
        size_t len = eq ? (size_t)(eq - p) : 0, k = out->n;
        char *end = NULL;
        if (k == KLD_MAX_PARTS)
            return kld_fail(err, KLD_E_USAGE, "a split has at most %d partitions", KLD_MAX_PARTS);
        double share = eq ? strtod(eq + 1, &end) : 0;
        if (!eq || len == 0 || len >= sizeof out->part[k].name || end == eq + 1 ||
            (*end && *end != ',') || !(share > 0 && share <= 1))
            return kld_fail(err, KLD_E_USAGE,
                            "'%.80s' is not a split: NAME=SHARE,... with shares above 0 that add "
                            "up to 1",
                            text);
        memcpy(out->part[k].name, p, len);
        out->part[k].share = share;
        if (kld_partition_check_name(out->part[k].name, err) != KLD_OK) return KLD_E_USAGE;
        for (size_t i = 0; i < k; i++)
            if (strcmp(out->part[i].name, out->part[k].name) == 0)
                return kld_fail(err, KLD_E_USAGE, "partition '%s' is in the split twice",
                                out->part[k].name);
        out->n++;
        sum += share;
        if (!*end) break;
        p = end + 1;
    }
    if (fabs(sum - 1) <= 1e-6) return KLD_OK;
    return kld_fail(err, KLD_E_USAGE, "the shares of '%.80s' add up to %g, not to 1", text, sum);
}

typedef struct unit {
    const char *name, *stratum;
    const char *partition; /* "" while it has none */
    uint64_t positions;    /* scored */
    kld_digest key;
    size_t first, n; /* its windows in the order by cluster */
} unit;

static kld_status key_of(uint64_t seed, const char *name, kld_digest *out, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_buf_adds(&b, "kld split 1", err);
    if (st == KLD_OK) st = kld_buf_u64(&b, seed, err);
    if (st == KLD_OK) st = kld_buf_adds(&b, name, err);
    if (st == KLD_OK) st = kld_sha256_of(b.data, b.len, out, err);
    kld_buf_free(&b);
    return st;
}

/* Windows of a cluster stand by stratum; the first of the largest wins. */
static void describe(unit *u, kld_window *const *w) {
    uint64_t best = 0, here = 0;
    u->name = w[0]->cluster;
    u->stratum = w[0]->stratum;
    u->partition = "";
    for (size_t i = 0; i < u->n; i++) {
        if (i == 0 || strcmp(w[i]->stratum, w[i - 1]->stratum) != 0) here = 0;
        here += kld_window_scored(w[i]);
        u->positions += kld_window_scored(w[i]);
        if (*w[i]->partition) u->partition = w[i]->partition;
        if (here <= best) continue;
        best = here;
        u->stratum = w[i]->stratum;
    }
}

static int by_stratum(const void *a, const void *b) {
    const unit *x = a, *y = b;
    int c = strcmp(x->stratum, y->stratum);
    return c ? c : memcmp(&x->key, &y->key, sizeof x->key);
}

static int name_of_unit(const void *a, const void *b) {
    return strcmp(((const unit *)a)->name, ((const unit *)b)->name);
}

/* What `keep` says; u in the order of names. */
static kld_status keep_old(unit *u, size_t n, const kld_suite *keep, kld_err *err) {
    for (size_t i = 0; keep && i < keep->n_windows; i++) {
        const kld_window *w = &keep->windows[i];
        const unit key = {.name = w->cluster};
        unit *found = n ? bsearch(&key, u, n, sizeof *u, name_of_unit) : NULL;
        if (!found || !*w->partition || strcmp(w->partition, found->partition) == 0) continue;
        if (*found->partition)
            return kld_fail(err, KLD_E_INPUT,
                            "cluster '%s' is in partition '%s', and was in '%s' in the suite whose "
                            "partitions are kept",
                            found->name, found->partition, w->partition);
        found->partition = w->partition;
    }
    return KLD_OK;
}

/* The units of one stratum. */
static void divide(unit *u, size_t n, const kld_split *split) {
    double missing[KLD_MAX_PARTS] = {0}, all = 0, open = 0, at = 0, sum = 0;
    for (size_t i = 0; i < n; i++) all += (double)u[i].positions;
    for (size_t i = 0; i < n; i++) open += *u[i].partition ? 0 : (double)u[i].positions;
    for (size_t k = 0; k < split->n; k++) {
        missing[k] = split->part[k].share * all;
        for (size_t i = 0; i < n; i++)
            if (strcmp(u[i].partition, split->part[k].name) == 0)
                missing[k] -= (double)u[i].positions;
        if (missing[k] < 0) missing[k] = 0;
        sum += missing[k];
    }
    size_t k = 0;
    double end = missing[0]; /* of the range of partition k */
    for (size_t i = 0; i < n; i++) {
        if (*u[i].partition) continue;
        double middle = open > 0 ? (at + (double)u[i].positions / 2) / open * sum : 0;
        while (k + 1 < split->n && middle >= end) end += missing[++k];
        at += (double)u[i].positions;
        u[i].partition = split->part[k].name;
    }
}

static kld_status collect(kld_window *const *order, size_t n, uint64_t seed, unit *u, size_t *units,
                          kld_err *err) {
    *units = 0;
    for (size_t i = 0; i < n; i += u[*units - 1].n) {
        unit *x = &u[(*units)++];
        *x = (unit){.first = i, .n = 1};
        while (i + x->n < n && strcmp(order[i]->cluster, order[i + x->n]->cluster) == 0) x->n++;
        describe(x, order + i);
        TRY(key_of(seed, x->name, &x->key, err));
    }
    return KLD_OK;
}

kld_status kld_suite_split(kld_suite *s, const kld_split *split, uint64_t seed,
                           const kld_suite *keep, kld_err *err) {
    kld_window **order = NULL;
    unit *u = NULL;
    size_t n = 0;
    kld_status st;
    TRY_TO(done, order_by_cluster(s, &order, err));
    TRY_TO(done, NEW_ARRAY(&u, s->n_windows, err));
    TRY_TO(done, collect(order, s->n_windows, seed, u, &n, err));
    TRY_TO(done, keep_old(u, n, keep, err));
    if (n) qsort(u, n, sizeof *u, by_stratum);
    for (size_t i = 0, m; i < n; i += m) {
        for (m = 1; i + m < n && strcmp(u[i].stratum, u[i + m].stratum) == 0;) m++;
        divide(u + i, m, split);
    }
    for (size_t i = 0; i < n; i++) {
        char *name;
        TRY_TO(done,
               kld_arena_strndup(&s->arena, &name, u[i].partition, strlen(u[i].partition), err));
        for (size_t k = 0; k < u[i].n; k++)
            if (!*order[u[i].first + k]->partition) order[u[i].first + k]->partition = name;
    }
done:
    kld_free(u);
    kld_free(order);
    return st;
}
