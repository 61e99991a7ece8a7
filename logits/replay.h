/* logits/replay.h - heads run again over the hidden states that exact captures keep.  Floor 2.
 * The operations are those of the engine's last stage, over the same spans: on the back end of the
 * capture, logits are the live ones bit for bit. */
#ifndef KLD_LOGITS_REPLAY_H
#define KLD_LOGITS_REPLAY_H
#include "kld/base/status.h"
#include "kld/store/records.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include "logits/engine.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* A head, and how the runs went whose hidden states it is going to see. */
typedef struct kld_replay_head {
    const kld_model *model; /* borrowed; as-declared: it went through kld_act_resolve */
    kld_precision precision;
    kld_activations activations;
} kld_replay_head;

typedef struct kld_replay_options {
    const kld_backend *backend;
    int device;
    size_t vocab; /* columns of the softmax; every head has as many rows or more */
    size_t top_k; /* ids a position that kld_replay_stats lists; >= 1 */
} kld_replay_options;

/* Hidden states of consecutive scored positions of one window, from its first one on. */
typedef struct kld_replay_rows {
    size_t head;        /* which of the heads they go through */
    const void *hidden; /* [n][hidden size]: of a BF16 head 2 bytes a value, else 4 */
    size_t chunk;       /* of the run (kld_engine_options.chunk); 0 = KLD_CHUNK */
} kld_replay_rows;

typedef struct kld_replay kld_replay;

enum { KLD_REPLAY_HEADS = 2 };

/* Read and prepare n heads, 1 or 2, on one device.  Heads of two precisions meet by way of host
 * memory.
 * KLD_E_INPUT        damaged weights, a head of fewer rows than vocab
 * KLD_E_UNSUPPORTED  the back end refuses the head
 * KLD_E_NOMEM, KLD_E_DEVICE, KLD_E_IO. */
KLD_NODISCARD kld_status kld_replay_open(kld_replay **out, const kld_replay_options *opt,
                                         const kld_replay_head *head, size_t n, kld_err *err);
void kld_replay_close(kld_replay *r); /* NULL is fine */

/* Row i of p against row i of q, out[n].  0 < top_p < 1.  KLD_E_NOMEM, KLD_E_DEVICE. */
KLD_NODISCARD kld_status kld_replay_pair(kld_replay *r, const kld_replay_rows *p,
                                         const kld_replay_rows *q, size_t n, double top_p,
                                         kld_pair_row *out, kld_err *err);

/* Statistics of the first n rows of a window into rec, which has n rows and k_ld = top_k and is
 * zeroed: the top_k most probable ids and everything of the whole distribution; no draws.
 * labels [n].  KLD_E_NOMEM, KLD_E_DEVICE. */
KLD_NODISCARD kld_status kld_replay_stats(kld_replay *r, const kld_replay_rows *rows, size_t n,
                                          const uint32_t *labels, kld_records *rec, kld_err *err);

KLD_EXTERN_C_END
#endif
