/* Receipts: what is in them, what is not, and that no change to one passes. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/compare/gates.h"
#include "kld/compare/receipt.h"

#include "tests/unit/comparekit.h"
#include "tests/unit/keykit.h"
#include "tests/unit/t.h"

#include <unistd.h>

static json_t *result(void) { return cmp_compared(2, 24, 16, (double[]){0.3, 0.6}, true); }

static json_t *receipt(void) {
    kld_err e = {0};
    json_t *r = result(), *out;
    if (kld_receipt_build(r, &out, &e) != KLD_OK) fail_msg("%s", e.text);
    json_decref(r);
    return out;
}

static void save(const char *path, const json_t *v, kld_buf *text) {
    kld_err e = {0};
    kld_buf_clear(text);
    assert_int_equal(kld_json_save(v, path, &e), KLD_OK);
    assert_int_equal(kld_file_slurp(path, 1 << 24, text, &e), KLD_OK);
}

static kld_status read_text(const char *path, const void *text, size_t n, kld_err *e) {
    kld_receipt_facts f;
    FILE *out = fopen(path, kld_path_exists(path) ? "r+b" : "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, n, out), n);
    fflush(out);
    assert_int_equal(ftruncate(fileno(out), (off_t)n), 0);
    fclose(out);
    kld_status st = kld_receipt_read(path, NULL, &f, e);
    if (st == KLD_OK) kld_receipt_facts_free(&f);
    else assert_null(f.capture);
    return st;
}

static void no_such_key(json_t *v, const char *key) {
    const char *k;
    json_t *item;
    size_t i;
    json_array_foreach(v, i, item) no_such_key(item, key);
    json_object_foreach(v, k, item) {
        assert_string_not_equal(k, key);
        no_such_key(item, key);
    }
}

static void contents(void **state) {
    (void)state;
    static const char *const HAS[] = {"schema",
                                      "tool.version",
                                      "tool.commit",
                                      "reference.name",
                                      "reference.model_digest",
                                      "reference.model_full_digest",
                                      "reference.suite_digest",
                                      "reference.tokenizer_digest",
                                      "reference.content_digest",
                                      "reference.engine",
                                      "settings.seed",
                                      "settings.top_p",
                                      "floor",
                                      "pairs.0.verdict",
                                      "pairs.0.ratio_ci95.1",
                                      "warnings.0.code",
                                      "candidates.1.model_full_digest",
                                      "candidates.1.content_digest",
                                      "candidates.1.engine",
                                      "candidates.1.quant",
                                      "candidates.1.kl.mean",
                                      "candidates.1.kl.ci95.1",
                                      "candidates.1.kl.p999",
                                      "candidates.1.tv.lower_bound",
                                      "candidates.1.top_p.jaccard",
                                      "candidates.1.by_stratum.1.kl_mean"};
    static const char *const LACKS[] = {"path", "worst", "histogram", "max_at",
                                        "text", "time",  "host"};
    json_t *r = receipt();
    json_t *c = json_object_get(r, "content");
    assert_int_equal(cmp_count(r, "kld_receipt"), 1);
    assert_true(json_is_null(cmp_get(r, "signature")));
    assert_true(json_is_string(cmp_get(r, "run.time")) && json_is_string(cmp_get(r, "run.host")));
    for (size_t i = 0; i < sizeof HAS / sizeof *HAS; i++) cmp_get(c, HAS[i]);
    for (size_t i = 0; i < sizeof LACKS / sizeof *LACKS; i++) no_such_key(c, LACKS[i]);
    assert_null(json_object_get(c, "gates"));
    json_decref(r);
}

/* Equal results, equal content, whatever the hour; another result, another digest. */
static void same_again(void **state) {
    (void)state;
    kld_err e = {0};
    json_t *a = receipt(), *b, *other;
    setenv("SOURCE_DATE_EPOCH", "1", 1);
    b = receipt();
    unsetenv("SOURCE_DATE_EPOCH");
    assert_true(json_equal(cmp_get(a, "content"), cmp_get(b, "content")));
    assert_true(json_equal(cmp_get(a, "content_sha256"), cmp_get(b, "content_sha256")));
    assert_false(json_equal(cmp_get(a, "run"), cmp_get(b, "run")));
    json_t *r = cmp_compared(2, 24, 16, (double[]){0.3, 0.61}, true);
    assert_int_equal(kld_receipt_build(r, &other, &e), KLD_OK);
    assert_false(json_equal(cmp_get(a, "content_sha256"), cmp_get(other, "content_sha256")));
    json_decref(a);
    json_decref(b);
    json_decref(other);
    json_decref(r);
}

