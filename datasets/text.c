#include "datasets/text.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/num.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 1 << 30, LINE_DEPTH = 16 };

void kld_documents_free(kld_documents *d) {
    kld_free(d->doc);
    kld_arena_free(&d->arena);
    memset(d, 0, sizeof *d);
}

static kld_status new_document(kld_documents *d, kld_document **out, kld_err *err) {
    if (d->n == d->cap) {
        size_t cap = num_max(16, 2 * d->cap);
        TRY(kld_realloc((void **)&d->doc, cap, sizeof *d->doc, err));
        d->cap = cap;
    }
    *out = &d->doc[d->n++];
    **out = (kld_document){
        .source = "", .cluster = "", .stratum = "", .partition = "", .origin = d->origin};
    return KLD_OK;
}

static kld_status keep(kld_documents *d, const char *text, size_t n, const char **out,
                       kld_err *err) {
    char *copy;
    TRY(kld_arena_strndup(&d->arena, &copy, text, n, err));
    *out = copy;
    return KLD_OK;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static kld_status label(kld_documents *d, const json_t *line, const char *key, const char *fallback,
                        const char **out, kld_err *err) {
    const char *text = fallback;
    if (line && json_object_get(line, key)) TRY(kld_json_str(line, key, &text, err));
    return keep(d, text, strlen(text), out, err);
}

/* The line's own, else what all documents get, else source and cluster by where it was found. */
static kld_status labels(kld_documents *d, const json_t *line, const char *path,
                         const char *cluster, kld_document *doc, kld_err *err) {
    TRY(label(d, line, "source", d->source ? d->source : path, &doc->source, err));
    TRY(label(d, line, "cluster", d->cluster ? d->cluster : cluster, &doc->cluster, err));
    TRY(label(d, line, "stratum", d->stratum ? d->stratum : "", &doc->stratum, err));
    return label(d, line, "partition", d->partition ? d->partition : "", &doc->partition, err);
}

kld_status kld_text_read(kld_documents *d, const char *path, kld_err *err) {
    kld_buf file = {.max = MAX_FILE};
    kld_document *doc;
    kld_status st;
    TRY_TO(done, kld_file_slurp(path, MAX_FILE, &file, err));
    TRY_TO(done, new_document(d, &doc, err));
    doc->bytes = file.len;
    TRY_TO(done, keep(d, (const char *)file.data, file.len, &doc->text, err));
    TRY_TO(done, labels(d, NULL, path, base_name(path), doc, err));
done:
    kld_buf_free(&file);
    return st;
}

static kld_status read_ids(kld_documents *d, const json_t *ids, kld_document *doc, kld_err *err) {
    doc->n_ids = json_array_size(ids);
    TRY(ARENA_ARRAY(&d->arena, &doc->ids, doc->n_ids, err));
    for (size_t i = 0; i < doc->n_ids; i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= UINT32_MAX)
            return kld_fail(err, KLD_E_INPUT, "'ids': element %zu is not a token id", i);
        doc->ids[i] = (uint32_t)id;
    }
    return KLD_OK;
}

/* What a line must be, before anything of it is kept. */
static kld_status check_line(const json_t *line, kld_err *err) {
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *prefix = json_object_get(line, "prefix");
    if (!json_is_object(line))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(line));
    if (!text && !ids && json_object_get(line, "messages"))
        return kld_fail(err, KLD_E_INPUT,
                        "'messages': a chat must be rendered with the model's chat template first "
                        "(apply_chat_template(messages, tokenize=False)) and given as 'text', with "
                        "its special tokens written out");
    if (!text == !ids)
        return kld_fail(err, KLD_E_INPUT, "expected either 'text' or 'ids', found %s",
                        text ? "both" : "neither");
    if (text && !json_is_string(text))
        return kld_fail(err, KLD_E_INPUT, "'text': expected a string, found %s",
                        kld_json_kind(text));
    if (ids && !json_is_array(ids))
        return kld_fail(err, KLD_E_INPUT, "'ids': expected an array, found %s", kld_json_kind(ids));
    if (prefix && !json_is_string(prefix))
        return kld_fail(err, KLD_E_INPUT, "'prefix': expected a string, found %s",
                        kld_json_kind(prefix));
    if (prefix && ids)
        return kld_fail(err, KLD_E_INPUT,
                        "'prefix' belongs to 'text'; with 'ids', 'score_from' "
                        "says where scoring begins");
    if (text && json_object_get(line, "score_from"))
        return kld_fail(err, KLD_E_INPUT,
                        "'score_from' counts ids and belongs to 'ids'; with "
                        "'text', put what is not scored into 'prefix'");
    return KLD_OK;
}

