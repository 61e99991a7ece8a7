/* Everything that a run will open, without running. */
#include "datasets/suite.h"
#include "kld/base/ed25519.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/capture/inputs.h"
#include "kld/nightly/history.h"
#include "kld/nightly/nightly.h"
#include "kld/store/capture.h"
#include "loaders/model.h"

#include <string.h>

static kld_status check_model(const kld_nightly_item *item, kld_err *err) {
    kld_model *m = NULL;
    char *dir;
    TRY(kld_hub_resolve(item->model, &dir, err));
    kld_status st = kld_model_open(&m, dir, err);
    if (st == KLD_OK && item->opt.activations == KLD_ACTIVATIONS_AS_DECLARED)
        st = kld_inputs_resolve(m, dir, item->opt.fused, err);
    kld_model_free(m);
    kld_free(dir);
    return st;
}

static kld_status check_suite(const kld_nightly_config *c, kld_err *err) {
    kld_suite suite;
    TRY(kld_suite_load(&suite, c->suite, err));
    kld_suite_free(&suite);
    return KLD_OK;
}

static kld_status check_key(const kld_nightly_config *c, kld_err *err) {
    kld_key *key;
    if (!c->sign_key) return KLD_OK;
    TRY(kld_key_load(&key, c->sign_key, err));
    kld_key_free(key);
    return KLD_OK;
}

static kld_status check_floor(const kld_nightly_config *c, kld_err *err) {
    kld_capture *f;
    if (!c->floor) return KLD_OK;
    TRY(kld_capture_open(&f, c->floor, err));
    kld_capture_close(f);
    return KLD_OK;
}

/* The folder may be new, the one around it not. */
static kld_status check_output(const kld_nightly_config *c, kld_err *err) {
    kld_history *h;
    char *path;
    TRY(kld_path_dir(&path, c->output, err));
    bool room = kld_path_is_dir(c->output) || kld_path_is_dir(path);
    kld_free(path);
    if (!room)
        return kld_fail(err, KLD_E_INPUT, "%s: the folder around it does not exist", c->output);
    TRY(kld_path_join(&path, c->output, "history.db", err));
    kld_status st = kld_history_open(&h, path, false, err);
    kld_history_close(h);
    kld_free(path);
    return st;
}

kld_status kld_nightly_check(const kld_nightly_config *c, kld_err *err) {
    kld_choice where;
    TRY(kld_where(err, kld_choose(c->device, &where, err), "%s: 'device'", c->path));
    TRY(check_suite(c, err));
    TRY(check_output(c, err));
    TRY(check_floor(c, err));
    TRY(check_key(c, err));
    kld_status first = KLD_OK;
    for (size_t i = 0; i < c->n_items; i++) {
        kld_err e;
        kld_status st =
            kld_where(&e, check_model(&c->item[i], &e), "%s: %s", c->path, c->item[i].name);
        if (st == KLD_OK) continue;
        if (first == KLD_OK && err) *err = e;
        if (first != KLD_OK) kld_warn("%s", e.text); /* the first ends the program */
        else first = st;
    }
    return first;
}
