/* Cutting documents into windows, against a reference that looks at one (document, token) after
 * the other. */
#include "kld/base/mem.h"
#include "kld/capture/build_suite.h"

#include "tests/unit/t.h"
#include "tests/unit/tokkit.h"

#include <omp.h>

enum { BOS = 256, VOCAB = 257, MAX_LEN = 48, MAX_DOCS = 6 };

/* Ids are the bytes of the text; <s> is 256. */
static kld_tokenizer *make_tokenizer(bool bos) {
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

static kld_document doc_ids(const uint32_t *ids, size_t n) {
    return (kld_document){.ids = (uint32_t *)(uintptr_t)ids,
                          .n_ids = n,
                          .source = "",
                          .cluster = "c",
                          .stratum = "",
                          .partition = ""};
}

static kld_document doc_text(const char *text) {
    kld_document d = doc_ids(NULL, 0);
    d.text = text;
    d.bytes = strlen(text);
    return d;
}

static kld_status run(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                      kld_suite_notes *notes, kld_err *err) {
    kld_tokenizer *t = make_tokenizer(true);
    kld_document copy[MAX_DOCS]; /* the builder adds ids to it */
    kld_documents docs = {.doc = copy, .n = n, .cap = n};
    memset(err, 0, sizeof *err);
    if (n) memcpy(copy, doc, n * sizeof *doc);
    kld_status st = kld_suite_build(s, &docs, t, o, notes, err);
    kld_arena_free(&docs.arena);
    kld_tokenizer_free(t);
    return st;
}

static void builds(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                   kld_suite_notes *notes) {
    kld_err e;
    if (run(s, doc, n, o, notes, &e) != KLD_OK) fail_msg("%s", e.text);
}

static void refuses(kld_document *doc, size_t n, const kld_suite_options *o, kld_status want,
                    const char *text) {
    kld_suite s;
    kld_suite_notes notes;
    kld_err e;
    kld_status st = run(&s, doc, n, o, &notes, &e);
    if (st != want || !strstr(e.text, text))
        fail_msg("expected status %d and '%s', got %d: %s", want, text, st, e.text);
    static const kld_suite empty;
    assert_memory_equal(&s, &empty, sizeof s); /* on error *s is empty */
}

/* ---- the reference ---- */

typedef struct span {
    size_t doc, begin, end; /* ids of the document in it */
    bool bos;
} span;

/* Every window before those that score nothing are left out: full ones, then what is left,
 * each beginning `window - stride` ids before the end of the one in front of it. */
static size_t all_spans(span *out, const kld_document *doc, size_t n_docs,
                        const kld_suite_options *o) {
    size_t n = 0;
    for (size_t d = 0; d < n_docs; d++)
        for (size_t begin = 0, end = 0; end < doc[d].n_ids; n++) {
            span *w = &out[n];
            w->doc = d;
            w->begin = begin;
            w->bos = o->bos == KLD_BOS_EVERY || (o->bos == KLD_BOS_FIRST && begin == 0);
            if (doc[d].ids[begin] == BOS) w->bos = false;
            w->end = begin + o->window - (w->bos ? 1 : 0);
            if (w->end > doc[d].n_ids) w->end = doc[d].n_ids;
            end = w->end;
            size_t next = end + o->stride < o->window ? 0 : end + o->stride - o->window;
            begin = next > begin ? next : begin + 1;
        }
    return n;
}

static bool has_context(const span *w, size_t token) {
    return token >= w->begin && token < w->end && (token > w->begin || w->bos);
}

/* Is the token scored in window k of the list? */
static bool expects(const span *w, size_t k, size_t token, const kld_suite_options *o) {
    if (!has_context(&w[k], token)) return false;
    if (o->score_last_set) return w[k].end - token <= o->score_last;
    for (size_t i = 0; i < k; i++)
        if (w[i].doc == w[k].doc && has_context(&w[i], token)) return false;
    return true;
}

static size_t expected_scores(const span *w, size_t k, const kld_suite_options *o) {
    size_t n = 0;
    bool news = false;
    for (size_t token = w[k].begin; token < w[k].end; token++) {
        n += expects(w, k, token, o);
        bool seen = false;
        for (size_t i = 0; i < k; i++)
            seen |= w[i].doc == w[k].doc && token >= w[i].begin && token < w[i].end;
        news |= !seen;
    }
    return news ? n : 0;
}

static void check_window(const kld_window *got, const span *all, size_t k, const kld_document *doc,
                         const kld_suite_options *o) {
    const span *want = &all[k];
    size_t bos = want->bos;
    assert_int_equal(got->offset, want->begin);
    assert_int_equal(got->n, want->end - want->begin + bos);
    assert_true(got->n <= o->window);
    if (bos) assert_int_equal(got->ids[0], BOS);
    assert_memory_equal(got->ids + bos, doc[want->doc].ids + want->begin,
                        (want->end - want->begin) * sizeof *got->ids);
    for (size_t t = 0; t + 1 < got->n; t++)
        assert_int_equal(t >= got->score_from, expects(all, k, want->begin + t + 1 - bos, o));
    assert_string_equal(got->cluster, doc[want->doc].cluster);
}

static void check_suite(const kld_suite *s, const kld_document *doc, size_t n_docs,
                        const kld_suite_options *o, const kld_suite_notes *notes) {
    static span all[MAX_DOCS * (MAX_LEN + 1)];
    size_t n = all_spans(all, doc, n_docs, o), at = 0, empty = 0, present = 0;
    uint64_t tokens = 0, positions = 0;
    size_t by_doc[MAX_DOCS] = {0};
    for (size_t k = 0; k < n; k++) {
        size_t scores = expected_scores(all, k, o);
        if (!scores) continue;
        assert_true(at < s->n_windows);
        check_window(&s->windows[at], all, k, doc, o);
        assert_int_equal(kld_window_scored(&s->windows[at]), scores);
        tokens += s->windows[at++].n;
        positions += scores;
        by_doc[all[k].doc] += scores;
    }
    assert_int_equal(s->n_windows, at);
    assert_int_equal(s->tokens, tokens);
    assert_int_equal(s->positions, positions);
    for (size_t d = 0; d < n_docs; d++) {
        empty += by_doc[d] == 0;
        present += o->bos != KLD_BOS_NONE && doc[d].n_ids && doc[d].ids[0] == BOS;
    }
    assert_int_equal(notes->documents, n_docs);
    assert_int_equal(notes->empty_documents, empty);
    assert_int_equal(notes->bos_present, present);
}

static size_t draw(uint64_t *s, size_t n) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((*s >> 33) % n);
}

