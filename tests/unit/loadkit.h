/* tests/unit/loadkit.h - safetensors files for tests: loading goldens, and writing small
 * checkpoints into a temporary directory. */
#ifndef TESTS_UNIT_LOADKIT_H
#define TESTS_UNIT_LOADKIT_H
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
typedef struct loaded {
    kld_buf bytes;
    kld_arena arena;
    kld_tensor *t;
    size_t n;
} loaded;

void load(loaded *f, const char *path);
void unload(loaded *f);
const kld_tensor *tensor(const loaded *f, const char *name);
const unsigned char *part(const loaded *f, const char *name);

/* A checkpoint under construction. */
typedef struct built {
    char dir[64];
    kld_buf header, data;
    size_t n;
} built;

void build_begin(built *b); /* a fresh directory under /tmp */
/* Append a tensor; `fill` is the byte every data byte has when data is NULL. */
void build_tensor(built *b, const char *name, const char *dtype, const char *shape,
                  const void *data, size_t bytes, int fill);
void build_write(built *b, const char *file); /* and starts the next file */
void build_text(const built *b, const char *file, const char *text);
void build_end(built *b); /* removes the directory */

/* Write bytes to dir/file. */
void put_file(const char *dir, const char *file, const void *bytes, size_t n);

#endif
