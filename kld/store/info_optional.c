#include "kld/store/info_optional.h"

#include "kld/base/mem.h"

#include <math.h>
#include <string.h>

/* ---- floor ------------------------------------------------------------------------------ */

static bool has_floor(const kld_capture_info *i) { return i->floor && *i->floor; }

static json_t *floor_value(const kld_capture_info *i) { return json_string(i->floor); }

static kld_status parse_floor(kld_capture_info *i, const json_t *root, kld_err *err) {
    const char *text;
    TRY(kld_json_str(root, "floor", &text, err));
    return kld_strdup(&i->floor, text, err);
}

static kld_status check_floor(const kld_capture_info *i, kld_err *err) {
    if (!has_floor(i) || !strcmp(i->floor, "precision") || !strcmp(i->floor, "chunk"))
        return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'floor': '%.40s' is not known", i->floor);
}

/* ---- hidden states ---------------------------------------------------------------------- */

/* Where they were taken: said in the file, for a capture before the norm would look like one. */
static const char HIDDEN_POINT[] = "after the final norm";

static bool has_hidden(const kld_capture_info *i) { return i->hidden.cols > 0; }

static json_t *hidden_value(const kld_capture_info *i) {
    char hex[KLD_SHA256_HEX];
    const kld_hidden_info *h = &i->hidden;
    return json_pack("{s:s, s:s, s:I, s:f, s:s}", "point", HIDDEN_POINT, "dtype",
                     h->bytes == 2 ? "bf16" : "fp32", "cols", (json_int_t)h->cols, "logit_cap",
                     h->logit_cap, "head", kld_digest_hex(&h->head, hex));
}

static kld_status parse_hidden(kld_capture_info *info, const json_t *root, kld_err *err) {
    kld_hidden_info *h = &info->hidden;
    const char *point, *dtype, *head;
    json_t *o;
    TRY(kld_json_obj(root, "hidden", &o, err));
    TRY(kld_json_str(o, "point", &point, err));
    TRY(kld_json_str(o, "dtype", &dtype, err));
    TRY(kld_json_u64(o, "cols", &h->cols, err));
    TRY(kld_json_f64(o, "logit_cap", &h->logit_cap, err));
    TRY(kld_json_str(o, "head", &head, err));
    TRY(kld_where(err, kld_digest_parse(head, &h->head, err), "'hidden'"));
    h->bytes = !strcmp(dtype, "bf16") ? 2 : !strcmp(dtype, "fp32") ? 4 : 0;
    if (strcmp(point, HIDDEN_POINT) != 0 || h->bytes == 0 || h->cols == 0)
        return kld_fail(err, KLD_E_INPUT, "'hidden': %llu values of type '%.20s' taken '%.40s'",
                        (unsigned long long)h->cols, dtype, point);
    if (json_object_size(o) == 5) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'hidden' has %zu keys; 5 are expected", json_object_size(o));
}

static kld_status check_hidden(const kld_capture_info *i, kld_err *err) {
    const kld_hidden_info *h = &i->hidden;
    if (h->cols == 0 || ((h->bytes == 2 || h->bytes == 4) && h->cols <= 1u << 20 &&
                         isfinite(h->logit_cap) && h->logit_cap >= 0))
        return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'hidden': %llu values of %llu bytes, cap %g: out of range",
                    (unsigned long long)h->cols, (unsigned long long)h->bytes, h->logit_cap);
}

/* ---- partition -------------------------------------------------------------------------- */

static bool has_partition(const kld_capture_info *i) { return i->partition && *i->partition; }

static json_t *partition_value(const kld_capture_info *i) { return json_string(i->partition); }

static kld_status parse_partition(kld_capture_info *i, const json_t *root, kld_err *err) {
    const char *text;
    TRY(kld_json_str(root, "partition", &text, err));
    return kld_strdup(&i->partition, text, err);
}

/* ---- routes ----------------------------------------------------------------------------- */

static const char *const route_modes[KLD_ROUTES_MODES] = {"natural", "replay", "replay-ids"};

const char *kld_route_mode_name(kld_route_mode m) {
    return m < KLD_ROUTES_MODES ? route_modes[m] : "?";
}

static bool has_routes(const kld_capture_info *i) {
    return i->routes.kept || i->routes.mode != KLD_ROUTES_NATURAL;
}

