#include "kld/base/log.h"
#include "kld/capture/capture.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_REF = 1,
    KEY_PRECISION,
    KEY_TOP_K,
    KEY_MIN_K,
    KEY_TAIL_MASS,
    KEY_TAIL_SAMPLES,
    KEY_SEED,
    KEY_LABEL,
    KEY_NAME,
    KEY_MEMORY,
    KEY_HASH,
    KEY_RESUME,
    KEY_FORCE,
    KEY_STATS,
    KEY_DEVICE,
    KEY_GPU_MEMORY,
    KEY_ROUTES,
    KEY_ACTIVATIONS,
    KEY_FUSED,
    KEY_EXACT,
    KEY_KEEP_HEAD,
    KEY_FLOOR,
    KEY_PARTITION
};

typedef struct args {
    cli_common common;
    kld_capture_options opt;
    const char *device;
    kld_choice where;
    uint64_t threads;
    bool fused, precision; /* --fused-input-scale, --precision were given */
    bool stats;
} args;

static const struct argp_option options[] = {
    {"model", 'm', "DIR|ORG/NAME", 0, "Checkpoint directory, or a name in the Hugging Face cache",
     1},
    {"suite", 's', "FILE", 0, "Suite of token windows (kld suite build)", 1},
    {"output", 'o', "FILE", 0, "Capture to write", 1},
    {"ref", KEY_REF, "FILE", 0, "Capture of the reference, when this model is a candidate", 1},
    {"partition", KEY_PARTITION, "NAME|all", 0,
     "Windows of this partition of the suite, or all (default: all but those of qualification)", 1},
    {"label", KEY_LABEL, "TEXT", 0,
     "Method label, e.g. \"NVFP4 (QAD)\"; default from the checkpoint", 2},
    {"name", KEY_NAME, "TEXT", 0, "Name in reports; default from --model", 2},
    {"precision", KEY_PRECISION, "bf16|fp32", 0,
     "Inputs of matrix products; sums are FP32 (default bf16)", 3},
    {"activations", KEY_ACTIVATIONS, "weights-only|as-declared", 0,
     "Inputs of quantized products: as they are, or quantized as the checkpoint says that its "
     "serving kernels do (default weights-only)",
     3},
    {"fused-input-scale", KEY_FUSED, "own|max", 0,
     "With as-declared: static input scales of q/k/v, gate/up and a layer's experts, each its own "
     "or the largest of those that engines fuse (default own)",
     3},
    {"top-k", KEY_TOP_K, "N", 0, "At most this many ids a position (default 256)", 3},
    {"min-k", KEY_MIN_K, "N", 0, "At least this many (default 10)", 3},
    {"tail-mass", KEY_TAIL_MASS, "P", 0,
     "Stop the list when the remaining mass is below P (default 0.001)", 3},
    {"tail-samples", KEY_TAIL_SAMPLES, "N", 0,
     "Ids drawn from the remaining mass (default 16; 0 with --ref)", 3},
    {"seed", KEY_SEED, "N", 0, "Seed of those draws (default 1)", 3},
    {"device", KEY_DEVICE, "auto|cpu|cuda[:N,...]", 0,
     "Where to run; several cards share the windows (default auto: the first card, if any)", 4},
    {"gpu-memory", KEY_GPU_MEMORY, "SIZE", 0,
     "Memory to use on each card (default: nine tenths of what is free)", 4},
    {"threads", 't', "N", 0, "Threads (default: all cores); results do not depend on it", 4},
    {"memory", KEY_MEMORY, "SIZE", 0, "Host memory for hidden states before they spill to a file",
     4},
    {"routes", KEY_ROUTES, "capture|replay=FILE|replay-ids=FILE", 0,
     "Of a mixture of experts: keep which experts every token goes to, and their weights; or send "
     "tokens where they went in another capture, with its weights or with this model's own",
     3},
    {"exact", KEY_EXACT, 0, 0,
     "Keep what the head was given too (about 1.4 bytes a hidden column and position), so that "
     "comparisons are exact over the whole vocabulary",
     3},
    {"keep-head", KEY_KEEP_HEAD, 0, 0,
     "With --exact: put the head beside the output, to compare without the checkpoint", 3},
    {"floor", KEY_FLOOR, "precision|chunk", OPTION_ARG_OPTIONAL,
     "Measure the noise floor: the reference of --ref again in another valid arithmetic, the other "
     "--precision or shorter spans of tokens (default precision)",
     3},
    {"hash", KEY_HASH, "fast|full", 0,
     "Identity of the checkpoint: headers and sizes, or every byte too (default fast)", 4},
    {"resume", KEY_RESUME, 0, 0, "Continue an interrupted run", 5},
    {"force", KEY_FORCE, 0, 0, "Replace an existing output", 5},
    {"stats", KEY_STATS, 0, 0, "Print where the time went", 5},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    kld_capture_options *o = &a->opt;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case 'm': o->model = arg; return 0;
    case 's': o->suite = arg; return 0;
    case 'o': o->output = arg; return 0;
    case 't': a->threads = cli_u64(s, "--threads", arg); return 0;
    case KEY_REF: o->ref = arg; return 0;
    case KEY_LABEL: o->label = arg; return 0;
    case KEY_PARTITION: o->partition = arg; return 0;
    case KEY_NAME: o->name = arg; return 0;
    case KEY_ACTIVATIONS: o->activations = cli_activations(s, arg); return 0;
    case KEY_FUSED:
        o->fused = cli_fused(s, arg);
        a->fused = true;
        return 0;
    case KEY_PRECISION:
        o->precision = cli_precision(s, arg);
        a->precision = true;
        return 0;
    case KEY_TOP_K: o->top_k = cli_u64(s, "--top-k", arg); return 0;
    case KEY_MIN_K: o->min_k = cli_u64(s, "--min-k", arg); return 0;
    case KEY_TAIL_MASS: o->tail_mass = cli_f64(s, "--tail-mass", arg); return 0;
    case KEY_TAIL_SAMPLES:
        o->tail_samples = cli_u64(s, "--tail-samples", arg);
        o->tail_samples_set = true;
        return 0;
    case KEY_SEED: o->seed = cli_u64(s, "--seed", arg); return 0;
    case KEY_MEMORY: o->memory = cli_size(s, "--memory", arg); return 0;
    case KEY_HASH:
        o->hash_full = arg[0] == 'f' && arg[1] == 'u';
        if (strcmp(arg, "fast") != 0 && strcmp(arg, "full") != 0)
            argp_error(s, "--hash '%s': fast or full", arg);
        return 0;
    case KEY_ROUTES:
        o->keep_routes = !strcmp(arg, "capture");
        o->ids_only = !strncmp(arg, "replay-ids=", 11);
        o->replay = o->ids_only ? arg + 11 : !strncmp(arg, "replay=", 7) ? arg + 7 : NULL;
        if (!o->keep_routes && (!o->replay || !*o->replay))
            argp_error(s, "--routes '%s': capture, replay=FILE or replay-ids=FILE", arg);
        return 0;
    case KEY_EXACT: o->exact = true; return 0;
    case KEY_KEEP_HEAD: o->keep_head = true; return 0;
    case KEY_FLOOR:
        o->floor = arg && !strcmp(arg, "chunk") ? KLD_FLOOR_CHUNK : KLD_FLOOR_PRECISION;
        if (arg && strcmp(arg, "chunk") != 0 && strcmp(arg, "precision") != 0)
            argp_error(s, "--floor '%s': precision or chunk", arg);
        return 0;
    case KEY_RESUME: o->resume = true; return 0;
    case KEY_FORCE: o->force = true; return 0;
    case KEY_STATS: a->stats = true; return 0;
    case KEY_DEVICE: a->device = arg; return 0;
    case KEY_GPU_MEMORY: o->device_memory = cli_size(s, "--gpu-memory", arg); return 0;
    case ARGP_KEY_ARG: argp_error(s, "unexpected argument '%s'", arg); return EINVAL;
    case ARGP_KEY_END:
        if (!o->model || !o->suite || !o->output)
            argp_error(s, "%s is missing",
                       !o->model   ? "--model"
                       : !o->suite ? "--suite"
                                   : "--output");
        if (a->fused && o->activations != KLD_ACTIVATIONS_AS_DECLARED)
            argp_error(s, "--fused-input-scale needs --activations as-declared");
        if (o->keep_head && !o->exact) argp_error(s, "--keep-head needs --exact");
        if (o->floor && !o->ref) argp_error(s, "--floor needs --ref, the capture to repeat");
        if (o->floor && a->precision) argp_error(s, "--floor chooses the precision itself");
        if (o->resume && o->force) argp_error(s, "--resume and --force exclude each other");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Bytes a second while reading. */
static double read_rate(const kld_engine_stats *e) {
    return e->read_seconds > 0 ? (double)e->bytes_read / e->read_seconds : 0.0;
}

/* Share of the time after the start in which the device had work. */
static double busy(const kld_engine_stats *e) {
    double all = e->embed_seconds + e->layer_seconds + e->head_seconds;
    if (all <= 0) return 0.0;
    double share = 1 - e->read_wait_seconds / all;
    return share > 0 ? share : 0.0;
}

static json_t *to_json(const args *a, const kld_capture_summary *s) {
    const kld_engine_stats *e = &s->engine;
    char hex[KLD_SHA256_HEX];
    json_t *engine = json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:s*, s:I, s:I, s:I}",
        "bytes_read", (json_int_t)e->bytes_read, "seconds", e->seconds, "open_seconds",
        e->open_seconds, "embed_seconds", e->embed_seconds, "layer_seconds", e->layer_seconds,
        "head_seconds", e->head_seconds, "read_seconds", e->read_seconds, "read_wait_seconds",
        e->read_wait_seconds, "busy", busy(e), "checkpoint_seconds", e->checkpoint_seconds,
        "read_bytes_per_second", read_rate(e), "peak_bytes", (json_int_t)e->peak_bytes,
        "device_bytes", (json_int_t)e->device_bytes, "hidden_states_in", e->resident_in,
        "batch_rows", (json_int_t)e->batch_rows, "head_rows", (json_int_t)e->head_rows,
        "nonfinite_rows", (json_int_t)e->nonfinite_rows);
    return json_pack(
        "{s:i, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:o}", "schema", 1, "capture", a->opt.output,
        "digest", kld_digest_hex(&s->digest, hex), "windows", (json_int_t)s->windows, "positions",
        (json_int_t)s->positions, "bytes", (json_int_t)s->bytes, "bytes_per_position",
        (double)s->bytes / (double)(s->positions ? s->positions : 1), "tokens_per_second",
        e->seconds > 0 ? (double)e->tokens / e->seconds : 0.0, "engine", engine);
}

