/* What becomes of each tensor, and the streaming of shards.  The texts of config.json and its
 * companions are in quantize_config.c. */
#include "kld/capture/quantize.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/capture/quantize_config.h"
#include "loaders/arch.h"
#include "loaders/encode.h"
#include "loaders/model.h"
#include "loaders/safetensors_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct target {
    const kld_weight *w;
    const kld_tensor *source; /* of the checkpoint; stacked experts share it */
    float global;             /* NVFP4 */
} target;

typedef struct run {
    const kld_quantize_options *opt;
    kld_model *m;
    size_t block;
    target *target; /* [n_targets], by source once they are chosen */
    size_t n_targets;
    kld_arena arena;    /* names of new tensors, and the parts of stacked ones */
    json_t *weight_map; /* tensor -> file, of the new index */
    kld_quantize_summary *sum;
} run;

/* ---- which weights, and their globals ------------------------------------------------- */

static kld_nvfp4_rule rule_of(const run *r, const kld_weight *w) {
    if (r->opt->format == KLD_TARGET_NVFP4_MODELOPT) return KLD_NVFP4_MODELOPT;
    return w->format == KLD_FMT_BF16 ? KLD_NVFP4_CT_BF16 : KLD_NVFP4_CT;
}

/* Values in the order of the file, which a fused projection's rows have not. */
static kld_status read_weight(const run *r, const kld_weight *given, float **out, kld_err *err) {
    kld_weight stored = *given, *w = &stored;
    unsigned char *raw;
    w->shards = 0;
    *out = NULL;
    TRY(kld_calloc((void **)&raw, (size_t)w->data->bytes, 1, err));
    kld_status st = kld_checkpoint_read(&r->m->ckpt, w->data, 0, raw, (size_t)w->data->bytes, err);
    uint64_t nonfinite = 0;
    kld_weight_view v = {.data = raw};
    if (st == KLD_OK) st = kld_weight_check(w, v, 0, w->rows, &nonfinite, err);
    if (st == KLD_OK && nonfinite)
        st = kld_fail(err, KLD_E_INPUT,
                      "tensor '%s': %llu values are NaN or infinite; there is no "
                      "nearest FP4 value",
                      w->data->name, (unsigned long long)nonfinite);
    if (st == KLD_OK) st = kld_calloc((void **)out, w->rows * w->cols, sizeof **out, err);
    if (st == KLD_OK) kld_weight_decode(w, v, 0, w->rows, false, *out);
    kld_free(raw);
    return st;
}

/* The slots that share one global: what engines fuse into one matrix. */
static const kld_slot groups[][3] = {
    {KLD_SLOT_Q, KLD_SLOT_K, KLD_SLOT_V},
    {KLD_SLOT_QKV, KLD_SLOT_COUNT, KLD_SLOT_COUNT},
    {KLD_SLOT_Q_A, KLD_SLOT_KV_A, KLD_SLOT_COUNT},
    {KLD_SLOT_KV_B, KLD_SLOT_COUNT, KLD_SLOT_COUNT},
    {KLD_SLOT_O, KLD_SLOT_COUNT, KLD_SLOT_COUNT},
    {KLD_SLOT_GATE, KLD_SLOT_UP, KLD_SLOT_COUNT},
    {KLD_SLOT_DOWN, KLD_SLOT_COUNT, KLD_SLOT_COUNT},
    {KLD_SLOT_SHARED_GATE, KLD_SLOT_SHARED_UP, KLD_SLOT_COUNT},
    {KLD_SLOT_SHARED_DOWN, KLD_SLOT_COUNT, KLD_SLOT_COUNT},
};
enum { N_GROUPS = sizeof groups / sizeof *groups, GROUP = 3 };

static kld_status add_target(run *r, const kld_weight *w, kld_err *err) {
    if (w->cols % r->block)
        return kld_fail(err, KLD_E_INPUT,
                        "tensor '%s' has %zu columns, no multiple of the block of %zu",
                        w->data->name, w->cols, r->block);
    target *t = &r->target[r->n_targets++];
    t->w = w;
    if (!t->source) t->source = w->data;
    r->sum->parameters += w->rows * w->cols;
    return KLD_OK;
}

