#include "kld/base/log.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The terminal is one per process, and so is this state; only the main thread draws. */
static struct {
    kld_log_level level;
    bool active, drawn;
    const char *label, *unit;
    uint64_t total, done, per;
    double start, last;
    unsigned tenth;
} term = {.level = KLD_LOG_NORMAL};

static volatile sig_atomic_t stop_flag;

void kld_log_set_level(kld_log_level level) { term.level = level; }

static void clear_line(void) {
    if (!term.drawn) return;
    fputs("\r\033[K", stderr);
    term.drawn = false;
}

static void say(const char *prefix, const char *fmt, va_list ap) {
    char text[2048];
    clear_line();
    (void)vsnprintf(text, sizeof text, fmt, ap);
    kld_blank_controls(text);
    fprintf(stderr, "%s%s\n", prefix, text);
}

void kld_note(const char *fmt, ...) {
    if (term.level == KLD_LOG_QUIET) return;
    va_list ap;
    va_start(ap, fmt);
    say("kld: ", fmt, ap);
    va_end(ap);
}

void kld_warn(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(kld_color(false) ? "kld: \033[33mwarning:\033[0m " : "kld: warning: ", fmt, ap);
    va_end(ap);
}

void kld_debug(const char *fmt, ...) {
    if (term.level != KLD_LOG_VERBOSE) return;
    va_list ap;
    va_start(ap, fmt);
    say("kld: ", fmt, ap);
    va_end(ap);
}

void kld_print_error(const kld_err *err) {
    clear_line();
    fprintf(stderr, "%s%s\n",
            kld_color(false) ? "kld: \033[31merror:\033[0m " : "kld: error: ", err->text);
}

double kld_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void draw(void) {
    double now = kld_seconds(), spent = now - term.start;
    double share = term.total ? (double)term.done / (double)term.total : 0;
    double rate = spent > 0 ? (double)term.done / spent : 0;
    double left = rate > 0 ? (double)(term.total - term.done) / rate : 0;
    rate /= (double)term.per;
    if (isatty(STDERR_FILENO)) {
        if (now - term.last < 0.1) return;
        term.last = now;
        int full = (int)(share * 24);
        fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%  %.0f %s/s  %.0f s left\033[K", term.label, full,
                "========================", 24 - full, "", 100 * share, rate, term.unit, left);
        fflush(stderr);
        term.drawn = true;
    } else if ((unsigned)(share * 10) > term.tenth) {
        term.tenth = (unsigned)(share * 10);
        fprintf(stderr, "kld: %s %u%%  %.0f %s/s  %.0f s left\n", term.label, term.tenth * 10, rate,
                term.unit, left);
    }
}

void kld_progress_begin(const char *label, uint64_t total, uint64_t per, const char *unit) {
    term.active = term.level != KLD_LOG_QUIET;
    term.label = label;
    term.unit = unit;
    term.total = total;
    term.per = per;
    term.done = 0;
    term.tenth = 0;
    term.start = kld_seconds();
    term.last = 0;
}

void kld_progress_set(uint64_t done) {
    if (!term.active) return;
    term.done = done < term.total ? done : term.total;
    draw();
}

void kld_progress_end(void) {
    clear_line();
    term.active = false;
}

static void on_signal(int sig) {
    (void)sig;
    if (stop_flag) _exit(130);
    stop_flag = 1;
}

void kld_stop_install(void) {
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    /* A closed pipe is an error of the write, not the end of the process. */
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
}

bool kld_stop_requested(void) { return stop_flag != 0; }

kld_status kld_stop_check(kld_err *err) {
    return stop_flag ? kld_fail(err, KLD_E_INTERRUPTED, "interrupted") : KLD_OK;
}

bool kld_color(bool for_stdout) {
    const char *no = getenv("NO_COLOR");
    return !(no && *no) && isatty(for_stdout ? STDOUT_FILENO : STDERR_FILENO);
}
