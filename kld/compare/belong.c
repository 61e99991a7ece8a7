#include "kld/compare/belong.h"

#include "datasets/partition.h"

#include <string.h>

static kld_status same_digest(const char *what, const kld_digest *ref, const kld_digest *cand,
                              kld_err *err) {
    char a[KLD_SHA256_HEX], b[KLD_SHA256_HEX];
    if (kld_same_digest(ref, cand)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s differs: %.12s in the reference, %.12s in the candidate",
                    what, kld_digest_hex(ref, a), kld_digest_hex(cand, b));
}

static kld_status same_count(const char *what, uint64_t ref, uint64_t cand, kld_err *err) {
    if (ref == cand) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s differs: %llu in the reference, %llu in the candidate",
                    what, (unsigned long long)ref, (unsigned long long)cand);
}

static kld_status same_partition(const char *ref, const char *cand, kld_err *err) {
    const char *a = ref && *ref ? ref : KLD_ALL_PARTITIONS;
    const char *b = cand && *cand ? cand : KLD_ALL_PARTITIONS;
    if (strcmp(a, b) == 0) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "partition differs: '%s' in the reference, '%s' in the candidate; capture both "
                    "with the same --partition",
                    a, b);
}

static const char *arithmetic(const kld_capture_info *i) {
    const char *s = json_string_value(json_object_get(i->engine, "arithmetic"));
    return s ? s : "";
}

static bool same_engine(const kld_capture_info *a, const kld_capture_info *b) {
    const char *x = arithmetic(a), *y = arithmetic(b);
    const char *end = strstr(x, KLD_ARITHMETIC_INPUTS), *stop = strstr(y, KLD_ARITHMETIC_INPUTS);
    size_t n = end ? (size_t)(end - x) : strlen(x), m = stop ? (size_t)(stop - y) : strlen(y);
    return n == m && memcmp(x, y, n) == 0;
}

/* Captures from before there was a choice have a precision here. */
const char *kld_belong_activations(const kld_capture_info *i) {
    const char *how = json_string_value(json_object_get(i->engine, "activations"));
    const char *fused = json_string_value(json_object_get(i->engine, "fused_input_scale"));
    if (!how || strcmp(how, "as-declared") != 0) return "weights-only";
    return fused && strcmp(fused, "max") == 0 ? "as-declared (max scales)"
                                              : "as-declared (own scales)";
}

kld_status kld_belong_reference(const kld_capture *ref, kld_err *err) {
    const kld_capture_info *i = kld_capture_header(ref);
    if (i->routes.mode != KLD_ROUTES_NATURAL)
        return kld_fail(err, KLD_E_INPUT,
                        "%s: was captured with the routes of another capture (--routes %s=) and "
                        "cannot be a reference; put the natural capture first",
                        kld_capture_path(ref), kld_route_mode_name(i->routes.mode));
    if (!i->has_reference) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "%s: was itself captured against reference '%s' and cannot be a reference; "
                    "capture it without --ref, or put the reference first",
                    kld_capture_path(ref), i->reference_name);
}

static kld_status names_reference(const kld_capture *ref, const kld_capture *cand, kld_err *err) {
    const kld_capture_info *r = kld_capture_header(ref), *c = kld_capture_header(cand);
    kld_digest content = kld_capture_digest(ref);
    char a[KLD_SHA256_HEX], b[KLD_SHA256_HEX];
    if (!c->has_reference || kld_same_digest(&content, &c->reference)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "was captured against another reference: '%s' (content %.12s), not '%s' "
                    "(content %.12s)",
                    c->reference_name, kld_digest_hex(&c->reference, a), r->name,
                    kld_digest_hex(&content, b));
}

/* Models of one architecture send a token to as many experts in as many layers. */
static kld_status same_experts(const kld_route_info *r, const kld_route_info *c, kld_err *err) {
    if (!r->layers || !c->layers) return KLD_OK;
    if (r->layers == c->layers && r->top_k == c->top_k && r->experts == c->experts) return KLD_OK;
    return kld_fail(
        err, KLD_E_INPUT,
        "experts differ: %llu layers with %llu of %llu experts a token in the reference, %llu with "
        "%llu of %llu in the candidate; capture it without --routes to compare the rest",
        (unsigned long long)r->layers, (unsigned long long)r->top_k, (unsigned long long)r->experts,
        (unsigned long long)c->layers, (unsigned long long)c->top_k,
        (unsigned long long)c->experts);
}

/* The other arithmetic of a floor capture is what it is for; the machine must be the same. */
static bool same_machine(const kld_capture_info *r, const kld_capture_info *c) {
    static const char *const KEY[] = {"backend", "device", "blas"};
    for (size_t i = 0; i < sizeof KEY / sizeof *KEY; i++)
        if (!json_equal(json_object_get(r->engine, KEY[i]), json_object_get(c->engine, KEY[i])))
            return false;
    return true;
}

bool kld_same_checkpoint(const kld_capture_info *a, const kld_capture_info *b) {
    if (!kld_same_digest(&a->model, &b->model)) return false;
    if (kld_zero_digest(&a->model_full) || kld_zero_digest(&b->model_full)) return true;
    return kld_same_digest(&a->model_full, &b->model_full);
}

bool kld_is_floor(const kld_capture_info *i) { return i->floor && *i->floor; }

static kld_status floor_of(const kld_capture_info *r, const kld_capture_info *c, kld_err *err) {
    if (!kld_is_floor(c) || kld_same_digest(&r->model, &c->model)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "measures the noise floor of another checkpoint, '%s' and not '%s'", c->name,
                    r->name);
}

static kld_status headers(const kld_capture *ref, const kld_capture *cand, bool allow_mismatch,
                          bool *mismatch, kld_err *err) {
    const kld_capture_info *r = kld_capture_header(ref), *c = kld_capture_header(cand);
    TRY(same_digest("tokenizer", &r->tokenizer, &c->tokenizer, err));
    TRY(same_digest("suite", &r->suite, &c->suite, err));
    TRY(same_partition(r->partition, c->partition, err));
    TRY(same_count("vocab", r->vocab, c->vocab, err));
    TRY(same_count("windows", r->windows, c->windows, err));
    TRY(same_count("positions", r->positions, c->positions, err));
    TRY(names_reference(ref, cand, err));
    TRY(same_experts(&r->routes, &c->routes, err));
    TRY(floor_of(r, c, err));
    *mismatch = kld_is_floor(c) ? !same_machine(r, c) : !same_engine(r, c);
    if (*mismatch && !allow_mismatch)
        return kld_fail(err, KLD_E_INPUT,
                        "engine arithmetic differs: '%s' in the reference, '%s' in the candidate; "
                        "part of the KL would be the engine's (--allow-arithmetic-mismatch to mark "
                        "it instead)",
                        arithmetic(r), arithmetic(c));
    return KLD_OK;
}

kld_status kld_belong_headers(const kld_capture *ref, const kld_capture *cand, bool allow_mismatch,
                              bool *mismatch, kld_err *err) {
    return kld_where(err, headers(ref, cand, allow_mismatch, mismatch, err), "%s",
                     kld_capture_path(cand));
}

kld_status kld_belong_window(size_t i, const kld_window_meta *ref, const kld_window_meta *cand,
                             kld_err *err) {
    kld_status st = same_digest("token ids", &ref->ids, &cand->ids, err);
    if (st == KLD_OK) st = same_count("tokens", ref->tokens, cand->tokens, err);
    if (st == KLD_OK) st = same_count("score_from", ref->score_from, cand->score_from, err);
    return kld_where(err, st, "window %zu", i);
}
