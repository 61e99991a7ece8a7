#include "kld/compare/table_routes.h"

#include <stdio.h>
#include <string.h>

static const json_t *routing(const json_t *c) { return json_object_get(c, "routing"); }

static long long number_of(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

bool table_replayed(const json_t *c) {
    const char *mode = text_of(routing(c), "mode");
    return *mode && strcmp(mode, "natural") != 0;
}

bool table_replay_check(const json_t *c) { return strcmp(text_of(routing(c), "cell"), "BxB") == 0; }

bool table_same_routing(const json_t *a, const json_t *b) {
    if (!table_replayed(a) && !table_replayed(b)) return true;
    return strcmp(text_of(routing(a), "mode"), text_of(routing(b), "mode")) == 0 &&
           strcmp(text_of(routing(a), "source"), text_of(routing(b), "source")) == 0;
}

void table_replay_label(text_out *o, const json_t *c) {
    const json_t *r = routing(c);
    const char *source = text_of(r, "source");
    text_puts(o, strcmp(text_of(r, "mode"), "replay-ids") == 0 ? ", id-pinned to routes of "
                                                               : ", routes of ");
    if (strcmp(source, "reference") == 0) text_puts(o, "the reference");
    else if (strcmp(source, "candidate") == 0)
        text_put(o, "[%lld]", number_of(r, "source_candidate") + 1);
    else text_put(o, "%.12s", text_of(r, "source_digest"));
}

bool table_pair_told_elsewhere(const json_t *r, const json_t *pair) {
    const json_t *cands = json_object_get(r, "candidates"), *side[2];
    static const char *const SIDE[] = {"baseline", "candidate"};
    for (size_t i = 0; i < 2; i++) {
        side[i] = json_array_get(cands, (size_t)json_integer_value(text_at(pair, SIDE[i], NULL)));
        if (strcmp(text_of(side[i], "capture"), "the reference itself") == 0) return true;
        if (table_replay_check(side[i]) || *text_of(side[i], "floor")) return true;
    }
    return !table_same_routing(side[0], side[1]);
}

const char *table_pair_verdict(const json_t *pair) {
    return json_is_false(json_object_get(pair, "resolved")) ? "unresolved"
                                                            : text_of(pair, "verdict");
}

const char *table_margin(char out[TABLE_MARGIN], const json_t *result) {
    const json_t *nats = text_at(result, "settings", "margin_abs");
    if (json_is_number(nats)) (void)snprintf(out, TABLE_MARGIN, "%g nats", json_number_value(nats));
    else
        (void)snprintf(out, TABLE_MARGIN, "%g %%",
                       100 * json_number_value(text_at(result, "settings", "margin")));
    return out;
}

/* ---- agreement ------------------------------------------------------------------------ */

static void agreement_row(text_out *o, const json_t *s) {
    char c[8][TEXT_CELL];
    text_put(o, " %8s %8s %8s %8s %8s %10s %10s %10s\n",
             text_percent(c[0], text_at(s, "top1_agreement", NULL)),
             text_percent(c[1], text_at(s, "slot_agreement", NULL)),
             text_percent(c[2], text_at(s, "overlap", NULL)),
             text_percent(c[3], text_at(s, "exact_agreement", NULL)),
             text_number(c[4], text_at(s, "weight_tv", NULL), 8),
             text_number(c[5], text_at(s, "margin", "mean"), 10),
             text_number(c[6], text_at(s, "margin", "equal"), 10),
             text_number(c[7], text_at(s, "margin", "differ"), 10));
}

void table_routes(text_out *o, const json_t *result) {
    const json_t *cands = json_object_get(result, "candidates");
    bool first = true;
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k), *routes = json_object_get(c, "routes");
        const json_t *by = json_object_get(routes, "by_layer");
        if (!json_is_object(routes)) continue;
        if (first) {
            const json_t *own = routing(json_object_get(result, "reference"));
            char heading[128];
            (void)snprintf(heading, sizeof heading,
                           "Expert routes against the reference's: %lld tokens, %lld of %lld "
                           "experts in %lld layer%s",
                           number_of(routes, "tokens"), number_of(own, "top_k"),
                           number_of(own, "experts"), number_of(routes, "layers"),
                           number_of(routes, "layers") == 1 ? "" : "s");
            text_title(o, heading);
            text_put(o, "     %-*s %8s %8s %8s %8s %8s %10s %10s %10s\n", TEXT_NAME, "candidate",
                     "top-1", "slots", "overlap", "same set", "TV", "margin", "if equal",
                     "if differ");
        }
        first = false;
        text_row_name(o, c, k);
        agreement_row(o, json_object_get(routes, "overall"));
        for (size_t i = 0; i < json_array_size(by); i++) {
            const json_t *row = json_array_get(by, i);
            char name[32];
            (void)snprintf(name, sizeof name, "layer %lld", number_of(row, "layer"));
            text_put(o, "       %-*s", TEXT_NAME - 2, name);
            agreement_row(o, row);
        }
    }
}

