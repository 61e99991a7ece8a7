/* kld inspect: every number of a checkpoint from its tensors, of a capture from what was written;
 * and the same in lines for people. */
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/capture/inspect.h"
#include "loaders/checkpoint.h"

#include "tests/unit/capturekit.h"
#include "tests/unit/loadkit.h"
#include "tests/unit/t.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static const kld_inspect_options OPTIONS = {.disk_speed = 1000, .tokens = 300, .window = 64};

static json_t *inspects(const char *path) {
    json_t *v;
    kld_err e = {0};
    if (kld_inspect(path, &OPTIONS, &v, &e) != KLD_OK) fail_msg("%s", e.text);
    return v;
}

static uint64_t u64(const json_t *v, const char *key) {
    const json_t *x = json_object_get(v, key);
    if (!json_is_integer(x)) fail_msg("'%s' is no integer", key);
    return (uint64_t)json_integer_value(x);
}

static const char *str(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    if (!s) fail_msg("'%s' is no string", key);
    return s;
}

static double real(const json_t *v, const char *key) {
    return json_number_value(json_object_get(v, key));
}

static json_t *config_of(const char *dir) {
    char path[300];
    json_t *c;
    kld_err e = {0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (kld_json_load(&c, path, 1 << 20, &e) != KLD_OK) fail_msg("%s", e.text);
    return c;
}

/* ---- checkpoints ---- */

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Scales of activations, which stay as they are. */
static bool of_activations(const char *name) {
    return ends(name, "input_scale") || ends(name, "input_global_scale");
}

/* By name alone. */
static const char *module_of(const char *name) {
    if (strstr(name, "norm")) return "norm";
    if (strstr(name, "self_attn.")) return "attention";
    if (strstr(name, "mlp.")) return "mlp";
    if (strstr(name, "embed_tokens")) return "embedding";
    return "head";
}

static uint64_t elements(const kld_tensor *t) {
    uint64_t n = 1;
    for (unsigned d = 0; d < t->rank; d++) n *= t->shape[d];
    return n;
}

typedef struct sums {
    uint64_t weights, parameters, bytes;
} sums;

static void add_tensor(sums *s, const kld_tensor *t) {
    if (of_activations(t->name)) return;
    s->bytes += t->bytes;
    if (ends(t->name, ".bias")) s->parameters += elements(t);
    if (!ends(t->name, ".weight") && !ends(t->name, ".weight_packed")) return;
    s->weights++;
    s->parameters += elements(t) * (t->dtype == KLD_U8 ? 2 : 1);
}

static bool skipped(const char *name) {
    return strncmp(name, "mtp.", 4) == 0 || strstr(name, ".visual.");
}

static bool equal_sums(const json_t *modules, const char *kind, const char *format, sums s) {
    const json_t *v = json_object_get(json_object_get(modules, kind), format);
    return s.weights == 0 ? v == NULL
                          : v && u64(v, "weights") == s.weights &&
                                u64(v, "parameters") == s.parameters && u64(v, "bytes") == s.bytes;
}

/* `linear` is the format of the projections, `rest` that of everything else. */
static void check_sums(const json_t *v, const kld_checkpoint *c, const char *linear,
                       const char *rest) {
    static const char *const kind[] = {"embedding", "head", "norm", "attention", "mlp"};
    const json_t *modules = json_object_get(v, "modules");
    uint64_t total = 0, bytes = 0, layer = 0, unused = 0;
    size_t n_skipped = 0;
    for (size_t k = 0; k < 5; k++) {
        sums s = {0};
        const char *format = k < 3 ? rest : linear;
        for (size_t i = 0; i < c->n_tensors; i++) {
            const kld_tensor *t = &c->tensors[i];
            if (!skipped(t->name) && !strcmp(module_of(t->name), kind[k])) add_tensor(&s, t);
        }
        if (!equal_sums(modules, kind[k], format, s)) fail_msg("%s %s", kind[k], format);
        assert_true(json_object_size(json_object_get(modules, kind[k])) <= 1);
        total += s.parameters;
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        const kld_tensor *t = &c->tensors[i];
        bytes += t->bytes;
        n_skipped += skipped(t->name);
        if (skipped(t->name)) unused += t->bytes;
        if (strstr(t->name, "layers.0.") && !skipped(t->name) && !of_activations(t->name))
            layer += t->bytes;
    }
    assert_int_equal(u64(v, "parameters"), total);
    assert_int_equal(u64(v, "bytes"), bytes);
    assert_int_equal(u64(v, "tensors"), c->n_tensors);
    assert_int_equal(u64(v, "shards"), c->n_shards);
    assert_int_equal(u64(v, "skipped_tensors"), n_skipped);
    const json_t *plan = json_object_get(v, "plan"), *read = json_object_get(v, "read");
    assert_int_equal(u64(plan, "tokens"), 300);
    assert_int_equal(u64(plan, "residual_bytes"), 300 * u64(v, "hidden") * 4);
    assert_int_equal(u64(plan, "largest_layer_stored"), layer); /* all layers are alike */
    assert_true(u64(plan, "total_bytes") >=
                u64(plan, "residual_bytes") + u64(plan, "scratch_bytes") + layer);
    assert_int_equal(u64(read, "bytes"), bytes - unused);
    assert_true(real(read, "seconds") == (double)(bytes - unused) / 1000);
    assert_int_equal(u64(v, "active_parameters"), total); /* no experts here */
    assert_true(json_is_null(json_object_get(v, "experts")));
    assert_true(json_is_null(json_object_get(v, "latent")));
    assert_int_equal(json_array_size(json_object_get(v, "attention")), 1);
}

static void check_config(const json_t *v, const char *dir) {
    static const char *const keys[][2] = {
        {"layers", "num_hidden_layers"},       {"hidden", "hidden_size"},
        {"heads", "num_attention_heads"},      {"kv_heads", "num_key_value_heads"},
        {"intermediate", "intermediate_size"}, {"vocab", "vocab_size"}};
    json_t *config = config_of(dir);
    const json_t *c = json_object_get(config, "text_config");
    if (!c) c = config;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_int_equal(u64(v, keys[i][0]), u64(c, keys[i][1]));
    const json_t *dim = json_object_get(c, "head_dim");
    assert_int_equal(u64(v, "head_dim"), json_is_integer(dim) ? (uint64_t)json_integer_value(dim)
                                                              : u64(v, "hidden") / u64(v, "heads"));
    json_decref(config);
}

static const struct {
    const char *name, *family, *label, *linear, *rest;
} MODELS[] = {
    {"llama", "llama", "BF16", "BF16", "BF16"},
    {"llama-old", "llama", "BF16", "BF16", "BF16"}, /* two shards, biases */
    {"qwen2", "qwen2", "BF16", "BF16", "BF16"},     /* tied */
    {"qwen3-nested", "qwen3", "F32", "F32", "F32"}, /* T23: vision tower and MTP beside it */
    {"qwen3-nvfp4-modelopt", "qwen3", "NVFP4", "NVFP4", "BF16"},
    {"qwen3-nvfp4-ct", "qwen3", "NVFP4", "NVFP4", "BF16"},
    {"qwen3-mxfp4-ct", "qwen3", "MXFP4", "MXFP4", "BF16"},
    {"qwen3-fp8-tensor", "qwen3", "FP8 (per tensor)", "FP8 (per tensor)", "BF16"},
    {"qwen3-fp8-ct-channel", "qwen3", "FP8 (per channel)", "FP8 (per channel)", "BF16"},
};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

static void checkpoints(void **state) {
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        char dir[256], hex[KLD_SHA256_HEX];
        kld_checkpoint c;
        kld_err e = {0};
        snprintf(dir, sizeof dir, "tests/golden/models/%s", MODELS[i].name);
        if (kld_checkpoint_open(&c, dir, &e) != KLD_OK) fail_msg("%s", e.text);
        json_t *v = inspects(dir);
        assert_string_equal(str(v, "kind"), "checkpoint");
        assert_string_equal(str(v, "path"), dir);
        assert_string_equal(str(v, "family"), MODELS[i].family);
        assert_string_equal(str(v, "label"), MODELS[i].label);
        assert_string_equal(str(v, "digest"), kld_digest_hex(&c.digest, hex));
        assert_int_equal(json_is_true(json_object_get(v, "tied_head")),
                         !kld_checkpoint_find(&c, "lm_head.weight"));
        assert_int_equal(json_array_size(json_object_get(v, "warnings")), 0);
        check_sums(v, &c, MODELS[i].linear, MODELS[i].rest);
        check_config(v, dir);
        json_decref(v);
        kld_checkpoint_close(&c);
    }
}

