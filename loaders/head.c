#include "loaders/head.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/classify.h"
#include "loaders/safetensors_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20, MAX_HEADER = 1 << 20 /* of a file with one head */ };

static const char WEIGHT[] = "lm_head.weight", BIAS[] = "lm_head.bias";
static const char META_DIGEST[] = "kld_head", META_CAP[] = "logit_cap", META_NAME[] = "checkpoint";

/* ---- reading in pieces ------------------------------------------------------------------- */

/* Every byte of a tensor to take, in order; room [PIECE]. */
static kld_status each_piece(const kld_model *m, const kld_tensor *t, unsigned char *room,
                             kld_status (*take)(void *ctx, const void *p, size_t n, kld_err *err),
                             void *ctx, kld_err *err) {
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = (size_t)num_min(t->bytes - at, PIECE);
        TRY(kld_checkpoint_read(&m->ckpt, t, at, room, n, err));
        TRY(take(ctx, room, n, err));
        at += n;
    }
    return KLD_OK;
}

static kld_status take_hash(void *ctx, const void *p, size_t n, kld_err *err) {
    return kld_sha256_add(ctx, p, n, err);
}

static kld_status take_file(void *ctx, const void *p, size_t n, kld_err *err) {
    return kld_writer_add(ctx, p, n, err);
}

/* ---- digest ------------------------------------------------------------------------------ */

static kld_status add_u64(kld_sha256 *h, uint64_t v, kld_err *err) {
    unsigned char b[8];
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(v >> (8 * i));
    return kld_sha256_add(h, b, sizeof b, err);
}

/* Length first, so that no two lists of fields have the same bytes. */
static kld_status add_text(kld_sha256 *h, const char *s, kld_err *err) {
    TRY(add_u64(h, strlen(s), err));
    return kld_sha256_add(h, s, strlen(s), err);
}

/* What the stored parts mean. */
static kld_status add_layout(kld_sha256 *h, const kld_weight *w, kld_err *err) {
    const uint64_t v[] = {w->rows,         w->cols,     w->block_cols,    w->block_rows,
                          w->groups,       w->zero_add, w->symmetric,     w->global_divides,
                          w->in_major,     w->shards,   w->shard_rows[0], w->shard_rows[1],
                          w->shard_rows[2]};
    TRY(add_text(h, "kld head 1", err));
    TRY(add_text(h, kld_format_name(w->format), err));
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) TRY(add_u64(h, v[i], err));
    return KLD_OK;
}

static kld_status add_part(kld_sha256 *h, const kld_model *m, unsigned part, const kld_tensor *t,
                           unsigned char *room, kld_err *err) {
    if (!t) return KLD_OK;
    TRY(add_u64(h, part, err));
    TRY(add_text(h, kld_dtype_name(t->dtype), err));
    TRY(add_u64(h, t->rank, err));
    for (unsigned d = 0; d < t->rank; d++) TRY(add_u64(h, t->shape[d], err));
    TRY(add_u64(h, t->bytes, err));
    return each_piece(m, t, room, take_hash, h, err);
}

kld_status kld_head_digest(const kld_model *m, kld_digest *out, kld_err *err) {
    const kld_weight *w = &m->global[KLD_SLOT_HEAD];
    kld_sha256 h = {0};
    unsigned char *room;
    kld_status st;
    TRY(NEW_ARRAY(&room, PIECE, err));
    TRY_TO(out, kld_sha256_begin(&h, err));
    TRY_TO(out, add_layout(&h, w, err));
    for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++)
        TRY_TO(out, add_part(&h, m, p, kld_weight_part(w, p), room, err));
    TRY_TO(out, add_part(&h, m, KLD_PART_COUNT, w->input_scale, room, err));
    TRY_TO(out, kld_sha256_end(&h, out, err));
out:
    kld_sha256_drop(&h);
    kld_free(room);
    return st;
}

/* ---- writing ----------------------------------------------------------------------------- */

kld_status kld_head_path(char **out, const char *dir, const kld_digest *digest, kld_err *err) {
    char hex[KLD_SHA256_HEX], name[64];
    snprintf(name, sizeof name, "head-%.12s.safetensors", kld_digest_hex(digest, hex));
    return kld_path_join(out, dir, name, err);
}

