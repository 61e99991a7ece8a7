/* Manifests: what they may say, how it is refused, and the record that is made of them. */
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/capture/describe.h"
#include "kld/capture/manifest.h"

#include "tests/unit/t.h"

static char *put(const char *dir, const char *name, const char *text) {
    kld_err e = {0};
    char *path = t_path(dir, name);
    if (kld_file_write(path, text, strlen(text), &e) != KLD_OK) fail_msg("%s", e.text);
    return path;
}

static kld_status load(const char *dir, const char *text, kld_manifest *m, kld_err *e) {
    char *path = put(dir, "m.json", text);
    memset(e, 0, sizeof *e);
    kld_manifest_init(m);
    kld_status st = kld_manifest_load(m, path, e);
    free(path);
    return st;
}

static const char *const FULL =
    "{\"tokenizer\": \"/models/ref\", \"window\": 64, \"stride\": 32, \"score_last\": 16, "
    "\"bos\": \"every\", \"seed\": 7, \"per_document\": 2, \"per_cluster\": 5,"
    " \"split\": {\"analysis\": 0.75, \"qualification\": 0.25}, \"keep_partitions\": \"old.jsonl\","
    " \"exclude_overlap\": [\"calib.jsonl\", \"/abs.txt\"], \"exclude_above\": 0.01, \"sources\": ["
    "{\"dataset\": \"wiki\", \"revision\": \"r1\", \"jsonl\": [\"a.jsonl\", \"b.jsonl\"],"
    " \"text\": \"c.txt\", \"stratum\": \"prose\", \"strata\": {\"prose\": {\"windows\": 3},"
    " \"code\": {\"tokens\": 100}}},"
    "{\"text\": [\"d.txt\"], \"cluster\": \"d\", \"partition\": \"analysis\", \"tokens\": 9},"
    "{\"jsonl\": \"a.jsonl\"}]}";

