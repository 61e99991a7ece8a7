/* Formats with scales in grids and groups: classified by their tensors, decoded as the libraries
 * that define them do, cut into pieces, and refused where values or shapes cannot be right. */
#include "kld/base/num.h"
#include "loaders/classify.h"
#include "loaders/numfmt.h"
#include "loaders/quant_int.h"
#include "tests/unit/loadkit.h"

#include <math.h>

enum { MAX_ELEMENTS = 64 * 96 };

/* A module of the tensors of a file under the prefix "m". */
typedef struct module {
    kld_module m;
    kld_tensor t[8];
    const unsigned char *p[8];
    char name[8][32];
} module;

static void add(module *m, const kld_tensor *t, const unsigned char *p) {
    size_t i = m->m.n++;
    m->m.prefix = "m";
    m->t[i] = *t;
    m->p[i] = p;
    snprintf(m->name[i], sizeof m->name[i], "m.%s", t->name);
    m->t[i].name = m->name[i];
    m->m.part[i] = &m->t[i];
    m->m.suffix[i] = m->name[i] + 2;
}

static kld_status classify(kld_weight *w, const module *m, size_t rows, size_t cols,
                           const char *quant, kld_err *err) {
    json_t *q = quant ? json_loads(quant, 0, NULL) : NULL;
    kld_expect want = {.rows = rows, .cols = cols, .quantizable = true, .quant = q};
    kld_status st = kld_weight_classify(w, &m->m, &want, err);
    json_decref(q);
    return st;
}

static const unsigned char *bytes_of(const module *m, const kld_tensor *t) {
    for (size_t i = 0; t && i < m->m.n; i++)
        if (&m->t[i] == t) return m->p[i];
    return NULL;
}

static kld_weight_view view_of(const module *m, const kld_weight *w) {
    return (kld_weight_view){.data = bytes_of(m, w->data),
                             .scale = bytes_of(m, w->scale),
                             .global = bytes_of(m, w->global),
                             .zeros = bytes_of(m, w->zeros),
                             .index = bytes_of(m, w->index)};
}

/* Every byte in exactly one cut, and what was cut passes. */
static void check_pieces(const module *m, const kld_weight *w, size_t step) {
    kld_weight_view v = view_of(m, w);
    kld_err err = {0};
    uint64_t data = 0, scale = 0, nonfinite = 0;
    size_t lines = kld_weight_lines(w);
    for (size_t at = 0; at < lines; at += step) {
        size_t n = num_min(step, lines - at);
        kld_weight_slice s = kld_weight_cut(w, at, n);
        kld_weight_view cut = {.data = v.data + s.data_at};
        if (s.scale_bytes) cut.scale = v.scale + s.scale_at;
        assert_int_equal(s.data_at, data);
        if (s.scale_bytes) assert_int_equal(s.scale_at, scale);
        data += s.data_bytes;
        scale += s.scale_bytes;
        if (kld_weight_check(w, cut, at, n, &nonfinite, &err) != KLD_OK) fail_msg("%s", err.text);
    }
    assert_int_equal(data, w->data->bytes);
    bool aside = kld_weight_aside(w, KLD_PART_SCALE);
    assert_int_equal(scale, aside ? 0 : w->scale->bytes);
    assert_int_equal(nonfinite, 0);
    for (kld_part p = KLD_PART_SCALE; p < KLD_PART_COUNT; p++) {
        if (!kld_weight_aside(w, p)) continue;
        const kld_tensor *t = kld_weight_part(w, p);
        uint64_t n = t->bytes / (kld_dtype_bits(t->dtype) / 8);
        if (kld_weight_check_aside(w, p, bytes_of(m, t), 0, n, &err) != KLD_OK)
            fail_msg("%s", err.text);
    }
}

#define GPTQ(version) "{\"quant_method\":\"gptq\",\"checkpoint_format\":\"" version "\"}"

