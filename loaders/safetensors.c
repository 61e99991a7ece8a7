#include "loaders/safetensors.h"

#include "kld/base/cursor.h"
#include "kld/base/json.h"
#include "kld/base/num.h"
#include "kld/base/sha256.h"

#include <stdlib.h>
#include <string.h>

/* Limits on what a header may ask for, before anything is allocated for it. */
enum {
    MAX_HEADER = 100 * 1000 * 1000, /* the reference reader's limit */
    MAX_TENSORS = 10 * 1000 * 1000,
    MAX_NAME = 64 * 1024,
    MAX_DEPTH = 3, /* object of objects of arrays */
    SNIFF = 64     /* bytes looked at to say what a file is instead */
};
static const uint64_t MAX_DIM = (uint64_t)1 << 53;

static const struct {
    const char *name;
    unsigned bits;
} dtypes[KLD_DTYPE_COUNT] = {
    [KLD_BOOL] = {"BOOL", 8},
    [KLD_U8] = {"U8", 8},
    [KLD_I8] = {"I8", 8},
    [KLD_F8_E4M3] = {"F8_E4M3", 8},
    [KLD_F8_E5M2] = {"F8_E5M2", 8},
    [KLD_F8_E8M0] = {"F8_E8M0", 8},
    [KLD_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [KLD_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [KLD_I16] = {"I16", 16},
    [KLD_U16] = {"U16", 16},
    [KLD_F16] = {"F16", 16},
    [KLD_BF16] = {"BF16", 16},
    [KLD_I32] = {"I32", 32},
    [KLD_U32] = {"U32", 32},
    [KLD_F32] = {"F32", 32},
    [KLD_I64] = {"I64", 64},
    [KLD_U64] = {"U64", 64},
    [KLD_F64] = {"F64", 64},
    [KLD_C64] = {"C64", 64},
    [KLD_F4] = {"F4", 4},
    [KLD_F6_E2M3] = {"F6_E2M3", 6},
    [KLD_F6_E3M2] = {"F6_E3M2", 6},
};

const char *kld_dtype_name(kld_dtype t) { return t < KLD_DTYPE_COUNT ? dtypes[t].name : "?"; }

unsigned kld_dtype_bits(kld_dtype t) { return t < KLD_DTYPE_COUNT ? dtypes[t].bits : 0; }

static bool dtype_of(const char *s, kld_dtype *out) {
    for (int t = 0; t < KLD_DTYPE_COUNT; t++) {
        if (!strcmp(s, dtypes[t].name)) {
            *out = (kld_dtype)t;
            return true;
        }
    }
    return false;
}

/* What else a file with a nonsense length field is, as far as its first bytes tell. */
static const char *sniff(const unsigned char *p, size_t n) {
    static const char lfs[] = "version https://git-lfs";
    if (n >= sizeof lfs - 1 && !memcmp(p, lfs, sizeof lfs - 1))
        return "; this is a git-lfs pointer, not the file itself (run: git lfs pull)";
    size_t i = 0;
    while (i < n && (p[i] == ' ' || p[i] == '\n' || p[i] == '\r' || p[i] == '\t')) i++;
    if (i < n && p[i] == '<')
        return "; this is an HTML page, not the file itself (download it again)";
    if (n >= 4 && !memcmp(p, "GGUF", 4)) return "; this is a GGUF file";
    if (n >= 4 && !memcmp(p, "PK\003\004", 4)) return "; this is a PyTorch (zip) file";
    return "";
}

/* Rule 1: the length field against the file. */
static kld_status header_length(const unsigned char *head, size_t head_len, uint64_t file_size,
                                uint64_t *len, kld_err *err) {
    const char *hint = sniff(head, num_min(head_len, SNIFF));
    if (file_size < 8 || head_len < 8)
        return kld_fail(err, KLD_E_INPUT,
                        "%llu bytes are too few for a safetensors file (at least 10)%s",
                        (unsigned long long)file_size, hint);
    kld_cursor c = kld_cursor_of(head, head_len);
    uint64_t n = kld_cursor_u64(&c);
    if (n < 2)
        return kld_fail(err, KLD_E_INPUT, "header length %llu is below 2%s", (unsigned long long)n,
                        hint);
    if (n > MAX_HEADER)
        return kld_fail(err, KLD_E_INPUT, "header length %llu is above the limit of %d%s",
                        (unsigned long long)n, MAX_HEADER, hint);
    if (n > file_size - 8)
        return kld_fail(err, KLD_E_INPUT,
                        "header of %llu bytes does not fit into a file of %llu: truncated%s",
                        (unsigned long long)n, (unsigned long long)file_size, hint);
    if (n > head_len - 8)
        return kld_fail(err, KLD_E_INPUT, "header of %llu bytes is truncated: %zu are at hand",
                        (unsigned long long)n, head_len - 8);
    *len = n;
    return KLD_OK;
}

/* Rule 2: one object, then spaces and nothing else. */
static kld_status header_json(const unsigned char *text, size_t n, json_t **root, kld_err *err) {
    if (text[0] != '{')
        return kld_fail(err, KLD_E_INPUT, "the header begins with byte 0x%02x, not with '{'",
                        text[0]);
    size_t end = n;
    while (end > 0 && text[end - 1] == ' ') end--;
    if (text[end - 1] != '}')
        return kld_fail(err, KLD_E_INPUT,
                        "the header ends with byte 0x%02x, not with '}' and spaces", text[end - 1]);
    return kld_where(err, kld_json_parse(root, text, end, MAX_DEPTH, err), "header");
}

static kld_status check_metadata(json_t *meta, kld_err *err) {
    if (!json_is_object(meta))
        return kld_fail(err, KLD_E_INPUT, "__metadata__ is %s, not an object", kld_json_kind(meta));
    const char *k;
    json_t *v;
    json_object_foreach(meta, k, v) {
        if (!json_is_string(v))
            return kld_fail(err, KLD_E_INPUT, "__metadata__ '%s' is %s, not a string", k,
                            kld_json_kind(v));
    }
    return KLD_OK;
}

/* Rule 5; *bytes = product(shape) * bits / 8. */
static kld_status read_shape(const json_t *info, kld_tensor *t, uint64_t *bytes, kld_err *err) {
    json_t *shape;
    TRY(kld_json_arr(info, "shape", &shape, err));
    size_t rank = json_array_size(shape);
    if (rank > KLD_MAX_RANK)
        return kld_fail(err, KLD_E_INPUT, "rank %zu is above the limit of %d", rank, KLD_MAX_RANK);
    t->rank = (unsigned)rank;
    uint64_t bits = kld_dtype_bits(t->dtype);
    for (size_t i = 0; i < rank; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d))
            return kld_fail(err, KLD_E_INPUT, "shape[%zu] is %s, not an integer", i,
                            kld_json_kind(d));
        json_int_t v = json_integer_value(d);
        if (v < 0 || (uint64_t)v > MAX_DIM)
            return kld_fail(err, KLD_E_INPUT, "shape[%zu] is %lld, outside 0..2^53", i,
                            (long long)v);
        t->shape[i] = (uint64_t)v;
    }
    for (size_t i = 0; i < rank; i++) {
        if (!num_mul_u64(bits, t->shape[i], &bits))
            return kld_fail(err, KLD_E_INPUT, "the product of the shape overflows 64 bits");
    }
    if (bits % 8)
        return kld_fail(err, KLD_E_INPUT, "%llu bits are not a whole number of bytes",
                        (unsigned long long)bits);
    *bytes = bits / 8;
    return KLD_OK;
}