/* A group of n weights; those that the model lacks have no rows. */
static kld_status add_group(run *r, const kld_weight *const *group, size_t n, kld_err *err) {
    size_t first = r->n_targets;
    float amax = 0;
    for (size_t k = 0; k < n; k++)
        if (group[k]->rows) TRY(add_target(r, group[k], err));
    if (r->opt->format == KLD_TARGET_MXFP4_CT) return KLD_OK;
    for (size_t i = first; i < r->n_targets; i++) {
        const kld_weight *w = r->target[i].w;
        float *x;
        TRY(read_weight(r, w, &x, err));
        amax = fmaxf(amax, kld_amax(x, w->rows * w->cols));
        kld_free(x);
    }
    for (size_t i = first; i < r->n_targets; i++)
        r->target[i].global = kld_nvfp4_global(rule_of(r, r->target[i].w), amax);
    return KLD_OK;
}

/* Rows [row0, row0+n) of an expert's slice of a stacked tensor, as a module of its own. */
static kld_status cut_expert(run *r, const kld_weight *all, size_t e, const char *name, size_t row0,
                             size_t n, const kld_weight **out, kld_err *err) {
    kld_weight *w;
    kld_tensor *t;
    kld_buf text = {0};
    const kld_tensor *slice = all->data;
    size_t stem = (size_t)(strrchr(slice->name, '.') - slice->name);
    TRY(ARENA_ARRAY(&r->arena, &w, 1, err));
    TRY(ARENA_ARRAY(&r->arena, &t, 1, err));
    *w = *all;
    *t = *slice;
    w->data = t;
    w->rows = n;
    t->shape[0] = n;
    t->bytes = slice->bytes / all->rows * n;
    t->offset = slice->offset + slice->bytes / all->rows * row0;
    char *copy = NULL;
    kld_status st = kld_buf_add(&text, slice->name, stem, err);
    if (st == KLD_OK) st = kld_buf_addf(&text, err, ".%zu.%s.weight", e, name);
    if (st == KLD_OK) st = kld_arena_strndup(&r->arena, &copy, (char *)text.data, text.len, err);
    kld_buf_free(&text);
    t->name = copy;
    *out = w;
    return st;
}

/* Experts of one tensor become modules of their own, as formats with one global a weight need. */
static kld_status add_stacked(run *r, const kld_expert *x, size_t e, kld_err *err) {
    const kld_expert_row *row = r->m->arch->experts;
    const kld_weight *gate[2], *down;
    size_t width = x->down.cols, first = r->n_targets;
    TRY(cut_expert(r, &x->gate, e, row->gate, 0, width, &gate[0], err));
    TRY(cut_expert(r, &x->gate, e, row->up, width, width, &gate[1], err));
    TRY(cut_expert(r, &x->down, e, row->down, 0, x->down.rows, &down, err));
    TRY(add_group(r, gate, 2, err));
    TRY(add_group(r, &down, 1, err));
    for (size_t i = first; i < r->n_targets; i++) {
        const kld_weight *of = i + 1 < r->n_targets ? &x->gate : &x->down;
        r->target[i].source = kld_checkpoint_find(&r->m->ckpt, of->data->name);
    }
    return KLD_OK;
}

static kld_status add_experts(run *r, const kld_layer *l, kld_err *err) {
    for (size_t e = 0; l->expert && e < r->m->config.router.experts; e++) {
        const kld_expert *x = &l->expert[e];
        const kld_weight *pair[] = {&x->gate, &x->up}, *down = &x->down;
        TRY(kld_stop_check(err));
        if (!x->up.rows) {
            TRY(add_stacked(r, x, e, err));
            continue;
        }
        TRY(add_group(r, pair, 2, err));
        TRY(add_group(r, &down, 1, err));
    }
    return KLD_OK;
}

static int by_source(const void *a, const void *b) {
    const target *x = a, *y = b;
    if (x->source != y->source) return x->source < y->source ? -1 : 1;
    return strcmp(x->w->data->name, y->w->data->name);
}

