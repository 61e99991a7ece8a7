#include "kld/compare/exact.h"

#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/thread.h"
#include "kld/compare/belong.h"
#include "kld/compare/heads.h"
#include "logits/replay.h"
#include "logits/select.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nats.  The inputs of the product are the same bits everywhere; what may differ is the order of
 * its FP32 sums. */
static const double SAME_ARITHMETIC = 1e-5, OTHER_ARITHMETIC = 1e-3;

/* A candidate being replayed. */
struct pass {
    kld_exact *x;
    kld_exact_candidate *out;
    const kld_compare_options *opt;
    kld_capture *ref, *cand;
    const kld_choice *on;
    kld_replay *replay;
    size_t head[2];       /* of reference and candidate in the replay */
    size_t top_k;         /* ids that statistics list */
    const size_t *window; /* those to replay */
    size_t n_windows, done;
    bool checked;
};

/* A window of reference and candidate, read ahead. */
struct pair {
    const struct pass *p;
    size_t window;
    bool whole;            /* lists are read, too */
    kld_records hidden[2]; /* hidden states */
    kld_records list[2];
};

static const kld_capture_info *info_of(const kld_capture *c) { return kld_capture_header(c); }

static kld_precision precision_of(const kld_capture *c) {
    return info_of(c)->hidden.bytes == 2 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
}

static kld_activations activations_of(const kld_capture *c) {
    return strcmp(kld_belong_activations(info_of(c)), "weights-only") != 0
               ? KLD_ACTIVATIONS_AS_DECLARED
               : KLD_ACTIVATIONS_WEIGHTS_ONLY;
}

/* Length of the spans of a run; a header that does not say has the usual ones. */
static size_t chunk_of(const kld_capture *c) {
    const char *s = json_string_value(json_object_get(info_of(c)->engine, "chunk"));
    unsigned long n = s ? strtoul(s, NULL, 10) : 0;
    return n >= 16 && KLD_CHUNK % n == 0 ? n : KLD_CHUNK;
}

static kld_replay_rows rows_of(const struct pass *p, int side, const struct pair *w) {
    return (kld_replay_rows){.head = p->head[side],
                             .hidden = w->hidden[side].hidden,
                             .chunk = chunk_of(side ? p->cand : p->ref)};
}

/* ---- reading ------------------------------------------------------------------------------- */

static kld_status read_pair(void *arg, kld_err *err) {
    struct pair *w = arg;
    for (int k = 0; k < 2; k++) {
        kld_capture *c = k ? w->p->cand : w->p->ref;
        const kld_records *relative = info_of(c)->has_reference ? &w->list[0] : NULL;
        kld_status st = kld_capture_read_hidden(c, w->window, &w->hidden[k], err);
        if (st == KLD_OK && w->whole)
            st = kld_capture_read(c, w->window, relative, &w->list[k], NULL, err);
        TRY(kld_where(err, st, "%s", kld_capture_path(c)));
    }
    return KLD_OK;
}

static void drop_pair(struct pair *w) {
    for (int k = 0; k < 2; k++) {
        kld_records_free(&w->hidden[k]);
        kld_records_free(&w->list[k]);
    }
}

/* ---- one window ---------------------------------------------------------------------------- */

static bool same_hidden(const kld_records *a, const kld_records *b) {
    return a->hidden_cols == b->hidden_cols && a->hidden_bytes == b->hidden_bytes &&
           !memcmp(a->hidden, b->hidden, a->n * a->hidden_cols * a->hidden_bytes);
}

static kld_status statistics(const struct pass *p, int side, const struct pair *w, kld_records *out,
                             kld_err *err) {
    kld_replay_rows rows = rows_of(p, side, w);
    TRY(kld_records_alloc(out, w->list[0].n, p->top_k, 0, 0, 0, err));
    kld_status st = kld_replay_stats(p->replay, &rows, out->n, w->list[0].label, out, err);
    if (st != KLD_OK) kld_records_free(out);
    return st;
}

/* The tolerance for a capture that is replayed here. */
static kld_status tolerance(const struct pass *p, const kld_capture *c, double *out, kld_err *err) {
    kld_engine_options o = {.precision = precision_of(c),
                            .devices = p->on->device,
                            .n_devices = 1,
                            .chunk = chunk_of(c)};
    json_t *id;
    TRY(kld_engine_identity(p->on->backend, &o, &id, err));
    const char *here = json_string_value(json_object_get(id, "arithmetic"));
    const char *was = json_string_value(json_object_get(info_of(c)->engine, "arithmetic"));
    size_t n = here ? strlen(here) : 0;
    const char *rest = was && here && !strncmp(was, here, n) ? was + n : NULL;
    bool same =
        rest && (!*rest || !strncmp(rest, KLD_ARITHMETIC_INPUTS, sizeof KLD_ARITHMETIC_INPUTS - 1));
    *out = same ? SAME_ARITHMETIC : OTHER_ARITHMETIC;
    json_decref(id);
    return KLD_OK;
}

