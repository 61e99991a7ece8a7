/* The header rules, one file each. */
#include "tests/unit/loadkit.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "loaders/numfmt.h"

static const char good[] =
    "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
    "\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[2],\"data_offsets\":[8,10]}}     ";
static const unsigned char good_data[10] = {0x80, 0x3f, 0x00, 0x40, 0x40,
                                            0x40, 0x80, 0xc0, 0x7f, 0x80};

/* A whole file: length, header, n data bytes. */
static void file_of(kld_buf *b, const char *header, size_t header_len, size_t data) {
    assert_int_equal(kld_buf_u64(b, header_len, NULL), KLD_OK);
    assert_int_equal(kld_buf_add(b, header, header_len, NULL), KLD_OK);
    for (size_t i = 0; i < data; i++)
        assert_int_equal(kld_buf_add(b, good_data + i % 10, 1, NULL), KLD_OK);
}

static kld_status parse(const kld_buf *b, kld_err *err) {
    kld_arena arena = {0};
    kld_tensor *t;
    size_t n;
    kld_status st =
        kld_safetensors_parse("x.safetensors", b->data, b->len, b->len, 0, &arena, &t, &n, err);
    kld_arena_free(&arena);
    return st;
}

static void check_reject(const kld_buf *b, const char *text) {
    kld_err err = {0};
    assert_int_equal(parse(b, &err), KLD_E_INPUT);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    if (strncmp(err.text, "x.safetensors: ", 15)) fail_msg("'%s' has no file name", err.text);
}

static void reject_n(const char *header, size_t n, size_t data, const char *text) {
    kld_buf b = {0};
    file_of(&b, header, n, data);
    check_reject(&b, text);
    kld_buf_free(&b);
}

static void reject(const char *header, size_t data, const char *text) {
    reject_n(header, strlen(header), data, text);
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void example(void **state) {
    (void)state;
    assert_int_equal(sizeof good - 1, 120);
    kld_buf b = {0};
    file_of(&b, good, 120, 10);
    assert_int_equal(b.len, 138);
    kld_arena arena = {0};
    kld_tensor *t;
    size_t n;
    kld_err err = {0};
    assert_int_equal(kld_safetensors_parse("x", b.data, b.len, b.len, 7, &arena, &t, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_string_equal(t[0].name, "a");
    assert_int_equal(t[0].dtype, KLD_BF16);
    assert_int_equal(t[0].rank, 2);
    assert_int_equal(t[0].shape[1], 2);
    assert_int_equal(t[0].offset, 128);
    assert_int_equal(t[0].bytes, 8);
    assert_int_equal(t[0].shard, 7);
    assert_string_equal(t[1].name, "s");
    assert_int_equal(t[1].offset, 136);
    static const float want[4] = {1, 2, 3, -4};
    for (size_t i = 0; i < 4; i++) {
        const unsigned char *p = b.data + t[0].offset + 2 * i;
        assert_true(kld_bf16_to_f32((uint16_t)(p[0] | p[1] << 8)) == want[i]);
    }
    assert_true(kld_e8m0_to_f32(b.data[t[1].offset]) == 1);
    assert_true(kld_e8m0_to_f32(b.data[t[1].offset + 1]) == 2);
    kld_buf_free(&b);
    kld_arena_free(&arena);
}

/* 1: the length field */
static void rule_length(void **state) {
    (void)state;
    kld_buf b = {0};
    assert_int_equal(kld_buf_add(&b, "\x02\0\0\0", 4, NULL), KLD_OK);
    check_reject(&b, "4 bytes are too few");
    kld_buf_clear(&b);
    check_reject(&b, "0 bytes are too few");
    file_of(&b, "{}", 1, 0);
    check_reject(&b, "header length 1 is below 2");
    kld_buf_clear(&b);
    file_of(&b, good, 120, 0);
    b.len = 100;
    check_reject(&b, "header of 120 bytes does not fit into a file of 100: truncated");
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_u64(&b, 100000001, NULL), KLD_OK);
    check_reject(&b, "above the limit of 100000000");
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_u64(&b, UINT64_MAX, NULL), KLD_OK);
    check_reject(&b, "above the limit");
    kld_buf_clear(&b);
    assert_int_equal(
        kld_buf_adds(&b, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", NULL),
        KLD_OK);
    check_reject(&b, "git-lfs pointer");
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_adds(&b, "<!DOCTYPE html>\n<html>", NULL), KLD_OK);
    check_reject(&b, "HTML page");
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_add(&b, "GGUF\3\0\0\0\xff\xff", 10, NULL), KLD_OK);
    check_reject(&b, "GGUF file");
    kld_buf_free(&b);
}

