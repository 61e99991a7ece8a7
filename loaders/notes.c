#include "loaders/notes.h"

#include "kld/base/buf.h"
#include "kld/base/num.h"
#include "loaders/bind.h"
#include "loaders/quant_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_dense(kld_format f) { return f <= KLD_FMT_F32; }

static kld_status read_global(const kld_model *m, const kld_weight *w, float *out, kld_err *err) {
    unsigned char bytes[4];
    TRY(kld_checkpoint_read(&m->ckpt, w->global, 0, bytes, sizeof bytes, err));
    *out = kld_scale_value(w->global, bytes, 0);
    return KLD_OK;
}

/* ---- shapes that are data */

/* weight_shape is what the packer saw: with padding in the last word, the only record of cols. */
static kld_status check_extent(const kld_model *m, const kld_weight *w, kld_err *err) {
    unsigned char bytes[16];
    const kld_tensor *t = w->extent;
    size_t width = kld_dtype_bits(t->dtype) / 8;
    uint64_t dim[2] = {0};
    TRY(kld_checkpoint_read(&m->ckpt, t, 0, bytes, 2 * width, err));
    for (size_t i = 0; i < 2 * width; i++) dim[i / width] |= (uint64_t)bytes[i] << i % width * 8;
    if (dim[0] == w->rows && dim[1] == w->cols) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "tensor '%.300s' says [%llu, %llu], but config.json makes the weight [%zu, "
                    "%zu]",
                    t->name, (unsigned long long)dim[0], (unsigned long long)dim[1], w->rows,
                    w->cols);
}

static kld_status check_extents(const kld_model *m, kld_err *err) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        if (at.w->extent) TRY(check_extent(m, at.w, err));
    return KLD_OK;
}

/* ---- global scales of NVFP4 */

/* Groups that engines fuse into one matrix. */
static const kld_slot fused[][3] = {{KLD_SLOT_Q, KLD_SLOT_K, KLD_SLOT_V},
                                    {KLD_SLOT_Q_A, KLD_SLOT_KV_A, KLD_SLOT_COUNT},
                                    {KLD_SLOT_GATE, KLD_SLOT_UP, KLD_SLOT_COUNT},
                                    {KLD_SLOT_SHARED_GATE, KLD_SLOT_SHARED_UP, KLD_SLOT_COUNT}};
enum { N_FUSED = sizeof fused / sizeof *fused };

typedef struct fused_tally {
    size_t groups, unequal, layer, expert; /* of the largest ratio */
    double ratio;
} fused_tally;

/* What the globals say, in one pass: a large mixture has 100,000 of them, each read from its own
 * place. */
typedef struct scale_tally {
    fused_tally own, experts;
    size_t odd; /* of the size of a reciprocal */
    float odd_value;
    const kld_weight *odd_at;
} scale_tally;

/* For a trained layer amax is 0.01 to 50, so a multiplier (amax/2688) is below 1 and a
 * divisor above it. */
static kld_status add_global(const kld_model *m, const kld_weight *w, scale_tally *t, float *out,
                             kld_err *err) {
    TRY(read_global(m, w, out, err));
    if (!(w->global_divides ? *out < 1 : *out > 1) || t->odd++) return KLD_OK;
    t->odd_value = *out;
    t->odd_at = w;
    return KLD_OK;
}

static kld_status add_group(const kld_model *m, const kld_weight *const *w, size_t n,
                            scale_tally *t, fused_tally *g, bool *larger, kld_err *err) {
    float lo = INFINITY, hi = 0;
    bool whole = n > 1;
    *larger = false;
    for (size_t i = 0; i < n; i++) {
        float v = 0;
        if (w[i]->rows && w[i]->format == KLD_FMT_NVFP4) TRY(add_global(m, w[i], t, &v, err));
        /* Neither dense members nor globals that kld_weight_check reports are compared. */
        whole &= v > 0 && isfinite(v);
        lo = fminf(lo, v);
        hi = fmaxf(hi, v);
    }
    if (!whole) return KLD_OK;
    g->groups++;
    if (lo == hi) return KLD_OK;
    g->unequal++;
    *larger = (double)hi / lo > g->ratio;
    if (*larger) g->ratio = (double)hi / lo;
    return KLD_OK;
}

static bool is_fused(size_t slot) {
    for (size_t g = 0; g < N_FUSED; g++)
        for (size_t k = 0; k < 3; k++)
            if (fused[g][k] == slot) return true;
    return false;
}

