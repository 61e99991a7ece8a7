#include "kld/capture/quantize_config.h"

#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/version.h"

#include <string.h>

static kld_status write_json(const char *dir, const char *name, const json_t *v, kld_err *err) {
    char *path;
    kld_buf b = {0};
    TRY(kld_path_join(&path, dir, name, err));
    kld_status st = kld_json_dump(v, true, &b, err);
    if (st == KLD_OK) st = kld_buf_adds(&b, "\n", err);
    if (st == KLD_OK) st = kld_file_write(path, b.data, b.len, err);
    kld_buf_free(&b);
    kld_free(path);
    return st;
}

/* Linear layers of the text model that stay as they are, in the patterns of each library: shell
 * wildcards, or a regular expression.  Name and pattern end where the module's name does, for
 * mlp.gate_proj is quantized and mlp.gate is not. */
static json_t *ignored(const kld_model *m, bool modelopt) {
    json_t *list = json_pack("[s]", "lm_head");
    kld_buf b = {0};
    const kld_tensor *router = NULL;
    for (size_t l = 0; l < m->config.layers && !router; l++)
        router = m->layer[l].slot[KLD_SLOT_ROUTER].data;
    /* ...layers.3.mlp.gate.weight */
    const char *end = router ? strrchr(router->name, '.') : NULL, *name = end;
    for (int dots = 0; name && name > router->name && dots < 2; dots += *name == '.') name--;
    kld_status st = KLD_OK;
    if (name)
        st = kld_buf_addf(&b, NULL, modelopt ? "*%.*s" : "re:.*%.*s$", (int)(end - name), name);
    if (st == KLD_OK && name)
        st = json_array_append_new(list, json_string((char *)b.data)) ? KLD_E_NOMEM : KLD_OK;
    if (st == KLD_OK && m->skipped[KLD_SKIP_INDEXER])
        st = json_array_append_new(
                 list, json_string(modelopt ? "*.self_attn.indexer.*" : "re:.*self_attn.indexer"))
                 ? KLD_E_NOMEM
                 : KLD_OK;
    kld_buf_free(&b);
    if (st == KLD_OK) return list;
    json_decref(list);
    return NULL;
}

/* ModelOpt's form of a weight-only NVFP4 export. */
static json_t *modelopt_config(const kld_model *m) {
    return json_pack("{s:{s:{s:{s:b, s:i, s:s, s:i}, s:[s]}}, s:o, s:s, s:{s:s, s:s}, s:s}",
                     "config_groups", "group_0", "weights", "dynamic", 0, "num_bits", 4, "type",
                     "float", "group_size", 16, "targets", "Linear", "ignore", ignored(m, true),
                     "quant_algo", "W4A16_NVFP4", "producer", "name", "kld", "version",
                     kld_version(), "quant_method", "modelopt");
}

static json_t *modelopt_file(const kld_model *m) {
    return json_pack("{s:{s:s, s:s}, s:{s:s, s:n, s:i, s:o}}", "producer", "name", "kld", "version",
                     kld_version(), "quantization", "quant_algo", "W4A16_NVFP4",
                     "kv_cache_quant_algo", "group_size", 16, "exclude_modules", ignored(m, true));
}

/* compressed-tensors' form; activations stay in the model's dtype. */
static json_t *ct_config(const kld_model *m, bool nvfp4) {
    const char *format = nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
    return json_pack("{s:{s:{s:s, s:n, s:n, s:[s], s:{s:b, s:i, s:i, s:s, s:s, s:b, s:s}}}, s:s, "
                     "s:o, s:n, s:s, s:s}",
                     "config_groups", "group_0", "format", format, "input_activations",
                     "output_activations", "targets", "Linear", "weights", "dynamic", 0,
                     "group_size", nvfp4 ? 16 : 32, "num_bits", 4, "scale_dtype",
                     nvfp4 ? "torch.float8_e4m3fn" : "torch.uint8", "strategy",
                     nvfp4 ? "tensor_group" : "group", "symmetric", 1, "type", "float", "format",
                     format, "ignore", ignored(m, false), "kv_cache_scheme", "quant_method",
                     "compressed-tensors", "quantization_status", "compressed");
}

kld_status kld_quantize_write_config(const char *dir, const kld_model *source,
                                     kld_target_format format, kld_err *err) {
    bool modelopt = format == KLD_TARGET_NVFP4_MODELOPT;
    json_t *config = json_copy(source->ckpt.config);
    json_t *quant =
        modelopt ? modelopt_config(source) : ct_config(source, format == KLD_TARGET_NVFP4_CT);
    kld_status st = KLD_OK;
    if (!config || !quant || json_object_set(config, "quantization_config", quant) != 0)
        st = kld_fail(err, KLD_E_NOMEM, "out of memory for config.json");
    if (st == KLD_OK) st = write_json(dir, "config.json", config, err);
    json_decref(config);
    json_decref(quant);
    if (st != KLD_OK || !modelopt) return st;
    json_t *file = modelopt_file(source);
    st = file ? write_json(dir, "hf_quant_config.json", file, err)
              : kld_fail(err, KLD_E_NOMEM, "out of memory for hf_quant_config.json");
    json_decref(file);
    return st;
}

kld_status kld_quantize_write_index(const char *dir, json_t *weight_map, uint64_t total_bytes,
                                    kld_err *err) {
    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total_bytes,
                              "weight_map", weight_map);
    if (!index) return kld_fail(err, KLD_E_NOMEM, "out of memory for the index");
    kld_status st = write_json(dir, "model.safetensors.index.json", index, err);
    json_decref(index);
    return st;
}

static bool starts(const char *s, const char *head) { return strncmp(s, head, strlen(head)) == 0; }

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool is_companion(const char *name) {
    return starts(name, "tokenizer") || starts(name, "chat_template") || starts(name, "LICENSE") ||
           strcmp(name, "special_tokens_map.json") == 0 || strcmp(name, "added_tokens.json") == 0 ||
           strcmp(name, "generation_config.json") == 0 || strcmp(name, "vocab.json") == 0 ||
           strcmp(name, "merges.txt") == 0 || ends(name, ".py");
}

static kld_status copy_file(const char *dir, const char *source, const char *name, kld_err *err) {
    char *from = NULL, *to = NULL;
    kld_buf b = {0};
    kld_status st = kld_path_join(&from, source, name, err);
    if (st == KLD_OK && kld_path_is_dir(from)) goto done; /* LICENSES/ of the REUSE convention */
    if (st == KLD_OK) st = kld_path_join(&to, dir, name, err);
    if (st == KLD_OK) st = kld_file_slurp(from, 64 << 20, &b, err);
    if (st == KLD_OK) st = kld_file_write(to, b.data ? (void *)b.data : (void *)"", b.len, err);
done:
    kld_buf_free(&b);
    kld_free(from);
    kld_free(to);
    return st;
}

kld_status kld_quantize_copy_rest(const char *dir, const char *source, kld_err *err) {
    char **names;
    size_t n;
    TRY(kld_list_dir(source, &names, &n, err));
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n && st == KLD_OK; i++)
        if (is_companion(names[i])) st = copy_file(dir, source, names[i], err);
    kld_names_free(names, n);
    return st;
}
