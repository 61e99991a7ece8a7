#include "kld/store/columns.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <math.h>
#include <string.h>

/* Codes of a log-probability: an even/odd zigzag step, or one of these. */
static const uint32_t CODE_NEG_INF = UINT32_MAX, CODE_WIDE = UINT32_MAX - 1;
/* Steps at and past this do not fit the code and go to COL_WIDE. */
static const double STEP_LIMIT = 0x1p30;

static kld_status reserve(column *c, size_t n, kld_err *err) {
    if (n <= c->cap) return KLD_OK;
    size_t cap = num_max(n, c->cap * 2);
    cap = num_max(cap, 256);
    TRY(kld_realloc((void **)&c->v, cap, sizeof *c->v, err));
    c->cap = cap;
    return KLD_OK;
}

kld_status column_add(column *c, uint32_t v, kld_err *err) {
    TRY(reserve(c, c->n + 1, err));
    c->v[c->n++] = v;
    return KLD_OK;
}

kld_status column_add_f32(column *c, float v, kld_err *err) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return column_add(c, bits, err);
}

void columns_free(columns *c) {
    for (size_t i = 0; i < COL_END; i++) kld_free(c->col[i].v);
    memset(c, 0, sizeof *c);
}

kld_status columns_write(const columns *c, kld_buf *out, kld_err *err) {
    for (size_t id = 1; id < COL_END; id++) {
        const column *k = &c->col[id];
        size_t n = id == COL_HIDDEN ? c->hidden_n : k->n;
        if (n == 0) continue;
        if (n > UINT32_MAX) return kld_fail(err, KLD_E_INTERNAL, "a column is too long");
        TRY(kld_buf_u8(out, (uint8_t)id, err));
        TRY(kld_buf_u32(out, (uint32_t)n, err));
        if (id == COL_HIDDEN) {
            TRY(kld_buf_add(out, c->hidden, 4 * n, err));
            continue;
        }
        TRY(kld_buf_reserve(out, 4 * k->n, err));
        unsigned char *p = out->data + out->len;
        for (size_t i = 0; i < k->n; i++)
            for (size_t b = 0; b < 4; b++) p[b * k->n + i] = (unsigned char)(k->v[i] >> (8 * b));
        out->len += 4 * k->n;
        out->data[out->len] = 0;
    }
    return KLD_OK;
}

kld_status columns_read(columns *c, kld_cursor *in, kld_err *err) {
    memset(c, 0, sizeof *c);
    size_t last = 0;
    while (kld_cursor_left(in) > 0) {
        size_t id = kld_cursor_u8(in), n = kld_cursor_u32(in);
        if (in->bad || id <= last || id >= COL_END || n == 0 || n > kld_cursor_left(in) / 4)
            return kld_fail(err, KLD_E_INPUT, "column %zu after column %zu: damaged or unknown", id,
                            last);
        const unsigned char *p = kld_cursor_take(in, 4 * n);
        column *k = &c->col[id];
        last = id;
        if (id == COL_HIDDEN) {
            c->hidden = p;
            c->hidden_n = n;
            continue;
        }
        TRY(reserve(k, n, err));
        for (size_t i = 0; i < n; i++)
            k->v[i] = p[i] | (uint32_t)p[n + i] << 8 | (uint32_t)p[2 * n + i] << 16 |
                      (uint32_t)p[3 * n + i] << 24;
        k->n = n;
    }
    return KLD_OK;
}

kld_status column_take(columns *c, column_id id, uint32_t *v, kld_err *err) {
    column *k = &c->col[id];
    if (k->at >= k->n)
        return kld_fail(err, KLD_E_INPUT, "column %d ends after %zu values", (int)id, k->n);
    *v = k->v[k->at++]; /* NOLINT(clang-analyzer-core.NullDereference): n > 0 values are there */
    return KLD_OK;
}

kld_status column_take_f32(columns *c, column_id id, float *v, kld_err *err) {
    uint32_t bits = 0;
    TRY(column_take(c, id, &bits, err));
    memcpy(v, &bits, sizeof bits);
    return KLD_OK;
}

kld_status column_run(columns *c, column_id id, size_t n, const uint32_t **v, kld_err *err) {
    column *k = &c->col[id];
    *v = NULL;
    if (n > k->n - k->at)
        return kld_fail(err, KLD_E_INPUT, "column %d ends after %zu values", (int)id, k->n);
    if (n > 0) *v = k->v + k->at;
    k->at += n;
    return KLD_OK;
}

kld_status columns_finish(const columns *c, kld_err *err) {
    for (size_t id = 1; id < COL_END; id++)
        if (c->col[id].at != c->col[id].n)
            return kld_fail(err, KLD_E_INPUT, "column %zu holds %zu values, %zu are used", id,
                            c->col[id].n, c->col[id].at);
    return KLD_OK;
}

