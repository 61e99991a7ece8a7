#include "loaders/checkpoint.h"

#include "kld/base/buf.h"
#include "kld/base/num.h"
#include "kld/base/place.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_CONFIG = 64 << 20,
    MAX_INDEX = 1 << 30,
    MAX_LISTED = 5 /* names spelled out in a message */
};

static const char INDEX_NAME[] = "model.safetensors.index.json";

/* The index as an allow-list: which file each tensor is read from. */
typedef struct shard_list {
    json_t *index;     /* owned; NULL for a single file */
    json_t *map;       /* borrowed from index: tensor -> file */
    const char **name; /* [n] arena; in order of first appearance */
    size_t n;
    kld_buf index_bytes;
} shard_list;

static bool plain_name(const char *s) {
    return *s && !strchr(s, '/') && !strchr(s, '\\') && !strstr(s, "..");
}

static kld_status load_optional(const char *dir, const char *name, json_t **out, kld_err *err) {
    char *path;
    TRY(kld_path_join(&path, dir, name, err));
    kld_status st = KLD_OK;
    if (kld_path_exists(path)) st = kld_json_load(out, path, MAX_CONFIG, err);
    if (st == KLD_OK && *out && !json_is_object(*out))
        st = kld_fail(err, KLD_E_INPUT, "%s: is %s, not an object", path, kld_json_kind(*out));
    kld_free(path);
    return st;
}

/* Says what is there instead: a folder too high, a cache entry, nothing. */
static kld_status no_config(const char *dir, kld_err *err) {
    char **names;
    size_t n;
    TRY(kld_list_dir(dir, &names, &n, err));
    const char *first = n > 0 ? names[0] : "nothing", *second = n > 1 ? names[1] : "";
    kld_status st = kld_fail(err, KLD_E_INPUT,
                             "%s: no config.json (it holds %.60s%s%.60s%s); give the directory of "
                             "a Hugging Face checkpoint",
                             dir, first, n > 1 ? ", " : "", second, n > 2 ? ", ..." : "");
    kld_names_free(names, n);
    return st;
}

static kld_status load_configs(kld_checkpoint *c, kld_buf *config_bytes, kld_err *err) {
    char *path;
    TRY(kld_path_join(&path, c->dir, "config.json", err));
    kld_status st = KLD_OK;
    if (!kld_path_exists(path)) st = no_config(c->dir, err);
    if (st == KLD_OK) st = kld_file_slurp(path, MAX_CONFIG, config_bytes, err);
    if (st == KLD_OK)
        st = kld_where(err,
                       kld_json_parse(&c->config,
                                      config_bytes->data ? (void *)config_bytes->data : (void *)"",
                                      config_bytes->len, 64, err),
                       "%s", path);
    if (st == KLD_OK && !json_is_object(c->config))
        st = kld_fail(err, KLD_E_INPUT, "%s: is %s, not an object", path, kld_json_kind(c->config));
    kld_free(path);
    if (st == KLD_OK) st = load_optional(c->dir, "generation_config.json", &c->generation, err);
    if (st == KLD_OK) st = load_optional(c->dir, "hf_quant_config.json", &c->hf_quant, err);
    return st;
}

static size_t shard_index(const shard_list *s, const char *name) {
    for (size_t i = s->n; i-- > 0;) {
        if (!strcmp(s->name[i], name)) return i;
    }
    return s->n;
}

