/* kld/store/layout.h - header and footer frames.  Floor 1; private to kld/store.
 * docs/format.md, "Header frame" and "Footer frame". */
#ifndef KLD_STORE_LAYOUT_H
#define KLD_STORE_LAYOUT_H
#include "kld/base/buf.h"
#include "kld/base/ed25519.h"
#include "kld/base/file.h"
#include "kld/base/sha256.h"
#include "kld/store/capture.h"
#include <stdbool.h>
#include <stdint.h>

enum { KLD_CAPTURE_VERSION = 1, LAYOUT_TAIL_BYTES = 12, LAYOUT_SKIP_BYTES = 8 };

typedef struct frame_entry {
    uint64_t offset, bytes, rows;
    size_t head_at, head_bytes; /* its head, in layout.heads */
    kld_digest sha256;
} frame_entry;

typedef struct layout {
    kld_buf identity, run; /* the two JSON texts */
    uint64_t header_bytes; /* whole header frame */
    kld_digest header;     /* SHA-256 of the whole header frame */
    frame_entry *frame;    /* [n] owned */
    size_t n, cap;
    kld_buf heads; /* the heads of all windows, so that they are known without their frames */
    bool has_signature;
    kld_signature signature; /* as it stands in the footer */
} layout;
void layout_free(layout *l);

/* Header frame of info into out (appended); fills identity, run, header_bytes, header. */
KLD_NODISCARD kld_status layout_header_write(layout *l, const kld_capture_info *info, kld_buf *out,
                                             kld_err *err);
/* The header frame at the start of a file. */
KLD_NODISCARD kld_status layout_header_read(layout *l, const kld_file *f, kld_capture_info *info,
                                            kld_err *err);

/* A file that ends inside its header frame, and what there is of it could be one: *torn. */
KLD_NODISCARD kld_status layout_header_torn(const kld_file *f, bool *torn, kld_err *err);

/* Append a window: e without its place in heads, and its head. */
KLD_NODISCARD kld_status layout_add(layout *l, const frame_entry *e, const void *head,
                                    size_t head_bytes, kld_err *err);

/* SHA-256 over identity and every frame's digest: the content digest. */
KLD_NODISCARD kld_status layout_digest(const layout *l, kld_digest *out, kld_err *err);

/* The footer, with the signature if there is one. */
KLD_NODISCARD kld_status layout_footer_write(const layout *l, kld_buf *out, kld_err *err);
/* Reads the footer at the end of the file into l->frame and *content, and checks it against
 * itself, the header that was read before, the file's size and info. */
KLD_NODISCARD kld_status layout_footer_read(layout *l, const kld_file *f,
                                            const kld_capture_info *info, kld_digest *content,
                                            kld_err *err);

#endif