static const struct {
    const char *file;
    size_t rows, cols;
    kld_format format;
    const char *quant;
} goldens[] = {
    {"fp8-block-f32", 50, 70, KLD_FMT_FP8_BLOCK, "{\"weight_block_size\":[16,32]}"},
    {"fp8-block-bf16", 50, 70, KLD_FMT_FP8_BLOCK,
     "{\"config_groups\":{\"g\":{\"weights\":{\"block_structure\":[16,32]}}}}"},
    {"fp8-block-f16", 50, 70, KLD_FMT_FP8_BLOCK, "{\"weight_block_size\":[16,32]}"},
    {"fp8-block-e8m0", 48, 96, KLD_FMT_FP8_BLOCK, "{\"weight_block_size\":[16,32]}"},
    {"fp8-block-modelopt", 48, 96, KLD_FMT_FP8_BLOCK, "{\"weight_block_size\":[16,32]}"},
    {"mxfp8", 48, 96, KLD_FMT_MXFP8, NULL},
    {"fp4-deepseek", 48, 96, KLD_FMT_MXFP4, NULL},
    {"int4-packed", 48, 96, KLD_FMT_INT4_PACKED, NULL},
    {"int4-packed-zeros", 48, 96, KLD_FMT_INT4_PACKED, NULL},
    {"int4-packed-ragged", 45, 93, KLD_FMT_INT4_PACKED, NULL},
    {"int8-packed", 48, 96, KLD_FMT_INT8_PACKED, NULL},
    {"int8-packed-zeros", 48, 96, KLD_FMT_INT8_PACKED, NULL},
    {"int8", 48, 96, KLD_FMT_INT8, NULL},
    {"int4-modelopt", 48, 96, KLD_FMT_INT4_PAIRS, NULL},
    {"awq", 48, 96, KLD_FMT_AWQ, "{\"quant_method\":\"awq\",\"version\":\"gemm\"}"},
    {"gptq4-v1", 64, 96, KLD_FMT_GPTQ4, GPTQ("gptq")},
    {"gptq4-v2", 64, 96, KLD_FMT_GPTQ4, GPTQ("gptq_v2")},
    {"gptq8-v1", 64, 96, KLD_FMT_GPTQ8, "{\"quant_method\":\"gptq\"}"},
    {"gptq8-v2", 64, 96, KLD_FMT_GPTQ8, GPTQ("gptq_v2")},
};

static void decode(void **state) {
    (void)state;
    static float all[MAX_ELEMENTS], some[MAX_ELEMENTS];
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/quant/decode-%s.safetensors", goldens[i].file);
        loaded f;
        load(&f, path);
        module m = {0};
        for (size_t k = 0; k < f.n; k++)
            if (strcmp(f.t[k].name, "expected") != 0) add(&m, &f.t[k], part(&f, f.t[k].name));
        size_t rows = goldens[i].rows, cols = goldens[i].cols;
        kld_weight w;
        kld_err err = {0};
        if (classify(&w, &m, rows, cols, goldens[i].quant, &err) != KLD_OK)
            fail_msg("%s: %s", goldens[i].file, err.text);
        assert_int_equal(w.format, goldens[i].format);
        kld_weight_view v = view_of(&m, &w);
        kld_weight_decode(&w, v, 0, rows, true, all);
        assert_true(kld_weight_alpha(&w, v) == 1.0f);
        const unsigned char *want = part(&f, "expected");
        for (size_t e = 0; e < rows * cols; e++) {
            float x;
            memcpy(&x, want + 4 * e, 4);
            if (kld_f32_bits(all[e]) != kld_f32_bits(x))
                fail_msg("%s: [%zu,%zu] is %a, not %a", goldens[i].file, e / cols, e % cols,
                         (double)all[e], (double)x);
        }
        for (size_t r = 0; r < rows; r += 7) {
            size_t n = num_min(7, rows - r);
            kld_weight_decode(&w, v, r, n, false, some);
            assert_memory_equal(some, all + r * cols, n * cols * sizeof *some);
        }
        check_pieces(&m, &w, 1);
        check_pieces(&m, &w, 5);
        unload(&f);
    }
}

/* ---- worked examples */

static void edge_blocks(void **state) {
    (void)state;
    enum { R = 130, C = 129 };
    static unsigned char codes[R * C];
    static float out[R * C];
    memset(codes, 0x38, sizeof codes); /* 1 */
    static const float scale[4] = {1, 2, 3, 4};
    module m = {0};
    kld_tensor d = {
        .name = "weight", .dtype = KLD_F8_E4M3, .rank = 2, .shape = {R, C}, .bytes = sizeof codes};
    kld_tensor s = {.name = "weight_scale_inv",
                    .dtype = KLD_F32,
                    .rank = 2,
                    .shape = {2, 2},
                    .bytes = sizeof scale};
    add(&m, &d, codes);
    add(&m, &s, (const unsigned char *)scale);
    kld_weight w;
    kld_err err = {0};
    assert_int_equal(classify(&w, &m, R, C, NULL, &err), KLD_OK);
    kld_weight_decode(&w, view_of(&m, &w), 0, R, false, out);
    assert_true(out[127 * C + 127] == 1 && out[127 * C + 128] == 2);
    assert_true(out[128 * C + 127] == 3 && out[129 * C + 128] == 4);
}

static void decode_one(kld_weight w, const void *data, const void *zeros, const void *index,
                       float *out) {
    kld_tensor t = {.name = "s", .dtype = KLD_F16};
    unsigned char scale[64];
    for (size_t i = 0; i < sizeof scale; i++) scale[i] = i % 2 ? 0x3c : 0; /* 1 */
    w.scale = &t;
    if (zeros) w.zeros = &t;
    kld_weight_view v = {.data = data, .scale = scale, .zeros = zeros, .index = index};
    kld_weight_decode(&w, v, 0, w.rows, false, out);
}

