#include "kld/capture/scan.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/capture/members.h"
#include "kld/capture/overlap.h"
#include "kld/capture/tell.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 20 };

/* ---- groups --------------------------------------------------------------------------- */

static int by_unit(const void *a, const void *b) {
    const kld_window *x = *(const kld_window *const *)a, *y = *(const kld_window *const *)b;
    int c = strcmp(kld_window_unit(x), kld_window_unit(y));
    return c ? c : (x > y) - (x < y); /* in the order of the suite */
}

/* Windows in the order of their clusters, and how many of those there are; *out is owned. */
static kld_status order(const kld_suite *s, const kld_window ***out, size_t *groups, kld_err *err) {
    *groups = 0;
    TRY(kld_calloc((void **)out, s->n_windows, sizeof **out, err));
    const kld_window **w = *out;
    for (size_t i = 0; i < s->n_windows; i++) w[i] = &s->windows[i];
    if (s->n_windows) qsort(w, s->n_windows, sizeof *w, by_unit);
    for (size_t i = 0; i < s->n_windows; i++)
        *groups += i == 0 || strcmp(kld_window_unit(w[i]), kld_window_unit(w[i - 1])) != 0;
    return KLD_OK;
}

/* ---- the object ----------------------------------------------------------------------- */

typedef struct line {
    const kld_window *w; /* the first of the cluster */
    const kld_overlap_group *g;
} line;

static int worst_first(const void *a, const void *b) {
    const line *x = a, *y = b;
    double s = kld_overlap_share(x->g), t = kld_overlap_share(y->g);
    if (s != t) return s < t ? 1 : -1;
    if (x->g->similarity != y->g->similarity) return x->g->similarity < y->g->similarity ? 1 : -1;
    return strcmp(kld_window_unit(x->w), kld_window_unit(y->w));
}

static json_t *listed(const line *l, size_t n, const kld_scan_options *opt, bool *ok) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        double share = kld_overlap_share(l[i].g);
        if (!(share > opt->above) && !(l[i].g->similarity >= opt->similar)) continue;
        json_t *o = kld_element(a, ok);
        kld_put(o, "cluster", json_string(kld_window_unit(l[i].w)), ok);
        kld_put(o, "partition", json_string(l[i].w->partition), ok);
        kld_put(o, "stratum", json_string(l[i].w->stratum), ok);
        kld_put(o, "ngrams", kld_count(l[i].g->grams), ok);
        kld_put(o, "found", kld_count(l[i].g->found), ok);
        kld_put(o, "share", json_real(share), ok);
        kld_put(o, "similarity", json_real(l[i].g->similarity), ok);
        kld_put(o, "similar_to", json_string(l[i].g->similar), ok);
    }
    return a;
}

static kld_status tell(const kld_suite *s, const char *path, const kld_overlap *o, const line *l,
                       size_t n, const kld_overlap_group *total, const kld_scan_options *opt,
                       json_t **out, kld_err *err) {
    char hex[KLD_SHA256_HEX];
    bool ok = true;
    uint64_t documents, tokens;
    size_t touched = 0;
    json_t *root = json_object(), *name = json_string(path), *files = json_array();
    kld_overlap_read(o, &documents, &tokens);
    for (size_t i = 0; i < n; i++) touched += l[i].g->found > 0;
    for (size_t i = 0; i < opt->n_files; i++) {
        json_t *file = json_string(opt->files[i]);
        if (json_array_append_new(files, file ? file : json_string("?")) != 0) ok = false;
    }
    kld_put(root, "schema", kld_count(1), &ok);
    kld_put(root, "suite", name ? name : json_string("?"), &ok);
    kld_put(root, "digest", json_string(kld_digest_hex(&s->digest, hex)), &ok);
    kld_put(root, "against", files, &ok);
    kld_put(root, "documents", kld_count(documents), &ok);
    kld_put(root, "tokens", kld_count(tokens), &ok);
    kld_put(root, "gram", kld_count(KLD_GRAM), &ok);
    kld_put(root, "ngrams", kld_count(total->grams), &ok);
    kld_put(root, "found", kld_count(total->found), &ok);
    kld_put(root, "share", json_real(kld_overlap_share(total)), &ok);
    kld_put(root, "most", json_real(n ? kld_overlap_share(l[0].g) : 0), &ok);
    kld_put(root, "clusters", kld_count(n), &ok);
    kld_put(root, "clusters_found", kld_count(touched), &ok);
    kld_put(root, "above", json_real(opt->above), &ok);
    kld_put(root, "similar", json_real(opt->similar), &ok);
    kld_put(root, "listed", listed(l, n, opt, &ok), &ok);
    if (ok) {
        *out = root;
        return KLD_OK;
    }
    json_decref(root);
    return kld_fail(err, KLD_E_NOMEM, "out of memory");
}

