/* kld/store/capture.h - the capture file: write, resume, read, verify.
 * Floor 1; may include kld/base only; the only module that sees zstd.
 * Byte layout: docs/format.md. */
#ifndef KLD_STORE_CAPTURE_H
#define KLD_STORE_CAPTURE_H
#include "kld/base/buf.h"
#include "kld/base/ed25519.h"
#include "kld/base/json.h"
#include "kld/base/sha256.h"
#include "kld/base/status.h"
#include "kld/store/records.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KLD_EXTERN_C_BEGIN

/* How tokens came to their experts. */
typedef enum kld_route_mode {
    KLD_ROUTES_NATURAL,   /* by the model's own routers */
    KLD_ROUTES_REPLAYED,  /* experts and weights are those of another capture */
    KLD_ROUTES_ID_PINNED, /* its experts, with weights of the model's own routers */
    KLD_ROUTES_MODES
} kld_route_mode;
const char *kld_route_mode_name(kld_route_mode m); /* "natural", "replay", "replay-ids" */

typedef struct kld_route_info {
    kld_route_mode mode;
    bool kept;                       /* the file has them: natural ones */
    uint64_t layers, top_k, experts; /* of the model, when kept or not natural; else 0 */
    kld_digest source; /* content digest of the capture that they are from; zero when natural */
} kld_route_info;

/* The hidden states that an exact capture keeps: of scored rows, what the head was given, after
 * the final norm and rounded as its product takes it.  Logits are
 * cap(alpha * (hidden W^T) + bias) with the head of that digest. */
typedef struct kld_hidden_info {
    uint64_t cols;    /* hidden size; 0: none are kept */
    uint64_t bytes;   /* of a value: 2 BF16, 4 FP32 */
    double logit_cap; /* > 0: logits are cap * tanh(logit / cap) */
    kld_digest head;  /* kld_head_digest (loaders/head.h) */
} kld_hidden_info;

/* Bytes of hidden states, at 4 a value, that a window may have at most. */
#define KLD_CAPTURE_MAX_HIDDEN ((uint64_t)1 << 31)

/* What follows it in the engine's "arithmetic" is how inputs of products were quantized: a part of
 * the checkpoint that was captured, as its weights are. */
#define KLD_ARITHMETIC_INPUTS "; quantized inputs "

/* The header: who was run, on what, how.  Strings are owned (kld_free) and never NULL in
 * a capture that was read; NULL means "" when writing. */
typedef struct kld_capture_info {
    char *name;  /* base name of the checkpoint directory or org/name */
    char *label; /* method label, e.g. "NVFP4 (QAD)" */
    char *family;
    kld_digest model;      /* kld_checkpoint digest */
    kld_digest model_full; /* --hash full, or zero */
    kld_digest tokenizer, suite;
    uint64_t vocab;      /* columns in the softmax */
    uint64_t vocab_rows; /* rows of the head as stored; >= vocab */
    uint64_t windows, positions;
    uint64_t top_k, min_k, tail_samples;
    double tail_mass;
    uint64_t seed;
    bool has_reference; /* a candidate captured with --ref */
    char *reference_name;
    kld_digest reference; /* content digest of the reference capture */
    uint64_t ref_top_k, ref_tail_samples;
    char *partition; /* which windows of the suite it holds; "" = all, see docs/format.md */
    kld_route_info routes;
    kld_hidden_info hidden;
    char *floor; /* in which way a measurement of the noise floor differs from the capture that it
                    repeats: "precision" or "chunk"; "" when it is none */
    json_t *engine; /* owned: flat object of strings (version, commit, backend, device, blas,
                       precision, activations, ...).  Two captures are comparable without a
                       mark only if key "arithmetic" is equal in both up to
                       KLD_ARITHMETIC_INPUTS. */
    json_t *quant;  /* owned: {module kind: {format: count, ...}, ...} */
    /* Recorded but outside the content digest. */
    char *time; /* ISO 8601 UTC */
    char *host;
    char *checkpoint; /* absolute directory; "" unknown: where a head or tokenizer may be found */
} kld_capture_info;
void kld_capture_info_free(kld_capture_info *info);

