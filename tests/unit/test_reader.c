/* Stages read ahead: every byte once, in order, and what is odd in them counted. */
#include "logits/reader.h"
#include "tests/unit/tinymodel.h"

#include <math.h>

#define UP L "mlp.up_proj."
static const float one = 1;
static kld_schedule schedule;

/* Stages 0, 1, 2 of the one-layer model: the embedding, the layer, norm and head. */
static void read_all(const char *dir, kld_reader *r, kld_model **m) {
    static kld_device *none; /* the CPU's memory needs no device */
    kld_err err = {0};
    *m = tiny_open(dir);
    if (kld_schedule_make(&schedule, *m, 1 << 20, 0, &err) != KLD_OK) fail_msg("%s", err.text);
    if (kld_reader_open(r, *m, &schedule, kld_backend_cpu(), &none, 1, 0, &err) != KLD_OK)
        fail_msg("%s", err.text);
    uint64_t bytes = 0;
    for (size_t i = 0; i < 3; i++) {
        const kld_stage *s;
        if (kld_reader_next(r, &s, &err) != KLD_OK) fail_msg("%s", err.text);
        assert_int_equal(s->n, i == 0 ? 1 : i == 1 ? 9 : 2);
        bytes += s->bytes;
        for (size_t k = 0; k < s->n; k++) { /* the bytes are those of the file */
            kld_raw_weight raw;
            kld_reader_weight(r, s, k, 0, &raw);
            const unsigned char *got[] = {raw.v.data,  raw.v.scale, raw.v.global, raw.v.zeros,
                                          raw.v.index, raw.bias,    raw.pre};
            for (kld_part p = KLD_PART_DATA; p < KLD_PART_COUNT; p++) {
                const kld_tensor *t = kld_weight_part(raw.w, p);
                if (!t) continue;
                unsigned char *want = malloc((size_t)t->bytes);
                assert_int_equal(
                    kld_checkpoint_read(&(*m)->ckpt, t, 0, want, (size_t)t->bytes, &err), KLD_OK);
                assert_memory_equal(got[p], want, t->bytes);
                free(want);
            }
        }
    }
    assert_int_equal(r->bytes_read, bytes);
    assert_int_equal(r->bytes_read, (*m)->ckpt.total_bytes);
}

static void done(built *b, kld_reader *r, kld_model *m) {
    kld_reader_close(r);
    kld_schedule_free(&schedule);
    kld_model_free(m);
    build_end(b);
}

static void plain(void **state) {
    (void)state;
    built b;
    kld_reader r;
    kld_model *m;
    tiny_make(&b, "{" CONFIG "}", NULL, NULL, 0);
    read_all(b.dir, &r, &m);
    assert_int_equal(r.nonfinite, 0);
    assert_int_equal(r.blocks, 0);
    done(&b, &r, m);
}

/* 0x7f80 is infinity in BF16. */
static void nonfinite(void **state) {
    (void)state;
    static uint16_t values[64 * 32];
    values[5] = 0x7f80;
    values[70] = 0xffc0;
    const spec up = {UP "weight", "BF16", "[64,32]", sizeof values, 0, values};
    built b;
    kld_reader r;
    kld_model *m;
    tiny_make(&b, "{" CONFIG "}", NULL, &up, 1);
    read_all(b.dir, &r, &m);
    assert_int_equal(r.nonfinite, 2);
    done(&b, &r, m);
}

/* Of 128 blocks, three have scale 0; one of those has nothing to lose. */
static void zero_blocks(void **state) {
    (void)state;
    static unsigned char codes[1024], scales[128];
    memset(codes, 0x21, sizeof codes);
    memset(scales, 0x38, sizeof scales);
    scales[3] = 0;
    scales[90] = 0x80;
    scales[127] = 0;
    memset(codes + 8 * 127, 0x88, 8); /* minus zero */
    const spec up[] = {{UP "weight", "U8", "[64,16]", 1024, 0, codes},
                       {UP "weight_scale", "F8_E4M3", "[64,2]", 128, 0, scales},
                       {UP "weight_scale_2", "F32", "[]", 4, 0, &one}};
    built b;
    kld_reader r;
    kld_model *m;
    tiny_make(&b, "{" CONFIG "}", NULL, up, 3);
    read_all(b.dir, &r, &m);
    assert_int_equal(r.blocks, 128);
    assert_int_equal(r.zero_blocks, 2);
    done(&b, &r, m);
}

