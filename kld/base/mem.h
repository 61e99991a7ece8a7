/* kld/base/mem.h - checked allocation and arenas.  Floor 0.
 * The only place that calls malloc and friends, so that a test can make the n-th
 * allocation of a run fail. */
#ifndef KLD_BASE_MEM_H
#define KLD_BASE_MEM_H
#include "kld/base/status.h"
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* Owned block of count*size bytes, zeroed, 64-byte aligned.  *out is NULL on error
 * and for a zero size.
 * KLD_E_NOMEM  the product overflows, the system refuses, or a test injected a failure
 *              (the message says how many bytes were asked for). */
KLD_NODISCARD kld_status kld_calloc(void **out, size_t count, size_t size, kld_err *err);

/* Grow or shrink an owned block obtained here to count*size bytes; *ptr may be NULL.
 * Bytes past the old size are NOT zeroed; 16-byte aligned only.  On error *ptr is unchanged. */
KLD_NODISCARD kld_status kld_realloc(void **ptr, size_t count, size_t size, kld_err *err);

/* Release; NULL is allowed. */
void kld_free(void *ptr);

/* From now on, blocks of up to 32 MiB that are released stay with the program: for work that asks
 * for the same large blocks again and again, whose pages the system would otherwise take back and
 * clear each time. */
void kld_mem_keep(void);

/* Owned copy of a string of n bytes, NUL-terminated. */
KLD_NODISCARD kld_status kld_strndup(char **out, const char *s, size_t n, kld_err *err);
KLD_NODISCARD kld_status kld_strdup(char **out, const char *s, kld_err *err);

/* Typed convenience: NEW_ARRAY(&p, n, err). */
#define NEW_ARRAY(pp, n, err) kld_calloc((void **)(pp), (n), sizeof **(pp), (err))

/* Test hook: the n-th allocation from now (1 = the next) fails, and so do all after
 * it; 0 turns the hook off.  Not thread-safe; for single-threaded tests. */
void kld_mem_fail_after(size_t n);

/* For a library that brings its own error codes (jansson, see json.c): plain allocation
 * under the same hook, NULL on failure; release with kld_free.  The count of failures on
 * this thread tells "out of memory" from the library's other errors. */
void *kld_mem_raw(size_t size);
size_t kld_mem_raw_failures(void);

/* Arena: many small blocks with one lifetime. */
typedef struct kld_arena {
    struct arena_chunk *head; /* newest chunk; NULL when empty */
    size_t used;              /* bytes handed out in the newest chunk */
} kld_arena;

/* Zeroed block, 16-byte aligned, freed with the arena.  A zero size gives a valid
 * non-NULL pointer.  KLD_E_NOMEM as kld_calloc. */
KLD_NODISCARD kld_status kld_arena_alloc(kld_arena *a, void **out, size_t count, size_t size,
                                         kld_err *err);
KLD_NODISCARD kld_status kld_arena_strndup(kld_arena *a, char **out, const char *s, size_t n,
                                           kld_err *err);
#define ARENA_ARRAY(a, pp, n, err) kld_arena_alloc((a), (void **)(pp), (n), sizeof **(pp), (err))

/* Release every block; the arena is empty and usable again. */
void kld_arena_free(kld_arena *a);

KLD_EXTERN_C_END
#endif