/* What mixtures have beside that.  The numbers are those of the configs, worked out by hand. */
static const struct {
    const char *name;
    uint64_t layers, count, per_token, width, shared, idle; /* idle: parameters a token misses */
    uint64_t mtp, vision, indexer, kinds;
    const char *line;
} MIXTURES[] = {
    {"qwen3_moe-mixed", 1, 6, 2, 12, 0, 4 * 3 * 12 * 32, 0, 0, 0, 1,
     "  1 of 4 layers have 6 experts of 12, 2 a token\n"},
    {"glm_moe_dsa", 2, 6, 3, 12, 12, 2 * 3 * 3 * 12 * 32, 26, 0, 15, 1,
     "  an indexer chooses keys above 64 tokens: longer windows are refused\n"
     "  2 of 4 layers have 6 experts of 12, 3 a token, and a shared one of 12\n"},
    {"deepseek_v3", 1, 8, 3, 16, 16, 5 * 3 * 16 * 36, 26, 0, 0, 1,
     "  queries from a latent vector of 20, keys and values from one of 14 and 8 rotated columns\n"
     "  1 of 2 layers have 8 experts of 16, 3 a token out of 4 groups, and a shared one of 16\n"},
    {"kimi_k25", 1, 7, 3, 16, 16, 4 * 3 * 16 * 40, 0, 3, 0, 1,
     "  attention of 2 layers: all tokens, 3 query and 3 key heads of 18 (8 rotated), values of "
     "12\n"},
    {"mimo_v2", 2, 6, 3, 16, 0, 2 * 3 * 3 * 16 * 32, 3, 0, 0, 2,
     "  attention of 2 layers: all tokens, 4 query and 2 key heads of 24 (8 rotated), values of "
     "16\n  attention of 1 layer: the last 8 tokens, 4 query and 4 key heads of 24 (8 rotated), "
     "values of 16\n"},
    /* biases of the experts are parameters too */
    {"gpt_oss-mxfp4", 2, 5, 3, 64, 0, 2 * 2 * (3 * 64 * 32 + 2 * 64 + 32), 0, 0, 0, 2,
     "  2 layers, hidden 32, 6 query and 2 key heads of 12, vocabulary 96, own head\n"}};