static json_t *routes_value(const kld_capture_info *info) {
    const kld_route_info *r = &info->routes;
    char hex[KLD_SHA256_HEX];
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:s}", "mode", kld_route_mode_name(r->mode), "kept",
                     (int)r->kept, "layers", (json_int_t)r->layers, "top_k", (json_int_t)r->top_k,
                     "experts", (json_int_t)r->experts, "source", kld_digest_hex(&r->source, hex));
}

static kld_status parse_routes(kld_capture_info *info, const json_t *root, kld_err *err) {
    kld_route_info *r = &info->routes;
    const char *mode, *source;
    json_t *o;
    size_t m = 0;
    TRY(kld_json_obj(root, "routes", &o, err));
    TRY(kld_json_str(o, "mode", &mode, err));
    while (m < KLD_ROUTES_MODES && strcmp(mode, route_modes[m]) != 0) m++;
    if (m == KLD_ROUTES_MODES)
        return kld_fail(err, KLD_E_INPUT, "'routes': mode '%.40s' is not known", mode);
    r->mode = (kld_route_mode)m;
    TRY(kld_json_bool(o, "kept", &r->kept, err));
    TRY(kld_json_u64(o, "layers", &r->layers, err));
    TRY(kld_json_u64(o, "top_k", &r->top_k, err));
    TRY(kld_json_u64(o, "experts", &r->experts, err));
    TRY(kld_json_str(o, "source", &source, err));
    TRY(kld_where(err, kld_digest_parse(source, &r->source, err), "'routes'"));
    if (json_object_size(o) == 6) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'routes' has %zu keys; 6 are expected", json_object_size(o));
}

static kld_status check_routes(const kld_capture_info *i, kld_err *err) {
    const kld_route_info *r = &i->routes;
    bool natural = r->mode == KLD_ROUTES_NATURAL, any = r->layers && r->top_k && r->experts;
    static const kld_digest none;
    bool sourced = memcmp(&r->source, &none, sizeof none) != 0;
    if (r->mode >= KLD_ROUTES_MODES || r->top_k > r->experts || r->experts > 65536 ||
        r->layers > 100000 || r->top_k > 1024 || any != has_routes(i) || sourced == natural ||
        (r->kept && !natural))
        return kld_fail(err, KLD_E_INPUT,
                        "'routes': %s, %llu layers, %llu of %llu experts: out of range",
                        kld_route_mode_name(r->mode), (unsigned long long)r->layers,
                        (unsigned long long)r->top_k, (unsigned long long)r->experts);
    return KLD_OK;
}

/* ---- all of them ------------------------------------------------------------------------ */

static const struct optional {
    bool (*has)(const kld_capture_info *i);
    json_t *(*value)(const kld_capture_info *i);
    kld_status (*parse)(kld_capture_info *i, const json_t *root, kld_err *err);
    kld_status (*check)(const kld_capture_info *i, kld_err *err); /* NULL: any value will do */
} optional[INFO_OPTIONAL] = {
    {has_floor, floor_value, parse_floor, check_floor},
    {has_hidden, hidden_value, parse_hidden, check_hidden},
    {has_partition, partition_value, parse_partition, NULL},
    {has_routes, routes_value, parse_routes, check_routes},
};
const char *const INFO_OPTIONAL_KEY[INFO_OPTIONAL] = {"floor", "hidden", "partition", "routes"};

bool info_optional_add(const kld_capture_info *info, json_t *root) {
    for (size_t k = 0; k < INFO_OPTIONAL; k++)
        if (optional[k].has(info) &&
            json_object_set_new(root, INFO_OPTIONAL_KEY[k], optional[k].value(info)) != 0)
            return false;
    return true;
}

kld_status info_optional_parse(kld_capture_info *info, const json_t *root, size_t *n,
                               kld_err *err) {
    *n = 0;
    for (size_t k = 0; k < INFO_OPTIONAL; k++) {
        if (!json_object_get(root, INFO_OPTIONAL_KEY[k])) continue;
        TRY(optional[k].parse(info, root, err));
        if (!optional[k].has(info))
            return kld_fail(err, KLD_E_INPUT, "'%s' is there but says nothing",
                            INFO_OPTIONAL_KEY[k]);
        ++*n;
    }
    if (!info->partition) TRY(kld_strdup(&info->partition, "", err));
    return info->floor ? KLD_OK : kld_strdup(&info->floor, "", err);
}

kld_status info_optional_check(const kld_capture_info *info, kld_err *err) {
    for (size_t k = 0; k < INFO_OPTIONAL; k++)
        if (optional[k].check) TRY(optional[k].check(info, err));
    return KLD_OK;
}
