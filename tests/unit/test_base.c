/* The base floor: errors, arithmetic, cursor, buffers, arenas, files, hashing, JSON, Philox. */
#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/base/philox.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/base/thread.h"

#include "tests/unit/t.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void error_text(void **state) {
    (void)state;
    kld_err e = {0};
    assert_int_equal(kld_fail(&e, KLD_E_INPUT, "bad\n%s\x1b[31m", "name"), KLD_E_INPUT);
    assert_string_equal(e.text, "bad?name?[31m");
    assert_int_equal(kld_where(&e, e.status, "file %d", 3), KLD_E_INPUT);
    assert_string_equal(e.text, "file 3: bad?name?[31m");
    assert_int_equal(kld_where(&e, KLD_OK, "x"), KLD_OK);
    assert_int_equal(kld_fail(NULL, KLD_E_IO, "x"), KLD_E_IO);
    char big[4000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    (void)kld_fail(&e, KLD_E_INPUT, "%s", big);
    (void)kld_where(&e, KLD_E_INPUT, "%s", big);
    assert_true(strlen(e.text) < sizeof e.text);
    assert_int_equal(kld_exit_code(KLD_E_GATE), 1);
    assert_int_equal(kld_exit_code(KLD_E_INTERRUPTED), 130);
    char c1[] = "a\xC2\x9B"
                "31m \xC2\xA9 \xE6\xA8\xA1\x7f";
    assert_true(kld_has_controls(c1));
    kld_blank_controls(c1);
    assert_string_equal(c1, "a??31m \xC2\xA9 \xE6\xA8\xA1?");
    assert_false(kld_has_controls("\xC2\xA9 \xE6\xA8\xA1"));
}

static void arithmetic(void **state) {
    (void)state;
    uint64_t u;
    size_t s;
    assert_false(num_add_u64(UINT64_MAX, 1, &u));
    assert_true(num_add_u64(UINT64_MAX - 1, 1, &u) && u == UINT64_MAX);
    assert_false(num_mul_u64(UINT64_C(1) << 33, UINT64_C(1) << 31, &u));
    assert_true(num_mul_size(0, SIZE_MAX, &s) && s == 0);
    assert_int_equal(num_cdiv(10, 3), 4);
    assert_int_equal(num_cdiv(SIZE_MAX, 1) == SIZE_MAX, 1);
}

static void cursor_and_buffer(void **state) {
    (void)state;
    kld_err e = {0};
    kld_buf b = {0};
    static const unsigned char varint[] = {0xac, 0x02};
    assert_int_equal(kld_buf_varint(&b, 300, &e), KLD_OK);
    assert_memory_equal(b.data, varint, 2);
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_varint(&b, UINT64_MAX, &e), KLD_OK);
    assert_int_equal(b.len, 10);
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_u16(&b, 0xbeef, &e), KLD_OK);
    kld_cursor c = kld_cursor_of(b.data, b.len);
    assert_int_equal(kld_cursor_u16(&c), 0xbeef);
    assert_false(c.bad);
    assert_int_equal(kld_cursor_u8(&c), 0);
    assert_true(c.bad);
    kld_buf_free(&b);
    b.max = 10;
    assert_int_equal(kld_buf_adds(&b, "0123456789", &e), KLD_OK);
    assert_int_equal(kld_buf_adds(&b, "x", &e), KLD_E_NOMEM);
    assert_string_equal((char *)b.data, "0123456789");
    kld_buf_free(&b);
}

static void memory(void **state) {
    (void)state;
    kld_err e = {0};
    void *p = NULL;
    assert_int_equal(kld_calloc(&p, SIZE_MAX, 2, &e), KLD_E_NOMEM);
    assert_null(p);
    kld_mem_fail_after(2);
    assert_int_equal(kld_calloc(&p, 1, 1, &e), KLD_OK);
    void *q = NULL;
    assert_int_equal(kld_calloc(&q, 1, 1, &e), KLD_E_NOMEM);
    assert_int_equal(kld_realloc(&q, 1, 1, &e), KLD_E_NOMEM);
    kld_mem_fail_after(0);
    kld_free(p);
    kld_arena a = {0};
    for (size_t i = 0; i < 1000; i++) {
        unsigned char *x;
        assert_int_equal(ARENA_ARRAY(&a, &x, i, &e), KLD_OK);
        assert_non_null(x);
        assert_int_equal((uintptr_t)x % 16, 0);
        for (size_t j = 0; j < i; j++) assert_int_equal(x[j], 0);
        memset(x, 0xff, i);
    }
    kld_arena_free(&a);
}

