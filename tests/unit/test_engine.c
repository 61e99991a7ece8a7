/* The engine against logits of the reference implementation, and its promise that results
 * do not depend on threads, memory or other windows. */
#include "tests/unit/enginekit.h"
#include "tests/unit/goldenkit.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

static void golden_models(void **state) {
    (void)state;
    goldens_check(kld_backend_cpu(), KLD_PRECISION_FP32, 1e-4);
    goldens_check(kld_backend_cpu(), KLD_PRECISION_BF16, 1e-1);
}

static void threads_and_memory(void **state) {
    (void)state;
    int threads = omp_get_max_threads();
    for (int k = 0; k < 4; k++) {
        scene s;
        scene_open(&s, k < 2 ? tiny_llama : tiny_qwen);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = k % 2 ? KLD_PRECISION_BF16 : KLD_PRECISION_FP32;
        collected a, b;
        kld_engine_stats st;
        scene_run_ok(&s, &o, &a, &st);
        assert_int_equal(a.n_windows, WINDOWS);
        uint64_t stored = kld_weight_bytes(&s.m->global[KLD_SLOT_EMBED]) +
                          kld_weight_bytes(&s.m->global[KLD_SLOT_FINAL_NORM]) +
                          kld_weight_bytes(&s.m->global[KLD_SLOT_HEAD]); /* tied: read again */
        for (size_t i = 0; i < s.m->config.layers; i++)
            for (size_t j = 0; j < KLD_SLOT_COUNT; j++)
                if (s.m->layer[i].slot[j].rows) stored += kld_weight_bytes(&s.m->layer[i].slot[j]);
        assert_int_equal(st.bytes_read, stored);
        assert_int_equal(st.tokens, TOKENS);
        for (int n = 1; n <= 3; n++) {
            omp_set_num_threads(n);
            scene_run_ok(&s, &o, &b, NULL);
            same_records(&a, &b, "other thread count");
            collected_free(&b);
        }
        omp_set_num_threads(threads);
        o.memory = 1; /* spills */
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "spilled");
        collected_free(&b);
        collected_free(&a);
        scene_close(&s);
    }
}

/* T29: a window gives the same bytes among any others.  Draws depend on its number, so it keeps
 * its place. */
static void other_windows(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_err err = {0};
    scene_run_ok(&s, &o, &a, NULL);
    for (int k = 0; k < 3; k++) {
        kld_seq q[WINDOWS];
        memcpy(q, s.seqs, sizeof q);
        if (k == 0) q[1] = (kld_seq){s.ids + 9, 700, 0};
        if (k == 1) q[0] = q[1] = q[4] = (kld_seq){s.ids, 0, 0};
        if (k == 2) q[2] = (kld_seq){s.ids + 50, 1500, 3};
        need(scene_run(&s, q, k == 1 ? 4 : WINDOWS, &o, &b, NULL, &err), &err, "run");
        kld_buf x = part_of(&a, 3), y = part_of(&b, 3);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
        collected_free(&b);
    }
    collected_free(&a);
    scene_close(&s);
}

/* Own lists gathered back give the own log-probabilities. */
static void gather(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    uint32_t count[39], ids[39 * 3], tails[39];
    for (size_t i = 0; i < 39; i++) {
        count[i] = (uint32_t)(i % 4);
        tails[i] = i % 5 ? (uint32_t)i : UINT32_MAX;
        for (size_t j = 0; j < 3; j++) ids[3 * i + j] = (uint32_t)(i * 7 + j);
    }
    kld_gather g = {count, ids, 3, tails, 1};
    kld_seq q = {s.ids, 40, 0};
    collected c = {.fail_at = SIZE_MAX, .gather = &g, .want_logits = true, .vocab = o.vocab};
    kld_err err = {0};
    need(scene_run(&s, &q, 1, &o, &c, NULL, &err), &err, "gather");
    const double *tail_lp = (const double *)(const void *)(c.records.data + c.records.len) - 39;
    const double *lp = tail_lp - 39 * 3;
    const float *l = (const float *)(const void *)c.logits.data;
    for (size_t i = 0; i < 39; i++) {
        double z = 0, got;
        for (size_t v = 0; v < o.vocab; v++) z += exp((double)l[i * o.vocab + v]);
        for (size_t j = 0; j < count[i] && j < 3; j++) {
            memcpy(&got, lp + 3 * i + j, sizeof got);
            assert_true(fabs(got - ((double)l[i * o.vocab + ids[3 * i + j]] - log(z))) < 1e-6);
        }
        memcpy(&got, tail_lp + i, sizeof got);
        if (tails[i] == UINT32_MAX) assert_true(isnan(got));
        else assert_true(fabs(got - ((double)l[i * o.vocab + tails[i]] - log(z))) < 1e-6);
    }
    collected_free(&c);
    scene_close(&s);
}

