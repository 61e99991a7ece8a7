#include "kld/compare/compare.h"

#include "datasets/partition.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/compare/belong.h"
#include "kld/compare/exact.h"
#include "kld/compare/report.h"
#include "kld/store/capture.h"

#include <string.h>

enum { BATCH = 16 }; /* windows in flight; the result does not depend on it */

struct run {
    const kld_compare_options *opt;
    size_t n_cands;
    kld_capture *ref, **cand;  /* cand: owned array; a self comparison opens the file twice */
    kld_report_side *side;     /* owned [n_cands] */
    kld_role *role;            /* owned [n_cands] */
    kld_quad *quad;            /* owned [n_cands] */
    kld_route_tally *routes;   /* owned [n_cands] */
    size_t *window, n_windows; /* owned: windows of the partition */
    size_t left_out;           /* windows of "qualification" that nobody asked for */
    kld_exact exact;
    kld_tally tally;
    kld_tokenizer *tokenizer; /* owned; may be NULL */
};

/* One window of a batch. */
struct job {
    size_t window;
    kld_window_meta meta;
    size_t n, first;
    kld_position **pos; /* owned [n_cands] of owned [n] */
    uint64_t tokens;
    kld_route_sums **routes; /* owned [n_cands] of owned [layers], or NULL where not compared */
    kld_status st;
    kld_err err;
};

/* ---- opening and checking -------------------------------------------------------------- */

static kld_status open_all(struct run *r, const char *ref_path, const char *const *cand_paths,
                           kld_err *err) {
    TRY(kld_calloc((void **)&r->cand, r->n_cands, sizeof(kld_capture *), err));
    TRY(NEW_ARRAY(&r->side, r->n_cands, err));
    TRY(kld_capture_open(&r->ref, ref_path, err));
    TRY(kld_belong_reference(r->ref, err));
    kld_digest ref_content = kld_capture_digest(r->ref);
    for (size_t k = 0; k < r->n_cands; k++) {
        kld_report_side *s = &r->side[k];
        TRY(kld_capture_open(&r->cand[k], cand_paths[k], err));
        TRY(kld_belong_headers(r->ref, r->cand[k], r->opt->allow_arithmetic_mismatch,
                               &s->arithmetic_mismatch, err));
        s->info = kld_capture_header(r->cand[k]);
        s->content = kld_capture_digest(r->cand[k]);
        s->path = cand_paths[k];
        s->self = kld_same_digest(&s->content, &ref_content);
    }
    return KLD_OK;
}

/* Two sides whose own routers chose, and who both tell. */
static bool routes_kept(const kld_capture_info *i) {
    return i->routes.kept && i->routes.mode == KLD_ROUTES_NATURAL;
}

/* Who ran with whose routes, and what is compared because of it. */
static kld_status find_roles(struct run *r, const char *ref_path, kld_report_side *ref,
                             kld_err *err) {
    const kld_capture_info *info = kld_capture_header(r->ref);
    *ref = (kld_report_side){.info = info, .content = kld_capture_digest(r->ref), .path = ref_path};
    TRY(NEW_ARRAY(&r->role, r->n_cands, err));
    TRY(NEW_ARRAY(&r->quad, r->n_cands, err));
    TRY(NEW_ARRAY(&r->routes, r->n_cands, err));
    kld_roles_find(ref, r->side, r->n_cands, r->role, r->quad);
    for (size_t k = 0; k < r->n_cands; k++) {
        bool both = routes_kept(info) && routes_kept(r->side[k].info);
        TRY(kld_route_tally_begin(&r->routes[k], both ? info->routes.layers : 0, err));
        const long *q = r->quad[k].k;
        if (q[KLD_QXQ] >= 0 && q[KLD_BXQ] >= 0 && q[KLD_QXB] >= 0) kld_tally_contrast(&r->tally, q);
    }
    return KLD_OK;
}

static const char *partition_of(void *ctx, size_t i) {
    kld_window_meta m;
    kld_err ignored; /* window i was there before */
    if (kld_capture_meta(ctx, i, &m, &ignored) != KLD_OK || !m.partition) return "";
    return m.partition;
}

/* The partition that decides is never read by the way. */
static bool asked_for(const char *asked, const char *partition) {
    if (!partition) partition = "";
    if (!asked) return strcmp(partition, KLD_QUALIFICATION) != 0;
    return strcmp(asked, KLD_ALL_PARTITIONS) == 0 || strcmp(partition, asked) == 0;
}

