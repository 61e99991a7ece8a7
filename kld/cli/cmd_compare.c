#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/place.h"
#include "kld/cli/cli.h"
#include "kld/compare/compare.h"
#include "kld/compare/html.h"
#include "kld/compare/markdown.h"
#include "kld/compare/receipt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CANDIDATES = 64, MAX_GATES = 32, MAX_CHECKPOINTS = 64 };
enum {
    KEY_JSON_FILE = 1,
    KEY_FAIL,
    KEY_TOP_P,
    KEY_OVERLAP,
    KEY_RESAMPLES,
    KEY_SEED,
    KEY_PARTITION,
    KEY_MARGIN,
    KEY_MARGIN_ABS,
    KEY_MISMATCH,
    KEY_RECEIPT,
    KEY_SIGN_KEY,
    KEY_HTML,
    KEY_MARKDOWN,
    KEY_TOKENIZER,
    KEY_EXACT,
    KEY_HEAD,
    KEY_CHECKPOINT,
    KEY_DEVICE
};

typedef struct args {
    cli_common common;
    kld_compare_options opt;
    const char *ref, *json_file, *html_file, *markdown_file, *receipt_file, *sign_key;
    const char *cand[MAX_CANDIDATES];
    const char *gate[MAX_GATES];
    const char *checkpoint[MAX_CHECKPOINTS];
    size_t n_cands, n_gates;
    bool markdown; /* on stdout, instead of the table */
} args;

static const struct argp_option options[] = {
    {"json", KEY_JSON_FILE, "FILE", OPTION_ARG_OPTIONAL,
     "One JSON object: to FILE (--json=FILE) beside the table, or instead of it", 1},
    {"receipt", KEY_RECEIPT, "FILE", 0,
     "Write identities, settings and results under one digest (kld verify checks it)", 1},
    {"sign-key", KEY_SIGN_KEY, "KEY", 0, "Sign the receipt with this key (kld keygen makes one)",
     1},
    {"html", KEY_HTML, "FILE", 0, "A page with charts to FILE, complete in itself", 1},
    {"markdown", KEY_MARKDOWN, "FILE", OPTION_ARG_OPTIONAL,
     "Markdown tables: to FILE (--markdown=FILE) beside the table, or instead of it", 1},
    {"fail-above", KEY_FAIL, "METRIC=LIMIT", 0,
     "Exit 1 if any candidate's metric is above LIMIT (repeatable), e.g. mean_kl=0.05", 1},
    {"top-p", KEY_TOP_P, "P", 0, "Mass of the nucleus, temperature 1 (default 0.95)", 2},
    {"overlap-k", KEY_OVERLAP, "N", 0, "Set overlap of the N most probable ids (default 10)", 2},
    {"partition", KEY_PARTITION, "NAME|all", 0,
     "Windows of this partition, or all (default: all but those of qualification)", 2},
    {"resamples", KEY_RESAMPLES, "N", 0, "Bootstrap resamples of source clusters (default 10000)",
     3},
    {"seed", KEY_SEED, "N", 0, "Seed of the bootstrap (default 1)", 3},
    {"margin", KEY_MARGIN, "X", 0,
     "Practical equivalence: mean KL within a factor 1+X (default 0.10)", 3},
    {"margin-abs", KEY_MARGIN_ABS, "NATS", 0,
     "Practical equivalence: mean KL within NATS, instead of a factor", 3},
    {"tokenizer", KEY_TOKENIZER, "DIR", 0,
     "The checkpoint's tokenizer: shows the worst positions as text", 4},
    {"allow-arithmetic-mismatch", KEY_MISMATCH, 0, 0,
     "Compare captures of different engine arithmetic, marked as such", 4},
    {"exact", KEY_EXACT, "auto|never", 0,
     "Captures that keep hidden states (capture --exact) are compared over the whole vocabulary, "
     "never: by their lists like others",
     5},
    {"head", KEY_HEAD, "own|shared", 0,
     "Heads of exact comparisons: each side's own, or the reference's for both, which leaves "
     "differences of the body alone",
     5},
    {"checkpoint", KEY_CHECKPOINT, "DIR", 0,
     "Where a head may be found: a checkpoint or a kept head (repeatable)", 5},
    {"device", KEY_DEVICE, "auto|cpu|cuda[:N]", 0, "Where heads run (default auto)", 5},
    {0},
};

