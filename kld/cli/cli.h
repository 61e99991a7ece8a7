/* kld/cli/cli.h - what the commands share.  Floor 5.
 * Results go to stdout, everything else to stderr. */
#ifndef KLD_CLI_CLI_H
#define KLD_CLI_CLI_H
#include "kld/base/json.h"
#include "kld/base/status.h"
#include "logits/engine.h"
#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Options every command takes; put CLI_COMMON_CHILD into its argp and point the first
 * member of its own state at one of these. */
typedef struct cli_common {
    bool json; /* one JSON object on stdout instead of text */
} cli_common;
extern const struct argp_child cli_common_child[];
extern const struct argp_child cli_quiet_child[]; /* for a command with a --json of its own */

/* Parse argv with argp, "kld NAME" as the program name in messages.  Does not return on
 * --help or on a usage error (exit 2). */
void cli_parse(const struct argp *argp, const char *name, int argc, char **argv, void *input);

/* Values of options; each ends the program with a usage error that quotes the text when it is
 * malformed.  Sizes take K, M, G, T (powers of 1024, with or without "iB"). */
uint64_t cli_u64(struct argp_state *s, const char *option, const char *text);
double cli_f64(struct argp_state *s, const char *option, const char *text);
uint64_t cli_size(struct argp_state *s, const char *option, const char *text);
kld_precision cli_precision(struct argp_state *s, const char *text);
kld_activations cli_activations(struct argp_state *s, const char *text);
kld_fused_scale cli_fused(struct argp_state *s, const char *text); /* --fused-input-scale */

/* --threads: 0 = all cores. */
void cli_threads(uint64_t n);

/* Print v as indented JSON plus a newline on stdout, and release it. */
KLD_NODISCARD kld_status cli_print_json(json_t *v, kld_err *err);

/* "1.5 GiB" into text[24]; returns text. */
const char *cli_bytes(uint64_t n, char text[24]);

/* Whether a file is a receipt rather than a capture: it is called .json or begins like JSON.
 * KLD_E_INPUT, KLD_E_IO when it cannot be read. */
KLD_NODISCARD kld_status cli_is_receipt(const char *path, bool *is, kld_err *err);

/* The commands: argv[0] is the command's name. */
kld_status cli_capture(int argc, char **argv, kld_err *err);
kld_status cli_compare(int argc, char **argv, kld_err *err);
kld_status cli_inspect(int argc, char **argv, kld_err *err);
kld_status cli_keygen(int argc, char **argv, kld_err *err);
kld_status cli_logits(int argc, char **argv, kld_err *err);
kld_status cli_nightly(int argc, char **argv, kld_err *err);
kld_status cli_quantize(int argc, char **argv, kld_err *err);
kld_status cli_sign(int argc, char **argv, kld_err *err);
kld_status cli_suite(int argc, char **argv, kld_err *err);
kld_status cli_suite_scan(int argc, char **argv, kld_err *err); /* of cli_suite */
kld_status cli_verify(int argc, char **argv, kld_err *err);

#endif
