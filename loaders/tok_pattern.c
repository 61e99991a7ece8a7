#include "loaders/tok_pattern.h"

#include "loaders/tok_unicode.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_GROUPS = 32, MAX_REPEAT = 1000 };

/* White_Space written out, and its complement: PCRE2's \s also takes U+180E. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"                               \
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"         \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"        \
    "\\x{3001}-\\x{10ffff}"

typedef enum atom {
    ATOM_NONE,   /* start of an alternative, or something of width 0 */
    ATOM_OTHER,  /* may be followed by anything */
    ATOM_LETTER, /* ASCII letter under (?i: */
    ATOM_CLASS   /* class under (?i: */
} atom;

typedef struct parser {
    const char *s;
    size_t n, pos;
    unsigned depth; /* open groups */
    bool fold;      /* inside (?i: */
    atom before;    /* the atom before this one in the same alternative */
    uint32_t letter;
    kld_buf *out;
    kld_err *err;
} parser;

static kld_status refuse(parser *p, size_t at, const char *what) {
    return kld_fail(p->err, KLD_E_UNSUPPORTED,
                    "regular expression: %s at byte %zu of '%.200s' is not implemented", what, at,
                    p->s);
}

static kld_status broken(parser *p, const char *what) {
    return kld_fail(p->err, KLD_E_INPUT, "regular expression: %s at byte %zu of '%.200s'", what,
                    p->pos, p->s);
}

static int peek(const parser *p, size_t ahead) {
    return p->n - p->pos > ahead ? (unsigned char)p->s[p->pos + ahead] : -1;
}

static bool looking_at(const parser *p, const char *s) {
    size_t n = strlen(s);
    return p->n - p->pos >= n && memcmp(p->s + p->pos, s, n) == 0;
}

static bool is_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

static int hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 0 && (c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* Up to `max` hex digits; false if there are fewer than `min`. */
static bool hex(parser *p, size_t min, size_t max, uint32_t *v) {
    size_t k = 0;
    *v = 0;
    for (int d; k < max && (d = hex_digit(peek(p, 0))) >= 0; k++, p->pos++)
        *v = *v * 16 + (uint32_t)d;
    return k >= min;
}

/* The rest of an escape that stands for one code point; the backslash and the letter c have
 * been read.  *ok is false when it is not such an escape. */
static kld_status escaped_point(parser *p, int c, uint32_t *cp, bool *ok) {
    static const char from[] = "rntfv", to[] = "\r\n\t\f\v";
    const char *at = c > 0 ? strchr(from, c) : NULL;
    *ok = true;
    if (at) {
        *cp = (uint32_t)to[at - from];
    } else if (c == 'u') {
        if (!hex(p, 4, 4, cp)) return broken(p, "bad \\u escape");
    } else if (c == 'x' && peek(p, 0) == '{') {
        p->pos++;
        if (!hex(p, 1, 6, cp) || peek(p, 0) != '}') return broken(p, "bad \\x{} escape");
        p->pos++;
    } else if (c == 'x') {
        /* \x80 and up would be a lone byte of UTF-8. */
        if (!hex(p, 2, 2, cp) || *cp > 0x7f) return broken(p, "bad \\x escape");
    } else if (c > 32 && c < 127 && !is_letter((uint32_t)c) && !(c >= '0' && c <= '9')) {
        *cp = (uint32_t)c;
    } else {
        *ok = false;
        return KLD_OK;
    }
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000)) return broken(p, "no such code point");
    return KLD_OK;
}

