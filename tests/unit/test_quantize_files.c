/* Quantization: the files around the weights, what is refused, and that nothing is left of a
 * failure. */
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "tests/unit/quantkit.h"

#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const kld_target_format FORMATS[] = {KLD_TARGET_NVFP4_MODELOPT, KLD_TARGET_NVFP4_CT,
                                            KLD_TARGET_MXFP4_CT};

static bool has(const char *dir, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return kld_path_exists(path);
}

static void remove_out(const built *b) {
    assert_int_equal(kld_remove_tree(out_dir(b), NULL), KLD_OK);
}

/* ---- files beside the weights ---- */

static void companions(void **state) {
    (void)state;
    static const char *const copied[] = {
        "tokenizer.json",    "tokenizer_config.json",
        "tokenizer.model",   "special_tokens_map.json",
        "added_tokens.json", "vocab.json",
        "merges.txt",        "generation_config.json",
        "LICENSE",           "LICENSE.txt",
        "modeling_x.py",     "chat_template.jinja",
    };
    static const char *const left[] = {"README.md", "model.gguf", "optimizer.pt", "hf_quant_config",
                                       "xtokenizer.json"};
    built b;
    char path[256];
    kld_quantize_summary sum;
    make_source(&b, &PLAIN);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        build_text(&b, copied[i], i == 0 ? "" : "{\"x\":1}"); /* also an empty one */
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) build_text(&b, left[i], "x");
    snprintf(path, sizeof path, "%s/LICENSES", b.dir); /* a folder of that name is no small file */
    assert_int_equal(mkdir(path, 0777), 0);
    quantizes(&b, KLD_TARGET_NVFP4_CT, &sum);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        kld_buf text = {0};
        kld_err err = {0};
        snprintf(path, sizeof path, "%s/%s", out_dir(&b), copied[i]);
        if (kld_file_slurp(path, 100, &text, &err) != KLD_OK) fail_msg("%s", err.text);
        assert_int_equal(text.len, i == 0 ? 0 : 7);
        if (i) assert_string_equal((char *)text.data, "{\"x\":1}");
        kld_buf_free(&text);
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) assert_false(has(out_dir(&b), left[i]));
    char **names;
    size_t n;
    assert_int_equal(kld_list_dir(out_dir(&b), &names, &n, NULL), KLD_OK);
    assert_int_equal(n, sizeof copied / sizeof *copied + 2); /* config.json, model.safetensors */
    kld_names_free(names, n);
    remove_out(&b);
    /* More than a small file is an error, not a gap. */
    snprintf(path, sizeof path, "%s/merges.txt", b.dir);
    assert_int_equal(truncate(path, (64 << 20) + 1L), 0);
    refuses(&b, KLD_TARGET_NVFP4_CT, KLD_E_INPUT, "merges.txt");
    assert_false(kld_path_exists(out_dir(&b)));
    snprintf(path, sizeof path, "%s/LICENSES", b.dir);
    assert_int_equal(rmdir(path), 0);
    build_end(&b);
}

