/* loaders/notes.h - what is worth saying about a bound model: warnings that need values
 * from the file, and the label of its method.  Floor 1; used by model.c alone. */
#ifndef KLD_LOADERS_NOTES_H
#define KLD_LOADERS_NOTES_H
#include "loaders/model.h"

KLD_EXTERN_C_BEGIN

/* Append to m->warnings:
 *  - fused groups (q/k/v; q_a/kv_a; gate/up; gate/up of experts) whose NVFP4 global scales differ:
 *    count, largest ratio
 *  - global scales whose magnitude fits the reciprocal better than their name
 *  - a head of its own although the config ties it, when it differs from the embedding
 *  - superseded copies and tensors that the index does not name; KV-cache scales
 * Reads scalars and a sample of rows.  KLD_E_INPUT, KLD_E_IO from reading. */
KLD_NODISCARD kld_status kld_model_notes(kld_model *m, bool config_ties, kld_err *err);

/* Set m->label: the quantized formats of the linear layers, most elements first, joined
 * by " + "; else the dense format that most elements have.  " (QAD)" is appended when the
 * directory's, repository's or quantization config's text has QAD as a word, because
 * nothing in the tensors tells it. */
KLD_NODISCARD kld_status kld_model_label(kld_model *m, kld_err *err);

KLD_EXTERN_C_END
#endif
