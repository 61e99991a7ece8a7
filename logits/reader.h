/* logits/reader.h - weights from disk, one stage (embedding, a layer, the head) at a time,
 * the next one read by a background thread while the current one computes.  Floor 2. */
#ifndef KLD_LOGITS_READER_H
#define KLD_LOGITS_READER_H
#include "kld/base/status.h"
#include "kld/base/thread.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

enum { KLD_STAGE_WEIGHTS = KLD_SLOT_COUNT };

/* The weights of a stage; slot[i] says which kld_slot weight[i] fills. */
typedef struct kld_stage {
    size_t n;
    kld_slot slot[KLD_STAGE_WEIGHTS];
    kld_use use[KLD_STAGE_WEIGHTS];
    kld_host_weight weight[KLD_STAGE_WEIGHTS]; /* bytes valid once the stage was read */
    uint64_t bytes;                            /* stored */
    uint64_t nonfinite;                        /* NaN or Inf among dense values */
    uint64_t zero_blocks, blocks;              /* kld_weight_zero_blocks, of NVFP4 blocks */
} kld_stage;

/* Stages in order: 0 the embedding, 1..layers, layers+1 final norm and head. */
void kld_stage_of(const kld_model *m, size_t index, kld_stage *out);
/* Host bytes that hold a stage, each part aligned to 64. */
uint64_t kld_stage_buffer_bytes(const kld_stage *s);

typedef struct kld_reader {
    const kld_model *model;
    unsigned char *buf[2]; /* owned; a stage's parity picks one */
    kld_stage stage[2];
    kld_task *task; /* reading stage `next` */
    size_t next;
    uint64_t bytes_read, buffer_bytes;
    uint64_t nonfinite, zero_blocks, blocks; /* of the stages handed out */
    double wait_seconds;
} kld_reader;

/* Buffers for the stages from `first` on.  Reading of `first` starts at once.
 * KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_reader_open(kld_reader *r, const kld_model *m, size_t first,
                                         kld_err *err);
/* The stage after the last one given (first the one of open), and start the one after
 * that.  The stage before it becomes invalid, so its weights must not be in use.
 * KLD_E_INPUT  damaged weights; KLD_E_IO. */
KLD_NODISCARD kld_status kld_reader_next(kld_reader *r, const kld_stage **out, kld_err *err);
void kld_reader_close(kld_reader *r); /* waits for a read in progress */

KLD_EXTERN_C_END
#endif
