#include "kld/capture/manifest.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/capture/describe.h"
#include "kld/capture/members.h"

#include <string.h>

enum { MAX_MANIFEST = 1 << 24, MAX_SOURCES = 1000 };

void kld_manifest_init(kld_manifest *m) {
    *m = (kld_manifest){.opt = {.window = 2048, .bos = KLD_BOS_NONE, .seed = 1}};
}

void kld_manifest_free(kld_manifest *m) { kld_arena_free(&m->arena); }

/* ---- reading -------------------------------------------------------------------------- */

typedef struct reader {
    kld_manifest *m;
    const char *folder; /* of the manifest, with its slash; "" for the current one */
    size_t quotas;      /* room in m->quota */
} reader;

static kld_status known_keys(const json_t *o, const char *const *keys, size_t n, kld_err *err) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key) != 0) i++;
        if (i < n) continue;
        kld_buf list = {0};
        kld_status st = KLD_OK;
        for (i = 0; i < n && st == KLD_OK; i++)
            st = kld_buf_addf(&list, err, "%s%s", i ? ", " : "", keys[i]);
        if (st == KLD_OK)
            st = kld_fail(err, KLD_E_INPUT, "'%.80s' is not a key here; known are %s", key,
                          (const char *)list.data);
        kld_buf_free(&list);
        return st;
    }
    return KLD_OK;
}
#define KNOWN_KEYS(o, keys, err) known_keys(o, keys, sizeof(keys) / sizeof *(keys), err)

static kld_status text(reader *r, const json_t *o, const char *key, const char **out,
                       kld_err *err) {
    const char *v;
    char *copy;
    if (!json_object_get(o, key)) return KLD_OK;
    TRY(kld_json_str(o, key, &v, err));
    TRY(kld_arena_strndup(&r->m->arena, &copy, v, strlen(v), err));
    *out = copy;
    return KLD_OK;
}

static kld_status number(const json_t *o, const char *key, size_t *out, kld_err *err) {
    uint64_t v;
    if (!json_object_get(o, key)) return KLD_OK;
    TRY(kld_json_u64(o, key, &v, err));
    *out = (size_t)v;
    return KLD_OK;
}

/* At most so many; 0 would leave nothing. */
static kld_status limit(const json_t *o, const char *key, size_t *out, kld_err *err) {
    TRY(number(o, key, out, err));
    if (*out > 0 || !json_object_get(o, key)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s' is 0; at least 1 is legal", key);
}

static kld_status path_of(reader *r, const char *name, const char **out, kld_err *err) {
    kld_buf b = {0};
    char *copy;
    kld_status st = kld_buf_addf(&b, err, "%s%s", *name == '/' ? "" : r->folder, name);
    if (st == KLD_OK) st = kld_arena_strndup(&r->m->arena, &copy, (char *)b.data, b.len, err);
    if (st == KLD_OK) *out = copy;
    kld_buf_free(&b);
    return st;
}

static size_t count_of(const json_t *v) {
    return json_is_array(v) ? json_array_size(v) : json_is_string(v);
}

/* Element i of an array of names, or the one name. */
static kld_status name_at(const json_t *o, const char *key, size_t i, const char **out,
                          kld_err *err) {
    const json_t *v = json_object_get(o, key);
    if (json_is_array(v)) v = json_array_get(v, i);
    if (!json_is_string(v) || !*json_string_value(v))
        return kld_fail(err, KLD_E_INPUT,
                        "'%s': expected a file name or an array of them, found %s", key,
                        json_is_string(v) ? "an empty one" : kld_json_kind(v));
    *out = json_string_value(v);
    return KLD_OK;
}

static kld_status files(reader *r, const json_t *o, kld_source *s, kld_err *err) {
    static const char *const kind[] = {"jsonl", "text"};
    size_t n = 0;
    for (size_t k = 0; k < 2; k++) {
        const json_t *v = json_object_get(o, kind[k]);
        const char *ignored;
        if (v && count_of(v) == 0) TRY(name_at(o, kind[k], 0, &ignored, err));
        n += count_of(v);
    }
    if (n == 0) return kld_fail(err, KLD_E_INPUT, "it names no file: 'jsonl' or 'text' is needed");
    TRY(ARENA_ARRAY(&r->m->arena, &s->file, n, err));
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < count_of(json_object_get(o, kind[k])); i++) {
            kld_source_file *f = &s->file[s->n_files++];
            char *copy;
            f->jsonl = k == 0;
            TRY(name_at(o, kind[k], i, &f->shown, err));
            TRY(kld_arena_strndup(&r->m->arena, &copy, f->shown, strlen(f->shown), err));
            f->shown = copy;
            TRY(path_of(r, f->shown, &f->path, err));
        }
    return KLD_OK;
}

