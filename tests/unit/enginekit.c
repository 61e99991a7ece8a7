#include "tests/unit/enginekit.h"

#include "kld/base/file.h"
#include "tests/unit/loadkit.h"

#include <math.h>
#include <stdlib.h>

void need(kld_status st, const kld_err *err, const char *what) {
    if (st != KLD_OK) fail_msg("%s: %s", what, err->text);
}

bool npy_load(npy *a, const char *path, const char *type) {
    memset(a, 0, sizeof *a);
    if (!kld_path_exists(path)) return false;
    kld_err err = {0};
    need(kld_file_slurp(path, (size_t)1 << 30, &a->bytes, &err), &err, path);
    const unsigned char *p = a->bytes.data;
    size_t head = p[8] | (size_t)p[9] << 8;
    const char *text = (const char *)p + 10;
    a->offset = 10 + head;
    char want[32];
    snprintf(want, sizeof want, "'descr': '%s'", type);
    if (!strstr(text, want) || !strstr(text, "'fortran_order': False"))
        fail_msg("%s: not the array expected: %s", path, text);
    const char *s = strchr(text, '(') + 1;
    while (*s && *s != ')') {
        char *end;
        a->dim[a->rank++] = strtoul(s, &end, 10);
        s = end + strspn(end, ", ");
    }
    return true;
}

const float *npy_f32(const npy *a) {
    return (const float *)(const void *)(a->bytes.data + a->offset);
}

int64_t npy_i64(const npy *a, size_t i) {
    int64_t v;
    memcpy(&v, a->bytes.data + a->offset + 8 * i, 8);
    return v;
}

static void keep(kld_buf *b, const void *p, size_t n) {
    if (n) assert_int_equal(kld_buf_add(b, p, n, NULL), KLD_OK);
}

static kld_status on_gather(void *ctx, size_t i, kld_gather *out, kld_err *err) {
    collected *c = ctx;
    (void)err;
    if (c->gather) *out = c->gather[i];
    return KLD_OK;
}

static kld_status on_records(void *ctx, size_t i, kld_records *r, kld_err *err) {
    collected *c = ctx;
    if (i == c->fail_at) return kld_fail(err, KLD_E_IO, "no room for window %zu", i);
    kld_buf *b = &c->records;
    size_t at = b->len;
    keep(&c->mark, &at, sizeof at);
    keep(b, &i, sizeof i);
    keep(b, &r->n, sizeof r->n);
    keep(b, &r->first, sizeof r->first);
    keep(b, r->count, r->n * sizeof *r->count);
    keep(b, r->ids, r->n * r->k_ld * sizeof *r->ids);
    keep(b, r->lp, r->n * r->k_ld * sizeof *r->lp);
    keep(b, r->label, r->n * sizeof *r->label);
    keep(b, r->label_lp, r->n * sizeof *r->label_lp);
    keep(b, r->lse, r->n * sizeof *r->lse);
    keep(b, r->entropy, r->n * sizeof *r->entropy);
    keep(b, r->tail_mass, r->n * sizeof *r->tail_mass);
    keep(b, r->tail_ids, r->n * r->m * sizeof *r->tail_ids);
    keep(b, r->tail_lp, r->n * r->m * sizeof *r->tail_lp);
    keep(b, r->ref_lp, r->n * r->ref_ld * sizeof *r->ref_lp);
    keep(b, r->ref_tail_lp, r->n * r->ref_m * sizeof *r->ref_tail_lp);
    c->n_windows++;
    return KLD_OK;
}

static kld_status on_logits(void *ctx, size_t i, size_t row0, size_t n, const float *logits,
                            kld_err *err) {
    collected *c = ctx;
    (void)i;
    (void)row0;
    (void)err;
    keep(&c->logits, logits, n * c->vocab * sizeof *logits);
    return KLD_OK;
}

kld_sink sink_of(collected *c) {
    kld_sink s = {.ctx = c, .gather = on_gather, .records = on_records};
    if (c->want_logits) s.logits = on_logits;
    return s;
}

