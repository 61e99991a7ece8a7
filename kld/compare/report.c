#include "kld/compare/report.h"

#include "kld/base/version.h"
#include "kld/compare/belong.h"
#include "kld/compare/warnings.h"

#include <math.h>
#include <string.h>

/* ---- the whole object ----------------------------------------------------------------- */

static bool larger_floor(const kld_report *r, size_t k, size_t than) {
    if (r->cand[k].self || r->cand[than].self) return !r->cand[k].self;
    return kld_group_estimate(&r->tally->cand[k].all, KLD_DIV_KL) >
           kld_group_estimate(&r->tally->cand[than].all, KLD_DIV_KL);
}

static const char *floor_kind(const kld_report_side *c) {
    if (c->self) return "same capture";
    if (!kld_is_floor(c->info)) return "repeat capture";
    return strcmp(c->info->floor, "chunk") == 0 ? "repeat in shorter spans"
                                                : "repeat in the other precision";
}

/* The candidate that is the reference measured again: of repeat captures the one of the largest
 * mean KL, so that no choice among them flatters; without any the file itself; else -1.  With
 * routes from a capture it is no measurement of noise: it takes over what a router would have
 * decided anew. */
static long floor_candidate(const kld_report *r) {
    long found = -1;
    const kld_capture_info *ref = r->ref.info;
    for (size_t k = 0; k < r->tally->n_cands; k++) {
        const kld_report_side *c = &r->cand[k];
        bool same = kld_same_checkpoint(c->info, ref) &&
                    c->info->routes.mode == KLD_ROUTES_NATURAL &&
                    !strcmp(kld_belong_activations(ref), kld_belong_activations(c->info));
        if (!(c->self || (same && !c->arithmetic_mismatch))) continue;
        if (found < 0 || larger_floor(r, k, (size_t)found)) found = (long)k;
    }
    return found;
}

static void noise_floor(kld_report *r, json_t *top) {
    long k = floor_candidate(r);
    kld_emit *e = &r->emit;
    if (k < 0) {
        kld_emit_value(e, top, "floor", json_null());
        return;
    }
    double kl = kld_group_estimate(&r->tally->cand[k].all, KLD_DIV_KL);
    json_t *o = kld_emit_object(e, top, "floor");
    kld_emit_real(e, o, "kl_mean", kl);
    kld_emit_count(e, o, "candidate", (uint64_t)k);
    kld_emit_text(e, o, "kind", floor_kind(&r->cand[k]));
    /* Without --hash full a model digest covers headers and sizes, not the weights. */
    kld_emit_bool(e, o, "verified",
                  r->cand[k].self || (!kld_zero_digest(&r->ref.info->model_full) &&
                                      !kld_zero_digest(&r->cand[k].info->model_full)));
    if (!r->cand[k].self) r->floor = kl;
}

static void reference(kld_report *r, json_t *top) {
    const kld_capture_info *i = r->ref.info;
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, top, "reference");
    kld_emit_text(e, o, "name", i->name);
    kld_emit_text(e, o, "label", i->label);
    kld_emit_text(e, o, "family", i->family);
    kld_emit_text(e, o, "activations", kld_belong_activations(i));
    kld_emit_text(e, o, "path", r->ref.path);
    kld_emit_digest(e, o, "model_digest", &i->model);
    kld_emit_digest(e, o, "model_full_digest",
                    kld_zero_digest(&i->model_full) ? NULL : &i->model_full);
    kld_emit_digest(e, o, "suite_digest", &i->suite);
    kld_emit_text(e, o, "partition", i->partition ? i->partition : "");
    kld_emit_digest(e, o, "tokenizer_digest", &i->tokenizer);
    kld_emit_digest(e, o, "content_digest", &r->ref.content);
    kld_emit_count(e, o, "vocab", i->vocab);
    kld_emit_count(e, o, "top_k", i->top_k);
    kld_emit_count(e, o, "tail_samples", i->tail_samples);
    kld_emit_real(e, o, "tail_mass", i->tail_mass);
    kld_emit_bool(e, o, "hidden", i->hidden.cols > 0);
    kld_report_routing(r, i, NULL, o);
    kld_emit_value(e, o, "engine", i->engine ? json_deep_copy(i->engine) : json_null());
    kld_emit_value(e, o, "quant", i->quant ? json_deep_copy(i->quant) : json_null());
}

