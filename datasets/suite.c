#include "datasets/suite.h"

#include "datasets/partition.h"
#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = (size_t)1 << 31, LINE_DEPTH = 4 };

size_t kld_window_scored(const kld_window *w) {
    return w->n > w->score_from + 1 ? w->n - 1 - w->score_from : 0;
}

const char *kld_window_unit(const kld_window *w) { return *w->cluster ? w->cluster : w->source; }

void kld_suite_free(kld_suite *s) {
    kld_arena_free(&s->arena);
    memset(s, 0, sizeof *s);
}

/* ---- digests -------------------------------------------------------------------------- */

kld_status kld_ids_digest(const uint32_t *ids, size_t n, kld_digest *out, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_buf_reserve(&b, 4 * n, err);
    for (size_t i = 0; i < n && st == KLD_OK; i++) st = kld_buf_u32(&b, ids[i], err);
    if (st == KLD_OK) st = kld_sha256_of(b.data ? (void *)b.data : (void *)"", b.len, out, err);
    kld_buf_free(&b);
    return st;
}

static kld_status add_string(kld_buf *b, const char *s, kld_err *err) {
    TRY(kld_buf_u32(b, (uint32_t)strlen(s), err));
    return kld_buf_adds(b, s, err);
}

static kld_status window_key(const kld_window *w, kld_buf *b, kld_err *err) {
    TRY(kld_buf_u64(b, w->n, err));
    TRY(kld_buf_u64(b, w->score_from, err));
    TRY(kld_buf_add(b, w->tokens.b, sizeof w->tokens.b, err));
    TRY(add_string(b, w->cluster, err));
    TRY(add_string(b, w->stratum, err));
    return add_string(b, w->partition, err);
}

kld_status kld_suite_seal(kld_suite *s, kld_err *err) {
    kld_buf b = {.max = (size_t)1 << 34};
    kld_status st;
    s->tokens = s->positions = 0;
    TRY_TO(done, kld_buf_adds(&b, "kld suite 1", err));
    TRY_TO(done, kld_buf_add(&b, s->tokenizer.b, sizeof s->tokenizer.b, err));
    TRY_TO(done, kld_buf_u64(&b, s->vocab, err));
    TRY_TO(done, add_string(&b, s->bos, err));
    for (size_t i = 0; i < s->n_windows; i++) {
        kld_window *w = &s->windows[i];
        TRY_TO(done, kld_ids_digest(w->ids, w->n, &w->tokens, err));
        TRY_TO(done, window_key(w, &b, err));
        s->tokens += w->n;
        s->positions += kld_window_scored(w);
    }
    TRY_TO(done, kld_sha256_of(b.data, b.len, &s->digest, err));
done:
    kld_buf_free(&b);
    return st;
}

/* ---- reading -------------------------------------------------------------------------- */

static kld_status optional_string(kld_suite *s, const json_t *line, const char *key,
                                  const char *fallback, const char **out, kld_err *err) {
    const char *text = fallback;
    if (json_object_get(line, key)) TRY(kld_json_str(line, key, &text, err));
    char *copy;
    TRY(kld_arena_strndup(&s->arena, &copy, text, strlen(text), err));
    *out = copy;
    return KLD_OK;
}

static kld_status optional_u64(const json_t *line, const char *key, uint64_t *out, kld_err *err) {
    *out = 0;
    return json_object_get(line, key) ? kld_json_u64(line, key, out, err) : KLD_OK;
}

