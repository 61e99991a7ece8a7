#include "kld/nightly/measure.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/compare/compare.h"

/* Captures to compare: paths, and the slot of each. */
struct list {
    const char **path; /* owned */
    size_t *slot;      /* owned */
    size_t n;
};

static kld_status gather(const nightly_captures *c, struct list *l, kld_err *err) {
    size_t slots = c->config->n_items + 1;
    TRY(kld_calloc((void **)&l->path, slots, sizeof(char *), err));
    TRY(NEW_ARRAY(&l->slot, slots, err));
    for (size_t i = 1; i < slots; i++) {
        const char *path =
            i < c->config->n_items ? (c->item[i].done ? c->item[i].path : NULL) : c->config->floor;
        if (!path) continue;
        l->path[l->n] = path;
        l->slot[l->n++] = i;
    }
    return KLD_OK;
}

/* Leaves those in the list that can be compared with the reference by themselves. */
static kld_status sift(const nightly_captures *c, struct list *l, nightly_measured *m,
                       kld_err *err) {
    size_t left = 0;
    for (size_t i = 0; i < l->n; i++) {
        kld_err *e = &m->err[l->slot[i]];
        json_t *alone = NULL;
        kld_status st =
            kld_compare_run(c->item[0].path, &l->path[i], 1, &c->config->compare, &alone, e);
        json_decref(alone);
        if (st == KLD_E_INTERRUPTED || st == KLD_E_NOMEM) {
            if (err) *err = *e;
            return st;
        }
        if (st != KLD_OK) {
            kld_warn("%s", e->text);
            continue;
        }
        l->path[left] = l->path[i];
        l->slot[left++] = l->slot[i];
    }
    l->n = left;
    return KLD_OK;
}

static kld_status compare(const nightly_captures *c, struct list *l, nightly_measured *m,
                          kld_err *err) {
    const char *ref = c->item[0].path;
    const kld_compare_options *opt = &c->config->compare;
    kld_status st = kld_compare_run(ref, l->path, l->n, opt, &m->result, err);
    if (st == KLD_OK || st == KLD_E_USAGE || st == KLD_E_INTERRUPTED || st == KLD_E_NOMEM)
        return st;
    size_t all = l->n;
    TRY(sift(c, l, m, err));
    if (l->n == 0) return KLD_OK;
    if (l->n == all) return st; /* not the fault of one of them */
    return kld_compare_run(ref, l->path, l->n, opt, &m->result, err);
}

kld_status nightly_measure(const nightly_captures *c, nightly_measured *out, kld_err *err) {
    struct list l = {0};
    kld_status st;
    *out = (nightly_measured){0};
    TRY_TO(done, NEW_ARRAY(&out->at, c->config->n_items + 1, err));
    TRY_TO(done, NEW_ARRAY(&out->err, c->config->n_items + 1, err));
    for (size_t i = 0; i <= c->config->n_items; i++) out->at[i] = -1;
    TRY_TO(done, gather(c, &l, err));
    if (c->item[0].done && l.n > 0) st = compare(c, &l, out, err);
    for (size_t k = 0; st == KLD_OK && out->result && k < l.n; k++) out->at[l.slot[k]] = (long)k;
done:
    kld_free(l.path);
    kld_free(l.slot);
    return st;
}

void nightly_measured_free(nightly_measured *m) {
    json_decref(m->result);
    kld_free(m->at);
    kld_free(m->err);
    *m = (nightly_measured){0};
}

kld_status nightly_paired(const nightly_captures *c, size_t item, const char *before, json_t **out,
                          kld_err *err) {
    const char *path[] = {before, c->item[item].path};
    json_t *result;
    *out = NULL;
    TRY(kld_compare_run(c->item[0].path, path, 2, &c->config->compare, &result, err));
    *out = json_incref(json_array_get(json_object_get(result, "pairs"), 0));
    json_decref(result);
    return *out ? KLD_OK : kld_fail(err, KLD_E_INTERNAL, "two captures, but no pair");
}