static char *lines_of(const json_t *v);
static void has_line(const char *text, const char *line);

static void mixtures(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof MIXTURES / sizeof *MIXTURES; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", MIXTURES[i].name);
        json_t *v = inspects(dir);
        const json_t *x = json_object_get(v, "experts"), *s = json_object_get(v, "skipped");
        assert_int_equal(u64(x, "layers"), MIXTURES[i].layers);
        assert_int_equal(u64(x, "count"), MIXTURES[i].count);
        assert_int_equal(u64(x, "per_token"), MIXTURES[i].per_token);
        assert_int_equal(u64(x, "intermediate"), MIXTURES[i].width);
        assert_int_equal(u64(x, "shared_intermediate"), MIXTURES[i].shared);
        assert_int_equal(u64(v, "parameters") - u64(v, "active_parameters"), MIXTURES[i].idle);
        assert_int_equal(u64(s, "mtp"), MIXTURES[i].mtp);
        assert_int_equal(u64(s, "vision"), MIXTURES[i].vision);
        assert_int_equal(u64(s, "indexer"), MIXTURES[i].indexer);
        assert_int_equal(u64(v, "skipped_tensors"),
                         MIXTURES[i].mtp + MIXTURES[i].vision + MIXTURES[i].indexer);
        assert_int_equal(json_array_size(json_object_get(v, "attention")), MIXTURES[i].kinds);
        uint64_t bytes = 0, parameters = 0;
        const char *kind, *format;
        json_t *by_format, *sum;
        json_object_foreach(json_object_get(v, "modules"), kind, by_format)
            json_object_foreach(by_format, format, sum) {
            bytes += u64(sum, "bytes");
            parameters += u64(sum, "parameters");
        }
        assert_int_equal(parameters, u64(v, "parameters"));
        assert_int_equal(bytes, u64(json_object_get(v, "read"), "bytes"));
        assert_true(u64(json_object_get(v, "plan"), "largest_group") > 0);
        char *t = lines_of(v);
        has_line(t, MIXTURES[i].line);
        assert_non_null(strstr(t, " active)"));
        kld_free(t);
        json_decref(v);
    }
}

