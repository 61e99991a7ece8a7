/* What a nightly run says: verdicts in words, JUnit, Prometheus, lines for people. */
#include "kld/base/mem.h"
#include "kld/nightly/junit.h"
#include "kld/nightly/key.h"
#include "kld/nightly/nightly.h"
#include "kld/nightly/prometheus.h"
#include "kld/nightly/verdict.h"

#include "tests/unit/t.h"

#define NOW                                                                                        \
    { "suite1", "ref1", "set1" }

static json_t *parsed(const char *text) {
    json_t *v;
    kld_err e = {0};
    if (kld_json_parse(&v, text, strlen(text), 16, &e) != KLD_OK) fail_msg("%s", e.text);
    return v;
}

/* A candidate of a result. */
static json_t *measured(double kl, const char *status) {
    json_t *v = json_pack("{s:s, s:s, s:b, s:{s:f, s:[f, f]}, s:{s:i}}", "name", "x", "status",
                          status, "valid", strcmp(status, "invalid") != 0, "kl", "mean", kl, "ci95",
                          kl - 0.01, kl + 0.01, "nonfinite", "excluded", 7);
    assert_non_null(v);
    if (kl < 0)
        assert_int_equal(json_object_set_new(json_object_get(v, "kl"), "mean", json_null()), 0);
    return v;
}

static json_t *last_good(const char *suite, const char *ref, const char *settings, double kl) {
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:f, s:{s:f}}", "time", "2026-11-30T02:00:00Z",
                          "suite", suite, "reference", ref, "settings", settings, "kl_mean", kl,
                          "metrics", "mean_kl", kl);
    assert_non_null(v);
    return v;
}

/* Judge one gate; its outcome and words. */
static void judged(json_t *cand, json_t *good, kld_nightly_gate gate, const char *outcome,
                   const char *words) {
    kld_nightly_item item = {.name = "nvfp4", .gates = &gate, .n_gates = 1};
    nightly_evidence v = {.item = &item,
                          .measured = cand,
                          .why_not = "the file ends too early",
                          .last_good = good,
                          .now = NOW};
    json_t *entry = json_object();
    kld_err e = {0};
    if (nightly_judge(&v, entry, &e) != KLD_OK) fail_msg("%s", e.text);
    const json_t *g = json_array_get(json_object_get(entry, "gates"), 0);
    assert_string_equal(json_string_value(json_object_get(g, "text")), words);
    assert_string_equal(json_string_value(json_object_get(g, "outcome")), outcome);
    const char *whole = json_string_value(json_object_get(entry, "outcome"));
    const char *reason = json_string_value(json_object_get(entry, "reason"));
    if (!cand) {
        assert_string_equal(whole, "error");
        assert_string_equal(reason, "nvfp4: the file ends too early");
    } else if (strcmp(json_string_value(json_object_get(cand, "status")), "invalid") == 0) {
        assert_string_equal(whole, "error");
        assert_non_null(strstr(reason, "nvfp4: none of its positions is finite"));
    } else {
        assert_string_equal(whole, strcmp(outcome, "failed") == 0 ? "failed" : "passed");
        if (strcmp(outcome, "failed") == 0) assert_string_equal(reason, words);
        else assert_null(reason);
    }
    json_decref(entry);
    json_decref(cand);
    json_decref(good);
}

