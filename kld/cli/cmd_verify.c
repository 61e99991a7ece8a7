#include "kld/cli/cli.h"
#include "kld/store/capture.h"

#include <errno.h>
#include <stdio.h>

enum { MAX_FILES = 256 };

typedef struct args {
    cli_common common;
    const char *file[MAX_FILES];
    size_t n;
} args;

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case ARGP_KEY_ARG:
        if (a->n == MAX_FILES) argp_error(s, "at most %d files", MAX_FILES);
        a->file[a->n++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->n == 0) argp_error(s, "at least one capture is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status verify_one(const char *path, json_t *list, kld_err *err) {
    kld_capture *c;
    TRY(kld_capture_open(&c, path, err));
    kld_status st = kld_capture_verify(c, err);
    if (st == KLD_OK) {
        char hex[KLD_SHA256_HEX];
        kld_digest d = kld_capture_digest(c);
        const kld_capture_info *i = kld_capture_header(c);
        if (list)
            json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I}", "capture", path,
                                                  "digest", kld_digest_hex(&d, hex), "windows",
                                                  (json_int_t)i->windows, "positions",
                                                  (json_int_t)i->positions, "bytes",
                                                  (json_int_t)kld_capture_bytes(c)));
        else
            printf("%s: whole; %llu windows, %llu positions, content %s\n", path,
                   (unsigned long long)i->windows, (unsigned long long)i->positions,
                   kld_digest_hex(&d, hex));
    }
    kld_capture_close(c);
    return st;
}

kld_status cli_verify(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        0,
        parse,
        "CAPTURE...",
        "Check every byte of captures: header, each frame's SHA-256 and decompression, footer and "
        "content digest.  Stops at the first that is not whole.",
        cli_common_child,
        0,
        0};
    args a = {0};
    cli_parse(&argp, "verify", argc, argv, &a);
    json_t *list = a.common.json ? json_array() : NULL;
    kld_status st = KLD_OK;
    for (size_t i = 0; i < a.n && st == KLD_OK; i++) st = verify_one(a.file[i], list, err);
    if (st != KLD_OK || !list) {
        json_decref(list);
        return st;
    }
    return cli_print_json(json_pack("{s:i, s:o}", "schema", 1, "captures", list), err);
}
