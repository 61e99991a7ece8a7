#include "kld/compare/warnings.h"

#include "kld/compare/stats.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char KLD_ADD_FLOOR[] = "capture the reference again (kld capture --floor --ref REFERENCE) "
                             "and add that as a candidate, to see what differences mean nothing";

struct list {
    kld_emit *e;
    json_t *out;
};

KLD_PRINTF(4, 5)
static void warn(struct list *l, const char *code, long candidate, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *o = kld_emit_object(l->e, l->out, NULL);
    kld_emit_text(l->e, o, "code", code);
    if (candidate < 0) kld_emit_value(l->e, o, "candidate", json_null());
    else kld_emit_count(l->e, o, "candidate", (uint64_t)candidate);
    kld_emit_text(l->e, o, "text", text);
}

static const json_t *at(const json_t *o, const char *a, const char *b) {
    o = json_object_get(o, a);
    return b ? json_object_get(o, b) : o;
}
static long long count(const json_t *o, const char *a, const char *b) {
    return (long long)json_integer_value(at(o, a, b));
}
static double real(const json_t *o, const char *a, const char *b) {
    return json_number_value(at(o, a, b));
}

/* The reference with its own routes given back to it must give its own distributions. */
static bool replay_broken(const json_t *c) {
    const char *cell = json_string_value(at(c, "routing", "cell"));
    const json_t *mean = at(c, "kl", "mean");
    if (!cell || strcmp(cell, "BxB") != 0) return false;
    return real(c, "kl", "mean") != 0 || real(c, "kl", "lower_bound") != 0 ||
           (json_is_null(mean) && count(c, "kl", "infinite") > 0);
}

static void about_rows(struct list *l, long k, const json_t *c) {
    if (replay_broken(c))
        warn(l, "replay_broken", k,
             "the reference with its own routes must score exactly 0 and scores %.4g (bound "
             "%.4g): replay is broken, or this is another checkpoint of the same shape (--hash "
             "full tells). The cells cannot be trusted",
             real(c, "kl", "mean"), real(c, "kl", "lower_bound"));
    long long excluded = count(c, "nonfinite", "excluded");
    if (!json_is_true(json_object_get(c, "valid")) && excluded > 0) {
        warn(l, "invalid", k,
             "no position is finite: the checkpoint produces NaN or Inf. Check that every weight "
             "and scale was exported; nothing below is a measurement");
    } else if (excluded > 0) {
        warn(l, "excluded", k,
             "%lld of %lld positions are not finite and are left out of every mean (%lld in the "
             "reference, %lld in the candidate). Fix the checkpoint before comparing it",
             excluded, excluded + count(c, "positions", NULL), count(c, "nonfinite", "reference"),
             count(c, "nonfinite", "candidate"));
    }
    if (json_is_true(json_object_get(c, "arithmetic_mismatch")))
        warn(l, "arithmetic_mismatch", k,
             "captured with other arithmetic than the reference: part of its KL is the engine's. "
             "Capture both with the same back end and precision");
    long long infinite = count(c, "kl", "infinite");
    if (infinite > 0)
        warn(l, "infinite", k,
             "KL is infinite at %lld positions (the candidate gives probability 0 to a possible "
             "token): the mean is null, mean_finite leaves them out",
             infinite);
}

static void about_precision(struct list *l, long k, const json_t *c, bool is_floor) {
    long long missing = count(c, "kl", "unestimated"), n = count(c, "positions", NULL);
    if (missing > 0)
        warn(l, "bound_only", k,
             "%lld of %lld positions have a lower bound only, so quantiles (marked >) are lower "
             "bounds and the acceptance is an upper one. Capture the candidate with --ref, and "
             "the reference with --tail-samples 2 or more",
             missing, n);
    if (json_is_string(json_object_get(c, "floor")))
        return; /* an order of magnitude is all it is for */
    double mean = real(c, "kl", "mean"), se = real(c, "kl", "stderr_sampling");
    if (mean > 0 && se > 0.05 * mean)
        warn(l, "sampling_error", k,
             "tail sampling alone leaves a standard error of %.2g %% of the mean KL. Raise "
             "--tail-samples or lower --tail-mass of the reference",
             100 * se / mean);
    double reverse = real(c, "reverse_kl", "mean"), least = real(c, "reverse_kl", "lower_bound");
    if (reverse - least > 0.05 * reverse)
        warn(l, "reverse_tail", k,
             "reverse KL is at least %.4g; the rest of its estimate comes from few draws of tokens "
             "that the candidate overrates, and its sampling error is understated",
             least);
    long long undecided = count(c, "top_p", "undecided");
    if (n > 0 && undecided * 100 > n)
        warn(l, "nucleus_undecided", k,
             "%lld of %lld positions have a nucleus wider than the stored list and are left out of "
             "the nucleus metrics. Raise --top-k",
             undecided, n);
    const char *cell = json_string_value(at(c, "routing", "cell"));
    bool check = cell && strcmp(cell, "BxB") == 0; /* 0 is what it is meant to score */
    bool measures = is_floor || json_is_string(json_object_get(c, "floor"));
    if (json_is_false(json_object_get(c, "resolved")) && !measures && !check)
        warn(l, "not_resolved", k,
             "its mean KL is within twice the noise floor: not resolved from the reference "
             "measured again");
}

