#include "tests/unit/t.h"

int t_dir_make(void **state) {
    char *dir = strdup("/tmp/kld-test-XXXXXX");
    if (!dir || !mkdtemp(dir)) return -1;
    *state = dir;
    return 0;
}

int t_dir_remove(void **state) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    int rc = system(command);
    free(*state);
    return rc;
}

char *t_path(const char *dir, const char *name) {
    size_t n = strlen(dir) + strlen(name) + 2;
    char *p = malloc(n);
    if (p) snprintf(p, n, "%s/%s", dir, name);
    return p;
}
