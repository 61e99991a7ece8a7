#include "tests/unit/tokkit.h"

#include "loaders/tok_unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint32_t letter(unsigned b) {
    if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae) return b;
    if (b <= 0x20) return 0x100 + b;
    return b == 0xad ? 0x143 : 0x100 + 33 + b - 0x7f;
}

static void add(kld_buf *b, const char *s) { assert_int_equal(kld_buf_adds(b, s, NULL), KLD_OK); }

void tok_cook(kld_buf *b, const tok_recipe *r) {
    add(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":");
    add(b, r->norm ? r->norm : "null");
    add(b, ",\"pre_tokenizer\":");
    add(b, r->pre ? r->pre : BYTE_LEVEL("true", "false"));
    add(b, ",\"decoder\":" BYTE_LEVEL("true", "true") ",\"added_tokens\":[");
    add(b, r->added ? r->added : "");
    add(b, "]");
    add(b, r->rest ? r->rest : "");
    add(b, ",\"model\":{\"type\":\"BPE\"");
    add(b, r->model ? r->model : "");
    add(b, ",\"vocab\":{");
    for (unsigned i = 0; i < (r->bytes ? r->bytes : 256); i++) {
        char text[16] = {0}, utf8[5] = {0};
        kld_utf8_put(utf8, letter(i));
        snprintf(text, sizeof text, "%s\"%s%s\":%u", i ? "," : "",
                 i == '"' || i == '\\' ? "\\" : "", utf8, i);
        add(b, text);
    }
    add(b, r->vocab ? r->vocab : "");
    add(b, "},\"merges\":[");
    add(b, r->merges ? r->merges : "");
    add(b, "]}}");
}

kld_status tok_try(kld_tokenizer **t, const tok_recipe *r, kld_err *err) {
    kld_buf b = {0};
    tok_cook(&b, r);
    kld_status st = kld_tokenizer_parse(t, "test", b.data, b.len, err);
    kld_buf_free(&b);
    return st;
}

kld_tokenizer *tok_make(const tok_recipe *r) {
    kld_tokenizer *t;
    kld_err err = {0};
    if (tok_try(&t, r, &err) != KLD_OK) fail_msg("%s", err.text);
    return t;
}

kld_ids tok_encode(const kld_tokenizer *t, const char *text, size_t n) {
    kld_ids ids = {0};
    kld_err err = {0};
    if (kld_tokenizer_encode(t, text, n, &ids, &err) != KLD_OK) fail_msg("%s", err.text);
    return ids;
}

void tok_expect_ids(const kld_tokenizer *t, const char *text, const uint32_t *want, size_t n) {
    kld_ids ids = tok_encode(t, text, strlen(text));
    assert_int_equal(ids.n, n);
    if (n) assert_memory_equal(ids.v, want, n * sizeof *want);
    kld_ids_free(&ids);
}
void tok_expect_text(const tok_recipe *r, const char *text, const char *want) {
    kld_tokenizer *t = tok_make(r);
    kld_ids ids = tok_encode(t, text, strlen(text));
    kld_buf b = {0};
    assert_int_equal(kld_tokenizer_decode(t, ids.v, ids.n, false, &b, NULL), KLD_OK);
    assert_string_equal(b.data ? (char *)b.data : "", want);
    kld_buf_free(&b);
    kld_ids_free(&ids);
    kld_tokenizer_free(t);
}

void tok_expect_error(const tok_recipe *r, kld_status want, const char *text) {
    kld_tokenizer *t;
    kld_err err = {0};
    kld_status st = tok_try(&t, r, &err);
    if (st != want || !strstr(err.text, text))
        fail_msg("expected status %d and '%s', got %d: %s", want, text, st, err.text);
    assert_null(t);
}
