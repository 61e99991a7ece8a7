/* datasets/partition.h - parts of a suite that are kept apart: choosing one, and dividing clusters
 * among them.  Floor 1; may include kld/base only. */
#ifndef KLD_DATASETS_PARTITION_H
#define KLD_DATASETS_PARTITION_H
#include "datasets/suite.h"

KLD_EXTERN_C_BEGIN

#define KLD_QUALIFICATION "qualification" /* read once, so only when it is asked for */
#define KLD_ALL_PARTITIONS "all"
#define KLD_ALL_BUT_QUALIFICATION "all but qualification"

/* KLD_E_INPUT when one cluster is in two partitions: what was tuned on would leak into what
 * is reported. */
KLD_NODISCARD kld_status kld_suite_check_partitions(const kld_suite *s, kld_err *err);

/* KLD_E_INPUT for a name that means something else: "all", "all but qualification". */
KLD_NODISCARD kld_status kld_partition_check_name(const char *name, kld_err *err);

/* Keep only windows of one partition, in their order: `partition`, or with NULL all but those of
 * "qualification", or with "all" every one.  tokens and positions become sums of what is kept;
 * digest stays that of the whole suite, so a suite that was cut is not to be saved.
 * s->partition becomes what is held: "" = every window of the suite, whatever was asked; the name
 * where one partition is left; else "all but qualification".  *left_out (may be NULL) = windows
 * dropped.
 * KLD_E_USAGE  an empty name, or no window is in it (message lists those there are).
 * KLD_E_INPUT  NULL, and every window is of "qualification"; nothing that is kept is scored. */
KLD_NODISCARD kld_status kld_suite_select(kld_suite *s, const char *partition, size_t *left_out,
                                          kld_err *err);

/* Fail because none of n_windows is in the partition that was asked for; the message lists those
 * there are.  partition_of says the partition of window i, "" for none; its texts outlive the
 * call.  KLD_E_USAGE, KLD_E_NOMEM. */
KLD_NODISCARD kld_status kld_no_such_partition(const char *asked,
                                               const char *(*partition_of)(void *ctx, size_t i),
                                               void *ctx, size_t n_windows, kld_err *err);

enum { KLD_MAX_PARTS = 16 };

typedef struct kld_split {
    size_t n; /* 0 = none */
    struct {
        char name[64];
        double share; /* above 0; they add up to 1 */
    } part[KLD_MAX_PARTS];
} kld_split;

/* "analysis=0.75,qualification=0.25".  KLD_E_USAGE when it is not such, a name is empty, reserved
 * or there twice, or the shares do not add up to 1 (within 1e-6). */
KLD_NODISCARD kld_status kld_split_parse(kld_split *out, const char *text, kld_err *err);

/* Give a partition to every window without one; clusters stay whole.
 * A cluster belongs to the stratum in which it has most scored positions (ties: first by name).
 * It is fixed when a window of it has a partition, or `keep` (may be NULL) has it in one.  The
 * others of a stratum go in the order of SHA-256 over seed and name: each to the partition in
 * whose range the middle of its positions falls, ranges being what is missing of each share.  So
 * shares of positions are kept up to one cluster a border; a new cluster moves only those at a
 * border, and with `keep` none.
 * KLD_E_INPUT  a cluster has another partition in `keep` than its documents say. */
KLD_NODISCARD kld_status kld_suite_split(kld_suite *s, const kld_split *split, uint64_t seed,
                                         const kld_suite *keep, kld_err *err);

KLD_EXTERN_C_END
#endif