/* ---- cells ------------------------------------------------------------------------------ */

/* "0.06748 [2]"; "- not run" */
static void cell(text_out *o, const json_t *cells, const char *which) {
    char s[TEXT_CELL], at[24] = "", both[TEXT_CELL + 32];
    const json_t *k = text_at(cells, "candidates", which);
    const json_t *kl = json_object_get(cells, which);
    if (json_is_integer(k))
        (void)snprintf(at, sizeof at, " [%lld]", (long long)json_integer_value(k) + 1);
    else if (!json_is_number(kl)) (void)snprintf(at, sizeof at, " not run");
    (void)snprintf(both, sizeof both, "%s%s", text_number(s, kl, 10), at);
    text_put(o, " %26s", both);
}

static void cells_of(text_out *o, const json_t *c, size_t k) {
    const json_t *x = json_object_get(c, "cells"), *pinned = json_object_get(x, "id_pinned");
    char s[2][TEXT_CELL], of[48];
    (void)snprintf(of, sizeof of, "weights of [%zu]", k + 1);
    text_put(o, "%s[%zu] ", k + 1 < 10 ? " " : "", k + 1);
    text_name(o, *text_of(c, "label") ? text_of(c, "label") : text_of(c, "name"), 24, true);
    text_put(o, " %26s %26s\n", "weights of the reference", of);
    text_put(o, "     %-24s", "routes of the reference");
    cell(o, x, "BxB");
    cell(o, x, "BxQ");
    (void)snprintf(of, sizeof of, "routes of [%zu]", k + 1);
    text_put(o, "\n     %-24s", of);
    cell(o, x, "QxB");
    cell(o, x, "QxQ");
    text_puts(o, "\n");
    if (json_is_number(json_object_get(x, "interaction")))
        text_put(o, "     %-24s %26s   95%% interval %s\n", "interaction",
                 text_number(s[0], json_object_get(x, "interaction"), 10),
                 text_range(s[1], json_object_get(x, "interaction_ci95")));
    for (size_t i = 0; i < json_array_size(pinned); i++) {
        const json_t *p = json_array_get(pinned, i);
        text_put(o,
                 "     id-pinned, beside %-5s %22s [%lld]   its experts, weights of own routers\n",
                 text_of(p, "beside"), text_number(s[0], json_object_get(p, "kl_mean"), 10),
                 number_of(p, "candidate") + 1);
    }
}

void table_cells(text_out *o, const json_t *result) {
    const json_t *cands = json_object_get(result, "candidates");
    bool first = true;
    for (size_t k = 0; k < json_array_size(cands); k++) {
        const json_t *c = json_array_get(cands, k);
        if (!json_is_object(json_object_get(c, "cells"))) continue;
        if (first) {
            text_title(o, "Mean KL: whose routes (rows) x whose weights (columns)");
            text_puts(o, "     the cells do not add up: interaction = what both change less what "
                         "each changes alone\n");
        }
        first = false;
        cells_of(o, c, k);
    }
}
