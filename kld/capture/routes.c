#include "kld/capture/routes.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/system.h"
#include "kld/capture/identity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = {'k', 'l', 'd', 'r', 'o', 'u', 't', 'e'};
enum { VERSION = 1, HEAD = 8 + 4 + 4 + 8 + 8 + KLD_SHA256_BYTES };

struct kld_route_book {
    const kld_suite *suite;
    size_t layers, k, experts;
    size_t *first; /* owned [windows + 1]: row of a window's first token; the last: all rows */
    kld_route_io io;
    /* kept */
    const char *dir;
    kld_digest run_id;
    kld_writer writer; /* of the layer being taken */
    kld_sha256 sha;
    kld_file *file; /* owned [layers]; of finished layers, opened when first needed */
    bool *mine;     /* owned [layers]: written by this run */
    /* replayed */
    kld_spill spill; /* [layers][rows]: u16 id[k] f32 weight[k] */
    /* one window on its way */
    unsigned char *bytes; /* owned */
    size_t longest;
};

static size_t row_bytes(const kld_route_book *b) { return 6 * b->k + 4; }

static size_t all_rows(const kld_route_book *b) { return b->first[b->suite->n_windows]; }

static kld_status open_book(kld_route_book **out, const kld_model *m, const kld_suite *suite,
                            kld_err *err) {
    *out = NULL;
    const kld_router *r = &m->config.router;
    size_t layers = kld_model_expert_layers(m, m->config.layers);
    if (!layers)
        return kld_fail(err, KLD_E_UNSUPPORTED, "%s: a %s model without experts has no routes",
                        m->ckpt.dir, m->family);
    kld_route_book *b;
    TRY(NEW_ARRAY(&b, 1, err));
    *b = (kld_route_book){.suite = suite, .layers = layers, .k = r->top_k, .experts = r->experts};
    b->writer.fd = b->spill.fd = -1;
    kld_status st = NEW_ARRAY(&b->first, suite->n_windows + 1, err);
    for (size_t w = 0; st == KLD_OK && w < suite->n_windows; w++) {
        b->first[w + 1] = b->first[w] + suite->windows[w].n;
        b->longest = num_max(b->longest, suite->windows[w].n);
    }
    if (st == KLD_OK) st = NEW_ARRAY(&b->bytes, num_max(b->longest, 1) * row_bytes(b), err);
    if (st == KLD_OK) *out = b;
    else kld_routes_close(b);
    return st;
}

void kld_routes_close(kld_route_book *b) {
    if (!b) return;
    kld_writer_abort(&b->writer);
    kld_sha256_drop(&b->sha);
    for (size_t l = 0; b->file && l < b->layers; l++) kld_file_close(&b->file[l]);
    kld_spill_close(&b->spill);
    kld_free(b->file);
    kld_free(b->mine);
    kld_free(b->first);
    kld_free(b->bytes);
    kld_free(b);
}

const kld_route_io *kld_routes_io(const kld_route_book *b) { return &b->io; }

/* ---- values ----------------------------------------------------------------------------- */

static void put16(unsigned char *p, uint32_t v) {
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}

static void put_f32(unsigned char *p, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    put16(p, u);
    put16(p + 2, u >> 16);
}

static uint32_t get16(const unsigned char *p) { return p[0] | (uint32_t)p[1] << 8; }