/* {"windows": N} or {"tokens": N} of one source; nothing of both is fine when `optional`. */
static kld_status quota(reader *r, const json_t *o, size_t origin, const char *stratum,
                        bool optional, kld_err *err) {
    const json_t *windows = json_object_get(o, "windows"), *tokens = json_object_get(o, "tokens");
    if (!windows && !tokens && optional) return KLD_OK;
    if (!windows == !tokens)
        return kld_fail(err, KLD_E_INPUT, "expected either 'windows' or 'tokens', found %s",
                        windows ? "both" : "neither");
    kld_quota *q = &r->m->quota[r->m->n_quotas++];
    *q = (kld_quota){.origin = origin, .stratum = stratum, .in_tokens = tokens != NULL};
    TRY(kld_json_u64(o, tokens ? "tokens" : "windows", &q->asked, err));
    if (q->asked > 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s' is 0: leave the source out instead",
                    tokens ? "tokens" : "windows");
}

static kld_status strata(reader *r, const json_t *o, size_t origin, kld_err *err) {
    static const char *const keys[] = {"windows", "tokens"};
    const char *name;
    json_t *all, *v;
    if (!json_object_get(o, "strata")) return quota(r, o, origin, NULL, true, err);
    TRY(kld_json_obj(o, "strata", &all, err));
    if (json_object_get(o, "windows") || json_object_get(o, "tokens"))
        return kld_fail(err, KLD_E_INPUT,
                        "'strata' says how much is taken; 'windows' or 'tokens' beside it is too "
                        "much");
    if (json_object_size(all) == 0) return kld_fail(err, KLD_E_INPUT, "'strata' names none");
    json_object_foreach(all, name, v) {
        char *copy;
        kld_status st = KLD_OK;
        if (!json_is_object(v))
            st = kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(v));
        if (st == KLD_OK) st = KNOWN_KEYS(v, keys, err);
        if (st == KLD_OK) st = kld_arena_strndup(&r->m->arena, &copy, name, strlen(name), err);
        if (st == KLD_OK) st = quota(r, v, origin, copy, false, err);
        if (st != KLD_OK) return kld_where(err, st, "'strata': '%.80s'", name);
    }
    return KLD_OK;
}

static kld_status source(reader *r, const json_t *o, size_t i, kld_err *err) {
    static const char *const keys[] = {"dataset", "revision",  "jsonl",   "text",   "stratum",
                                       "cluster", "partition", "windows", "tokens", "strata"};
    kld_source *s = &r->m->source[i];
    s->dataset = s->revision = "";
    if (!json_is_object(o))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(o));
    TRY(KNOWN_KEYS(o, keys, err));
    TRY(text(r, o, "dataset", &s->dataset, err));
    TRY(text(r, o, "revision", &s->revision, err));
    TRY(text(r, o, "stratum", &s->stratum, err));
    TRY(text(r, o, "cluster", &s->cluster, err));
    TRY(text(r, o, "partition", &s->partition, err));
    TRY(files(r, o, s, err));
    return strata(r, o, i, err);
}

static kld_status sources(reader *r, const json_t *root, kld_err *err) {
    json_t *a;
    TRY(kld_json_arr(root, "sources", &a, err));
    size_t n = json_array_size(a), quotas = 0;
    if (n == 0 || n > MAX_SOURCES)
        return kld_fail(err, KLD_E_INPUT, "'sources' has %zu elements; 1 to %d are accepted", n,
                        MAX_SOURCES);
    for (size_t i = 0; i < n; i++)
        quotas += 1 + json_object_size(json_object_get(json_array_get(a, i), "strata"));
    TRY(ARENA_ARRAY(&r->m->arena, &r->m->source, n, err));
    TRY(ARENA_ARRAY(&r->m->arena, &r->m->quota, quotas, err));
    r->m->n_sources = n;
    for (size_t i = 0; i < n; i++)
        TRY(kld_where(err, source(r, json_array_get(a, i), i, err), "source %zu", i));
    return KLD_OK;
}

static kld_status bos(const json_t *root, kld_bos *out, kld_err *err) {
    static const char *const names[] = {"none", "first", "every"};
    const char *v;
    if (!json_object_get(root, "bos")) return KLD_OK;
    TRY(kld_json_str(root, "bos", &v, err));
    for (size_t i = 0; i < 3; i++)
        if (strcmp(v, names[i]) == 0) {
            *out = (kld_bos)i;
            return KLD_OK;
        }
    return kld_fail(err, KLD_E_INPUT, "'bos': '%.40s' is none of none, first and every", v);
}