/* Items of a class: \p{name} and what PCRE2's Unicode version does not know of it. */
static kld_status property_items(parser *p, const char *name, size_t len) {
    static const char *const known[] = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",   "Nd",       "Nl",       "No",    "P",
        "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",   "Sm",       "Sc",       "Sk",    "So",
        "Z",  "Zs", "Zl", "Zp", NULL, NULL, NULL, "Han", "Hiragana", "Katakana", "Hangul"};
    size_t n_known = sizeof known / sizeof *known, k = 0, n_later;
    while (k < n_known && !(known[k] && strlen(known[k]) == len && !memcmp(known[k], name, len)))
        k++;
    if (k == n_known) return refuse(p, (size_t)(name - p->s), "this property");
    const char *script = len > 2 ? "sc:" : "";
    TRY(kld_buf_addf(p->out, p->err, "\\p{%s%s}", script, known[k]));
    const kld_uni_later *later = kld_uni_later_table(&n_later);
    for (size_t i = 0; i < n_later; i++) {
        bool is_script = strlen(later[i].name) > 2;
        bool match = len == 1 ? !is_script && later[i].name[0] == name[0]
                              : strcmp(later[i].name, known[k]) == 0;
        if (match) TRY(kld_buf_addf(p->out, p->err, "\\x{%x}-\\x{%x}", later[i].lo, later[i].hi));
    }
    return KLD_OK;
}

/* \p{..} and \P{..}; the letter has been read.  Writes class items; *negated if they are to
 * be complemented. */
static kld_status property(parser *p, int c, bool *negated) {
    *negated = c == 'P';
    if (peek(p, 0) != '{') return refuse(p, p->pos, "a property without braces");
    p->pos++;
    if (peek(p, 0) == '^') {
        *negated = !*negated;
        p->pos++;
    }
    size_t start = p->pos;
    while (peek(p, 0) >= 0 && peek(p, 0) != '}') p->pos++;
    if (peek(p, 0) < 0) return broken(p, "unterminated property");
    p->pos++;
    return property_items(p, p->s + start, p->pos - 1 - start);
}

/* Class items of an escape that stands for a set; c has been read. */
static kld_status set_items(parser *p, int c, bool *negated) {
    size_t at = p->pos;
    *negated = false;
    switch (c) {
    case 's': return kld_buf_adds(p->out, SPACES, p->err);
    case 'S': return kld_buf_adds(p->out, NOT_SPACES, p->err);
    case 'D': *negated = true; return property_items(p, "Nd", 2);
    case 'd': return property_items(p, "Nd", 2);
    case 'p':
    case 'P': return property(p, c, negated);
    default: break;
    }
    return c < 0 ? broken(p, "a pattern that ends in a backslash") : refuse(p, at, "this escape");
}

static kld_status class_item(parser *p, bool negated_class, bool *range_ok) {
    uint32_t lo, hi;
    bool point = true, negated;
    size_t at = p->pos;
    *range_ok = false;
    p->pos += kld_utf8_get(p->s + p->pos, &lo);
    if (lo == '[') return refuse(p, at, "a class inside a class");
    if (lo == '&' && peek(p, 0) == '&') return refuse(p, at, "&&");
    if (lo == '\\') {
        int c = peek(p, 0);
        p->pos += c >= 0;
        TRY(escaped_point(p, c, &lo, &point));
        if (!point) {
            if (p->fold) return refuse(p, at, "a set inside (?i:");
            TRY(set_items(p, c, &negated));
            return negated ? refuse(p, at, "a negated set inside a class") : KLD_OK;
        }
    } else if (lo == '-' && at > 0 && p->s[at - 1] != '[' && p->s[at - 1] != '^' &&
               peek(p, 0) != ']') {
        return refuse(p, at, "a hyphen in the middle of a class");
    }
    hi = lo;
    if (peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) >= 0) {
        p->pos++;
        at = p->pos;
        p->pos += kld_utf8_get(p->s + p->pos, &hi);
        if (hi == '[') return refuse(p, at, "a class inside a class");
        if (hi == '\\') {
            int c = peek(p, 0);
            p->pos += c >= 0;
            TRY(escaped_point(p, c, &hi, &point));
            if (!point) return refuse(p, at, "a range that ends in a set");
        }
        if (hi < lo) return broken(p, "a range whose end is before its start");
    }
    if (p->fold && (hi > 0x7f || negated_class))
        return refuse(p, at, "a class that is negated or not ASCII inside (?i:");
    return hi == lo ? kld_buf_addf(p->out, p->err, "\\x{%x}", lo)
                    : kld_buf_addf(p->out, p->err, "\\x{%x}-\\x{%x}", lo, hi);
}