static json_t *metadata_of(const kld_model *m, const kld_digest *digest) {
    char hex[KLD_SHA256_HEX], cap[32];
    const char *slash = strrchr(m->ckpt.dir, '/');
    json_t *name = json_string(slash && slash[1] ? slash + 1 : m->ckpt.dir); /* NULL: not UTF-8 */
    snprintf(cap, sizeof cap, "%.17g", m->config.logit_cap);
    return json_pack("{s:s, s:s, s:s, s:o}", "format", "pt", META_DIGEST,
                     kld_digest_hex(digest, hex), META_CAP, cap, META_NAME,
                     name ? name : json_string(""));
}

static kld_status write_head(const kld_model *m, const kld_digest *digest, const char *path,
                             kld_err *err) {
    const kld_weight *w = &m->global[KLD_SLOT_HEAD];
    kld_tensor t[2] = {*w->data};
    size_t n = 1;
    t[0].name = WEIGHT;
    if (w->bias) t[n++] = *w->bias;
    if (w->bias) t[1].name = BIAS;
    kld_buf header = {0};
    kld_writer out = {.fd = -1};
    unsigned char *room = NULL;
    json_t *meta = metadata_of(m, digest);
    kld_status st = meta ? KLD_OK : kld_fail(err, KLD_E_NOMEM, "out of memory");
    if (st == KLD_OK) st = kld_safetensors_layout(t, n, meta, &header, err);
    if (st == KLD_OK) st = NEW_ARRAY(&room, PIECE, err);
    if (st == KLD_OK) st = kld_writer_open(&out, path, err);
    if (st != KLD_OK) goto done;
    st = kld_writer_add(&out, header.data, header.len, err);
    for (size_t i = 0; i < n && st == KLD_OK; i++)
        st = each_piece(m, t[i].name == WEIGHT || !w->bias ? w->data : w->bias, room, take_file,
                        &out, err);
    if (st == KLD_OK) st = kld_writer_commit(&out, err);
    if (st != KLD_OK) kld_writer_abort(&out);
done:
    json_decref(meta);
    kld_free(room);
    kld_buf_free(&header);
    return st;
}

kld_status kld_head_keepable(const kld_model *m, kld_err *err) {
    const kld_weight *w = &m->global[KLD_SLOT_HEAD];
    if (w->format <= KLD_FMT_F32 && !w->in_major) return KLD_OK;
    return kld_fail(err, KLD_E_UNSUPPORTED,
                    "the head is stored as %s, which is not kept as a file of its own; keep the "
                    "checkpoint %.300s",
                    kld_format_name(w->format), m->ckpt.dir);
}

kld_status kld_head_save(const kld_model *m, const kld_digest *digest, const char *dir, char **path,
                         kld_err *err) {
    *path = NULL;
    TRY(kld_head_keepable(m, err));
    TRY(kld_head_path(path, dir, digest, err));
    kld_model *there = NULL;
    kld_status st = kld_path_exists(*path) ? kld_head_open(&there, *path, digest, err)
                                           : write_head(m, digest, *path, err);
    kld_model_free(there);
    if (st == KLD_OK) return st;
    kld_free(*path);
    *path = NULL;
    return st;
}

/* ---- reading ----------------------------------------------------------------------------- */

static kld_status read_metadata(const kld_file *f, json_t **root, const json_t **meta,
                                kld_err *err) {
    unsigned char first[8];
    uint64_t n = 0;
    char *text;
    TRY(kld_file_read(f, first, 0, sizeof first, err));
    for (size_t i = 0; i < 8; i++) n |= (uint64_t)first[i] << (8 * i);
    if (n > MAX_HEADER)
        return kld_fail(err, KLD_E_INPUT, "a header of %llu bytes is not that of one head",
                        (unsigned long long)n);
    TRY(NEW_ARRAY(&text, (size_t)n, err));
    kld_status st = kld_file_read(f, text, sizeof first, (size_t)n, err);
    if (st == KLD_OK) st = kld_json_parse(root, text, (size_t)n, 64, err);
    kld_free(text);
    if (st == KLD_OK) *meta = json_object_get(*root, "__metadata__");
    return st;
}