static double grid(int fine) { return fine ? 0x1p20 : 0x1p13; }

/* A prediction that is not finite predicts nothing. */
static double steps_of(double pred, double g) { return isfinite(pred) ? nearbyint(pred * g) : 0; }

kld_status lp_add(columns *c, column_id id, double lp, double pred, int fine, double *rounded,
                  kld_err *err) {
    if (isnan(lp) || lp == INFINITY)
        return kld_fail(err, KLD_E_NUMERIC, "a log-probability is %s in a row said to be finite",
                        isnan(lp) ? "NaN" : "+inf");
    if (lp == -INFINITY) {
        *rounded = lp;
        return column_add(&c->col[id], CODE_NEG_INF, err);
    }
    double g = grid(fine), v = nearbyint(lp * g), step = steps_of(pred, g) - v;
    if (!(fabs(step) < STEP_LIMIT)) {
        float wide = (float)lp;
        *rounded = (double)wide;
        TRY(column_add(&c->col[id], CODE_WIDE, err));
        return column_add_f32(&c->col[COL_WIDE], wide, err);
    }
    /* Zigzag: a step down (the usual case in a sorted list) is even. */
    int64_t s = (int64_t)step;
    uint32_t code = (uint32_t)(s >= 0 ? 2 * s : -2 * s - 1);
    *rounded = v / g + 0.0;
    return column_add(&c->col[id], code, err);
}

kld_status lp_take(columns *c, column_id id, double pred, int fine, double *lp, kld_err *err) {
    uint32_t code = 0;
    TRY(column_take(c, id, &code, err));
    if (code == CODE_NEG_INF) {
        *lp = -INFINITY;
        return KLD_OK;
    }
    if (code == CODE_WIDE) {
        float wide = 0;
        TRY(column_take_f32(c, COL_WIDE, &wide, err));
        if (isnan(wide) || wide == INFINITY)
            return kld_fail(err, KLD_E_INPUT, "a log-probability is NaN or +inf");
        *lp = (double)wide;
        return KLD_OK;
    }
    double g = grid(fine), step = code & 1 ? -(double)(code >> 1) - 1 : (double)(code >> 1);
    *lp = (steps_of(pred, g) - step) / g + 0.0;
    return KLD_OK;
}

/* The n codes that come next when all of them are steps, else NULL: the end of the column, -inf
 * and wide values are left to lp_take. */
static const uint32_t *only_steps(const columns *c, column_id id, size_t n) {
    const column *k = &c->col[id];
    if (n == 0 || n > k->n - k->at) return NULL;
    const uint32_t *code = k->v + k->at;
    uint32_t special = 0;
    for (size_t i = 0; i < n; i++) special |= code[i] >= CODE_WIDE;
    return special ? NULL : code;
}

static int32_t step_of(uint32_t code) { return (int32_t)(code >> 1 ^ (0 - (code & 1))); }

kld_status lp_take_run(columns *c, column_id id, size_t n, const double *pred, int fine, double *lp,
                       kld_err *err) {
    /* Adding and taking away 1.5 x 2^52 rounds to whole numbers as nearbyint does, below 2^51. */
    static const double ROUND = 0x1.8p52, LIMIT = 0x1p51;
    const uint32_t *code = only_steps(c, id, n);
    double g = grid(fine), back = 1 / g;
    int beyond = !code;
    for (size_t i = 0; code && i < n; i++) {
        double at = pred ? pred[i] * g : 0;
        beyond |= !(fabs(at) < LIMIT);
        lp[i] = ((at + ROUND) - ROUND - (double)step_of(code[i])) * back + 0.0;
    }
    if (beyond) {
        for (size_t i = 0; i < n; i++) TRY(lp_take(c, id, pred ? pred[i] : 0, fine, &lp[i], err));
        return KLD_OK;
    }
    c->col[id].at += n;
    return KLD_OK;
}

kld_status lp_take_chain(columns *c, column_id id, size_t n, double pred, int fine, double *lp,
                         kld_err *err) {
    const uint32_t *code = only_steps(c, id, n);
    double g = grid(fine), back = 1 / g, from = steps_of(pred, g);
    if (!code || !(fabs(from) < 0x1p51)) {
        for (size_t i = 0; i < n; i++) {
            TRY(lp_take(c, id, pred, fine, &lp[i], err));
            pred = lp[i];
        }
        return KLD_OK;
    }
    /* A list has 4,096 values at most: below 2^53, where doubles hold whole numbers. */
    int64_t at = (int64_t)from;
    for (size_t i = 0; i < n; i++) {
        at -= step_of(code[i]);
        lp[i] = (double)at * back + 0.0;
    }
    c->col[id].at += n;
    return KLD_OK;
}
