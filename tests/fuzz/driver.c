/* Runs a fuzz target over files and directories of files, with any compiler:
 *   fuzz_x [PATH...]
 * A crash or a sanitizer report is the failure; the name of the file is printed first
 * when KLD_FUZZ_VERBOSE is set. */
#include "kld/base/file.h"
#include "kld/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 64 << 20 };

static size_t run_file(const char *path) {
    kld_buf b = {0};
    kld_err err = {0};
    if (getenv("KLD_FUZZ_VERBOSE")) fprintf(stderr, "%s\n", path);
    if (kld_file_slurp(path, MAX_INPUT, &b, &err) != KLD_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    /* An exact copy, so that one byte too far is seen. */
    unsigned char *copy = malloc(b.len ? b.len : 1);
    if (!copy) exit(1);
    for (size_t i = 0; i < b.len; i++) copy[i] = b.data[i];
    (void)LLVMFuzzerTestOneInput(copy, b.len);
    free(copy);
    kld_buf_free(&b);
    return 1;
}

static size_t run_path(const char *path) {
    if (!kld_path_is_dir(path)) return run_file(path);
    char **names;
    size_t n, count = 0;
    if (kld_list_dir(path, &names, &n, NULL) != KLD_OK) exit(1);
    for (size_t i = 0; i < n; i++) {
        char *p;
        if (kld_path_join(&p, path, names[i], NULL) != KLD_OK) exit(1);
        count += run_path(p);
        kld_free(p);
    }
    kld_names_free(names, n);
    return count;
}

int main(int argc, char **argv) {
    size_t n = 0;
    for (int i = 1; i < argc; i++) n += run_path(argv[i]);
    printf("%zu inputs\n", n);
    return 0;
}
