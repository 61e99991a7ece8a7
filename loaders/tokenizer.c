#include "loaders/tokenizer.h"

#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "loaders/tok_impl.h"
#include "loaders/tok_json.h"
#include "loaders/tok_nfc.h"
#include "loaders/tok_unicode.h"

#include <string.h>

/* The largest tokenizer.json in use has 35 MB; its deepest nesting is 6. */
enum { MAX_FILE = 256 << 20, MAX_DEPTH = 32 };

kld_status kld_ids_push(kld_ids *ids, uint32_t id, kld_err *err) {
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        TRY(kld_realloc((void **)&ids->v, cap, sizeof *ids->v, err));
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return KLD_OK;
}

void kld_ids_free(kld_ids *ids) {
    kld_free(ids->v);
    *ids = (kld_ids){0};
}

static kld_status add_text(kld_buf *b, const void *s, size_t n, kld_err *err) {
    TRY(kld_buf_varint(b, n, err));
    return kld_buf_add(b, s, n, err);
}

static kld_status add_tokens(kld_buf *b, const kld_tokenizer *t, kld_err *err) {
    const kld_tok_vocab *v = &t->bpe.vocab;
    for (uint32_t id = 0; id < v->size; id++) {
        const kld_tok_entry *e = kld_tok_vocab_by_id(v, id);
        if (!e) continue;
        TRY(kld_buf_varint(b, id, err));
        TRY(kld_buf_u8(b, (uint8_t)(e->raw | e->model << 1), err));
        TRY(add_text(b, v->pool.data + e->off, e->len, err));
    }
    return KLD_OK;
}

/* By rank, without the ranks themselves: a repeated pair leaves a gap that means nothing. */
static kld_status add_merges(kld_buf *b, const kld_tok_vocab *v, kld_err *err) {
    size_t n = 0;
    const kld_tok_pair **by_rank;
    for (size_t i = 0; i <= v->pair_mask; i++) {
        if (v->pair[i].key != UINT64_MAX && v->pair[i].rank >= n) n = (size_t)v->pair[i].rank + 1;
    }
    TRY(NEW_ARRAY(&by_rank, n, err));
    for (size_t i = 0; i <= v->pair_mask; i++) {
        if (v->pair[i].key != UINT64_MAX) by_rank[v->pair[i].rank] = &v->pair[i];
    }
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n && st == KLD_OK; i++) {
        if (by_rank[i]) st = kld_buf_u64(b, by_rank[i]->key, err);
    }
    kld_free(by_rank);
    return st;
}

static kld_status add_added(kld_buf *b, const kld_tokenizer *t, kld_err *err) {
    const kld_tok_added_set *sets[] = {&t->plain, &t->normalized};
    for (size_t s = 0; s < 2; s++) {
        TRY(kld_buf_varint(b, sets[s]->n, err));
        for (size_t i = 0; i < sets[s]->n; i++) {
            const kld_tok_added *a = sets[s]->v[i];
            TRY(kld_buf_varint(b, a->id, err));
            TRY(kld_buf_u8(b, (uint8_t)(a->single_word | a->lstrip << 1 | a->rstrip << 2), err));
            TRY(add_text(b, a->text, a->n, err));
        }
    }
    return KLD_OK;
}

static kld_status add_pipeline(kld_buf *b, const kld_tokenizer *t, kld_err *err) {
    const kld_tok_split *s = &t->split;
    TRY(kld_buf_u8(b, t->nfc, err));
    TRY(kld_buf_varint(b, s->n, err));
    for (size_t i = 0; i < s->n; i++) {
        const kld_tok_stage *g = &s->stage[i];
        TRY(kld_buf_u8(b, (uint8_t)(g->literal | g->invert << 1 | (unsigned)g->behavior << 2),
                       err));
        TRY(add_text(b, g->pattern, g->n_pattern, err));
    }
    return kld_buf_u8(b, (uint8_t)(s->prefix_space ? s->prefix_at + 1 : 0), err);
}

/* The unknown token decides ids only where a byte has no token of its own; the 13 bytes that
 * UTF-8 never uses do not count. */
