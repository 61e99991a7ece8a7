#include "datasets/suite.h"
#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/capture/overlap.h"
#include "kld/capture/scan.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { KEY_AGAINST = 1, KEY_TOKENIZER, KEY_ABOVE, KEY_SIMILAR, KEY_FAIL };

typedef struct args {
    cli_common common;
    kld_scan_options opt;
    const char **against; /* owned; room for every argument */
    const char *suite, *tokenizer;
    bool more; /* files may follow --against */
    bool gate;
    double fail_above;
} args;

static const struct argp_option options[] = {
    {"against", KEY_AGAINST, "FILE", 0,
     "Calibration text: JSON Lines (.jsonl) or plain (repeatable; more files may follow)", 1},
    {"tokenizer", KEY_TOKENIZER, "DIR", 0, "That of the suite; not needed when the files have ids",
     1},
    {"above", KEY_ABOVE, "SHARE", 0,
     "List clusters of which more than this share of 13-grams is found (default 0: any)", 2},
    {"similar", KEY_SIMILAR, "X", 0,
     "and those at least as similar as this to one document (default 0.5)", 2},
    {"fail-above", KEY_FAIL, "SHARE", 0, "Exit 1 if more than this share of any cluster is found",
     2},
    {0},
};

static double share(struct argp_state *s, const char *option, const char *text) {
    double v = cli_f64(s, option, text);
    if (!(v >= 0 && v <= 1)) argp_error(s, "%s %s: 0 to 1 is accepted", option, text);
    return v;
}

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_AGAINST:
        a->more = true;
        a->against[a->opt.n_files++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (!a->suite) a->suite = arg;
        else if (a->more) a->against[a->opt.n_files++] = arg;
        else argp_error(s, "unexpected argument '%s'", arg);
        return 0;
    case KEY_TOKENIZER: a->tokenizer = arg; return 0;
    case KEY_ABOVE: a->opt.above = share(s, "--above", arg); return 0;
    case KEY_SIMILAR: a->opt.similar = share(s, "--similar", arg); return 0;
    case KEY_FAIL:
        a->gate = true;
        a->fail_above = share(s, "--fail-above", arg);
        return 0;
    case ARGP_KEY_END:
        if (!a->suite) argp_error(s, "a suite file is needed");
        if (!a->opt.n_files) argp_error(s, "--against FILE is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status scan(const args *a, json_t **out, kld_err *err) {
    kld_suite s;
    kld_tokenizer *t = NULL;
    TRY(kld_suite_load(&s, a->suite, err));
    kld_status st = a->tokenizer ? kld_tokenizer_open(&t, a->tokenizer, err) : KLD_OK;
    if (st == KLD_OK) st = kld_suite_scan(&s, a->suite, t, &a->opt, out, err);
    kld_tokenizer_free(t);
    kld_suite_free(&s);
    return st;
}

static kld_status report(const args *a, json_t *v, kld_err *err) {
    kld_buf text = {0};
    if (a->common.json) return cli_print_json(json_incref(v), err);
    kld_status st = kld_suite_scan_text(v, &text, err);
    if (st == KLD_OK) fputs((const char *)text.data, stdout);
    kld_buf_free(&text);
    return st;
}

kld_status cli_suite_scan(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "SUITE --against FILE... [--tokenizer DIR]",
        "Look for calibration text in a suite: what a candidate was calibrated or distilled on "
        "flatters it.\v"
        "Found exactly: rows of 13 token ids. Estimated: how alike a cluster and a document are as "
        "a whole (MinHash over rows of 5).",
        cli_common_child,
        0,
        0};
    args a = {.opt = {.similar = 0.5}};
    json_t *v = NULL;
    TRY(kld_calloc((void **)&a.against, (size_t)argc, sizeof *a.against, err));
    cli_parse(&argp, "suite scan", argc, argv, &a);
    a.opt.files = a.against;
    kld_status st = scan(&a, &v, err);
    if (st == KLD_OK) st = report(&a, v, err);
    double worst = json_number_value(json_object_get(v, "most"));
    if (st == KLD_OK && a.gate && worst > a.fail_above)
        st = kld_fail(
            err, KLD_E_GATE,
            "%.2f %% of the 13-grams of a cluster are in the calibration text; the limit is "
            "%.2f %%",
            100 * worst, 100 * a.fail_above);
    json_decref(v);
    kld_free(a.against);
    return st;
}