static void print_stats(const kld_engine_stats *e) {
    char b1[24], b2[24];
    printf("  tokens             %llu, %.1f a second\n", (unsigned long long)e->tokens,
           e->seconds > 0 ? (double)e->tokens / e->seconds : 0.0);
    printf("  weights read       %s, once; %s a second while reading\n",
           cli_bytes(e->bytes_read, b1), cli_bytes((uint64_t)read_rate(e), b2));
    printf("  engine buffers     %s", cli_bytes(e->peak_bytes, b2));
    if (e->device_bytes) printf(", of them %s on each card", cli_bytes(e->device_bytes, b1));
    printf("\n  hidden states      %s in %s; %zu rows a batch, %zu a head call\n",
           cli_bytes(e->resident_bytes, b1), e->resident_in, e->batch_rows, e->head_rows);
    printf("  seconds            %.2f: start %.2f, embedding %.2f, layers %.2f, head %.2f\n",
           e->seconds, e->open_seconds, e->embed_seconds, e->layer_seconds, e->head_seconds);
    printf("  waiting            %.2f for weights (computed %.0f %% of the time), %.2f for "
           "checkpoints\n",
           e->read_wait_seconds, 100 * busy(e), e->checkpoint_seconds);
}

static void print_text(const args *a, const kld_capture_summary *s) {
    const kld_engine_stats *e = &s->engine;
    char b1[24];
    printf("%s: %llu windows, %llu positions, %s, %.0f B a position\n", a->opt.output,
           (unsigned long long)s->windows, (unsigned long long)s->positions,
           cli_bytes(s->bytes, b1), (double)s->bytes / (double)(s->positions ? s->positions : 1));
    if (e->nonfinite_rows)
        printf("%llu positions are NaN or infinite; they are kept, marked as such\n",
               (unsigned long long)e->nonfinite_rows);
    if (a->stats) print_stats(e);
}

kld_status cli_capture(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--model DIR --suite FILE -o CAPTURE [--ref REF]",
        "Run a checkpoint over every window of a suite, layer by layer, and store what its head "
        "says: the most probable ids, the exact log-sum-exp, draws from the tail.\v"
        "The reference is captured first, without --ref; then each candidate with --ref, so that "
        "it reports its log-probabilities at the reference's ids.",
        cli_common_child,
        0,
        0};
    args a = {.opt = kld_capture_defaults(), .device = "auto"};
    cli_parse(&argp, "capture", argc, argv, &a);
    TRY(kld_choose(a.device, &a.where, err));
    a.opt.where = &a.where;
    cli_threads(a.threads);
    kld_capture_summary s;
    TRY(kld_capture_run(&a.opt, &s, err));
    if (a.common.json) return cli_print_json(to_json(&a, &s), err);
    print_text(&a, &s);
    return KLD_OK;
}