static void random_documents(void **state) {
    (void)state;
    uint64_t r = 11;
    size_t built = 0;
    for (int round = 0; round < 4000; round++) {
        uint32_t ids[MAX_DOCS][MAX_LEN];
        kld_document doc[MAX_DOCS];
        char name[MAX_DOCS][32];
        size_t n = 1 + draw(&r, MAX_DOCS);
        for (size_t d = 0; d < n; d++) {
            size_t len = draw(&r, draw(&r, 2) ? 4 : MAX_LEN);
            /* Also in the middle: packed text repeats the token there. */
            for (size_t i = 0; i < len; i++)
                ids[d][i] = draw(&r, 9) ? (uint32_t)draw(&r, BOS) : BOS;
            if (len > 1 && ids[d][0] == BOS && ids[d][1] == BOS) ids[d][1] = 7;
            doc[d] = doc_ids(ids[d], len);
            snprintf(name[d], sizeof name[d], "d%zu", d);
            doc[d].cluster = name[d];
        }
        kld_suite_options o = {.window = 2 + draw(&r, 12), .bos = (kld_bos)draw(&r, 3)};
        o.stride = 1 + draw(&r, o.window);
        o.score_last_set = draw(&r, 3) == 0;
        o.score_last = 1 + draw(&r, 14);
        kld_suite s;
        kld_suite_notes notes;
        kld_err e;
        kld_status st = run(&s, doc, n, &o, &notes, &e);
        if (st == KLD_E_INPUT && strstr(e.text, "no scored position")) {
            assert_int_equal(notes.empty_documents, n);
            continue;
        }
        if (st != KLD_OK) fail_msg("%s", e.text);
        check_suite(&s, doc, n, &o, &notes);
        kld_suite_free(&s);
        built++;
    }
    assert_true(built > 3000);
}

/* ---- what the comment says, by hand ---- */

static const uint32_t TEN[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};

/* T27: every token that has a context is scored once, with the longest context that a window
 * gives it first. */