static kld_status read_ids(kld_suite *s, const json_t *line, kld_window *w, kld_err *err) {
    json_t *ids;
    if (!json_object_get(line, "ids"))
        return kld_fail(
            err, KLD_E_INPUT,
            "no 'ids'%s: not a window of a suite; `kld suite build --jsonl` makes a suite "
            "of documents",
            json_object_get(line, "text") ? " but 'text'" : "");
    TRY(kld_json_arr(line, "ids", &ids, err));
    w->n = json_array_size(ids);
    if (w->n == 0) return kld_fail(err, KLD_E_INPUT, "'ids': no token in it");
    TRY(ARENA_ARRAY(&s->arena, &w->ids, w->n, err));
    for (size_t i = 0; i < w->n; i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= UINT32_MAX)
            return kld_fail(err, KLD_E_INPUT, "'ids': element %zu is %s, not a token id", i,
                            json_is_integer(v) ? "out of range" : kld_json_kind(v));
        if (s->vocab && (uint64_t)id >= s->vocab)
            return kld_fail(err, KLD_E_INPUT, "'ids': %lld at %zu, but the tokenizer has %zu ids",
                            (long long)id, i, s->vocab);
        w->ids[i] = (uint32_t)id;
    }
    return KLD_OK;
}

static kld_status read_window(kld_suite *s, const json_t *line, size_t index, kld_err *err) {
    kld_window *w = &s->windows[index];
    char number[32];
    uint64_t score_from;
    kld_digest said = {{0}};
    const char *hex = NULL;
    snprintf(number, sizeof number, "window %zu", index);
    TRY(read_ids(s, line, w, err));
    TRY(optional_u64(line, "score_from", &score_from, err));
    TRY(optional_u64(line, "offset", &w->offset, err));
    if (score_from > w->n)
        return kld_fail(err, KLD_E_INPUT, "'score_from' is %llu in a window of %zu tokens",
                        (unsigned long long)score_from, w->n);
    w->score_from = (size_t)score_from;
    TRY(optional_string(s, line, "source", "", &w->source, err));
    /* Without a cluster the window is its own unit of resampling. */
    TRY(optional_string(s, line, "cluster", number, &w->cluster, err));
    TRY(optional_string(s, line, "stratum", "", &w->stratum, err));
    TRY(optional_string(s, line, "partition", "", &w->partition, err));
    if (!json_object_get(line, "tokens_sha256")) return KLD_OK;
    TRY(kld_json_str(line, "tokens_sha256", &hex, err));
    TRY(kld_where(err, kld_digest_parse(hex, &said, err), "'tokens_sha256'"));
    TRY(kld_ids_digest(w->ids, w->n, &w->tokens, err));
    if (!kld_same_digest(&said, &w->tokens))
        return kld_fail(err, KLD_E_INPUT, "'tokens_sha256' does not match the ids");
    return KLD_OK;
}

/* How it was built: told on, not used. */
static kld_status read_built(kld_suite *s, const json_t *line, kld_err *err) {
    static const char *const keys[] = {"seed", "sources", "choice", "allocation", "partitions"};
    kld_buf text = {0};
    kld_status st = KLD_OK;
    bool whole = true;
    json_t *o = json_object();
    for (size_t i = 0; o && i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(line, keys[i]);
        if (v) whole = whole && json_object_set(o, keys[i], v) == 0;
    }
    if (!o || !whole) st = kld_fail(err, KLD_E_NOMEM, "out of memory for the header");
    if (st == KLD_OK && json_object_size(o) > 0) {
        char *copy;
        st = kld_json_dump(o, false, &text, err);
        if (st == KLD_OK)
            st = kld_arena_strndup(&s->arena, &copy, (char *)text.data, text.len, err);
        if (st == KLD_OK) s->built = copy;
    }
    kld_buf_free(&text);
    json_decref(o);
    return st;
}

typedef struct header {
    bool present;
    uint64_t windows;
    kld_digest digest;
} header;

static kld_status check_bos(const char *bos, kld_err *err) {
    static const char *const known[] = {"none", "first", "every", ""};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(bos, known[i]) == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'bos': '%.40s' is none of none, first and every", bos);
}