/* ---- captures ---- */

static void captures(void **state) {
    char *ref = t_path(*state, "ref.zst"), *cand = t_path(*state, "cand.zst");
    write_capture(ref, 3, 5, 100, 12, 1, NULL);
    write_capture(cand, 3, 5, 100, 12, 1.1, ref);
    for (int k = 0; k < 2; k++) {
        const char *path = k ? cand : ref;
        char hex[KLD_SHA256_HEX];
        kld_capture *c, *r;
        struct stat sb;
        kld_err e = {0};
        json_t *v = inspects(path);
        assert_int_equal(kld_capture_open(&c, path, &e), KLD_OK);
        assert_int_equal(kld_capture_open(&r, ref, &e), KLD_OK);
        const kld_capture_info *i = kld_capture_header(c);
        kld_digest d = kld_capture_digest(c), dr = kld_capture_digest(r);
        assert_int_equal(stat(path, &sb), 0);
        assert_string_equal(str(v, "kind"), "capture");
        assert_string_equal(str(v, "path"), path);
        assert_string_equal(str(v, "name"), "tiny");
        assert_string_equal(str(v, "time"), "2026-01-01T00:00:00Z");
        assert_string_equal(str(v, "digest"), kld_digest_hex(&d, hex));
        assert_string_equal(str(v, "model"), kld_digest_hex(&i->model, hex));
        assert_string_equal(str(v, "tokenizer"), kld_digest_hex(&i->tokenizer, hex));
        assert_string_equal(str(v, "suite"), kld_digest_hex(&i->suite, hex));
        assert_int_equal(u64(v, "windows"), 3);
        assert_int_equal(u64(v, "positions"), 15);
        assert_int_equal(u64(v, "vocab"), 100);
        assert_int_equal(u64(v, "vocab_rows"), 100);
        assert_int_equal(u64(v, "top_k"), 12);
        assert_int_equal(u64(v, "min_k"), 10);
        assert_int_equal(u64(v, "tail_samples"), k ? 0 : 16);
        assert_int_equal(u64(v, "seed"), 1);
        assert_true(real(v, "tail_mass") == 1e-3);
        assert_int_equal(u64(v, "bytes"), sb.st_size);
        assert_true(real(v, "bytes_per_position") == (double)sb.st_size / 15);
        assert_string_equal(str(json_object_get(v, "engine"), "arithmetic"), "test");
        const json_t *about = json_object_get(v, "reference");
        if (k) assert_string_equal(str(about, "digest"), kld_digest_hex(&dr, hex));
        else assert_true(json_is_null(about));
        json_decref(v);
        kld_capture_close(c);
        kld_capture_close(r);
    }
    free(ref);
    free(cand);
}

