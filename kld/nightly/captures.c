#include "kld/nightly/captures.h"

#include "datasets/suite.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/nightly/key.h"
#include "kld/store/capture.h"

#include <string.h>

enum { KEY_DIGITS = 16 };

const char *nightly_action_name(nightly_action a) {
    static const char *const name[] = {"reused", "captured", "resumed", "failed", "skipped"};
    return name[a];
}

kld_status nightly_captures_open(nightly_captures *c, const kld_nightly_config *config,
                                 kld_history *history, kld_err *err) {
    kld_suite suite;
    *c = (nightly_captures){.config = config, .history = history};
    TRY(kld_suite_load(&suite, config->suite, err));
    c->suite = suite.digest;
    kld_suite_free(&suite);
    TRY(kld_where(err, kld_choose(config->device, &c->where, err), "%s: 'device'", config->path));
    TRY(kld_path_join(&c->folder, config->output, "captures", err));
    return NEW_ARRAY(&c->item, config->n_items, err);
}

void nightly_captures_free(nightly_captures *c) {
    for (size_t i = 0; c->item && i < c->config->n_items; i++) {
        kld_free(c->item[i].file);
        kld_free(c->item[i].path);
        json_decref(c->item[i].key);
    }
    kld_free(c->item);
    kld_free(c->folder);
    *c = (nightly_captures){0};
}

/* ---- what there is ------------------------------------------------------------------------ */

static kld_status name_file(const nightly_captures *c, size_t i, const kld_digest *key,
                            kld_err *err) {
    nightly_capture *x = &c->item[i];
    char hex[KLD_SHA256_HEX];
    kld_buf b = {0};
    TRY(kld_buf_addf(&b, err, "%s-%.*s.zst", c->config->item[i].name, (int)KEY_DIGITS,
                     kld_digest_hex(key, hex)));
    x->file = (char *)b.data;
    return kld_path_join(&x->path, c->folder, x->file, err);
}

/* Every byte is checked: a comparison would find damage only after all captures are made. */
static kld_status check_finished(const nightly_captures *c, size_t i, kld_err *err) {
    nightly_capture *x = &c->item[i];
    kld_capture *f;
    TRY(kld_capture_open(&f, x->path, err));
    const kld_capture_info *h = kld_capture_header(f);
    bool same = kld_same_digest(&h->model, &x->model) && kld_same_digest(&h->suite, &c->suite) &&
                h->has_reference == (i > 0) &&
                (i == 0 || kld_same_digest(&h->reference, &c->item[0].digest));
    kld_status st = kld_capture_verify(f, err);
    if (st == KLD_OK && !same)
        st = kld_fail(err, KLD_E_INPUT, "%s: is the capture of something else", x->path);
    x->digest = kld_capture_digest(f);
    kld_capture_close(f);
    return st;
}

static kld_status partial_exists(const nightly_capture *x, bool *out, kld_err *err) {
    kld_buf b = {0};
    TRY(kld_buf_addf(&b, err, "%s.partial", x->path));
    *out = kld_path_exists((char *)b.data);
    kld_status st = kld_buf_adds(&b, ".d", err);
    if (st == KLD_OK) *out = *out || kld_path_is_dir((char *)b.data);
    kld_buf_free(&b);
    return st;
}

static kld_status explain(const nightly_captures *c, size_t i, kld_err *err) {
    nightly_capture *x = &c->item[i];
    json_t *before;
    TRY(kld_history_key(c->history, c->config->item[i].name, &before, err));
    x->why = nightly_key_change(before, x->key);
    json_decref(before);
    return KLD_OK;
}

