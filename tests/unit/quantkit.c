#include "tests/unit/quantkit.h"

#include "loaders/numfmt.h"

static const char CONFIG[] =
    "{%s\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%zu,\"intermediate_size\":%zu,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":8,\"rms_norm_eps\":1e-5,\"attention_bias\":true}%s";

static const struct {
    const char *name;
    int rows, cols; /* in units of an eighth of the hidden size; cols 0: a vector */
    double scale;   /* standard deviation: members of a group differ, so that sharing shows */
    int shard;
} PARTS[] = {
    {"input_layernorm.weight", 8, 0, 1, 0},    {"self_attn.q_proj.weight", 8, 8, 0.1, 0},
    {"self_attn.k_proj.weight", 4, 8, 0.9, 1}, {"self_attn.v_proj.weight", 4, 8, 0.02, 0},
    {"self_attn.o_proj.weight", 8, 8, 0.5, 0}, {"self_attn.q_proj.bias", 8, 0, 1, 0},
    {"self_attn.k_proj.bias", 4, 0, 1, 0},     {"self_attn.v_proj.bias", 4, 0, 1, 1},
    {"self_attn.o_proj.bias", 8, 0, 1, 0},     {"post_attention_layernorm.weight", 8, 0, 1, 0},
    {"mlp.gate_proj.weight", 16, 8, 0.3, 0},   {"mlp.up_proj.weight", 16, 8, 0.05, 1},
    {"mlp.down_proj.weight", 8, 16, 0.7, 0},
};
enum { N_PARTS = sizeof PARTS / sizeof *PARTS };

static uint64_t seed;

static double normal(void) {
    double t = 0;
    for (int i = 0; i < 12; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        t += (double)(seed >> 11) * 0x1p-53;
    }
    return t - 6;
}

/* A value of the dtype: 7 bits of mantissa are exact in each. */
static size_t put_value(unsigned char *p, const char *dtype, double v) {
    float f = kld_bf16_to_f32(kld_f32_to_bf16((float)v));
    uint32_t bits = kld_f32_bits(f);
    uint16_t half = (uint16_t)(bits >> 16);
    if (!strcmp(dtype, "F32")) {
        memcpy(p, &f, 4);
        return 4;
    }
    if (!strcmp(dtype, "F16")) {
        uint32_t e = bits >> 23 & 255;
        half = (uint16_t)(bits >> 16 & 0x8000);
        if (e > 112) half |= (uint16_t)((e - 112) << 10 | (bits >> 13 & 0x3ff));
    }
    memcpy(p, &half, 2);
    return 2;
}

/* special: written over element 37 of the tensor named `poison`. */
static void add_random(built *b, const char *name, const char *dtype, size_t rows, size_t cols,
                       double scale, const char *poison, double special) {
    static unsigned char data[4 * 64 * 64];
    char shape[32];
    size_t n = rows * (cols ? cols : 1), at = 0;
    seed = 5; /* of the name: the same values wherever the tensor lies */
    for (const char *p = name; *p; p++) seed = seed * 31 + (unsigned char)*p;
    for (size_t i = 0; i < n; i++) {
        double v = scale * normal();
        if (cols && i / 32 == 1) v = 0; /* a block of zeros */
        if (poison && !strcmp(poison, name) && i == 37) v = special;
        at += put_value(data + at, dtype, v);
    }
    if (cols) snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else snprintf(shape, sizeof shape, "[%zu]", rows);
    build_tensor(b, name, dtype, shape, data, at, 0);
}

static void add_layers(built *b, const recipe *r, int shard) {
    char name[128];
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < N_PARTS; i++) {
            if (r->sharded && PARTS[i].shard != shard) continue;
            size_t rows = (size_t)PARTS[i].rows * r->hidden / 8;
            size_t cols = (size_t)PARTS[i].cols * r->hidden / 8;
            if (PARTS[i].rows == 16) rows = r->inner;
            if (PARTS[i].cols == 16) cols = r->inner;
            snprintf(name, sizeof name, "%slayers.%zu.%s", r->prefix, l, PARTS[i].name);
            add_random(b, name, r->dtype, rows, cols, PARTS[i].scale * (double)(l + 1), r->poison,
                       r->special);
        }
}

