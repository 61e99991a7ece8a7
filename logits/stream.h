/* logits/stream.h - the residual stream of every token: FP32 [rows][cols] in host memory,
 * or in a spill file when it is larger than the budget.  Floor 2. */
#ifndef KLD_LOGITS_STREAM_H
#define KLD_LOGITS_STREAM_H
#include "kld/base/status.h"
#include "kld/base/system.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_stream {
    size_t rows, cols;
    float *mem; /* owned; NULL when spilled */
    kld_spill spill;
    float *stage; /* owned [stage_rows][cols]; NULL when in memory */
    size_t stage_rows;
    uint64_t bytes; /* of memory taken */
} kld_stream;

/* budget 0 = half of the free memory.  stage_rows: most rows of one call.
 * KLD_E_NOMEM; KLD_E_IO when the spill directory has no room. */
KLD_NODISCARD kld_status kld_stream_open(kld_stream *s, size_t rows, size_t cols, uint64_t budget,
                                         const char *spill_dir, size_t stage_rows, kld_err *err);
void kld_stream_close(kld_stream *s);

/* Rows [row0, row0+n): borrowed until the next call.  n <= stage_rows. */
KLD_NODISCARD kld_status kld_stream_get(kld_stream *s, size_t row0, size_t n, const float **rows,
                                        kld_err *err);
/* A place to write rows into; kld_stream_put with the same arguments makes them count. */
float *kld_stream_room(kld_stream *s, size_t row0);
KLD_NODISCARD kld_status kld_stream_put(kld_stream *s, size_t row0, size_t n, kld_err *err);

KLD_EXTERN_C_END
#endif
