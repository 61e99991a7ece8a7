/* What F8_E4M3 codes mean is decided by the scale beside them. */
#include "kld/base/num.h"
#include "loaders/classify_rows.h"

#include <string.h>

/* [B0, B1] of a config entry; false when it is not two positive integers. */
static bool read_pair(const json_t *a, size_t *rows, size_t *cols) {
    json_int_t r = json_integer_value(json_array_get(a, 0));
    json_int_t c = json_integer_value(json_array_get(a, 1));
    if (json_array_size(a) != 2 || r < 1 || c < 1) return false;
    *rows = (size_t)r;
    *cols = (size_t)c;
    return true;
}

/* weight_block_size of `fp8`, block_structure of compressed-tensors, else 128 x 128. */
static void block_size(const json_t *quant, size_t *rows, size_t *cols) {
    const char *name;
    json_t *group;
    *rows = *cols = 128;
    if (read_pair(json_object_get(quant, "weight_block_size"), rows, cols)) return;
    json_object_foreach(json_object_get(quant, "config_groups"), name, group) {
        const json_t *w = json_object_get(group, "weights");
        if (read_pair(json_object_get(w, "block_structure"), rows, cols)) return;
    }
}

static kld_status settle_blocks(kld_weight *w, const kld_expect *want, kld_err *err) {
    const kld_tensor *t = w->scale;
    size_t b0, b1;
    block_size(want->quant, &b0, &b1);
    size_t shards = num_max(want->shards, 1);
    size_t down = shards * num_cdiv(want->rows / shards, b0), across = num_cdiv(want->cols, b1);
    w->format = KLD_FMT_FP8_BLOCK;
    w->block_rows = b0;
    w->block_cols = b1;
    /* ModelOpt keeps the dimensions it reduced over. */
    bool kept = t->rank == 4 && t->shape[1] == 1 && t->shape[3] == 1 && t->shape[0] == down &&
                t->shape[2] == across;
    if (kept || kld_shape_is(t, 2, down, across)) return KLD_OK;
    char found[160];
    return kld_fail(
        err, KLD_E_INPUT,
        "%.300s: expected shape [%zu, %zu] for [%zu, %zu] in blocks of %zu x %zu, found "
        "%s; is weight_block_size of the config right?",
        t->name, down, across, want->rows, want->cols, b0, b1,
        kld_tensor_text(t, found, sizeof found));
}

kld_status kld_settle_fp8(kld_weight *w, const char *prefix, const kld_expect *want, kld_err *err) {
    const kld_tensor *t = w->scale;
    const char *suffix = t->name + strlen(prefix) + 1;
    bool e8m0 = t->dtype == KLD_U8 || t->dtype == KLD_F8_E8M0;
    bool plain = !strcmp(suffix, "weight_scale");
    if (e8m0 && want->cols % 32 == 0 && kld_shape_is(t, 2, want->rows, want->cols / 32)) {
        w->format = KLD_FMT_MXFP8;
        w->block_cols = 32;
        return KLD_OK;
    }
    if (t->dtype == KLD_U8) {
        char found[160];
        return kld_fail(err, KLD_E_INPUT, "%.300s: expected shape [%zu, %zu], found %s%s", t->name,
                        want->rows, want->cols / 32, kld_tensor_text(t, found, sizeof found),
                        t->rank == 1 ? ": block scales in one dimension are swizzled for a kernel; "
                                       "export the checkpoint again"
                                     : "");
    }
    if (kld_tensor_elements(t) == 1 && !e8m0 && t->rank <= (plain ? 2u : 1u)) {
        w->format = KLD_FMT_FP8_TENSOR;
        return KLD_OK;
    }
    if (plain && !e8m0 &&
        (kld_shape_is(t, 1, want->rows, 0) || kld_shape_is(t, 2, want->rows, 1))) {
        w->format = KLD_FMT_FP8_CHANNEL;
        return KLD_OK;
    }
    if (plain && t->rank < 2)
        return kld_wrong_shape(t, err, "[], [1], [%zu] or [%zu, 1]", want->rows, want->rows);
    return settle_blocks(w, want, err);
}
