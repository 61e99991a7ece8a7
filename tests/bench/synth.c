/* Checkpoints of true shapes with random weights, and suites of random ids, for timing.
 *   synth SIZE FORMAT DIR [LAYERS]        SIZE: 1b 8b 70b 30b-a3b   FORMAT: bf16 nvfp4 mxfp4
 *   synth suite VOCAB WINDOWS LENGTH FILE
 * Values are taken at varying places of a few MiB of good random ones: plausible, finite, and as
 * fast as the disk. */
#include "datasets/suite.h"
#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "kld/base/mem.h"
#include "kld/capture/quantize_config.h"
#include "loaders/numfmt.h"
#include "loaders/safetensors_write.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TENSORS = 32768, POOL = 8 << 20, PIECE = 4 << 20, NAME = 96 };
#define SHARD_BYTES ((uint64_t)5 << 30)

typedef enum kind { WEIGHT, NORM, CODES, E4M3, E8M0, GLOBAL, BIAS, KINDS } kind;

typedef struct shape {
    const char *name, *family;
    size_t hidden, intermediate, layers, heads, kv, dim, vocab;
    bool tied, qk_norm;
    /* Latent attention and experts: DeepSeek's tensors.  heads of nope + rope and `dim` values. */
    size_t q_lora, kv_lora, nope, rope, experts, chosen, width;
} shape;

static const shape shapes[] = {
    {"1b", "Qwen3ForCausalLM", 1024, 3072, 28, 16, 8, 128, 151936, true, true, 0, 0, 0, 0, 0, 0, 0},
    {"8b", "Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 128, 151936, false, true, 0, 0, 0, 0, 0, 0,
     0},
    {"70b", "LlamaForCausalLM", 8192, 28672, 80, 64, 8, 128, 128256, false, false, 0, 0, 0, 0, 0, 0,
     0},
    /* GLM-4.7-Flash */
    {"30b-a3b", "Glm4MoeLiteForCausalLM", 2048, 10240, 47, 20, 20, 256, 154880, false, false, 768,
     512, 192, 64, 64, 4, 1536},
};

typedef struct plan {
    const shape *s;
    int bits, block; /* of linear layers: 16, or 4 with a scale a block */
    size_t n;
    kld_tensor t[MAX_TENSORS];
    kind kind[MAX_TENSORS];
    char name[MAX_TENSORS][NAME];
    size_t shard[MAX_TENSORS];
} plan;

static unsigned char *pool[KINDS];

