/* What a run is given and what it says about itself: id lists, .npy files, names, time. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/capture/identity.h"
#include "kld/capture/logits.h"
#include "kld/capture/npy.h"

#include "tests/unit/enginekit.h"
#include "tests/unit/t.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- .npy ---- */

typedef struct array {
    int major;
    const char *dict;
    const void *data;
    size_t bytes;
} array;

static char *put_array(const char *dir, const array *a) {
    kld_buf b = {0};
    char *path = t_path(dir, "a.npy");
    const unsigned char start[] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)a->major, 0};
    size_t n = strlen(a->dict);
    const unsigned char length[] = {(unsigned char)n, (unsigned char)(n >> 8), 0, 0};
    assert_int_equal(kld_buf_add(&b, start, sizeof start, NULL), KLD_OK);
    assert_int_equal(kld_buf_add(&b, length, a->major == 1 ? 2 : 4, NULL), KLD_OK);
    assert_int_equal(kld_buf_add(&b, a->dict, n, NULL), KLD_OK);
    if (a->bytes) assert_int_equal(kld_buf_add(&b, a->data, a->bytes, NULL), KLD_OK);
    assert_int_equal(kld_file_write(path, b.data, b.len, NULL), KLD_OK);
    kld_buf_free(&b);
    return path;
}

