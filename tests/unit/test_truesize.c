/* Releases at their true size, without their weights: the tensors of tests/golden/index as a sparse
 * file of one shard, opened with the released config.json.  Every tensor must find its place. */
#include "kld/base/file.h"
#include "loaders/model.h"
#include "tests/unit/loadkit.h"

#include <stdlib.h>
#include <unistd.h>

/* Shapes for indices that have names alone; the first name that ends so. */
typedef struct shape_rule {
    const char *end, *dtype, *shape;
} shape_rule;

static const shape_rule gpt_oss[] = {{"lm_head.weight", "BF16", "201088,2880"},
                                     {"embed_tokens.weight", "BF16", "201088,2880"},
                                     {"gate_up_proj_blocks", "U8", "32,5760,90,16"},
                                     {"gate_up_proj_scales", "U8", "32,5760,90"},
                                     {"gate_up_proj_bias", "BF16", "32,5760"},
                                     {"down_proj_blocks", "U8", "32,2880,90,16"},
                                     {"down_proj_scales", "U8", "32,2880,90"},
                                     {"down_proj_bias", "BF16", "32,2880"},
                                     {"router.weight", "BF16", "32,2880"},
                                     {"router.bias", "BF16", "32"},
                                     {"q_proj.weight", "BF16", "4096,2880"},
                                     {"q_proj.bias", "BF16", "4096"},
                                     {"k_proj.weight", "BF16", "512,2880"},
                                     {"k_proj.bias", "BF16", "512"},
                                     {"v_proj.weight", "BF16", "512,2880"},
                                     {"v_proj.bias", "BF16", "512"},
                                     {"o_proj.weight", "BF16", "2880,4096"},
                                     {"o_proj.bias", "BF16", "2880"},
                                     {"sinks", "BF16", "64"},
                                     {"norm.weight", "BF16", "2880"},
                                     {NULL, NULL, NULL}};
static const shape_rule gemma3[] = {{"model.embed_tokens.weight", "BF16", "262208,5376"},
                                    {"mlp.down_proj.weight", "BF16", "5376,21504"},
                                    {"mlp.gate_proj.weight", "BF16", "21504,5376"},
                                    {"mlp.up_proj.weight", "BF16", "21504,5376"},
                                    {"self_attn.q_proj.weight", "BF16", "4096,5376"},
                                    {"self_attn.k_proj.weight", "BF16", "2048,5376"},
                                    {"self_attn.v_proj.weight", "BF16", "2048,5376"},
                                    {"self_attn.o_proj.weight", "BF16", "5376,4096"},
                                    {"q_norm.weight", "BF16", "128"},
                                    {"k_norm.weight", "BF16", "128"},
                                    {"norm.weight", "BF16", "5376"},
                                    {"", "BF16", "1"}, /* vision */
                                    {NULL, NULL, NULL}};
static const shape_rule mixtral[] = {
    {"lm_head.weight", "BF16", "32000,6144"}, {"embed_tokens.weight", "BF16", "32000,6144"},
    {"w1.weight", "BF16", "16384,6144"},      {"w3.weight", "BF16", "16384,6144"},
    {"w2.weight", "BF16", "6144,16384"},      {"moe.gate.weight", "BF16", "8,6144"},
    {"q_proj.weight", "BF16", "6144,6144"},   {"o_proj.weight", "BF16", "6144,6144"},
    {"k_proj.weight", "BF16", "1024,6144"},   {"v_proj.weight", "BF16", "1024,6144"},
    {"norm.weight", "BF16", "6144"},          {NULL, NULL, NULL}};

#define DECODER "matches no module of the file: 'model.decoder.self_attn.o_proj'"

/* The numbers of tensors are worked out by hand; parameters and active: in units of 1e9, as the
 * model cards give them. */