/* What can be known to fail before anything is read. */
static kld_status check_source(const run *r, kld_err *err) {
    for (kld_weight_at at = {0}; kld_model_next_weight(r->m, &at);) {
        const kld_weight *w = at.w;
        bool expert = at.slot >= KLD_SLOT_EXPERT_GATE;
        if (w->format != KLD_FMT_BF16 && w->format != KLD_FMT_F16 && w->format != KLD_FMT_F32)
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "tensor '%s' is %s already; quantize the BF16 original", w->data->name,
                            kld_format_name(w->format));
        if (expert && (w->in_major || w->shards || w->bias))
            return kld_fail(err, KLD_E_UNSUPPORTED,
                            "tensor '%s' holds the experts of a layer in one, and %s has no form "
                            "with a tensor for each; it cannot be quantized here",
                            w->data->name, r->m->family);
    }
    return KLD_OK;
}

static kld_status choose_targets(run *r, kld_err *err) {
    size_t most = 0;
    /* A stacked gate is two weights. */
    for (kld_weight_at at = {0}; kld_model_next_weight(r->m, &at);)
        most += at.slot == KLD_SLOT_EXPERT_GATE ? 2 : 1;
    TRY(NEW_ARRAY(&r->target, most, err));
    for (size_t l = 0; l < r->m->config.layers; l++) {
        const kld_layer *layer = &r->m->layer[l];
        for (size_t g = 0; g < N_GROUPS; g++) {
            const kld_weight *w[GROUP];
            size_t n = 0;
            for (; n < GROUP && groups[g][n] != KLD_SLOT_COUNT; n++)
                w[n] = &layer->slot[groups[g][n]];
            TRY(kld_stop_check(err));
            TRY(add_group(r, w, n, err));
        }
        TRY(add_experts(r, layer, err));
    }
    qsort(r->target, r->n_targets, sizeof *r->target, by_source);
    r->sum->weights = r->n_targets;
    return KLD_OK;
}

/* The targets that tensor t becomes are [*first, result). */
static size_t find_targets(const run *r, const kld_tensor *t, size_t *first) {
    size_t lo = 0, hi = r->n_targets;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->target[mid].source < t) lo = mid + 1;
        else hi = mid;
    }
    *first = lo;
    for (; hi < r->n_targets && r->target[hi].source == t;) hi++;
    return hi;
}

/* ---- one shard ------------------------------------------------------------------------ */

typedef enum part { COPY, CODES, SCALES, GLOBAL } part;

typedef struct piece {
    const kld_tensor *source;
    const target *target;
    part part;
} piece;

typedef struct shard {
    kld_tensor *t; /* new tensors; .shard holds the index of their piece */
    piece *p;
    size_t n, cap;
} shard;

static kld_status add_tensor(run *r, shard *s, const kld_tensor *src, const target *g, part what,
                             const char *suffix, kld_err *err) {
    kld_tensor t = *src;
    if (what != COPY) {
        kld_buf name = {0};
        size_t prefix = strlen(src->name) - strlen(".weight");
        char *copy = NULL;
        kld_status st = kld_buf_add(&name, src->name, prefix, err);
        if (st == KLD_OK) st = kld_buf_addf(&name, err, ".%s", suffix);
        if (st == KLD_OK)
            st = kld_arena_strndup(&r->arena, &copy, (char *)name.data, name.len, err);
        kld_buf_free(&name);
        TRY(st);
        t.name = copy;
        t.rank = what == GLOBAL ? (r->opt->format == KLD_TARGET_NVFP4_CT ? 1 : 0) : 2;
        t.shape[0] = what == GLOBAL ? 1 : g->w->rows;
        t.shape[1] = what == CODES ? g->w->cols / 2 : g->w->cols / r->block;
        t.dtype = what == GLOBAL                                            ? KLD_F32
                  : what == SCALES && r->opt->format != KLD_TARGET_MXFP4_CT ? KLD_F8_E4M3
                                                                            : KLD_U8;
    }
    if (s->n == s->cap) {
        size_t cap = num_max(64, 2 * s->cap);
        TRY(kld_realloc((void **)&s->t, cap, sizeof *s->t, err));
        TRY(kld_realloc((void **)&s->p, cap, sizeof *s->p, err));
        s->cap = cap;
    }
    t.shard = (uint32_t)s->n;
    s->p[s->n] = (piece){src, g, what};
    s->t[s->n++] = t;
    return KLD_OK;
}