static void settings(kld_report *r, json_t *top) {
    kld_emit *e = &r->emit;
    json_t *o = kld_emit_object(e, top, "settings");
    kld_emit_real(e, o, "top_p", r->opt->top_p);
    kld_emit_real(e, o, "temperature", 1);
    kld_emit_count(e, o, "overlap_k", r->opt->overlap_k);
    kld_emit_count(e, o, "resamples", r->opt->resamples);
    kld_emit_count(e, o, "seed", r->opt->seed);
    kld_emit_real(e, o, "margin", r->opt->margin);
    kld_emit_real(e, o, "margin_abs", r->opt->margin_abs > 0 ? r->opt->margin_abs : NAN);
    kld_emit_text(e, o, "partition", r->opt->partition);
    kld_emit_count(e, o, "windows_left_out", r->left_out);
    kld_emit_bool(e, o, "allow_arithmetic_mismatch", r->opt->allow_arithmetic_mismatch);
    kld_emit_text(e, o, "head", r->opt->head_shared ? "shared" : "own");
    kld_emit_text(e, o, "exact", r->opt->exact_never ? "never" : "auto");
    kld_emit_text(e, o, "ci_method",
                  r->tally->clusters < 2                  ? "none"
                  : r->tally->clusters < KLD_FEW_CLUSTERS ? "student-t"
                                                          : "bootstrap-t");
    kld_emit_text(e, o, "ci_unit", "source clusters within strata");
}

static kld_status fill(kld_report *r, json_t *top, kld_err *err) {
    const kld_tally *t = r->tally;
    kld_emit *e = &r->emit;
    bool valid = true, mismatch = false;
    for (size_t k = 0; k < t->n_cands; k++) {
        valid = valid && t->cand[k].all.positions > 0;
        mismatch = mismatch || r->cand[k].arithmetic_mismatch;
    }
    kld_emit_count(e, top, "schema", 1);
    json_t *tool = kld_emit_object(e, top, "tool");
    kld_emit_text(e, tool, "version", kld_version());
    kld_emit_text(e, tool, "commit", kld_commit());
    reference(r, top);
    kld_emit_count(e, top, "positions", t->scored);
    kld_emit_count(e, top, "windows", t->windows);
    kld_emit_count(e, top, "clusters", t->clusters);
    kld_emit_count(e, top, "strata", t->strata);
    kld_emit_text(e, top, "unit", "nats");
    kld_emit_bool(e, top, "valid", valid);
    kld_emit_bool(e, top, "arithmetic_mismatch", mismatch);
    settings(r, top);
    noise_floor(r, top);
    json_t *a = kld_emit_array(e, top, "candidates");
    for (size_t k = 0; k < t->n_cands; k++) kld_report_candidate(r, k, a);
    TRY(kld_report_pairs(r, top, err));
    kld_compare_warnings(e, top);
    return KLD_OK;
}

kld_status kld_report_build(kld_report *r, json_t **out, kld_err *err) {
    json_t *top = NULL;
    *out = NULL;
    r->emit.failed = false;
    r->floor = NAN;
    r->sums = NULL;
    kld_status st;
    TRY_TO(done, kld_report_sums_make(r, err));
    top = json_object();
    if (!top) r->emit.failed = true;
    else TRY_TO(done, fill(r, top, err));
    st = kld_emit_check(&r->emit, err);
    if (st == KLD_OK) *out = json_incref(top);
done:
    json_decref(top);
    kld_report_sums_free(r);
    return st;
}
