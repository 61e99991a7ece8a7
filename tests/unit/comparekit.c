#include "tests/unit/comparekit.h"

#include "kld/compare/compare.h"
#include "tests/unit/t.h"

void cmp_begin(struct cmp_rig *g, size_t n_cands) {
    *g = (struct cmp_rig){.opt = kld_compare_defaults(), .n_cands = n_cands};
    g->opt.resamples = 500;
    g->ref_info = (kld_capture_info){
        .name = (char *)"ref", .label = (char *)"BF16", .family = (char *)"f", .vocab = V};
    g->ref_info.model.b[0] = 1;
    for (size_t k = 0; k < n_cands; k++) {
        static char *const NAME[CMP_MAX] = {(char *)"a", (char *)"b", (char *)"c",
                                            (char *)"d", (char *)"e", (char *)"f"};
        g->info[k] = g->ref_info;
        g->info[k].name = NAME[k];
        g->info[k].label = (char *)"NVFP4 (QAD)";
        g->info[k].model.b[0] = (unsigned char)(2 + k);
        g->info[k].has_reference = true;
        g->side[k] = (kld_report_side){.info = &g->info[k], .path = NAME[k]};
    }
    g->ref = (kld_report_side){.info = &g->ref_info, .path = "ref.zst"};
    assert_int_equal(kld_tally_begin(&g->tally, n_cands, NULL), KLD_OK);
}

/* As kld_compare_run does once all headers are read. */
static void start(struct cmp_rig *g) {
    if (g->started) return;
    g->started = true;
    kld_roles_find(&g->ref, g->side, g->n_cands, g->role, g->quad);
    for (size_t k = 0; k < g->n_cands; k++) {
        bool both = g->ref_info.routes.kept && g->info[k].routes.kept;
        const long *q = g->quad[k].k;
        assert_int_equal(
            kld_route_tally_begin(&g->routes[k], both ? g->ref_info.routes.layers : 0, NULL),
            KLD_OK);
        if (q[KLD_QXQ] >= 0 && q[KLD_BXQ] >= 0 && q[KLD_QXB] >= 0) kld_tally_contrast(&g->tally, q);
    }
}

static void add_routes(struct cmp_rig *g, const struct rec *ref, struct rec *const *cand) {
    for (size_t k = 0; k < g->n_cands; k++) {
        size_t layers = g->routes[k].layers;
        if (layers == 0) continue;
        kld_route_sums *sums = calloc(layers, sizeof *sums);
        assert_int_equal(kld_routes_compare(&ref->r, &cand[k]->r, sums, NULL), KLD_OK);
        assert_int_equal(kld_route_tally_window(&g->routes[k], g->tally.last_cluster,
                                                ref->r.route_tokens, sums, NULL),
                         KLD_OK);
        free(sums);
    }
}

void cmp_add(struct cmp_rig *g, const char *cluster, const char *stratum, const struct rec *ref,
             struct rec *const *cand) {
    kld_position *pos[CMP_MAX];
    start(g);
    kld_position_options opt = {.vocab = V, .top_p = g->opt.top_p, .overlap_k = g->opt.overlap_k};
    for (size_t k = 0; k < g->n_cands; k++) {
        pos[k] = calloc(ref->r.n + 1, sizeof **pos);
        kld_err err = {0};
        if (kld_positions_compare(&ref->r, &cand[k]->r, &opt, pos[k], &err) != KLD_OK)
            fail_msg("%s", err.text);
    }
    kld_window_meta meta = {.cluster = cluster, .stratum = stratum, .source = "s"};
    assert_int_equal(kld_tally_window(&g->tally, g->windows++, &meta, ref->r.first, ref->r.n,
                                      (const kld_position *const *)pos, NULL),
                     KLD_OK);
    add_routes(g, ref, cand);
    for (size_t k = 0; k < g->n_cands; k++) free(pos[k]);
}

json_t *cmp_finish(struct cmp_rig *g) {
    start(g);
    kld_report r = {.opt = &g->opt,
                    .tally = &g->tally,
                    .ref = g->ref,
                    .cand = g->side,
                    .role = g->role,
                    .quad = g->quad,
                    .routes = g->routes};
    json_t *out = NULL;
    assert_int_equal(kld_tally_end(&g->tally, NULL), KLD_OK);
    assert_int_equal(kld_report_build(&r, &out, NULL), KLD_OK);
    kld_tally_free(&g->tally);
    for (size_t k = 0; k < g->n_cands; k++) kld_route_tally_free(&g->routes[k]);
    return out;
}

/* "candidates.0.kl.mean" */
const json_t *cmp_get(const json_t *o, const char *path) {
    char part[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof part);
        memcpy(part, path, n);
        part[n] = 0;
        o = json_is_array(o) ? json_array_get(o, (size_t)(part[0] - '0'))
                             : json_object_get(o, part);
        if (!o) fail_msg("no field '%s'", path);
        path += n + (path[n] == '.');
    }
    return o;
}
double cmp_real(const json_t *o, const char *path) {
    const json_t *v = cmp_get(o, path);
    if (!json_is_number(v)) fail_msg("'%s' is %s", path, kld_json_kind(v));
    return json_number_value(v);
}
long long cmp_count(const json_t *o, const char *path) {
    assert_true(json_is_integer(cmp_get(o, path)));
    return (long long)json_integer_value(cmp_get(o, path));
}
bool cmp_warned(const json_t *o, const char *code) {
    const json_t *w = cmp_get(o, "warnings");
    for (size_t i = 0; i < json_array_size(w); i++)
        if (strcmp(json_string_value(cmp_get(json_array_get(w, i), "code")), code) == 0)
            return true;
    return false;
}

char *cmp_table(const json_t *o, bool color) {
    kld_buf b = {0};
    assert_int_equal(kld_compare_table(o, color, &b, NULL), KLD_OK);
    char *s = strdup((const char *)b.data);
    kld_buf_free(&b);
    return s;
}

/* Twelve windows in twelve clusters and two strata. */
json_t *cmp_compared(size_t n_cands, size_t k, size_t m, const double *noise, bool with_ref) {
    static const char *const CLUSTER[] = {"a", "b", "c", "d", "e", "f",
                                          "g", "h", "i", "j", "k", "l"};
    struct cmp_rig g;
    cmp_begin(&g, n_cands);
    for (uint64_t w = 0; w < 12; w++) {
        struct rec *ref = t_records(70, k, m, 100 + w, 0, 0, NULL), *cand[CMP_MAX];
        for (size_t c = 0; c < n_cands; c++) {
            cand[c] =
                t_records(70, k, m, 100 + w, noise[c], 4000 + w + 100 * c, with_ref ? ref : NULL);
            g.info[c].has_reference = with_ref;
        }
        cmp_add(&g, CLUSTER[w], w % 2 ? "code" : "prose", ref, cand);
        free(ref);
        for (size_t c = 0; c < n_cands; c++) free(cand[c]);
    }
    return cmp_finish(&g);
}
