/* Resume: torn partials, killed writers, a full disk. */
#include "kld/base/file.h"
#include "kld/store/capture.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/t.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* T30: whatever was on disk when the run died, resume ends in the same bytes. */
static void resume(void **state) {
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *path = t_path(*state, "p.zst");
    char *part = t_path(*state, "p.zst.partial");
    write_capture(good, 3, 4, 40, 12, 1.5, NULL);
    kld_buf b = {0}, got = {0};
    assert_int_equal(kld_file_slurp(good, 1 << 20, &b, &e), KLD_OK);
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    size_t before = 0; /* more bytes never hold fewer windows */
    for (size_t n = 0; n <= b.len; n++) {
        FILE *f = fopen(part, "wb");
        fwrite(b.data, 1, n, f);
        fclose(f);
        kld_capture_writer *w;
        size_t done;
        if (kld_capture_resume(&w, path, &info, &done, &e) != KLD_OK)
            fail_msg("cut to %zu bytes: %s", n, e.text);
        assert_true(done >= before && done <= 3);
        bool more = done > before;
        before = done;
        if (!more && n % 41 != 0 && n != b.len) {
            /* Only cut: the same state as one that is run to its end below. */
            kld_capture_leave(w);
            kld_buf_clear(&got);
            assert_int_equal(kld_file_slurp(part, 1 << 20, &got, &e), KLD_OK);
            assert_memory_equal(got.data, b.data, got.len);
            continue;
        }
        assert_int_equal(write_from(w, done, 3, 4, 40, 12, 1.5, NULL, &e), KLD_OK);
        if (kld_capture_finish(w, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_buf_clear(&got);
        assert_int_equal(kld_file_slurp(path, 1 << 20, &got, &e), KLD_OK);
        assert_int_equal(got.len, b.len);
        assert_memory_equal(got.data, b.data, b.len);
    }
    assert_int_equal(before, 3);
    /* Another time and host is the same run; another model is not, and is named. */
    FILE *f = fopen(part, "wb");
    fwrite(b.data, 1, b.len / 2, f);
    fclose(f);
    kld_capture_writer *w;
    size_t done;
    info.model.b[0] ^= 1;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'model'"));
    info.model.b[0] ^= 1;
    info.time[0] = '3';
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_OK);
    kld_capture_abort(w);
    assert_false(kld_path_exists(part));
    kld_buf_free(&b);
    kld_buf_free(&got);
    kld_capture_info_free(&info);
    free(good);
    free(path);
    free(part);
}

static void full_disk(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "p.zst"), *good = t_path(*state, "good.zst");
    write_capture(good, 3, 4, 40, 12, 1.5, NULL);
    struct rlimit old, cut;
    getrlimit(RLIMIT_FSIZE, &old);
    cut = old;
    cut.rlim_cur = 2000;
    signal(SIGXFSZ, SIG_IGN);
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    kld_capture_writer *w;
    setrlimit(RLIMIT_FSIZE, &cut);
    assert_int_equal(kld_capture_create(&w, path, &info, &e), KLD_OK);
    kld_status st = write_from(w, 0, 3, 4, 40, 12, 1.5, NULL, &e);
    if (st == KLD_OK) st = kld_capture_finish(w, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, KLD_E_IO);
    assert_non_null(strstr(e.text, "p.zst.partial: cannot write"));
    /* The file may end in half a frame: this writer must not go on. */
    assert_int_equal(kld_capture_finish(w, &e) == KLD_OK, 0);
    kld_capture_leave(w);
    size_t done;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_OK);
    assert_int_equal(write_from(w, done, 3, 4, 40, 12, 1.5, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    assert_int_equal(read_all(path, NULL, &e), KLD_OK);
    kld_capture_info_free(&info);
    free(path);
    free(good);
}

/* T30: writers killed at some moment, mostly in the middle of a window. */
static void killed(void **state) {
    enum { WINDOWS = 40, ROWS = 40 };
    kld_err e = {0};
    char *good = t_path(*state, "good.zst"), *path = t_path(*state, "p.zst");
    write_capture(good, WINDOWS, ROWS, 40, 12, 1.5, NULL);
    kld_capture_info info = make_info(WINDOWS, ROWS, 40, 12, 16);
    kld_buf b = {0}, got = {0};
    assert_int_equal(kld_file_slurp(good, 1 << 24, &b, &e), KLD_OK);
    size_t kills = 0;
    for (size_t round = 0; round < 6; round++) {
        bool first = true;
        while (!kld_path_exists(path)) {
            pid_t pid = fork();
            assert_true(pid >= 0);
            if (pid == 0) {
                kld_capture_writer *w;
                size_t done = 0;
                kld_status st = first ? kld_capture_create(&w, path, &info, &e)
                                      : kld_capture_resume(&w, path, &info, &done, &e);
                if (st == KLD_OK) st = write_from(w, done, WINDOWS, ROWS, 40, 12, 1.5, NULL, &e);
                if (st == KLD_OK) st = kld_capture_finish(w, &e);
                _exit(st == KLD_OK ? 0 : 1);
            }
            double wait = 0.002 + 0.02 * unit(99, 100 * round + kills);
            struct timespec ts = {0, (long)(wait * 1e9)};
            nanosleep(&ts, NULL);
            kill(pid, SIGKILL);
            int how;
            assert_int_equal(waitpid(pid, &how, 0), pid);
            if (WIFSIGNALED(how)) kills++;
            else assert_int_equal(WEXITSTATUS(how), 0);
            char *part = t_path(*state, "p.zst.partial");
            first = !kld_path_exists(part);
            free(part);
            assert_true(kills < 2000);
        }
        kld_buf_clear(&got);
        assert_int_equal(kld_file_slurp(path, 1 << 24, &got, &e), KLD_OK);
        assert_int_equal(got.len, b.len);
        assert_memory_equal(got.data, b.data, b.len);
        assert_int_equal(kld_remove(path, &e), KLD_OK);
    }
    printf("%zu writers were killed\n", kills);
    kld_buf_free(&b);
    kld_buf_free(&got);
    kld_capture_info_free(&info);
    free(good);
    free(path);
}

/* What is not a partial of this run is not touched. */
static void not_resumed(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "p.zst"), *part = t_path(*state, "p.zst.partial");
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    kld_capture_writer *w;
    size_t done;
    assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "p.zst.partial"));
    static const char *const other[] = {"some other text", "PK", "P*M\x18 but not a header at all"};
    for (size_t i = 0; i < 3; i++) {
        kld_buf got = {0};
        assert_int_equal(kld_file_write(part, other[i], strlen(other[i]), &e), KLD_OK);
        assert_int_equal(kld_capture_resume(&w, path, &info, &done, &e), KLD_E_INPUT);
        assert_int_equal(kld_file_slurp(part, 100, &got, &e), KLD_OK);
        assert_string_equal((char *)got.data, other[i]);
        kld_buf_free(&got);
    }
    kld_capture_info_free(&info);
    free(path);
    free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(resume, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(killed, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(not_resumed, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(full_disk, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