static kld_status read_index(kld_checkpoint *c, const char *path, shard_list *s, kld_err *err) {
    TRY(kld_file_slurp(path, MAX_INDEX, &s->index_bytes, err));
    TRY(kld_json_parse(&s->index, s->index_bytes.data ? (void *)s->index_bytes.data : (void *)"",
                       s->index_bytes.len, 8, err));
    TRY(kld_json_obj(s->index, "weight_map", &s->map, err));
    size_t cap = 0;
    const char *tensor;
    json_t *file;
    json_object_foreach(s->map, tensor, file) {
        const char *f = json_string_value(file);
        if (!f)
            return kld_fail(err, KLD_E_INPUT, "weight_map '%.200s' is %s, not a file name", tensor,
                            kld_json_kind(file));
        if (!plain_name(f))
            return kld_fail(err, KLD_E_INPUT,
                            "weight_map '%.200s' names '%.200s', which is not a plain file name",
                            tensor, f);
        if (shard_index(s, f) < s->n) continue;
        if (s->n == cap) {
            const char **grown;
            cap = cap ? cap * 2 : 16;
            TRY(ARENA_ARRAY(&c->arena, &grown, cap, err));
            if (s->n) memcpy(grown, s->name, s->n * sizeof *grown);
            s->name = grown;
        }
        s->name[s->n++] = f;
    }
    if (!s->n) return kld_fail(err, KLD_E_INPUT, "weight_map is empty");
    return KLD_OK;
}

/* Every missing file at once, before anything is opened. */
static kld_status check_present(const kld_checkpoint *c, const shard_list *s, kld_err *err) {
    kld_buf list = {0};
    size_t missing = 0;
    kld_status st = KLD_OK;
    for (size_t i = 0; st == KLD_OK && i < s->n; i++) {
        char *path;
        st = kld_path_join(&path, c->dir, s->name[i], err);
        if (st == KLD_OK && !kld_path_exists(path) && ++missing <= MAX_LISTED)
            st = kld_buf_addf(&list, err, "%s%s", missing > 1 ? ", " : "", s->name[i]);
        kld_free(path);
    }
    if (st == KLD_OK && missing)
        st = kld_fail(err, KLD_E_INPUT,
                      "%s: %zu of the %zu files named by %s are missing: %s%s; incomplete download "
                      "or stale index?",
                      c->dir, missing, s->n, INDEX_NAME, (char *)list.data,
                      missing > MAX_LISTED ? ", ..." : "");
    kld_buf_free(&list);
    return st;
}

static bool has_ext(const char *name, const char *ext) {
    size_t n = strlen(name), m = strlen(ext);
    return n > m && !strcmp(name + n - m, ext);
}

static kld_status one_shard(kld_checkpoint *c, shard_list *s, const char *name, kld_err *err) {
    char *copy;
    TRY(kld_arena_strndup(&c->arena, &copy, name, strlen(name), err));
    TRY(ARENA_ARRAY(&c->arena, &s->name, 1, err));
    s->name[0] = copy;
    s->n = 1;
    return KLD_OK;
}

