/* From sums to the report: JSON, table, gates. */
#include "tests/unit/t.h"
#include "kld/compare/compare.h"
#include "tests/unit/comparekit.h"

#include <math.h>
#include <omp.h>

#define NEAR(a, b, tol) assert_true(fabs((a) - (b)) <= (tol))

/* Every field of the published schema, with two candidates. */
static void schema(void **state) {
    (void)state;
    static const char *const FIELDS[] = {"schema",
                                         "reference.name",
                                         "reference.model_digest",
                                         "reference.suite_digest",
                                         "positions",
                                         "unit",
                                         "floor",
                                         "settings.seed",
                                         "settings.top_p",
                                         "settings.resamples",
                                         "settings.ci_method",
                                         "warnings",
                                         "arithmetic_mismatch",
                                         "valid",
                                         "pairs.0.verdict",
                                         "pairs.0.difference_ci95.1",
                                         "pairs.0.ratio_ci95.0",
                                         "candidates.1.name",
                                         "candidates.1.model_digest",
                                         "candidates.1.positions",
                                         "candidates.1.nonfinite.reference",
                                         "candidates.1.nonfinite.candidate",
                                         "candidates.1.topk_overlap.10",
                                         "candidates.1.top1_agreement",
                                         "candidates.1.top_p.temperature",
                                         "candidates.1.top_p.p",
                                         "candidates.1.top_p.jaccard",
                                         "candidates.1.top_p.mass_on_reference",
                                         "candidates.1.top_p.mass_on_candidate",
                                         "candidates.1.top_p.tv",
                                         "candidates.1.top_p.undecided",
                                         "candidates.1.acceptance.sampling",
                                         "candidates.1.acceptance.greedy",
                                         "candidates.1.acceptance.nucleus",
                                         "candidates.1.acceptance.expected_tokens.1",
                                         "candidates.1.acceptance.expected_tokens.7",
                                         "candidates.1.perplexity.reference",
                                         "candidates.1.perplexity.candidate",
                                         "candidates.1.perplexity.ratio",
                                         "candidates.1.kl.quantiles_ci95.median.1",
                                         "candidates.1.kl.quantiles_ci95.p999",
                                         "pairs.0.p_value",
                                         "pairs.0.p_holm",
                                         "pairs.0.resolved",
                                         "pairs.0.equivalence.scale",
                                         "pairs.0.equivalence.margin",
                                         "pairs.0.equivalence.ci90.1",
                                         "pairs.0.equivalence.p_value",
                                         "pairs.0.equivalence.p_holm",
                                         "pairs.0.equivalence.not_worse_p_value",
                                         "pairs.0.equivalence.not_worse_p_holm",
                                         "settings.tested_pairs",
                                         "settings.margin_abs",
                                         "candidates.1.by_stratum.1.kl_ci95.1",
                                         "candidates.1.by_depth.0.clusters",
                                         "candidates.1.by_confidence.0.ci_method",
                                         "candidates.1.by_stratum.1.kl_mean",
                                         "candidates.1.by_depth.3.to",
                                         "candidates.1.by_confidence.4.top1_agreement"};
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) cmp_get(o, FIELDS[i]);
    for (int k = 0; k < 4; k++) {
        static const char *const D[] = {"kl", "reverse_kl", "js", "tv"};
        static const char *const F[] = {"mean",   "ci95", "exact", "lower_bound", "stderr_sampling",
                                        "median", "p90",  "p95",   "p99",         "p999",
                                        "max"};
        for (size_t f = 0; f < sizeof F / sizeof *F; f++) {
            char path[64];
            snprintf(path, sizeof path, "candidates.0.%s.%s", D[k], F[f]);
            cmp_get(o, path);
        }
    }
    long long by[3] = {0};
    static const char *const GROUP[] = {"by_stratum", "by_depth", "by_confidence"};
    for (int k = 0; k < 3; k++) {
        const json_t *a = cmp_get(cmp_get(o, "candidates.0"), GROUP[k]);
        for (size_t i = 0; i < json_array_size(a); i++)
            by[k] += cmp_count(json_array_get(a, i), "positions");
        assert_int_equal(by[k], 840);
    }
    /* Positions 1 to 70: spans of two; their means make up the mean. */
    const json_t *span = cmp_get(o, "candidates.0.by_position");
    double total = 0;
    assert_int_equal(json_array_size(span), 36);
    for (size_t i = 0; i < 36; i++) {
        const json_t *row = json_array_get(span, i);
        assert_int_equal(cmp_count(row, "from"), 2 * i);
        assert_int_equal(cmp_count(row, "to"), 2 * i + 1);
        assert_true(cmp_real(row, "kl_mean") >= cmp_real(row, "kl_lower_bound") - 1e-3);
        total += cmp_real(row, "kl_mean") * (double)cmp_count(row, "positions");
    }
    NEAR(total / 840, cmp_real(o, "candidates.0.kl.mean"), 1e-12);
    assert_int_equal(cmp_count(o, "candidates.0.by_depth.0.positions"), 12 * 63);
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.verdict")), "worse");
    assert_true(cmp_real(o, "pairs.0.difference") > 0);
    NEAR(cmp_real(o, "pairs.0.ratio"),
         cmp_real(o, "candidates.1.kl.mean") / cmp_real(o, "candidates.0.kl.mean"), 1e-12);
    double reverse = cmp_real(o, "candidates.1.reverse_kl.mean");
    double sampled = reverse - cmp_real(o, "candidates.1.reverse_kl.lower_bound");
    assert_true(sampled > 0.05 * reverse && cmp_warned(o, "reverse_tail"));
    assert_true(cmp_warned(o, "few_clusters") && cmp_warned(o, "no_floor") &&
                cmp_warned(o, "few_positions"));
    json_decref(o);
}