void collected_free(collected *c) {
    kld_buf_free(&c->logits);
    kld_buf_free(&c->records);
    kld_buf_free(&c->mark);
    c->n_windows = 0;
}

double rnd(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) * 0x1p-53;
}

double rnd_normal(uint64_t *s) {
    double t = 0;
    for (int i = 0; i < 12; i++) t += rnd(s);
    return t - 6;
}

static void add(built *b, uint64_t *seed, double scale, double mean, const char *name, size_t rows,
                size_t cols) {
    size_t n = rows * (cols ? cols : 1);
    float *v = malloc(n * sizeof *v);
    char shape[64];
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = (float)(mean + scale * rnd_normal(seed));
    if (cols) snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else snprintf(shape, sizeof shape, "[%zu]", rows);
    build_tensor(b, name, "F32", shape, v, n * sizeof *v, 0);
    free(v);
}

enum { NAME = 96 };
static const char *named(char *buf, size_t layer, const char *part) {
    snprintf(buf, NAME, "model.layers.%zu.%s", layer, part);
    return buf;
}

static void add_mlp(built *b, uint64_t *seed, size_t layer, const char *at, size_t inner,
                    size_t hidden) {
    static const char *const part[] = {"gate", "up", "down"};
    for (size_t i = 0; i < 3; i++) {
        char name[60], s[NAME];
        snprintf(name, sizeof name, "%.40s.%s_proj.weight", at, part[i]);
        named(s, layer, name);
        add(b, seed, 0.2, 0, s, i < 2 ? inner : hidden, i < 2 ? hidden : inner);
    }
}

void tiny_write(tiny *t, uint64_t seed) {
    built b;
    char s[NAME], text[1600];
    size_t q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    build_begin(&b);
    add(&b, &seed, 1, 0, "model.embed_tokens.weight", t->vocab, t->hidden);
    add(&b, &seed, 0.1, 1, "model.norm.weight", t->hidden, 0);
    if (!t->tied) add(&b, &seed, 0.3, 0, "lm_head.weight", t->vocab, t->hidden);
    for (size_t i = 0; i < t->layers; i++) {
        add(&b, &seed, 0.1, 1, named(s, i, "input_layernorm.weight"), t->hidden, 0);
        add(&b, &seed, 0.1, 1, named(s, i, "post_attention_layernorm.weight"), t->hidden, 0);
        add(&b, &seed, 0.2, 0, named(s, i, "self_attn.q_proj.weight"), q, t->hidden);
        add(&b, &seed, 0.2, 0, named(s, i, "self_attn.k_proj.weight"), kv, t->hidden);
        add(&b, &seed, 0.2, 0, named(s, i, "self_attn.v_proj.weight"), kv, t->hidden);
        add(&b, &seed, 0.2, 0, named(s, i, "self_attn.o_proj.weight"), t->hidden, q);
        if (t->experts && i != 1) {
            add(&b, &seed, 0.5, 0, named(s, i, "mlp.gate.weight"), t->experts, t->hidden);
            for (size_t e = 0; e < t->experts; e++) {
                char at[40];
                snprintf(at, sizeof at, "mlp.experts.%zu", e);
                add_mlp(&b, &seed, i, at, t->expert_intermediate, t->hidden);
            }
        } else {
            add_mlp(&b, &seed, i, "mlp", t->intermediate, t->hidden);
        }
        if (t->qwen3) {
            add(&b, &seed, 0.1, 1, named(s, i, "self_attn.q_norm.weight"), t->head_dim, 0);
            add(&b, &seed, 0.1, 1, named(s, i, "self_attn.k_norm.weight"), t->head_dim, 0);
        }
        if (t->qwen2) {
            add(&b, &seed, 0.1, 0, named(s, i, "self_attn.q_proj.bias"), q, 0);
            add(&b, &seed, 0.1, 0, named(s, i, "self_attn.k_proj.bias"), kv, 0);
            add(&b, &seed, 0.1, 0, named(s, i, "self_attn.v_proj.bias"), kv, 0);
        }
    }
    build_write(&b, "model.safetensors");
    const char *arch = t->experts  ? "Qwen3Moe"
                       : t->qwen3  ? "Qwen3"
                       : t->qwen2  ? "Qwen2"
                       : t->window ? "Mistral"
                                   : "Llama";
    const char *type = t->experts  ? "qwen3_moe"
                       : t->qwen3  ? "qwen3"
                       : t->qwen2  ? "qwen2"
                       : t->window ? "mistral"
                                   : "llama";
    char window[400] = "";
    if (t->experts)
        snprintf(window, sizeof window,
                 "\"num_experts\": %zu, \"num_experts_per_tok\": %zu, "
                 "\"moe_intermediate_size\": %zu, \"norm_topk_prob\": true, "
                 "\"mlp_only_layers\": [1], ",
                 t->experts, t->chosen, t->expert_intermediate);
    if (t->window) snprintf(window, sizeof window, "\"sliding_window\": %zu, ", t->window);
    snprintf(text, sizeof text,
             "{\"architectures\": [\"%sForCausalLM\"], \"model_type\": \"%s\", %s"
             "\"hidden_size\": %zu, \"intermediate_size\": %zu, \"num_hidden_layers\": %zu, "
             "\"num_attention_heads\": %zu, \"num_key_value_heads\": %zu, \"head_dim\": %zu, "
             "\"vocab_size\": %zu, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, "
             "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": %s}",
             arch, type, window, t->hidden, t->intermediate, t->layers, t->heads, t->kv_heads,
             t->head_dim, t->vocab, t->tied ? "true" : "false");
    build_text(&b, "config.json", text);
    memcpy(t->dir, b.dir, sizeof t->dir);
    kld_buf_free(&b.header);
    kld_buf_free(&b.data);
}