static bool is_json_name(const char *name) {
    size_t n = name ? strlen(name) : 0;
    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

/* `--json`, `--json=FILE`, and `--json FILE.json`: no capture is called .json, so the last
 * spelling cannot swallow a candidate. */
static void take_json(args *a, char *arg, struct argp_state *s) {
    if (!arg && is_json_name(s->argv[s->next])) arg = s->argv[s->next++];
    a->json_file = arg;
    a->common.json = !arg;
}

/* Whether the argument is the second of two words. */
static bool second_of(struct argp_state *s, const char *name, const char *arg, const char *a,
                      const char *b) {
    if (strcmp(arg, a) != 0 && strcmp(arg, b) != 0)
        argp_error(s, "%s '%s': %s or %s", name, arg, a, b);
    return strcmp(arg, b) == 0;
}

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case KEY_JSON_FILE: take_json(a, arg, s); return 0;
    case KEY_HTML: a->html_file = arg; return 0;
    case KEY_MARKDOWN:
        a->markdown_file = arg;
        a->markdown = !arg;
        return 0;
    case KEY_FAIL:
        if (a->n_gates == MAX_GATES) argp_error(s, "at most %d gates", MAX_GATES);
        a->gate[a->n_gates++] = arg;
        return 0;
    case KEY_TOP_P: a->opt.top_p = cli_f64(s, "--top-p", arg); return 0;
    case KEY_OVERLAP: a->opt.overlap_k = cli_u64(s, "--overlap-k", arg); return 0;
    case KEY_RESAMPLES: a->opt.resamples = cli_u64(s, "--resamples", arg); return 0;
    case KEY_SEED: a->opt.seed = cli_u64(s, "--seed", arg); return 0;
    case KEY_PARTITION: a->opt.partition = arg; return 0;
    case KEY_MARGIN: a->opt.margin = cli_f64(s, "--margin", arg); return 0;
    case KEY_RECEIPT: a->receipt_file = arg; return 0;
    case KEY_SIGN_KEY: a->sign_key = arg; return 0;
    case KEY_MARGIN_ABS:
        a->opt.margin_abs = cli_f64(s, "--margin-abs", arg);
        if (!(a->opt.margin_abs > 0)) argp_error(s, "--margin-abs must be above 0");
        return 0;
    case KEY_TOKENIZER: a->opt.tokenizer = arg; return 0;
    case KEY_MISMATCH: a->opt.allow_arithmetic_mismatch = true; return 0;
    case KEY_EXACT: a->opt.exact_never = second_of(s, "--exact", arg, "auto", "never"); return 0;
    case KEY_HEAD: a->opt.head_shared = second_of(s, "--head", arg, "own", "shared"); return 0;
    case KEY_CHECKPOINT:
        if (a->opt.n_checkpoints == MAX_CHECKPOINTS)
            argp_error(s, "at most %d checkpoints", MAX_CHECKPOINTS);
        a->checkpoint[a->opt.n_checkpoints++] = arg;
        return 0;
    case KEY_DEVICE: a->opt.device = arg; return 0;
    case ARGP_KEY_ARG:
        if (!a->ref) {
            a->ref = arg;
            return 0;
        }
        if (a->n_cands == MAX_CANDIDATES) argp_error(s, "at most %d candidates", MAX_CANDIDATES);
        a->cand[a->n_cands++] = arg;
        return 0;
    case ARGP_KEY_END:
        a->opt.find_tokenizer = a->html_file || a->json_file || a->common.json;
        if (a->n_cands == 0) argp_error(s, "a reference and at least one candidate are needed");
        if (a->common.json && a->markdown)
            argp_error(s, "give a FILE to one of --json and --markdown");
        if (!(a->opt.top_p > 0 && a->opt.top_p <= 1)) argp_error(s, "--top-p must be in (0, 1]");
        if (a->sign_key && !a->receipt_file) argp_error(s, "--sign-key is for --receipt FILE");
        if (a->opt.overlap_k < 1) argp_error(s, "--overlap-k must be at least 1");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status html(const json_t *result, kld_buf *out, kld_err *err) {
    return kld_compare_html(result, NULL, out, err);
}

static kld_status table(const json_t *result, kld_buf *out, kld_err *err) {
    return kld_compare_table(result, kld_color(true), out, err);
}

/* To the file, or to stdout without one. */
static kld_status write(const json_t *result, const char *path,
                        kld_status (*text)(const json_t *, kld_buf *, kld_err *), kld_err *err) {
    kld_buf b = {0};
    kld_status st = text(result, &b, err);
    if (st == KLD_OK && path) st = kld_file_write(path, b.data, b.len, err);
    else if (st == KLD_OK) fputs((const char *)b.data, stdout);
    kld_buf_free(&b);
    return st;
}

static kld_status write_receipt(const args *a, const json_t *result, const kld_key *key,
                                kld_err *err) {
    json_t *receipt;
    TRY(kld_receipt_build(result, &receipt, err));
    kld_status st = key ? kld_receipt_sign(receipt, key, err) : KLD_OK;
    if (st == KLD_OK) st = kld_json_save(receipt, a->receipt_file, err);
    json_decref(receipt);
    return st;
}

/* No file that is written may be one that is read, nor be written twice. */
static kld_status keep_inputs(const args *a, kld_err *err) {
    const char *out[] = {a->json_file, a->html_file, a->markdown_file, a->receipt_file};
    for (size_t o = 0; o < sizeof out / sizeof *out; o++) {
        if (!out[o]) continue;
        TRY(kld_output_not_input(out[o], a->ref, err));
        TRY(kld_output_not_input(out[o], a->sign_key, err));
        for (size_t i = 0; i < a->n_cands; i++) TRY(kld_output_not_input(out[o], a->cand[i], err));
        for (size_t k = 0; k < o; k++)
            if (out[k] && strcmp(out[k], out[o]) == 0)
                return kld_fail(err, KLD_E_USAGE, "two outputs are to be written to %s", out[o]);
    }
    return KLD_OK;
}

static kld_status report(const args *a, json_t *result, kld_err *err) {
    if (a->json_file) TRY(kld_json_save(result, a->json_file, err));
    if (a->html_file) TRY(write(result, a->html_file, html, err));
    if (a->markdown_file) TRY(write(result, a->markdown_file, kld_compare_markdown, err));
    if (a->common.json) return cli_print_json(json_incref(result), err);
    return write(result, NULL, a->markdown ? kld_compare_markdown : table, err);
}

kld_status cli_compare(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "REFERENCE CANDIDATE...",
        "Compare captures of candidates with the capture of their reference.\v"
        "Every mean that the stored lists do not make exact is given as a guaranteed lower bound, "
        "an unbiased estimate, and an interval over source clusters.",
        cli_quiet_child,
        0,
        0};
    args a = {.opt = kld_compare_defaults()};
    a.opt.checkpoint = a.checkpoint;
    cli_parse(&argp, "compare", argc, argv, &a);
    json_t *result = NULL;
    kld_buf failures = {0};
    kld_status st = KLD_OK;
    kld_key *key = NULL;
    TRY_TO(done, keep_inputs(&a, err));
    /* A typo is told before the work, not after. */
    TRY_TO(done, kld_compare_gates(NULL, a.gate, a.n_gates, &failures, err));
    if (a.sign_key) TRY_TO(done, kld_key_load(&key, a.sign_key, err));
    TRY_TO(done, kld_compare_run(a.ref, a.cand, a.n_cands, &a.opt, &result, err));
    /* A failed gate must not cost the reader the report. */
    kld_status gates = kld_compare_gates(result, a.gate, a.n_gates, &failures, err);
    if (gates != KLD_OK && gates != KLD_E_GATE) {
        st = gates;
        goto done;
    }
    TRY_TO(done, kld_compare_gates_record(result, a.gate, a.n_gates, err));
    kld_err report_err = {0};
    if (a.receipt_file) st = write_receipt(&a, result, key, &report_err);
    if (st == KLD_OK) st = report(&a, result, &report_err);
    if (st != KLD_OK) {
        if (err) *err = report_err;
        goto done;
    }
    if (gates == KLD_E_GATE) fputs((const char *)failures.data, stderr);
    st = gates == KLD_OK ? kld_compare_valid(result, err) : gates;
done:
    kld_key_free(key);
    kld_buf_free(&failures);
    json_decref(result);
    return st;
}
