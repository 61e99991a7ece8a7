#include "kld/cli/cli.h"
#include "kld/nightly/nightly.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { KEY_EXAMPLE = 1, KEY_CHECK, KEY_DRY, KEY_LABEL };

typedef struct args {
    cli_common common;
    const char *config, *label;
    bool example, check, dry;
} args;

static const struct argp_option options[] = {
    {"example", KEY_EXAMPLE, 0, 0, "Print a configuration to begin with", 1},
    {"init", 0, 0, OPTION_ALIAS, 0, 1},
    {"check", KEY_CHECK, 0, 0, "Open everything that CONFIG names, and run nothing", 1},
    {"dry-run", KEY_DRY, 0, 0, "Say what would be captured and what would be used again", 1},
    {"label", KEY_LABEL, "TEXT", 0, "What is tested, for the history: a commit, a build", 2},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_EXAMPLE: a->example = true; return 0;
    case KEY_CHECK: a->check = true; return 0;
    case KEY_DRY: a->dry = true; return 0;
    case KEY_LABEL: a->label = arg; return 0;
    case ARGP_KEY_ARG:
        if (a->config) argp_error(s, "unexpected argument '%s'", arg);
        a->config = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->check && a->dry) argp_error(s, "--check and --dry-run exclude each other");
        if (a->example == !!a->config)
            argp_error(s, a->example ? "--example takes no CONFIG" : "a CONFIG is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status show(const args *a, const kld_nightly_config *c, const json_t *summary,
                       kld_err *err) {
    kld_buf text = {0};
    const json_t *folder = json_object_get(summary, "directory");
    if (a->common.json) return cli_print_json(json_incref((json_t *)(uintptr_t)summary), err);
    kld_status st = kld_nightly_text(summary, false, &text, err);
    if (st == KLD_OK) fputs((const char *)text.data, stdout);
    if (st == KLD_OK && folder) printf("Reports: %s/%s\n", c->output, json_string_value(folder));
    kld_buf_free(&text);
    return st;
}

static kld_status run(const args *a, const kld_nightly_config *c, kld_err *err) {
    json_t *summary = NULL;
    kld_err shown = {0};
    if (a->check) {
        TRY(kld_nightly_check(c, err));
        if (a->common.json)
            return cli_print_json(json_pack("{s:i, s:s, s:I}", "schema", 1, "config", c->path,
                                            "candidates", (json_int_t)c->n_candidates),
                                  err);
        printf("%s: a reference and %zu candidates, ready to run\n", c->path, c->n_candidates);
        return KLD_OK;
    }
    kld_status st =
        a->dry ? kld_nightly_plan(c, &summary, err) : kld_nightly_run(c, a->label, &summary, err);
    kld_status print = summary ? show(a, c, summary, &shown) : KLD_OK;
    json_decref(summary);
    if (st != KLD_OK || print == KLD_OK) return st;
    if (err) *err = shown;
    return print;
}

kld_status cli_nightly(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "CONFIG.json\n--example",
        "Capture a reference and candidates where something changed, compare them, hold them "
        "against limits and the last good run, and keep reports and a history.\v"
        "docs/nightly.md has the configuration, the files, and units for systemd, cron and CI.",
        cli_common_child,
        0,
        0};
    args a = {0};
    cli_parse(&argp, "nightly", argc, argv, &a);
    if (a.example) {
        fputs(kld_nightly_example(), stdout);
        return KLD_OK;
    }
    kld_nightly_config c;
    TRY(kld_nightly_config_load(&c, a.config, err));
    cli_threads(c.threads);
    kld_status st = run(&a, &c, err);
    kld_nightly_config_free(&c);
    return st;
}