static kld_status choose_windows(struct run *r, kld_err *err) {
    uint64_t all = kld_capture_header(r->ref)->windows;
    TRY(NEW_ARRAY(&r->window, all, err));
    for (size_t i = 0; i < all; i++) {
        kld_window_meta ref, cand;
        TRY(kld_where(err, kld_capture_meta(r->ref, i, &ref, err), "%s", kld_capture_path(r->ref)));
        for (size_t k = 0; k < r->n_cands; k++) {
            kld_status st = kld_capture_meta(r->cand[k], i, &cand, err);
            if (st == KLD_OK) st = kld_belong_window(i, &ref, &cand, err);
            TRY(kld_where(err, st, "%s", kld_capture_path(r->cand[k])));
        }
        if (asked_for(r->opt->partition, ref.partition)) r->window[r->n_windows++] = i;
    }
    if (r->n_windows == 0 && !r->opt->partition) /* they were asked for when captured */
        for (; r->n_windows < all; r->n_windows++) r->window[r->n_windows] = r->n_windows;
    if (!r->opt->partition) r->left_out = all - r->n_windows;
    if (r->n_windows == 0 && r->opt->partition)
        return kld_no_such_partition(r->opt->partition, partition_of, r->ref, all, err);
    return KLD_OK;
}

/* ---- windows ----------------------------------------------------------------------------- */

static kld_status compare_candidate(struct run *r, struct job *j, size_t k, const kld_records *ref,
                                    kld_err *err) {
    const kld_capture_info *info = kld_capture_header(r->ref);
    kld_position_options opt = {
        .vocab = info->vocab, .top_p = r->opt->top_p, .overlap_k = r->opt->overlap_k};
    TRY(NEW_ARRAY(&j->pos[k], ref->n, err));
    TRY(NEW_ARRAY(&j->routes[k], r->routes[k].layers, err));
    if (r->side[k].self) {
        if (j->routes[k]) TRY(kld_routes_compare(ref, ref, j->routes[k], err));
        TRY(kld_positions_compare(ref, ref, &opt, j->pos[k], err));
        return kld_exact_apply(&r->exact, k, j->window, ref->n, j->pos[k], err);
    }
    kld_records own = {0};
    const kld_records *relative = r->side[k].info->has_reference ? ref : NULL;
    kld_status st = kld_capture_read(r->cand[k], j->window, relative, &own, NULL, err);
    if (st == KLD_OK) {
        st = kld_positions_compare(ref, &own, &opt, j->pos[k], err);
        if (st == KLD_OK && j->routes[k]) st = kld_routes_compare(ref, &own, j->routes[k], err);
        st = kld_where(err, st, "window %zu", j->window);
    }
    if (st == KLD_OK) st = kld_exact_apply(&r->exact, k, j->window, ref->n, j->pos[k], err);
    kld_records_free(&own);
    return kld_where(err, st, "%s", kld_capture_path(r->cand[k]));
}

static void compare_window(struct run *r, struct job *j) {
    kld_records ref = {0};
    j->st = kld_calloc((void **)&j->pos, r->n_cands, sizeof(kld_position *), &j->err);
    if (j->st == KLD_OK)
        j->st = kld_calloc((void **)&j->routes, r->n_cands, sizeof(kld_route_sums *), &j->err);
    if (j->st == KLD_OK)
        j->st =
            kld_where(&j->err, kld_capture_read(r->ref, j->window, NULL, &ref, &j->meta, &j->err),
                      "%s", kld_capture_path(r->ref));
    j->n = ref.n;
    j->first = ref.first;
    j->tokens = ref.route_tokens;
    for (size_t k = 0; k < r->n_cands && j->st == KLD_OK; k++)
        j->st = compare_candidate(r, j, k, &ref, &j->err);
    kld_records_free(&ref);
}

static void job_free(struct run *r, struct job *j) {
    for (size_t k = 0; j->pos && k < r->n_cands; k++) kld_free(j->pos[k]);
    for (size_t k = 0; j->routes && k < r->n_cands; k++) kld_free(j->routes[k]);
    kld_free(j->pos);
    kld_free(j->routes);
    *j = (struct job){0};
}

