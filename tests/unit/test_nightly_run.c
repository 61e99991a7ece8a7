/* A nightly run by its own interface: what is returned, and what is left when memory ends. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/nightly/nightly.h"

#include "tests/unit/t.h"

#include <unistd.h>

/* Two windows for a golden model of 96 ids, and a configuration in *state. */
static char *job(const char *dir, const char *more) {
    char *suite = t_path(dir, "s.jsonl"), *path = t_path(dir, "n.json"), text[2048], cwd[512];
    static const char windows[] = "{\"ids\":[1,2,3,4,5,6,7,8],\"cluster\":\"a\"}\n"
                                  "{\"ids\":[9,8,7,6,5,4,3,2],\"cluster\":\"b\"}\n";
    assert_int_equal(kld_file_write(suite, windows, sizeof windows - 1, NULL), KLD_OK);
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(text, sizeof text,
             "{\"output\":\"o\",\"suite\":\"s.jsonl\","
             "\"reference\":{\"model\":\"%s/tests/golden/models/qwen2\"},"
             "\"candidates\":[{\"name\":\"a\",\"model\":\"%s/tests/golden/models/qwen2\"}%s],"
             "\"capture\":{\"device\":\"cpu\"},\"compare\":{\"resamples\":100},"
             "\"gates\":[\"mean_kl=0.1\"]}",
             cwd, cwd, more);
    assert_int_equal(kld_file_write(path, text, strlen(text), NULL), KLD_OK);
    free(suite);
    return path;
}

static const char *member(const json_t *o, const char *list, size_t i, const char *name) {
    const char *s =
        json_string_value(json_object_get(json_array_get(json_object_get(o, list), i), name));
    return s ? s : "";
}

static void statuses(void **state) {
    kld_nightly_config c;
    kld_err e = {0};
    json_t *s;
    char *path = job(*state, "");
    assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_OK);
    assert_int_equal(kld_nightly_check(&c, &e), KLD_OK);
    assert_int_equal(kld_nightly_plan(&c, &s, &e), KLD_OK);
    assert_string_equal(member(s, "captures", 1, "action"), "captured");
    assert_string_equal(member(s, "captures", 1, "why"), "the reference is captured anew");
    assert_null(json_object_get(s, "candidates"));
    json_decref(s);
    assert_false(kld_path_exists(c.output));
    if (kld_nightly_run(&c, "first", &s, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_string_equal(member(s, "candidates", 0, "outcome"), "passed");
    assert_string_equal(json_string_value(json_object_get(s, "label")), "first");
    json_decref(s);
    kld_nightly_config_free(&c);
    free(path);

    /* One that fails is in the summary, and its status is the run's; the other is measured. */
    path = job(*state, ",{\"name\":\"gone\",\"model\":\"nowhere\"}");
    assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_OK);
    assert_int_equal(kld_nightly_check(&c, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "n.json: gone: "));
    assert_int_equal(kld_nightly_plan(&c, &s, &e), KLD_E_INPUT);
    assert_string_equal(member(s, "captures", 0, "action"), "reused");
    assert_string_equal(member(s, "captures", 2, "action"), "failed");
    json_decref(s);
    assert_int_equal(kld_nightly_run(&c, NULL, &s, &e), KLD_E_INPUT);
    assert_int_equal(e.status, KLD_E_INPUT);
    assert_non_null(strstr(e.text, "gone: "));
    assert_string_equal(member(s, "captures", 1, "action"), "reused");
    assert_string_equal(member(s, "candidates", 0, "outcome"), "passed");
    assert_string_equal(member(s, "candidates", 1, "outcome"), "error");
    assert_int_equal(json_integer_value(json_object_get(s, "exit_code")), 3);
    json_decref(s);
    kld_nightly_config_free(&c);
    free(path);
}

/* Nothing leaks, and the status says what it was. */
static void out_of_memory(void **state) {
    kld_nightly_config c;
    kld_err e = {0};
    json_t *s;
    char *path = job(*state, "");
    assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_OK);
    assert_int_equal(kld_nightly_run(&c, NULL, &s, &e), KLD_OK); /* all captures are there */
    json_decref(s);
    size_t n = 1;
    for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n += 1 + n / 40) {
        kld_mem_fail_after(n);
        st = kld_nightly_run(&c, NULL, &s, &e);
        kld_mem_fail_after(0);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        json_decref(s);
    }
    assert_true(n > 500);
    kld_nightly_config_free(&c);
    free(path);
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {cmocka_unit_test(statuses), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
