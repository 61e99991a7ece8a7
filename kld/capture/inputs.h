/* kld/capture/inputs.h - quantized inputs of products, in words.  Floor 3. */
#ifndef KLD_CAPTURE_INPUTS_H
#define KLD_CAPTURE_INPUTS_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "loaders/act_declared.h"

KLD_EXTERN_C_BEGIN

/* What the checkpoint declares, by module kind: {"attention": {"NVFP4, static scale": 4,
 * "none": 2}, ...}, of quantized weights alone, so it is empty when there are none.  A declaration
 * that is not emulated is "not emulated: what".  Declares the inputs of m.  *out owned.
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_inputs_declared(kld_model *m, json_t **out, kld_err *err);
/* The same in one line: "attention NVFP4, static scale (4), none (2); mlp ...". */
KLD_NODISCARD kld_status kld_inputs_text(const json_t *declared, kld_buf *out, kld_err *err);

/* kld_act_resolve with the directory in front of errors, and a note of what is emulated.  When
 * nothing is declared, the note says so. */
KLD_NODISCARD kld_status kld_inputs_resolve(kld_model *m, const char *dir, kld_fused_scale fused,
                                            kld_err *err);

KLD_EXTERN_C_END
#endif