static void bad_options(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    collected c = {.fail_at = SIZE_MAX};
    kld_err err = {0};
    kld_engine_options good = default_options(s.m->config.vocab), o = good;
    o.vocab++;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &c, NULL, &err), KLD_E_USAGE);
    o = good;
    o.top_k = 0;
    o.min_k = 0;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &c, NULL, &err), KLD_E_USAGE);
    o = good;
    o.tail_mass = (double)NAN;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &c, NULL, &err), KLD_E_USAGE);
    uint32_t id = s.ids[0];
    s.ids[0] = (uint32_t)s.m->config.vocab;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &good, &c, NULL, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "window 0, position 0"));
    s.ids[0] = id;
    assert_int_equal(scene_run(&s, s.seqs, 0, &good, &c, NULL, &err), KLD_OK);
    good.vocab = 200; /* fewer columns than the head has */
    good.spill_dir = "/nonexistent/dir";
    good.memory = 1;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &good, &c, NULL, &err), KLD_E_IO);
    good.spill_dir = NULL;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &good, &c, NULL, &err), KLD_OK);
    assert_int_equal(c.n_windows, WINDOWS);
    collected_free(&c);
    scene_close(&s);
}

static void identity_and_plan(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    kld_err err = {0};
    json_t *a, *b;
    const char *x, *y;
    need(kld_engine_identity(kld_backend_cpu(), &o, &a, &err), &err, "identity");
    o.precision = KLD_PRECISION_BF16;
    need(kld_engine_identity(kld_backend_cpu(), &o, &b, &err), &err, "identity");
    need(kld_json_str(a, "arithmetic", &x, &err), &err, "arithmetic");
    need(kld_json_str(b, "arithmetic", &y, &err), &err, "arithmetic");
    assert_string_not_equal(x, y);
    print_message("%s\n%s\n", x, y);
    json_decref(a);
    json_decref(b);
    kld_plan p;
    need(kld_engine_plan(s.m, kld_backend_cpu(), &o, TOKENS, 1400, &p, &err), &err, "plan");
    assert_int_equal(p.residual_bytes, TOKENS * 24 * 4);
    assert_int_equal(p.embed_bytes, 300 * 24 * 4);
    collected c;
    kld_engine_stats st;
    scene_run_ok(&s, &o, &c, &st);
    assert_int_equal(st.peak_bytes, p.total_bytes);
    collected_free(&c);
    scene_close(&s);
}

/* What a plan says does not depend on where this machine would put the hidden states, and adds up;
 * experts included. */
static void plans(void **state) {
    (void)state;
    const tiny of[] = {tiny_llama, tiny_moe};
    for (size_t i = 0; i < 2; i++) {
        scene s;
        scene_open(&s, of[i]);
        kld_engine_options o = default_options(s.m->config.vocab);
        kld_err err = {0};
        kld_plan p, q;
        collected c;
        kld_engine_stats st;
        need(kld_engine_plan(s.m, kld_backend_cpu(), &o, TOKENS, 1400, &p, &err), &err, "plan");
        scene_run_ok(&s, &o, &c, &st);
        assert_int_equal(st.peak_bytes, p.total_bytes);
        assert_true(p.scratch_bytes < p.total_bytes);
        collected_free(&c);
        o.memory = 1;
        need(kld_engine_plan(s.m, kld_backend_cpu(), &o, TOKENS, 1400, &q, &err), &err, "plan");
        assert_memory_equal(&p, &q, sizeof p);
        uint64_t most = UINT64_C(1) << 40;
        need(kld_engine_plan(s.m, kld_backend_cpu(), &o, most, SIZE_MAX, &q, &err), &err, "plan");
        assert_true(q.residual_bytes >= most * s.m->config.hidden * 4);
        assert_true(q.total_bytes > q.residual_bytes && q.scratch_bytes < q.total_bytes);
        assert_int_equal(kld_engine_plan(s.m, kld_backend_cpu(), &o, most + 1, 9, &q, &err),
                         KLD_E_USAGE);
        scene_close(&s);
    }
}