static void npy_accepts(const char *dir, array a, const uint32_t *want, size_t n) {
    uint32_t *ids;
    size_t got;
    kld_err e = {0};
    char *path = put_array(dir, &a);
    if (kld_npy_read_ids(path, &ids, &got, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(got, n);
    if (n) assert_memory_equal(ids, want, n * sizeof *want);
    kld_free(ids);
    free(path);
}

static void file_refused(const char *path, const char *text) {
    uint32_t *ids;
    size_t got;
    kld_err e = {0};
    kld_status st = kld_npy_read_ids(path, &ids, &got, &e);
    if (st != KLD_E_INPUT || !strstr(e.text, text) || strncmp(e.text, path, strlen(path)) != 0)
        fail_msg("expected '%s', got %d: %s", text, (int)st, e.text);
    assert_null(ids);
    assert_int_equal(got, 0);
}

static void npy_refuses(const char *dir, array a, const char *text) {
    char *path = put_array(dir, &a);
    file_refused(path, text);
    free(path);
}

#define DICT(descr, order, shape)                                                                  \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"
#define I4(shape) DICT("'<i4'", "False", shape)

static void npy_types(void **state) {
    static const uint32_t want[] = {7, 0, 2147483647}, large[] = {4294967295u, 1};
    static const int64_t i8[] = {7, 0, 2147483647}, wide[] = {4294967295, 1};
    const void *i4 = want, *u8 = i8;
    npy_accepts(*state, (array){1, DICT("'<i4'", "False", "(3,)"), i4, 12}, want, 3);
    npy_accepts(*state, (array){1, DICT("'<u4'", "False", "(3,)"), i4, 12}, want, 3);
    npy_accepts(*state, (array){1, DICT("'<i8'", "False", "(3,)"), i8, 24}, want, 3);
    npy_accepts(*state, (array){1, DICT("'<u8'", "False", "(3,)"), u8, 24}, want, 3);
    npy_accepts(*state, (array){1, DICT("'<u4'", "False", "(2,)"), large, 8}, large, 2);
    npy_accepts(*state, (array){1, DICT("'<i8'", "False", "(2,)"), wide, 16}, large, 2);
    npy_accepts(*state, (array){1, I4("(1, 3)"), i4, 12}, want, 3);
    npy_accepts(*state, (array){2, I4("(3,)"), i4, 12}, want, 3);
    npy_accepts(*state, (array){3, I4("(3,)"), i4, 12}, want, 3);
    npy_accepts(*state, (array){1, I4("(0,)"), NULL, 0}, NULL, 0);
    /* Keys in another order, as other writers have them. */
    npy_accepts(*state,
                (array){1, "{'shape': (3,), 'fortran_order': False, 'descr': '<i4'}", i4, 12}, want,
                3);
}

static void npy_refusals(void **state) {
    static const int32_t ids[] = {1, 2, -3, 4};
    static const int64_t wide[] = {1, 4294967296, -1};
    static const struct {
        array a;
        const char *text;
    } bad[] = {
        {{1, DICT("'<f4'", "False", "(4,)"), ids, 16}, "the header says '<f4'"},
        {{1, DICT("'<i2'", "False", "(4,)"), ids, 8}, "must be little-endian int32"},
        {{1, DICT("'>i4'", "False", "(4,)"), ids, 16}, "the header says '>i4'"},
        {{1, DICT("'|u1'", "False", "(4,)"), ids, 4}, "the header says '|u1'"},
        {{1, DICT("[('a', '<i4')]", "False", "(4,)"), ids, 16}, "the header says [('a'"},
        {{1, "{'fortran_order': False, 'shape': (4,), }", ids, 16}, "the header says nothing"},
        {{1, DICT("'<i4'", "True", "(4,)"), ids, 16}, "1-D array in C order"},
        {{1, "{'descr': '<i4', 'shape': (4,), }", ids, 16}, "1-D array in C order"},
        {{1, "{'descr': '<i4', 'fortran_order': False}", ids, 16}, "1-D array in C order"},
        {{1, I4("()"), ids, 4}, "1-D array in C order"},
        {{1, I4("(2, 2)"), ids, 16}, "1-D array in C order"},
        {{1, I4("(1, 2, 2)"), ids, 16}, "1-D array in C order"},
        {{1, I4("4"), ids, 16}, "1-D array in C order"},
        {{1, I4("(-4,)"), ids, 16}, "1-D array in C order"},
        {{1, I4("(67108865,)"), ids, 16}, "67108865 ids; at most 67108864"},
        {{1, I4("(99999999999999999999,)"), ids, 16}, "ids; at most 67108864"},
        {{1, I4("(4,)"), ids, 15}, "promises 16 bytes of data, 15 are there"},
        {{1, I4("(3,)"), ids, 16}, "promises 12 bytes of data, 16 are there"},
        {{1, I4("(4,)"), ids, 16}, "element 2 is not a token id"},
        {{1, DICT("'<i8'", "False", "(3,)"), wide, 24}, "element 1 is not a token id"},
        {{1, DICT("'<u8'", "False", "(2,)"), wide + 1, 16}, "element 0 is not a token id"},
        {{1, DICT("'<i8'", "False", "(1,)"), wide + 2, 8}, "element 0 is not a token id"},
        {{0, I4("(4,)"), ids, 16}, "damaged .npy header"},
        {{4, I4("(4,)"), ids, 16}, "damaged .npy header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        npy_refuses(*state, bad[i].a, bad[i].text);
    char *path = put_array(*state, &(array){1, I4("(4,)"), ids, 12});
    for (off_t size = 20; size >= 0; size--) { /* cut inside the header */
        assert_int_equal(truncate(path, size), 0);
        file_refused(path, size < 8 ? "not a NumPy" : "damaged .npy header");
    }
    assert_int_equal(truncate(path, 8L * (1 << 26) + 8193), 0);
    file_refused(path, "536879105 bytes; at most");
    assert_int_equal(unlink(path), 0);
    file_refused(path, "No such file");
    free(path);
    file_refused(*state, "not a regular file");
    kld_buf text = {0}; /* longer than the reader's own buffer */
    for (int i = 0; i < 500; i++) assert_int_equal(kld_buf_adds(&text, "          ", NULL), KLD_OK);
    npy_refuses(*state, (array){1, (char *)text.data, ids, 16}, "damaged .npy header");
    kld_buf_free(&text);
}

static void npy_header(void **state) {
    char *path = t_path(*state, "h.npy");
    static const size_t shapes[][2] = {{2, 3}, {0, 0}, {1, 152064}, {SIZE_MAX, SIZE_MAX}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        kld_writer w;
        kld_err e = {0};
        float values[6] = {1, 2, 3, 4, 5, 6};
        npy a;
        assert_int_equal(kld_writer_open(&w, path, &e), KLD_OK);
        need(kld_npy_header_f32(&w, shapes[i][0], shapes[i][1], &e), &e, "header");
        assert_int_equal(w.size, 128); /* the data begins aligned to 64 bytes */
        assert_int_equal(kld_writer_add(&w, values, sizeof values, &e), KLD_OK);
        assert_int_equal(kld_writer_commit(&w, &e), KLD_OK);
        assert_true(npy_load(&a, path, "<f4"));
        assert_int_equal(a.rank, 2);
        assert_true(a.dim[0] == shapes[i][0] && a.dim[1] == shapes[i][1]);
        assert_int_equal(a.offset, 128);
        assert_memory_equal(a.bytes.data, "\x93NUMPY\x01\x00\x76\x00{'descr'", 18);
        assert_int_equal(a.bytes.data[127], '\n');
        assert_memory_equal(npy_f32(&a), values, sizeof values);
        kld_buf_free(&a.bytes);
    }
    free(path);
}

/* ---- ids as text ---- */

static void id_lists(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        uint32_t want[4];
    } good[] = {{"1,2,3", 3, {1, 2, 3}},
                {"0", 1, {0}},
                {"4294967295", 1, {4294967295u}},
                {" 7 , 8 ", 2, {7, 8}},
                {"007,1", 2, {7, 1}}};
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "'' at position 0"},
        {" ", "at position 0"},
        {",", "at position 0"},
        {"1,", "'' at position 1"},
        {"1,,2", "',2' at position 1"},
        {"1,x,3", "'x,3' at position 1"},
        {"1 2", "position 0"},
        {"-1", "'-1' at position 0"},
        {"+1", "position 0"},
        {"1.0", "position 0"},
        {"0x10", "position 0"},
        {"5,4294967296", "'4294967296' at position 1"},
        {"99999999999999999999999999999999", "position 0"},
        {"18446744073709551617", "position 0"}, /* 2^64 + 1 */
        {"ids.npz", "give FILE.npy or numbers like 1,2,3"},
    };
    uint32_t *ids;
    size_t n;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        kld_err e = {0};
        need(kld_parse_ids(good[i].text, &ids, &n, &e), &e, good[i].text);
        assert_int_equal(n, good[i].n);
        assert_memory_equal(ids, good[i].want, n * sizeof *ids);
        kld_free(ids);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kld_err e = {0};
        assert_int_equal(kld_parse_ids(bad[i].text, &ids, &n, &e), KLD_E_USAGE);
        if (!strstr(e.text, bad[i].words)) fail_msg("'%s' lacks '%s'", e.text, bad[i].words);
        assert_null(ids);
        assert_int_equal(n, 0);
    }
}