static kld_status plan_shard(run *r, shard *s, uint32_t index, kld_err *err) {
    bool modelopt = r->opt->format == KLD_TARGET_NVFP4_MODELOPT;
    for (size_t i = 0; i < r->m->ckpt.n_tensors; i++) {
        const kld_tensor *t = &r->m->ckpt.tensors[i];
        size_t k, end;
        if (t->shard != index) continue;
        end = find_targets(r, t, &k);
        if (k == end) TRY(add_tensor(r, s, t, NULL, COPY, "", err));
        for (; k < end; k++) {
            const target *g = &r->target[k];
            const kld_tensor *data = g->w->data;
            TRY(add_tensor(r, s, data, g, CODES, modelopt ? "weight" : "weight_packed", err));
            TRY(add_tensor(r, s, data, g, SCALES, "weight_scale", err));
            if (r->opt->format != KLD_TARGET_MXFP4_CT)
                TRY(add_tensor(r, s, data, g, GLOBAL,
                               modelopt ? "weight_scale_2" : "weight_global_scale", err));
        }
    }
    return KLD_OK;
}

typedef struct encoded {
    const target *of;
    unsigned char *codes, *scales;
} encoded;

static kld_status encode(const run *r, const target *g, encoded *e, kld_err *err) {
    const kld_weight *w = g->w;
    float *x;
    if (e->of == g) return KLD_OK;
    kld_free(e->codes);
    kld_free(e->scales);
    *e = (encoded){0};
    TRY(read_weight(r, w, &x, err));
    kld_status st = kld_calloc((void **)&e->codes, w->rows, w->cols / 2, err);
    if (st == KLD_OK) st = kld_calloc((void **)&e->scales, w->rows, w->cols / r->block, err);
    if (st == KLD_OK) {
        bool mx = r->opt->format == KLD_TARGET_MXFP4_CT;
        kld_nvfp4_rule rule = rule_of(r, w);
#pragma omp parallel for
        for (size_t row = 0; row < w->rows; row++) {
            unsigned char *codes = e->codes + row * (w->cols / 2);
            unsigned char *scales = e->scales + row * (w->cols / r->block);
            if (mx) kld_encode_mxfp4(x + row * w->cols, w->cols, codes, scales);
            else kld_encode_nvfp4(rule, x + row * w->cols, w->cols, g->global, codes, scales);
        }
        e->of = g;
    }
    kld_free(x);
    return st;
}

static kld_status copy_tensor(const run *r, const kld_tensor *t, kld_writer *out, kld_err *err) {
    enum { PIECE = 1 << 22 };
    unsigned char *buf;
    TRY(kld_calloc((void **)&buf, num_min(PIECE, (size_t)t->bytes), 1, err));
    kld_status st = KLD_OK;
    for (uint64_t at = 0; at < t->bytes && st == KLD_OK;) {
        size_t n = (size_t)(t->bytes - at < PIECE ? t->bytes - at : PIECE);
        st = kld_checkpoint_read(&r->m->ckpt, t, at, buf, n, err);
        if (st == KLD_OK) st = kld_writer_add(out, buf, n, err);
        at += n;
    }
    kld_free(buf);
    return st;
}

static kld_status write_piece(const run *r, const kld_tensor *t, const piece *p, encoded *e,
                              kld_writer *out, kld_err *err) {
    switch (p->part) {
    case COPY: return copy_tensor(r, p->source, out, err);
    case GLOBAL: return kld_writer_add(out, &p->target->global, sizeof p->target->global, err);
    case CODES:
    case SCALES: break;
    }
    TRY(encode(r, p->target, e, err));
    return kld_writer_add(out, p->part == CODES ? e->codes : e->scales, (size_t)t->bytes, err);
}