static kld_status char_class(parser *p) {
    bool negated = false, range_ok;
    size_t at = p->pos++;
    if (peek(p, 0) == '^') {
        negated = true;
        p->pos++;
    }
    if (peek(p, 0) == ']') return refuse(p, at, "an empty class, or one that begins with ]");
    TRY(kld_buf_adds(p->out, negated ? "[^" : "[", p->err));
    while (peek(p, 0) >= 0 && peek(p, 0) != ']') TRY(class_item(p, negated, &range_ok));
    if (peek(p, 0) < 0) return broken(p, "unterminated class");
    p->pos++;
    if (p->fold && (p->before == ATOM_LETTER || p->before == ATOM_CLASS))
        return refuse(p, at, "a class after a letter or a class inside (?i:");
    p->before = p->fold ? ATOM_CLASS : ATOM_OTHER;
    return kld_buf_adds(p->out, "]", p->err);
}

/* Oniguruma lets one letter match a pair that folds to it (U+00DF for "ss", U+FB00 to U+FB06
 * for the others); PCRE2 does not. */
static bool folds_to_one(uint32_t a, uint32_t b) {
    a |= 32, b |= 32;
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static kld_status literal(parser *p, size_t at, uint32_t cp) {
    if (p->fold) {
        if (cp > 0x7f) return refuse(p, at, "a letter that is not ASCII inside (?i:");
        bool letter = is_letter(cp);
        if (letter &&
            (p->before == ATOM_CLASS || (p->before == ATOM_LETTER && folds_to_one(p->letter, cp))))
            return refuse(p, at, "a pair that may fold to one letter inside (?i:");
        p->before = letter ? ATOM_LETTER : ATOM_OTHER;
        p->letter = cp;
    } else {
        p->before = ATOM_OTHER;
    }
    return kld_buf_addf(p->out, p->err, "\\x{%x}", cp);
}

static kld_status alternatives(parser *p);

static kld_status group(parser *p) {
    static const struct {
        const char *in, *out;
    } kinds[] = {{"(?:", "(?:"}, {"(?=", "(?="},   {"(?!", "(?!"},
                 {"(?>", "(?>"}, {"(?i:", "(?i:"}, {"(", "(?:"}};
    size_t at = p->pos, k = 0;
    while (!looking_at(p, kinds[k].in)) k++;
    p->pos += strlen(kinds[k].in);
    if (k == 5 && (peek(p, 0) == '?' || peek(p, 0) == '*'))
        return refuse(p, at, "this kind of group");
    if (p->depth == MAX_GROUPS) return refuse(p, at, "nesting this deep");
    if (p->fold) return refuse(p, at, "a group inside (?i:");
    p->depth++;
    p->fold = k == 4;
    TRY(kld_buf_adds(p->out, kinds[k].out, p->err));
    TRY(alternatives(p));
    if (peek(p, 0) != ')') return broken(p, "unterminated group");
    p->pos++;
    p->depth--;
    p->fold = false;
    p->before = ATOM_OTHER;
    return kld_buf_adds(p->out, ")", p->err);
}

static kld_status escape(parser *p) {
    size_t at = p->pos++;
    uint32_t cp;
    bool point, negated;
    int c = peek(p, 0);
    p->pos += c >= 0;
    TRY(escaped_point(p, c, &cp, &point));
    if (point) return literal(p, at, cp);
    if (p->fold) return refuse(p, at, "a set inside (?i:");
    size_t start = p->out->len;
    TRY(kld_buf_adds(p->out, "[ ", p->err));
    TRY(set_items(p, c, &negated));
    /* The place after the bracket is a caret or, as in "[[", harmless: drop it. */
    if (negated) {
        p->out->data[start + 1] = '^';
    } else {
        memmove(p->out->data + start + 1, p->out->data + start + 2, p->out->len - start - 2);
        p->out->len--;
    }
    p->before = ATOM_OTHER;
    return kld_buf_adds(p->out, "]", p->err);
}

static bool number(parser *p, unsigned *v) {
    size_t start = p->pos;
    *v = 0;
    for (int c; (c = peek(p, 0)) >= '0' && c <= '9' && *v <= MAX_REPEAT; p->pos++)
        *v = *v * 10 + (unsigned)(c - '0');
    return p->pos > start;
}

/* An optional quantifier, with its lazy or possessive mark. */
static kld_status quantifier(parser *p) {
    int c = peek(p, 0);
    size_t at = p->pos;
    bool interval = c == '{', exact = false;
    if (c != '*' && c != '+' && c != '?' && !interval) return KLD_OK;
    if (p->fold && p->before != ATOM_OTHER) return refuse(p, at, "a repeated letter inside (?i:");
    p->pos++;
    if (interval) {
        unsigned lo = 0, hi = 0;
        bool has_lo = number(p, &lo), comma = peek(p, 0) == ',';
        p->pos += comma;
        bool has_hi = comma && number(p, &hi);
        if (peek(p, 0) != '}' || !(has_lo || has_hi)) return refuse(p, at, "this use of {");
        p->pos++;
        exact = !comma;
        if (lo > MAX_REPEAT || hi > MAX_REPEAT || (has_hi && hi < lo))
            return refuse(p, at, "this repeat count");
        TRY(kld_buf_addf(p->out, p->err, "{%u%s", lo, comma ? "," : ""));
        TRY(has_hi ? kld_buf_addf(p->out, p->err, "%u}", hi) : kld_buf_adds(p->out, "}", p->err));
    } else {
        char text[2] = {(char)c, 0};
        TRY(kld_buf_adds(p->out, text, p->err));
    }
    c = peek(p, 0);
    /* In Ruby's syntax {n,m}+ repeats the repeat and {n}? makes it optional. */
    if (interval && (c == '+' || (exact && c == '?'))) return refuse(p, p->pos, "{..} with + or ?");
    if (c == '?' || c == '+') {
        TRY(kld_buf_adds(p->out, c == '?' ? "?" : "+", p->err));
        p->pos++;
        c = peek(p, 0);
    }
    if (c == '*' || c == '+' || c == '?' || c == '{') return refuse(p, p->pos, "a repeated repeat");
    return KLD_OK;
}

static kld_status one_atom(parser *p, bool *repeatable) {
    size_t at = p->pos;
    uint32_t cp;
    int c = peek(p, 0);
    *repeatable = true;
    switch (c) {
    case '(': *repeatable = !looking_at(p, "(?=") && !looking_at(p, "(?!"); return group(p);
    case '[': return char_class(p);
    case '\\': return escape(p);
    case '.':
        if (p->fold) return refuse(p, at, "a set inside (?i:");
        p->pos++;
        p->before = ATOM_OTHER;
        return kld_buf_adds(p->out, "[^\\x{a}]", p->err);
    case '$':
        /* Ruby's $ stands before any newline and at the end. */
        *repeatable = false;
        p->pos++;
        return kld_buf_adds(p->out, "(?![^\\x{a}])", p->err);
    case '^':
    case '*':
    case '+':
    case '?':
    case '{': return refuse(p, at, "^, or a repeat of nothing,");
    default: break;
    }
    p->pos += kld_utf8_get(p->s + p->pos, &cp);
    return literal(p, at, cp);
}

static kld_status alternatives(parser *p) {
    p->before = ATOM_NONE;
    for (int c; (c = peek(p, 0)) >= 0 && c != ')';) {
        bool repeatable;
        if (c == '|') {
            TRY(kld_buf_adds(p->out, "|", p->err));
            p->pos++;
            p->before = ATOM_NONE;
            continue;
        }
        TRY(one_atom(p, &repeatable));
        c = peek(p, 0);
        if (!repeatable && (c == '*' || c == '+' || c == '?' || c == '{'))
            return refuse(p, p->pos, "a repeated assertion");
        TRY(quantifier(p));
    }
    return KLD_OK;
}

kld_status kld_tok_pattern(const char *pattern, size_t n, kld_buf *out, kld_err *err) {
    parser p = {.s = pattern, .n = n, .out = out, .err = err};
    TRY(alternatives(&p));
    return p.pos < n ? broken(&p, "unmatched )") : KLD_OK;
}