static size_t warnings_of(const json_t *o, const char *code) {
    size_t n = 0;
    const json_t *w = cmp_get(o, "warnings");
    for (size_t i = 0; i < json_array_size(w); i++)
        n += strcmp(json_string_value(cmp_get(json_array_get(w, i), "code")), code) == 0;
    return n;
}

static void repeat_is_the_floor(void **state) {
    (void)state;
    for (int hashed = 0; hashed < 2; hashed++) {
        struct cmp_rig g;
        cmp_begin(&g, 3);
        g.info[1].model = g.ref_info.model; /* a second capture of the reference */
        g.ref_info.model_full.b[0] = g.info[1].model_full.b[0] = (unsigned char)hashed;
        struct rec *ref = t_records(60, 20, 16, 1, 0, 0, NULL);
        struct rec *q[] = {t_records(60, 20, 16, 1, 0.02, 2, ref),
                           t_records(60, 20, 16, 1, 0.02, 3, ref),
                           t_records(60, 20, 16, 1, 0.4, 4, ref)};
        cmp_add(&g, "c", "", ref, q);
        json_t *o = cmp_finish(&g);
        assert_int_equal(cmp_count(o, "floor.candidate"), 1);
        assert_true(cmp_real(o, "floor.kl_mean") == cmp_real(o, "candidates.1.kl.mean"));
        /* Equal headers are no proof of equal weights, and a floor above 0 needs one. */
        assert_true(json_is_true(cmp_get(o, "floor.verified")) == hashed);
        assert_true(cmp_warned(o, "floor_unverified") == !hashed);
        assert_true(json_is_false(cmp_get(o, "candidates.0.resolved")));
        assert_true(json_is_true(cmp_get(o, "candidates.2.resolved")));
        assert_true(!cmp_warned(o, "no_floor"));
        assert_int_equal(warnings_of(o, "not_resolved"), 1); /* the floor itself is not told */
        /* Two captures at the floor are not told apart, whatever the verdict. */
        assert_true(json_is_false(cmp_get(o, "pairs.0.resolved")));
        assert_true(json_is_true(cmp_get(o, "pairs.1.resolved")));
        char *t = cmp_table(o, false);
        assert_non_null(strstr(t, "unresolved\n"));
        assert_non_null(strstr(t, "Noise floor: mean KL "));
        free(t);
        assert_int_equal(json_array_size(cmp_get(o, "pairs")), 3);
        json_decref(o);
        free(ref);
        for (int k = 0; k < 3; k++) free(q[k]);
    }
}