static void overlap(void **state) {
    (void)state;
    kld_document doc = doc_ids(TEN, 10);
    kld_suite_options o = {.window = 4, .stride = 2};
    kld_suite s;
    kld_suite_notes notes;
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.n_windows, 4); /* 0..3, 2..5, 4..7, 6..9 */
    assert_int_equal(s.positions, 9);
    assert_int_equal(s.windows[0].score_from, 0);
    for (size_t i = 1; i < 4; i++) {
        assert_int_equal(s.windows[i].offset, 2 * i);
        assert_int_equal(s.windows[i].score_from, 1);
    }
    kld_suite_free(&s);
    o.score_last_set = true; /* exactly the last three: ids are scored twice */
    o.score_last = 3;
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 12);
    kld_suite_free(&s);
    o.score_last = 1; /* and here some never */
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    kld_suite_free(&s);
    o.score_last = SIZE_MAX; /* more than there are: all */
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 12);
    kld_suite_free(&s);
    o = (kld_suite_options){.window = SIZE_MAX, .stride = SIZE_MAX, .bos = KLD_BOS_EVERY};
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.n_windows, 1);
    assert_int_equal(s.positions, 10);
    kld_suite_free(&s);
}

static void expect_window(const kld_window *w, const uint32_t *ids, size_t n, size_t from) {
    assert_int_equal(w->n, n);
    assert_memory_equal(w->ids, ids, n * sizeof *ids);
    assert_int_equal(w->score_from, from);
}

/* T20. */
static void bos_places(void **state) {
    (void)state;
    kld_document doc = doc_ids(TEN, 5);
    kld_suite_options o = {.window = 3, .stride = 3};
    kld_suite s[3];
    kld_suite_notes notes;
    builds(&s[0], &doc, 1, &o, &notes);
    assert_string_equal(s[0].bos, "none");
    expect_window(&s[0].windows[0], (uint32_t[]){10, 11, 12}, 3, 0);
    expect_window(&s[0].windows[1], (uint32_t[]){13, 14}, 2, 0);
    o.bos = KLD_BOS_FIRST;
    builds(&s[1], &doc, 1, &o, &notes);
    assert_string_equal(s[1].bos, "first");
    expect_window(&s[1].windows[0], (uint32_t[]){BOS, 10, 11}, 3, 0);
    expect_window(&s[1].windows[1], (uint32_t[]){12, 13, 14}, 3, 0);
    o.bos = KLD_BOS_EVERY;
    builds(&s[2], &doc, 1, &o, &notes);
    assert_string_equal(s[2].bos, "every");
    assert_int_equal(s[2].n_windows, 3);
    expect_window(&s[2].windows[0], (uint32_t[]){BOS, 10, 11}, 3, 0);
    expect_window(&s[2].windows[1], (uint32_t[]){BOS, 12, 13}, 3, 0);
    expect_window(&s[2].windows[2], (uint32_t[]){BOS, 14}, 2, 0);
    assert_int_equal(s[2].positions, 5); /* with BOS in front of each, the first ids count too */
    for (size_t i = 0; i < 3; i++) {
        assert_memory_not_equal(&s[i].digest, &s[(i + 1) % 3].digest, sizeof s[i].digest);
        assert_int_equal(s[i].windows[1].offset, i == 0 ? 3 : 2);
    }
    for (size_t i = 0; i < 3; i++) kld_suite_free(&s[i]);
}

/* T21: no window begins with two. */
static void double_bos(void **state) {
    (void)state;
    static const uint32_t one[] = {BOS, 1, 2, BOS, 3, 4}, two[] = {BOS, BOS, 1};
    kld_document doc = doc_ids(one, 6);
    kld_suite_options o = {.window = 4, .stride = 4, .bos = KLD_BOS_FIRST};
    kld_suite s;
    kld_suite_notes notes;
    builds(&s, &doc, 1, &o, &notes);
    expect_window(&s.windows[0], one, 4, 0);
    assert_int_equal(notes.bos_present, 1);
    kld_suite_free(&s);
    o = (kld_suite_options){.window = 3, .stride = 3, .bos = KLD_BOS_EVERY};
    builds(&s, &doc, 1, &o, &notes);
    expect_window(&s.windows[0], one, 3, 0);
    expect_window(&s.windows[1], one + 3, 3, 0); /* it begins with the document's own */
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(notes.bos_present, 0);
    kld_suite_free(&s);
    kld_document pair[] = {doc, doc_ids(two, 3)};
    pair[1].cluster = "twice";
    for (int b = 0; b < 3; b++) {
        o.bos = (kld_bos)b;
        refuses(pair, 2, &o, KLD_E_INPUT, "document 1 ('twice'): it begins with two");
    }
    kld_document text = doc_text("<s><s>a"); /* a template's text has it written out */
    refuses(&text, 1, &o, KLD_E_INPUT, "two beginning-of-sequence tokens (id 256)");
}

