/* From "org/name" to a directory of the Hugging Face cache. */
#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "loaders/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static const char *env(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Where huggingface_hub keeps its cache (its constants.py): HF_HUB_CACHE, else the older
 * HUGGINGFACE_HUB_CACHE, else hub/ under HF_HOME, which is huggingface/ under the user's
 * cache directory. */
static kld_status cache_dir(kld_buf *b, kld_err *err) {
    const char *v;
    if ((v = env("HF_HUB_CACHE")) || (v = env("HUGGINGFACE_HUB_CACHE")))
        return kld_buf_adds(b, v, err);
    if ((v = env("HF_HOME"))) return kld_buf_addf(b, err, "%s/hub", v);
    if ((v = env("XDG_CACHE_HOME"))) return kld_buf_addf(b, err, "%s/huggingface/hub", v);
    if ((v = env("HOME"))) return kld_buf_addf(b, err, "%s/.cache/huggingface/hub", v);
    return kld_fail(err, KLD_E_INPUT, "none of HF_HUB_CACHE, HF_HOME and HOME is set");
}

static bool repo_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* "name" or "org/name", of the characters that the Hub allows. */
static bool is_repo(const char *s, size_t n) {
    size_t slashes = 0, part = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '/') {
            if (!part || slashes++) return false;
            part = 0;
        } else if (!repo_char(s[i]) || (s[i] == '.' && !part)) {
            return false;
        } else {
            part++;
        }
    }
    return part > 0;
}

static bool is_revision(const char *s) {
    if (!*s || *s == '.') return false;
    for (; *s; s++) {
        if (!repo_char(*s)) return false;
    }
    return true;
}

/* <cache>/models--org--name into b. */
static kld_status repo_dir(kld_buf *b, const char *repo, size_t n, kld_err *err) {
    TRY(cache_dir(b, err));
    TRY(kld_buf_adds(b, "/models--", err));
    for (size_t i = 0; i < n; i++)
        TRY(repo[i] == '/' ? kld_buf_adds(b, "--", err) : kld_buf_add(b, &repo[i], 1, err));
    return KLD_OK;
}

/* The commit that refs/REV names, or REV itself when it is a snapshot. */
static kld_status find_snapshot(const char *base, const char *rev, char **dir, kld_err *err) {
    kld_buf path = {0}, commit = {0};
    kld_status st = kld_buf_addf(&path, err, "%s/refs/%s", base, rev);
    if (st == KLD_OK && kld_path_exists((char *)path.data))
        st = kld_file_slurp((char *)path.data, 256, &commit, err);
    else if (st == KLD_OK) st = kld_buf_adds(&commit, rev, err);
    if (st == KLD_OK) {
        while (commit.len && strchr("\r\n\t ", commit.data[commit.len - 1])) commit.len--;
        if (commit.data) commit.data[commit.len] = 0;
        if (!commit.data || !is_revision((char *)commit.data))
            st = kld_fail(err, KLD_E_INPUT, "%s: does not hold a commit id", (char *)path.data);
    }
    kld_buf_clear(&path);
    if (st == KLD_OK) st = kld_buf_addf(&path, err, "%s/snapshots/%s", base, (char *)commit.data);
    if (st == KLD_OK && kld_path_is_dir((char *)path.data)) {
        *dir = (char *)path.data;
        path = (kld_buf){0};
    }
    kld_buf_free(&path);
    kld_buf_free(&commit);
    return st;
}

kld_status kld_hub_resolve(const char *model, char **dir, kld_err *err) {
    *dir = NULL;
    if (!*model) return kld_fail(err, KLD_E_INPUT, "the name of the model is empty");
    if (kld_path_exists(model)) return kld_strdup(dir, model, err);
    const char *at = strchr(model, '@');
    size_t n = at ? (size_t)(at - model) : strlen(model);
    const char *rev = at ? at + 1 : "main";
    if (!is_repo(model, n) || !is_revision(rev))
        return kld_fail(err, KLD_E_INPUT,
                        "%s: no such file or directory, and not of the form org/name", model);
    kld_buf base = {0};
    kld_status st = repo_dir(&base, model, n, err);
    if (st == KLD_OK) st = find_snapshot((char *)base.data, rev, dir, err);
    if (st == KLD_OK && !*dir)
        st = kld_fail(
            err, KLD_E_INPUT,
            "%s: no such directory, and no snapshot of revision '%s' in %s; to download it: "
            "hf download %.*s%s%s",
            model, rev, (char *)base.data, (int)n, model, at ? " --revision " : "", at ? rev : "");
    kld_buf_free(&base);
    return st;
}