static void die(const char *what, const kld_err *err) {
    fprintf(stderr, "synth: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
    exit(1);
}

static void need(kld_status st, const kld_err *err) {
    if (st != KLD_OK) die("failed", err);
}

static uint64_t next(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void fill_pools(void) {
    uint64_t s = 0x9E3779B97F4A7C15u;
    for (int k = 0; k < KINDS; k++) {
        pool[k] = malloc(POOL + PIECE);
        if (!pool[k]) die("out of memory", NULL);
        for (size_t i = 0; i < POOL + PIECE; i += 2) {
            uint64_t r = next(&s);
            double u = 0; /* four uniforms: a deviation of 0.577, close to normal */
            for (int j = 0; j < 4; j++) u += (double)(r >> 16 * j & 65535) / 65536.0 - 0.5;
            uint16_t v = kld_f32_to_bf16((float)(k == NORM ? 1 + 0.1 * u : 0.035 * u));
            if (k == CODES) v = (uint16_t)r;
            if (k == E4M3)
                v = (uint16_t)((0x38 | (r & 3)) << 8 | 0x38 | (r >> 2 & 3)); /* 1 .. 1.4 */
            if (k == E8M0) v = (uint16_t)((120 + (r & 1)) << 8 | (120 + (r >> 1 & 1))); /* 2^-7 */
            memcpy(pool[k] + i, &v, 2);
        }
    }
    float global = 0.008f; /* codes have a deviation near 3: weights one near 0.025 */
    memcpy(pool[GLOBAL], &global, 4);
    memset(pool[BIAS], 0, POOL + PIECE);
}

static void add(plan *p, kind k, kld_dtype type, size_t rows, size_t cols, const char *name) {
    if (p->n == MAX_TENSORS) die("too many tensors", NULL);
    kld_tensor *t = &p->t[p->n];
    snprintf(p->name[p->n], NAME, "%s", name);
    *t = (kld_tensor){.name = p->name[p->n], .dtype = type};
    t->rank = k == GLOBAL ? 0 : cols ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    p->kind[p->n++] = k;
}

static void linear(plan *p, size_t layer, const char *part, size_t rows, size_t cols) {
    char base[64], name[NAME];
    snprintf(base, sizeof base, "model.layers.%zu.%s", layer, part);
    if (p->bits == 16) {
        snprintf(name, sizeof name, "%s.weight", base);
        add(p, WEIGHT, KLD_BF16, rows, cols, name);
        return;
    }
    bool nv = p->block == 16;
    snprintf(name, sizeof name, nv ? "%s.weight" : "%s.weight_packed", base);
    add(p, CODES, KLD_U8, rows, cols / 2, name);
    snprintf(name, sizeof name, "%s.weight_scale", base);
    add(p, nv ? E4M3 : E8M0, nv ? KLD_F8_E4M3 : KLD_U8, rows, cols / (size_t)p->block, name);
    if (!nv) return;
    snprintf(name, sizeof name, "%s.weight_scale_2", base);
    add(p, GLOBAL, KLD_F32, 1, 0, name);
}

static void norm(plan *p, size_t layer, const char *part, size_t n) {
    char name[NAME];
    snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, part);
    add(p, NORM, KLD_BF16, n, 0, name);
}

static void mlp(plan *p, size_t l, const char *at, size_t width) {
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    for (size_t i = 0; i < 3; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "%.40s.%s", at, part[i]);
        linear(p, l, name, i < 2 ? width : p->s->hidden, i < 2 ? p->s->hidden : width);
    }
}

static void mixture(plan *p, size_t l) {
    char name[NAME];
    snprintf(name, sizeof name, "model.layers.%zu.mlp.gate.weight", l);
    add(p, WEIGHT, KLD_BF16, p->s->experts, p->s->hidden, name);
    snprintf(name, sizeof name, "model.layers.%zu.mlp.gate.e_score_correction_bias", l);
    add(p, BIAS, KLD_F32, p->s->experts, 0, name);
    for (size_t e = 0; e < p->s->experts; e++) {
        snprintf(name, sizeof name, "mlp.experts.%zu", e);
        mlp(p, l, name, p->s->width);
    }
    mlp(p, l, "mlp.shared_experts", p->s->width);
}

static void latent_attention(plan *p, size_t l) {
    const shape *s = p->s;
    norm(p, l, "self_attn.q_a_layernorm", s->q_lora);
    norm(p, l, "self_attn.kv_a_layernorm", s->kv_lora);
    linear(p, l, "self_attn.q_a_proj", s->q_lora, s->hidden);
    linear(p, l, "self_attn.q_b_proj", s->heads * (s->nope + s->rope), s->q_lora);
    linear(p, l, "self_attn.kv_a_proj_with_mqa", s->kv_lora + s->rope, s->hidden);
    linear(p, l, "self_attn.kv_b_proj", s->heads * (s->nope + s->dim), s->kv_lora);
    linear(p, l, "self_attn.o_proj", s->hidden, s->heads * s->dim);
}

static void tensors(plan *p, size_t layers) {
    const shape *s = p->s;
    size_t q = s->heads * s->dim, kv = s->kv * s->dim;
    add(p, WEIGHT, KLD_BF16, s->vocab, s->hidden, "model.embed_tokens.weight");
    for (size_t l = 0; l < layers; l++) {
        norm(p, l, "input_layernorm", s->hidden);
        norm(p, l, "post_attention_layernorm", s->hidden);
        if (s->experts) {
            latent_attention(p, l);
            if (l) mixture(p, l);
            else mlp(p, l, "mlp", s->intermediate);
            continue;
        }
        if (s->qk_norm) norm(p, l, "self_attn.q_norm", s->dim);
        if (s->qk_norm) norm(p, l, "self_attn.k_norm", s->dim);
        linear(p, l, "self_attn.q_proj", q, s->hidden);
        linear(p, l, "self_attn.k_proj", kv, s->hidden);
        linear(p, l, "self_attn.v_proj", kv, s->hidden);
        linear(p, l, "self_attn.o_proj", s->hidden, q);
        mlp(p, l, "mlp", s->intermediate);
    }
    add(p, NORM, KLD_BF16, s->hidden, 0, "model.norm.weight");
    if (!s->tied) add(p, WEIGHT, KLD_BF16, s->vocab, s->hidden, "lm_head.weight");
}