static kld_status compare_batch(struct run *r, struct job *jobs, size_t from, kld_err *err) {
    size_t n = num_min(BATCH, r->n_windows - from);
    for (size_t i = 0; i < n; i++) jobs[i] = (struct job){.window = r->window[from + i]};
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n; i++) compare_window(r, &jobs[i]);
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n; i++) {
        struct job *j = &jobs[i];
        if (st == KLD_OK && j->st != KLD_OK) {
            st = j->st;
            if (err) *err = j->err;
        }
        if (st == KLD_OK)
            st = kld_tally_window(&r->tally, j->window, &j->meta, j->first, j->n,
                                  (const kld_position *const *)j->pos, err);
        for (size_t k = 0; k < r->n_cands && st == KLD_OK; k++)
            if (j->routes[k])
                st = kld_route_tally_window(&r->routes[k], r->tally.last_cluster, j->tokens,
                                            j->routes[k], err);
        job_free(r, j);
    }
    return st;
}

static kld_status compare_windows(struct run *r, kld_err *err) {
    struct job *jobs = NULL;
    kld_status st = NEW_ARRAY(&jobs, BATCH, err);
    kld_progress_begin("compare", r->n_windows, 1, "windows");
    for (size_t from = 0; st == KLD_OK && from < r->n_windows; from += BATCH) {
        st = kld_stop_check(err);
        if (st == KLD_OK) st = compare_batch(r, jobs, from, err);
        kld_progress_set(num_min(from + BATCH, r->n_windows));
    }
    kld_progress_end();
    kld_free(jobs);
    return st;
}

static kld_status build(struct run *r, const kld_report_side *ref, json_t **out, kld_err *err) {
    kld_worst *worst;
    TRY(NEW_ARRAY(&worst, r->n_cands * KLD_WORST, err));
    kld_report report = {.opt = r->opt,
                         .tally = &r->tally,
                         .left_out = r->left_out,
                         .exact = &r->exact,
                         .ref = *ref,
                         .cand = r->side,
                         .role = r->role,
                         .quad = r->quad,
                         .routes = r->routes,
                         .worst = worst,
                         .tokenizer = r->tokenizer};
    kld_status st = kld_tally_end(&r->tally, err);
    if (st == KLD_OK) st = kld_worst_read(r->ref, r->cand, &r->tally, worst, err);
    if (st == KLD_OK) st = kld_report_build(&report, out, err);
    kld_free(worst);
    return st;
}

static void close_all(struct run *r) {
    kld_tokenizer_free(r->tokenizer);
    kld_tally_free(&r->tally);
    kld_exact_free(&r->exact);
    for (size_t k = 0; r->routes && k < r->n_cands; k++) kld_route_tally_free(&r->routes[k]);
    kld_free(r->routes);
    kld_free(r->quad);
    kld_free(r->role);
    kld_free(r->window);
    for (size_t k = 0; r->cand && k < r->n_cands; k++) kld_capture_close(r->cand[k]);
    kld_free(r->cand);
    kld_free(r->side);
    kld_capture_close(r->ref);
}

kld_status kld_compare_run(const char *ref_path, const char *const *cand_paths, size_t n_cands,
                           const kld_compare_options *opt, json_t **out, kld_err *err) {
    *out = NULL;
    TRY(kld_compare_check(opt, n_cands, err));
    kld_mem_keep();
    struct run r = {.opt = opt, .n_cands = n_cands};
    kld_report_side ref;
    kld_status st;
    TRY_TO(done, open_all(&r, ref_path, cand_paths, err));
    TRY_TO(done, kld_worst_tokenizer(opt->tokenizer, opt->find_tokenizer, kld_capture_header(r.ref),
                                     &r.tokenizer, err));
    TRY_TO(done, choose_windows(&r, err));
    TRY_TO(done, kld_exact_run(&r.exact, r.ref, r.cand, n_cands, r.window, r.n_windows, opt, err));
    TRY_TO(done, kld_tally_begin(&r.tally, n_cands, err));
    TRY_TO(done, find_roles(&r, ref_path, &ref, err));
    TRY_TO(done, compare_windows(&r, err));
    TRY_TO(done, build(&r, &ref, out, err));
done:
    close_all(&r);
    return st;
}

kld_status kld_compare_valid(const json_t *result, kld_err *err) {
    const json_t *cands = json_object_get(result, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        if (!json_is_false(json_object_get(c, "valid"))) continue;
        const char *path = json_string_value(json_object_get(c, "path"));
        if (json_integer_value(json_object_get(result, "positions")) == 0)
            return kld_fail(err, KLD_E_NUMERIC,
                            "%s: 0 positions were scored, so nothing was measured",
                            path ? path : "candidate");
        return kld_fail(err, KLD_E_NUMERIC,
                        "%s: invalid: none of its positions is finite, so nothing was measured",
                        path ? path : "candidate");
    }
    return KLD_OK;
}
