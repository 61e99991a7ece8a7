#include "kld/capture/build_suite.h"

#include "datasets/partition.h"
#include "kld/base/num.h"

#include <string.h>

typedef struct builder {
    kld_suite *s;
    const kld_suite_options *opt;
    kld_suite_notes *notes;
    bool has_bos;
    uint32_t bos;
    size_t cap; /* of s->windows while it grows on the heap */
    kld_window *windows;
} builder;

static kld_status add_window(builder *b, const kld_window *w, kld_err *err) {
    if (b->s->n_windows == b->cap) {
        size_t cap = num_max(64, 2 * b->cap);
        TRY(kld_realloc((void **)&b->windows, cap, sizeof *b->windows, err));
        b->cap = cap;
    }
    b->windows[b->s->n_windows++] = *w;
    return KLD_OK;
}

static kld_status keep(builder *b, const char *text, const char **out, kld_err *err) {
    char *copy;
    TRY(kld_arena_strndup(&b->s->arena, &copy, text, strlen(text), err));
    *out = copy;
    return KLD_OK;
}

/* Windows of one document of n ids.  `scored` is the index of the first id of the document
 * that no window has predicted yet: the first id has no context unless BOS precedes it. */
static kld_status cut(builder *b, const kld_window *proto, const uint32_t *ids, size_t n, bool *any,
                      kld_err *err) {
    const kld_suite_options *o = b->opt;
    size_t scored = 0;
    *any = false;
    for (size_t start = 0; start < n;) {
        bool bos = o->bos == KLD_BOS_EVERY || (o->bos == KLD_BOS_FIRST && start == 0);
        if (ids[start] == b->bos) bos = false; /* never two; packed text has it anywhere */
        size_t room = o->window - bos, take = num_min(room, n - start);
        kld_window w = *proto;
        w.n = take + bos;
        w.offset = start;
        TRY(ARENA_ARRAY(&b->s->arena, &w.ids, w.n, err));
        if (bos) w.ids[0] = b->bos;
        memcpy(w.ids + bos, ids + start, take * sizeof *ids);
        /* Position t of the window predicts w.ids[t+1] = ids[start + t + 1 - bos]. */
        w.score_from = scored + bos > start + 1 ? scored + bos - start - 1 : 0;
        if (o->score_last_set) w.score_from = w.n - 1 > o->score_last ? w.n - 1 - o->score_last : 0;
        /* BOS can push a window of stride 1 back to the end of the one before. */
        if (start + take > scored && kld_window_scored(&w) > 0) {
            TRY(add_window(b, &w, err));
            *any = true;
        }
        scored = start + take;
        if (scored == n) break;
        /* Windows share `window - stride` ids; BOS must not open a gap between them. */
        size_t shared = o->window - o->stride;
        start += take > shared ? take - shared : 1;
    }
    return KLD_OK;
}

static kld_status check_bos(builder *b, const uint32_t *ids, size_t n, kld_err *err) {
    if (!b->has_bos || n == 0 || ids[0] != b->bos) return KLD_OK;
    if (n > 1 && ids[1] == b->bos)
        return kld_fail(err, KLD_E_INPUT,
                        "it begins with two beginning-of-sequence tokens (id %u): a template and "
                        "the tokenizer may each have added one",
                        (unsigned)b->bos);
    b->notes->bos_present += b->opt->bos != KLD_BOS_NONE;
    return KLD_OK;
}

static kld_status add_document(builder *b, const kld_document *d, size_t index,
                               const kld_tokenizer *tokenizer, kld_err *err) {
    kld_ids ids = {0};
    const uint32_t *v = d->ids;
    size_t n = d->n_ids;
    kld_window proto = {0};
    bool any = false;
    kld_status st = KLD_OK;
    if (d->text) {
        TRY_TO(done, kld_tokenizer_encode(tokenizer, d->text, d->bytes, &ids, err));
        v = ids.v;
        n = ids.n;
    }
    for (size_t i = 0; i < n; i++)
        if (v[i] >= b->s->vocab) {
            st = kld_fail(err, KLD_E_INPUT, "id %u at %zu, but the tokenizer has %zu ids",
                          (unsigned)v[i], i, b->s->vocab);
            goto done;
        }
    TRY_TO(done, keep(b, d->source, &proto.source, err));
    TRY_TO(done, keep(b, d->cluster, &proto.cluster, err));
    TRY_TO(done, keep(b, d->stratum, &proto.stratum, err));
    TRY_TO(done, keep(b, *d->partition || !b->opt->partition ? d->partition : b->opt->partition,
                      &proto.partition, err));
    TRY_TO(done, check_bos(b, v, n, err));
    TRY_TO(done, cut(b, &proto, v, n, &any, err));
    if (!any) b->notes->empty_documents++;
done:
    kld_ids_free(&ids);
    return kld_where(err, st, "document %zu ('%s')", index, d->cluster);
}

static kld_status check_options(builder *b, kld_err *err) {
    const kld_suite_options *o = b->opt;
    if (o->window < 2)
        return kld_fail(err, KLD_E_USAGE, "--window %zu: at least 2 tokens are needed to score one",
                        o->window);
    if (o->stride < 1 || o->stride > o->window)
        return kld_fail(err, KLD_E_USAGE, "--stride %zu must be between 1 and the window (%zu)",
                        o->stride, o->window);
    if (o->score_last_set && o->score_last < 1)
        return kld_fail(err, KLD_E_USAGE, "--score-last must be at least 1");
    if (o->bos != KLD_BOS_NONE && !b->has_bos)
        return kld_fail(err, KLD_E_USAGE,
                        "--bos: this tokenizer names no beginning-of-sequence token");
    return KLD_OK;
}

static kld_status finish(builder *b, kld_err *err) {
    kld_suite *s = b->s;
    TRY(ARENA_ARRAY(&s->arena, &s->windows, s->n_windows, err));
    if (s->n_windows) memcpy(s->windows, b->windows, s->n_windows * sizeof *s->windows);
    TRY(kld_suite_check_partitions(s, err));
    TRY(kld_suite_seal(s, err));
    if (s->positions == 0)
        return kld_fail(
            err, KLD_E_INPUT,
            "no scored position: %zu documents, none with two tokens; nothing was written",
            b->notes->documents);
    return KLD_OK;
}

kld_status kld_suite_build(kld_suite *s, const kld_documents *docs, const kld_tokenizer *tokenizer,
                           const kld_suite_options *opt, kld_suite_notes *notes, kld_err *err) {
    static const char *const policy[] = {"none", "first", "every"};
    builder b = {.s = s, .opt = opt, .notes = notes};
    memset(s, 0, sizeof *s);
    memset(notes, 0, sizeof *notes);
    notes->documents = docs->n;
    s->window = opt->window;
    s->stride = opt->stride;
    s->bos = policy[opt->bos];
    s->vocab = kld_tokenizer_size(tokenizer);
    s->tokenizer = kld_tokenizer_digest(tokenizer);
    b.has_bos = kld_tokenizer_bos(tokenizer, &b.bos);
    kld_status st;
    TRY_TO(done, check_options(&b, err));
    for (size_t i = 0; i < docs->n; i++)
        TRY_TO(done, add_document(&b, &docs->doc[i], i, tokenizer, err));
    TRY_TO(done, finish(&b, err));
done:
    kld_free(b.windows);
    if (st != KLD_OK) kld_suite_free(s);
    return st;
}
