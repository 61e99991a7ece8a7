/* loaders/classify_rows.h - the table behind kld_weight_classify.  Floor 1; used by classify*.c.
 * A format is a set of suffixes with dtypes; what shapes they have is a rule each, or, where
 * several tensors and the config must agree, the format's settle function. */
#ifndef KLD_LOADERS_CLASSIFY_ROWS_H
#define KLD_LOADERS_CLASSIFY_ROWS_H
#include "loaders/classify.h"

KLD_EXTERN_C_BEGIN

enum {
    KLD_DTYPES_FLOAT = 1u << KLD_BF16 | 1u << KLD_F16 | 1u << KLD_F32,
    KLD_DTYPES_ANY = ~0u >> 1
};

typedef enum kld_shape_rule {
    KLD_SHAPE_ANY,     /* settled later, or of no consequence */
    KLD_SHAPE_FULL,    /* [rows, cols], or [rows] for a vector */
    KLD_SHAPE_HALF,    /* [rows, cols/2]: two codes a byte */
    KLD_SHAPE_BLOCK16, /* [rows, cols/16] */
    KLD_SHAPE_BLOCK32, /* [rows, cols/32] */
    KLD_SHAPE_SCALAR,  /* [] or [1] */
    KLD_SHAPE_COLS,    /* [cols] */
} kld_shape_rule;

typedef enum kld_role {
    KLD_ROLE_NONE,
    KLD_ROLE_DATA,
    KLD_ROLE_SCALE,
    KLD_ROLE_GLOBAL,
    KLD_ROLE_INPUT,
    KLD_ROLE_ZEROS,
    KLD_ROLE_INDEX,
    KLD_ROLE_EXTENT,
    KLD_ROLE_PRE
} kld_role;

typedef struct kld_part_row {
    const char *suffix;
    unsigned dtypes; /* bit set of kld_dtype */
    kld_shape_rule shape;
    kld_role role;
    bool optional;
} kld_part_row;

enum { KLD_ROW_PARTS = 6 };

/* A format matches when every required part is there with a listed dtype and no other
 * suffix is.  The first match counts. */
typedef struct kld_format_row {
    kld_format format; /* settle may choose a sibling */
    bool divides;
    unsigned block; /* cols must be a multiple */
    /* Checks shapes the parts have only together, and sets format, blocks, groups and zero
     * points; NULL: the rules of the parts say all.  Errors as kld_weight_classify. */
    kld_status (*settle)(kld_weight *w, const char *prefix, const kld_expect *want, kld_err *err);
    kld_part_row part[KLD_ROW_PARTS];
} kld_format_row;

extern const kld_format_row kld_format_rows[];
extern const size_t kld_n_format_rows;

/* Known and not implemented; recognised by one telling part, or two. */
typedef struct kld_refused_row {
    const char *name, *suffix;
    const char *with; /* another suffix that must be there, or NULL */
    unsigned dtypes, with_dtypes;
} kld_refused_row;

extern const kld_refused_row kld_refused_rows[];
extern const size_t kld_n_refused_rows;

/* classify_fp8.c: F8_E4M3 codes with one scale tensor.  Its shape and dtype decide between one
 * scale, one a row, one a block (blocks from the config, else 128 x 128), and MXFP8. */
KLD_NODISCARD kld_status kld_settle_fp8(kld_weight *w, const char *prefix, const kld_expect *want,
                                        kld_err *err);
/* classify_int.c: integers of each layout. */
KLD_NODISCARD kld_status kld_settle_int8(kld_weight *w, const char *prefix, const kld_expect *want,
                                         kld_err *err);
KLD_NODISCARD kld_status kld_settle_packed(kld_weight *w, const char *prefix,
                                           const kld_expect *want, kld_err *err);
KLD_NODISCARD kld_status kld_settle_pairs(kld_weight *w, const char *prefix, const kld_expect *want,
                                          kld_err *err);
KLD_NODISCARD kld_status kld_settle_qweight(kld_weight *w, const char *prefix,
                                            const kld_expect *want, kld_err *err);

/* Elements of a tensor. */
size_t kld_tensor_elements(const kld_tensor *t);
/* Of that rank and, as far as it goes, [a, b]. */
bool kld_shape_is(const kld_tensor *t, unsigned rank, size_t a, size_t b);
/* "NAME: expected shape EXPECTED, found DTYPE [..]", KLD_E_INPUT. */
KLD_PRINTF(3, 4)
KLD_NODISCARD kld_status kld_wrong_shape(const kld_tensor *t, kld_err *err, const char *expected,
                                         ...);

KLD_EXTERN_C_END
#endif
