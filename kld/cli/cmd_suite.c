#include "kld/base/log.h"
#include "kld/base/mem.h"
#include "kld/base/place.h"
#include "kld/capture/build_suite.h"
#include "kld/capture/describe.h"
#include "kld/capture/exclude.h"
#include "kld/capture/manifest.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_TEXT = 1,
    KEY_JSONL,
    KEY_CONFIG,
    KEY_TOKENIZER,
    KEY_WINDOW,
    KEY_STRIDE,
    KEY_SCORE_LAST,
    KEY_BOS,
    KEY_PARTITION,
    KEY_SPLIT,
    KEY_KEEP,
    KEY_SEED,
    KEY_PER_DOCUMENT,
    KEY_PER_CLUSTER,
    KEY_EXCLUDE,
    KEY_EXCLUDE_ABOVE,
    KEYS
};

typedef struct args {
    cli_common common;
    kld_manifest m; /* what options said; a manifest is read under it */
    bool set[KEYS]; /* options that were given */
    const char *config, *output;
    kld_source source;     /* of the files that options name */
    kld_source_file *file; /* owned; room for every argument */
    const char **exclude;  /* owned, alike */
    int kind;              /* KEY_TEXT or KEY_JSONL: what further files are */
} args;

static const struct argp_option options[] = {
    {"text", KEY_TEXT, "FILE", 0, "Plain text, one document (repeatable; more files may follow)",
     1},
    {"jsonl", KEY_JSONL, "FILE", 0,
     "JSON Lines with \"text\" or \"ids\" (repeatable; more files may follow)", 1},
    {"config", KEY_CONFIG, "MANIFEST.json", 0,
     "Sources with revisions and how much is taken of each, instead of --text and --jsonl; other "
     "options go before what it says",
     1},
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
    {"per-document", KEY_PER_DOCUMENT, "N", 0, "At most N windows of a document", 3},
    {"per-cluster", KEY_PER_CLUSTER, "N", 0, "At most N windows of a cluster", 3},
    {"seed", KEY_SEED, "N", 0, "Seed of the choice of windows and of the split (default 1)", 3},
    {"partition", KEY_PARTITION, "NAME", 0, "Partition of documents that name none", 4},
    {"partition-split", KEY_SPLIT, "NAME=SHARE,...", 0,
     "Divide clusters that have no partition, within strata: analysis=0.75,qualification=0.25", 4},
    {"keep-partitions", KEY_KEEP, "SUITE", 0, "Clusters of that suite stay in their partition", 4},
    {"exclude-overlap", KEY_EXCLUDE, "FILE", 0,
     "Leave out documents that are in this calibration text: JSON Lines (.jsonl) or plain "
     "(repeatable)",
     5},
    {"exclude-above", KEY_EXCLUDE_ABOVE, "SHARE", 0,
     "Only those of which more than this share of 13-grams of ids is in it (default 0: any)", 5},
    {0},
};

static void add_input(args *a, int key, const char *path) {
    a->file[a->source.n_files++] =
        (kld_source_file){.path = path, .shown = path, .jsonl = key == KEY_JSONL};
}

static kld_bos parse_bos(struct argp_state *s, const char *text) {
    if (!strcmp(text, "none")) return KLD_BOS_NONE;
    if (!strcmp(text, "first")) return KLD_BOS_FIRST;
    if (strcmp(text, "every") != 0) argp_error(s, "--bos '%s': none, first or every", text);
    return KLD_BOS_EVERY;
}

static uint64_t parse_seed(struct argp_state *s, const char *text) {
    uint64_t seed = cli_u64(s, "--seed", text);
    if (seed > INT64_MAX) argp_error(s, "--seed must be below 2^63");
    return seed;
}

static void parse_split(struct argp_state *s, const char *text, kld_split *out) {
    kld_err err;
    if (kld_split_parse(out, text, &err) != KLD_OK)
        argp_error(s, "--partition-split: %s", err.text);
}

