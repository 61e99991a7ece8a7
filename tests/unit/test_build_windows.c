/* Windows worked out by hand: overlap, beginning-of-sequence tokens, short documents, contexts, a
 * choice and a split. */
#include "tests/unit/suitekit.h"
#include "tests/unit/t.h"

/* T27: every token that has a context is scored once, with the longest context that a window
 * gives it first. */
static void overlap(void **state) {
    (void)state;
    kld_document doc = doc_ids(TEN, 10);
    kld_suite_options o = {.window = 4, .stride = 2};
    kld_suite s;
    kld_suite_notes notes;
    suite_builds(&s, &doc, 1, &o, &notes);
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
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 12);
    kld_suite_free(&s);
    o.score_last = 1; /* and here some never */
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    kld_suite_free(&s);
    o.score_last = SIZE_MAX; /* more than there are: all */
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 12);
    kld_suite_free(&s);
    o = (kld_suite_options){.window = SIZE_MAX, .stride = SIZE_MAX, .bos = KLD_BOS_EVERY};
    suite_builds(&s, &doc, 1, &o, &notes);
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
    suite_builds(&s[0], &doc, 1, &o, &notes);
    assert_string_equal(s[0].bos, "none");
    expect_window(&s[0].windows[0], (uint32_t[]){10, 11, 12}, 3, 0);
    expect_window(&s[0].windows[1], (uint32_t[]){13, 14}, 2, 0);
    o.bos = KLD_BOS_FIRST;
    suite_builds(&s[1], &doc, 1, &o, &notes);
    assert_string_equal(s[1].bos, "first");
    expect_window(&s[1].windows[0], (uint32_t[]){BOS, 10, 11}, 3, 0);
    expect_window(&s[1].windows[1], (uint32_t[]){12, 13, 14}, 3, 0);
    o.bos = KLD_BOS_EVERY;
    suite_builds(&s[2], &doc, 1, &o, &notes);
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
    suite_builds(&s, &doc, 1, &o, &notes);
    expect_window(&s.windows[0], one, 4, 0);
    assert_int_equal(notes.bos_present, 1);
    kld_suite_free(&s);
    o = (kld_suite_options){.window = 3, .stride = 3, .bos = KLD_BOS_EVERY};
    suite_builds(&s, &doc, 1, &o, &notes);
    expect_window(&s.windows[0], one, 3, 0);
    expect_window(&s.windows[1], one + 3, 3, 0); /* it begins with the document's own */
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(notes.bos_present, 0);
    kld_suite_free(&s);
    kld_document pair[] = {doc, doc_ids(two, 3)};
    pair[1].cluster = "twice";
    for (int b = 0; b < 3; b++) {
        o.bos = (kld_bos)b;
        suite_refuses(pair, 2, &o, KLD_E_INPUT, "document 1 ('twice'): it begins with two");
    }
    kld_document text = doc_text("<s><s>a"); /* a template's text has it written out */
    suite_refuses(&text, 1, &o, KLD_E_INPUT, "two beginning-of-sequence tokens (id 256)");
}

/* T34: what is too short is counted, and nothing else of it is left. */
static void short_documents(void **state) {
    (void)state;
    kld_document doc[] = {doc_text(""), doc_text("a"), doc_text("ab"), doc_ids(TEN, 0)};
    kld_suite_options o = {.window = 2048, .stride = 2048};
    kld_suite s;
    kld_suite_notes notes;
    suite_builds(&s, doc, 4, &o, &notes);
    assert_int_equal(s.n_windows, 1);
    assert_int_equal(s.positions, 1);
    expect_window(&s.windows[0], (uint32_t[]){'a', 'b'}, 2, 0);
    assert_int_equal(notes.documents, 4);
    assert_int_equal(notes.empty_documents, 3);
    kld_suite_free(&s);
    o.bos = KLD_BOS_FIRST; /* with a context, one token is enough */
    suite_builds(&s, doc, 4, &o, &notes);
    assert_int_equal(s.positions, 3);
    assert_int_equal(notes.empty_documents, 2);
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    suite_refuses(doc, 2, &o, KLD_E_INPUT, "no scored position: 2 documents");
    suite_refuses(doc, 0, &o, KLD_E_INPUT, "no scored position: 0 documents");
    o.bos = KLD_BOS_EVERY;
    suite_refuses(doc, 1, &o, KLD_E_INPUT, "no scored position");
}

/* Ids in front that are a context: in the windows, and not scored. */
static void contexts(void **state) {
    (void)state;
    kld_document doc = doc_ids(TEN, 10);
    kld_suite_options o = {.window = 4, .stride = 2};
    kld_suite s;
    kld_suite_notes notes;
    doc.score_from = 5; /* ids 6 to 9 */
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    assert_int_equal(s.n_windows, 2); /* 4..7 and 6..9; the others score nothing */
    assert_int_equal(s.windows[0].offset, 4);
    assert_int_equal(s.windows[0].score_from, 1);
    assert_int_equal(s.windows[1].score_from, 1);
    kld_suite_free(&s);
    o.bos = KLD_BOS_EVERY;
    suite_builds(&s, &doc, 1, &o, &notes);
    assert_int_equal(s.positions, 4);
    kld_suite_free(&s);
    o.bos = KLD_BOS_NONE;
    o.score_last_set = true;
    o.score_last = 3;
    suite_builds(&s, &doc, 1, &o, &notes); /* the last three of each window, of those that count */
    assert_int_equal(s.n_windows, 2);
    assert_int_equal(s.windows[0].score_from, 1);
    assert_int_equal(s.windows[1].score_from, 0);
    assert_int_equal(s.positions, 5);
    kld_suite_free(&s);
    o.score_last_set = false;
    doc.score_from = 9;
    suite_refuses(&doc, 1, &o, KLD_E_INPUT, "no scored position");
    /* Text: what stands in front goes through the tokenizer with the rest. */
    kld_document text = doc_text("<s>abcdef");
    text.prefix = 5; /* "<s>ab" is three ids */
    o = (kld_suite_options){.window = 100, .stride = 100};
    suite_builds(&s, &text, 1, &o, &notes);
    expect_window(&s.windows[0], (uint32_t[]){BOS, 'a', 'b', 'c', 'd', 'e', 'f'}, 7, 2);
    kld_suite_free(&s);
    text.prefix = 1; /* ends inside of "<s>" */
    suite_refuses(&text, 1, &o, KLD_E_INPUT,
                  "document 0 ('c'): a token lies across the end of 'prefix'");
    text.prefix = text.bytes;
    suite_refuses(&text, 1, &o, KLD_E_INPUT, "no scored position");
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
    suite_builds(&s, doc, N, &o, &notes);
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
    suite_builds(&t, turned, N, &o, &notes);
    assert_memory_equal(&s.digest, &t.digest, sizeof s.digest);
    assert_memory_equal(sums, none, sizeof sums);
    kld_suite_free(&t);
    o.by_content = false; /* in the order of the documents */
    suite_builds(&t, doc, N, &o, &notes);
    for (size_t i = 0; i < t.n_windows; i++) assert_string_equal(t.windows[i].cluster, name[i / 2]);
    assert_memory_not_equal(&s.digest, &t.digest, sizeof s.digest);
    kld_suite_free(&t);
    kld_suite_free(&s);
    doc[0].partition = "all";
    suite_refuses(doc, N, &o, KLD_E_INPUT, "document 0 ('d0'): a partition cannot be called 'all'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap),    cmocka_unit_test(bos_places),
        cmocka_unit_test(double_bos), cmocka_unit_test(short_documents),
        cmocka_unit_test(contexts),   cmocka_unit_test(chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