/* 2: the text of the header */
static void rule_json(void **state) {
    (void)state;
    reject("[]", 0, "begins with byte 0x5b, not with '{'");
    reject(" {}", 0, "begins with byte 0x20");
    reject("{}x", 0, "ends with byte 0x78");
    reject("{}\n", 0, "ends with byte 0x0a");
    reject_n("{}\0", 3, 0, "ends with byte 0x00");
    reject("{} {}", 0, "not valid JSON");
    reject("{\"a\xff\":1}", 0, "not valid JSON");
    reject("{\"a\":{\"b\":[[1]]}}", 0, "nested 4 deep; at most 3");
    reject("{\"a\":}", 0, "not valid JSON");
    reject("{\"a\":1}", 0, "tensor 'a': described by an integer");
}

/* 3: duplicate keys; 4: unknown dtypes */
static void rule_keys(void **state) {
    (void)state;
    reject("{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[0,1]") "}", 1, "duplicate");
    reject("{" T("a", "U9", "[1]", "[0,1]") "}", 1, "tensor 'a': unknown dtype 'U9'");
    reject("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'dtype': expected a string");
}

/* 5: shapes */
static void rule_shape(void **state) {
    (void)state;
    reject("{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "shape[0] is -1, outside 0..2^53");
    reject("{" T("a", "U8", "[1.5]", "[0,1]") "}", 1, "shape[0] is a real number");
    reject("{" T("a", "U8", "[1,9007199254740993]", "[0,1]") "}", 1,
           "shape[1] is 9007199254740993");
    reject("{" T("a", "U8", "[4294967296,4294967296]", "[0,1]") "}", 1, "overflows 64 bits");
    reject("{" T("a", "F64", "[9007199254740992,512]", "[0,1]") "}", 1, "overflows 64 bits");
    reject("{" T("a", "F4", "[3]", "[0,1]") "}", 1, "12 bits are not a whole number of bytes");
    reject("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "rank 9 is above the limit");
    reject("{" T("a", "U8", "3", "[0,1]") "}", 1, "'shape': expected an array");
    reject("{" T("a", "U8", "[99999999999999999999]", "[0,1]") "}", 1, "header: ");
}

/* 6: offsets */
static void rule_offsets(void **state) {
    (void)state;
    reject("{" T("a", "U8", "[1]", "[1,0]") "}", 1, "begin 1 is after end 0");
    reject("{" T("a", "U8", "[2]", "[0,2]") "}", 1, "end 2 is beyond the 1 bytes of data");
    reject("{" T("a", "U8", "[2]", "[0,3]") "}", 3, "span 3 bytes, but dtype and shape need 2");
    reject("{" T("a", "U8", "[1]", "[0]") "}", 1, "not two non-negative integers");
    reject("{" T("a", "U8", "[1]", "[-1,0]") "}", 1, "not two non-negative integers");
}

/* 7: tiling */
static void rule_tiling(void **state) {
    (void)state;
    reject("{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "an overlap");
    reject("{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", 3, "a hole");
    reject("{" T("a", "U8", "[1]", "[1,2]") "}", 2, "the data begins at 0: a hole");
    reject("{" T("a", "U8", "[1]", "[0,1]") "}", 3, "2 bytes follow the last tensor");
    reject("{}", 1, "1 bytes follow the last tensor");
}

/* 8: metadata */
static void rule_metadata(void **state) {
    (void)state;
    reject("{\"__metadata__\":{\"n\":1}}", 0, "__metadata__ 'n' is an integer, not a string");
    reject("{\"__metadata__\":[]}", 0, "__metadata__ is an array");
}

/* 11: resources */
static void rule_limits(void **state) {
    (void)state;
    kld_buf h = {0};
    assert_int_equal(kld_buf_adds(&h, "{\"", NULL), KLD_OK);
    for (size_t i = 0; i < 65537; i++) assert_int_equal(kld_buf_add(&h, "n", 1, NULL), KLD_OK);
    assert_int_equal(
        kld_buf_adds(&h, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", NULL),
        KLD_OK);
    reject_n((char *)h.data, h.len, 1, "a name of 65537 bytes is above the limit of 65536");
    kld_buf_free(&h);
}

/* Zero sizes, scalars, sub-byte types and any order of keys are fine. */
static void accepted(void **state) {
    (void)state;
    static const char *const text[] = {
        "{}",
        "{\"__metadata__\":{\"format\":\"pt\"}}   ",
        "{" T("b", "U8", "[1]", "[4,5]") "," T("a", "F32", "[]", "[0,4]") "}",
        "{" T("a", "U8", "[0,7]", "[0,0]") "," T("b", "U8", "[2]", "[0,2]") "," T("c", "I64", "[0]",
                                                                                  "[2,2]") "}",
        "{" T("a", "F4", "[2,3]", "[0,3]") "}",
    };
    static const size_t data[] = {0, 0, 5, 2, 3};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        kld_buf b = {0};
        kld_err err = {0};
        file_of(&b, text[i], strlen(text[i]), data[i]);
        if (parse(&b, &err) != KLD_OK) fail_msg("%s", err.text);
        kld_buf_free(&b);
    }
}

/* A header of which only a part is at hand. */
static void partial(void **state) {
    (void)state;
    kld_buf b = {0};
    file_of(&b, good, 120, 10);
    kld_arena arena = {0};
    kld_tensor *t;
    size_t n;
    kld_err err = {0};
    assert_int_equal(kld_safetensors_parse("x", b.data, 60, b.len, 0, &arena, &t, &n, &err),
                     KLD_E_INPUT);
    assert_non_null(strstr(err.text, "truncated"));
    /* Every shorter file is refused. */
    for (size_t k = 0; k < b.len; k++)
        assert_int_equal(kld_safetensors_parse("x", b.data, k, k, 0, &arena, &t, &n, &err),
                         KLD_E_INPUT);
    kld_buf_free(&b);
    kld_arena_free(&arena);
}

static void dtype_table(void **state) {
    (void)state;
    for (int t = 0; t < KLD_DTYPE_COUNT; t++) {
        assert_non_null(kld_dtype_name((kld_dtype)t));
        assert_true(kld_dtype_bits((kld_dtype)t) >= 4);
    }
    assert_string_equal(kld_dtype_name(KLD_F8_E4M3FNUZ), "F8_E4M3FNUZ");
}

static void no_memory(void **state) {
    (void)state;
    built d;
    build_begin(&d);
    kld_buf b = {0};
    file_of(&b, good, 120, 10);
    put_file(d.dir, "m.safetensors", b.data, b.len);
    kld_buf_free(&b);
    char path[128];
    snprintf(path, sizeof path, "%s/m.safetensors", d.dir);
    kld_file f;
    assert_int_equal(kld_file_open(&f, path, NULL), KLD_OK);
    kld_status st = KLD_E_NOMEM;
    for (size_t k = 1; st != KLD_OK; k++) {
        kld_arena arena = {0};
        kld_tensor *t;
        size_t n;
        kld_err err = {0};
        kld_mem_fail_after(k);
        st = kld_safetensors_header(&f, 0, &arena, &t, &n, NULL, &err);
        kld_mem_fail_after(0);
        kld_arena_free(&arena);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("allocation %zu: %s", k, err.text);
        assert_true(k < 1000);
    }
    kld_file_close(&f);
    build_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example),     cmocka_unit_test(rule_length),
        cmocka_unit_test(rule_json),   cmocka_unit_test(rule_keys),
        cmocka_unit_test(rule_shape),  cmocka_unit_test(rule_offsets),
        cmocka_unit_test(rule_tiling), cmocka_unit_test(rule_metadata),
        cmocka_unit_test(rule_limits), cmocka_unit_test(accepted),
        cmocka_unit_test(partial),     cmocka_unit_test(dtype_table),
        cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
