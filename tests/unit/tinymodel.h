/* tests/unit/tinymodel.h - a one-layer Llama to break in known ways: hidden 32,
 * intermediate 64, 4 heads of 8, 2 kv heads, vocab 8. */
#ifndef TESTS_UNIT_TINYMODEL_H
#define TESTS_UNIT_TINYMODEL_H
#include "loaders/model.h"
#include "tests/unit/loadkit.h"

#define CONFIG                                                                                     \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":64,"        \
    "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":8,\"rms_norm_eps\":1e-5"

typedef struct spec {
    const char *name, *dtype, *shape;
    size_t bytes;
    int fill;
    const void *data;
} spec;

#define L "model.layers.0."
extern const spec tiny_plain[]; /* [N_PLAIN] */
enum { N_PLAIN = 12 };

/* The plain model with some tensors left out (drop, or an extra without dtype) or
 * replaced (same name) and some added. */
void tiny_make(built *b, const char *config, const char *drop, const spec *extra, size_t n);
kld_model *tiny_open(const char *dir);
/* Makes, opens, expects a failure whose message holds `text`. */
void tiny_fails(const char *config, const char *drop, const spec *extra, size_t n, kld_status want,
                const char *text);
/* Makes, opens, expects exactly these warnings (NULL-terminated, each holding its text). */
void tiny_warns(const char *config, const char *drop, const spec *extra, size_t n,
                const char *label, const char *const *text);

#endif