static const struct {
    const char *name, *family, *label;
    const shape_rule *rules;
    size_t mtp, vision, indexer;
    double parameters, active;
    const char *warning;
} RELEASES[] = {
    {"qwen3-coder-30b-a3b", "qwen3_moe", "BF16", NULL, 0, 0, 0, 30.5, 3.3, NULL},
    {"mixtral-8x22b", "mixtral", "BF16", mixtral, 0, 0, 0, 141, 39, NULL},
    {"gpt-oss-20b", "gpt_oss", "MXFP4", gpt_oss, 0, 0, 0, 20.9, 3.6 + 0.58, NULL},
    {"gemma3-27b", "gemma3", "BF16", gemma3, 0, 439, 0, 27.0, 27.0, NULL},
    {"glm-4.7-flash", "glm4_moe_lite", "BF16", NULL, 212, 0, 0, 29.9, 3.9,
     "212 tensors of layers past"},
    {"minimax-m2.7", "minimax_m2", "FP8 (blocks)", NULL, 0, 0, 0, 229, 10.6, NULL},
    {"mimo-v2.5", "mimo_v2", "FP8 (blocks)", NULL, 48, 459, 0, 309, 15, DECODER},
    {"mimo-v2.5-pro", "mimo_v2", "FP8 (blocks)", NULL, 48, 0, 0, 1021, 42, DECODER},
    {"deepseek-r1", "deepseek_v3", "FP8 (blocks)", NULL, 1564, 0, 0, 671, 37,
     "1564 tensors of layers past"},
    {"deepseek-v3.2", "deepseek_v32", "FP8 (blocks)", NULL, 1571, 0, 427, 671, 37,
     "1571 tensors of layers past"},
    {"glm-5.1", "glm_moe_dsa", "BF16", NULL, 791, 0, 390, 744, 40, "791 tensors of layers past"},
    {"kimi-k2.5", "kimi_k25", "INT4 (packed)", NULL, 0, 335, 0, 1026, 32, NULL},
};

/* ---- the sparse file */

typedef struct sparse {
    kld_buf header;
    uint64_t at;
    size_t n;
    const shape_rule *rules;
    kld_buf shapes; /* values of weight_shape, which lie together at the end */
} sparse;

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static uint64_t bytes_of(const char *dtype, const char *shape) {
    uint64_t n = strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4
                 : strcmp(dtype, "BF16") == 0                           ? 2
                                                                        : 1;
    for (const char *p = shape; *p; p += *p == ',') {
        char *next;
        n *= strtoull(p, &next, 10);
        p = next;
    }
    return n;
}

static void put_tensor(sparse *s, const char *name, const char *dtype, const char *shape) {
    uint64_t n = bytes_of(dtype, shape);
    assert_int_equal(kld_buf_addf(&s->header, NULL,
                                  "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":["
                                  "%llu,%llu]}",
                                  s->n ? "," : "{", name, dtype, shape, (unsigned long long)s->at,
                                  (unsigned long long)(s->at + n)),
                     KLD_OK);
    s->at += n;
    s->n++;
}

/* The shape of a packed module: of its codes, eight to a word. */
static void put_extent(sparse *s, const char *name, const char *packed) {
    char *next;
    int32_t v[2];
    v[0] = (int32_t)strtol(packed, &next, 10);
    v[1] = 8 * (int32_t)strtol(next + 1, NULL, 10);
    put_tensor(s, name, "I32", "2");
    assert_int_equal(kld_buf_add(&s->shapes, v, sizeof v, NULL), KLD_OK);
}

/* Every name that a pattern stands for. */
static void expand(sparse *s, const char *pattern, const char *dtype, const char *shape,
                   const char *extent) {
    const char *open = strchr(pattern, '{');
    char name[512];
    if (!open) {
        for (const shape_rule *r = s->rules; !dtype && r && r->end; r++) {
            if (!ends(pattern, r->end)) continue;
            dtype = r->dtype;
            shape = r->shape;
        }
        if (!dtype) fail_msg("no shape for %s", pattern);
        if (extent) put_extent(s, pattern, extent);
        else put_tensor(s, pattern, dtype, shape);
        return;
    }
    char *end;
    size_t first = strtoul(open + 1, &end, 10), last = strtoul(end + 2, &end, 10);
    assert_int_equal(*end, '}');
    for (size_t i = first; i <= last; i++) {
        snprintf(name, sizeof name, "%.*s%zu%s", (int)(open - pattern), pattern, i, end + 1);
        expand(s, name, dtype, shape, extent);
    }
}

/* A line "PATTERN" or "PATTERN DTYPE [SHAPE]"; lines of weight_shape in a second pass. */
static void add_line(sparse *s, char *line, bool extents, char packed[64]) {
    char *dtype = strchr(line, ' '), *shape = NULL;
    if (dtype) {
        *dtype++ = '\0';
        shape = strchr(dtype, ' ');
        assert_non_null(shape);
        *shape = '\0';
        shape += 2;
        shape[strlen(shape) - 1] = '\0';
    }
    if (ends(line, "weight_packed")) snprintf(packed, 64, "%s", shape);
    if (ends(line, "weight_shape") != extents) return;
    expand(s, line, dtype, shape, extents ? packed : NULL);
}

static void read_index(sparse *s, const char *name, size_t *count) {
    char path[128], packed[64] = "";
    kld_buf text = {0};
    snprintf(path, sizeof path, "tests/golden/index/%s.txt", name);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(kld_file_slurp(path, 1 << 20, &text, NULL), KLD_OK);
        assert_int_equal(kld_buf_add(&text, "", 1, NULL), KLD_OK);
        for (char *line = strtok((char *)text.data, "\n"); line; line = strtok(NULL, "\n")) {
            unsigned long n;
            if (line[0] != '#') add_line(s, line, pass == 1, packed);
            else if (strstr(line, " tensors") && (n = strtoul(line + 1, NULL, 10)) > 0) *count = n;
        }
        kld_buf_free(&text);
    }
}