static kld_status write_shard(run *r, uint32_t index, const char *name, const char *path,
                              kld_err *err) {
    shard s = {0};
    encoded e = {0};
    kld_buf header = {0};
    kld_writer out = {.fd = -1};
    kld_status st;
    TRY_TO(done, plan_shard(r, &s, index, err));
    TRY_TO(done, kld_safetensors_layout(s.t, s.n, NULL, &header, err));
    TRY_TO(done, kld_writer_open(&out, path, err));
    TRY_TO(done, kld_writer_add(&out, header.data, header.len, err));
    for (size_t i = 0; i < s.n; i++) {
        TRY_TO(done, kld_stop_check(err));
        TRY_TO(done, write_piece(r, &s.t[i], &s.p[s.t[i].shard], &e, &out, err));
        r->sum->bytes_out += s.t[i].bytes;
        if (json_object_set_new(r->weight_map, s.t[i].name, json_string(name)) != 0) {
            st = kld_fail(err, KLD_E_NOMEM, "out of memory for the index");
            goto done;
        }
    }
    TRY_TO(done, kld_writer_commit(&out, err));
done:
    kld_writer_abort(&out);
    kld_buf_free(&header);
    kld_free(s.t);
    kld_free(s.p);
    kld_free(e.codes);
    kld_free(e.scales);
    return st;
}

/* ---- the directory -------------------------------------------------------------------- */

static const char *shard_name(const run *r, size_t i) {
    const char *path = r->m->ckpt.shards[i].path, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static kld_status write_shards(run *r, kld_err *err) {
    r->weight_map = json_object();
    if (!r->weight_map) return kld_fail(err, KLD_E_NOMEM, "out of memory for the index");
    for (size_t i = 0; i < r->m->ckpt.n_shards; i++) {
        char *path;
        TRY(kld_path_join(&path, r->opt->output, shard_name(r, i), err));
        kld_status st = write_shard(r, (uint32_t)i, shard_name(r, i), path, err);
        kld_free(path);
        TRY(st);
    }
    if (r->m->ckpt.n_shards < 2) return KLD_OK;
    return kld_quantize_write_index(r->opt->output, r->weight_map, r->sum->bytes_out, err);
}

static kld_status check_output(const char *dir, kld_err *err) {
    char **names;
    size_t n;
    if (!kld_path_exists(dir)) return KLD_OK;
    TRY(kld_list_dir(dir, &names, &n, err));
    kld_names_free(names, n);
    if (n == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s: exists and is not empty", dir);
}

static kld_status write_all(run *r, kld_err *err) {
    kld_progress_begin("quantizing", r->m->ckpt.total_bytes, 1000000, "MB");
    kld_status st = write_shards(r, err);
    kld_progress_end();
    TRY(st);
    TRY(kld_quantize_write_config(r->opt->output, r->m, r->opt->format, err));
    return kld_quantize_copy_rest(r->opt->output, r->m->ckpt.dir, err);
}

kld_status kld_quantize_run(const kld_quantize_options *opt, kld_quantize_summary *out,
                            kld_err *err) {
    run r = {.opt = opt, .block = opt->format == KLD_TARGET_MXFP4_CT ? 32 : 16, .sum = out};
    char *dir = NULL;
    bool made = false;
    memset(out, 0, sizeof *out);
    kld_status st;
    TRY_TO(done, kld_hub_resolve(opt->model, &dir, err));
    TRY_TO(done, check_output(opt->output, err));
    TRY_TO(done, kld_model_open(&r.m, dir, err));
    for (size_t i = 0; i < r.m->n_warnings; i++) kld_warn("%s", r.m->warnings[i]);
    out->bytes_in = r.m->ckpt.total_bytes;
    TRY_TO(done, check_source(&r, err));
    TRY_TO(done, choose_targets(&r, err));
    TRY_TO(done, kld_mkdir(opt->output, err));
    made = true;
    TRY_TO(done, write_all(&r, err));
done:
    if (st != KLD_OK && made) {
        kld_err ignored;
        (void)!kld_remove_tree(opt->output, &ignored);
    }
    json_decref(r.weight_map);
    kld_arena_free(&r.arena);
    kld_free(r.target);
    kld_model_free(r.m);
    kld_free(dir);
    return st;
}
