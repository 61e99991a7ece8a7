#include "kld/capture/describe.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/capture/members.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- cells ---------------------------------------------------------------------------- */

/* A stratum of a partition. */
typedef struct cell {
    const char *partition, *stratum;
    size_t clusters, windows;
    uint64_t tokens, positions;
} cell;

static int by_cell(const void *a, const void *b) {
    const kld_window *x = *(const kld_window *const *)a, *y = *(const kld_window *const *)b;
    int c = strcmp(x->partition, y->partition);
    if (c == 0) c = strcmp(x->stratum, y->stratum);
    return c ? c : strcmp(kld_window_unit(x), kld_window_unit(y));
}

static kld_status make_cells(const kld_suite *s, cell **out, size_t *n, kld_err *err) {
    const kld_window **w;
    *n = 0;
    TRY(NEW_ARRAY(out, s->n_windows, err));
    kld_status st = kld_calloc((void **)&w, s->n_windows, sizeof *w, err);
    if (st != KLD_OK) {
        kld_free(*out);
        return st;
    }
    for (size_t i = 0; i < s->n_windows; i++) w[i] = &s->windows[i];
    if (s->n_windows) qsort(w, s->n_windows, sizeof *w, by_cell);
    for (size_t i = 0; i < s->n_windows; i++) {
        bool same = i > 0 && strcmp(w[i]->partition, w[i - 1]->partition) == 0 &&
                    strcmp(w[i]->stratum, w[i - 1]->stratum) == 0;
        if (!same) (*out)[(*n)++] = (cell){.partition = w[i]->partition, .stratum = w[i]->stratum};
        cell *c = &(*out)[*n - 1];
        c->clusters += !same || strcmp(kld_window_unit(w[i]), kld_window_unit(w[i - 1])) != 0;
        c->windows++;
        c->tokens += w[i]->n;
        c->positions += kld_window_scored(w[i]);
    }
    kld_free(w);
    return KLD_OK;
}

static json_t *partitions_of(const cell *c, size_t n, bool *ok) {
    json_t *a = json_array();
    for (size_t i = 0, m; i < n; i += m) {
        cell sum = {.partition = c[i].partition};
        for (m = 0; i + m < n && strcmp(c[i].partition, c[i + m].partition) == 0; m++) {
            sum.clusters += c[i + m].clusters;
            sum.windows += c[i + m].windows;
            sum.positions += c[i + m].positions;
        }
        json_t *o = kld_element(a, ok);
        kld_put(o, "name", json_string(sum.partition), ok);
        kld_put(o, "clusters", kld_count(sum.clusters), ok);
        kld_put(o, "windows", kld_count(sum.windows), ok);
        kld_put(o, "positions", kld_count(sum.positions), ok);
    }
    return a;
}

static json_t *cells_of(const cell *c, size_t n, bool *ok) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *o = kld_element(a, ok);
        kld_put(o, "partition", json_string(c[i].partition), ok);
        kld_put(o, "stratum", json_string(c[i].stratum), ok);
        kld_put(o, "clusters", kld_count(c[i].clusters), ok);
        kld_put(o, "windows", kld_count(c[i].windows), ok);
        kld_put(o, "tokens", kld_count(c[i].tokens), ok);
        kld_put(o, "positions", kld_count(c[i].positions), ok);
    }
    return a;
}

static kld_status whole(bool ok, json_t *v, json_t **out, kld_err *err) {
    *out = ok ? v : NULL;
    if (ok) return KLD_OK;
    json_decref(v);
    return kld_fail(err, KLD_E_NOMEM, "out of memory");
}

kld_status kld_suite_partitions(const kld_suite *s, json_t **out, kld_err *err) {
    cell *c;
    size_t n;
    bool ok = true;
    *out = NULL;
    TRY(make_cells(s, &c, &n, err));
    json_t *v = partitions_of(c, n, &ok);
    kld_free(c);
    return whole(ok && v, v, out, err);
}

/* ---- how often ids are scored --------------------------------------------------------- */

/* Do the ids that both windows have agree, with a BOS in front of a (ba) and of b (bb)? */
static bool agree(const kld_window *a, size_t ba, const kld_window *b, size_t bb) {
    uint64_t end = num_min(a->offset + a->n - ba, b->offset + b->n - bb);
    for (uint64_t d = b->offset; d < end; d++)
        if (a->ids[d - a->offset + ba] != b->ids[d - b->offset + bb]) return false;
    return true;
}

/* Does b go on with the document of a, from inside of it?  *ba and *bb: is there a BOS. */
static bool goes_on(const kld_window *a, const kld_window *b, bool bos, size_t *ba, size_t *bb) {
    if (strcmp(a->source, b->source) != 0 || strcmp(a->cluster, b->cluster) != 0) return false;
    if (b->offset > INT64_MAX) return false; /* no sum below may pass 2^64 */
    for (size_t k = 0; k < (bos ? 4 : 1); k++) {
        *ba = k & 1;
        *bb = k >> 1;
        if (b->offset > a->offset && b->offset - a->offset < a->n - *ba && b->n > *bb &&
            agree(a, *ba, b, *bb))
            return true;
    }
    return false;
}

