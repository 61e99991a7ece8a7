#include "logits/select.h"

#include "kld/base/log.h"
#include "kld/base/plugin.h"
#include "kld/base/version.h"

#include <stdlib.h>
#include <string.h>

static kld_status load_cuda(const kld_backend **out, kld_err *err) {
    void (*entry)(void);
    kld_status st = kld_plugin_open("kld-cuda.so", "kld_backend_cuda", &entry, err);
    if (st == KLD_E_UNSUPPORTED)
        return kld_fail(err, st,
                        "this build has no CUDA back end (kld-cuda.so is not beside the "
                        "program); use --device cpu");
    TRY(st);
    const kld_backend *be = ((const kld_backend *(*)(void))entry)();
    if (strcmp(be->build(), kld_commit()) != 0)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "kld-cuda.so is of build %s, the program of %s; install both from one",
                        be->build(), kld_commit());
    *out = be;
    return KLD_OK;
}

/* "0", "0,1", ...: numbers of devices. */
static kld_status parse_list(const char *text, kld_choice *c, kld_err *err) {
    const char *p = text;
    for (;;) {
        char *end;
        long v = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        if (v < 0 || v > 1023 || (*end && *end != ','))
            return kld_fail(err, KLD_E_USAGE, "--device 'cuda:%s': expected cuda:N or cuda:N,N",
                            text);
        if (c->n == KLD_MAX_LANES)
            return kld_fail(err, KLD_E_USAGE, "--device: at most %d devices", KLD_MAX_LANES);
        c->device[c->n++] = (int)v;
        if (!*end) return KLD_OK;
        p = end + 1;
    }
}

static kld_status choose_cuda(const char *list, kld_choice *c, kld_err *err) {
    c->n = 0;
    if (*list == ':') TRY(parse_list(list + 1, c, err));
    else c->device[c->n++] = 0;
    size_t there = 0;
    const kld_backend *be = NULL;
    TRY(load_cuda(&be, err));
    if (!be) return kld_fail(err, KLD_E_INTERNAL, "kld-cuda.so has no table");
    c->backend = be;
    TRY(be->devices(&there, err));
    for (size_t i = 0; i < c->n; i++)
        if ((size_t)c->device[i] >= there)
            return kld_fail(err, KLD_E_DEVICE, "cuda:%d: there %s %zu CUDA device%s (from 0)",
                            c->device[i], there == 1 ? "is" : "are", there, there == 1 ? "" : "s");
    return KLD_OK;
}

kld_status kld_choose(const char *text, kld_choice *out, kld_err *err) {
    *out = (kld_choice){.backend = kld_backend_cpu(), .n = 1};
    if (!strcmp(text, "cpu")) return KLD_OK;
    if (!strcmp(text, "auto")) {
        kld_choice cuda = {0};
        kld_err why = {0};
        kld_status st = choose_cuda("", &cuda, &why);
        if (st == KLD_OK) *out = cuda;
        else kld_debug("running on the CPU: %s", why.text);
        return KLD_OK;
    }
    if (!strncmp(text, "cuda", 4) && (text[4] == '\0' || text[4] == ':'))
        return choose_cuda(text + 4, out, err);
    return kld_fail(err, KLD_E_USAGE, "--device '%s': expected auto, cpu, cuda, cuda:N or cuda:N,N",
                    text);
}
