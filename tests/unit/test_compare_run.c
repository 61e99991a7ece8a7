/* kld_compare_run over captures that exist in memory only: identity checks, partitions, self
 * comparison, determinism.  The store's functions are defined here and shadow the library's. */
#include "kld/base/mem.h"
#include "kld/compare/compare.h"
#include "kld/compare/exact.h"
#include "kld/store/capture.h"
#include "tests/unit/comparekit.h"
#include "tests/unit/t.h"
#include "tests/unit/t_records.h"

#include <omp.h>

enum { WINDOWS = 40, ROWS = 56, CAPTURES = 5 };

struct kld_capture {
    kld_capture_info info;
    kld_digest content;
    const char *path;
    struct rec *rec[WINDOWS];
    kld_window_meta meta[WINDOWS];
    int broken; /* window whose frame is damaged, or -1 */
};
/* ref, candidate, self-standing candidate, repeat of ref, another reference */
static struct kld_capture fake[CAPTURES];
static char path[CAPTURES][8] = {"ref", "cand", "alone", "repeat", "other"};

kld_status kld_capture_open(kld_capture **out, const char *name, kld_err *err) {
    for (size_t k = 0; k < CAPTURES; k++) {
        if (strcmp(name, path[k]) != 0) continue;
        *out = &fake[k];
        return KLD_OK;
    }
    *out = NULL;
    return kld_fail(err, KLD_E_INPUT, "%s: no such file", name);
}
void kld_capture_close(kld_capture *c) { (void)c; }
const kld_capture_info *kld_capture_header(const kld_capture *c) { return &c->info; }
kld_digest kld_capture_digest(const kld_capture *c) { return c->content; }
const char *kld_capture_path(const kld_capture *c) { return c->path; }
kld_status kld_capture_meta(kld_capture *c, size_t i, kld_window_meta *meta, kld_err *err) {
    (void)err;
    *meta = c->meta[i];
    return KLD_OK;
}
kld_status kld_capture_read(kld_capture *c, size_t i, const kld_records *ref, kld_records *out,
                            kld_window_meta *meta, kld_err *err) {
    if ((ref != NULL) != c->info.has_reference)
        return kld_fail(err, KLD_E_INTERNAL, "reference records given or missing");
    if ((int)i == c->broken) return kld_fail(err, KLD_E_INPUT, "window %zu: damaged", i);
    *out = c->rec[i]->r;
    if (meta) *meta = c->meta[i];
    return KLD_OK;
}
void kld_records_free(kld_records *r) { *r = (kld_records){0}; }
/* None keeps hidden states. */
kld_status kld_exact_run(kld_exact *x, kld_capture *ref, kld_capture *const *cand, size_t n_cands,
                         const size_t *window, size_t n_windows, const kld_compare_options *opt,
                         kld_err *err) {
    (void)ref, (void)cand, (void)n_cands, (void)window, (void)n_windows, (void)opt, (void)err;
    *x = (kld_exact){0};
    return KLD_OK;
}
kld_status kld_exact_apply(const kld_exact *x, size_t k, size_t window, size_t n, kld_position *pos,
                           kld_err *err) {
    (void)x, (void)k, (void)window, (void)n, (void)pos, (void)err;
    return KLD_OK;
}
void kld_exact_free(kld_exact *x) { (void)x; }