/* Sorted keys, no blanks, 17 digits, and the escapes of docs/receipts.md. */
static void canonical(void **state) {
    (void)state;
    static const char TEXT[] = "{\"b\": [0.1, 1e-7, 1e30, 2.0, -3, true, null], \"a\": {\"z\": "
                               "\"\\u00e9/\\\"\\u0001\\n\", "
                               "\"B\": {}, \"\": []}}";
    static const char WANT[] =
        "{\"a\":{\"\":[],\"B\":{},\"z\":\"\xC3\xA9/\\\"\\u0001\\n\"},\"b\":[0.10000000000000001,"
        "9.9999999999999995e-8,1e30,2.0,-3,true,null]}";
    kld_err e = {0};
    kld_buf b = {0};
    json_t *v;
    assert_int_equal(kld_json_parse(&v, TEXT, strlen(TEXT), 8, &e), KLD_OK);
    assert_int_equal(kld_json_canonical(v, &b, &e), KLD_OK);
    assert_string_equal((char *)b.data, WANT);
    json_decref(v);
    kld_buf_free(&b);
}

static void signing(void **state) {
    kld_err e = {0};
    kld_receipt_facts f;
    kld_digest d;
    kld_buf content = {0};
    kld_key *a = key_of(*state, 0), *b = key_of(*state, 1);
    kld_public_key who = kld_key_public(a);
    json_t *r = receipt(), *again = receipt();
    assert_int_equal(kld_receipt_check(r, &f, &e), KLD_OK);
    assert_false(f.has_signature);
    assert_int_equal(f.n_captures, 3);
    assert_int_equal(kld_json_canonical(cmp_get(r, "content"), &content, &e), KLD_OK);
    assert_int_equal(kld_sha256_of(content.data, content.len, &d, &e), KLD_OK);
    assert_memory_equal(&f.content, &d, sizeof d);
    kld_receipt_facts_free(&f);

    assert_int_equal(kld_receipt_sign(r, a, &e), KLD_OK);
    assert_int_equal(kld_receipt_check(r, &f, &e), KLD_OK);
    assert_true(f.has_signature);
    assert_memory_equal(&f.signature.key, &who, sizeof who);
    assert_int_equal(kld_signature_check_digest(&f.signature, "kld receipt signature 1", &d, &e),
                     KLD_OK);
    kld_receipt_facts_free(&f);
    assert_string_equal(json_string_value(cmp_get(r, "signature.key_id")), "21fe31dfa154a261");
    assert_int_equal(kld_receipt_sign(again, a, &e), KLD_OK);
    assert_true(json_equal(cmp_get(r, "signature"), cmp_get(again, "signature")));
    /* Another key takes its place. */
    assert_int_equal(kld_receipt_sign(again, b, &e), KLD_OK);
    assert_int_equal(kld_receipt_check(again, &f, &e), KLD_OK);
    kld_receipt_facts_free(&f);
    /* A's name on B's signature, and a signature of another receipt. */
    json_t *s = json_object_get(again, "signature"), *own = json_object_get(r, "signature");
    json_object_set(s, "public_key", json_object_get(own, "public_key"));
    assert_int_equal(kld_receipt_check(again, &f, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "'key_id'"));
    json_object_set(s, "key_id", json_object_get(own, "key_id"));
    assert_int_equal(kld_receipt_check(again, &f, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "not one of key 21fe31dfa154a261"));
    json_object_set_new(again, "signature", json_true());
    assert_int_equal(kld_receipt_check(again, &f, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "expected an object"));
    /* What was changed is not signed. */
    json_object_set_new(json_object_get(r, "content"), "positions", json_integer(1));
    assert_int_equal(kld_receipt_sign(r, b, &e), KLD_E_INPUT);
    json_decref(r);
    json_decref(again);
    kld_buf_free(&content);
    kld_key_free(a);
    kld_key_free(b);
}

