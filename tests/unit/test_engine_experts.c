/* Layers with experts: neither groups, batches, lanes, spills nor resuming leave a trace, and what
 * tokens were sent to can be taken out and put in again. */
#include "tests/unit/enginekit.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* What was used, window by window. */
typedef struct log_book {
    size_t layers, k;
    uint32_t *id;
    float *weight, *margin;
    size_t n_told, told[2 * WINDOWS];
    const kld_seq *seqs;
    uint32_t wrong; /* > 0: given instead of the first id of window 3 */
} log_book;

static size_t row_of(const log_book *b, size_t layer, size_t w) {
    size_t row = layer * TOKENS;
    for (size_t i = 0; i < w; i++) row += b->seqs[i].n;
    return row;
}

static kld_status take(void *ctx, size_t layer, size_t w, size_t n, const kld_routes *r,
                       kld_err *err) {
    log_book *b = ctx;
    size_t row = row_of(b, layer, w);
    (void)err;
    assert_true(layer < b->layers && n == b->seqs[w].n && b->n_told < 2 * WINDOWS);
    b->told[b->n_told++] = layer * WINDOWS + w;
    memcpy(b->id + row * b->k, r->id, n * b->k * sizeof *r->id);
    memcpy(b->weight + row * b->k, r->weight, n * b->k * sizeof *r->weight);
    memcpy(b->margin + row, r->margin, n * sizeof *r->margin);
    return KLD_OK;
}

static kld_status give(void *ctx, size_t layer, size_t w, size_t n, kld_routes *r, kld_err *err) {
    const log_book *b = ctx;
    size_t row = row_of(b, layer, w);
    (void)err;
    memcpy(r->id, b->id + row * b->k, n * b->k * sizeof *r->id);
    memcpy(r->weight, b->weight + row * b->k, n * b->k * sizeof *r->weight);
    if (b->wrong && w == 3 && layer == 1) r->id[1] = b->wrong == 1 ? r->id[0] : b->wrong;
    return KLD_OK;
}

static void open_book(log_book *b, const scene *s) {
    *b = (log_book){.layers = 2, .k = s->t.chosen, .seqs = s->seqs};
    b->id = calloc(2 * TOKENS * b->k, sizeof *b->id);
    b->weight = calloc(2 * TOKENS * b->k, sizeof *b->weight);
    b->margin = calloc(2 * TOKENS, sizeof *b->margin);
    assert_true(b->id && b->weight && b->margin);
}

static void close_book(log_book *b) {
    free(b->id);
    free(b->weight);
    free(b->margin);
}

static void no_trace(void **state) {
    (void)state;
    static const int lanes[3] = {0, 0, 0};
    int threads = omp_get_max_threads();
    for (int p = 0; p < 2; p++) {
        scene s;
        scene_open(&s, tiny_moe);
        kld_engine_options o = default_options(s.m->config.vocab);
        o.precision = (kld_precision)p;
        collected a, b;
        kld_engine_stats st;
        scene_run_ok(&s, &o, &a, &st);
        uint64_t stored = 0;
        for (kld_weight_at at = {0}; kld_model_next_weight(s.m, &at);)
            stored += kld_weight_bytes(at.w);
        assert_int_equal(st.bytes_read, stored);
        for (size_t g = 1; g < 8; g++) {
            o.expert_group = g;
            omp_set_num_threads(1 + (int)g % 3);
            scene_run_ok(&s, &o, &b, &st);
            assert_int_equal(st.bytes_read, stored);
            same_records(&a, &b, "other groups");
            collected_free(&b);
        }
        omp_set_num_threads(threads);
        o.expert_group = 3;
        o.memory = 1;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "spilled");
        collected_free(&b);
        o.devices = lanes;
        o.n_devices = 3;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "three lanes");
        collected_free(&b);
        /* Without the others, each expert has other rows. */
        same_alone(&s, &o, &a);
        collected_free(&a);
        scene_close(&s);
    }
}