static double apart(float recorded, float replayed) {
    if (recorded == replayed) return 0;
    double d = fabs((double)recorded - (double)replayed);
    return isnan(d) ? (double)INFINITY : d;
}

/* What a side recorded of its first window against what its head makes of the hidden states. */
static kld_status check_side(struct pass *p, int side, const struct pair *w, kld_err *err) {
    const kld_records *was = &w->list[side];
    const kld_capture *c = side ? p->cand : p->ref;
    kld_records now;
    double most;
    TRY(tolerance(p, c, &most, err));
    TRY(statistics(p, side, w, &now, err));
    kld_status st = KLD_OK;
    for (size_t i = 0; i < was->n && st == KLD_OK; i++) {
        if (was->count[i] == 0 && now.count[i] == 0) continue;
        double d = fmax(apart(was->lse[i], now.lse[i]), apart(was->label_lp[i], now.label_lp[i]));
        p->out->check_max = fmax(p->out->check_max, d);
        if (d <= most) continue;
        st = kld_fail(
            err, KLD_E_INPUT,
            "%s: the head does not reproduce the capture: window %zu, position %zu has "
            "log-sum-exp %.7g and %.7g at the next token, replayed %.7g and %.7g (%g apart "
            "are allowed here); compare the lists alone with --exact never",
            kld_capture_path(c), w->window, was->first + i, (double)was->lse[i],
            (double)was->label_lp[i], (double)now.lse[i], (double)now.label_lp[i], most);
    }
    kld_records_free(&now);
    return st;
}

static double overlap(const uint32_t *a, const uint32_t *b, size_t k) {
    size_t both = 0;
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < k; j++) both += a[i] == b[j];
    return (double)both / (double)k;
}

/* With a shared head, what the candidate's own lists would have said. */
static kld_status body_rows(const struct pass *p, const struct pair *w, kld_exact_body *out,
                            kld_err *err) {
    kld_records a = {0}, b = {0};
    kld_status st = statistics(p, 0, w, &a, err);
    if (st == KLD_OK) st = statistics(p, 1, w, &b, err);
    for (size_t i = 0; st == KLD_OK && i < a.n; i++)
        out[i] = (kld_exact_body){-(double)a.label_lp[i], -(double)b.label_lp[i],
                                  overlap(a.ids + i * p->top_k, b.ids + i * p->top_k, p->top_k)};
    kld_records_free(&a);
    kld_records_free(&b);
    return st;
}

static kld_status replay_window(struct pass *p, const struct pair *w, kld_err *err) {
    const kld_records *h = w->hidden;
    size_t at = p->x->first[w->window], n = h[0].n;
    kld_replay_rows a = rows_of(p, 0, w), b = rows_of(p, 1, w);
    if (n != h[1].n)
        return kld_fail(err, KLD_E_INPUT, "%s: %zu positions in window %zu; %zu in the reference",
                        kld_capture_path(p->cand), h[1].n, w->window, n);
    if (n == 0) return KLD_OK;
    p->out->bodies_equal = p->out->bodies_equal && same_hidden(&h[0], &h[1]);
    if (!p->checked) {
        TRY(check_side(p, 0, w, err));
        if (!p->x->shared) TRY(check_side(p, 1, w, err));
        p->checked = true;
    }
    /* All of it is the nucleus at 1, which the back ends do not take. */
    double top_p = fmin(p->opt->top_p, nextafter(1, 0));
    TRY(kld_replay_pair(p->replay, &a, &b, n, top_p, p->out->row + at, err));
    return p->x->shared ? body_rows(p, w, p->out->body + at, err) : KLD_OK;
}

/* ---- one candidate ------------------------------------------------------------------------- */