void tiny_remove(const tiny *t) { assert_int_equal(kld_remove_tree(t->dir, NULL), KLD_OK); }

kld_engine_options default_options(size_t vocab) {
    return (kld_engine_options){.precision = KLD_PRECISION_FP32,
                                .vocab = vocab,
                                .top_k = 32,
                                .min_k = 4,
                                .tail_mass = 1e-3,
                                .tail_samples = 4,
                                .ref_top_k = 64,
                                .ref_tail_samples = 64,
                                .seed = 7};
}

void scene_open(scene *s, tiny t) {
    kld_err err = {0};
    memset(s, 0, sizeof *s);
    s->t = t;
    tiny_write(&s->t, 99);
    need(kld_model_open(&s->m, s->t.dir, &err), &err, "tiny model");
    s->ids = malloc(TOKENS * sizeof *s->ids);
    assert_non_null(s->ids);
    uint64_t seed = 5;
    for (size_t i = 0; i < TOKENS; i++) s->ids[i] = (uint32_t)(rnd(&seed) * (double)t.vocab);
    static const size_t n[WINDOWS] = {1, 40, 0, 300, 1400, 65}, from[WINDOWS] = {0, 3, 0, 20, 700};
    for (size_t i = 0, at = 0; i < WINDOWS; at += n[i++])
        s->seqs[i] = (kld_seq){s->ids + at, n[i], from[i]};
    snprintf(s->state, sizeof s->state, "%s/state", s->t.dir);
}

void scene_close(scene *s) {
    kld_model_free(s->m);
    assert_int_equal(kld_remove_tree(s->state, NULL), KLD_OK);
    tiny_remove(&s->t);
    free(s->ids);
}

const tiny tiny_llama = {.hidden = 24,
                         .layers = 3,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .intermediate = 40,
                         .vocab = 300,
                         .tied = true};
const tiny tiny_qwen = {.hidden = 40,
                        .layers = 2,
                        .heads = 4,
                        .kv_heads = 1,
                        .head_dim = 12,
                        .intermediate = 33,
                        .vocab = 90,
                        .qwen3 = true};