/* T34: what is too short is counted, and nothing else of it is left. */
static void short_documents(void **state) {
    (void)state;
    kld_document doc[] = {doc_text(""), doc_text("a"), doc_text("ab"), doc_ids(TEN, 0)};
    kld_suite_options o = {.window = 2048, .stride = 2048};
    kld_suite s;
    kld_suite_notes notes;
    builds(&s, doc, 4, &o, &notes);
    assert_int_equal(s.n_windows, 1);
    assert_int_equal(s.positions, 1);
    expect_window(&s.windows[0], (uint32_t[]){'a', 'b'}, 2, 0);
    assert_int_equal(notes.documents, 4);
    assert_int_equal(notes.empty_documents, 3);
    kld_suite_free(&s);
    o.bos = KLD_BOS_FIRST; /* with a context, one token is enough */
    builds(&s, doc, 4, &o, &notes);
    assert_int_equal(s.positions, 3);
    assert_int_equal(notes.empty_documents, 2);
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    refuses(doc, 2, &o, KLD_E_INPUT, "no scored position: 2 documents");
    refuses(doc, 0, &o, KLD_E_INPUT, "no scored position: 0 documents");
    o.bos = KLD_BOS_EVERY;
    refuses(doc, 1, &o, KLD_E_INPUT, "no scored position");
}

/* Ids in front that are a context: in the windows, and not scored. */
static void contexts(void **state) {
    (void)state;
    kld_document doc = doc_ids(TEN, 10);
    kld_suite_options o = {.window = 4, .stride = 2};
    kld_suite s;
    kld_suite_notes notes;
    doc.score_from = 5; /* ids 6 to 9 */
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    assert_int_equal(s.n_windows, 2); /* 4..7 and 6..9; the others score nothing */
    assert_int_equal(s.windows[0].offset, 4);
    assert_int_equal(s.windows[0].score_from, 1);
    assert_int_equal(s.windows[1].score_from, 1);
    kld_suite_free(&s);
    o.bos = KLD_BOS_EVERY;
    builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    o.score_last_set = true;
    o.score_last = 3;
    builds(&s, &doc, 1, &o, &notes); /* the last three of each window, of those that count */
    assert_int_equal(s.n_windows, 2);
    assert_int_equal(s.windows[0].score_from, 1);
    assert_int_equal(s.windows[1].score_from, 0);
    assert_int_equal(s.positions, 5);
    kld_suite_free(&s);
    o.score_last_set = false;
    doc.score_from = 9;
    refuses(&doc, 1, &o, KLD_E_INPUT, "no scored position");
    /* Text: what stands in front goes through the tokenizer with the rest. */
    kld_document text = doc_text("<s>abcdef");
    text.prefix = 5; /* "<s>ab" is three ids */
    o = (kld_suite_options){.window = 100, .stride = 100};
    builds(&s, &text, 1, &o, &notes);
    expect_window(&s.windows[0], (uint32_t[]){BOS, 'a', 'b', 'c', 'd', 'e', 'f'}, 7, 2);
    kld_suite_free(&s);
    text.prefix = 1; /* ends inside of "<s>" */
    refuses(&text, 1, &o, KLD_E_INPUT, "document 0 ('c'): a token lies across the end of 'prefix'");
    text.prefix = text.bytes;
    refuses(&text, 1, &o, KLD_E_INPUT, "no scored position");
}

