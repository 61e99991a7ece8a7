#include "tests/unit/tinymodel.h"

const spec tiny_plain[N_PLAIN] = {
    {"model.embed_tokens.weight", "BF16", "[8,32]", 512, 1, NULL},
    {"model.norm.weight", "BF16", "[32]", 64, 1, NULL},
    {"lm_head.weight", "BF16", "[8,32]", 512, 2, NULL},
    {L "input_layernorm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "self_attn.q_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "self_attn.k_proj.weight", "BF16", "[16,32]", 1024, 1, NULL},
    {L "self_attn.v_proj.weight", "BF16", "[16,32]", 1024, 1, NULL},
    {L "self_attn.o_proj.weight", "BF16", "[32,32]", 2048, 1, NULL},
    {L "post_attention_layernorm.weight", "BF16", "[32]", 64, 1, NULL},
    {L "mlp.gate_proj.weight", "BF16", "[64,32]", 4096, 1, NULL},
    {L "mlp.up_proj.weight", "BF16", "[64,32]", 4096, 1, NULL},
    {L "mlp.down_proj.weight", "BF16", "[32,64]", 4096, 1, NULL},
};

void tiny_make(built *b, const char *config, const char *drop, const spec *extra, size_t n) {
    build_begin(b);
    build_text(b, "config.json", config);
    for (size_t i = 0; i < N_PLAIN; i++) {
        bool skip = drop && !strcmp(drop, tiny_plain[i].name);
        for (size_t k = 0; k < n; k++) skip |= !strcmp(extra[k].name, tiny_plain[i].name);
        if (skip) continue;
        build_tensor(b, tiny_plain[i].name, tiny_plain[i].dtype, tiny_plain[i].shape, NULL,
                     tiny_plain[i].bytes, tiny_plain[i].fill);
    }
    for (size_t k = 0; k < n; k++) {
        if (extra[k].dtype)
            build_tensor(b, extra[k].name, extra[k].dtype, extra[k].shape, extra[k].data,
                         extra[k].bytes, extra[k].fill);
    }
    build_write(b, "model.safetensors");
}

kld_model *tiny_open(const char *dir) {
    kld_model *m;
    kld_err err = {0};
    if (kld_model_open(&m, dir, &err) != KLD_OK) fail_msg("%s", err.text);
    return m;
}

void tiny_fails(const char *config, const char *drop, const spec *extra, size_t n, kld_status want,
                const char *text) {
    built b;
    tiny_make(&b, config, drop, extra, n);
    kld_model *m;
    kld_err err = {0};
    kld_status st = kld_model_open(&m, b.dir, &err);
    build_end(&b);
    assert_null(m);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    assert_int_equal(st, want);
}

void tiny_warns(const char *config, const char *drop, const spec *extra, size_t n,
                const char *label, const char *const *text) {
    built b;
    tiny_make(&b, config, drop, extra, n);
    kld_model *m = tiny_open(b.dir);
    build_end(&b);
    size_t k = 0;
    for (; text[k]; k++) {
        if (k >= m->n_warnings) fail_msg("no warning '%s'", text[k]);
        if (!strstr(m->warnings[k], text[k]))
            fail_msg("'%s' does not say '%s'", m->warnings[k], text[k]);
    }
    if (m->n_warnings > k) fail_msg("unexpected warning '%s'", m->warnings[k]);
    assert_string_equal(m->label, label);
    kld_model_free(m);
}
