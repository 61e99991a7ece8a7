/* The HTML page: what it holds, what it allows, and that data stays data. */
#include "kld/base/mem.h"
#include "kld/base/sha256.h"
#include "kld/compare/html.h"
#include "tests/unit/comparekit.h"

#include "tests/unit/t.h"
#include <math.h>

static void page(const json_t *o, const json_t *history, kld_buf *b) {
    kld_err err = {0};
    if (kld_compare_html(o, history, b, &err) != KLD_OK) fail_msg("%s", err.text);
}

/* What is between `open` and the next `close`; *from moves behind it. */
static const char *element(const char **from, const char *open, const char *close, size_t *n) {
    const char *a = strstr(*from, open);
    if (!a) fail_msg("no %s", open);
    a += strlen(open);
    const char *z = strstr(a, close);
    assert_non_null(z);
    *n = (size_t)(z - a);
    *from = z;
    return a;
}

static json_t *data_of(const kld_buf *b, const char **text, size_t *n) {
    const char *at = (const char *)b->data;
    *text = element(&at, "<script type=\"application/json\" id=\"data\">", "</script", n);
    json_t *v = NULL;
    kld_err err = {0};
    if (kld_json_parse(&v, *text, *n, 64, &err) != KLD_OK) fail_msg("%s", err.text);
    return v;
}

/* What a name or a token holds cannot end the element of the data, and is there unchanged. */
static void hostile_text(void **state) {
    (void)state;
    static const char EVIL[] = "</script><script>alert(1)</script><!--<script> & "
                               "\xe2\x80\xa8\xe2\x80\xa9 \xe2\x80\xaa \"'";
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    json_t *c = json_array_get(json_object_get(o, "candidates"), 0);
    json_object_set_new(c, "name", json_string(EVIL));
    json_object_set_new(json_array_get(json_object_get(json_object_get(c, "kl"), "worst"), 0),
                        "next_text", json_string(EVIL));
    json_t *history = json_pack("[{s:s,s:[{s:s,s:s,s:f,s:[f,f],s:s}]}]", "candidate", EVIL, "runs",
                                "time", "2026-01-01T00:00:00Z", "label", EVIL, "kl_mean", 0.1,
                                "kl_ci95", 0.05, 0.2, "gate", "passed");
    kld_buf b = {0};
    const char *text;
    size_t n;
    page(o, history, &b);
    json_t *v = data_of(&b, &text, &n);
    for (size_t i = 0; i < n; i++) {
        assert_true(text[i] != '<' && text[i] != '>' && text[i] != '&');
        assert_false(memcmp(text + i, "\xe2\x80\xa8", 3) == 0 ||
                     memcmp(text + i, "\xe2\x80\xa9", 3) == 0);
    }
    assert_string_equal(json_string_value(cmp_get(v, "result.candidates.0.name")), EVIL);
    assert_string_equal(json_string_value(cmp_get(v, "result.candidates.0.kl.worst.0.next_text")),
                        EVIL);
    assert_true(json_equal(json_object_get(v, "history"), history));
    double kl = cmp_real(o, "candidates.0.kl.mean");
    assert_true(fabs(cmp_real(v, "result.candidates.0.kl.mean") - kl) < 1e-8 * kl);
    assert_true(
        json_equal(cmp_get(v, "result.candidates.1.name"), cmp_get(o, "candidates.1.name")));
    json_decref(v);
    kld_buf_free(&b);
    page(o, NULL, &b);
    v = data_of(&b, &text, &n);
    assert_true(json_is_null(json_object_get(v, "history")));
    json_decref(v);
    kld_buf_free(&b);
    json_decref(history);
    json_decref(o);
}

static void base64(const unsigned char *d, char out[64]) {
    static const char A[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t bit = 0; bit < 256; bit += 6) {
        unsigned v = 0;
        for (size_t k = bit; k < bit + 6; k++)
            v = v << 1 | (k < 256 ? (unsigned)d[k / 8] >> (7 - k % 8) & 1u : 0);
        *out++ = A[v];
    }
    strcpy(out, "="); /* 32 bytes are 43 digits */
}

