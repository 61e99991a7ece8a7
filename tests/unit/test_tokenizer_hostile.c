/* The tokenizer on files and texts made to break it: every defect is named, nothing leaks
 * when memory runs out, and no text takes more than near-linear time. */
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "tests/unit/tokkit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_refused_files(void **state) {
    (void)state;
    static const struct {
        tok_recipe r;
        kld_status status;
        const char *text;
    } cases[] = {
        {{.vocab = ",\"ab\":99999999999"}, KLD_E_INPUT, "id 99999999999; the largest accepted"},
        {{.vocab = ",\"ab\":-1"}, KLD_E_INPUT, "not a whole number"},
        {{.vocab = ",\"ab\":1.5"}, KLD_E_INPUT, "not a whole number"},
        {{.vocab = ",\"ab\":97"}, KLD_E_INPUT, "token 'ab': id 97 is taken by another token"},
        {{.vocab = ",\"ab\":300,\"ab\":301"}, KLD_E_INPUT, "duplicate"},
        {{.merges = "\"a zz\""}, KLD_E_INPUT, "merge 0: token 'zz' is not in the vocabulary"},
        {{.merges = "\"a b\""}, KLD_E_INPUT, "merge 0: 'ab' is not in the vocabulary"},
        {{.merges = "\"ab\""}, KLD_E_INPUT, "is not two tokens and a space"},
        {{.merges = "\"a b c\""}, KLD_E_INPUT, "is not two tokens and a space"},
        {{.merges = "\"a \""}, KLD_E_INPUT, "merge 0: token '' is not in the vocabulary"},
        {{.merges = "[\"a\"]"}, KLD_E_INPUT, "merge 0 is not a pair of strings"},
        {{.merges = "7"}, KLD_E_INPUT, "merge 0 is not a pair of strings"},
        {{.vocab = ",\"ab\":256", .merges = "\"a b\",[\"a\",\"b\"]"}, KLD_E_INPUT, "another way"},
        {{.vocab = ",\" \":256,\" a\":257", .merges = "[\" \",\"a\"]"},
         KLD_E_UNSUPPORTED,
         "not both written in the byte alphabet"},
        {{.model = ",\"dropout\":0.1"}, KLD_E_UNSUPPORTED, "'dropout'"},
        {{.model = ",\"byte_fallback\":true"}, KLD_E_UNSUPPORTED, "'byte_fallback'"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, KLD_E_UNSUPPORTED, "'end_of_word_suffix'"},
        {{.model = ",\"continuing_subword_prefix\":\"#\""}, KLD_E_UNSUPPORTED, "subword_prefix"},
        {{.model = ",\"new_option\":1"}, KLD_E_UNSUPPORTED, "model: key 'new_option' is not known"},
        {{.rest = ",\"extra\":1"}, KLD_E_UNSUPPORTED, "key 'extra' is not known"},
        {{.norm = "{\"type\":\"NFKC\"}"}, KLD_E_UNSUPPORTED, "normalizer: type 'NFKC'"},
        {{.norm = "{\"type\":\"NFC\",\"x\":1}"}, KLD_E_UNSUPPORTED, "normalizer: key 'x'"},
        {{.norm = "7"}, KLD_E_INPUT, "normalizer: expected an object, found an integer"},
        {{.pre = "null"}, KLD_E_UNSUPPORTED, "there is no ByteLevel"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, KLD_E_UNSUPPORTED, "type 'Metaspace'"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL("true", "true") "," SPLIT(
              "a", "Isolated", "false") "]}"},
         KLD_E_UNSUPPORTED,
         "pretokenizers[1]: a pre-tokenizer after ByteLevel"},
        {{.pre = SPLIT("a", "Merged", "false")}, KLD_E_UNSUPPORTED, "behavior 'Merged'"},
        {{.rest = ",\"post_processor\":{\"type\":\"BertProcessing\"}"},
         KLD_E_UNSUPPORTED,
         "post_processor: type 'BertProcessing'"},
        {{.added = ADDED("256", "<s>", PLAIN) "," ADDED("256", "<s>", PLAIN)},
         KLD_E_INPUT,
         "look for the same text '<s>'"},
        {{.vocab = ",\"ab\":257", .added = ADDED("257", "<s>", PLAIN)},
         KLD_E_INPUT,
         "added_tokens[0]: token '<s>': id 257 is taken"},
        {{.added = "{\"id\":256}"}, KLD_E_INPUT, "added_tokens[0]: 'content': expected a string"},
        {{.added = "5"}, KLD_E_INPUT, "added_tokens[0]: expected an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tok_expect_error(&cases[i].r, cases[i].status, cases[i].text);
}

static void test_broken_json(void **state) {
    (void)state;
    kld_buf b = {0};
    kld_tokenizer *t;
    kld_err err;
    tok_cook(&b, &(tok_recipe){.vocab = ",\"ab\":256", .merges = "\"a b\""});
    for (size_t n = 0; n < b.len; n += n < 400 || n + 60 > b.len ? 1 : 37) {
        assert_int_equal(kld_tokenizer_parse(&t, "cut", b.data, n, &err), KLD_E_INPUT);
        assert_null(t);
    }
    kld_buf_clear(&b);
    for (int i = 0; i < 100000; i++) assert_int_equal(kld_buf_adds(&b, "[", NULL), KLD_OK);
    assert_int_equal(kld_tokenizer_parse(&t, "deep", b.data, b.len, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "deep: JSON nested 100000 deep"));
    assert_int_equal(kld_tokenizer_parse(&t, "list", "[]", 2, &err), KLD_E_INPUT);
    assert_int_equal(kld_tokenizer_parse(&t, "empty", "{}", 2, &err), KLD_E_INPUT);
    kld_buf_free(&b);
}