static void write_at(int fd, const void *data, size_t n, uint64_t at) {
    const unsigned char *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k <= 0) die("the disk does not take it", NULL);
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
}

static void write_shard(const plan *p, const char *path, size_t shard) {
    static kld_tensor t[MAX_TENSORS];
    size_t n = 0;
    kld_buf head = {0};
    kld_err err = {0};
    for (size_t i = 0; i < p->n; i++)
        if (p->shard[i] == shard) t[n++] = p->t[i];
    need(kld_safetensors_layout(t, n, NULL, &head, &err), &err);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0) die("cannot create a shard", NULL);
    write_at(fd, head.data, head.len, 0);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *from = pool[p->kind[(t[i].name - p->name[0]) / NAME]];
        size_t pieces = (size_t)((t[i].bytes + PIECE - 1) / PIECE);
#pragma omp parallel for schedule(dynamic)
        for (size_t k = 0; k < pieces; k++) {
            uint64_t at = (uint64_t)k * PIECE, left = t[i].bytes - at;
            /* Whole pairs of values; a short tensor begins at the pool's start. */
            size_t place = pieces > 1 ? (k * 1000003 + i * 7919) % (POOL / 2) * 2 : 0;
            write_at(fd, from + place, left < PIECE ? (size_t)left : PIECE,
                     head.len + t[i].offset + at);
        }
    }
    close(fd);
    kld_buf_free(&head);
}

static void write_config(const plan *p, const char *dir, size_t layers) {
    const shape *s = p->s;
    char path[512];
    kld_err err = {0};
    json_t *c = json_pack(
        "{s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:s, s:s}", "architectures",
        s->family, "hidden_size", (json_int_t)s->hidden, "intermediate_size",
        (json_int_t)s->intermediate, "num_hidden_layers", (json_int_t)layers, "num_attention_heads",
        (json_int_t)s->heads, "num_key_value_heads", (json_int_t)s->kv, "head_dim",
        (json_int_t)s->dim, "vocab_size", (json_int_t)s->vocab, "rms_norm_eps", 1e-6, "rope_theta",
        1e6, "tie_word_embeddings", (int)s->tied, "hidden_act", "silu", "torch_dtype", "bfloat16");
    if (!c) die("out of memory", NULL);
    if (s->experts) {
        json_t *more = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:f, s:b}", "q_lora_rank",
            (json_int_t)s->q_lora, "kv_lora_rank", (json_int_t)s->kv_lora, "qk_nope_head_dim",
            (json_int_t)s->nope, "qk_rope_head_dim", (json_int_t)s->rope, "v_head_dim",
            (json_int_t)s->dim, "n_routed_experts", (json_int_t)s->experts, "num_experts_per_tok",
            (json_int_t)s->chosen, "moe_intermediate_size", (json_int_t)s->width,
            "n_shared_experts", 1, "n_group", 1, "topk_group", 1, "first_k_dense_replace", 1,
            "routed_scaling_factor", 1.8, "norm_topk_prob", 1);
        if (!more || json_object_update(c, more) != 0) die("out of memory", NULL);
        json_decref(more);
    }
    if (p->bits == 16) {
        kld_buf b = {0};
        snprintf(path, sizeof path, "%s/config.json", dir);
        need(kld_json_dump(c, true, &b, &err), &err);
        FILE *f = fopen(path, "w");
        if (!f || fwrite(b.data, 1, b.len, f) != b.len || fclose(f)) die("config.json", NULL);
        kld_buf_free(&b);
    } else {
        static kld_layer one;
        static const kld_tensor router = {.name = "model.layers.1.mlp.gate.weight"};
        kld_model source = {.ckpt = {.config = c}, .layer = &one, .config = {.layers = 1}};
        if (s->experts)
            one.slot[KLD_SLOT_ROUTER].data = &router; /* a name for the list of what
                                                         is not quantized */
        kld_target_format f = p->block == 16 ? KLD_TARGET_NVFP4_MODELOPT : KLD_TARGET_MXFP4_CT;
        need(kld_quantize_write_config(dir, &source, f, &err), &err);
    }
    json_decref(c);
}