/* {"analysis": 0.75, ...} by way of the option's spelling, which checks it. */
static kld_status split(const json_t *root, kld_split *out, kld_err *err) {
    const char *name;
    json_t *o, *v;
    kld_buf b = {0};
    if (!json_object_get(root, "split")) return KLD_OK;
    TRY(kld_json_obj(root, "split", &o, err));
    kld_status st = KLD_OK;
    json_object_foreach(o, name, v) {
        double share = 0;
        if (st == KLD_OK) st = kld_json_f64(o, name, &share, err);
        if (st == KLD_OK) st = kld_buf_addf(&b, err, "%s%s=%.17g", b.len ? "," : "", name, share);
    }
    if (st == KLD_OK) st = kld_split_parse(out, b.len ? (const char *)b.data : "", err);
    kld_buf_free(&b);
    return kld_where(err, st == KLD_E_USAGE ? KLD_E_INPUT : st, "'split'");
}

static kld_status excludes(reader *r, const json_t *root, kld_err *err) {
    const json_t *v = json_object_get(root, "exclude_overlap");
    kld_manifest *m = r->m;
    const char *name = "";
    if (!v) return KLD_OK;
    size_t n = count_of(v);
    if (n == 0) TRY(name_at(root, "exclude_overlap", 0, &name, err));
    TRY(ARENA_ARRAY(&m->arena, &m->exclude, n, err));
    for (size_t i = 0; i < n; i++) {
        TRY(name_at(root, "exclude_overlap", i, &name, err));
        TRY(path_of(r, name, &m->exclude[m->n_exclude++], err));
    }
    return KLD_OK;
}

static kld_status read_root(reader *r, const json_t *root, kld_err *err) {
    static const char *const keys[] = {"tokenizer",
                                       "window",
                                       "stride",
                                       "score_last",
                                       "bos",
                                       "seed",
                                       "per_document",
                                       "per_cluster",
                                       "split",
                                       "keep_partitions",
                                       "exclude_overlap",
                                       "exclude_above",
                                       "sources"};
    kld_manifest *m = r->m;
    const char *path = NULL;
    if (!json_is_object(root))
        return kld_fail(err, KLD_E_INPUT, "expected an object, found %s", kld_json_kind(root));
    TRY(KNOWN_KEYS(root, keys, err));
    TRY(text(r, root, "tokenizer", &path, err));
    if (path) TRY(path_of(r, path, &m->tokenizer, err));
    path = NULL;
    TRY(text(r, root, "keep_partitions", &path, err));
    if (path) TRY(path_of(r, path, &m->keep, err));
    TRY(number(root, "window", &m->opt.window, err));
    TRY(limit(root, "stride", &m->opt.stride, err));
    m->opt.score_last_set = json_object_get(root, "score_last") != NULL;
    TRY(number(root, "score_last", &m->opt.score_last, err));
    TRY(bos(root, &m->opt.bos, err));
    if (json_object_get(root, "seed")) TRY(kld_json_u64(root, "seed", &m->opt.seed, err));
    TRY(limit(root, "per_document", &m->per_document, err));
    TRY(limit(root, "per_cluster", &m->per_cluster, err));
    TRY(split(root, &m->split, err));
    TRY(excludes(r, root, err));
    if (json_object_get(root, "exclude_above"))
        TRY(kld_json_f64(root, "exclude_above", &m->exclude_above, err));
    if (!(m->exclude_above >= 0 && m->exclude_above < 1))
        return kld_fail(err, KLD_E_INPUT, "'exclude_above' is %g; at least 0 and below 1 is legal",
                        m->exclude_above);
    return sources(r, root, err);
}

kld_status kld_manifest_load(kld_manifest *m, const char *path, kld_err *err) {
    json_t *root;
    char *folder = NULL;
    const char *slash = strrchr(path, '/');
    TRY(kld_json_load(&root, path, MAX_MANIFEST, err));
    kld_status st = kld_strndup(&folder, path, slash ? (size_t)(slash + 1 - path) : 0, err);
    reader r = {.m = m, .folder = folder};
    m->opt.by_content = true;
    if (st == KLD_OK) st = kld_where(err, read_root(&r, root, err), "%s", path);
    kld_free(folder);
    json_decref(root);
    return st;
}