static void files(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "f");
    char *part = t_path(*state, "f.partial");
    assert_int_equal(kld_file_write(path, "hello", 5, &e), KLD_OK);
    assert_false(kld_path_exists(part));
    kld_writer w;
    assert_int_equal(kld_writer_open(&w, path, &e), KLD_OK);
    assert_int_equal(kld_writer_add(&w, "other text", 10, &e), KLD_OK);
    kld_writer_leave(&w);
    kld_buf b = {0};
    assert_int_equal(kld_file_slurp(path, 100, &b, &e), KLD_OK);
    assert_string_equal((char *)b.data, "hello"); /* untouched until commit */
    assert_int_equal(kld_writer_resume(&w, path, 11, &e), KLD_E_INPUT);
    assert_int_equal(kld_writer_resume(&w, path, 5, &e), KLD_OK);
    assert_int_equal(kld_writer_add(&w, "!", 1, &e), KLD_OK);
    assert_int_equal(kld_writer_commit(&w, &e), KLD_OK);
    kld_buf_clear(&b);
    assert_int_equal(kld_file_slurp(path, 100, &b, &e), KLD_OK);
    assert_string_equal((char *)b.data, "other!");
    kld_buf_clear(&b);
    assert_int_equal(kld_file_slurp(path, 3, &b, &e), KLD_E_INPUT);
    kld_file f;
    assert_int_equal(kld_file_open(&f, path, &e), KLD_OK);
    char dst[16];
    assert_int_equal(kld_file_read(&f, dst, 2, 10, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "ends at byte 6"));
    kld_file_close(&f);
    assert_int_equal(kld_file_open(&f, *state, &e), KLD_E_INPUT);
    assert_int_equal(kld_file_open(&f, "/nonexistent/x", &e), KLD_E_INPUT);
    assert_int_equal(kld_writer_open(&w, *state, &e), KLD_E_INPUT);
    kld_buf_free(&b);
    free(path);
    free(part);
}

/* Two writers of one partial would mix their bytes. */
static void one_writer(void **state) {
    kld_err e = {0};
    kld_writer a, b;
    char *path = t_path(*state, "w"), *part = t_path(*state, "w.partial");
    assert_int_equal(kld_writer_open(&a, path, &e), KLD_OK);
    assert_int_equal(kld_writer_add(&a, "first", 5, &e), KLD_OK);
    assert_int_equal(kld_writer_open(&b, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "another run"));
    assert_int_equal(kld_writer_resume(&b, path, 2, &e), KLD_E_INPUT);
    assert_int_equal(kld_writer_commit(&a, &e), KLD_OK);
    kld_buf got = {0};
    assert_int_equal(kld_file_slurp(path, 64, &got, &e), KLD_OK);
    assert_string_equal((char *)got.data, "first");
    kld_buf_free(&got);
    assert_int_equal(kld_writer_open(&b, path, &e), KLD_OK); /* free again */
    kld_writer_abort(&b);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_equal(remove(path), 0);
    free(path);
    free(part);
}

/* A rename would put a file in the place of a device or pipe. */
static void not_regular(void **state) {
    kld_err e = {0};
    kld_writer w;
    char *path = t_path(*state, "pipe"), got[8] = {0};
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(kld_file_write(path, "hello", 5, &e), KLD_OK);
    assert_int_equal(read(fd, got, sizeof got), 5);
    assert_string_equal(got, "hello");
    assert_int_equal(kld_writer_open(&w, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not a regular file"));
    close(fd);
    struct stat sb;
    assert_true(stat(path, &sb) == 0 && S_ISFIFO(sb.st_mode));
    assert_int_equal(remove(path), 0);
    free(path);
    assert_int_equal(kld_writer_open(&w, "/dev/stdout", &e), KLD_E_INPUT);
}

static void disk_full(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "big");
    char *part = t_path(*state, "big.partial");
    struct rlimit old, cut = {4096, 4096};
    getrlimit(RLIMIT_FSIZE, &old);
    cut.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &cut);
    char block[8192] = {0};
    kld_status st = kld_file_write(path, block, sizeof block, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, KLD_E_IO);
    assert_non_null(strstr(e.text, "cannot write"));
    assert_false(kld_path_exists(path));
    assert_false(kld_path_exists(part));
    free(path);
    free(part);
}