static float get_f32(const unsigned char *p) {
    uint32_t u = get16(p) | get16(p + 2) << 16;
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* ---- keeping ---------------------------------------------------------------------------- */

static void layer_name(const kld_route_book *b, size_t layer, char *out, size_t size) {
    snprintf(out, size, "%s/routes-%04zu.bin", b->dir, layer);
}

enum { MAX_PATH = 4200 };

static kld_status write_head(const kld_route_book *b, size_t layer, kld_buf *out, kld_err *err) {
    TRY(kld_buf_add(out, magic, sizeof magic, err));
    TRY(kld_buf_u32(out, VERSION, err));
    TRY(kld_buf_u32(out, (uint32_t)layer, err));
    TRY(kld_buf_u64(out, all_rows(b), err));
    TRY(kld_buf_u64(out, b->k, err));
    return kld_buf_add(out, b->run_id.b, sizeof b->run_id.b, err);
}

/* What an earlier run wrote is read to its end before it is trusted. */
static kld_status check_digest(const kld_file *f, kld_err *err) {
    enum { PIECE = 1 << 20 };
    unsigned char *buf;
    kld_sha256 sha = {0};
    kld_digest want, got;
    uint64_t end = f->size - KLD_SHA256_BYTES;
    TRY(NEW_ARRAY(&buf, PIECE, err));
    kld_status st;
    TRY_TO(done, kld_sha256_begin(&sha, err));
    for (uint64_t at = 0; at < end; at += PIECE) {
        size_t n = (size_t)num_min(PIECE, end - at);
        TRY_TO(done, kld_file_read(f, buf, at, n, err));
        TRY_TO(done, kld_sha256_add(&sha, buf, n, err));
    }
    TRY_TO(done, kld_sha256_end(&sha, &got, err));
    TRY_TO(done, kld_file_read(f, want.b, end, sizeof want.b, err));
    if (!kld_same_digest(&want, &got))
        st = kld_fail(err, KLD_E_INPUT, "%s: damaged: its SHA-256 does not match", f->path);
done:
    kld_sha256_drop(&sha);
    kld_free(buf);
    return st;
}

static kld_status check_layer(const kld_route_book *b, size_t layer, kld_err *err) {
    const kld_file *f = &b->file[layer];
    unsigned char head[HEAD];
    kld_buf want = {0};
    uint64_t size = HEAD + (uint64_t)all_rows(b) * row_bytes(b) + KLD_SHA256_BYTES;
    kld_status st;
    TRY_TO(done, write_head(b, layer, &want, err));
    if (f->size == size) TRY_TO(done, kld_file_read(f, head, 0, HEAD, err));
    if (f->size != size || memcmp(head, want.data, HEAD) != 0)
        st = kld_fail(err, KLD_E_INPUT, "%s: is not of this run, or cut short", f->path);
    else if (!b->mine[layer]) st = check_digest(f, err);
done:
    kld_buf_free(&want);
    return st;
}

static kld_status open_layer(kld_route_book *b, size_t layer, kld_err *err) {
    char path[MAX_PATH];
    if (b->file[layer].fd >= 0) return KLD_OK;
    layer_name(b, layer, path, sizeof path);
    kld_status st = kld_file_open(&b->file[layer], path, err);
    if (st == KLD_OK) st = check_layer(b, layer, err);
    if (st != KLD_OK) kld_file_close(&b->file[layer]);
    return st == KLD_E_INPUT ? kld_where(err, st, "start again with --force, not --resume") : st;
}

/* Layers that an earlier run computed are looked at before this one goes on, not when it is done
 * with all of its own. */
static kld_status check_earlier(kld_route_book *b, size_t layer, kld_err *err) {
    for (size_t l = 0; l < layer; l++)
        if (!b->mine[l]) TRY(open_layer(b, l, err));
    return KLD_OK;
}

static kld_status add(kld_route_book *b, const void *p, size_t n, kld_err *err) {
    TRY(kld_sha256_add(&b->sha, p, n, err));
    return kld_writer_add(&b->writer, p, n, err);
}

static kld_status begin_layer(kld_route_book *b, size_t layer, kld_err *err) {
    char path[MAX_PATH];
    kld_buf head = {0};
    TRY(check_earlier(b, layer, err));
    layer_name(b, layer, path, sizeof path);
    b->mine[layer] = true;
    kld_file_close(&b->file[layer]);
    TRY(kld_mkdir(b->dir, err));
    TRY(kld_writer_open(&b->writer, path, err));
    kld_status st = kld_sha256_begin(&b->sha, err);
    if (st == KLD_OK) st = write_head(b, layer, &head, err);
    if (st == KLD_OK) st = add(b, head.data, head.len, err);
    kld_buf_free(&head);
    return st;
}

static kld_status end_layer(kld_route_book *b, kld_err *err) {
    kld_digest d;
    TRY(kld_sha256_end(&b->sha, &d, err));
    TRY(kld_writer_add(&b->writer, d.b, sizeof d.b, err));
    return kld_writer_commit(&b->writer, err);
}

static kld_status take(void *ctx, size_t layer, size_t w, size_t n, const kld_routes *r,
                       kld_err *err) {
    kld_route_book *b = ctx;
    unsigned char *p = b->bytes;
    if (w == 0) TRY(begin_layer(b, layer, err));
    for (size_t i = 0; i < n * b->k; i++, p += 2) put16(p, r->id[i]);
    for (size_t i = 0; i < n * b->k; i++, p += 4) put_f32(p, r->weight[i]);
    for (size_t i = 0; i < n; i++, p += 4) put_f32(p, r->margin[i]);
    TRY(add(b, b->bytes, n * row_bytes(b), err));
    return w + 1 == b->suite->n_windows ? end_layer(b, err) : KLD_OK;
}

kld_status kld_routes_keep(kld_route_book **out, const kld_model *m, const kld_suite *suite,
                           const char *dir, const kld_digest *run_id, kld_err *err) {
    TRY(open_book(out, m, suite, err));
    kld_route_book *b = *out;
    if (!b) return KLD_E_INTERNAL; /* never: the analyzer cannot know what kld_fail returns */
    b->dir = dir;
    b->run_id = *run_id;
    b->io = (kld_route_io){.ctx = b, .take = take};
    kld_status st;
    TRY_TO(fail, NEW_ARRAY(&b->mine, b->layers, err));
    TRY_TO(fail, NEW_ARRAY(&b->file, b->layers, err));
    for (size_t l = 0; l < b->layers; l++) b->file[l].fd = -1;
    return KLD_OK;
fail:
    kld_routes_close(b);
    *out = NULL;
    return st;
}

static kld_status read_layer(kld_route_book *b, size_t layer, size_t w, kld_records *r,
                             kld_err *err) {
    size_t n = b->suite->windows[w].n, k = b->k, width = row_bytes(b);
    uint64_t at = HEAD + (uint64_t)b->first[w] * width;
    TRY(open_layer(b, layer, err));
    TRY(kld_file_read(&b->file[layer], b->bytes, at, n * width, err));
    const unsigned char *id = b->bytes, *weight = id + 2 * n * k, *margin = weight + 4 * n * k;
    for (size_t i = 0; i < n; i++) {
        size_t row = i * b->layers + layer;
        for (size_t j = 0; j < k; j++) {
            r->route_id[row * k + j] = get16(id + 2 * (i * k + j));
            r->route_weight[row * k + j] = get_f32(weight + 4 * (i * k + j));
        }
        r->route_margin[row] = get_f32(margin + 4 * i);
    }
    return KLD_OK;
}

kld_status kld_routes_window(kld_route_book *b, size_t w, kld_records *r, kld_err *err) {
    TRY(kld_records_alloc_routes(r, b->suite->windows[w].n, b->layers, b->k, err));
    for (size_t l = 0; l < b->layers; l++) TRY(read_layer(b, l, w, r, err));
    return KLD_OK;
}

/* ---- replaying -------------------------------------------------------------------------- */

static kld_status give(void *ctx, size_t layer, size_t w, size_t n, kld_routes *r, kld_err *err) {
    kld_route_book *b = ctx;
    size_t width = 6 * b->k;
    uint64_t at = ((uint64_t)layer * all_rows(b) + b->first[w]) * width;
    TRY(kld_spill_read(&b->spill, b->bytes, at, n * width, err));
    const unsigned char *p = b->bytes;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < b->k; j++, p += 6) {
            r->id[i * b->k + j] = get16(p);
            r->weight[i * b->k + j] = get_f32(p + 2);
        }
        r->margin[i] = NAN; /* nothing was chosen */
    }
    return KLD_OK;
}