/* Without an index: model.safetensors, else the only *.safetensors. */
static kld_status pick_single(kld_checkpoint *c, shard_list *s, kld_err *err) {
    char **names;
    size_t n, found = 0;
    const char *pick = NULL, *other = NULL;
    TRY(kld_list_dir(c->dir, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        if (has_ext(names[i], ".gguf") || has_ext(names[i], ".bin")) other = names[i];
        if (!has_ext(names[i], ".safetensors")) continue;
        if (!pick || !strcmp(names[i], "model.safetensors")) pick = names[i];
        found++;
    }
    kld_status st = KLD_OK;
    if (!pick)
        st = kld_fail(err, KLD_E_INPUT, "%s: no .safetensors file%s%s%s", c->dir,
                      other ? " (it holds " : "", other ? other : "",
                      other ? ", which kld does not read)" : "; incomplete download?");
    else if (found > 1 && strcmp(pick, "model.safetensors") != 0)
        st = kld_fail(err, KLD_E_INPUT,
                      "%s: %zu .safetensors files (first %s) and no %s to say which tensor is read "
                      "from which",
                      c->dir, found, pick, INDEX_NAME);
    else st = one_shard(c, s, pick, err);
    kld_names_free(names, n);
    return st;
}

static kld_status list_shards(kld_checkpoint *c, shard_list *s, kld_err *err) {
    char *path;
    TRY(kld_path_join(&path, c->dir, INDEX_NAME, err));
    kld_status st;
    if (kld_path_exists(path)) {
        st = kld_where(err, read_index(c, path, s, err), "%s", path);
        if (st == KLD_OK) st = check_present(c, s, err);
    } else {
        st = pick_single(c, s, err);
    }
    kld_free(path);
    return st;
}

static kld_status sha_u64(kld_sha256 *h, uint64_t v, kld_err *err) {
    unsigned char b[8];
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(v >> (8 * i));
    return kld_sha256_add(h, b, sizeof b, err);
}

/* Length first, so that no two lists of fields have the same bytes. */
static kld_status sha_field(kld_sha256 *h, const void *p, size_t n, kld_err *err) {
    TRY(sha_u64(h, n, err));
    return n ? kld_sha256_add(h, p, n, err) : KLD_OK;
}

/* Opens shard i and appends the tensors that the map gives to it. */
static kld_status open_shard(kld_checkpoint *c, const shard_list *s, size_t i, size_t *cap,
                             kld_sha256 *h, kld_err *err) {
    char *path;
    TRY(kld_path_join(&path, c->dir, s->name[i], err));
    kld_status st = kld_file_open(&c->shards[i], path, err);
    kld_free(path);
    if (st != KLD_OK) return st;
    c->n_shards = i + 1;
    kld_tensor *t;
    size_t n;
    kld_digest head;
    TRY(kld_safetensors_header(&c->shards[i], (uint32_t)i, &c->arena, &t, &n, &head, err));
    TRY(sha_field(h, s->name[i], strlen(s->name[i]), err));
    TRY(sha_u64(h, c->shards[i].size, err));
    TRY(kld_sha256_add(h, head.b, sizeof head.b, err));
    if (*cap - c->n_tensors < n) {
        size_t want = num_max(c->n_tensors + n, *cap * 2);
        TRY(kld_realloc((void **)&c->tensors, want, sizeof *c->tensors, err));
        *cap = want;
    }
    for (size_t k = 0; k < n; k++) {
        const char *file = s->map ? json_string_value(json_object_get(s->map, t[k].name)) : NULL;
        if (s->map && !file) {
            c->n_unmapped++;
        } else if (file && strcmp(file, s->name[i]) != 0) {
            c->n_superseded++;
        } else {
            c->tensors[c->n_tensors++] = t[k];
            c->total_bytes += t[k].bytes;
        }
    }
    return KLD_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kld_tensor *)a)->name, ((const kld_tensor *)b)->name);
}

static kld_status check_mapped(const kld_checkpoint *c, const shard_list *s, kld_err *err) {
    if (!s->map || json_object_size(s->map) == c->n_tensors) return KLD_OK;
    const char *tensor;
    json_t *file;
    json_object_foreach(s->map, tensor, file) {
        if (!kld_checkpoint_find(c, tensor))
            return kld_fail(err, KLD_E_INPUT,
                            "%s/%s: maps tensor '%.200s' to '%.200s', which does not hold it",
                            c->dir, INDEX_NAME, tensor, json_string_value(file));
    }
    return KLD_OK;
}

static kld_status open_shards(kld_checkpoint *c, const shard_list *s, kld_sha256 *h, kld_err *err) {
    size_t cap = 0;
    TRY(NEW_ARRAY(&c->shards, s->n, err));
    for (size_t i = 0; i < s->n; i++) TRY(open_shard(c, s, i, &cap, h, err));
    if (c->n_tensors) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
    return check_mapped(c, s, err);
}