static void check_args(const args *a, struct argp_state *s) {
    if (!a->output || (!a->m.tokenizer && !a->config))
        argp_error(s, "%s is missing", !a->output ? "--output" : "--tokenizer");
    if (a->config && a->source.n_files)
        argp_error(s, "--config names the files; --text and --jsonl do not go with it");
    if (!a->config && !a->source.n_files)
        argp_error(s, "no document: give --text FILE, --jsonl FILE or --config MANIFEST.json");
    if (a->set[KEY_EXCLUDE_ABOVE] && !(a->m.exclude_above >= 0 && a->m.exclude_above < 1))
        argp_error(s, "--exclude-above must be at least 0 and below 1");
    if ((a->set[KEY_PER_DOCUMENT] && !a->m.per_document) ||
        (a->set[KEY_PER_CLUSTER] && !a->m.per_cluster))
        argp_error(s, "at most 0 windows leave nothing");
}

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    kld_manifest *m = &a->m;
    if (key > 0 && key < KEYS) a->set[key] = true;
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
    case KEY_CONFIG: a->config = arg; return 0;
    case KEY_TOKENIZER: m->tokenizer = arg; return 0;
    case 'o': a->output = arg; return 0;
    case KEY_WINDOW: m->opt.window = cli_u64(s, "--window", arg); return 0;
    case KEY_STRIDE: m->opt.stride = cli_u64(s, "--stride", arg); return 0;
    case KEY_SCORE_LAST: m->opt.score_last = cli_u64(s, "--score-last", arg); return 0;
    case KEY_BOS: m->opt.bos = parse_bos(s, arg); return 0;
    case KEY_PARTITION: m->opt.partition = arg; return 0;
    case KEY_SPLIT: parse_split(s, arg, &m->split); return 0;
    case KEY_KEEP: m->keep = arg; return 0;
    case KEY_SEED: m->opt.seed = parse_seed(s, arg); return 0;
    case KEY_PER_DOCUMENT: m->per_document = cli_u64(s, "--per-document", arg); return 0;
    case KEY_PER_CLUSTER: m->per_cluster = cli_u64(s, "--per-cluster", arg); return 0;
    case KEY_EXCLUDE: a->exclude[m->n_exclude++] = arg; return 0;
    case KEY_EXCLUDE_ABOVE: m->exclude_above = cli_f64(s, "--exclude-above", arg); return 0;
    case ARGP_KEY_END: check_args(a, s); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What options said goes before what the manifest says. */
static kld_status merge(args *a, kld_err *err) {
    kld_manifest said = a->m, *m = &a->m;
    const bool *set = a->set;
    kld_manifest_init(m);
    if (a->config) TRY(kld_manifest_load(m, a->config, err));
    if (set[KEY_TOKENIZER]) m->tokenizer = said.tokenizer;
    if (set[KEY_WINDOW]) m->opt.window = said.opt.window;
    if (set[KEY_STRIDE]) m->opt.stride = said.opt.stride;
    else if (!a->config || !m->opt.stride) m->opt.stride = m->opt.window;
    if (set[KEY_SCORE_LAST]) m->opt.score_last = said.opt.score_last;
    m->opt.score_last_set = m->opt.score_last_set || set[KEY_SCORE_LAST];
    if (set[KEY_BOS]) m->opt.bos = said.opt.bos;
    if (set[KEY_PARTITION]) m->opt.partition = said.opt.partition;
    if (set[KEY_SPLIT]) m->split = said.split;
    if (set[KEY_KEEP]) m->keep = said.keep;
    if (set[KEY_SEED]) m->opt.seed = said.opt.seed;
    if (set[KEY_PER_DOCUMENT]) m->per_document = said.per_document;
    if (set[KEY_PER_CLUSTER]) m->per_cluster = said.per_cluster;
    if (set[KEY_EXCLUDE_ABOVE]) m->exclude_above = said.exclude_above;
    if (set[KEY_EXCLUDE]) {
        m->exclude = a->exclude;
        m->n_exclude = said.n_exclude;
    }
    if (!a->config) {
        a->source.dataset = a->source.revision = "";
        a->source.file = a->file;
        m->source = &a->source;
        m->n_sources = 1;
    }
    if (!m->tokenizer)
        return kld_fail(err, KLD_E_USAGE,
                        "%s: names no 'tokenizer', and neither does --tokenizer DIR", a->config);
    if (m->split.n && m->opt.partition)
        return kld_fail(err, KLD_E_USAGE,
                        "--partition and a split into partitions exclude each other");
    if (m->keep && !m->split.n)
        return kld_fail(err, KLD_E_USAGE, "--keep-partitions needs --partition-split");
    return KLD_OK;
}

