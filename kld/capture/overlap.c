#include "kld/capture/overlap.h"

#include "datasets/text.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_BYTES = 16 << 20, PER_SLOT = 8 /* bits of the filter */ };
#define EMPTY UINT32_MAX
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

typedef struct piece {
    const uint32_t *ids;
    size_t n, group;
} piece;

/* An n-gram: where it occurs first. */
typedef struct slot {
    uint32_t piece, at;
} slot;

/* Smallest hash of every bin; EMPTY in an empty one. */
typedef struct signature {
    uint32_t min[KLD_BINS];
} signature;

typedef struct entry {
    uint32_t min, group;
} entry;

struct kld_overlap {
    size_t groups;
    piece *piece;
    size_t n_pieces, cap_pieces;
    slot *slot; /* [mask + 1], open addressing */
    size_t mask;
    unsigned char *found;  /* [mask + 1] */
    unsigned char *filter; /* PER_SLOT bits a slot, by hash: most that is looked up is not there */
    signature *sign;       /* [groups] */
    entry *entry;          /* of every bin, by min; bins from first[bin] to first[bin + 1] */
    size_t first[KLD_BINS + 1];
    uint32_t *same; /* [groups] bins in which a document agrees, while it is looked at */
    double *best;   /* [groups] */
    const char **where;
    uint64_t documents, tokens;
    bool sealed;
    kld_arena arena;
};

/* ---- hashes --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h) { /* the finalizer of SplitMix64 */
    h = (h ^ (h >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94D049BB133111EB);
    return h ^ (h >> 31);
}

/* Sum of (id + 1) FACTOR^k over the last k = width - 1 .. 0 ids, modulo 2^64. */
typedef struct rolling {
    uint64_t h, out; /* out = FACTOR^width */
    size_t width;
} rolling;

static rolling roll_begin(size_t width) {
    rolling r = {.out = 1, .width = width};
    for (size_t i = 0; i < width; i++) r.out *= FACTOR;
    return r;
}

/* With ids[i]; true when a whole n-gram ends there, and *hash is its hash. */
static bool roll(rolling *r, const uint32_t *ids, size_t i, uint64_t *hash) {
    r->h = r->h * FACTOR + ids[i] + 1;
    if (i >= r->width) r->h -= r->out * (ids[i - r->width] + UINT64_C(1));
    *hash = mix(r->h);
    return i + 1 >= r->width;
}

static bool varied(const uint32_t *ids) {
    size_t n = 0;
    for (size_t i = 0; i < KLD_GRAM && n < KLD_VARIED; i++) {
        size_t k = 0;
        while (k < i && ids[k] != ids[i]) k++;
        n += k == i;
    }
    return n == KLD_VARIED;
}

static void sign(const uint32_t *ids, size_t n, signature *s) {
    rolling r = roll_begin(KLD_SHINGLE);
    uint64_t h;
    for (size_t i = 0; i < n; i++)
        if (roll(&r, ids, i, &h)) {
            uint32_t *min = &s->min[h >> 57], v = (uint32_t)h;
            if (v < *min) *min = v;
        }
}

/* ---- the index ------------------------------------------------------------------------ */

kld_status kld_overlap_open(kld_overlap **out, size_t groups, kld_err *err) {
    TRY(NEW_ARRAY(out, 1, err));
    kld_overlap *o = *out;
    o->groups = groups;
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&o->sign, groups, err));
    TRY_TO(done, NEW_ARRAY(&o->same, groups, err));
    TRY_TO(done, NEW_ARRAY(&o->best, groups, err));
    TRY_TO(done, kld_calloc((void **)&o->where, groups, sizeof *o->where, err));
    for (size_t g = 0; g < groups; g++) memset(o->sign[g].min, 0xFF, sizeof o->sign[g].min);
done:
    if (st != KLD_OK) {
        kld_overlap_close(o);
        *out = NULL;
    }
    return st;
}

void kld_overlap_close(kld_overlap *o) {
    if (!o) return;
    kld_free(o->piece);
    kld_free(o->slot);
    kld_free(o->found);
    kld_free(o->filter);
    kld_free(o->sign);
    kld_free(o->entry);
    kld_free(o->same);
    kld_free(o->best);
    kld_free(o->where);
    kld_arena_free(&o->arena);
    kld_free(o);
}

kld_status kld_overlap_add(kld_overlap *o, size_t group, const uint32_t *ids, size_t n,
                           kld_err *err) {
    if (o->n_pieces >= EMPTY || n >= EMPTY)
        return kld_fail(err, KLD_E_INPUT, "too much text to look for: %zu pieces, one of %zu ids",
                        o->n_pieces, n);
    if (o->n_pieces == o->cap_pieces) {
        size_t cap = num_max(256, 2 * o->cap_pieces);
        TRY(kld_realloc((void **)&o->piece, cap, sizeof *o->piece, err));
        o->cap_pieces = cap;
    }
    o->piece[o->n_pieces++] = (piece){.ids = ids, .n = n, .group = group};
    sign(ids, n, &o->sign[group]);
    return KLD_OK;
}