static void full(void **state) {
    kld_manifest m;
    kld_err e;
    char *calib = t_path(*state, "calib.jsonl"), *a = t_path(*state, "a.jsonl");
    if (load(*state, FULL, &m, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_string_equal(m.tokenizer, "/models/ref");
    assert_int_equal(m.opt.window, 64);
    assert_int_equal(m.opt.stride, 32);
    assert_true(m.opt.score_last_set && m.opt.score_last == 16 && m.opt.by_content);
    assert_int_equal(m.opt.bos, KLD_BOS_EVERY);
    assert_int_equal(m.opt.seed, 7);
    assert_int_equal(m.per_document, 2);
    assert_int_equal(m.per_cluster, 5);
    assert_int_equal(m.split.n, 2);
    assert_string_equal(m.split.part[1].name, "qualification");
    assert_int_equal(m.n_exclude, 2);
    assert_string_equal(m.exclude[0], calib); /* beside the manifest */
    assert_string_equal(m.exclude[1], "/abs.txt");
    assert_true(m.exclude_above == 0.01);
    assert_int_equal(m.n_sources, 3);
    const kld_source *s = m.source;
    assert_string_equal(s[0].dataset, "wiki");
    assert_string_equal(s[0].revision, "r1");
    assert_int_equal(s[0].n_files, 3);
    assert_string_equal(s[0].file[0].path, a);
    assert_string_equal(s[0].file[0].shown, "a.jsonl");
    assert_true(s[0].file[1].jsonl && !s[0].file[2].jsonl);
    assert_string_equal(s[0].stratum, "prose");
    assert_null(s[0].cluster);
    assert_string_equal(s[1].cluster, "d");
    assert_string_equal(s[1].partition, "analysis");
    assert_string_equal(s[1].dataset, "");
    assert_int_equal(m.n_quotas, 3);
    assert_string_equal(m.quota[0].stratum, "prose");
    assert_true(!m.quota[0].in_tokens && m.quota[0].asked == 3);
    assert_true(m.quota[1].in_tokens && m.quota[1].asked == 100);
    assert_true(m.quota[2].origin == 1 && !m.quota[2].stratum && m.quota[2].in_tokens);
    kld_manifest_free(&m);
    if (load(*state, "{\"sources\":[{\"text\":\"x\"}]}", &m, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(m.opt.window, 2048);
    assert_int_equal(m.opt.stride, 0);
    assert_int_equal(m.opt.seed, 1);
    assert_null(m.tokenizer);
    assert_int_equal(m.n_quotas, 0);
    kld_manifest_free(&m);
    free(calib);
    free(a);
}

#define ONE(more) "{\"sources\":[{\"text\":\"x\"" more "}]}"
#define TOP(more) "{" more ",\"sources\":[{\"text\":\"x\"}]}"

static void refusals(void **state) {
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{", "JSON"},
        {"[]", "an object|an array"},
        {"{}", "'sources'|an array|nothing"},
        {"{\"sources\":[]}", "'sources' has 0 elements"},
        {"{\"sources\":[7]}", "source 0|an object|an integer"},
        {"{\"sources\":[{}]}", "source 0|names no file"},
        {"{\"sources\":[{\"text\":[]}]}", "source 0|'text'"},
        {"{\"sources\":[{\"text\":[\"x\",\"\"]}]}", "source 0|'text'|an empty one"},
        {"{\"sources\":[{\"text\":\"x\"},{\"jsonl\":[1]}]}", "source 1|'jsonl'|an integer"},
        {TOP("\"sede\":1"), "'sede' is not a key here|seed"},
        {TOP("\"window\":1,\"window\":2"), "duplicate"},
        {TOP("\"window\":\"2\""), "'window'|a string"},
        {TOP("\"stride\":-1"), "'stride'|negative"},
        {TOP("\"bos\":\"always\""), "'bos'|always"},
        {TOP("\"seed\":1.5"), "'seed'|a real number"},
        {TOP("\"split\":{\"a\":0.5}"), "'split'|add up to 0.5"},
        {TOP("\"split\":{\"a\":\"1\"}"), "'a'|a number|a string"},
        {TOP("\"split\":{}"), "'split'"},
        {TOP("\"split\":0.5"), "'split'|an object"},
        {TOP("\"exclude_overlap\":[]"), "'exclude_overlap'"},
        {TOP("\"exclude_overlap\":{}"), "'exclude_overlap'|an object"},
        {TOP("\"exclude_above\":\"a\""), "'exclude_above'|a number"},
        {TOP("\"exclude_above\":1"), "'exclude_above'|below 1"},
        {TOP("\"per_document\":0"), "'per_document'|0"},
        {TOP("\"tokenizer\":1"), "'tokenizer'|a string"},
        {ONE(",\"stratums\":1"), "source 0|'stratums' is not a key here|strata"},
        {ONE(",\"revision\":5"), "source 0|'revision'|a string"},
        {ONE(",\"windows\":0"), "source 0|'windows' is 0"},
        {ONE(",\"windows\":1,\"tokens\":1"), "source 0|either|both"},
        {ONE(",\"windows\":1,\"strata\":{\"a\":{\"windows\":1}}"), "source 0|'strata'"},
        {ONE(",\"strata\":{}"), "source 0|'strata' names none"},
        {ONE(",\"strata\":[]"), "source 0|'strata'|an object|an array"},
        {ONE(",\"strata\":{\"a\":1}"), "source 0|'strata': 'a'|an object|an integer"},
        {ONE(",\"strata\":{\"a\":{}}"), "'strata': 'a'|neither"},
        {ONE(",\"strata\":{\"a\":{\"windws\":1}}"), "'strata': 'a'|'windws' is not a key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kld_manifest m;
        kld_err e;
        if (load(*state, bad[i].text, &m, &e) != KLD_E_INPUT)
            fail_msg("%s: '%s'", bad[i].text, e.text);
        char words[160], *save = NULL;
        snprintf(words, sizeof words, "%s|m.json", bad[i].words);
        for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
            if (!strstr(e.text, w)) fail_msg("%s: '%s' lacks '%s'", bad[i].text, e.text, w);
        kld_manifest_free(&m);
    }
}

static void reading(void **state) {
    kld_manifest m;
    kld_err e;
    kld_documents docs = {0};
    kld_digest want;
    static const char a[] = "{\"text\":\"one\"}\n{\"text\":\"two\",\"source\":\"mine\"}\n";
    char *paths[] = {put(*state, "a.jsonl", a), put(*state, "d.txt", "plain")};
    if (load(*state,
             "{\"sources\":[{\"dataset\":\"set\",\"revision\":\"9\",\"jsonl\":\"a.jsonl\"},"
             "{\"dataset\":\"bare\",\"text\":\"d.txt\"},{\"text\":\"d.txt\"}]}",
             &m, &e) != KLD_OK)
        fail_msg("%s", e.text);
    if (kld_manifest_read(&m, &docs, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(docs.n, 4);
    assert_string_equal(docs.doc[0].source, "set@9");
    assert_string_equal(docs.doc[1].source, "mine");
    assert_string_equal(docs.doc[2].source, "bare");
    assert_string_equal(docs.doc[3].source, paths[1]);
    assert_int_equal(docs.doc[2].origin, 1);
    assert_int_equal(docs.doc[3].origin, 2);
    assert_int_equal(kld_sha256_of(a, strlen(a), &want, &e), KLD_OK);
    assert_memory_equal(&m.source[0].file[0].sha256, &want, sizeof want);

    kld_source_sums sums[3] = {{.documents = 2, .windows = 3, .tokens = 40, .positions = 37}};
    kld_window w = {.ids = (uint32_t[]){1, 2}, .n = 2, .source = "", .cluster = "c"};
    w.stratum = "", w.partition = "analysis";
    kld_suite s = {
        .windows = &w, .n_windows = 1, .vocab = 9, .window = 64, .stride = 64, .bos = ""};
    m.opt.seed = 77, m.per_cluster = 3;
    m.n_quotas = 1;
    m.quota = &(kld_quota){.origin = 0, .stratum = "x", .asked = 3, .windows = 3, .tokens = 40};
    if (kld_manifest_record(&m, sums, 6, &s, &e) != KLD_OK) fail_msg("%s", e.text);
    char *out = t_path(*state, "s.jsonl");
    kld_digest digest;
    if (kld_suite_save(&s, out, &e) != KLD_OK) fail_msg("%s", e.text);
    digest = s.digest;
    kld_arena_free(&s.arena);
    s.built = NULL; /* the record is no part of the digest */
    assert_int_equal(kld_suite_seal(&s, &e), KLD_OK);
    assert_memory_equal(&digest, &s.digest, sizeof digest);
    kld_suite r;
    json_t *v;
    if (kld_suite_load(&r, out, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(kld_suite_describe(&r, out, &v, &e), KLD_OK);
    char *again = t_path(*state, "again.jsonl"); /* and stays when a suite is written again */
    assert_int_equal(kld_suite_save(&r, again, &e), KLD_OK);
    kld_digest one, two;
    assert_int_equal(kld_sha256_file(out, &one, &e), KLD_OK);
    assert_int_equal(kld_sha256_file(again, &two, &e), KLD_OK);
    assert_memory_equal(&one, &two, sizeof one);
    kld_suite_free(&r);
    assert_int_equal(json_integer_value(json_object_get(v, "seed")), 77);
    const json_t *first = json_array_get(json_object_get(v, "sources"), 0);
    const json_t *hashes = json_object_get(first, "sha256");
    char hex[KLD_SHA256_HEX];
    assert_string_equal(json_string_value(json_array_get(hashes, 0)), kld_digest_hex(&want, hex));
    assert_string_equal(json_string_value(json_object_get(first, "revision")), "9");
    assert_int_equal(json_integer_value(json_object_get(first, "positions")), 37);
    const json_t *quota = json_array_get(json_object_get(v, "allocation"), 0);
    assert_int_equal(json_integer_value(json_object_get(quota, "asked")), 3);
    assert_string_equal(json_string_value(json_object_get(quota, "stratum")), "x");
    const json_t *choice = json_object_get(v, "choice");
    assert_int_equal(json_integer_value(json_object_get(choice, "per_cluster")), 3);
    assert_int_equal(json_integer_value(json_object_get(choice, "documents_excluded")), 6);
    json_decref(v);
    kld_manifest_free(&m);
    kld_documents_free(&docs);
    assert_int_equal(kld_sha256_file("/nonexistent/x", &one, &e), KLD_E_INPUT);
    for (size_t i = 0; i < 2; i++) free(paths[i]);
    free(again);
    free(out);
}

static void no_memory(void **state) {
    char *path = put(*state, "m.json", FULL);
    kld_err e = {0};
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
        kld_manifest m;
        kld_suite s = {0};
        kld_source_sums sums[3] = {{0}};
        kld_manifest_init(&m);
        kld_mem_fail_after(n);
        st = kld_manifest_load(&m, path, &e);
        if (st == KLD_OK) st = kld_manifest_record(&m, sums, 0, &s, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        kld_arena_free(&s.arena);
        kld_manifest_free(&m);
    }
    assert_true(n > 30);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full),
        cmocka_unit_test(refusals),
        cmocka_unit_test(reading),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
