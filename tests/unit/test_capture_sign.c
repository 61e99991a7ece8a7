/* Signed captures: what a signature changes and what it does not, damage, and attempts that fail.
 */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/store/capture.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/keykit.h"
#include "tests/unit/t.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 96, SEAL = 32, END = 12 };

static kld_status sign(const char *path, const kld_key *key, bool replace, kld_err *e) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, e));
    kld_status st = kld_capture_sign(c, key, replace, e);
    kld_capture_close(c);
    return st;
}

static void slurp(const char *path, kld_buf *b) {
    kld_err e = {0};
    kld_buf_clear(b);
    if (kld_file_slurp(path, 1 << 24, b, &e) != KLD_OK) fail_msg("%s", e.text);
}

/* Over what is there, not anew: some file systems sync a file that was emptied and written. */
static void put(const char *path, const kld_buf *b, size_t n) {
    FILE *f = fopen(path, kld_path_exists(path) ? "r+b" : "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->data, 1, n, f), n);
    fflush(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)n), 0);
    fclose(f);
}

static void must_be(const char *path, const kld_buf *want) {
    kld_buf got = {0};
    slurp(path, &got);
    assert_int_equal(got.len, want->len);
    assert_memory_equal(got.data, want->data, want->len);
    kld_buf_free(&got);
}

static kld_digest digest_of(const char *path) {
    kld_err e = {0};
    kld_capture *c;
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    kld_digest d = kld_capture_digest(c);
    kld_capture_close(c);
    return d;
}

static void signing(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *cand = t_path(*state, "d.zst");
    char *part = t_path(*state, "c.zst.partial");
    kld_buf before = {0}, after = {0};
    kld_signature s;
    kld_capture *c;
    write_capture(path, 3, 4, 40, 12, 1.5, NULL);
    kld_digest d = digest_of(path);
    kld_key *a = key_of(*state, 0), *b = key_of(*state, 1);
    kld_public_key who = kld_key_public(a), other = kld_key_public(b);
    slurp(path, &before);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_false(kld_capture_signature(c, &s));
    assert_int_equal(kld_capture_check_signature(c, &e), KLD_OK);
    assert_int_equal(kld_capture_sign(c, a, false, &e), KLD_OK);
    assert_false(kld_capture_signature(c, &s)); /* the file as it was */
    kld_capture_close(c);

    /* 96 bytes more, all of them in the footer; the same content, frames and permissions. */
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0640);
    slurp(path, &after);
    assert_int_equal(after.len, before.len + BLOCK);
    kld_digest now = digest_of(path);
    assert_memory_equal(&now, &d, sizeof d);
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_true(kld_capture_signature(c, &s));
    assert_memory_equal(&s.key, &who, sizeof who);
    assert_memory_equal(after.data + after.len - END - SEAL - BLOCK, &s, BLOCK);
    assert_int_equal(kld_signature_check_digest(&s, "kld capture signature 1", &d, &e), KLD_OK);
    assert_int_equal(kld_capture_check_signature(c, &e), KLD_OK);
    kld_capture_close(c);
    assert_int_equal(read_all(path, NULL, &e), KLD_OK);
    assert_false(kld_path_exists(part));

    /* A candidate of a signed reference names the same content. */
    write_capture(cand, 3, 4, 40, 12, 1.5, path);
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_int_equal(sign(cand, a, false, &e), KLD_OK);
    assert_int_equal(read_all(cand, c, &e), KLD_OK);
    kld_capture_close(c);

    /* Again with the same key: the same file; with another: only when asked. */
    assert_int_equal(sign(path, a, false, &e), KLD_OK);
    must_be(path, &after);
    assert_int_equal(sign(path, b, false, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "has a signature of key 21fe31dfa154a261"));
    must_be(path, &after);
    assert_int_equal(sign(path, b, true, &e), KLD_OK);
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_true(kld_capture_signature(c, &s));
    assert_memory_equal(&s.key, &other, sizeof other);
    kld_capture_close(c);
    assert_int_equal(sign(path, a, true, &e), KLD_OK);
    must_be(path, &after);

    /* A partial of that name may be somebody's run. */
    assert_int_equal(kld_file_write(part, "a run", 5, &e), KLD_OK);
    assert_int_equal(sign(path, b, true, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "c.zst.partial: exists"));
    assert_true(kld_path_exists(part));
    must_be(path, &after);
    kld_key_free(a);
    kld_key_free(b);
    kld_buf_free(&before);
    kld_buf_free(&after);
    free(path);
    free(cand);
    free(part);
}

