#include "kld/capture/build_suite.h"

#include "kld/base/num.h"
#include "kld/capture/encode.h"

#include <stdlib.h>
#include <string.h>

typedef struct builder {
    kld_suite *s;
    const kld_suite_options *opt;
    kld_suite_notes *notes;
    bool has_bos;
    uint32_t bos;
    size_t cap; /* of both arrays while they grow on the heap */
    kld_window *windows;
    kld_choice_window *choice; /* of each */
} builder;

static kld_status add_window(builder *b, const kld_window *w, const kld_choice_window *c,
                             kld_err *err) {
    if (b->s->n_windows == b->cap) {
        size_t cap = num_max(64, 2 * b->cap);
        TRY(kld_realloc((void **)&b->windows, cap, sizeof *b->windows, err));
        TRY(kld_realloc((void **)&b->choice, cap, sizeof *b->choice, err));
        b->cap = cap;
    }
    b->choice[b->s->n_windows] = *c;
    b->choice[b->s->n_windows].tokens = w->n;
    b->choice[b->s->n_windows].offset = w->offset;
    b->choice[b->s->n_windows].taken = true;
    b->windows[b->s->n_windows++] = *w;
    return KLD_OK;
}

static kld_status keep(builder *b, const char *text, const char **out, kld_err *err) {
    char *copy;
    TRY(kld_arena_strndup(&b->s->arena, &copy, text, strlen(text), err));
    *out = copy;
    return KLD_OK;
}

/* First position of a window that predicts id `first` of the document or one behind it: position t
 * predicts ids[start + t + 1 - bos]. */
static size_t position_of(size_t first, size_t start, bool bos) {
    return first + bos > start + 1 ? first + bos - start - 1 : 0;
}

/* Windows of one document.  `scored` is the index of the first id that no window has predicted
 * yet and that is to be: the first id has no context unless BOS precedes it. */
