#include "kld/capture/quantize.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { KEY_FORMAT = 1, KEY_LAYOUT };

typedef struct args {
    cli_common common;
    kld_quantize_options opt;
    const char *format, *layout;
    uint64_t threads;
} args;

static const struct argp_option options[] = {
    {"model", 'm', "DIR|ORG/NAME", 0, "Checkpoint to round (BF16, F16 or F32)", 1},
    {"output", 'o', "DIR", 0, "Checkpoint to write; must not exist or be empty", 1},
    {"format", KEY_FORMAT, "nvfp4|mxfp4", 0,
     "FP4 with E4M3 scales a 16 block, or with power-of-two scales a 32 block", 1},
    {"layout", KEY_LAYOUT, "modelopt|compressed-tensors", 0,
     "Names and config on disk (default modelopt for nvfp4; mxfp4 is compressed-tensors)", 2},
    {"threads", 't', "N", 0, "Threads (default: all cores)", 2},
    {0},
};

static void choose(args *a, struct argp_state *s) {
    bool nv = a->format && !strcmp(a->format, "nvfp4"),
         mx = a->format && !strcmp(a->format, "mxfp4");
    if (!nv && !mx) argp_error(s, "--format nvfp4 or --format mxfp4 is needed");
    const char *layout = a->layout ? a->layout : nv ? "modelopt" : "compressed-tensors";
    bool modelopt = !strcmp(layout, "modelopt");
    if (!modelopt && strcmp(layout, "compressed-tensors") != 0)
        argp_error(s, "--layout '%s': modelopt or compressed-tensors", layout);
    if (mx && modelopt) argp_error(s, "mxfp4 is written in the compressed-tensors layout only");
    a->opt.format = mx         ? KLD_TARGET_MXFP4_CT
                    : modelopt ? KLD_TARGET_NVFP4_MODELOPT
                               : KLD_TARGET_NVFP4_CT;
}

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case 'm': a->opt.model = arg; return 0;
    case 'o': a->opt.output = arg; return 0;
    case 't': a->threads = cli_u64(s, "--threads", arg); return 0;
    case KEY_FORMAT: a->format = arg; return 0;
    case KEY_LAYOUT: a->layout = arg; return 0;
    case ARGP_KEY_ARG: argp_error(s, "unexpected argument '%s'", arg); return EINVAL;
    case ARGP_KEY_END:
        if (!a->opt.model || !a->opt.output)
            argp_error(s, "%s is missing", !a->opt.model ? "--model" : "--output");
        choose(a, s);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

kld_status cli_quantize(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "--model DIR -o DIR --format nvfp4|mxfp4",
        "Round the linear layers of every decoder layer to the nearest FP4 values; embeddings, "
        "head, "
        "norms and biases stay.  The baseline that calibration and distillation have to beat.",
        cli_common_child,
        0,
        0};
    args a = {0};
    cli_parse(&argp, "quantize", argc, argv, &a);
    cli_threads(a.threads);
    kld_quantize_summary s;
    TRY(kld_quantize_run(&a.opt, &s, err));
    if (a.common.json)
        return cli_print_json(
            json_pack("{s:i, s:s, s:I, s:I, s:I, s:I}", "schema", 1, "checkpoint", a.opt.output,
                      "weights", (json_int_t)s.weights, "parameters", (json_int_t)s.parameters,
                      "bytes_in", (json_int_t)s.bytes_in, "bytes_out", (json_int_t)s.bytes_out),
            err);
    char in[24], out[24];
    printf("%s: %llu weights of %llu parameters rounded, %s -> %s\n", a.opt.output,
           (unsigned long long)s.weights, (unsigned long long)s.parameters,
           cli_bytes(s.bytes_in, in), cli_bytes(s.bytes_out, out));
    return KLD_OK;
}
