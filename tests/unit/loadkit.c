#include "tests/unit/loadkit.h"

#include "kld/base/file.h"

#include <stdlib.h>
#include <unistd.h>

void load(loaded *f, const char *path) {
    kld_err err = {0};
    memset(f, 0, sizeof *f);
    if (kld_file_slurp(path, 1 << 26, &f->bytes, &err) != KLD_OK ||
        kld_safetensors_parse(path, f->bytes.data, f->bytes.len, f->bytes.len, 0, &f->arena, &f->t,
                              &f->n, &err) != KLD_OK)
        fail_msg("%s", err.text);
}

void unload(loaded *f) {
    kld_buf_free(&f->bytes);
    kld_arena_free(&f->arena);
}

const kld_tensor *tensor(const loaded *f, const char *name) {
    for (size_t i = 0; i < f->n; i++) {
        if (!strcmp(f->t[i].name, name)) return &f->t[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

const unsigned char *part(const loaded *f, const char *name) {
    return f->bytes.data + tensor(f, name)->offset;
}

void build_begin(built *b) {
    memset(b, 0, sizeof *b);
    snprintf(b->dir, sizeof b->dir, "/tmp/kldtest.XXXXXX");
    assert_non_null(mkdtemp(b->dir));
}

void build_tensor(built *b, const char *name, const char *dtype, const char *shape,
                  const void *data, size_t bytes, int fill) {
    size_t at = b->data.len;
    assert_int_equal(
        kld_buf_addf(&b->header, NULL,
                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                     b->n ? "," : "{", name, dtype, shape, at, at + bytes),
        KLD_OK);
    b->n++;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = data ? ((const unsigned char *)data)[i] : (unsigned char)fill;
        assert_int_equal(kld_buf_add(&b->data, &c, 1, NULL), KLD_OK);
    }
}

void build_write(built *b, const char *file) {
    kld_buf out = {0};
    if (!b->n) assert_int_equal(kld_buf_adds(&b->header, "{", NULL), KLD_OK);
    assert_int_equal(kld_buf_adds(&b->header, "}", NULL), KLD_OK);
    assert_int_equal(kld_buf_u64(&out, b->header.len, NULL), KLD_OK);
    assert_int_equal(kld_buf_add(&out, b->header.data, b->header.len, NULL), KLD_OK);
    if (b->data.len) assert_int_equal(kld_buf_add(&out, b->data.data, b->data.len, NULL), KLD_OK);
    put_file(b->dir, file, out.data, out.len);
    kld_buf_free(&out);
    kld_buf_clear(&b->header);
    kld_buf_clear(&b->data);
    b->n = 0;
}

void build_text(const built *b, const char *file, const char *text) {
    put_file(b->dir, file, text, strlen(text));
}

void build_end(built *b) {
    kld_buf_free(&b->header);
    kld_buf_free(&b->data);
    assert_int_equal(kld_remove_tree(b->dir, NULL), KLD_OK);
}

void put_file(const char *dir, const char *file, const void *bytes, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (n) assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
