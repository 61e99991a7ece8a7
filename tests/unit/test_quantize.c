/* Round-to-nearest quantization of a checkpoint: which weights, to which values, under which names;
 * everything else stays. */
#include "kld/base/file.h"
#include "kld/base/json.h"
#include "loaders/model.h"
#include "loaders/numfmt.h"
#include "tests/unit/quantkit.h"

#include <math.h>

/* ---- rounding, from the definitions ---- */

static const float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static float e4m3(unsigned b) { /* 0..126 */
    unsigned e = b >> 3, m = b & 7;
    return (float)(e ? ldexp(1 + m / 8.0, (int)e - 7) : ldexp(m / 8.0, -6));
}

/* Index of the nearest value of an ascending list; halfway goes to the even index. */
static unsigned nearest_e4m3(float x) {
    unsigned best = 0;
    for (unsigned b = 1; b < 127; b++) {
        double d = fabs((double)e4m3(b) - x), old = fabs((double)e4m3(best) - x);
        if (d < old || (d == old && b % 2 == 0)) best = b;
    }
    return best;
}

static unsigned nearest_e2m1(float x) {
    unsigned best = 0;
    for (unsigned c = 1; c < 8; c++) {
        double d = fabs((double)E2M1[c] - fabs(x)), old = fabs((double)E2M1[best] - fabs(x));
        if (d < old || (d == old && c % 2 == 0)) best = c;
    }
    return best | (x < 0 ? 8u : 0u);
}

static float bf16(float x) { return kld_bf16_to_f32(kld_f32_to_bf16(x)); }

static float max_abs(const float *x, size_t n) {
    float a = 0;
    for (size_t i = 0; i < n; i++) a = fmaxf(a, fabsf(x[i]));
    return a;
}

/* Rules of loaders/encode.h. */
typedef struct rule {
    kld_target_format format;
    bool bf16;
} rule;

static float want_global(rule r, float amax) {
    if (r.format == KLD_TARGET_NVFP4_MODELOPT) return amax / 2688;
    float inv = r.bf16 ? bf16(1 / amax) : 1 / amax;
    return r.bf16 ? bf16(2688 * inv) : 2688 * inv;
}

/* The scale byte of one block and the step between codes it stands for. */
static unsigned want_scale(rule r, const float *x, float global, float *step) {
    if (r.format == KLD_TARGET_MXFP4_CT) {
        float a = max_abs(x, 32);
        int e = 0;
        double m = frexp(a, &e); /* a = m 2^e, 0.5 <= m < 1 */
        int byte = a > 0 ? e - 1 - 2 + (m >= 0.875) + 127 : 0;
        *step = (float)ldexp(1, byte - 127);
        return (unsigned)byte;
    }
    float a = max_abs(x, 16);
    unsigned b;
    if (r.format == KLD_TARGET_NVFP4_MODELOPT) {
        float s = a / (6 * global);
        b = nearest_e4m3(a == 0 ? 1 : fminf(fmaxf(s, 0x1p-9f), 448));
        *step = e4m3(b) * global;
    } else {
        float s = r.bf16 ? bf16(a / 6) : a / 6;
        b = nearest_e4m3(fminf(global * s, 448));
        if (b == 0) b = nearest_e4m3(0.125f);
        *step = e4m3(b) / global;
    }
    return b;
}

static void read_values(const loaded *f, const char *name, float *x) {
    const kld_tensor *t = tensor(f, name);
    const unsigned char *p = part(f, name);
    size_t n = (size_t)(t->bytes / (t->dtype == KLD_F32 ? 4 : 2));
    for (size_t i = 0; i < n; i++) x[i] = kld_scale_value(t, p, i);
}