typedef struct often {
    uint64_t ids;  /* that are scored at all */
    uint64_t most; /* times one is */
} often;

/* Windows [from, to) of one document; front[i]: ids of window i that are BOS. */
static kld_status add_run(const kld_window *w, const size_t *front, size_t from, size_t to,
                          often *o, kld_err *err) {
    uint64_t base = w[from].offset, end = base;
    for (size_t i = from; i < to; i++) end = num_max(end, w[i].offset + w[i].n);
    uint32_t *times;
    TRY(NEW_ARRAY(&times, end - base, err));
    for (size_t i = from; i < to; i++)
        for (size_t t = w[i].score_from; t + 1 < w[i].n; t++)
            times[w[i].offset - base + t + 1 - front[i]]++;
    for (uint64_t d = 0; d < end - base; d++) {
        o->ids += times[d] > 0;
        o->most = num_max(o->most, times[d]);
    }
    kld_free(times);
    return KLD_OK;
}

static kld_status count_scores(const kld_suite *s, often *o, kld_err *err) {
    size_t *front; /* ids in front of a window that its document does not have */
    bool bos = strcmp(s->bos, "first") == 0 || strcmp(s->bos, "every") == 0;
    kld_status st = KLD_OK;
    *o = (often){0};
    TRY(NEW_ARRAY(&front, s->n_windows, err));
    for (size_t i = 0, next; i < s->n_windows && st == KLD_OK; i = next) {
        for (next = i + 1; next < s->n_windows; next++)
            if (!goes_on(&s->windows[next - 1], &s->windows[next], bos, &front[next - 1],
                         &front[next]))
                break;
        if (next < s->n_windows) front[next] = 0;
        if (next == i + 1) {
            size_t scored = kld_window_scored(&s->windows[i]);
            o->ids += scored;
            o->most = num_max(o->most, scored > 0);
        } else {
            st = add_run(s->windows, front, i, next, o, err);
        }
    }
    kld_free(front);
    return st;
}

/* ---- windows that are the same -------------------------------------------------------- */

static int by_ids(const void *a, const void *b) {
    const kld_window *x = *(const kld_window *const *)a, *y = *(const kld_window *const *)b;
    int c = memcmp(&x->tokens, &y->tokens, sizeof x->tokens);
    return c ? c : strcmp(x->partition, y->partition);
}

/* *repeats: windows whose ids an earlier one has; *across: of them, those whose ids are in another
 * partition, too. */
static kld_status count_repeats(const kld_suite *s, size_t *repeats, size_t *across, kld_err *err) {
    const kld_window **w;
    *repeats = *across = 0;
    TRY(kld_calloc((void **)&w, s->n_windows, sizeof *w, err));
    for (size_t i = 0; i < s->n_windows; i++) w[i] = &s->windows[i];
    if (s->n_windows) qsort(w, s->n_windows, sizeof *w, by_ids);
    for (size_t i = 1; i < s->n_windows; i++) {
        if (!kld_same_digest(&w[i]->tokens, &w[i - 1]->tokens)) continue;
        ++*repeats;
        *across += strcmp(w[i]->partition, w[i - 1]->partition) != 0;
    }
    kld_free(w);
    return KLD_OK;
}

/* ---- the object ----------------------------------------------------------------------- */

KLD_PRINTF(4, 5)
static void warn(json_t *list, bool *ok, const char *code, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *o = kld_element(list, ok);
    kld_put(o, "code", json_string(code), ok);
    kld_put(o, "text", json_string(text), ok);
}

/* For a sentence: short, and whole characters only. */
static const char *shown(const char *name, char text[48]) {
    size_t n = strnlen(name, 44);
    while (n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80) n--;
    if (!*name) return "(none)";
    (void)snprintf(text, 48, "%.*s%s", (int)n, name, name[n] ? "..." : "");
    return text;
}

static void about_clusters(json_t *list, const cell *c, size_t n, bool *ok) {
    char name[48], of[48];
    for (size_t i = 0, m; i < n; i += m) {
        size_t clusters = 0;
        bool parts = *c[i].partition != 0;
        for (m = 0; i + m < n && strcmp(c[i].partition, c[i + m].partition) == 0; m++)
            clusters += c[i + m].clusters;
        if (clusters < KLD_ENOUGH_CLUSTERS)
            warn(list, ok, "few_clusters",
                 "%s%s%s has %zu cluster%s: its intervals will be rough. Add documents rather than "
                 "tokens; %d clusters or more are advised",
                 parts ? "partition '" : "the suite", parts ? shown(c[i].partition, name) : "",
                 parts ? "'" : "", clusters, clusters == 1 ? "" : "s", KLD_ENOUGH_CLUSTERS);
        for (size_t k = i; k < i + m && m > 1; k++)
            if (c[k].clusters == 1)
                warn(list, ok, "one_cluster_stratum",
                     "stratum '%s'%s%s%s has one cluster: nothing can be said of its spread",
                     shown(c[k].stratum, name), parts ? " of partition '" : "",
                     parts ? shown(c[k].partition, of) : "", parts ? "'" : "");
    }
}