/* The next window is read while one is replayed. */
static kld_status replay_windows(struct pass *p, kld_err *err) {
    struct pair w[2] = {{.p = p}, {.p = p}};
    kld_task *task = NULL;
    kld_status st = KLD_OK, ended;
    for (size_t i = 0; i <= p->n_windows && st == KLD_OK; i++) {
        struct pair *next = &w[i % 2];
        st = kld_task_wait(&task, err);
        if (st == KLD_OK) st = kld_stop_check(err);
        if (st == KLD_OK && i < p->n_windows) {
            drop_pair(next);
            next->window = p->window[i];
            next->whole = p->x->shared || !p->checked;
            st = kld_task_start(&task, read_pair, next, err);
        }
        if (st == KLD_OK && i > 0) {
            st = replay_window(p, &w[(i - 1) % 2], err);
            kld_progress_set(p->done += w[(i - 1) % 2].hidden[0].n);
        }
    }
    ended = kld_task_wait(&task, st == KLD_OK ? err : NULL);
    drop_pair(&w[0]);
    drop_pair(&w[1]);
    return st == KLD_OK ? ended : st;
}

static bool same_use(const kld_replay_head *a, const kld_replay_head *b) {
    return a->model == b->model && a->precision == b->precision && a->activations == b->activations;
}

static kld_status open_heads(struct pass *p, kld_heads *heads, kld_err *err) {
    kld_replay_head h[2] = {{NULL, precision_of(p->ref), activations_of(p->ref)},
                            {NULL, precision_of(p->cand), activations_of(p->cand)}};
    TRY(kld_heads_find(heads, p->ref, p->cand, &h[0].model, err));
    if (p->x->shared) {
        h[1].model = h[0].model;
        h[1].activations = h[0].activations;
        if (info_of(p->cand)->hidden.cols != info_of(p->ref)->hidden.cols)
            return kld_fail(err, KLD_E_INPUT,
                            "%s: hidden states of %llu values; the reference's head, which is to "
                            "be shared, takes %llu",
                            kld_capture_path(p->cand),
                            (unsigned long long)info_of(p->cand)->hidden.cols,
                            (unsigned long long)info_of(p->ref)->hidden.cols);
    } else {
        TRY(kld_heads_find(heads, p->cand, p->ref, &h[1].model, err));
    }
    size_t n = same_use(&h[0], &h[1]) ? 1 : 2;
    p->head[1] = n - 1;
    kld_replay_options o = {.backend = p->on->backend,
                            .device = p->on->device[0],
                            .vocab = (size_t)info_of(p->ref)->vocab,
                            .top_k = p->top_k};
    return kld_replay_open(&p->replay, &o, h, n, err);
}

static kld_status run_candidate(struct pass *p, kld_heads *heads, size_t positions, kld_err *err) {
    p->top_k = p->x->shared ? (size_t)num_min(p->opt->overlap_k, info_of(p->ref)->vocab) : 1;
    p->out->bodies_equal = true;
    TRY(NEW_ARRAY(&p->out->row, num_max(positions, 1), err));
    if (p->x->shared) TRY(NEW_ARRAY(&p->out->body, num_max(positions, 1), err));
    kld_status st = open_heads(p, heads, err);
    if (st == KLD_OK) st = replay_windows(p, err);
    kld_replay_close(p->replay);
    return st;
}

/* ---- all of them --------------------------------------------------------------------------- */

static bool is_exact(const kld_capture *ref, const kld_capture *cand) {
    return info_of(ref)->hidden.cols > 0 && info_of(cand)->hidden.cols > 0;
}

static kld_status count_exact(kld_capture *ref, kld_capture *const *cand, size_t n_cands,
                              bool shared, size_t *n, kld_err *err) {
    *n = 0;
    for (size_t k = 0; k < n_cands; k++) {
        bool exact = is_exact(ref, cand[k]);
        *n += exact;
        if (exact || !shared) continue;
        const kld_capture *lacks = info_of(ref)->hidden.cols ? cand[k] : ref;
        return kld_fail(err, KLD_E_USAGE,
                        "--head shared: %s keeps no hidden states; capture both sides with --exact",
                        kld_capture_path(lacks));
    }
    return KLD_OK;
}

static kld_status place_windows(kld_exact *x, kld_capture *ref, const size_t *window,
                                size_t n_windows, size_t *positions, kld_err *err) {
    *positions = 0;
    TRY(NEW_ARRAY(&x->first, info_of(ref)->windows, err));
    for (size_t i = 0; i < n_windows; i++) {
        kld_window_meta m;
        TRY(kld_capture_meta(ref, window[i], &m, err));
        x->first[window[i]] = *positions;
        if (m.tokens > m.score_from + 1) *positions += (size_t)(m.tokens - 1 - m.score_from);
    }
    return KLD_OK;
}

static void name_place(kld_exact *x, const kld_choice *on, kld_precision p) {
    kld_device_identity id;
    on->backend->identity(p, on->device[0], &id);
    (void)snprintf(x->replayed_on, sizeof x->replayed_on, "%s: %s", on->backend->name, id.device);
}

