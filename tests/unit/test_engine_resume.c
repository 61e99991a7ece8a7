/* Where a run was resumed does not show in its results. */
#include "tests/unit/enginekit.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "logits/resid.h"

#include <stdlib.h>

static void resume_after_each_layer(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_engine_stats st;
    kld_err err = {0};
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    o.run_id.b[3] = 17;
    for (size_t layer = 1; layer <= s.m->config.layers; layer++) {
        o.resume = false;
        o.memory = layer % 2;
        o.stop_after_layer = layer;
        o.checkpoint_every_layer = layer > 1;
        assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
        o.stop_after_layer = 0;
        o.checkpoint_every_layer = false;
        o.resume = true;
        char **names;
        size_t n;
        assert_int_equal(kld_list_dir(s.state, &names, &n, NULL), KLD_OK);
        assert_int_equal(n, 1); /* only the newest stays */
        kld_names_free(names, n);
        scene_run_ok(&s, &o, &b, &st);
        assert_int_equal(st.resumed_layer, layer);
        assert_int_equal(st.layers_computed, s.m->config.layers - layer);
        same_records(&a, &b, "resumed after a layer");
        collected_free(&b);
        assert_int_equal(kld_remove_tree(s.state, NULL), KLD_OK);
    }
    collected_free(&a);
    scene_close(&s);
}

/* What an interruption inside a layer leaves: some windows are a layer ahead. */
static void resume_inside_a_layer(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_engine_stats st;
    kld_err err = {0};
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    const kld_backend *be = kld_backend_cpu();
    const kld_device_spec spec = {.max_rows = 256, .max_keys = 256, .vocab = 8, .top_k = 1};
    kld_device *dev;
    kld_stream half[2];
    kld_resid_mark mark;
    need(be->open(&dev, &spec, 0, &err), &err, "open");
    for (size_t i = 0; i < 2; i++) {
        bool found;
        o.stop_after_layer = i + 1;
        assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
        need(kld_stream_open(&half[i], be, dev, TOKENS, 24, sizeof(float), KLD_ON_HOST, NULL,
                             TOKENS, &err),
             &err, "stream");
        kld_resid_part all = {&half[i], 0, TOKENS};
        kld_resid_rows rows = {&all, 1, TOKENS, 24};
        need(kld_resid_load(s.state, &o.run_id, &rows, &mark, &found, &err), &err, "load");
        assert_true(found && mark.layer == i + 1 && mark.windows == 0);
        need(kld_remove_tree(s.state, &err), &err, s.state);
    }
    o.stop_after_layer = 0;
    o.resume = true;
    for (size_t w = 1, rows = 1; w <= WINDOWS; rows += w < WINDOWS ? s.seqs[w].n : 0, w++) {
        memcpy(half[0].mem, half[1].mem, rows * 24 * sizeof(float));
        mark = (kld_resid_mark){1, w};
        kld_resid_part all = {&half[0], 0, TOKENS};
        kld_resid_rows whole = {&all, 1, TOKENS, 24};
        need(kld_resid_save(s.state, &o.run_id, mark, &whole, &err), &err, "save");
        scene_run_ok(&s, &o, &b, &st);
        assert_int_equal(st.resumed_layer, 1);
        same_records(&a, &b, "resumed inside a layer");
        collected_free(&b);
        need(kld_remove_tree(s.state, &err), &err, s.state);
    }
    kld_stream_close(&half[0]);
    kld_stream_close(&half[1]);
    be->close(dev);
    collected_free(&a);
    scene_close(&s);
}

/* The sink fails at a window; the head goes on from there without the layers. */
static void resume_in_head(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_qwen);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = 4}, c;
    kld_engine_stats st;
    kld_err err = {0};
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_IO);
    assert_string_equal(err.text, "no room for window 4");
    assert_int_equal(b.n_windows, 4);
    o.resume = true;
    o.skip_windows = 4;
    scene_run_ok(&s, &o, &c, &st);
    assert_int_equal(st.layers_computed, 0);
    assert_int_equal(b.records.len + c.records.len, a.records.len);
    assert_memory_equal(a.records.data, b.records.data, b.records.len);
    assert_memory_equal(a.records.data + b.records.len, c.records.data, c.records.len);
    collected_free(&a);
    collected_free(&b);
    collected_free(&c);
    scene_close(&s);
}

static void damaged_and_foreign_checkpoints(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_engine_stats st;
    kld_err err = {0};
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    o.stop_after_layer = 2;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
    o.stop_after_layer = 0;
    o.resume = true;
    o.run_id.b[0] = 1;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "belongs to another run"));
    o.run_id.b[0] = 0;
    char path[160];
    snprintf(path, sizeof path, "%s/layer-0002.resid", s.state);
    kld_buf f = {0};
    need(kld_file_slurp(path, 1 << 26, &f, &err), &err, path);
    f.data[f.len / 2] ^= 1;
    need(kld_file_write(path, f.data, f.len, &err), &err, path);
    scene_run_ok(&s, &o, &b, &st);
    assert_int_equal(st.resumed_layer, 0);
    same_records(&a, &b, "after a damaged checkpoint");
    collected_free(&b);
    need(kld_remove_tree(s.state, &err), &err, s.state);
    need(kld_mkdir(s.state, &err), &err, s.state);
    need(kld_file_write(path, f.data, f.len - 40, &err), &err, path); /* too short */
    scene_run_ok(&s, &o, &b, &st);
    assert_int_equal(st.resumed_layer, 0);
    same_records(&a, &b, "after a short checkpoint");
    kld_buf_free(&f);
    collected_free(&a);
    collected_free(&b);
    scene_close(&s);
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_after_each_layer),
        cmocka_unit_test(resume_inside_a_layer),
        cmocka_unit_test(resume_in_head),
        cmocka_unit_test(damaged_and_foreign_checkpoints),
    };
    return cmocka_run_group_tests_name("engine_resume", tests, NULL, NULL);
}
