/* OpenBLAS as this back end uses it: one thread inside, and kernels made for this CPU. */
#include "kld/base/system.h"
#include "logits/cpu/cpu.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>

/* Exported by OpenBLAS built with DYNAMIC_ARCH; weak, so a build for one CPU links too. */
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char *best_core(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
    return NULL;
}

/* An OpenBLAS older than the CPU does not know its model number and falls back to SSE3
 * kernels ("Prescott"), at a quarter of the speed.  Its only knob is an environment
 * variable read when it picks its kernels, so it is made to pick again.  A choice of the
 * user's in that variable wins. */
void cpu_blas_setup(void) {
    const char *core = best_core(), *now = openblas_get_corename();
    bool baseline = !strcmp(now, "Prescott") || !strcmp(now, "Core2");
    if (core && baseline && gotoblas_dynamic_init && gotoblas_dynamic_quit &&
        kld_env_default("OPENBLAS_CORETYPE", core)) {
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
    }
    openblas_set_num_threads(1);
}

static void cpu_name(char *out, size_t size) {
    snprintf(out, size, "x86-64 CPU");
#if defined(__x86_64__)
    uint32_t w[12];
    for (unsigned i = 0; i < 3; i++) {
        uint32_t a = 0x80000002u + i, b, c = 0, d;
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        w[4 * i] = a;
        w[4 * i + 1] = b;
        w[4 * i + 2] = c;
        w[4 * i + 3] = d;
    }
    char name[sizeof w + 1];
    memcpy(name, w, sizeof w);
    name[sizeof w] = '\0';
    const char *p = name + strspn(name, " ");
    if (*p) snprintf(out, size, "%s", p);
#else
    snprintf(out, size, "CPU");
#endif
}

void cpu_identity(kld_precision precision, int index, kld_device_identity *out) {
    (void)index;
    cpu_blas_setup();
    cpu_name(out->device, sizeof out->device);
    /* The version and the kernels in use; the build flags between them say nothing about
     * results. */
    char config[128];
    snprintf(config, sizeof config, "%s", openblas_get_config());
    char *second = strchr(config, ' ');
    if (second) second = strchr(second + 1, ' ');
    if (second) *second = '\0';
    snprintf(out->blas, sizeof out->blas, "%s %s", config, openblas_get_corename());
    snprintf(out->arithmetic, sizeof out->arithmetic,
             "cpu; sgemm %s, chunk %d, tile %d, query block %d; %s; accumulate fp32; "
             "residual, norms, rope, softmax and activations fp32; nvfp4 and fp8-per-tensor "
             "scale on the product; head statistics fp64 over fp32 exp",
             out->blas, KLD_CHUNK, CPU_TILE, CPU_QBLOCK,
             precision == KLD_PRECISION_BF16
                 ? "inputs of linear layers (weights, normed rows, attention output, gated "
                   "product) bf16, q k v bf16, softmax weights bf16 before the value product "
                   "and fp32 in their sum"
                 : "matrix inputs fp32");
}