static void gates(void **state) {
    (void)state;
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    kld_buf report = {0};
    kld_err err = {0};
    const char *fine[] = {"mean_kl=10",          "upper_kl=10",         "p999_kl=50",
                          "top1_disagreement=1", "topp_disagreement=1", "ppl_ratio=10",
                          "mean_js=1",           "lower_bound_kl=1e1"};
    assert_int_equal(kld_compare_gates(o, fine, 8, &report, &err), KLD_OK);
    assert_int_equal(report.len, 0);
    char between[64];
    snprintf(between, sizeof between, "mean_kl=%.17g",
             0.5 * (cmp_real(o, "candidates.0.kl.mean") + cmp_real(o, "candidates.1.kl.mean")));
    assert_int_equal(kld_compare_gates(o, (const char *[]){between}, 1, &report, &err), KLD_E_GATE);
    assert_non_null(strstr((char *)report.data, "b (b): mean_kl is"));
    assert_null(strstr((char *)report.data, "a (a)"));
    /* A metric equal to its limit passes. */
    snprintf(between, sizeof between, "mean_kl=%.17g", cmp_real(o, "candidates.1.kl.mean"));
    kld_buf_clear(&report);
    assert_int_equal(kld_compare_gates(o, (const char *[]){between}, 1, &report, &err), KLD_OK);
    /* The same for readers of the result. */
    const char *two[] = {between, "p999_kl=1e-9"};
    assert_int_equal(kld_compare_gates_record(o, two, 2, &err), KLD_OK);
    assert_int_equal(json_array_size(cmp_get(o, "gates")), 4);
    assert_string_equal(json_string_value(cmp_get(o, "gates.1.metric")), "mean_kl");
    assert_true(json_is_true(cmp_get(o, "gates.1.passed")));
    assert_true(json_is_false(cmp_get(o, "gates.2.passed")));
    assert_true(cmp_real(o, "gates.2.value") == cmp_real(o, "candidates.0.kl.p999"));
    assert_true(cmp_real(o, "gates.2.limit") == 1e-9);
    assert_int_equal(cmp_count(o, "gates.3.candidate"), 1);
    assert_int_equal(kld_compare_gates_record(o, NULL, 0, &err), KLD_OK);
    assert_int_equal(json_array_size(cmp_get(o, "gates")), 0);
    assert_int_equal(kld_compare_gates_record(o, (const char *[]){"x=1"}, 1, &err), KLD_E_USAGE);
    static const char *const BAD[] = {"mean_klx=1",  "mean_kl", "mean_kl=", "mean_kl=1x",
                                      "mean_kl=nan", "=1",      ""};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(kld_compare_gates(o, &BAD[i], 1, &report, &err), KLD_E_USAGE);
        assert_int_equal(report.len, 0);
    }
    assert_non_null(strstr(err.text, "mean_kl"));
    kld_buf_free(&report);
    json_decref(o);
}

/* The worst positions are in the table when their text is known: the end of what was before. */
static void worst_text(void **state) {
    (void)state;
    json_t *o = cmp_compared(1, 24, 16, (double[]){0.3}, true);
    char *s = cmp_table(o, false);
    assert_null(strstr(s, "Largest KL"));
    free(s);
    json_t *w = json_array_get(
        json_object_get(json_object_get(json_array_get(json_object_get(o, "candidates"), 0), "kl"),
                        "worst"),
        0);
    json_object_set_new(w, "next_text", json_string(" next"));
    json_object_set_new(w, "reference_top5", json_pack("[{s:s}]", "text", "\xc3\xa9"));
    json_object_set_new(w, "candidate_top5", json_pack("[{s:s}]", "text", "a long long token"));
    json_object_set_new(
        w, "context",
        json_pack("{s:s}", "text", "cut, 12345678901234567890123456789\xc3\xa9 end\xe2\x90\x8a"));
    s = cmp_table(o, false);
    assert_non_null(
        strstr(s, "  12345678901234567890123456789\xc3\xa9 end\xe2\x90\x8a| next|  reference "
                  "\xc3\xa9, candidate a long lo~\n"));
    free(s);
    json_decref(o);
}