static kld_status add_unknown(kld_buf *b, const kld_tok_bpe *bpe, kld_err *err) {
    bool all = true;
    for (unsigned c = 0; c < 256; c++) {
        bool never = c == 0xc0 || c == 0xc1 || c > 0xf4;
        all &= never || bpe->vocab.byte_id[c] != KLD_TOK_NONE;
    }
    if (all || !bpe->has_unk) return kld_buf_u8(b, 0, err);
    TRY(kld_buf_u8(b, (uint8_t)(1 | bpe->fuse_unk << 1), err));
    return kld_buf_u32(b, bpe->unk, err);
}

static kld_status digest(kld_tokenizer *t, kld_err *err) {
    kld_buf b = {0};
    kld_status st;
    TRY_TO(out, kld_buf_adds(&b, "kld byte-level bpe 1\n", err));
    TRY_TO(out, kld_buf_u8(&b, t->bpe.ignore_merges, err));
    TRY_TO(out, add_unknown(&b, &t->bpe, err));
    TRY_TO(out, kld_buf_varint(&b, t->bpe.vocab.n, err));
    TRY_TO(out, add_tokens(&b, t, err));
    TRY_TO(out, add_added(&b, t, err));
    TRY_TO(out, add_pipeline(&b, t, err));
    TRY_TO(out, add_merges(&b, &t->bpe.vocab, err));
    TRY_TO(out, kld_sha256_of(b.data, b.len, &t->digest, err));
out:
    kld_buf_free(&b);
    return st;
}

static kld_status build(kld_tokenizer **out, const json_t *root, kld_err *err) {
    kld_tokenizer *t;
    TRY(kld_calloc((void **)&t, 1, sizeof *t, err));
    kld_status st = kld_tok_json_read(t, root, err);
    if (st == KLD_OK) st = digest(t, err);
    if (st != KLD_OK) {
        kld_tokenizer_free(t);
        return st;
    }
    *out = t;
    return KLD_OK;
}

kld_status kld_tokenizer_parse(kld_tokenizer **out, const char *name, const void *json, size_t n,
                               kld_err *err) {
    json_t *root;
    *out = NULL;
    kld_status st = kld_json_parse(&root, json, n, MAX_DEPTH, err);
    if (st == KLD_OK) st = build(out, root, err);
    json_decref(root);
    return kld_where(err, st, "%s", name);
}

static kld_status read_config(kld_tokenizer *t, const char *dir, kld_err *err) {
    char *path;
    json_t *root = NULL;
    TRY(kld_path_join(&path, dir, "tokenizer_config.json", err));
    kld_status st = KLD_OK;
    if (kld_path_exists(path)) {
        st = kld_json_load(&root, path, MAX_FILE, err);
        if (st == KLD_OK) st = kld_where(err, kld_tok_json_config(t, root, err), "%s", path);
    }
    json_decref(root);
    kld_free(path);
    return st;
}

kld_status kld_tokenizer_open(kld_tokenizer **out, const char *path, kld_err *err) {
    kld_buf text = {.max = MAX_FILE};
    char *joined = NULL;
    kld_status st = KLD_OK;
    *out = NULL;
    bool dir = kld_path_is_dir(path);
    if (dir) TRY_TO(out, kld_path_join(&joined, path, "tokenizer.json", err));
    const char *file = dir ? joined : path;
    TRY_TO(out, kld_file_slurp(file, MAX_FILE, &text, err));
    TRY_TO(out, kld_tokenizer_parse(out, file, text.len ? (void *)text.data : (void *)"", text.len,
                                    err));
    if (dir) TRY_TO(out, read_config(*out, path, err));
out:
    if (st != KLD_OK) {
        kld_tokenizer_free(*out);
        *out = NULL;
    }
    kld_buf_free(&text);
    kld_free(joined);
    return st;
}

void kld_tokenizer_free(kld_tokenizer *t) {
    if (!t) return;
    kld_tok_added_free(&t->plain);
    kld_tok_added_free(&t->normalized);
    for (size_t i = 0; i < t->n_added; i++) kld_free(t->added[i].text);
    kld_free(t->added);
    kld_tok_split_free(&t->split);
    kld_tok_vocab_free(&t->bpe.vocab);
    kld_free(t);
}

