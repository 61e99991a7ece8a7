/* loaders/tok_pattern.h - from the regular expressions of tokenizer.json to PCRE2's.
 * Floor 1, private to the tokenizer.  Pure apart from the buffer. */
#ifndef KLD_LOADERS_TOK_PATTERN_H
#define KLD_LOADERS_TOK_PATTERN_H
#include "kld/base/buf.h"
#include "kld/base/status.h"
#include <stddef.h>

/* Append a PCRE2 pattern (UTF, UCP, no other option) that matches exactly what Oniguruma's
 * Ruby syntax matches for `pattern` (n bytes of valid UTF-8).  The two differ in \s (U+180E),
 * in script properties, in the Unicode version behind \p{..}, in ${..}+ and in folding, so
 * only constructs whose meaning is known to agree, or can be written out, are accepted:
 *   literals, . $ | ( (?: (?i: (?= (?! (?> and greedy, lazy and possessive quantifiers;
 *   classes of literals, ranges and escapes, without nesting and &&;
 *   \s \S \d \D, \p{..} and \P{..} of a general category, Han, Hiragana, Katakana or Hangul
 *   (the negated ones outside classes only; \S also inside), \r \n \t \f \v, \xHH, \x{H..},
 *   \uHHHH, and any escaped ASCII punctuation.
 * Inside (?i: only ASCII without pairs that fold to one letter ("ss", "st", "ff", ...).
 * Groups do not capture.
 * KLD_E_UNSUPPORTED  anything else; the message has the construct and its byte offset.
 * KLD_E_INPUT        unbalanced or cut short. */
KLD_NODISCARD kld_status kld_tok_pattern(const char *pattern, size_t n, kld_buf *out, kld_err *err);

#endif
