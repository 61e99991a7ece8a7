#include "loaders/tok_split.h"

#include "kld/base/mem.h"

#include <string.h>

/* The pattern that GPT-2's encoder splits with. */
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

kld_status kld_tok_split_add(kld_tok_split *s, const char *pattern, size_t n, bool literal,
                             kld_tok_behavior behavior, bool invert, kld_err *err) {
    if (s->byte_level)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "a pre-tokenizer after ByteLevel is not implemented");
    if (s->n == KLD_TOK_MAX_STAGES)
        return kld_fail(err, KLD_E_UNSUPPORTED, "more than %d pre-tokenizers in a row",
                        KLD_TOK_MAX_STAGES);
    kld_tok_stage *stage = &s->stage[s->n];
    *stage =
        (kld_tok_stage){.n_pattern = n, .literal = literal, .invert = invert, .behavior = behavior};
    s->n++; /* whatever is made from here on, kld_tok_split_free releases */
    TRY(kld_strndup(&stage->pattern, pattern, n, err));
    return kld_tok_regex_new(&stage->re, pattern, n, literal, err);
}

kld_status kld_tok_split_byte_level(kld_tok_split *s, bool prefix_space, bool use_regex,
                                    kld_err *err) {
    size_t at = s->n;
    if (use_regex)
        TRY(kld_tok_split_add(s, gpt2, sizeof gpt2 - 1, false, KLD_TOK_ISOLATED, false, err));
    else if (s->byte_level)
        return kld_fail(err, KLD_E_UNSUPPORTED, "ByteLevel twice is not implemented");
    s->byte_level = true;
    s->prefix_space = prefix_space;
    s->prefix_at = at;
    return KLD_OK;
}

void kld_tok_split_free(kld_tok_split *s) {
    for (size_t i = 0; i < s->n; i++) {
        kld_tok_regex_free(s->stage[i].re);
        kld_free(s->stage[i].pattern);
    }
    *s = (kld_tok_split){0};
}

typedef struct run {
    const kld_tok_split *split;
    kld_tok_matcher *matcher;
    kld_buf *scratch;
    kld_tok_piece_fn fn;
    void *arg;
    kld_err *err;
} run;

/* Spans of one stage on their way to the next: matches and gaps come in order, and the last
 * one is held back while a neighbour may still be glued to it. */
typedef struct fold {
    const char *text;
    size_t stage;
    bool held, previous; /* a span is held; the last span was a match */
    size_t start, end;   /* the held span */
} fold;

static kld_status through(const run *r, size_t stage, const char *s, size_t n);

static kld_status emit(const run *r, const fold *f, size_t start, size_t end) {
    return start < end ? through(r, f->stage + 1, f->text + start, end - start) : KLD_OK;
}

static kld_status release(const run *r, fold *f) {
    bool held = f->held;
    f->held = false;
    return held ? emit(r, f, f->start, f->end) : KLD_OK;
}

static kld_status span(const run *r, fold *f, size_t start, size_t end, bool match) {
    const kld_tok_stage *stage = &r->split->stage[f->stage];
    bool glue = false, previous = f->previous;
    match ^= stage->invert;
    f->previous = match;
    switch (stage->behavior) {
    case KLD_TOK_ISOLATED: return emit(r, f, start, end);
    case KLD_TOK_REMOVED: return match ? KLD_OK : emit(r, f, start, end);
    case KLD_TOK_PREVIOUS: glue = match && !previous; break;
    case KLD_TOK_NEXT: glue = previous && !match; break;
    case KLD_TOK_CONTIGUOUS: glue = match == previous; break;
    }
    if (glue && f->held) {
        f->end = end;
        return KLD_OK;
    }
    TRY(release(r, f));
    f->held = true;
    f->start = start;
    f->end = end;
    return KLD_OK;
}

static kld_status through(const run *r, size_t stage, const char *s, size_t n) {
    const kld_tok_split *split = r->split;
    if (stage == split->prefix_at && split->prefix_space && *s != ' ') {
        kld_buf_clear(r->scratch);
        TRY(kld_buf_add(r->scratch, " ", 1, r->err));
        TRY(kld_buf_add(r->scratch, s, n, r->err));
        s = (const char *)r->scratch->data;
        n++;
    }
    if (stage == split->n) return r->fn(r->arg, s, n, r->err);
    fold f = {.text = s, .stage = stage};
    kld_tok_walk w = {0};
    size_t last = 0;
    for (bool found;;) {
        TRY(kld_tok_regex_next(split->stage[stage].re, r->matcher, s, n, &w, &found, r->err));
        if (!found) break;
        size_t start = w.start, end = w.end;
        if (last != start) TRY(span(r, &f, last, start, false));
        TRY(span(r, &f, start, end, true));
        last = end;
    }
    if (last != n) TRY(span(r, &f, last, n, false));
    return release(r, &f);
}

kld_status kld_tok_split_run(const kld_tok_split *s, kld_tok_matcher *m, kld_buf *scratch,
                             const char *text, size_t n, kld_tok_piece_fn fn, void *arg,
                             kld_err *err) {
    run r = {s, m, scratch, fn, arg, err};
    return n ? through(&r, 0, text, n) : KLD_OK;
}