/* Slot of the n-gram at ids, or the empty one where it would be. */
static size_t find(const kld_overlap *o, const uint32_t *ids, uint64_t hash) {
    for (size_t i = (size_t)hash & o->mask;; i = (i + 1) & o->mask) {
        const slot *s = &o->slot[i];
        if (s->piece == EMPTY) return i;
        if (memcmp(o->piece[s->piece].ids + s->at, ids, KLD_GRAM * sizeof *ids) == 0) return i;
    }
}

static size_t filter_bit(const kld_overlap *o, uint64_t hash) {
    return (size_t)(hash >> 8) & (PER_SLOT * (o->mask + 1) - 1);
}

static void index_grams(kld_overlap *o) {
    uint64_t h;
    for (size_t p = 0; p < o->n_pieces; p++) {
        const uint32_t *ids = o->piece[p].ids;
        rolling r = roll_begin(KLD_GRAM);
        for (size_t i = 0; i < o->piece[p].n; i++) {
            size_t at = i + 1 - KLD_GRAM;
            if (!roll(&r, ids, i, &h) || !varied(ids + at)) continue;
            size_t k = find(o, ids + at, h), bit = filter_bit(o, h);
            if (o->slot[k].piece == EMPTY) o->slot[k] = (slot){(uint32_t)p, (uint32_t)at};
            o->filter[bit / 8] |= (unsigned char)(1u << bit % 8);
        }
    }
}

static int by_min(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->min != y->min) return x->min < y->min ? -1 : 1;
    return (x->group > y->group) - (x->group < y->group);
}

static void index_signatures(kld_overlap *o) {
    size_t n = 0;
    for (size_t b = 0; b < KLD_BINS; b++) {
        o->first[b] = n;
        for (size_t g = 0; g < o->groups; g++)
            if (o->sign[g].min[b] != EMPTY) o->entry[n++] = (entry){o->sign[g].min[b], (uint32_t)g};
        if (n > o->first[b]) qsort(o->entry + o->first[b], n - o->first[b], sizeof(entry), by_min);
    }
    o->first[KLD_BINS] = n;
}

static kld_status seal(kld_overlap *o, kld_err *err) {
    size_t grams = 0, slots = 64, entries;
    if (o->sealed) return KLD_OK;
    for (size_t p = 0; p < o->n_pieces; p++)
        grams += o->piece[p].n >= KLD_GRAM ? o->piece[p].n - KLD_GRAM + 1 : 0;
    while (slots < grams + grams / 2) slots *= 2;
    if (!num_mul_size(o->groups, KLD_BINS, &entries)) entries = SIZE_MAX;
    TRY(NEW_ARRAY(&o->slot, slots, err));
    TRY(NEW_ARRAY(&o->found, slots, err));
    TRY(NEW_ARRAY(&o->filter, slots * PER_SLOT / 8, err));
    TRY(NEW_ARRAY(&o->entry, entries, err));
    o->mask = slots - 1;
    memset(o->slot, 0xFF, slots * sizeof *o->slot);
    index_grams(o);
    index_signatures(o);
    o->sealed = true;
    return KLD_OK;
}

/* ---- looking -------------------------------------------------------------------------- */

/* Marks are only ever set, so it does not matter who sets them first. */
static void look(kld_overlap *o, const uint32_t *ids, size_t n) {
    rolling r = roll_begin(KLD_GRAM);
    uint64_t h;
    for (size_t i = 0; i < n; i++) {
        if (!roll(&r, ids, i, &h)) continue;
        size_t bit = filter_bit(o, h);
        if (!(o->filter[bit / 8] >> bit % 8 & 1)) continue;
        size_t k = find(o, ids + (i + 1 - KLD_GRAM), h);
        if (o->slot[k].piece == EMPTY) continue;
#pragma omp atomic write
        o->found[k] = 1;
    }
}

static kld_status keep_best(kld_overlap *o, size_t g, double similarity, const char *where,
                            kld_err *err) {
    char *copy;
    if (similarity <= o->best[g]) return KLD_OK;
    TRY(kld_arena_strndup(&o->arena, &copy, where, strlen(where), err));
    o->best[g] = similarity;
    o->where[g] = copy;
    return KLD_OK;
}

/* Which groups is this document like? */
static kld_status match(kld_overlap *o, const signature *s, const char *where, kld_err *err) {
    memset(o->same, 0, o->groups * sizeof *o->same);
    bool any = false;
    for (size_t b = 0; b < KLD_BINS; b++) {
        size_t lo = o->first[b], end = o->first[b + 1], hi = end;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (o->entry[mid].min < s->min[b]) lo = mid + 1;
            else hi = mid;
        }
        for (; lo < end && o->entry[lo].min == s->min[b]; lo++) {
            o->same[o->entry[lo].group]++;
            any = true;
        }
    }
    for (size_t g = 0; any && g < o->groups; g++) {
        size_t used = 0;
        if (!o->same[g]) continue;
        for (size_t b = 0; b < KLD_BINS; b++)
            used += s->min[b] != EMPTY || o->sign[g].min[b] != EMPTY;
        TRY(keep_best(o, g, (double)o->same[g] / (double)used, where, err));
    }
    return KLD_OK;
}