static void words(void **state) {
    (void)state;
    kld_nightly_gate most = {"mean_kl", 0.45, false}, growth = {"mean_kl", 0.1, true};
    judged(measured(0.52, "ok"), last_good("suite1", "ref1", "set1", 0.4182), most, "failed",
           "nvfp4: mean_kl 0.52 is above 0.45 (0.4182 in the last good run of 2026-11-30)");
    judged(measured(0.52, "ok"), NULL, most, "failed", "nvfp4: mean_kl 0.52 is above 0.45");
    /* What cannot be compared is not put beside it. */
    judged(measured(0.52, "ok"), last_good("suite1", "ref2", "set1", 0.4182), most, "failed",
           "nvfp4: mean_kl 0.52 is above 0.45");
    judged(measured(0.45, "ok"), NULL, most, "passed", "nvfp4: mean_kl 0.45 is within 0.45");
    judged(measured(-1, "ok"), NULL, most, "failed",
           "nvfp4: mean_kl has no finite value; the limit is 0.45");
    judged(measured(0.4, "partial"), NULL, most, "failed",
           "nvfp4: mean_kl 0.4 is within 0.45, and 7 positions are not finite");
    judged(measured(-1, "invalid"), NULL, most, "failed",
           "nvfp4: mean_kl has no finite value; the limit is 0.45");
    judged(NULL, NULL, most, "skipped", "nvfp4: mean_kl was not measured");
    judged(measured(0.45, "ok"), last_good("suite1", "ref1", "set1", 0.42), growth, "passed",
           "nvfp4: mean_kl 0.45 is at most 10 % above 0.42 of the last good run of 2026-11-30 "
           "(+7.14 %)");
    judged(measured(0.52, "ok"), last_good("suite1", "ref1", "set1", 0.4182), growth, "failed",
           "nvfp4: mean_kl 0.52 is more than 10 % above 0.4182 of the last good run of 2026-11-30 "
           "(+24.3 %)");
    judged(measured(0.1, "ok"), last_good("suite1", "ref1", "set1", 0), growth, "failed",
           "nvfp4: mean_kl 0.1 is more than 10 % above 0 of the last good run of 2026-11-30");
    judged(measured(-1, "ok"), last_good("suite1", "ref1", "set1", 0.4), growth, "failed",
           "nvfp4: mean_kl has no finite value; the last good run of 2026-11-30 has 0.4");
    judged(measured(0.52, "ok"), NULL, growth, "skipped",
           "nvfp4: mean_kl: no good run yet to compare with");
    judged(
        measured(0.52, "ok"), last_good("suite2", "ref2", "set1", 0.4), growth, "skipped",
        "nvfp4: mean_kl: not comparable with the last good run of 2026-11-30: the suite changed");
    judged(measured(0.52, "ok"), last_good("suite1", "ref2", "set2", 0.4), growth, "skipped",
           "nvfp4: mean_kl: not comparable with the last good run of 2026-11-30: the reference's "
           "capture changed");
    judged(measured(0.52, "ok"), last_good("suite1", "ref1", "set2", 0.4), growth, "skipped",
           "nvfp4: mean_kl: not comparable with the last good run of 2026-11-30: the settings "
           "changed");
}

/* Names as no file of ours has them, and errors with whatever a checkpoint's path holds. */
static const char HOSTILE[] =
    "{\"time\":\"2026-12-03T02:00:00Z\",\"timestamp\":1796263200,\"seconds\":2.5,\"exit_code\":3,"
    "\"outcome\":\"error\",\"label\":\"`x` <b> @all\",\"version\":\"0.1.0\",\"commit\":\"c\","
    "\"captures\":[{\"name\":\"reference\",\"action\":\"reused\",\"seconds\":0.25,\"error\":null},"
    " {\"name\":\"a\",\"action\":\"failed\",\"seconds\":1,"
    "  \"error\":\"m/<&>\\\"'\\uffff\\u0001 `cat`\\n|: bad\"},"
    " {\"name\":\"b\",\"action\":\"skipped\",\"seconds\":0,\"error\":\"needs a\"}],"
    "\"candidates\":[{\"name\":\"q\\\\\\\"\\n<\",\"outcome\":\"failed\",\"captured\":true,"
    "  \"kl_mean\":0.5,\"kl_lo\":0.4,\"kl_hi\":0.6,\"last_good\":null,\"not_comparable\":null,"
    "  \"metrics\":{\"mean_kl\":0.5,\"no_metric\":1},"
    "  \"gates\":[{\"metric\":\"mean_kl\",\"kind\":\"absolute\",\"limit\":0.1,\"value\":0.5,"
    "    \"outcome\":\"failed\",\"text\":\"q: mean_kl 0.5 is above 0.1\"},"
    "   {\"metric\":\"p99_kl\",\"kind\":\"regression\",\"limit\":0.1,\"value\":null,"
    "    \"outcome\":\"skipped\",\"text\":\"no good run\"}]},"
    " {\"name\":\"a\",\"outcome\":\"error\",\"captured\":false,\"reason\":\"a: `bad`\","
    "  \"metrics\":{},\"gates\":[]},"
    " {\"name\":\"c\",\"outcome\":\"error\",\"captured\":true,\"reason\":\"c: bad\","
    "  \"metrics\":{},\"gates\":[]}]}";