/* The host memory allowed is that of all devices together. */
static void shared_memory(void **state) {
    (void)state;
    static const int twice[2] = {0, 0};
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected c;
    kld_engine_stats st;
    o.memory = TOKENS * s.m->config.hidden * sizeof(float);
    scene_run_ok(&s, &o, &c, &st);
    assert_string_equal(st.resident_in, "host memory");
    collected_free(&c);
    o.devices = twice;
    o.n_devices = 2;
    o.memory = (1 + 1400 + 10) * s.m->config.hidden * sizeof(float); /* one of the two would fit */
    scene_run_ok(&s, &o, &c, &st);
    assert_string_equal(st.resident_in, "a spill file");
    collected_free(&c);
    scene_close(&s);
}

/* Windows dealt to two and three devices: the same bytes, checkpoints of either kind included. */
static void several_devices(void **state) {
    (void)state;
    static const int twice[3] = {0, 0, 0};
    scene s;
    scene_open(&s, tiny_llama);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_err err = {0};
    kld_engine_stats st;
    scene_run_ok(&s, &o, &a, NULL);
    o.devices = twice;
    for (o.n_devices = 2; o.n_devices <= 3; o.n_devices++) {
        scene_run_ok(&s, &o, &b, &st);
        same_records(&a, &b, "several devices");
        collected_free(&b);
        assert_int_equal(st.tokens, TOKENS);
    }
    /* Begun on two, finished on one, and the other way round. */
    o.state_dir = s.state;
    for (size_t first = 1; first <= 2; first++) {
        o.n_devices = first;
        o.resume = false;
        o.stop_after_layer = 1;
        assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
        o.n_devices = 3 - first;
        o.resume = true;
        o.stop_after_layer = 0;
        scene_run_ok(&s, &o, &b, &st);
        assert_int_equal(st.resumed_layer, 1);
        same_records(&a, &b, "resumed on other devices");
        collected_free(&b);
        need(kld_remove_tree(s.state, &err), &err, s.state);
    }
    o.n_devices = KLD_MAX_LANES + 1;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_USAGE);
    collected_free(&a);
    scene_close(&s);
}

static void allocation_failures(void **state) {
    (void)state;
    static const int twice[2] = {0, 0};
    for (int moe = 0; moe < 2; moe++) {
        scene s;
        scene_open(&s, moe ? tiny_moe : tiny_llama);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.state_dir = s.state;
        if (moe) {
            o.devices = twice;
            o.n_devices = 2;
            o.memory = 1;
        }
        kld_seq q[2] = {{s.ids, 30, 0}, {s.ids + 5, 20, 2}};
        kld_sink none = {0};
        kld_status st = KLD_E_NOMEM;
        size_t n = 1;
        for (; st != KLD_OK && n < 2000; n++) {
            kld_engine_stats stats;
            kld_err err = {0};
            kld_mem_fail_after(n);
            st = kld_engine_run(s.m, kld_backend_cpu(), q, 2, &o, &none, &stats, &err);
            kld_mem_fail_after(0);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("allocation %zu: %s", n, err.text);
        }
        print_message("%zu allocations\n", n - 1);
        assert_int_equal(st, KLD_OK);
        assert_true(n > 20);
        scene_close(&s);
    }
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models),
        cmocka_unit_test(threads_and_memory),
        cmocka_unit_test(other_windows),
        cmocka_unit_test(gather),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(identity_and_plan),
        cmocka_unit_test(plans),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(allocation_failures),
        cmocka_unit_test(several_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