static kld_status store_window(kld_route_book *b, size_t w, const kld_records *r, kld_err *err) {
    size_t n = r->route_tokens, width = 6 * b->k;
    for (size_t l = 0; l < b->layers; l++) {
        unsigned char *p = b->bytes;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < b->k; j++, p += 6) {
                size_t from = (i * b->layers + l) * b->k + j;
                put16(p, r->route_id[from]);
                put_f32(p + 2, r->route_weight[from]);
            }
        }
        uint64_t at = ((uint64_t)l * all_rows(b) + b->first[w]) * width;
        TRY(kld_spill_write(&b->spill, b->bytes, at, n * width, err));
    }
    return KLD_OK;
}

static kld_status load_window(kld_route_book *b, kld_capture *c, size_t w, kld_err *err) {
    const kld_window *window = &b->suite->windows[w];
    kld_window_meta meta;
    kld_records r;
    TRY(kld_capture_meta(c, w, &meta, err));
    if (!kld_same_digest(&meta.ids, &window->tokens) || meta.tokens != window->n)
        return kld_fail(err, KLD_E_INPUT, "window %zu holds other tokens than the suite", w);
    TRY(kld_capture_read_routes(c, w, &r, err));
    kld_status st = store_window(b, w, &r, err);
    kld_records_free(&r);
    return st;
}

