/* tests/unit/goldenkit.h - the tiny models whose logits the reference implementation wrote down. */
#ifndef TESTS_UNIT_GOLDENKIT_H
#define TESTS_UNIT_GOLDENKIT_H
#include "logits/backend.h"

/* Run every model of tests/golden/models; the running test fails when a logit is off by more than
 * limit times the largest of its model. */
void goldens_check(const kld_backend *be, kld_precision precision, double limit);

#endif
