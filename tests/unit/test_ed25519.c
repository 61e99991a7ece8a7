/* Keys and signatures: the published vectors, files, and what is refused. */
#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"

#include "tests/unit/keykit.h"
#include "tests/unit/t.h"

#include <sys/stat.h>

static void published_vectors(void **state) {
    for (size_t k = 0; k < RFC8032_TESTS; k++) {
        kld_err e = {0};
        unsigned char key[64], message[64], want[64];
        assert_int_equal(from_hex(RFC8032[k].key, key), 32);
        size_t n = from_hex(RFC8032[k].message, message);
        assert_int_equal(from_hex(RFC8032[k].signature, want), 64);
        kld_key *private = key_of(*state, k);
        kld_public_key public = kld_key_public(private);
        assert_memory_equal(public.b, key, 32);
        kld_signature s;
        assert_int_equal(kld_sign(private, message, n, &s, &e), KLD_OK);
        assert_memory_equal(s.b, want, 64);
        assert_memory_equal(s.key.b, key, 32);
        assert_int_equal(kld_signature_check(&s, message, n, &e), KLD_OK);
        kld_key_free(private);
    }
}

/* Every bit of signature, key and message counts. */
static void flipped_bits(void **state) {
    kld_err e = {0};
    kld_key *key = key_of(*state, 2);
    unsigned char message[40] = "what is signed";
    kld_signature s, bad;
    assert_int_equal(kld_sign(key, message, sizeof message, &s, &e), KLD_OK);
    for (size_t bit = 0; bit < 8 * sizeof s; bit++) {
        bad = s;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(kld_signature_check(&bad, message, sizeof message, &e), KLD_E_INPUT);
    }
    for (size_t bit = 0; bit < 8 * sizeof message; bit++) {
        message[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(kld_signature_check(&s, message, sizeof message, &e), KLD_E_INPUT);
        message[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(kld_signature_check(&s, message, sizeof message - 1, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not one of key "));
    kld_key_free(key);
}

static void digests_and_domains(void **state) {
    kld_err e = {0};
    kld_key *key = key_of(*state, 0);
    kld_digest d = {{7, 8, 9}}, other = d;
    kld_signature s, whole;
    other.b[31] ^= 1;
    assert_int_equal(kld_sign_digest(key, "one", &d, &s, &e), KLD_OK);
    assert_int_equal(kld_signature_check_digest(&s, "one", &d, &e), KLD_OK);
    assert_int_equal(kld_signature_check_digest(&s, "two", &d, &e), KLD_E_INPUT);
    assert_int_equal(kld_signature_check_digest(&s, "on", &d, &e), KLD_E_INPUT);
    assert_int_equal(kld_signature_check_digest(&s, "one", &other, &e), KLD_E_INPUT);
    /* The message is the domain, a zero byte, the digest. */
    unsigned char message[4 + sizeof d.b] = "one";
    memcpy(message + 4, d.b, sizeof d.b);
    assert_int_equal(kld_sign(key, message, sizeof message, &whole, &e), KLD_OK);
    assert_memory_equal(&whole, &s, sizeof s);
    /* sha256sum of the 32 bytes. */
    char id[KLD_KEY_ID];
    kld_public_key k = kld_key_public(key);
    assert_string_equal(kld_key_id(&k, id), "21fe31dfa154a261");
    kld_key_free(key);
}

static unsigned mode_of(const char *path) {
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_mode & 0777;
}

static void files(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "a.key"), *pub = t_path(*state, "a.pub");
    kld_key *a, *b, *read;
    kld_public_key k, from_file;
    kld_buf text = {0}, again = {0};
    assert_int_equal(kld_key_generate(&a, &e), KLD_OK);
    assert_int_equal(kld_key_generate(&b, &e), KLD_OK);
    assert_int_equal(kld_key_save(a, path, pub, false, &e), KLD_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_false(kld_file_exposed(path));
    k = kld_key_public(a);
    assert_int_equal(kld_key_load(&read, path, &e), KLD_OK);
    assert_int_equal(kld_public_key_load(&from_file, pub, &e), KLD_OK);
    assert_memory_equal(&from_file, &k, sizeof k);
    kld_signature s, t;
    assert_int_equal(kld_sign(a, "x", 1, &s, &e), KLD_OK);
    assert_int_equal(kld_sign(read, "x", 1, &t, &e), KLD_OK);
    assert_memory_equal(&s, &t, sizeof s);
    kld_key_free(read);
    /* Neither is overwritten, and nothing is left of the attempt. */
    assert_int_equal(kld_file_slurp(path, 4096, &text, &e), KLD_OK);
    assert_int_equal(kld_key_save(b, path, pub, false, &e), KLD_E_INPUT);
    assert_int_equal(kld_remove(pub, &e), KLD_OK);
    assert_int_equal(kld_key_save(b, path, pub, false, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "a.key: exists already"));
    assert_false(kld_path_exists(pub));
    assert_int_equal(kld_file_slurp(path, 4096, &again, &e), KLD_OK);
    assert_int_equal(again.len, text.len);
    assert_memory_equal(again.data, text.data, text.len);
    /* A public key that is there, without its private one. */
    assert_int_equal(kld_key_save(b, path, pub, true, &e), KLD_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(kld_public_key_load(&from_file, pub, &e), KLD_OK);
    k = kld_key_public(b);
    assert_memory_equal(&from_file, &k, sizeof k);
    assert_int_equal(kld_remove(path, &e), KLD_OK);
    assert_int_equal(kld_key_save(a, path, pub, false, &e), KLD_E_INPUT);
    assert_false(kld_path_exists(path));
    /* A public half that cannot be written takes the private one with it. */
    char *nowhere = t_path(*state, "no/a.pub");
    assert_int_not_equal(kld_key_save(a, path, nowhere, false, &e), KLD_OK);
    assert_false(kld_path_exists(path));
    /* Others can read it: said, not refused. */
    assert_int_equal(kld_key_save(a, path, pub, true, &e), KLD_OK);
    assert_int_equal(chmod(path, 0640), 0);
    assert_true(kld_file_exposed(path));
    assert_int_equal(kld_key_load(&read, path, &e), KLD_OK);
    kld_key_free(read);
    kld_key_free(a);
    kld_key_free(b);
    kld_buf_free(&text);
    kld_buf_free(&again);
    free(path);
    free(pub);
    free(nowhere);
}

static void wrong_files(void **state) {
    static const char X25519[] = "MC4CAQAwBQYDK2VuBCIEICCDTUXCG847OMKMMMDVRNWDOABFySjeEGqhLEKk+2NC",
                      PUBLIC[] = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
                      LOCKED[] =
                          "MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjX1hz82PpyvAICCAAw\n"
                          "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEDggKGlAm"
                          "C5UQsQ2m675nm4EQO5L";
    static const struct {
        const char *kind, *base64, *private_says, *public_says;
    } bad[] = {
        {"PRIVATE KEY", X25519, "is for X25519", "a private key"},
        {"PUBLIC KEY", PUBLIC, "a public key", NULL},
        {"PRIVATE KEY", "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v", "damaged", "a private key"},
        {"PRIVATE KEY", "", "damaged", "a private key"},
        {"PUBLIC KEY", "MCowBQYDK2VwAyEA11qYAYKx", "a public key", "damaged"},
        {"ENCRYPTED PRIVATE KEY", LOCKED, "encrypted", "encrypted"},
        {"CERTIFICATE", "AAAA", "damaged", "damaged"},
    };
    kld_err e = {0};
    char *path = t_path(*state, "bad.key");
    kld_key *key;
    kld_public_key public;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        key_file(path, bad[i].kind, bad[i].base64);
        assert_int_equal(kld_key_load(&key, path, &e), KLD_E_INPUT);
        assert_null(key);
        assert_non_null(strstr(e.text, "bad.key: "));
        if (!strstr(e.text, bad[i].private_says)) fail_msg("%zu: %s", i, e.text);
        if (*bad[i].base64) assert_null(strstr(e.text, bad[i].base64));
        if (!bad[i].public_says) continue;
        assert_int_equal(kld_public_key_load(&public, path, &e), KLD_E_INPUT);
        if (!strstr(e.text, bad[i].public_says)) fail_msg("%zu: %s", i, e.text);
    }
    static const char *const text[] = {"", "hello", "\0\0\0"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kld_file_write(path, text[i], i == 2 ? 3 : strlen(text[i]), &e), KLD_OK);
        assert_int_equal(kld_key_load(&key, path, &e), KLD_E_INPUT);
        assert_non_null(strstr(e.text, "is not a PEM file"));
        assert_int_equal(kld_public_key_load(&public, path, &e), KLD_E_INPUT);
    }
    assert_int_equal(kld_key_load(&key, *state, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not a regular file"));
    assert_int_equal(kld_remove(path, &e), KLD_OK);
    assert_int_equal(kld_key_load(&key, path, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "cannot open"));
    free(path);
}

static void no_memory(void **state) {
    char *path = t_path(*state, "a.key"), *pub = t_path(*state, "a.pub");
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_err e = {0};
        kld_key *key = NULL, *read = NULL;
        kld_public_key k;
        kld_mem_fail_after(n);
        st = kld_key_generate(&key, &e);
        if (st == KLD_OK) st = kld_key_save(key, path, pub, true, &e);
        if (st == KLD_OK) st = kld_key_load(&read, path, &e);
        if (st == KLD_OK) st = kld_public_key_load(&k, pub, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        kld_key_free(key);
        kld_key_free(read);
    }
    assert_true(n > 5);
    free(path);
    free(pub);
}

static void hex(void **state) {
    (void)state;
    unsigned char b[4];
    char text[9];
    assert_true(kld_hex_parse("00ff1a9c", b, 4));
    assert_string_equal(kld_hex(b, 4, text), "00ff1a9c");
    static const char *const bad[] = {"",         "00ff1a9",  "00ff1a9c0",
                                      "00ff1a9C", "00ff1a9g", "00 ff1a9"};
    for (size_t i = 0; i < 6; i++) assert_false(kld_hex_parse(bad[i], b, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(published_vectors, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(flipped_bits, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(digests_and_domains, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(files, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(wrong_files, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(no_memory, t_dir_make, t_dir_remove),
        cmocka_unit_test(hex),
    };
    return cmocka_run_group_tests_name("ed25519", tests, NULL, NULL);
}