static void checkpoint(const shape *s, const char *format, const char *dir, size_t layers) {
    static plan p;
    kld_err err = {0};
    char path[512], file[64];
    p.s = s;
    p.bits = strcmp(format, "bf16") ? 4 : 16;
    p.block = strcmp(format, "nvfp4") ? 32 : 16;
    fill_pools();
    tensors(&p, layers);
    uint64_t total = 0, in_shard = 0;
    size_t shards = 1;
    for (size_t i = 0; i < p.n; i++) {
        kld_tensor one = p.t[i];
        kld_buf b = {0};
        need(kld_safetensors_layout(&one, 1, NULL, &b, &err), &err);
        kld_buf_free(&b);
        if (in_shard && in_shard + one.bytes > SHARD_BYTES) {
            shards++;
            in_shard = 0;
        }
        p.shard[i] = shards - 1;
        in_shard += one.bytes;
        total += one.bytes;
    }
    json_t *map = json_object();
    for (size_t i = 0; i < p.n; i++) {
        snprintf(file, sizeof file, "model-%05zu-of-%05zu.safetensors", p.shard[i] + 1, shards);
        if (json_object_set_new(map, p.name[i], json_string(file)) != 0) die("out of memory", NULL);
    }
    for (size_t i = 0; i < shards; i++) {
        snprintf(path, sizeof path, "%s/model-%05zu-of-%05zu.safetensors", dir, i + 1, shards);
        write_shard(&p, path, i);
    }
    need(kld_quantize_write_index(dir, map, total, &err), &err);
    json_decref(map);
    write_config(&p, dir, layers);
    printf("%s: %s %s, %zu layers, %zu tensors, %.2f GB\n", dir, s->name, format, layers, p.n,
           (double)total / 1e9);
}

static void suite(size_t vocab, size_t windows, size_t length, const char *file) {
    kld_suite s = {.n_windows = windows, .vocab = vocab, .window = length, .stride = length};
    uint64_t seed = 88172645463325252u;
    kld_err err = {0};
    const char *none = "", *bos = "none";
    s.bos = bos;
    s.windows = calloc(windows, sizeof *s.windows);
    uint32_t *ids = calloc(windows * length, sizeof *ids);
    char *names = calloc(windows, 24);
    if (!s.windows || !ids || !names) die("out of memory", NULL);
    for (size_t w = 0; w < windows; w++) {
        kld_window *x = &s.windows[w];
        snprintf(names + 24 * w, 24, "%zu", w);
        *x = (kld_window){.ids = ids + w * length, .n = length, .source = "random"};
        x->cluster = names + 24 * w;
        x->stratum = x->partition = none;
        for (size_t i = 0; i < length; i++) x->ids[i] = (uint32_t)((next(&seed) >> 20) % vocab);
    }
    need(kld_suite_save(&s, file, &err), &err);
    free(s.windows);
    free(ids);
    free(names);
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "suite")) {
        suite(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10),
              argv[5]);
        return 0;
    }
    kld_err err = {0};
    for (size_t i = 0; argc >= 4 && i < sizeof shapes / sizeof *shapes; i++) {
        const char *f = argv[2];
        if (strcmp(argv[1], shapes[i].name) != 0) continue;
        if (strcmp(f, "bf16") && strcmp(f, "nvfp4") && strcmp(f, "mxfp4")) break;
        need(kld_mkdir(argv[3], &err), &err);
        checkpoint(&shapes[i], f, argv[3],
                   argc > 4 ? strtoul(argv[4], NULL, 10) : shapes[i].layers);
        return 0;
    }
    fprintf(stderr, "usage: synth 1b|8b|70b|30b-a3b bf16|nvfp4|mxfp4 DIR [LAYERS]\n"
                    "       synth suite VOCAB WINDOWS LENGTH FILE\n");
    return 2;
}
