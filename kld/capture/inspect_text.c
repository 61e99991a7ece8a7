/* kld inspect for people.  Every line is made from the JSON object, so the two cannot
 * disagree. */
#include "kld/capture/inspect.h"

#include "kld/capture/inputs.h"

#include <stdio.h>
#include <string.h>

static double num(const json_t *v, const char *key) {
    return json_number_value(json_object_get(v, key));
}

static const char *str(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

static const char *scaled(double v, double base, const char *const *unit, char text[32]) {
    size_t u = 0;
    while (v >= base && u < 4) {
        v /= base;
        u++;
    }
    snprintf(text, 32, u ? "%.2f %s" : "%.0f %s", v, unit[u]);
    return text;
}

static const char *bytes(double v, char text[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return scaled(v, 1024, unit, text);
}

static const char *count(double v, char text[32]) {
    static const char *const unit[] = {"", "k", "M", "G", "T"};
    return scaled(v, 1000, unit, text);
}

static kld_status module_lines(const json_t *modules, kld_buf *out, kld_err *err) {
    const char *kind, *format;
    json_t *by_format, *sum;
    TRY(kld_buf_addf(out, err, "  %-13s %-20s %8s %12s %12s %8s\n", "module", "format", "weights",
                     "parameters", "bytes", "bits"));
    json_object_foreach((json_t *)(uintptr_t)modules, kind, by_format)
        json_object_foreach(by_format, format, sum) {
        char p[32], b[32];
        double parameters = num(sum, "parameters");
        TRY(kld_buf_addf(out, err, "  %-13s %-20s %8.0f %12s %12s %8.2f\n", kind, format,
                         num(sum, "weights"), count(parameters, p), bytes(num(sum, "bytes"), b),
                         parameters > 0 ? 8 * num(sum, "bytes") / parameters : 0));
    }
    return KLD_OK;
}

/* One line a kind of attention where there are several, or where keys and values differ. */
static kld_status attention_lines(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *list = json_object_get(v, "attention"), *latent = json_object_get(v, "latent");
    size_t i;
    json_t *a;
    json_array_foreach((json_t *)(uintptr_t)list, i, a) {
        bool plain = num(a, "rotated") == num(a, "head_dim") &&
                     num(a, "value_dim") == num(a, "head_dim") && num(a, "window") == 0;
        if (json_array_size(list) == 1 && plain) continue;
        TRY(kld_buf_addf(out, err, "  attention of %.0f layer%s: ", num(a, "layers"),
                         num(a, "layers") == 1 ? "" : "s"));
        if (num(a, "window") > 0)
            TRY(kld_buf_addf(out, err, "the last %.0f tokens", num(a, "window")));
        else TRY(kld_buf_adds(out, "all tokens", err));
        TRY(kld_buf_addf(out, err,
                         ", %.0f query and %.0f key heads of %.0f (%.0f rotated), values of %.0f\n",
                         num(a, "heads"), num(a, "kv_heads"), num(a, "head_dim"), num(a, "rotated"),
                         num(a, "value_dim")));
    }
    if (json_is_object(latent) && num(latent, "q") > 0)
        TRY(kld_buf_addf(out, err, "  queries from a latent vector of %.0f, ", num(latent, "q")));
    else if (json_is_object(latent)) TRY(kld_buf_adds(out, "  ", err));
    if (json_is_object(latent))
        TRY(kld_buf_addf(out, err, "keys and values from one of %.0f and %.0f rotated columns\n",
                         num(latent, "kv"), num(latent, "rope_dim")));
    if (num(v, "dense_window") > 0)
        TRY(kld_buf_addf(
            out, err, "  an indexer chooses keys above %.0f tokens: longer windows are refused\n",
            num(v, "dense_window")));
    return KLD_OK;
}

static kld_status expert_line(const json_t *v, kld_buf *out, kld_err *err) {
    const json_t *x = json_object_get(v, "experts");
    if (!json_is_object(x)) return KLD_OK;
    TRY(kld_buf_addf(out, err, "  %.0f of %.0f layers have %.0f experts of %.0f, %.0f a token",
                     num(x, "layers"), num(v, "layers"), num(x, "count"), num(x, "intermediate"),
                     num(x, "per_token")));
    if (num(x, "groups") > 1) TRY(kld_buf_addf(out, err, " out of %.0f groups", num(x, "groups")));
    if (num(x, "shared_intermediate") > 0)
        TRY(kld_buf_addf(out, err, ", and a shared one of %.0f", num(x, "shared_intermediate")));
    return kld_buf_adds(out, "\n", err);
}

static kld_status skipped_line(const json_t *v, kld_buf *out, kld_err *err) {
    static const char *const why[][2] = {{"mtp", "multi-token prediction"},
                                         {"vision", "vision"},
                                         {"indexer", "sparse attention's indexer"},
                                         {"other", "caches and tables"}};
    const json_t *s = json_object_get(v, "skipped");
    char b[32];
    const char *sep = " (";
    if (num(v, "skipped_tensors") <= 0) return KLD_OK;
    TRY(kld_buf_addf(out, err, "  %.0f tensors are not part of the text model and are skipped",
                     num(v, "skipped_tensors")));
    for (size_t k = 0; k < sizeof why / sizeof *why; k++) {
        if (num(s, why[k][0]) <= 0) continue;
        TRY(kld_buf_addf(out, err, "%s%s %.0f", sep, why[k][1], num(s, why[k][0])));
        sep = ", ";
    }
    return kld_buf_addf(out, err, "), %s\n", bytes(num(s, "bytes"), b));
}

static kld_status shape_lines(const json_t *v, kld_buf *out, kld_err *err) {
    char a[32], b[32], c[32], active[48] = "";
    if (json_is_object(json_object_get(v, "experts")))
        snprintf(active, sizeof active, " (%s active)", count(num(v, "active_parameters"), c));
    TRY(kld_buf_addf(out, err, "%s: %s, %s, %s parameters%s, %s in %.0f shard%s\n", str(v, "path"),
                     str(v, "family"), str(v, "label"), count(num(v, "parameters"), a), active,
                     bytes(num(v, "bytes"), b), num(v, "shards"),
                     num(v, "shards") == 1 ? "" : "s"));
    TRY(kld_buf_addf(out, err,
                     "  %.0f layers, hidden %.0f, %.0f query and %.0f key heads of %.0f, ",
                     num(v, "layers"), num(v, "hidden"), num(v, "heads"), num(v, "kv_heads"),
                     num(v, "head_dim")));
    if (num(v, "intermediate") > 0)
        TRY(kld_buf_addf(out, err, "MLP %.0f, ", num(v, "intermediate")));
    TRY(kld_buf_addf(out, err, "vocabulary %.0f, %s head\n", num(v, "vocab"),
                     json_is_true(json_object_get(v, "tied_head")) ? "tied" : "own"));
    TRY(attention_lines(v, out, err));
    TRY(expert_line(v, out, err));
    return skipped_line(v, out, err);
}

static kld_status checkpoint_text(const json_t *v, kld_buf *out, kld_err *err) {
    char a[32], b[32], c[32];
    const json_t *plan = json_object_get(v, "plan"), *read = json_object_get(v, "read");
    TRY(shape_lines(v, out, err));
    TRY(module_lines(json_object_get(v, "modules"), out, err));
    const json_t *inputs = json_object_get(v, "declared_inputs");
    if (json_object_size(inputs)) {
        TRY(kld_buf_adds(out, "  declared quantization of inputs: ", err));
        TRY(kld_inputs_text(inputs, out, err));
        TRY(kld_buf_adds(out, "\n", err));
    }
    TRY(kld_buf_addf(
        out, err, "  largest layer %s stored, %s decoded; read once in %.1f s at %s a second\n",
        bytes(num(plan, "largest_layer_stored"), a), bytes(num(plan, "largest_layer_decoded"), b),
        num(read, "seconds"), bytes(num(read, "disk_bytes_per_second"), c)));
    if (num(plan, "largest_group") > 0)
        TRY(kld_buf_addf(out, err, "  largest group of experts on the device %s stored\n",
                         bytes(num(plan, "largest_group"), a)));
    TRY(kld_buf_addf(out, err, "  a run of %.0f tokens needs %s: hidden states %s",
                     num(plan, "tokens"), bytes(num(plan, "total_bytes"), a),
                     bytes(num(plan, "residual_bytes"), b)));
    TRY(kld_buf_addf(out, err, ", scratch %s\n", bytes(num(plan, "scratch_bytes"), c)));
    TRY(kld_buf_addf(out, err, "  digest %s\n", str(v, "digest")));
    size_t i;
    json_t *w;
    json_array_foreach(json_object_get(v, "warnings"), i, w)
        TRY(kld_buf_addf(out, err, "  warning: %s\n", json_string_value(w)));
    return KLD_OK;
}

static kld_status capture_text(const json_t *v, kld_buf *out, kld_err *err) {
    char b[32];
    const json_t *ref = json_object_get(v, "reference");
    TRY(kld_buf_addf(out, err, "%s: capture of %s (%s, %s)\n", str(v, "path"), str(v, "name"),
                     str(v, "label"), str(v, "family")));
    TRY(kld_buf_addf(out, err, "  %.0f windows, %.0f positions, %s, %.0f B a position\n",
                     num(v, "windows"), num(v, "positions"), bytes(num(v, "bytes"), b),
                     num(v, "bytes_per_position")));
    TRY(kld_buf_addf(
        out, err,
        "  lists of %.0f to %.0f ids until %g of the mass is left, %.0f draws from the "
        "rest; %.0f of %.0f rows of the head\n",
        num(v, "min_k"), num(v, "top_k"), num(v, "tail_mass"), num(v, "tail_samples"),
        num(v, "vocab"), num(v, "vocab_rows")));
    if (*str(v, "partition"))
        TRY(kld_buf_addf(out, err, "  windows of partition '%s' of its suite\n",
                         str(v, "partition")));
    if (json_is_object(ref))
        TRY(kld_buf_addf(out, err, "  candidate of reference %s, content %.12s\n", str(ref, "name"),
                         str(ref, "digest")));
    if (*str(v, "floor"))
        TRY(kld_buf_addf(out, err, "  measures the noise floor: another %s than that capture\n",
                         str(v, "floor")));
    const json_t *hidden = json_object_get(v, "hidden");
    if (json_is_object(hidden))
        TRY(kld_buf_addf(out, err, "  keeps hidden states: %.0f values in %s, %s; head %.12s\n",
                         num(hidden, "cols"), str(hidden, "dtype"), str(hidden, "point"),
                         str(hidden, "head")));
    const json_t *routes = json_object_get(v, "routes");
    if (json_is_object(routes) && json_is_true(json_object_get(routes, "kept")))
        TRY(kld_buf_addf(out, err, "  keeps routes: %.0f of %.0f experts a token in %.0f layers\n",
                         num(routes, "top_k"), num(routes, "experts"), num(routes, "layers")));
    else if (json_is_object(routes))
        TRY(kld_buf_addf(out, err, "  with the %s of capture %.12s\n",
                         strcmp(str(routes, "mode"), "replay") ? "experts (not the weights)"
                                                               : "routes",
                         str(routes, "source")));
    const char *key;
    json_t *value;
    TRY(kld_buf_adds(out, "  engine:", err));
    json_object_foreach(json_object_get(v, "engine"), key,
                        value) if (strcmp(key, "arithmetic") != 0)
        TRY(kld_buf_addf(out, err, " %s %s;", key, json_string_value(value)));
    TRY(kld_buf_addf(out, err,
                     "\n  model %.12s, tokenizer %.12s, suite %.12s\n  content %s, made %s on %s\n",
                     str(v, "model"), str(v, "tokenizer"), str(v, "suite"), str(v, "digest"),
                     str(v, "time"), str(v, "host")));
    const json_t *who = json_object_get(v, "signed_by");
    return json_is_object(who) ? kld_buf_addf(out, err, "  signed by key %s\n", str(who, "key_id"))
                               : KLD_OK;
}

kld_status kld_inspect_text(const json_t *v, kld_buf *out, kld_err *err) {
    return strcmp(str(v, "kind"), "capture") == 0 ? capture_text(v, out, err)
                                                  : checkpoint_text(v, out, err);
}
