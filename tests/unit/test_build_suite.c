/* Cutting documents into windows, against a reference that looks at one (document, token) after
 * the other; labels, errors, and memory that runs out. */
#include "kld/base/mem.h"
#include "tests/unit/suitekit.h"
#include "tests/unit/t.h"

#include <omp.h>

enum { MAX_LEN = 48 };

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
        kld_status st = suite_try(&s, doc, n, &o, &notes, &e);
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

/* ---- labels and errors ---- */

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
    suite_builds(&s, doc, 2, &o, &notes);
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
    kld_tokenizer *t = suite_tokenizer(true);
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
    suite_builds(&s, doc, 2, &o, &notes);
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
        suite_refuses(&doc, 1, &usage[i].o, KLD_E_USAGE, usage[i].text);
    kld_suite_options o = {.window = 4, .stride = 4, .bos = KLD_BOS_FIRST};
    kld_tokenizer *t = suite_tokenizer(false);
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
    suite_refuses(pair, 2, &o, KLD_E_INPUT,
                  "document 1 ('web page'): id 257 at 2, but the tokenizer has 257 ids");
    pair[0] = doc_ids(huge, 2);
    suite_refuses(pair, 1, &o, KLD_E_INPUT, "document 0 ('c'): id 4294967295 at 0");
    pair[0] = doc_text("ab\xff");
    suite_refuses(pair, 1, &o, KLD_E_INPUT, "document 0 ('c')");
    suite_refuses(pair, 1, &o, KLD_E_INPUT, "UTF-8");
    pair[0] = doc_text("ab"), pair[1] = doc_text("cd");
    pair[0].partition = "analysis"; /* the other takes the option's, which is another */
    o.partition = "qualification";
    suite_refuses(pair, 2, &o, KLD_E_INPUT,
                  "cluster 'c' is in partition 'analysis' and in 'qualif");
    o.partition = "analysis";
    suite_builds(&s, pair, 2, &o, &notes);
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
    kld_tokenizer *t = suite_tokenizer(true);
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
        cmocka_unit_test(random_documents),
        cmocka_unit_test(labels_and_seal),
        cmocka_unit_test(errors),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
