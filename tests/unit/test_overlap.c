/* n-grams of a suite that are in other text, against a search of every pair; similarity against
 * sets; and what a scan says. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/capture/exclude.h"
#include "kld/capture/overlap.h"
#include "kld/capture/scan.h"

#include "tests/unit/t.h"
#include "tests/unit/tokkit.h"

#include <math.h>
#include <omp.h>

enum { GROUPS = 12, DOCS = 9, LEN = 160 };

static uint32_t rnd(uint64_t *s, uint32_t n) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33) % n;
}

static void put_file(const char *path, const kld_buf *b) {
    kld_err e = {0};
    if (kld_file_write(path, b->len ? (void *)b->data : (void *)"", b->len, &e) != KLD_OK)
        fail_msg("%s", e.text);
}

static void add_ids(kld_buf *b, const uint32_t *ids, size_t n, const char *cluster) {
    kld_err e = {0};
    kld_status st = kld_buf_adds(b, "{\"ids\":[", &e);
    for (size_t i = 0; i < n && st == KLD_OK; i++)
        st = kld_buf_addf(b, &e, "%s%u", i ? "," : "", (unsigned)ids[i]);
    if (st == KLD_OK) st = kld_buf_addf(b, &e, "],\"cluster\":\"%s\"}\n", cluster);
    if (st != KLD_OK) fail_msg("%s", e.text);
}

static bool varied(const uint32_t *ids) {
    size_t n = 0;
    for (size_t i = 0; i < KLD_GRAM; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) seen = seen || ids[k] == ids[i];
        n += !seen;
    }
    return n >= KLD_VARIED;
}

static bool has(const uint32_t *text, size_t n, const uint32_t *gram) {
    for (size_t i = 0; i + KLD_GRAM <= n; i++)
        if (memcmp(text + i, gram, KLD_GRAM * sizeof *gram) == 0) return true;
    return false;
}

/* Few different ids, so that n-grams are met by chance and by copying, in pieces of any length. */
static void against_search(void **state) {
    char *path = t_path(*state, "c.jsonl");
    uint64_t s = 5, hits = 0, all = 0;
    for (int round = 0; round < 60; round++) {
        static uint32_t suite[GROUPS][LEN], doc[DOCS][LEN];
        size_t n[GROUPS], m[DOCS];
        uint32_t ids = round % 3 ? 40 : 3;
        kld_buf b = {0};
        kld_err e = {0};
        kld_overlap *o;
        kld_overlap_group g[GROUPS], total;
        for (size_t i = 0; i < GROUPS; i++) {
            n[i] = rnd(&s, LEN);
            for (size_t k = 0; k < n[i]; k++) suite[i][k] = rnd(&s, ids);
        }
        for (size_t i = 0; i < DOCS; i++) {
            m[i] = rnd(&s, LEN);
            for (size_t k = 0; k < m[i]; k++) doc[i][k] = rnd(&s, ids);
            size_t from = rnd(&s, GROUPS), len = n[from] < m[i] ? n[from] : m[i];
            if (len && i % 2) memcpy(doc[i], suite[from], len * sizeof(uint32_t));
            add_ids(&b, doc[i], m[i], "doc");
        }
        put_file(path, &b);
        assert_int_equal(kld_overlap_open(&o, GROUPS, &e), KLD_OK);
        for (size_t i = 0; i < GROUPS; i++) {
            size_t half = n[i] / 2; /* two pieces of a group: nothing lies across them */
            assert_int_equal(kld_overlap_add(o, i, suite[i], half, &e), KLD_OK);
            assert_int_equal(kld_overlap_add(o, i, suite[i] + half, n[i] - half, &e), KLD_OK);
        }
        if (kld_overlap_file(o, path, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_overlap_result(o, g, &total);
        uint64_t sum = 0;
        for (size_t i = 0; i < GROUPS; i++) {
            uint64_t grams = 0, found = 0;
            for (size_t half = 0; half < 2; half++) {
                const uint32_t *p = suite[i] + (half ? n[i] / 2 : 0);
                size_t len = half ? n[i] - n[i] / 2 : n[i] / 2;
                for (size_t k = 0; k + KLD_GRAM <= len; k++) {
                    if (!varied(p + k)) continue;
                    bool any = false;
                    for (size_t d = 0; d < DOCS; d++) any = any || has(doc[d], m[d], p + k);
                    grams++;
                    found += any;
                }
            }
            assert_int_equal(g[i].grams, grams);
            assert_int_equal(g[i].found, found);
            sum += found;
            all += grams;
        }
        assert_int_equal(total.found, sum);
        hits += sum;
        uint64_t documents, tokens, want = 0;
        for (size_t d = 0; d < DOCS; d++) want += m[d];
        kld_overlap_read(o, &documents, &tokens);
        assert_int_equal(documents, DOCS);
        assert_int_equal(tokens, want);
        kld_overlap_close(o);
        kld_buf_free(&b);
    }
    assert_true(hits > 500 && hits < all / 2);
    free(path);
}

/* Two texts that share a known part. */
static void similarity(void **state) {
    enum { N = 4000 };
    static uint32_t a[N], b[N];
    char *path = t_path(*state, "c.jsonl");
    for (int tenth = 0; tenth <= 10; tenth++) {
        uint64_t s = 17 + (uint64_t)tenth;
        kld_buf text = {0};
        kld_err e = {0};
        kld_overlap *o;
        kld_overlap_group g[2], total;
        size_t same = N * (size_t)tenth / 10;
        for (size_t i = 0; i < N; i++) a[i] = rnd(&s, 50000);
        for (size_t i = 0; i < N; i++) b[i] = i < same ? a[i] : rnd(&s, 50000);
        add_ids(&text, b, N / 2, "half of it");
        add_ids(&text, b, N, "all of it");
        add_ids(&text, b, N, "again");
        add_ids(&text, b, 3, "short");
        put_file(path, &text);
        assert_int_equal(kld_overlap_open(&o, 2, &e), KLD_OK);
        assert_int_equal(kld_overlap_add(o, 0, a, N, &e), KLD_OK);
        assert_int_equal(kld_overlap_add(o, 1, a, 4, &e), KLD_OK); /* no shingle */
        if (kld_overlap_file(o, path, NULL, &e) != KLD_OK) fail_msg("%s", e.text);
        kld_overlap_result(o, g, &total);
        double whole = (double)same / (double)(2 * N - same); /* Jaccard, but for the border */
        double half = (double)(same < N / 2 ? same : N / 2) /
                      (double)(N + N / 2 - (same < N / 2 ? same : N / 2));
        double want = whole > half ? whole : half;
        if (fabs(g[0].similarity - want) > 0.14) /* three standard errors */
            fail_msg("%d: %g, expected about %g", tenth, g[0].similarity, want);
        if (tenth == 10) {
            assert_true(g[0].similarity == 1);
            assert_string_equal(g[0].similar, "all of it"); /* the first of two */
            assert_true(kld_overlap_share(&g[0]) == 1);
        }
        assert_true(g[1].similarity == 0 && !*g[1].similar && kld_overlap_share(&g[1]) == 0);
        kld_overlap_close(o);
        kld_buf_free(&text);
    }
    free(path);
}

static kld_tokenizer *bytes(void) {
    const tok_recipe r = {.pre = BYTE_LEVEL("false", "false")};
    return tok_make(&r);
}

#define TEXT "The quick brown fox jumps over the lazy dog, and then it sleeps until the evening."

/* Text is encoded; plain files are one document; the result does not depend on threads. */
static void texts(void **state) {
    char *jsonl = t_path(*state, "c.jsonl"), *plain = t_path(*state, "c.txt");
    kld_tokenizer *t = bytes();
    kld_ids ids = tok_encode(t, TEXT, strlen(TEXT));
    kld_err e = {0};
    kld_buf b = {0};
    assert_int_equal(
        kld_buf_adds(&b, "{\"text\":\"nothing of it\"}\n{\"text\":\"... " TEXT "\"}\n", &e),
        KLD_OK);
    put_file(jsonl, &b);
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_adds(&b, "brown fox jumps over the lazy", &e), KLD_OK);
    put_file(plain, &b);
    for (int threads = 1; threads <= 2; threads++) {
        kld_overlap *o;
        kld_overlap_group g, total;
        const int before = omp_get_max_threads();
        omp_set_num_threads(threads);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(kld_overlap_open(&o, 1, &e), KLD_OK);
            assert_int_equal(kld_overlap_add(o, 0, ids.v, ids.n, &e), KLD_OK);
            if (kld_overlap_file(o, k ? plain : jsonl, t, &e) != KLD_OK) fail_msg("%s", e.text);
            kld_overlap_result(o, &g, &total);
            assert_int_equal(g.grams, strlen(TEXT) - KLD_GRAM + 1);
            assert_int_equal(g.found, k ? 29 - KLD_GRAM + 1 : (int)g.grams);
            assert_string_equal(g.similar, k ? "c.txt" : "c.jsonl:2");
            kld_overlap_close(o);
        }
        omp_set_num_threads(before);
    }
    kld_overlap *o;
    assert_int_equal(kld_overlap_open(&o, 1, &e), KLD_OK);
    assert_int_equal(kld_overlap_file(o, jsonl, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "c.jsonl: 'c.jsonl:1' is text: --tokenizer is needed"));
    assert_int_equal(kld_overlap_file(o, "/nonexistent/x", t, &e), KLD_E_INPUT);
    kld_overlap_close(o);
    kld_overlap_close(NULL);
    kld_buf_clear(&b);
    assert_int_equal(kld_buf_adds(&b, "{\"ids\":[1]}\n{\"messages\":[]}\n", &e), KLD_OK);
    put_file(jsonl, &b);
    assert_int_equal(kld_overlap_open(&o, 1, &e), KLD_OK);
    assert_int_equal(kld_overlap_file(o, jsonl, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "c.jsonl: line 2: 'messages'"));
    kld_overlap_close(o);
    kld_buf_free(&b);
    kld_ids_free(&ids);
    kld_tokenizer_free(t);
    free(plain);
    free(jsonl);
}

