#include "tests/unit/keykit.h"

#include "tests/unit/t.h"

#include <sys/stat.h>

const rfc8032 RFC8032[RFC8032_TESTS] = {
    {"MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
     "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
    {"MC4CAQAwBQYDK2VwBCIEIEzNCJso/5banbbDRuwRTg9bijGfNaumJNqM9u1PuKb7",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
     "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
    {"MC4CAQAwBQYDK2VwBCIEIMWqjfQ/n4N77bdELzHct7Fm04U1B28JS4XOOi4LRFj3",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
     "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
    {"MC4CAQAwBQYDK2VwBCIEIIM/5iQJI3udYux3WHUgkR6adZzsHRl1W32pAbltyj1C",
     "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
     "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
     "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
     "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
     "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"},
};

void key_file(const char *path, const char *kind, const char *base64) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "-----BEGIN %s-----\n%s\n-----END %s-----\n", kind, base64, kind);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

kld_key *key_of(const char *dir, size_t k) {
    kld_err e = {0};
    kld_key *key;
    char *path = t_path(dir, "rfc8032.key");
    key_file(path, "PRIVATE KEY", RFC8032[k].der);
    if (kld_key_load(&key, path, &e) != KLD_OK) fail_msg("%s", e.text);
    free(path);
    return key;
}

size_t from_hex(const char *hex, unsigned char out[64]) {
    size_t n = strlen(hex) / 2;
    assert_true(n <= 64 && kld_hex_parse(hex, out, n));
    return n;
}
