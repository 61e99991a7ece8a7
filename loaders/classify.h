/* loaders/classify.h - from the tensors under one module prefix to a weight.  Floor 1.
 * The table is docs/checkpoints.md's classifier: names, dtypes and shapes decide, never
 * the configuration. */
#ifndef KLD_LOADERS_CLASSIFY_H
#define KLD_LOADERS_CLASSIFY_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/quant.h"

KLD_EXTERN_C_BEGIN

enum { KLD_MAX_PARTS = 24 };

/* The tensors PREFIX.SUFFIX of one module, in name order. */
typedef struct kld_module {
    const char *prefix;
    size_t n;
    const kld_tensor *part[KLD_MAX_PARTS];
    const char *suffix[KLD_MAX_PARTS]; /* points into the tensor's name */
} kld_module;

typedef struct kld_expect {
    size_t rows, cols; /* cols 1: a vector [rows] */
    bool quantizable;  /* false: only BF16, F16 or F32 */
    bool by_row;       /* an embedding: rows are decoded one by one, and nothing is multiplied */
    bool bias;         /* a bias [rows] must be there; otherwise it must not */
    /* The quantization config or NULL.  Read for what tensors cannot say: the size of FP8 blocks
     * (checked against the scales), how GPTQ stores zero points, packings that are refused. */
    const json_t *quant;
    size_t shards; /* > 1: rows are that many equal shards, and FP8 blocks begin anew in each */
} kld_expect;

/* Fill *w from the module.
 * KLD_E_INPUT        no weight, a part missing, of the wrong dtype or shape, or a set of
 *                    tensors that is no known format; expected and found are named.
 * KLD_E_UNSUPPORTED  a known format that is not implemented (named). */
KLD_NODISCARD kld_status kld_weight_classify(kld_weight *w, const kld_module *m,
                                             const kld_expect *want, kld_err *err);

/* "BF16 [4, 8]" into buf; returns buf. */
char *kld_tensor_text(const kld_tensor *t, char *buf, size_t n);

KLD_EXTERN_C_END
#endif
