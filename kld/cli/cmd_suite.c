#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/capture/build_suite.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_TEXT = 1,
    KEY_JSONL,
    KEY_TOKENIZER,
    KEY_WINDOW,
    KEY_STRIDE,
    KEY_SCORE_LAST,
    KEY_BOS,
    KEY_PARTITION
};

typedef struct args {
    cli_common common;
    kld_suite_options opt;
    kld_documents docs;
    const char *tokenizer, *output;
    bool stride_set;
    const char **input; /* owned [n_inputs]; room for every argument */
    size_t n_inputs;
    int kind;      /* KEY_TEXT or KEY_JSONL: what further files are */
    kld_status st; /* of reading the inputs, in the order they were given */
    kld_err err;
} args;

static const struct argp_option options[] = {
    {"text", KEY_TEXT, "FILE", 0, "Plain text, one document (repeatable; more files may follow)",
     1},
    {"jsonl", KEY_JSONL, "FILE", 0,
     "JSON Lines with \"text\" or \"ids\" (repeatable; more files may follow)", 1},
    {"tokenizer", KEY_TOKENIZER, "DIR", 0,
     "Directory with tokenizer.json, e.g. the reference model", 1},
    {"output", 'o', "FILE", 0, "Suite to write", 1},
    {"window", KEY_WINDOW, "N", 0, "Tokens a window (default 2048)", 2},
    {"stride", KEY_STRIDE, "N", 0,
     "Tokens from one window's begin to the next (default: the window)", 2},
    {"score-last", KEY_SCORE_LAST, "N", 0, "Score only the last N positions of each window", 2},
    {"bos", KEY_BOS, "none|first|every", 0,
     "Beginning-of-sequence token: never, before each document, before each window (default none)",
     2},
    {"partition", KEY_PARTITION, "NAME", 0, "Partition of documents that name none", 2},
    {0},
};

static void add_input(args *a, int key, const char *path) {
    a->input[a->n_inputs++] = path;
    if (a->st != KLD_OK) return;
    a->st = key == KEY_JSONL ? kld_jsonl_read(&a->docs, path, &a->err)
                             : kld_text_read(&a->docs, path, &a->err);
}

static kld_bos parse_bos(struct argp_state *s, const char *text) {
    if (!strcmp(text, "none")) return KLD_BOS_NONE;
    if (!strcmp(text, "first")) return KLD_BOS_FIRST;
    if (strcmp(text, "every") != 0) argp_error(s, "--bos '%s': none, first or every", text);
    return KLD_BOS_EVERY;
}

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_TEXT:
    case KEY_JSONL:
        a->kind = key;
        add_input(a, key, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (!a->kind) argp_error(s, "'%s': say --text or --jsonl before it", arg);
        add_input(a, a->kind, arg);
        return 0;
    case KEY_TOKENIZER: a->tokenizer = arg; return 0;
    case 'o': a->output = arg; return 0;
    case KEY_WINDOW: a->opt.window = cli_u64(s, "--window", arg); return 0;
    case KEY_STRIDE:
        a->opt.stride = cli_u64(s, "--stride", arg);
        a->stride_set = true;
        return 0;
    case KEY_SCORE_LAST:
        a->opt.score_last = cli_u64(s, "--score-last", arg);
        a->opt.score_last_set = true;
        return 0;
    case KEY_BOS: a->opt.bos = parse_bos(s, arg); return 0;
    case KEY_PARTITION: a->opt.partition = arg; return 0;
    case ARGP_KEY_END:
        if (!a->tokenizer || !a->output)
            argp_error(s, "%s is missing", !a->tokenizer ? "--tokenizer" : "--output");
        if (a->st == KLD_OK && a->docs.n == 0)
            argp_error(s, "no document: give --text FILE or --jsonl FILE");
        if (!a->stride_set) a->opt.stride = a->opt.window;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status print_suite(const kld_suite *s, const char *path, bool json, kld_err *err) {
    char digest[KLD_SHA256_HEX], tokenizer[KLD_SHA256_HEX];
    kld_digest_hex(&s->digest, digest);
    kld_digest_hex(&s->tokenizer, tokenizer);
    if (json)
        return cli_print_json(
            json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "schema", 1,
                      "suite", path, "digest", digest, "tokenizer", tokenizer, "vocab",
                      (json_int_t)s->vocab, "windows", (json_int_t)s->n_windows, "tokens",
                      (json_int_t)s->tokens, "positions", (json_int_t)s->positions, "window",
                      (json_int_t)s->window, "stride", (json_int_t)s->stride, "bos", s->bos),
            err);
    printf("%s: %zu windows, %llu tokens, %llu scored positions, digest %.12s\n", path,
           s->n_windows, (unsigned long long)s->tokens, (unsigned long long)s->positions, digest);
    return KLD_OK;
}