/* In a directory of its own: config.json and one shard. */
static void make_release(const char *dir, const char *name, const shape_rule *rules) {
    char path[160], source[128];
    sparse s = {.rules = rules};
    kld_buf config = {0};
    size_t count = 0;
    read_index(&s, name, &count);
    assert_int_equal(s.n, count);
    assert_int_equal(kld_buf_adds(&s.header, "}", NULL), KLD_OK);
    snprintf(source, sizeof source, "tests/golden/index/%s.config.json", name);
    assert_int_equal(kld_file_slurp(source, 1 << 20, &config, NULL), KLD_OK);
    put_file(dir, "config.json", config.data, config.len);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)s.header.len >> 8 * i);
    assert_int_equal(fwrite(size, 1, 8, f), 8);
    assert_int_equal(fwrite(s.header.data, 1, s.header.len, f), s.header.len);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + s.header.len + s.at)), 0);
    assert_int_equal(fseeko(f, -(off_t)s.shapes.len, SEEK_END), 0);
    if (s.shapes.len) assert_int_equal(fwrite(s.shapes.data, 1, s.shapes.len, f), s.shapes.len);
    assert_int_equal(fclose(f), 0);
    kld_buf_free(&s.header);
    kld_buf_free(&s.shapes);
    kld_buf_free(&config);
}

/* ---- */

static void check_layers(const kld_model *m) {
    const kld_config *c = &m->config;
    for (size_t l = 0; l < c->layers; l++) {
        const kld_layer *x = &m->layer[l];
        bool mixed = x->sub[1].block == KLD_BLOCK_EXPERTS;
        assert_int_equal(x->expert != NULL, mixed);
        if (!mixed) continue;
        const kld_weight *g = &x->expert[c->router.experts - 1].gate;
        assert_true(g->rows == c->expert_intermediate || g->rows == 2 * c->expert_intermediate);
        assert_int_equal(g->cols, c->hidden);
        assert_int_equal(x->slot[KLD_SLOT_ROUTER].rows, c->router.experts);
    }
}

static void near(const char *name, const char *what, uint64_t got, double want) {
    double v = (double)got / 1e9;
    if (v < want * 0.9 || v > want * 1.1) fail_msg("%s: %s %.2f, not %.2f", name, what, v, want);
}

static void releases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof RELEASES / sizeof *RELEASES; i++) {
        const char *name = RELEASES[i].name;
        char dir[] = "/tmp/kldtest.XXXXXX";
        kld_model *m;
        kld_err err = {0};
        assert_non_null(mkdtemp(dir));
        make_release(dir, name, RELEASES[i].rules);
        kld_status st = kld_model_open(&m, dir, &err);
        assert_int_equal(kld_remove_tree(dir, NULL), KLD_OK);
        if (st != KLD_OK) fail_msg("%s: %s", name, err.text);
        assert_string_equal(m->family, RELEASES[i].family);
        assert_string_equal(m->label, RELEASES[i].label);
        assert_int_equal(m->skipped[KLD_SKIP_MTP], RELEASES[i].mtp);
        assert_int_equal(m->skipped[KLD_SKIP_VISION], RELEASES[i].vision);
        assert_int_equal(m->skipped[KLD_SKIP_INDEXER], RELEASES[i].indexer);
        near(name, "parameters", kld_model_parameters(m), RELEASES[i].parameters);
        near(name, "active", kld_model_active_parameters(m), RELEASES[i].active);
        check_layers(m);
        if (m->n_warnings != (RELEASES[i].warning != NULL))
            fail_msg("%s: %s", name, m->n_warnings ? m->warnings[0] : "no warning");
        if (m->n_warnings) assert_non_null(strstr(m->warnings[0], RELEASES[i].warning));
        kld_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(releases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