static kld_document document(const char *text, const char *cluster) {
    return (kld_document){.text = text,
                          .bytes = strlen(text),
                          .source = "",
                          .cluster = cluster,
                          .stratum = "",
                          .partition = ""};
}

static void excluding(void **state) {
    char *plain = t_path(*state, "c.txt");
    const char *files[] = {plain};
    kld_tokenizer *t = bytes();
    kld_err e = {0};
    kld_buf b = {0};
    assert_int_equal(kld_buf_adds(&b, "... " TEXT, &e), KLD_OK);
    put_file(plain, &b);
    static const struct {
        double above;
        size_t dropped;
    } cases[] = {{0, 2}, {0.5, 1}, {0.99, 1}};
    for (size_t i = 0; i < 3; i++) {
        kld_document doc[] = {document("something else altogether, of many words", "a"),
                              document(TEXT, "b"), document("dog", "c"),
                              document("brown fox jumps, as we have learnt by heart and "
                                       "said again; over the lazy dog goes he who does.",
                                       "d")};
        kld_documents docs = {.doc = doc, .n = 4};
        size_t dropped;
        if (kld_documents_exclude(&docs, t, files, 1, cases[i].above, &dropped, &e) != KLD_OK)
            fail_msg("%s", e.text);
        assert_int_equal(dropped, cases[i].dropped);
        assert_int_equal(docs.n, 4 - cases[i].dropped);
        assert_string_equal(docs.doc[0].cluster, "a");
        assert_string_equal(docs.doc[1].cluster, "c"); /* too short to be found */
        assert_int_equal(docs.doc[1].n_ids, 3);
        kld_arena_free(&docs.arena);
    }
    kld_buf_free(&b);
    kld_tokenizer_free(t);
    free(plain);
}

