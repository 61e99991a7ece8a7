#include "kld/compare/roles.h"

#include "kld/compare/belong.h"

#include <string.h>

const char *const KLD_CELL_NAME[KLD_CELLS] = {"BxB", "BxQ", "QxB", "QxQ"};

static const char *text(const char *s) { return s ? s : ""; }

/* How surely two captures are of one checkpoint: 0 not, 1 by headers and sizes, 2 surely. */
static int alike(const kld_capture_info *a, const kld_capture_info *b) {
    if (!kld_same_checkpoint(a, b)) return 0;
    bool every_byte = !kld_zero_digest(&a->model_full) && !kld_zero_digest(&b->model_full);
    return every_byte || strcmp(text(a->name), text(b->name)) == 0 ? 2 : 1;
}

/* Quantized inputs and whatever else of the arithmetic: a cell differs from the next in its routes
 * alone. */
static bool same_arithmetic(const kld_capture_info *a, const kld_capture_info *b) {
    const char *x = json_string_value(json_object_get(a->engine, "arithmetic"));
    const char *y = json_string_value(json_object_get(b->engine, "arithmetic"));
    return strcmp(text(x), text(y)) == 0;
}

static bool natural(const kld_report_side *s) { return s->info->routes.mode == KLD_ROUTES_NATURAL; }

static void find_source(const kld_report_side *ref, const kld_report_side *cand, size_t n, size_t k,
                        kld_role *r) {
    const kld_digest *from = &cand[k].info->routes.source;
    *r = (kld_role){.source_candidate = KLD_NO_CAPTURE, .cell = KLD_CELLS, .of = KLD_NO_CAPTURE};
    if (natural(&cand[k])) return;
    r->source = KLD_SOURCE_ELSEWHERE;
    r->left_out = KLD_LEFT_SOURCE;
    if (kld_same_digest(from, &ref->content)) {
        r->source = KLD_SOURCE_REFERENCE;
        return;
    }
    for (size_t j = 0; j < n && r->source == KLD_SOURCE_ELSEWHERE; j++)
        if (natural(&cand[j]) && kld_same_digest(from, &cand[j].content)) {
            r->source = KLD_SOURCE_CANDIDATE;
            r->source_candidate = (long)j;
        }
}

/* The natural candidate of k's checkpoint, or KLD_NO_CAPTURE; *best is how surely.  Among equals
 * one of k's arithmetic goes first. */
static long natural_of(const kld_report_side *cand, size_t n, size_t k, int *best) {
    long found = KLD_NO_CAPTURE;
    *best = 0;
    for (size_t j = 0; j < n; j++) {
        int sure = natural(&cand[j]) ? alike(cand[k].info, cand[j].info) : 0;
        if (sure == 0 || sure < *best) continue;
        if (found >= 0 && sure == *best &&
            (same_arithmetic(cand[k].info, cand[found].info) ||
             !same_arithmetic(cand[k].info, cand[j].info)))
            continue;
        found = (long)j;
        *best = sure;
    }
    return found;
}

static void place(const kld_report_side *ref, const kld_report_side *cand, size_t n, size_t k,
                  kld_role *r) {
    const kld_capture_info *own = cand[k].info, *weights = ref->info;
    int sure = 0;
    long of = natural_of(cand, n, k, &sure);
    bool of_reference = alike(own, ref->info) >= (sure ? sure : 1);
    kld_cell cell = KLD_CELLS;
    if (r->source == KLD_SOURCE_REFERENCE && of_reference) {
        cell = KLD_BXB;
        of = KLD_NO_CAPTURE;
    } else if (r->source == KLD_SOURCE_REFERENCE && of >= 0) {
        cell = KLD_BXQ;
        weights = cand[of].info;
    } else if (r->source == KLD_SOURCE_CANDIDATE && of_reference &&
               alike(cand[r->source_candidate].info, ref->info) < 2) {
        cell = KLD_QXB;
        of = r->source_candidate;
    } else {
        bool own_routes = r->source == KLD_SOURCE_CANDIDATE && (of_reference || of >= 0);
        r->left_out =
            r->source == KLD_SOURCE_ELSEWHERE || own_routes ? KLD_LEFT_SOURCE : KLD_LEFT_CHECKPOINT;
        return;
    }
    r->left_out = same_arithmetic(own, weights) ? KLD_PLACED : KLD_LEFT_ARITHMETIC;
    if (r->left_out != KLD_PLACED) return;
    r->cell = cell;
    r->of = of;
}

void kld_roles_find(const kld_report_side *ref, const kld_report_side *cand, size_t n,
                    kld_role *role, kld_quad *quad) {
    long check = KLD_NO_CAPTURE;
    for (size_t k = 0; k < n; k++) {
        for (int c = 0; c < KLD_CELLS; c++) quad[k].k[c] = KLD_NO_CAPTURE;
        quad[k].shown = false;
        if (natural(&cand[k])) quad[k].k[KLD_QXQ] = (long)k;
    }
    for (size_t k = 0; k < n; k++) {
        kld_role *r = &role[k];
        find_source(ref, cand, n, k, r);
        if (natural(&cand[k])) continue;
        place(ref, cand, n, k, r);
        if (r->cell == KLD_CELLS) continue;
        if (r->of >= 0) quad[r->of].shown = true;
        if (cand[k].info->routes.mode != KLD_ROUTES_REPLAYED) continue;
        long *at = r->cell == KLD_BXB ? &check : &quad[r->of].k[r->cell];
        if (*at == KLD_NO_CAPTURE) {
            *at = (long)k;
        } else {
            r->cell = KLD_CELLS;
            r->left_out = KLD_LEFT_REPEATED;
        }
    }
    for (size_t k = 0; k < n; k++)
        if (natural(&cand[k])) quad[k].k[KLD_BXB] = check;
}
