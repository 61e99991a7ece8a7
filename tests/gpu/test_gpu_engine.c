/* Whole models on the card: against the reference implementation's logits and the CPU's, and the
 * promise that nothing but the model and the window decides a result. */
#include "tests/gpu/gpukit.h"
#include "tests/unit/goldenkit.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"

#include <math.h>
#include <stdlib.h>

static void golden_models(void **state) {
    (void)state;
    goldens_check(gpu_backend(), KLD_PRECISION_FP32, 1e-4);
    goldens_check(gpu_backend(), KLD_PRECISION_BF16, 5e-2);
}

/* KL of row r of a from row r of b, both logits. */
static double kl_of(const float *a, const float *b, size_t n) {
    double za = 0, zb = 0, ma = -INFINITY, mb = -INFINITY, kl = 0;
    for (size_t i = 0; i < n; i++) {
        ma = fmax(ma, (double)a[i]);
        mb = fmax(mb, (double)b[i]);
    }
    for (size_t i = 0; i < n; i++) {
        za += exp((double)a[i] - ma);
        zb += exp((double)b[i] - mb);
    }
    double la = ma + log(za), lb = mb + log(zb);
    for (size_t i = 0; i < n; i++)
        kl += exp((double)a[i] - la) * ((double)a[i] - la - ((double)b[i] - lb));
    return kl;
}

static void same_as_cpu(void **state) {
    (void)state;
    const tiny *kinds[] = {&tiny_llama, &tiny_qwen, &tiny_moe};
    /* With experts, a token in thousands is sent elsewhere for its router's last bits. */
    static const double limit[][2] = {{1e-3, 1e-6}, {1e-3, 1e-6}, {1e-2, 1e-4}};
    for (size_t k = 0; k < 3; k++) {
        for (int p = 0; p < 2; p++) {
            scene s;
            scene_open(&s, *kinds[k]);
            kld_engine_options o = default_options(s.m->config.vocab);
            o.precision = (kld_precision)p;
            collected c[2];
            kld_err err = {0};
            for (int g = 0; g < 2; g++) {
                c[g] = (collected){.vocab = o.vocab, .fail_at = SIZE_MAX, .want_logits = true};
                scene_backend = g ? gpu_backend() : NULL;
                need(scene_run(&s, s.seqs, WINDOWS, &o, &c[g], NULL, &err), &err, "run");
            }
            assert_int_equal(c[0].logits.len, c[1].logits.len);
            const float *a = (const float *)(void *)c[0].logits.data;
            const float *b = (const float *)(void *)c[1].logits.data;
            size_t rows = c[0].logits.len / sizeof(float) / o.vocab;
            double sum = 0;
            for (size_t r = 0; r < rows; r++)
                sum += kl_of(a + r * o.vocab, b + r * o.vocab, o.vocab);
            print_message("%s: mean KL between CPU and GPU %.2e nats\n", p ? "fp32" : "bf16",
                          sum / (double)rows);
            assert_true(sum / (double)rows < limit[k][p]);
            collected_free(&c[0]);
            collected_free(&c[1]);
            scene_close(&s);
        }
    }
    scene_backend = NULL;
}

/* Device memory from what is asked for down to what is refused; hidden states on the device, on
 * the host, on disk; several lanes; again: always the same bytes. */