/* One encoding on its way: raw text, stretches between added tokens, normalized stretches,
 * pieces of these, ids. */
typedef struct job {
    const kld_tokenizer *t;
    kld_tok_matcher matcher;
    kld_tok_work work;
    kld_buf normal, prefixed;
    kld_ids *out;
} job;

static kld_status on_piece(void *arg, const char *s, size_t n, kld_err *err) {
    job *j = arg;
    return kld_tok_bpe_word(&j->t->bpe, &j->work, s, n, j->out, err);
}

static kld_status on_normalized(void *arg, const kld_tok_added *token, const char *s, size_t n,
                                kld_err *err) {
    job *j = arg;
    if (token) return kld_ids_push(j->out, token->id, err);
    return kld_tok_split_run(&j->t->split, &j->matcher, &j->prefixed, s, n, on_piece, j, err);
}

static kld_status on_raw(void *arg, const kld_tok_added *token, const char *s, size_t n,
                         kld_err *err) {
    job *j = arg;
    if (token) return kld_ids_push(j->out, token->id, err);
    if (j->t->nfc) {
        kld_buf_clear(&j->normal);
        TRY(kld_tok_nfc(s, n, &j->normal, err));
        s = (const char *)j->normal.data;
        n = j->normal.len;
    }
    return kld_tok_added_find(&j->t->normalized, &j->matcher, s, n, on_normalized, j, err);
}

kld_status kld_tokenizer_encode(const kld_tokenizer *t, const char *text, size_t n, kld_ids *out,
                                kld_err *err) {
    job j = {.t = t, .out = out};
    size_t before = out->n, bad;
    if (!kld_utf8_valid(text, n, &bad))
        return kld_fail(err, KLD_E_INPUT, "text is not valid UTF-8 at byte %zu", bad);
    kld_status st = kld_tok_matcher_init(&j.matcher, n, err);
    if (st == KLD_OK) st = kld_tok_work_init(&j.work, n, err);
    if (st == KLD_OK) st = kld_tok_added_find(&t->plain, &j.matcher, text, n, on_raw, &j, err);
    if (st != KLD_OK) out->n = before;
    kld_tok_matcher_free(&j.matcher);
    kld_tok_work_free(&j.work);
    kld_buf_free(&j.normal);
    kld_buf_free(&j.prefixed);
    return st;
}

kld_status kld_tokenizer_decode(const kld_tokenizer *t, const uint32_t *ids, size_t n,
                                bool skip_special, kld_buf *out, kld_err *err) {
    if (!t->byte_decoder)
        return kld_fail(err, KLD_E_UNSUPPORTED, "the tokenizer names no ByteLevel decoder");
    for (size_t i = 0; i < n; i++) {
        const kld_tok_entry *e = kld_tok_vocab_by_id(&t->bpe.vocab, ids[i]);
        if (!e) return kld_fail(err, KLD_E_INPUT, "token %zu: no such id: %u", i, ids[i]);
        if (skip_special && e->special) continue;
        TRY(kld_buf_add(out, t->bpe.vocab.pool.data + e->shown_off, e->shown_len, err));
    }
    return KLD_OK;
}

size_t kld_tokenizer_size(const kld_tokenizer *t) { return t->bpe.vocab.size; }

bool kld_tokenizer_id(const kld_tokenizer *t, const char *token, uint32_t *id) {
    size_t n = strlen(token), bad;
    if (!kld_utf8_valid(token, n, &bad)) return false;
    const kld_tok_entry *e = kld_tok_vocab_find(&t->bpe.vocab, token, n);
    if (e) *id = e->id;
    return e != NULL;
}

bool kld_tokenizer_bos(const kld_tokenizer *t, uint32_t *id) {
    if (t->has_bos) *id = t->bos;
    return t->has_bos;
}

kld_digest kld_tokenizer_digest(const kld_tokenizer *t) { return t->digest; }