/* Lines of at most 100 characters, no escapes unless asked for, labels shown. */
static void text(void **state) {
    (void)state;
    json_t *o = cmp_compared(3, 24, 16, (double[]){0.3, 0.6, 0.0005}, true);
    json_object_set_new(
        json_array_get(json_object_get(o, "candidates"), 1), "label",
        json_string("a rather long label \xc3\xa9\xc3\xa9\xc3\xa9 that does not fit"));
    char *plain = cmp_table(o, false), *color = cmp_table(o, true);
    assert_null(strchr(plain, 27));
    assert_non_null(strchr(color, 27));
    assert_non_null(strstr(plain, "NVFP4 (QAD)"));
    assert_non_null(strstr(plain, "worse"));
    assert_non_null(strstr(plain, "<0.001"));
    assert_non_null(strstr(plain, "Holm for 3 pairs"));
    assert_non_null(strstr(plain, "Noise floor: none: capture "));
    assert_null(strstr(plain, "no noise floor"));
    assert_non_null(strstr(plain, "mean over positions"));
    assert_non_null(strstr(plain, "when each source cluster counts once: [1] 0.0"));
    assert_non_null(strstr(plain, "Mean KL by stratum"));
    for (const char *s = plain; *s;) {
        size_t n = strcspn(s, "\n"), chars = 0;
        for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
        if (chars > 100) fail_msg("%zu columns: %.*s", chars, (int)n, s);
        s += n + (s[n] == '\n');
    }
    if (getenv("KLD_TEST_SHOW")) puts(plain);
    free(plain);
    free(color);
    json_decref(o);
}

static char *dump(const json_t *o) {
    kld_buf b = {0};
    assert_int_equal(kld_json_dump(o, true, &b, NULL), KLD_OK);
    char *s = strdup((const char *)b.data);
    kld_buf_free(&b);
    return s;
}

static void threads_do_not_matter(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    char *s[2];
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 4 : 1);
        json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
        s[k] = dump(o);
        json_decref(o);
    }
    omp_set_num_threads(before);
    assert_string_equal(s[0], s[1]);
    free(s[0]);
    free(s[1]);
}

static void nothing_scored(void **state) {
    (void)state;
    struct cmp_rig g;
    cmp_begin(&g, 2);
    json_t *o = cmp_finish(&g);
    assert_int_equal(cmp_count(o, "positions"), 0);
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.mean")));
    assert_true(cmp_warned(o, "no_positions") && !cmp_warned(o, "invalid"));
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, " 0 scored positions\n"));
    free(t);
    kld_err err;
    assert_int_equal(kld_compare_valid(o, &err), KLD_E_NUMERIC);
    assert_non_null(strstr(err.text, "0 positions were scored"));
    json_decref(o);
}

/* A warning that several candidates share is told once, a loud one for each; the reference itself
 * is in no verdict. */
static void folded(void **state) {
    (void)state;
    json_t *o = cmp_compared(3, 24, 16, (double[]){0.3, 0.6, 0.5}, true);
    json_t *w = json_object_get(o, "warnings"), *cands = json_object_get(o, "candidates");
    json_array_clear(w);
    for (int k = 0; k < 3; k++) {
        json_array_append_new(
            w, json_pack("{s:s,s:i,s:s}", "code", "quiet", "candidate", k, "text", "is quiet"));
        json_array_append_new(
            w, json_pack("{s:s,s:i,s:s}", "code", "infinite", "candidate", k, "text", "is loud"));
    }
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "[1] is quiet. Likewise [2] [3]\n"));
    assert_null(strstr(t, "[2] is quiet"));
    assert_non_null(strstr(t, "[1] WARNING: is loud\n"));
    assert_non_null(strstr(t, "[3] WARNING: is loud\n"));
    assert_non_null(strstr(t, "[2] - [1]"));
    free(t);
    json_object_set_new(json_array_get(cands, 0), "capture", json_string("the reference itself"));
    t = cmp_table(o, false);
    assert_null(strstr(t, "[2] - [1]"));
    assert_non_null(strstr(t, "[3] - [2]"));
    free(t);
    json_decref(o);
}

