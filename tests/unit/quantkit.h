/* tests/unit/quantkit.h - small random checkpoints to quantize. */
#ifndef TESTS_UNIT_QUANTKIT_H
#define TESTS_UNIT_QUANTKIT_H
#include "kld/capture/quantize.h"
#include "tests/unit/loadkit.h"

#include <stdbool.h>

enum { HIDDEN = 32, INNER = 64, LAYERS = 2, N_WEIGHTS = 7 };

/* A Llama of two layers with biases in attention and an MTP tensor that no one uses. */
typedef struct recipe {
    const char *dtype; /* BF16, F16 or F32 */
    size_t hidden, inner;
    const char *prefix; /* of the text model's tensors */
    bool sharded;       /* in two files with an index; groups are torn apart */
    bool large;         /* with a tensor of more than 4 MiB that is only copied */
    const char *outer;  /* of a composite: config.json up to its text_config; NULL */
    const char *poison; /* tensor whose element 37 is `special` */
    double special;
} recipe;
extern const recipe PLAIN; /* BF16, HIDDEN, INNER, one file */

void make_source(built *b, const recipe *r);

/* Quantize b's directory into out_dir(b), a path beside it. */
const char *out_dir(const built *b);
kld_status quantize(const built *b, kld_target_format format, kld_quantize_summary *sum,
                    kld_err *err);
/* These fail the running test. */
void quantizes(const built *b, kld_target_format format, kld_quantize_summary *sum);
void refuses(const built *b, kld_target_format format, kld_status want, const char *text);

#endif
