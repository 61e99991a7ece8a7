/* The heads of an exact comparison: found, missing, wrong, of one side only; and memory that runs
 * out. */
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "loaders/head.h"
#include "tests/unit/exactkit.h"

static void found(void **state) {
    (void)state;
    exact_rig g;
    kld_err err = {0};
    kld_digest d;
    char *path, hex[KLD_SHA256_HEX], text[64];
    exact_open(&g, tiny_qwen, 7);
    exact_form f = {.precision = KLD_PRECISION_BF16, .checkpoint = "/nowhere"};
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    exact_capture(g.cand_path, &g.s, g.cand, &f);
    need(kld_head_digest(g.s.m, &d, &err), &err, "");
    snprintf(text, sizeof text, "the head %.12s of 'no/such' was not found",
             kld_digest_hex(&d, hex));
    exact_fails(&g, KLD_E_INPUT, text);
    exact_fails(&g, KLD_E_INPUT, "/nowhere (is not there)");
    exact_fails(&g, KLD_E_INPUT, "--exact never");
    /* Of two places one is right for each side, and the others are said. */
    const char *given[] = {g.cand->ckpt.dir, g.s.m->ckpt.dir, "/not/here"};
    g.opt.checkpoint = given;
    g.opt.n_checkpoints = 1;
    exact_fails(&g, KLD_E_INPUT, "holds the head");
    g.opt.n_checkpoints = 3;
    json_t *r = exact_compare(&g), *s;
    /* A kept head beside the capture, and one that is given. */
    need(kld_head_save(g.s.m, &d, g.s.t.dir, &path, &err), &err, "");
    g.opt.n_checkpoints = 1;
    s = exact_compare(&g);
    assert_true(json_equal(r, s));
    json_decref(s);
    char moved[128];
    snprintf(moved, sizeof moved, "%s/kept.safetensors", g.s.t.dir);
    assert_int_equal(rename(path, moved), 0);
    given[1] = moved;
    g.opt.n_checkpoints = 2;
    s = exact_compare(&g);
    assert_true(json_equal(r, s));
    json_decref(s);
    json_decref(r);
    /* What lies there by its name and is not it is passed over. */
    put_file(g.s.t.dir, strrchr(path, '/') + 1, "nonsense", 8);
    g.opt.n_checkpoints = 1;
    exact_fails(&g, KLD_E_INPUT, strrchr(path, '/') + 1);
    kld_free(path);
    exact_close(&g);
}

/* Headers that are wrong about the head. */
static void wrong(void **state) {
    (void)state;
    exact_rig g;
    kld_err err = {0};
    kld_digest d;
    double cap = 20;
    exact_open(&g, tiny_qwen, 7);
    exact_form f = {.precision = KLD_PRECISION_FP32}, bad = f;
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    need(kld_head_digest(g.s.m, &d, &err), &err, "");
    bad.head = &d;
    bad.checkpoint = g.s.m->ckpt.dir;
    exact_capture(g.cand_path, &g.s, g.cand, &bad);
    exact_fails(&g, KLD_E_INPUT,
                "cand.zst: the head does not reproduce the capture: window 0, position 3");
    /* As bodies alone it may be what is meant. */
    g.opt.head_shared = true;
    json_decref(exact_compare(&g));
    g.opt.head_shared = false;
    bad = f;
    bad.logit_cap = &cap;
    exact_capture(g.cand_path, &g.s, g.cand, &bad);
    exact_fails(&g, KLD_E_INPUT, "its logits were capped at 20");
    /* Differences of rounding are fine where another back end took the sums, and told. */
    bad = f;
    bad.shift = 2e-4;
    exact_capture(g.cand_path, &g.s, g.cand, &bad);
    exact_fails(&g, KLD_E_INPUT, "(1e-05 apart are allowed here)");
    bad.arithmetic = "another";
    exact_capture(g.cand_path, &g.s, g.cand, &bad);
    g.opt.allow_arithmetic_mismatch = true;
    json_t *r = exact_compare(&g);
    exact_near(r, "candidates.0.exact.check_max", 2e-4, 0.1);
    json_decref(r);
    bad.shift = 2e-3;
    exact_capture(g.cand_path, &g.s, g.cand, &bad);
    exact_fails(&g, KLD_E_INPUT, "(0.001 apart are allowed here)");
    exact_close(&g);
}

static void one_side_only(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        exact_rig g;
        exact_open(&g, tiny_qwen, 7);
        exact_form f = {.precision = KLD_PRECISION_BF16}, plain = f;
        plain.no_hidden = true;
        exact_capture(g.ref_path, &g.s, g.s.m, k ? &plain : &f);
        exact_capture(g.cand_path, &g.s, g.cand, k ? &f : &plain);
        json_t *r = exact_compare(&g);
        assert_true(json_is_null(cmp_get(r, "candidates.0.exact")));
        assert_true(cmp_warned(r, "hidden_missing"));
        json_decref(r);
        g.opt.head_shared = true;
        exact_fails(&g, KLD_E_USAGE,
                    k ? "ref.zst keeps no hidden states" : "cand.zst keeps no hidden");
        g.opt.exact_never = true;
        exact_fails(&g, KLD_E_USAGE, "exclude each other");
        g.opt.head_shared = false;
        r = exact_compare(&g);
        assert_false(cmp_warned(r, "hidden_missing"));
        json_decref(r);
        exact_close(&g);
    }
}

static void memory(void **state) {
    (void)state;
    exact_rig g;
    exact_open(&g, tiny_qwen, 7);
    exact_form f = {.precision = KLD_PRECISION_BF16};
    exact_capture(g.ref_path, &g.s, g.s.m, &f);
    exact_capture(g.cand_path, &g.s, g.cand, &f);
    const char *cand[] = {g.cand_path};
    for (int shared = 0; shared < 2; shared++) {
        kld_status st = KLD_E_NOMEM;
        size_t n = 0;
        g.opt.head_shared = shared;
        while (st != KLD_OK) {
            json_t *r;
            kld_err err = {0};
            kld_mem_fail_after(n += 3);
            st = kld_compare_run(g.ref_path, cand, 1, &g.opt, &r, &err);
            kld_mem_fail_after(0);
            json_decref(r);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, err.text);
        }
        assert_true(n > 100);
    }
    exact_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found),
        cmocka_unit_test(wrong),
        cmocka_unit_test(one_side_only),
        cmocka_unit_test(memory),
    };
    kld_log_set_level(KLD_LOG_QUIET);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
