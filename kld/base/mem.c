#include "kld/base/mem.h"

#include "kld/base/num.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, CHUNK_BYTES = 64 * 1024 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t size; /* payload bytes */
    size_t pad_[2];
    unsigned char data[];
};
_Static_assert(sizeof(struct arena_chunk) % 16 == 0, "arena blocks are 16-byte aligned");

/* Written by tests only; see kld_mem_fail_after. */
static size_t fail_countdown;

static int injected_failure(void) {
    if (fail_countdown == 0) return 0;
    if (fail_countdown == 1) return 1;
    fail_countdown--;
    return 0;
}

void kld_mem_fail_after(size_t n) { fail_countdown = n; }

static _Thread_local size_t raw_failures;

void *kld_mem_raw(size_t size) {
    void *p = injected_failure() ? NULL : malloc(size ? size : 1);
    if (!p) raw_failures++;
    return p;
}

size_t kld_mem_raw_failures(void) { return raw_failures; }

static kld_status no_memory(kld_err *err, size_t count, size_t size) {
    (void)kld_fail(err, KLD_E_NOMEM, "out of memory: %zu x %zu bytes were asked for", count, size);
    return KLD_E_NOMEM;
}

kld_status kld_calloc(void **out, size_t count, size_t size, kld_err *err) {
    *out = NULL;
    size_t n;
    if (!num_mul_size(count, size, &n) || n > SIZE_MAX - ALIGN) return no_memory(err, count, size);
    if (n == 0) return KLD_OK;
    size_t rounded = (n + ALIGN - 1) / ALIGN * ALIGN;
    void *p = injected_failure() ? NULL : aligned_alloc(ALIGN, rounded);
    if (!p) return no_memory(err, count, size);
    memset(p, 0, rounded);
    *out = p;
    return KLD_OK;
}

kld_status kld_realloc(void **ptr, size_t count, size_t size, kld_err *err) {
    size_t n;
    if (!num_mul_size(count, size, &n)) return no_memory(err, count, size);
    if (n == 0) n = 1;
    void *p = injected_failure() ? NULL : realloc(*ptr, n);
    if (!p) return no_memory(err, count, size);
    *ptr = p;
    return KLD_OK;
}

void kld_free(void *ptr) { free(ptr); }

void kld_mem_keep(void) {
    /* A refusal costs time only. */
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

kld_status kld_strndup(char **out, const char *s, size_t n, kld_err *err) {
    size_t bytes;
    *out = NULL;
    if (!num_add_size(n, 1, &bytes)) return no_memory(err, n, 1);
    TRY(kld_calloc((void **)out, bytes, 1, err));
    /* A size above 0 gave a block. */
    memcpy(*out, s, n); /* NOLINT(clang-analyzer-core.NonNullParamChecker) */
    return KLD_OK;
}

kld_status kld_strdup(char **out, const char *s, kld_err *err) {
    return kld_strndup(out, s, strlen(s), err);
}

kld_status kld_arena_alloc(kld_arena *a, void **out, size_t count, size_t size, kld_err *err) {
    *out = NULL;
    size_t n;
    if (!num_mul_size(count, size, &n) || n > SIZE_MAX / 2) return no_memory(err, count, size);
    n = num_max((n + 15) / 16 * 16, 16);
    if (!a->head || a->head->size - a->used < n) {
        size_t payload = num_max(n, CHUNK_BYTES);
        struct arena_chunk *c;
        TRY(kld_calloc((void **)&c, 1, sizeof *c + payload, err));
        c->size = payload; /* NOLINT(clang-analyzer-core.NullDereference) as above */
        c->next = a->head;
        a->head = c;
        a->used = 0;
    }
    *out = a->head->data + a->used;
    a->used += n;
    return KLD_OK;
}

kld_status kld_arena_strndup(kld_arena *a, char **out, const char *s, size_t n, kld_err *err) {
    size_t bytes;
    *out = NULL;
    if (!num_add_size(n, 1, &bytes)) return no_memory(err, n, 1);
    TRY(kld_arena_alloc(a, (void **)out, bytes, 1, err));
    memcpy(*out, s, n);
    return KLD_OK;
}

void kld_arena_free(kld_arena *a) {
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        kld_free(c);
    }
    a->head = NULL;
    a->used = 0;
}
