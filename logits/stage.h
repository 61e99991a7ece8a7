/* logits/stage.h - the weights of a run in the order they are needed.  Floor 2.
 * A stage is what is on the device at a time: the embedding, a layer without its routed experts,
 * a group of a layer's experts, the head. */
#ifndef KLD_LOGITS_STAGE_H
#define KLD_LOGITS_STAGE_H
#include "kld/base/status.h"
#include "loaders/model.h"
#include "logits/backend.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

typedef enum kld_stage_kind {
    KLD_STAGE_EMBED,
    KLD_STAGE_LAYER,
    KLD_STAGE_EXPERTS, /* of the layer before */
    KLD_STAGE_HEAD     /* final norm and head */
} kld_stage_kind;

typedef struct kld_stage_key {
    kld_stage_kind kind;
    size_t layer;             /* config.layers for the head */
    size_t expert, n_experts; /* KLD_STAGE_EXPERTS: first one, how many */
} kld_stage_key;

/* Experts of a layer go into equal groups that store at most `group_bytes` (and hold an expert at
 * least); with `group` > 0, into groups of that many whatever their size. */
typedef struct kld_schedule {
    kld_stage_key *stage; /* owned [n] */
    size_t n;
} kld_schedule;
KLD_NODISCARD kld_status kld_schedule_make(kld_schedule *s, const kld_model *m,
                                           uint64_t group_bytes, size_t group, kld_err *err);
void kld_schedule_free(kld_schedule *s);
/* First stage of a layer; of the head when layer is config.layers. */
size_t kld_schedule_layer(const kld_schedule *s, size_t layer);

typedef struct kld_stage_weight {
    const kld_weight *w;
    kld_slot slot;
    size_t expert; /* of an expert's slot, counted from the group's first */
    kld_use use;
    uint64_t at[KLD_PART_COUNT]; /* of its parts in the stage's memory */
    float alpha, global;         /* filled by reading: see kld_raw_weight */
} kld_stage_weight;

/* Walks over the weights of a stage; begin with *at 0.  False at the end; at[], alpha and global of
 * *out are unset. */
bool kld_stage_next(const kld_model *m, const kld_stage_key *key, size_t *at,
                    kld_stage_weight *out);

typedef struct kld_stage {
    kld_stage_key key;
    size_t n;
    kld_stage_weight *weight; /* borrowed [n] */
    uint64_t raw_bytes;       /* of memory, every part padded to 256 */
    uint64_t bytes;           /* stored */
    /* Filled by reading: */
    uint64_t nonfinite;           /* NaN or Inf among dense values */
    uint64_t zero_blocks, blocks; /* kld_weight_zero_blocks, of NVFP4 blocks */
} kld_stage;

/* Fills *out; room holds its weights (see kld_schedule_weights), or is NULL for the sizes alone. */
void kld_stage_of(const kld_model *m, const kld_stage_key *key, kld_stage_weight *room,
                  kld_stage *out);

/* Device memory that holds any two neighbouring stages from `first` on. */
uint64_t kld_schedule_pair_bytes(const kld_model *m, const kld_schedule *s, size_t first);
/* Weights of the stage that has most of them, from `first` on. */
size_t kld_schedule_weights(const kld_model *m, const kld_schedule *s, size_t first);

KLD_EXTERN_C_END
#endif
