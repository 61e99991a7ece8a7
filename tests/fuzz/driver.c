/* Runs a fuzz target over files and directories given as arguments: the committed corpus as
 * a regression test, with any compiler. */
#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"

#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t run_file(const char *path) {
    kld_err err = {0};
    kld_buf b = {0};
    if (kld_file_slurp(path, 1 << 26, &b, &err) != KLD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 0;
    }
    LLVMFuzzerTestOneInput(b.data ? b.data : (const uint8_t *)"", b.len);
    kld_buf_free(&b);
    return 1;
}

static size_t run_path(const char *path) {
    if (!kld_path_is_dir(path)) return run_file(path);
    kld_err err = {0};
    char **names;
    size_t n, ran = 0;
    if (kld_list_dir(path, &names, &n, &err) != KLD_OK) return 0;
    for (size_t i = 0; i < n; i++) {
        char *p;
        if (kld_path_join(&p, path, names[i], &err) == KLD_OK) ran += run_file(p);
        kld_free(p);
    }
    kld_names_free(names, n);
    return ran;
}

int main(int argc, char **argv) {
    size_t ran = 0;
    for (int i = 1; i < argc; i++) ran += run_path(argv[i]);
    printf("%s: %zu inputs\n", argv[0], ran);
    return ran == 0;
}
