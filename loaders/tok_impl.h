/* loaders/tok_impl.h - what a tokenizer is made of.  Floor 1, private to the tokenizer. */
#ifndef KLD_LOADERS_TOK_IMPL_H
#define KLD_LOADERS_TOK_IMPL_H
#include "loaders/tok_added.h"
#include "loaders/tok_bpe.h"
#include "loaders/tok_split.h"
#include "loaders/tokenizer.h"

struct kld_tokenizer {
    kld_tok_bpe bpe;
    kld_tok_added *added; /* [n_added], owned; in the file's order */
    size_t n_added;
    kld_tok_added_set plain, normalized;
    bool nfc;
    kld_tok_split split;
    bool byte_decoder; /* the decoder is ByteLevel; otherwise decoding is refused */
    bool has_bos;
    uint32_t bos;
    kld_digest digest;
};

#endif
