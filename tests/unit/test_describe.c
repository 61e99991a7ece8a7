/* What is in a suite: cells, how often ids are scored, repeats, warnings; and a text that no name
 * can break. */
#include "kld/base/mem.h"
#include "kld/capture/describe.h"

#include "tests/unit/t.h"

enum { MOST = 80 };

static kld_window W[MOST];
static uint32_t IDS[MOST][64];
static char NAME[MOST][16];
static kld_suite S;

static void add(const char *partition, const char *stratum, int cluster, const uint32_t *ids,
                size_t n, size_t score_from, uint64_t offset) {
    size_t i = S.n_windows++;
    snprintf(NAME[i], sizeof NAME[i], "c%d", cluster);
    memcpy(IDS[i], ids, n * sizeof *ids);
    W[i] = (kld_window){.ids = IDS[i], .n = n, .score_from = score_from, .offset = offset};
    W[i].source = "", W[i].cluster = NAME[i], W[i].stratum = stratum, W[i].partition = partition;
}

static const uint32_t *text(uint32_t from) {
    static uint32_t v[64];
    for (uint32_t i = 0; i < 64; i++) v[i] = from + i;
    return v;
}

static void begin(const char *bos) {
    S = (kld_suite){.windows = W, .bos = bos, .window = 8, .stride = 4};
}

static json_t *describes(void) {
    kld_err e = {0};
    json_t *v;
    assert_int_equal(kld_suite_seal(&S, &e), KLD_OK);
    if (kld_suite_describe(&S, "s.jsonl", &v, &e) != KLD_OK) fail_msg("%s", e.text);
    return v;
}

static long long number(const json_t *v, const char *a, const char *b) {
    v = json_object_get(v, a);
    return (long long)json_integer_value(b ? json_object_get(v, b) : v);
}

static const json_t *warning(const json_t *v, const char *code) {
    size_t i;
    json_t *w;
    json_array_foreach(
        json_object_get(v, "warnings"), i,
        w) if (!strcmp(json_string_value(json_object_get(w, "code")), code)) return w;
    return NULL;
}

static void cells(void **state) {
    (void)state;
    begin("none");
    add("b", "x", 1, text(0), 8, 0, 0);
    add("a", "y", 2, text(100), 8, 2, 0);
    add("b", "y", 3, text(200), 8, 0, 0);
    add("b", "x", 1, text(300), 4, 0, 90);
    add("b", "x", 4, text(400), 1, 0, 0);
    json_t *v = describes();
    static const struct {
        const char *partition, *stratum;
        int clusters, windows, positions;
    } want[] = {{"a", "y", 1, 1, 5}, {"b", "x", 2, 3, 10}, {"b", "y", 1, 1, 7}};
    const json_t *c = json_object_get(v, "cells"), *p = json_object_get(v, "partitions");
    assert_int_equal(json_array_size(c), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *o = json_array_get(c, i);
        assert_string_equal(json_string_value(json_object_get(o, "partition")), want[i].partition);
        assert_string_equal(json_string_value(json_object_get(o, "stratum")), want[i].stratum);
        assert_int_equal(number(o, "clusters", NULL), want[i].clusters);
        assert_int_equal(number(o, "windows", NULL), want[i].windows);
        assert_int_equal(number(o, "positions", NULL), want[i].positions);
    }
    assert_int_equal(json_array_size(p), 2);
    assert_int_equal(number(json_array_get(p, 1), "clusters", NULL), 3);
    assert_int_equal(number(json_array_get(p, 1), "positions", NULL), 17);
    assert_true(json_is_null(json_object_get(v, "sources"))); /* nothing tells */
    assert_non_null(warning(v, "few_positions"));
    assert_non_null(warning(v, "no_tokenizer"));
    const char *few = json_string_value(json_object_get(warning(v, "few_clusters"), "text"));
    assert_non_null(strstr(few, "partition 'a' has 1 cluster:"));
    const char *one = json_string_value(json_object_get(warning(v, "one_cluster_stratum"), "text"));
    assert_non_null(strstr(one, "stratum 'y' of partition 'b' has one cluster"));
    json_decref(v);
    begin("none"); /* thirty clusters are enough, and a partition of one stratum has no other */
    S.tokenizer.b[0] = 1;
    for (int i = 0; i < 30; i++) add("", "", i, text(100 * (uint32_t)i), 8, 0, 0);
    v = describes();
    assert_null(warning(v, "few_clusters"));
    assert_null(warning(v, "one_cluster_stratum"));
    assert_null(warning(v, "no_tokenizer"));
    json_decref(v);
}