/* Nothing may be loaded, and only the scripts and the style that are here run: by their digests. */
static void policy(void **state) {
    (void)state;
    json_t *o = cmp_compared(1, 24, 16, (double[]){0.3}, true);
    kld_buf b = {0};
    page(o, NULL, &b);
    const char *at = (const char *)b.data, *p;
    size_t n;
    assert_int_equal(strncmp(at, "<!doctype html>", 15), 0);
    p = element(&at, "http-equiv=\"Content-Security-Policy\" content=\"", "\"", &n);
    char *rules = strndup(p, n);
    assert_int_equal(strncmp(rules, "default-src 'none'; ", 20), 0);
    assert_null(strstr(rules, "unsafe"));
    assert_null(strstr(rules, "http"));
    static const char *const TAG[][2] = {
        {"<style>", "</style>"}, {"<script>", "</script>"}, {"<script>", "</script>"}};
    for (size_t i = 0; i < 3; i++) {
        kld_digest d;
        char want[80] = "'sha256-";
        p = element(&at, TAG[i][0], TAG[i][1], &n);
        assert_true(n > 1000);
        assert_int_equal(kld_sha256_of(p, n, &d, NULL), KLD_OK);
        base64(d.b, want + 8);
        strcat(want, "'");
        if (!strstr(rules, want)) fail_msg("%s is not in %s", want, rules);
    }
    at = (const char *)b.data;
    assert_null(strstr(at, " src="));
    assert_null(strstr(at, "innerHTML="));
    assert_null(strstr(at, "@import"));
    assert_non_null(strstr(at, "<noscript>"));
    assert_non_null(strstr(at, "Chart.js v3"));
    assert_non_null(strstr(at, "prefers-color-scheme: dark"));
    free(rules);
    kld_buf_free(&b);
    json_decref(o);
}

/* Only aggregates are in it: 64 candidates with everything there is stay far below 2 MB. */
static void size(void **state) {
    (void)state;
    enum { MANY = 64, WORST = 10, TOP = 5, CONTEXT = 48 };
    json_t *o = cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true);
    json_t *cands = json_object_get(o, "candidates"), *pairs = json_object_get(o, "pairs");
    json_t *one = json_array_get(cands, 0),
           *worst = json_object_get(json_object_get(one, "kl"), "worst");
    for (size_t i = 0; i < WORST; i++) {
        json_t *w = json_array_get(worst, i), *ids = json_array(), *top = json_array();
        for (int k = 0; k < CONTEXT; k++) json_array_append_new(ids, json_integer(123456 + k));
        for (int k = 0; k < TOP; k++)
            json_array_append_new(top, json_pack("{s:i,s:s,s:f}", "id", 123456, "text",
                                                 " tokenizer", "lp", -1.23456789012345678));
        json_object_set(w, "reference_top5", top);
        json_object_set_new(w, "candidate_top5", top);
        json_object_set_new(
            w, "context",
            json_pack("{s:o,s:s}", "ids", ids, "text",
                      "some two hundred characters of text before a position, which is what "
                      "forty-eight tokens of English are long: some two hundred characters of "
                      "text before a position, which is what forty-eight tokens"));
    }
    while (json_array_size(cands) < MANY) json_array_append_new(cands, json_deep_copy(one));
    while (json_array_size(pairs) < 120) json_array_append(pairs, json_array_get(pairs, 0));
    kld_buf b = {0};
    page(o, NULL, &b);
    if (b.len > 1200000) fail_msg("%zu bytes", b.len);
    if (getenv("KLD_TEST_SHOW")) printf("%zu bytes\n", b.len);
    kld_buf_free(&b);
    json_decref(o);
}

static void refused_and_out_of_memory(void **state) {
    (void)state;
    kld_buf b = {0};
    kld_err err = {0};
    json_t *empty = json_object();
    assert_int_equal(kld_compare_html(empty, NULL, &b, &err), KLD_E_INTERNAL);
    assert_int_equal(b.len, 0);
    json_decref(empty);
    json_t *o = cmp_compared(1, 24, 16, (double[]){0.3}, true);
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK && n < 1000000; n += 1 + n / 16) {
        kld_mem_fail_after(n);
        st = kld_compare_html(o, NULL, &b, &err);
        kld_mem_fail_after(0);
        assert_true(st == KLD_OK || st == KLD_E_NOMEM);
        kld_buf_free(&b);
    }
    assert_true(n > 5 && st == KLD_OK);
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_text),
        cmocka_unit_test(policy),
        cmocka_unit_test(size),
        cmocka_unit_test(refused_and_out_of_memory),
    };
    return cmocka_run_group_tests_name("html", tests, NULL, NULL);
}