static kld_status check_source(const kld_route_book *b, const kld_capture_info *i, kld_err *err) {
    const kld_route_info *r = &i->routes;
    if (!r->kept)
        return kld_fail(err, KLD_E_INPUT, "keeps no routes%s; capture it with --routes capture",
                        r->mode == KLD_ROUTES_NATURAL ? "" : " of its own, it was replayed");
    if (!kld_same_digest(&i->suite, &b->suite->digest))
        return kld_fail(err, KLD_E_INPUT, "is of another suite; capture it on this one");
    TRY(kld_identity_partition(i, b->suite, err));
    if (r->layers == b->layers && r->top_k == b->k && r->experts == b->experts) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "has routes of %llu layers to %llu of %llu experts, and this model has %zu "
                    "layers with %zu of %zu: they are not the same architecture",
                    (unsigned long long)r->layers, (unsigned long long)r->top_k,
                    (unsigned long long)r->experts, b->layers, b->k, b->experts);
}

static kld_status load(kld_route_book *b, kld_capture *c, kld_err *err) {
    uint64_t bytes = (uint64_t)b->layers * all_rows(b) * 6 * b->k;
    TRY(check_source(b, kld_capture_header(c), err));
    TRY(kld_spill_open(&b->spill, NULL, num_max(bytes, 1), err));
    for (size_t w = 0; w < b->suite->n_windows; w++) TRY(load_window(b, c, w, err));
    return KLD_OK;
}

kld_status kld_routes_load(kld_route_book **out, const kld_model *m, const kld_suite *suite,
                           const char *path, bool ids_only, kld_route_info *info, kld_err *err) {
    kld_capture *c;
    TRY(open_book(out, m, suite, err));
    kld_route_book *b = *out;
    if (!b) return KLD_E_INTERNAL; /* never: the analyzer cannot know what kld_fail returns */
    b->io = (kld_route_io){.ctx = b, .give = give, .ids_only = ids_only};
    kld_status st = kld_capture_open(&c, path, err);
    if (st == KLD_OK) {
        st = kld_where(err, load(b, c, err), "%s", path);
        *info = (kld_route_info){.mode = ids_only ? KLD_ROUTES_ID_PINNED : KLD_ROUTES_REPLAYED,
                                 .layers = b->layers,
                                 .top_k = b->k,
                                 .experts = b->experts,
                                 .source = kld_capture_digest(c)};
        kld_capture_close(c);
    }
    if (st == KLD_OK) return KLD_OK;
    kld_routes_close(b);
    *out = NULL;
    return st;
}