/* A choice, an order and a split, which the document's place has no part in. */
static void chosen(void **state) {
    (void)state;
    enum { N = MAX_DOCS };
    static uint32_t ids[N][20];
    static char name[N][8];
    kld_document doc[N], turned[N];
    const kld_choice_rules rules = {.seed = 4, .per_document = 2};
    const kld_split split = {.n = 2, .part = {{"analysis", 0.5}, {"qualification", 0.5}}};
    kld_source_sums sums[2] = {{0}}, none[2] = {{0}};
    kld_suite_options o = {.window = 4, .stride = 4, .rules = &rules, .by_content = true};
    o.split = &split, o.seed = 4, o.sums = sums;
    for (size_t d = 0; d < N; d++) {
        for (uint32_t i = 0; i < 20; i++) ids[d][i] = (uint32_t)(d * 20) + i;
        snprintf(name[d], sizeof name[d], "d%zu", d);
        doc[d] = doc_ids(ids[d], 20);
        doc[d].cluster = name[d];
        doc[d].origin = d / 4;
        turned[N - 1 - d] = doc[d];
    }
    kld_suite s, t;
    kld_suite_notes notes;
    builds(&s, doc, N, &o, &notes);
    assert_int_equal(notes.windows, 5 * N);
    assert_int_equal(s.n_windows, 2 * N);
    assert_int_equal(sums[0].documents, 4);
    assert_int_equal(sums[0].windows, 8);
    assert_int_equal(sums[1].tokens, 16);
    assert_int_equal(sums[1].positions, 12);
    size_t qualified = 0;
    for (size_t i = 0; i < s.n_windows; i++)
        qualified += !strcmp(s.windows[i].partition, "qualification");
    assert_int_equal(qualified, N);
    o.sums = none;
    builds(&t, turned, N, &o, &notes);
    assert_memory_equal(&s.digest, &t.digest, sizeof s.digest);
    assert_memory_equal(sums, none, sizeof sums);
    kld_suite_free(&t);
    o.by_content = false; /* in the order of the documents */
    builds(&t, doc, N, &o, &notes);
    for (size_t i = 0; i < t.n_windows; i++) assert_string_equal(t.windows[i].cluster, name[i / 2]);
    assert_memory_not_equal(&s.digest, &t.digest, sizeof s.digest);
    kld_suite_free(&t);
    kld_suite_free(&s);
    doc[0].partition = "all";
    refuses(doc, N, &o, KLD_E_INPUT, "document 0 ('d0'): a partition cannot be called 'all'");
}

static void labels_and_seal(void **state) {
    (void)state;
    kld_document doc[] = {doc_text("abc"), doc_text("def")};
    doc[0].source = "wiki", doc[0].cluster = "one", doc[0].stratum = "prose";
    doc[0].partition = "qualification";
    doc[1].cluster = "two";
    kld_suite_options o = {.window = 2, .stride = 1, .partition = "analysis"};
    kld_suite s;
    kld_suite_notes notes;
    kld_err e = {0};
    builds(&s, doc, 2, &o, &notes);
    assert_int_equal(s.n_windows, 4);
    assert_string_equal(s.windows[1].source, "wiki");
    assert_string_equal(s.windows[1].cluster, "one");
    assert_string_equal(s.windows[1].stratum, "prose");
    assert_string_equal(s.windows[1].partition, "qualification");
    assert_string_equal(s.windows[2].source, "");
    assert_string_equal(s.windows[2].partition, "analysis"); /* of documents that name none */
    assert_int_equal(s.window, 2);
    assert_int_equal(s.stride, 1);
    assert_int_equal(s.vocab, VOCAB);
    kld_tokenizer *t = make_tokenizer(true);
    kld_digest d = kld_tokenizer_digest(t), sealed = s.digest, ids = s.windows[3].tokens;
    kld_tokenizer_free(t);
    assert_memory_equal(&s.tokenizer, &d, sizeof d);
    uint64_t tokens = s.tokens, positions = s.positions;
    assert_int_equal(kld_suite_seal(&s, &e), KLD_OK); /* seals what is sealed already */
    assert_memory_equal(&s.digest, &sealed, sizeof sealed);
    assert_memory_equal(&s.windows[3].tokens, &ids, sizeof ids);
    assert_int_equal(s.tokens, tokens);
    assert_int_equal(s.positions, positions);
    kld_suite_free(&s);
    o.partition = NULL;
    builds(&s, doc, 2, &o, &notes);
    assert_string_equal(s.windows[2].partition, "");
    kld_suite_free(&s);
}