static kld_status add_layer(const kld_model *m, size_t l, scale_tally *t, kld_err *err) {
    const kld_layer *layer = &m->layer[l];
    bool larger;
    for (size_t s = 0; s < KLD_SLOT_COUNT; s++) {
        const kld_weight *w = &layer->slot[s];
        if (!is_fused(s)) TRY(add_group(m, &w, 1, t, &t->own, &larger, err));
    }
    for (size_t g = 0; g < N_FUSED; g++) {
        const kld_weight *w[3];
        size_t n = 0;
        for (; n < 3 && fused[g][n] != KLD_SLOT_COUNT; n++) w[n] = &layer->slot[fused[g][n]];
        TRY(add_group(m, w, n, t, &t->own, &larger, err));
        if (larger) t->own.layer = l;
    }
    for (size_t e = 0; layer->expert && e < m->config.router.experts; e++) {
        const kld_expert *x = &layer->expert[e];
        const kld_weight *pair[] = {&x->gate, &x->up}, *down = &x->down;
        TRY(add_group(m, pair, x->up.rows ? 2 : 1, t, &t->experts, &larger, err));
        if (larger) t->experts.layer = l;
        if (larger) t->experts.expert = e;
        TRY(add_group(m, &down, 1, t, &t->experts, &larger, err));
    }
    return KLD_OK;
}

static kld_status note_fused(kld_model *m, const fused_tally *t, const char *what,
                             const char *where, kld_err *err) {
    if (!t->unequal) return KLD_OK;
    return kld_model_warn(
        m, err,
        "%zu of %zu fused groups (%s) have unequal global scales, "
        "largest ratio %.5g in layer %zu%s; each weight is decoded with its own, so "
        "an engine that takes one for all computes something else",
        t->unequal, t->groups, what, t->ratio, t->layer, where);
}

static kld_status note_globals(kld_model *m, kld_err *err) {
    scale_tally t = {0};
    bool ignored;
    char where[48];
    const kld_weight *head = &m->global[KLD_SLOT_HEAD], *embed = &m->global[KLD_SLOT_EMBED];
    TRY(add_group(m, &embed, 1, &t, &t.own, &ignored, err));
    if (!m->config.tied) TRY(add_group(m, &head, 1, &t, &t.own, &ignored, err));
    for (size_t l = 0; l < m->config.layers; l++) TRY(add_layer(m, l, &t, err));
    snprintf(where, sizeof where, ", expert %zu", t.experts.expert);
    TRY(note_fused(m, &t.own, "q/k/v, gate/up", "", err));
    TRY(note_fused(m, &t.experts, "gate/up of experts", where, err));
    if (!t.odd) return KLD_OK;
    return kld_model_warn(m, err,
                          "tensor '%.300s' is %g, but %s (%zu such tensors); was it written as the "
                          "reciprocal?",
                          t.odd_at->global->name, (double)t.odd_value,
                          t.odd_at->global_divides ? "a divisor is usually above 50"
                                                   : "a multiplier is usually below 0.02",
                          t.odd);
}

/* ---- tied head */

enum { SAMPLE_ROWS = 64 };

/* Compares evenly spread rows of two tensors of one matrix, or all of what is smaller than that. */
static kld_status same_rows(const kld_model *m, const kld_tensor *a, const kld_tensor *b,
                            size_t rows, bool *same, kld_err *err) {
    *same = !a == !b && (!a || (a->dtype == b->dtype && a->bytes == b->bytes));
    if (!*same || !a) return KLD_OK;
    if (a->bytes < rows) rows = 1; /* one scale */
    size_t bytes = (size_t)(a->bytes / rows), n = num_min(rows, SAMPLE_ROWS);
    unsigned char *buf;
    TRY(NEW_ARRAY(&buf, 2 * bytes, err));
    kld_status st = KLD_OK;
    for (size_t i = 0; st == KLD_OK && *same && i < n; i++) {
        uint64_t at = (uint64_t)(rows / n * i) * bytes;
        st = kld_checkpoint_read(&m->ckpt, a, at, buf, bytes, err);
        if (st == KLD_OK) st = kld_checkpoint_read(&m->ckpt, b, at, buf + bytes, bytes, err);
        *same = !memcmp(buf, buf + bytes, bytes);
    }
    kld_free(buf);
    return st;
}

static kld_status note_tied(kld_model *m, kld_err *err) {
    const kld_weight *head = &m->global[KLD_SLOT_HEAD], *embed = &m->global[KLD_SLOT_EMBED];
    bool same = head->format == embed->format && head->global_divides == embed->global_divides;
    for (kld_part p = KLD_PART_DATA; same && p < KLD_PART_COUNT; p++)
        TRY(same_rows(m, kld_weight_part(head, p), kld_weight_part(embed, p), head->rows, &same,
                      err));
    if (same) return KLD_OK;
    return kld_model_warn(
        m, err,
        "config.json ties the head to the embedding, but the file has a different "
        "head '%.300s' (%s); the head of the file is used",
        head->data->name, kld_format_name(head->format));
}

