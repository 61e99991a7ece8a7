/* The base floor: locks, links, sizes as people write them, the clock in seconds. */
#include "kld/base/file.h"
#include "kld/base/lock.h"
#include "kld/base/mem.h"
#include "kld/base/parse.h"
#include "kld/base/place.h"

#include "tests/unit/t.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a process of its own gets for the lock. */
static int other_process(const char *path, char *text, size_t n) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        kld_lock l;
        kld_err e = {0};
        kld_status st = kld_lock_take(&l, path, &e);
        (void)!write(ends[1], e.text, strlen(e.text));
        _exit(st == KLD_OK ? 0 : (int)st);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], text, n - 1);
    text[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void one_at_a_time(void **state) {
    char *path = t_path(*state, "lock"), text[1024], expected[64];
    kld_lock l = {.fd = -1};
    kld_err e = {0};
    kld_lock_drop(&l); /* nothing is held */
    assert_int_equal(kld_lock_take(&l, path, &e), KLD_OK);
    assert_int_equal(other_process(path, text, sizeof text), KLD_E_INPUT);
    snprintf(expected, sizeof expected, "lock: another run (process %ld) holds it", (long)getpid());
    assert_non_null(strstr(text, expected));
    /* A file that does not say who: the message does without. */
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(other_process(path, text, sizeof text), KLD_E_INPUT);
    assert_non_null(strstr(text, "lock: another run holds it"));
    kld_lock_drop(&l);
    assert_int_equal(other_process(path, text, sizeof text), 0);
    /* The end of that process let go of it; the file stays. */
    assert_int_equal(kld_lock_take(&l, path, &e), KLD_OK);
    kld_lock_drop(&l);
    assert_true(kld_path_exists(path));
    char *nowhere = t_path(*state, "no/lock");
    assert_int_equal(kld_lock_take(&l, nowhere, &e), KLD_E_INPUT);
    assert_int_equal(kld_lock_take(&l, *state, &e), KLD_E_INPUT);
    free(nowhere);
    free(path);
}

static void links(void **state) {
    char *path = t_path(*state, "latest"), *plain = t_path(*state, "plain"), to[64];
    kld_err e = {0};
    assert_int_equal(kld_link(path, "runs/a", &e), KLD_OK);
    assert_int_equal(kld_link(path, "runs/b", &e), KLD_OK);
    ssize_t n = readlink(path, to, sizeof to);
    assert_int_equal(n, 6);
    assert_memory_equal(to, "runs/b", 6);
    assert_int_equal(kld_file_write(plain, "x", 1, &e), KLD_OK);
    assert_int_equal(kld_link(plain, "runs/b", &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "plain: is not a link"));
    free(path);
    free(plain);
}

static void numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"512", 512},
                {"1K", 1024},
                {"512M", 536870912},
                {"1.5GiB", 1610612736},
                {"2TB", 2199023255552}};
    static const char *const bad[] = {"",    "-1",    "+1",  " 1",  "0x10", "1X",
                                      "1Kb", "1 GiB", "nan", "inf", "1e30", "9999999T"};
    uint64_t u;
    double d;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(kld_parse_size(good[i].text, &u));
        assert_int_equal(u, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kld_parse_size(bad[i], &u)) fail_msg("'%s' is taken for a size", bad[i]);
    assert_true(kld_parse_real("1e-3", &d) && d == 1e-3);
    assert_false(kld_parse_real("1e-3x", &d));
    assert_false(kld_parse_real("1e999", &d));
}

static void clock_of_seconds(void **state) {
    (void)state;
    int64_t t;
    kld_err e = {0};
    assert_int_equal(setenv("SOURCE_DATE_EPOCH", "1700000000", 1), 0);
    assert_int_equal(kld_utc_seconds(&t, &e), KLD_OK);
    assert_int_equal(t, 1700000000);
    assert_int_equal(setenv("SOURCE_DATE_EPOCH", "soon", 1), 0);
    assert_int_equal(kld_utc_seconds(&t, &e), KLD_E_USAGE);
    assert_int_equal(unsetenv("SOURCE_DATE_EPOCH"), 0);
    assert_int_equal(kld_utc_seconds(&t, &e), KLD_OK);
    assert_true(t > 1700000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_at_a_time), cmocka_unit_test(links),
                                       cmocka_unit_test(numbers),
                                       cmocka_unit_test(clock_of_seconds)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