/* Rule 6; t->offset is relative to the data buffer here. */
static kld_status read_offsets(const json_t *info, uint64_t data_bytes, uint64_t want,
                               kld_tensor *t, kld_err *err) {
    json_t *off;
    TRY(kld_json_arr(info, "data_offsets", &off, err));
    const json_t *a = json_array_get(off, 0), *b = json_array_get(off, 1);
    if (json_array_size(off) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
        json_integer_value(a) < 0 || json_integer_value(b) < 0)
        return kld_fail(err, KLD_E_INPUT, "data_offsets are not two non-negative integers");
    uint64_t begin = (uint64_t)json_integer_value(a), end = (uint64_t)json_integer_value(b);
    if (begin > end)
        return kld_fail(err, KLD_E_INPUT, "data_offsets begin %llu is after end %llu",
                        (unsigned long long)begin, (unsigned long long)end);
    if (end > data_bytes)
        return kld_fail(err, KLD_E_INPUT,
                        "data_offsets end %llu is beyond the %llu bytes of data: truncated file?",
                        (unsigned long long)end, (unsigned long long)data_bytes);
    if (end - begin != want)
        return kld_fail(err, KLD_E_INPUT,
                        "data_offsets span %llu bytes, but dtype and shape need %llu",
                        (unsigned long long)(end - begin), (unsigned long long)want);
    t->offset = begin;
    t->bytes = want;
    return KLD_OK;
}

static kld_status read_tensor(const char *name, const json_t *info, uint64_t data_bytes,
                              kld_tensor *t, kld_err *err) {
    size_t n = strlen(name);
    if (n > MAX_NAME)
        return kld_fail(err, KLD_E_INPUT, "a name of %zu bytes is above the limit of %d", n,
                        MAX_NAME);
    if (!json_is_object(info))
        return kld_fail(err, KLD_E_INPUT, "described by %s, not by an object", kld_json_kind(info));
    const char *dtype;
    TRY(kld_json_str(info, "dtype", &dtype, err));
    if (!dtype_of(dtype, &t->dtype))
        return kld_fail(err, KLD_E_INPUT, "unknown dtype '%.40s'", dtype);
    uint64_t want = 0;
    TRY(read_shape(info, t, &want, err));
    return read_offsets(info, data_bytes, want, t, err);
}

