#include "loaders/safetensors_write.h"

#include "kld/base/num.h"

#include <string.h>

static kld_status tensor_bytes(const kld_tensor *t, uint64_t *out, kld_err *err) {
    uint64_t bits = kld_dtype_bits(t->dtype);
    for (unsigned d = 0; d < t->rank; d++)
        if (!num_mul_u64(bits, t->shape[d], &bits))
            return kld_fail(err, KLD_E_INPUT, "tensor '%s' is too large", t->name);
    *out = bits / 8;
    return KLD_OK;
}

static kld_status add_entry(const kld_tensor *t, kld_buf *out, kld_err *err) {
    json_t *name = json_string(t->name);
    if (!name) return kld_fail(err, KLD_E_NOMEM, "out of memory for a tensor name");
    kld_status st = kld_buf_adds(out, ",", err);
    if (st == KLD_OK) st = kld_json_dump(name, false, out, err);
    json_decref(name);
    TRY(st);
    TRY(kld_buf_addf(out, err, ":{\"dtype\":\"%s\",\"shape\":[", kld_dtype_name(t->dtype)));
    for (unsigned d = 0; d < t->rank; d++)
        TRY(kld_buf_addf(out, err, d ? ",%llu" : "%llu", (unsigned long long)t->shape[d]));
    return kld_buf_addf(out, err, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
                        (unsigned long long)(t->offset + t->bytes));
}

/* Stable partition into the four alignments; files have thousands of tensors, not millions. */
static kld_status sort_by_alignment(kld_tensor *t, size_t n, kld_err *err) {
    kld_tensor *sorted;
    size_t k = 0;
    if (n == 0) return KLD_OK;
    TRY(NEW_ARRAY(&sorted, n, err));
    for (unsigned bits = 64; bits >= 8; bits /= 2)
        for (size_t i = 0; i < n; i++) {
            unsigned b = kld_dtype_bits(t[i].dtype);
            if (b == bits || (bits == 8 && b < 8)) sorted[k++] = t[i];
        }
    memcpy(t, sorted, n * sizeof *t);
    kld_free(sorted);
    return k == n ? KLD_OK : kld_fail(err, KLD_E_INTERNAL, "a dtype has no alignment");
}

kld_status kld_safetensors_layout(kld_tensor *t, size_t n, const json_t *metadata, kld_buf *out,
                                  kld_err *err) {
    uint64_t at = 0;
    size_t start = out->len;
    TRY(sort_by_alignment(t, n, err));
    TRY(kld_buf_u64(out, 0, err));
    TRY(kld_buf_adds(out, "{\"__metadata__\":", err));
    TRY(metadata ? kld_json_dump(metadata, false, out, err)
                 : kld_buf_adds(out, "{\"format\":\"pt\"}", err));
    for (size_t i = 0; i < n; i++) {
        TRY(tensor_bytes(&t[i], &t[i].bytes, err));
        t[i].offset = at;
        if (!num_add_u64(at, t[i].bytes, &at))
            return kld_fail(err, KLD_E_INPUT, "the file would be too large");
        TRY(add_entry(&t[i], out, err));
    }
    TRY(kld_buf_adds(out, "}", err));
    while ((out->len - start) % 8) TRY(kld_buf_adds(out, " ", err));
    uint64_t length = out->len - start - 8;
    for (size_t b = 0; b < 8; b++) out->data[start + b] = (unsigned char)(length >> (8 * b));
    return KLD_OK;
}
