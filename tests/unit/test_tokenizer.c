/* The tokenizer against what Hugging Face `tokenizers` gives (tests/golden/tok), and the
 * points on which regular-expression engines, Unicode versions and hostile files differ. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "loaders/tok_unicode.h"
#include "loaders/tokenizer.h"
#include "tests/unit/tokkit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char golden_dir[] = "tests/golden/tok";

/* ---- goldens ---- */

static void slurp(const char *dir, const char *name, kld_buf *b) {
    char *path;
    kld_err err = {0};
    assert_int_equal(kld_path_join(&path, dir, name, NULL), KLD_OK);
    if (kld_file_slurp(path, 64 << 20, b, &err) != KLD_OK) fail_msg("%s", err.text);
    kld_free(path);
}

/* The ids of an .npy file of int32, little-endian. */
static const unsigned char *npy_ids(const kld_buf *b, size_t *n) {
    assert_true(b->len > 10 && memcmp(b->data, "\x93NUMPY\1", 7) == 0);
    size_t at = 10 + (size_t)(b->data[8] | b->data[9] << 8);
    assert_non_null(strstr((char *)b->data + 10, "'<i4'"));
    assert_true(at <= b->len && (b->len - at) % 4 == 0);
    *n = (b->len - at) / 4;
    return b->data + at;
}

/* As Python's errors="replace": each longest start of a sequence becomes U+FFFD. */
static void replace_defects(kld_buf *b) {
    kld_buf out = {0};
    for (size_t i = 0, bad; i < b->len;) {
        size_t n = b->len - i, k = 1;
        if (kld_utf8_valid(b->data + i, n, &bad)) bad = n;
        assert_int_equal(kld_buf_add(&out, b->data + i, bad, NULL), KLD_OK);
        i += bad;
        if (bad == n) break;
        /* One byte more is part of it while the whole could still become valid. */
        for (char rest[4] = "\x80\x80\x80"; k < 3 && i + k < b->len; k++) {
            char probe[2][4];
            memcpy(probe[0], rest, 4);
            memcpy(probe[0], b->data + i, k + 1);
            memcpy(probe[1], probe[0], 4);
            memset(probe[1] + k + 1, 0xbf, 3 - k);
            size_t need = b->data[i] >= 0xf0 ? 4 : b->data[i] >= 0xe0 ? 3 : 2, at;
            if (k + 1 >= need) break;
            if (!kld_utf8_valid(probe[0], need, &at) && !kld_utf8_valid(probe[1], need, &at)) break;
        }
        assert_int_equal(kld_buf_adds(&out, "\xef\xbf\xbd", NULL), KLD_OK);
        i += k;
    }
    kld_buf_free(b);
    *b = out;
}

static void one_golden(const char *dir) {
    kld_buf text = {0}, npy = {0}, decoded = {0}, want = {0};
    kld_tokenizer *t;
    kld_err err = {0};
    size_t n;
    char *path;
    if (kld_tokenizer_open(&t, dir, &err) != KLD_OK) fail_msg("%s", err.text);
    slurp(dir, "text.txt", &text);
    slurp(dir, "ids.npy", &npy);
    const unsigned char *raw = npy_ids(&npy, &n);
    kld_ids ids = tok_encode(t, (char *)text.data, text.len);
    for (size_t i = 0; i < n && i < ids.n; i++) {
        uint32_t id = raw[4 * i] | (uint32_t)raw[4 * i + 1] << 8 | (uint32_t)raw[4 * i + 2] << 16;
        if (id != ids.v[i]) fail_msg("%s: token %zu: %u, not %u", dir, i, ids.v[i], id);
        assert_true(id < kld_tokenizer_size(t));
    }
    assert_int_equal(ids.n, n);
    assert_int_equal(kld_tokenizer_decode(t, ids.v, ids.n, false, &decoded, NULL), KLD_OK);
    assert_int_equal(kld_path_join(&path, dir, "decoded.txt", NULL), KLD_OK);
    slurp(dir, kld_path_exists(path) ? "decoded.txt" : "text.txt", &want);
    replace_defects(&decoded);
    assert_int_equal(decoded.len, want.len);
    assert_memory_equal(decoded.data, want.data, want.len);
    kld_free(path);
    kld_ids_free(&ids);
    kld_buf_free(&text);
    kld_buf_free(&npy);
    kld_buf_free(&decoded);
    kld_buf_free(&want);
    kld_tokenizer_free(t);
}

