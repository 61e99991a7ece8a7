/* config.json against every architecture row: no crash, no leak, and what is accepted has
 * sizes that the engine can multiply. */
#include "kld/base/json.h"
#include "loaders/config.h"
#include "loaders/match.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void check_config(const kld_config_read *r) {
    const kld_config *c = &r->config;
    require(c->hidden && c->intermediate && c->layers && c->heads && c->kv_heads && c->vocab);
    require(c->head_dim >= 2 && c->head_dim % 2 == 0 && c->heads % c->kv_heads == 0);
    require(isfinite(c->norm_eps) && isfinite(c->attn_scale) && c->rope.theta > 0);
    require(isfinite(c->rope.attention_factor));
    if (c->head_dim > 512) return;
    float inv[256];
    kld_rope_frequencies(&c->rope, c->head_dim, inv);
}

/* Strings of the text as patterns, each against a module name. */
static void try_patterns(const char *text) {
    for (int rule = KLD_MATCH_CT; rule <= KLD_MATCH_SUBSTRING; rule++) {
        kld_pattern p;
        bool hit;
        require(kld_pattern_init(&p, (kld_match_rule)rule, text, NULL) == KLD_OK);
        require(kld_pattern_match_any(&p, "model.layers.10.self_attn.q_proj", "Linear", &hit,
                                      NULL) == KLD_OK);
        kld_pattern_free(&p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root;
    if (size > 65536 || kld_json_parse(&root, data, size, 16, NULL) != KLD_OK) return 0;
    kld_arena arena = {0};
    kld_config_read r;
    kld_err err = {0};
    kld_status st = kld_config_parse(&r, root, &arena, &err);
    if (st == KLD_OK) check_config(&r);
    else require((st == KLD_E_INPUT || st == KLD_E_UNSUPPORTED) && err.text[0]);
    const char *pattern = json_string_value(json_object_get(root, "pattern"));
    if (pattern) try_patterns(pattern);
    kld_arena_free(&arena);
    json_decref(root);
    return 0;
}