static void say_notes(const args *a, const kld_suite *s, const kld_suite_notes *n) {
    if (n->empty_documents)
        kld_note("%zu of %zu documents have fewer than two tokens and score nothing",
                 n->empty_documents, n->documents);
    if (n->bos_present)
        kld_note("%zu documents begin with the beginning-of-sequence token already; none was added",
                 n->bos_present);
    if (a->opt.stride < a->opt.window && !a->opt.score_last_set)
        kld_note(
            "windows overlap by %zu tokens; each token is scored once, with the longest context",
            a->opt.window - a->opt.stride);
    if (a->opt.score_last_set && a->opt.score_last > a->opt.stride)
        kld_warn("with --score-last %zu and --stride %zu tokens are scored more than once (%llu "
                 "positions); intervals resample whole clusters and stay honest",
                 a->opt.score_last, a->opt.stride, (unsigned long long)s->positions);
}

static kld_status build(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--jsonl FILE...|--text FILE... --tokenizer DIR -o SUITE",
        "Cut documents into windows of token ids, with their source, cluster, stratum and hashes.",
        cli_common_child,
        0,
        0};
    args a = {.opt = {.window = 2048, .bos = KLD_BOS_NONE}};
    kld_tokenizer *t = NULL;
    kld_suite s = {0};
    kld_suite_notes notes;
    TRY(NEW_ARRAY(&a.input, (size_t)argc, err));
    cli_parse(&argp, "suite build", argc, argv, &a);
    kld_status st = a.st;
    if (st != KLD_OK) {
        if (err) *err = a.err;
        goto done;
    }
    for (size_t i = 0; i < a.n_inputs; i++)
        TRY_TO(done, kld_output_not_input(a.output, a.input[i], err));
    TRY_TO(done, kld_tokenizer_open(&t, a.tokenizer, err));
    TRY_TO(done, kld_suite_build(&s, &a.docs, t, &a.opt, &notes, err));
    say_notes(&a, &s, &notes);
    TRY_TO(done, kld_suite_save(&s, a.output, err));
    TRY_TO(done, print_suite(&s, a.output, a.common.json, err));
done:
    kld_suite_free(&s);
    kld_tokenizer_free(t);
    kld_documents_free(&a.docs);
    kld_free(a.input);
    return st;
}

typedef struct info_args {
    cli_common common;
    const char *path;
} info_args;

static error_t parse_info(int key, char *arg, struct argp_state *s) {
    info_args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case ARGP_KEY_ARG:
        if (a->path) argp_error(s, "unexpected argument '%s'", arg);
        a->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->path) argp_error(s, "a suite file is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status info(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        0, parse_info, "SUITE", "Check a suite and describe it.", cli_common_child, 0, 0};
    info_args a = {0};
    kld_suite s;
    cli_parse(&argp, "suite info", argc, argv, &a);
    TRY(kld_suite_load(&s, a.path, err));
    kld_status st = print_suite(&s, a.path, a.common.json, err);
    kld_suite_free(&s);
    return st;
}

kld_status cli_suite(int argc, char **argv, kld_err *err) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "build")) return build(argc - 1, argv + 1, err);
    if (!strcmp(verb, "info")) return info(argc - 1, argv + 1, err);
    bool help = !strcmp(verb, "--help") || !strcmp(verb, "-h") || !strcmp(verb, "-?");
    FILE *to = help ? stdout : stderr;
    fputs("Usage: kld suite build [OPTION...]    cut text into windows of token ids\n"
          "   or: kld suite info SUITE           check a suite and describe it\n"
          "Try `kld suite build --help' for the options.\n",
          to);
    if (help) return KLD_OK;
    return kld_fail(err, KLD_E_USAGE,
                    *verb ? "kld suite: '%s' is neither build nor info. Try `kld suite --help'."
                          : "kld suite: build or info is needed%s",
                    verb);
}
