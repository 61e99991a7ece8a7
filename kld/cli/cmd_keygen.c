#include "kld/base/buf.h"
#include "kld/base/ed25519.h"
#include "kld/base/file.h"
#include "kld/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { KEY_FORCE = 1 };

typedef struct args {
    cli_common common;
    const char *name;
    bool force;
} args;

static const struct argp_option options[] = {
    {"output", 'o', "NAME", 0, "Write NAME.key and NAME.pub (default: kld)", 1},
    {"force", KEY_FORCE, 0, 0, "Replace a key of that name: what it signed can then not be renewed",
     1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *s) {
    args *a = s->input;
    switch (key) {
    case ARGP_KEY_INIT: s->child_inputs[0] = &a->common; return 0;
    case 'o': a->name = arg; return 0;
    case KEY_FORCE: a->force = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(s, "'%s': no argument is taken; -o NAME names the key", arg);
        return 0;
    case ARGP_KEY_END:
        if (!*a->name) argp_error(s, "-o: the name is empty");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kld_status tell(const args *a, const kld_public_key *k, const char *private_path,
                       const char *public_path, kld_err *err) {
    char id[KLD_KEY_ID], hex[2 * sizeof k->b + 1];
    kld_key_id(k, id);
    if (a->common.json)
        return cli_print_json(json_pack("{s:i, s:s, s:s, s:s, s:s}", "schema", 1, "key_id", id,
                                        "public_key", kld_hex(k->b, sizeof k->b, hex), "private",
                                        private_path, "public", public_path),
                              err);
    printf("key %s: %s signs (keep it to yourself), %s checks (give it away)\n", id, private_path,
           public_path);
    return KLD_OK;
}

kld_status cli_keygen(int argc, char **argv, kld_err *err) {
    static const struct argp argp = {
        options,
        parse,
        "",
        "Make an Ed25519 key: NAME.key, which only its owner may read, and NAME.pub.  Both are PEM "
        "files of OpenSSL; `openssl genpkey -algorithm ed25519` makes the same.",
        cli_common_child,
        0,
        0};
    args a = {.name = "kld"};
    cli_parse(&argp, "keygen", argc, argv, &a);
    kld_buf private_path = {0}, public_path = {0};
    kld_key *key = NULL;
    kld_status st;
    TRY_TO(done, kld_buf_addf(&private_path, err, "%s.key", a.name));
    TRY_TO(done, kld_buf_addf(&public_path, err, "%s.pub", a.name));
    const char *private_name = (char *)private_path.data, *public_name = (char *)public_path.data;
    if (!a.force && (kld_path_exists(private_name) || kld_path_exists(public_name))) {
        st = kld_fail(err, KLD_E_INPUT, "%s: exists already; --force replaces it",
                      kld_path_exists(private_name) ? private_name : public_name);
        goto done;
    }
    TRY_TO(done, kld_key_generate(&key, err));
    TRY_TO(done, kld_key_save(key, private_name, public_name, a.force, err));
    kld_public_key k = kld_key_public(key);
    st = tell(&a, &k, private_name, public_name, err);
done:
    kld_key_free(key);
    kld_buf_free(&private_path);
    kld_buf_free(&public_path);
    return st;
}
