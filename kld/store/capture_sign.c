#include "kld/store/capture_impl.h"

#include <string.h>

static const char DOMAIN[] = "kld capture signature 1";

bool kld_capture_signature(const kld_capture *c, kld_signature *out) {
    if (c->layout.has_signature) *out = c->layout.signature;
    return c->layout.has_signature;
}

kld_status kld_capture_check_signature(const kld_capture *c, kld_err *err) {
    if (!c->layout.has_signature) return KLD_OK;
    return kld_where(err, kld_signature_check_digest(&c->layout.signature, DOMAIN, &c->digest, err),
                     "%s", c->file.path);
}

/* The file as it is up to its footer, and a footer with the signature. */
static kld_status write_signed(const kld_capture *c, const layout *with, kld_err *err) {
    kld_writer w;
    kld_buf footer = {0};
    uint64_t frames = c->layout.header_bytes;
    for (size_t i = 0; i < c->layout.n; i++) frames += c->layout.frame[i].bytes;
    kld_status st = layout_footer_write(with, &footer, err);
    if (st == KLD_OK) st = kld_writer_open(&w, c->file.path, err);
    if (st == KLD_OK) {
        st = kld_writer_copy(&w, &c->file, frames, err);
        if (st == KLD_OK) st = kld_writer_add(&w, footer.data, footer.len, err);
        if (st == KLD_OK) st = kld_writer_commit(&w, err);
        if (st != KLD_OK) kld_writer_abort(&w);
    }
    kld_buf_free(&footer);
    return st;
}

/* A partial of this name may be a run that is to go on. */
static kld_status check_partial(const kld_capture *c, kld_err *err) {
    kld_buf partial = {0};
    kld_status st = kld_buf_addf(&partial, err, "%s.partial", c->file.path);
    if (st == KLD_OK && kld_path_exists((char *)partial.data))
        st = kld_fail(err, KLD_E_INPUT,
                      "%s: exists: an unfinished run, or what an interrupted signing left; finish "
                      "that run or remove it",
                      (char *)partial.data);
    kld_buf_free(&partial);
    return st;
}

kld_status kld_capture_sign(kld_capture *c, const kld_key *key, bool replace, kld_err *err) {
    kld_public_key who = kld_key_public(key);
    TRY(kld_capture_verify(c, err));
    bool mine = c->layout.has_signature && !memcmp(&c->layout.signature.key, &who, sizeof who);
    if (mine) return KLD_OK;
    if (c->layout.has_signature && !replace) {
        char id[KLD_KEY_ID];
        return kld_fail(err, KLD_E_INPUT,
                        "%s: has a signature of key %s already; --force replaces it", c->file.path,
                        kld_key_id(&c->layout.signature.key, id));
    }
    TRY(check_partial(c, err));
    layout with = c->layout; /* borrows what it points to */
    with.has_signature = true;
    TRY(kld_sign_digest(key, DOMAIN, &c->digest, &with.signature, err));
    return write_signed(c, &with, err);
}
