/* Whole models on the card: against the reference implementation's logits and the CPU's, and the
 * promise that nothing but the model and the window decides a result. */
#include "tests/gpu/gpukit.h"
#include "tests/unit/goldenkit.h"
#include "tests/unit/recastkit.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"

#include <math.h>
#include <stdlib.h>

static void golden_models(void **state) {
    (void)state;
    goldens_check(gpu_backend(), KLD_PRECISION_FP32, 1e-4);
    goldens_check(gpu_backend(), KLD_PRECISION_BF16, 1e-1);
}

static void golden_inputs(void **state) {
    (void)state;
    goldens_check_inputs(gpu_backend(), 1e-4);
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

typedef struct distance {
    double kl, rms; /* mean KL in nats; of the logits, relative */
} distance;

/* Between what the CPU and the card make of a scene's model. */
static distance from_cpu(const scene *s, kld_precision p, const char *what) {
    kld_engine_options o = default_options(s->m->config.vocab);
    collected c[2];
    kld_err err = {0};
    distance d = {0};
    double diff = 0, all = 0;
    o.precision = p;
    for (int g = 0; g < 2; g++) {
        c[g] = (collected){.vocab = o.vocab, .fail_at = SIZE_MAX, .want_logits = true};
        scene_backend = g ? gpu_backend() : NULL;
        need(scene_run(s, s->seqs, WINDOWS, &o, &c[g], NULL, &err), &err, "run");
    }
    scene_backend = NULL;
    assert_int_equal(c[0].logits.len, c[1].logits.len);
    const float *a = (const float *)(void *)c[0].logits.data;
    const float *b = (const float *)(void *)c[1].logits.data;
    size_t n = c[0].logits.len / sizeof(float), rows = n / o.vocab;
    for (size_t r = 0; r < rows; r++)
        d.kl += kl_of(a + r * o.vocab, b + r * o.vocab, o.vocab) / (double)rows;
    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)a[i], 2);
    }
    d.rms = sqrt(diff / all);
    collected_free(&c[0]);
    collected_free(&c[1]);
    print_message("%s, %s: mean KL between CPU and GPU %.2e nats, logits %.1e\n", what,
                  p == KLD_PRECISION_FP32 ? "fp32" : "bf16", d.kl, d.rms);
    return d;
}

/* With experts, a token in thousands is sent elsewhere for its router's last bits. */
static const double limit[2][2] = {{1e-3, 1e-6}, {1e-2, 1e-4}};

static void same_as_cpu(void **state) {
    (void)state;
    const tiny *kinds[] = {&tiny_llama, &tiny_qwen, &tiny_moe};
    for (size_t k = 0; k < 3; k++) {
        for (int p = 0; p < 2; p++) {
            scene s;
            scene_open(&s, *kinds[k]);
            assert_true(from_cpu(&s, (kld_precision)p, s.m->family).kl < limit[k == 2][p]);
            scene_close(&s);
        }
    }
}

/* The same of the scene's model in other tensors, whose distributions may be too sharp for a KL. */
static void recast_as_cpu(scene *s, recast_fn *fn, void *ctx, bool experts, const char *what) {
    static const double most[2][2] = {{2e-2, 1e-4}, {5e-2, 5e-2}};
    built b;
    kld_model *was = s->m, *m = recast(&b, was, fn, ctx);
    s->m = m;
    for (int p = 0; p < 2; p++)
        assert_true(from_cpu(s, (kld_precision)p, what).rms < most[experts][p]);
    s->m = was;
    kld_model_free(m);
    build_end(&b);
}

/* Embeddings of every format, as heads too; factors of inputs, of experts too. */
static void other_tensors(void **state) {
    (void)state;
    static const tiny dense = {.hidden = 64,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 16,
                               .intermediate = 96,
                               .vocab = 200,
                               .tied = true};
    scene s;
    scene_open(&s, dense);
    for (size_t k = 0; k < RECAST_EMBEDDINGS; k++)
        recast_as_cpu(&s, recast_embedding, &k, false, recast_embeddings[k]);
    for (int i = 0; i < 4; i++) {
        awq_form f = {.seed = 3, .integer = i % 2, .has_pre = true};
        if (i == 2) scene_close(&s);
        if (i == 2) scene_open(&s, tiny_blocks);
        recast_as_cpu(&s, recast_awq, &f, i > 1,
                      i % 2 ? "INT8 with factors" : "NVFP4 with factors");
    }
    scene_close(&s);
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
    for (int k = 0; k < 4; k++) {
        scene s;
        scene_open(&s, k < 2 ? tiny_moe : tiny_blocks);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = (kld_precision)(k % 2);
        kld_err err = {0};
        kld_engine_stats st;
        collected a, b;
        if (k >= 2) {
            scene_run_ok(&s, &o, &b, NULL);
            declare_inputs(s.m);
            scene_run_ok(&s, &o, &a, NULL);
            same_records(&a, &b, "weights only, whatever is declared");
            collected_free(&a);
            o.activations = KLD_ACTIVATIONS_AS_DECLARED;
        }
        scene_run_ok(&s, &o, &a, &st);
        if (k >= 2) {
            assert_memory_not_equal(a.records.data, b.records.data, a.records.len);
            collected_free(&b);
        }
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
        same_alone(&s, &o, &a);
        collected_free(&a);
        scene_close(&s);
    }
    scene_backend = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models),
        cmocka_unit_test(golden_inputs),
        cmocka_unit_test(same_as_cpu),
        cmocka_unit_test(other_tensors),
        cmocka_unit_test(budgets),
        cmocka_unit_test(resume),
        cmocka_unit_test(experts_leave_no_trace),
    };
    return cmocka_run_group_tests_name("gpu engine", tests, NULL, NULL);
}