kld_status kld_checkpoint_open(kld_checkpoint *c, const char *dir, kld_err *err) {
    memset(c, 0, sizeof *c);
    if (!kld_path_is_dir(dir))
        return kld_fail(err, KLD_E_INPUT, "%s: %s", dir,
                        kld_path_exists(dir) ? "is a file; give the directory that holds it"
                                             : "no such directory");
    static const char domain[] = "kld checkpoint 1";
    kld_buf config = {0};
    shard_list s = {0};
    kld_sha256 h = {0};
    kld_status st;
    TRY_TO(out, kld_strdup(&c->dir, dir, err));
    TRY_TO(out, load_configs(c, &config, err));
    TRY_TO(out, list_shards(c, &s, err));
    TRY_TO(out, kld_sha256_begin(&h, err));
    TRY_TO(out, sha_field(&h, domain, sizeof domain - 1, err));
    TRY_TO(out, sha_field(&h, config.data, config.len, err));
    TRY_TO(out, sha_field(&h, s.index_bytes.data, s.index_bytes.len, err));
    TRY_TO(out, open_shards(c, &s, &h, err));
    TRY_TO(out, kld_sha256_end(&h, &c->digest, err));
out:
    kld_sha256_drop(&h);
    json_decref(s.index);
    kld_buf_free(&s.index_bytes);
    kld_buf_free(&config);
    if (st != KLD_OK) kld_checkpoint_close(c);
    return st;
}

void kld_checkpoint_close(kld_checkpoint *c) {
    for (size_t i = 0; i < c->n_shards; i++) kld_file_close(&c->shards[i]);
    kld_free(c->shards);
    kld_free(c->tensors);
    json_decref(c->config);
    json_decref(c->generation);
    json_decref(c->hf_quant);
    kld_free(c->dir);
    kld_arena_free(&c->arena);
    memset(c, 0, sizeof *c);
}

const kld_tensor *kld_checkpoint_find(const kld_checkpoint *c, const char *name) {
    kld_tensor key = {.name = name};
    return c->n_tensors ? bsearch(&key, c->tensors, c->n_tensors, sizeof key, by_name) : NULL;
}

kld_status kld_checkpoint_read(const kld_checkpoint *c, const kld_tensor *t, uint64_t offset,
                               void *dst, size_t bytes, kld_err *err) {
    if (offset > t->bytes || bytes > t->bytes - offset)
        return kld_fail(err, KLD_E_INTERNAL, "tensor '%.200s': %zu bytes at %llu of %llu", t->name,
                        bytes, (unsigned long long)offset, (unsigned long long)t->bytes);
    return kld_where(err, kld_file_read(&c->shards[t->shard], dst, t->offset + offset, bytes, err),
                     "tensor '%.200s'", t->name);
}

void kld_checkpoint_hint(const kld_checkpoint *c, const kld_tensor *t) {
    kld_file_hint(&c->shards[t->shard], t->offset, t->bytes);
}

kld_status kld_checkpoint_hash_full(const kld_checkpoint *c, kld_digest *out, kld_err *err) {
    enum { PIECE = 4 << 20 };
    unsigned char *buf;
    kld_sha256 h = {0};
    TRY(NEW_ARRAY(&buf, PIECE, err));
    kld_status st;
    TRY_TO(out, kld_sha256_begin(&h, err));
    for (size_t i = 0; i < c->n_shards; i++) {
        const kld_file *f = &c->shards[i];
        for (uint64_t at = 0; at < f->size;) {
            size_t n = (size_t)(f->size - at < PIECE ? f->size - at : PIECE);
            TRY_TO(out, kld_file_read(f, buf, at, n, err));
            TRY_TO(out, kld_sha256_add(&h, buf, n, err));
            at += n;
        }
    }
    TRY_TO(out, kld_sha256_end(&h, out, err));
out:
    kld_sha256_drop(&h);
    kld_free(buf);
    return st;
}

kld_status kld_checkpoint_not_output(const kld_checkpoint *c, const char *output, kld_err *err) {
    for (size_t i = 0; i < c->n_shards; i++)
        TRY(kld_output_not_input(output, c->shards[i].path, err));
    return KLD_OK;
}
