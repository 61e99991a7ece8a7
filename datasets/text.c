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
    **out = (kld_document){.source = "", .cluster = "", .stratum = "", .partition = ""};
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

kld_status kld_text_read(kld_documents *d, const char *path, kld_err *err) {
    kld_buf file = {.max = MAX_FILE};
    kld_document *doc;
    kld_status st;
    TRY_TO(done, kld_file_slurp(path, MAX_FILE, &file, err));
    TRY_TO(done, new_document(d, &doc, err));
    doc->bytes = file.len;
    TRY_TO(done, keep(d, (const char *)file.data, file.len, &doc->text, err));
    TRY_TO(done, keep(d, path, strlen(path), &doc->source, err));
    TRY_TO(done, keep(d, base_name(path), strlen(base_name(path)), &doc->cluster, err));
done:
    kld_buf_free(&file);
    return st;
}

static kld_status label(kld_documents *d, const json_t *line, const char *key, const char *fallback,
                        const char **out, kld_err *err) {
    const char *text = fallback;
    if (json_object_get(line, key)) TRY(kld_json_str(line, key, &text, err));
    return keep(d, text, strlen(text), out, err);
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

static kld_status read_document(kld_documents *d, const json_t *line, const char *path,
                                size_t number, kld_err *err) {
    kld_document *doc;
    char cluster[288]; /* the longest file name, and a number */
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    if (!json_is_object(line))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(line));
    if (!text == !ids)
        return kld_fail(err, KLD_E_INPUT, "expected either 'text' or 'ids', found %s",
                        text ? "both" : "neither");
    if (text && !json_is_string(text))
        return kld_fail(err, KLD_E_INPUT, "'text': expected a string, found %s",
                        kld_json_kind(text));
    if (ids && !json_is_array(ids))
        return kld_fail(err, KLD_E_INPUT, "'ids': expected an array, found %s", kld_json_kind(ids));
    TRY(new_document(d, &doc, err));
    snprintf(cluster, sizeof cluster, "%s:%zu", base_name(path), number);
    TRY(label(d, line, "source", path, &doc->source, err));
    TRY(label(d, line, "cluster", cluster, &doc->cluster, err));
    TRY(label(d, line, "stratum", "", &doc->stratum, err));
    TRY(label(d, line, "partition", "", &doc->partition, err));
    if (ids) return read_ids(d, ids, doc, err);
    doc->bytes = json_string_length(text);
    return keep(d, json_string_value(text), doc->bytes, &doc->text, err);
}

static bool is_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r') return false;
    return true;
}

kld_status kld_jsonl_read(kld_documents *d, const char *path, kld_err *err) {
    kld_buf file = {.max = MAX_FILE};
    kld_status st = kld_file_slurp(path, MAX_FILE, &file, err);
    const char *p = (const char *)file.data, *end = p + file.len;
    for (size_t number = 1; st == KLD_OK && p < end; number++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        if (!is_blank(p, n)) {
            json_t *line;
            st = kld_json_parse(&line, p, n, LINE_DEPTH, err);
            if (st == KLD_OK) st = read_document(d, line, path, number, err);
            st = kld_where(err, st, "%s: line %zu", path, number);
            json_decref(line);
        }
        p += n + (nl != NULL);
    }
    kld_buf_free(&file);
    return st;
}
