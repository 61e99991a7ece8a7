/* tests/unit/opkit.h - operations of the CPU back end in tests: views in NaN, weights by hand. */
#ifndef TESTS_UNIT_OPKIT_H
#define TESTS_UNIT_OPKIT_H
#include "tests/unit/enginekit.h"

#include "kld/base/mem.h"
#include "loaders/numfmt.h"

#include <math.h>
#include <stdlib.h>

#define be kld_backend_cpu()

/* rows x cols of random values inside rows x ld of NaN; its p is the caller's. */
kld_view random_view(size_t rows, size_t cols, size_t ld, uint64_t *seed);
float *at(kld_view v, size_t r, size_t c);
/* What lies past the columns must still be NaN. */
void check_padding(kld_view v);
void close_to(double got, double want, double tol, const char *what, size_t r, size_t c);
double bf16(double x);

kld_device *op_device(const kld_device_spec *spec);
/* For what needs little: 1024 rows, heads of 16. */
kld_device *open_dev(kld_precision p, size_t keys);

/* An FP32 matrix or vector as the loader would hand it over. */
typedef struct stored {
    kld_tensor data, bias;
    kld_weight w;
    kld_raw_weight h;
    kld_dev_weight dev;
    void *mem;
} stored;

void store(stored *s, kld_device *dev, const float *values, const float *bias, size_t rows,
           size_t cols, kld_use use);

#endif