static const char *mode_of(const json_t *c) {
    const char *s = json_string_value(json_object_get(c, "activations"));
    return s ? s : "";
}

/* A reference without quantized inputs is the usual; everything else is easily an accident. */
static void about_activations(struct list *l, const json_t *result) {
    const json_t *ref = json_object_get(result, "reference");
    const json_t *cands = json_object_get(result, "candidates"), *first = NULL;
    const char *model = json_string_value(json_object_get(ref, "model_digest"));
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        const char *of = json_string_value(json_object_get(c, "model_digest"));
        if (strcmp(mode_of(ref), "weights-only") != 0 && strcmp(mode_of(ref), mode_of(c)) != 0)
            warn(l, "activations_reference", (long)k,
                 "the reference was captured with activations %s, this candidate with %s: its KL "
                 "holds the reference's own rounding of inputs. Capture the reference with "
                 "--activations weights-only",
                 mode_of(ref), mode_of(c));
        if (model && of && strcmp(model, of) == 0) continue;
        if (!first) first = c;
        if (strcmp(mode_of(first), mode_of(c)) == 0) continue;
        warn(l, "activations_differ", (long)k,
             "captured with activations %s, other candidates with %s: part of what sets them apart "
             "is that",
             mode_of(c), mode_of(first));
    }
}

static const char *text_at(const json_t *o, const char *a, const char *b) {
    const char *s = json_string_value(at(o, a, b));
    return s ? s : "";
}

/* A replay says why it fills no cell, unless it was never meant to. */
static void about_replay(struct list *l, long k, const json_t *c) {
    const char *why = text_at(c, "routing", "left_out");
    bool pinned = strcmp(text_at(c, "routing", "mode"), "replay-ids") == 0;
    if (strcmp(text_at(c, "routing", "source"), "elsewhere") == 0)
        warn(l, "replay_source", k,
             "its routes are those of a capture that is not here (content digest %.12s): add that "
             "capture, or replay those of the reference or of a candidate",
             text_at(c, "routing", "source_digest"));
    else if (strcmp(why, "checkpoint") == 0)
        warn(l, "replay_unplaced", k,
             "no natural capture of its checkpoint is here, so it is in no table of cells. Add it");
    else if (strcmp(why, "arithmetic") == 0)
        warn(l, "replay_unplaced", k,
             "captured with other arithmetic than the natural capture of its checkpoint, so it is "
             "in no table of cells: the difference would not be the routes' alone");
    else if (strcmp(why, "repeated") == 0)
        warn(l, "replay_unplaced", k,
             "an earlier candidate has the same checkpoint and routes; that one is in the cells");
    if (pinned)
        warn(l, "id_pinned", k,
             "id-pinned: its experts are those of another capture, their weights its own routers'. "
             "This is no fixed-route result. Use --routes replay=FILE for one");
}