static kld_status read_cap(const json_t *meta, double *cap, kld_err *err) {
    const char *text = json_string_value(json_object_get(meta, META_CAP));
    if (!text || !json_object_get(meta, META_DIGEST))
        return kld_fail(err, KLD_E_INPUT,
                        "its metadata lack '%s' or '%s': this is no head that kld kept; give such "
                        "a file, or the directory of the checkpoint",
                        META_DIGEST, META_CAP);
    char *end;
    *cap = strtod(text, &end);
    if (end == text || *end || !isfinite(*cap) || *cap < 0)
        return kld_fail(err, KLD_E_INPUT, "'%s' is '%.40s', not a number from 0", META_CAP, text);
    return KLD_OK;
}

static kld_status bind(kld_model *m, kld_err *err) {
    kld_checkpoint *c = &m->ckpt;
    kld_module mod = {.prefix = "lm_head"};
    const kld_tensor *w = NULL;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const kld_tensor *t = &c->tensors[i];
        if (!strcmp(t->name, WEIGHT)) w = t;
        else if (strcmp(t->name, BIAS) != 0)
            return kld_fail(err, KLD_E_INPUT, "tensor '%.200s' has no place in a head", t->name);
        mod.suffix[mod.n] = t->name + strlen("lm_head.");
        mod.part[mod.n++] = t;
        c->total_bytes += t->bytes;
    }
    if (!w || w->rank != 2 || !w->shape[0] || !w->shape[1])
        return kld_fail(err, KLD_E_INPUT, "there is no matrix '%s'", WEIGHT);
    kld_expect want = {
        .rows = (size_t)w->shape[0], .cols = (size_t)w->shape[1], .bias = mod.n == 2};
    TRY(kld_weight_classify(&m->global[KLD_SLOT_HEAD], &mod, &want, err));
    m->config.vocab = want.rows;
    m->config.hidden = want.cols;
    return KLD_OK;
}

static kld_status open_file(kld_model *m, const char *path, kld_err *err) {
    kld_checkpoint *c = &m->ckpt;
    kld_tensor *t;
    json_t *root = NULL;
    const json_t *meta = NULL;
    TRY(kld_strdup(&c->dir, path, err));
    TRY(NEW_ARRAY(&c->shards, 1, err));
    TRY(kld_file_open(&c->shards[0], path, err));
    c->n_shards = 1;
    size_t n;
    TRY(kld_safetensors_header(&c->shards[0], 0, &c->arena, &t, &n, NULL, err));
    TRY(NEW_ARRAY(&c->tensors, n, err));
    if (n) memcpy(c->tensors, t, n * sizeof *t);
    c->n_tensors = n;
    kld_status st = read_metadata(&c->shards[0], &root, &meta, err);
    if (st == KLD_OK) st = read_cap(meta, &m->config.logit_cap, err);
    if (st == KLD_OK) st = bind(m, err);
    json_decref(root);
    m->family = "";
    return kld_where(err, st, "%s", path);
}

static kld_status same_head(const kld_model *m, const char *path, const kld_digest *digest,
                            kld_err *err) {
    kld_digest found;
    char a[KLD_SHA256_HEX], b[KLD_SHA256_HEX];
    TRY(kld_head_digest(m, &found, err));
    if (kld_same_digest(&found, digest)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s: holds the head %s, not %s", path,
                    kld_digest_hex(&found, a), kld_digest_hex(digest, b));
}

kld_status kld_head_open(kld_model **out, const char *path, const kld_digest *digest,
                         kld_err *err) {
    kld_model *m = NULL;
    kld_status st;
    *out = NULL;
    if (kld_path_is_dir(path)) {
        st = kld_model_open(&m, path, err);
    } else {
        TRY(NEW_ARRAY(&m, 1, err));
        st = open_file(m, path, err);
    }
    if (st == KLD_OK) st = same_head(m, path, digest, err);
    if (st == KLD_OK) *out = m;
    else kld_model_free(m);
    return st;
}
