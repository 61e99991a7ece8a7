/* logits/resid.h - checkpoints of the residual stream, for resuming a run.  Floor 2.
 *
 * A file `layer-0012.resid` in the state directory says: every window is through 12 layers,
 * and the first `windows` of them through the 13th too.  Layout, little-endian:
 *     "kldresid"  u32 version = 1  u32 layer  u64 windows  u64 rows  u64 cols
 *     run_id[32]  f32 [rows][cols]  sha256[32] of everything before
 * Written beside its name and renamed, so a file is whole or absent; its digest is checked
 * before it is used.  Only the newest is kept. */
#ifndef KLD_LOGITS_RESID_H
#define KLD_LOGITS_RESID_H
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "logits/stream.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_resid_mark {
    size_t layer, windows;
} kld_resid_mark;

/* All rows of a run in order: consecutive rows of one stream, then of the next. */
typedef struct kld_resid_part {
    kld_stream *stream;
    size_t row0, n;
} kld_resid_part;
typedef struct kld_resid_rows {
    const kld_resid_part *part; /* [n] */
    size_t n, rows, cols;       /* rows: the sum over the parts */
} kld_resid_rows;

/* Save and then remove older ones.  KLD_E_IO, KLD_E_NOMEM; what was there stays. */
KLD_NODISCARD kld_status kld_resid_save(const char *dir, const kld_digest *run_id,
                                        kld_resid_mark mark, const kld_resid_rows *rows,
                                        kld_err *err);

/* Load the newest whole checkpoint into the rows.  *found false when there is none: damaged ones
 * are passed over with a note, and the rows then hold nothing of use and *mark is untouched.
 * KLD_E_INPUT  a checkpoint of another run (run_id), or of other shapes under this one's id. */
KLD_NODISCARD kld_status kld_resid_load(const char *dir, const kld_digest *run_id,
                                        const kld_resid_rows *rows, kld_resid_mark *mark,
                                        bool *found, kld_err *err);

KLD_EXTERN_C_END
#endif