/* Ids 0.. of one document in windows of 8 that begin 4 apart, with all positions scored. */
static void scored(void **state) {
    (void)state;
    begin("none");
    for (uint32_t i = 0; i < 5; i++) add("", "", 1, text(4 * i), 8, 0, 4 * i);
    add("", "", 1, text(500), 8, 0, 6); /* another document of the cluster */
    add("", "", 2, text(16), 8, 0, 20); /* and one that only looks like the next */
    json_t *v = describes();
    /* 24 ids: 1..23 once at least; ids 5..7, 9..11, 13..15, 17..19 twice. */
    assert_int_equal(number(v, "scored", "ids"), 23 + 7 + 7);
    assert_int_equal(number(v, "scored", "most"), 2);
    assert_non_null(warning(v, "scored_repeatedly"));
    json_decref(v);
    begin("none"); /* each once, as kld suite build does */
    for (uint32_t i = 0; i < 5; i++) add("", "", 1, text(4 * i), 8, i ? 3 : 0, 4 * i);
    v = describes();
    assert_int_equal(number(v, "scored", "ids"), 23);
    assert_int_equal(number(v, "scored", "most"), 1);
    assert_null(warning(v, "scored_repeatedly"));
    json_decref(v);
    begin("every"); /* BOS in front: id k of the window is id offset + k - 1 of the document */
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t ids[8] = {7777};
        for (uint32_t k = 0; k < 7; k++) ids[k + 1] = 4 * i + k;
        add("", "", 1, ids, 8, 0, 4 * i);
    }
    v = describes();
    assert_int_equal(number(v, "scored", "ids"), 15);
    assert_int_equal(number(v, "scored", "most"), 2);
    json_decref(v);
    begin("none"); /* many windows of one place */
    for (uint32_t i = 0; i < 6; i++) add("", "", 1, text(i), 8, 6, i);
    v = describes();
    assert_int_equal(number(v, "scored", "ids"), 6);
    assert_int_equal(number(v, "scored", "most"), 1);
    json_decref(v);
    begin("none"); /* offsets from outside */
    add("", "", 1, text(0), 8, 0, UINT64_MAX - 3);
    add("", "", 1, text(1), 8, 0, UINT64_MAX - 2);
    v = describes();
    assert_true(number(v, "scored", "ids") > 0);
    json_decref(v);
}

static void repeats(void **state) {
    (void)state;
    begin("none");
    add("a", "", 1, text(0), 8, 0, 0);
    add("b", "", 2, text(0), 8, 0, 0);
    add("b", "", 3, text(0), 8, 0, 0);
    add("b", "", 4, text(9), 8, 0, 0);
    json_t *v = describes();
    assert_int_equal(number(v, "repeated", "windows"), 2);
    assert_int_equal(number(v, "repeated", "across_partitions"), 1);
    assert_non_null(warning(v, "repeated_across_partitions"));
    json_decref(v);
    S.n_windows = 1;
    v = describes();
    assert_int_equal(number(v, "repeated", "windows"), 0);
    assert_null(warning(v, "repeated_windows"));
    json_decref(v);
}

/* Names and records from outside, of any kind. */
static void hostile(void **state) {
    (void)state;
    static const char *const built[] = {
        "{\"seed\":\"x\",\"sources\":[7,{\"dataset\":5,\"files\":{}}],\"choice\":[],\"allocation\":"
        "3}",
        "{\"sources\":[{\"dataset\":\"a\\u001b[2Jb\",\"revision\":\"\\u009b\",\"files\":[\"x\"]}],"
        "\"choice\":{\"split\":\"\\u001b\"},\"allocation\":[{\"stratum\":\"\\u001b\"},4]}",
        "{\"sources\":{},\"allocation\":null}"};
    for (size_t i = 0; i < 3; i++) {
        kld_err e = {0};
        kld_buf b = {0};
        begin("none");
        add("p\033[1m", "\n", 1, text(0), 8, 0, 0);
        add("p\033[1m", "\xc3\xa4 stratum with a name that is longer than any column is wide", 2,
            text(80), 8, 0, 0);
        S.built = built[i];
        json_t *v = describes();
        if (kld_suite_describe_text(v, &b, &e) != KLD_OK) fail_msg("%s", e.text);
        assert_null(strchr((char *)b.data, '\033'));
        assert_null(strstr((char *)b.data, "\xc2\x9b"));
        assert_non_null(strstr((char *)b.data, "\xc3\xa4 stratum with a name th"));
        json_decref(v);
        kld_buf_free(&b);
    }
}

static void no_memory(void **state) {
    (void)state;
    kld_err e = {0};
    json_t *v;
    size_t n = 1;
    begin("none");
    for (uint32_t i = 0; i < 5; i++) add("", "", 1, text(4 * i), 8, 0, 4 * i);
    S.built = "{\"seed\":1,\"sources\":[]}";
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_mem_fail_after(n);
        st = kld_suite_describe(&S, "s", &v, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) json_decref(v);
        else if (st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
    }
    assert_true(n > 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells),   cmocka_unit_test(scored),    cmocka_unit_test(repeats),
        cmocka_unit_test(hostile), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