/* What is to be done for an item whose checkpoint can be opened. */
static kld_status decide(nightly_captures *c, size_t i, const nightly_stamp *stamp, kld_err *err) {
    nightly_capture *x = &c->item[i];
    const kld_nightly_item *item = &c->config->item[i];
    const nightly_capture *ref = i ? &c->item[0] : NULL;
    const nightly_capture *routes = item->replay >= 0 ? &c->item[item->replay] : NULL;
    kld_digest key;
    kld_err damage = {0};
    bool partial;
    x->model = stamp->model;
    x->known = true;
    TRY(nightly_key(item, &c->where, stamp, &c->suite, ref ? &ref->digest : NULL,
                    routes ? &routes->digest : NULL, &x->key, &key, err));
    TRY(name_file(c, i, &key, err));
    x->action = NIGHTLY_CAPTURED;
    if (kld_path_exists(x->path)) {
        kld_status st = check_finished(c, i, &damage);
        if (st == KLD_OK) {
            x->action = NIGHTLY_REUSED;
            x->done = true;
            return KLD_OK;
        }
        if (st != KLD_E_INPUT && st != KLD_E_UNSUPPORTED) {
            if (err) *err = damage;
            return st;
        }
        kld_warn("%s; it is captured anew", damage.text);
        x->why = "its file was damaged";
        return KLD_OK;
    }
    TRY(partial_exists(x, &partial, err));
    if (!partial) return explain(c, i, err);
    x->action = NIGHTLY_RESUMED;
    x->why = "an earlier run did not finish it";
    return KLD_OK;
}

/* ---- one capture --------------------------------------------------------------------------- */

static kld_status run_once(const nightly_captures *c, size_t i, bool resume, kld_err *err) {
    nightly_capture *x = &c->item[i];
    const kld_nightly_item *item = &c->config->item[i];
    kld_capture_options o = item->opt;
    kld_capture_summary done;
    o.output = x->path;
    o.ref = i ? c->item[0].path : NULL;
    o.replay = item->replay >= 0 ? c->item[item->replay].path : NULL;
    o.where = &c->where;
    o.resume = resume;
    o.force = !resume;
    o.tail_samples_set = i == 0;
    TRY(kld_capture_run(&o, &done, err));
    x->digest = done.digest;
    return KLD_OK;
}

static kld_status make(const nightly_captures *c, size_t i, const nightly_stamp *stamp,
                       kld_err *err) {
    nightly_capture *x = &c->item[i];
    const char *name = c->config->item[i].name;
    bool resume = x->action == NIGHTLY_RESUMED;
    kld_note("%s: %s: %s", name, resume ? "continued" : "captured", x->why);
    kld_status st = run_once(c, i, resume, err);
    if (resume && st == KLD_E_INPUT) {
        /* Kept by an earlier run for this very key, and yet of no use: only a new start helps. */
        kld_warn("%s: %s; begun again", name, err ? err->text : "cannot be continued");
        x->action = NIGHTLY_CAPTURED;
        st = run_once(c, i, false, err);
    }
    TRY(st);
    nightly_stamp after;
    TRY(nightly_stamp_of(c->config->item[i].model, &after, err));
    if (memcmp(&after, stamp, sizeof after) == 0) return KLD_OK;
    TRY(kld_remove(x->path, err));
    return kld_fail(err, KLD_E_INPUT, "%s: was changed while it was captured",
                    c->config->item[i].model);
}

/* The capture that this one cannot do without, if it is not there. */
static const char *lacking(const nightly_captures *c, size_t i) {
    long replay = c->config->item[i].replay;
    if (i > 0 && !c->item[0].done) return c->config->item[0].name;
    return replay >= 0 && !c->item[replay].done ? c->config->item[replay].name : NULL;
}