static void holds(const kld_buf *b, const char *text) {
    if (!strstr((const char *)b->data, text)) fail_msg("no '%s' in\n%s", text, (char *)b->data);
}

static void junit(void **state) {
    (void)state;
    json_t *s = parsed(HOSTILE);
    kld_buf b = {0};
    assert_int_equal(nightly_junit(s, &b, NULL), KLD_OK);
    holds(&b, "<testsuite name=\"captures\" tests=\"3\" failures=\"0\" errors=\"1\" skipped=\"1\" "
              "time=\"1.250\" timestamp=\"2026-12-03T02:00:00\">");
    holds(&b, "<testcase classname=\"kld.captures\" name=\"reference\" time=\"0.250\"/>");
    holds(&b, "<error message=\"m/&lt;&amp;&gt;&quot;&#39;?? `cat`?|: bad\"/>");
    holds(&b, "<skipped message=\"needs a\"/>");
    holds(&b, "<testsuite name=\"q\\&quot;?&lt;\" tests=\"3\" failures=\"1\" errors=\"0\" "
              "skipped=\"1\"");
    holds(&b,
          "name=\"mean_kl &lt;= 0.1\" time=\"0.000\"><failure message=\"q: mean_kl 0.5 is above "
          "0.1\"/></testcase>");
    holds(&b,
          "name=\"p99_kl growth &lt;= 10 %\" time=\"0.000\"><skipped message=\"no good run\"/>");
    /* Not captured: told by the capture, once. */
    holds(&b, "<testsuite name=\"a\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\"");
    holds(&b, "<testsuite name=\"c\" tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\"");
    assert_null(strchr((char *)b.data, 1));
    kld_buf_free(&b);
    json_decref(s);
}

static void prometheus(void **state) {
    (void)state;
    json_t *s = parsed(HOSTILE);
    kld_buf b = {0};
    assert_int_equal(nightly_prometheus(s, &b, NULL), KLD_OK);
    holds(&b, "# TYPE kld_mean_kl gauge\nkld_mean_kl{candidate=\"q\\\\\\\"\\n<\"} 0.5\n");
    holds(&b, "kld_candidate_passed{candidate=\"a\"} 0\n");
    holds(&b,
          "kld_gate_failed{candidate=\"q\\\\\\\"\\n<\",metric=\"mean_kl\",kind=\"absolute\"} 1\n");
    holds(&b, "metric=\"p99_kl\",kind=\"regression\"} 0\n");
    holds(&b, "kld_capture_failed{capture=\"a\"} 1\nkld_capture_failed{capture=\"b\"} 0\n");
    holds(&b, "kld_capture_reused{capture=\"reference\"} 1\n");
    holds(&b, "\nkld_nightly_exit_code 3\n");
    holds(&b, "\nkld_nightly_last_run_timestamp_seconds 1796263200\n");
    /* No line without a value, none for a metric that there is not, and every name has one head. */
    assert_null(strstr((char *)b.data, "kld_p99_kl"));
    assert_null(strstr((char *)b.data, "no_metric"));
    for (const char *line = (char *)b.data; *line; line = strchr(line, '\n') + 1)
        assert_true(!strncmp(line, "kld_", 4) || !strncmp(line, "# ", 2));
    kld_buf_free(&b);
    json_decref(s);
}

