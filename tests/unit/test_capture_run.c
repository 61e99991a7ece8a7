/* kld_capture_run where the head has another number of rows than the tokenizer has ids.  (Whole
 * runs, resuming and other refusals: tests/cli.) */
#include "datasets/suite.h"
#include "kld/base/file.h"
#include "kld/capture/capture.h"
#include "kld/compare/compare.h"
#include "kld/store/capture.h"

#include "tests/unit/loadkit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <unistd.h>

enum { WINDOWS = 3, TOKENS = 20, REAL = 120, ROWS = 128, MORE = 24, COLS = 54 };
static const char MODEL[] = "tests/golden/models/llama";

/* Ids below REAL, by a tokenizer of `vocab` ids. */
static char *write_suite(const char *dir, const char *name, size_t vocab) {
    static uint32_t ids[WINDOWS][TOKENS];
    kld_window w[WINDOWS];
    kld_suite s = {.windows = w, .n_windows = WINDOWS, .vocab = vocab, .bos = "none"};
    kld_err e = {0};
    for (size_t i = 0; i < WINDOWS; i++) {
        for (size_t t = 0; t < TOKENS; t++) ids[i][t] = (uint32_t)((37 * t + 11 * i + 3) % REAL);
        w[i] = (kld_window){.ids = ids[i], .n = TOKENS, .source = "", .cluster = "c"};
        w[i].stratum = w[i].partition = "";
    }
    s.window = s.stride = TOKENS;
    memset(&s.tokenizer, 7, sizeof s.tokenizer);
    char *path = t_path(dir, name);
    if (kld_suite_save(&s, path, &e) != KLD_OK) fail_msg("%s", e.text);
    return path;
}

/* The model with the rows of embedding and head from `keep` on replaced by garbage, up to `rows`
 * of them. */
static void write_padded(built *b, size_t keep, size_t rows, float garbage) {
    loaded f;
    kld_buf config = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", MODEL);
    load(&f, path);
    build_begin(b);
    for (size_t i = 0; i < f.n; i++) {
        const kld_tensor *t = &f.t[i];
        bool padded = strstr(t->name, "embed_tokens") || strstr(t->name, "lm_head");
        static uint16_t data[(ROWS + MORE) * COLS];
        char shape[64];
        size_t bytes = padded ? rows * COLS * 2 : t->bytes;
        if (padded) assert_int_equal(t->shape[1], COLS);
        assert_true(t->dtype == KLD_BF16 && bytes <= sizeof data);
        uint32_t bits;
        memcpy(&bits, &garbage, 4);
        for (size_t k = 0; k < sizeof data / 2; k++)
            data[k] = (uint16_t)(bits >> 16 ^ (k % 3 ? 0x8000 : 0));
        memcpy(data, part(&f, t->name), padded ? keep * COLS * 2 : t->bytes);
        if (padded) snprintf(shape, sizeof shape, "[%zu,%d]", rows, COLS);
        else if (t->rank == 1) snprintf(shape, sizeof shape, "[%d]", (int)t->shape[0]);
        else snprintf(shape, sizeof shape, "[%d,%d]", (int)t->shape[0], (int)t->shape[1]);
        build_tensor(b, t->name, "BF16", shape, data, bytes, 0);
    }
    build_write(b, "model.safetensors");
    unload(&f);
    snprintf(path, sizeof path, "%s/config.json", MODEL);
    assert_int_equal(kld_file_slurp(path, 1 << 20, &config, NULL), KLD_OK);
    char *size = strstr((char *)config.data, "\"vocab_size\": 128");
    assert_non_null(size);
    memcpy(size + strlen("\"vocab_size\": "), rows == ROWS ? "128" : "152", 3);
    build_text(b, "config.json", (char *)config.data);
    kld_buf_free(&config);
}

static kld_status capture(const char *model, const char *suite, const char *out, const char *ref,
                          kld_err *err) {
    kld_capture_options o = kld_capture_defaults();
    kld_capture_summary sum;
    o.model = model, o.suite = suite, o.output = out, o.ref = ref;
    memset(err, 0, sizeof *err);
    return kld_capture_run(&o, &sum, err);
}

static void captures(const char *model, const char *suite, const char *out, const char *ref) {
    kld_err err;
    if (capture(model, suite, out, ref, &err) != KLD_OK) fail_msg("%s", err.text);
}

