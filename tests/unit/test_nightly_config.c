/* The configuration of a nightly run: what it says, and every way in which it is refused. */
#include "kld/base/file.h"
#include "kld/nightly/config.h"

#include "tests/unit/t.h"

static char *write_config(const char *dir, const char *text) {
    char *path = t_path(dir, "n.json");
    assert_int_equal(kld_file_write(path, text, strlen(text), NULL), KLD_OK);
    return path;
}

#define HEAD "{\"output\":\"o\",\"suite\":\"s\",\"reference\":{\"model\":\"m\"},"
#define CANDS                                                                                      \
    "\"candidates\":[{\"name\":\"a\",\"model\":\"x/y\"},{\"name\":\"b\",\"model\":\"/z\"}]"

static void refused(void **state) {
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "expected an object, found an array"},
        {HEAD CANDS ",\"outptu\":1}", "unknown key 'outptu'; known are output, suite, reference"},
        {"{\"suite\":\"s\",\"reference\":{\"model\":\"m\"}," CANDS "}", "'output' is missing"},
        {"{\"output\":\"o\",\"reference\":{\"model\":\"m\"}," CANDS "}", "'suite' is missing"},
        {"{\"output\":\"o\",\"suite\":\"s\"," CANDS "}", "'reference' is missing"},
        {HEAD "\"keep\":3}", "'candidates' is missing"},
        {HEAD "\"candidates\":[]}", "candidate"},
        {HEAD "\"candidates\":{}}", "'candidates': expected an array, found an object"},
        {HEAD "\"candidates\":[3]}", "'candidates' 1: expected an object, found an integer"},
        {HEAD "\"candidates\":[{\"model\":\"m\"}]}", "'candidates' 1: 'name' is missing"},
        {HEAD "\"candidates\":[{\"name\":\"a\"}]}", "'candidates' 1: 'model' is missing"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"\"}]}", "'model': the path is empty"},
        {HEAD "\"candidates\":[{\"name\":\"a/b\",\"model\":\"m\"}]}",
         "'a/b' must be 1 to 64 letters"},
        {HEAD "\"candidates\":[{\"name\":\".a\",\"model\":\"m\"}]}", "must be 1 to 64 letters"},
        {HEAD "\"candidates\":[{\"name\":\"\",\"model\":\"m\"}]}", "must be 1 to 64 letters"},
        {HEAD "\"candidates\":[{\"name\":\"reference\",\"model\":\"m\"}]}", "'reference' is taken"},
        {HEAD "\"candidates\":[{\"name\":\"floor\",\"model\":\"m\"}]}", "'floor' is taken"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\"},{\"name\":\"a\",\"model\":\"m\"}]}",
         "'candidates' 2: 'name': 'a' is taken"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"top_k\":3}]}",
         "unknown key 'top_k'"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"label\":\"a\\u001bb\"}]}",
         "'label': holds control characters"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"activations\":\"int8\"}]}",
         "'activations': 'int8' is neither weights-only nor as-declared"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"fused_input_scale\":\"max\"}]}",
         "'fused_input_scale' needs activations as-declared"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"routes\":\"some\"}]}",
         "'routes': 'some' is neither capture nor replay=NAME"},
        {HEAD "\"candidates\":[{\"name\":\"a\",\"model\":\"m\",\"routes\":\"replay=a\"}]}",
         "'routes': 'a' is no capture before this one"},
        {HEAD CANDS ",\"capture\":{\"topk\":1}}", "'capture': unknown key 'topk'"},
        {HEAD CANDS ",\"capture\":{\"top_k\":\"1\"}}", "'top_k': expected an integer"},
        {HEAD CANDS ",\"capture\":{\"top_k\":-1}}", "'top_k': -1 is negative"},
        {HEAD CANDS ",\"capture\":{\"top_k\":5000}}", "1 to 4096"},
        {HEAD CANDS ",\"capture\":{\"gpu_memory\":\"4 apples\"}}", "is no size such as 512M"},
        {HEAD CANDS ",\"capture\":{\"hash\":\"md5\"}}", "'hash': 'md5' is neither fast nor full"},
        {HEAD CANDS ",\"capture\":{\"routes\":\"replay=a\"}}", "only capture is for all"},
        {HEAD CANDS ",\"capture\":[]}", "'capture': expected an object, found an array"},
        {HEAD CANDS ",\"compare\":{\"top_p\":2}}", "top-p"},
        {HEAD CANDS ",\"compare\":{\"top_p\":\"0.9\"}}", "'compare': 'top_p': expected a number"},
        {HEAD CANDS ",\"compare\":{\"head\":\"mine\"}}",
         "'head': 'mine' is neither own nor shared"},
        {HEAD CANDS ",\"compare\":{\"tau\":1}}", "'compare': unknown key 'tau'"},
        {HEAD CANDS ",\"gates\":\"mean_kl=1\"}", "'gates': expected an array"},
        {HEAD CANDS ",\"gates\":[1]}", "'gates': expected text such as"},
        {HEAD CANDS ",\"gates\":[\"mean_lk=1\"]}", "unknown metric; known are mean_kl"},
        {HEAD CANDS ",\"gates\":[\"mean_kl\"]}", "expected METRIC=LIMIT"},
        {HEAD CANDS ",\"gates_by_candidate\":[]}", "'gates_by_candidate': expected an object"},
        {HEAD CANDS ",\"gates_by_candidate\":{\"c\":[]}}", "no candidate is called 'c'"},
        {HEAD CANDS ",\"gates_by_candidate\":{\"reference\":[]}}", "no candidate is called"},
        {HEAD CANDS ",\"gates_by_candidate\":{\"a\":[\"kl=1\"]}}",
         "'gates_by_candidate': 'a': gate"},
        {HEAD CANDS ",\"regression\":[]}", "'regression': expected an object"},
        {HEAD CANDS ",\"regression\":{\"kl\":0.1}}", "'regression': gate 'kl': unknown metric"},
        {HEAD CANDS ",\"regression\":{\"mean_kl\":-0.1}}", "'mean_kl': -0.1 is negative"},
        {HEAD CANDS ",\"floor\":3}", "'floor': expected true, false, precision, chunk or a path"},
        {HEAD CANDS ",\"floor\":\"\"}", "'floor': the path is empty"},
        {HEAD CANDS ",\"capture\":{\"keep_head\":true}}", "'keep_head' needs exact"},
        {HEAD CANDS ",\"keep\":1.5}", "'keep': expected an integer"},
        {HEAD CANDS ",\"html\":3}", "'html': expected a file name, true or false"},
        {HEAD CANDS ",\"html\":\"..\"}", "'html': '..' is no plain file name"},
        {HEAD CANDS ",\"html\":\"a.partial\"}", "is no plain file name"},
        {HEAD CANDS ",\"html\":\"summary.md\"}", "'markdown': 'summary.md' is taken"},
        {HEAD CANDS ",\"json\":\"nightly.json\"}", "'json': 'nightly.json' is taken"},
        {HEAD CANDS ",\"html\":\"./n.json\"}", "'html': "},
        {HEAD CANDS ",\"html\":\"./n.json\"}", "is an input of this run"},
        {HEAD CANDS ",\"html\":\"/x/a\",\"junit\":\"/x/a\"}", "'junit': '/x/a' is taken"},
        {HEAD CANDS ",\"keep\":1,\"keep\":2}", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = write_config(*state, cases[i].text);
        kld_nightly_config c;
        kld_err e = {0};
        assert_int_equal(kld_nightly_config_load(&c, path, &e), KLD_E_INPUT);
        assert_int_equal(e.status, KLD_E_INPUT);
        if (!strstr(e.text, cases[i].said) || !strstr(e.text, "n.json: "))
            fail_msg("%s: '%s' instead of '%s'", cases[i].text, e.text, cases[i].said);
        assert_null(c.root);
        assert_null(c.arena.head);
        free(path);
    }
    kld_nightly_config c;
    kld_err e = {0};
    assert_int_equal(kld_nightly_config_load(&c, "/no/such/file", &e), KLD_E_INPUT);
}

