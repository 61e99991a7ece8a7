/* Text of the worst positions: whatever bytes tokens are. */
#include "tests/unit/t.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/compare/worst.h"
#include "tests/unit/tokkit.h"

static void shows(const char *bytes, size_t n, const char *want) {
    kld_buf b = {0};
    assert_int_equal(kld_visible_text((const unsigned char *)bytes, n, &b, NULL), KLD_OK);
    assert_string_equal(b.data ? (char *)b.data : "", want);
    kld_buf_free(&b);
}
#define SHOWS(bytes, want) shows(bytes, sizeof bytes - 1, want)
#define BAD "\xef\xbf\xbd"

static void visible(void **state) {
    (void)state;
    SHOWS("", "");
    SHOWS("a \xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80", "a \xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80");
    /* Half a character; two halves of different ones; a stray tail; overlong; a surrogate; too
     * large. */
    SHOWS("\xe6\xbc", BAD);
    SHOWS("\xf0\x9f\x98"
          "a",
          BAD "a");
    SHOWS("\xc3\xe6\xbc\xa2", BAD "\xe6\xbc\xa2");
    SHOWS("\xa2", BAD);
    SHOWS("\xc0\xaf", BAD BAD);
    SHOWS("\xe0\x80\xaf", BAD BAD BAD);
    SHOWS("\xed\xa0\x80", BAD BAD BAD);
    SHOWS("\xf4\x90\x80\x80", BAD BAD BAD BAD);
    SHOWS("\xff", BAD);
    /* Controls, among them NUL, and what turns or ends a line. */
    SHOWS("a\0b\nc\td\x1b[31m\x7f", "a\xe2\x90\x80"
                                    "b\xe2\x90\x8a"
                                    "c\xe2\x90\x89"
                                    "d\xe2\x90\x9b[31m\xe2\x90\xa1");
    SHOWS("\xc2\x85\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa6\xef\xbb\xbf",
          "[U+0085][U+202E][U+2028][U+2066][U+FEFF]");
}

static json_t *text(const kld_tokenizer *t, const uint32_t *id, size_t n) {
    kld_emit e = {0};
    json_t *o = json_object();
    kld_worst_text(&e, o, "x", t, id, n);
    assert_int_equal(kld_emit_check(&e, NULL), KLD_OK);
    json_t *v = json_incref(json_object_get(o, "x"));
    json_decref(o);
    return v;
}

/* Ids of a byte tokenizer are bytes. */
static void tokens(void **state) {
    (void)state;
    kld_tokenizer *t;
    assert_int_equal(tok_try(&t, &(tok_recipe){0}, NULL), KLD_OK);
    json_t *v = text(t, (uint32_t[]){'a', 0xc3, 0xa9, '\n'}, 4);
    assert_string_equal(json_string_value(v), "a\xc3\xa9\xe2\x90\x8a");
    json_decref(v);
    v = text(t, (uint32_t[]){0xc3}, 1);
    assert_string_equal(json_string_value(v), BAD);
    json_decref(v);
    v = text(t, NULL, 0);
    assert_string_equal(json_string_value(v), "");
    json_decref(v);
    v = text(t, (uint32_t[]){'a', 70000}, 2);
    assert_true(json_is_null(v));
    json_decref(v);
    v = text(NULL, (uint32_t[]){'a'}, 1);
    assert_true(json_is_null(v));
    json_decref(v);
    kld_tokenizer_free(t);
}

static char *cooked(const char *dir, const char *name, const tok_recipe *r) {
    kld_buf b = {0};
    char *path = t_path(dir, name);
    tok_cook(&b, r);
    assert_int_equal(kld_file_write(path, b.data, b.len, NULL), KLD_OK);
    kld_buf_free(&b);
    return path;
}

static void identity(void **state) {
    char *path = cooked(*state, "tokenizer.json", &(tok_recipe){0});
    char *mute = cooked(*state, "mute.json", &(tok_recipe){.no_decoder = true});
    kld_tokenizer *t, *own;
    kld_err err = {0};
    kld_capture_info info = {0};
    assert_int_equal(kld_worst_tokenizer(NULL, false, &info, &t, &err), KLD_OK);
    assert_null(t);
    assert_int_equal(kld_worst_tokenizer(path, false, &info, &t, &err), KLD_E_INPUT);
    assert_null(t);
    assert_non_null(strstr(err.text, "but the captures were made with 000000000000"));
    assert_int_equal(kld_tokenizer_open(&own, path, NULL), KLD_OK);
    info.tokenizer = kld_tokenizer_digest(own);
    kld_tokenizer_free(own);
    assert_int_equal(kld_worst_tokenizer(path, false, &info, &t, &err), KLD_OK);
    assert_non_null(t);
    kld_tokenizer_free(t);
    /* Where the checkpoint was, if that is still its tokenizer. */
    info.checkpoint = (char *)*state;
    assert_int_equal(kld_worst_tokenizer(NULL, false, &info, &t, &err), KLD_OK);
    assert_null(t);
    assert_int_equal(kld_worst_tokenizer(NULL, true, &info, &t, &err), KLD_OK);
    assert_non_null(t);
    kld_tokenizer_free(t);
    kld_mem_fail_after(1);
    kld_status st = kld_worst_tokenizer(NULL, true, &info, &t, &err);
    kld_mem_fail_after(0);
    assert_int_equal(st, KLD_E_NOMEM);
    kld_digest right = info.tokenizer;
    info.tokenizer.b[0] ^= 1;
    assert_int_equal(kld_worst_tokenizer(NULL, true, &info, &t, &err), KLD_OK);
    assert_null(t);
    info.tokenizer = right;
    info.checkpoint = "gone";
    assert_int_equal(kld_worst_tokenizer(NULL, true, &info, &t, &err), KLD_OK);
    assert_null(t);
    assert_int_equal(kld_worst_tokenizer(mute, false, &info, &t, &err), KLD_E_UNSUPPORTED);
    assert_null(t);
    assert_int_equal(kld_worst_tokenizer("no such directory", false, &info, &t, &err), KLD_E_INPUT);
    assert_null(t);
    free(path);
    free(mute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visible),
        cmocka_unit_test(tokens),
        cmocka_unit_test_setup_teardown(identity, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests_name("worst", tests, NULL, NULL);
}
