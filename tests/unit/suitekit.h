/* Documents to cut into windows, and a tokenizer whose ids are bytes. */
#ifndef TESTS_UNIT_SUITEKIT_H
#define TESTS_UNIT_SUITEKIT_H
#include "kld/capture/build_suite.h"

enum { BOS = 256, VOCAB = 257, MAX_DOCS = 6 };

/* 10 to 19. */
extern const uint32_t TEN[10];

/* Ids are the bytes of the text; <s> is 256.  With bos it stands before every text. */
kld_tokenizer *suite_tokenizer(bool bos);

kld_document doc_ids(const uint32_t *ids, size_t n);
kld_document doc_text(const char *text);

/* Up to MAX_DOCS documents, which stay as they are. */
kld_status suite_try(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                     kld_suite_notes *notes, kld_err *err);
void suite_builds(kld_suite *s, kld_document *doc, size_t n, const kld_suite_options *o,
                  kld_suite_notes *notes);
void suite_refuses(kld_document *doc, size_t n, const kld_suite_options *o, kld_status want,
                   const char *text);

#endif
