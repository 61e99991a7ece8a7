#include "kld/store/layout.h"

#include "kld/base/cursor.h"
#include "kld/base/file.h"
#include "kld/base/mem.h"
#include "kld/base/num.h"
#include "kld/store/info.h"

#include <string.h>

/* Skippable frames of zstd (RFC 8878, 3.1.2): magic 0x184D2A5?, u32 size, payload. */
static const uint32_t HEADER_SKIP = 0x184D2A50u, FOOTER_SKIP = 0x184D2A5Fu;
static const char HEADER_MAGIC[] = "KLDCAPTR", FOOTER_MAGIC[] = "KLDINDEX",
                  END_MAGIC[] = "KLDEND.1";
enum {
    MAGIC = 8,
    MAX_HEADER = 1 << 20,
    ENTRY = 24 + KLD_SHA256_BYTES, /* without the head */
    FOOTER_FIXED = 8 + 4 + 4 + 8 + 8 + 3 * 32 + 4,
    SIGNATURE = KLD_ED25519_KEY + KLD_ED25519_BYTES
};

void layout_free(layout *l) {
    kld_buf_free(&l->identity);
    kld_buf_free(&l->run);
    kld_buf_free(&l->heads);
    kld_free(l->frame);
    memset(l, 0, sizeof *l);
}

kld_status layout_add(layout *l, const frame_entry *e, const void *head, size_t head_bytes,
                      kld_err *err) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        TRY(kld_realloc((void **)&l->frame, cap, sizeof *l->frame, err));
        l->cap = cap;
    }
    frame_entry *to = &l->frame[l->n];
    *to = *e;
    to->head_at = l->heads.len;
    to->head_bytes = head_bytes;
    TRY(kld_buf_add(&l->heads, head, head_bytes, err));
    l->n++;
    return KLD_OK;
}

kld_status layout_digest(const layout *l, kld_digest *out, kld_err *err) {
    static const char what[] = "kld capture 1";
    kld_sha256 s;
    TRY(kld_sha256_begin(&s, err));
    kld_status st;
    TRY_TO(fail, kld_sha256_add(&s, what, sizeof what, err));
    TRY_TO(fail, kld_sha256_add(&s, l->identity.data, l->identity.len, err));
    for (size_t i = 0; i < l->n; i++)
        TRY_TO(fail, kld_sha256_add(&s, l->frame[i].sha256.b, KLD_SHA256_BYTES, err));
    return kld_sha256_end(&s, out, err);
fail:
    kld_sha256_drop(&s);
    return st;
}

/* SHA-256 of everything in b from `from` on, appended to b. */
static kld_status seal(kld_buf *b, size_t from, kld_err *err) {
    kld_digest d;
    TRY(kld_sha256_of(b->data + from, b->len - from, &d, err));
    return kld_buf_add(b, d.b, sizeof d.b, err);
}

kld_status layout_header_write(layout *l, const kld_capture_info *info, kld_buf *out,
                               kld_err *err) {
    kld_buf_clear(&l->identity);
    kld_buf_clear(&l->run);
    TRY(kld_info_identity(info, &l->identity, err));
    TRY(kld_info_run(info, &l->run, err));
    size_t payload = MAGIC + 16 + l->identity.len + l->run.len + KLD_SHA256_BYTES, start = out->len;
    if (payload > MAX_HEADER)
        return kld_fail(err, KLD_E_INPUT, "the capture's header would be %zu bytes; at most %d fit",
                        payload, MAX_HEADER);
    TRY(kld_buf_u32(out, HEADER_SKIP, err));
    TRY(kld_buf_u32(out, (uint32_t)payload, err));
    size_t from = out->len;
    TRY(kld_buf_add(out, HEADER_MAGIC, MAGIC, err));
    TRY(kld_buf_u32(out, KLD_CAPTURE_VERSION, err));
    TRY(kld_buf_u32(out, 0, err)); /* flags, reserved */
    TRY(kld_buf_u32(out, (uint32_t)l->identity.len, err));
    TRY(kld_buf_u32(out, (uint32_t)l->run.len, err));
    TRY(kld_buf_add(out, l->identity.data, l->identity.len, err));
    TRY(kld_buf_add(out, l->run.data, l->run.len, err));
    TRY(seal(out, from, err));
    l->header_bytes = out->len - start;
    return kld_sha256_of(out->data + start, out->len - start, &l->header, err);
}