/* Parts beside the codes: each byte of the file is read once, wherever it lies. */
static void parts_aside(void **state) {
    (void)state;
    static unsigned char codes[2048];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (unsigned char)(i * 37 & 0x77);
    static const spec all[] = {{L "mlp.gate_proj.weight", NULL, NULL, 0, 0, NULL},
                               {L "mlp.gate_proj.qweight", "I32", "[32,8]", 1024, 0, codes},
                               {L "mlp.gate_proj.qzeros", "I32", "[2,8]", 64, 0, codes},
                               {L "mlp.gate_proj.scales", "F16", "[2,64]", 256, 1, NULL},
                               {UP "weight", "F8_E4M3", "[64,32]", 2048, 0, codes},
                               {UP "weight_scale_inv", "F32", "[4,1]", 16, 1, NULL},
                               {L "mlp.down_proj.weight", NULL, NULL, 0, 0, NULL},
                               {L "mlp.down_proj.qweight", "I32", "[8,32]", 1024, 0, codes},
                               {L "mlp.down_proj.qzeros", "I32", "[2,4]", 32, 0, codes},
                               {L "mlp.down_proj.scales", "BF16", "[2,32]", 128, 1, NULL},
                               {L "mlp.down_proj.g_idx", "I32", "[64]", 256, 0, NULL},
                               {L "self_attn.q_proj.weight", "I8", "[32,32]", 1024, 0, codes},
                               {L "self_attn.q_proj.weight_scale", "F32", "[32]", 128, 1, NULL},
                               {L "self_attn.q_proj.pre_quant_scale", "F16", "[32]", 64, 0, codes}};
    static const char config[] =
        "{" CONFIG ",\"quantization_config\":{\"checkpoint_format\":\"gptq\","
        "\"weight_block_size\":[16,32]}}";
    built b;
    kld_reader r;
    kld_model *m;
    tiny_make(&b, config, NULL, all, sizeof all / sizeof *all);
    read_all(b.dir, &r, &m);
    done(&b, &r, m);
}

/* What is wrong in such a part ends the reading. */
static void bad_aside(void **state) {
    (void)state;
    static const int32_t index[32] = {[7] = 1};
    static const spec all[] = {{UP "weight", NULL, NULL, 0, 0, NULL},
                               {UP "qweight", "I32", "[4,64]", 1024, 0, NULL},
                               {UP "qzeros", "I32", "[1,8]", 32, 0x88, NULL},
                               {UP "scales", "F16", "[1,64]", 128, 1, NULL},
                               {UP "g_idx", "I32", "[32]", 128, 0, NULL}};
    static const char *const text[] = {"mlp.up_proj.qzeros': every zero point is stored as 8",
                                       "mlp.up_proj.g_idx': 1 groups are not in 0..0"};
    for (size_t i = 0; i < 2; i++) {
        static kld_device *none;
        spec s[5];
        memcpy(s, all, sizeof s);
        if (i == 1) {
            s[2].fill = 0x77;
            s[4].data = index;
        }
        built b;
        kld_reader r;
        kld_err err = {0};
        tiny_make(&b,
                  "{" CONFIG ",\"quantization_config\":{\"quant_method\":\"gptq\",\"sym\":true}}",
                  NULL, s, 5);
        kld_model *m = tiny_open(b.dir);
        const kld_stage *stage;
        assert_int_equal(kld_schedule_make(&schedule, m, 1 << 20, 0, &err), KLD_OK);
        assert_int_equal(kld_reader_open(&r, m, &schedule, kld_backend_cpu(), &none, 1, 1, &err),
                         KLD_OK);
        assert_int_equal(kld_reader_next(&r, &stage, &err), KLD_E_INPUT);
        if (!strstr(err.text, text[i])) fail_msg("'%s' does not say '%s'", err.text, text[i]);
        done(&b, &r, m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),       cmocka_unit_test(nonfinite), cmocka_unit_test(zero_blocks),
        cmocka_unit_test(parts_aside), cmocka_unit_test(bad_aside),
    };
    return cmocka_run_group_tests_name("reader", tests, NULL, NULL);
}