static kld_status check_output(const args *a, kld_err *err) {
    const kld_manifest *m = &a->m;
    TRY(kld_output_not_input(a->output, a->config, err));
    TRY(kld_output_not_input(a->output, m->keep, err));
    for (size_t i = 0; i < m->n_exclude; i++)
        TRY(kld_output_not_input(a->output, m->exclude[i], err));
    for (size_t i = 0; i < m->n_sources; i++)
        for (size_t k = 0; k < m->source[i].n_files; k++)
            TRY(kld_output_not_input(a->output, m->source[i].file[k].path, err));
    return KLD_OK;
}

static void say_notes(const args *a, const kld_suite *s, const kld_suite_notes *n,
                      size_t excluded) {
    const kld_suite_options *o = &a->m.opt;
    if (excluded)
        kld_note("%zu of %zu documents are left out: they are in the text of --exclude-overlap",
                 excluded, excluded + n->documents);
    if (n->empty_documents)
        kld_note("%zu of %zu documents have fewer than two tokens and score nothing",
                 n->empty_documents, n->documents);
    if (n->bos_present)
        kld_note("%zu documents begin with the beginning-of-sequence token already; none was added",
                 n->bos_present);
    if (n->windows > s->n_windows)
        kld_note("%zu of %zu windows are taken", s->n_windows, n->windows);
    if (n->unnamed)
        kld_note("%zu windows are in strata that 'strata' of their source does not name",
                 n->unnamed);
    if (o->stride < o->window && !o->score_last_set)
        kld_note(
            "windows overlap by %zu tokens; each token is scored once, with the longest context",
            o->window - o->stride);
    if (o->score_last_set && o->score_last > o->stride)
        kld_warn("with --score-last %zu and --stride %zu tokens are scored more than once (%llu "
                 "positions); intervals resample whole clusters and stay honest",
                 o->score_last, o->stride, (unsigned long long)s->positions);
}

static kld_status print_built(const args *a, const kld_suite *s, kld_err *err) {
    char digest[KLD_SHA256_HEX];
    json_t *v;
    if (a->common.json) {
        TRY(kld_suite_describe(s, a->output, &v, err));
        return cli_print_json(v, err);
    }
    printf("%s: %zu windows, %llu tokens, %llu scored positions, digest %.12s\n", a->output,
           s->n_windows, (unsigned long long)s->tokens, (unsigned long long)s->positions,
           kld_digest_hex(&s->digest, digest));
    return KLD_OK;
}