/* Which weights share a global. */
static const char *const GROUPS[][3] = {
    {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    {"self_attn.o_proj"},
    {"mlp.gate_proj", "mlp.up_proj"},
    {"mlp.down_proj"}};

static const char *named(const char *prefix, size_t layer, const char *module, const char *what) {
    static char name[4][128];
    static unsigned turn;
    char *s = name[turn++ % 4];
    snprintf(s, sizeof name[0], "%slayers.%zu.%s.%s", prefix, layer, module, what);
    return s;
}

static void check_weight(const loaded *in, const loaded *out, const recipe *src, rule r,
                         size_t layer, const char *module, float global) {
    static float x[64 * 64];
    bool mx = r.format == KLD_TARGET_MXFP4_CT, modelopt = r.format == KLD_TARGET_NVFP4_MODELOPT;
    const char *name = named(src->prefix, layer, module, "weight");
    const char *data = modelopt ? name : named(src->prefix, layer, module, "weight_packed");
    const char *scales = named(src->prefix, layer, module, "weight_scale");
    const kld_tensor *from = tensor(in, name), *codes = tensor(out, data),
                     *scale = tensor(out, scales);
    size_t cols = (size_t)from->shape[1], n = (size_t)from->shape[0] * cols, block = mx ? 32 : 16;
    read_values(in, name, x);
    assert_int_equal(codes->dtype, KLD_U8);
    assert_int_equal(codes->shape[0], from->shape[0]);
    assert_int_equal(codes->shape[1], cols / 2);
    assert_int_equal(scale->dtype, mx ? KLD_U8 : KLD_F8_E4M3);
    assert_int_equal(scale->shape[1], cols / block);
    if (!mx) {
        const char *g =
            named(src->prefix, layer, module, modelopt ? "weight_scale_2" : "weight_global_scale");
        assert_int_equal(tensor(out, g)->dtype, KLD_F32);
        assert_int_equal(tensor(out, g)->rank, modelopt ? 0 : 1);
        assert_memory_equal(part(out, g), &global, 4);
    }
    for (size_t b = 0; b < n / block; b++) {
        float step;
        assert_int_equal(part(out, scales)[b], want_scale(r, x + b * block, global, &step));
        for (size_t i = b * block; i < (b + 1) * block; i++) {
            unsigned got = part(out, data)[i / 2] >> (i % 2 ? 4 : 0) & 15;
            if (got != nearest_e2m1(x[i] / step))
                fail_msg("%s: element %zu, %g, has code %u", name, i, (double)x[i], got);
        }
    }
}

static void check_layers(const loaded *in, const loaded *out, const recipe *src, rule r) {
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t g = 0; g < sizeof GROUPS / sizeof *GROUPS; g++) {
            static float x[64 * 64];
            float amax = 0;
            for (size_t k = 0; k < 3 && GROUPS[g][k]; k++) {
                const char *name = named(src->prefix, l, GROUPS[g][k], "weight");
                const kld_tensor *t = tensor(in, name);
                read_values(in, name, x);
                amax = fmaxf(amax, max_abs(x, (size_t)(t->shape[0] * t->shape[1])));
            }
            for (size_t k = 0; k < 3 && GROUPS[g][k]; k++)
                check_weight(in, out, src, r, l, GROUPS[g][k], want_global(r, amax));
        }
}

static bool is_rounded(const char *name) {
    return strstr(name, "_proj.weight") && !strstr(name, "mtp.") && !strstr(name, ".visual.");
}

/* Everything else is there, with its bytes; and nothing more than that and the new tensors. */
static void check_rest(const loaded *in, const loaded *out, size_t per_weight) {
    size_t want = 0;
    for (size_t i = 0; i < in->n; i++) {
        const kld_tensor *t = &in->t[i];
        want += is_rounded(t->name) ? per_weight : 1;
        if (is_rounded(t->name)) continue;
        const kld_tensor *u = tensor(out, t->name);
        assert_int_equal(t->dtype, u->dtype);
        assert_int_equal(t->rank, u->rank);
        assert_memory_equal(t->shape, u->shape, t->rank * sizeof *t->shape);
        assert_memory_equal(part(in, t->name), part(out, t->name), t->bytes);
    }
    assert_int_equal(out->n, want);
}

static void load_from(loaded *f, const char *dir, const char *file) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    load(f, path);
}

static uint64_t sum_bytes(const loaded *f) {
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->t[i].bytes;
    return n;
}