kld_status kld_exact_run(kld_exact *x, kld_capture *ref, kld_capture *const *cand, size_t n_cands,
                         const size_t *window, size_t n_windows, const kld_compare_options *opt,
                         kld_err *err) {
    kld_heads heads = {.given = opt->checkpoint, .n_given = opt->n_checkpoints};
    kld_choice on;
    size_t n, positions, done = 0;
    kld_status st;
    *x = (kld_exact){.n_cands = n_cands, .shared = opt->head_shared};
    if (opt->exact_never) return KLD_OK;
    TRY(count_exact(ref, cand, n_cands, opt->head_shared, &n, err));
    if (n == 0) return KLD_OK;
    TRY(kld_choose(opt->device, &on, err));
    name_place(x, &on, precision_of(ref));
    TRY_TO(done, NEW_ARRAY(&x->cand, n_cands, err));
    TRY_TO(done, place_windows(x, ref, window, n_windows, &positions, err));
    kld_progress_begin("replay", n * positions, 1, "pos");
    for (size_t k = 0; k < n_cands; k++) {
        if (!is_exact(ref, cand[k])) continue;
        struct pass p = {.x = x,
                         .out = &x->cand[k],
                         .opt = opt,
                         .ref = ref,
                         .cand = cand[k],
                         .on = &on,
                         .window = window,
                         .n_windows = n_windows,
                         .done = done};
        st = run_candidate(&p, &heads, positions, err);
        done = p.done;
        if (st != KLD_OK) break;
    }
    kld_progress_end();
done:
    kld_heads_free(&heads);
    if (st != KLD_OK) kld_exact_free(x);
    return st;
}

void kld_exact_free(kld_exact *x) {
    for (size_t k = 0; x->cand && k < x->n_cands; k++) {
        kld_free(x->cand[k].row);
        kld_free(x->cand[k].body);
    }
    kld_free(x->cand);
    kld_free(x->first);
    *x = (kld_exact){0};
}

/* ---- overlay ------------------------------------------------------------------------------- */

static void apply_row(const kld_pair_row *r, kld_position *o) {
    const double d[KLD_DIV_KINDS] = {r->kl, r->reverse_kl, r->js, r->tv};
    for (int k = 0; k < KLD_DIV_KINDS; k++) {
        o->v[KLD_COL_ESTIMATE + k] = o->v[KLD_COL_BOUND + k] = d[k];
        o->variance[k] = 0;
        o->exact |= 1u << k;
    }
    o->v[KLD_COL_JACCARD] =
        (double)r->nucleus_both / (double)(r->nucleus_p + r->nucleus_q - r->nucleus_both);
    o->v[KLD_COL_NUCLEUS_TV] = r->nucleus_tv;
    o->v[KLD_COL_ON_REF_LO] = o->v[KLD_COL_ON_REF_HI] = r->q_on_p;
    o->v[KLD_COL_ON_CAND_LO] = o->v[KLD_COL_ON_CAND_HI] = r->p_on_q;
    o->v[KLD_COL_TAIL] = 0;
}

static void apply_body(const kld_pair_row *r, const kld_exact_body *b, kld_position *o) {
    o->top_ref = r->top1_p;
    o->top_cand = r->top1_q;
    o->v[KLD_COL_TOP1] = r->top1_p == r->top1_q;
    o->v[KLD_COL_TOPK] = b->overlap;
    o->v[KLD_COL_NLL_REF] = b->nll_ref;
    o->v[KLD_COL_NLL_CAND] = b->nll_cand;
    o->v[KLD_COL_NLL_DIFF] = b->nll_ref == b->nll_cand ? 0 : b->nll_cand - b->nll_ref;
}

kld_status kld_exact_apply(const kld_exact *x, size_t k, size_t window, size_t n, kld_position *pos,
                           kld_err *err) {
    const kld_exact_candidate *c = x->cand ? &x->cand[k] : NULL;
    if (!c || !c->row) return KLD_OK;
    for (size_t i = 0; i < n; i++) {
        const kld_pair_row *r = &c->row[x->first[window] + i];
        if (pos[i].nonfinite) continue;
        if (isnan(r->kl))
            return kld_fail(err, KLD_E_NUMERIC,
                            "window %zu, row %zu: the recorded values are finite, the replayed "
                            "logits are not; compare the lists alone with --exact never",
                            window, i);
        apply_row(r, &pos[i]);
        if (c->body) apply_body(r, &c->body[x->first[window] + i], &pos[i]);
    }
    return KLD_OK;
}
