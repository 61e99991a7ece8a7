#include "loaders/tok_model.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "loaders/tok_json.h"
#include "loaders/tok_nfc.h"

#include <string.h>

static bool null_or_empty(const json_t *v) {
    return !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
}

/* A flag that may be absent or null, and is then false. */
static kld_status flag(const json_t *obj, const char *key, bool *out, kld_err *err) {
    const json_t *v = json_object_get(obj, key);
    *out = false;
    return !v || json_is_null(v) ? KLD_OK : kld_json_bool(obj, key, out, err);
}

static kld_status options(kld_tok_bpe *b, const json_t *model, kld_err *err) {
    const json_t *type = json_object_get(model, "type");
    const json_t *dropout = json_object_get(model, "dropout");
    bool fallback;
    TRY(kld_tok_json_keys(model,
                          "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|"
                          "fuse_unk|byte_fallback|ignore_merges|vocab|merges",
                          err));
    /* Files from before 2021 have no type; what they hold is told by its keys. */
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return kld_fail(err, KLD_E_UNSUPPORTED, "type '%s' is not implemented; BPE is",
                        json_is_string(type) ? json_string_value(type) : kld_json_kind(type));
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return kld_fail(err, KLD_E_UNSUPPORTED, "'dropout' other than null is not implemented");
    if (!null_or_empty(json_object_get(model, "continuing_subword_prefix")))
        return kld_fail(err, KLD_E_UNSUPPORTED, "'continuing_subword_prefix' is not implemented");
    if (!null_or_empty(json_object_get(model, "end_of_word_suffix")))
        return kld_fail(err, KLD_E_UNSUPPORTED, "'end_of_word_suffix' is not implemented");
    TRY(flag(model, "byte_fallback", &fallback, err));
    if (fallback) return kld_fail(err, KLD_E_UNSUPPORTED, "'byte_fallback' is not implemented");
    TRY(flag(model, "ignore_merges", &b->ignore_merges, err));
    return flag(model, "fuse_unk", &b->fuse_unk, err);
}

static kld_status read_vocab(kld_tok_bpe *b, json_t *vocab, kld_err *err) {
    const char *key;
    json_t *id;
    json_object_foreach(vocab, key, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return kld_fail(err, KLD_E_INPUT, "vocab: token '%.100s': the id is not a whole number",
                            key);
        TRY(kld_where(err,
                      kld_tok_vocab_add(&b->vocab, key, strlen(key),
                                        (uint64_t)json_integer_value(id), true, err),
                      "vocab"));
    }
    return KLD_OK;
}

static kld_status read_unk(kld_tok_bpe *b, const json_t *model, kld_err *err) {
    const json_t *unk = json_object_get(model, "unk_token");
    b->unk = KLD_TOK_NONE;
    if (!unk || json_is_null(unk)) return KLD_OK;
    if (!json_is_string(unk))
        return kld_fail(err, KLD_E_INPUT, "'unk_token': expected a string or null, found %s",
                        kld_json_kind(unk));
    const kld_tok_entry *e =
        kld_tok_vocab_find(&b->vocab, json_string_value(unk), json_string_length(unk));
    b->has_unk = true;
    if (e && e->model) b->unk = e->id;
    return KLD_OK;
}

static kld_status read_merge(kld_tok_bpe *b, const json_t *m, uint32_t rank, kld_err *err) {
    if (json_is_string(m)) {
        const char *s = json_string_value(m), *gap = strchr(s, ' ');
        if (!gap || strchr(gap + 1, ' '))
            return kld_fail(err, KLD_E_INPUT, "merge %u: '%.200s' is not two tokens and a space",
                            rank, s);
        return kld_tok_vocab_merge(&b->vocab, s, (size_t)(gap - s), gap + 1, strlen(gap + 1), rank,
                                   err);
    }
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right))
        return kld_fail(err, KLD_E_INPUT, "merge %u is not a pair of strings", rank);
    return kld_tok_vocab_merge(&b->vocab, json_string_value(left), json_string_length(left),
                               json_string_value(right), json_string_length(right), rank, err);
}

static kld_status read_merges(kld_tok_bpe *b, const json_t *merges, kld_err *err) {
    size_t n = json_array_size(merges);
    uint32_t rank = 0;
    TRY(kld_tok_vocab_merges(&b->vocab, n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_typeof(m) != json_typeof(json_array_get(merges, 0)))
            return kld_fail(err, KLD_E_INPUT, "merge %zu is written in another way than the first",
                            i);
        /* Text files of merges begin with such a line, and some were copied with it. */
        if (json_is_string(m) && strncmp(json_string_value(m), "#version", 8) == 0) continue;
        TRY(read_merge(b, m, rank++, err));
    }
    return KLD_OK;
}