/* ---- identity ---- */

static void expect_name(const char *model, const char *want) {
    char *name;
    kld_err e = {0};
    need(kld_identity_name(&name, model, &e), &e, model);
    assert_string_equal(name, want);
    kld_free(name);
}

static void names(void **state) {
    char *dir = t_path(*state, "model-x"), *old = getcwd(NULL, 0);
    char *slash = t_path(*state, "model-x///"), *dot = t_path(*state, "model-x/.");
    assert_non_null(old);
    assert_int_equal(mkdir(dir, 0777), 0);
    expect_name("org/name", "org/name"); /* as typed */
    expect_name("name", "name");
    expect_name(dir, "model-x");
    expect_name(slash, "model-x");
    expect_name(dot, "model-x");
    expect_name("/", "/");
    assert_int_equal(chdir(dir), 0);
    expect_name(".", "model-x");
    expect_name("./", "model-x");
    expect_name("../model-x", "model-x");
    expect_name("../model-x/../model-x/.", "model-x");
    assert_int_equal(mkdir("sub", 0777), 0);
    expect_name("sub/..", "model-x");
    expect_name("sub", "sub");
    assert_int_equal(mkdir("org", 0777), 0);
    assert_int_equal(mkdir("org/name", 0777), 0);
    expect_name("org/name", "name"); /* a path that exists is a path */
    assert_int_equal(symlink(dir, "alias"), 0);
    expect_name("alias/", "alias"); /* as typed, but for the dots */
    expect_name("alias/.", "model-x");
    assert_int_equal(chdir(old), 0);
    char *name;
    kld_err e = {0};
    assert_int_equal(kld_identity_name(&name, "nowhere/..", &e), KLD_OK); /* no such path: typed */
    assert_string_equal(name, "nowhere/..");
    kld_free(name);
    assert_int_equal(kld_identity_name(&name, "", &e), KLD_E_INPUT);
    free(old);
    free(dir);
    free(slash);
    free(dot);
}