/* ---- index and KV cache */

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static kld_status note_files(kld_model *m, kld_err *err) {
    static const char *const kv[] = {".k_scale", ".v_scale", ".kv_scale", "k_proj.output_scale",
                                     "v_proj.output_scale"};
    const kld_checkpoint *c = &m->ckpt;
    size_t n = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        for (size_t k = 0; k < sizeof kv / sizeof *kv; k++) n += ends(c->tensors[i].name, kv[k]);
    }
    if (n)
        TRY(kld_model_warn(
            m, err, "%zu KV-cache scales are not used: keys and values are not quantized here", n));
    if (c->n_superseded)
        TRY(kld_model_warn(m, err,
                           "%zu tensors are in a second file too; the index decides which is read",
                           c->n_superseded));
    if (c->n_unmapped)
        TRY(kld_model_warn(m, err, "%zu tensors of the files are not in the index and are not read",
                           c->n_unmapped));
    return KLD_OK;
}

kld_status kld_model_notes(kld_model *m, bool config_ties, kld_err *err) {
    TRY(check_extents(m, err));
    TRY(note_globals(m, err));
    if (config_ties && !m->config.tied) TRY(note_tied(m, err));
    return note_files(m, err);
}

/* ---- label */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* QAD, alone or in QAD-step2500, but not in a longer word. */
static bool says_qad(const char *s, size_t n) {
    for (size_t i = 0; i + 3 <= n; i++) {
        if ((s[i] | 32) != 'q' || (s[i + 1] | 32) != 'a' || (s[i + 2] | 32) != 'd') continue;
        if ((i == 0 || !is_letter(s[i - 1])) && (i + 3 == n || !is_letter(s[i + 3]))) return true;
    }
    return false;
}

/* Last component of the directory, and the repository when that is a snapshot of the hub
 * cache: .../models--org--name/snapshots/REV. */
static bool path_says_qad(const char *dir) {
    size_t end = strlen(dir);
    for (size_t level = 0; level < 3; level++) {
        while (end && dir[end - 1] == '/') end--;
        size_t start = end;
        while (start && dir[start - 1] != '/') start--;
        const char *part = dir + start;
        size_t n = end - start;
        if ((level == 0 || !strncmp(part, "models--", num_min(n, 8))) && says_qad(part, n))
            return true;
        end = start;
    }
    return false;
}

static kld_status config_says_qad(const kld_model *m, bool *yes, kld_err *err) {
    const json_t *parts[3] = {kld_quant_config(&m->ckpt), m->ckpt.hf_quant,
                              json_object_get(m->ckpt.config, "_name_or_path")};
    *yes = false;
    for (size_t i = 0; !*yes && i < 3; i++) {
        kld_buf b = {0};
        if (!parts[i]) continue;
        kld_status st = kld_json_dump(parts[i], false, &b, err);
        *yes = st == KLD_OK && says_qad((char *)b.data, b.len);
        kld_buf_free(&b);
        if (st != KLD_OK) return st;
    }
    return KLD_OK;
}

static void count_formats(const kld_model *m, uint64_t count[KLD_FMT_COUNT]) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (at.w->cols > 1 && at.slot != KLD_SLOT_EMBED)
            count[at.w->format] += (uint64_t)at.w->rows * at.w->cols;
    }
}

kld_status kld_model_label(kld_model *m, kld_err *err) {
    uint64_t count[KLD_FMT_COUNT] = {0};
    count_formats(m, count);
    bool quantized = false, qad = false;
    for (int f = 0; f < KLD_FMT_COUNT; f++) quantized |= count[f] && !is_dense((kld_format)f);
    kld_buf b = {0};
    kld_status st = KLD_OK;
    for (;;) {
        int best = -1;
        for (int f = 0; f < KLD_FMT_COUNT; f++) {
            if (count[f] && (!quantized || !is_dense((kld_format)f)) &&
                (best < 0 || count[f] > count[best]))
                best = f;
        }
        if (best < 0 || st != KLD_OK) break;
        st = kld_buf_addf(&b, err, "%s%s", b.len ? " + " : "", kld_format_name((kld_format)best));
        count[best] = 0;
        if (!quantized) break;
    }
    if (st == KLD_OK && quantized) {
        qad = path_says_qad(m->ckpt.dir);
        if (!qad) st = config_says_qad(m, &qad, err);
    }
    if (st == KLD_OK && qad) st = kld_buf_adds(&b, " (QAD)", err);
    if (st == KLD_OK) st = kld_strdup(&m->label, b.data ? (char *)b.data : "", err);
    kld_buf_free(&b);
    return st;
}
