#include "kld/base/plugin.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

/* Directory of the running program, with its slash; "" when the system does not tell. */
static void program_dir(char *dir, size_t size) {
    ssize_t n = readlink("/proc/self/exe", dir, size - 1);
    dir[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(dir, '/');
    if (slash) slash[1] = '\0';
}

static kld_status load(const char *path, const char *symbol, void (**out)(void), kld_err *err) {
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) return kld_fail(err, KLD_E_DEVICE, "%s", dlerror());
    void *p = dlsym(so, symbol);
    if (!p) return kld_fail(err, KLD_E_INTERNAL, "%s lacks %s", path, symbol);
    memcpy(out, &p, sizeof p); /* POSIX promises that a function pointer fits */
    return KLD_OK;
}

kld_status kld_plugin_open(const char *name, const char *symbol, void (**out)(void), kld_err *err) {
    char dir[4096];
    program_dir(dir, sizeof dir);
    static const char *const places[] = {"", "../lib/kld/"};
    for (size_t i = 0; i < 2; i++) {
        kld_buf path = {0};
        TRY(kld_buf_addf(&path, err, "%s%s%s", dir, places[i], name));
        bool there = kld_path_exists((const char *)path.data);
        kld_status st = there ? load((const char *)path.data, symbol, out, err) : KLD_OK;
        kld_buf_free(&path);
        if (there) return st;
    }
    return kld_fail(err, KLD_E_UNSUPPORTED, "%s is neither in %s nor in %s../lib/kld", name, dir,
                    dir);
}
