#include "loaders/actquant.h"

static const struct {
    const char *name;
    size_t block;
    bool whole; /* rows are whole blocks */
    bool scaled;
} table[KLD_AQ_COUNT] = {
    [KLD_AQ_NONE] = {"none", 0, false, false},
    [KLD_AQ_NVFP4] = {"NVFP4", 16, true, true},
    [KLD_AQ_MXFP4] = {"MXFP4", 32, true, false},
    [KLD_AQ_MXFP8] = {"MXFP8", 32, true, false},
    [KLD_AQ_FP8_TENSOR] = {"FP8 (static)", 0, false, true},
    [KLD_AQ_FP8_TOKEN] = {"FP8 (per token)", 0, false, false},
    [KLD_AQ_FP8_BLOCK] = {"FP8 (blocks of 128)", 128, false, false},
};

static bool known(kld_act_format f) { return (unsigned)f < KLD_AQ_COUNT; }

const char *kld_act_format_name(kld_act_format f) { return known(f) ? table[f].name : "unknown"; }

size_t kld_act_block(kld_act_format f) { return known(f) ? table[f].block : 0; }

kld_status kld_act_check(const kld_act_quant *a, size_t cols, kld_err *err) {
    kld_act_format f = a->format;
    if (!known(f))
        return kld_fail(err, KLD_E_UNSUPPORTED, "activation format %d is not known", (int)f);
    if (table[f].whole && cols % table[f].block)
        return kld_fail(err, KLD_E_INPUT,
                        "%s activations come in blocks of %zu, and %zu columns are no multiple",
                        table[f].name, table[f].block, cols);
    /* So that neither a reciprocal nor a product with a block scale leaves FP32's normal range. */
    if (table[f].scaled && !(a->scale >= 0x1p-100f && a->scale <= 0x1p100f))
        return kld_fail(err, KLD_E_INPUT, "%s activations: scale %g is not within 2^-100 .. 2^100",
                        table[f].name, (double)a->scale);
    if (!(a->eps >= 0 && a->eps <= 0x1p100f))
        return kld_fail(err, KLD_E_INPUT, "%s activations: eps %g is not within 0 .. 2^100",
                        table[f].name, (double)a->eps);
    return KLD_OK;
}

bool kld_act_same(const kld_act_quant *a, const kld_act_quant *b) {
    return a->format == b->format && a->scale == b->scale && a->exponent == b->exponent &&
           a->power_of_two == b->power_of_two && a->eps == b->eps;
}

float kld_act_alpha(const kld_act_quant *a) {
    if (a->format == KLD_AQ_NVFP4) return 1.0f / a->scale;
    return a->format == KLD_AQ_FP8_TENSOR ? a->scale : 1.0f;
}