/* Copied in pieces of 4 MiB. */
static void add_large(built *b) {
    enum { N = (4 << 20) + 3 };
    static unsigned char data[N];
    char shape[32];
    for (uint32_t i = 0; i < N; i++) data[i] = (unsigned char)(i * 2654435761u >> 24);
    snprintf(shape, sizeof shape, "[%d]", N);
    build_tensor(b, "mtp.large", "U8", shape, data, N, 0);
}

static void add_rest(built *b, const recipe *r) {
    char name[128];
    snprintf(name, sizeof name, "%sembed_tokens.weight", r->prefix);
    add_random(b, name, r->dtype, 8, r->hidden, 1, NULL, 0);
    snprintf(name, sizeof name, "%snorm.weight", r->prefix);
    add_random(b, name, r->dtype, r->hidden, 0, 1, NULL, 0);
    add_random(b, "lm_head.weight", r->dtype, 8, r->hidden, 1, NULL, 0);
    add_random(b, "mtp.layers.0.mlp.up_proj.weight", r->dtype, 4, 16, 1, NULL, 0);
    if (r->outer)
        add_random(b, "model.visual.blocks.0.attn.q_proj.weight", r->dtype, 4, 16, 1, NULL, 0);
    if (r->large) add_large(b);
}

static void write_index(const built *b) {
    kld_buf t = {0};
    static const char *const file[] = {"part-1.safetensors", "part-2.safetensors"};
    assert_int_equal(kld_buf_adds(&t, "{\"weight_map\":{", NULL), KLD_OK);
    for (size_t s = 0, n = 0; s < 2; s++) {
        loaded f;
        char path[128];
        snprintf(path, sizeof path, "%s/%s", b->dir, file[s]);
        load(&f, path);
        for (size_t i = 0; i < f.n; i++)
            assert_int_equal(
                kld_buf_addf(&t, NULL, "%s\"%s\":\"%s\"", n++ ? "," : "", f.t[i].name, file[s]),
                KLD_OK);
        unload(&f);
    }
    assert_int_equal(kld_buf_adds(&t, "}}", NULL), KLD_OK);
    build_text(b, "model.safetensors.index.json", (char *)t.data);
    kld_buf_free(&t);
}

void make_source(built *b, const recipe *r) {
    char text[1024];
    build_begin(b);
    snprintf(text, sizeof text, CONFIG, r->outer ? r->outer : "", r->hidden, r->inner,
             r->outer ? "}" : "");
    build_text(b, "config.json", text);
    add_layers(b, r, 0);
    if (!r->sharded) add_rest(b, r);
    build_write(b, r->sharded ? "part-1.safetensors" : "model.safetensors");
    if (!r->sharded) return;
    add_layers(b, r, 1);
    add_rest(b, r);
    build_write(b, "part-2.safetensors");
    write_index(b);
}

const recipe PLAIN = {"BF16", HIDDEN, INNER, "model.", false, false, NULL, NULL, 0};

const char *out_dir(const built *b) {
    static char path[80];
    snprintf(path, sizeof path, "%s.out", b->dir);
    return path;
}

kld_status quantize(const built *b, kld_target_format format, kld_quantize_summary *sum,
                    kld_err *err) {
    const kld_quantize_options o = {.model = b->dir, .output = out_dir(b), .format = format};
    return kld_quantize_run(&o, sum, err);
}

void quantizes(const built *b, kld_target_format format, kld_quantize_summary *sum) {
    kld_err err = {0};
    if (quantize(b, format, sum, &err) != KLD_OK) fail_msg("%s", err.text);
}

void refuses(const built *b, kld_target_format format, kld_status want, const char *text) {
    kld_quantize_summary sum;
    kld_err err = {0};
    kld_status st = quantize(b, format, &sum, &err);
    if (st != want || !strstr(err.text, text))
        fail_msg("expected status %d and '%s', got %d: %s", want, text, st, err.text);
}
