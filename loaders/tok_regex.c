#define PCRE2_CODE_UNIT_WIDTH 8
#include "loaders/tok_regex.h"

#include "kld/base/buf.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "loaders/tok_pattern.h"
#include "loaders/tok_unicode.h"

#include <pcre2.h>

enum {
    STACK_START = 32 * 1024,
    STACK_MAX = 16 * 1024 * 1024,
    STEPS_MIN = 10 * 1000 * 1000,
    STEPS_PER_BYTE = 64,
    HEAP_MAX_KIB = 1024 * 1024
};

struct kld_tok_regex {
    pcre2_code *code;
};

static void *regex_alloc(size_t n, void *unused) {
    (void)unused;
    return kld_mem_raw(n);
}

static void regex_free(void *p, void *unused) {
    (void)unused;
    kld_free(p);
}

static kld_status no_memory(kld_err *err) {
    return kld_fail(err, KLD_E_NOMEM, "out of memory for a regular expression");
}

static kld_status compile(pcre2_code **code, const kld_buf *pattern, bool literal, kld_err *err) {
    pcre2_general_context *general = pcre2_general_context_create(regex_alloc, regex_free, NULL);
    pcre2_compile_context *ctx = general ? pcre2_compile_context_create(general) : NULL;
    int code_nr = 0;
    PCRE2_SIZE at = 0;
    if (ctx) {
        pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
        uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
        *code = pcre2_compile(pattern->data, pattern->len, options, &code_nr, &at, ctx);
    }
    pcre2_compile_context_free(ctx);
    pcre2_general_context_free(general);
    if (*code) return KLD_OK;
    if (!ctx || code_nr == PCRE2_ERROR_HEAP_FAILED) return no_memory(err);
    PCRE2_UCHAR text[256] = "";
    pcre2_get_error_message(code_nr, text, sizeof text);
    return kld_fail(err, KLD_E_UNSUPPORTED, "regular expression '%.200s': %s",
                    (const char *)pattern->data, (const char *)text);
}

static kld_status make(kld_tok_regex **out, const kld_buf *pattern, bool literal, kld_err *err) {
    kld_tok_regex *re;
    if (!pattern->len)
        return kld_fail(err, KLD_E_UNSUPPORTED, "an empty split pattern is not implemented");
    TRY(kld_calloc((void **)&re, 1, sizeof *re, err));
    kld_status st = compile(&re->code, pattern, literal, err);
    if (st != KLD_OK) {
        kld_tok_regex_free(re);
        return st;
    }
    /* Where the system grants no executable memory the interpreter gives the same matches. */
    (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    *out = re;
    return KLD_OK;
}

kld_status kld_tok_regex_new(kld_tok_regex **out, const char *pattern, size_t n, bool literal,
                             kld_err *err) {
    kld_buf b = {.max = 1 << 20};
    *out = NULL;
    kld_status st =
        literal ? kld_buf_add(&b, pattern, n, err) : kld_tok_pattern(pattern, n, &b, err);
    if (st == KLD_OK) st = make(out, &b, literal, err);
    kld_buf_free(&b);
    return st;
}

kld_status kld_tok_regex_word(kld_tok_regex **out, kld_err *err) {
    kld_buf b = {0};
    *out = NULL;
    /* Alphabetic is not a general category; letters and marks newer than PCRE2 come in
     * through the translated class. */
    static const char classes[] = "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}]";
    kld_status st = kld_tok_pattern(classes, sizeof classes - 1, &b, err);
    if (st == KLD_OK) st = kld_buf_adds(&b, "|[\\p{Alphabetic}\\p{Join_Control}]", err);
    if (st == KLD_OK) st = make(out, &b, false, err);
    kld_buf_free(&b);
    return st;
}

void kld_tok_regex_free(kld_tok_regex *re) {
    if (!re) return;
    pcre2_code_free(re->code);
    kld_free(re);
}

kld_status kld_tok_matcher_init(kld_tok_matcher *m, size_t max_bytes, kld_err *err) {
    *m = (kld_tok_matcher){0};
    m->general = pcre2_general_context_create(regex_alloc, regex_free, NULL);
    if (m->general) {
        m->match = pcre2_match_context_create(m->general);
        m->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, m->general);
        m->data = pcre2_match_data_create(1, m->general);
    }
    if (!m->match || !m->stack || !m->data) {
        kld_tok_matcher_free(m);
        return no_memory(err);
    }
    pcre2_jit_stack_assign(m->match, NULL, m->stack);
    size_t steps = num_min(max_bytes, UINT32_MAX / STEPS_PER_BYTE) * STEPS_PER_BYTE;
    pcre2_set_match_limit(m->match, (uint32_t)num_max(steps, STEPS_MIN));
    pcre2_set_heap_limit(m->match, HEAP_MAX_KIB);
    return KLD_OK;
}

void kld_tok_matcher_free(kld_tok_matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_jit_stack_free(m->stack);
    pcre2_match_context_free(m->match);
    pcre2_general_context_free(m->general);
    *m = (kld_tok_matcher){0};
}

static kld_status match_failed(int code, size_t at, kld_err *err) {
    if (code == PCRE2_ERROR_NOMEMORY) return no_memory(err);
    PCRE2_UCHAR text[256] = "";
    pcre2_get_error_message(code, text, sizeof text);
    return kld_fail(err, KLD_E_INPUT, "pre-tokenizer pattern gave up at byte %zu of a piece: %s",
                    at, (const char *)text);
}

kld_status kld_tok_regex_next(const kld_tok_regex *re, kld_tok_matcher *m, const char *text,
                              size_t n, kld_tok_walk *w, bool *found, kld_err *err) {
    *found = false;
    while (w->from <= n) {
        int rc = pcre2_match(re->code, (PCRE2_SPTR)text, n, w->from, PCRE2_NO_UTF_CHECK, m->data,
                             m->match);
        if (rc == PCRE2_ERROR_NOMATCH) return KLD_OK;
        if (rc < 0) return match_failed(rc, w->from, err);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        size_t start = at[0], end = at[1];
        if (start == end && w->any && w->last_end == end) {
            uint32_t cp;
            w->from += w->from < n ? kld_utf8_get(text + w->from, &cp) : 1;
            continue;
        }
        w->start = start;
        w->end = w->from = w->last_end = end;
        w->any = *found = true;
        return KLD_OK;
    }
    return KLD_OK;
}