/* Any byte of the file but those of `run` changed; all truncations that lose more than a blank. */
static void changed_bytes(void **state) {
    kld_err e = {0};
    char *path = t_path(*state, "r.json");
    kld_buf text = {0};
    json_t *r = receipt();
    kld_key *key = key_of(*state, 0);
    assert_int_equal(kld_receipt_sign(r, key, &e), KLD_OK);
    save(path, r, &text);
    if (read_text(path, text.data, text.len, &e) != KLD_OK) fail_msg("%s", e.text);
    char *run = strstr((char *)text.data, "\"run\""), *end = strstr(run, "}");
    size_t from = (size_t)(run - (char *)text.data), to = (size_t)(end - (char *)text.data);
    for (size_t i = 0, step = 1; i < text.len - 1; i += step) {
        if (i > from && i < to) continue;
        step = i < 2000 || i > from - 500 ? 1 : 11;
        text.data[i] ^= (unsigned char)(1u << i % 7);
        kld_status st = read_text(path, text.data, text.len, &e);
        if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED)
            fail_msg("byte %zu, '%.20s': %d", i, (char *)text.data + i, (int)st);
        assert_non_null(strstr(e.text, "r.json: "));
        text.data[i] ^= (unsigned char)(1u << i % 7);
    }
    for (size_t n = 0; n<text.len - 1; n += n> text.len - 400 ? 1 : 97)
        assert_int_equal(read_text(path, text.data, n, &e), KLD_E_INPUT);
    /* Blanks are free. */
    kld_buf_clear(&text);
    assert_int_equal(kld_json_dump(r, false, &text, &e), KLD_OK);
    assert_int_equal(read_text(path, text.data, text.len, &e), KLD_OK);
    json_decref(r);
    kld_key_free(key);
    kld_buf_free(&text);
    free(path);
}

/* One member of a receipt replaced in its text. */
static void edited(void **state) {
    static const struct {
        const char *find, *put, *says;
        kld_status st;
    } edits[] = {
        {"\"kld_receipt\": 1", "\"kld_receipt\": 2", "version 2", KLD_E_UNSUPPORTED},
        {"\"kld_receipt\": 1", "\"kld_receipt\": \"1\"", "expected an integer", KLD_E_INPUT},
        {"\"kld_receipt\": 1", "\"receipt\": 1", "is no receipt", KLD_E_INPUT},
        {"\"kld_receipt\": 1", "\"kld_receipt\": 1, \"kld_receipt\": 1", "duplicate", KLD_E_INPUT},
        {"\"kld_receipt\": 1", "\"kld_receipt\": 1, \"more\": 1", "6 members", KLD_E_INPUT},
        {"\"kld_receipt\": 1", "\"kld_receipt\": 01", "not valid JSON", KLD_E_INPUT},
        {"\"schema\": 1", "\"schema\": 1, \"schema\": 1", "duplicate", KLD_E_INPUT},
        {"\"positions\": ", "\"positions\": 1", "was changed", KLD_E_INPUT},
        {"0.94999999999999996", "0.95", "not written as", KLD_E_INPUT},
        {"0.94999999999999996", "0.94999999999999997", "not written as", KLD_E_INPUT},
        {"\"schema\"", "\"\\u0073chema\"", "not written as", KLD_E_INPUT},
        {"\"content_sha256\": \"", "\"content_sha256\": \"0", "lower-case hex", KLD_E_INPUT},
        {"\"time\": \"", "\"when\": \"", "'time'", KLD_E_INPUT},
        {"\"time\": \"", "\"a\": 1, \"time\": \"", "'run' has 3", KLD_E_INPUT},
        {"\"ed25519\"", "\"rsa\"", "'rsa'", KLD_E_UNSUPPORTED},
        {"\"algorithm\"", "\"more\": 1, \"algorithm\"", "'signature' has 5", KLD_E_INPUT},
        {"\"key_id\": \"", "\"key_id\": \"\\u001b", "lower-case hex", KLD_E_INPUT},
    };
    kld_err e = {0};
    char *path = t_path(*state, "r.json");
    kld_buf text = {0}, changed = {0};
    json_t *r = receipt();
    kld_key *key = key_of(*state, 0);
    assert_int_equal(kld_receipt_sign(r, key, &e), KLD_OK);
    save(path, r, &text);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *whole = (const char *)text.data, *at = strstr(whole, edits[i].find);
        assert_non_null(at);
        kld_buf_clear(&changed);
        assert_int_equal(kld_buf_add(&changed, whole, (size_t)(at - whole), &e), KLD_OK);
        assert_int_equal(kld_buf_adds(&changed, edits[i].put, &e), KLD_OK);
        assert_int_equal(kld_buf_adds(&changed, at + strlen(edits[i].find), &e), KLD_OK);
        kld_status st = read_text(path, changed.data, changed.len, &e);
        if (st != edits[i].st || !strstr(e.text, edits[i].says))
            fail_msg("'%s': %d %s", edits[i].put, (int)st, e.text);
        assert_false(kld_has_controls(e.text));
    }
    static const char *const other[] = {"", "{}", "[]", "1", "{\"schema\": 1}", "{"};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(read_text(path, other[i], strlen(other[i]), &e), KLD_E_INPUT);
    json_decref(r);
    kld_key_free(key);
    kld_buf_free(&text);
    kld_buf_free(&changed);
    free(path);
}