static void place(void **state) {
    (void)state;
    static const struct {
        const char *epoch, *want;
    } good[] = {{"0", "1970-01-01T00:00:00Z"},
                {"1700000000", "2023-11-14T22:13:20Z"},
                {"951782399", "2000-02-28T23:59:59Z"},
                {"4102444800", "2100-01-01T00:00:00Z"}};
    static const char *const bad[] = {
        "x", "12x", "-1", "1.5", "99999999999999999999", "9223372036854775807", " "};
    char *time, *host, node[256] = "";
    kld_err e = {0};
    assert_int_equal(gethostname(node, sizeof node - 1), 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(setenv("SOURCE_DATE_EPOCH", good[i].epoch, 1), 0);
        need(kld_identity_place(&time, &host, &e), &e, good[i].epoch);
        assert_string_equal(time, good[i].want);
        assert_string_equal(host, node);
        kld_free(time);
        kld_free(host);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(setenv("SOURCE_DATE_EPOCH", bad[i], 1), 0);
        if (kld_identity_place(&time, &host, &e) != KLD_E_USAGE) fail_msg("'%s'", bad[i]);
    }
    for (int set = 0; set < 2; set++) { /* unset or empty: the clock */
        if (set) assert_int_equal(setenv("SOURCE_DATE_EPOCH", "", 1), 0);
        else assert_int_equal(unsetenv("SOURCE_DATE_EPOCH"), 0);
        need(kld_identity_place(&time, &host, &e), &e, "clock");
        assert_int_equal(strlen(time), 20);
        assert_true(strcmp(time, "2026") > 0 && time[10] == 'T' && time[19] == 'Z');
        kld_free(time);
        kld_free(host);
    }
}

/* Whatever decides the result changes the run's digest; time, host and names do not. */
static void run_digest(void **state) {
    (void)state;
    enum { CHANGES = 12 };
    kld_digest seen[CHANGES + 1];
    kld_err e = {0};
    for (int i = 0; i <= CHANGES; i++) {
        kld_capture_info c = {.vocab = 100, .top_k = 10, .min_k = 5, .tail_samples = 3};
        c.seed = 1, c.tail_mass = 1e-3;
        c.engine = json_pack("{s:s}", "arithmetic", i == 11 ? "b" : "a");
        if (i == 1) c.model.b[0] = 1;
        if (i == 2) c.tokenizer.b[0] = 1;
        if (i == 3) c.suite.b[31] = 1;
        if (i == 4) c.reference.b[0] = 1;
        if (i == 5) c.vocab++;
        if (i == 6) c.top_k++;
        if (i == 7) c.min_k++;
        if (i == 8) c.tail_samples++;
        if (i == 9) c.seed++;
        if (i == 10) c.tail_mass = 1.0000000000000002e-3;
        const kld_file shard = {.fd = -1, .mtime_ns = i == 12 ? 8 : 7};
        assert_int_equal(kld_identity_run(&c, &shard, 1, &seen[i], &e), KLD_OK);
        for (int k = 0; k < i; k++) assert_memory_not_equal(&seen[k], &seen[i], sizeof *seen);
        if (i == 0) {
            kld_digest again;
            char text[] = "later";
            c.time = c.host = c.name = c.label = text;
            assert_int_equal(kld_identity_run(&c, &shard, 1, &again, &e), KLD_OK);
            assert_memory_equal(&again, &seen[0], sizeof again);
        }
        json_decref(c.engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_types),  cmocka_unit_test(npy_refusals), cmocka_unit_test(npy_header),
        cmocka_unit_test(id_lists),   cmocka_unit_test(names),        cmocka_unit_test(place),
        cmocka_unit_test(run_digest),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
