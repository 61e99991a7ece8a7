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

static void check_attention(const kld_attention *a, bool latent) {
    require(a->heads && a->kv_heads && a->head_dim && a->value_dim && a->heads % a->kv_heads == 0);
    require(a->rope_dim % 2 == 0 && a->rope_first + a->rope_dim <= a->head_dim);
    require(latent || a->head_dim % 2 == 0);
    require(a->rope.theta > 0 && isfinite(a->rope.attention_factor));
    if (a->rope_dim > 512) return;
    float inv[256];
    kld_rope_frequencies(&a->rope, a->rope_dim, inv);
}

static void check_config(const kld_config_read *r) {
    const kld_config *c = &r->config;
    const kld_router *t = &c->router;
    require(c->hidden && c->layers && c->vocab && (c->intermediate || r->arch->experts));
    require(isfinite(c->norm_eps) && isfinite(c->attn_scale) && isfinite(c->value_scale));
    bool latent = r->arch->attention == KLD_BLOCK_LATENT_ATTENTION;
    require(latent == (c->kv_lora > 0));
    for (int k = 0; k < KLD_ATTN_KINDS; k++) check_attention(&c->attn[k], latent);
    require((t->experts > 0) == (r->arch->experts != NULL));
    if (t->experts) {
        require(c->expert_intermediate && t->top_k && t->top_k <= KLD_MAX_TOP_EXPERTS);
        require(t->experts <= KLD_MAX_EXPERTS && t->groups && t->experts % t->groups == 0);
        require(t->top_k <= t->experts / t->groups * t->top_groups && isfinite(t->scale));
    }
    for (size_t l = 0; l < c->layers; l++) {
        require(!r->sparse[l] || t->experts);
        require(!r->slides[l] || c->attn[KLD_ATTN_SLIDING].window);
    }
}

/* Strings of the text as patterns, each against a module name. */
static void try_patterns(const char *text) {
    kld_module_names names;
    kld_module_names_init(&names, "model.layers.10.self_attn.q_proj");
    for (int rule = KLD_MATCH_CT; rule <= KLD_MATCH_SUBSTRING; rule++) {
        kld_pattern p;
        bool hit;
        require(kld_pattern_init(&p, (kld_match_rule)rule, text, NULL) == KLD_OK);
        require(kld_pattern_match_any(&p, &names, "Linear", &hit, NULL) == KLD_OK);
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
