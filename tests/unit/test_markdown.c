/* Markdown of a result: its tables, and that names stay text. */
#include "kld/base/mem.h"
#include "kld/compare/gates.h"
#include "kld/compare/markdown.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"

static char *markdown(const json_t *o) {
    kld_buf b = {0};
    kld_err err = {0};
    if (kld_compare_markdown(o, &b, &err) != KLD_OK) fail_msg("%s", err.text);
    char *s = strdup((const char *)b.data);
    kld_buf_free(&b);
    return s;
}

static json_t *candidate(json_t *o, size_t k) {
    return json_array_get(json_object_get(o, "candidates"), k);
}

static void has(const char *text, const char *what) {
    if (!strstr(text, what)) fail_msg("no '%s' in:\n%s", what, text);
}

/* Candidate 1 becomes the BxQ of candidate 0. */
static void replay(json_t *o) {
    json_object_set_new(
        candidate(o, 1), "routing",
        json_pack("{s:s,s:s,s:s}", "mode", "replay", "source", "reference", "cell", "BxQ"));
    json_object_set_new(candidate(o, 0), "cells",
                        json_pack("{s:f,s:f,s:n,s:f,s:{s:n,s:i,s:n,s:i}}", "BxB", 0.0, "BxQ", 0.25,
                                  "QxB", "QxQ", 0.5, "candidates", "BxB", "BxQ", 1, "QxB", "QxQ",
                                  0));
}

/* The published table: natural and fixed routes in one row a checkpoint. */
static void fixed_routes(void **state) {
    (void)state;
    json_t *o = cmp_compared(3, 24, 16, (double[]){0.3, 0.2, 0.6}, true);
    replay(o);
    char *s = markdown(o), row[96];
    has(s, "| candidate | natural KLD | fixed-route KLD | JS (natural / fixed) | top-1 (natural / "
           "fixed) | p99 (natural / fixed) | p99.9 (natural / fixed) | max (natural / fixed) |\n");
    snprintf(row, sizeof row, "| 1. a (NVFP4 (QAD)) | %.6f | %.6f | ",
             cmp_real(o, "candidates.0.kl.mean"), cmp_real(o, "candidates.1.kl.mean"));
    has(s, row);
    snprintf(row, sizeof row, " | %.2f / %.2f %% | ",
             100 * cmp_real(o, "candidates.0.top1_agreement"),
             100 * cmp_real(o, "candidates.1.top1_agreement"));
    has(s, row);
    /* The fixed-route capture is no row of that table, and is one of the next. */
    char *second = strstr(s, "guaranteed bound");
    assert_non_null(second);
    char *at = strstr(s, "| 2. b ");
    assert_true(at > second);
    snprintf(row, sizeof row, "| 3. c (NVFP4 (QAD)) | %.6f | - | ",
             cmp_real(o, "candidates.2.kl.mean"));
    has(s, row);
    has(s, "| 1. a (NVFP4 (QAD)) | 0.000000 | 0.250000 | - | 0.500000 | - |\n");
    /* A pair of different routings compares estimands. */
    has(s, "c (NVFP4 (QAD)) minus a (NVFP4 (QAD))");
    assert_null(strstr(s, "b (NVFP4 (QAD)) minus a"));
    free(s);
    json_decref(o);
}