static int setup(void **state) {
    (void)state;
    for (size_t k = 0; k < CAPTURES; k++) {
        struct kld_capture *c = &fake[k];
        *c = (struct kld_capture){.path = path[k], .broken = -1};
        c->info.floor = (char *)"";
        c->info.name = c->info.label = c->info.family = path[k];
        c->info.reference_name = path[0];
        c->info.vocab = V;
        c->info.windows = WINDOWS;
        c->info.positions = WINDOWS * ROWS;
        c->info.model.b[0] = (unsigned char)(k == 3 ? 0 : k);
        c->content.b[0] = (unsigned char)(10 + k);
        c->info.engine = json_pack("{s:s}", "arithmetic", "bf16-f32");
        c->info.has_reference = k == 1 || k == 3;
        c->info.reference = fake[0].content;
        for (uint64_t w = 0; w < WINDOWS; w++) {
            static char cluster[WINDOWS][8];
            snprintf(cluster[w], sizeof cluster[w], "doc %d", (int)(w / 2));
            c->rec[w] = t_records(ROWS, 16, 16, 1 + w, k ? 0.1 * (double)k : 0, 1000 * k + w,
                                  c->info.has_reference ? fake[0].rec[w] : NULL);
            c->meta[w] = (kld_window_meta){.tokens = ROWS + 1, .score_from = 1};
            c->meta[w].ids.b[0] = (unsigned char)w;
            c->meta[w].cluster = c->meta[w].source = cluster[w];
            c->meta[w].stratum = w % 4 < 2 ? "code" : "prose";
            c->meta[w].partition = w < 10 ? "analysis" : "held out";
        }
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (size_t k = 0; k < CAPTURES; k++) {
        json_decref(fake[k].info.engine);
        for (size_t w = 0; w < WINDOWS; w++) free(fake[k].rec[w]);
    }
    return 0;
}

static kld_status run(const char *ref, const char *cand, const kld_compare_options *opt,
                      json_t **out, kld_err *err) {
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 200;
    return kld_compare_run(ref, &cand, 1, opt ? opt : &o, out, err);
}

static void refused(const char *ref, const char *cand, const char *because) {
    json_t *out = NULL;
    kld_err err = {0};
    assert_int_equal(run(ref, cand, NULL, &out, &err), KLD_E_INPUT);
    assert_null(out);
    if (!strstr(err.text, because)) fail_msg("'%s' does not say '%s'", err.text, because);
}

static const json_t *first(const json_t *out) {
    return json_array_get(json_object_get(out, "candidates"), 0);
}
static double mean_kl(const json_t *out) {
    return json_number_value(json_object_get(json_object_get(first(out), "kl"), "mean"));
}

static void accepted(void **state) {
    (void)state;
    json_t *out = NULL;
    kld_err err = {0};
    assert_int_equal(run("ref", "cand", NULL, &out, &err), KLD_OK);
    assert_true(mean_kl(out) > 0);
    assert_int_equal(json_integer_value(json_object_get(out, "clusters")), WINDOWS / 2);
    assert_int_equal(json_integer_value(json_object_get(out, "positions")), WINDOWS * ROWS);
    assert_int_equal(kld_compare_valid(out, &err), KLD_OK);
    json_decref(out);
    assert_int_equal(run("ref", "alone", NULL, &out, &err), KLD_OK);
    assert_true(json_is_null(json_object_get(json_object_get(first(out), "kl"), "mean")));
    json_decref(out);
}

static void self_is_zero(void **state) {
    (void)state;
    json_t *out = NULL;
    assert_int_equal(run("ref", "ref", NULL, &out, NULL), KLD_OK);
    const json_t *mean = json_object_get(json_object_get(first(out), "kl"), "mean");
    assert_true(json_is_real(mean) && json_real_value(mean) == 0);
    assert_true(json_is_object(json_object_get(out, "floor")));
    json_decref(out);
}

/* T32 and the rest of what does not belong together. */
static void refusals(void **state) {
    (void)state;
    struct kld_capture *c = &fake[1];
    refused("cand", "ref", "cannot be a reference");
    refused("other", "cand", "captured against another reference");
    refused("ref", "missing", "no such file");
    c->info.tokenizer.b[5] ^= 1;
    refused("ref", "cand", "tokenizer differs");
    c->info.tokenizer.b[5] ^= 1;
    c->info.suite.b[5] ^= 1;
    refused("ref", "cand", "suite differs");
    c->info.suite.b[5] ^= 1;
    c->info.vocab++;
    refused("ref", "cand", "vocab differs: 96 in the reference, 97 in the candidate");
    c->info.vocab--;
    c->info.windows--;
    refused("ref", "cand", "windows differs");
    c->info.windows++;
    c->info.positions--;
    refused("ref", "cand", "positions differs");
    c->info.positions++;
    c->meta[7].ids.b[3] ^= 1;
    refused("ref", "cand", "cand: window 7: token ids differs");
    c->meta[7].ids.b[3] ^= 1;
    c->broken = 33;
    refused("ref", "cand", "cand: window 33: damaged");
    c->broken = -1;
}

static void arithmetic(void **state) {
    (void)state;
    json_t *out = NULL;
    json_object_set_new(fake[1].info.engine, "arithmetic", json_string("f32"));
    refused("ref", "cand", "engine arithmetic differs: 'bf16-f32' in the reference, 'f32'");
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 100;
    o.allow_arithmetic_mismatch = true;
    assert_int_equal(run("ref", "cand", &o, &out, NULL), KLD_OK);
    assert_true(json_is_true(json_object_get(out, "arithmetic_mismatch")));
    assert_true(json_is_true(json_object_get(first(out), "arithmetic_mismatch")));
    kld_buf text = {0};
    assert_int_equal(kld_compare_table(out, false, &text, NULL), KLD_OK);
    assert_non_null(strstr((char *)text.data, "WARNING: captured with other arithmetic"));
    kld_buf_free(&text);
    json_decref(out);
    json_object_set_new(fake[1].info.engine, "arithmetic", json_string("bf16-f32"));
}

static void engine_is(int side, const char *arithmetic, const char *activations,
                      const char *fused) {
    json_t *e = fake[side].info.engine;
    json_object_clear(e);
    json_object_set_new(e, "arithmetic", json_string(arithmetic));
    if (activations) json_object_set_new(e, "activations", json_string(activations));
    if (fused) json_object_set_new(e, "fused_input_scale", json_string(fused));
}

/* Quantized inputs belong to the checkpoint: they are told, and refused neither way. */
static void activations(void **state) {
    (void)state;
    static const struct {
        const char *arithmetic, *how, *fused, *told;
    } mode[] = {{"bf16-f32", NULL, NULL, "weights-only"},
                {"bf16-f32", "weights-only", NULL, "weights-only"},
                {"bf16-f32; quantized inputs as-declared, scales own", "as-declared", "own",
                 "as-declared (own scales)"},
                {"bf16-f32; quantized inputs as-declared, scales max", "as-declared", "max",
                 "as-declared (max scales)"}};
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 100;
    kld_digest model = fake[1].info.model;
    for (size_t i = 0; i < 16; i++) {
        json_t *out = NULL;
        engine_is(0, mode[i / 4].arithmetic, mode[i / 4].how, mode[i / 4].fused);
        engine_is(1, mode[i % 4].arithmetic, mode[i % 4].how, mode[i % 4].fused);
        fake[1].info.model = fake[0].info.model; /* the same checkpoint */
        const char *ref = mode[i / 4].told, *cand = mode[i % 4].told;
        assert_int_equal(run("ref", "cand", &o, &out, NULL), KLD_OK);
        assert_true(json_is_false(json_object_get(out, "arithmetic_mismatch")));
        const json_t *r = json_object_get(out, "reference");
        assert_string_equal(json_string_value(json_object_get(r, "activations")), ref);
        assert_string_equal(json_string_value(json_object_get(first(out), "activations")), cand);
        /* Only what was computed in the same way is the reference again. */
        assert_int_equal(json_is_object(json_object_get(out, "floor")), !strcmp(ref, cand));
        assert_int_equal(cmp_warned(out, "activations_reference"),
                         i >= 8 && strcmp(ref, cand) != 0);
        kld_buf text = {0};
        char line[64];
        snprintf(line, sizeof line, "; activations %s\n", cand);
        assert_int_equal(kld_compare_table(out, false, &text, NULL), KLD_OK);
        assert_non_null(strstr((char *)text.data, line));
        kld_buf_free(&text);
        json_decref(out);
    }
    fake[1].info.model = model;
    engine_is(0, "bf16-f32", NULL, NULL);
    engine_is(1, "f32; quantized inputs as-declared, scales own", "as-declared", "own");
    refused("ref", "cand", "engine arithmetic differs");
    engine_is(1, "bf16-f32", NULL, NULL);
}

static void partitions(void **state) {
    (void)state;
    json_t *out = NULL;
    kld_err err = {0};
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 100;
    o.partition = "analysis";
    assert_int_equal(run("ref", "cand", &o, &out, &err), KLD_OK);
    assert_int_equal(json_integer_value(json_object_get(out, "windows")), 10);
    /* Five clusters: Student-t. */
    const json_t *kl = json_object_get(first(out), "kl");
    assert_string_equal(json_string_value(json_object_get(kl, "ci_method")), "student-t");
    json_decref(out);
    o.partition = "nothing";
    assert_int_equal(run("ref", "cand", &o, &out, &err), KLD_E_USAGE);
    assert_non_null(strstr(err.text, "'nothing'; there are 'analysis', 'held out'"));
}

static long long windows_of(const json_t *out) {
    return json_integer_value(json_object_get(out, "windows"));
}

/* Windows of "qualification" are read when they are asked for: by name, by "all", or by having
 * captured nothing else. */
static void qualification(void **state) {
    (void)state;
    static const struct {
        const char *ask;
        size_t from; /* windows from here on are of "qualification" */
        long long windows, left_out;
    } cases[] = {{NULL, 30, 30, 10},      {"all", 30, 40, 0}, {"qualification", 30, 10, 0},
                 {"held out", 30, 20, 0}, {NULL, 0, 40, 0},   {NULL, WINDOWS, 40, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *out = NULL;
        kld_err err = {0};
        kld_compare_options o = kld_compare_defaults();
        o.resamples = 100;
        o.partition = cases[i].ask;
        for (size_t k = 0; k < 2; k++)
            for (size_t w = 0; w < WINDOWS; w++)
                fake[k].meta[w].partition = w >= cases[i].from ? "qualification"
                                            : w < 10           ? "analysis"
                                                               : "held out";
        if (run("ref", "cand", &o, &out, &err) != KLD_OK) fail_msg("%s", err.text);
        const json_t *settings = json_object_get(out, "settings");
        assert_int_equal(windows_of(out), cases[i].windows);
        assert_int_equal(json_integer_value(json_object_get(settings, "windows_left_out")),
                         cases[i].left_out);
        assert_int_equal(cmp_warned(out, "partition_left_out"), cases[i].left_out > 0);
        json_decref(out);
    }
}

/* What the headers say is held must be the same, and is told. */
static void captured_partitions(void **state) {
    (void)state;
    json_t *out = NULL;
    kld_err err = {0};
    fake[0].info.partition = (char[]){"analysis"};
    refused("ref", "cand", "cand: partition differs: 'analysis' in the reference, 'all' in the");
    fake[1].info.partition = (char[]){"all but qualification"};
    refused("ref", "cand", "'all but qualification' in the candidate; capture both with the same");
    fake[1].info.partition = (char[]){"analysis"};
    assert_int_equal(run("ref", "cand", NULL, &out, &err), KLD_OK);
    const json_t *ref = json_object_get(out, "reference");
    assert_string_equal(json_string_value(json_object_get(ref, "partition")), "analysis");
    assert_string_equal(json_string_value(json_object_get(first(out), "partition")), "analysis");
    json_decref(out);
    fake[0].info.partition = fake[1].info.partition = NULL;
    assert_int_equal(run("ref", "cand", NULL, &out, &err), KLD_OK);
    assert_string_equal(json_string_value(json_object_get(first(out), "partition")), "");
    json_decref(out);
}

static void options(void **state) {
    (void)state;
    json_t *out = NULL;
    kld_compare_options o = kld_compare_defaults();
    assert_true(o.top_p == 0.95 && o.overlap_k == 10 && o.resamples == 10000 && o.seed == 1);
    o.top_p = 0;
    assert_int_equal(run("ref", "cand", &o, &out, NULL), KLD_E_USAGE);
    o = kld_compare_defaults();
    o.resamples = 5;
    assert_int_equal(run("ref", "cand", &o, &out, NULL), KLD_E_USAGE);
    o = kld_compare_defaults();
    o.margin = 0;
    assert_int_equal(run("ref", "cand", &o, &out, NULL), KLD_E_USAGE);
    o = kld_compare_defaults();
    assert_int_equal(kld_compare_run("ref", NULL, 0, &o, &out, NULL), KLD_E_USAGE);
    assert_null(out);
}

/* Every sum has one order, however many windows are in flight. */
static void threads_do_not_matter(void **state) {
    (void)state;
    const char *cands[] = {"cand", "repeat", "alone"};
    int before = omp_get_max_threads();
    kld_compare_options o = kld_compare_defaults();
    kld_buf text[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        json_t *out = NULL;
        omp_set_num_threads(k ? 7 : 1);
        assert_int_equal(kld_compare_run("ref", cands, 3, &o, &out, NULL), KLD_OK);
        assert_int_equal(kld_json_dump(out, true, &text[k], NULL), KLD_OK);
        json_decref(out);
    }
    omp_set_num_threads(before);
    assert_string_equal((char *)text[0].data, (char *)text[1].data);
    assert_non_null(strstr((char *)text[0].data, "repeat capture"));
    kld_buf_free(&text[0]);
    kld_buf_free(&text[1]);
}

static void all_invalid(void **state) {
    (void)state;
    json_t *out = NULL;
    kld_err err = {0};
    uint32_t kept[WINDOWS][ROWS];
    for (size_t w = 0; w < WINDOWS; w++) {
        memcpy(kept[w], fake[1].rec[w]->count, sizeof kept[w]);
        memset(fake[1].rec[w]->count, 0, sizeof kept[w]);
    }
    assert_int_equal(run("ref", "cand", NULL, &out, &err), KLD_OK);
    assert_int_equal(kld_compare_valid(out, &err), KLD_E_NUMERIC);
    assert_non_null(strstr(err.text, "cand: invalid"));
    json_decref(out);
    for (size_t w = 0; w < WINDOWS; w++) memcpy(fake[1].rec[w]->count, kept[w], sizeof kept[w]);
}

/* The ids before a position are the labels of the rows before its own; both lists are those of its
 * row, the candidate's its own. */
static void worst_positions(void **state) {
    (void)state;
    for (size_t k = 0; k < 3; k++) { /* itself, at the reference's ids, on its own */
        json_t *out = NULL;
        assert_int_equal(run("ref", path[k], NULL, &out, NULL), KLD_OK);
        const json_t *list = json_object_get(json_object_get(first(out), "kl"), "worst");
        assert_int_equal(json_array_size(list), 10);
        for (size_t i = 0; i < 10; i++) {
            const json_t *o = json_array_get(list, i), *ctx = json_object_get(o, "context");
            size_t w = (size_t)json_integer_value(json_object_get(o, "window"));
            const kld_records *r = &fake[0].rec[w]->r, *q = &fake[k].rec[w]->r;
            size_t row = (size_t)json_integer_value(json_object_get(o, "position")) - r->first;
            const json_t *ids = json_object_get(ctx, "ids");
            size_t n = row < 48 ? row : 48;
            assert_int_equal(json_array_size(ids), n);
            for (size_t t = 0; t < n; t++)
                assert_int_equal(json_integer_value(json_array_get(ids, t)), r->label[row - n + t]);
            assert_true(json_is_null(json_object_get(ctx, "text")));
            assert_true(json_is_null(json_object_get(o, "next_text")));
            assert_int_equal(json_integer_value(json_object_get(o, "next_id")), r->label[row]);
            for (size_t t = 0; t < 10; t++) {
                const kld_records *side = t < 5 ? r : q;
                const json_t *top = json_object_get(o, t < 5 ? "reference_top5" : "candidate_top5");
                const json_t *x = json_array_get(top, t % 5);
                size_t at = row * side->k_ld + t % 5;
                assert_int_equal(json_array_size(top), 5);
                assert_int_equal(json_integer_value(json_object_get(x, "id")), side->ids[at]);
                assert_true(json_number_value(json_object_get(x, "lp")) == side->lp[at]);
                assert_true(json_is_null(json_object_get(x, "text")));
            }
        }
        json_decref(out);
    }
    kld_compare_options o = kld_compare_defaults();
    json_t *out = NULL;
    kld_err err = {0};
    o.tokenizer = "no such directory";
    assert_int_equal(run("ref", "cand", &o, &out, &err), KLD_E_INPUT);
    assert_null(out);
}

/* Every allocation may fail; each failure is reported and leaks nothing (under the sanitizer). */
static void out_of_memory(void **state) {
    (void)state;
    const char *cands[] = {"cand", "repeat"};
    kld_compare_options o = kld_compare_defaults();
    o.resamples = 100;
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    json_t *out = NULL;
    assert_int_equal(kld_json_parse(&out, "{}", 2, 4, NULL), KLD_OK); /* puts JSON under the hook */
    json_decref(out);
    kld_status st = KLD_E_NOMEM;
    size_t n = 1;
    for (; st != KLD_OK && n < 1000000; n += 1 + n / 16) {
        kld_err err = {0};
        kld_mem_fail_after(n);
        st = kld_compare_run("ref", cands, 2, &o, &out, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) json_decref(out);
        else assert_null(out);
        if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%d: %s", (int)st, err.text);
    }
    assert_true(n > 100 && st == KLD_OK);
    omp_set_num_threads(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),      cmocka_unit_test(self_is_zero),
        cmocka_unit_test(refusals),      cmocka_unit_test(arithmetic),
        cmocka_unit_test(activations),   cmocka_unit_test(partitions),
        cmocka_unit_test(qualification), cmocka_unit_test(captured_partitions),
        cmocka_unit_test(options),       cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(all_invalid),   cmocka_unit_test(worst_positions),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("compare_run", tests, setup, teardown);
}