/* Every bit of a signed file is under a digest, and the footer under its seal. */
static void flipped_bits(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *bad = t_path(*state, "bad.zst");
    kld_buf b = {0};
    write_capture(path, 2, 3, 40, 12, 1.5, NULL);
    kld_key *key = key_of(*state, 0);
    assert_int_equal(sign(path, key, false, &e), KLD_OK);
    slurp(path, &b);
    size_t all = b.len - 400; /* all bits from here on, one of each byte before */
    for (size_t bit = 0; bit < 8 * b.len; bit += bit / 8 < all ? 8 + bit % 7 : 1) {
        b.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put(bad, &b, b.len);
        b.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        kld_status st = read_all(bad, NULL, &e);
        if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED) fail_msg("bit %zu: %d", bit, (int)st);
        assert_non_null(strstr(e.text, "bad.zst"));
        assert_int_not_equal(sign(bad, key, true, &e), KLD_OK); /* what is damaged is not signed */
    }
    for (size_t n = b.len - 300; n < b.len; n++) {
        put(bad, &b, n);
        assert_int_equal(read_all(bad, NULL, &e), KLD_E_INPUT);
    }
    kld_key_free(key);
    kld_buf_free(&b);
    free(path);
    free(bad);
}

static void reseal(kld_buf *b) {
    kld_err e = {0};
    kld_digest d;
    unsigned char *seal = b->data + b->len - END - SEAL, *tail = seal + SEAL;
    size_t payload = tail[0] | (size_t)tail[1] << 8;
    unsigned char *from = b->data + b->len - payload;
    assert_memory_equal(from, "KLDINDEX", 8);
    assert_int_equal(kld_sha256_of(from, (size_t)(seal - from), &d, &e), KLD_OK);
    memcpy(seal, d.b, sizeof d.b);
}

/* Footers that are whole and lie about the signature. */
static void forged(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *bad = t_path(*state, "bad.zst");
    kld_buf b = {0};
    kld_capture *c;
    kld_signature s;
    write_capture(path, 2, 3, 40, 12, 1.5, NULL);
    kld_key *key = key_of(*state, 0);
    assert_int_equal(sign(path, key, false, &e), KLD_OK);
    slurp(path, &b);
    unsigned char *block = b.data + b.len - END - SEAL - BLOCK, *count = block - 4;
    for (size_t i = 0; i < BLOCK; i++) {
        block[i] ^= 4;
        reseal(&b);
        put(bad, &b, b.len);
        assert_int_equal(kld_capture_open(&c, bad, &e), KLD_OK); /* its form is right */
        assert_true(kld_capture_signature(c, &s));
        assert_int_equal(kld_capture_check_signature(c, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "bad.zst: the signature is not one of key"));
        assert_int_equal(kld_capture_verify(c, &e), KLD_E_INPUT);
        kld_capture_close(c);
        block[i] ^= 4;
    }
    /* A signature of another capture, or of this digest in another domain. */
    kld_digest d = digest_of(path), other = d;
    other.b[0] ^= 1;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(k ? kld_sign_digest(key, "kld receipt signature 1", &d, &s, &e)
                           : kld_sign_digest(key, "kld capture signature 1", &other, &s, &e),
                         KLD_OK);
        memcpy(block, &s, BLOCK);
        reseal(&b);
        put(bad, &b, b.len);
        assert_int_equal(read_all(bad, NULL, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "signature"));
    }
    /* Other lengths than 0 and 96, whatever stands there. */
    for (uint32_t n = 0; n < 300; n++) {
        if (n == BLOCK) continue;
        count[0] = (unsigned char)n;
        count[1] = (unsigned char)(n >> 8);
        reseal(&b);
        put(bad, &b, b.len);
        assert_int_equal(kld_capture_open(&c, bad, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, n ? "signature" : "footer"));
    }
    kld_key_free(key);
    kld_buf_free(&b);
    free(path);
    free(bad);
}

