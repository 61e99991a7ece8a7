/* tests/unit/recastkit.h - small models with the same values in other formats.
 * Each is written from an open one, weight by weight. */
#ifndef TESTS_UNIT_RECASTKIT_H
#define TESTS_UNIT_RECASTKIT_H
#include "tests/unit/enginekit.h"
#include "tests/unit/loadkit.h"

/* Writes the tensors of one weight; false: it is copied as the file has it. */
typedef bool recast_fn(built *b, const kld_weight_at *at, void *ctx);

/* A copy of m's directory with other tensors, and as a model. */
kld_model *recast(built *b, const kld_model *m, recast_fn *fn, void *ctx);

/* The weight's values as FP32 [rows][cols], times the factors of its input; free() it. */
float *recast_values(const kld_model *m, const kld_weight *w);
/* A recast_fn whose ctx is the model: quantized weights as F32 with the factors folded in. */
bool recast_dense(built *b, const kld_weight_at *at, void *model);

/* "PREFIX.SUFFIX" beside the weight's data, [rows] or [rows, cols] (cols 0: a vector; both 0: a
 * scalar). */
void recast_tensor(built *b, const kld_weight *w, const char *suffix, const char *dtype,
                   size_t rows, size_t cols, const void *data, size_t bytes);

#endif