/* The text that is looked for: the content, or its normalized form. */
static kld_status search_text(kld_tok_added *a, bool nfc, const char *content, size_t n,
                              kld_err *err) {
    kld_buf b = {0};
    kld_status st =
        nfc && a->normalized ? kld_tok_nfc(content, n, &b, err) : kld_buf_add(&b, content, n, err);
    if (st == KLD_OK) st = kld_strndup(&a->text, (const char *)b.data, b.len, err);
    a->n = b.len;
    kld_buf_free(&b);
    return st;
}

/* Numbering of the added tokens that model.vocab does not have. */
typedef struct numbering {
    uint64_t next;
    size_t mismatches; /* written ids that were not the ones given */
} numbering;

/* The id that an added token gets.  tokenizers does not go by the written one: it takes the
 * vocabulary's, or the next number after it, and every checkpoint is run with that. */
static kld_status added_id(kld_tokenizer *t, const char *content, uint64_t written, numbering *nr,
                           uint32_t *id, kld_err *err) {
    const kld_tok_entry *e = kld_tok_vocab_find(&t->bpe.vocab, content, strlen(content));
    uint64_t given = e ? e->id : nr->next++;
    if (written != given && nr->mismatches++ == 0)
        kld_warn("added_tokens: id %llu is written where tokenizers gives %llu, which is used",
                 (unsigned long long)written, (unsigned long long)given);
    *id = (uint32_t)given;
    return e ? KLD_OK
             : kld_tok_vocab_add(&t->bpe.vocab, content, strlen(content), given, false, err);
}

static kld_status read_added(kld_tokenizer *t, const json_t *v, numbering *nr, kld_err *err) {
    uint64_t id;
    const char *content;
    bool special;
    if (!json_is_object(v))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(v));
    TRY(kld_tok_json_keys(v, "id|content|single_word|lstrip|rstrip|normalized|special", err));
    kld_tok_added *a = &t->added[t->n_added];
    TRY(kld_json_u64(v, "id", &id, err));
    TRY(kld_json_str(v, "content", &content, err));
    TRY(kld_json_bool(v, "single_word", &a->single_word, err));
    TRY(kld_json_bool(v, "lstrip", &a->lstrip, err));
    TRY(kld_json_bool(v, "rstrip", &a->rstrip, err));
    TRY(kld_json_bool(v, "normalized", &a->normalized, err));
    TRY(kld_json_bool(v, "special", &special, err));
    size_t n = strlen(content);
    if (n == 0) return KLD_OK; /* tokenizers passes these over */
    if (n > KLD_TOK_MAX_ADDED)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "'%.100s...' has %zu bytes; at most %d are accepted", content, n,
                        KLD_TOK_MAX_ADDED);
    TRY(added_id(t, content, id, nr, &a->id, err));
    t->n_added++; /* from here on kld_tokenizer_free releases a->text */
    TRY(search_text(a, t->nfc, content, n, err));
    kld_tok_entry *e = kld_tok_vocab_find(&t->bpe.vocab, content, n);
    e->special = special;
    bool changed = a->n != n || memcmp(a->text, content, n) != 0;
    return changed ? kld_tok_vocab_show(&t->bpe.vocab, e, a->text, a->n, err) : KLD_OK;
}

static kld_status read_added_list(kld_tokenizer *t, const json_t *added, kld_err *err) {
    numbering nr = {.next = t->bpe.vocab.n};
    size_t n = json_array_size(added);
    TRY(NEW_ARRAY(&t->added, n, err));
    for (size_t i = 0; i < n; i++)
        TRY(kld_where(err, read_added(t, json_array_get(added, i), &nr, err), "added_tokens[%zu]",
                      i));
    /* This also finds a token that is listed twice. */
    TRY(kld_tok_added_build(&t->plain, t->added, t->n_added, false, err));
    return kld_tok_added_build(&t->normalized, t->added, t->n_added, true, err);
}

static kld_status read_model(kld_tokenizer *t, const json_t *model, size_t n_added, json_t **merges,
                             kld_err *err) {
    json_t *vocab;
    TRY(options(&t->bpe, model, err));
    TRY(kld_json_obj(model, "vocab", &vocab, err));
    TRY(kld_json_arr(model, "merges", merges, err));
    TRY(kld_tok_vocab_init(&t->bpe.vocab, json_object_size(vocab) + n_added, err));
    TRY(read_vocab(&t->bpe, vocab, err));
    return read_unk(&t->bpe, model, err);
}

kld_status kld_tok_model_read(kld_tokenizer *t, const json_t *model, const json_t *added,
                              kld_err *err) {
    json_t *merges;
    TRY(kld_where(err, read_model(t, model, json_array_size(added), &merges, err), "model"));
    TRY(read_added_list(t, added, err));
    TRY(kld_where(err, read_merges(&t->bpe, merges, err), "model"));
    kld_tok_vocab_done(&t->bpe.vocab);
    return KLD_OK;
}