/* The reader agrees: format, name of the method, values. */
static void check_opens(const char *dir, const loaded *in, const recipe *src, rule r) {
    kld_model *m;
    kld_err err = {0};
    if (kld_model_open(&m, dir, &err) != KLD_OK) fail_msg("%s", err.text);
    bool mx = r.format == KLD_TARGET_MXFP4_CT;
    assert_int_equal(m->n_warnings, 0);
    assert_string_equal(m->label, mx ? "MXFP4" : "NVFP4");
    const kld_weight *w = &m->layer[1].slot[KLD_SLOT_DOWN];
    assert_int_equal(w->format, mx ? KLD_FMT_MXFP4 : KLD_FMT_NVFP4);
    assert_int_equal(m->layer[0].slot[KLD_SLOT_Q].format, w->format);
    assert_non_null(m->layer[0].slot[KLD_SLOT_Q].bias);
    assert_true(m->global[KLD_SLOT_HEAD].format <= KLD_FMT_F32);
    assert_true(m->global[KLD_SLOT_EMBED].format <= KLD_FMT_F32);
    static float x[64 * 64], y[64 * 64];
    static unsigned char data[2048], scale[256], global[4];
    read_values(in, named(src->prefix, 1, "mlp.down_proj", "weight"), x);
    assert_int_equal(kld_checkpoint_read(&m->ckpt, w->data, 0, data, w->data->bytes, &err), KLD_OK);
    assert_int_equal(kld_checkpoint_read(&m->ckpt, w->scale, 0, scale, w->scale->bytes, &err),
                     KLD_OK);
    if (!mx) assert_int_equal(kld_checkpoint_read(&m->ckpt, w->global, 0, global, 4, &err), KLD_OK);
    kld_weight_decode(w, (kld_weight_view){.data = data, .scale = scale, .global = global}, 0,
                      w->rows, false, y);
    size_t block = mx ? 32 : 16;
    float g = mx ? 0 : want_global(r, max_abs(x, w->rows * w->cols));
    for (size_t b = 0; b < w->rows * w->cols / block; b++) {
        float step;
        (void)want_scale(r, x + b * block, g, &step);
        for (size_t i = b * block; i < (b + 1) * block; i++) {
            unsigned c = nearest_e2m1(x[i] / step);
            double want = (double)step * (c & 8 ? -E2M1[c & 7] : E2M1[c & 7]);
            assert_true(fabs(want - y[i]) <= 2e-7 * fabs(want));
        }
    }
    kld_model_free(m);
}

static const kld_target_format FORMATS[] = {KLD_TARGET_NVFP4_MODELOPT, KLD_TARGET_NVFP4_CT,
                                            KLD_TARGET_MXFP4_CT};

static void all_formats(void **state) {
    (void)state;
    static const char *const dtype[] = {"BF16", "F16", "F32"};
    for (size_t d = 0; d < 3; d++)
        for (size_t k = 0; k < 3; k++) {
            built b;
            recipe src = PLAIN;
            rule r = {FORMATS[k], d == 0};
            kld_quantize_summary sum;
            loaded in, out;
            src.dtype = dtype[d];
            make_source(&b, &src);
            quantizes(&b, r.format, &sum);
            load_from(&in, b.dir, "model.safetensors");
            load_from(&out, out_dir(&b), "model.safetensors");
            check_layers(&in, &out, &src, r);
            check_rest(&in, &out, r.format == KLD_TARGET_MXFP4_CT ? 2 : 3);
            check_opens(out_dir(&b), &in, &src, r);
            assert_int_equal(sum.weights, LAYERS * N_WEIGHTS);
            assert_int_equal(sum.parameters, LAYERS * (HIDDEN * HIDDEN * 3 + 3 * HIDDEN * INNER));
            assert_int_equal(sum.bytes_in, sum_bytes(&in));
            assert_int_equal(sum.bytes_out, sum_bytes(&out));
            unload(&in);
            unload(&out);
            refuses(&b, r.format, KLD_E_INPUT, "exists and is not empty");
            assert_int_equal(kld_remove_tree(out_dir(&b), NULL), KLD_OK);
            build_end(&b);
        }
}