/* Fields that could be taken for each other have values of their own. */
static void digests(void **state) {
    char *path = t_path(*state, "d.zst"), hex[KLD_SHA256_HEX];
    kld_capture_info i = make_info(1, 2, 50, 12, 16);
    kld_capture_writer *w;
    kld_err e = {0};
    memset(&i.model, 0x11, sizeof i.model);
    memset(&i.tokenizer, 0x22, sizeof i.model);
    memset(&i.suite, 0x33, sizeof i.model);
    i.vocab_rows = 64, i.seed = 99;
    assert_int_equal(kld_strdup(&i.host, "node", &e), KLD_OK);
    assert_int_equal(kld_strdup(&i.label, "NVFP4", &e), KLD_OK);
    assert_int_equal(kld_strdup(&i.family, "llama", &e), KLD_OK);
    i.quant = json_pack("{s:{s:i}}", "mlp", "NVFP4", 3);
    assert_int_equal(kld_capture_create(&w, path, &i, &e), KLD_OK);
    assert_int_equal(write_from(w, 0, 1, 2, 50, 12, 1, NULL, &e), KLD_OK);
    assert_int_equal(kld_capture_finish(w, &e), KLD_OK);
    json_t *v = inspects(path);
    assert_string_equal(str(v, "model"), kld_digest_hex(&i.model, hex));
    assert_string_equal(str(v, "tokenizer"), kld_digest_hex(&i.tokenizer, hex));
    assert_string_equal(str(v, "suite"), kld_digest_hex(&i.suite, hex));
    assert_string_equal(str(v, "label"), "NVFP4");
    assert_string_equal(str(v, "family"), "llama");
    assert_string_equal(str(v, "host"), "node");
    assert_int_equal(u64(v, "vocab"), 50);
    assert_int_equal(u64(v, "vocab_rows"), 64);
    assert_int_equal(u64(v, "seed"), 99);
    assert_true(json_equal(json_object_get(v, "quant"), i.quant));
    json_decref(v);
    kld_capture_info_free(&i);
    free(path);
}

static void refused(const char *path, kld_status want, const char *text) {
    json_t *v;
    kld_err e = {0};
    kld_status st = kld_inspect(path, &OPTIONS, &v, &e);
    if (st != want || !strstr(e.text, text))
        fail_msg("expected status %d and '%s', got %d: %s", want, text, st, e.text);
    assert_null(v);
}

static void errors(void **state) {
    char *text = t_path(*state, "text"), *odd = t_path(*state, "odd\xff.zst");
    put_file(*state, "text", "hello, world, this is no capture", 32);
    refused(text, KLD_E_INPUT, text);
    refused(*state, KLD_E_INPUT, "no config.json");
    refused("/nonexistent/x", KLD_E_INPUT, "/nonexistent/x");
    write_capture(odd, 1, 2, 50, 12, 1, NULL);
    refused(odd, KLD_E_INPUT, "not valid UTF-8");
    refused("tests/golden/models/llama/model.safetensors", KLD_E_INPUT, "give the directory");
    refused("tests/golden/models/llama/config.json", KLD_E_INPUT, "give the directory");
    assert_int_equal(unlink(odd), 0);
    free(text);
    free(odd);
}

/* ---- text ---- */

static char *lines_of(const json_t *v) {
    kld_buf b = {0};
    kld_err e = {0};
    if (kld_inspect_text(v, &b, &e) != KLD_OK) fail_msg("%s", e.text);
    return (char *)b.data; /* kld_free */
}

static void has_line(const char *text, const char *line) {
    const char *p = strstr(text, line);
    if (!p || (p != text && p[-1] != '\n')) fail_msg("no line\n%s\nin\n%s", line, text);
}

static void text_of_checkpoint(void **state) {
    (void)state;
    json_t *v = inspects("tests/golden/models/qwen3-nested");
    char *t = lines_of(v), line[512];
    snprintf(line, sizeof line,
             "tests/golden/models/qwen3-nested: qwen3, F32, %.2f k parameters, %.2f KiB in 1 "
             "shard\n  2 layers, hidden 32, 4 query and 2 key heads of 24, MLP 48, vocabulary 128, "
             "%s head\n  2 tensors are not part of the text model and are skipped (multi-token "
             "prediction 1, "
             "vision 1), 156 B\n",
             (double)u64(v, "parameters") / 1e3, (double)u64(v, "bytes") / 1024,
             json_is_true(json_object_get(v, "tied_head")) ? "tied" : "own");
    has_line(t, line);
    has_line(t,
             "  embedding     F32                         1       4.10 k    16.00 KiB    32.00\n");
    snprintf(line, sizeof line, "  digest %s\n", str(v, "digest"));
    has_line(t, line);
    assert_null(strstr(t, "warning"));
    kld_free(t);
    (void)json_array_append_new(json_object_get(v, "warnings"), json_string("be careful"));
    (void)json_object_set_new(v, "skipped_tensors", json_integer(0));
    t = lines_of(v);
    has_line(t, "  warning: be careful\n");
    assert_null(strstr(t, "skipped"));
    kld_free(t);
    json_decref(v);
}