/* The word 0x76543210 in each layout. */
static void one_word(void **state) {
    (void)state;
    static const unsigned char word[4] = {0x10, 0x32, 0x54, 0x76}, none[4] = {0};
    static const float awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    float out[8];
    kld_weight w = {.format = KLD_FMT_AWQ, .rows = 8, .cols = 1, .groups = 1, .block_cols = 1};
    decode_one(w, word, none, NULL, out);
    assert_memory_equal(out, awq, sizeof out);
    w = (kld_weight){
        .format = KLD_FMT_INT4_PACKED, .rows = 1, .cols = 8, .groups = 1, .block_cols = 8};
    decode_one(w, word, NULL, NULL, out);
    for (int i = 0; i < 8; i++) assert_true(out[i] == (float)(i - 8));
    w.format = KLD_FMT_GPTQ4;
    decode_one(w, word, none, NULL, out);
    for (int i = 0; i < 8; i++) assert_true(out[i] == (float)i);
    w = (kld_weight){
        .format = KLD_FMT_INT4_PAIRS, .rows = 2, .cols = 1, .groups = 1, .block_cols = 1};
    decode_one(w, "\xf7", NULL, NULL, out);
    assert_true(out[0] == 7 && out[1] == -1);
}

/* 0x7777777f: the +1 of v1 stays in its field; with the quirk 15 is a zero point of 0. */
static void zero_quirk(void **state) {
    (void)state;
    static const unsigned char data[32] = {0}, zeros[4] = {0x7f, 0x77, 0x77, 0x77};
    kld_weight w = {.format = KLD_FMT_GPTQ4, .rows = 8, .cols = 8, .groups = 1, .block_cols = 8};
    float out[64];
    w.zero_add = 1;
    decode_one(w, data, zeros, NULL, out);
    assert_true(out[0] == 0 && out[8] == -8 && out[56] == -8);
    w.zero_add = 0;
    decode_one(w, data, zeros, NULL, out);
    assert_true(out[0] == -15 && out[8] == -7 && out[56] == -7);
}

