/* kld/compare/worst.h - what stood at the positions of largest KL: the ids before them, what each
 * side held most probable, and the text of all of it.  Floor 3. */
#ifndef KLD_COMPARE_WORST_H
#define KLD_COMPARE_WORST_H
#include "kld/compare/emit.h"
#include "kld/compare/tally.h"
#include "kld/store/capture.h"
#include "loaders/tokenizer.h"

KLD_EXTERN_C_BEGIN

enum {
    KLD_WORST_TOP = 5,     /* most probable tokens kept of each side */
    KLD_WORST_CONTEXT = 48 /* ids kept before a position */
};

typedef struct kld_worst {
    uint32_t n_context, n_ref, n_cand; /* ids below */
    uint32_t
        context[KLD_WORST_CONTEXT]; /* in order of the text; the last is right before.  The ids
                                       before a window's first scored one are not in a capture */
    uint32_t ref_id[KLD_WORST_TOP], cand_id[KLD_WORST_TOP]; /* as listed: most probable first */
    double ref_lp[KLD_WORST_TOP], cand_lp[KLD_WORST_TOP];   /* nats */
} kld_worst;

/* Candidate k's worst positions of the tally into out[k * KLD_WORST + i]: windows that hold one are
 * read again, each once a capture.  cand[k] may be NULL, which is the reference itself.
 * Errors of kld_capture_read; KLD_E_NOMEM; KLD_E_INTERRUPTED. */
KLD_NODISCARD kld_status kld_worst_read(kld_capture *ref, kld_capture *const *cand,
                                        const kld_tally *t, kld_worst *out, kld_err *err);

/* The tokenizer that texts are made with: that of path, or with `find` and no path the one where
 * the reference's checkpoint was, if it is there and the same; else *out is NULL. KLD_E_INPUT  it
 * is another one than the reference's (message has both digests). KLD_E_UNSUPPORTED  it cannot
 * decode.  Errors of kld_tokenizer_open. */
KLD_NODISCARD kld_status kld_worst_tokenizer(const char *path, bool find,
                                             const kld_capture_info *ref, kld_tokenizer **out,
                                             kld_err *err);

/* Text of n ids as a member, null without a tokenizer or when it lacks an id.  Bytes that are not
 * UTF-8 become U+FFFD, as many as the standard says; C0 controls and DEL their pictures (U+2400
 * on); other controls and what changes the direction or the line of a text "[U+202E]". */
void kld_worst_text(kld_emit *e, json_t *into, const char *key, const kld_tokenizer *tok,
                    const uint32_t *id, size_t n);
/* The same for bytes. */
KLD_NODISCARD kld_status kld_visible_text(const unsigned char *s, size_t n, kld_buf *out,
                                          kld_err *err);

KLD_EXTERN_C_END
#endif
