#include "loaders/tok_vocab.h"

#include "kld/base/mem.h"
#include "loaders/tok_unicode.h"

#include <string.h>

/* The alphabet: printable Latin-1 letters stand for themselves, the 68 other bytes follow
 * from U+0100 on in byte order (the GPT-2 encoder's table). */
static bool self_letter(uint32_t c) {
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

static int letter_byte(uint32_t cp) {
    if (cp < 0x100) return self_letter(cp) ? (int)cp : -1;
    if (cp < 0x100 + 33) return (int)(cp - 0x100);             /* 00..20 */
    if (cp < 0x100 + 67) return (int)(cp - 0x100 - 33 + 0x7f); /* 7f..a0 */
    return cp == 0x143 ? 0xad : -1;
}

/* Bytes of a written form into dst[n]; false if some character is outside the alphabet. */
static bool to_bytes(const char *written, size_t n, unsigned char *dst, size_t *len) {
    *len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += kld_utf8_get(written + i, &cp);
        int b = letter_byte(cp);
        if (b < 0) return false;
        dst[(*len)++] = (unsigned char)b;
    }
    return true;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static uint64_t hash_bytes(const unsigned char *s, size_t n, bool raw) {
    uint64_t h = n * 2 + raw;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = mix(h ^ w);
    }
    uint64_t w = 0;
    if (n) memcpy(&w, s, n);
    return mix(h ^ w);
}

static size_t table_size(size_t n) {
    size_t size = 64;
    while (size < n * 2) size *= 2;
    return size;
}

kld_status kld_tok_vocab_init(kld_tok_vocab *v, size_t cap, kld_err *err) {
    if (cap > KLD_TOK_MAX_ID)
        return kld_fail(err, KLD_E_INPUT, "%zu tokens; at most %d are accepted", cap,
                        KLD_TOK_MAX_ID);
    TRY(NEW_ARRAY(&v->entry, cap, err));
    TRY(NEW_ARRAY(&v->slot, table_size(cap), err));
    v->cap = cap;
    v->mask = table_size(cap) - 1;
    return KLD_OK;
}

void kld_tok_vocab_free(kld_tok_vocab *v) {
    kld_buf_free(&v->pool);
    kld_free(v->entry);
    kld_free(v->slot);
    kld_free(v->by_id);
    kld_free(v->pair);
    *v = (kld_tok_vocab){0};
}

/* Slot of the token, or the free slot where it belongs.  The table is at most half full. */
static uint32_t *lookup(const kld_tok_vocab *v, const unsigned char *s, size_t n, bool raw) {
    for (size_t i = (size_t)hash_bytes(s, n, raw);; i++) {
        uint32_t *slot = &v->slot[i & v->mask];
        if (!*slot) return slot;
        const kld_tok_entry *e = &v->entry[*slot - 1];
        if (e->len == n && e->raw == raw && (!n || memcmp(v->pool.data + e->off, s, n) == 0))
            return slot;
    }
}

static kld_status grow_ids(kld_tok_vocab *v, size_t size, kld_err *err) {
    if (size > v->id_cap) {
        size_t cap = table_size(size);
        TRY(kld_realloc((void **)&v->by_id, cap, sizeof *v->by_id, err));
        memset(v->by_id + v->id_cap, 0, (cap - v->id_cap) * sizeof *v->by_id);
        v->id_cap = cap;
    }
    v->size = size;
    return KLD_OK;
}

/* Write a token behind the end of the pool, without counting it in yet. */
static kld_status to_pool(kld_tok_vocab *v, const char *written, size_t n, unsigned char **dst,
                          size_t *len, bool *raw, kld_err *err) {
    TRY(kld_buf_reserve(&v->pool, n, err));
    *dst = v->pool.data + v->pool.len;
    *raw = !to_bytes(written, n, *dst, len);
    if (*raw) memcpy(*dst, written, *len = n);
    return KLD_OK;
}

kld_status kld_tok_vocab_add(kld_tok_vocab *v, const char *written, size_t n, uint64_t id,
                             bool model, kld_err *err) {
    if (id >= KLD_TOK_MAX_ID)
        return kld_fail(err, KLD_E_INPUT, "token '%.100s': id %llu; the largest accepted is %d",
                        written, (unsigned long long)id, KLD_TOK_MAX_ID - 1);
    if (n > KLD_TOK_MAX_WRITTEN)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "token '%.100s...' has %zu bytes; at most %d are accepted", written, n,
                        KLD_TOK_MAX_WRITTEN);
    if (v->n == v->cap) return kld_fail(err, KLD_E_INTERNAL, "more tokens than were announced");
    unsigned char *dst;
    size_t len;
    bool raw;
    TRY(to_pool(v, written, n, &dst, &len, &raw, err));
    uint32_t *slot = lookup(v, dst, len, raw);
    if (*slot) return kld_fail(err, KLD_E_INPUT, "token '%.100s' is there twice", written);
    if (id >= v->size) TRY(grow_ids(v, (size_t)id + 1, err));
    if (v->by_id[id])
        return kld_fail(err, KLD_E_INPUT, "token '%.100s': id %u is taken by another token",
                        written, (unsigned)id);
    v->entry[v->n] = (kld_tok_entry){.off = v->pool.len,
                                     .shown_off = v->pool.len,
                                     .len = (uint32_t)len,
                                     .shown_len = (uint32_t)len,
                                     .id = (uint32_t)id,
                                     .raw = raw,
                                     .model = model};
    v->pool.len += len;
    *slot = v->by_id[id] = (uint32_t)++v->n;
    return KLD_OK;
}

