/* A checkpoint's head by itself: its digest, its file, and what is refused. */
#include "tests/unit/tinymodel.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "loaders/head.h"

static const char PLAIN[] = "{" CONFIG "}", TIED[] = "{" CONFIG ",\"tie_word_embeddings\":true}";

static kld_digest digest_of(const char *dir) {
    kld_model *m = tiny_open(dir);
    kld_digest d = {{0}};
    kld_err err = {0};
    if (kld_head_digest(m, &d, &err) != KLD_OK) fail_msg("%s", err.text);
    kld_model_free(m);
    return d;
}

static kld_digest digest_with(const char *config, const char *drop, const spec *extra, size_t n) {
    built b;
    tiny_make(&b, config, drop, extra, n);
    kld_digest d = digest_of(b.dir);
    build_end(&b);
    return d;
}

static bool same(kld_digest a, kld_digest b) { return !memcmp(&a, &b, sizeof a); }

/* NVFP4 of [8, 32]. */
#define QUANT                                                                                      \
    {"lm_head.weight", "U8", "[8,16]", 128, 0x22, NULL}, {                                         \
        "lm_head.weight_scale", "F8_E4M3", "[8,2]", 16, 0x38, NULL                                 \
    }
static const float one = 1, two = 2;
static const spec quant[] = {QUANT, {"lm_head.weight_scale_2", "F32", "[]", 4, 0, &one}};
static const spec other_global[] = {QUANT, {"lm_head.weight_scale_2", "F32", "[]", 4, 0, &two}};
static const spec with_input[] = {QUANT,
                                  {"lm_head.weight_scale_2", "F32", "[]", 4, 0, &one},
                                  {"lm_head.input_scale", "F32", "[]", 4, 0, &one}};
static const char NVFP4[] = "{" CONFIG ",\"quantization_config\":{\"quant_method\":\"modelopt\","
                            "\"quant_algo\":\"NVFP4\",\"exclude_modules\":[\"model*\"]}}";

/* The head alone decides, not where it lies. */
static void digest(void **state) {
    (void)state;
    kld_digest plain = digest_with(PLAIN, NULL, NULL, 0);
    static const spec norm = {"model.norm.weight", "BF16", "[32]", 64, 3, NULL};
    assert_true(same(plain, digest_with(PLAIN, NULL, &norm, 1)));
    built b;
    build_begin(&b);
    build_text(&b, "config.json", PLAIN);
    for (size_t i = 0; i < N_PLAIN; i++) {
        const spec *t = &tiny_plain[i];
        if (strcmp(t->name, "lm_head.weight") != 0)
            build_tensor(&b, t->name, t->dtype, t->shape, NULL, t->bytes, t->fill);
    }
    build_write(&b, "a.safetensors");
    build_tensor(&b, "lm_head.weight", "BF16", "[8,32]", NULL, 512, 2);
    build_write(&b, "b.safetensors");
    kld_buf map = {0};
    assert_int_equal(kld_buf_adds(&map, "{\"weight_map\":{", NULL), KLD_OK);
    for (size_t i = 0; i < N_PLAIN; i++)
        assert_int_equal(kld_buf_addf(&map, NULL, "%s\"%s\":\"%s.safetensors\"", i ? "," : "",
                                      tiny_plain[i].name,
                                      strcmp(tiny_plain[i].name, "lm_head.weight") ? "a" : "b"),
                         KLD_OK);
    assert_int_equal(kld_buf_adds(&map, "}}", NULL), KLD_OK);
    build_text(&b, "model.safetensors.index.json", (char *)map.data);
    kld_buf_free(&map);
    assert_true(same(plain, digest_of(b.dir)));
    build_end(&b);

    static const spec embed = {"model.embed_tokens.weight", "BF16", "[8,32]", 512, 2, NULL};
    assert_true(same(plain, digest_with(TIED, "lm_head.weight", &embed, 1)));
    static const spec bytes = {"lm_head.weight", "BF16", "[8,32]", 512, 3, NULL};
    static const spec dtype = {"lm_head.weight", "F16", "[8,32]", 512, 2, NULL};
    assert_false(same(plain, digest_with(PLAIN, NULL, &bytes, 1)));
    assert_false(same(plain, digest_with(PLAIN, NULL, &dtype, 1)));

    kld_digest q = digest_with(NVFP4, NULL, quant, 3);
    assert_true(same(q, digest_with(NVFP4, NULL, quant, 3)));
    assert_false(same(q, digest_with(NVFP4, NULL, other_global, 3)));
    assert_false(same(q, digest_with(NVFP4, NULL, with_input, 4)));
}