static void test_invalid_text(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned at;
    } cases[] = {
        {"\xff", 0},         {"ab\xc3", 2},         {"a\xc0\x80", 1},
        {"\xed\xa0\x80", 0}, {"\xe0\x80\x80", 0},   {"x\xf4\x90\x80\x80", 1},
        {"\x80", 0},         {"ok\xf0\x9f\x98", 2},
    };
    kld_tokenizer *t = tok_make(&(tok_recipe){0});
    kld_ids ids = tok_encode(t, "ab", 2);
    size_t before = ids.n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kld_err err;
        char want[64];
        snprintf(want, sizeof want, "text is not valid UTF-8 at byte %u", cases[i].at);
        assert_int_equal(kld_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids, &err),
                         KLD_E_INPUT);
        assert_string_equal(err.text, want);
        assert_int_equal(ids.n, before);
    }
    kld_ids_free(&ids);
    kld_tokenizer_free(t);
}

/* Exponential backtracking is cut off with a message, and what was pushed is taken back. */
static void test_match_limit(void **state) {
    (void)state;
    tok_recipe r = {.pre = SHOWN(SPLIT("(a+)+b|x", "Isolated", "false"))};
    kld_tokenizer *t = tok_make(&r);
    kld_ids ids = {0};
    kld_err err;
    static const char text[] = "xxaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";
    assert_int_equal(kld_tokenizer_encode(t, text, sizeof text - 1, &ids, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "pre-tokenizer pattern gave up at byte 2"));
    assert_int_equal(ids.n, 0);
    kld_ids_free(&ids);
    kld_tokenizer_free(t);
}

enum { LONG = 1 << 20 };

static void timed(const tok_recipe *r, const char *text, size_t n) {
    kld_tokenizer *t = tok_make(r);
    double start = kld_seconds();
    kld_ids ids = tok_encode(t, text, n);
    /* Generous: the quadratic ways take minutes. */
    assert_true(kld_seconds() - start < 20);
    assert_true(ids.n > 0);
    kld_ids_free(&ids);
    kld_tokenizer_free(t);
}

/* One stretch of a mebibyte without a boundary, in the ways that invite quadratic time. */
static void test_long_words(void **state) {
    (void)state;
    tok_recipe whole = {.pre = BYTE_LEVEL("false", "false"),
                        .norm = "{\"type\":\"NFC\"}",
                        .vocab = ",\"aa\":256,\"aaaa\":257,\"ab\":258,\"ba\":259,\"aab\":260",
                        .merges = "\"a a\",\"aa aa\",\"a b\",\"b a\",\"a ab\""};
    tok_recipe gpt2 = {.pre = BYTE_LEVEL("true", "true")};
    char *text;
    assert_int_equal(kld_calloc((void **)&text, LONG, 1, NULL), KLD_OK);
    memset(text, 'a', LONG);
    timed(&whole, text, LONG);
    uint32_t x = 1;
    for (size_t i = 0; i < LONG; i++) {
        x = x * 1664525u + 1013904223u;
        text[i] = x >> 31 ? 'a' : 'b';
    }
    timed(&whole, text, LONG);
    memset(text, ' ', LONG);
    text[LONG - 1] = 'x';
    timed(&gpt2, text, LONG);
    for (size_t i = 0; i < LONG; i += 2) memcpy(text + i, i % 4 ? "\xcc\x81" : "\xcc\xa3", 2);
    timed(&whole, text, LONG);
    kld_free(text);
}

/* Make the n-th allocation fail for n = 1, 2, ... until all goes well. */
static void test_no_memory(void **state) {
    (void)state;
    kld_buf json = {0}, text = {0};
    tok_cook(&json, &(tok_recipe){.pre = SHOWN(SPLIT("\\\\p{L}+|(?i:'s)", "Isolated", "false")),
                                  .norm = "{\"type\":\"NFC\"}",
                                  .bytes = 160,
                                  .vocab = ",\"aa\":160",
                                  .merges = "\"a a\"",
                                  .added = ADDED("161", "<e\xcc\x81>",
                                                 FLAGS("true", "true", "true", "true"))});
    /* Long enough for the cache, and one word long enough for the heap. */
    for (int i = 0; i < 200; i++)
        assert_int_equal(kld_buf_adds(&text, "aaa bb it's cc\xcc\x81 <e\xcc\x81> ", NULL), KLD_OK);
    for (int i = 0; i < 300; i++) assert_int_equal(kld_buf_adds(&text, "a", NULL), KLD_OK);
    size_t n = 0, parsed = 0;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_tokenizer *t;
        kld_ids ids = {0};
        kld_buf out = {0};
        kld_err err = {0};
        kld_mem_fail_after(n + 1);
        st = kld_tokenizer_parse(&t, "sweep", json.data, json.len, &err);
        if (st == KLD_OK) {
            parsed += 1;
            st = kld_tokenizer_encode(t, (char *)text.data, text.len, &ids, &err);
            if (st != KLD_OK) assert_int_equal(ids.n, 0);
        } else {
            assert_null(t);
        }
        if (st == KLD_OK) st = kld_tokenizer_decode(t, ids.v, ids.n, true, &out, &err);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("allocation %zu: %s", n + 1, err.text);
        kld_ids_free(&ids);
        kld_buf_free(&out);
        kld_tokenizer_free(t);
        assert_true(n < 100000);
    }
    assert_true(n > 300 && parsed > 20);
    kld_buf_free(&json);
    kld_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_files), cmocka_unit_test(test_broken_json),
        cmocka_unit_test(test_invalid_text),  cmocka_unit_test(test_match_limit),
        cmocka_unit_test(test_long_words),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