kld_status kld_tok_vocab_show(kld_tok_vocab *v, kld_tok_entry *e, const char *written, size_t n,
                              kld_err *err) {
    unsigned char *dst;
    size_t len;
    bool raw;
    TRY(to_pool(v, written, n, &dst, &len, &raw, err));
    e->shown_off = v->pool.len;
    e->shown_len = (uint32_t)len;
    v->pool.len += len;
    return KLD_OK;
}

kld_tok_entry *kld_tok_vocab_find(const kld_tok_vocab *v, const char *written, size_t n) {
    unsigned char bytes[KLD_TOK_MAX_WRITTEN];
    size_t len;
    if (n > sizeof bytes) return NULL;
    bool raw = !to_bytes(written, n, bytes, &len);
    uint32_t at =
        raw ? *lookup(v, (const unsigned char *)written, n, true) : *lookup(v, bytes, len, false);
    return at ? &v->entry[at - 1] : NULL;
}

uint32_t kld_tok_vocab_bytes(const kld_tok_vocab *v, const void *bytes, size_t n) {
    uint32_t at = *lookup(v, bytes, n, false);
    return at && v->entry[at - 1].model ? v->entry[at - 1].id : KLD_TOK_NONE;
}

const kld_tok_entry *kld_tok_vocab_by_id(const kld_tok_vocab *v, uint32_t id) {
    return id < v->size && v->by_id[id] ? &v->entry[v->by_id[id] - 1] : NULL;
}

kld_status kld_tok_vocab_merges(kld_tok_vocab *v, size_t n, kld_err *err) {
    if (n > 2 * (size_t)KLD_TOK_MAX_ID)
        return kld_fail(err, KLD_E_INPUT, "%zu merges; at most %d are accepted", n,
                        2 * KLD_TOK_MAX_ID);
    size_t size = table_size(n);
    TRY(NEW_ARRAY(&v->pair, size, err));
    for (size_t i = 0; i < size; i++) v->pair[i].key = UINT64_MAX;
    v->pair_mask = size - 1;
    return KLD_OK;
}

static kld_tok_pair *pair_slot(const kld_tok_vocab *v, uint64_t key) {
    for (size_t i = (size_t)mix(key);; i++) {
        kld_tok_pair *p = &v->pair[i & v->pair_mask];
        if (p->key == key || p->key == UINT64_MAX) return p;
    }
}

const kld_tok_pair *kld_tok_vocab_pair(const kld_tok_vocab *v, uint32_t left, uint32_t right) {
    const kld_tok_pair *p = pair_slot(v, (uint64_t)left << 32 | right);
    return p->key == UINT64_MAX ? NULL : p;
}

static kld_status side(const kld_tok_vocab *v, const char *s, size_t n, uint32_t rank,
                       const kld_tok_entry **out, kld_err *err) {
    *out = n ? kld_tok_vocab_find(v, s, n) : NULL;
    if (*out && (*out)->model) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "merge %u: token '%.*s' is not in the vocabulary", rank,
                    (int)(n < 100 ? n : 100), s);
}

kld_status kld_tok_vocab_merge(kld_tok_vocab *v, const char *left, size_t n_left, const char *right,
                               size_t n_right, uint32_t rank, kld_err *err) {
    const kld_tok_entry *a, *b;
    TRY(side(v, left, n_left, rank, &a, err));
    TRY(side(v, right, n_right, rank, &b, err));
    if (a->raw || b->raw)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "merge %u: '%.*s' and '%.*s' are not both written in the byte alphabet",
                        rank, (int)(n_left < 100 ? n_left : 100), left,
                        (int)(n_right < 100 ? n_right : 100), right);
    /* Beyond the end of the pool is scratch: nothing is added any more. */
    size_t n = (size_t)a->len + b->len;
    TRY(kld_buf_reserve(&v->pool, n, err));
    unsigned char *both = v->pool.data + v->pool.len;
    memcpy(both, v->pool.data + a->off, a->len);
    memcpy(both + a->len, v->pool.data + b->off, b->len);
    uint32_t at = *lookup(v, both, n, false);
    if (!at || !v->entry[at - 1].model)
        return kld_fail(err, KLD_E_INPUT, "merge %u: '%.*s%.*s' is not in the vocabulary", rank,
                        (int)(n_left < 100 ? n_left : 100), left,
                        (int)(n_right < 100 ? n_right : 100), right);
    kld_tok_pair *p = pair_slot(v, (uint64_t)a->id << 32 | b->id);
    *p = (kld_tok_pair){(uint64_t)a->id << 32 | b->id, rank, v->entry[at - 1].id};
    return KLD_OK;
}

void kld_tok_vocab_done(kld_tok_vocab *v) {
    for (unsigned b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        v->byte_id[b] = kld_tok_vocab_bytes(v, &byte, 1);
    }
}