static void about_routes(struct list *l, const json_t *result) {
    const json_t *cands = json_object_get(result, "candidates");
    bool kept = json_is_true(at(json_object_get(result, "reference"), "routing", "kept"));
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        const char *mode = text_at(c, "routing", "mode");
        bool own = json_is_true(at(c, "routing", "kept"));
        if (*mode && strcmp(mode, "natural") != 0) {
            about_replay(l, (long)k, c);
            continue;
        }
        if (kept != own)
            warn(l, "routes_missing", (long)k,
                 "%s keeps routes, %s does not, so they are not compared. Capture both with "
                 "--routes capture",
                 kept ? "the reference" : "this candidate",
                 kept ? "this candidate" : "the reference");
        const json_t *all = at(c, "routes", "overall");
        long long undecided = count(all, "weight_tv_undecided", NULL);
        if (undecided > 0)
            warn(l, "route_weights", (long)k,
                 "at %lld places the weights of experts are negative, not finite or all 0; they "
                 "are left out of the TV of weights",
                 undecided);
    }
}

/* One side alone cannot be replayed. */
static void about_hidden(struct list *l, const json_t *result) {
    const json_t *cands = json_object_get(result, "candidates");
    bool kept = json_is_true(at(result, "reference", "hidden"));
    if (strcmp(text_at(result, "settings", "exact"), "never") == 0) return;
    for (size_t k = 0; k < json_array_size(cands); k++) {
        if (json_is_true(json_object_get(json_array_get(cands, k), "hidden")) == kept) continue;
        warn(l, "hidden_missing", (long)k,
             "%s keeps hidden states, %s does not, so the lists are compared. Capture both with "
             "--exact for values over the whole vocabulary",
             kept ? "the reference" : "this candidate", kept ? "this candidate" : "the reference");
    }
}

static void about_suite(struct list *l, const json_t *result) {
    long long clusters = count(result, "clusters", NULL), n = count(result, "positions", NULL);
    if (count(result, "settings", "windows_left_out") > 0)
        warn(l, "partition_left_out", -1,
             "%lld windows of partition 'qualification' are left out: it is read once, when all is "
             "decided. --partition qualification reads it, --partition all reads everything",
             count(result, "settings", "windows_left_out"));
    if (n == 0) {
        warn(l, "no_positions", -1,
             "0 positions were scored: a window needs two tokens or more. Nothing below is a "
             "measurement");
        return;
    }
    if (clusters < 2)
        warn(l, "one_cluster", -1,
             "all text comes from one source, so no interval can be given. Use a suite of at least "
             "%d documents",
             KLD_WARN_CLUSTERS);
    else if (clusters < KLD_WARN_CLUSTERS)
        warn(l, "few_clusters", -1,
             "only %lld source clusters: intervals are rough (%s). Add documents rather than "
             "tokens; %d or more are advised",
             clusters,
             clusters < KLD_FEW_CLUSTERS
                 ? "Student's t, which holds nearer 90 % than 95 % of the time"
                 : "bootstrap-t",
             KLD_WARN_CLUSTERS);
    if (n < 10000)
        warn(l, "few_positions", -1,
             "%lld positions: p99.9 and the maximum rest on a handful of them. Use 10000 or more",
             n);
    long long tested = count(result, "settings", "tested_pairs");
    if (tested > 1)
        warn(l, "multiple_comparisons", -1,
             "verdicts on %lld pairs hold together at 5 %% (Holm's correction); each interval by "
             "itself is at 95 %%. Confirm the pair that matters on held-out text",
             tested);
    double floor = real(result, "floor", "kl_mean");
    if (floor > 0 && json_is_false(at(result, "floor", "verified")))
        warn(l, "floor_unverified", -1,
             "the noise floor is from [%lld], which has the reference's headers and sizes; its "
             "weights were not compared. If it is another checkpoint of the same shape, this is no "
             "floor. Capture both with --hash full to know",
             count(result, "floor", "candidate") + 1);
    if (json_is_null(json_object_get(result, "floor")))
        warn(l, "no_floor", -1, "no noise floor: %s", KLD_ADD_FLOOR);
}

void kld_compare_warnings(kld_emit *e, json_t *result) {
    struct list l = {e, kld_emit_array(e, result, "warnings")};
    const json_t *cands = json_object_get(result, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++)
        about_rows(&l, (long)k, json_array_get(cands, k));
    const json_t *floor = at(result, "floor", "candidate");
    for (size_t k = 0; k < json_array_size(cands); k++)
        about_precision(&l, (long)k, json_array_get(cands, k),
                        floor && (size_t)json_integer_value(floor) == k);
    about_activations(&l, result);
    about_routes(&l, result);
    about_hidden(&l, result);
    about_suite(&l, result);
}
