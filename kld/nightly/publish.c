#include "kld/nightly/publish.h"

#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/compare/html.h"
#include "kld/compare/markdown.h"
#include "kld/compare/receipt.h"
#include "kld/nightly/junit.h"
#include "kld/nightly/nightly.h"
#include "kld/nightly/prometheus.h"

#include <string.h>

kld_status nightly_folder(const char *output, const char *time, char **name, kld_err *err) {
    kld_buf b = {0};
    char *path = NULL;
    size_t base;
    kld_status st;
    *name = NULL;
    TRY(kld_path_join(&path, output, "runs", err));
    TRY_TO(done, kld_mkdir(path, err));
    TRY_TO(done, kld_buf_adds(&b, "runs/", err));
    for (const char *t = time; *t; t++)
        if (*t != '-' && *t != ':') TRY_TO(done, kld_buf_add(&b, t, 1, err));
    base = b.len;
    for (unsigned n = 2;; n++) {
        kld_free(path);
        path = NULL;
        TRY_TO(done, kld_path_join(&path, output, (char *)b.data, err));
        if (!kld_path_exists(path)) break;
        b.len = base;
        TRY_TO(done, kld_buf_addf(&b, err, "-%02u", n));
    }
    st = kld_mkdir(path, err);
    if (st == KLD_OK) *name = (char *)b.data;
done:
    kld_free(path);
    if (st != KLD_OK) kld_buf_free(&b);
    return st;
}

/* ---- contents ------------------------------------------------------------------------------ */

static kld_status as_json(const json_t *v, kld_buf *b, kld_err *err) {
    TRY(kld_json_dump(v, true, b, err));
    return kld_buf_adds(b, "\n", err);
}

static kld_status receipt(const json_t *result, const kld_key *sign, kld_buf *b, kld_err *err) {
    json_t *v;
    TRY(kld_receipt_build(result, &v, err));
    kld_status st = sign ? kld_receipt_sign(v, sign, err) : KLD_OK;
    if (st == KLD_OK) st = as_json(v, b, err);
    json_decref(v);
    return st;
}

/* Nothing is appended for a file that there is not without a result. */
static kld_status render(size_t f, const json_t *summary, const json_t *result,
                         const json_t *history, const kld_key *sign, kld_buf *b, kld_err *err) {
    switch ((kld_nightly_file)f) {
    case KLD_NIGHTLY_MARKDOWN:
        TRY(kld_nightly_text(summary, true, b, err));
        return result ? kld_compare_markdown(result, b, err) : KLD_OK;
    case KLD_NIGHTLY_JUNIT: return nightly_junit(summary, b, err);
    case KLD_NIGHTLY_PROMETHEUS: return nightly_prometheus(summary, b, err);
    case KLD_NIGHTLY_JSON: return result ? as_json(result, b, err) : KLD_OK;
    case KLD_NIGHTLY_HTML: return result ? kld_compare_html(result, history, b, err) : KLD_OK;
    case KLD_NIGHTLY_RECEIPT: return result ? receipt(result, sign, b, err) : KLD_OK;
    case KLD_NIGHTLY_FILES: break;
    }
    return kld_fail(err, KLD_E_INTERNAL, "no such file of a run");
}

static kld_status write_in(const char *output, const char *folder, const char *name,
                           const kld_buf *b, kld_err *err) {
    char *dir = NULL, *path = NULL;
    TRY(kld_path_join(&dir, output, folder, err));
    kld_status st = kld_path_join(&path, dir, name, err);
    if (st == KLD_OK) st = kld_file_write(path, b->data, b->len, err);
    kld_free(path);
    kld_free(dir);
    return st;
}

kld_status nightly_publish(const kld_nightly_config *c, const char *folder, const json_t *summary,
                           const json_t *result, const json_t *history, const kld_key *sign,
                           kld_err *err) {
    kld_buf b = {0};
    kld_status st = as_json(summary, &b, err);
    if (st == KLD_OK) st = write_in(c->output, folder, "nightly.json", &b, err);
    for (size_t f = 0; f < KLD_NIGHTLY_FILES && st == KLD_OK; f++) {
        kld_buf_clear(&b);
        if (!c->name[f]) continue;
        st = render(f, summary, result, history, sign, &b, err);
        if (st != KLD_OK || b.len == 0) continue;
        st = write_in(c->output, folder, c->name[f], &b, err);
        if (st == KLD_OK && c->second[f]) st = kld_file_write(c->second[f], b.data, b.len, err);
    }
    kld_buf_free(&b);
    return st;
}

/* ---- which run is the latest, and which are old ---------------------------------------------- */

/* 20261203T020000Z, perhaps with -02 behind it. */
static bool is_folder(const char *name) {
    static const char form[] = "00000000T000000Z";
    for (size_t i = 0; i < sizeof form - 1; i++)
        if (form[i] == '0' ? name[i] < '0' || name[i] > '9' : name[i] != form[i]) return false;
    const char *rest = name + sizeof form - 1;
    return !*rest || (*rest == '-' && rest[1] && rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

static kld_status prune(const char *runs, const char *current, uint64_t keep, kld_err *err) {
    char **names;
    size_t n, left = 0;
    TRY(kld_list_dir(runs, &names, &n, err));
    for (size_t i = 0; i < n; i++) left += is_folder(names[i]);
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n && left > keep && st == KLD_OK; i++) {
        char *path;
        if (!is_folder(names[i]) || strcmp(names[i], current) == 0) continue;
        st = kld_path_join(&path, runs, names[i], err);
        if (st != KLD_OK) break;
        st = kld_remove_tree(path, err);
        kld_free(path);
        left--;
    }
    kld_names_free(names, n);
    return st;
}

void nightly_publish_latest(const kld_nightly_config *c, const char *folder) {
    char *latest = NULL, *runs = NULL;
    kld_err e;
    kld_status st = kld_path_join(&latest, c->output, "latest", &e);
    if (st == KLD_OK) st = kld_link(latest, folder, &e);
    if (st != KLD_OK) kld_warn("%s; the reports are in %s/%s", e.text, c->output, folder);
    st = kld_path_join(&runs, c->output, "runs", &e);
    if (st == KLD_OK && c->keep) st = prune(runs, strchr(folder, '/') + 1, c->keep, &e);
    if (st != KLD_OK) kld_warn("%s; old reports stay", e.text);
    kld_free(latest);
    kld_free(runs);
}
