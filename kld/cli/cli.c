#include "kld/cli/cli.h"

#include "kld/base/buf.h"
#include "kld/base/file.h"
#include "kld/base/log.h"
#include "kld/base/parse.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x500 };

static error_t parse_quiet(int key, char *arg, struct argp_state *state) {
    (void)arg;
    (void)state;
    switch (key) {
    case 'q': kld_log_set_level(KLD_LOG_QUIET); return 0;
    case 'v': kld_log_set_level(KLD_LOG_VERBOSE); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_common(int key, char *arg, struct argp_state *state) {
    cli_common *c = state->input;
    if (key != KEY_JSON) return parse_quiet(key, arg, state);
    c->json = true;
    return 0;
}

#define QUIET_OPTIONS                                                                              \
    {"quiet", 'q', 0, 0, "No progress and no notes, only warnings and errors", 0},                 \
        {"verbose", 'v', 0, 0, "More notes", 0}, {                                                 \
        0                                                                                          \
    }
static const struct argp_option quiet_options[] = {QUIET_OPTIONS};
static const struct argp_option common_options[] = {
    {"json", KEY_JSON, 0, 0, "Print one JSON object instead of text", 0}, QUIET_OPTIONS};
static const struct argp quiet_argp = {quiet_options, parse_quiet, 0, 0, 0, 0, 0};
static const struct argp common_argp = {common_options, parse_common, 0, 0, 0, 0, 0};
const struct argp_child cli_quiet_child[] = {{&quiet_argp, 0, "Common options:", 100}, {0}};
const struct argp_child cli_common_child[] = {{&common_argp, 0, "Common options:", 100}, {0}};

void cli_parse(const struct argp *argp, const char *name, int argc, char **argv, void *input) {
    static char program[64]; /* argp keeps the pointer for its messages */
    snprintf(program, sizeof program, "kld %s", name);
    argv[0] = program;
    argp_parse(argp, argc, argv, ARGP_IN_ORDER, NULL, input); /* arguments are not moved back */
}

uint64_t cli_u64(struct argp_state *s, const char *option, const char *text) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        argp_error(s, "%s '%s': expected a whole number", option, text);
    return v;
}

double cli_f64(struct argp_state *s, const char *option, const char *text) {
    double v = 0;
    if (!kld_parse_real(text, &v)) argp_error(s, "%s '%s': expected a number", option, text);
    return v;
}

uint64_t cli_size(struct argp_state *s, const char *option, const char *text) {
    uint64_t v = 0;
    if (!kld_parse_size(text, &v))
        argp_error(s, "%s '%s': expected a size such as 512M or 4GiB", option, text);
    return v;
}

kld_precision cli_precision(struct argp_state *s, const char *text) {
    if (strcmp(text, "bf16") == 0) return KLD_PRECISION_BF16;
    if (strcmp(text, "fp32") != 0) argp_error(s, "--precision '%s': bf16 or fp32", text);
    return KLD_PRECISION_FP32;
}

kld_activations cli_activations(struct argp_state *s, const char *text) {
    if (strcmp(text, "weights-only") == 0) return KLD_ACTIVATIONS_WEIGHTS_ONLY;
    if (strcmp(text, "as-declared") != 0)
        argp_error(s, "--activations '%s': weights-only or as-declared", text);
    return KLD_ACTIVATIONS_AS_DECLARED;
}

kld_fused_scale cli_fused(struct argp_state *s, const char *text) {
    if (strcmp(text, "own") == 0) return KLD_FUSED_OWN;
    if (strcmp(text, "max") != 0) argp_error(s, "--fused-input-scale '%s': own or max", text);
    return KLD_FUSED_MAX;
}

void cli_threads(uint64_t n) {
    if (n > 0) omp_set_num_threads(n < 1024 ? (int)n : 1024);
}

kld_status cli_print_json(json_t *v, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_json_dump(v, true, &b, err);
    if (st == KLD_OK) printf("%s\n", (const char *)b.data);
    kld_buf_free(&b);
    json_decref(v);
    return st;
}

const char *cli_bytes(uint64_t n, char text[24]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(text, 24, u ? "%.2f %s" : "%.0f %s", v, unit[u]);
    return text;
}

kld_status cli_is_receipt(const char *path, bool *is, kld_err *err) {
    unsigned char start[64];
    kld_file f;
    TRY(kld_file_open(&f, path, err));
    size_t n = f.size < sizeof start ? (size_t)f.size : sizeof start, i = 0;
    kld_status st = kld_file_read(&f, start, 0, n, err);
    kld_file_close(&f);
    while (i < n && (start[i] == ' ' || start[i] == '\n' || start[i] == '\r' || start[i] == '\t'))
        i++;
    *is = kld_path_ends_with(path, ".json") || (i < n && start[i] == '{');
    return st;
}