static kld_status check_tokenizer(const kld_suite *s, const char *path, const kld_tokenizer *t,
                                  kld_err *err) {
    static const kld_digest unknown;
    char a[KLD_SHA256_HEX], b[KLD_SHA256_HEX];
    if (!t) return KLD_OK;
    kld_digest d = kld_tokenizer_digest(t);
    if (memcmp(&s->tokenizer, &unknown, sizeof unknown) == 0) {
        kld_warn("%s does not say which tokenizer made its ids; they are taken as this one's",
                 path);
        return KLD_OK;
    }
    if (memcmp(&s->tokenizer, &d, sizeof d) == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "%s: was built with tokenizer %.12s, and this is %.12s: no id would be found",
                    path, kld_digest_hex(&s->tokenizer, a), kld_digest_hex(&d, b));
}

kld_status kld_suite_scan(const kld_suite *s, const char *path, const kld_tokenizer *tokenizer,
                          const kld_scan_options *opt, json_t **out, kld_err *err) {
    const kld_window **w = NULL;
    kld_overlap *o = NULL;
    kld_overlap_group *g = NULL, total;
    line *l = NULL;
    size_t n = 0, at = 0;
    kld_status st;
    *out = NULL;
    TRY(check_tokenizer(s, path, tokenizer, err));
    TRY_TO(done, order(s, &w, &n, err));
    TRY_TO(done, kld_overlap_open(&o, n, err));
    TRY_TO(done, NEW_ARRAY(&g, n, err));
    TRY_TO(done, NEW_ARRAY(&l, n, err));
    for (size_t i = 0; i < s->n_windows; i++) {
        at += i > 0 && strcmp(kld_window_unit(w[i]), kld_window_unit(w[i - 1])) != 0;
        if (!l[at].w) l[at] = (line){.w = w[i], .g = &g[at]};
        TRY_TO(done, kld_overlap_add(o, at, w[i]->ids, w[i]->n, err));
    }
    for (size_t k = 0; k < opt->n_files; k++)
        TRY_TO(done, kld_overlap_file(o, opt->files[k], tokenizer, err));
    kld_overlap_result(o, g, &total);
    if (n) qsort(l, n, sizeof *l, worst_first);
    TRY_TO(done, tell(s, path, o, l, n, &total, opt, out, err));
done:
    kld_free(l);
    kld_free(g);
    kld_overlap_close(o);
    kld_free(w);
    return st;
}

/* ---- for people ----------------------------------------------------------------------- */

kld_status kld_suite_scan_text(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *rows = json_object_get(v, "listed");
    size_t n = json_array_size(rows);
    TRY(tell_name(tell_str(v, "suite"), 0, out, err));
    TRY(kld_buf_addf(out, err,
                     ": %.0f of %.0f 13-grams (%.2f %%) are in the %.0f documents read (%.0f "
                     "tokens)\n  %.0f of %.0f clusters have some, at most %.2f %% of one\n",
                     tell_num(v, "found"), tell_num(v, "ngrams"), 100 * tell_num(v, "share"),
                     tell_num(v, "documents"), tell_num(v, "tokens"), tell_num(v, "clusters_found"),
                     tell_num(v, "clusters"), 100 * tell_num(v, "most")));
    if (n == 0) return KLD_OK;
    TRY(kld_buf_addf(out, err, "\n%-32s %-16s %10s %9s  %10s %s\n", "cluster", "partition",
                     "13-grams", "found", "similarity", "to"));
    for (size_t i = 0; i < n && i < ROWS; i++) {
        const json_t *c = json_array_get(rows, i);
        const char *partition = tell_str(c, "partition");
        TRY(tell_name(tell_str(c, "cluster"), 32, out, err));
        TRY(kld_buf_adds(out, " ", err));
        TRY(tell_name(*partition ? partition : "-", 16, out, err));
        TRY(kld_buf_addf(out, err, " %10.0f %7.2f %%  %10.2f ", tell_num(c, "ngrams"),
                         100 * tell_num(c, "share"), tell_num(c, "similarity")));
        TRY(tell_name(tell_str(c, "similar_to"), 0, out, err));
        TRY(kld_buf_adds(out, "\n", err));
    }
    if (n > ROWS) TRY(kld_buf_addf(out, err, "... and %zu more; --json has all\n", n - ROWS));
    return KLD_OK;
}
