/* Directories of shards: which files and tensors are read, and the hub cache. */
#include "tests/unit/loadkit.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "loaders/checkpoint.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char INDEX[] = "model.safetensors.index.json";

static void expect_fail(const char *dir, kld_status want, const char *text) {
    kld_checkpoint c;
    kld_err err = {0};
    assert_int_equal(kld_checkpoint_open(&c, dir, &err), want);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    if (strncmp(err.text, dir, strlen(dir))) fail_msg("'%s' has no path", err.text);
    assert_null(c.config);
}

static void open_ok(kld_checkpoint *c, const char *dir) {
    kld_err err = {0};
    if (kld_checkpoint_open(c, dir, &err) != KLD_OK) fail_msg("%s", err.text);
}

/* x and y in one shard, z in another; y is in both. */
static void two_shards(built *b, const char *index) {
    build_begin(b);
    build_text(b, "config.json", "{}");
    build_tensor(b, "x", "U8", "[4]", "abcd", 4, 0);
    build_tensor(b, "y", "U8", "[2]", "ef", 2, 0);
    build_write(b, "m-1.safetensors");
    build_tensor(b, "y", "U8", "[2]", "EF", 2, 0);
    build_tensor(b, "z", "U8", "[1]", "g", 1, 0);
    build_write(b, "m-2.safetensors");
    if (index) build_text(b, INDEX, index);
}