static kld_status read_header(kld_suite *s, const json_t *line, header *h, kld_err *err) {
    uint64_t version, vocab, window, stride;
    const char *hex;
    TRY(kld_json_u64(line, "kld_suite", &version, err));
    if (version != 1)
        return kld_fail(err, KLD_E_UNSUPPORTED, "suite version %llu; this program reads version 1",
                        (unsigned long long)version);
    TRY(kld_json_u64(line, "windows", &h->windows, err));
    TRY(kld_json_u64(line, "vocab", &vocab, err));
    TRY(kld_json_u64(line, "window", &window, err));
    TRY(kld_json_u64(line, "stride", &stride, err));
    TRY(optional_string(s, line, "bos", "", &s->bos, err));
    TRY(check_bos(s->bos, err));
    TRY(kld_json_str(line, "tokenizer", &hex, err));
    TRY(kld_where(err, kld_digest_parse(hex, &s->tokenizer, err), "'tokenizer'"));
    TRY(kld_json_str(line, "digest", &hex, err));
    TRY(kld_where(err, kld_digest_parse(hex, &h->digest, err), "'digest'"));
    s->vocab = (size_t)vocab;
    s->window = (size_t)window;
    s->stride = (size_t)stride;
    h->present = true;
    return read_built(s, line, err);
}

static kld_status read_line(kld_suite *s, const char *text, size_t n, header *h, kld_err *err) {
    json_t *line;
    TRY(kld_json_parse(&line, text, n, LINE_DEPTH, err));
    kld_status st = KLD_OK;
    if (!json_is_object(line))
        st = kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(line));
    else if (json_object_get(line, "kld_suite"))
        st = s->n_windows == 0 && !h->present
                 ? read_header(s, line, h, err)
                 : kld_fail(err, KLD_E_INPUT, "a header; only the first line can be one");
    else {
        st = read_window(s, line, s->n_windows, err);
        if (st == KLD_OK) s->n_windows++;
    }
    json_decref(line);
    return st;
}

static size_t count_lines(const kld_buf *b) {
    size_t n = 1;
    for (size_t i = 0; i < b->len; i++) n += b->data[i] == '\n';
    return n;
}

static bool is_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r') return false;
    return true;
}

static kld_status read_all(kld_suite *s, const char *path, const kld_buf *file, header *h,
                           kld_err *err) {
    TRY(ARENA_ARRAY(&s->arena, &s->windows, count_lines(file), err));
    const char *p = (const char *)file->data, *end = p + file->len;
    for (size_t number = 1; p < end; number++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        if (!is_blank(p, n))
            TRY(kld_where(err, read_line(s, p, n, h, err), "%s: line %zu", path, number));
        p += n + (nl != NULL);
    }
    return KLD_OK;
}

/* Texts that a capture could not hold, which it would notice when all layers are computed. */
static kld_status check_lengths(const kld_suite *s, kld_err *err) {
    static const char *const KEY[] = {"source", "cluster", "stratum", "partition"};
    for (size_t i = 0; i < s->n_windows; i++) {
        const kld_window *w = &s->windows[i];
        const char *text[] = {w->source, w->cluster, w->stratum, w->partition};
        for (size_t k = 0; k < sizeof KEY / sizeof *KEY; k++)
            if (strlen(text[k]) > KLD_SUITE_MAX_TEXT)
                return kld_fail(err, KLD_E_INPUT,
                                "window %zu: '%s' is %zu bytes long, at most %d are accepted: "
                                "'%.40s...'",
                                i, KEY[k], strlen(text[k]), KLD_SUITE_MAX_TEXT, text[k]);
    }
    return KLD_OK;
}

/* What reading and writing both ask of a sealed suite. */
static kld_status check_use(const kld_suite *s, kld_err *err) {
    TRY(check_lengths(s, err));
    TRY(kld_suite_check_partitions(s, err));
    if (s->positions > 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "no scored position: %zu windows with %llu tokens (a window of n tokens has "
                    "n-1 positions)",
                    s->n_windows, (unsigned long long)s->tokens);
}

static kld_status check_whole(kld_suite *s, const header *h, kld_err *err) {
    if (h->present && h->windows != s->n_windows)
        return kld_fail(err, KLD_E_INPUT, "the header promises %llu windows, %zu are there",
                        (unsigned long long)h->windows, s->n_windows);
    TRY(kld_suite_seal(s, err));
    if (h->present && !kld_same_digest(&h->digest, &s->digest))
        return kld_fail(err, KLD_E_INPUT, "the digest in the header does not match the windows");
    return check_use(s, err);
}