static kld_status not_a_capture(const kld_file *f, const char *why, kld_err *err) {
    return kld_fail(err, KLD_E_INPUT, "%s: not a kld capture: %s", f->path, why);
}

static kld_status damaged(const kld_file *f, const char *part, const char *why, kld_err *err) {
    return kld_fail(err, KLD_E_INPUT, "%s: damaged %s: %s", f->path, part, why);
}

/* Check that the last 32 bytes of a payload are the SHA-256 of those before. */
static kld_status check_seal(const kld_file *f, const char *part, const unsigned char *p, size_t n,
                             kld_err *err) {
    kld_digest d;
    TRY(kld_sha256_of(p, n - KLD_SHA256_BYTES, &d, err));
    if (memcmp(d.b, p + n - KLD_SHA256_BYTES, KLD_SHA256_BYTES) != 0)
        return damaged(f, part, "its SHA-256 does not match", err);
    return KLD_OK;
}

static kld_status parse_header(layout *l, const kld_file *f, const unsigned char *frame, size_t n,
                               kld_capture_info *info, kld_err *err) {
    kld_cursor c = kld_cursor_of(frame + LAYOUT_SKIP_BYTES, n - LAYOUT_SKIP_BYTES);
    const unsigned char *magic = kld_cursor_take(&c, MAGIC);
    if (memcmp(magic, HEADER_MAGIC, MAGIC) != 0) return not_a_capture(f, "other magic", err);
    uint32_t version = kld_cursor_u32(&c), flags = kld_cursor_u32(&c);
    if (version != KLD_CAPTURE_VERSION)
        return kld_fail(err, KLD_E_UNSUPPORTED,
                        "%s: capture format version %u; this program reads version %d", f->path,
                        (unsigned)version, KLD_CAPTURE_VERSION);
    TRY(check_seal(f, "header", c.p, c.size, err));
    size_t n_identity = kld_cursor_u32(&c), n_run = kld_cursor_u32(&c);
    const unsigned char *identity = kld_cursor_take(&c, n_identity),
                        *run = kld_cursor_take(&c, n_run);
    if (c.bad || flags || kld_cursor_left(&c) != KLD_SHA256_BYTES)
        return damaged(f, "header", "sizes or reserved flags are wrong", err);
    TRY(kld_where(err, kld_info_parse(info, identity, n_identity, run, n_run, err), "%s: header",
                  f->path));
    kld_status st = kld_buf_add(&l->identity, identity, n_identity, err);
    if (st == KLD_OK) st = kld_buf_add(&l->run, run, n_run, err);
    if (st == KLD_OK) st = kld_sha256_of(frame, n, &l->header, err);
    if (st != KLD_OK) kld_capture_info_free(info);
    return st;
}

kld_status layout_header_torn(const kld_file *f, bool *torn, kld_err *err) {
    enum { START = LAYOUT_SKIP_BYTES + MAGIC + 16 };
    unsigned char start[START] = {0};
    kld_buf want = {0};
    size_t n = num_min(START, (size_t)f->size);
    TRY(kld_file_read(f, start, 0, n, err));
    kld_cursor c = kld_cursor_of(start, START);
    (void)kld_cursor_u32(&c);
    uint32_t payload = kld_cursor_u32(&c);
    c.pos = START - 8;
    uint64_t texts = kld_cursor_u32(&c);
    texts += kld_cursor_u32(&c);
    /* What a header begins with; of the three sizes, what is there is taken as it is. */
    kld_status st = kld_buf_u32(&want, HEADER_SKIP, err);
    if (st == KLD_OK) st = kld_buf_u32(&want, payload, err);
    if (st == KLD_OK) st = kld_buf_add(&want, HEADER_MAGIC, MAGIC, err);
    if (st == KLD_OK) st = kld_buf_u32(&want, KLD_CAPTURE_VERSION, err);
    if (st == KLD_OK) st = kld_buf_u32(&want, 0, err);
    if (st == KLD_OK)
        *torn = memcmp(start, want.data, num_min(n, want.len)) == 0 &&
                (n < START || (payload == MAGIC + 16 + texts + KLD_SHA256_BYTES &&
                               payload <= MAX_HEADER && f->size - LAYOUT_SKIP_BYTES < payload));
    kld_buf_free(&want);
    return st;
}

