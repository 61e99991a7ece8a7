#include "kld/capture/encode.h"

#include "kld/base/num.h"

#include <string.h>

enum { BATCH = 256 }; /* documents whose ids are on the heap at a time */

typedef struct job {
    kld_ids ids;
    kld_status st;
    kld_err err;
} job;

size_t kld_document_first(const kld_document *d) { return d->score_from ? d->score_from + 1 : 0; }

/* The ids of a prefix alone must begin those of the whole: then a token ends where it ends. */
static kld_status find_prefix(const kld_document *d, const kld_tokenizer *t, const kld_ids *whole,
                              size_t *first, kld_err *err) {
    kld_ids front = {0};
    kld_status st = kld_tokenizer_encode(t, d->text, d->prefix, &front, err);
    bool same = front.n <= whole->n;
    for (size_t i = 0; i < front.n && same; i++) same = front.v[i] == whole->v[i];
    if (st == KLD_OK && !same)
        st = kld_fail(err, KLD_E_INPUT,
                      "a token lies across the end of 'prefix': what is scored would begin inside "
                      "it.  Let the prefix end where a token does, e.g. behind a special token");
    *first = front.n;
    kld_ids_free(&front);
    return st;
}

static kld_status encode(kld_document *d, const kld_tokenizer *t, kld_ids *out, kld_err *err) {
    size_t first = 0;
    TRY(kld_tokenizer_encode(t, d->text, d->bytes, out, err));
    if (d->prefix) TRY(find_prefix(d, t, out, &first, err));
    d->score_from = first ? first - 1 : 0;
    return KLD_OK;
}

static kld_status check_ids(const kld_document *d, size_t vocab, kld_err *err) {
    for (size_t i = 0; i < d->n_ids; i++)
        if (d->ids[i] >= vocab)
            return kld_fail(err, KLD_E_INPUT, "id %u at %zu, but the tokenizer has %zu ids",
                            (unsigned)d->ids[i], i, vocab);
    return KLD_OK;
}

static kld_status finish(kld_documents *docs, kld_document *d, job *j, size_t vocab, kld_err *err) {
    if (j->st != KLD_OK) {
        if (err) *err = j->err;
        return j->st;
    }
    if (d->text && !d->ids) {
        d->n_ids = j->ids.n;
        TRY(ARENA_ARRAY(&docs->arena, &d->ids, d->n_ids, err));
        if (d->n_ids) memcpy(d->ids, j->ids.v, d->n_ids * sizeof *d->ids);
    }
    return check_ids(d, vocab, err);
}

kld_status kld_documents_encode(kld_documents *docs, const kld_tokenizer *tokenizer, kld_err *err) {
    job *jobs;
    kld_status st = KLD_OK;
    TRY(NEW_ARRAY(&jobs, BATCH, err));
    for (size_t from = 0; st == KLD_OK && from < docs->n; from += BATCH) {
        size_t n = num_min(BATCH, docs->n - from);
#pragma omp parallel for schedule(dynamic, 1)
        for (size_t i = 0; i < n; i++) {
            kld_document *d = &docs->doc[from + i];
            jobs[i] = (job){0};
            if (d->text && !d->ids) jobs[i].st = encode(d, tokenizer, &jobs[i].ids, &jobs[i].err);
        }
        for (size_t i = 0; i < n; i++) {
            kld_document *d = &docs->doc[from + i];
            if (st == KLD_OK)
                st = kld_where(err, finish(docs, d, &jobs[i], kld_tokenizer_size(tokenizer), err),
                               "document %zu ('%s')", from + i, d->cluster);
            kld_ids_free(&jobs[i].ids);
        }
    }
    kld_free(jobs);
    return st;
}
