#include "tests/unit/suitekit.h"

#include "tests/unit/t.h"
#include "tests/unit/tokkit.h"

const uint32_t TEN[10] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};

kld_tokenizer *suite_tokenizer(bool bos) {
    static const char rest[] =
        ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
        "\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[256],"
        "\"tokens\":[\"<s>\"]}}}";
    const tok_recipe r = {.pre = BYTE_LEVEL("false", "false"),
                          .added = ADDED("256", "<s>", PLAIN),
                          .rest = bos ? rest : ""};
    return tok_make(&r);
}

kld_document doc_ids(const uint32_t *ids, size_t n) {
    return (kld_document){.ids = (uint32_t *)(uintptr_t)ids,
                          .n_ids = n,
                          .source = "",
                          .cluster = "c",
                          .stratum = "",
                          .partition = ""};
}

kld_document doc_text(const char *text) {
    kld_document d = doc_ids(NULL, 0);
    d.text = text;
    d.bytes = strlen(text);
    return d;
}

kld_status suite_try(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                     kld_suite_notes *notes, kld_err *err) {
    kld_tokenizer *t = suite_tokenizer(true);
    kld_document copy[MAX_DOCS]; /* the builder adds ids to it */
    kld_documents docs = {.doc = copy, .n = n, .cap = n};
    memset(err, 0, sizeof *err);
    if (n) memcpy(copy, doc, n * sizeof *doc);
    kld_status st = kld_suite_build(s, &docs, t, o, notes, err);
    kld_arena_free(&docs.arena);
    kld_tokenizer_free(t);
    return st;
}

void suite_builds(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                  kld_suite_notes *notes) {
    kld_err e;
    if (suite_try(s, doc, n, o, notes, &e) != KLD_OK) fail_msg("%s", e.text);
}

void suite_refuses(kld_document *doc, size_t n, const kld_suite_options *o, kld_status want,
                   const char *text) {
    kld_suite s;
    kld_suite_notes notes;
    kld_err e;
    kld_status st = suite_try(&s, doc, n, o, &notes, &e);
    if (st != want || !strstr(e.text, text))
        fail_msg("expected status %d and '%s', got %d: %s", want, text, st, e.text);
    static const kld_suite empty;
    assert_memory_equal(&s, &empty, sizeof s); /* on error *s is empty */
}
