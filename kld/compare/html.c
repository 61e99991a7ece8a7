#include "kld/compare/html.h"

#include "kld/base/mem.h"
#include "kld/base/sha256.h"
#include "kld/compare/assets.h"

#include <string.h>

/* ---- parts -------------------------------------------------------------------------------- */

static kld_status base64(const unsigned char *b, size_t n, kld_buf *out, kld_err *err) {
    static const char DIGIT[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)b[i] << 16 | (i + 1 < n ? (unsigned)b[i + 1] << 8 : 0) |
                     (i + 2 < n ? b[i + 2] : 0);
        const char four[] = {DIGIT[v >> 18], DIGIT[v >> 12 & 63],
                             i + 1 < n ? DIGIT[v >> 6 & 63] : '=', i + 2 < n ? DIGIT[v & 63] : '='};
        TRY(kld_buf_add(out, four, sizeof four, err));
    }
    return KLD_OK;
}

/* " 'sha256-...'": the browser runs an element of exactly this text. */
static kld_status source(const char *from, const char *end, kld_buf *out, kld_err *err) {
    kld_digest d;
    TRY(kld_sha256_of(from, (size_t)(end - from), &d, err));
    TRY(kld_buf_adds(out, " 'sha256-", err));
    TRY(base64(d.b, sizeof d.b, out, err));
    return kld_buf_adds(out, "'", err);
}

static kld_status policy(kld_buf *out, kld_err *err) {
    TRY(kld_buf_adds(out,
                     "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
                     "style-src",
                     err));
    TRY(source(kld_asset_style, kld_asset_style_end, out, err));
    TRY(kld_buf_adds(out, "; script-src", err));
    TRY(source(kld_asset_chart, kld_asset_chart_end, out, err));
    return source(kld_asset_script, kld_asset_script_end, out, err);
}

/* These characters are in strings only, where an escape means the same. */
static kld_status add_safe(kld_buf *out, const unsigned char *s, size_t n, kld_err *err) {
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        bool separator = n - i > 2 && s[i] == 0xe2 && s[i + 1] == 0x80 && (s[i + 2] & 0xfe) == 0xa8;
        if (!separator && s[i] != '<' && s[i] != '>' && s[i] != '&') continue;
        unsigned code = separator ? 0x2028u + (s[i + 2] & 1) : s[i];
        TRY(kld_buf_add(out, s + from, i - from, err));
        TRY(kld_buf_addf(out, err, "\\u%04x", code));
        i += separator ? 2 : 0;
        from = i + 1;
    }
    return kld_buf_add(out, s + from, n - from, err);
}

/* Numbers to nine digits: more than is shown, half of what is stored. */
static kld_status add_json(const json_t *v, kld_buf *out, kld_err *err) {
    char *s = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!s) return kld_fail(err, KLD_E_NOMEM, "out of memory while writing JSON");
    kld_status st = add_safe(out, (const unsigned char *)s, strlen(s), err);
    kld_free(s);
    return st;
}

enum { MANY = 16, WORST_OF_MANY = 3 };

/* A copy without what the page does not show: the ids of a context that has a text, and of many
 * candidates all but the very worst positions. */
static json_t *shown(const json_t *result) {
    json_t *copy = json_deep_copy(result);
    const json_t *cands = json_object_get(copy, "candidates");
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *kl = json_object_get(json_array_get(cands, k), "kl");
        json_t *worst = json_object_get(kl, "worst");
        while (json_array_size(cands) > MANY && json_array_size(worst) > WORST_OF_MANY)
            json_array_remove(worst, WORST_OF_MANY);
        for (size_t i = 0; i < json_array_size(worst); i++) {
            json_t *context = json_object_get(json_array_get(worst, i), "context");
            if (json_is_string(json_object_get(context, "text"))) json_object_del(context, "ids");
        }
    }
    return copy;
}

static kld_status data(const json_t *result, const json_t *history, kld_buf *out, kld_err *err) {
    json_t *copy = shown(result);
    if (!copy) return kld_fail(err, KLD_E_NOMEM, "out of memory while writing the page");
    kld_status st = kld_buf_adds(out, "{\"result\":", err);
    if (st == KLD_OK) st = add_json(copy, out, err);
    json_decref(copy);
    TRY(st);
    TRY(kld_buf_adds(out, ",\"history\":", err));
    TRY(history ? add_json(history, out, err) : kld_buf_adds(out, "null", err));
    return kld_buf_adds(out, "}", err);
}

/* ---- the page ------------------------------------------------------------------------------ */

static kld_status asset(const char *from, const char *end, kld_buf *out, kld_err *err) {
    return kld_buf_add(out, from, (size_t)(end - from), err);
}

kld_status kld_compare_html(const json_t *result, const json_t *history, kld_buf *out,
                            kld_err *err) {
    static const char *const MARK[] = {"@POLICY@", "@STYLE@", "@DATA@", "@CHART@", "@SCRIPT@"};
    if (!json_is_object(json_object_get(result, "reference")) ||
        !json_is_array(json_object_get(result, "candidates")))
        return kld_fail(err, KLD_E_INTERNAL, "not the result of a comparison");
    const char *at = kld_asset_page;
    for (size_t m = 0; m < sizeof MARK / sizeof *MARK; m++) {
        const char *mark = strstr(at, MARK[m]);
        if (!mark) return kld_fail(err, KLD_E_INTERNAL, "the page lacks %s", MARK[m]);
        TRY(asset(at, mark, out, err));
        at = mark + strlen(MARK[m]);
        switch (m) {
        case 0: TRY(policy(out, err)); break;
        case 1: TRY(asset(kld_asset_style, kld_asset_style_end, out, err)); break;
        case 2: TRY(data(result, history, out, err)); break;
        case 3: TRY(asset(kld_asset_chart, kld_asset_chart_end, out, err)); break;
        default: TRY(asset(kld_asset_script, kld_asset_script_end, out, err));
        }
    }
    return asset(at, kld_asset_page_end, out, err);
}