const tiny tiny_moe = {.hidden = 40,
                       .layers = 3,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_dim = 12,
                       .intermediate = 33,
                       .vocab = 90,
                       .qwen3 = true,
                       .experts = 7,
                       .chosen = 3,
                       .expert_intermediate = 19};

const tiny tiny_blocks = {.hidden = 64,
                          .layers = 3,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .intermediate = 96,
                          .vocab = 200,
                          .qwen3 = true,
                          .experts = 7,
                          .chosen = 3,
                          .expert_intermediate = 32};

const kld_act_quant sample_inputs[SAMPLE_INPUTS] = {
    {.format = KLD_AQ_NVFP4, .scale = 3},
    {.format = KLD_AQ_MXFP4, .exponent = KLD_AQ_CEIL},
    {.format = KLD_AQ_MXFP8},
    {.format = KLD_AQ_FP8_TENSOR, .scale = 0.375f},
    {.format = KLD_AQ_FP8_TOKEN},
    {.format = KLD_AQ_FP8_BLOCK, .power_of_two = true},
};

void declare_inputs(kld_model *m) {
    for (kld_weight_at at = {0}; kld_model_next_weight(m, &at);) {
        if (at.w->cols == 1 || !at.layer || at.slot == KLD_SLOT_ROUTER) continue;
        kld_weight *w = (kld_weight *)(uintptr_t)at.w;
        bool expert = at.slot >= KLD_SLOT_EXPERT_GATE;
        w->act = expert ? sample_inputs[at.expert % 2 * 3] : sample_inputs[at.slot % SAMPLE_INPUTS];
        if (expert) w->act.scale *= (float)(1 + 3 * at.expert + at.slot % 2);
    }
}

const kld_backend *scene_backend;

kld_status scene_run(const scene *s, const kld_seq *seqs, size_t n, const kld_engine_options *o,
                     collected *c, kld_engine_stats *stats, kld_err *err) {
    kld_engine_stats mine;
    kld_sink sink = sink_of(c);
    const kld_backend *be = scene_backend ? scene_backend : kld_backend_cpu();
    return kld_engine_run(s->m, be, seqs, n, o, &sink, stats ? stats : &mine, err);
}

void scene_run_ok(const scene *s, const kld_engine_options *o, collected *c,
                  kld_engine_stats *stats) {
    kld_err err = {0};
    *c = (collected){.fail_at = SIZE_MAX};
    need(scene_run(s, s->seqs, WINDOWS, o, c, stats, &err), &err, "run");
}

kld_buf part_of(const collected *c, size_t i) {
    size_t from, to = c->records.len;
    memcpy(&from, c->mark.data + i * sizeof from, sizeof from);
    if ((i + 1) * sizeof to < c->mark.len)
        memcpy(&to, c->mark.data + (i + 1) * sizeof to, sizeof to);
    from += sizeof(size_t);
    return (kld_buf){.data = c->records.data + from, .len = to - from};
}

void same_records(const collected *a, const collected *b, const char *what) {
    if (a->records.len != b->records.len ||
        memcmp(a->records.data, b->records.data, a->records.len) != 0)
        fail_msg("%s: the records differ", what);
}

void same_alone(const scene *s, const kld_engine_options *o, const collected *all) {
    for (size_t w = 3; w < WINDOWS; w++) {
        kld_seq q[WINDOWS];
        kld_err err = {0};
        collected b = {.fail_at = SIZE_MAX};
        for (size_t i = 0; i < WINDOWS; i++) {
            q[i] = s->seqs[i];
            if (i != w) q[i].n = q[i].score_from = 0;
        }
        need(scene_run(s, q, WINDOWS, o, &b, NULL, &err), &err, "one window");
        kld_buf x = part_of(all, w), y = part_of(&b, w);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
        collected_free(&b);
    }
}
