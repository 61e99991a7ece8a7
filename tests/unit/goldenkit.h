/* tests/unit/goldenkit.h - the tiny models whose logits the reference implementation wrote down. */
#ifndef TESTS_UNIT_GOLDENKIT_H
#define TESTS_UNIT_GOLDENKIT_H
#include "logits/backend.h"

/* Run every model of tests/golden/models; the running test fails when a logit is off by more than
 * limit times the largest of its model. */
void goldens_check(const kld_backend *be, kld_precision precision, double limit);
/* The same of tests/golden/inputs, whose products have quantized inputs, in an FP32 run: one code
 * that rounds the other way moves logits by percents, and in BF16 many do. */
void goldens_check_inputs(const kld_backend *be, double limit);

#endif