static void sha256(void **state) {
    (void)state;
    kld_err e = {0};
    kld_digest d, d2;
    char hex[KLD_SHA256_HEX];
    /* FIPS 180-4 example. */
    assert_int_equal(kld_sha256_of("abc", 3, &d, &e), KLD_OK);
    assert_string_equal(kld_digest_hex(&d, hex),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(kld_digest_parse(hex, &d2, &e), KLD_OK);
    assert_memory_equal(&d, &d2, sizeof d);
    hex[3] = 'X';
    assert_int_equal(kld_digest_parse(hex, &d2, &e), KLD_E_INPUT);
    assert_int_equal(kld_digest_parse("ab", &d2, &e), KLD_E_INPUT);
}

/* Within the kernel, and by reading and writing where it does not copy (into a file that is only
 * appended to). */
static void copies(void **state) {
    enum { BYTES = 9 << 20, PART = BYTES - 12345 };
    kld_err e = {0};
    char *from = t_path(*state, "from"), *to = t_path(*state, "to");
    unsigned char *data = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = (unsigned char)(i * i >> 7);
    assert_int_equal(kld_file_write(from, data, BYTES, &e), KLD_OK);
    assert_int_equal(chmod(from, 0604), 0);
    kld_file f;
    assert_int_equal(kld_file_open(&f, from, &e), KLD_OK);
    for (int append = 0; append < 2; append++) {
        kld_writer w;
        kld_buf got = {0};
        struct stat sb;
        assert_int_equal(kld_writer_open(&w, to, &e), KLD_OK);
        if (append) assert_int_equal(fcntl(w.fd, F_SETFL, O_APPEND), 0);
        assert_int_equal(kld_writer_copy(&w, &f, PART, &e), KLD_OK);
        assert_int_equal(kld_writer_add(&w, "end", 3, &e), KLD_OK);
        assert_int_equal(w.size, PART + 3);
        assert_int_equal(kld_writer_commit(&w, &e), KLD_OK);
        assert_int_equal(kld_file_slurp(to, 1 << 24, &got, &e), KLD_OK);
        assert_int_equal(got.len, PART + 3);
        assert_memory_equal(got.data, data, PART);
        assert_memory_equal(got.data + PART, "end", 3);
        assert_int_equal(stat(to, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0604);
        kld_buf_free(&got);
        assert_int_equal(kld_writer_open(&w, to, &e), KLD_OK);
        assert_int_equal(kld_writer_copy(&w, &f, BYTES + 1, &e), KLD_E_INPUT);
        kld_writer_abort(&w);
    }
    kld_file_close(&f);
    free(data);
    free(from);
    free(to);
}

static void private_files(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "secret"), *link = t_path(*state, "link");
    kld_buf got = {0};
    struct stat sb;
    assert_int_equal(kld_file_write_private(path, "one", 3, false, &e), KLD_OK);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_false(kld_file_exposed(path));
    assert_int_equal(kld_file_write_private(path, "two", 3, false, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "secret: exists already"));
    assert_int_equal(chmod(path, 0666), 0);
    assert_true(kld_file_exposed(path));
    assert_int_equal(kld_file_write_private(path, "three", 5, true, &e), KLD_OK);
    assert_false(kld_file_exposed(path));
    assert_int_equal(kld_file_slurp(path, 10, &got, &e), KLD_OK);
    assert_string_equal((char *)got.data, "three");
    /* A link that leads nowhere yet is not followed. */
    assert_int_equal(symlink("elsewhere", link), 0);
    assert_int_equal(kld_file_write_private(link, "x", 1, false, &e), KLD_E_INPUT);
    kld_buf_free(&got);
    free(path);
    free(link);
}

static void json_strict(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",           "{",    "[1,2",          "{\"a\":1,\"a\":2}",
        "{\"a\":1}x", "\xff", "{\"a\":1e999}", "[99999999999999999999]",
        "{'a':1}",    "[1,]", "[[[[[1]]]]]",   "3",
    };
    kld_err e;
    json_t *j;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&e, 0, sizeof e);
        assert_int_equal(kld_json_parse(&j, bad[i], strlen(bad[i]), 4, &e), KLD_E_INPUT);
        assert_null(j);
        assert_true(strlen(e.text) > 0);
    }
    static const char good[] = "{\"s\":\"[[[[[[\\\"\",\"n\":3,\"f\":0.5,\"b\":true,\"neg\":-1}";
    assert_int_equal(kld_json_parse(&j, good, strlen(good), 4, &e), KLD_OK);
    uint64_t n;
    bool b;
    const char *s;
    assert_int_equal(kld_json_u64(j, "n", &n, &e), KLD_OK);
    assert_int_equal(n, 3);
    assert_int_equal(kld_json_u64(j, "neg", &n, &e), KLD_E_INPUT);
    assert_int_equal(kld_json_u64(j, "s", &n, &e), KLD_E_INPUT);
    assert_string_equal(e.text, "'s': expected an integer, found a string");
    assert_int_equal(kld_json_bool(j, "b", &b, &e), KLD_OK);
    assert_int_equal(kld_json_str(j, "none", &s, &e), KLD_E_INPUT);
    assert_string_equal(e.text, "'none': expected a string, found nothing");
    json_decref(j);
    for (size_t i = 1; i < 1000; i++) { /* every allocation of a parse fails once */
        kld_mem_fail_after(i);
        kld_status st = kld_json_parse(&j, good, strlen(good), 4, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) {
            json_decref(j);
            return;
        }
        assert_int_equal(st, KLD_E_NOMEM);
    }
    fail_msg("the parse never succeeded");
}

static void philox(void **state) {
    (void)state;
    /* Known answers of Philox4x32-10 (Random123's kat_vectors): zero and all-ones. */
    kld_philox_block z = kld_philox(0, 0, 0);
    assert_int_equal(z.v[0], 0x6627e8d5u);
    assert_int_equal(z.v[1], 0xe169c58du);
    assert_int_equal(z.v[2], 0xbc57ac4cu);
    assert_int_equal(z.v[3], 0x9b00dbd8u);
    kld_philox_block o = kld_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    assert_int_equal(o.v[0], 0x408f276du);
    assert_int_equal(o.v[1], 0x41c83b0eu);
    assert_int_equal(o.v[2], 0xa20bc7c6u);
    assert_int_equal(o.v[3], 0x6d5451fdu);
    assert_true(kld_philox_unit(0, 0) > 0);
    assert_true(kld_philox_unit(UINT32_MAX, UINT32_MAX) < 1);
}

static kld_status failing_task(void *arg, kld_err *err) {
    *(int *)arg = 7;
    return kld_fail(err, KLD_E_IO, "from the task");
}

static void tasks(void **state) {
    (void)state;
    kld_err e = {0};
    kld_task *t = NULL;
    int seen = 0;
    assert_int_equal(kld_task_wait(&t, &e), KLD_OK);
    assert_int_equal(kld_task_start(&t, failing_task, &seen, &e), KLD_OK);
    assert_int_equal(kld_task_wait(&t, &e), KLD_E_IO);
    assert_int_equal(seen, 7);
    assert_string_equal(e.text, "from the task");
    assert_null(t);
}

/* Pages that the system had to hand out while blocks of 24 MiB were filled and released. */
static long pages_of_a_round(void) {
    enum { BLOCKS = 4 };
    static const size_t BYTES = (size_t)24 << 20;
    struct rusage before, after;
    kld_err e;
    void *block[BLOCKS];
    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(kld_calloc(&block[i], BYTES, 1, &e), KLD_OK);
        memset(block[i], 1, BYTES);
    }
    for (size_t i = 0; i < BLOCKS; i++) kld_free(block[i]);
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* Released blocks stay with the program. */
static void kept_blocks(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a sanitizer has its own heap */
#endif
    kld_mem_keep();
    long first = pages_of_a_round();
    assert_true(first > 0);
    (void)pages_of_a_round(); /* aligned blocks do not fit their own gaps at once */
    assert_true(pages_of_a_round() < first / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_text),
        cmocka_unit_test(arithmetic),
        cmocka_unit_test(cursor_and_buffer),
        cmocka_unit_test(memory),
        cmocka_unit_test(kept_blocks),
        cmocka_unit_test_setup_teardown(files, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(one_writer, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(not_regular, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(disk_full, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(sha256, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(copies, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(private_files, t_dir_make, t_dir_remove),
        cmocka_unit_test(json_strict),
        cmocka_unit_test(philox),
        cmocka_unit_test(tasks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