static void about_windows(json_t *list, const kld_suite *s, const often *o, size_t repeats,
                          size_t across, bool *ok) {
    if (kld_zero_digest(&s->tokenizer))
        warn(list, ok, "no_tokenizer",
             "nothing says which tokenizer made the ids; build the suite with kld suite build "
             "--jsonl to record it");
    if (s->positions < KLD_ENOUGH_POSITIONS)
        warn(list, ok, "few_positions",
             "%llu positions: p99.9 and the maximum rest on a handful of them. Use %d or more",
             (unsigned long long)s->positions, KLD_ENOUGH_POSITIONS);
    if (o->most > 1)
        warn(
            list, ok, "scored_repeatedly",
            "windows overlap and ids are scored up to %llu times, %.2f times on average: positions "
            "are fewer than they seem; intervals resample whole clusters and stay honest",
            (unsigned long long)o->most, (double)s->positions / (double)o->ids);
    if (repeats)
        warn(list, ok, "repeated_windows", "%zu windows have the ids of another one%s", repeats,
             across ? "" : "; they count twice");
    if (across)
        warn(list, ok, "repeated_across_partitions",
             "%zu windows have the ids of one in another partition: what was tuned on leaks into "
             "what is reported",
             across);
}

/* What the header tells of the building, key by key. */
static kld_status add_built(const kld_suite *s, json_t *root, bool *ok, kld_err *err) {
    static const char *const keys[] = {"seed", "sources", "choice", "allocation"};
    json_t *built = NULL;
    if (s->built) TRY(kld_json_parse(&built, s->built, strlen(s->built), 8, err));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(built, keys[i]);
        kld_put(root, keys[i], v ? json_incref(v) : json_null(), ok);
    }
    json_decref(built);
    return KLD_OK;
}

static json_t *sizes(const kld_suite *s, const char *path, bool *ok) {
    char hex[KLD_SHA256_HEX];
    json_t *root = json_object(), *name = json_string(path);
    kld_put(root, "schema", kld_count(1), ok);
    kld_put(root, "suite", name ? name : json_string("?"), ok); /* not every path is UTF-8 */
    kld_put(root, "digest", json_string(kld_digest_hex(&s->digest, hex)), ok);
    kld_put(root, "tokenizer", json_string(kld_digest_hex(&s->tokenizer, hex)), ok);
    kld_put(root, "vocab", kld_count(s->vocab), ok);
    kld_put(root, "windows", kld_count(s->n_windows), ok);
    kld_put(root, "tokens", kld_count(s->tokens), ok);
    kld_put(root, "positions", kld_count(s->positions), ok);
    kld_put(root, "window", kld_count(s->window), ok);
    kld_put(root, "stride", kld_count(s->stride), ok);
    kld_put(root, "bos", json_string(s->bos), ok);
    return root;
}

kld_status kld_suite_describe(const kld_suite *s, const char *path, json_t **out, kld_err *err) {
    cell *c = NULL;
    size_t n = 0, repeats, across;
    often o;
    bool ok = true;
    json_t *root = NULL, *part;
    kld_status st;
    *out = NULL;
    TRY(make_cells(s, &c, &n, err));
    TRY_TO(done, count_scores(s, &o, err));
    TRY_TO(done, count_repeats(s, &repeats, &across, err));
    root = sizes(s, path, &ok);
    TRY_TO(done, add_built(s, root, &ok, err));
    kld_put(root, "partitions", partitions_of(c, n, &ok), &ok);
    kld_put(root, "cells", cells_of(c, n, &ok), &ok);
    part = json_object();
    kld_put(part, "ids", kld_count(o.ids), &ok);
    kld_put(part, "most", kld_count(o.most), &ok);
    kld_put(part, "mean", json_real(o.ids ? (double)s->positions / (double)o.ids : 0), &ok);
    kld_put(root, "scored", part, &ok);
    part = json_object();
    kld_put(part, "windows", kld_count(repeats), &ok);
    kld_put(part, "across_partitions", kld_count(across), &ok);
    kld_put(root, "repeated", part, &ok);
    part = json_array();
    about_clusters(part, c, n, &ok);
    about_windows(part, s, &o, repeats, across, &ok);
    kld_put(root, "warnings", part, &ok);
    st = whole(ok, root, out, err);
    root = NULL;
done:
    json_decref(root);
    kld_free(c);
    return st;
}