static void save_and_open(const char *dtype, size_t bytes, const char *config, double cap) {
    spec head = {"lm_head.weight", dtype, "[8,32]", bytes, 2, NULL};
    built b, out;
    kld_err err = {0};
    tiny_make(&b, config, NULL, &head, 1);
    build_begin(&out);
    kld_model *m = tiny_open(b.dir), *alone = NULL;
    m->config.logit_cap = cap;
    kld_digest d, again;
    char *path, *twice;
    assert_int_equal(kld_head_digest(m, &d, &err), KLD_OK);
    if (kld_head_save(m, &d, out.dir, &path, &err) != KLD_OK) fail_msg("%s", err.text);
    char hex[KLD_SHA256_HEX], want[256];
    snprintf(want, sizeof want, "%s/head-%.12s.safetensors", out.dir, kld_digest_hex(&d, hex));
    assert_string_equal(path, want);
    if (kld_head_save(m, &d, out.dir, &twice, &err) != KLD_OK) fail_msg("%s", err.text);
    assert_string_equal(path, twice);
    if (kld_head_open(&alone, path, &d, &err) != KLD_OK) fail_msg("%s", err.text);
    assert_int_equal(kld_head_digest(alone, &again, &err), KLD_OK);
    assert_true(same(d, again));
    assert_true(alone->config.logit_cap == cap);
    assert_int_equal(alone->config.hidden, 32);
    assert_int_equal(alone->config.vocab, 8);
    const kld_weight *x = &m->global[KLD_SLOT_HEAD], *y = &alone->global[KLD_SLOT_HEAD];
    assert_int_equal(x->format, y->format);
    unsigned char p[1024], q[1024];
    assert_int_equal(kld_checkpoint_read(&m->ckpt, x->data, 0, p, bytes, &err), KLD_OK);
    assert_int_equal(kld_checkpoint_read(&alone->ckpt, y->data, 0, q, bytes, &err), KLD_OK);
    assert_memory_equal(p, q, bytes);
    kld_weight_at at = {0};
    assert_true(kld_model_next_weight(alone, &at));
    assert_int_equal(at.slot, KLD_SLOT_HEAD);
    assert_false(kld_model_next_weight(alone, &at));
    kld_model_free(alone);
    if (kld_head_open(&alone, b.dir, &d, &err) != KLD_OK) fail_msg("%s", err.text);
    assert_int_equal(alone->config.layers, 1);
    kld_model_free(alone);
    kld_model_free(m);
    kld_free(path);
    kld_free(twice);
    build_end(&b);
    build_end(&out);
}

/* No family has one yet; a file that holds it must not lose it. */
static void bias(void **state) {
    (void)state;
    static const spec extra = {L "self_attn.k_proj.k_scale", "F32", "[8]", 32, 5, NULL};
    built b, out;
    kld_err err = {0};
    kld_digest plain = digest_with(PLAIN, NULL, NULL, 0), d;
    tiny_make(&b, PLAIN, NULL, &extra, 1);
    build_begin(&out);
    kld_model *m = tiny_open(b.dir), *alone;
    m->global[KLD_SLOT_HEAD].bias = kld_checkpoint_find(&m->ckpt, extra.name);
    char *path;
    assert_int_equal(kld_head_digest(m, &d, &err), KLD_OK);
    assert_false(same(d, plain));
    if (kld_head_save(m, &d, out.dir, &path, &err) != KLD_OK) fail_msg("%s", err.text);
    if (kld_head_open(&alone, path, &d, &err) != KLD_OK) fail_msg("%s", err.text);
    const kld_tensor *t = alone->global[KLD_SLOT_HEAD].bias;
    assert_non_null(t);
    unsigned char p[32], want[32];
    memset(want, 5, sizeof want);
    assert_int_equal(kld_checkpoint_read(&alone->ckpt, t, 0, p, sizeof p, &err), KLD_OK);
    assert_memory_equal(p, want, sizeof p);
    kld_model_free(alone);
    kld_model_free(m);
    kld_free(path);
    build_end(&b);
    build_end(&out);
}

static void file(void **state) {
    (void)state;
    save_and_open("BF16", 512, PLAIN, 0);
    save_and_open("F16", 512, PLAIN, 30.1);
    save_and_open("F32", 1024, PLAIN, 50);
}

