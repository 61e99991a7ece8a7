/* logits/reader.h - weights from disk into device memory, one stage at a time, the next one on its
 * way while the current one computes.  Floor 2. */
#ifndef KLD_LOGITS_READER_H
#define KLD_LOGITS_READER_H
#include "kld/base/status.h"
#include "kld/base/thread.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include "logits/stage.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

struct kld_piece; /* lines of a weight, or elements of a small part: what a thread reads at once */

typedef struct kld_reader {
    const kld_model *model;
    const kld_schedule *schedule; /* borrowed */
    const kld_backend *be;
    kld_device *const *dev; /* [n_dev] borrowed; each gets every byte */
    size_t n_dev;           /* 1 when their memory is the host's */
    unsigned char **raw;    /* owned [n_dev], device memory: even stages at its start, odd ones at
                               its end, so that any two neighbours fit whatever their sizes */
    uint64_t raw_bytes;
    unsigned char **lane; /* owned [2 * readers] host memory pieces pass through, or NULL */
    uint64_t lane_bytes;
    unsigned char *lane_busy; /* owned [2 * readers]: a copy out of it may be under way */
    unsigned char *lane_next; /* owned [readers]: which of its two a thread takes next */
    struct kld_piece *piece;  /* owned, of the stage being read */
    size_t n_pieces, max_pieces;
    kld_stage stage[2];
    kld_stage_weight *weights[2]; /* owned: what those hold */
    kld_task *task;               /* reading stage `next` */
    size_t next;
    uint64_t bytes_read, device_bytes, host_bytes; /* read so far; memory taken */
    uint64_t nonfinite, zero_blocks, blocks;       /* of the stages handed out */
    double wait_seconds;                           /* the computation waited for reading */
    double read_seconds;                           /* reading was under way */
} kld_reader;

/* Memory for the stages from `first` on.  Reading of `first` starts at once.
 * KLD_E_NOMEM, KLD_E_DEVICE. */
KLD_NODISCARD kld_status kld_reader_open(kld_reader *r, const kld_model *m,
                                         const kld_schedule *schedule, const kld_backend *be,
                                         kld_device *const *dev, size_t n_dev, size_t first,
                                         kld_err *err);
/* The stage after the last one given (first the one of open), and start the one after
 * that.  The stage before it becomes invalid once the operations queued so far are done.
 * KLD_E_INPUT  damaged weights, a file that shrank; KLD_E_IO; KLD_E_DEVICE. */
KLD_NODISCARD kld_status kld_reader_next(kld_reader *r, const kld_stage **out, kld_err *err);
/* Weight i of a stage that next gave, on device d. */
void kld_reader_weight(const kld_reader *r, const kld_stage *s, size_t i, size_t d,
                       kld_raw_weight *out);
void kld_reader_close(kld_reader *r); /* waits for a read in progress */

/* Host memory that pieces of any stage pass through; 0 when the device's is the host's. */
uint64_t kld_reader_host_bytes(const kld_model *m, const kld_schedule *schedule,
                               const kld_backend *be, size_t first);

KLD_EXTERN_C_END
#endif