static void text_of_capture(void **state) {
    char *ref = t_path(*state, "r.zst"), *cand = t_path(*state, "c.zst"), line[256];
    write_capture(ref, 2, 4, 100, 12, 1, NULL);
    write_capture(cand, 2, 4, 100, 12, 1.1, ref);
    json_t *v = inspects(cand), *r = inspects(ref);
    char *t = lines_of(v);
    has_line(t, "  lists of 10 to 12 ids until 0.001 of the mass is left, 0 draws from the rest; "
                "100 of 100 rows of the head\n");
    snprintf(line, sizeof line, "  2 windows, 8 positions, %.2f KiB, %.0f B a position\n",
             (double)u64(v, "bytes") / 1024, (double)u64(v, "bytes") / 8);
    has_line(t, line);
    snprintf(line, sizeof line, "  candidate of reference , content %.12s\n", str(r, "digest"));
    has_line(t, line);
    assert_non_null(strstr(t, "made 2026-01-01T00:00:00Z on "));
    kld_free(t);
    t = lines_of(r);
    assert_null(strstr(t, "candidate"));
    kld_free(t);
    json_decref(v);
    json_decref(r);
    free(ref);
    free(cand);
}

static void units(void **state) {
    (void)state;
    static const struct {
        double v;
        const char *text;
    } sizes[] = {{0, ", 0 B in"},           {1023, ", 1023 B in"},       {1024, ", 1.00 KiB in"},
                 {1536, ", 1.50 KiB in"},   {1048576, ", 1.00 MiB in"},  {643e9, ", 598.84 GiB in"},
                 {0x1p40, ", 1.00 TiB in"}, {0x1p52, ", 4096.00 TiB in"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        json_t *v =
            json_pack("{s:s, s:I, s:i, s:I}", "kind", "checkpoint", "bytes", (json_int_t)sizes[i].v,
                      "shards", 2, "parameters", (json_int_t)8030261248);
        char *t = lines_of(v);
        if (!strstr(t, sizes[i].text) || !strstr(t, "in 2 shards\n") ||
            !strstr(t, ", 8.03 G parameters,"))
            fail_msg("%s: %s", sizes[i].text, t);
        kld_free(t);
        json_decref(v);
    }
}

/* Every allocation fails once. */
static void no_memory(void **state) {
    char *ref = t_path(*state, "m.zst");
    write_capture(ref, 2, 4, 100, 12, 1, NULL);
    const char *const path[] = {"tests/golden/models/qwen3-nvfp4-modelopt", ref};
    for (size_t k = 0; k < 2; k++) {
        size_t n = 1;
        for (kld_status st = KLD_E_NOMEM; st != KLD_OK; n++) {
            json_t *v;
            kld_buf b = {0};
            kld_err e = {0};
            kld_mem_fail_after(n);
            st = kld_inspect(path[k], &OPTIONS, &v, &e);
            if (st == KLD_OK) st = kld_inspect_text(v, &b, &e);
            kld_mem_fail_after(0);
            if (st != KLD_OK && st != KLD_E_NOMEM) fail_msg("%zu: %s", n, e.text);
            kld_buf_free(&b);
            json_decref(v);
        }
        assert_true(n > 50);
    }
    free(ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints),     cmocka_unit_test(mixtures),
        cmocka_unit_test(captures),        cmocka_unit_test(digests),
        cmocka_unit_test(errors),          cmocka_unit_test(text_of_checkpoint),
        cmocka_unit_test(text_of_capture), cmocka_unit_test(units),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, t_dir_make, t_dir_remove);
}