static void meaning(void **state) {
    char *path = write_config(
        *state, HEAD
        "\"candidates\":[{\"name\":\"a\",\"model\":\"org/name\",\"label\":\"A\"},"
        "{\"name\":\"b\",\"model\":\"/z\",\"activations\":\"as-declared\","
        "\"fused_input_scale\":\"max\",\"routes\":\"replay=reference\"}],"
        "\"capture\":{\"device\":\"cpu\",\"threads\":2,\"gpu_memory\":\"2GiB\",\"memory\":4096,"
        "\"precision\":\"fp32\",\"top_k\":64,\"tail_samples\":8,\"hash\":\"full\",\"partition\":"
        "\"dev\",\"exact\":true,"
        "\"routes\":\"capture\"},"
        "\"compare\":{\"top_p\":0.9,\"head\":\"shared\",\"partition\":\"p\",\"resamples\":100,"
        "\"margin\":0.2},"
        "\"gates\":[\"mean_kl=0.1\",\"p99_kl=2\"],"
        "\"gates_by_candidate\":{\"b\":[\"mean_kl=0.5\",\"max_kl=9\"]},"
        "\"regression\":{\"mean_kl\":0.25},\"floor\":\"chunk\",\"keep\":0,"
        "\"html\":false,\"json\":\"c.json\",\"prometheus\":\"/var/p.prom\"}");
    kld_nightly_config c;
    kld_err e = {0};
    if (kld_nightly_config_load(&c, path, &e) != KLD_OK) fail_msg("%s", e.text);
    char *o = t_path(*state, "o"), *m = t_path(*state, "m");
    assert_string_equal(c.output, o); /* as seen from the file */
    assert_int_equal(c.n_items, 4);
    assert_int_equal(c.n_candidates, 2);
    assert_string_equal(c.item[0].name, "reference");
    assert_string_equal(c.item[0].model, m);
    assert_true(c.item[0].opt.keep_routes);
    assert_null(c.item[0].opt.name);
    assert_string_equal(c.item[1].model, "org/name"); /* no such path: a name of the hub */
    assert_string_equal(c.item[1].opt.label, "A");
    assert_string_equal(c.item[2].model, "/z");
    assert_int_equal(c.item[2].opt.activations, KLD_ACTIVATIONS_AS_DECLARED);
    assert_int_equal(c.item[2].opt.fused, KLD_FUSED_MAX);
    assert_int_equal(c.item[2].replay, 0);
    assert_false(c.item[2].opt.keep_routes);
    assert_string_equal(c.item[3].name, "floor");
    assert_string_equal(c.item[3].model, m);
    assert_int_equal(c.item[3].opt.floor, KLD_FLOOR_CHUNK);
    assert_int_equal(c.item[0].opt.floor, KLD_FLOOR_NONE);
    assert_true(c.item[0].opt.exact && !c.item[0].opt.keep_head);
    assert_string_equal(c.device, "cpu");
    assert_string_equal(c.compare.device, "cpu");
    assert_true(c.compare.head_shared && !c.compare.exact_never);
    assert_string_equal(c.item[1].opt.partition, "dev");
    assert_int_equal(c.threads, 2);
    assert_int_equal(c.item[1].opt.device_memory, UINT64_C(2) << 30);
    assert_int_equal(c.item[1].opt.memory, 4096);
    assert_int_equal(c.item[1].opt.precision, KLD_PRECISION_FP32);
    assert_int_equal(c.item[1].opt.top_k, 64);
    assert_true(c.item[1].opt.hash_full);
    assert_true(c.compare.top_p == 0.9 && c.compare.resamples == 100 && c.compare.margin == 0.2);
    assert_string_equal(c.compare.partition, "p");
    assert_int_equal(c.keep, 0);
    /* A candidate's own limit stands in for the one of all. */
    const kld_nightly_item *a = &c.item[1], *b = &c.item[2];
    assert_int_equal(a->n_gates, 3);
    assert_string_equal(a->gates[0].metric, "mean_kl");
    assert_true(a->gates[0].limit == 0.1 && !a->gates[0].relative);
    assert_true(a->gates[2].limit == 0.25 && a->gates[2].relative);
    assert_int_equal(b->n_gates, 4);
    assert_true(b->gates[0].limit == 0.5 && b->gates[1].limit == 2 && b->gates[2].limit == 9);
    assert_null(c.name[KLD_NIGHTLY_HTML]);
    assert_string_equal(c.name[KLD_NIGHTLY_JSON], "c.json");
    assert_string_equal(c.name[KLD_NIGHTLY_PROMETHEUS], "metrics.prom");
    assert_string_equal(c.second[KLD_NIGHTLY_PROMETHEUS], "/var/p.prom");
    assert_null(c.second[KLD_NIGHTLY_JSON]);
    kld_nightly_config_free(&c);
    free(path);
    free(o);
    free(m);
}

static void example(void **state) {
    char *path = write_config(*state, kld_nightly_example());
    kld_nightly_config c;
    kld_err e = {0};
    if (kld_nightly_config_load(&c, path, &e) != KLD_OK) fail_msg("%s", e.text);
    assert_int_equal(c.n_candidates, 2);
    assert_int_equal(c.keep, 30);
    kld_nightly_config_free(&c);
    free(path);
}

static void out_of_memory(void **state) {
    char *path = write_config(*state, kld_nightly_example());
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK; n++) {
        kld_nightly_config c;
        kld_err e = {0};
        kld_mem_fail_after(n);
        st = kld_nightly_config_load(&c, path, &e);
        kld_mem_fail_after(0);
        if (st == KLD_OK) kld_nightly_config_free(&c);
        else if (st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
        else assert_null(c.root);
    }
    assert_true(n > 20);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused), cmocka_unit_test(meaning),
                                       cmocka_unit_test(example), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
