/* tests/unit/ckptkit.h - safetensors files for tests: loading goldens, and writing small
 * checkpoints into a temporary directory. */
#ifndef TESTS_UNIT_CKPTKIT_H
#define TESTS_UNIT_CKPTKIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kld/base/buf.h"
#include "loaders/safetensors.h"

/* A whole file in memory. */
typedef struct ck_file {
    kld_buf bytes;
    kld_arena arena;
    kld_tensor *t;
    size_t n;
} ck_file;

void ck_load(ck_file *f, const char *path);
void ck_unload(ck_file *f);
const kld_tensor *ck_tensor(const ck_file *f, const char *name);
const unsigned char *ck_bytes(const ck_file *f, const char *name);

/* A checkpoint under construction. */
typedef struct ck_dir {
    char dir[64];
    kld_buf header, data;
    size_t n;
} ck_dir;

void ck_begin(ck_dir *b); /* a fresh directory under /tmp */
/* Append a tensor; `fill` is the byte every data byte has when data is NULL. */
void ck_add(ck_dir *b, const char *name, const char *dtype, const char *shape, const void *data,
            size_t bytes, int fill);
void ck_write(ck_dir *b, const char *file); /* and starts the next file */
void ck_text(const ck_dir *b, const char *file, const char *text);
void ck_end(ck_dir *b); /* removes the directory */

/* Write bytes to dir/file. */
void ck_put(const char *dir, const char *file, const void *bytes, size_t n);

#endif
