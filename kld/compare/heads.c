#include "kld/compare/heads.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/compare/belong.h"
#include "loaders/act_declared.h"
#include "loaders/checkpoint.h"
#include "loaders/head.h"

#include <string.h>

struct search {
    const kld_digest *digest;
    kld_model *found; /* owned */
    kld_buf looked;   /* "PLACE (why not); ..." */
};

/* Whether to go on is the caller's to see from s->found.  What cannot be a head is no error here:
 * the next place may have it. */
static kld_status look_at(struct search *s, const char *path, kld_err *err) {
    kld_err why = {0};
    const char *sep = s->looked.len ? "; " : "";
    if (!kld_path_exists(path))
        return kld_buf_addf(&s->looked, err, "%s%.160s (is not there)", sep, path);
    kld_status st = kld_head_open(&s->found, path, s->digest, &why);
    if (st == KLD_OK) {
        kld_debug("head %s", path);
        return KLD_OK;
    }
    if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED && st != KLD_E_NUMERIC) {
        if (err) *err = why;
        return st;
    }
    /* Messages begin with the path. */
    size_t n = strlen(path);
    const char *text =
        !strncmp(why.text, path, n) && why.text[n] == ':' ? why.text + n + 2 : why.text;
    return kld_buf_addf(&s->looked, err, "%s%.160s (%.100s)", sep, path, text);
}

static kld_status look_beside(struct search *s, const kld_capture *c, kld_err *err) {
    char *dir, *path = NULL;
    TRY(kld_path_dir(&dir, kld_capture_path(c), err));
    kld_status st = kld_head_path(&path, dir, s->digest, err);
    if (st == KLD_OK) st = look_at(s, path, err);
    kld_free(path);
    kld_free(dir);
    return st;
}

/* The cache knows names of the Hub; that there is none is no error. */
static kld_status look_in_cache(struct search *s, const char *name, kld_err *err) {
    char *dir;
    kld_err why = {0};
    kld_status st = kld_hub_resolve(name, &dir, &why);
    if (st == KLD_E_INPUT)
        return kld_buf_addf(&s->looked, err, "%sthe Hugging Face cache ('%.80s' is not in it)",
                            s->looked.len ? "; " : "", name);
    if (st == KLD_OK) {
        st = look_at(s, dir, err);
        kld_free(dir);
    } else if (err) {
        *err = why;
    }
    return st;
}

static kld_status search(struct search *s, const kld_heads *h, const kld_capture *c,
                         const kld_capture *other, kld_err *err) {
    const kld_capture_info *i = kld_capture_header(c);
    TRY(look_beside(s, c, err));
    if (!s->found) TRY(look_beside(s, other, err));
    for (size_t k = 0; k < h->n_given && !s->found; k++) TRY(look_at(s, h->given[k], err));
    if (!s->found && *i->checkpoint) TRY(look_at(s, i->checkpoint, err));
    return s->found ? KLD_OK : look_in_cache(s, i->name, err);
}

static kld_status nowhere(const struct search *s, const char *name, kld_err *err) {
    char hex[KLD_SHA256_HEX];
    kld_digest_hex(s->digest, hex);
    return kld_fail(err, KLD_E_INPUT,
                    "the head %.12s of '%.60s' was not found: name its checkpoint (or a kept "
                    "head-%.12s.safetensors) with --checkpoint, or compare the lists alone with "
                    "--exact never.  Looked at %s",
                    hex, name, hex, (const char *)s->looked.data);
}

static kld_status open_head(kld_heads *h, const kld_capture *c, const kld_capture *other,
                            kld_model **out, kld_err *err) {
    const kld_capture_info *i = kld_capture_header(c);
    struct search s = {.digest = &i->hidden.head};
    TRY(kld_realloc((void **)&h->entry, h->n + 1, sizeof *h->entry, err));
    kld_status st = search(&s, h, c, other, err);
    if (st == KLD_OK && !s.found) st = nowhere(&s, i->name, err);
    kld_buf_free(&s.looked);
    if (st != KLD_OK) return st;
    h->entry[h->n++] = (struct kld_head_entry){i->hidden.head, s.found};
    *out = s.found;
    return KLD_OK;
}

static kld_status check(const kld_hidden_info *i, const kld_model *m, kld_err *err) {
    size_t cols = m->global[KLD_SLOT_HEAD].cols;
    if (cols != i->cols)
        return kld_fail(err, KLD_E_INPUT,
                        "hidden states of %llu values, but its head %s takes %zu: the header is "
                        "wrong; capture it again",
                        (unsigned long long)i->cols, m->ckpt.dir, cols);
    if (m->config.logit_cap == i->logit_cap) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT,
                    "its logits were capped at %g, those of %s are capped at %g (0: not at all); "
                    "name the checkpoint that was captured with --checkpoint",
                    i->logit_cap, m->ckpt.dir, m->config.logit_cap);
}

kld_status kld_heads_find(kld_heads *h, const kld_capture *c, const kld_capture *other,
                          const kld_model **out, kld_err *err) {
    const kld_capture_info *i = kld_capture_header(c);
    kld_model *m = NULL;
    for (size_t k = 0; k < h->n && !m; k++)
        if (kld_same_digest(&h->entry[k].digest, &i->hidden.head)) m = h->entry[k].model;
    kld_status st = m ? KLD_OK : open_head(h, c, other, &m, err);
    if (st == KLD_OK) st = check(&i->hidden, m, err);
    /* A head is fused with nothing, so which of the static scales it was is all the same. */
    bool declared = strcmp(kld_belong_activations(i), "weights-only") != 0;
    if (st == KLD_OK && declared && m->global[KLD_SLOT_HEAD].format > KLD_FMT_F32)
        st = kld_act_resolve(m, KLD_FUSED_OWN, err);
    *out = m;
    return kld_where(err, st, "%s", kld_capture_path(c));
}

void kld_heads_free(kld_heads *h) {
    for (size_t k = 0; k < h->n; k++) kld_model_free(h->entry[k].model);
    kld_free(h->entry);
    h->entry = NULL;
    h->n = 0;
}
