#include "kld/base/ed25519.h"
#include "kld/cli/cli.h"
#include "kld/compare/receipt.h"
#include "kld/store/capture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILES = 256, KEY_KEY = 1, KEY_FORCE };

typedef struct args {
    cli_common common;
    const char *key;
    bool force;
    const char *file[MAX_FILES];
    size_t n;
} args;

static const struct argp_option options[] = {
    {"key", KEY_KEY, "KEY", 0, "The private key (kld keygen makes one)", 1},
    {"force", KEY_FORCE, 0, 0, "Replace the signature of another key", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_KEY: a->key = arg; return 0;
    case KEY_FORCE: a->force = true; return 0;
    case ARGP_KEY_ARG:
        if (a->n == MAX_FILES) argp_error(s, "at most %d files", MAX_FILES);
        a->file[a->n++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->key) argp_error(s, "--key KEY is needed");
        if (a->n == 0) argp_error(s, "at least one capture or receipt is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status sign_receipt(const args *a, const char *path, const kld_key *key,
                               kld_digest *content, kld_err *err) {
    json_t *receipt;
    kld_receipt_facts f;
    kld_public_key who = kld_key_public(key);
    TRY(kld_receipt_read(path, &receipt, &f, err));
    kld_status st = KLD_OK;
    bool mine = f.has_signature && memcmp(&f.signature.key, &who, sizeof who) == 0;
    if (f.has_signature && !mine && !a->force) {
        char id[KLD_KEY_ID];
        st =
            kld_fail(err, KLD_E_INPUT, "%s: has a signature of key %s already; --force replaces it",
                     path, kld_key_id(&f.signature.key, id));
    }
    if (st == KLD_OK && !mine) {
        st = kld_receipt_sign(receipt, key, err);
        if (st == KLD_OK) st = kld_json_save(receipt, path, err);
    }
    *content = f.content;
    kld_receipt_facts_free(&f);
    json_decref(receipt);
    return st;
}

static kld_status sign_capture(const args *a, const char *path, const kld_key *key,
                               kld_digest *content, kld_err *err) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, err));
    *content = kld_capture_digest(c);
    kld_status st = kld_capture_sign(c, key, a->force, err);
    kld_capture_close(c);
    return st;
}

static kld_status sign_one(const args *a, const char *path, const kld_key *key, json_t *list,
                           kld_err *err) {
    char id[KLD_KEY_ID], hex[KLD_SHA256_HEX];
    kld_public_key who = kld_key_public(key);
    kld_digest content = {{0}};
    bool receipt;
    TRY(cli_is_receipt(path, &receipt, err));
    TRY(receipt ? sign_receipt(a, path, key, &content, err)
                : sign_capture(a, path, key, &content, err));
    kld_key_id(&who, id);
    kld_digest_hex(&content, hex);
    if (list)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s}", "path", path, "digest", hex, "signed_by", id));
    else printf("%s: signed by key %s; content %s\n", path, id, hex);
    return KLD_OK;
}

kld_status cli_sign(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--key KEY FILE...",
        "Sign captures and receipts.  Every byte of a file is checked first; its content digest "
        "stays the same.  What is signed by this key already is left as it is.",
        cli_common_child,
        0,
        0};
    args a = {0};
    kld_key *key;
    cli_parse(&argp, "sign", argc, argv, &a);
    TRY(kld_key_load(&key, a.key, err));
    json_t *list = a.common.json ? json_array() : NULL;
    kld_status st = KLD_OK;
    for (size_t i = 0; i < a.n && st == KLD_OK; i++) st = sign_one(&a, a.file[i], key, list, err);
    kld_key_free(key);
    if (st == KLD_OK && list)
        return cli_print_json(json_pack("{s:i, s:o}", "schema", 1, "signed", list), err);
    json_decref(list);
    return st;
}
