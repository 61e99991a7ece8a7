#include "kld/capture/inputs.h"

#include "kld/base/buf.h"
#include "kld/base/log.h"
#include "kld/capture/identity.h"

#include <stdio.h>
#include <string.h>

static void describe(const kld_weight *w, char *text, size_t n) {
    kld_act_format f = w->act.format;
    if (w->act_refused) snprintf(text, n, "not emulated: %.200s", w->act_refused);
    else if (f == KLD_AQ_NONE) snprintf(text, n, "none");
    else
        snprintf(text, n, "%s%s", kld_act_format_name(f),
                 f == KLD_AQ_NVFP4 && w->act.scale == 0 ? ", static scale"
                 : f == KLD_AQ_FP8_TENSOR               ? ""
                                                        : ", dynamic");
}

static kld_status add(json_t *root, const kld_weight_at *at, kld_err *err) {
    char text[256];
    describe(at->w, text, sizeof text);
    const char *module = kld_identity_module(at->slot);
    json_t *kind = json_object_get(root, module);
    if (!kind) {
        kind = json_object();
        if (!kind || json_object_set_new(root, module, kind) != 0)
            return kld_fail(err, KLD_E_NOMEM, "out of memory");
    }
    json_int_t n = json_integer_value(json_object_get(kind, text));
    if (json_object_set_new(kind, text, json_integer(n + 1)) != 0)
        return kld_fail(err, KLD_E_NOMEM, "out of memory");
    return KLD_OK;
}

kld_status kld_inputs_declared(kld_model *m, json_t **out, kld_err *err) {
    *out = NULL;
    TRY(kld_act_declare(m, err));
    json_t *root = json_object();
    if (!root) return kld_fail(err, KLD_E_NOMEM, "out of memory");
    kld_status st = KLD_OK;
    for (kld_weight_at at = {0}; st == KLD_OK && kld_model_next_weight(m, &at);)
        if (at.w->format > KLD_FMT_F32) st = add(root, &at, err);
    if (st == KLD_OK) *out = root;
    else json_decref(root);
    return st;
}

kld_status kld_inputs_text(const json_t *declared, kld_buf *out, kld_err *err) {
    const char *kind, *format;
    json_t *by_format, *n;
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)declared, kind, by_format) {
        TRY(kld_buf_addf(out, err, "%s%s ", first ? "" : "; ", kind));
        first = true;
        json_object_foreach(by_format, format, n) {
            TRY(kld_buf_addf(out, err, "%s%s (%lld)", first ? "" : ", ", format,
                             (long long)json_integer_value(n)));
            first = false;
        }
    }
    return KLD_OK;
}

kld_status kld_inputs_resolve(kld_model *m, const char *dir, kld_fused_scale fused, kld_err *err) {
    json_t *declared;
    kld_buf text = {0};
    bool any = false;
    TRY(kld_inputs_declared(m, &declared, err));
    kld_status st = kld_inputs_text(declared, &text, err);
    json_decref(declared);
    if (st == KLD_OK) st = kld_where(err, kld_act_resolve(m, fused, err), "%s", dir);
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);)
        any = any || at.w->act.format != KLD_AQ_NONE;
    if (st == KLD_OK && any)
        kld_note("inputs of products are quantized: %s; static scales: %s", (char *)text.data,
                 kld_fused_scale_name(fused));
    else if (st == KLD_OK)
        kld_note("%s declares no quantized inputs: as-declared is the same as weights-only", dir);
    kld_buf_free(&text);
    return st;
}