static void natural_only(void **state) {
    (void)state;
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    const char *const gate[] = {"mean_kl=1e-6", "max_kl=1000"};
    assert_int_equal(kld_compare_gates_record(o, gate, 2, NULL), KLD_OK);
    char *s = markdown(o), line[160];
    has(s, "| candidate | KLD | JS | top-1 | p99 | p99.9 | max |\n");
    assert_null(strstr(s, "fixed"));
    has(s, "top-p 0.95 | nucleus TV | acceptance | tokens a step, K = 1 / 3 / 7 |");
    has(s, " | estimate | ");
    snprintf(line, sizeof line, " | %.6f to %.6f | ", cmp_real(o, "candidates.0.kl.ci95.0"),
             cmp_real(o, "candidates.0.kl.ci95.1"));
    has(s, line);
    snprintf(line, sizeof line, "| b (NVFP4 (QAD)) minus a (NVFP4 (QAD)) | %.6f | %.6f to %.6f | ",
             cmp_real(o, "pairs.0.difference"), cmp_real(o, "pairs.0.difference_ci95.0"),
             cmp_real(o, "pairs.0.difference_ci95.1"));
    has(s, line);
    has(s, " | worse");
    has(s, "Noise floor: not measured");
    has(s, "- gate **FAILED**: a (NVFP4 (QAD)), mean\\_kl ");
    has(s, "- gate **passed**: b (NVFP4 (QAD)), max\\_kl ");
    has(s, json_string_value(cmp_get(o, "candidates.0.content_digest")));
    has(s, "resamples 500");
    has(s, "**Warnings**");
    has(s, "| paired change of mean KLD, margin 10 % |");
    free(s);
    /* What further tests of a pair say. */
    json_t *pair = json_array_get(json_object_get(o, "pairs"), 0);
    json_object_set_new(pair, "resolved", json_true());
    json_object_set_new(pair, "p_holm", json_real(0.0123));
    json_object_set_new(json_object_get(o, "settings"), "margin_abs", json_real(0.002));
    s = markdown(o);
    has(s, " | worse, Holm p 0.012 |\n");
    has(s, "margin 0.002 nats |");
    assert_null(strstr(s, "One head for both sides"));
    free(s);
    json_object_set_new(pair, "resolved", json_false());
    json_object_set_new(json_object_get(o, "settings"), "head", json_string("shared"));
    s = markdown(o);
    has(s, "One head for both sides, the reference's: what bodies differ by, not heads.\n");
    has(s, " | unresolved, Holm p 0.012 |\n");
    free(s);
    json_object_set_new(o, "floor",
                        json_pack("{s:f,s:i,s:s,s:b}", "kl_mean", 2e-5, "candidate", 1, "kind",
                                  "repeat capture", "verified", 0));
    s = markdown(o);
    has(s, "Noise floor: mean KLD 2.000e-05, b (NVFP4 (QAD)), repeat capture of the reference, not "
           "verified byte for byte.");
    free(s);
    json_decref(o);
    o = cmp_compared(1, 24, 0, (double[]){0.3}, false);
    s = markdown(o);
    has(s, " | bound only | ");
    free(s);
    json_decref(o);
}

/* No character of a name ends a cell, starts markup or becomes a link. */
static void hostile_names(void **state) {
    (void)state;
    json_t *o = cmp_compared(1, 24, 16, (double[]){0.3}, true);
    json_object_set_new(
        candidate(o, 0), "name",
        json_string("a|b`c<img src=x>[d](e)*f*_g_\n# h\r&lt;\\|https://x.y www.z @i"));
    json_object_set_new(candidate(o, 0), "label", json_string(""));
    char *s = markdown(o);
    has(s, "| 1. a\\|b\\`c\\<img src=x\\>\\[d\\](e)\\*f\\*\\_g\\_ \\# h \\&lt;\\\\\\|https\\://x.y "
           "www\\.z "
           "\\@i | ");
    free(s);
    json_decref(o);
}

static void refused_and_out_of_memory(void **state) {
    (void)state;
    kld_buf b = {0};
    kld_err err = {0};
    json_t *empty = json_object();
    assert_int_equal(kld_compare_markdown(empty, &b, &err), KLD_E_INTERNAL);
    assert_int_equal(b.len, 0);
    json_decref(empty);
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK && n < 1000; n++) {
        kld_mem_fail_after(n);
        st = kld_compare_markdown(o, &b, &err);
        kld_mem_fail_after(0);
        assert_true(st == KLD_OK || st == KLD_E_NOMEM);
        kld_buf_free(&b);
    }
    assert_true(n > 2 && st == KLD_OK);
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_routes),
        cmocka_unit_test(natural_only),
        cmocka_unit_test(hostile_names),
        cmocka_unit_test(refused_and_out_of_memory),
    };
    return cmocka_run_group_tests_name("markdown", tests, NULL, NULL);
}