static void test_goldens(void **state) {
    (void)state;
    char **names;
    size_t n;
    kld_err err = {0};
    if (kld_list_dir(golden_dir, &names, &n, &err) != KLD_OK) fail_msg("%s", err.text);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        char *dir;
        assert_int_equal(kld_path_join(&dir, golden_dir, names[i], NULL), KLD_OK);
        if (kld_path_is_dir(dir)) one_golden(dir);
        kld_free(dir);
    }
    kld_names_free(names, n);
}

/* ---- splitting ---- */

static void test_behaviors(void **state) {
    (void)state;
    static const struct {
        const char *pre, *want;
    } cases[] = {
        {SHOWN(SPLIT("-", "Isolated", "false")), " a - - b - c"},
        {SHOWN(SPLIT("-", "Removed", "false")), " a b c"},
        {SHOWN(SPLIT("-", "Removed", "true")), " - - -"},
        {SHOWN(SPLIT("-", "MergedWithPrevious", "false")), " a- - b- c"},
        {SHOWN(SPLIT("-", "MergedWithNext", "false")), " a - -b -c"},
        {SHOWN(SPLIT("-", "Contiguous", "false")), " a -- b - c"},
        {SHOWN(SPLIT("-", "Isolated", "true")), " a - - b - c"},
        {SHOWN(SPLIT("-*", "Isolated", "false")), " a -- b - c"},
        {SHOWN(SPLIT("b|", "Removed", "false")), " a - - - c"},
        {SHOWN("{\"type\":\"Split\",\"pattern\":{\"String\":\"-b\"},\"behavior\":\"Removed\","
               "\"invert\":false}"),
         " a- -c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tok_expect_text(&(tok_recipe){.pre = cases[i].pre}, "a--b-c", cases[i].want);
    tok_expect_text(&(tok_recipe){.pre = SHOWN("{\"type\":\"Digits\",\"individual_digits\":true}")},
                    "a12\xc2\xbd", " a 1 2 \xc2\xbd");
    tok_expect_text(
        &(tok_recipe){.pre = SHOWN("{\"type\":\"Digits\",\"individual_digits\":false}")},
        "a12\xc2\xbd", " a 12\xc2\xbd");
    /* The prefix goes on each stretch before GPT-2's pattern sees it, and only once. */
    tok_expect_text(&(tok_recipe){.pre = BYTE_LEVEL("true", "true")}, "it's", " it's");
    tok_expect_text(&(tok_recipe){.pre = BYTE_LEVEL("false", "true")}, "it's", "it's");
}

/* Where the engines differ: each case is a class of one character, and a text of it. */
static void test_regex_semantics(void **state) {
    (void)state;
    static const struct {
        const char *pre, *text, *want;
    } cases[] = {
        /* White space: U+0085 is, U+180E (PCRE2's \s) and U+200B are not. */
        {SHOWN(SPLIT("\\\\s+", "Removed", "false")),
         "a\xc2\x85\xe3\x80\x80\x0b"
         "b",
         " a b"},
        {SHOWN(SPLIT("\\\\s+", "Removed", "false")),
         "a\xe1\xa0\x8e"
         "b",
         " a\xe1\xa0\x8e"
         "b"},
        {SHOWN(SPLIT("\\\\S+", "Removed", "true")), "a\xe1\xa0\x8e\xc2\x85", " a\xe1\xa0\x8e"},
        {SHOWN(SPLIT("[\\\\S]+", "Removed", "true")), " \xe1\xa0\x8e", " \xe1\xa0\x8e"},
        {SHOWN(SPLIT("[^\\\\S]+", "Removed", "false")), "a \xe1\xa0\x8e", " a \xe1\xa0\x8e"},
        /* Folding: U+017F is an s, U+212A is a k, U+0131 is no i. */
        {SHOWN(SPLIT("(?i:'s|'k|'i)", "Removed", "false")),
         "a'Sb'\xc5\xbf"
         "c'\xe2\x84\xaa"
         "d'\xc4\xb1",
         " a b c d'\xc4\xb1"},
        {SHOWN(SPLIT("'(?i:[sd]|ll)", "Removed", "false")),
         "a'Db'\xc5\xbf"
         "c'lL",
         " a b c"},
        /* Letters, digits and symbols of Unicode 15 to 16, and one of 17. */
        {SHOWN(SPLIT("\\\\p{L}", "Removed", "false")),
         "1\xf0\x90\x97\x80\xea\x9f\x9c"
         "2",
         " 1 2"},
        {SHOWN(SPLIT("[^\\\\p{L}]+", "Removed", "false")), "1\xf0\x90\x97\x80",
         " \xf0\x90\x97\x80"},
        {SHOWN(SPLIT("\\\\P{L}", "Removed", "false")), "1\xf0\x90\x97\x80", " \xf0\x90\x97\x80"},
        {SHOWN(SPLIT("\\\\p{N}", "Removed", "false")),
         "a\xf0\x90\xb5\x80"
         "b",
         " a b"},
        {SHOWN(SPLIT("\\\\p{N}", "Removed", "false")), "a\xf0\x91\xb7\xa0", " a\xf0\x91\xb7\xa0"},
        {SHOWN("{\"type\":\"Digits\",\"individual_digits\":true}"),
         "a\xf0\x91\xb7\xa0"
         "b",
         " a \xf0\x91\xb7\xa0 b"},
        /* A script is itself, without its extensions (U+3001 is common to several). */
        {SHOWN(SPLIT("\\\\p{Han}", "Removed", "false")), "a\xe4\xb8\x80\xe3\x80\x81",
         " a \xe3\x80\x81"},
        /* $ is the end of any line; . stops at \n only. */
        {SHOWN(SPLIT("a$", "Removed", "false")), "a\nba", " \nb"},
        {SHOWN(SPLIT(".+", "Removed", "false")), "a\r\xe2\x80\xa8\nb", " \n"},
        {SHOWN(SPLIT("a++a|b", "Removed", "false")), "aab", " aa"},
        {SHOWN(SPLIT("a{,2}", "Removed", "false")), "aaab", " b"},
        {SHOWN(SPLIT("[\\\\x41\\\\u0042\\\\x{1F600}\\\\]^-]", "Removed", "false")),
         "A1B2\xf0\x9f\x98\x80"
         "3]4^5-6",
         " 1 2 3 4 5 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tok_expect_text(&(tok_recipe){.pre = cases[i].pre}, cases[i].text, cases[i].want);
}

static void test_refused_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        kld_status status;
        const char *text;
    } cases[] = {
        {"\\\\bx", KLD_E_UNSUPPORTED, "this escape at byte 2"},
        {"(?<=a)b", KLD_E_UNSUPPORTED, "this kind of group at byte 0"},
        {"(?i)a", KLD_E_UNSUPPORTED, "this kind of group"},
        {"[a[b]]", KLD_E_UNSUPPORTED, "a class inside a class at byte 2"},
        {"[a&&b]", KLD_E_UNSUPPORTED, "&& at byte 2"},
        {"a{1,3}+", KLD_E_UNSUPPORTED, "{..} with + or ?"},
        {"a{3}?", KLD_E_UNSUPPORTED, "{..} with + or ?"},
        {"a**", KLD_E_UNSUPPORTED, "a repeated repeat"},
        {"a{2000}", KLD_E_UNSUPPORTED, "this repeat count"},
        {"^a", KLD_E_UNSUPPORTED, "^, or a repeat of nothing,"},
        {"*a", KLD_E_UNSUPPORTED, "a repeat of nothing"},
        {"(?=a)*", KLD_E_UNSUPPORTED, "a repeated assertion"},
        {"\\\\p{Latn}", KLD_E_UNSUPPORTED, "this property"},
        {"\\\\w", KLD_E_UNSUPPORTED, "this escape"},
        {"[\\\\D]", KLD_E_UNSUPPORTED, "a negated set inside a class"},
        {"(?i:ss)", KLD_E_UNSUPPORTED, "may fold to one letter"},
        {"(?i:[^a])", KLD_E_UNSUPPORTED, "negated or not ASCII"},
        {"(?i:\xc3\xa9)", KLD_E_UNSUPPORTED, "not ASCII inside (?i:"},
        {"(?i:a+)", KLD_E_UNSUPPORTED, "a repeated letter"},
        {"", KLD_E_UNSUPPORTED, "an empty split pattern"},
        {"(a", KLD_E_INPUT, "unterminated group"},
        {"a)", KLD_E_INPUT, "unmatched )"},
        {"[a", KLD_E_INPUT, "unterminated class"},
        {"a\\\\", KLD_E_INPUT, "ends in a backslash"},
        {"\\\\x{110000}", KLD_E_INPUT, "no such code point"},
        {"[b-a]", KLD_E_INPUT, "end is before its start"},
        {"\\\\p{L", KLD_E_INPUT, "unterminated property"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char pre[512];
        snprintf(pre, sizeof pre,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\","
                 "\"invert\":false}",
                 cases[i].pattern);
        tok_expect_error(&(tok_recipe){.pre = pre}, cases[i].status, cases[i].text);
    }
}

static void test_normalization(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"e\xcc\x81", " \xc3\xa9"},                         /* composes */
        {"xe\xcc\x81y\xe2\x84\xab", " x\xc3\xa9y\xc3\x85"}, /* singleton */
        {"a\xcc\x81\xcc\xa3", " \xe1\xba\xa1\xcc\x81"},     /* reorders first */
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", " \xed\x95\x9c"},
        {"\xed\x95\x98\xe1\x86\xa7", " \xed\x95\x98\xe1\x86\xa7"}, /* U+11A7 stays */
        {"\xe0\xa5\x98", " \xe0\xa4\x95\xe0\xa4\xbc"},             /* composition exclusion */
        /* Marks and compositions younger than the normalizer's data stay as they are. */
        {"a\xe0\xa2\x98\xcc\xb4", " a\xe0\xa2\x98\xcc\xb4"},
        {"\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", " \xf0\x91\xa4\xb5\xf0\x91\xa4\xb0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tok_expect_text(&(tok_recipe){.norm = "{\"type\":\"NFC\"}"}, cases[i].text, cases[i].want);
    tok_expect_text(&(tok_recipe){.norm = "{\"type\":\"Sequence\",\"normalizers\":[]}"},
                    "e\xcc\x81", " e\xcc\x81");
}

/* ---- merges ---- */

#define ABC_VOCAB ",\"ab\":256,\"bc\":257,\"abc\":258,\"aa\":259,\"aaaa\":260"
#define NO_PREFIX BYTE_LEVEL("false", "false")

static void test_merges(void **state) {
    (void)state;
    tok_recipe r = {
        .pre = NO_PREFIX, .vocab = ABC_VOCAB, .merges = "\"b c\",\"a b\",\"a bc\",\"a a\""};
    kld_tokenizer *t = tok_make(&r);
    kld_digest legacy = kld_tokenizer_digest(t);
    EXPECT_IDS(t, "abc", 258);
    EXPECT_IDS(t, "ab", 256);
    EXPECT_IDS(t, "aaaaa", 259, 259, 'a'); /* equal ranks: leftmost first */
    tok_expect_ids(t, "", NULL, 0);
    assert_int_equal(kld_tokenizer_size(t), 261);
    kld_tokenizer_free(t);

    /* Pairs instead of text: the same tokenizer. */
    r.merges = "[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"bc\"],[\"a\",\"a\"]";
    t = tok_make(&r);
    kld_digest pairs = kld_tokenizer_digest(t);
    assert_memory_equal(&legacy, &pairs, sizeof legacy);
    kld_tokenizer_free(t);

    /* Another order of ranks: another tokenizer. */
    r.merges = "\"a b\",\"b c\",\"a bc\",\"a a\"";
    t = tok_make(&r);
    EXPECT_IDS(t, "abc", 256, 'c');
    kld_digest other = kld_tokenizer_digest(t);
    assert_memory_not_equal(&legacy, &other, sizeof legacy);
    kld_tokenizer_free(t);

    /* A pre-token that is a token is taken whole only when asked. */
    r.model = ",\"ignore_merges\":true";
    t = tok_make(&r);
    EXPECT_IDS(t, "abc", 258);
    EXPECT_IDS(t, "aaaa", 260);
    kld_tokenizer_free(t);
}

static void test_unknown_bytes(void **state) {
    (void)state;
    tok_recipe r = {.pre = NO_PREFIX, .bytes = 128};
    kld_tokenizer *t = tok_make(&r);
    EXPECT_IDS(t,
               "a\xc3\xa9"
               "b",
               'a', 'b'); /* without unk_token they vanish */
    kld_tokenizer_free(t);
    r.vocab = ",\"?\xc3\xa9\":128";
    r.model = ",\"unk_token\":\"?\xc3\xa9\",\"fuse_unk\":false";
    t = tok_make(&r);
    EXPECT_IDS(t,
               "a\xc3\xa9"
               "b",
               'a', 128, 128, 'b');
    kld_tokenizer_free(t);
    r.model = ",\"unk_token\":\"?\xc3\xa9\",\"fuse_unk\":true";
    t = tok_make(&r);
    EXPECT_IDS(t,
               "a\xc3\xa9"
               "b",
               'a', 128, 'b');
    kld_tokenizer_free(t);
}

/* ---- added tokens ---- */

static void test_added_tokens(void **state) {
    (void)state;
    tok_recipe r = {.pre = NO_PREFIX,
                    .added = ADDED("256", "<a>", PLAIN) "," ADDED("257", "<a><a>", PLAIN)};
    kld_tokenizer *t = tok_make(&r);
    uint32_t id;
    EXPECT_IDS(t, "<a><a><a>x<a", 257, 256, 'x', '<', 'a'); /* leftmost, then longest */
    assert_true(kld_tokenizer_id(t, "<a><a>", &id) && id == 257);
    assert_false(kld_tokenizer_id(t, "<b>", &id));
    assert_false(kld_tokenizer_id(t, "\xff", &id));
    kld_buf b = {0};
    assert_int_equal(kld_tokenizer_decode(t, (uint32_t[]){'x', 256, 'y'}, 3, true, &b, NULL),
                     KLD_OK);
    assert_string_equal(b.data, "xy");
    kld_err err;
    assert_int_equal(kld_tokenizer_decode(t, (uint32_t[]){258}, 1, true, &b, &err), KLD_E_INPUT);
    assert_string_equal(err.text, "token 0: no such id: 258");
    kld_buf_free(&b);
    kld_tokenizer_free(t);

    r.added = ADDED("256", "xy", FLAGS("true", "false", "false", "false"));
    t = tok_make(&r);
    EXPECT_IDS(t, "xy xyz", 256, ' ', 'x', 'y', 'z');
    EXPECT_IDS(t, "_xy.xy", '_', 'x', 'y', '.', 256);
    EXPECT_IDS(t, "xy\xe2\x80\x8d", 'x', 'y', 0xe2, 0x80, 0x8d); /* a joiner is of a word */
    EXPECT_IDS(t, "xy\xe1\xa0\x8e", 256, 0xe1, 0xa0, 0x8e);
    kld_tokenizer_free(t);

    r.added = ADDED("256", "<l", FLAGS("false", "true", "false", "false")) "," ADDED(
        "257", "r>", FLAGS("false", "false", "true", "false"));
    t = tok_make(&r);
    EXPECT_IDS(t, "a \t\xc2\x85<l b", 'a', 256, ' ', 'b');
    EXPECT_IDS(t, "a r> \xe3\x80\x80<l b", 'a', ' ', 257, 256, ' ', 'b');
    kld_tokenizer_free(t);

    /* Tokens that are not normalized come first, and in raw text only. */
    r.norm = "{\"type\":\"NFC\"}";
    r.added = ADDED("256", "e\xcc\x81", FLAGS("false", "false", "false", "true")) "," ADDED(
        "257", "a\xcc\x81", FLAGS("false", "false", "false", "false"));
    t = tok_make(&r);
    EXPECT_IDS(t,
               "\xc3\xa9"
               "e\xcc\x81",
               256, 256);
    EXPECT_IDS(t,
               "\xc3\xa1"
               "a\xcc\x81",
               0xc3, 0xa1, 257);
    kld_tokenizer_free(t);
}

/* ---- BOS ---- */

#define TEMPLATE(single, id)                                                                       \
    ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" single                     \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{"       \
    "\"id\":\"<s>\",\"ids\":[" id "],\"tokens\":[\"<s>\"]}}}"
#define BOS "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"

static void test_bos(void **state) {
    (void)state;
    tok_recipe r = {.added = ADDED("256", "<s>", PLAIN), .rest = TEMPLATE(BOS, "256")};
    uint32_t id;
    kld_tokenizer *t = tok_make(&r);
    assert_true(kld_tokenizer_bos(t, &id) && id == 256);
    kld_tokenizer_free(t);
    r.rest = TEMPLATE("", "256");
    t = tok_make(&r);
    assert_false(kld_tokenizer_bos(t, &id));
    kld_tokenizer_free(t);
    r.rest = TEMPLATE(BOS BOS, "256"); /* two: neither is the one */
    t = tok_make(&r);
    assert_false(kld_tokenizer_bos(t, &id));
    kld_tokenizer_free(t);
    r.rest = TEMPLATE(BOS, "255");
    tok_expect_error(&r, KLD_E_INPUT, "not the vocabulary's");
}

static void put_file(const char *dir, const char *name, const void *data, size_t n) {
    char *path;
    assert_int_equal(kld_path_join(&path, dir, name, NULL), KLD_OK);
    assert_int_equal(kld_file_write(path, data, n, NULL), KLD_OK);
    kld_free(path);
}

static void test_open(void **state) {
    (void)state;
    char dir[] = "/tmp/kld-tokenizer-XXXXXX";
    static const char good[] = "{\"bos_token\":{\"content\":\"<s>\"}}";
    static const char bad[] = "{\"bos_token\":\"<none>\"}";
    kld_buf b = {0};
    kld_tokenizer *t;
    kld_err err;
    uint32_t id;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kld_tokenizer_open(&t, dir, &err), KLD_E_INPUT);
    tok_cook(&b, &(tok_recipe){.added = ADDED("256", "<s>", PLAIN)});
    put_file(dir, "tokenizer.json", b.data, b.len);
    assert_int_equal(kld_tokenizer_open(&t, dir, &err), KLD_OK);
    assert_false(kld_tokenizer_bos(t, &id));
    kld_tokenizer_free(t);
    put_file(dir, "tokenizer_config.json", good, sizeof good - 1);
    assert_int_equal(kld_tokenizer_open(&t, dir, &err), KLD_OK);
    assert_true(kld_tokenizer_bos(t, &id) && id == 256);
    kld_tokenizer_free(t);
    put_file(dir, "tokenizer_config.json", bad, sizeof bad - 1);
    assert_int_equal(kld_tokenizer_open(&t, dir, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "tokenizer_config.json: 'bos_token': '<none>' is not"));
    assert_null(t);
    kld_buf_free(&b);
    assert_int_equal(kld_remove_tree(dir, NULL), KLD_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_behaviors),
        cmocka_unit_test(test_regex_semantics),
        cmocka_unit_test(test_refused_patterns),
        cmocka_unit_test(test_normalization),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_unknown_bytes),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_bos),
        cmocka_unit_test(test_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
