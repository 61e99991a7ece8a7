#include "kld/capture/npy.h"

#include "kld/base/buf.h"
#include "kld/base/cursor.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 1 << 26, MAX_FILE = 8 * MAX_IDS + 8192 };
static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

typedef struct npy_header {
    size_t width; /* bytes an element */
    bool is_signed;
    size_t n;
} npy_header;

/* The text after 'key': in the header's Python dictionary, or NULL. */
static const char *after_key(const char *dict, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *p = strstr(dict, quoted);
    if (!p) return NULL;
    p += strlen(quoted);
    while (*p == ' ') p++;
    return p;
}

/* "(n,)" or "(1, n)". */
static bool parse_shape(const char *p, size_t *n) {
    unsigned long long dim[2];
    size_t rank = 0;
    if (!p || *p++ != '(') return false;
    while (rank < 2 && *p >= '0' && *p <= '9') {
        char *end;
        dim[rank++] = strtoull(p, &end, 10);
        p = end;
        while (*p == ',' || *p == ' ') p++;
    }
    if (*p != ')' || rank == 0 || (rank == 2 && dim[0] != 1)) return false;
    *n = (size_t)dim[rank - 1];
    return true;
}

static kld_status parse_header(const char *path, kld_cursor *c, npy_header *h, kld_err *err) {
    const unsigned char *m = kld_cursor_take(c, 6);
    uint8_t major = kld_cursor_u8(c);
    (void)kld_cursor_u8(c);
    if (c->bad || memcmp(m, magic, 6) != 0)
        return kld_fail(err, KLD_E_INPUT, "%s: not a NumPy .npy file", path);
    size_t len = major == 1 ? kld_cursor_u16(c) : kld_cursor_u32(c);
    const unsigned char *text = kld_cursor_take(c, len);
    if (c->bad || major < 1 || major > 3 || len > 4096)
        return kld_fail(err, KLD_E_INPUT, "%s: damaged .npy header", path);
    char dict[4097];
    memcpy(dict, text, len);
    dict[len] = '\0';
    const char *descr = after_key(dict, "descr"), *order = after_key(dict, "fortran_order");
    static const struct {
        const char *name;
        npy_header h;
    } types[] = {{"'<i4'", {4, true, 0}},
                 {"'<u4'", {4, false, 0}},
                 {"'<i8'", {8, true, 0}},
                 {"'<u8'", {8, false, 0}}};
    bool known = false;
    for (size_t i = 0; descr && i < sizeof types / sizeof *types; i++)
        if (strncmp(descr, types[i].name, 5) == 0) {
            *h = types[i].h;
            known = true;
        }
    if (!known)
        return kld_fail(err, KLD_E_INPUT,
                        "%s: token ids must be little-endian int32, uint32, int64 or uint64; the "
                        "header says %.20s",
                        path, descr ? descr : "nothing");
    if (!order || strncmp(order, "False", 5) != 0 || !parse_shape(after_key(dict, "shape"), &h->n))
        return kld_fail(err, KLD_E_INPUT, "%s: expected a 1-D array in C order, found %.80s", path,
                        dict);
    if (h->n > MAX_IDS)
        return kld_fail(err, KLD_E_INPUT, "%s: %zu ids; at most %d are accepted here", path, h->n,
                        MAX_IDS);
    return KLD_OK;
}

kld_status kld_npy_read_ids(const char *path, uint32_t **ids, size_t *n, kld_err *err) {
    kld_buf file = {0};
    *ids = NULL;
    *n = 0;
    kld_status st;
    npy_header h = {0};
    TRY_TO(done, kld_file_slurp(path, MAX_FILE, &file, err));
    kld_cursor c = kld_cursor_of(file.data, file.len);
    TRY_TO(done, parse_header(path, &c, &h, err));
    if (kld_cursor_left(&c) != h.n * h.width) {
        st = kld_fail(err, KLD_E_INPUT, "%s: the header promises %zu bytes of data, %zu are there",
                      path, h.n * h.width, kld_cursor_left(&c));
        goto done;
    }
    TRY_TO(done, NEW_ARRAY(ids, h.n, err));
    for (size_t i = 0; i < h.n; i++) {
        uint64_t v = h.width == 4 ? kld_cursor_u32(&c) : kld_cursor_u64(&c);
        bool negative = h.is_signed && v >> (8 * h.width - 1);
        if (negative || v > UINT32_MAX) {
            st = kld_fail(err, KLD_E_INPUT, "%s: element %zu is not a token id", path, i);
            kld_free(*ids);
            *ids = NULL;
            goto done;
        }
        (*ids)[i] = (uint32_t)v;
    }
    *n = h.n;
    st = KLD_OK;
done:
    kld_buf_free(&file);
    return st;
}

kld_status kld_npy_header_f32(kld_writer *w, size_t rows, size_t cols, kld_err *err) {
    char dict[118];
    /* Magic, version, length and dictionary together are 128 bytes, so data is aligned. */
    int n = snprintf(dict, sizeof dict,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, cols);
    if (n < 0 || (size_t)n >= sizeof dict - 1)
        return kld_fail(err, KLD_E_INTERNAL, ".npy header too long");
    memset(dict + n, ' ', sizeof dict - (size_t)n);
    dict[sizeof dict - 1] = '\n';
    TRY(kld_writer_add(w, magic, sizeof magic, err));
    static const unsigned char version_and_length[4] = {1, 0, 118, 0};
    TRY(kld_writer_add(w, version_and_length, 4, err));
    return kld_writer_add(w, dict, sizeof dict, err);
}