static void single(void **state) {
    (void)state;
    built b;
    build_begin(&b);
    expect_fail(b.dir, KLD_E_INPUT, "no config.json (it holds nothing); give the directory of");
    build_text(&b, "refs", "");
    expect_fail(b.dir, KLD_E_INPUT, "no config.json (it holds refs); give");
    build_text(&b, "blobs", "");
    expect_fail(b.dir, KLD_E_INPUT, "no config.json (it holds blobs, refs); give");
    build_text(&b, "snapshots", "");
    expect_fail(b.dir, KLD_E_INPUT, "no config.json (it holds blobs, refs, ...); give");
    build_text(&b, "config.json", "{");
    expect_fail(b.dir, KLD_E_INPUT, "not valid JSON at line 1");
    build_text(&b, "config.json", "[]");
    expect_fail(b.dir, KLD_E_INPUT, "is an array, not an object");
    build_text(&b, "config.json", "{\"a\":1,\"a\":2}");
    expect_fail(b.dir, KLD_E_INPUT, "duplicate");
    build_text(&b, "config.json", "{}");
    expect_fail(b.dir, KLD_E_INPUT, "no .safetensors file; incomplete download?");
    build_text(&b, "x.gguf", "GGUF");
    expect_fail(b.dir, KLD_E_INPUT, "it holds x.gguf, which kld does not read");
    build_tensor(&b, "w", "F32", "[2]", NULL, 8, 1);
    build_write(&b, "other.safetensors");
    kld_checkpoint c;
    open_ok(&c, b.dir);
    assert_int_equal(c.n_tensors, 1);
    assert_int_equal(c.total_bytes, 8);
    assert_null(c.generation);
    assert_null(c.hf_quant);
    kld_checkpoint_close(&c);
    build_text(&b, "more.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    expect_fail(b.dir, KLD_E_INPUT, "2 .safetensors files (first more.safetensors)");
    build_tensor(&b, "v", "F32", "[1]", NULL, 4, 1);
    build_write(&b, "model.safetensors");
    build_text(&b, "generation_config.json", "{\"top_k\":3}");
    build_text(&b, "hf_quant_config.json", "{}");
    open_ok(&c, b.dir);
    assert_non_null(kld_checkpoint_find(&c, "v"));
    assert_null(kld_checkpoint_find(&c, "w"));
    assert_non_null(c.generation);
    assert_non_null(c.hf_quant);
    kld_checkpoint_close(&c);
    build_text(&b, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    expect_fail(b.dir, KLD_E_INPUT, "git-lfs pointer");
    build_end(&b);
    expect_fail(b.dir, KLD_E_INPUT, "no such directory");
}

static void sharded(void **state) {
    (void)state;
    built b;
    two_shards(&b, "{\"metadata\":{},\"weight_map\":{\"x\":\"m-1.safetensors\","
                   "\"y\":\"m-2.safetensors\",\"z\":\"m-2.safetensors\"}}");
    kld_checkpoint c;
    open_ok(&c, b.dir);
    assert_int_equal(c.n_tensors, 3);
    assert_int_equal(c.n_shards, 2);
    assert_int_equal(c.n_superseded, 1);
    assert_int_equal(c.n_unmapped, 0);
    assert_int_equal(c.total_bytes, 7);
    const kld_tensor *y = kld_checkpoint_find(&c, "y");
    char got[3] = {0};
    assert_int_equal(kld_checkpoint_read(&c, y, 0, got, 2, NULL), KLD_OK);
    assert_string_equal(got, "EF"); /* the mapped copy, not the first or last */
    assert_int_equal(kld_checkpoint_read(&c, y, 1, got, 1, NULL), KLD_OK);
    assert_int_equal(got[0], 'F');
    assert_int_equal(kld_checkpoint_read(&c, y, 1, got, 2, NULL), KLD_E_INTERNAL);
    assert_int_equal(kld_checkpoint_read(&c, y, UINT64_MAX, got, 1, NULL), KLD_E_INTERNAL);
    for (size_t i = 1; i < c.n_tensors; i++)
        assert_true(strcmp(c.tensors[i - 1].name, c.tensors[i].name) < 0);
    kld_checkpoint_close(&c);
    build_end(&b);
}

/* T25: the same tensor twice is never "the last one wins". */
static void duplicates(void **state) {
    (void)state;
    built b;
    two_shards(&b, NULL);
    expect_fail(b.dir, KLD_E_INPUT, "2 .safetensors files");
    build_text(&b, INDEX,
               "{\"weight_map\":{\"x\":\"m-1.safetensors\",\"y\":\"m-1.safetensors\","
               "\"y\":\"m-2.safetensors\"}}");
    expect_fail(b.dir, KLD_E_INPUT, "duplicate");
    build_end(&b);
}

static void bad_index(void **state) {
    (void)state;
    static const struct {
        const char *index, *text;
    } all[] = {
        {"{}", "'weight_map': expected an object"},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":{\"x\":1}}", "weight_map 'x' is an integer"},
        {"{\"weight_map\":{\"x\":\"../m-1.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"a\\\\b\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"x\":\"m-3.safetensors\",\"y\":\"m-4.safetensors\"}}",
         "2 of the 2 files named by model.safetensors.index.json are missing: m-3.safetensors, "
         "m-4.safetensors; incomplete download or stale index?"},
        {"{\"weight_map\":{\"x\":\"m-2.safetensors\",\"z\":\"m-2.safetensors\"}}",
         "maps tensor 'x' to 'm-2.safetensors', which does not hold it"},
        {"{\"weight_map\":{\"q\":\"m-1.safetensors\"}}", "maps tensor 'q'"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        built b;
        two_shards(&b, all[i].index);
        expect_fail(b.dir, KLD_E_INPUT, all[i].text);
        build_end(&b);
    }
}

static void unmapped(void **state) {
    (void)state;
    built b;
    two_shards(&b, "{\"weight_map\":{\"x\":\"m-1.safetensors\"}}");
    kld_checkpoint c;
    open_ok(&c, b.dir);
    assert_int_equal(c.n_tensors, 1);
    assert_int_equal(c.n_unmapped, 1);
    kld_checkpoint_close(&c);
    build_end(&b);
}

/* ---- identity */

static kld_digest digest_of(const char *config, const char *name, const char *data,
                            kld_digest *full) {
    built b;
    build_begin(&b);
    build_text(&b, "config.json", config);
    build_tensor(&b, name, "U8", "[4]", data, 4, 0);
    build_write(&b, "model.safetensors");
    kld_checkpoint c;
    open_ok(&c, b.dir);
    kld_digest d = c.digest;
    assert_int_equal(kld_checkpoint_hash_full(&c, full, NULL), KLD_OK);
    kld_digest file;
    kld_buf bytes = {0};
    assert_int_equal(kld_file_slurp(c.shards[0].path, 1 << 24, &bytes, NULL), KLD_OK);
    assert_int_equal(kld_sha256_of(bytes.data, bytes.len, &file, NULL), KLD_OK);
    kld_buf_free(&bytes);
    assert_memory_equal(&file, full, sizeof file);
    kld_checkpoint_close(&c);
    build_end(&b);
    return d;
}

static void identity(void **state) {
    (void)state;
    kld_digest f[5];
    kld_digest a = digest_of("{}", "w", "abcd", &f[0]), again = digest_of("{}", "w", "abcd", &f[1]);
    kld_digest config = digest_of("{ }", "w", "abcd", &f[2]);
    kld_digest header = digest_of("{}", "v", "abcd", &f[3]);
    kld_digest data = digest_of("{}", "w", "abce", &f[4]);
    assert_memory_equal(&a, &again, sizeof a); /* not of the directory's name */
    assert_memory_not_equal(&a, &config, sizeof a);
    assert_memory_not_equal(&a, &header, sizeof a);
    assert_memory_equal(&a, &data, sizeof a); /* the data is the full hash's part */
    assert_memory_equal(&f[0], &f[2], sizeof a);
    assert_memory_not_equal(&f[0], &f[4], sizeof a);
}

/* ---- hub cache */

static void sub(const char *root, const char *path, bool make) {
    char p[512];
    snprintf(p, sizeof p, "%s/%s", root, path);
    if (make) assert_int_equal(mkdir(p, 0777), 0);
    else assert_int_equal(rmdir(p), 0);
}

static const char *const tree[] = {"huggingface",
                                   "huggingface/hub",
                                   "huggingface/hub/models--org--name",
                                   "huggingface/hub/models--org--name/blobs",
                                   "huggingface/hub/models--org--name/refs",
                                   "huggingface/hub/models--org--name/snapshots",
                                   "huggingface/hub/models--org--name/snapshots/c0ffee"};
enum { N_TREE = sizeof tree / sizeof *tree };

static void resolve(const char *model, const char *want) {
    char *dir;
    kld_err err = {0};
    if (kld_hub_resolve(model, &dir, &err) != KLD_OK) fail_msg("%s", err.text);
    assert_string_equal(dir, want);
    kld_free(dir);
}

static void resolve_fail(const char *model, const char *text) {
    char *dir;
    kld_err err = {0};
    assert_int_equal(kld_hub_resolve(model, &dir, &err), KLD_E_INPUT);
    assert_null(dir);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

static void clear_env(void) {
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void hub(void **state) {
    (void)state;
    built b;
    char at[256], snap[384];
    build_begin(&b);
    for (size_t i = 0; i < N_TREE; i++) sub(b.dir, tree[i], true);
    snprintf(snap, sizeof snap, "%s/%s", b.dir, tree[6]);
    put_file(b.dir, "huggingface/hub/models--org--name/refs/main", "c0ffee\n", 7);
    /* Snapshots hold symbolic links to blobs. */
    put_file(b.dir, "huggingface/hub/models--org--name/blobs/1", "{}", 2);
    snprintf(at, sizeof at, "%s/%s/config.json", b.dir, tree[6]);
    assert_int_equal(symlink("../../blobs/1", at), 0);

    clear_env();
    resolve_fail("org/name", "none of HF_HUB_CACHE, HF_HOME and HOME is set");
    setenv("XDG_CACHE_HOME", b.dir, 1);
    resolve("org/name", snap);
    resolve("org/name@c0ffee", snap);
    unsetenv("XDG_CACHE_HOME");
    snprintf(at, sizeof at, "%s/huggingface", b.dir);
    setenv("HF_HOME", at, 1);
    resolve("org/name", snap);
    setenv("HF_HUB_CACHE", "/nonexistent", 1); /* the more specific one wins */
    resolve_fail("org/name", "no snapshot of revision 'main' in /nonexistent/models--org--name; to "
                             "download it: hf download org/name");
    snprintf(at, sizeof at, "%s/huggingface/hub", b.dir);
    setenv("HF_HUB_CACHE", at, 1);
    resolve("org/name", snap);
    resolve(b.dir, b.dir);
    resolve_fail("org/name@dead", "hf download org/name --revision dead");
    resolve_fail("org/other", "hf download org/other");
    resolve_fail("a/b/c", "not of the form org/name");
    resolve_fail("../name", "not of the form org/name");
    resolve_fail("org/..", "not of the form org/name");
    resolve_fail("org/name@../x", "not of the form org/name");
    resolve_fail("", "the name of the model is empty");
    kld_checkpoint c;
    kld_err err = {0};
    assert_int_equal(kld_checkpoint_open(&c, snap, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "no .safetensors file")); /* the link was followed */
    put_file(b.dir, "huggingface/hub/models--org--name/refs/main", "../../x", 7);
    resolve_fail("org/name", "does not hold a commit id");

    snprintf(at, sizeof at, "%s/%s/config.json", b.dir, tree[6]);
    assert_int_equal(unlink(at), 0);
    snprintf(at, sizeof at, "%s/%s/1", b.dir, tree[3]);
    assert_int_equal(unlink(at), 0);
    snprintf(at, sizeof at, "%s/%s/main", b.dir, tree[4]);
    assert_int_equal(unlink(at), 0);
    for (size_t i = N_TREE; i-- > 0;) sub(b.dir, tree[i], false);
    build_end(&b);
    clear_env();
}

static void no_memory(void **state) {
    (void)state;
    built b;
    two_shards(&b, "{\"weight_map\":{\"x\":\"m-1.safetensors\",\"y\":\"m-2.safetensors\","
                   "\"z\":\"m-2.safetensors\"}}");
    build_text(&b, "hf_quant_config.json", "{\"quantization\":{}}");
    kld_status st = KLD_E_NOMEM;
    for (size_t k = 1; st != KLD_OK; k++) {
        kld_checkpoint c;
        kld_err err = {0};
        kld_mem_fail_after(k);
        st = kld_checkpoint_open(&c, b.dir, &err);
        kld_mem_fail_after(0);
        if (st == KLD_OK) kld_checkpoint_close(&c);
        else if (st != KLD_E_NOMEM) fail_msg("allocation %zu: %s", k, err.text);
        assert_true(k < 2000);
    }
    build_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(single),     cmocka_unit_test(sharded),
                                       cmocka_unit_test(duplicates), cmocka_unit_test(bad_index),
                                       cmocka_unit_test(unmapped),   cmocka_unit_test(identity),
                                       cmocka_unit_test(hub),        cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
