/* kld/base/status.h - status codes and the error text that travels with them.
 * Floor 0.  No state: the error object is the caller's. */
#ifndef KLD_BASE_STATUS_H
#define KLD_BASE_STATUS_H
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
#define KLD_EXTERN_C_BEGIN extern "C" {
#define KLD_EXTERN_C_END }
#else
#define KLD_EXTERN_C_BEGIN
#define KLD_EXTERN_C_END
#endif
#define KLD_NODISCARD __attribute__((warn_unused_result))
#define KLD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

KLD_EXTERN_C_BEGIN

/* The value decides the exit code of the program (kld_exit_code). */
typedef enum kld_status {
    KLD_OK = 0,
    KLD_E_USAGE,       /* the command line is wrong                        exit 2 */
    KLD_E_INPUT,       /* a file is missing, damaged or does not match     exit 3 */
    KLD_E_NUMERIC,     /* a value that must be finite is not               exit 3 */
    KLD_E_UNSUPPORTED, /* model family, format or option not implemented   exit 4 */
    KLD_E_NOMEM,       /* host or device memory exhausted                  exit 5 */
    KLD_E_IO,          /* read, write or disk-full error from the system   exit 5 */
    KLD_E_DEVICE,      /* accelerator or driver error                      exit 5 */
    KLD_E_GATE,        /* done, but a --fail-above gate failed             exit 1 */
    KLD_E_INTERRUPTED, /* SIGINT or SIGTERM                                exit 130 */
    KLD_E_INTERNAL     /* a bug in kld                                     exit 70 */
} kld_status;

/* One line, no trailing newline.  The frame that knows the cause writes it with
 * kld_fail; callers may only put a place in front of it with kld_where. */
typedef struct kld_err {
    kld_status status;
    char text[1024];
} kld_err;

/* Write the message and return `status`.  err may be NULL.  Overwrites what was
 * there: call it only where the failure is first seen.  Control characters in the
 * formatted text are replaced by '?', so names from a hostile file are safe to print. */
KLD_PRINTF(3, 4) kld_status kld_fail(kld_err *err, kld_status status, const char *fmt, ...);

/* Put "place: " in front of the message and return `status` unchanged.  A no-op
 * when status is KLD_OK or err is NULL. */
KLD_PRINTF(3, 4) kld_status kld_where(kld_err *err, kld_status status, const char *fmt, ...);

/* Characters that could move the cursor or recolour a terminal: C0, DEL, C1 in UTF-8.  Text of
 * others is blanked ('?' a byte) before a person sees it. */
bool kld_has_controls(const char *s);
void kld_blank_controls(char *s);

/* Exit code of the program for a status (design section 5). */
int kld_exit_code(kld_status status);

KLD_EXTERN_C_END

/* Leave the function, or jump to a cleanup label, on failure.  TRY_TO needs a
 * `kld_status st` in scope. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        kld_status try_st_ = (expr);                                                               \
        if (try_st_ != KLD_OK) return try_st_;                                                     \
    } while (0)
#define TRY_TO(label, expr)                                                                        \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != KLD_OK) goto label;                                                              \
    } while (0)

#endif
