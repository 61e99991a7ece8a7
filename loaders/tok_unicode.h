/* loaders/tok_unicode.h - UTF-8, and the few Unicode facts that decide token ids but differ
 * between library versions.  Floor 1, private to the tokenizer.  Pure. */
#ifndef KLD_LOADERS_TOK_UNICODE_H
#define KLD_LOADERS_TOK_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True when the n bytes are well-formed UTF-8 (no surrogates, no overlong forms, nothing
 * above U+10FFFF); otherwise *bad is the offset of the first byte of the first defect. */
bool kld_utf8_valid(const void *text, size_t n, size_t *bad);

/* Code point at s and its length in bytes.  s must be the start of a well-formed sequence. */
size_t kld_utf8_get(const char *s, uint32_t *cp);
/* Write cp (below 0x110000) into dst[4]; returns the length. */
size_t kld_utf8_put(char *dst, uint32_t cp);
/* Offset of the code point that ends at `end`; end > 0. */
size_t kld_utf8_back(const char *s, size_t end);

/* The property White_Space.  It has not changed since Unicode 6.3. */
bool kld_uni_is_space(uint32_t cp);

/* Code points that came after Unicode 14 (which PCRE2 10.42 carries) and up to Unicode 16
 * (which the tokenizers' own regular expressions carry), by general category or script. */
typedef struct kld_uni_later {
    char name[12]; /* "Lu", "Nd", ... or "Han"; "M" stands for all marks */
    uint32_t lo, hi;
} kld_uni_later;
const kld_uni_later *kld_uni_later_table(size_t *n);

/* True for code points that the normalizer of Hugging Face `tokenizers` (Unicode 9) leaves
 * where they are while newer data would reorder or compose them. */
bool kld_uni_nfc_inert(uint32_t cp);

#endif
