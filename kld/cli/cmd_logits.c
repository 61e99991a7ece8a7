#include "kld/capture/logits.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>

enum { KEY_IDS = 1, KEY_PRECISION, KEY_DEVICE, KEY_GPU_MEMORY, KEY_ACTIVATIONS, KEY_FUSED };

typedef struct args {
    cli_common common;
    kld_logits_options opt;
    const char *device;
    kld_choice where;
    uint64_t threads;
    bool fused; /* --fused-input-scale was given */
} args;

static const struct argp_option options[] = {
    {"model", 'm', "DIR|ORG/NAME", 0, "Checkpoint directory, or a name in the Hugging Face cache",
     1},
    {"ids", KEY_IDS, "FILE.npy|1,2,3", 0, "Token ids of the sequence", 1},
    {"output", 'o', "FILE.npy", 0, "Where the float32 array [tokens][vocabulary] goes", 1},
    {"precision", KEY_PRECISION, "bf16|fp32", 0, "Inputs of matrix products (default fp32)", 2},
    {"activations", KEY_ACTIVATIONS, "weights-only|as-declared", 0,
     "Inputs of quantized products: as they are, or quantized as the checkpoint says that its "
     "serving kernels do (default weights-only)",
     2},
    {"fused-input-scale", KEY_FUSED, "own|max", 0,
     "With as-declared: static input scales of q/k/v, gate/up and a layer's experts, each its own "
     "or the largest of those that engines fuse (default own)",
     2},
    {"device", KEY_DEVICE, "auto|cpu|cuda[:N]", 0,
     "Where to run (default auto: the first card, if any)", 2},
    {"gpu-memory", KEY_GPU_MEMORY, "SIZE", 0,
     "Memory to use on the card (default: nine tenths of what is free)", 2},
    {"threads", 't', "N", 0, "Threads (default: all cores)", 2},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case 'm': a->opt.model = arg; return 0;
    case 'o': a->opt.output = arg; return 0;
    case 't': a->threads = cli_u64(s, "--threads", arg); return 0;
    case KEY_IDS: a->opt.ids = arg; return 0;
    case KEY_ACTIVATIONS: a->opt.activations = cli_activations(s, arg); return 0;
    case KEY_FUSED:
        a->opt.fused = cli_fused(s, arg);
        a->fused = true;
        return 0;
    case KEY_PRECISION: a->opt.precision = cli_precision(s, arg); return 0;
    case KEY_DEVICE: a->device = arg; return 0;
    case KEY_GPU_MEMORY: a->opt.device_memory = cli_size(s, "--gpu-memory", arg); return 0;
    case ARGP_KEY_ARG: argp_error(s, "unexpected argument '%s'", arg); return EINVAL;
    case ARGP_KEY_END:
        if (!a->opt.model || !a->opt.ids || !a->opt.output)
            argp_error(s, "%s is missing",
                       !a->opt.model ? "--model"
                       : !a->opt.ids ? "--ids"
                                     : "--output");
        if (a->fused && a->opt.activations != KLD_ACTIVATIONS_AS_DECLARED)
            argp_error(s, "--fused-input-scale needs --activations as-declared");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

kld_status cli_logits(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--model DIR --ids FILE.npy|1,2,3 -o FILE.npy",
        "Write the raw logits of one sequence, padding columns included, so that a model can be "
        "held against another implementation.",
        cli_common_child,
        0,
        0};
    args a = {.opt = {.precision = KLD_PRECISION_FP32}, .device = "auto"};
    cli_parse(&argp, "logits", argc, argv, &a);
    TRY(kld_choose(a.device, &a.where, err));
    a.opt.where = &a.where;
    cli_threads(a.threads);
    kld_logits_summary s;
    TRY(kld_logits_run(&a.opt, &s, err));
    if (a.common.json)
        return cli_print_json(json_pack("{s:i, s:s, s:I, s:I, s:f}", "schema", 1, "logits",
                                        a.opt.output, "tokens", (json_int_t)s.tokens, "vocab",
                                        (json_int_t)s.vocab, "seconds", s.engine.seconds),
                              err);
    printf("%s: float32 [%zu][%zu]\n", a.opt.output, s.tokens, s.vocab);
    return KLD_OK;
}
