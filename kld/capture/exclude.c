#include "kld/capture/exclude.h"

#include "kld/base/mem.h"
#include "kld/capture/encode.h"
#include "kld/capture/overlap.h"

kld_status kld_documents_exclude(kld_documents *docs, const kld_tokenizer *tokenizer,
                                 const char *const *files, size_t n, double above, size_t *dropped,
                                 kld_err *err) {
    kld_overlap *o = NULL;
    kld_overlap_group *g = NULL, total;
    size_t kept = 0;
    kld_status st;
    *dropped = 0;
    TRY_TO(done, kld_documents_encode(docs, tokenizer, err));
    TRY_TO(done, kld_overlap_open(&o, docs->n, err));
    TRY_TO(done, NEW_ARRAY(&g, docs->n, err));
    for (size_t i = 0; i < docs->n; i++)
        TRY_TO(done, kld_overlap_add(o, i, docs->doc[i].ids, docs->doc[i].n_ids, err));
    for (size_t k = 0; k < n; k++) TRY_TO(done, kld_overlap_file(o, files[k], tokenizer, err));
    kld_overlap_result(o, g, &total);
    for (size_t i = 0; i < docs->n; i++)
        if (!(kld_overlap_share(&g[i]) > above)) docs->doc[kept++] = docs->doc[i];
    *dropped = docs->n - kept;
    docs->n = kept;
done:
    kld_free(g);
    kld_overlap_close(o);
    return st;
}