kld_status layout_header_read(layout *l, const kld_file *f, kld_capture_info *info, kld_err *err) {
    unsigned char skip[LAYOUT_SKIP_BYTES];
    if (f->size < sizeof skip) return not_a_capture(f, "it is too short", err);
    TRY(kld_file_read(f, skip, 0, sizeof skip, err));
    kld_cursor c = kld_cursor_of(skip, sizeof skip);
    uint32_t magic = kld_cursor_u32(&c), payload = kld_cursor_u32(&c);
    if (magic != HEADER_SKIP) return not_a_capture(f, "it does not begin with a header frame", err);
    if (payload > MAX_HEADER || payload < MAGIC + 16 + KLD_SHA256_BYTES)
        return damaged(f, "header", "its size is out of range", err);
    if (payload > f->size - sizeof skip)
        return damaged(f, "header", "the file ends within it", err);
    unsigned char *frame;
    size_t n = sizeof skip + payload;
    TRY(kld_calloc((void **)&frame, n, 1, err));
    kld_status st = kld_file_read(f, frame, 0, n, err);
    if (st == KLD_OK) st = parse_header(l, f, frame, n, info, err);
    kld_free(frame);
    l->header_bytes = n;
    return st;
}

kld_status layout_footer_write(const layout *l, kld_buf *out, kld_err *err) {
    kld_digest content;
    uint64_t positions = 0;
    TRY(layout_digest(l, &content, err));
    uint32_t signature = l->has_signature ? SIGNATURE : 0;
    size_t payload = FOOTER_FIXED + signature + l->n * ENTRY + l->heads.len + LAYOUT_TAIL_BYTES;
    if (payload > UINT32_MAX) return kld_fail(err, KLD_E_INPUT, "too many windows for one capture");
    TRY(kld_buf_u32(out, FOOTER_SKIP, err));
    TRY(kld_buf_u32(out, (uint32_t)payload, err));
    size_t from = out->len;
    TRY(kld_buf_add(out, FOOTER_MAGIC, MAGIC, err));
    TRY(kld_buf_u32(out, KLD_CAPTURE_VERSION, err));
    TRY(kld_buf_u32(out, 0, err)); /* flags, reserved */
    TRY(kld_buf_u64(out, l->n, err));
    for (size_t i = 0; i < l->n; i++) {
        const frame_entry *e = &l->frame[i];
        TRY(kld_buf_u64(out, e->offset, err));
        TRY(kld_buf_u64(out, e->bytes, err));
        TRY(kld_buf_u32(out, (uint32_t)e->rows, err));
        TRY(kld_buf_u32(out, (uint32_t)e->head_bytes, err));
        TRY(kld_buf_add(out, e->sha256.b, KLD_SHA256_BYTES, err));
        TRY(kld_buf_add(out, l->heads.data + e->head_at, e->head_bytes, err));
        positions += e->rows;
    }
    TRY(kld_buf_u64(out, positions, err));
    TRY(kld_buf_add(out, l->header.b, KLD_SHA256_BYTES, err));
    TRY(kld_buf_add(out, content.b, KLD_SHA256_BYTES, err));
    TRY(kld_buf_u32(out, signature, err));
    if (signature) {
        TRY(kld_buf_add(out, l->signature.key.b, KLD_ED25519_KEY, err));
        TRY(kld_buf_add(out, l->signature.b, KLD_ED25519_BYTES, err));
    }
    TRY(seal(out, from, err));
    TRY(kld_buf_u32(out, (uint32_t)payload, err));
    return kld_buf_add(out, END_MAGIC, MAGIC, err);
}

/* Its form alone; whether it is one of its key is for kld_capture_check_signature. */
static kld_status parse_signature(layout *l, const kld_file *f, kld_cursor *c, kld_err *err) {
    uint32_t n = kld_cursor_u32(c);
    if (n != 0 && n != SIGNATURE)
        return damaged(f, "footer", "its signature has neither 0 nor 96 bytes", err);
    const unsigned char *p = kld_cursor_take(c, n);
    if (n == 0 || !p) return KLD_OK;
    l->has_signature = true;
    memcpy(l->signature.key.b, p, KLD_ED25519_KEY);
    memcpy(l->signature.b, p + KLD_ED25519_KEY, KLD_ED25519_BYTES);
    return KLD_OK;
}

