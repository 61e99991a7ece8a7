/* tests/gpu/gpukit.h - the same inputs for the CPU and the CUDA back end. */
#ifndef TESTS_GPU_GPUKIT_H
#define TESTS_GPU_GPUKIT_H
#include "tests/unit/enginekit.h"

#include "logits/backend.h"

/* The CUDA back end beside the program; fails the test when it cannot be loaded. */
const kld_backend *gpu_backend(void);

/* A size of the problem: the second one under KLD_TEST_SMALL, for tools that slow a card down. */
size_t gpu_size(size_t full, size_t small);

typedef struct twin {
    const kld_backend *cpu, *gpu;
    kld_device *c, *g;
    bool bf16;
} twin;
void twin_open(twin *t, const kld_device_spec *spec);
void twin_close(twin *t);

/* One buffer on both sides, host values [rows][ld] beside it.  A GPU buffer begins and ends with
 * 4 KiB of NaN, and so does everything past the columns of a row. */
typedef struct both {
    kld_view c, g;
    float *host; /* what was put there */
    void *block; /* of the GPU */
} both;
/* Random normal values (rounded to BF16 for ACT in a BF16 run) times `scale`. */
both both_random(twin *t, size_t rows, size_t cols, size_t ld, kld_elem elem, double scale,
                 uint64_t *seed);
/* Copy b->host to both sides again, after the test changed it; rounded first where BF16 is what
 * the GPU holds. */
void both_push(twin *t, both *b);
/* What the GPU holds now, as FP32 [rows][ld]; free() it. */
float *both_pull(twin *t, const both *b);
void both_free(twin *t, both *b);

/* Every element of the GPU's b within rel * rms(CPU's values) of the CPU's, NaN exactly where the
 * CPU has NaN, padding untouched.  Prints the largest error when above.  Returns it / rms. */
double both_same(twin *t, const both *b, double rel, const char *what);

/* Device copy of n bytes on the GPU; gpu->free it. */
void *gpu_copy(twin *t, const void *host, size_t n);

/* A weight of random normal values on both sides, stored as BF16, F16 or F32. */
typedef struct weight {
    kld_tensor data, bias, pre;
    kld_weight w;
    kld_dev_weight c, g;
    void *mem[2], *raw, *raw_bias, *raw_pre;
    void *values; /* as stored */
    float *bias_values;
    uint16_t *pre_values;
} weight;
void weight_random(twin *t, weight *w, kld_format f, size_t rows, size_t cols, bool bias,
                   kld_use use, uint64_t *seed);
/* Give a matrix random factors of its input, stored as BF16 or F16; alpha and input are lost. */
void weight_factors(twin *t, weight *w, kld_dtype dtype, uint64_t *seed);
void weight_free(twin *t, weight *w);

#endif
