/* tests/unit/enginekit.h - running the engine in tests: golden models, synthetic models,
 * and collecting what it delivers. */
#ifndef TESTS_UNIT_ENGINEKIT_H
#define TESTS_UNIT_ENGINEKIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kld/base/buf.h"
#include "kld/store/records.h"
#include "logits/engine.h"

/* Fail the test with the message when st is not KLD_OK. */
void need(kld_status st, const kld_err *err, const char *what);

/* Array of a .npy file (version 1, C order): element type '<f4' or '<i8'. */
typedef struct npy {
    kld_buf bytes;
    size_t dim[4], rank, offset;
} npy;
bool npy_load(npy *a, const char *path, const char *type); /* false when absent */
const float *npy_f32(const npy *a);
int64_t npy_i64(const npy *a, size_t i);

/* Everything a run delivers.  Records are kept as bytes, window after window, so that two
 * runs can be compared exactly. */
typedef struct collected {
    size_t vocab, n_windows; /* windows delivered */
    size_t fail_at;          /* the records callback of this window fails; SIZE_MAX = none */
    bool want_logits;
    kld_buf logits; /* FP32 rows in order of delivery */
    kld_buf records;
    kld_buf mark;             /* size_t: length of `records` before each window */
    const kld_gather *gather; /* [windows] or NULL */
} collected;
kld_sink sink_of(collected *c);
void collected_free(collected *c);

/* A random Llama-like or Qwen-like checkpoint in a temporary directory. */
typedef struct tiny {
    size_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, window;
    bool tied, qwen3, qwen2;
    /* > 0: Qwen3 with experts, but in its second layer. */
    size_t experts, chosen, expert_intermediate;
    char dir[64];
} tiny;
void tiny_write(tiny *t, uint64_t seed);
void tiny_remove(const tiny *t);

/* Pseudo-random in [0, 1) and roughly normal. */
double rnd(uint64_t *state);
double rnd_normal(uint64_t *state);

kld_engine_options default_options(size_t vocab);

extern const tiny tiny_llama, tiny_qwen, tiny_moe;
/* With experts, and inputs of all products in whole blocks of 32. */
extern const tiny tiny_blocks;
/* Every format of quantized inputs. */
enum { SAMPLE_INPUTS = 6 };
extern const kld_act_quant sample_inputs[SAMPLE_INPUTS];
/* Give the linear layers of a model quantized inputs of every format, experts each a scale of
 * their own. */
void declare_inputs(kld_model *m);

/* A small model and windows of awkward lengths: empty, one token, a chunk and a bit, and
 * one longer than a batch. */
enum { WINDOWS = 6, TOKENS = 1 + 40 + 0 + 300 + 1400 + 65 };
typedef struct scene {
    tiny t;
    kld_model *m;
    uint32_t *ids;
    kld_seq seqs[WINDOWS];
    char state[96]; /* directory for checkpoints */
} scene;
void scene_open(scene *s, tiny t);
void scene_close(scene *s);

/* Where scenes run; NULL is the CPU. */
extern const kld_backend *scene_backend;

/* Collects into *c as it stands; stats may be NULL. */
kld_status scene_run(const scene *s, const kld_seq *seqs, size_t n, const kld_engine_options *o,
                     collected *c, kld_engine_stats *stats, kld_err *err);
/* All windows into a fresh *c; fails the test unless it succeeds. */
void scene_run_ok(const scene *s, const kld_engine_options *o, collected *c,
                  kld_engine_stats *stats);
/* Bytes of window i without its index, which the caller's numbering decides; borrowed. */
kld_buf part_of(const collected *c, size_t i);
/* Each of the windows from 3 on gives what it gave among the others (`all`) when it runs without
 * them. */
void same_alone(const scene *s, const kld_engine_options *o, const collected *all);
void same_records(const collected *a, const collected *b, const char *what);

#endif