kld_status kld_manifest_read(kld_manifest *m, kld_documents *docs, kld_err *err) {
    for (size_t i = 0; i < m->n_sources; i++) {
        const kld_source *s = &m->source[i];
        kld_buf name = {0};
        kld_status st = KLD_OK;
        if (*s->dataset)
            st = kld_buf_addf(&name, err, *s->revision ? "%s@%s" : "%s", s->dataset, s->revision);
        docs->source = (const char *)name.data;
        docs->cluster = s->cluster;
        docs->stratum = s->stratum;
        docs->partition = s->partition;
        docs->origin = i;
        for (size_t k = 0; k < s->n_files && st == KLD_OK; k++) {
            kld_source_file *f = &s->file[k];
            st = f->jsonl ? kld_jsonl_read(docs, f->path, err) : kld_text_read(docs, f->path, err);
            if (st == KLD_OK) st = kld_sha256_file(f->path, &f->sha256, err);
        }
        docs->source = docs->cluster = docs->stratum = docs->partition = NULL;
        kld_buf_free(&name);
        TRY(st);
    }
    return KLD_OK;
}

/* ---- the record ----------------------------------------------------------------------- */

static json_t *source_records(const kld_manifest *m, const kld_source_sums *sums, bool *ok) {
    json_t *a = json_array();
    char hex[KLD_SHA256_HEX];
    for (size_t i = 0; i < m->n_sources; i++) {
        const kld_source *s = &m->source[i];
        json_t *o = kld_element(a, ok), *names = json_array(), *digests = json_array();
        for (size_t k = 0; k < s->n_files; k++) {
            const kld_source_file *f = &s->file[k];
            if (json_array_append_new(names, json_string(f->shown)) != 0 ||
                json_array_append_new(digests, json_string(kld_digest_hex(&f->sha256, hex))) != 0)
                *ok = false;
        }
        kld_put(o, "dataset", json_string(s->dataset), ok);
        kld_put(o, "revision", json_string(s->revision), ok);
        kld_put(o, "files", names, ok);
        kld_put(o, "sha256", digests, ok);
        kld_put(o, "documents", kld_count(sums[i].documents), ok);
        kld_put(o, "windows", kld_count(sums[i].windows), ok);
        kld_put(o, "tokens", kld_count(sums[i].tokens), ok);
        kld_put(o, "positions", kld_count(sums[i].positions), ok);
    }
    return a;
}

static json_t *choice_record(const kld_manifest *m, size_t excluded, bool *ok) {
    json_t *o = json_object();
    kld_buf b = {0};
    for (size_t k = 0; k < m->split.n && *ok; k++)
        *ok = kld_buf_addf(&b, NULL, "%s%s=%.6g", k ? "," : "", m->split.part[k].name,
                           m->split.part[k].share) == KLD_OK;
    kld_put(o, "per_document", kld_count(m->per_document), ok);
    kld_put(o, "per_cluster", kld_count(m->per_cluster), ok);
    kld_put(o, "score_last", kld_count(m->opt.score_last_set ? m->opt.score_last : 0), ok);
    kld_put(o, "split", json_string(b.len ? (const char *)b.data : ""), ok);
    kld_put(o, "documents_excluded", kld_count(excluded), ok);
    kld_buf_free(&b);
    return o;
}

static json_t *quota_records(const kld_manifest *m, bool *ok) {
    json_t *a = json_array();
    for (size_t i = 0; i < m->n_quotas; i++) {
        const kld_quota *q = &m->quota[i];
        json_t *o = kld_element(a, ok);
        kld_put(o, "source", kld_count(q->origin), ok);
        kld_put(o, "stratum", q->stratum ? json_string(q->stratum) : json_null(), ok);
        kld_put(o, "unit", json_string(q->in_tokens ? "tokens" : "windows"), ok);
        kld_put(o, "asked", kld_count(q->asked), ok);
        kld_put(o, "windows", kld_count(q->windows), ok);
        kld_put(o, "tokens", kld_count(q->tokens), ok);
    }
    return a;
}

kld_status kld_manifest_record(const kld_manifest *m, const kld_source_sums *sums, size_t excluded,
                               kld_suite *s, kld_err *err) {
    json_t *root = json_object(), *partitions = NULL;
    kld_buf b = {0};
    bool ok = root != NULL;
    char *copy;
    kld_status st;
    kld_put(root, "seed", kld_count(m->opt.seed), &ok);
    kld_put(root, "sources", source_records(m, sums, &ok), &ok);
    kld_put(root, "choice", choice_record(m, excluded, &ok), &ok);
    if (m->n_quotas) kld_put(root, "allocation", quota_records(m, &ok), &ok);
    TRY_TO(done, kld_suite_partitions(s, &partitions, err));
    kld_put(root, "partitions", partitions, &ok);
    st = ok ? kld_json_dump(root, false, &b, err)
            : kld_fail(err, KLD_E_NOMEM, "out of memory for the record of the sources");
    if (st == KLD_OK) st = kld_arena_strndup(&s->arena, &copy, (char *)b.data, b.len, err);
    if (st == KLD_OK) s->built = copy;
done:
    kld_buf_free(&b);
    json_decref(root);
    return st;
}