/* Documents -> suite -> file. */
static kld_status make(args *a, kld_documents *docs, kld_suite *s, kld_err *err) {
    kld_manifest *m = &a->m;
    kld_tokenizer *t = NULL;
    kld_suite keep = {0};
    kld_suite_notes notes;
    kld_source_sums *sums = NULL;
    const char **names = NULL;
    size_t excluded = 0;
    kld_status st;
    TRY_TO(done, kld_manifest_read(m, docs, err));
    if (docs->n == 0) {
        st = kld_fail(err, KLD_E_USAGE, "no document in what was given");
        goto done;
    }
    TRY_TO(done, kld_tokenizer_open(&t, m->tokenizer, err));
    if (m->keep) TRY_TO(done, kld_suite_load(&keep, m->keep, err));
    if (m->n_exclude)
        TRY_TO(done, kld_documents_exclude(docs, t, m->exclude, m->n_exclude, m->exclude_above,
                                           &excluded, err));
    TRY_TO(done, NEW_ARRAY(&sums, m->n_sources, err));
    TRY_TO(done, kld_calloc((void **)&names, m->n_sources, sizeof *names, err));
    for (size_t i = 0; i < m->n_sources; i++) {
        const kld_source *source = &m->source[i];
        names[i] = *source->dataset ? source->dataset : source->file[0].shown;
    }
    const kld_choice_rules rules = {.seed = m->opt.seed,
                                    .per_document = m->per_document,
                                    .per_cluster = m->per_cluster,
                                    .quota = m->quota,
                                    .n_quotas = m->n_quotas,
                                    .source = names};
    kld_suite_options opt = m->opt;
    if (m->per_document || m->per_cluster || m->n_quotas) opt.rules = &rules;
    if (m->split.n) opt.split = &m->split;
    if (m->keep) opt.keep = &keep;
    opt.sums = sums;
    TRY_TO(done, kld_suite_build(s, docs, t, &opt, &notes, err));
    TRY_TO(done, kld_manifest_record(m, sums, excluded, s, err));
    say_notes(a, s, &notes, excluded);
    TRY_TO(done, kld_suite_save(s, a->output, err));
    TRY_TO(done, print_built(a, s, err));
done:
    kld_free(names);
    kld_free(sums);
    kld_suite_free(&keep);
    kld_tokenizer_free(t);
    return st;
}

static kld_status build(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--jsonl FILE...|--text FILE...|--config MANIFEST.json --tokenizer DIR -o SUITE",
        "Cut documents into windows of token ids, with their source, cluster, stratum and hashes.",
        cli_common_child,
        0,
        0};
    args a = {0};
    kld_suite s = {0};
    kld_documents docs = {0};
    kld_status st;
    TRY_TO(done, NEW_ARRAY(&a.file, (size_t)argc, err));
    TRY_TO(done, kld_calloc((void **)&a.exclude, (size_t)argc, sizeof *a.exclude, err));
    cli_parse(&argp, "suite build", argc, argv, &a);
    TRY_TO(done, merge(&a, err));
    TRY_TO(done, check_output(&a, err));
    TRY_TO(done, make(&a, &docs, &s, err));
done:
    kld_suite_free(&s);
    kld_documents_free(&docs);
    kld_manifest_free(&a.m);
    kld_free(a.exclude);
    kld_free(a.file);
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
    json_t *v = NULL;
    kld_buf text = {0};
    cli_parse(&argp, "suite info", argc, argv, &a);
    TRY(kld_suite_load(&s, a.path, err));
    kld_status st = kld_suite_describe(&s, a.path, &v, err);
    kld_suite_free(&s);
    if (st == KLD_OK && a.common.json) return cli_print_json(v, err);
    if (st == KLD_OK) st = kld_suite_describe_text(v, &text, err);
    if (st == KLD_OK) fputs((const char *)text.data, stdout);
    kld_buf_free(&text);
    json_decref(v);
    return st;
}

kld_status cli_suite(int argc, char **argv, kld_err *err) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "build")) return build(argc - 1, argv + 1, err);
    if (!strcmp(verb, "info")) return info(argc - 1, argv + 1, err);
    if (!strcmp(verb, "scan")) return cli_suite_scan(argc - 1, argv + 1, err);
    bool help = !strcmp(verb, "--help") || !strcmp(verb, "-h") || !strcmp(verb, "-?");
    FILE *to = help ? stdout : stderr;
    fputs("Usage: kld suite build [OPTION...]    cut text into windows of token ids\n"
          "   or: kld suite info SUITE           check a suite and describe it\n"
          "   or: kld suite scan SUITE --against FILE...   look for calibration text in it\n"
          "Try `kld suite build --help' for the options.\n",
          to);
    if (help) return KLD_OK;
    return kld_fail(err, KLD_E_USAGE,
                    *verb
                        ? "kld suite: '%s' is none of build, info and scan. Try `kld suite --help'."
                        : "kld suite: build, info or scan is needed%s",
                    verb);
}
