/* kld/compare/belong.h - do these captures belong together?  Floor 3. */
#ifndef KLD_COMPARE_BELONG_H
#define KLD_COMPARE_BELONG_H
#include "kld/base/status.h"
#include "kld/store/capture.h"
#include <stdbool.h>

KLD_EXTERN_C_BEGIN

/* The reference must be able to be one.  KLD_E_INPUT  it was captured against another, or with the
 * routes of another. */
KLD_NODISCARD kld_status kld_belong_reference(const kld_capture *ref, kld_err *err);

/* How inputs of products were quantized: "weights-only", or "as-declared" and which static scales:
 * "as-declared (own scales)", "as-declared (max scales)". */
const char *kld_belong_activations(const kld_capture_info *i);

/* Same tokenizer, suite, partition of it, vocabulary, windows and positions; a candidate captured
 * with --ref names this reference's content; same engine arithmetic (of a floor: of the same
 * checkpoint, on the same machine), else *mismatch is set when allowed; where both headers tell of
 * routes, as many layers with experts, experts and experts a token. Quantized inputs are no part of
 * arithmetic: a reference without, a candidate with them is usual. KLD_E_INPUT  the message names
 * the field and both values. */
KLD_NODISCARD kld_status kld_belong_headers(const kld_capture *ref, const kld_capture *cand,
                                            bool allow_mismatch, bool *mismatch, kld_err *err);

/* Same token ids scored from the same position in window i.  KLD_E_INPUT. */
KLD_NODISCARD kld_status kld_belong_window(size_t i, const kld_window_meta *ref,
                                           const kld_window_meta *cand, kld_err *err);

/* Of one checkpoint, as far as both say: their model digests are equal, and where both have them
 * their digests of every byte.  Fine-tunes share headers and sizes and so a model digest. */
bool kld_same_checkpoint(const kld_capture_info *a, const kld_capture_info *b);

/* A measurement of the noise floor (capture --floor). */
bool kld_is_floor(const kld_capture_info *i);

KLD_EXTERN_C_END
#endif