/* Results that are none, and what gates said. */
static void results(void **state) {
    (void)state;
    static const char *const NEEDED[] = {"schema", "reference", "candidates", "warnings"};
    static const char *const GATES[] = {"mean_kl=0.0001", "top1_disagreement=1"};
    kld_err e = {0};
    json_t *out;
    for (size_t i = 0; i < 4; i++) {
        json_t *r = result();
        json_object_del(r, NEEDED[i]);
        assert_int_equal(kld_receipt_build(r, &out, &e), KLD_E_INPUT);
        assert_null(out);
        assert_non_null(strstr(e.text, NEEDED[i]));
        json_decref(r);
    }
    json_t *r = result();
    json_object_set_new(r, "schema", json_integer(2));
    assert_int_equal(kld_receipt_build(r, &out, &e), KLD_E_INPUT);
    json_object_set_new(r, "schema", json_integer(1));
    /* A member that is not known is not published. */
    json_object_set_new(r, "later", json_string("secret"));
    json_object_set_new(json_object_get(r, "reference"), "later", json_string("secret"));
    assert_int_equal(kld_compare_gates_record(r, (const char *[]){"mean_kx=1"}, 1, &e),
                     KLD_E_USAGE);
    assert_int_equal(kld_compare_gates_record(r, GATES, 2, &e), KLD_OK);
    assert_int_equal(kld_receipt_build(r, &out, &e), KLD_OK);
    const json_t *g = cmp_get(out, "content.gates");
    assert_int_equal(json_array_size(g), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(g, i);
        assert_true(cmp_real(row, "limit") == (i < 2 ? 0.0001 : 1));
        assert_int_equal(cmp_count(row, "candidate"), (int)(i % 2));
        assert_true(json_is_boolean(cmp_get(row, "passed")));
        assert_int_equal(json_is_true(cmp_get(row, "passed")), i >= 2);
    }
    assert_true(json_equal(cmp_get(g, "1.value"), cmp_get(r, "candidates.1.kl.mean")));
    no_such_key(out, "later");
    json_decref(out);
    json_decref(r);
}

static void no_memory(void **state) {
    char *path = t_path(*state, "r.json");
    json_t *r = result();
    kld_key *key = key_of(*state, 0);
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n += n < 60 ? 1 : 13) {
        kld_err e = {0};
        json_t *out = NULL, *back = NULL;
        kld_receipt_facts f = {0};
        kld_mem_fail_after(n);
        st = kld_receipt_build(r, &out, &e);
        if (st == KLD_OK) st = kld_receipt_sign(out, key, &e);
        if (st == KLD_OK) st = kld_json_save(out, path, &e);
        if (st == KLD_OK) st = kld_receipt_read(path, &back, &f, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        kld_receipt_facts_free(&f);
        json_decref(out);
        json_decref(back);
    }
    assert_true(n > 500);
    json_decref(r);
    kld_key_free(key);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents),
        cmocka_unit_test(same_again),
        cmocka_unit_test(canonical),
        cmocka_unit_test(results),
        cmocka_unit_test_setup_teardown(signing, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(changed_bytes, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(edited, t_dir_make, t_dir_remove),
        cmocka_unit_test_setup_teardown(no_memory, t_dir_make, t_dir_remove),
    };
    /* jansson allocates where kld_mem_fail_after reaches it once something was parsed. */
    json_t *v;
    kld_err e;
    if (kld_json_parse(&v, "{}", 2, 1, &e) != KLD_OK) return 1;
    json_decref(v);
    return cmocka_run_group_tests_name("receipt", tests, NULL, NULL);
}