/* Where a window came from; strings borrowed when writing, owned by the capture when read. */
typedef struct kld_window_meta {
    uint64_t tokens;     /* ids in the window */
    uint64_t score_from; /* first scored position */
    uint64_t offset;
    const char *source, *cluster, *stratum, *partition;
    kld_digest ids; /* SHA-256 of the window's ids */
} kld_window_meta;

/* ---- writing ---------------------------------------------------------------------- */

typedef struct kld_capture_writer kld_capture_writer;

/* Start path.partial.  info->windows frames must follow.
 * KLD_E_INPUT  a field of info is out of range or not valid UTF-8 (the message names it). */
KLD_NODISCARD kld_status kld_capture_create(kld_capture_writer **out, const char *path,
                                            const kld_capture_info *info, kld_err *err);

/* Continue path.partial after its last whole frame; *windows_done frames are in it.  The
 * time and host of the first start are kept, so the finished file is the same as that of
 * an uninterrupted run.  A partial that was cut inside its header holds nothing yet: it is
 * started again, with the time and host of info.
 * KLD_E_INPUT  no partial, or its header differs from info in anything but time and host
 *              (the message names the field). */
KLD_NODISCARD kld_status kld_capture_resume(kld_capture_writer **out, const char *path,
                                            const kld_capture_info *info, size_t *windows_done,
                                            kld_err *err);

/* Append one window, in suite order.  Log-probabilities are rounded to the file's grid
 * (docs/format.md) as they are stored; of a row that is not finite, only its count and its
 * scalars are.
 *  meta tokens and score_from must leave exactly r->n rows: tokens - 1 - score_from
 *  r    has routes of meta->tokens tokens when info.routes.kept, hidden states when
 *       info.hidden.cols > 0
 *  ref  the reference's records of the same window (as read back from its capture) when
 *       info.has_reference, else NULL
 * Synced to disk at least once a second of writing, so a crash loses little.
 * KLD_E_INPUT    meta does not fit the rows, or a string in it is longer than 4,096 bytes.
 * KLD_E_NUMERIC  NaN or +inf where a log-probability must be, or a mass above 1.
 * KLD_E_INTERNAL shapes other than the header's, unsorted lists, ids outside the vocabulary,
 * experts that do not exist or are twice in a route. KLD_E_IO       the write failed; the partial
 * can be resumed, but not through this w. */
KLD_NODISCARD kld_status kld_capture_add(kld_capture_writer *w, const kld_window_meta *meta,
                                         const kld_records *r, const kld_records *ref,
                                         kld_err *err);

/* The same in two steps, so that several windows can be compressed at a time: encode reads nothing
 * of w that changes and may run in any thread, put appends in suite order and frees what encode
 * gave.  Errors as above, each where its cause is.  `window` is for messages. */
typedef struct kld_encoded {
    kld_buf frame, head;
    kld_digest sha256;
    uint64_t rows;
} kld_encoded;
KLD_NODISCARD kld_status kld_capture_encode(const kld_capture_writer *w, size_t window,
                                            const kld_window_meta *meta, const kld_records *r,
                                            const kld_records *ref, kld_encoded *out, kld_err *err);
KLD_NODISCARD kld_status kld_capture_put(kld_capture_writer *w, kld_encoded *e, kld_err *err);
void kld_encoded_free(kld_encoded *e); /* of one that was not put */

/* All windows added so far are on the disk: from here a resume needs nothing else for them. */
KLD_NODISCARD kld_status kld_capture_sync(kld_capture_writer *w, kld_err *err);

/* Write the footer, sync, rename into place, free w.  On failure w is still the caller's, to
 * leave or abort.  KLD_E_INTERNAL when windows or positions are not those of the header. */