/* config.json says what it said, and how the weights are stored; only ModelOpt has a file more. */
static void configs(void **state) {
    (void)state;
    static const char *const method[] = {"modelopt", "compressed-tensors", "compressed-tensors"};
    static const char *const format[] = {NULL, "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
    built b;
    make_source(&b, &PLAIN);
    for (size_t k = 0; k < 3; k++) {
        char path[256];
        kld_quantize_summary sum;
        json_t *old, *new;
        kld_err err = {0};
        quantizes(&b, FORMATS[k], &sum);
        snprintf(path, sizeof path, "%s/config.json", b.dir);
        assert_int_equal(kld_json_load(&old, path, 1 << 20, &err), KLD_OK);
        snprintf(path, sizeof path, "%s/config.json", out_dir(&b));
        assert_int_equal(kld_json_load(&new, path, 1 << 20, &err), KLD_OK);
        const json_t *q = json_object_get(new, "quantization_config");
        assert_string_equal(json_string_value(json_object_get(q, "quant_method")), method[k]);
        if (format[k])
            assert_string_equal(json_string_value(json_object_get(q, "format")), format[k]);
        else
            assert_string_equal(json_string_value(json_object_get(q, "quant_algo")), "W4A16_NVFP4");
        const json_t *ignored = json_object_get(q, "ignore");
        assert_string_equal(json_string_value(json_array_get(ignored, 0)), "lm_head");
        const json_t *group = json_object_get(json_object_get(q, "config_groups"), "group_0");
        const json_t *input = json_object_get(group, "input_activations");
        assert_true(!input || json_is_null(input)); /* no activation is declared quantized */
        const json_t *size = json_object_get(json_object_get(group, "weights"), "group_size");
        assert_int_equal(json_integer_value(size), k == 2 ? 32 : 16);
        assert_int_equal(json_object_del(new, "quantization_config"), 0);
        assert_true(json_equal(old, new));
        assert_int_equal(has(out_dir(&b), "hf_quant_config.json"), k == 0);
        assert_false(has(out_dir(&b), "model.safetensors.index.json"));
        json_decref(old);
        json_decref(new);
        remove_out(&b);
    }
    build_end(&b);
}

/* ---- refusals ---- */

static void quantized_already(void **state) {
    (void)state;
    built b, again;
    kld_quantize_summary sum;
    make_source(&b, &PLAIN);
    for (size_t k = 0; k < 3; k++) {
        quantizes(&b, FORMATS[k], &sum);
        memset(&again, 0, sizeof again);
        memcpy(again.dir, out_dir(&b), sizeof again.dir);
        for (size_t j = 0; j < 3; j++) {
            refuses(&again, FORMATS[j], KLD_E_UNSUPPORTED, "already; quantize the BF16 original");
            assert_false(kld_path_exists(out_dir(&again)));
        }
        remove_out(&b);
    }
    build_end(&b);
}

static void columns(void **state) {
    (void)state;
    recipe src = PLAIN;
    built b;
    kld_quantize_summary sum;
    src.inner = 48;
    make_source(&b, &src);
    refuses(&b, KLD_TARGET_MXFP4_CT, KLD_E_INPUT,
            "tensor 'model.layers.0.mlp.down_proj.weight' has 48 columns, no multiple of the block "
            "of 32");
    assert_false(kld_path_exists(out_dir(&b)));
    quantizes(&b, KLD_TARGET_NVFP4_CT, &sum);
    remove_out(&b);
    build_end(&b);
    src.inner = 40;
    make_source(&b, &src);
    for (size_t k = 0; k < 3; k++)
        refuses(&b, FORMATS[k], KLD_E_INPUT, "has 40 columns, no multiple");
    build_end(&b);
}

static void not_finite(void **state) {
    (void)state;
    static const struct {
        double v;
        const char *dtype, *name;
    } bad[] = {
        {NAN, "BF16", "model.layers.1.mlp.down_proj.weight"},
        {INFINITY, "F32", "model.layers.0.self_attn.q_proj.weight"},
        {-INFINITY, "BF16", "model.layers.0.mlp.up_proj.weight"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        recipe src = PLAIN;
        built b;
        char text[128];
        src.dtype = bad[i].dtype, src.poison = bad[i].name, src.special = bad[i].v;
        src.sharded = i == 0;
        make_source(&b, &src);
        snprintf(text, sizeof text, "tensor '%s': 1 values are NaN or infinite", bad[i].name);
        for (size_t k = 0; k < 3; k++) {
            refuses(&b, FORMATS[k], KLD_E_INPUT, text);
            assert_false(kld_path_exists(out_dir(&b)));
        }
        build_end(&b);
    }
}

static void output(void **state) {
    (void)state;
    built b;
    kld_quantize_summary sum;
    make_source(&b, &PLAIN);
    assert_int_equal(mkdir(out_dir(&b), 0777), 0); /* an empty directory is fine */
    quantizes(&b, KLD_TARGET_MXFP4_CT, &sum);
    remove_out(&b);
    assert_int_equal(mkdir(out_dir(&b), 0777), 0);
    put_file(out_dir(&b), "mine", "x", 1);
    refuses(&b, KLD_TARGET_MXFP4_CT, KLD_E_INPUT, "exists and is not empty");
    assert_true(has(out_dir(&b), "mine")); /* what was there stays */
    remove_out(&b);
    put_file("/", out_dir(&b) + 1, "x", 1);
    refuses(&b, KLD_TARGET_MXFP4_CT, KLD_E_INPUT, out_dir(&b));
    assert_true(kld_path_exists(out_dir(&b)));
    assert_int_equal(unlink(out_dir(&b)), 0);
    const kld_quantize_options same = {b.dir, b.dir, KLD_TARGET_MXFP4_CT},
                               nowhere = {b.dir, "/nonexistent/a/b", KLD_TARGET_MXFP4_CT},
                               missing = {"/nonexistent/m", out_dir(&b), KLD_TARGET_MXFP4_CT};
    kld_err err = {0};
    assert_int_equal(kld_quantize_run(&same, &sum, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "not empty"));
    assert_true(has(b.dir, "model.safetensors"));
    assert_int_equal(kld_quantize_run(&nowhere, &sum, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "/nonexistent/a/b"));
    assert_int_equal(kld_quantize_run(&missing, &sum, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "/nonexistent/m"));
    assert_false(kld_path_exists(out_dir(&b)));
    build_end(&b);
}

/* ---- failures on the way ---- */

/* Every allocation fails once, and with it all that follow, also while cleaning up. */
static void no_memory(void **state) {
    (void)state;
    recipe src = PLAIN;
    built b;
    kld_quantize_summary sum;
    kld_err err = {0};
    src.sharded = true;
    make_source(&b, &src);
    build_text(&b, "tokenizer.json", "{}");
    for (size_t k = 0; k < 3; k++) {
        size_t n = 1 + k; /* the formats do mostly the same: a third each */
        for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n += 3) {
            kld_mem_fail_after(n);
            st = quantize(&b, FORMATS[k], &sum, &err);
            kld_mem_fail_after(0);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, err.text);
            if (kld_path_exists(out_dir(&b)) != (st == KLD_OK)) fail_msg("%zu: leftovers", n);
        }
        assert_true(n > 200);
        remove_out(&b);
    }
    build_end(&b);
}

