/* The program: picks the command, prints its error, turns the status into an exit code. */
#include "kld/base/log.h"
#include "kld/base/version.h"
#include "kld/cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name, *help;
    kld_status (*run)(int argc, char **argv, kld_err *err);
} commands[] = {
    {"capture", "run a checkpoint over a suite and store its log-probabilities", cli_capture},
    {"compare", "KL divergence and its relatives between a reference and candidates", cli_compare},
    {"suite", "build an evaluation suite from text, or describe one", cli_suite},
    {"logits", "raw logits of one sequence as a NumPy file", cli_logits},
    {"quantize", "round-to-nearest NVFP4 or MXFP4 of a BF16 checkpoint", cli_quantize},
    {"nightly", "capture what changed, compare, hold against limits, keep a history", cli_nightly},
    {"inspect", "what a checkpoint or a capture holds", cli_inspect},
    {"verify", "check every byte of captures and receipts, and who signed them", cli_verify},
    {"keygen", "make an Ed25519 key to sign with", cli_keygen},
    {"sign", "sign captures and receipts", cli_sign},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *to) {
    fputs("Usage: kld COMMAND [OPTION...]\n"
          "Measure how faithfully a quantized LLM checkpoint reproduces its reference.\n\n"
          "Commands:\n",
          to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\n"
          "  -h, --help     this list; `kld COMMAND --help` for a command's options\n"
          "  --version      print the version\n\n"
          "Exit status: 0 done, 1 done but a --fail-above gate failed, 2 usage, 3 bad input,\n"
          "4 unsupported model or format, 5 device, memory or disk, 130 interrupted.\n",
          to);
}

static kld_status finish_output(kld_status st, kld_err *err) {
    if ((fflush(stdout) != 0 || ferror(stdout)) && st == KLD_OK)
        return kld_fail(err, KLD_E_IO, "cannot write to standard output");
    return st;
}

int main(int argc, char **argv) {
    argp_err_exit_status = 2;
    kld_stop_install();
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "help") && argc == 3) {
        char help[] = "--help", *args[] = {argv[2], help, NULL};
        for (size_t i = 0; i < N_COMMANDS; i++)
            if (!strcmp(argv[2], commands[i].name)) return (int)commands[i].run(2, args, NULL);
    }
    if (!strcmp(name, "-h") || !strcmp(name, "--help") || !strcmp(name, "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("kld %s (%s)\n", kld_version(), kld_commit());
        return 0;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) != 0) continue;
        kld_err err = {0};
        kld_status st = commands[i].run(argc - 1, argv + 1, &err);
        st = finish_output(st, &err);
        if (st != KLD_OK) kld_print_error(&err);
        return kld_exit_code(st);
    }
    if (*name) fprintf(stderr, "kld: '%s' is not a command\n", name);
    usage(stderr);
    return 2;
}