static void errors(void **state) {
    (void)state;
    static const struct {
        kld_suite_options o;
        const char *text;
    } usage[] = {
        {{.window = 0, .stride = 1}, "--window 0"},
        {{.window = 1, .stride = 1}, "--window 1"},
        {{.window = 4, .stride = 0}, "--stride 0 must be between 1 and the window (4)"},
        {{.window = 4, .stride = 5}, "--stride 5 must be between 1 and the window (4)"},
        {{.window = 4, .stride = 4, .score_last_set = true}, "--score-last must be at least 1"},
    };
    kld_document doc = doc_ids(TEN, 10);
    for (size_t i = 0; i < sizeof usage / sizeof *usage; i++)
        refuses(&doc, 1, &usage[i].o, KLD_E_USAGE, usage[i].text);
    kld_suite_options o = {.window = 4, .stride = 4, .bos = KLD_BOS_FIRST};
    kld_tokenizer *t = make_tokenizer(false);
    kld_documents docs = {.doc = &doc, .n = 1};
    kld_suite s;
    kld_suite_notes notes;
    kld_err e = {0};
    assert_int_equal(kld_suite_build(&s, &docs, t, &o, &notes, &e), KLD_E_USAGE);
    assert_non_null(strstr(e.text, "--bos: this tokenizer names no"));
    o.bos = KLD_BOS_NONE;
    assert_int_equal(kld_suite_build(&s, &docs, t, &o, &notes, &e), KLD_OK);
    kld_suite_free(&s);
    kld_tokenizer_free(t);
    static const uint32_t last[] = {1, VOCAB - 1}, over[] = {1, 2, VOCAB}, huge[] = {UINT32_MAX, 1};
    kld_document pair[] = {doc_ids(last, 2), doc_ids(over, 3)};
    pair[1].cluster = "web page";
    refuses(pair, 2, &o, KLD_E_INPUT,
            "document 1 ('web page'): id 257 at 2, but the tokenizer has 257 ids");
    pair[0] = doc_ids(huge, 2);
    refuses(pair, 1, &o, KLD_E_INPUT, "document 0 ('c'): id 4294967295 at 0");
    pair[0] = doc_text("ab\xff");
    refuses(pair, 1, &o, KLD_E_INPUT, "document 0 ('c')");
    refuses(pair, 1, &o, KLD_E_INPUT, "UTF-8");
    pair[0] = doc_text("ab"), pair[1] = doc_text("cd");
    pair[0].partition = "analysis"; /* the other takes the option's, which is another */
    o.partition = "qualification";
    refuses(pair, 2, &o, KLD_E_INPUT, "cluster 'c' is in partition 'analysis' and in 'qualif");
    o.partition = "analysis";
    builds(&s, pair, 2, &o, &notes);
    kld_suite_free(&s);
}

/* Every allocation fails once. */
static void no_memory(void **state) {
    (void)state;
    kld_document doc[] = {doc_text("a few words"), doc_ids(TEN, 10)};
    kld_choice_rules rules = {.seed = 1, .per_cluster = 100};
    kld_split split = {.n = 1, .part = {{"all of it", 1}}};
    const kld_suite_options o = {.window = 3,
                                 .stride = 1,
                                 .bos = KLD_BOS_EVERY,
                                 .rules = &rules,
                                 .split = &split,
                                 .by_content = true};
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    kld_tokenizer *t = make_tokenizer(true);
    kld_suite s;
    kld_suite_notes notes;
    kld_err e = {0};
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_document copy[] = {doc[0], doc[1]};
        kld_documents docs = {.doc = copy, .n = 2};
        kld_mem_fail_after(n);
        st = kld_suite_build(&s, &docs, t, &o, &notes, &e);
        kld_mem_fail_after(0);
        kld_arena_free(&docs.arena);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        assert_true((st == KLD_OK) == (s.arena.head != NULL));
    }
    assert_true(n > 10);
    omp_set_num_threads(threads);
    kld_suite_free(&s);
    kld_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_documents), cmocka_unit_test(overlap),
        cmocka_unit_test(bos_places),       cmocka_unit_test(double_bos),
        cmocka_unit_test(short_documents),  cmocka_unit_test(labels_and_seal),
        cmocka_unit_test(errors),           cmocka_unit_test(no_memory),
        cmocka_unit_test(contexts),         cmocka_unit_test(chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
