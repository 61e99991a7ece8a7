#include "loaders/tok_bpe.h"

#include "kld/base/mem.h"

#include <string.h>

enum {
    SHORT_WORD = 48,       /* symbols; up to here a linear scan beats the heap */
    CACHE_MIN_TEXT = 4096, /* bytes of text from which a cache is made */
    CACHE_MAX_SLOTS = 1 << 16,
    CACHE_MAX_WORD = 64, /* bytes */
    CACHE_PROBES = 4
};

typedef struct kld_tok_cached {
    uint32_t hash; /* 0 when free */
    uint32_t key, n_key;
    uint32_t ids, n_ids;
} cached;

kld_status kld_tok_work_init(kld_tok_work *w, size_t n, kld_err *err) {
    *w = (kld_tok_work){0};
    if (n < CACHE_MIN_TEXT) return KLD_OK;
    size_t slots = 512;
    while (slots < CACHE_MAX_SLOTS && slots < n / 8) slots *= 2;
    TRY(NEW_ARRAY(&w->cache, slots, err));
    w->cache_mask = slots - 1;
    return KLD_OK;
}

void kld_tok_work_free(kld_tok_work *w) {
    kld_free(w->id);
    kld_free(w->rank);
    kld_free(w->next);
    kld_free(w->prev);
    kld_free(w->heap);
    kld_free(w->cache);
    kld_buf_free(&w->keys);
    kld_ids_free(&w->found);
    *w = (kld_tok_work){0};
}

static kld_status room(kld_tok_work *w, size_t n, kld_err *err) {
    if (n <= w->cap) return KLD_OK;
    size_t cap = w->cap ? w->cap : 64;
    while (cap < n) cap *= 2;
    TRY(kld_realloc((void **)&w->id, cap, sizeof *w->id, err));
    TRY(kld_realloc((void **)&w->rank, cap, sizeof *w->rank, err));
    TRY(kld_realloc((void **)&w->next, cap, sizeof *w->next, err));
    TRY(kld_realloc((void **)&w->prev, cap, sizeof *w->prev, err));
    w->cap = cap;
    return KLD_OK;
}

/* One symbol a byte into w->id.  A pending unknown is written when the next known byte, or an
 * unknown one that is not fused with it, arrives: the order that tokenizers use. */
static kld_status symbols(const kld_tok_bpe *b, kld_tok_work *w, const unsigned char *word,
                          size_t n, size_t *n_out, kld_err *err) {
    size_t k = 0;
    bool pending = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = b->vocab.byte_id[word[i]];
        if (id != KLD_TOK_NONE) {
            if (pending) w->id[k++] = b->unk;
            pending = false;
            w->id[k++] = id;
        } else if (b->has_unk) {
            if (b->unk == KLD_TOK_NONE)
                return kld_fail(err, KLD_E_INPUT,
                                "byte 0x%02x has no token and the unk_token is not in the "
                                "vocabulary",
                                word[i]);
            if (pending && !b->fuse_unk) w->id[k++] = b->unk;
            pending = true;
        }
    }
    if (pending) w->id[k++] = b->unk;
    *n_out = k;
    return KLD_OK;
}

static uint32_t rank_of(const kld_tok_bpe *b, uint32_t left, uint32_t right) {
    const kld_tok_pair *p = kld_tok_vocab_pair(&b->vocab, left, right);
    return p ? p->rank : KLD_TOK_NONE;
}

static size_t merge_short(const kld_tok_bpe *b, uint32_t *id, uint32_t *rank, size_t n) {
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[at]) at = i;
        }
        if (rank[at] == KLD_TOK_NONE) break;
        id[at] = kld_tok_vocab_pair(&b->vocab, id[at], id[at + 1])->id;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        memmove(rank + at, rank + at + 1, (n - at - 2) * sizeof *rank);
        n--;
        if (at > 0) rank[at - 1] = rank_of(b, id[at - 1], id[at]);
        if (at + 1 < n) rank[at] = rank_of(b, id[at], id[at + 1]);
    }
    return n;
}

/* Binary min-heap of rank << 32 | position: equal ranks come out leftmost first. */
static kld_status heap_push(kld_tok_work *w, size_t *n, uint64_t v, kld_err *err) {
    if (*n == w->heap_cap) {
        size_t cap = w->heap_cap ? w->heap_cap * 2 : 256;
        TRY(kld_realloc((void **)&w->heap, cap, sizeof *w->heap, err));
        w->heap_cap = cap;
    }
    size_t i = (*n)++;
    for (; i > 0 && w->heap[(i - 1) / 2] > v; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = v;
    return KLD_OK;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], v = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= v) break;
        heap[i] = heap[child];
    }
    heap[i] = v;
    return top;
}

/* Symbols form a list; rank[i] is that of symbol i with its successor, so a heap entry is
 * stale exactly when its rank differs (a dead symbol has none). */