static void resuming(void **state) {
    (void)state;
    scene s;
    scene_open(&s, tiny_moe);
    kld_engine_options o = default_options(s.m->config.vocab);
    collected a, b = {.fail_at = SIZE_MAX};
    kld_err err = {0};
    kld_engine_stats st;
    scene_run_ok(&s, &o, &a, NULL);
    o.state_dir = s.state;
    o.expert_group = 2;
    for (size_t i = 1; i <= 3; i++) {
        o.stop_after_layer = i;
        o.resume = false;
        assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INTERRUPTED);
        collected_free(&b);
        o.stop_after_layer = 0;
        o.resume = true;
        scene_run_ok(&s, &o, &b, &st);
        assert_int_equal(st.resumed_layer, i);
        same_records(&a, &b, "resumed");
        collected_free(&b);
        need(kld_remove_tree(s.state, &err), &err, s.state);
        b = (collected){.fail_at = SIZE_MAX};
    }
    collected_free(&a);
    scene_close(&s);
}

static void routes(void **state) {
    (void)state;
    for (int p = 0; p < 2; p++) {
        scene s;
        scene_open(&s, tiny_moe);
        kld_engine_options o = default_options(s.m->config.vocab);
        log_book book, again;
        collected a, b = {.fail_at = SIZE_MAX};
        kld_err err = {0};
        o.precision = (kld_precision)p;
        open_book(&book, &s);
        open_book(&again, &s);
        scene_run_ok(&s, &o, &a, NULL);
        kld_route_io io = {.ctx = &book, .take = take};
        o.routes = &io;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "watched");
        collected_free(&b);
        assert_int_equal(book.n_told, 2 * WINDOWS);
        for (size_t i = 0; i < 2 * WINDOWS; i++) assert_int_equal(book.told[i], i);
        for (size_t i = 0; i < 2 * TOKENS; i++) {
            float sum = 0;
            for (size_t k = 0; k < book.k; k++) {
                sum += book.weight[i * book.k + k];
                assert_true(book.id[i * book.k + k] < s.t.experts);
                if (k) /* best first */
                    assert_true(book.weight[i * book.k + k] <= book.weight[i * book.k + k - 1]);
            }
            assert_true(fabsf(sum - 1) < 1e-5f && book.margin[i] >= 0);
        }
        /* Its own routes: all of them, and the ids alone. */
        for (int ids = 0; ids < 2; ids++) {
            io = (kld_route_io){.ctx = &book, .give = give, .ids_only = ids};
            scene_run_ok(&s, &o, &b, NULL);
            same_records(&a, &b, ids ? "own ids" : "own routes");
            collected_free(&b);
        }
        /* Other weights, other results; unless only the ids are forced. */
        for (size_t i = 0; i < 2 * TOKENS * book.k; i++) book.weight[i] *= 0.5f;
        scene_run_ok(&s, &o, &b, NULL);
        same_records(&a, &b, "ids alone: weights are not looked at");
        collected_free(&b);
        io.ids_only = false;
        scene_run_ok(&s, &o, &b, NULL);
        assert_memory_not_equal(a.records.data, b.records.data, a.records.len);
        collected_free(&b);
        /* What cannot be a route. */
        static const char *const why[] = {"is there twice", "does not exist"};
        for (uint32_t i = 0; i < 2; i++) {
            book.wrong = i ? (uint32_t)s.t.experts : 1;
            b = (collected){.fail_at = SIZE_MAX};
            assert_int_equal(scene_run(&s, s.seqs, WINDOWS, &o, &b, NULL, &err), KLD_E_INPUT);
            if (!strstr(err.text, why[i]) || !strstr(err.text, "window 3, position 0"))
                fail_msg("'%s' does not say '%s'", err.text, why[i]);
            collected_free(&b);
        }
        collected_free(&a);
        close_book(&book);
        close_book(&again);
        scene_close(&s);
    }
}

int main(void) {
    kld_log_set_level(KLD_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_trace),
        cmocka_unit_test(resuming),
        cmocka_unit_test(routes),
    };
    return cmocka_run_group_tests_name("engine, experts", tests, NULL, NULL);
}
