#include "kld/base/place.h"

#include "kld/base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

kld_status kld_utc_seconds(int64_t *out, kld_err *err) {
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    *out = (int64_t)time(NULL);
    if (!epoch || !*epoch) return KLD_OK;
    char *end;
    errno = 0;
    long long v = strtoll(epoch, &end, 10);
    if (errno || *end || v < 0)
        return kld_fail(err, KLD_E_USAGE, "SOURCE_DATE_EPOCH='%.40s' is not a number of seconds",
                        epoch);
    *out = (int64_t)v;
    return KLD_OK;
}

kld_status kld_utc_now(char **out, kld_err *err) {
    int64_t seconds;
    TRY(kld_utc_seconds(&seconds, err));
    time_t t = (time_t)seconds;
    struct tm tm;
    char text[32];
    if (!gmtime_r(&t, &tm) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        return kld_fail(err, KLD_E_USAGE, "the time of day is out of range");
    return kld_strdup(out, text, err);
}

kld_status kld_host_name(char **out, kld_err *err) {
    char text[256] = "";
    if (gethostname(text, sizeof text - 1) != 0) text[0] = '\0';
    return kld_strdup(out, text, err);
}

/* realpath with a NULL buffer would allocate outside kld/base/mem.c. */
kld_status kld_path_real(char **out, const char *path, kld_err *err) {
    char text[PATH_MAX];
    *out = NULL;
    if (!realpath(path, text)) return kld_fail(err, KLD_E_INPUT, "%s: %s", path, strerror(errno));
    return kld_strdup(out, text, err);
}

kld_status kld_output_not_input(const char *output, const char *input, kld_err *err) {
    struct stat a, b;
    if (!input || stat(output, &a) != 0 || stat(input, &b) != 0) return KLD_OK;
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return KLD_OK;
    return kld_fail(
        err, KLD_E_INPUT,
        "%s is an input of this run (%s) and would be replaced; give the output another "
        "name",
        output, input);
}