static kld_status cut(builder *b, const kld_window *proto, const kld_choice_window *choice,
                      const kld_document *d, bool *any, kld_err *err) {
    const kld_suite_options *o = b->opt;
    const size_t n = d->n_ids, first = kld_document_first(d);
    *any = false;
    for (size_t start = 0, scored = first; start < n;) {
        bool bos = o->bos == KLD_BOS_EVERY || (o->bos == KLD_BOS_FIRST && start == 0);
        if (d->ids[start] == b->bos) bos = false; /* never two; packed text has it anywhere */
        size_t room = o->window - bos, take = num_min(room, n - start), end = start + take;
        kld_window w = *proto;
        w.n = take + bos;
        w.offset = start;
        TRY(ARENA_ARRAY(&b->s->arena, &w.ids, w.n, err));
        if (bos) w.ids[0] = b->bos;
        memcpy(w.ids + bos, d->ids + start, take * sizeof *w.ids);
        w.score_from = position_of(scored, start, bos);
        if (o->score_last_set)
            w.score_from = num_max(position_of(first, start, bos),
                                   w.n - 1 > o->score_last ? w.n - 1 - o->score_last : 0);
        /* BOS can push a window of stride 1 back to the end of the one before. */
        if (end > scored && kld_window_scored(&w) > 0) {
            TRY(add_window(b, &w, choice, err));
            *any = true;
        }
        scored = num_max(scored, end);
        if (end == n) break;
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

static kld_status add_document(builder *b, const kld_document *d, size_t index, kld_err *err) {
    kld_window proto = {0};
    kld_choice_window choice = {.document = index, .origin = d->origin};
    bool any = false;
    const char *partition = *d->partition || !b->opt->partition ? d->partition : b->opt->partition;
    TRY(keep(b, d->source, &proto.source, err));
    TRY(keep(b, d->cluster, &proto.cluster, err));
    TRY(keep(b, d->stratum, &proto.stratum, err));
    TRY(keep(b, partition, &proto.partition, err));
    TRY(kld_partition_check_name(partition, err));
    TRY(check_bos(b, d->ids, d->n_ids, err));
    TRY(kld_ids_digest(d->ids, d->n_ids, &choice.content, err));
    choice.cluster = proto.cluster;
    choice.stratum = proto.stratum;
    TRY(cut(b, &proto, &choice, d, &any, err));
    if (!any) b->notes->empty_documents++;
    return KLD_OK;
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

static int by_content(const void *a, const void *b) {
    const kld_choice_window *x = *(const kld_choice_window *const *)a;
    const kld_choice_window *y = *(const kld_choice_window *const *)b;
    int c = (x->origin > y->origin) - (x->origin < y->origin);
    if (c == 0) c = memcmp(&x->content, &y->content, sizeof x->content);
    if (c == 0) c = (x->document > y->document) - (x->document < y->document);
    return c ? c : (x->offset > y->offset) - (x->offset < y->offset);
}

/* What was taken, in the order of the suite, from the heap into *s. */
static kld_status gather(builder *b, kld_err *err) {
    kld_suite *s = b->s;
    const kld_choice_window **order;
    size_t n = 0, last = SIZE_MAX;
    TRY(kld_calloc((void **)&order, s->n_windows, sizeof *order, err));
    for (size_t i = 0; i < s->n_windows; i++)
        if (b->choice[i].taken) order[n++] = &b->choice[i];
    if (n && b->opt->by_content) qsort(order, n, sizeof *order, by_content);
    kld_status st = ARENA_ARRAY(&s->arena, &s->windows, n, err);
    for (size_t i = 0; i < n && st == KLD_OK; i++) {
        const kld_window *w = &b->windows[order[i] - b->choice];
        s->windows[i] = *w;
        if (!b->opt->sums) continue;
        kld_source_sums *sums = &b->opt->sums[order[i]->origin];
        sums->documents += order[i]->document != last;
        sums->windows++;
        sums->tokens += w->n;
        sums->positions += kld_window_scored(w);
        last = order[i]->document;
    }
    s->n_windows = n;
    kld_free(order);
    return st;
}

static kld_status finish(builder *b, kld_err *err) {
    kld_suite *s = b->s;
    const kld_suite_options *o = b->opt;
    b->notes->windows = s->n_windows;
    if (o->rules)
        TRY(kld_choose_windows(b->choice, s->n_windows, o->rules, &b->notes->unnamed, err));
    TRY(gather(b, err));
    if (o->split) TRY(kld_suite_split(s, o->split, o->seed, o->keep, err));
    TRY(kld_suite_check_partitions(s, err));
    TRY(kld_suite_seal(s, err));
    if (s->positions == 0)
        return kld_fail(
            err, KLD_E_INPUT,
            "no scored position: %zu documents, none with two tokens; nothing was written",
            b->notes->documents);
    return KLD_OK;
}

kld_status kld_suite_build(kld_suite *s, kld_documents *docs, const kld_tokenizer *tokenizer,
                           const kld_suite_options *opt, kld_suite_notes *notes, kld_err *err) {
    static const char *const policy[] = {"none", "first", "every"};
    builder b = {.s = s, .opt = opt, .notes = notes};
    memset(s, 0, sizeof *s);
    *notes = (kld_suite_notes){.documents = docs->n};
    s->window = opt->window;
    s->stride = opt->stride;
    s->bos = policy[opt->bos];
    s->vocab = kld_tokenizer_size(tokenizer);
    s->tokenizer = kld_tokenizer_digest(tokenizer);
    b.has_bos = kld_tokenizer_bos(tokenizer, &b.bos);
    kld_status st;
    TRY_TO(done, check_options(&b, err));
    TRY_TO(done, kld_documents_encode(docs, tokenizer, err));
    for (size_t i = 0; i < docs->n; i++)
        TRY_TO(done, kld_where(err, add_document(&b, &docs->doc[i], i, err), "document %zu ('%s')",
                               i, docs->doc[i].cluster));
    TRY_TO(done, finish(&b, err));
done:
    kld_free(b.windows);
    kld_free(b.choice);
    if (st != KLD_OK) kld_suite_free(s);
    return st;
}