static kld_status merge_long(const kld_tok_bpe *b, kld_tok_work *w, size_t *n_symbols,
                             kld_err *err) {
    size_t n = *n_symbols, n_heap = 0, k = 0;
    uint32_t end = (uint32_t)n;
    for (uint32_t i = 0; i < end; i++) {
        w->next[i] = i + 1;
        w->prev[i] = i - 1; /* symbol 0 wraps to UINT32_MAX */
        w->rank[i] = i + 1 < end ? rank_of(b, w->id[i], w->id[i + 1]) : KLD_TOK_NONE;
        if (w->rank[i] != KLD_TOK_NONE)
            TRY(heap_push(w, &n_heap, (uint64_t)w->rank[i] << 32 | i, err));
    }
    while (n_heap) {
        uint64_t top = heap_pop(w->heap, &n_heap);
        uint32_t at = (uint32_t)top;
        if (w->rank[at] != top >> 32) continue;
        uint32_t dead = w->next[at], after = w->next[dead], before = w->prev[at];
        w->id[at] = kld_tok_vocab_pair(&b->vocab, w->id[at], w->id[dead])->id;
        w->rank[dead] = KLD_TOK_NONE;
        w->next[at] = after;
        w->rank[at] = KLD_TOK_NONE;
        if (after < end) {
            w->prev[after] = at;
            w->rank[at] = rank_of(b, w->id[at], w->id[after]);
            if (w->rank[at] != KLD_TOK_NONE)
                TRY(heap_push(w, &n_heap, (uint64_t)w->rank[at] << 32 | at, err));
        }
        if (before < end) {
            w->rank[before] = rank_of(b, w->id[before], w->id[at]);
            if (w->rank[before] != KLD_TOK_NONE)
                TRY(heap_push(w, &n_heap, (uint64_t)w->rank[before] << 32 | before, err));
        }
    }
    for (uint32_t i = 0; i < end; i = w->next[i]) w->id[k++] = w->id[i];
    *n_symbols = k;
    return KLD_OK;
}

static kld_status append(kld_ids *out, const uint32_t *id, size_t n, kld_err *err) {
    for (size_t i = 0; i < n; i++) TRY(kld_ids_push(out, id[i], err));
    return KLD_OK;
}

static kld_status encode(const kld_tok_bpe *b, kld_tok_work *w, const char *word, size_t n,
                         kld_ids *out, kld_err *err) {
    if (b->ignore_merges) {
        uint32_t id = kld_tok_vocab_bytes(&b->vocab, word, n);
        if (id != KLD_TOK_NONE) return kld_ids_push(out, id, err);
    }
    if (n >= UINT32_MAX)
        return kld_fail(err, KLD_E_INPUT, "a stretch of %zu bytes without a boundary", n);
    TRY(room(w, n, err));
    size_t k = 0;
    TRY(symbols(b, w, (const unsigned char *)word, n, &k, err));
    if (k <= SHORT_WORD) k = merge_short(b, w->id, w->rank, k);
    else TRY(merge_long(b, w, &k, err));
    return append(out, w->id, k, err);
}

static uint32_t hash_word(const char *s, size_t n) {
    uint64_t h = n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, s, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    uint64_t v = 0;
    memcpy(&v, s, n);
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    return (uint32_t)h | 1; /* never 0 */
}

kld_status kld_tok_bpe_word(const kld_tok_bpe *b, kld_tok_work *w, const char *word, size_t n,
                            kld_ids *out, kld_err *err) {
    if (n == 1 && b->vocab.byte_id[(unsigned char)*word] != KLD_TOK_NONE)
        return kld_ids_push(out, b->vocab.byte_id[(unsigned char)*word], err);
    if (!w->cache || n > CACHE_MAX_WORD) return encode(b, w, word, n, out, err);
    uint32_t hash = hash_word(word, n);
    cached *slot = NULL;
    for (size_t i = 0; i < CACHE_PROBES; i++) {
        cached *c = &w->cache[((hash >> 1) + i) & w->cache_mask];
        if (!c->hash) {
            slot = c;
            break;
        }
        if (c->hash == hash && c->n_key == n && memcmp(w->keys.data + c->key, word, n) == 0)
            return append(out, w->found.v + c->ids, c->n_ids, err);
    }
    size_t before = out->n;
    TRY(encode(b, w, word, n, out, err));
    if (!slot) return KLD_OK;
    /* The entry is made last, so that a failure leaves none that is half written. */
    size_t key = w->keys.len, ids = w->found.n;
    TRY(kld_buf_add(&w->keys, word, n, err));
    TRY(append(&w->found, out->v + before, out->n - before, err));
    *slot = (cached){hash, (uint32_t)key, (uint32_t)n, (uint32_t)ids, (uint32_t)(out->n - before)};
    return KLD_OK;
}