/* Of some files in a directory, each opened; the message holds `text`. */
static void open_fails(const char *path, const kld_digest *d, const char *text) {
    kld_model *m;
    kld_err err = {0};
    assert_int_equal(kld_head_open(&m, path, d, &err), KLD_E_INPUT);
    assert_null(m);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

static void file_fails(built *b, const char *meta, const char *text) {
    kld_digest d = {{0}};
    char path[128], head[512];
    snprintf(head, sizeof head, "{\"__metadata__\":{%s}", meta);
    kld_buf rest = b->header;
    b->header = (kld_buf){0};
    assert_int_equal(kld_buf_adds(&b->header, head, NULL), KLD_OK);
    if (b->n) {
        assert_int_equal(kld_buf_adds(&b->header, ",", NULL), KLD_OK);
        assert_int_equal(kld_buf_add(&b->header, rest.data + 1, rest.len - 1, NULL), KLD_OK);
    }
    kld_buf_free(&rest);
    b->n += 1;
    build_write(b, "h.safetensors");
    snprintf(path, sizeof path, "%s/h.safetensors", b->dir);
    open_fails(path, &d, text);
}

#define META "\"kld_head\":\"x\",\"logit_cap\":\"0\""

static void refusals(void **state) {
    (void)state;
    built b, out;
    kld_err err = {0};
    kld_digest d, other = {{7}};
    char *path = NULL, text[KLD_SHA256_HEX];
    tiny_make(&b, NVFP4, NULL, quant, 3);
    build_begin(&out);
    kld_model *m = tiny_open(b.dir);
    assert_int_equal(kld_head_digest(m, &d, &err), KLD_OK);
    assert_int_equal(kld_head_save(m, &d, out.dir, &path, &err), KLD_E_UNSUPPORTED);
    assert_null(path);
    assert_non_null(strstr(err.text, "stored as NVFP4"));
    assert_non_null(strstr(err.text, b.dir));
    kld_model_free(m);
    open_fails(b.dir, &other, kld_digest_hex(&d, text));
    open_fails(b.dir, &other, "not 0700");
    build_end(&b);

    tiny_make(&b, PLAIN, NULL, NULL, 0);
    m = tiny_open(b.dir);
    assert_int_equal(kld_head_digest(m, &d, &err), KLD_OK);
    assert_int_equal(kld_head_path(&path, out.dir, &d, &err), KLD_OK);
    put_file(out.dir, strrchr(path, '/') + 1, "nonsense", 8);
    kld_free(path);
    assert_int_equal(kld_head_save(m, &d, out.dir, &path, &err), KLD_E_INPUT);
    assert_null(path);
    assert_int_equal(kld_head_save(m, &d, "/nowhere/at/all", &path, &err), KLD_E_INPUT);
    assert_null(path);
    kld_model_free(m);
    open_fails("/nowhere/at/all", &d, "/nowhere/at/all");
    char model[128];
    snprintf(model, sizeof model, "%s/model.safetensors", b.dir);
    open_fails(model, &d, "this is no head that kld kept");
    build_end(&b);

    build_tensor(&out, "lm_head.weight", "BF16", "[8,32]", NULL, 512, 2);
    file_fails(&out, "\"kld_head\":\"x\",\"logit_cap\":\"no\"", "not a number from 0");
    build_tensor(&out, "lm_head.weight", "BF16", "[8,32]", NULL, 512, 2);
    file_fails(&out, "\"kld_head\":\"x\",\"logit_cap\":\"-1\"", "not a number from 0");
    build_tensor(&out, "lm_head.weight", "BF16", "[8,32]", NULL, 512, 2);
    build_tensor(&out, "lm_head.weight_scale", "BF16", "[8]", NULL, 16, 2);
    file_fails(&out, META, "'lm_head.weight_scale' has no place in a head");
    build_tensor(&out, "lm_head.weight", "BF16", "[256]", NULL, 512, 2);
    file_fails(&out, META, "there is no matrix 'lm_head.weight'");
    build_tensor(&out, "lm_head.bias", "BF16", "[8]", NULL, 16, 2);
    file_fails(&out, META, "there is no matrix 'lm_head.weight'");
    build_tensor(&out, "lm_head.weight", "F8_E4M3", "[8,32]", NULL, 256, 2);
    file_fails(&out, META, "lm_head");
    build_end(&out);
}

/* Either all of it or nothing, and no partial file. */
static void memory(void **state) {
    (void)state;
    built b, out;
    tiny_make(&b, PLAIN, NULL, NULL, 0);
    build_begin(&out);
    kld_model *m = tiny_open(b.dir), *alone;
    kld_digest d;
    char *path;
    kld_err err = {0};
    assert_int_equal(kld_head_digest(m, &d, &err), KLD_OK);
    kld_status st = KLD_E_NOMEM;
    size_t n = 0;
    while (st != KLD_OK) {
        kld_mem_fail_after(++n);
        st = kld_head_save(m, &d, out.dir, &path, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) break;
        assert_int_equal(st, KLD_E_NOMEM);
        assert_null(path);
        char **names;
        size_t files;
        assert_int_equal(kld_list_dir(out.dir, &names, &files, &err), KLD_OK);
        assert_int_equal(files, 0);
        kld_names_free(names, files);
    }
    assert_true(n > 3);
    for (n = 0, st = KLD_E_NOMEM; st != KLD_OK; kld_mem_fail_after(0)) {
        kld_mem_fail_after(++n);
        st = kld_head_open(&alone, path, &d, &err);
        if (st != KLD_OK) assert_int_equal(st, KLD_E_NOMEM);
    }
    assert_true(n > 5);
    kld_model_free(alone);
    kld_free(path);
    kld_model_free(m);
    build_end(&b);
    build_end(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest),   cmocka_unit_test(file),   cmocka_unit_test(bias),
        cmocka_unit_test(refusals), cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