static kld_status parse_footer(layout *l, const kld_file *f, const unsigned char *p, size_t n,
                               const kld_capture_info *info, kld_digest *content, kld_err *err) {
    TRY(check_seal(f, "footer", p, n - LAYOUT_TAIL_BYTES, err));
    kld_cursor c = kld_cursor_of(p, n - LAYOUT_TAIL_BYTES - KLD_SHA256_BYTES);
    const unsigned char *magic = kld_cursor_take(&c, MAGIC);
    uint32_t version = kld_cursor_u32(&c), flags = kld_cursor_u32(&c);
    uint64_t count = kld_cursor_u64(&c), at = l->header_bytes, positions = 0;
    if (!magic || memcmp(magic, FOOTER_MAGIC, MAGIC) != 0 || version != KLD_CAPTURE_VERSION ||
        flags)
        return damaged(f, "footer", "magic, version or reserved flags are wrong", err);
    if (count != info->windows || count > kld_cursor_left(&c) / ENTRY)
        return damaged(f, "footer", "its number of windows is not the header's", err);
    for (uint64_t i = 0; i < count; i++) {
        frame_entry e = {.offset = kld_cursor_u64(&c)};
        e.bytes = kld_cursor_u64(&c);
        e.rows = kld_cursor_u32(&c);
        size_t n_head = kld_cursor_u32(&c);
        const unsigned char *sha = kld_cursor_take(&c, KLD_SHA256_BYTES);
        const unsigned char *head = kld_cursor_take(&c, n_head);
        if (!sha || !head || e.offset != at || e.bytes == 0 || e.bytes > f->size - at)
            return damaged(f, "footer", "a window does not begin where the one before ends", err);
        memcpy(e.sha256.b, sha, KLD_SHA256_BYTES);
        at += e.bytes;
        positions += e.rows;
        TRY(layout_add(l, &e, head, n_head, err));
    }
    uint64_t total = kld_cursor_u64(&c);
    const unsigned char *header = kld_cursor_take(&c, KLD_SHA256_BYTES);
    const unsigned char *digest = kld_cursor_take(&c, KLD_SHA256_BYTES);
    TRY(parse_signature(l, f, &c, err));
    if (c.bad || kld_cursor_left(&c) != 0 || total != positions || total != info->positions ||
        at != f->size - n - LAYOUT_SKIP_BYTES)
        return damaged(f, "footer", "its totals do not fit the file", err);
    if (memcmp(header, l->header.b, KLD_SHA256_BYTES) != 0)
        return damaged(f, "header", "its SHA-256 is not the one in the footer", err);
    TRY(layout_digest(l, content, err));
    if (memcmp(digest, content->b, KLD_SHA256_BYTES) != 0)
        return damaged(f, "footer", "the content digest does not match", err);
    return KLD_OK;
}

kld_status layout_footer_read(layout *l, const kld_file *f, const kld_capture_info *info,
                              kld_digest *content, kld_err *err) {
    unsigned char tail[LAYOUT_TAIL_BYTES], skip[LAYOUT_SKIP_BYTES];
    uint64_t left = f->size - l->header_bytes;
    if (left < LAYOUT_SKIP_BYTES + FOOTER_FIXED + LAYOUT_TAIL_BYTES)
        return damaged(f, "capture", "it ends before its footer: the run did not finish", err);
    TRY(kld_file_read(f, tail, f->size - sizeof tail, sizeof tail, err));
    kld_cursor c = kld_cursor_of(tail, sizeof tail);
    size_t n = kld_cursor_u32(&c);
    if (memcmp(tail + 4, END_MAGIC, MAGIC) != 0)
        return damaged(f, "capture",
                       "it does not end with a footer: truncated, or the run did not finish", err);
    if (n < FOOTER_FIXED + LAYOUT_TAIL_BYTES || n > left - LAYOUT_SKIP_BYTES)
        return damaged(f, "footer", "its size is out of range", err);
    TRY(kld_file_read(f, skip, f->size - n - sizeof skip, sizeof skip, err));
    c = kld_cursor_of(skip, sizeof skip);
    if (kld_cursor_u32(&c) != FOOTER_SKIP || kld_cursor_u32(&c) != n)
        return damaged(f, "footer", "its frame does not begin where its size says", err);
    unsigned char *p;
    TRY(kld_calloc((void **)&p, n, 1, err));
    kld_status st = kld_file_read(f, p, f->size - n, n, err);
    if (st == KLD_OK) st = parse_footer(l, f, p, n, info, content, err);
    kld_free(p);
    return st;
}