static int by_offset(const void *pa, const void *pb) {
    const kld_tensor *a = pa, *b = pb;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Rule 7: sorted by offset, the tensors tile the buffer. */
static kld_status check_tiling(const kld_tensor *t, size_t n, uint64_t data_bytes, kld_err *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (t[i].offset != at)
            return kld_fail(err, KLD_E_INPUT,
                            "tensor '%.200s' begins at data byte %llu, but %s at %llu: %s",
                            t[i].name, (unsigned long long)t[i].offset,
                            i ? "the one before it ends" : "the data begins",
                            (unsigned long long)at, t[i].offset > at ? "a hole" : "an overlap");
        at += t[i].bytes;
    }
    if (at != data_bytes)
        return kld_fail(err, KLD_E_INPUT,
                        "%llu bytes follow the last tensor, which ends at data byte %llu",
                        (unsigned long long)(data_bytes - at), (unsigned long long)at);
    return KLD_OK;
}

static kld_status read_tensors(json_t *root, uint64_t data_start, uint64_t data_bytes,
                               uint32_t shard, kld_arena *arena, kld_tensor **out, size_t *n,
                               kld_err *err) {
    size_t count = json_object_size(root);
    if (count > MAX_TENSORS)
        return kld_fail(err, KLD_E_INPUT, "%zu tensors are above the limit of %d", count,
                        MAX_TENSORS);
    kld_tensor *t;
    TRY(ARENA_ARRAY(arena, &t, count, err));
    size_t k = 0;
    const char *name;
    json_t *info;
    json_object_foreach(root, name, info) {
        if (!strcmp(name, "__metadata__")) {
            TRY(check_metadata(info, err));
            continue;
        }
        kld_status st = read_tensor(name, info, data_bytes, &t[k], err);
        if (st != KLD_OK) return kld_where(err, st, "tensor '%.200s'", name);
        char *copy;
        TRY(kld_arena_strndup(arena, &copy, name, strlen(name), err));
        t[k].name = copy;
        t[k].shard = shard;
        k++;
    }
    qsort(t, k, sizeof *t, by_offset);
    TRY(check_tiling(t, k, data_bytes, err));
    for (size_t i = 0; i < k; i++) t[i].offset += data_start;
    *out = t;
    *n = k;
    return KLD_OK;
}

kld_status kld_safetensors_parse(const char *path, const unsigned char *head, size_t head_len,
                                 uint64_t file_size, uint32_t shard, kld_arena *arena,
                                 kld_tensor **tensors, size_t *n, kld_err *err) {
    uint64_t len = 0;
    json_t *root = NULL;
    *tensors = NULL;
    *n = 0;
    kld_status st = header_length(head, head_len, file_size, &len, err);
    if (st == KLD_OK) st = header_json(head + 8, (size_t)len, &root, err);
    if (st == KLD_OK)
        st = read_tensors(root, 8 + len, file_size - 8 - len, shard, arena, tensors, n, err);
    json_decref(root);
    return kld_where(err, st, "%s", path);
}

kld_status kld_safetensors_header(const kld_file *f, uint32_t shard, kld_arena *arena,
                                  kld_tensor **tensors, size_t *n, struct kld_digest *header_sha256,
                                  kld_err *err) {
    unsigned char first[SNIFF] = {0};
    size_t have = (size_t)(f->size < SNIFF ? f->size : SNIFF);
    TRY(kld_file_read(f, first, 0, have, err));
    kld_cursor c = kld_cursor_of(first, have);
    uint64_t len = kld_cursor_u64(&c);
    /* An impossible length is reported by the parser from the first bytes alone. */
    if (c.bad || len > MAX_HEADER || len > f->size - 8)
        return kld_safetensors_parse(f->path, first, have, f->size, shard, arena, tensors, n, err);
    unsigned char *head;
    TRY(NEW_ARRAY(&head, 8 + (size_t)len, err));
    kld_status st = kld_file_read(f, head, 0, 8 + (size_t)len, err);
    if (st == KLD_OK)
        st = kld_safetensors_parse(f->path, head, 8 + (size_t)len, f->size, shard, arena, tensors,
                                   n, err);
    if (st == KLD_OK && header_sha256)
        st = kld_sha256_of(head, 8 + (size_t)len, header_sha256, err);
    kld_free(head);
    return st;
}