typedef struct job {
    signature sign;
    size_t tokens;
    kld_status st;
    kld_err err;
} job;

static kld_status look_in(kld_overlap *o, const kld_document *d, const kld_tokenizer *t, job *j,
                          kld_err *err) {
    kld_ids ids = {0};
    const uint32_t *v = d->ids;
    kld_status st = KLD_OK;
    j->tokens = d->n_ids;
    if (d->text && !t)
        return kld_fail(err, KLD_E_INPUT, "'%s' is text: --tokenizer is needed to make ids of it",
                        d->cluster);
    if (d->text) {
        st = kld_where(err, kld_tokenizer_encode(t, d->text, d->bytes, &ids, err), "'%s'",
                       d->cluster);
        v = ids.v;
        j->tokens = ids.n;
    }
    if (st == KLD_OK) {
        look(o, v, j->tokens);
        sign(v, j->tokens, &j->sign);
    }
    kld_ids_free(&ids);
    return st;
}

static kld_status look_in_all(kld_overlap *o, const kld_documents *docs, const kld_tokenizer *t,
                              kld_err *err) {
    job *jobs;
    kld_status st = KLD_OK;
    TRY(NEW_ARRAY(&jobs, docs->n, err));
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < docs->n; i++) {
        memset(jobs[i].sign.min, 0xFF, sizeof jobs[i].sign.min);
        jobs[i].st = look_in(o, &docs->doc[i], t, &jobs[i], &jobs[i].err);
    }
    for (size_t i = 0; i < docs->n && st == KLD_OK; i++) {
        st = jobs[i].st;
        if (st != KLD_OK && err) *err = jobs[i].err;
        if (st == KLD_OK) st = match(o, &jobs[i].sign, docs->doc[i].cluster, err);
        o->documents++;
        o->tokens += jobs[i].tokens;
    }
    kld_free(jobs);
    return st;
}

static kld_status look_in_lines(kld_overlap *o, const char *path, const kld_tokenizer *t,
                                kld_err *err) {
    kld_jsonl r;
    kld_status st = KLD_OK;
    TRY(kld_jsonl_open(&r, path, err));
    kld_progress_begin("scan", r.file.size, 1 << 20, "MiB");
    for (bool more = true; more && st == KLD_OK;) {
        kld_documents docs = {0};
        st = kld_stop_check(err);
        if (st == KLD_OK) st = kld_jsonl_next(&r, BATCH_BYTES, &docs, err);
        more = docs.n > 0;
        if (st == KLD_OK) st = kld_where(err, look_in_all(o, &docs, t, err), "%s", path);
        kld_progress_set(r.at);
        kld_documents_free(&docs);
    }
    kld_progress_end();
    kld_jsonl_close(&r);
    return st;
}

kld_status kld_overlap_file(kld_overlap *o, const char *path, const kld_tokenizer *tokenizer,
                            kld_err *err) {
    kld_documents docs = {0};
    TRY(seal(o, err));
    if (kld_path_ends_with(path, ".jsonl")) return look_in_lines(o, path, tokenizer, err);
    kld_status st = kld_text_read(&docs, path, err);
    if (st == KLD_OK) st = kld_where(err, look_in_all(o, &docs, tokenizer, err), "%s", path);
    kld_documents_free(&docs);
    return st;
}

/* ---- results -------------------------------------------------------------------------- */

double kld_overlap_share(const kld_overlap_group *g) {
    return g->grams ? (double)g->found / (double)g->grams : 0;
}

void kld_overlap_result(const kld_overlap *o, kld_overlap_group *out, kld_overlap_group *total) {
    uint64_t h;
    *total = (kld_overlap_group){.similar = ""};
    for (size_t g = 0; g < o->groups; g++)
        out[g] = (kld_overlap_group){.similarity = o->best[g],
                                     .similar = o->where[g] ? o->where[g] : ""};
    for (size_t p = 0; p < o->n_pieces && o->sealed; p++) {
        const uint32_t *ids = o->piece[p].ids;
        rolling r = roll_begin(KLD_GRAM);
        kld_overlap_group *g = &out[o->piece[p].group];
        for (size_t i = 0; i < o->piece[p].n; i++) {
            if (!roll(&r, ids, i, &h) || !varied(ids + (i + 1 - KLD_GRAM))) continue;
            g->grams++;
            g->found += o->found[find(o, ids + (i + 1 - KLD_GRAM), h)];
        }
    }
    for (size_t g = 0; g < o->groups; g++) {
        total->grams += out[g].grams;
        total->found += out[g].found;
    }
}

void kld_overlap_read(const kld_overlap *o, uint64_t *documents, uint64_t *tokens) {
    *documents = o->documents;
    *tokens = o->tokens;
}
