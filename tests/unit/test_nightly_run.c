/* A nightly run by its own interface: what is returned, and what is left when memory ends. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/nightly/nightly.h"

#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Two windows of small ids, and a configuration in dir: candidate "a" is the
 * reference itself. */
static char *job_of(const char *dir, const char *model, const char *capture, const char *more) {
    char *suite = t_path(dir, "s.jsonl"), *path = t_path(dir, "n.json"), text[4096];
    static const char windows[] = "{\"ids\":[1,2,3,4,5,6,7,8],\"cluster\":\"a\"}\n"
                                  "{\"ids\":[9,8,7,6,5,4,3,2],\"cluster\":\"b\"}\n";
    assert_int_equal(kld_file_write(suite, windows, sizeof windows - 1, NULL), KLD_OK);
    snprintf(text, sizeof text,
             "{\"output\":\"o\",\"suite\":\"s.jsonl\",\"reference\":{\"model\":\"%s\"},"
             "\"candidates\":[{\"name\":\"a\",\"model\":\"%s\"}%s],"
             "\"capture\":{\"device\":\"cpu\"%s},\"compare\":{\"resamples\":100},"
             "\"gates\":[\"mean_kl=0.1\"]}",
             model, model, more, capture);
    assert_int_equal(kld_file_write(path, text, strlen(text), NULL), KLD_OK);
    free(suite);
    return path;
}

static char *job(const char *dir, const char *more) {
    char model[1024];
    assert_non_null(getcwd(model, sizeof model - 64));
    strcat(model, "/tests/golden/models/qwen2");
    return job_of(dir, model, "", more);
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

/* What capture i would be. */
static void planned(const char *path, size_t i, const char *action, const char *why) {
    kld_nightly_config c;
    kld_err e = {0};
    json_t *s;
    assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_OK);
    if (kld_nightly_plan(&c, &s, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_string_equal(member(s, "captures", i, "action"), action);
    assert_string_equal(member(s, "captures", i, "why"), why);
    json_decref(s);
    kld_nightly_config_free(&c);
}

static void runs(const char *path) {
    kld_nightly_config c;
    kld_err e = {0};
    json_t *s;
    assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_OK);
    if (kld_nightly_run(&c, NULL, &s, &e) != KLD_OK) fail_msg("%s", e.text);
    json_decref(s);
    kld_nightly_config_free(&c);
}

/* A checkpoint that is only touched is another one, unless every byte is asked for. */
static void touched(void **state) {
    char command[512], *model = t_path(*state, "model"),
                       *shard = t_path(model, "model.safetensors");
    char *other = t_path(model, "tokenizer.json");
    snprintf(command, sizeof command, "cp -r tests/golden/models/qwen2 '%s'", model);
    assert_int_equal(system(command), 0);
    for (int full = 0; full < 2; full++) {
        char *path = job_of(*state, model, full ? ",\"hash\":\"full\"" : "", "");
        const struct timespec times[2] = {{1000000000 + full, 0}, {1000000000 + full, 0}};
        runs(path);
        planned(path, 0, "reused", "");
        assert_int_equal(utimensat(AT_FDCWD, shard, times, 0), 0);
        if (full) planned(path, 0, "reused", "");
        else planned(path, 0, "captured", "the checkpoint changed");
        free(path);
    }
    /* A capture reads the tokenizer, too. */
    char *path = job_of(*state, model, ",\"hash\":\"full\"", "");
    assert_int_equal(kld_file_write(other, "{}", 2, NULL), KLD_OK);
    planned(path, 0, "captured", "the checkpoint changed");
    assert_int_equal(kld_remove(other, NULL), KLD_OK);
    planned(path, 0, "reused", "");
    free(path);
    /* Options that decide the bytes, and some that do not. */
    path = job_of(*state, model, ",\"hash\":\"full\",\"threads\":1,\"memory\":\"1M\"", "");
    planned(path, 0, "reused", "");
    free(path);
    path = job_of(*state, model, ",\"hash\":\"full\",\"top_k\":32", "");
    planned(path, 0, "captured", "the settings changed");
    planned(path, 1, "captured", "the reference is captured anew");
    free(path);
    path = job_of(*state, model, ",\"hash\":\"full\",\"partition\":\"all\"", "");
    planned(path, 0, "captured", "the settings changed");
    free(path);
    path = job_of(*state, model, ",\"hash\":\"full\",\"precision\":\"fp32\"", "");
    planned(path, 0, "captured", "kld, the device or the precision changed");
    free(path);
    free(model);
    free(shard);
    free(other);
}

/* Routes of a capture before it in the file: captured in that order, and used again. */
static void replayed(void **state) {
    char model[1024], dir[600];
    assert_non_null(getcwd(model, sizeof model - 64));
    strcat(model, "/tests/golden/models/mixtral");
    snprintf(dir, sizeof dir, "%s/moe", (char *)*state);
    assert_int_equal(kld_mkdir(dir, NULL), KLD_OK);
    char more[2560];
    snprintf(more, sizeof more,
             ",{\"name\":\"bq\",\"model\":\"%s\",\"routes\":\"replay=reference\"}"
             ",{\"name\":\"qb\",\"model\":\"%s\",\"routes\":\"replay-ids=a\"}",
             model, model);
    char *path = job_of(dir, model, ",\"routes\":\"capture\"", more);
    planned(path, 3, "captured", "the reference is captured anew");
    runs(path);
    for (size_t i = 0; i < 4; i++) planned(path, i, "reused", "");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(statuses), cmocka_unit_test(touched),
                                       cmocka_unit_test(replayed), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