/* Rows of breakdowns have the interval of their own clusters. */
static void breakdowns(void **state) {
    (void)state;
    json_t *o = cmp_compared(1, 24, 16, (double[]){0.3}, true);
    for (int h = 0; h < 2; h++) {
        const json_t *row = json_array_get(cmp_get(o, "candidates.0.by_stratum"), (size_t)h);
        assert_int_equal(cmp_count(row, "clusters"), 6);
        assert_string_equal(json_string_value(cmp_get(row, "ci_method")), "student-t");
        assert_true(cmp_real(row, "kl_ci95.0") < cmp_real(row, "kl_mean"));
        assert_true(cmp_real(row, "kl_ci95.1") > cmp_real(row, "kl_mean"));
    }
    /* All positions but the first of each window: its clusters are those of the whole. */
    assert_int_equal(cmp_count(o, "candidates.0.by_depth.0.clusters"), 12);
    assert_string_equal(json_string_value(cmp_get(o, "candidates.0.by_depth.0.ci_method")),
                        "bootstrap-t");
    /* Nothing is that deep. */
    const json_t *empty = cmp_get(o, "candidates.0.by_depth.3");
    assert_int_equal(cmp_count(empty, "positions"), 0);
    assert_int_equal(cmp_count(empty, "clusters"), 0);
    assert_true(json_is_null(cmp_get(empty, "kl_mean")) && json_is_null(cmp_get(empty, "kl_ci95")));
    assert_string_equal(json_string_value(cmp_get(empty, "ci_method")), "none");
    /* 840 positions: 420 are above the median, 84 above p90. */
    assert_true(cmp_real(o, "candidates.0.kl.quantiles_ci95.median.0") <
                cmp_real(o, "candidates.0.kl.median"));
    assert_true(cmp_real(o, "candidates.0.kl.quantiles_ci95.median.1") >
                cmp_real(o, "candidates.0.kl.median"));
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.quantiles_ci95.p90")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.quantiles_ci95.p999")));
    json_decref(o);
    o = cmp_compared(1, 8, 0, (double[]){0.5}, true); /* bounds only */
    assert_true(json_is_null(cmp_get(o, "candidates.0.kl.quantiles_ci95.median")));
    assert_true(json_is_null(cmp_get(o, "candidates.0.by_depth.0.kl_ci95")));
    json_decref(o);
}

/* n candidates in 20 documents whose KL is what `kl` says, times a document's factor. */
static json_t *of_values(size_t n, const double *kl, const kld_compare_options *opt) {
    struct cmp_rig g;
    cmp_begin(&g, n);
    g.opt = *opt;
    static kld_position pos[CMP_MAX][50];
    const kld_position *p[CMP_MAX];
    for (size_t w = 0; w < 20; w++) {
        char cluster[16];
        (void)snprintf(cluster, sizeof cluster, "d%zu", w);
        for (size_t k = 0; k < n; k++) {
            p[k] = pos[k];
            for (size_t i = 0; i < 50; i++) {
                pos[k][i] = (kld_position){.exact = 15, .confidence = 0.5};
                pos[k][i].v[KLD_COL_ESTIMATE] =
                    kl[k] * (1 + 0.1 * (double)((w * 7 + i + k * w * 3) % 11));
            }
        }
        kld_window_meta meta = {.cluster = cluster};
        assert_int_equal(kld_tally_window(&g.tally, w, &meta, 0, 50, p, NULL), KLD_OK);
    }
    return cmp_finish(&g);
}

