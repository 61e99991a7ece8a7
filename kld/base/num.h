/* kld/base/num.h - checked integer arithmetic.  Floor 0.
 * Each function stores the exact result and returns true, or returns false when it
 * does not fit; *out is then unspecified. */
#ifndef KLD_BASE_NUM_H
#define KLD_BASE_NUM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool num_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool num_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool num_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool num_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline size_t num_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t num_max(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t num_cdiv(size_t a, size_t b) { return a / b + (a % b != 0); }

#endif
