#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/compare/receipt.h"
#include "kld/compare/receipt_impl.h"

#include <string.h>

enum { MAX_RECEIPT = 64 << 20, MAX_DEPTH = 64 };

kld_status receipt_digest(const json_t *content, kld_digest *out, kld_err *err) {
    kld_buf b = {0};
    kld_status st = kld_json_canonical(content, &b, err);
    if (st == KLD_OK) st = kld_sha256_of(b.data, b.len, out, err);
    kld_buf_free(&b);
    return st;
}

void kld_receipt_facts_free(kld_receipt_facts *f) {
    kld_free(f->capture);
    f->capture = NULL;
    f->n_captures = 0;
}

/* Exactly these members and no other. */
static kld_status only(const json_t *o, size_t n, const char *where, kld_err *err) {
    if (json_object_size(o) == n) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "%s has %zu members where version %d has %zu", where,
                    json_object_size(o), KLD_RECEIPT_VERSION, n);
}

static kld_status hex_member(const json_t *o, const char *key, unsigned char *b, size_t n,
                             kld_err *err) {
    const char *text;
    TRY(kld_json_str(o, key, &text, err));
    if (kld_hex_parse(text, b, n)) return KLD_OK;
    return kld_fail(err, KLD_E_INPUT, "'%s': expected %zu lower-case hex digits, found '%.160s'",
                    key, 2 * n, text);
}

static kld_status check_signature(const json_t *receipt, kld_receipt_facts *f, kld_err *err) {
    json_t *o;
    const char *algorithm;
    unsigned char id[(KLD_KEY_ID - 1) / 2];
    char want[KLD_KEY_ID], have[KLD_KEY_ID];
    if (json_is_null(json_object_get(receipt, "signature"))) return KLD_OK;
    TRY(kld_json_obj(receipt, "signature", &o, err));
    TRY(kld_json_str(o, "algorithm", &algorithm, err));
    if (strcmp(algorithm, RECEIPT_ALGORITHM) != 0)
        return kld_fail(err, KLD_E_UNSUPPORTED, "'algorithm' is '%.40s'; this program checks %s",
                        algorithm, RECEIPT_ALGORITHM);
    TRY(hex_member(o, "key_id", id, sizeof id, err));
    TRY(hex_member(o, "public_key", f->signature.key.b, sizeof f->signature.key.b, err));
    TRY(hex_member(o, "signature", f->signature.b, sizeof f->signature.b, err));
    TRY(only(o, 4, "'signature'", err));
    if (strcmp(kld_key_id(&f->signature.key, want), kld_hex(id, sizeof id, have)) != 0)
        return kld_fail(err, KLD_E_INPUT, "'key_id' is %s; the key beside it has the id %s", have,
                        want);
    f->has_signature = true;
    return kld_signature_check_digest(&f->signature, RECEIPT_DOMAIN, &f->content, err);
}

static kld_status find_captures(const json_t *content, kld_receipt_facts *f, kld_err *err) {
    json_t *reference, *candidates;
    kld_digest d;
    TRY(kld_json_obj(content, "reference", &reference, err));
    TRY(kld_json_arr(content, "candidates", &candidates, err));
    size_t n = json_array_size(candidates) + 1;
    TRY(NEW_ARRAY(&f->capture, n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *o = i ? json_array_get(candidates, i - 1) : reference;
        TRY(kld_where(err, hex_member(o, "content_digest", d.b, sizeof d.b, err), "%s",
                      i ? "a candidate" : "the reference"));
        f->capture[f->n_captures++] = d;
    }
    return KLD_OK;
}

static kld_status check(const json_t *receipt, kld_receipt_facts *f, kld_err *err) {
    uint64_t version;
    json_t *content, *run;
    kld_digest said;
    const char *text;
    if (!json_object_get(receipt, "kld_receipt"))
        return kld_fail(err, KLD_E_INPUT, "is no receipt of kld: it has no 'kld_receipt'");
    TRY(kld_json_u64(receipt, "kld_receipt", &version, err));
    if (version != KLD_RECEIPT_VERSION)
        return kld_fail(err, KLD_E_UNSUPPORTED, "receipt of version %llu; this program reads %d",
                        (unsigned long long)version, KLD_RECEIPT_VERSION);
    TRY(kld_json_obj(receipt, "content", &content, err));
    TRY(hex_member(receipt, "content_sha256", said.b, sizeof said.b, err));
    TRY(kld_json_obj(receipt, "run", &run, err));
    TRY(kld_json_str(run, "time", &text, err));
    TRY(kld_json_str(run, "host", &text, err));
    TRY(only(run, 2, "'run'", err));
    TRY(only(receipt, 5, "it", err));
    TRY(receipt_digest(content, &f->content, err));
    if (!kld_same_digest(&said, &f->content)) {
        char has[KLD_SHA256_HEX];
        return kld_fail(err, KLD_E_INPUT,
                        "'content' was changed: its SHA-256 is %s, 'content_sha256' says otherwise",
                        kld_digest_hex(&f->content, has));
    }
    TRY(find_captures(content, f, err));
    return check_signature(receipt, f, err);
}

kld_status kld_receipt_check(const json_t *receipt, kld_receipt_facts *out, kld_err *err) {
    memset(out, 0, sizeof *out);
    kld_status st = check(receipt, out, err);
    if (st != KLD_OK) kld_receipt_facts_free(out);
    return st;
}

/* Take out the blanks between the parts of a JSON text. */
static void squeeze(kld_buf *b) {
    bool in_string = false;
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++) {
        unsigned char c = b->data[i];
        if (!in_string && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
        if (c == '"') in_string = !in_string;
        b->data[n++] = c;
        if (in_string && c == '\\' && i + 1 < b->len) b->data[n++] = b->data[++i];
    }
    b->len = n;
}

/* The text is what kld_json_dump gives for the value, but for blanks. */
static kld_status check_text(kld_buf *text, const json_t *v, kld_err *err) {
    kld_buf want = {0};
    kld_status st = kld_json_dump(v, false, &want, err);
    if (st == KLD_OK) {
        squeeze(text);
        size_t i = 0;
        while (i < text->len && i < want.len && text->data[i] == want.data[i]) i++;
        if (i < text->len || i < want.len)
            st = kld_fail(err, KLD_E_INPUT,
                          "a number or string is not written as kld writes it: found '%.24s', "
                          "expected '%.24s'; was the file edited?",
                          text->data + i, want.data + i);
    }
    kld_buf_free(&want);
    return st;
}

kld_status kld_receipt_read(const char *path, json_t **out, kld_receipt_facts *facts,
                            kld_err *err) {
    kld_buf text = {0};
    json_t *v = NULL;
    memset(facts, 0, sizeof *facts);
    if (out) *out = NULL;
    TRY(kld_file_slurp(path, MAX_RECEIPT, &text, err));
    kld_status st;
    TRY_TO(done, kld_json_parse(&v, text.data, text.len, MAX_DEPTH, err));
    TRY_TO(done, kld_receipt_check(v, facts, err));
    TRY_TO(done, check_text(&text, v, err));
    if (out) *out = json_incref(v);
done:
    if (st != KLD_OK) {
        kld_receipt_facts_free(facts);
        (void)kld_where(err, st, "%s", path);
    }
    json_decref(v);
    kld_buf_free(&text);
    return st;
}
