/* kld/capture/manifest.h - what a suite is built of.  Floor 3.
 *
 * A manifest is one JSON object (docs/suites.md).  The options of `kld suite build` fill the same
 * structure, so that both ways of building write the same record into the suite. */
#ifndef KLD_CAPTURE_MANIFEST_H
#define KLD_CAPTURE_MANIFEST_H
#include "datasets/text.h"
#include "kld/base/mem.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/capture/build_suite.h"
#include <stdbool.h>
#include <stddef.h>

KLD_EXTERN_C_BEGIN

typedef struct kld_source_file {
    const char *path;  /* to open */
    const char *shown; /* as it was written */
    bool jsonl;        /* else plain text */
    kld_digest sha256; /* set by kld_manifest_read */
} kld_source_file;

typedef struct kld_source {
    const char *dataset, *revision;            /* "" when not told */
    const char *stratum, *cluster, *partition; /* of documents that name none; NULL = none */
    kld_source_file *file;                     /* [n_files] */
    size_t n_files;
} kld_source;

/* Strings are borrowed or in the arena. */
typedef struct kld_manifest {
    kld_source *source; /* [n_sources] */
    size_t n_sources;
    kld_quota *quota; /* [n_quotas] */
    size_t n_quotas;
    const char *tokenizer; /* NULL when not told */
    kld_suite_options opt; /* window, stride (0 = the window), score_last, bos, seed, by_content */
    size_t per_document, per_cluster; /* 0 = no limit */
    kld_split split;
    const char *keep;     /* suite whose partitions stay; NULL */
    const char **exclude; /* [n_exclude] files whose text must not be in the suite */
    size_t n_exclude;
    double exclude_above; /* a document goes when more than this share of its n-grams is there */
    kld_arena arena;
} kld_manifest;
void kld_manifest_free(kld_manifest *m);

/* Everything to its default: window 2048, seed 1. */
void kld_manifest_init(kld_manifest *m);

/* Read a manifest over what *m has.  Paths are relative to the manifest's folder.
 * KLD_E_INPUT  missing, not JSON, a key that is not known, missing or of the wrong type, an
 *              allocation that is 0 or there twice, a split that is none: the message has the file
 *              and the key. */
KLD_NODISCARD kld_status kld_manifest_load(kld_manifest *m, const char *path, kld_err *err);

/* Append the documents of all sources and hash their files; origin is the index of the source.
 * Their `source` is "DATASET@REVISION" where a dataset is told.
 * Errors of kld_text_read and kld_jsonl_read. */
KLD_NODISCARD kld_status kld_manifest_read(kld_manifest *m, kld_documents *docs, kld_err *err);

/* Put the record into s->built: seed, sources with their files and what was taken of each, choice,
 * allocation asked and got, partitions.  `excluded` = documents that overlapped. */
KLD_NODISCARD kld_status kld_manifest_record(const kld_manifest *m, const kld_source_sums *sums,
                                             size_t excluded, kld_suite *s, kld_err *err);

KLD_EXTERN_C_END
#endif