kld_status kld_suite_load(kld_suite *s, const char *path, kld_err *err) {
    memset(s, 0, sizeof *s);
    s->bos = "";
    kld_buf file = {.max = MAX_FILE};
    header h = {0};
    kld_status st = kld_file_slurp(path, MAX_FILE, &file, err);
    if (st == KLD_OK) st = read_all(s, path, &file, &h, err);
    if (st == KLD_OK) st = kld_where(err, check_whole(s, &h, err), "%s", path);
    kld_buf_free(&file);
    if (st != KLD_OK) kld_suite_free(s);
    return st;
}

/* ---- writing -------------------------------------------------------------------------- */

static kld_status add_json_string(kld_buf *b, const char *key, const char *text, kld_err *err) {
    size_t failures = kld_mem_raw_failures();
    json_t *v = json_string(text);
    if (!v && kld_mem_raw_failures() != failures)
        return kld_fail(err, KLD_E_NOMEM, "out of memory for '%s'", key);
    if (!v) return kld_fail(err, KLD_E_INPUT, "'%s' is not valid UTF-8: '%.80s'", key, text);
    kld_status st = kld_buf_addf(b, err, ",\"%s\":", key);
    if (st == KLD_OK) st = kld_json_dump(v, false, b, err);
    json_decref(v);
    return st;
}

static kld_status add_window(const kld_window *w, kld_buf *b, kld_err *err) {
    char hex[KLD_SHA256_HEX];
    TRY(kld_buf_adds(b, "{\"ids\":[", err));
    for (size_t i = 0; i < w->n; i++)
        TRY(kld_buf_addf(b, err, i ? ",%u" : "%u", (unsigned)w->ids[i]));
    TRY(kld_buf_addf(b, err, "],\"score_from\":%zu", w->score_from));
    TRY(add_json_string(b, "source", w->source, err));
    TRY(add_json_string(b, "cluster", w->cluster, err));
    TRY(add_json_string(b, "stratum", w->stratum, err));
    TRY(add_json_string(b, "partition", w->partition, err));
    return kld_buf_addf(b, err, ",\"offset\":%llu,\"tokens_sha256\":\"%s\"}\n",
                        (unsigned long long)w->offset, kld_digest_hex(&w->tokens, hex));
}

kld_status kld_suite_save(kld_suite *s, const char *path, kld_err *err) {
    char tokenizer[KLD_SHA256_HEX], digest[KLD_SHA256_HEX];
    kld_buf b = {.max = MAX_FILE};
    kld_status st;
    TRY_TO(done, kld_suite_seal(s, err));
    TRY_TO(done, check_use(s, err));
    TRY_TO(done, check_bos(s->bos, err));
    TRY_TO(done,
           kld_buf_addf(&b, err,
                        "{\"kld_suite\":1,\"tokenizer\":\"%s\",\"vocab\":%zu,\"window\":%zu,"
                        "\"stride\":%zu,\"bos\":\"%s\",\"windows\":%zu,\"tokens\":%llu,"
                        "\"positions\":%llu,\"digest\":\"%s\"",
                        kld_digest_hex(&s->tokenizer, tokenizer), s->vocab, s->window, s->stride,
                        s->bos, s->n_windows, (unsigned long long)s->tokens,
                        (unsigned long long)s->positions, kld_digest_hex(&s->digest, digest)));
    /* Members of an object, or its end alone. */
    TRY_TO(done,
           kld_buf_addf(&b, err, "%s%s\n", s->built ? "," : "", s->built ? s->built + 1 : "}"));
    for (size_t i = 0; i < s->n_windows; i++) TRY_TO(done, add_window(&s->windows[i], &b, err));
    TRY_TO(done, kld_file_write(path, b.data, b.len, err));
done:
    kld_buf_free(&b);
    return st;
}