/* Two files seen as one. */
typedef struct pair {
    loaded file[2], all;
    kld_tensor t[96];
} pair;
static const char *const FILES[] = {"part-1.safetensors", "part-2.safetensors"};

static void load_pair(pair *p, const char *dir) {
    memset(p, 0, sizeof *p);
    p->all.t = p->t;
    for (size_t s = 0; s < 2; s++) {
        load_from(&p->file[s], dir, FILES[s]);
        for (size_t i = 0; i < p->file[s].n; i++) {
            kld_tensor *t = &p->t[p->all.n++];
            *t = p->file[s].t[i];
            t->offset += p->all.bytes.len;
        }
        assert_int_equal(
            kld_buf_add(&p->all.bytes, p->file[s].bytes.data, p->file[s].bytes.len, NULL), KLD_OK);
    }
}

static void unload_pair(pair *p) {
    unload(&p->file[0]);
    unload(&p->file[1]);
    kld_buf_free(&p->all.bytes);
}

/* The index says where everything is and how much it is. */
static void check_index(const char *dir, const pair *p, uint64_t bytes) {
    char path[160];
    json_t *index, *map;
    uint64_t total = 0;
    kld_err err = {0};
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_int_equal(kld_json_load(&index, path, 1 << 20, &err), KLD_OK);
    assert_int_equal(kld_json_obj(index, "weight_map", &map, &err), KLD_OK);
    assert_int_equal(kld_json_u64(json_object_get(index, "metadata"), "total_size", &total, &err),
                     KLD_OK);
    assert_int_equal(total, bytes);
    assert_int_equal(json_object_size(map), p->all.n);
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; i < p->file[s].n; i++)
            assert_string_equal(json_string_value(json_object_get(map, p->file[s].t[i].name)),
                                FILES[s]);
    json_decref(index);
}

/* Members of a group lie in different files and share their global all the same; each file keeps
 * its name and its tensors. */
static void sharded(void **state) {
    (void)state;
    recipe src = PLAIN;
    src.sharded = true;
    built b;
    make_source(&b, &src);
    for (size_t k = 0; k < 3; k++) {
        static pair in, out;
        kld_quantize_summary sum;
        rule r = {FORMATS[k], true};
        quantizes(&b, r.format, &sum);
        load_pair(&in, b.dir);
        load_pair(&out, out_dir(&b));
        check_layers(&in.all, &out.all, &src, r);
        for (size_t s = 0; s < 2; s++)
            check_rest(&in.file[s], &out.file[s], r.format == KLD_TARGET_MXFP4_CT ? 2 : 3);
        check_opens(out_dir(&b), &in.all, &src, r);
        check_index(out_dir(&b), &out, sum.bytes_out);
        assert_int_equal(sum.bytes_in, sum_bytes(&in.file[0]) + sum_bytes(&in.file[1]));
        unload_pair(&in);
        unload_pair(&out);
        assert_int_equal(kld_remove_tree(out_dir(&b), NULL), KLD_OK);
    }
    build_end(&b);
}

/* T23: of a composite checkpoint the text model is rounded; vision tower and MTP stay. */
static void composite(void **state) {
    (void)state;
    recipe src = PLAIN;
    src.prefix = "model.language_model.";
    src.outer = "\"architectures\":[\"LlamaForCausalLM\"],\"vision_config\":{\"depth\":1},"
                "\"text_config\":{";
    src.large = true;
    rule r = {KLD_TARGET_NVFP4_CT, true};
    built b;
    kld_quantize_summary sum;
    loaded in, out;
    make_source(&b, &src);
    quantizes(&b, r.format, &sum);
    load_from(&in, b.dir, "model.safetensors");
    load_from(&out, out_dir(&b), "model.safetensors");
    check_layers(&in, &out, &src, r);
    check_rest(&in, &out, 3);
    check_opens(out_dir(&b), &in, &src, r);
    assert_int_equal(sum.weights, LAYERS * N_WEIGHTS);
    unload(&in);
    unload(&out);
    assert_int_equal(kld_remove_tree(out_dir(&b), NULL), KLD_OK);
    build_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_formats), cmocka_unit_test(sharded),
                                       cmocka_unit_test(composite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
