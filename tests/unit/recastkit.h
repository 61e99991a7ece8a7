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

/* What recast_awq makes of a model's projections: random weights with a pre_quant_scale each, BF16;
 * gate and up of dense MLPs and of odd experts have the same. */
typedef struct awq_form {
    uint64_t seed;
    bool integer;    /* INT8, else NVFP4 */
    bool has_pre;    /* else none has factors */
    size_t poisoned; /* > 0: factor 5 of that weight is NaN */
    size_t n;        /* weights so far */
} awq_form;
bool recast_awq(built *b, const kld_weight_at *at, void *form);

/* Every form of a quantized embedding, random; ctx points to its number, a size_t. */
enum { RECAST_EMBEDDINGS = 12 };
extern const char *const recast_embeddings[RECAST_EMBEDDINGS];
bool recast_embedding(built *b, const kld_weight_at *at, void *which);

/* "PREFIX.SUFFIX" beside the weight's data, [rows] or [rows, cols] (cols 0: a vector; both 0: a
 * scalar). */
void recast_tensor(built *b, const kld_weight *w, const char *suffix, const char *dtype,
                   size_t rows, size_t cols, const void *data, size_t bytes);

#endif