/* A partial that was cut anywhere in or before a signed footer goes on to the unsigned file. */
static void resumed(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *part = t_path(*state, "c.zst.partial");
    kld_buf plain = {0}, b = {0};
    write_capture(path, 3, 4, 40, 12, 1.5, NULL);
    slurp(path, &plain);
    kld_key *key = key_of(*state, 0);
    assert_int_equal(sign(path, key, false, &e), KLD_OK);
    slurp(path, &b);
    kld_capture_info info = make_info(3, 4, 40, 12, 16);
    for (size_t n = b.len; n > b.len - 700; n -= 53) {
        kld_capture_writer *w;
        size_t done;
        put(part, &b, n);
        if (kld_capture_resume(&w, path, &info, &done, &e) != KLD_OK) fail_msg("%s", e.text);
        assert_int_equal(write_from(w, done, 3, 4, 40, 12, 1.5, NULL, &e), KLD_OK);
        assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
        must_be(path, &plain);
    }
    kld_capture_info_free(&info);
    kld_key_free(key);
    kld_buf_free(&plain);
    kld_buf_free(&b);
    free(path);
    free(part);
}

/* Attempts that fail leave the file as it was, and nothing beside it. */
static void failing(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *part = t_path(*state, "c.zst.partial");
    kld_buf before = {0};
    write_capture(path, 3, 4, 40, 12, 1.5, NULL);
    slurp(path, &before);
    kld_key *key = key_of(*state, 0);
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_mem_fail_after(n);
        st = sign(path, key, false, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) break;
        if (st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        must_be(path, &before);
        assert_false(kld_path_exists(part));
    }
    assert_true(n > 20);

    struct rlimit old, cut;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    kld_buf_clear(&before);
    slurp(path, &before);
    kld_key *other = key_of(*state, 1);
    const size_t limit[] = {1000, before.len - 100};
    for (size_t i = 0; i < 2; i++) {
        cut = old;
        cut.rlim_cur = limit[i];
        setrlimit(RLIMIT_FSIZE, &cut);
        kld_status st = sign(path, other, true, &e);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(st, KLD_E_IO);
        assert_non_null(strstr(e.text, "c.zst.partial: cannot write"));
        must_be(path, &before);
        assert_false(kld_path_exists(part));
    }
    kld_key_free(key);
    kld_key_free(other);
    kld_buf_free(&before);
    free(path);
    free(part);
}

/* An interrupt while the file is checked, or, without windows, while it is copied. */
static void interrupted(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "c.zst"), *part = t_path(*state, "c.zst.partial");
    kld_buf before = {0};
    for (size_t windows = 0; windows < 3; windows += 2) {
        write_capture(path, windows, 4, 40, 12, 1.5, NULL);
        slurp(path, &before);
        kld_key *key = key_of(*state, 0);
        pid_t pid = fork(); /* the request to stop stays for the rest of a process */
        assert_true(pid >= 0);
        if (pid == 0) {
            kld_stop_install();
            (void)raise(SIGTERM);
            _exit(sign(path, key, false, &e) == KLD_E_INTERRUPTED ? 0 : 1);
        }
        int how;
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 0);
        must_be(path, &before);
        assert_false(kld_path_exists(part));
        kld_key_free(key);
    }
    kld_buf_free(&before);
    free(path);
    free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(signing, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(flipped_bits, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(forged, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(resumed, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(failing, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(interrupted, t_dir_make, t_dir_remove),
    };
    return cmocka_run_group_tests_name("capture_sign", tests, NULL, NULL);
}