static kld_status read_text(kld_documents *d, const json_t *line, kld_document *doc, kld_err *err) {
    const json_t *text = json_object_get(line, "text"), *prefix = json_object_get(line, "prefix");
    size_t front = prefix ? json_string_length(prefix) : 0, n = json_string_length(text);
    char *both;
    TRY(kld_arena_alloc(&d->arena, (void **)&both, front + n + 1, 1, err));
    if (front) memcpy(both, json_string_value(prefix), front);
    memcpy(both + front, json_string_value(text), n);
    doc->text = both;
    doc->bytes = front + n;
    doc->prefix = front;
    return KLD_OK;
}

static kld_status read_document(kld_documents *d, const json_t *line, const char *path,
                                size_t number, kld_err *err) {
    kld_document *doc;
    char cluster[288]; /* the longest file name, and a number */
    TRY(check_line(line, err));
    TRY(new_document(d, &doc, err));
    snprintf(cluster, sizeof cluster, "%s:%zu", base_name(path), number);
    TRY(labels(d, line, path, cluster, doc, err));
    if (json_object_get(line, "text")) return read_text(d, line, doc, err);
    TRY(read_ids(d, json_object_get(line, "ids"), doc, err));
    if (!json_object_get(line, "score_from")) return KLD_OK;
    uint64_t from;
    TRY(kld_json_u64(line, "score_from", &from, err));
    if (from > doc->n_ids)
        return kld_fail(err, KLD_E_INPUT, "'score_from' is %llu in a document of %zu ids",
                        (unsigned long long)from, doc->n_ids);
    doc->score_from = (size_t)from;
    return KLD_OK;
}

static bool is_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r') return false;
    return true;
}

/* Whole lines, the first of them being line `number` + 1; number goes on. */
static kld_status read_lines(kld_documents *d, const char *p, size_t bytes, const char *path,
                             size_t *number, kld_err *err) {
    const char *end = p + bytes;
    kld_status st = KLD_OK;
    while (st == KLD_OK && p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        ++*number;
        if (!is_blank(p, n)) {
            json_t *line;
            st = kld_json_parse(&line, p, n, LINE_DEPTH, err);
            if (st == KLD_OK) st = read_document(d, line, path, *number, err);
            st = kld_where(err, st, "%s: line %zu", path, *number);
            json_decref(line);
        }
        p += n + (nl != NULL);
    }
    return st;
}

kld_status kld_jsonl_read(kld_documents *d, const char *path, kld_err *err) {
    kld_buf file = {.max = MAX_FILE};
    size_t number = 0;
    kld_status st = kld_file_slurp(path, MAX_FILE, &file, err);
    if (st == KLD_OK) st = read_lines(d, (const char *)file.data, file.len, path, &number, err);
    kld_buf_free(&file);
    return st;
}

kld_status kld_jsonl_open(kld_jsonl *r, const char *path, kld_err *err) {
    *r = (kld_jsonl){.path = path};
    return kld_file_open(&r->file, path, err);
}

void kld_jsonl_close(kld_jsonl *r) { kld_file_close(&r->file); }

/* Bytes from r->at on that end a line, or the file: of about `bytes`, or of the one long line. */
static kld_status read_block(kld_jsonl *r, size_t bytes, kld_buf *out, kld_err *err) {
    uint64_t left = r->file.size - r->at;
    for (size_t want = bytes;; want *= 2) {
        size_t n = left < want ? (size_t)left : want, had = out->len;
        TRY(kld_buf_reserve(out, n - had, err));
        TRY(kld_file_read(&r->file, out->data + had, r->at + had, n - had, err));
        out->len = n;
        if (n == left) return KLD_OK;
        while (n > had && out->data[n - 1] != '\n') n--;
        if (n > had) {
            out->len = n;
            return KLD_OK;
        }
        if (want >= MAX_FILE)
            return kld_fail(err, KLD_E_INPUT, "%s: line %zu is longer than 1 GiB", r->path,
                            r->line + 1);
    }
}

kld_status kld_jsonl_next(kld_jsonl *r, size_t bytes, kld_documents *d, kld_err *err) {
    kld_buf block = {.max = (size_t)2 * MAX_FILE};
    kld_status st = KLD_OK;
    for (size_t had = d->n; st == KLD_OK && d->n == had && r->at < r->file.size;) {
        kld_buf_clear(&block);
        st = read_block(r, bytes, &block, err);
        if (st != KLD_OK) break;
        st = read_lines(d, (const char *)block.data, block.len, r->path, &r->line, err);
        r->at += block.len;
    }
    kld_buf_free(&block);
    return st;
}