static const char *verdict(const json_t *o, const char *pair) {
    return json_string_value(cmp_get(cmp_get(o, pair), "verdict"));
}

/* The margin is a factor, or nats; three candidates are corrected for each other. */
static void margins(void **state) {
    (void)state;
    kld_compare_options opt = kld_compare_defaults();
    opt.resamples = 2000;
    json_t *o = of_values(2, (double[]){0.02, 0.0204}, &opt);
    assert_string_equal(verdict(o, "pairs.0"), "practically equivalent");
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.equivalence.scale")), "ratio");
    assert_true(cmp_real(o, "pairs.0.equivalence.margin") == 0.1);
    assert_true(cmp_real(o, "pairs.0.equivalence.p_value") < 0.05);
    assert_true(cmp_real(o, "pairs.0.equivalence.ci90.0") > 1 / 1.1 &&
                cmp_real(o, "pairs.0.equivalence.ci90.1") < 1.1);
    assert_true(cmp_real(o, "pairs.0.p_holm") == cmp_real(o, "pairs.0.p_value"));
    assert_true(json_is_null(cmp_get(o, "pairs.0.resolved"))); /* no floor */
    assert_true(!cmp_warned(o, "multiple_comparisons"));
    json_decref(o);
    opt.margin = 0.001;
    o = of_values(2, (double[]){0.02, 0.03}, &opt);
    assert_string_equal(verdict(o, "pairs.0"), "worse");
    json_decref(o);
    opt.margin_abs = 0.05;
    o = of_values(2, (double[]){0.02, 0.03}, &opt);
    assert_string_equal(verdict(o, "pairs.0"), "practically equivalent");
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.equivalence.scale")), "difference");
    assert_true(cmp_real(o, "settings.margin_abs") == 0.05);
    char *t = cmp_table(o, false);
    assert_non_null(strstr(t, "margin 0.05 nats\n"));
    free(t);
    json_decref(o);
    /* A mean of 0 has no ratio, and without a margin in nats no equivalence. */
    opt.margin_abs = 0;
    o = of_values(2, (double[]){0, 0.03}, &opt);
    assert_string_equal(verdict(o, "pairs.0"), "worse");
    assert_true(json_is_null(cmp_get(o, "pairs.0.ratio")));
    assert_string_equal(json_string_value(cmp_get(o, "pairs.0.ci_reason")), "a mean is 0");
    assert_true(json_is_null(cmp_get(o, "pairs.0.equivalence.p_value")));
    json_decref(o);
    opt.margin = 0.1;
    o = of_values(3, (double[]){0.02, 0.03, 0.0202}, &opt);
    assert_int_equal(cmp_count(o, "settings.tested_pairs"), 3);
    assert_true(cmp_warned(o, "multiple_comparisons"));
    double p[3], most = 0;
    for (int i = 0; i < 3; i++) {
        const json_t *x = json_array_get(cmp_get(o, "pairs"), (size_t)i);
        p[i] = cmp_real(x, "p_value");
        most = fmax(most, p[i]);
        assert_true(cmp_real(x, "p_holm") >= p[i]);
        assert_true(cmp_real(x, "equivalence.p_holm") >= cmp_real(x, "equivalence.p_value"));
    }
    assert_true(cmp_real(o, "pairs.1.p_holm") == most); /* the largest is not multiplied */
    NEAR(cmp_real(o, "pairs.0.p_holm"), fmin(p[0], p[2]) == p[0] ? 3 * p[0] : 2 * p[0], 1e-15);
    assert_string_equal(verdict(o, "pairs.0"), "worse");
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema),
        cmocka_unit_test(repeat_is_the_floor),
        cmocka_unit_test(gates),
        cmocka_unit_test(text),
        cmocka_unit_test(folded),
        cmocka_unit_test(worst_text),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(nothing_scored),
        cmocka_unit_test(breakdowns),
        cmocka_unit_test(margins),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
