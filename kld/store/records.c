#include "kld/store/records.h"

#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <string.h>

kld_status kld_records_alloc(kld_records *r, size_t n, size_t k_ld, size_t m, size_t ref_ld,
                             size_t ref_m, kld_err *err) {
    memset(r, 0, sizeof *r);
    kld_status st;
    /* Rows are the outer count, so an overflow of n * ld is caught by the allocator as long
     * as ld * size fits, which the id width guarantees. */
    TRY_TO(out, kld_calloc((void **)&r->count, n, sizeof *r->count, err));
    TRY_TO(out, kld_calloc((void **)&r->ids, n, k_ld * sizeof *r->ids, err));
    TRY_TO(out, kld_calloc((void **)&r->lp, n, k_ld * sizeof *r->lp, err));
    TRY_TO(out, NEW_ARRAY(&r->label, n, err));
    TRY_TO(out, NEW_ARRAY(&r->label_lp, n, err));
    TRY_TO(out, NEW_ARRAY(&r->lse, n, err));
    TRY_TO(out, NEW_ARRAY(&r->entropy, n, err));
    TRY_TO(out, NEW_ARRAY(&r->tail_mass, n, err));
    TRY_TO(out, kld_calloc((void **)&r->tail_ids, n, m * sizeof *r->tail_ids, err));
    TRY_TO(out, kld_calloc((void **)&r->tail_lp, n, m * sizeof *r->tail_lp, err));
    TRY_TO(out, kld_calloc((void **)&r->ref_lp, n, ref_ld * sizeof *r->ref_lp, err));
    TRY_TO(out, kld_calloc((void **)&r->ref_tail_lp, n, ref_m * sizeof *r->ref_tail_lp, err));
    r->n = n;
    r->k_ld = k_ld;
    r->m = m;
    r->ref_ld = ref_ld;
    r->ref_m = ref_m;
out:
    if (st != KLD_OK) kld_records_free(r);
    return st;
}

kld_status kld_records_alloc_routes(kld_records *r, size_t tokens, size_t layers, size_t k,
                                    kld_err *err) {
    kld_status st;
    size_t rows;
    if (!num_mul_size(tokens, layers, &rows))
        return kld_fail(err, KLD_E_NOMEM, "%zu x %zu routes are too many", tokens, layers);
    TRY_TO(out, kld_calloc((void **)&r->route_id, rows, k * sizeof *r->route_id, err));
    TRY_TO(out, kld_calloc((void **)&r->route_weight, rows, k * sizeof *r->route_weight, err));
    TRY_TO(out, NEW_ARRAY(&r->route_margin, rows, err));
    r->route_tokens = tokens;
    r->route_layers = layers;
    r->route_k = k;
    return KLD_OK;
out:
    kld_free(r->route_id);
    kld_free(r->route_weight);
    r->route_id = NULL;
    r->route_weight = NULL;
    return st;
}

kld_status kld_records_alloc_hidden(kld_records *r, size_t cols, size_t bytes, kld_err *err) {
    size_t all;
    if (!num_mul_size(r->n, cols, &all))
        return kld_fail(err, KLD_E_NOMEM, "%zu x %zu hidden states are too many", r->n, cols);
    TRY(kld_calloc(&r->hidden, all, bytes, err));
    r->hidden_cols = cols;
    r->hidden_bytes = bytes;
    return KLD_OK;
}

void kld_records_free(kld_records *r) {
    kld_free(r->hidden);
    kld_free(r->route_id);
    kld_free(r->route_weight);
    kld_free(r->route_margin);
    kld_free(r->count);
    kld_free(r->ids);
    kld_free(r->lp);
    kld_free(r->label);
    kld_free(r->label_lp);
    kld_free(r->lse);
    kld_free(r->entropy);
    kld_free(r->tail_mass);
    kld_free(r->tail_ids);
    kld_free(r->tail_lp);
    kld_free(r->ref_lp);
    kld_free(r->ref_tail_lp);
    memset(r, 0, sizeof *r);
}