/* An index in any order; -1 is an index that was never set. */
static void group_index(void **state) {
    (void)state;
    static const unsigned char data[4] = {0};
    static const unsigned char zeros[4 * 4] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
    static const int32_t index[8] = {3, 0, 2, 1, 1, 2, 0, 3},
                         unset[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    static const float ordered[8] = {-4, -1, -3, -2, -2, -3, -1, -4};
    kld_weight w = {
        .format = KLD_FMT_INT4_PACKED, .rows = 1, .cols = 8, .groups = 4, .block_cols = 2};
    float out[8];
    decode_one(w, data, zeros, index, out);
    assert_memory_equal(out, ordered, sizeof out);
    decode_one(w, data, zeros, unset, out);
    for (int i = 0; i < 8; i++) assert_true(out[i] == (float)(-1 - i / 2));
}

/* ---- values that cannot be right */

static void aside(const kld_weight *w, kld_part part, const void *p, uint64_t n, const char *text) {
    kld_err err = {0};
    kld_status st = kld_weight_check_aside(w, part, p, 0, n, &err);
    if (!text && st != KLD_OK) fail_msg("%s", err.text);
    if (!text) return;
    assert_int_equal(st, KLD_E_INPUT);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

static void bad_values(void **state) {
    (void)state;
    static const float nan_at_3[4] = {1, 2, 0, NAN}, negative[4] = {1, -1, 1, 1};
    kld_tensor s = {.name = "m.weight_scale_inv", .dtype = KLD_F32}, idx = {.name = "m.g_idx"};
    kld_tensor z = {.name = "m.qzeros", .dtype = KLD_I32};
    kld_weight w = {.format = KLD_FMT_FP8_BLOCK,
                    .rows = 130,
                    .cols = 129,
                    .block_rows = 128,
                    .block_cols = 128,
                    .scale = &s,
                    .index = &idx,
                    .zeros = &z,
                    .groups = 4};
    aside(&w, KLD_PART_SCALE, nan_at_3, 4,
          "1 scales that are not finite or are negative, first at [1,1]");
    aside(&w, KLD_PART_SCALE, negative, 4, "first at [0,1]");
    s.dtype = KLD_F8_E8M0;
    aside(&w, KLD_PART_SCALE, "\x7f\x7f\xff\xff", 4,
          "2 NaN (255) E8M0 block scales, first at [1,0]");

    w.format = KLD_FMT_GPTQ4;
    static const int32_t low[3] = {0, -1, 3}, high[3] = {0, 4, 4}, unset[3] = {-1, -1, -1};
    aside(&w, KLD_PART_INDEX, low, 3,
          "'m.g_idx': 1 groups are not in 0..3, the first is -1 at [1]");
    aside(&w, KLD_PART_INDEX, high, 3, "2 groups are not in 0..3, the first is 4 at [1]");
    aside(&w, KLD_PART_INDEX, unset, 3, "the first is -1 at [0]");
    w.format = KLD_FMT_INT4_PACKED;
    aside(&w, KLD_PART_INDEX, unset, 3, NULL);
    aside(&w, KLD_PART_INDEX, low, 3, "the first is -1 at [1]");

    static const uint32_t eights[2] = {0x88888888u, 0x88888888u};
    static const uint32_t sevens[2] = {0x77777777u, 0x77777777u};
    static const uint32_t mixed[2] = {0x88888888u, 0x88888887u};
    w.format = KLD_FMT_GPTQ4;
    aside(&w, KLD_PART_ZEROS, eights, 2, NULL); /* not said to be symmetric */
    w.symmetric = true;
    w.zero_add = 1;
    aside(&w, KLD_PART_ZEROS, eights, 2,
          "'m.qzeros': every zero point is stored as 8, but sym is true and checkpoint_format gptq "
          "(v1) stores 7; the file is gptq_v2");
    aside(&w, KLD_PART_ZEROS, sevens, 2, NULL);
    aside(&w, KLD_PART_ZEROS, mixed, 2, NULL);
    w.zero_add = 0;
    aside(&w, KLD_PART_ZEROS, sevens, 2,
          "stored as 7, but sym is true and checkpoint_format gptq_v2");
    aside(&w, KLD_PART_ZEROS, eights, 2, NULL);
    w.format = KLD_FMT_GPTQ8;
    w.zero_add = 1;
    aside(&w, KLD_PART_ZEROS, "\x80\x80\x80\x80", 1, "stored as 128");

    kld_tensor pre = {.name = "m.pre_quant_scale", .dtype = KLD_F32};
    w.pre = &pre;
    aside(&w, KLD_PART_PRE, negative, 4, NULL);
    aside(&w, KLD_PART_PRE, nan_at_3, 4,
          "tensor 'm.pre_quant_scale': 1 factors are not finite, the first at [3]");
    pre.dtype = KLD_BF16;
    aside(&w, KLD_PART_PRE, "\x80\x3f\x80\x7f\x80\xff", 3,
          "2 factors are not finite, the first at [1]");
}

static void bad_rows(void **state) {
    (void)state;
    static const float s[4] = {1, 1, 1, -INFINITY};
    static const unsigned char data[64] = {0x7f, [5] = 0xff}, e8m0[2] = {1, 255};
    kld_tensor d = {.name = "d", .dtype = KLD_I8}, t = {.name = "m.weight_scale", .dtype = KLD_F32};
    kld_weight w = {.rows = 4, .cols = 16, .data = &d, .scale = &t, .groups = 1};
    kld_weight_view v = {.data = data, .scale = (const unsigned char *)s};
    static const kld_format all[] = {KLD_FMT_INT8, KLD_FMT_INT4_PACKED, KLD_FMT_INT8_PACKED,
                                     KLD_FMT_INT4_PAIRS};
    for (size_t i = 0; i < 4; i++) {
        kld_err err = {0};
        uint64_t n = 0;
        w.format = all[i];
        /* As lines 4.. of a larger weight; a pair is two rows. */
        bool pairs = all[i] == KLD_FMT_INT4_PAIRS;
        assert_int_equal(kld_weight_check(&w, v, 4, pairs ? 2 : 4, &n, &err), KLD_E_INPUT);
        assert_non_null(strstr(err.text, pairs ? "first at [11,0]" : "first at [7,0]"));
        assert_int_equal(n, 0);
    }
    kld_err err = {0};
    uint64_t n = 0;
    w = (kld_weight){.format = KLD_FMT_MXFP8, .rows = 2, .cols = 32, .data = &d, .scale = &t};
    d.dtype = KLD_F8_E4M3;
    v.scale = e8m0;
    assert_int_equal(kld_weight_check(&w, v, 0, 2, &n, &err), KLD_E_INPUT);
    assert_non_null(strstr(err.text, "1 NaN (255) E8M0 block scales, first at [1,0]"));
    assert_int_equal(n, 2); /* NaN codes */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decode),      cmocka_unit_test(edge_blocks),
                                       cmocka_unit_test(one_word),    cmocka_unit_test(zero_quirk),
                                       cmocka_unit_test(group_index), cmocka_unit_test(bad_values),
                                       cmocka_unit_test(bad_rows)};
    return cmocka_run_group_tests_name("formats", tests, NULL, NULL);
}