static void budgets(void **state) {
    (void)state;
    static const int twice[] = {0, 0, 0};
    scene_backend = gpu_backend();
    for (int p = 0; p < 2; p++) {
        scene s;
        scene_open(&s, tiny_llama);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = (kld_precision)p;
        kld_err err = {0};
        kld_engine_stats st;
        collected a, b;
        scene_run_ok(&s, &o, &a, &st);
        assert_string_equal(st.resident_in, "device memory");
        uint64_t most = st.device_bytes;
        bool host = false, disk = false, refused = false;
        for (uint64_t cut = 0; !refused; cut += 65536) {
            o.device_memory = most - cut;
            o.memory = cut / 65536 % 2;
            b = (collected){.fail_at = SIZE_MAX};
            kld_status got = scene_run(&s, s.seqs, WINDOWS, &o, &b, &st, &err);
            refused = got == KLD_E_NOMEM;
            if (!refused) {
                need(got, &err, "budget");
                same_records(&a, &b, "another budget");
                assert_true(st.device_bytes <= o.device_memory);
                host |= !strcmp(st.resident_in, "host memory");
                disk |= !strcmp(st.resident_in, "a spill file");
            }
            collected_free(&b);
        }
        print_message("%s\n", err.text);
        assert_true(host && disk);
        o.device_memory = o.memory = 0;
        o.devices = twice;
        for (o.n_devices = 1; o.n_devices <= 3; o.n_devices++) {
            scene_run_ok(&s, &o, &b, NULL);
            same_records(&a, &b, "several lanes");
            collected_free(&b);
        }
        o.n_devices = 0;
        /* Logits of every position are asked for beside the records: other head calls. */
        o.tail_samples = 0;
        collected_free(&a);
        scene_run_ok(&s, &o, &a, NULL);
        for (size_t w = 0; w < WINDOWS; w++) { /* a window alone */
            b = (collected){.fail_at = SIZE_MAX};
            need(scene_run(&s, &s.seqs[w], 1, &o, &b, NULL, &err), &err, "alone");
            size_t from, to = a.records.len;
            memcpy(&from, a.mark.data + w * sizeof from, sizeof from);
            if (w + 1 < WINDOWS) memcpy(&to, a.mark.data + (w + 1) * sizeof to, sizeof to);
            from += sizeof(size_t); /* its index, which differs */
            assert_int_equal(to - from, b.records.len - sizeof(size_t));
            if (memcmp(a.records.data + from, b.records.data + sizeof(size_t), to - from) != 0)
                fail_msg("window %zu alone differs from itself in company", w);
            collected_free(&b);
        }
        collected_free(&a);
        scene_close(&s);
    }
    scene_backend = NULL;
}

static void resume(void **state) {
    (void)state;
    scene_backend = gpu_backend();
    scene s;
    scene_open(&s, tiny_qwen);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_err err = {0};
    kld_engine_stats st;
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    o.stop_after_layer = 1;
    assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
    o.stop_after_layer = 0;
    o.resume = true;
    scene_run_ok(&s, &o, &b, &st);
    assert_int_equal(st.resumed_layer, 1);
    same_records(&a, &b, "resumed");
    collected_free(&a);
    collected_free(&b);
    scene_close(&s);
    scene_backend = NULL;
}

/* Groups of experts, batches, lanes, places of the streams, and a window's company. */
static void experts_leave_no_trace(void **state) {
    (void)state;
    static const int lanes[] = {0, 0, 0};
    scene_backend = gpu_backend();
    for (int p = 0; p < 2; p++) {
        scene s;
        scene_open(&s, tiny_moe);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = (kld_precision)p;
        kld_err err = {0};
        kld_engine_stats st;
        collected a, b;
        scene_run_ok(&s, &o, &a, &st);
        uint64_t most = st.device_bytes;
        for (size_t g = 1; g < 8; g++) {
            o.expert_group = g;
            scene_run_ok(&s, &o, &b, NULL);
            same_records(&a, &b, "other groups");
            collected_free(&b);
        }
        o.expert_group = 0;
        for (uint64_t cut = 1; cut < 8; cut++) {
            o.device_memory = most / 8 * (8 - cut);
            o.memory = cut % 2;
            b = (collected){.fail_at = SIZE_MAX};
            kld_status got = scene_run(&s, s.seqs, WINDOWS, &o, &b, &st, &err);
            if (got == KLD_OK) same_records(&a, &b, "another budget");
            else assert_int_equal(got, KLD_E_NOMEM);
            collected_free(&b);
        }
        o.device_memory = o.memory = 0;
        o.devices = lanes;
        o.n_devices = 3;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "three lanes");
        collected_free(&b);
        for (size_t w = 3; w < 6; w++) {
            kld_seq q[WINDOWS];
            for (size_t i = 0; i < WINDOWS; i++) {
                q[i] = s.seqs[i];
                if (i != w) q[i].n = q[i].score_from = 0;
            }
            b = (collected){.fail_at = SIZE_MAX};
            need(scene_run(&s, q, WINDOWS, &o, &b, NULL, &err), &err, "one window");
            kld_buf x = part_of(&a, w), y = part_of(&b, w);
            assert_int_equal(x.len, y.len);
            assert_memory_equal(x.data, y.data, x.len);
            collected_free(&b);
        }
        collected_free(&a);
        scene_close(&s);
    }
    scene_backend = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models),
        cmocka_unit_test(same_as_cpu),
        cmocka_unit_test(budgets),
        cmocka_unit_test(resume),
        cmocka_unit_test(experts_leave_no_trace),
    };
    return cmocka_run_group_tests_name("gpu engine", tests, NULL, NULL);
}