static void disk_full(void **state) {
    (void)state;
    built b;
    kld_quantize_summary sum;
    kld_err err = {0};
    struct rlimit old, cut;
    make_source(&b, &PLAIN);
    quantizes(&b, KLD_TARGET_NVFP4_CT, &sum);
    remove_out(&b);
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    size_t failed = 0;
    for (rlim_t limit = 0; limit < sum.bytes_out + 8192; limit += 1000) {
        cut = (struct rlimit){limit, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &cut);
        kld_status st = quantize(&b, KLD_TARGET_NVFP4_CT, &sum, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        failed += st == KLD_E_IO;
        if (st != KLD_OK && st != KLD_E_IO) fail_msg("%s", err.text);
        assert_int_equal(kld_path_exists(out_dir(&b)), st == KLD_OK);
        if (st == KLD_OK) remove_out(&b);
    }
    assert_true(failed > 10);
    build_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(companions),        cmocka_unit_test(configs),
        cmocka_unit_test(quantized_already), cmocka_unit_test(columns),
        cmocka_unit_test(not_finite),        cmocka_unit_test(output),
        cmocka_unit_test(no_memory),         cmocka_unit_test(disk_full),
    };
    omp_set_num_threads(1); /* thousands of tiny runs; injected failures count one thread */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