KLD_NODISCARD kld_status kld_capture_finish(kld_capture_writer *w, kld_err *err);
void kld_capture_leave(kld_capture_writer *w); /* keep the partial for a resume; frees w */
void kld_capture_abort(kld_capture_writer *w); /* remove the partial; frees w */

/* ---- reading ---------------------------------------------------------------------- */

typedef struct kld_capture kld_capture;

/* Header and footer are read and checked; frames are checked as they are read.
 * KLD_E_INPUT        not a capture, truncated, damaged: the message begins with the path and
 *                    names the part.
 * KLD_E_UNSUPPORTED  a later version of the format. */
KLD_NODISCARD kld_status kld_capture_open(kld_capture **out, const char *path, kld_err *err);
void kld_capture_close(kld_capture *c);

const kld_capture_info *kld_capture_header(const kld_capture *c);
kld_digest kld_capture_digest(const kld_capture *c); /* content digest */
const char *kld_capture_path(const kld_capture *c);
uint64_t kld_capture_bytes(const kld_capture *c); /* file size */

/* Window i of the file into out (allocated here; kld_records_free).  Thread-safe for
 * distinct out.
 *  ref   the reference's records of window i, needed when the capture has a reference
 *        (its own list is stored relative to the reference's ids), else NULL
 *  meta  may be NULL; strings live as long as c
 * out: k_ld is the longest list; rows of ref_lp follow ref->k_ld.  Entries past a row's count
 * are 0 in lp and ids, and NaN in ref_lp.  The own list of a candidate is in the order of its
 * rounded log-probabilities (ties: lower id first), but its first id is the true one.
 * KLD_E_INPUT  damaged frame (message: path, window, byte range, reason); ref is missing, or
 *              not what the capture was made against. */
KLD_NODISCARD kld_status kld_capture_read(kld_capture *c, size_t i, const kld_records *ref,
                                          kld_records *out, kld_window_meta *meta, kld_err *err);

/* The routes of window i alone, which need no reference; everything else of *out stays empty.
 * KLD_E_INPUT  damaged frame; the capture keeps none. */
KLD_NODISCARD kld_status kld_capture_read_routes(kld_capture *c, size_t i, kld_records *out,
                                                 kld_err *err);

/* The hidden states of window i alone, which need no reference: n, first and hidden of *out.
 * kld_capture_read leaves them out.
 * KLD_E_INPUT  damaged frame; the capture keeps none. */
KLD_NODISCARD kld_status kld_capture_read_hidden(kld_capture *c, size_t i, kld_records *out,
                                                 kld_err *err);

/* Meta of window i, from the footer: reads nothing. */
KLD_NODISCARD kld_status kld_capture_meta(kld_capture *c, size_t i, kld_window_meta *meta,
                                          kld_err *err);

/* The signature that the file carries, false without one.  Opening looked at its form alone. */
bool kld_capture_signature(const kld_capture *c, kld_signature *out);
/* KLD_E_INPUT when it is not a signature of its key over the content digest; fine without one. */
KLD_NODISCARD kld_status kld_capture_check_signature(const kld_capture *c, kld_err *err);

/* Every byte of the file: header, each frame's SHA-256 and decompression, footer, content
 * digest, signature, nothing in between or after.  KLD_E_INTERRUPTED.  The columns of a candidate
 * cannot be decoded without its reference; their bytes are checked all the same. */
KLD_NODISCARD kld_status kld_capture_verify(kld_capture *c, kld_err *err);

/* ---- signing ---------------------------------------------------------------------- */

/* Check every byte, then put a signature of key over the content digest into the footer.  The file
 * is copied to path.partial (shared blocks where the file system can) and renamed, with the
 * permissions it had: until then it is untouched.  Nothing is written when it has a signature of
 * this key already.  c goes on showing the file as it was.
 * KLD_E_INPUT  it is not whole; it has a signature of another key and replace is false; there is
 *              a path.partial, which may be an unfinished run.
 * KLD_E_IO, KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_capture_sign(kld_capture *c, const kld_key *key, bool replace,
                                          kld_err *err);

KLD_EXTERN_C_END
#endif