static kld_status one(nightly_captures *c, size_t i, bool dry, kld_err *err) {
    nightly_capture *x = &c->item[i];
    const char *needs = lacking(c, i);
    nightly_stamp stamp;
    if (needs && dry && c->item[0].action != NIGHTLY_FAILED) {
        x->action = NIGHTLY_CAPTURED;
        x->why = i > 0 && !c->item[0].done ? "the reference is captured anew"
                                           : "the routes are captured anew";
        return nightly_stamp_of(c->config->item[i].model, &stamp, err);
    }
    if (needs) {
        x->action = NIGHTLY_SKIPPED;
        return kld_fail(err, KLD_E_INPUT, "not captured: it needs that of %s, which failed", needs);
    }
    TRY(nightly_stamp_of(c->config->item[i].model, &stamp, err));
    TRY(decide(c, i, &stamp, err));
    if (x->done) kld_note("%s: reused, nothing changed", c->config->item[i].name);
    if (x->done || dry) return KLD_OK;
    TRY(make(c, i, &stamp, err));
    x->done = true;
    return KLD_OK;
}

kld_status nightly_captures_run(nightly_captures *c, bool dry, kld_err *err) {
    if (!dry) TRY(kld_mkdir(c->folder, err));
    for (size_t i = 0; i < c->config->n_items; i++) {
        nightly_capture *x = &c->item[i];
        TRY(kld_stop_check(err));
        double start = kld_seconds();
        kld_status st = one(c, i, dry, &x->err);
        x->seconds = kld_seconds() - start;
        if (st == KLD_OK) continue;
        if (st == KLD_E_INTERRUPTED) {
            if (err) *err = x->err;
            return st;
        }
        if (x->action == NIGHTLY_SKIPPED) continue;
        x->action = NIGHTLY_FAILED;
        kld_warn("%s: %s", c->config->item[i].name, x->err.text);
    }
    return KLD_OK;
}

/* ---- pruning -------------------------------------------------------------------------------- */

/* NAME-KEY.zst, or what a capture of that name leaves while it is made; *n is the length of the
 * name without that. */
static bool is_ours(const char *name, size_t *n, const char **rest) {
    const char *dot = strstr(name, ".zst");
    for (const char *next = dot; next; next = strstr(next + 1, ".zst")) dot = next;
    if (!dot) return false;
    *n = (size_t)(dot - name) + 4;
    *rest = name + *n;
    if (**rest && strcmp(*rest, ".partial") != 0 && strcmp(*rest, ".partial.d") != 0) return false;
    size_t stem = (size_t)(dot - name);
    if (stem < KEY_DIGITS + 2 || name[stem - KEY_DIGITS - 1] != '-') return false;
    return strspn(name + stem - KEY_DIGITS, "0123456789abcdef") == KEY_DIGITS;
}

static bool is_kept(const nightly_captures *c, const json_t *keep, const char *name, size_t n) {
    for (size_t i = 0; i < c->config->n_items; i++) {
        const char *f = c->item[i].file, *own = c->config->item[i].name;
        if (f && strlen(f) == n && memcmp(f, name, n) == 0) return true;
        /* Of one whose checkpoint could not be opened now, nothing goes. */
        size_t m = strlen(own);
        if (!f && m + 1 + KEY_DIGITS + 4 == n && memcmp(own, name, m) == 0) return true;
    }
    for (size_t i = 0; i < json_array_size(keep); i++) {
        const char *f = json_string_value(json_array_get(keep, i));
        if (f && strlen(f) == n && memcmp(f, name, n) == 0) return true;
    }
    return false;
}

kld_status nightly_captures_prune(const nightly_captures *c, const json_t *keep, kld_err *err) {
    char **names;
    size_t n;
    TRY(kld_list_dir(c->folder, &names, &n, err));
    kld_status st = KLD_OK;
    for (size_t i = 0; i < n && st == KLD_OK; i++) {
        size_t stem;
        const char *rest;
        char *path;
        if (!is_ours(names[i], &stem, &rest) || is_kept(c, keep, names[i], stem)) continue;
        st = kld_path_join(&path, c->folder, names[i], err);
        if (st != KLD_OK) break;
        kld_debug("%s is no longer needed", path);
        st = strcmp(rest, ".partial.d") == 0 ? kld_remove_tree(path, err) : kld_remove(path, err);
        kld_free(path);
    }
    kld_names_free(names, n);
    return st;
}
