#include "kld/base/ed25519.h"
#include "kld/base/log.h"
#include "kld/cli/cli.h"
#include "kld/compare/receipt.h"
#include "kld/store/capture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILES = 256, KEY_KEY = 1 };

typedef struct args {
    cli_common common;
    const char *key_file;
    const char *file[MAX_FILES];
    bool is_receipt[MAX_FILES];
    size_t n;

    bool has_key; /* --key: the only signer that counts */
    kld_public_key key;
    kld_receipt_facts facts[MAX_FILES]; /* owned, of the receipts among the files */
    kld_digest content[MAX_FILES];      /* of the captures among them */
    json_t *captures, *receipts;        /* owned, with --json */
} args;

static const struct argp_option options[] = {
    {"key", KEY_KEY, "PUB", 0, "Fail unless everything is signed by this public key", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_KEY: a->key_file = arg; return 0;
    case ARGP_KEY_ARG:
        if (a->n == MAX_FILES) argp_error(s, "at most %d files", MAX_FILES);
        a->file[a->n++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->n == 0) argp_error(s, "at least one capture or receipt is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The signer that was asked for, when one was. */
static kld_status check_signer(const args *a, const char *path, const kld_signature *s,
                               kld_err *err) {
    char want[KLD_KEY_ID], have[KLD_KEY_ID];
    if (!a->has_key || (s && memcmp(&s->key, &a->key, sizeof a->key) == 0)) return KLD_OK;
    kld_key_id(&a->key, want);
    if (!s)
        return kld_fail(err, KLD_E_INPUT, "%s: is not signed; a signature of key %s is needed",
                        path, want);
    return kld_fail(err, KLD_E_INPUT, "%s: is signed by key %s, not by key %s", path,
                    kld_key_id(&s->key, have), want);
}

/* "key_id" and "public_key" of the signer, or null. */
static json_t *signer(const kld_signature *s) {
    char id[KLD_KEY_ID], hex[2 * sizeof s->key.b + 1];
    if (!s) return json_null();
    return json_pack("{s:s, s:s}", "key_id", kld_key_id(&s->key, id), "public_key",
                     kld_hex(s->key.b, sizeof s->key.b, hex));
}

static const char *signed_text(const kld_signature *s, char text[48]) {
    char id[KLD_KEY_ID];
    if (s) (void)snprintf(text, 48, "signed by key %s", kld_key_id(&s->key, id));
    else (void)snprintf(text, 48, "not signed");
    return text;
}

static bool names(const kld_receipt_facts *f, const kld_digest *content) {
    for (size_t i = 0; i < f->n_captures; i++)
        if (kld_same_digest(&f->capture[i], content)) return true;
    return false;
}

/* The first receipt that names this content; NULL without one. */
static const char *receipt_of(const args *a, const kld_digest *content) {
    for (size_t i = 0; i < a->n; i++)
        if (a->is_receipt[i] && names(&a->facts[i], content)) return a->file[i];
    return NULL;
}

/* With receipts, a capture must be one that they name; a signature of theirs is then over its
 * content too. */
static kld_status check_capture(const args *a, const kld_capture *c, bool with_receipts,
                                const char **receipt, kld_err *err) {
    char hex[KLD_SHA256_HEX];
    kld_signature s;
    kld_digest d = kld_capture_digest(c);
    *receipt = receipt_of(a, &d);
    if (with_receipts && !*receipt)
        return kld_fail(err, KLD_E_INPUT, "%s: its content %s is not what a receipt here names",
                        kld_capture_path(c), kld_digest_hex(&d, hex));
    if (*receipt) return KLD_OK;
    return check_signer(a, kld_capture_path(c), kld_capture_signature(c, &s) ? &s : NULL, err);
}

static kld_status verify_capture(args *a, size_t k, bool with_receipts, kld_err *err) {
    kld_capture *c;
    char hex[KLD_SHA256_HEX], by[48];
    const char *receipt = NULL, *path = a->file[k];
    kld_signature s;
    TRY(kld_capture_open(&c, path, err));
    kld_status st = check_capture(a, c, with_receipts, &receipt, err);
    if (st == KLD_OK) st = kld_capture_verify(c, err);
    if (st == KLD_OK) {
        const kld_capture_info *i = kld_capture_header(c);
        const kld_signature *who = kld_capture_signature(c, &s) ? &s : NULL;
        a->content[k] = kld_capture_digest(c);
        kld_digest_hex(&a->content[k], hex);
        if (a->captures)
            json_array_append_new(a->captures,
                                  json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:s?}", "capture", path,
                                            "digest", hex, "windows", (json_int_t)i->windows,
                                            "positions", (json_int_t)i->positions, "bytes",
                                            (json_int_t)kld_capture_bytes(c), "signed_by",
                                            signer(who), "receipt", receipt));
        else
            printf("%s: whole; %llu windows, %llu positions, content %s; %s%s%s\n", path,
                   (unsigned long long)i->windows, (unsigned long long)i->positions, hex,
                   signed_text(who, by), receipt ? "; named by " : "", receipt ? receipt : "");
    }
    kld_capture_close(c);
    return st;
}

static kld_status verify_receipt(args *a, size_t k, kld_err *err) {
    kld_receipt_facts *f = &a->facts[k];
    TRY(kld_receipt_read(a->file[k], NULL, f, err));
    return check_signer(a, a->file[k], f->has_signature ? &f->signature : NULL, err);
}

/* After the captures, since it says how many of a receipt's were there. */
static void tell_receipt(args *a, size_t k) {
    const kld_receipt_facts *f = &a->facts[k];
    const kld_signature *who = f->has_signature ? &f->signature : NULL;
    char hex[KLD_SHA256_HEX], by[48];
    size_t found = 0;
    for (size_t j = 0; j < f->n_captures; j++) {
        bool here = false;
        for (size_t i = 0; i < a->n; i++)
            here = here || (!a->is_receipt[i] && kld_same_digest(&a->content[i], &f->capture[j]));
        found += here;
    }
    kld_digest_hex(&f->content, hex);
    if (a->receipts)
        json_array_append_new(a->receipts, json_pack("{s:s, s:s, s:I, s:I, s:o}", "receipt",
                                                     a->file[k], "digest", hex, "captures",
                                                     (json_int_t)f->n_captures, "captures_found",
                                                     (json_int_t)found, "signed_by", signer(who)));
    else
        printf("%s: whole; %zu of its %zu captures are here, content %s; %s\n", a->file[k], found,
               f->n_captures, hex, signed_text(who, by));
}

static kld_status verify_all(args *a, kld_err *err) {
    bool with_receipts = false;
    if (a->key_file) TRY(kld_public_key_load(&a->key, a->key_file, err));
    a->has_key = a->key_file != NULL;
    for (size_t i = 0; i < a->n; i++) TRY(cli_is_receipt(a->file[i], &a->is_receipt[i], err));
    for (size_t i = 0; i < a->n; i++) {
        if (!a->is_receipt[i]) continue;
        with_receipts = true;
        TRY(verify_receipt(a, i, err));
    }
    for (size_t i = 0; i < a->n; i++)
        if (!a->is_receipt[i]) TRY(verify_capture(a, i, with_receipts, err));
    for (size_t i = 0; i < a->n; i++)
        if (a->is_receipt[i]) tell_receipt(a, i);
    return KLD_OK;
}

kld_status cli_verify(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "FILE...",
        "Check every byte of captures (header, each frame's SHA-256 and decompression, footer, "
        "content digest, signature) and receipts of comparisons (digest, signature).  Captures "
        "given with receipts must be the ones that these name.  Stops at the first that is not "
        "whole.",
        cli_common_child,
        0,
        0};
    static args a; /* too large for some stacks */
    cli_parse(&argp, "verify", argc, argv, &a);
    if (a.common.json) {
        a.captures = json_array();
        a.receipts = json_array();
    }
    kld_status st = verify_all(&a, err);
    for (size_t i = 0; i < a.n; i++) kld_receipt_facts_free(&a.facts[i]);
    if (st == KLD_OK && a.common.json)
        return cli_print_json(json_pack("{s:i, s:o, s:o}", "schema", 1, "captures", a.captures,
                                        "receipts", a.receipts),
                              err);
    json_decref(a.captures);
    json_decref(a.receipts);
    return st;
}