/* Two clusters, one of them in two windows; the scan lists by what was asked. */
static void scanning(void **state) {
    char *path = t_path(*state, "c.jsonl");
    const char *files[] = {path};
    static uint32_t ids[3][40];
    static kld_window w[3];
    kld_suite s = {.windows = w, .n_windows = 3, .bos = ""};
    kld_scan_options opt = {.files = files, .n_files = 1, .similar = 0.5};
    kld_err e = {0};
    kld_buf b = {0};
    json_t *v;
    uint64_t r = 3;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 40; k++) ids[i][k] = rnd(&r, 5000);
        w[i] =
            (kld_window){.ids = ids[i], .n = 40, .source = "", .cluster = i == 1 ? "b\033" : "a"};
        w[i].stratum = "s", w[i].partition = "p";
    }
    add_ids(&b, ids[0], 40, "doc");
    put_file(path, &b);
    if (kld_suite_scan(&s, "x", NULL, &opt, &v, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(json_integer_value(json_object_get(v, "clusters")), 2);
    assert_int_equal(json_integer_value(json_object_get(v, "clusters_found")), 1);
    assert_int_equal(json_integer_value(json_object_get(v, "ngrams")), 84);
    assert_int_equal(json_integer_value(json_object_get(v, "found")), 28);
    assert_true(json_number_value(json_object_get(v, "most")) == 0.5);
    const json_t *list = json_object_get(v, "listed");
    assert_int_equal(json_array_size(list), 1);
    const json_t *first = json_array_get(list, 0);
    assert_string_equal(json_string_value(json_object_get(first, "cluster")), "a");
    assert_string_equal(json_string_value(json_object_get(first, "partition")), "p");
    assert_string_equal(json_string_value(json_object_get(first, "similar_to")), "doc");
    json_decref(v);
    opt.above = 0.5, opt.similar = 0.9;
    assert_int_equal(kld_suite_scan(&s, "x", NULL, &opt, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(json_object_get(v, "listed")), 0);
    json_decref(v);
    opt.similar = 0; /* everything */
    kld_buf text = {0};
    assert_int_equal(kld_suite_scan(&s, "x", NULL, &opt, &v, &e), KLD_OK);
    assert_int_equal(json_array_size(json_object_get(v, "listed")), 2);
    assert_int_equal(kld_suite_scan_text(v, &text, &e), KLD_OK);
    assert_non_null(strstr((char *)text.data, "28 of 84 13-grams (33.33 %)"));
    assert_null(strchr((char *)text.data, '\033')); /* a name cannot move the cursor */
    json_decref(v);
    kld_buf_free(&text);
    kld_tokenizer *t = bytes();
    s.tokenizer.b[0] = 1;
    assert_int_equal(kld_suite_scan(&s, "x", t, &opt, &v, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "x: was built with tokenizer 0100"));
    kld_tokenizer_free(t);
    const int threads = omp_get_max_threads();
    size_t n = 1;
    omp_set_num_threads(1);
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_mem_fail_after(n);
        st = kld_suite_scan(&s, "x", NULL, &opt, &v, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) json_decref(v);
        else if (st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        else assert_null(v);
    }
    omp_set_num_threads(threads);
    assert_true(n > 30);
    kld_buf_free(&b);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_search), cmocka_unit_test(similarity), cmocka_unit_test(texts),
        cmocka_unit_test(excluding),      cmocka_unit_test(scanning),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
