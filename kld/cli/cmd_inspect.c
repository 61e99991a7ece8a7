#include "kld/capture/inspect.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>

enum { KEY_SPEED = 1, KEY_TOKENS, KEY_WINDOW, MAX_PATHS = 64 };

typedef struct args {
    cli_common common;
    kld_inspect_options opt;
    const char *path[MAX_PATHS];
    size_t n;
} args;

static const struct argp_option options[] = {
    {"disk-speed", KEY_SPEED, "SIZE", 0,
     "Bytes a second, for the expected read time (default 1.7G)", 1},
    {"tokens", KEY_TOKENS, "N", 0, "Tokens of a run, for the memory plan (default 204800)", 1},
    {"window", KEY_WINDOW, "N", 0, "Tokens a window, likewise (default 2048)", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_SPEED: a->opt.disk_speed = (double)cli_size(s, "--disk-speed", arg); return 0;
    case KEY_TOKENS: a->opt.tokens = cli_u64(s, "--tokens", arg); return 0;
    case KEY_WINDOW: a->opt.window = cli_u64(s, "--window", arg); return 0;
    case ARGP_KEY_ARG:
        if (a->n == MAX_PATHS) argp_error(s, "at most %d paths", MAX_PATHS);
        a->path[a->n++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->n == 0) argp_error(s, "a checkpoint or a capture is needed");
        if (a->opt.disk_speed < 1) argp_error(s, "--disk-speed must be at least 1 byte a second");
        if (a->opt.window < 1) argp_error(s, "--window must be at least 1");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status print_one(const char *path, const args *a, kld_err *err) {
    json_t *v;
    TRY(kld_inspect(path, &a->opt, &v, err));
    if (a->common.json) return cli_print_json(v, err);
    kld_buf text = {0};
    kld_status st = kld_inspect_text(v, &text, err);
    if (st == KLD_OK) fputs((const char *)text.data, stdout);
    kld_buf_free(&text);
    json_decref(v);
    return st;
}

kld_status cli_inspect(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {options,
                                     parse,
                                     "CHECKPOINT|CAPTURE...",
                                     "Describe a checkpoint (family, formats by module, sizes, "
                                     "memory plan) or a capture (who was "
                                     "run, on what, how).  With --json, one object a path.",
                                     cli_common_child,
                                     0,
                                     0};
    args a = {.opt = {.disk_speed = 1.7e9, .tokens = 204800, .window = 2048}};
    cli_parse(&argp, "inspect", argc, argv, &a);
    for (size_t i = 0; i < a.n; i++) TRY(print_one(a.path[i], &a, err));
    return KLD_OK;
}