static void lines(void **state) {
    (void)state;
    json_t *s = parsed(HOSTILE);
    kld_buf b = {0};
    assert_int_equal(kld_nightly_text(s, false, &b, NULL), KLD_OK);
    holds(&b, "error, 2026-12-03T02:00:00Z, kld 0.1.0 (c)\n");
    holds(&b, ": mean KL 0.5 [0.4, 0.6]; no good run before\n");
    holds(&b, "          failed: q: mean_kl 0.5 is above 0.1\n");
    holds(&b, "  reused   reference\n");
    kld_buf_clear(&b);
    assert_int_equal(kld_nightly_text(s, true, &b, NULL), KLD_OK);
    holds(&b, "## Nightly: error, 2026-12-03T02:00:00Z");
    /* What others wrote is in code spans, and cannot end them. */
    holds(&b, "`'x' <b> @all`\n");
    holds(&b, "- **error** `a: 'bad'`\n");
    holds(&b, "- skipped b: `needs a`\n");
    kld_buf_free(&b);
    json_decref(s);
    /* Of a candidate with a last good run. */
    s = parsed("{\"time\":\"t\",\"outcome\":\"passed\",\"candidates\":[{\"name\":\"a\",\"outcome\":"
               "\"passed\",\"kl_mean\":0.5,\"last_good\":{\"time\":\"2026-11-30T02:00:00Z\","
               "\"kl_mean\":0.45},\"change\":{\"difference\":0.05,\"difference_ci95\":[0.01,0.09],"
               "\"verdict\":\"worse\"}}],\"captures\":[]}");
    assert_int_equal(kld_nightly_text(s, false, &b, NULL), KLD_OK);
    holds(&b, "a: mean KL 0.5; last good run 2026-11-30: 0.45, +0.05 [+0.01, +0.09], worse\n");
    kld_buf_free(&b);
    json_decref(s);
}

static void reasons_to_capture(void **state) {
    (void)state;
    static const struct {
        const char *before, *now, *why;
    } cases[] = {
        {"{\"checkpoint\":\"1\"}", "{\"checkpoint\":\"2\"}", "the checkpoint changed"},
        {"{\"weights\":\"1\"}", "{\"weights\":\"2\"}", "the checkpoint changed"},
        {"{\"suite\":\"1\"}", "{\"suite\":\"2\"}", "the suite changed"},
        {"{}", "{\"reference\":\"2\"}", "the reference changed"},
        {"{\"routes\":\"1\"}", "{}", "the routes changed"},
        {"{\"engine\":{\"a\":\"1\"}}", "{\"engine\":{\"a\":\"2\"}}",
         "kld, the device or the precision changed"},
        {"{\"settings\":{\"a\":1}}", "{\"settings\":{\"a\":2}}", "the settings changed"},
        {"{\"names\":{\"a\":1}}", "{\"names\":{\"a\":2}}", "its name, label or place changed"},
        {"{\"suite\":\"1\"}", "{\"suite\":\"1\"}", "its file is gone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = parsed(cases[i].before), *b = parsed(cases[i].now);
        assert_string_equal(nightly_key_change(a, b), cases[i].why);
        json_decref(a);
        json_decref(b);
    }
    json_t *b = parsed("{}");
    assert_string_equal(nightly_key_change(NULL, b), "there is none yet");
    json_decref(b);
}

static void out_of_memory(void **state) {
    (void)state;
    json_t *s = parsed(HOSTILE);
    kld_status (*const render[])(const json_t *, kld_buf *, kld_err *) = {nightly_junit,
                                                                          nightly_prometheus};
    for (size_t r = 0; r < 2; r++) {
        kld_status st = KLD_E_NOMEM;
        for (size_t n = 1; st != KLD_OK; n++) {
            kld_buf b = {0};
            kld_err e = {0};
            kld_mem_fail_after(n);
            st = render[r](s, &b, &e);
            kld_mem_fail_after(0);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%s", e.text);
            kld_buf_free(&b);
        }
    }
    kld_nightly_gate gate = {"mean_kl", 0.1, true};
    kld_nightly_item item = {.name = "a", .gates = &gate, .n_gates = 1};
    json_t *cand = measured(0.5, "ok"), *good = last_good("suite1", "ref1", "set1", 0.4);
    nightly_evidence v = {.item = &item, .measured = cand, .last_good = good, .now = NOW};
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK; n++) {
        kld_err e = {0};
        json_t *entry = json_object();
        kld_mem_fail_after(n);
        st = nightly_judge(&v, entry, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%s", e.text);
        json_decref(entry);
    }
    assert_true(n > 20);
    json_decref(cand);
    json_decref(good);
    json_decref(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(words),
                                       cmocka_unit_test(junit),
                                       cmocka_unit_test(prometheus),
                                       cmocka_unit_test(lines),
                                       cmocka_unit_test(reasons_to_capture),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