/* Softmax over the real ids only: nothing listed or drawn beyond them, and the mass is whole. */
static void check_columns(const char *path, size_t vocab, size_t rows, bool candidate) {
    kld_capture *c;
    kld_err e = {0};
    assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
    assert_int_equal(kld_capture_header(c)->vocab, vocab);
    assert_int_equal(kld_capture_header(c)->vocab_rows, rows);
    for (size_t i = 0; i < WINDOWS && !candidate; i++) {
        kld_records r;
        assert_int_equal(kld_capture_read(c, i, NULL, &r, NULL, &e), KLD_OK);
        assert_int_equal(r.n, TOKENS - 1);
        for (size_t t = 0; t < r.n; t++) {
            double mass = r.tail_mass[t];
            assert_true(r.count[t] > 0 && r.count[t] <= vocab);
            for (size_t j = 0; j < r.count[t]; j++) {
                assert_true(r.ids[t * r.k_ld + j] < vocab);
                mass += exp(r.lp[t * r.k_ld + j]);
            }
            assert_true(fabs(mass - 1) < 1e-3);
            for (size_t j = 0; j < r.m; j++) {
                uint32_t id = r.tail_ids[t * r.m + j];
                assert_true(id < vocab || id == UINT32_MAX);
            }
        }
        kld_records_free(&r);
    }
    kld_capture_close(c);
}

static double mean_kl(const char *ref, const char *cand) {
    kld_compare_options o = kld_compare_defaults();
    json_t *v;
    kld_err e = {0};
    o.resamples = 100;
    if (kld_compare_run(ref, &cand, 1, &o, &v, &e) != KLD_OK) fail_msg("%s", e.text);
    const json_t *c = json_array_get(json_object_get(v, "candidates"), 0);
    const json_t *mean = json_object_get(json_object_get(c, "kl"), "mean");
    assert_true(json_is_real(mean));
    double kl = json_real_value(mean);
    json_decref(v);
    return kl;
}

/* T9: the head has more rows than the tokenizer has ids, on each side another number of them. */
static void padded_heads(void **state) {
    static const struct {
        size_t rows;
        float garbage;
        const char *said;
    } pad[] = {{ROWS, 100, "8 padding columns of the head (ids 120..127) are left out"},
               {ROWS, 0, "8 padding columns of the head (ids 120..127) are left out"},
               {ROWS + MORE, 100, "32 padding columns of the head (ids 120..151) are left out"}};
    char *suite = write_suite(*state, "s", REAL), *ref = t_path(*state, "ref");
    char *log = t_path(*state, "log");
    captures(MODEL, suite, ref, NULL);
    check_columns(ref, REAL, ROWS, false);
    for (size_t i = 0; i < sizeof pad / sizeof *pad; i++) {
        built b;
        char name[16];
        snprintf(name, sizeof name, "alone%zu", i);
        char *alone = t_path(*state, name), *cand = t_path(*state, name + 1);
        write_padded(&b, REAL, pad[i].rows, pad[i].garbage);
        int kept = dup(2);
        assert_non_null(freopen(log, "w", stderr));
        kld_err e;
        kld_status st = capture(b.dir, suite, alone, NULL, &e);
        (void)fflush(stderr);
        assert_int_equal(dup2(kept, 2), 2);
        assert_int_equal(close(kept), 0);
        if (st != KLD_OK) fail_msg("%s", e.text);
        kld_buf said = {0};
        assert_int_equal(kld_file_slurp(log, 1 << 20, &said, NULL), KLD_OK);
        if (!strstr((char *)said.data, pad[i].said)) fail_msg("%s", (char *)said.data);
        kld_buf_free(&said);
        check_columns(alone, REAL, pad[i].rows, false);
        captures(b.dir, suite, cand, ref);
        check_columns(cand, REAL, pad[i].rows, true);
        assert_true(fabs(mean_kl(ref, cand)) < 1e-12); /* what lies in the padding is nothing */
        build_end(&b);
        free(alone);
        free(cand);
    }
    /* Where the rows are ids, the same garbage is a difference. */
    built b;
    char *all = write_suite(*state, "all", ROWS), *whole = t_path(*state, "whole");
    char *spoilt = t_path(*state, "spoilt");
    write_padded(&b, REAL, ROWS, 0.25f);
    captures(MODEL, all, whole, NULL);
    captures(b.dir, all, spoilt, whole);
    assert_true(mean_kl(whole, spoilt) > 0.01);
    build_end(&b);
    free(all);
    free(whole);
    free(spoilt);
    free(suite);
    free(ref);
    free(log);
}

/* A tokenizer with more ids than the head has rows belongs to another model. */
static void too_few_rows(void **state) {
    char *suite = write_suite(*state, "large", ROWS + 1), *out = t_path(*state, "no");
    kld_err e;
    assert_int_equal(capture(MODEL, suite, out, NULL, &e), KLD_E_INPUT);
    assert_non_null(strstr(e.text, "the tokenizer has 129 ids but the head only 128 rows"));
    assert_false(kld_path_exists(out));
    free(suite);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(padded_heads),
                                       cmocka_unit_test(too_few_rows)};
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
